//! Spill and restore: same id, same name, same bytes, whatever happens in between.

use farrow_memory::{Length, Offset, Span};

use super::poison;
use super::support::{TestClient, TestRegion, part, small, table};
use crate::{
    EventKind, Home, Lru, NamespaceId, Need, ObjectId, SealRequest, Seen, SpillHead, SpillPlan,
    StoreError, Target, Whereabouts,
};

const PAGE: u64 = 4096;

/// The contents of a spill file.
pub(crate) struct File {
    pub(crate) head: SpillHead,
    pub(crate) parts: Vec<Vec<u8>>,
}

impl File {
    /// Writes an object to a "file"; none if it may not be spilled.
    pub(crate) fn of(home: &mut Home, id: ObjectId) -> Option<Self> {
        let SpillPlan { head, parts } = home.begin_spill(id).unwrap()?;
        let read = |span: &Span| {
            let mut bytes = vec![0; span.length.0 as usize];
            home.region().copy_out(span.offset, &mut bytes).unwrap();
            bytes
        };
        let parts = parts.iter().map(read).collect();
        let head = SpillHead::decode(&head.encode()).unwrap();
        Some(Self { head, parts })
    }

    /// Restores it.
    pub(crate) fn restore(&self, home: &mut Home) -> Result<(), StoreError> {
        let blocks = home.begin_restore(&self.head)?;
        for (block, bytes) in blocks.iter().zip(&self.parts[2..]) {
            assert_eq!(block.length.0, bytes.len() as u64);
            home.region().write_by_call(block.offset, bytes).unwrap();
        }
        home.finish_restore(self.head.id, &self.parts[0], &self.parts[1])
    }
}

/// Spills an object; none if it may not be spilled.
fn spill(home: &mut Home, id: ObjectId) -> Option<File> {
    let file = File::of(home, id)?;
    home.finish_spill(file.head.id).unwrap().map(|_| file)
}

fn restore(home: &mut Home, file: &File) -> Result<(), StoreError> {
    file.restore(home)
}

fn kinds(home: &Home) -> Vec<EventKind> {
    let mut events = home.events(0).unwrap();
    let mut kinds = Vec::new();
    while let Some(Seen::Event(event)) = events.advance().unwrap() {
        kinds.push(event.kind);
    }
    kinds
}

/// Regression test: a client whose objects were spilled had none, so no limit applied to it.
#[test]
fn spilled_objects_count_for_their_client_until_it_ends() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let ids: Vec<_> = (0..3).map(|_| client.put(&mut home, b"some bytes", None).unwrap()).collect();
    let (slot, space) = (client.slot, NamespaceId::DEFAULT);
    let counts = |home: &Home| {
        home.check().unwrap();
        let used = (home.usage_of(slot).objects, home.spilled_of(slot));
        (used, home.spilled_of_namespace(space), home.objects_with_spilled())
    };
    let files: Vec<_> = ids.iter().map(|id| spill(&mut home, *id).unwrap()).collect();
    assert_eq!(counts(&home), ((0, 3), 3, 3));
    restore(&mut home, &files[0]).unwrap();
    assert_eq!(counts(&home), ((1, 2), 2, 3));
    home.delete(Target::Id(ids[1])).unwrap();
    assert_eq!(counts(&home), ((1, 1), 1, 2));
    let mut home = world.adopt();
    assert_eq!(counts(&home), ((1, 1), 1, 2));
    home.client_leave(slot).unwrap();
    assert_eq!(counts(&home), ((0, 0), 1, 2));
    restore(&mut home, &files[2]).unwrap();
    assert_eq!(counts(&home), ((0, 0), 0, 2));
}

