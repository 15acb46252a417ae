//! Objects that clients seal without the home.

use farrow_memory::{Access, Length, Offset, Span};
use proptest::prelude::*;

use super::support::{TestClient, TestRegion, part, small, table};
use crate::format::client_entry::{CLIENT_ENTRY_WORDS, encode};
use crate::format::entry::{EntryState, Sequence};
use crate::{
    Entry, EntryRegistration, Generation, Home, Metadata, ObjectId, RegionOptions, SealRequest,
    StoreError, Target,
};

/// A client with a page of entries and a grant of 16 pages.
fn member(world: &TestRegion, home: &mut Home) -> (TestClient, Span) {
    let client = TestClient::join(world, home).unwrap();
    client.entries.add_pages(home.entry_pages(client.slot, 1).unwrap()).unwrap();
    let extent = home.grant(client.slot, Length(16 << 12), Length(16 << 12)).unwrap();
    (client, extent)
}

fn write_words(client: &TestClient, at: Offset, words: &[u64]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    client.write(at, &bytes);
}

#[test]
fn an_object_is_there_at_once_and_goes_when_it_is_deleted() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, extent) = member(&world, &mut home);
    let b = TestClient::join(&world, &mut home).unwrap();
    a.write(extent.offset, b"by itself");
    let block = part(extent, 0, 128);
    let request = SealRequest::bytes(block, Length(9), None);
    let (id, _) = a.entries.seal(&request, 7, None).unwrap().unwrap();

    let entry = b.reader.by_id(id).unwrap().unwrap();
    assert_eq!((entry.id, entry.primary, entry.sealed_at_ns), (id, block, 7));
    assert_eq!((entry.creator, entry.creator_pid), (a.slot.0, 42));
    assert_eq!(b.read(entry.payload()), b"by itself");
    assert_eq!(b.reader.list("").unwrap()[0].entry, entry);
    assert_eq!(b.reader.list("x").unwrap(), []);
    assert_eq!(b.reader.name_of(&entry).unwrap(), None);
    assert_eq!(home.find(Target::Id(id)).unwrap(), entry);
    // Before the home looks, it knows only of a grant.
    assert_eq!((home.stats().unwrap().objects, home.stats().unwrap().granted), (0, extent.length));
    home.register_all().unwrap();
    let stats = home.stats().unwrap();
    assert_eq!((stats.objects, stats.client_objects, stats.used.0), (1, 1, 128));

    let held = b.reader.hold(&b.holds, Target::Id(id)).unwrap().unwrap();
    assert!(!home.delete(Target::Id(id)).unwrap().freed_now);
    assert_eq!(a.reader.by_id(id).unwrap(), None);
    assert!(b.reader.hold(&b.holds, Target::Id(id)).unwrap().is_none());
    assert!(matches!(home.delete(Target::Id(id)), Err(StoreError::NotFound { .. })));
    home.check().unwrap();
    drop(held);
    assert_eq!(home.reclaim().unwrap().bytes.0, 128);
    home.check().unwrap();
}

/// The metadata of an entry with a slot beyond the directory was once looked for in the directory.
#[test]
fn metadata_is_read_while_the_object_is_there() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, extent) = member(&world, &mut home);
    let metadata = Metadata::new([("team", "risk")]).unwrap();
    let bytes = metadata.encode();
    let block = part(extent, 0, 128);
    a.write(Offset(block.end().unwrap().0 - (bytes.len() as u64).next_multiple_of(8)), &bytes);
    let request = SealRequest {
        metadata_bytes: bytes.len() as u32,
        metadata_crc: crc32c::crc32c(&bytes),
        ..SealRequest::bytes(block, Length(9), None)
    };
    let (id, _) = a.entries.seal(&request, 7, None).unwrap().unwrap();
    let entry = a.reader.by_id(id).unwrap().unwrap();
    assert_eq!(a.reader.metadata(&entry).unwrap(), Some(metadata));
    home.delete(Target::Id(id)).unwrap();
    assert_eq!(a.reader.metadata(&entry).unwrap(), None);
}

