//! What takes long for many objects is done in parts, with the result of doing it at once.

use std::collections::BTreeSet;

use farrow_memory::{Access, Length, Span};
use farrow_testkit::random::Random;

use super::support::{TestClient, TestRegion, part, small, table};
use crate::format::client_entry::encode;
use crate::{
    Entry, EntryRegistration, Generation, HoldSurvey, Home, ObjectId, RegionOptions, StoreError,
    StoreStats, Target,
};

const OBJECTS: u64 = 3_000;

fn many(grants_max: u32) -> TestRegion {
    TestRegion::new(RegionOptions {
        capacity: Length(4 << 20),
        objects_max: 4_096,
        client_objects_max: 4 * OBJECTS as u32,
        hold_blocks_max: 32,
        name_bytes: Length(1 << 16),
        grants_max,
        ..small()
    })
}

/// A client with a grant, and entries for all objects in it.
fn member(world: &TestRegion, home: &mut Home) -> (TestClient, Span) {
    let client = TestClient::join(world, home).unwrap();
    while home.entry_pages_of(client.slot).iter().map(|span| span.length.0).sum::<u64>()
        < (OBJECTS / 32) << 12
    {
        client.entries.add_pages(home.entry_pages(client.slot, 16).unwrap()).unwrap();
    }
    let length = Length(OBJECTS * 256);
    let extent = home.grant(client.slot, length, length).unwrap();
    for _ in 0..6 {
        client.holds.add_block(home.hold_block(client.slot).unwrap()).unwrap();
    }
    (client, extent)
}

/// Seal objects in the given order of their places; there is a gap after each.
fn seal(client: &TestClient, extent: Span, places: impl IntoIterator<Item = u64>) -> Vec<ObjectId> {
    let one = |n| client.seal_local(part(extent, n * 256, 128), n).unwrap();
    places.into_iter().map(one).collect()
}

/// The number of parts that a registration takes. Each leaves a region that is right.
fn register(home: &mut Home, mut registration: EntryRegistration) -> usize {
    let mut parts = 1;
    while !home.register_some(&mut registration).unwrap() {
        home.check().unwrap();
        parts += 1;
    }
    home.check().unwrap();
    parts
}

#[test]
fn objects_are_registered_in_parts() {
    let world = many(8_192);
    let mut home = world.create();
    let (a, of_a) = member(&world, &mut home);
    let (b, of_b) = member(&world, &mut home);
    let mut ids = seal(&a, of_a, 0..OBJECTS);
    ids.extend(seal(&b, of_b, (0..OBJECTS / 2).rev()));
    // An entry that claims memory of another client ends, and no other.
    let is_of_a = |number: &u32| {
        let entry = home.layout().client_entry_span(*number);
        home.entry_pages_of(a.slot).iter().any(|span| span.contains(entry))
    };
    let used: BTreeSet<_> =
        ids.iter().map(|id| home.layout().client_entry(id.slot()).unwrap()).collect();
    let mut free = (0..home.layout().client_entries()).filter(|number| !used.contains(number));
    let number = free.find(is_of_a).unwrap();
    let at = home.layout().client_entry_span(number).offset;
    let id = ObjectId::new(home.uid(), Generation(1), home.layout().client_slot(number));
    let forged = Entry { id, ..Entry::bytes(id, part(of_b, OBJECTS * 256 - 128, 128)) };
    let bytes: Vec<u8> = encode(&forged).iter().flat_map(|word| word.to_le_bytes()).collect();
    a.write(at, &bytes);

    let parts = register(&mut home, EntryRegistration::of(b.slot));
    assert!(parts > 2, "{parts}");
    assert_eq!(home.stats().unwrap().objects, OBJECTS as u32 / 2);
    let parts = register(&mut home, EntryRegistration::default());
    assert!(parts > 4, "{parts}");
    let stats = home.stats().unwrap();
    assert_eq!(u64::from(stats.objects), OBJECTS * 3 / 2);
    assert_eq!((stats.used.0, stats.objects_retiring), (OBJECTS * 3 / 2 * 128, 1));
    home.register_all().unwrap();
    assert_eq!(home.stats().unwrap(), stats);
    for client in [a.slot, b.slot] {
        home.client_leave(client).unwrap();
        home.check().unwrap();
    }
    for id in ids {
        assert!(home.delete(Target::Id(id)).unwrap().freed_now);
    }
    let stats = home.stats().unwrap();
    assert_eq!((stats.free, stats.entry_pages), (stats.capacity, 0));
}

/// In parts, grants are cut where they are not when all objects are registered at once.
#[test]
fn a_client_whose_objects_need_many_grant_records_is_registered_at_once() {
    let world = many(64);
    let mut home = world.create();
    let (a, extent) = member(&world, &mut home);
    // All of the grant, in an order in which most parts leave hundreds of gaps.
    let places = (0..OBJECTS).map(|n| n * 1_009 % OBJECTS);
    let whole = |n: u64| a.seal_local(part(extent, n * 256, 256), n).unwrap();
    let ids: Vec<ObjectId> = places.map(whole).collect();
    assert_eq!(ids.len() as u64, OBJECTS);
    register(&mut home, EntryRegistration::default());
    let stats = home.stats().unwrap();
    let left = extent.length.0 - OBJECTS * 256;
    assert_eq!((u64::from(stats.objects), stats.granted.0), (OBJECTS, left));
    // Where there are too few records for all at once, nothing is registered, and nothing is lost.
    let (b, extent) = member(&world, &mut home);
    let ids = seal(&b, extent, 0..OBJECTS);
    assert!(matches!(home.register(b.slot), Err(StoreError::TooManyGrants { .. })));
    register(&mut home, EntryRegistration::default());
    assert_eq!(home.stats().unwrap().objects, stats.objects);
    assert!(ids.iter().all(|id| home.find(Target::Id(*id)).is_ok()));
    home.client_leave(b.slot).unwrap();
    assert_eq!(u64::from(home.stats().unwrap().objects), 2 * OBJECTS);
    home.check().unwrap();
}

