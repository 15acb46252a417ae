//! The coherence protocol, checked in every order: no counterexample for it, one for each mistake.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod model;

use model::{CoherenceMutant, CoherenceProtocol};
use stateright::{Checker, Model};

/// A state takes some 100 B, and one core checks some 100,000 of them in a second.
const STATES_MAX: usize = 4_000_000;

const SAFETY: &str = "readers see what was sealed";

#[test]
fn the_protocol_has_no_counterexample() {
    let checker = CoherenceProtocol { mutant: None }
        .checker()
        .target_state_count(STATES_MAX * 20)
        .spawn_bfs()
        .join();
    println!("{} states, {} deep", checker.unique_state_count(), checker.max_depth());
    assert!(checker.is_done());
    checker.assert_properties();
    assert!(checker.unique_state_count() < STATES_MAX);
}

#[test]
fn each_mistake_has_a_counterexample() {
    use CoherenceMutant::{
        ForgetOfPausedReader, HeaderBeforePayload, NoPublishOfClaim, NoPublishOfEntry,
        NoPublishOfPayload, NoRefreshOfClaim, NoRefreshOfEntry, NoRefreshOfPayload,
        ReuseWithoutQuarantine, TwoObjectsOnOneLine,
    };
    for mutant in [
        NoPublishOfPayload,
        NoPublishOfEntry,
        NoPublishOfClaim,
        NoRefreshOfPayload,
        NoRefreshOfEntry,
        NoRefreshOfClaim,
        HeaderBeforePayload,
        TwoObjectsOnOneLine,
        ReuseWithoutQuarantine,
        ForgetOfPausedReader,
    ] {
        let checker = CoherenceProtocol { mutant: Some(mutant) }
            .checker()
            .finish_when(stateright::HasDiscoveries::AnyFailures)
            .spawn_bfs()
            .join();
        let path = checker.discovery(SAFETY);
        let path = path.unwrap_or_else(|| panic!("{mutant:?} has no counterexample"));
        println!(
            "{mutant:?}: {} steps: {:?}",
            path.clone().into_actions().len(),
            path.into_actions()
        );
    }
}