#[test]
fn entries_are_used_again_and_ids_never_repeat() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, extent) = member(&world, &mut home);
    let mut ids = std::collections::BTreeSet::new();
    let mut live = Vec::new();
    for n in 0..200 {
        match a.seal_local(part(extent, n * 128, 128), n) {
            Some(id) => {
                assert!(ids.insert(id));
                live.push(id);
            }
            // All 42 entries are in use: free some.
            None => {
                assert_eq!(live.len(), 42);
                for id in live.drain(..20) {
                    assert!(home.delete(Target::Id(id)).unwrap().freed_now);
                }
            }
        }
    }
    home.check().unwrap();
    let count = a.reader.list("").unwrap().len();
    assert_eq!(count, live.len());
}

/// New pages once hindered the search for old entries, which led to still more pages.
#[test]
fn pages_of_a_client_follow_what_it_has_in_use() {
    let capacity = Length(256 << 12);
    let world =
        TestRegion::new(RegionOptions { capacity, client_objects_max: 42 * 1024, ..small() });
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let mut pages = 0;
    let mut seal = |home: &mut Home, count: u64| -> Vec<ObjectId> {
        let extent = home.grant(client.slot, Length(128 * count), Length(128 * count)).unwrap();
        let one = |n| loop {
            if let Some(id) = client.seal_local(part(extent, n * 128, 128), n) {
                return id;
            }
            let more = home.entry_pages(client.slot, 16).unwrap();
            pages += more.length.0 / 4096;
            client.entries.add_pages(more).unwrap();
        };
        (0..count).map(one).collect()
    };
    // A few objects stay.
    let retained = seal(&mut home, 1024);
    for round in 0..40 {
        // The number of objects varies by round.
        for id in seal(&mut home, [2048, 512, 3072, 64][round % 4]) {
            assert!(home.delete(Target::Id(id)).unwrap().freed_now);
        }
    }
    assert!(retained.iter().all(|id| client.reader.by_id(*id).unwrap().is_some()));
    let needed = (1024 + 3072) / 42;
    assert!(pages <= needed + needed / 3 + 2 * 16, "{pages} pages for entries in {needed}");
}

#[test]
fn what_a_client_leaves_behind_stays_and_its_page_is_free_in_the_end() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, extent) = member(&world, &mut home);
    let ids: Vec<ObjectId> =
        (0..3).map(|n| a.seal_local(part(extent, n * 4096, 128), n).unwrap()).collect();
    home.client_leave(a.slot).unwrap();
    home.check().unwrap();
    let stats = home.stats().unwrap();
    assert_eq!((stats.objects, stats.granted.0, stats.entry_pages), (3, 0, 1));
    drop(home);
    let mut home = world.adopt();
    assert_eq!((home.stats().unwrap().objects, home.stats().unwrap().entry_pages), (3, 1));
    for id in &ids {
        assert!(home.find(Target::Id(*id)).is_ok());
        assert!(home.delete(Target::Id(*id)).unwrap().freed_now);
    }
    let stats = home.stats().unwrap();
    assert_eq!((stats.entry_pages, stats.free), (0, stats.capacity));
    // The next owner of the page continues with later lives.
    let (b, extent) = member(&world, &mut home);
    let again = b.seal_local(part(extent, 0, 128), 9).unwrap();
    assert_eq!((again.slot(), again.generation().0), (ids[0].slot(), 2));
    assert_eq!(b.reader.by_id(ids[0]).unwrap(), None);
    home.check().unwrap();
}

