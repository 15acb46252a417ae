//! What the fuzzers start from, taken as it is and with bytes cut off and changed: nothing aborts, the
//! books balance. The fuzzers themselves (`crates/cluster/fuzz`) go on from there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod fuzzed;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use farrow_wire::RequestBody;
use fuzzed::nodes::FuzzedNodes;
use fuzzed::{clients, seeds};

/// Changed copies of each input: `FARROW_FUZZ_ROUNDS`, or a dozen.
fn rounds() -> u64 {
    let rounds = std::env::var("FARROW_FUZZ_ROUNDS").ok();
    rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(12)
}

fn changed(data: &[u8], round: u64) -> Vec<u8> {
    let mut dice = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut roll = |sides: usize| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        (dice % sides.max(1) as u64) as usize
    };
    let mut data = data.to_vec();
    for _ in 0..1 + roll(4) {
        let at = roll(data.len());
        match roll(4) {
            0 => data.truncate(at),
            1 => data.extend_from_within(at..),
            _ => {
                if let Some(byte) = data.get_mut(at) {
                    *byte = [0, 1, 0x7f, 0x80, 0xff, *byte ^ 1][roll(6)];
                }
            }
        }
    }
    data
}

/// The same words take the object away, and are noticed, once the rules let them: so they come to
/// where they are looked at, and it is the rules that keep it.
#[test]
fn a_canary_is_caught() {
    for (is_allowed, is_caught) in [(false, false), (true, true)] {
        let mut world = FuzzedNodes::founded();
        if is_allowed {
            world.allow_all();
        }
        let targets = vec![FuzzedNodes::retained_target()];
        world.request_of_b(true, RequestBody::Delete { targets });
        let looked = catch_unwind(AssertUnwindSafe(|| world.assert_sound()));
        assert_eq!(looked.is_err(), is_caught);
    }
}

/// The same requests take the object's bytes away once its client lets go of it, and that is noticed.
#[test]
fn a_canary_of_clients_is_caught() {
    let (_, away) = clients::seeds().swap_remove(0);
    for (is_held, is_caught) in [(true, false), (false, true)] {
        let looked = catch_unwind(AssertUnwindSafe(|| {
            clients::run_with(&away, |world| {
                if !is_held {
                    world.let_go();
                }
            });
        }));
        assert_eq!(looked.is_err(), is_caught);
    }
}

#[test]
fn what_clients_send_and_what_is_made_of_it_does_no_harm() {
    for (about, run) in clients::seeds() {
        assert!(clients::understood(&run) > 10, "{about} says nothing");
        clients::run(&run);
        for round in 1..=8 * rounds() {
            clients::run(&changed(&run, round));
        }
    }
}

#[test]
fn what_real_nodes_say_and_what_is_made_of_it_does_no_harm() {
    let runs = seeds::runs();
    let about: BTreeSet<&str> =
        runs.iter().filter_map(|(about, _)| about.split('-').next()).collect();
    assert_eq!(about.len(), 6, "{about:?}");
    for (about, run) in &runs {
        assert!(run.len() > 20, "{about} says nothing");
        fuzzed::run(run);
        for round in 1..=rounds() {
            fuzzed::run(&changed(run, round));
        }
    }
}

#[test]
fn decoded_messages_are_the_same_when_they_are_encoded_again() {
    let messages = seeds::messages();
    let kinds: BTreeSet<u8> = messages.iter().filter_map(|one| one.first().copied()).collect();
    assert!(kinds.is_superset(&BTreeSet::from([0, 1, 2, 5, 7])), "{kinds:?}");
    for message in &messages {
        fuzzed::decode(message);
        for round in 1..=rounds() {
            fuzzed::decode(&changed(message, round));
        }
    }
}
