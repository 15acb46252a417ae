//! Frames decode to their original, and all other bytes are rejected.

use farrow_memory::{Length, Offset, Span};

use super::*;
use crate::error::FrameError;
use crate::pack::PackWish;
use crate::ticket::Ticket;
use crate::{CHUNK_BYTES, PIECE_BYTES_MAX};

fn span(offset: u64, length: u64) -> Span {
    Span::new(Offset(offset), Length(length))
}

#[test]
fn headers_have_the_documented_bytes() {
    let header = FrameHeader::new(Op::Data, 0x0102, 0x0304, 5);
    let bytes = header.encode(b"bytes", true);
    assert_eq!(bytes[..4], [6, 1, 0, 0]);
    assert_eq!(
        bytes[8..],
        [[2, 1, 0, 0, 0, 0, 0, 0], [4, 3, 0, 0, 0, 0, 0, 0], [5, 0, 0, 0, 0, 0, 0, 0]].concat()
    );
    let mut whole = bytes;
    whole[4..8].fill(0);
    let crc = crc32c::crc32c(&[&whole[..], b"bytes"].concat());
    assert_eq!(bytes[4..8], crc.to_le_bytes());
    assert_eq!(FrameHeader::decode(&bytes, true), Ok(header));
    assert_eq!(header.verify(&bytes, b"bytes"), Ok(()));
}

#[test]
fn every_flipped_bit_is_found() {
    let header = FrameHeader::new(Op::Data, 7, 4096, 64);
    let body = [0x5A; 64];
    let bytes = header.encode(&body, true);
    for bit in 0..8 * (HEADER_BYTES + body.len()) {
        let (mut bytes, mut body) = (bytes, body);
        match bytes.get_mut(bit / 8) {
            Some(byte) => *byte ^= 1 << (bit % 8),
            None => body[bit / 8 - HEADER_BYTES] ^= 1 << (bit % 8),
        }
        let passed =
            FrameHeader::decode(&bytes, true).and_then(|found| found.verify(&bytes, &body));
        assert!(passed.is_err(), "bit {bit}");
    }
}

#[test]
fn headers_beyond_their_limits_are_refused_with_numbers() {
    let with = |op: u8, flags: u8, length: u64| {
        let mut bytes = FrameHeader::new(Op::Data, 0, 0, length).encode(&[], false);
        (bytes[0], bytes[1]) = (op, flags);
        FrameHeader::decode(&bytes, false)
    };
    assert_eq!(with(0, 0, 1), Err(FrameError::UnknownOp { op: 0 }));
    assert_eq!(with(21, 0, 1), Err(FrameError::UnknownOp { op: 21 }));
    let flags = FrameError::Flags { op: Op::Data, flags: 1, expected: 0 };
    assert_eq!(with(6, 1, 1), Err(flags), "a checksum where TLS has none");
    let (op, min, max) = (Op::Data, 1, PIECE_BYTES_MAX);
    for length in [0, max + 1, u64::MAX] {
        assert_eq!(with(6, 0, length), Err(FrameError::BodyLength { op, length, min, max }));
    }
    for op in Op::ALL {
        let (min, max) = op.body_bytes();
        assert!(min <= max && max <= 8 << 20, "{op:?}");
        let header = FrameHeader::new(op, 1, 2, max);
        assert_eq!(FrameHeader::decode(&header.encode(&[], false), false), Ok(header));
    }
}

#[test]
fn pieces_end_where_chunks_end() {
    let range = span(CHUNK_BYTES - 10, 6 * CHUNK_BYTES);
    let mut expected = ExpectedRanges::new(3, &[range, span(8 << 20, 1)]);
    assert_eq!(expected.bytes(), 6 * CHUNK_BYTES + 1);
    let first = span(CHUNK_BYTES - 10, 3 * CHUNK_BYTES + 10);
    let pieces = [first, span(4 * CHUNK_BYTES, 3 * CHUNK_BYTES - 10), span(8 << 20, 1)];
    for piece in pieces {
        let header = FrameHeader::new(Op::Data, 3, piece.offset.0, piece.length.0);
        assert_eq!(expected.check(&header), Ok(piece));
        for wrong in [
            FrameHeader { id: 4, ..header },
            FrameHeader { offset: header.offset + 1, ..header },
            FrameHeader { length: header.length + 1, ..header },
        ] {
            assert!(matches!(expected.check(&wrong), Err(FrameError::Unrequested { .. })));
        }
        expected.advance();
        assert!(expected.check(&header).is_err(), "the same again");
    }
    assert!(expected.is_done() && expected.bytes() == 0 && expected.rest().is_empty());
    expected.advance();
    assert_eq!(behind(span(5, 3), Length(4)), None);
    assert_eq!(piece(span(u64::MAX - 1, 1)), span(u64::MAX - 1, 1));
}