#[test]
fn a_client_that_is_killed_between_two_stores_leaves_no_object() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, extent) = member(&world, &mut home);
    let slot = home.layout().client_slot(0);
    let entry = Entry {
        id: ObjectId::new(home.uid(), Generation(1), slot),
        creator: a.slot.0,
        ..entry_of(part(extent, 0, 128))
    };
    let at = home.layout().client_entry_span(0).offset;
    let sealed = encode(&entry);
    for stored in 0..=CLIENT_ENTRY_WORDS {
        let mut words = [0; CLIENT_ENTRY_WORDS];
        words[0] = Sequence(sealed[0]).with(EntryState::Writing).0;
        for (word, value) in words.iter_mut().zip(sealed).skip(1).take(stored) {
            *word = value;
        }
        if stored == CLIENT_ENTRY_WORDS {
            words[0] = sealed[0];
        }
        write_words(&a, at, &words);
        let is_there = stored == CLIENT_ENTRY_WORDS;
        assert_eq!(a.reader.by_id(entry.id).unwrap().is_some(), is_there);
        home = world.adopt();
        assert_eq!(home.stats().unwrap().objects, u32::from(is_there));
    }
    home.client_leave(a.slot).unwrap();
    home.check().unwrap();
}

fn entry_of(primary: Span) -> Entry {
    let none = ObjectId { hi: 0, lo: 0 };
    Entry { sealed_at_ns: 1, creator_pid: 42, ..Entry::bytes(none, primary) }
}

#[test]
fn an_object_that_was_taken_over_has_two_ids_and_both_hold_it() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, extent) = member(&world, &mut home);
    let old = a.seal_local(part(extent, 0, 128), 7).unwrap();
    let early = a.reader.hold(&a.holds, Target::Id(old)).unwrap().unwrap();
    let new = home.take_over(old).unwrap();
    assert_eq!((home.take_over(old).unwrap(), home.take_over(new).unwrap()), (new, new));
    home.check().unwrap();
    let late = a.reader.hold(&a.holds, Target::Id(old)).unwrap().unwrap();
    assert_eq!((late.entry().id, late.entry().primary), (new, early.entry().primary));
    assert_eq!(a.reader.list("").unwrap().len(), 1);
    drop(home);
    let mut home = world.adopt();
    assert_eq!(home.find(Target::Id(old)).unwrap().id, new);
    // Its entry is not used again before the object is removed.
    while a.seal_local(part(extent, 128, 128), 8).is_some_and(|id| id.slot() != old.slot()) {}
    assert_eq!(a.reader.by_id(old).unwrap().unwrap().id, new);
    assert!(!home.delete(Target::Id(old)).unwrap().freed_now);
    assert_eq!(a.reader.by_id(old).unwrap(), None);
    drop(late);
    assert_eq!(home.reclaim().unwrap().objects, 0);
    drop(early);
    assert_eq!(home.reclaim().unwrap().objects, 1);
    home.check().unwrap();
    let again = a.seal_local(part(extent, 128, 128), 8).unwrap();
    assert_eq!((again.slot(), again.generation().0), (old.slot(), 2));
}

#[test]
fn a_table_may_share_the_block_of_an_object_that_the_home_has_not_heard_of() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, extent) = member(&world, &mut home);
    let (b, others) = {
        let client = TestClient::join(&world, &mut home).unwrap();
        let extent = home.grant(client.slot, Length(4096), Length(4096)).unwrap();
        (client, extent)
    };
    let blocks = [part(extent, 4096, 4096), part(extent, 12288, 4096)];
    let ids = blocks.map(|block| a.seal_local(block, 1).unwrap());
    let request = table(&b, part(others, 0, 128), &blocks, Some("shared"));
    home.seal(b.slot, &request, 2).unwrap();
    let request = table(&a, part(extent, 0, 128), &blocks, None);
    home.seal(a.slot, &request, 3).unwrap();
    home.check().unwrap();
    for id in ids {
        assert!(home.delete(Target::Id(id)).unwrap().freed_now);
    }
    assert_eq!(home.stats().unwrap().used.0, 2 * 4096 + 2 * 128);
    drop(home);
    world.adopt().check().unwrap();
}

