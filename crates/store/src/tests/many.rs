//! As many objects as an unoptimised build makes in a second or two: a home adopts all of them
//! unchanged. `bench/restart.py` measures the time for a million.

use std::collections::BTreeMap;

use farrow_memory::{Length, Offset, Span};

use super::spill::File;
use super::support::{TestClient, TestRegion, small};
use crate::{
    BLOCK_BYTES, Home, ObjectId, RECLAIMED_MAX, RegionOptions, SealRequest, StoreError, StoreStats,
    Target, Whereabouts,
};

const OBJECTS: u64 = 100_000;
/// Every n-th object is deleted before the home ends.
const DELETED: u64 = 7;
/// Every n-th object is pinned.
const PINNED: u64 = 50;
/// Every n-th object is held.
const HELD: u64 = 5_000;
/// Every n-th object is spilled.
const SPILLED: u64 = 20_000;

fn name_of(number: u64) -> Option<String> {
    number.is_multiple_of(2).then(|| format!("object-{number:06}"))
}

/// Objects of one block each, half of them sealed by the home, half by the client itself. Each
/// contains its number.
fn fill(home: &mut Home, client: &TestClient) -> BTreeMap<u64, ObjectId> {
    let half = OBJECTS / 2;
    let mut ids = BTreeMap::new();
    for first in [0, half] {
        let extent =
            home.grant(client.slot, Length(half * BLOCK_BYTES), Length(half * BLOCK_BYTES));
        let extent = extent.unwrap();
        let bytes: Vec<u8> = (first..first + half)
            .flat_map(|number| [number; BLOCK_BYTES as usize / 8])
            .flat_map(u64::to_le_bytes)
            .collect();
        client.write(extent.offset, &bytes);
        for number in first..first + half {
            let start = Offset(extent.offset.0 + (number - first) * BLOCK_BYTES);
            let block = Span::new(start, Length(BLOCK_BYTES));
            let id = if first == 0 {
                let name = name_of(number);
                let request = SealRequest::bytes(block, block.length, name.as_deref());
                home.seal(client.slot, &request, number).unwrap()
            } else {
                client.seal_local(block, number).unwrap_or_else(|| {
                    let pages = home.entry_pages(client.slot, 64).unwrap();
                    client.entries.add_pages(pages).unwrap();
                    client.seal_local(block, number).unwrap()
                })
            };
            ids.insert(number, id);
        }
    }
    ids
}

/// The statistics that must be equal in the next life.
fn stats_of(home: &Home) -> StoreStats {
    let mut stats = home.stats().unwrap();
    // Every home has another life number.
    stats.life = 0;
    stats
}

/// The end of a client that held many deleted objects kept the home busy until all were free.
#[test]
fn the_end_of_a_client_frees_a_part_of_what_it_held_and_the_next_turns_the_rest() {
    const COUNT: usize = 2 * RECLAIMED_MAX + 100;
    let world = TestRegion::new(RegionOptions { objects_max: COUNT as u32, ..small_of(COUNT) });
    let mut home = world.create();
    let [writer, reader] = [(); 2].map(|()| TestClient::join(&world, &mut home).unwrap());
    for _ in 0..4 {
        reader.holds.add_block(home.hold_block(reader.slot).unwrap()).unwrap();
    }
    let bytes = Length(COUNT as u64 * BLOCK_BYTES);
    let extent = home.grant(writer.slot, bytes, bytes).unwrap();
    let ids: Vec<ObjectId> = (0..COUNT as u64)
        .map(|number| {
            let start = Offset(extent.offset.0 + number * BLOCK_BYTES);
            let block = Span::new(start, Length(BLOCK_BYTES));
            let request = SealRequest::bytes(block, block.length, None);
            home.seal(writer.slot, &request, number).unwrap()
        })
        .collect();
    let hold = |id: &ObjectId| reader.reader.hold(&reader.holds, Target::Id(*id)).unwrap().unwrap();
    let held: Vec<_> = ids.iter().map(hold).collect();
    let deleted = home.delete_many(ids.iter().map(|id| Target::Id(*id))).unwrap();
    assert!(deleted.into_iter().all(|one| !one.unwrap().freed_now));
    let left = home.client_leave(reader.slot).unwrap();
    assert_eq!(left.objects as usize, RECLAIMED_MAX);
    home.check().unwrap();
    assert_eq!(home.reclaim_some(RECLAIMED_MAX).unwrap().objects as usize, RECLAIMED_MAX);
    assert_eq!(home.reclaim_some(RECLAIMED_MAX).unwrap().objects, 100);
    assert!(!home.has_retiring());
    home.check().unwrap();
    std::mem::forget(held);
}

