//! Possible input from a peer, generated from a fuzzer's bytes. The fuzz targets and a plain test
//! use it.
//!
//! Random bytes rarely have a right checksum, so most inputs are instructions: the frames to send,
//! with meaningful values in their fields, and the bytes to damage.
#![allow(dead_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

pub mod live;
pub mod session;

use farrow_memory::{Length, Offset, Span};
use farrow_net::frame::{
    ConnectionClass, ExpectedRanges, FrameHeader, HEADER_BYTES, Op, Opened, PeerHello, RANGES_MAX,
    READ_BYTES_MAX, behind, decode_packed_read, decode_ranges, encode_packed_read, encode_ranges,
    piece,
};
use farrow_net::pack::{PackWish, PackedCounts, unpack};
use farrow_net::{CHUNK_BYTES, PIECE_BYTES_MAX};

/// Length of the data sections of the homes.
pub const SECTION: u64 = 1 << 20;

/// The block of the requested object; chunks begin and end within it.
pub const BLOCK: Span = Span::new(Offset(CHUNK_BYTES - 100), Length(5 * CHUNK_BYTES));

/// Bytes of a run, determined by its number.
pub fn bytes_of(run: u64, length: usize) -> Vec<u8> {
    let mut state = run.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Instructions from a fuzzer's bytes; zeros after their end.
pub struct Dice<'a>(pub &'a [u8]);

impl Dice<'_> {
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    fn word(&mut self) -> u64 {
        let near = u64::from(self.byte()) * 1000;
        let edges = [0, 1, 2, BLOCK.offset.0, CHUNK_BYTES, PIECE_BYTES_MAX, SECTION, u64::MAX];
        self.pick(&edges).wrapping_add(self.pick(&[0, 0, 0, 1, u64::MAX, near]))
    }

    fn span(&mut self) -> Span {
        let whole = piece(BLOCK);
        let rest = piece(behind(BLOCK, whole.length).unwrap());
        let made_up = Span::new(Offset(self.word()), Length(self.word()));
        self.pick(&[whole, rest, BLOCK, Span::new(BLOCK.offset, Length(10)), made_up])
    }

    fn body(&mut self, op: Op) -> Vec<u8> {
        let count = usize::from(self.byte() % 4);
        match op {
            Op::Read | Op::Push => {
                encode_ranges(&(0..count).map(|_| self.span()).collect::<Vec<_>>())
            }
            Op::ReadPacked => {
                let wish = PackWish { rate: self.pick(&[0, 0, 1, 1_000_000, u64::MAX]) };
                encode_packed_read(wish, &(0..count).map(|_| self.span()).collect::<Vec<_>>())
            }
            Op::Packed => self.packed(),
            Op::Open => self.pick(&[1_u64, 1, 9]).to_le_bytes().to_vec(),
            Op::Welcome => self.pick(&[SECTION, SECTION, 0]).to_le_bytes().to_vec(),
            Op::Opened => {
                let blocks = (0..count).map(|_| self.span()).collect();
                let opened = Opened { blocks, ..Opened::default() };
                opened.encode().unwrap_or_else(|_| self.0.to_vec())
            }
            Op::Data => {
                let length = self.span().length.0.min(PIECE_BYTES_MAX + 1);
                vec![self.byte(); length as usize]
            }
            Op::Error => b"an error".to_vec(),
            _ => vec![0; count / 3],
        }
    }

    /// A packed piece, mostly a right one, perhaps damaged. LZ4 needs a match of 4 bytes in the last
    /// 64 KiB, and the checksum the right bytes.
    fn packed(&mut self) -> Vec<u8> {
        let length = self.span().length.0.min(PIECE_BYTES_MAX) as usize;
        let plain = vec![self.byte() | 1; length];
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &plain) as u32;
        let mut bytes = crc.to_le_bytes().to_vec();
        bytes.extend(lz4_flex::block::compress(&plain));
        match self.byte() % 4 {
            0 => {
                let at = self.word() as usize % bytes.len();
                bytes[at] ^= 1 << (self.byte() % 8);
            }
            1 => bytes.truncate(self.word() as usize % (bytes.len() + 1)),
            _ => {}
        }
        bytes
    }

    /// One frame, mostly with a right checksum. `ids` are those of requests.
    pub fn frame(&mut self, ids: &[u64]) -> Vec<u8> {
        let op = Op::ALL[usize::from(self.byte()) % Op::ALL.len()];
        let made_up = self.word();
        let id = match ids {
            [] => made_up,
            ids => self.pick(&[ids[0], ids[ids.len() - 1], ids[0], made_up]),
        };
        let at = self.span().offset.0;
        let offset = self.pick(&[at, at, 1, id, made_up]);
        let body = self.body(op);
        let mut bytes =
            FrameHeader::new(op, id, offset, body.len() as u64).encode(&body, true).to_vec();
        bytes.extend(&body);
        match self.byte() % 16 {
            0 => {
                let at = self.word() as usize % bytes.len();
                bytes[at] ^= 1 << (self.byte() % 8);
            }
            1 => bytes.truncate(self.word() as usize % bytes.len()),
            2 => bytes.extend_from_within(..),
            _ => {}
        }
        bytes
    }
}

