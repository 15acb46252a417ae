//! Arbitrary, forged and damaged frames, from fixed seeds. `FARROW_FUZZ_ROUNDS` multiplies the
//! runs. The fuzzers (`crates/net/fuzz`) call the same functions with other inputs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;
mod fuzzed;

use std::time::Instant;

use farrow_net::frame::{FrameHeader, HEADER_BYTES};
use fuzzed::live::{Victim, run_home};
use fuzzed::{Dice, bytes_of};

fn rounds() -> u64 {
    let rounds = std::env::var("FARROW_FUZZ_ROUNDS").ok();
    rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(1)
}

fn report(what: &str, runs: u64, begin: Instant) {
    println!("{what}: {runs} executions in {:.1} s", begin.elapsed().as_secs_f64());
}

#[test]
fn decoders_take_anything() {
    let (runs, begin) = (60_000 * rounds(), Instant::now());
    let (mut right, mut frames) = (0_u64, 0_u64);
    for run in 0..runs {
        let bytes = bytes_of(run, 16 + run as usize % 64);
        fuzzed::decode(&bytes);
        let frame = Dice(&bytes).frame(&[]);
        // Whole frames for the header's decoder, bodies for the decoders of bodies.
        fuzzed::decode(&frame);
        fuzzed::decode(frame.get(HEADER_BYTES..).unwrap_or_default());
        frames += 1;
        if let Some((head, body)) = frame.split_first_chunk::<HEADER_BYTES>() {
            let decoded = FrameHeader::decode(head, true);
            right += u64::from(decoded.is_ok_and(|header| header.verify(head, body).is_ok()));
        }
    }
    report("decoders", 3 * runs, begin);
    // Otherwise the checksum would reject all frames, and the code after it would not run.
    assert!(right > frames / 4 && right < frames, "{right} of {frames} frames are right");
}

#[test]
fn a_server_survives_any_client() {
    let (runs, begin) = (400 * rounds(), Instant::now());
    let victim = Victim::new();
    for run in 0..runs {
        victim.run(&bytes_of(run, 200));
        if run % 100 == 99 {
            victim.assert_served();
        }
    }
    victim.assert_served();
    report("server", runs, begin);
}

#[test]
fn a_peer_survives_any_home() {
    let (runs, begin) = (24 * rounds(), Instant::now());
    for run in 0..runs {
        run_home(&bytes_of(run, 200));
    }
    report("peer", runs, begin);
}
