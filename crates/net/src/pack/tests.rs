//! Packed pieces come back whole, and anything else is refused.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn packed(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut packer = Packer::default();
    packer.pack(bytes, &PackedCounts::default()).map(<[u8]>::to_vec)
}

fn unpacked(packed: &[u8], length: u64) -> Result<Vec<u8>, FrameError> {
    unpack(packed, length, &PackedCounts::default())
}

/// Bytes that repeat, so that they become smaller.
fn numbers(count: usize) -> Vec<u8> {
    (0..count as u64).flat_map(|number| (number / 7).to_le_bytes()).collect()
}

/// Bytes that do not become smaller.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn what_becomes_smaller_is_packed_and_counted() {
    let (plain, counts) = (numbers(32_768), PackedCounts::default());
    let mut packer = Packer::default();
    let packed = packer.pack(&plain, &counts).unwrap().to_vec();
    assert!(packed.len() < plain.len() / 2);
    assert_eq!(unpack(&packed, plain.len() as u64, &counts).unwrap(), plain);
    let both = [plain.len() as u64, packed.len() as u64];
    assert_eq!((counts.sent(), counts.received()), (both, both));
    for plain in [noise(100_000), Vec::new(), vec![7], vec![7; 4]] {
        assert_eq!(super::tests::packed(&plain), None, "{} B", plain.len());
    }
}

#[test]
fn the_length_is_that_of_the_request() {
    let plain = numbers(1000);
    let packed = packed(&plain).unwrap();
    for length in [0, 1, 7999, 8001, PIECE_BYTES_MAX, u64::MAX] {
        let error = unpacked(&packed, length).unwrap_err();
        assert!(matches!(error, FrameError::Body { what: "Packed", .. }), "{length}: {error}");
    }
    // A block of 20 B that would become 4 MiB.
    let mut bomb = vec![0; CHECKSUM_BYTES];
    bomb.extend(lz4_flex::block::compress(&vec![0; 4 << 20]));
    assert!(bomb.len() < 20 << 10);
    assert!(unpacked(&bomb, PIECE_BYTES_MAX).is_err());
    assert!(unpacked(&[1, 2, 3], 8000).is_err());
}

/// A block may refer to another place with the same bytes, so few bits do not matter.
#[test]
fn a_flipped_bit_never_gives_other_bytes() {
    let plain = numbers(100);
    let packed = packed(&plain).unwrap();
    let bits = 8 * packed.len();
    let mut refused = 0;
    for bit in 0..bits {
        let mut damaged = packed.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        match unpacked(&damaged, plain.len() as u64) {
            Ok(found) => assert!(found == plain, "bit {bit}"),
            Err(error) => {
                assert!(matches!(error, FrameError::Body { what: "Packed", .. }), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > bits * 9 / 10, "{refused} of {bits}");
}

#[test]
fn packing_pays_where_the_link_needs_longer() {
    let wish = |rate| PackWish { rate };
    let ms = Duration::from_millis;
    // A megabyte becomes half, and 4 ms are saved at 1 Gb/s. 2 ms and one for the other side cost 3.
    assert!(wish(125_000_000).pays(1_000_000, 500_000, ms(2)));
    assert!(!wish(125_000_000).pays(1_000_000, 500_000, ms(3)));
    assert!(!wish(1_250_000_000).pays(1_000_000, 500_000, ms(2)));
    assert!(wish(12_500_000).pays(1_000_000, 950_000, ms(2)));
    assert!(!wish(12_500_000).pays(1_000_000, 1_000_100, Duration::ZERO));
    // Without a rate only the size counts.
    assert!(wish(0).pays(10, 9, Duration::MAX) && !wish(0).pays(10, 10, Duration::ZERO));
}

#[test]
fn a_reader_asks_where_it_knows_a_link_that_is_slow_enough() {
    let options = |packing| PackingOptions { packing, ..PackingOptions::default() };
    for (packing, rate, wish) in [
        (PackMode::Auto, 0, None),
        (PackMode::Auto, 1, Some(1)),
        (PackMode::Auto, RATE_MAX, Some(RATE_MAX)),
        (PackMode::Auto, RATE_MAX + 1, None),
        (PackMode::Off, 1, None),
        (PackMode::Lz4, u64::MAX, Some(0)),
    ] {
        let found = options(packing).wish(rate).map(|wish| wish.rate);
        assert_eq!(found, wish, "{packing:?} at {rate}");
    }
}

#[test]
fn a_sample_decides_for_a_request() {
    let mut packer = Packer::default();
    // So slow that no busy machine takes longer for a sample.
    let slow = PackWish { rate: 1_000 };
    assert!(packer.should_pack(slow, &numbers(32_768)));
    assert!(!packer.should_pack(slow, &noise(100_000)));
    assert!(!packer.should_pack(slow, &numbers(32_768)), "the next request passes");
    assert!(packer.should_pack(slow, &numbers(32_768)));
    let fast = PackWish { rate: u64::MAX };
    assert!(!packer.should_pack(fast, &numbers(32_768)));
    assert!(packer.should_pack(PackWish { rate: 0 }, &noise(10)), "each piece is looked at");
}

proptest! {
    #[test]
    fn any_bytes_come_back(
        bytes in proptest::collection::vec(0_u8..4, 1..5000),
        repeat in 1_usize..8,
    ) {
        let plain = bytes.repeat(repeat);
        if let Some(packed) = packed(&plain) {
            prop_assert!(packed.len() < plain.len());
            prop_assert_eq!(unpacked(&packed, plain.len() as u64), Ok(plain));
        }
    }

    #[test]
    fn forged_bytes_are_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        length in 1_u64..300_000,
    ) {
        prop_assert!(unpacked(&bytes, length).is_err());
    }
}
