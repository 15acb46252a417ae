//! Names, holds and deletes of objects that are read by network, checked in every order: no
//! counterexample for the protocol, one for each mistake.
//!
//! `FARROW_REPLICA_MODEL=long` checks larger scopes, two readers among them, in minutes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod home;
mod model;
mod reader;
mod state;

use model::{ReplicaMutant, ReplicaProtocol};
use state::{CheckScope, FaultBudget};
use stateright::{Checker, HasDiscoveries, Model};

/// A mistake that is not found among so many states is found by no test.
const MUTANT_STATES_MAX: usize = 400_000;

/// Limit of the steps of one scope: a change of the model that needs more is noticed.
const STEPS_MAX: usize = 10_000_000;

const GETS: &str = "a get returns what the name stands for during the get";
const NAMES: &str = "a node finds no replica of an object that does not exist";
const ENDS: &str = "every request is answered, and nothing stays of what has ended";

const SMALL: FaultBudget = FaultBudget {
    losses: 0,
    home_crashes: 0,
    reader_crashes: 0,
    pauses: 0,
    evictions: 0,
    spills: 0,
    recalls: 0,
    deletes: 2,
    gets: 1,
};
const SCOPE: CheckScope = CheckScope {
    readers: 1,
    budget: SMALL,
    is_large: false,
    has_second_home: false,
    takes_over: false,
};

/// The scopes of a check, each with its name. The first ones take seconds together.
fn scopes(is_long: bool) -> Vec<(&'static str, CheckScope)> {
    let of = |budget| CheckScope { budget, ..SCOPE };
    let two = CheckScope { readers: 2, ..SCOPE };
    let large = CheckScope { is_large: true, ..two };
    let hints = CheckScope { has_second_home: true, ..SCOPE };
    let evictions = FaultBudget { evictions: 1, ..SMALL };
    let evicting = CheckScope { takes_over: true, ..SCOPE };
    let short = [
        ("a loss", of(FaultBudget { losses: 1, ..SMALL })),
        ("a recall and two gets", of(FaultBudget { recalls: 1, gets: 2, ..SMALL })),
        ("a paused reader", of(FaultBudget { pauses: 1, ..SMALL })),
        ("a home that starts again", of(FaultBudget { home_crashes: 1, ..SMALL })),
        ("a reader that starts again", of(FaultBudget { reader_crashes: 1, ..SMALL })),
        ("an eviction", CheckScope { budget: evictions, ..evicting }),
        ("an eviction by a new home", of(FaultBudget { home_crashes: 1, ..evictions })),
        ("a spill", of(FaultBudget { spills: 1, ..SMALL })),
        ("hints", hints),
        ("a large object", CheckScope { readers: 1, ..large }),
    ];
    let long = [
        ("two gets and a loss", of(FaultBudget { losses: 1, gets: 2, ..SMALL })),
        ("two gets and a home", of(FaultBudget { home_crashes: 1, gets: 2, ..SMALL })),
        ("two gets and a pause", of(FaultBudget { pauses: 1, gets: 2, ..SMALL })),
        ("a recall and a loss", of(FaultBudget { recalls: 1, losses: 1, gets: 2, ..SMALL })),
        (
            "recalls for evictions",
            CheckScope { budget: FaultBudget { recalls: 1, ..evictions }, ..evicting },
        ),
        ("two readers", two),
        ("senders", large),
        (
            "senders and an eviction",
            CheckScope { budget: FaultBudget { deletes: 1, ..evictions }, ..large },
        ),
        (
            "hints and a home",
            CheckScope { budget: FaultBudget { home_crashes: 1, ..SMALL }, ..hints },
        ),
    ];
    let long = long.into_iter().filter(|_| is_long);
    short.into_iter().chain(long).collect()
}

#[test]
fn the_protocol_has_no_counterexample() {
    let is_long = std::env::var("FARROW_REPLICA_MODEL").is_ok_and(|value| value == "long");
    for (name, scope) in scopes(is_long) {
        let begin = std::time::Instant::now();
        let checker =
            ReplicaProtocol { scope, mutant: None }.checker().target_state_count(STEPS_MAX);
        let checker = checker.spawn_bfs().join();
        println!(
            "{name}: {} states, {} deep, {:?}",
            checker.unique_state_count(),
            checker.max_depth(),
            begin.elapsed()
        );
        assert!(checker.state_count() < STEPS_MAX, "{name} is not searched whole");
        checker.assert_properties();
    }
}

