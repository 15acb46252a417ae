//! The answers of the server, compared with what the model expects.

use std::net::TcpStream;
use std::time::Instant;

use farrow_memory::Span;
use farrow_net::frame::{CAN_PACK, FrameHeader, INLINE_BYTES_MAX, Op, Opened, VERSION};
use farrow_net::pack::{PackedCounts, unpack};

use super::model::ExpectedAnswer;
use super::source::block_of;
use super::{JudgedServer, SECTION, read_frame};
use crate::common::LONG;

/// Kinds of answers, the packed piece and the end included.
const KINDS: usize = 13;

impl JudgedServer {
    /// Reads one answer. False if the connection ended, which only `may_end` allows.
    pub(super) fn take(
        &self,
        stream: &TcpStream,
        expected: &ExpectedAnswer,
        may_end: bool,
    ) -> bool {
        if let ExpectedAnswer::Pieces { id, pieces, may_pack } = expected {
            self.count(expected.kind());
            return pieces.iter().all(|piece| {
                let Some(frame) = next(stream, expected, may_end) else { return false };
                self.assert_piece(&frame, (*id, *piece), *may_pack);
                true
            });
        }
        let Some((header, body)) = next(stream, expected, may_end) else { return false };
        self.count(expected.kind());
        let found = (header.op, header.id, header.offset);
        match expected {
            ExpectedAnswer::Welcome => {
                assert_eq!(found, (Op::Welcome, CAN_PACK, VERSION));
                assert_eq!(body, SECTION.to_le_bytes());
            }
            ExpectedAnswer::Opened { id, hold, key } => {
                assert_eq!(found, (Op::Opened, *id, *hold), "{}", String::from_utf8_lossy(&body));
                let block = block_of(*key).unwrap();
                let is_inline = block.length.0 <= INLINE_BYTES_MAX;
                let inline = if is_inline { self.image_of(block).to_vec() } else { Vec::new() };
                let entry = key.to_le_bytes().to_vec();
                let opened = Opened { blocks: vec![block], entry, inline };
                assert!(Opened::decode(&body).unwrap() == opened, "another object than {key}");
            }
            ExpectedAnswer::Released { id, hold } => assert_eq!(found, (Op::Released, *id, *hold)),
            ExpectedAnswer::Pushed { id, grant, pieces } => {
                assert_eq!(found, (Op::Pushed, *id, *grant));
                for (piece, bytes) in pieces {
                    let there = self.source.bytes(piece.offset.0, piece.length.0);
                    assert!(there == bytes, "{piece} has other bytes than those of the push");
                }
            }
            ExpectedAnswer::Error { id, code } => {
                assert_eq!(found, (Op::Error, *id, code.to_word()))
            }
            ExpectedAnswer::Invalidate { object } => {
                assert_eq!((header.op, header.offset), (Op::Invalidate, *object));
            }
            ExpectedAnswer::Pieces { .. } => unreachable!("handled above"),
        }
        true
    }

    pub(super) fn count(&self, kind: &'static str) {
        *self.counts.lock().unwrap().entry(kind).or_default() += 1;
    }

    /// How often each kind of answer was compared.
    pub fn coverage(&self) -> String {
        let counts = self.counts.lock().unwrap();
        counts.iter().map(|(kind, count)| format!("{kind} {count}")).collect::<Vec<_>>().join(", ")
    }

    /// Checks that each kind of answer occurred: otherwise the runs would end too early to say much.
    pub fn assert_covered(&self) {
        let kinds = self.counts.lock().unwrap().len();
        assert_eq!(kinds, KINDS, "{}", self.coverage());
    }

    fn image_of(&self, span: Span) -> &[u8] {
        &self.image[span.offset.0 as usize..][..span.length.as_usize()]
    }

    fn assert_piece(
        &self,
        (header, body): &(FrameHeader, Vec<u8>),
        (id, piece): (u64, Span),
        may_pack: bool,
    ) {
        assert_eq!((header.id, header.offset), (id, piece.offset.0), "{header:?} for {piece}");
        let plain = match header.op {
            Op::Data => body,
            Op::Packed if may_pack => {
                self.count("packed");
                &unpack(body, piece.length.0, &PackedCounts::default()).unwrap()
            }
            op => panic!("{op:?} for {piece}"),
        };
        assert!(plain == self.image_of(piece), "other bytes than those of {piece}");
    }
}

fn next(
    stream: &TcpStream,
    expected: &ExpectedAnswer,
    may_end: bool,
) -> Option<(FrameHeader, Vec<u8>)> {
    let frame = read_frame(stream);
    assert!(frame.is_some() || may_end, "the connection ended where {expected:?} is due");
    frame
}

/// The number of the first stream that has bytes to read.
pub(super) fn first_readable<'a>(streams: impl Iterator<Item = &'a TcpStream> + Clone) -> usize {
    let begin = Instant::now();
    loop {
        for (number, stream) in streams.clone().enumerate() {
            stream.set_nonblocking(true).unwrap();
            let peeked = stream.peek(&mut [0; 1]);
            stream.set_nonblocking(false).unwrap();
            if peeked.is_ok() {
                return number;
            }
        }
        assert!(begin.elapsed() < LONG, "no notice in {LONG:?}");
    }
}
