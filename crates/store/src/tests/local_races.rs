//! A client that seals without the home, readers, and a home that deletes, all at the same time.
//!
//! Every extent is first filled with poison, and every object with the number in its entry. A
//! reader that sees another number in a held object has caught the home freeing it.

use std::sync::{Arc, Mutex};
use std::thread;

use farrow_memory::sync::{AtomicBool, AtomicU64, Ordering};
use farrow_memory::{Alias, Length, Span};
use farrow_testkit::random::Random;

use super::support::{TestClient, TestRegion, part, small};
use crate::{HoldTable, ObjectId, RegionOptions, SealRequest, StoreError, Target};

const ROUNDS: u64 = 4_000;
const POISON: u64 = 0xdddd_dddd_dddd_dddd;
const WAITS_MAX: u32 = 10_000_000;

#[derive(Default)]
struct LocalRaceState {
    ids: Mutex<Vec<ObjectId>>,
    is_over: AtomicBool,
    wrong: AtomicU64,
    reads: AtomicU64,
}

fn read(client: &TestClient, holds: &Arc<HoldTable>, shared: &LocalRaceState, seed: u64) {
    let mut random = Random::new(seed);
    while !shared.is_over.load(Ordering::Relaxed) {
        let id = {
            let ids = shared.ids.lock().unwrap();
            let Some(last) = ids.len().checked_sub(1) else { continue };
            ids[last - (random.next() as usize % ids.len().min(60))]
        };
        let Some(held) = client.reader.hold(holds, Target::Id(id)).unwrap() else {
            continue;
        };
        let entry = *held.entry();
        for _ in 0..2 {
            let words = client.reader.region().words(entry.payload()).unwrap();
            let is_right = |i| words.load(i, Ordering::Relaxed) == Some(entry.sealed_at_ns);
            if !(0..words.len()).all(is_right) {
                shared.wrong.fetch_add(1, Ordering::Relaxed);
            }
            thread::yield_now();
        }
        shared.reads.fetch_add(1, Ordering::Relaxed);
    }
}

fn fill(alias: &Alias, span: Span, value: u64) {
    let words = alias.words_mut(span).unwrap();
    for i in 0..words.len() {
        words.store(i, value, Ordering::Relaxed);
    }
}

#[test]
fn what_is_held_does_not_change_while_a_client_seals_and_the_home_deletes() {
    let options = RegionOptions { capacity: Length(16 << 12), grants_max: 256, ..small() };
    let world = TestRegion::new(options);
    let mut home = world.create();
    let writer = TestClient::join(&world, &mut home).unwrap();
    writer.entries.add_pages(home.entry_pages(writer.slot, 1).unwrap()).unwrap();
    let alias = writer.reader.region().alias(home.layout().heap).unwrap();
    let reader = Arc::new(TestClient::join(&world, &mut home).unwrap());
    let shared = Arc::new(LocalRaceState::default());
    let readers: Vec<_> = (0..2)
        .map(|seed| {
            let (reader, shared) = (Arc::clone(&reader), Arc::clone(&shared));
            thread::spawn(move || read(&reader, &reader.holds, &shared, seed))
        })
        .collect();

    let (mut random, mut live) = (Random::new(5), Vec::new());
    let mut made = 0;
    for round in 1..=ROUNDS {
        let grains = 1 + random.next() % 3;
        let extent = match home.grant(writer.slot, Length(4096), Length(4096)) {
            Ok(extent) => Some(extent),
            Err(StoreError::OutOfMemory { .. } | StoreError::TooManyGrants { .. }) => None,
            Err(error) => panic!("{error}"),
        };
        if let Some(extent) = extent {
            fill(&alias, extent, POISON);
            let primary = part(extent, 0, grains * 128);
            fill(&alias, primary, round);
            let request = SealRequest::bytes(primary, primary.length, None);
            if let Some((id, _)) = writer.entries.seal(&request, round, None).unwrap() {
                live.push(id);
                shared.ids.lock().unwrap().push(id);
                made += 1;
                let rest = part(extent, grains * 128, 4096 - grains * 128);
                home.release(writer.slot, &[rest]).unwrap();
            } else {
                home.release(writer.slot, &[extent]).unwrap();
            }
        }
        if random.next() % 8 == 0 {
            home.register_all().unwrap();
        }
        while live.len() > 4 {
            let id = live.swap_remove(random.next() as usize % live.len());
            match random.next() % 4 {
                0 => drop(home.take_over(id)),
                _ => drop(home.delete(Target::Id(id))),
            }
            if random.next() % 4 == 0 {
                let _ = home.delete(Target::Id(id));
            }
        }
        home.reclaim().unwrap();
        // Adopted objects that are not deleted would fill the region.
        if round % 16 == 0 {
            for listed in writer.reader.list("").unwrap() {
                if !live.contains(&listed.entry.id) {
                    home.delete(Target::Id(listed.entry.id)).unwrap();
                }
            }
        }
    }
    for _ in 0..WAITS_MAX {
        if shared.reads.load(Ordering::Relaxed) > 0 {
            break;
        }
        thread::yield_now();
    }
    shared.is_over.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    assert_eq!(shared.wrong.load(Ordering::Relaxed), 0, "held objects changed");
    assert!(made > ROUNDS / 4, "only {made} objects were made");
    assert!(shared.reads.load(Ordering::Relaxed) > 0);
    home.reclaim().unwrap();
    assert!(!home.has_retiring());
    home.check().unwrap();
}