#[test]
fn bytes_go_and_come_back_under_the_same_id_and_name() {
    poison::turn_on();
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let id = client.put(&mut home, b"some bytes", Some("x")).unwrap();
    let before = home.stats().unwrap();
    for round in 1..4 {
        let file = spill(&mut home, id).unwrap();
        home.check().unwrap();
        let stats = home.stats().unwrap();
        assert_eq!((stats.objects, stats.objects_spilled, stats.spilled.0), (0, 1, 10));
        assert_eq!(stats.used.0, 0);
        for target in [Target::Id(id), Target::Name("x")] {
            assert_eq!(client.reader.whereabouts(target).unwrap(), Whereabouts::Away(id));
            assert!(client.reader.hold(&client.holds, target).unwrap().is_none());
            assert!(home.has(target).unwrap() && home.find(target).is_err());
        }
        let listed = client.reader.list("").unwrap();
        assert_eq!((listed.len(), listed[0].is_spilled), (1, true));
        assert!(client.put(&mut home, b"other", Some("x")).is_err(), "the name is taken");
        // Another object is at its old address.
        let other = client.put(&mut home, b"another", None).unwrap();
        restore(&mut home, &file).unwrap();
        home.check().unwrap();
        let held = client.reader.hold(&client.holds, Target::Name("x")).unwrap().unwrap();
        assert_eq!((held.entry().id, held.entry().residency), (id, round));
        assert_eq!(client.read(held.entry().payload()), b"some bytes");
        drop(held);
        home.delete(Target::Id(other)).unwrap();
    }
    assert_eq!(home.stats().unwrap().used, before.used);
    let reported = kinds(&home);
    let count = |kind| reported.iter().filter(|one| **one == kind).count();
    assert_eq!((count(EventKind::Spilled), count(EventKind::Restored)), (3, 3));
}

#[test]
fn a_table_comes_back_elsewhere_and_says_where_it_was() {
    poison::turn_on();
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let all = home.grant(client.slot, Length(4 * PAGE), Length(4 * PAGE)).unwrap();
    let (one, two) = (part(all, 1024, 256), part(all, 2048, 128));
    client.write(one.offset, &[1; 256]);
    client.write(two.offset, &[2; 128]);
    let primary = part(all, 0, 512);
    let request = table(&client, primary, &[one, two], Some("t"));
    let id = home.seal(client.slot, &request, 1).unwrap();
    let as_sealed = client.read(primary);
    for _ in 0..3 {
        let file = spill(&mut home, id).unwrap();
        restore(&mut home, &file).unwrap();
        home.check().unwrap();
        let entry = client.reader.by_id(id).unwrap().unwrap();
        assert!(entry.is_relocated && entry.primary.contains(entry.descriptor));
        assert_eq!(client.read(entry.descriptor), b"descriptor of 24 bytes..");
        let places = client.reader.places(&entry).unwrap();
        let origins: Vec<Span> = places.iter().map(|place| place.origin).collect();
        assert_eq!(origins, [primary, one, two]);
        let bytes = |n: usize| {
            let at = Span::new(places[n].block.offset, places[n].origin.length);
            client.read(at)
        };
        assert_eq!((bytes(0), bytes(1), bytes(2)), (as_sealed.clone(), vec![1; 256], vec![2; 128]));
        // The next home finds the object and its blocks at their place.
        drop(home);
        home = world.adopt();
        assert_eq!(client.reader.blocks(&entry).unwrap().len(), 3);
    }
    home.delete(Target::Name("t")).unwrap();
    let stats = home.stats().unwrap();
    assert_eq!((stats.used.0, stats.objects), (0, 0));
}

#[test]
fn what_is_held_pinned_or_deleted_meanwhile_does_not_go() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let id = client.put(&mut home, b"bytes", Some("x")).unwrap();
    home.pin(Target::Id(id), true).unwrap();
    assert_eq!(home.begin_spill(id).unwrap(), None);
    home.pin(Target::Id(id), false).unwrap();
    // Held while it is written.
    home.begin_spill(id).unwrap().unwrap();
    assert_eq!(home.begin_spill(id).unwrap(), None, "it is being written");
    assert_eq!(home.evict(id).unwrap(), None);
    let held = client.reader.hold(&client.holds, Target::Id(id)).unwrap().unwrap();
    assert_eq!(home.finish_spill(id).unwrap(), None);
    assert_eq!(client.read(held.entry().payload()), b"bytes");
    drop(held);
    // Deleted while it is written: the memory stays until the write is complete.
    home.begin_spill(id).unwrap().unwrap();
    assert!(!home.delete(Target::Id(id)).unwrap().freed_now);
    assert_eq!(home.reclaim().unwrap().objects, 0);
    assert_eq!(home.finish_spill(id).unwrap(), None);
    assert_eq!(home.reclaim().unwrap().objects, 1);
    home.check().unwrap();
}

