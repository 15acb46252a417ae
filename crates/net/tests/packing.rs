//! Pieces that travel compressed: between nodes that both do so, with nodes that do not or are of an
//! earlier version, and of homes that lie.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::identity::Authority;
use common::proxy::{Proxy, StreamFault};
use common::{LONG, ReaderOptions, STALL, TestHome, TestReader, memory, span, until};
use farrow_memory::{Offset, Span};
use farrow_net::frame::{
    CAN_PACK, FrameHeader, HEADER_BYTES, Op, Opened, VERSION, decode_packed_read, piece,
};
use farrow_net::pack::{PackMode, PackWish, PackedCounts, PackingOptions};
use farrow_net::peer::{Piece, Placement};
use farrow_net::records::Credentials;
use farrow_net::source::table::want;
use farrow_net::{NetError, PIECE_BYTES_MAX};

const SECTION: u64 = 16 << 20;

/// Blocks of an object: neither begins nor ends at a piece.
const BLOCKS: [Span; 2] = [
    Span::new(Offset(1000), farrow_memory::Length(5 << 20)),
    Span::new(Offset(8 << 20), farrow_memory::Length((1 << 20) + 77)),
];

fn options(packing: PackMode) -> PackingOptions {
    PackingOptions { packing, counts: Arc::default() }
}

/// Bytes that become a quarter.
fn numbers(span: Span) -> Vec<u8> {
    (span.offset.0..span.offset.0 + span.length.0).map(|at| (at / 40) as u8).collect()
}

struct PackedPair {
    home: TestHome,
    reader: TestReader,
    /// Of the home, then of the reader.
    counts: [Arc<PackedCounts>; 2],
}

impl PackedPair {
    fn new(of_home: PackMode, of_reader: PackMode, credentials: [Credentials; 2]) -> Self {
        let ([of_home, of_reader], [at_home, at_reader]) =
            ([options(of_home), options(of_reader)], credentials);
        let counts = [Arc::clone(&of_home.counts), Arc::clone(&of_reader.counts)];
        let home = TestHome::packing(SECTION, at_home, (STALL, of_home));
        let plain = ReaderOptions::plain(home.address, STALL);
        let settings = ReaderOptions { packing: of_reader, credentials: at_reader, ..plain };
        let reader = TestReader::start(&home, settings);
        Self { home, reader, counts }
    }

    fn plain(of_home: PackMode, of_reader: PackMode) -> Self {
        Self::new(of_home, of_reader, [Credentials::Plain, Credentials::Plain])
    }

    fn add(&self, key: u64, bytes: impl Fn(Span) -> Vec<u8>) {
        for block in BLOCKS {
            self.home.map.write(block.offset, &bytes(block)).unwrap();
        }
        self.home.source.add(key, BLOCKS.to_vec());
    }

    /// Fetches an object into the mirror, and reads it to other offsets.
    fn fetch(&self, key: u64) {
        let (opened, held) = self.reader.open(key);
        self.reader.peer.fetch(&held, opened.hold, &BLOCKS, LONG).unwrap();
        let map = memory(SECTION);
        let pieces = BLOCKS.iter().map(|from| Piece { from: *from, to: Offset(from.offset.0 + 3) });
        let placement = Placement::new(Arc::clone(&map), pieces.collect()).unwrap();
        self.reader.peer.read(placement, opened.hold, LONG).unwrap();
        for block in BLOCKS {
            let expected = self.home.map.sealed(block).unwrap();
            assert!(self.reader.mirror.map().sealed(block).unwrap() == expected);
            let moved = Span::new(Offset(block.offset.0 + 3), block.length);
            assert!(map.sealed(moved).unwrap() == expected);
        }
    }

    fn counted(&self) -> [[u64; 2]; 2] {
        let [home, reader] = &self.counts;
        assert_eq!((home.received(), reader.sent()), ([0; 2], [0; 2]));
        [home.sent(), reader.received()]
    }
}

#[test]
fn packed_pieces_arrive_with_and_without_tls() {
    let authority = Authority::new();
    let identities = || [authority.credentials("home"), authority.credentials("reader")];
    for credentials in [[Credentials::Plain, Credentials::Plain], identities()] {
        let pair = PackedPair::new(PackMode::Auto, PackMode::Lz4, credentials);
        pair.add(1, numbers);
        pair.fetch(1);
        let [sent, received] = pair.counted();
        assert_eq!(sent, received);
        let bytes: u64 = 2 * BLOCKS.iter().map(|block| block.length.0).sum::<u64>();
        assert_eq!(sent[0], bytes);
        assert!(sent[1] < bytes / 2, "{sent:?}");
    }
}

