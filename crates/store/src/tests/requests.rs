//! Requests of clients, valid and invalid, and their results.

use farrow_memory::{Length, Offset, Span};

use super::support::{TestClient, TestRegion, all_come_back, part, small, table};
use crate::{ClientSlot, ObjectId, ObjectKind, RegionOptions, SealRequest, StoreError, Target};

#[test]
fn an_object_is_put_found_held_deleted_and_freed() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let free = home.stats().unwrap().free;
    let client = TestClient::join(&world, &mut home).unwrap();
    let other = TestClient::join(&world, &mut home).unwrap();
    let id = client.put(&mut home, b"hello", Some("greeting")).unwrap();
    home.check().unwrap();

    let entry = other.reader.find("greeting").unwrap().unwrap();
    assert_eq!((entry.id, entry.kind, entry.size), (id, ObjectKind::Bytes, Length(5)));
    assert_eq!((entry.creator_pid, entry.creator, entry.sealed_at_ns), (42, client.slot.0, 5));
    assert_eq!(other.read(entry.payload()), b"hello");
    assert_eq!(other.reader.by_id(id).unwrap(), Some(entry));
    assert_eq!(other.reader.name_of(&entry).unwrap().as_deref(), Some("greeting"));
    assert_eq!(other.reader.find("greetin").unwrap(), None);

    let held = other.reader.hold(&other.holds, Target::Name("greeting")).unwrap().unwrap();
    assert_eq!(home.stats().unwrap().holds, 1);
    let deleted = home.delete(Target::Name("greeting")).unwrap();
    assert_eq!((deleted.id, deleted.freed_now, deleted.bytes.0), (id, false, 128));
    home.check().unwrap();
    assert_eq!(other.reader.find("greeting").unwrap(), None);
    assert_eq!(other.reader.by_id(id).unwrap(), None);
    assert!(other.reader.hold(&other.holds, Target::Id(id)).unwrap().is_none());
    assert_eq!(home.reclaim().unwrap().objects, 0);
    assert!(home.has_retiring());
    assert_eq!(other.read(held.entry().payload()), b"hello");

    drop(held);
    let reclaimed = home.reclaim().unwrap();
    assert_eq!((reclaimed.objects, reclaimed.bytes.0), (1, 128));
    home.check().unwrap();
    assert_eq!(home.stats().unwrap().free, free);
    assert!(matches!(home.delete(Target::Id(id)), Err(StoreError::NotFound { .. })));
}

#[test]
fn what_was_found_and_deleted_cannot_be_held_any_more() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let id = client.put(&mut home, b"old", Some("n")).unwrap();
    let old = client.reader.by_id(id).unwrap().unwrap();
    let held = client.holds.hold(&old).unwrap().unwrap();
    // Retiring: a holder may continue, and share, but no new claim succeeds.
    home.delete(Target::Id(id)).unwrap();
    let other = TestClient::join(&world, &mut home).unwrap();
    assert!(other.holds.hold(&old).unwrap().is_none());
    assert_eq!(client.holds.len(), 1);
    drop(held.clone());
    assert!(home.reclaim().unwrap().objects == 0);
    drop(held);
    assert!(home.reclaim().unwrap().objects == 1);
    assert!(client.holds.hold(&old).unwrap().is_none());
    // The slot's next life is another object.
    let new = client.put(&mut home, b"new", Some("n")).unwrap();
    assert_eq!(new.slot(), id.slot());
    assert!(client.holds.hold(&old).unwrap().is_none());
    assert!(client.holds.is_empty() && other.holds.is_empty());
    assert_eq!(home.stats().unwrap().holds, 0);
}