#[test]
fn spilled_objects_can_be_deleted_also_while_they_come_back() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let first = client.put(&mut home, b"first", Some("x")).unwrap();
    let file = spill(&mut home, first).unwrap();
    assert!(home.delete(Target::Name("x")).unwrap().freed_now);
    home.check().unwrap();
    assert!(matches!(restore(&mut home, &file), Err(StoreError::NotFound { .. })));
    let second = client.put(&mut home, b"second", Some("x")).unwrap();
    let file = spill(&mut home, second).unwrap();
    home.begin_restore(&file.head).unwrap();
    home.delete(Target::Id(second)).unwrap();
    let removed = home.finish_restore(second, &file.parts[0], &file.parts[1]);
    assert!(matches!(removed, Err(StoreError::NotFound { .. })));
    home.check().unwrap();
    assert_eq!(home.stats().unwrap().used.0, 0);
    assert!(client.reader.list("").unwrap().is_empty());
}

#[test]
fn an_object_of_a_client_alone_keeps_its_id_through_the_file() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    client.entries.add_pages(home.entry_pages(client.slot, 1).unwrap()).unwrap();
    let all = home.grant(client.slot, Length(PAGE), Length(PAGE)).unwrap();
    client.write(all.offset, &[7; 256]);
    let id = client.seal_local(part(all, 0, 256), 1).unwrap();
    let file = spill(&mut home, id).unwrap();
    assert!(matches!(client.reader.whereabouts(Target::Id(id)).unwrap(), Whereabouts::Away(_)));
    drop(home);
    let mut home = world.adopt();
    assert!(home.has(Target::Id(id)).unwrap());
    restore(&mut home, &file).unwrap();
    let entry = client.reader.by_id(id).unwrap().unwrap();
    assert_eq!(client.read(entry.payload()), [7; 256]);
    let file = spill(&mut home, id).unwrap();
    drop(file);
    home.delete(Target::Id(id)).unwrap();
    home.check().unwrap();
    assert!(!home.has(Target::Id(id)).unwrap());
}

#[test]
fn files_of_others_and_files_that_do_not_fit_are_refused() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let id = client.put(&mut home, b"bytes", None).unwrap();
    let file = spill(&mut home, id).unwrap();
    let with = |change: fn(&mut SpillHead)| {
        let mut head = file.head.clone();
        change(&mut head);
        head
    };
    let long = Length(1 << 40);
    let many = Span::new(Offset(0), Length(128));
    for head in [with(|head| head.size.0 += 1), with(|head| head.metadata_bytes = 1)] {
        assert!(matches!(home.begin_restore(&head), Err(StoreError::BadRequest { .. })));
    }
    let mut head = file.head.clone();
    head.origins[0].length = long;
    assert!(matches!(home.begin_restore(&head), Err(StoreError::BadRequest { .. })));
    head = file.head.clone();
    head.origins.push(many);
    assert!(matches!(home.begin_restore(&head), Err(StoreError::BadRequest { .. })));
    home.check().unwrap();
    restore(&mut home, &file).unwrap();
}

#[test]
fn one_that_came_back_is_not_the_first_to_go_again() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let old = client.put(&mut home, b"old", Some("old")).unwrap();
    let file = spill(&mut home, old).unwrap();
    let young = client.put(&mut home, b"young", Some("young")).unwrap();
    home.set_time(1000);
    restore(&mut home, &file).unwrap();
    assert_eq!(home.victims(&Lru, Need::Bytes(Length(1))).unwrap(), [young]);
}

#[test]
fn a_pin_of_a_spilled_object_is_refused_and_a_seal_of_its_name_too() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let id = client.put(&mut home, b"bytes", Some("x")).unwrap();
    spill(&mut home, id).unwrap();
    assert!(matches!(home.pin(Target::Id(id), true), Err(StoreError::NotFound { .. })));
    assert!(home.reserve(client.slot, "x").is_err());
    let grant = home.grant(client.slot, Length(PAGE), Length(PAGE)).unwrap();
    let request = SealRequest::bytes(part(grant, 0, 128), Length(1), Some("x"));
    let taken = home.seal(client.slot, &request, 9);
    assert!(matches!(taken, Err(StoreError::NameTaken { .. })));
}
