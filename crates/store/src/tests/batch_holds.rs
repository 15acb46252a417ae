//! Plain bytes that are held together.

use std::sync::Arc;

use farrow_memory::{Length, Span};

use super::support::{TestClient, TestRegion, part, small, table};
use crate::{HeldBytes, HoldTable, ObjectId, Target};

const ANY_SIZE: Length = Length(1 << 20);

fn no_more(slots: u64) -> bool {
    panic!("all of {slots} slots are used up");
}

fn together(client: &TestClient, ids: &[ObjectId]) -> HeldBytes {
    let targets: Vec<_> = ids.iter().map(|id| Target::Id(*id)).collect();
    client.reader.hold_bytes(&client.holds, &targets, ANY_SIZE, no_more).unwrap()
}

fn are_held(held: &HeldBytes, count: usize) -> Vec<bool> {
    (0..count).map(|index| held.get(index).is_some()).collect()
}

#[test]
fn each_stays_until_it_is_let_go() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let a = TestClient::join(&world, &mut home).unwrap();
    let b = TestClient::join(&world, &mut home).unwrap();
    a.entries.add_pages(home.entry_pages(a.slot, 1).unwrap()).unwrap();
    let extent = home.grant(a.slot, Length(4 << 12), Length(4 << 12)).unwrap();
    let local = a.seal_local(part(extent, 0, 128), 7).unwrap();
    let named = a.put(&mut home, b"with a name", Some("n")).unwrap();
    let removed = a.put(&mut home, b"gone", None).unwrap();
    home.delete(Target::Id(removed)).unwrap();

    let ids = [local, named, removed, named];
    let held = together(&b, &ids);
    assert_eq!(are_held(&held, 5), [true, true, false, true, false]);
    let (id, payload) = held.get(1).unwrap();
    assert_eq!((id, b.read(payload)), (named, b"with a name".to_vec()));
    // One claim for an object that is in the batch twice.
    assert_eq!(b.holds.len(), 2);
    for id in [local, named] {
        assert!(!home.delete(Target::Id(id)).unwrap().freed_now);
    }
    assert_eq!(together(&b, &ids).get(1), None);

    assert_eq!(held.let_go(1), Some(named));
    assert_eq!((held.let_go(1), held.get(1), held.let_go(2)), (None, None, None));
    assert_eq!(home.reclaim().unwrap().bytes.0, 0);
    assert_eq!(held.let_go(3), Some(named));
    assert_eq!(home.reclaim().unwrap().bytes.0, 128);
    drop(held);
    assert_eq!(home.reclaim().unwrap().bytes.0, 128);
    assert!(b.holds.is_empty());
    home.check().unwrap();
}

#[test]
fn a_claim_that_there_was_is_shared() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let a = TestClient::join(&world, &mut home).unwrap();
    let id = a.put(&mut home, b"held", None).unwrap();
    let alone = a.reader.hold(&a.holds, Target::Id(id)).unwrap().unwrap();
    let held = together(&a, &[id]);
    drop(alone);
    assert!(!home.delete(Target::Id(id)).unwrap().freed_now);
    drop(held);
    assert_eq!(home.reclaim().unwrap().bytes.0, 128);
}

#[test]
fn what_is_long_or_not_plain_is_left() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let a = TestClient::join(&world, &mut home).unwrap();
    let extent = home.grant(a.slot, Length(1 << 12), Length(1 << 12)).unwrap();
    let request = table(&a, part(extent, 0, 128), &[], None);
    let other = home.seal(a.slot, &request, 5).unwrap();
    let long = a.put(&mut home, &[1; 300], None).unwrap();
    let short = a.put(&mut home, &[2; 100], None).unwrap();
    let targets = [other, long, short].map(Target::Id);
    let held = a.reader.hold_bytes(&a.holds, &targets, Length(128), no_more).unwrap();
    assert_eq!(are_held(&held, 3), [false, false, true]);
}

#[test]
fn more_slots_are_asked_for_and_without_them_the_rest_is_left() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let a = TestClient::join(&world, &mut home).unwrap();
    for _ in 0..2 {
        a.entries.add_pages(home.entry_pages(a.slot, 1).unwrap()).unwrap();
    }
    let extent = home.grant(a.slot, Length(4 << 12), Length(4 << 12)).unwrap();
    let ids: Vec<ObjectId> =
        (0..70).map(|n| a.seal_local(part(extent, n * 128, 128), n).unwrap()).collect();
    let targets: Vec<_> = ids.iter().map(|id| Target::Id(*id)).collect();
    let table = Arc::new(HoldTable::new(Arc::clone(a.reader.region()), &[]).unwrap());
    let mut requested = Vec::new();
    let none = |slots| {
        requested.push(slots);
        false
    };
    let held = a.reader.hold_bytes(&table, &targets, ANY_SIZE, none).unwrap();
    assert_eq!(are_held(&held, 70), [false; 70]);
    assert_eq!(requested, [0]);

    let mut requested = 0;
    let block: Span = home.hold_block(a.slot).unwrap();
    let more = |_| {
        requested += 1;
        table.add_block(block).is_ok()
    };
    let held = a.reader.hold_bytes(&table, &targets, ANY_SIZE, more).unwrap();
    assert_eq!((are_held(&held, 70), requested), (vec![true; 70], 1));
    for id in &ids {
        assert!(!home.delete(Target::Id(*id)).unwrap().freed_now);
    }
    drop(held);
    home.reclaim().unwrap();
    home.check().unwrap();
}