#[test]
fn holds_end_at_their_slots_and_go_on_with_one_more_block() {
    let world = TestRegion::new(RegionOptions { objects_max: 600, ..small() });
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let slots = client.holds.free_slots();
    let extent = home.grant(client.slot, Length(600 * 128), Length(600 * 128)).unwrap();
    let mut held = Vec::new();
    for i in 0..600 {
        let request = SealRequest::bytes(part(extent, i * 128, 128), Length(1), None);
        let id = home.seal(client.slot, &request, 0).unwrap();
        let hold = |client: &TestClient| client.reader.hold(&client.holds, Target::Id(id));
        if i == slots as u64 {
            match hold(&client) {
                Err(StoreError::HoldsExhausted { blocks: 1, slots: found }) => {
                    assert_eq!(found, slots as u64);
                }
                other => panic!("{other:?}"),
            }
            assert!(client.holds.add_block(part(extent, 0, 4096)).is_err());
            let block = home.hold_block(client.slot).unwrap();
            assert!(client.holds.add_block(block).unwrap());
            assert!(!client.holds.add_block(block).unwrap(), "it is there");
        }
        held.push(hold(&client).unwrap().unwrap());
    }
    assert_eq!(home.stats().unwrap().holds, 600);
    client.holds.abandon();
    drop(held);
    assert_eq!(home.stats().unwrap().holds, 600);
    home.client_leave(client.slot).unwrap();
    assert_eq!(home.stats().unwrap().holds, 0);
    home.check().unwrap();
}

/// The error once said that all slots were in use. A caller that answers this with another block
/// would never stop.
#[test]
fn a_table_that_may_not_be_used_does_not_ask_for_more_blocks() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let id = client.put(&mut home, b"x", None).unwrap();
    client.holds.abandon();
    let refused = client.reader.hold(&client.holds, Target::Id(id)).unwrap_err();
    assert!(matches!(refused, StoreError::HoldsUnusable), "{refused}");
}

#[test]
fn ids_never_repeat_and_names_do() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let mut seen: Vec<ObjectId> = Vec::new();
    for round in 0..100 {
        let id = client.put(&mut home, &[round], Some("again")).unwrap();
        assert!(!seen.contains(&id));
        for old in &seen {
            assert_eq!(client.reader.by_id(*old).unwrap(), None);
        }
        seen.push(id);
        assert_eq!(client.reader.find("again").unwrap().unwrap().id, id);
        home.delete(Target::Id(id)).unwrap();
        if round % 10 == 0 {
            home = world.adopt();
        }
    }
}

#[test]
fn names_have_rules() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let longest = "é".repeat(127) + "x";
    client.put(&mut home, b"1", Some(&longest)).unwrap();
    assert!(client.reader.find(&longest).unwrap().is_some());
    let put = |home: &mut _, name: &str| client.put(home, b"2", Some(name));
    match put(&mut home, &longest) {
        Err(StoreError::NameTaken { name }) => assert_eq!(name, longest),
        other => panic!("{other:?}"),
    }
    for (name, length) in [("".to_owned(), 0), ("n".repeat(256), 256), ("a\0b".to_owned(), 3)] {
        match put(&mut home, &name) {
            Err(StoreError::NameInvalid { bytes, .. }) => assert_eq!(bytes, length),
            other => panic!("{other:?}"),
        }
        assert!(client.reader.find(&name).is_err());
    }
    // 40 pieces of 32 bytes: 8 are taken, 4 more long names fit.
    for i in 0..4 {
        put(&mut home, &format!("{i}{}", "x".repeat(254))).unwrap();
    }
    match put(&mut home, "one more") {
        Err(StoreError::NameSpaceFull { requested, free, used, .. }) => {
            assert_eq!((requested.0, free.0), (8, 0));
            assert_eq!(used, world.options.name_bytes);
        }
        other => panic!("{other:?}"),
    }
    home.check().unwrap();
    home.delete(Target::Name(&longest)).unwrap();
    put(&mut home, "one more").unwrap();
    assert_eq!(client.reader.list("").unwrap().len(), 5);
    assert_eq!(client.reader.list("one").unwrap().len(), 1);
    home.check().unwrap();
}