/// One message of thousands of tables once read all entries of its client for each of them.
#[test]
fn entries_are_looked_at_once_in_a_batch() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, extent) = member(&world, &mut home);
    let (b, others) = member(&world, &mut home);
    let shared = part(others, 0, 4096);
    b.seal_local(shared, 1).unwrap();
    let seal = |home: &mut Home, at: u64| {
        let extra = [shared, part(extent, at + 4096, 4096)];
        home.seal(a.slot, &table(&a, part(extent, at, 128), &extra, None), 2).unwrap();
    };
    home.begin_batch();
    seal(&mut home, 0);
    // A look would end this claim.
    a.seal_local(part(others, 8192, 128), 3).unwrap();
    seal(&mut home, 8192);
    assert!(!home.has_retiring());
    home.end_batch();
    seal(&mut home, 16384);
    assert!(home.has_retiring());
    home.check().unwrap();
}

/// Its bytes would count for that client as soon as another home adopts the region.
#[test]
fn an_entry_that_names_another_client_as_creator_is_still_its_own_clients() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, _) = member(&world, &mut home);
    let (b, extent) = member(&world, &mut home);
    let page = home.entry_pages_of(b.slot)[0];
    let forge = |at: u64| {
        let number = home.layout().client_entries_in_page() + at as u32;
        let entry = Entry {
            id: ObjectId::new(home.uid(), Generation(1), home.layout().client_slot(number)),
            creator: a.slot.0,
            ..entry_of(part(extent, at * 4096, 4096))
        };
        let place = home.layout().client_entry_span(number).offset;
        assert!(page.contains(Span::new(place, Length(8))));
        write_words(&b, place, &encode(&entry));
        entry.id
    };
    let [first, second] = [0, 1].map(forge);
    let creator = |entry: Entry| (entry.creator, entry.creator_pid);
    assert_eq!(creator(home.find(Target::Id(first)).unwrap()), (b.slot.0, 42));
    let first = home.take_over(first).unwrap();
    home.client_leave(b.slot).unwrap();
    let second = home.take_over(second).unwrap();
    drop(home);
    let home = world.adopt();
    assert_eq!(home.usage_of(a.slot).objects, 0);
    assert_eq!(creator(home.find(Target::Id(first)).unwrap()), (b.slot.0, 42));
    assert_eq!(creator(home.find(Target::Id(second)).unwrap()), (a.slot.0, 0));
}

#[test]
fn entries_that_claim_what_is_not_their_clients_end() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, extent) = member(&world, &mut home);
    let (b, others) = member(&world, &mut home);
    let good = b.seal_local(part(others, 0, 256), 1).unwrap();
    home.register_all().unwrap();
    let free = Span::new(Offset(others.end().unwrap().0), Length(128));
    let across = Span::new(Offset(extent.end().unwrap().0 - 128), Length(256));
    let claims = [part(others, 0, 256), part(others, 128, 128), part(others, 4096, 128), free];
    let bad: Vec<ObjectId> =
        claims.into_iter().chain([across]).map(|s| a.seal_local(s, 2).unwrap()).collect();
    let twice = [0, 1].map(|_| a.seal_local(part(extent, 0, 128), 3).unwrap());
    let held = b.reader.hold(&b.holds, Target::Id(bad[0])).unwrap().unwrap();
    home.register_all().unwrap();
    home.check().unwrap();
    for id in &bad {
        assert!(home.find(Target::Id(*id)).is_err() && home.delete(Target::Id(*id)).is_err());
        assert_eq!(b.reader.by_id(*id).unwrap(), None);
    }
    assert_eq!(twice.iter().filter(|id| home.find(Target::Id(**id)).is_ok()).count(), 1);
    assert!(home.find(Target::Id(good)).is_ok());
    assert_eq!(home.reclaim().unwrap().objects, 5, "one of six is held");
    drop(held);
    assert_eq!(home.reclaim().unwrap().objects, 1);
    home.check().unwrap();
}

