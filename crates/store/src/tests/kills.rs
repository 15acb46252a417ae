//! Kill the home at every named failpoint, then at random, and compare with the model.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::rc::Rc;
use std::sync::Once;

use farrow_memory::{Access, Length};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::cluster::kill_while_telling;
use super::model::{ModelOperation, StoreModel};
use super::support::{TestClient, TestRegion, part, small};
use crate::failpoints;
use crate::{FormatError, Home, Reader, StoreError, Target};

/// A sequence with every operation of the home and each of its outcomes.
fn story() -> Vec<ModelOperation> {
    let bytes = |at, grains, name| ModelOperation::SealBytes { client: 0, at, grains, name };
    vec![
        ModelOperation::CreateNamespace { name: 1 },
        ModelOperation::CreateNamespace { name: 2 },
        ModelOperation::DropNamespace { namespace: 2 },
        ModelOperation::Join,
        ModelOperation::JoinIn { namespace: 1 },
        ModelOperation::HoldBlock { client: 0 },
        ModelOperation::Grant { client: 0, min: 1 << 14, want: 1 << 16 },
        ModelOperation::Grant { client: 1, min: 1, want: 1 << 13 },
        // From the middle, the start and the end of an extent, and then a whole one.
        bytes(40, 3, Some(1)),
        bytes(0, 2, Some(2)),
        bytes(30, 99, None),
        ModelOperation::SealBytes { client: 1, at: 0, grains: 64, name: Some(3) },
        ModelOperation::SealTable {
            client: 0,
            at: 3,
            extra: vec![(20, 2), (40, 32), (90, 7), (100, 1)],
            shared: Some(0),
            name: Some(4),
        },
        ModelOperation::Release { client: 0, at: 50, grains: 32 },
        ModelOperation::EntryPages { client: 0, count: 1 },
        ModelOperation::EntryPages { client: 1, count: 2 },
        ModelOperation::SealLocal { client: 0, at: 5, grains: 2, is_held: true },
        ModelOperation::SealLocal { client: 0, at: 1, grains: 1, is_held: false },
        ModelOperation::SealLocal { client: 0, at: 9, grains: 1, is_held: false },
        // The last three objects are sealed by the client without the home.
        ModelOperation::Delete { object: 5, by_name: false },
        ModelOperation::Register,
        ModelOperation::TakeOver { object: 6 },
        ModelOperation::SealLocal { client: 0, at: 3, grains: 2, is_held: false },
        ModelOperation::Delete { object: 6, by_name: false },
        ModelOperation::Delete { object: 5, by_name: false },
        ModelOperation::SealLocal { client: 0, at: 3, grains: 2, is_held: false },
        ModelOperation::TakeOver { object: 5 },
        ModelOperation::SealLocal { client: 0, at: 3, grains: 2, is_held: false },
        ModelOperation::Hold { client: 1, object: 0 },
        ModelOperation::Delete { object: 0, by_name: true },
        ModelOperation::Adopt,
        ModelOperation::Delete { object: 0, by_name: false },
        bytes(0, 1, Some(1)),
        ModelOperation::Hold { client: 0, object: 2 },
        ModelOperation::Delete { object: 2, by_name: true },
        ModelOperation::Unhold { client: 1, hold: 0 },
        ModelOperation::Pin { object: 0, is_pinned: true },
        ModelOperation::EvictOne { object: 0 },
        ModelOperation::Pin { object: 0, is_pinned: false },
        ModelOperation::Hold { client: 1, object: 1 },
        ModelOperation::EvictOne { object: 1 },
        ModelOperation::Use { object: 0, at_ns: 9 },
        ModelOperation::Evict { bytes: 256, is_run: false },
        bytes(0, 2, Some(7)),
        ModelOperation::Pin { object: 0, is_pinned: true },
        ModelOperation::Reclaim,
        ModelOperation::Leave { client: 0 },
        ModelOperation::Adopt,
        ModelOperation::Reclaim,
        ModelOperation::Delete { object: 3, by_name: false },
        ModelOperation::Delete { object: 2, by_name: false },
        ModelOperation::Delete { object: 1, by_name: false },
        ModelOperation::SealLocal { client: 0, at: 0, grains: 2, is_held: false },
        ModelOperation::SealLocal { client: 0, at: 0, grains: 2, is_held: false },
        ModelOperation::Leave { client: 0 },
        ModelOperation::Delete { object: 2, by_name: false },
        ModelOperation::Delete { object: 1, by_name: false },
        ModelOperation::Delete { object: 0, by_name: false },
    ]
}