#[test]
fn reserved_names_are_their_owners() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, b) = (
        TestClient::join(&world, &mut home).unwrap(),
        TestClient::join(&world, &mut home).unwrap(),
    );
    let taken = |result: Result<_, StoreError>| {
        assert!(matches!(result, Err(StoreError::NameTaken { .. })), "not taken");
    };
    home.reserve(a.slot, "n").unwrap();
    taken(home.reserve(a.slot, "n"));
    taken(home.reserve(b.slot, "n"));
    taken(b.put(&mut home, b"x", Some("n")).map(drop));
    taken(a.put(&mut home, b"x", Some("n")).map(drop));
    assert!(home.unreserve(b.slot, "n").is_err());
    let extent = home.grant(a.slot, Length(128), Length(128)).unwrap();
    let mut request = SealRequest::bytes(extent, Length(1), Some("n"));
    request.is_reserved = true;
    home.seal(a.slot, &request, 0).unwrap();
    taken(home.reserve(b.slot, "n"));
    home.reserve(a.slot, "m").unwrap();
    home.client_leave(a.slot).unwrap();
    home.reserve(b.slot, "m").unwrap();
    home.unreserve(b.slot, "m").unwrap();
    assert_eq!(home.stats().unwrap().reserved, 0);
    home.check().unwrap();
}

#[test]
fn a_grant_beyond_need_takes_a_hole_of_half_its_length_or_more() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let page = world.options.capacity.0 / 64;
    let pages = |count: u64| Length(count * page);
    let mut grant = |min: u64, want: u64| home.grant(client.slot, pages(min), pages(want)).unwrap();
    let [first, _, second, _] = [12, 1, 6, 1].map(|count| grant(count, count));
    home.release(client.slot, &[first, second]).unwrap();
    let mut taken = |min: u64, want: u64| {
        let span = home.grant(client.slot, pages(min), pages(want)).unwrap();
        home.release(client.slot, &[span]).unwrap();
        (span.offset.0, span.length.0 / page)
    };
    let end = second.offset.0 + 7 * page;
    // The longest that is shorter than what is wanted, unless it is too short.
    assert_eq!(taken(1, 16), (first.offset.0, 12));
    assert_eq!(taken(1, 12), (second.offset.0, 6));
    assert_eq!(taken(7, 12), (first.offset.0, 12));
    assert_eq!(taken(1, 25), (end, 25));
    // A hole that does not satisfy the need is none.
    assert_eq!(taken(13, 16), (end, 16));
    // What is needed takes the shortest range that has it.
    assert_eq!(taken(6, 6), (second.offset.0, 6));
    assert_eq!(taken(8, 8), (first.offset.0, 8));
}

#[test]
fn every_limit_is_an_error_with_its_numbers_and_leaves_the_store_usable() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let page = world.options.capacity.0 / 64;

    match home.grant(client.slot, Length(65 * page), Length(65 * page)) {
        Err(StoreError::OutOfMemory { requested, free, largest }) => {
            assert_eq!((requested.0, free.0, largest.0), (65 * page, 64 * page, 64 * page));
        }
        other => panic!("{other:?}"),
    }
    assert!(home.grant(client.slot, Length(u64::MAX), Length(u64::MAX)).is_err());
    let all = home.grant(client.slot, Length(1), Length(1 << 40)).unwrap();
    assert_eq!(all.length.0, 64 * page);
    assert!(matches!(
        home.grant(client.slot, Length(1), Length(1)),
        Err(StoreError::OutOfMemory { .. })
    ));
    home.release(client.slot, &[all]).unwrap();

    for _ in 0..24 {
        client.put(&mut home, b"object", None).unwrap();
    }
    match client.put(&mut home, b"object", None) {
        Err(StoreError::TooManyObjects { max: 24 }) => {}
        other => panic!("{other:?}"),
    }
    home.check().unwrap();
    for listed in client.reader.list("").unwrap() {
        home.delete(Target::Id(listed.entry.id)).unwrap();
    }

    let grants: Vec<Span> =
        (0..24).map(|_| home.grant(client.slot, Length(1), Length(1)).unwrap()).collect();
    assert!(matches!(
        home.grant(client.slot, Length(1), Length(1)),
        Err(StoreError::TooManyGrants { max: 24 })
    ));
    // The middle of a grant cannot be taken without one record more, an end can.
    let middle = part(grants[0], 1024, 128);
    assert!(matches!(
        home.release(client.slot, &[middle]),
        Err(StoreError::TooManyGrants { max: 24 })
    ));
    home.check().unwrap();
    home.release(client.slot, &[part(grants[0], 0, 128)]).unwrap();

    for _ in 0..3 {
        home.client_join(1, 1, 1).unwrap();
    }
    assert!(matches!(home.client_join(1, 1, 1), Err(StoreError::TooManyClients { max: 4 })));
    for _ in 0..5 {
        home.hold_block(client.slot).unwrap();
    }
    assert!(matches!(
        home.hold_block(client.slot),
        Err(StoreError::HoldBlocksExhausted { max: 6 })
    ));
    home.check().unwrap();
    let reclaimed = home.client_leave(client.slot).unwrap();
    assert_eq!((reclaimed.hold_blocks, reclaimed.granted.0), (6, 24 * page - 128));
    home.check().unwrap();
    assert_eq!(home.stats().unwrap().free, home.stats().unwrap().capacity);
}