#[test]
fn the_directory_and_older_entries_win_when_a_region_is_adopted() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, extent) = member(&world, &mut home);
    let (b, others) = member(&world, &mut home);
    let request = SealRequest::bytes(part(extent, 0, 256), Length(1), Some("sealed by the home"));
    home.seal(a.slot, &request, 9).unwrap();
    let older = a.seal_local(part(extent, 4096, 256), 4).unwrap();
    let bad = [
        a.seal_local(part(extent, 128, 256), 1).unwrap(),
        a.seal_local(part(extent, 4096 + 128, 256), 5).unwrap(),
        a.seal_local(part(others, 0, 128), 1).unwrap(),
    ];
    drop(home);
    let (mut home, report) = Home::adopt(world.map(Access::Home)).unwrap();
    home.check().unwrap();
    assert_eq!((report.objects, report.dropped.len()), (2, 3));
    assert!(home.find(Target::Id(older)).is_ok());
    for id in bad {
        assert!(home.find(Target::Id(id)).is_err());
        assert_eq!(b.reader.by_id(id).unwrap(), None);
    }
    home.client_leave(a.slot).unwrap();
    home.client_leave(b.slot).unwrap();
    home.check().unwrap();
}

/// The next home once took the new words for the block of the deleted object, and ended for lack of
/// grant records: with that, the region could not be used again.
#[test]
fn entries_that_were_rewritten_after_a_delete_do_not_hinder_the_next_home() {
    let world = TestRegion::new(RegionOptions { grants_max: 4, ..small() });
    let mut home = world.create();
    let (a, extent) = member(&world, &mut home);
    let ids: Vec<ObjectId> =
        (0..8).map(|n| a.seal_local(part(extent, n * 128, 128), n).unwrap()).collect();
    let hold = |id: &ObjectId| a.reader.hold(&a.holds, Target::Id(*id)).unwrap().unwrap();
    let held: Vec<_> = ids.iter().map(hold).collect();
    for id in &ids {
        assert!(!home.delete(Target::Id(*id)).unwrap().freed_now);
    }
    for (n, id) in (1..).zip(&ids) {
        let entry = Entry { id: *id, ..entry_of(part(extent, n * 4096, 128)) };
        let number = home.layout().client_entry(id.slot()).unwrap();
        write_words(&a, home.layout().client_entry_span(number).offset, &encode(&entry));
    }
    let granted = home.stats().unwrap().granted;
    drop(home);
    let mut home = world.adopt();
    home.check().unwrap();
    assert_eq!(home.stats().unwrap().granted, granted);
    drop(held);
    home.client_leave(a.slot).unwrap();
    home.check().unwrap();
    assert_eq!(home.stats().unwrap().free, home.stats().unwrap().capacity);
}

#[test]
fn an_entry_is_given_up_when_its_lives_are_used_up() {
    let world = TestRegion::new(small());
    let home = world.create();
    let life = home.layout().life(0, 0);
    drop(home);
    let word = Sequence::new(Generation(u32::MAX - 1), EntryState::Free).0;
    world.map(Access::Home).write(life, &word.to_le_bytes()).unwrap();
    let mut home = world.adopt();
    let (a, extent) = member(&world, &mut home);
    let last = a.seal_local(part(extent, 0, 128), 1).unwrap();
    assert_eq!(last.generation().0, u32::MAX - 1);
    assert!(home.delete(Target::Id(last)).unwrap().freed_now);
    // Words of a life that is never open are not an object, even with a valid entry.
    let slot = home.layout().client_slot(0);
    let forged = ObjectId::new(home.uid(), Generation(u32::MAX), slot);
    let entry = Entry { id: forged, ..entry_of(part(extent, 128, 128)) };
    write_words(&a, home.layout().client_entry_span(0).offset, &encode(&entry));
    assert_eq!(a.reader.by_id(forged).unwrap(), None);
    assert!(home.delete(Target::Id(forged)).is_err());
    home.register_all().unwrap();
    assert_eq!(home.stats().unwrap().client_objects, 0);
    for n in 1..42 {
        assert_ne!(a.seal_local(part(extent, n * 128, 128), 1).unwrap().slot(), slot);
    }
    assert_eq!(a.seal_local(part(extent, 0, 128), 1), None);
}