/// The length of a packed piece says nothing of what it contains, but it is shorter.
#[test]
fn a_packed_piece_is_the_next_one_and_shorter_than_it() {
    let mut expected = ExpectedRanges::new(3, &[span(100, 5000), span(9000, 10)]);
    let header = FrameHeader::new(Op::Packed, 3, 100, 4999);
    assert_eq!(expected.check_packed(&header), Ok(span(100, 5000)));
    for wrong in [
        FrameHeader { id: 4, ..header },
        FrameHeader { offset: 101, ..header },
        FrameHeader { length: 5000, ..header },
        FrameHeader { length: PIECE_BYTES_MAX, ..header },
    ] {
        assert!(expected.check_packed(&wrong).is_err(), "{wrong:?}");
    }
    expected.advance();
    expected.advance();
    assert!(expected.check_packed(&header).is_err());
}

#[test]
fn packed_reads_have_a_rate_and_ranges() {
    let (wish, ranges) = (PackWish { rate: 7 }, vec![span(1, 2), span(9, 9)]);
    let bytes = encode_packed_read(wish, &ranges);
    assert_eq!(decode_packed_read(&bytes), Ok((wish, ranges)));
    for length in 0..bytes.len() {
        let is_whole = length == 24;
        assert_eq!(decode_packed_read(&bytes[..length]).is_ok(), is_whole, "cut at {length}");
    }
    let (min, max) = Op::ReadPacked.body_bytes();
    let most = encode_packed_read(wish, &vec![span(0, 1); RANGES_MAX]);
    assert_eq!((min, max), (24, most.len() as u64));
}

#[test]
fn ranges_are_limited() {
    let ranges = vec![span(1, 2), span(u64::MAX - 7, 7)];
    assert_eq!(decode_ranges(&encode_ranges(&ranges)), Ok(ranges));
    let refused = |ranges: &[Span]| decode_ranges(&encode_ranges(ranges)).unwrap_err();
    for wrong in [
        vec![],
        vec![span(0, 1); RANGES_MAX + 1],
        vec![span(0, 0)],
        vec![span(u64::MAX, 2)],
        vec![span(0, READ_BYTES_MAX), span(0, 1)],
        vec![span(0, u64::MAX); 2],
    ] {
        assert!(matches!(refused(&wrong), FrameError::Body { what: "ranges", .. }));
    }
    assert!(decode_ranges(&[0; 17]).is_err());
}

#[test]
fn opened_objects_come_back_whole_or_not_at_all() {
    let small = Opened {
        blocks: vec![span(128, 3), span(0, 2)],
        entry: b"entry".to_vec(),
        inline: b"bytes".to_vec(),
    };
    let bytes = small.encode().unwrap();
    assert_eq!(Opened::decode(&bytes), Ok(small.clone()));
    for length in 0..bytes.len() {
        assert!(Opened::decode(&bytes[..length]).is_err(), "cut at {length}");
    }
    assert!(Opened::decode(&[&bytes[..], &[0]].concat()).is_err());
    assert!(Opened { inline: b"byte".to_vec(), ..small.clone() }.encode().is_err());
    assert!(Opened { blocks: vec![span(0, 3), span(2, 2)], ..small.clone() }.encode().is_err());
    assert!(Opened { entry: vec![0; 5 << 20], ..small }.encode().is_err());
    // A forged count allocates nothing.
    let made_up = [&u32::MAX.to_le_bytes()[..], &[0; 8]].concat();
    assert!(Opened::decode(&made_up).is_err());
}

#[test]
fn hellos_name_a_class() {
    let ticket = Ticket::from_bytes([9; 32]);
    let classes = [
        ConnectionClass::Small,
        ConnectionClass::Bulk,
        ConnectionClass::Push,
        ConnectionClass::Rdma,
    ];
    for class in classes {
        let hello = PeerHello { ticket, class };
        let mut bytes = hello.encode();
        assert!(PeerHello::decode(&bytes) == Ok(hello));
        bytes[33] = 1;
        assert!(PeerHello::decode(&bytes).is_err());
        assert!(PeerHello::decode(&bytes[..31]).is_err());
    }
}