#[test]
fn bytes_that_do_not_become_fewer_travel_as_they_are() {
    let pair = PackedPair::plain(PackMode::Auto, PackMode::Lz4);
    pair.add(1, common::pattern);
    // The pattern is all but random.
    pair.fetch(1);
    let [sent, received] = pair.counted();
    assert_eq!(sent, received);
    assert!(sent[1] <= sent[0]);
    let mut state = 7_u64;
    let mut noise = |span: Span| -> Vec<u8> {
        let words = (0..span.length.0.div_ceil(8)).flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        words.take(span.length.as_usize()).collect()
    };
    for block in BLOCKS {
        pair.home.map.write(block.offset, &noise(block)).unwrap();
    }
    pair.reader.mirror.remove(1);
    let before = pair.counted();
    pair.home.source.add(2, BLOCKS.to_vec());
    pair.fetch(2);
    assert_eq!(pair.counted(), before);
}

/// A home that packs nothing greets as one of an earlier version does, and a reader that asks for
/// nothing sends what one of an earlier version sends.
#[test]
fn nodes_of_earlier_versions_and_those_that_pack_nothing_are_served() {
    let pairs = [(PackMode::Off, PackMode::Lz4), (PackMode::Lz4, PackMode::Off)];
    for (home, reader) in pairs {
        let pair = PackedPair::plain(home, reader);
        pair.add(1, numbers);
        pair.fetch(1);
        assert_eq!(pair.counted(), [[0; 2]; 2], "{home:?}, {reader:?}");
        assert!(pair.home.server.violations().is_empty());
    }
}

/// A proxy that takes 20 ms for 64 KiB is a link of 3 MB/s, which a reader measures by itself.
#[test]
fn a_slow_link_is_measured_and_then_packs() {
    let (of_home, of_reader) = (options(PackMode::Auto), options(PackMode::Auto));
    let counts = Arc::clone(&of_reader.counts);
    let home = TestHome::packing(SECTION, Credentials::Plain, (Duration::from_secs(2), of_home));
    for block in BLOCKS {
        home.map.write(block.offset, &numbers(block)).unwrap();
    }
    let proxy = Proxy::start(home.address);
    proxy.set_fault(StreamFault::Delay(Duration::from_millis(20)));
    let plain = ReaderOptions::plain(proxy.address, Duration::from_secs(2));
    let reader = TestReader::start(&home, ReaderOptions { packing: of_reader, ..plain });
    for key in 1..10 {
        home.source.add(key, BLOCKS.to_vec());
        let (opened, held) = reader.open(key);
        reader.peer.fetch(&held, opened.hold, &BLOCKS, LONG).unwrap();
        for block in BLOCKS {
            assert!(reader.mirror.map().sealed(block).unwrap() == home.map.sealed(block).unwrap());
        }
        drop(held);
        reader.mirror.remove(key);
        reader.peer.release(opened.hold);
        if counts.received()[0] > 0 {
            return;
        }
    }
    panic!("nothing was packed: {:?}", reader.peer.link());
}

type PackingLie = fn(u64, Span) -> Vec<(Op, u64, u64, Vec<u8>)>;

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packed = crc32c::crc32c(bytes).to_le_bytes().to_vec();
    packed.extend(lz4_flex::block::compress(bytes));
    packed
}

fn send(stream: &mut TcpStream, op: Op, id: u64, offset: u64, body: &[u8]) -> std::io::Result<()> {
    let head = FrameHeader::new(op, id, offset, body.len() as u64).encode(body, true);
    stream.write_all(&[&head[..], body].concat())
}

/// A home with one object that welcomes with this id; `others` answers all but Hello and Open.
fn fake_home<F>(welcome: u64, others: F) -> SocketAddr
where
    F: Fn(&mut TcpStream, &FrameHeader, &[u8]) -> std::io::Result<()> + Clone + Send + 'static,
{
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let others = others.clone();
            thread::spawn(move || -> std::io::Result<()> {
                loop {
                    let mut head = [0; HEADER_BYTES];
                    stream.read_exact(&mut head)?;
                    let header = FrameHeader::decode(&head, true).map_err(std::io::Error::other)?;
                    let mut body = vec![0; header.length as usize];
                    stream.read_exact(&mut body)?;
                    match header.op {
                        Op::Hello => {
                            let section = SECTION.to_le_bytes();
                            send(&mut stream, Op::Welcome, welcome, VERSION, &section)?;
                        }
                        Op::Open => {
                            let blocks = BLOCKS.to_vec();
                            let opened = Opened { blocks, ..Opened::default() }.encode().unwrap();
                            send(&mut stream, Op::Opened, header.id, header.offset, &opened)?;
                        }
                        _ => others(&mut stream, &header, &body)?,
                    }
                }
            });
        }
    });
    address
}

