//! Forged and truncated descriptors are rejected: no panic, no view outside the object. The fuzz
//! target in `fuzz/` runs the same checks for longer.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

use farrow_arrow::testing::{ForgeOutcome, SplitMix64, exercise, mutate, seed};
use farrow_arrow::{Decoded, InvalidDescriptor, Limits, VERSION};

/// Every type of the sample, and tables of several.
const SEEDS: usize = 100;

#[test]
fn seeds_are_good() {
    for number in 0..SEEDS {
        let (descriptor, arena) = seed(number);
        assert_eq!(exercise(&descriptor, &arena), ForgeOutcome::Good, "seed {number}");
    }
}

#[test]
fn every_truncation_is_refused() {
    for number in 0..SEEDS {
        let (descriptor, arena) = seed(number);
        for length in 0..descriptor.len() {
            let mut cut = descriptor[..length].to_vec();
            assert_eq!(exercise(&cut, &arena), ForgeOutcome::Refused);
            // The same with a matching length field.
            if let Some(field) = cut.get_mut(32..40) {
                field.copy_from_slice(&(length as u64).to_le_bytes());
                assert_eq!(exercise(&cut, &arena), ForgeOutcome::Refused);
            }
        }
        let mut longer = descriptor;
        longer.push(0);
        let length = longer.len() as u64;
        longer[32..40].copy_from_slice(&length.to_le_bytes());
        let error = Decoded::parse(&longer, &Limits::default()).unwrap_err();
        assert_eq!(error, InvalidDescriptor::TrailingBytes { extra: 1 });
    }
}

#[test]
fn every_byte_may_be_anything() {
    for number in 0..SEEDS {
        let (descriptor, arena) = seed(number);
        for at in 0..descriptor.len() {
            let mut forged = descriptor.clone();
            for flip in [0x01, 0x02, 0x10, 0x80, 0xff] {
                forged[at] = descriptor[at] ^ flip;
                exercise(&forged, &arena);
            }
        }
    }
}

#[test]
fn random_mutations_do_no_harm() {
    let mut counts = [0usize; 4];
    let mut random = SplitMix64::new(1);
    for round in 0..40_000 {
        let (descriptor, mut arena) = seed(round % SEEDS);
        let forged = mutate(&mut random, &descriptor);
        if random.chance(2) {
            arena = arena.with_noise(&mut random);
        }
        counts[exercise(&forged, &arena) as usize] += 1;
    }
    // The canary: mutations that all fail at the first byte would test nothing.
    assert!(counts.iter().all(|count| *count > 500), "{counts:?}");
}

#[test]
fn another_version_is_refused() {
    let (mut descriptor, _) = seed(0);
    descriptor[4..6].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let error = Decoded::parse(&descriptor, &Limits::default()).unwrap_err();
    assert_eq!(error, InvalidDescriptor::Version { found: 2, supported: 1 });
}

/// Story: references to a dictionary could make a short descriptor expand without bound, if each
/// level doubles the one below.
#[test]
fn a_descriptor_has_no_more_nodes_than_bytes() {
    let (descriptor, _) = seed(4);
    let limits = Limits { nodes_max: 0, ..Limits::default() };
    let error = Decoded::parse(&descriptor, &limits).unwrap_err();
    assert_eq!(error, InvalidDescriptor::TooManyNodes { max: 0 });
}