/// A sequence in which objects of every kind are spilled, restored, and deleted in both states.
fn spill_story() -> Vec<ModelOperation> {
    vec![
        ModelOperation::Join,
        ModelOperation::Grant { client: 0, min: 1 << 14, want: 1 << 16 },
        ModelOperation::SealBytes { client: 0, at: 4, grains: 3, name: Some(1) },
        ModelOperation::SealTable {
            client: 0,
            at: 9,
            extra: vec![(20, 2), (40, 7)],
            shared: Some(0),
            name: Some(2),
        },
        ModelOperation::Spill { object: 1 },
        ModelOperation::Spill { object: 0 },
        ModelOperation::Adopt,
        ModelOperation::Restore { object: 1 },
        ModelOperation::Spill { object: 0 },
        ModelOperation::Restore { object: 1 },
        ModelOperation::Restore { object: 0 },
        ModelOperation::EntryPages { client: 0, count: 1 },
        ModelOperation::SealLocal { client: 0, at: 2, grains: 1, is_held: false },
        ModelOperation::Spill { object: 2 },
        ModelOperation::Adopt,
        ModelOperation::Restore { object: 0 },
        ModelOperation::Spill { object: 2 },
        ModelOperation::DeleteSpilled { object: 0 },
        ModelOperation::Spill { object: 1 },
        ModelOperation::DeleteSpilled { object: 0 },
    ]
}

/// A sequence in which the home stops lending memory and lends it again, with objects between.
fn withdraw_story() -> Vec<ModelOperation> {
    vec![
        ModelOperation::Join,
        ModelOperation::Grant { client: 0, min: 1 << 14, want: 1 << 16 },
        ModelOperation::SealBytes { client: 0, at: 40, grains: 3, name: Some(1) },
        ModelOperation::Withdraw { pages: 20 },
        ModelOperation::Release { client: 0, at: 60, grains: 400 },
        ModelOperation::Withdraw { pages: 8 },
        ModelOperation::Adopt,
        ModelOperation::Withdraw { pages: 99 },
        ModelOperation::Grant { client: 0, min: 1, want: 1 },
        ModelOperation::Lend { pages: 3 },
        ModelOperation::Grant { client: 0, min: 1 << 12, want: 1 << 13 },
        ModelOperation::SealBytes { client: 0, at: 0, grains: 3, name: Some(2) },
        ModelOperation::Adopt,
        ModelOperation::Lend { pages: 9 },
        ModelOperation::Leave { client: 0 },
        ModelOperation::Lend { pages: 99 },
    ]
}

/// Hide the expected panics of failpoints; all other panics are printed.
fn quietly<T>(run: impl FnOnce() -> T) -> T {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload().is::<&str>() || info.payload().is::<String>() {
                hook(info);
            }
        }));
    });
    run()
}

#[test]
fn a_kill_at_any_failpoint_loses_nothing_and_leaks_nothing() {
    let mut seen = BTreeSet::new();
    quietly(|| {
        seen.extend(kill_all_through(&story()));
        seen.extend(kill_all_through(&spill_story()));
        seen.extend(kill_all_through(&withdraw_story()));
        seen.extend(kill_while_making());
        seen.extend(kill_while_a_leave_is_finished());
        seen.extend(kill_while_an_entry_is_refused());
        seen.extend(kill_while_telling());
        seen.extend(super::replace::kill_while_replacing());
        seen.extend(super::unname::kill_while_unnaming());
    });
    let missed: Vec<_> = failpoints::ALL.iter().filter(|name| !seen.contains(**name)).collect();
    assert!(missed.is_empty(), "never killed at {missed:?}");
}