fn small_of(count: usize) -> RegionOptions {
    let capacity = Length((count as u64 * BLOCK_BYTES).next_multiple_of(4096) + (1 << 20));
    RegionOptions { capacity, ..small() }
}

#[test]
fn a_hundred_thousand_objects_are_adopted_as_they_were() {
    let world = TestRegion::new(RegionOptions {
        // Large grants begin at huge pages.
        capacity: Length((OBJECTS * BLOCK_BYTES).next_multiple_of(4096) + (8 << 20)),
        objects_max: OBJECTS as u32,
        client_objects_max: OBJECTS as u32,
        name_bytes: Length(OBJECTS * 32),
        ..small()
    });
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let mut ids = fill(&mut home, &client);
    assert!(home.register_all().unwrap());
    let is = |every: u64| move |(number, _): &(&u64, &ObjectId)| **number % every == every - 1;
    let some = |ids: &BTreeMap<u64, ObjectId>, every| -> Vec<(u64, ObjectId)> {
        ids.iter().filter(is(every)).map(|(number, id)| (*number, *id)).collect()
    };
    let mut held = Vec::new();
    for (_, id) in some(&ids, HELD) {
        held.push(client.reader.hold(&client.holds, Target::Id(id)).unwrap().unwrap());
    }
    for (number, id) in some(&ids, DELETED) {
        let deleted = home.delete(Target::Id(id)).unwrap();
        assert_eq!(deleted.freed_now, (number + 1) % HELD != 0);
        ids.remove(&number);
    }
    let pinned = some(&ids, PINNED);
    // A pinned object that a client had sealed has a new id, also after it is spilled.
    for (number, id) in &pinned {
        ids.insert(*number, home.pin(Target::Id(*id), true).unwrap());
    }
    let mut away = BTreeMap::new();
    for (number, id) in ids.iter().filter(|(number, _)| **number % SPILLED == 1) {
        let file = File::of(&mut home, *id).unwrap();
        home.finish_spill(file.head.id).unwrap().unwrap();
        away.insert(*number, file.head.id);
    }
    let before = stats_of(&home);
    assert!(before.objects_retiring > 0 && before.objects_spilled > 0 && before.holds > 0);
    drop(home);

    let mut home = world.adopt();
    assert_eq!(stats_of(&home), before);
    for (number, id) in &ids {
        if let Some(away) = away.get(number) {
            let found = client.reader.whereabouts(Target::Id(*id)).unwrap();
            assert_eq!(found, Whereabouts::Away(*away));
            continue;
        }
        let entry = home.find(Target::Id(*id)).unwrap();
        assert_eq!((entry.id, entry.sealed_at_ns), (*id, *number));
        assert_eq!(client.read(entry.primary)[..8], number.to_le_bytes());
        if let Some(name) = name_of(*number).filter(|_| *number < OBJECTS / 2) {
            assert_eq!(client.reader.find(&name).unwrap().map(|entry| entry.id), Some(*id));
        }
    }
    let removed = (0..OBJECTS / 2).filter(|number| !ids.contains_key(number)).filter_map(name_of);
    for name in removed {
        assert!(matches!(home.find(Target::Name(&name)), Err(StoreError::NotFound { .. })));
    }
    let listed = client.reader.list("").unwrap();
    assert_eq!(listed.len(), ids.len());
    assert_eq!(listed.iter().filter(|one| one.is_pinned).count(), pinned.len());
    // An object deleted while it was held is freed with its hold, and new objects can be made.
    drop(held);
    assert!(home.reclaim().unwrap().objects > 0);
    assert_eq!(home.stats().unwrap().objects_retiring, 0);
    let again = client.put(&mut home, b"again", Some("again")).unwrap();
    assert_eq!(home.find(Target::Name("again")).unwrap().id, again);
    home.check().unwrap();
}