#[test]
fn bad_requests_are_refused_and_change_nothing() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let other = TestClient::join(&world, &mut home).unwrap();
    let mine = home.grant(client.slot, Length(8 << 12), Length(8 << 12)).unwrap();
    let theirs = home.grant(other.slot, Length(1 << 12), Length(1 << 12)).unwrap();
    let before = home.stats().unwrap();
    let good = part(mine, 0, 256);
    let spans = [
        (part(mine, 64, 128), "unaligned"),
        (part(mine, 0, 0), "empty"),
        (part(mine, 0, 100), "unaligned end"),
        (theirs, "another's"),
        (Span::new(Offset(0), Length(128)), "header"),
        (Span::new(home.layout().hold_blocks.offset, Length(4096)), "hold block"),
        (part(mine, 0, 9 << 12), "beyond the grant"),
        (Span::new(home.layout().heap.end().unwrap(), Length(128)), "behind the heap"),
        (Span::new(mine.offset, Length(u64::MAX - 127)), "overflow"),
        (Span::new(Offset(u64::MAX - 127), Length(128)), "overflow"),
    ];
    for (span, what) in spans {
        let request = SealRequest::bytes(span, Length(0), None);
        assert!(home.seal(client.slot, &request, 0).is_err(), "{what}");
        assert!(home.release(client.slot, &[span]).is_err(), "{what}");
        let request = table(&client, good, &[span], None);
        assert!(home.seal(client.slot, &request, 0).is_err(), "extra: {what}");
    }
    type RequestChange = fn(&mut SealRequest<'_>);
    let changes: [(&str, RequestChange); 10] = [
        ("extra overlaps primary", |r| r.extra[0] = r.primary),
        ("extra twice", |r| r.extra[1] = r.extra[0]),
        ("list is another", |r| r.extra.swap(0, 1)),
        ("list is longer", |r| {
            r.extra.pop();
        }),
        ("checksum of the list", |r| r.extra_crc += 1),
        ("descriptor outside", |r| r.descriptor.offset.0 += 256),
        ("descriptor unaligned", |r| r.descriptor.offset.0 += 4),
        ("descriptor overflows", |r| r.descriptor.length.0 = u64::MAX),
        ("no descriptor", |r| r.descriptor.length.0 = 0),
        ("bytes with descriptor", |r| r.kind = ObjectKind::Bytes),
    ];
    for (what, change) in changes {
        let extra = [part(mine, 4096, 4096), part(mine, 16384, 128)];
        let mut request = table(&client, good, &extra, None);
        change(&mut request);
        assert!(home.seal(client.slot, &request, 0).is_err(), "{what}");
    }
    let mut request = SealRequest::bytes(good, Length(257), None);
    assert!(home.seal(client.slot, &request, 0).is_err(), "size");
    request.size = Length(256);
    assert!(home.seal(ClientSlot(3), &request, 0).is_err(), "no such client");
    assert!(home.seal(ClientSlot(u32::MAX), &request, 0).is_err(), "no such client");
    assert!(home.release(client.slot, &[good, good]).is_err(), "twice");
    assert!(home.client_resume(client.slot, client.nonce + 1, 42).is_err());
    assert!(home.client_resume(client.slot, client.nonce, 43).is_err());
    home.client_resume(client.slot, client.nonce, 42).unwrap();
    assert_eq!(home.stats().unwrap(), before);
    home.check().unwrap();
    home.seal(client.slot, &request, 0).unwrap();
}