/// The scope in which each mistake is found soon, and the property that it breaks.
fn mistakes() -> Vec<(ReplicaMutant, CheckScope, &'static str)> {
    use ReplicaMutant::{
        AnswerOfEarlierLife, AnyAnswerCounts, CompleteWithoutNote, DeleteBeforeAcknowledged,
        EvictionBeforeRejoin, EvictionByLastId, EvictionWithoutRecall, EvictionWithoutSecondLook,
        ExcludedWithLease, HintIsComplete, HoldBeforeNote, KeyOfAnyReplica, LostHoldStays,
        NewLifeForgotten, NoteOfRemovedObject, NoticeDuringOpenIgnored,
        NoticeDuringTransferIgnored, OldAnswerForLaterClient, OpenWithoutHold, OpensDuringDelete,
        ReleaseBeforeLoaded, ReplicasOfEarlierDaemon, ReplicasWithoutLease,
    };
    let of = |budget| CheckScope { budget, ..SCOPE };
    let (plain, loss) = (of(SMALL), of(FaultBudget { losses: 1, ..SMALL }));
    let recall = of(FaultBudget { recalls: 1, losses: 1, gets: 2, ..SMALL });
    let pause = of(FaultBudget { pauses: 1, gets: 2, ..SMALL });
    let home = of(FaultBudget { home_crashes: 1, gets: 2, ..SMALL });
    let reader = of(FaultBudget { reader_crashes: 1, gets: 2, ..SMALL });
    let evictions = FaultBudget { evictions: 1, ..SMALL };
    let evicting = of(evictions);
    let taken = CheckScope { takes_over: true, ..evicting };
    let restarted = of(FaultBudget { home_crashes: 1, ..evictions });
    let hints = CheckScope { has_second_home: true, ..SCOPE };
    let spilling = of(FaultBudget { spills: 1, ..SMALL });
    let large = CheckScope { is_large: true, ..SCOPE };
    let sent = FaultBudget { deletes: 0, gets: 2, ..evictions };
    let senders = CheckScope { readers: 2, budget: sent, ..large };
    let late = of(FaultBudget { gets: 2, ..SMALL });
    vec![
        (HoldBeforeNote, plain, NAMES),
        (OpensDuringDelete, plain, NAMES),
        (DeleteBeforeAcknowledged, plain, NAMES),
        (NoticeDuringOpenIgnored, plain, NAMES),
        (NoticeDuringTransferIgnored, plain, NAMES),
        (NoteOfRemovedObject, plain, ENDS),
        (OpenWithoutHold, spilling, GETS),
        (ReleaseBeforeLoaded, spilling, GETS),
        (LostHoldStays, loss, ENDS),
        (AnyAnswerCounts, recall, NAMES),
        (ReplicasWithoutLease, pause, GETS),
        (ExcludedWithLease, pause, NAMES),
        (ReplicasOfEarlierDaemon, reader, NAMES),
        (NewLifeForgotten, home, NAMES),
        (AnswerOfEarlierLife, home, NAMES),
        (EvictionWithoutRecall, evicting, NAMES),
        (EvictionWithoutSecondLook, evicting, NAMES),
        (EvictionByLastId, taken, NAMES),
        (EvictionBeforeRejoin, restarted, NAMES),
        (HintIsComplete, hints, GETS),
        (OldAnswerForLaterClient, late, GETS),
        (KeyOfAnyReplica, senders, GETS),
        (CompleteWithoutNote, large, ENDS),
    ]
}

#[test]
fn each_mistake_has_a_counterexample() {
    let mut missed = Vec::new();
    for (mutant, scope, property) in mistakes() {
        let begin = std::time::Instant::now();
        let only = HasDiscoveries::AnyFailures;
        let checker = ReplicaProtocol { scope, mutant: Some(mutant) }.checker();
        let checker = checker.finish_when(only).target_state_count(MUTANT_STATES_MAX);
        // Two readers have more states than the shortest counterexample needs.
        let (states, path) = if scope.readers > 1 {
            let checker = checker.spawn_dfs().join();
            (checker.unique_state_count(), checker.discovery(property))
        } else {
            let checker = checker.spawn_bfs().join();
            (checker.unique_state_count(), checker.discovery(property))
        };
        match path {
            Some(path) => {
                let steps = path.into_actions();
                let (count, elapsed) = (steps.len(), begin.elapsed());
                println!("{mutant:?}: {states} states, {elapsed:?}, {count} steps: {steps:?}");
            }
            None => missed.push(format!("{mutant:?}: {states} states")),
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
