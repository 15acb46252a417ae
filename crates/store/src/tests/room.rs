//! A full home evicted objects for an operation that then failed: for the first of two ranges, for
//! memory although the directory had no free slot, for a slot although no name fitted. Now the home
//! finds everything that an operation needs before it evicts anything.

use farrow_memory::Length;

use super::support::{TestClient, TestRegion, part, small};
use crate::{Home, Lru, Room, SealRequest, StoreError, Target};

const PAGE: u64 = 4096;

/// Objects of one page each, named `0`, `1`, ..., each name padded to `name_bytes`, in this order.
fn named(world: &TestRegion, count: u64, name_bytes: usize) -> (Home, TestClient) {
    let mut home = world.create();
    let client = TestClient::join(world, &mut home).unwrap();
    let all = home.grant(client.slot, Length(count * PAGE), Length(count * PAGE)).unwrap();
    for n in 0..count {
        let name = format!("{n:0name_bytes$}");
        let primary = part(all, n * PAGE, PAGE);
        let request = SealRequest::bytes(primary, Length(PAGE), Some(&name));
        home.seal(client.slot, &request, 100 + n).unwrap();
    }
    home.set_time(10_000);
    (home, client)
}

fn pages(count: u64) -> Length {
    Length(count * PAGE)
}

#[test]
fn several_ranges_are_made_all_or_none() {
    let world = TestRegion::new(small());
    let (mut home, client) = named(&world, 24, 1);
    // 40 of 64 pages are free, and 24 can be evicted, except for the middle one.
    home.pin(Target::Name("12"), true).unwrap();
    let too_much = Room { runs: vec![pages(40), pages(13)], ..Room::default() };
    assert_eq!(home.make_room(&Lru, &too_much).unwrap().objects, 0);
    assert_eq!(home.victims_for(&Lru, &too_much).unwrap(), None);
    let sizes = [pages(3), pages(40), pages(2)];
    let room = Room { runs: sizes.to_vec(), ..Room::default() };
    let evicted = home.make_room(&Lru, &room).unwrap();
    assert_eq!((evicted.objects, evicted.bytes), (5, pages(5)), "no more than is needed");
    let spans = home.grant_all(client.slot, &sizes, Length(0)).unwrap();
    assert_eq!(spans.iter().map(|span| span.length).collect::<Vec<_>>(), sizes);
    assert!(matches!(
        home.grant_all(client.slot, &sizes, Length(0)),
        Err(StoreError::OutOfMemory { requested, .. }) if requested == pages(45)
    ));
    home.check().unwrap();
}

/// Room in advance of need is made of the first objects in the order alone.
#[test]
fn room_ahead_is_made_of_few_objects_or_not_at_all() {
    let world = TestRegion::new(small());
    let (mut home, _client) = named(&world, 24, 1);
    // 40 of 64 pages are free.
    let run = |count| Room::of_run(pages(count));
    for limit in 0..3 {
        assert_eq!(home.victims_ahead(&Lru, &run(43), limit).unwrap(), None);
    }
    // The pages before the free ones are those of the objects that leave last.
    for n in 0..21 {
        home.pin(Target::Name(&n.to_string()), true).unwrap();
    }
    let three = home.victims_ahead(&Lru, &run(43), 3).unwrap();
    assert_eq!(three.as_ref().map(Vec::len), Some(3));
    assert_eq!(three, home.victims_for(&Lru, &run(43)).unwrap());
    for limit in 0..3 {
        assert_eq!(home.victims_ahead(&Lru, &run(43), limit).unwrap(), None);
    }
    // What has been tried is as it was.
    assert_eq!(three, home.victims_ahead(&Lru, &run(43), 3).unwrap());
    let slots = Room { slots: 3, ..Room::default() };
    assert_eq!(home.victims_ahead(&Lru, &slots, 2).unwrap(), None);
    assert_eq!(home.victims_ahead(&Lru, &slots, 3).unwrap(), three);
    home.check().unwrap();
}