/// Run a sequence once for each failpoint of each of its operations, with a kill there.
fn kill_all_through(story: &[ModelOperation]) -> BTreeSet<&'static str> {
    let mut seen = BTreeSet::new();
    for at in 0..story.len() {
        for kill in 0.. {
            let mut model = StoreModel::new(TestRegion::new(small()));
            let mut killed_at = None;
            for (i, op) in story.iter().enumerate() {
                let name = model.run(op, (i == at).then_some(kill));
                killed_at = killed_at.or(name);
            }
            model.finish();
            let Some(name) = killed_at else { break };
            assert!(failpoints::ALL.contains(&name), "{name} is not in the list");
            seen.insert(name);
        }
    }
    seen
}

/// Run `run` with a kill at its failpoint number `kill`. Returns its name, if it was reached.
pub(super) fn killed(kill: u32, run: impl FnOnce()) -> Option<&'static str> {
    let killed_at = Rc::new(Cell::new(None));
    let (at, mut passed) = (Rc::clone(&killed_at), 0);
    failpoints::set_local(Some(Box::new(move |name| {
        if passed == kill {
            at.set(Some(name));
            panic_any(());
        }
        passed += 1;
    })));
    let result = catch_unwind(AssertUnwindSafe(run));
    failpoints::set_local(None);
    if let (None, Err(panic)) = (killed_at.get(), result) {
        resume_unwind(panic);
    }
    killed_at.get()
}

/// A region whose creation was interrupted is not valid, and can be created again.
fn kill_while_making() -> BTreeSet<&'static str> {
    let world = TestRegion::new(small());
    let mut seen = BTreeSet::new();
    // Creation then has something to clear away.
    drop(world.create());
    for kill in 0.. {
        let Some(name) = killed(kill, || world.create().check().unwrap()) else {
            break;
        };
        seen.insert(name);
        if name.starts_with("create") {
            let adopted = Home::adopt(world.map(Access::Home));
            assert!(matches!(adopted, Err(StoreError::Format(FormatError::Unfinished))));
            let opened = Reader::open(world.map(Access::Client));
            assert!(matches!(opened, Err(FormatError::Unfinished)));
        }
        world.create().check().unwrap();
    }
    seen
}

/// A home that finishes the departure begun by its predecessor is killed too.
fn kill_while_a_leave_is_finished() -> BTreeSet<&'static str> {
    let world = TestRegion::new(small());
    let mut seen = BTreeSet::new();
    drop(world.create());
    for kill in 0.. {
        let mut home = world.adopt();
        let client = TestClient::join(&world, &mut home).unwrap();
        let id = client.put(&mut home, b"kept", None).unwrap();
        home.grant(client.slot, Length(1), Length(1)).unwrap();
        let name = killed(0, || drop(home.client_leave(client.slot)));
        assert_eq!(name, Some("client.leave.state"));
        drop(home);
        let name = killed(kill, || drop(world.adopt()));
        let mut home = world.adopt();
        let stats = home.stats().unwrap();
        assert_eq!((stats.clients, stats.granted.0, stats.hold_blocks), (0, 0, 0));
        assert_eq!(home.delete(Target::Id(id)).unwrap().bytes.0, 128);
        match name {
            Some(name) => seen.insert(name),
            None => break,
        };
    }
    seen
}

/// A client's entry claims memory that is not granted to it: its life ends, whenever the home is
/// killed.
fn kill_while_an_entry_is_refused() -> BTreeSet<&'static str> {
    let world = TestRegion::new(small());
    let mut seen = BTreeSet::new();
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    client.entries.add_pages(home.entry_pages(client.slot, 1).unwrap()).unwrap();
    for kill in 0.. {
        let heap = home.layout().heap;
        let id = client.seal_local(part(heap, 128, 128), 1).unwrap();
        let name = killed(kill, || {
            home.register_all().unwrap();
        });
        drop(home);
        let region = world.map(Access::Home);
        home = Home::adopt(region).unwrap().0;
        // A new home needs no grant for memory that no other client has.
        if let Ok(deleted) = home.delete(Target::Id(id)) {
            assert!(deleted.freed_now && name.is_none_or(|name| name != "local.refused"));
        }
        home.check().unwrap();
        assert_eq!(home.stats().unwrap().free, home.stats().unwrap().capacity);
        match name {
            Some(name) => seen.insert(name),
            None => break,
        };
    }
    seen
}