/// Checks that decoded values are within their limits, and survive encoding and decoding.
pub fn decode(data: &[u8]) {
    if let Some((head, body)) = data.split_first_chunk::<HEADER_BYTES>() {
        for is_checked in [true, false] {
            if let Ok(header) = FrameHeader::decode(head, is_checked) {
                let (min, max) = header.op.body_bytes();
                assert!((min..=max).contains(&header.length));
                let again = header.encode(body, is_checked);
                assert_eq!(FrameHeader::decode(&again, is_checked), Ok(header));
                if is_checked {
                    assert_eq!(header.verify(&again, body), Ok(()));
                    assert_eq!(header.verify(head, body).is_ok(), *head == again);
                }
            }
        }
    }
    if let Ok(ranges) = decode_ranges(data) {
        let total: u64 = ranges.iter().map(|range| range.length.0).sum();
        assert!(ranges.len() <= RANGES_MAX && total <= READ_BYTES_MAX);
        assert_eq!(encode_ranges(&ranges), data);
        arrive(&ranges);
    }
    if let Ok((wish, ranges)) = decode_packed_read(data) {
        assert_eq!(encode_packed_read(wish, &ranges), data);
    }
    let counts = PackedCounts::default();
    for length in [1, 8, 4096, BLOCK.length.0, PIECE_BYTES_MAX, u64::MAX] {
        if let Ok(plain) = unpack(data, length, &counts) {
            assert_eq!(plain.len() as u64, length);
        }
    }
    if let Ok(opened) = Opened::decode(data) {
        assert_eq!(opened.encode().as_deref(), Ok(data));
        let inline = opened.inline.len() as u64;
        let total: u64 = opened.blocks.iter().map(|block| block.length.0).sum();
        assert!(inline == 0 || inline == total);
    }
    if let Ok(hello) = PeerHello::decode(data) {
        assert_eq!(hello.encode(), data);
        assert!(matches!(
            hello.class,
            ConnectionClass::Small
                | ConnectionClass::Bulk
                | ConnectionClass::Push
                | ConnectionClass::Rdma
        ));
    }
}

/// Checks that the pieces of ranges cover all their bytes, in order, and that other data is
/// rejected.
fn arrive(ranges: &[Span]) {
    let mut expected = ExpectedRanges::new(1, ranges);
    for range in ranges {
        let mut at = range.offset.0;
        while at < range.offset.0 + range.length.0 {
            let next = expected.next().unwrap();
            assert_eq!(next.offset.0, at);
            assert!(next.length.0 > 0 && next.length.0 <= PIECE_BYTES_MAX);
            let packed = FrameHeader::new(Op::Packed, 1, next.offset.0, next.length.0);
            assert!(expected.check_packed(&packed).is_err());
            if let Some(length) = next.length.0.checked_sub(1) {
                assert_eq!(expected.check_packed(&FrameHeader { length, ..packed }), Ok(next));
            }
            let header = FrameHeader::new(Op::Data, 1, next.offset.0, next.length.0);
            assert_eq!(expected.check(&header), Ok(next));
            assert!(expected.check(&FrameHeader { id: 2, ..header }).is_err());
            expected.advance();
            at += next.length.0;
        }
        assert_eq!(at, range.offset.0 + range.length.0);
    }
    assert!(expected.is_done());
}