/// The number of parts of a survey, and the statistics.
fn survey(home: &Home) -> (usize, StoreStats) {
    let (mut survey, mut parts) = (HoldSurvey::default(), 1);
    while !home.survey_some(&mut survey).unwrap() {
        parts += 1;
    }
    (parts, home.stats_of(&survey))
}

#[test]
fn a_survey_in_parts_counts_every_hold_pin_and_shared_block_once() {
    let world = many(8_192);
    let mut home = world.create();
    let (a, extent) = member(&world, &mut home);
    let (b, _) = member(&world, &mut home);
    let own = home.grant(b.slot, Length(1 << 16), Length(1 << 16)).unwrap();
    let ids = seal(&a, extent, 0..OBJECTS);
    home.register_all().unwrap();
    // Two tables share a block of 4 KiB; one of them is held, the other pinned and deleted later.
    let shared_block = [part(own, 8_192, 4_096)];
    let request = |at| table(&b, part(own, at, 256), &shared_block, None);
    let held_table = home.seal(b.slot, &request(0), 0).unwrap();
    let pinned_table = home.seal(b.slot, &request(1_024), 0).unwrap();
    home.pin(Target::Id(pinned_table), true).unwrap();
    let mut holds = vec![a.reader.hold(&a.holds, Target::Id(held_table)).unwrap().unwrap()];
    // Held by two clients, one of them after a takeover.
    for (n, id) in ids.iter().enumerate().take(2_000) {
        holds.push(a.reader.hold(&a.holds, Target::Id(*id)).unwrap().unwrap());
        if n % 4 == 0 {
            let moved = home.take_over(*id).unwrap();
            holds.push(b.reader.hold(&b.holds, Target::Id(moved)).unwrap().unwrap());
            home.pin(Target::Id(moved), true).unwrap();
        }
    }
    let (parts, stats) = survey(&home);
    assert!(parts > 2, "{parts}");
    assert_eq!(stats, home.stats().unwrap());
    let (all, held, pinned) = (OBJECTS * 128, 2_000 * 128, 500 * 128);
    let (of_table, shared) = (256, 4_096);
    assert_eq!(stats.holds, 1 + 2_000 + 500);
    assert_eq!(stats.held.0, held + of_table + shared);
    assert_eq!(stats.pinned.0, pinned + of_table + shared);
    assert_eq!(stats.used.0, all + 2 * of_table + shared);
    assert_eq!(stats.evictable.0, all - held);
    // What is deleted and still held is used no more, except for what another object has of it.
    home.delete(Target::Id(held_table)).unwrap();
    home.pin(Target::Id(pinned_table), false).unwrap();
    for id in &ids[..1_500] {
        assert!(!home.delete(Target::Id(*id)).unwrap().freed_now);
    }
    let (parts, stats) = survey(&home);
    assert!(parts > 2, "{parts}");
    assert_eq!(stats.objects_retiring, 1_501);
    assert_eq!(stats.held.0, 500 * 128 + shared);
    assert_eq!(stats.evictable.0, 1_000 * 128 + of_table);
    assert_eq!(stats, home.stats().unwrap());
    home.check().unwrap();
}

/// Between two parts a home serves others: they release, delete, seal and free.
#[test]
fn a_survey_during_changes_ends_and_counts_what_stays() {
    let world = many(8_192);
    let mut home = world.create();
    let (a, extent) = member(&world, &mut home);
    let ids = seal(&a, extent, 0..OBJECTS);
    home.register_all().unwrap();
    let mut random = Random::new(5);
    let hold = |id: &ObjectId| a.reader.hold(&a.holds, Target::Id(*id)).unwrap().unwrap();
    let stay: Vec<_> = ids[..1_000].iter().map(hold).collect();
    let mut others: Vec<_> = ids[1_000..].iter().map(hold).collect();
    let (mut survey, mut parts) = (HoldSurvey::default(), 1);
    while !home.survey_some(&mut survey).unwrap() {
        parts += 1;
        for _ in 0..300 {
            let held = others.swap_remove(random.next() as usize % others.len());
            let id = held.entry().id;
            drop(held);
            home.delete(Target::Id(id)).unwrap();
        }
        home.check().unwrap();
    }
    assert!(parts > 2, "{parts}");
    let stats = home.stats_of(&survey);
    assert!(stats.held.0 >= 1_000 * 128 && stats.held.0 <= OBJECTS * 128, "{stats:?}");
    assert_eq!(stats.objects as usize, stay.len() + others.len());
    drop((stay, others));
    assert_eq!(home.stats().unwrap().held.0, 0);
    // The next home finds what was registered in parts.
    let objects = home.objects();
    drop(home);
    let (home, _) = Home::adopt(world.map(Access::Home)).unwrap();
    assert_eq!(home.objects(), objects);
    home.check().unwrap();
}