fn op() -> impl Strategy<Value = ModelOperation> {
    let n = || any::<usize>();
    let name = || prop::option::of(any::<u8>());
    prop_oneof![
        2 => Just(ModelOperation::Join),
        2 => n().prop_map(|namespace| ModelOperation::JoinIn { namespace }),
        1 => any::<u8>().prop_map(|name| ModelOperation::CreateNamespace { name }),
        1 => n().prop_map(|namespace| ModelOperation::DropNamespace { namespace }),
        1 => n().prop_map(|client| ModelOperation::Leave { client }),
        1 => n().prop_map(|client| ModelOperation::HoldBlock { client }),
        5 => (n(), 1..1u64 << 16, 1..1u64 << 17)
            .prop_map(|(client, min, want)| ModelOperation::Grant { client, min, want }),
        3 => (n(), n(), 1..200u64)
            .prop_map(|(client, at, grains)| ModelOperation::Release { client, at, grains }),
        6 => (n(), n(), 1..60u64, name())
            .prop_map(|(client, at, grains, name)| ModelOperation::SealBytes { client, at, grains, name }),
        6 => (n(), n(), prop::collection::vec((n(), 1..40u64), 0..5), prop::option::of(n()), name())
            .prop_map(|(client, at, extra, shared, name)| ModelOperation::SealTable {
                client, at, extra, shared, name,
            }),
        2 => (n(), 1..3u32).prop_map(|(client, count)| ModelOperation::EntryPages { client, count }),
        6 => (n(), n(), 1..20u64, any::<bool>()).prop_map(|(client, at, grains, is_held)| {
            ModelOperation::SealLocal { client, at, grains, is_held }
        }),
        1 => Just(ModelOperation::Register),
        2 => n().prop_map(|object| ModelOperation::TakeOver { object }),
        5 => (n(), any::<bool>()).prop_map(|(object, by_name)| ModelOperation::Delete { object, by_name }),
        5 => (n(), n()).prop_map(|(client, object)| ModelOperation::Hold { client, object }),
        4 => (n(), n()).prop_map(|(client, hold)| ModelOperation::Unhold { client, hold }),
        2 => (n(), any::<bool>()).prop_map(|(object, is_pinned)| ModelOperation::Pin { object, is_pinned }),
        2 => (n(), any::<u64>()).prop_map(|(object, at_ns)| ModelOperation::Use { object, at_ns }),
        2 => n().prop_map(|object| ModelOperation::EvictOne { object }),
        2 => (1..1u64 << 16, any::<bool>())
            .prop_map(|(bytes, is_run)| ModelOperation::Evict { bytes, is_run }),
        2 => (1..40u64).prop_map(|pages| ModelOperation::Withdraw { pages }),
        2 => (1..40u64).prop_map(|pages| ModelOperation::Lend { pages }),
        3 => n().prop_map(|object| ModelOperation::Spill { object }),
        3 => n().prop_map(|object| ModelOperation::Restore { object }),
        1 => n().prop_map(|object| ModelOperation::DeleteSpilled { object }),
        1 => Just(ModelOperation::Reclaim),
        1 => Just(ModelOperation::Adopt),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_and_kills_agree_with_the_model(
        ops in prop::collection::vec((op(), prop::option::weighted(0.2, 0..12u32)), 1..120),
    ) {
        quietly(|| {
            let mut model = StoreModel::new(TestRegion::new(small()));
            for (op, kill) in &ops {
                model.run(op, *kill);
            }
            model.finish();
        });
    }
}

/// Kills at failpoints of random operations, besides those of the tests above.
const KILLS: usize = 2000;

#[test]
fn two_thousand_kills_lose_nothing_and_leak_nothing() {
    let mut runner = TestRunner::deterministic();
    let step = (op(), prop::option::weighted(0.3, 0..12u32));
    let steps = prop::collection::vec(step, 1..120);
    let (mut kills, mut places) = (0, BTreeSet::new());
    quietly(|| {
        while kills < KILLS {
            let mut model = StoreModel::new(TestRegion::new(small()));
            for (op, kill) in steps.new_tree(&mut runner).unwrap().current() {
                if let Some(name) = model.run(&op, kill) {
                    kills += 1;
                    places.insert(name);
                }
            }
            model.finish();
        }
    });
    // Failpoints of the creation of a region are in no operation.
    assert!(places.len() * 2 > failpoints::ALL.len(), "only at {places:?}");
}