#[test]
fn objects_of_many_blocks_share_whole_blocks() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let mine = home.grant(client.slot, Length(16 << 12), Length(16 << 12)).unwrap();
    let shared = part(mine, 8192, 8192);
    let extra = [shared, part(mine, 4096, 128), part(mine, 20480, 4096)];
    let first =
        home.seal(client.slot, &table(&client, part(mine, 0, 128), &extra, None), 0).unwrap();
    home.check().unwrap();
    let entry = client.reader.by_id(first).unwrap().unwrap();
    assert_eq!(client.reader.blocks(&entry).unwrap()[1..], extra);
    assert_eq!(home.find_sealed(client.slot, entry.primary).unwrap(), Some(first));
    assert_eq!(home.find_sealed(client.slot, shared).unwrap(), None);

    // A part of a block is not a block.
    let request = table(&client, part(mine, 128, 128), &[part(shared, 0, 4096)], None);
    assert!(matches!(home.seal(client.slot, &request, 0), Err(StoreError::NotYours { .. })));
    let request = table(&client, part(mine, 128, 128), &[shared], Some("second"));
    let second = home.seal(client.slot, &request, 0).unwrap();
    home.check().unwrap();
    assert_eq!(home.stats().unwrap().used.0, 128 + 8192 + 128 + 4096 + 128);

    home = world.adopt();
    let deleted = home.delete(Target::Id(first)).unwrap();
    assert!(deleted.freed_now);
    home.check().unwrap();
    assert_eq!(home.stats().unwrap().used.0, 8192 + 128);
    home.delete(Target::Id(second)).unwrap();
    assert_eq!(home.stats().unwrap().used.0, 0);
    home.client_leave(client.slot).unwrap();
    home.check().unwrap();
    assert_eq!(home.stats().unwrap().free, home.stats().unwrap().capacity);
}

#[test]
fn a_damaged_block_list_costs_that_object_and_nothing_else() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let mine = home.grant(client.slot, Length(16 << 12), Length(16 << 12)).unwrap();
    let bad = table(&client, part(mine, 0, 128), &[part(mine, 4096, 4096)], Some("bad"));
    let good = table(&client, part(mine, 128, 128), &[part(mine, 8192, 4096)], Some("good"));
    let bad_id = home.seal(client.slot, &bad, 0).unwrap();
    let good_id = home.seal(client.slot, &good, 0).unwrap();
    let held = client.reader.hold(&client.holds, Target::Id(bad_id)).unwrap().unwrap();
    client.write(Offset(mine.offset.0 + 24), &[0xff; 16]);
    let blocks = client.reader.blocks(held.entry());
    assert!(matches!(blocks, Err(StoreError::BlockListDamaged { .. })));

    let (mut home, report) = crate::Home::adopt(world.map(farrow_memory::Access::Home)).unwrap();
    all_come_back(&mut home);
    assert_eq!(report.dropped.len(), 1);
    assert_eq!(report.dropped[0].id, Some(bad_id));
    assert_eq!((report.objects, report.retiring), (1, 1));
    home.check().unwrap();
    assert!(home.find(Target::Name("bad")).is_err());
    assert_eq!(home.find(Target::Name("good")).unwrap().id, good_id);
    drop(held);
    assert_eq!(home.reclaim().unwrap().objects, 1);
    home.check().unwrap();
    home.delete(Target::Id(good_id)).unwrap();
    home.client_leave(client.slot).unwrap();
    assert_eq!(home.stats().unwrap().free, home.stats().unwrap().capacity);
}