#[test]
fn what_a_client_may_not_seal_by_itself_is_refused() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, extent) = member(&world, &mut home);
    let bytes = SealRequest::bytes(part(extent, 0, 128), Length(1), None);
    for request in [
        SealRequest { name: Some("named"), ..bytes.clone() },
        SealRequest { extra: vec![part(extent, 128, 128)], ..bytes.clone() },
        SealRequest { primary: part(extent, 64, 128), ..bytes.clone() },
        SealRequest { size: Length(129), ..bytes.clone() },
    ] {
        let sealed = a.entries.seal(&request, 1, None);
        assert!(matches!(sealed, Err(StoreError::BadRequest { .. })));
    }
    assert!(matches!(a.entries.add_pages(extent), Err(StoreError::BadSpan { .. })));
    let max = home.layout().entry_pages_max;
    for _ in 1..max {
        assert_eq!(home.entry_pages(a.slot, 9).unwrap().length, home.layout().page);
    }
    let none = home.entry_pages(a.slot, 1);
    assert!(matches!(none, Err(StoreError::EntryPagesExhausted { max: found }) if found == max));
    assert!(a.seal_local(part(extent, 0, 128), 1).is_some());
}

fn word() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..300u64, Just(u64::MAX), (0..1u64 << 20).prop_map(|n| n * 128)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// A client writes arbitrary words into its entry pages, including whole entries with good
    /// checksums.
    #[test]
    fn whatever_a_client_writes_the_books_stay_right(
        scribbles in prop::collection::vec((0..168usize, 0..12usize, word(), any::<bool>()), 1..40),
        forged in prop::collection::vec((0..168u32, 1..3u32, 0..600u64, 0..40u64), 0..20),
        is_registered: bool,
    ) {
        let world = TestRegion::new(RegionOptions { client_objects_max: 168, ..small() });
        let mut home = world.create();
        let (bad, extent) = member(&world, &mut home);
        let (good, others) = member(&world, &mut home);
        bad.entries.add_pages(home.entry_pages(bad.slot, 1).unwrap()).unwrap();
        let own: Vec<ObjectId> =
            (0..6).filter_map(|n| bad.seal_local(part(extent, n * 256, 128), n)).collect();
        // The oldest object: every forgery is later.
        let retained = good.seal_local(part(others, 0, 128), 0).unwrap();
        if is_registered {
            home.register_all().unwrap();
        }
        let _ = home.take_over(own[0]);
        let layout = *home.layout();
        let mine = |at: u64| {
            let spans = home.entry_pages_of(bad.slot);
            spans.iter().any(|span| span.contains(Span::new(Offset(at), Length(8))))
        };
        for (number, word, value, is_offset) in scribbles {
            let at = layout.client_entry_span(number as u32).offset.0 + word as u64 * 8;
            let value = if is_offset { layout.heap.offset.0.wrapping_add(value) } else { value };
            if mine(at) {
                write_words(&bad, Offset(at), &[value]);
            }
        }
        for (number, life, at, grains) in forged {
            let span = layout.client_entry_span(number);
            let id = ObjectId::new(home.uid(), Generation(life), layout.client_slot(number));
            let primary = part(layout.heap, at * 128, grains * 128);
            if mine(span.offset.0) {
                write_words(&bad, span.offset, &encode(&Entry { id, ..entry_of(primary) }));
            }
        }
        let _ = good.reader.list("").unwrap();
        for id in &own {
            let _ = home.delete(Target::Id(*id));
            let _ = home.take_over(*id);
        }
        home.check().unwrap();
        let mut registration = EntryRegistration::default();
        while !home.register_some(&mut registration).unwrap() {
            home.check().unwrap();
        }
        home.check().unwrap();
        home.register_all().unwrap();
        home.check().unwrap();
        prop_assert!(home.find(Target::Id(retained)).is_ok());
        drop(home);
        let (mut home, _) = Home::adopt(world.map(Access::Home)).unwrap();
        home.check().unwrap();
        prop_assert_eq!(good.read(home.find(Target::Id(retained)).unwrap().primary), vec![0; 128]);
        home.client_leave(bad.slot).unwrap();
        home.client_leave(good.slot).unwrap();
        home.check().unwrap();
        for listed in good.reader.list("").unwrap() {
            prop_assert!(home.delete(Target::Id(listed.entry.id)).unwrap().freed_now);
        }
        home.reclaim().unwrap();
        let stats = home.stats().unwrap();
        prop_assert_eq!((stats.free, stats.entry_pages), (stats.capacity, 0));
        home.check().unwrap();
    }
}

