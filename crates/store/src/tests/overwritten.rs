//! Entries that a client changes after the home has looked at them.
//!
//! The home once published a directory entry of what it read last, though it had registered nothing:
//! an entry that was being written at one look and sealed at the next one could name any block. And
//! an object whose entry was overwritten after its registration could never leave memory: each
//! eviction of the node failed.

use farrow_memory::{Length, Offset, Span};

use super::support::{TestClient, TestRegion, part, small};
use crate::failpoints;
use crate::format::client_entry::{CLIENT_ENTRY_WORDS, encode};
use crate::format::entry::{Entry, EntryState, Sequence};
use crate::{
    Evicted, Generation, Home, Lru, Need, ObjectId, Room, SealRequest, StoreError, Target,
};

const PAGE: u64 = 4096;

/// A client with a page of entries and a grant.
fn member(world: &TestRegion, home: &mut Home, pages: u64) -> (TestClient, Span) {
    let client = TestClient::join(world, home).unwrap();
    client.entries.add_pages(home.entry_pages(client.slot, 1).unwrap()).unwrap();
    let extent = home.grant(client.slot, Length(pages * PAGE), Length(pages * PAGE)).unwrap();
    (client, extent)
}

fn write_words(client: &TestClient, at: Offset, words: &[u64]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    client.write(at, &bytes);
}

/// Overwrites the checksum of an entry that its client wrote.
fn damage(home: &Home, client: &TestClient, id: ObjectId) {
    let number = home.layout().client_entry(id.slot()).unwrap();
    let entry = home.layout().client_entry_span(number);
    let last = Offset(entry.offset.0 + (CLIENT_ENTRY_WORDS as u64 - 1) * 8);
    write_words(client, last, &[0]);
}

#[test]
fn an_entry_that_changes_between_two_looks_gets_no_directory_entry() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (victim, block) = member(&world, &mut home, 1);
    let request = SealRequest::bytes(block, block.length, Some("victim"));
    home.seal(victim.slot, &request, 1).unwrap();
    let (forger, _) = member(&world, &mut home, 1);
    let number = home.layout().client_entries_in_page();
    let id = ObjectId::new(home.uid(), Generation(1), home.layout().client_slot(number));
    let forged = encode(&Entry::bytes(id, block));
    let at = home.layout().client_entry_span(number).offset;
    assert!(home.entry_pages_of(forger.slot)[0].contains(Span::new(at, Length(8))));
    write_words(&forger, at, &forged);
    write_words(&forger, at, &[Sequence(forged[0]).with(EntryState::Writing).0]);

    let mut is_sealed = false;
    failpoints::set_local(Some(Box::new(move |name| {
        if name == "takeover.registered" && !std::mem::replace(&mut is_sealed, true) {
            write_words(&forger, at, &forged[..1]);
        }
    })));
    let taken = home.take_over(id);
    failpoints::set_local(None);
    assert!(matches!(taken, Err(StoreError::NotFound { .. })), "{taken:?}");
    assert_eq!(home.stats().unwrap().objects, 1);
    // A look that sees it sealed finds that the block is not its client's.
    assert!(home.delete(Target::Id(id)).is_err());
    home.reclaim().unwrap();
    assert_eq!(home.stats().unwrap().used, block.length, "the block of the other object");
    home.check().unwrap();
}

/// A full region: one overwritten object, sealed first, and seven objects of another client.
fn full(world: &TestRegion) -> (Home, TestClient, ObjectId) {
    let mut home = world.create();
    let (client, extent) = member(world, &mut home, 8);
    let damaged = client.seal_local(part(extent, 0, PAGE), 1).unwrap();
    let other = TestClient::join(world, &mut home).unwrap();
    home.register_all().unwrap();
    home.release(client.slot, &[part(extent, PAGE, 7 * PAGE)]).unwrap();
    for n in 0..7 {
        other.put(&mut home, &[n; PAGE as usize], None).unwrap();
    }
    damage(&home, &client, damaged);
    home.set_time(10_000);
    (home, client, damaged)
}

fn world() -> TestRegion {
    TestRegion::new(crate::RegionOptions { capacity: Length(8 * PAGE), ..small() })
}

#[test]
fn an_overwritten_entry_does_not_hinder_an_eviction() {
    for need in [Need::Bytes(Length(2 * PAGE)), Need::Run(Length(2 * PAGE))] {
        let world = world();
        let (mut home, _client, damaged) = full(&world);
        assert_eq!(home.find(Target::Id(damaged)).ok(), None);
        let evicted = home.evict_for(&Lru, need).unwrap();
        assert_eq!(evicted, Evicted { objects: 2, bytes: Length(2 * PAGE) });
        assert_eq!(home.stats().unwrap().objects, 6);
        home.check().unwrap();
    }
    // Its client has ended.
    let world = world();
    let (mut home, client, _) = full(&world);
    home.client_leave(client.slot).unwrap();
    let room = Room::of_run(Length(PAGE));
    assert_eq!(home.make_room(&Lru, &room).unwrap().objects, 1);
    assert!(home.has_room(&room));
    home.check().unwrap();
}

#[test]
fn an_overwritten_object_that_is_held_keeps_its_memory() {
    let world = world();
    let mut home = world.create();
    let (client, extent) = member(&world, &mut home, 8);
    let ids: Vec<ObjectId> =
        (0..8).map(|n| client.seal_local(part(extent, n * PAGE, PAGE), n + 1).unwrap()).collect();
    home.register_all().unwrap();
    home.set_time(10_000);
    let room = Room::of_run(Length(2 * PAGE));
    // The hold and the damage are later than the choice.
    let victims = home.victims_for(&Lru, &room).unwrap().unwrap();
    assert!(victims.contains(&ids[0]));
    let held = client.reader.hold(&client.holds, Target::Id(ids[0])).unwrap().unwrap();
    damage(&home, &client, ids[0]);
    let evicted = home.evict_victims(&Lru, victims).unwrap();
    assert_eq!(evicted.bytes, Length(0), "the second one stays, since they are not enough");
    assert_eq!((home.stats().unwrap().objects, home.has_retiring()), (7, true));
    assert_eq!(home.make_room(&Lru, &room).unwrap().bytes, room.runs[0]);
    home.check().unwrap();
    drop(held);
    assert_eq!(home.reclaim().unwrap().bytes, Length(PAGE));
    home.check().unwrap();
}

#[test]
fn an_overwritten_entry_does_not_hinder_a_spill() {
    let world = world();
    let (mut home, _client, damaged) = full(&world);
    let before = home.stats().unwrap().free;
    assert_eq!(home.begin_spill(damaged).unwrap(), None);
    assert_eq!(home.stats().unwrap().free.0, before.0 + PAGE);
    assert!(matches!(home.begin_spill(damaged), Err(StoreError::NotFound { .. })));
    home.check().unwrap();
}