/// A home that answers packed reads with these frames, and plain ones not at all.
fn lying_home(lie: PackingLie) -> SocketAddr {
    fake_home(CAN_PACK, move |stream, header, body| {
        if header.op == Op::ReadPacked {
            let (wish, ranges) = decode_packed_read(body).unwrap();
            assert_eq!(wish, PackWish { rate: 0 });
            for (op, id, offset, body) in lie(header.id, piece(ranges[0])) {
                send(stream, op, id, offset, &body)?;
            }
        }
        Ok(())
    })
}

#[test]
fn forged_pieces_end_the_connection_with_a_reason_and_change_no_other_byte() {
    let lies: [(PackingLie, &str); 7] = [
        // No LZ4 block at all.
        (|id, p| vec![(Op::Packed, id, p.offset.0, vec![0xFF; 1000])], "no LZ4 block"),
        // Too few bytes, and too many.
        (
            |id, p| {
                let plain = vec![7; p.length.as_usize() - 1];
                vec![(Op::Packed, id, p.offset.0, packed(&plain))]
            },
            "unpacked, expected",
        ),
        (|id, p| vec![(Op::Packed, id, p.offset.0, packed(&vec![7; 8 << 20]))], "no LZ4 block"),
        // Other bytes than the checksum's.
        (
            |id, p| {
                let mut packed = packed(&vec![7; p.length.as_usize()]);
                packed[0] ^= 1;
                vec![(Op::Packed, id, p.offset.0, packed)]
            },
            "the unpacked bytes have",
        ),
        // Of another place, and of another request.
        (
            |id, p| {
                let packed = packed(&vec![7; p.length.as_usize()]);
                vec![(Op::Packed, id, p.offset.0 + 1, packed)]
            },
            "expected",
        ),
        (
            |id, p| {
                let packed = packed(&vec![7; p.length.as_usize()]);
                vec![(Op::Packed, id + 1, p.offset.0, packed)]
            },
            "expected",
        ),
        // As long as the piece itself.
        (
            |id, p| {
                let length = p.length.as_usize().min(PIECE_BYTES_MAX as usize - 1);
                vec![(Op::Packed, id, p.offset.0, vec![0; length])]
            },
            "Packed",
        ),
    ];
    for (number, (lie, reason)) in lies.into_iter().enumerate() {
        let tickets = TestHome::start(SECTION, Credentials::Plain, STALL);
        let packing = options(PackMode::Lz4);
        let settings = ReaderOptions { packing, ..ReaderOptions::plain(lying_home(lie), STALL) };
        let reader = TestReader::start(&tickets, settings);
        let opened = reader.peer.open(&want(1)).unwrap();
        let held = reader.mirror.insert(1, &BLOCKS, LONG).unwrap();
        let failed = reader.peer.fetch(&held, opened.hold, &BLOCKS, LONG);
        match &failed {
            Err(NetError::Connection { reason: found, .. }) => {
                let found = found.to_string();
                assert!(found.contains(reason), "{number}: {found}");
            }
            other => panic!("{number}: {other:?}"),
        }
        assert!(reader.mirror.map().sealed(span(0, SECTION)).unwrap().iter().all(|b| *b == 0));
        drop(held);
        reader.mirror.remove(1);
        until("all room is back", || reader.cache.stats().used == 0);
    }
}

/// A packed piece that nobody asked for is no answer, even a right one.
#[test]
fn a_packed_piece_for_a_plain_read_is_refused() {
    let address = fake_home(0, |stream, header, body| match header.op {
        Op::Read => {
            let first = piece(farrow_net::frame::decode_ranges(body).unwrap()[0]);
            let bytes = packed(&vec![7; first.length.as_usize()]);
            send(stream, Op::Packed, header.id, first.offset.0, &bytes)
        }
        op => panic!("{op:?} to a home of an earlier version"),
    });
    let tickets = TestHome::start(SECTION, Credentials::Plain, STALL);
    let packing = options(PackMode::Lz4);
    let settings = ReaderOptions { packing, ..ReaderOptions::plain(address, STALL) };
    let reader = TestReader::start(&tickets, settings);
    let opened = reader.peer.open(&want(1)).unwrap();
    let held = reader.mirror.insert(1, &BLOCKS, LONG).unwrap();
    match reader.peer.fetch(&held, opened.hold, &BLOCKS, LONG) {
        Err(NetError::Connection { reason, .. }) => {
            assert!(reason.to_string().contains("Packed"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}