/// One range inside a grant, for which there was no record, kept the whole batch granted until the client
/// ended: nobody reads the answer to a release.
#[test]
fn of_a_batch_of_ranges_only_those_stay_granted_that_would_need_another_record() {
    let world = TestRegion::new(RegionOptions { grants_max: 2, ..small() });
    let mut home = world.create();
    let (a, extent) = member(&world, &mut home);
    let whole = home.grant(a.slot, Length(4096), Length(4096)).unwrap();
    let length = extent.length.0;
    // Both records are in use. The end of the whole grant frees one, which the first inner range takes.
    let inner = [part(extent, 128, 128), part(extent, 384, 128)];
    let last = part(extent, length - 128, 128);
    let refused = home.release(a.slot, &[inner[0], inner[1], last, whole]);
    assert!(matches!(refused, Err(StoreError::TooManyGrants { max: 2 })), "{refused:?}");
    let left = [part(extent, 0, 128), part(extent, 256, length - 384)];
    assert_eq!(home.grants_of(a.slot), left);
    home.check().unwrap();
    // What is not granted is refused as a whole.
    let stranger = home.release(a.slot, &[left[0], inner[0]]);
    assert!(matches!(stranger, Err(StoreError::NotYours { .. })), "{stranger:?}");
    assert_eq!(home.grants_of(a.slot), left);
    home.client_leave(a.slot).unwrap();
    assert_eq!(home.stats().unwrap().granted.0, 0);
    home.check().unwrap();
}

/// A reconnected client gave away the blocks of its own objects: the home reported them as granted,
/// because the grant table was full and it could not subtract them. A home that adopted such a
/// region dropped the objects.
#[test]
fn objects_for_which_no_grant_record_is_left_stay_and_are_not_reported_as_granted() {
    let world = TestRegion::new(RegionOptions { grants_max: 2, ..small() });
    let mut home = world.create();
    let (a, extent) = member(&world, &mut home);
    let blocks = [1, 3, 5].map(|n| part(extent, n * 128, 128));
    let ids = blocks.map(|block| {
        a.write(block.offset, b"mine");
        let request = SealRequest::bytes(block, Length(4), None);
        a.entries.seal(&request, 7, None).unwrap().unwrap().0
    });
    for _ in 0..2 {
        assert!(matches!(home.register(a.slot), Err(StoreError::TooManyGrants { .. })));
        let unsealed = home.unsealed_of(a.slot).unwrap();
        assert!(unsealed.iter().all(|span| blocks.iter().all(|block| !span.overlaps(*block))));
        let bytes: u64 = unsealed.iter().map(|span| span.length.0).sum();
        assert_eq!(bytes + 3 * 128, extent.length.0);
        for id in ids {
            assert_eq!(a.read(a.reader.by_id(id).unwrap().unwrap().payload()), b"mine");
            assert_eq!(home.find(Target::Id(id)).unwrap().id, id);
        }
        drop(home);
        home = world.adopt();
    }
    // The memory after the last object is released, and the table has free records again.
    home.release(a.slot, &[part(extent, 6 * 128, extent.length.0 - 6 * 128)]).unwrap();
    home.release(a.slot, &[part(extent, 4 * 128, 128), part(extent, 0, 128)]).unwrap();
    home.client_leave(a.slot).unwrap();
    let stats = home.stats().unwrap();
    assert_eq!((stats.objects, stats.used.0, stats.granted.0), (3, 3 * 128, 0));
    home.check().unwrap();
}