#[test]
fn memory_slots_and_names_are_made_together_or_not_at_all() {
    let world = TestRegion::new(small());
    // All slots and, at 32 bytes each, 24 of 40 pieces of the name heap are taken.
    let (mut home, client) = named(&world, 24, 2);
    for n in 1..24 {
        home.pin(Target::Name(&format!("{n:02}")), true).unwrap();
    }
    let long = Length(255);
    let one = Room { runs: vec![pages(1)], slots: 1, names: vec![Length(8)] };
    // The object that may be evicted frees a slot, but three long names need 24 pieces of 17.
    let names = Room { names: vec![long; 3], ..one.clone() };
    let slots = Room { slots: 2, ..one.clone() };
    let runs = Room { runs: vec![pages(42)], ..one.clone() };
    for room in [&names, &slots, &runs] {
        assert_eq!(home.make_room(&Lru, room).unwrap().objects, 0, "{room:?}");
    }
    assert!(home.find(Target::Name("00")).is_ok());
    assert_eq!(home.make_room(&Lru, &one).unwrap().objects, 1);
    assert!(home.has_room(&one));
    client.put(&mut home, b"one more", Some("more")).unwrap();
    assert!(!home.has_room(&one));
    home.check().unwrap();
}

#[test]
fn what_a_client_sealed_by_itself_goes_where_the_directory_is_full() {
    let world = TestRegion::new(small());
    let (mut home, client) = named(&world, 24, 1);
    client.entries.add_pages(home.entry_pages(client.slot, 1).unwrap()).unwrap();
    let all = home.grant(client.slot, pages(4), pages(4)).unwrap();
    let seal = |at| client.seal_local(part(all, at * PAGE, PAGE), 50).unwrap();
    let own: Vec<_> = (0..4).map(seal).collect();
    // All of the directory is pinned: these four have no slot to be adopted into, and nothing is
    // evicted.
    for n in 0..24 {
        home.pin(Target::Name(&n.to_string()), true).unwrap();
    }
    // 36 pages are free, and these four right before them would make 40.
    let room = Room::of_run(pages(38));
    assert_eq!(home.make_room(&Lru, &room).unwrap().objects, 0);
    assert!(own.iter().all(|id| home.find(Target::Id(*id)).is_ok()));
    // With one object evicted for its slot, all of them can be.
    home.pin(Target::Name("5"), false).unwrap();
    let evicted = home.make_room(&Lru, &room).unwrap();
    assert!(evicted.objects >= 3, "{evicted:?}");
    assert!(home.has_room(&room));
    home.check().unwrap();
}

#[test]
fn a_name_that_finds_no_room_is_reported_with_the_numbers_and_others_make_room_for_it() {
    let world = TestRegion::new(small());
    let (mut home, client) = named(&world, 5, 250);
    let refused = client.put(&mut home, b"x", Some("more"));
    let Err(StoreError::NameSpaceFull { requested, free, largest, used }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((requested.0, free.0, largest.0, used.0), (4, 0, 0, 40 * 32));
    let room = Room { slots: 1, names: vec![requested], ..Room::default() };
    assert_eq!(home.make_room(&Lru, &room).unwrap().objects, 1);
    client.put(&mut home, b"x", Some("more")).unwrap();
    home.check().unwrap();
}

/// A request with another error than lack of room gets that error, and nothing is evicted for it.
#[test]
fn want_of_room_is_what_is_found_wrong_last() {
    let world = TestRegion::new(small());
    let (mut home, client) = named(&world, 24, 1);
    let span = home.grant(client.slot, pages(1), pages(1)).unwrap();
    let outside = part(span, PAGE, PAGE);
    let taken = SealRequest::bytes(span, Length(1), Some("3"));
    assert!(matches!(home.seal(client.slot, &taken, 0), Err(StoreError::NameTaken { .. })));
    let foreign = SealRequest::bytes(outside, Length(1), None);
    assert!(matches!(home.seal(client.slot, &foreign, 0), Err(StoreError::NotYours { .. })));
    let good = SealRequest::bytes(span, Length(1), None);
    assert!(matches!(home.seal(client.slot, &good, 0), Err(StoreError::TooManyObjects { .. })));
}
