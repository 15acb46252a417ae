//! Replicas of objects of another region: found, held, evicted and deleted like local objects.

use farrow_memory::{Length, Offset, Span};

use super::spill::File;
use super::support::{TestClient, TestRegion, part, small, table};
use crate::{
    ClientSlot, Home, Lru, NamespaceId, Need, ObjectId, ReplicaSeal, ReplicasFirst, Room,
    StoreError, Target,
};

const PAGE: u64 = 4096;

/// Copies an object of another region into this one.
fn bring(home: &mut Home, of: &File, name: Option<&str>) -> Result<ObjectId, StoreError> {
    let blocks = home.begin_replica(&of.head, NamespaceId::DEFAULT)?;
    fill_and_seal(home, of, &blocks, name, None)
}

/// Brings an object that a client wrote in another region, as one of its own.
fn import(
    home: &mut Home,
    client: &TestClient,
    of: &File,
    name: Option<&str>,
) -> Result<ObjectId, StoreError> {
    let blocks = home.begin_import(&of.head, client.slot)?;
    fill_and_seal(home, of, &blocks, name, Some(client.slot))
}

fn fill_and_seal(
    home: &mut Home,
    of: &File,
    blocks: &[Span],
    name: Option<&str>,
    importer: Option<ClientSlot>,
) -> Result<ObjectId, StoreError> {
    home.check().unwrap();
    for (block, bytes) in blocks.iter().zip(&of.parts[2..]) {
        assert_eq!(block.length.0, bytes.len() as u64);
        home.region().write_by_call(block.offset, bytes).unwrap();
    }
    let (descriptor, metadata) = (&of.parts[0], &of.parts[1]);
    let seal = ReplicaSeal {
        name,
        namespace: NamespaceId::DEFAULT,
        descriptor,
        descriptor_crc: crc32c::crc32c(descriptor),
        metadata,
        metadata_crc: crc32c::crc32c(metadata),
        sealed_at_ns: 3,
        importer,
    };
    let id = home.finish_replica(of.head.id, &seal, 9)?;
    home.check().unwrap();
    Ok(id)
}

/// A table of two extra blocks in a region of its own.
fn far_table(world: &TestRegion, home: &mut Home) -> File {
    let client = TestClient::join(world, home).unwrap();
    let all = home.grant(client.slot, Length(4 * PAGE), Length(4 * PAGE)).unwrap();
    let (one, two) = (part(all, 1024, 256), part(all, 2048, 128));
    client.write(one.offset, &[1; 256]);
    client.write(two.offset, &[2; 128]);
    let request = table(&client, part(all, 0, 512), &[one, two], Some("t"));
    let id = home.seal(client.slot, &request, 1).unwrap();
    File::of(home, id).unwrap()
}

fn far_bytes(world: &TestRegion, home: &mut Home, bytes: &[u8]) -> File {
    let client = TestClient::join(world, home).unwrap();
    let id = client.put(home, bytes, None).unwrap();
    home.client_leave(client.slot).unwrap();
    File::of(home, id).unwrap()
}

#[test]
fn a_replica_is_found_by_its_name_and_says_what_it_is_a_copy_of() {
    let (far, world) = (TestRegion::new(small()), TestRegion::new(small()));
    let (mut far_home, mut home) = (far.create(), world.create());
    let client = TestClient::join(&world, &mut home).unwrap();
    let of = far_table(&far, &mut far_home);
    let id = bring(&mut home, &of, Some("t")).unwrap();
    let held = client.reader.hold(&client.holds, Target::Name("t")).unwrap().unwrap();
    let entry = *held.entry();
    assert_eq!((entry.id, entry.is_replica, entry.sealed_at_ns), (id, true, 3));
    assert_eq!(client.reader.origin(&entry).unwrap(), Some(of.head.id));
    assert_eq!(client.read(entry.descriptor), of.parts[0]);
    let places = client.reader.places(&entry).unwrap();
    let origins: Vec<Span> = places.iter().map(|place| place.origin).collect();
    assert_eq!(origins, of.head.origins);
    assert_eq!(client.read(places[1].block), [1; 256]);
    assert_eq!(client.read(places[2].block), [2; 128]);
    // It is listed in the region of its original, and causes no event.
    assert_eq!(client.reader.list("").unwrap(), []);
    let taken = client.put(&mut home, b"other", Some("t"));
    assert!(matches!(taken, Err(StoreError::NameTaken { .. })), "{taken:?}");
    assert!(home.is_replica(Target::Id(id)).unwrap());
    // A held replica is deleted like any other object: it stays readable.
    assert!(!home.delete(Target::Id(id)).unwrap().freed_now);
    assert!(client.reader.hold(&client.holds, Target::Name("t")).unwrap().is_none());
    assert_eq!(client.read(places[1].block), [1; 256]);
    drop(held);
    assert_eq!(home.reclaim().unwrap().objects, 1);
    home.check().unwrap();
    assert!(home.events(0).unwrap().advance().unwrap().is_none());
}

#[test]
fn plain_bytes_of_every_length_say_what_they_are_a_copy_of() {
    let (far, world) = (TestRegion::new(small()), TestRegion::new(small()));
    let (mut far_home, mut home) = (far.create(), world.create());
    let client = TestClient::join(&world, &mut home).unwrap();
    for length in [1, 100, 104, 127, 128, 129, 1000] {
        let bytes: Vec<u8> = (0..length).map(|at| at as u8 | 1).collect();
        let of = far_bytes(&far, &mut far_home, &bytes);
        let id = bring(&mut home, &of, None).unwrap();
        let held = client.reader.hold(&client.holds, Target::Id(id)).unwrap().unwrap();
        assert_eq!(client.read(held.entry().payload()), bytes);
        assert_eq!(client.reader.origin(held.entry()).unwrap(), Some(of.head.id));
        drop(held);
        assert!(home.delete(Target::Id(id)).unwrap().freed_now);
    }
}

#[test]
fn the_evictable_part_of_replicas_is_known() {
    let (far, world) = (TestRegion::new(small()), TestRegion::new(small()));
    let (mut far_home, mut home) = (far.create(), world.create());
    let client = TestClient::join(&world, &mut home).unwrap();
    client.put(&mut home, &[1; 256], Some("own")).unwrap();
    let evictable = |home: &Home| {
        let stats = home.stats().unwrap();
        (stats.evictable.0, stats.evictable_replicas.0)
    };
    assert_eq!(evictable(&home), (256, 0));
    let of = far_table(&far, &mut far_home);
    let id = bring(&mut home, &of, Some("t")).unwrap();
    let (all, replicas) = evictable(&home);
    assert_eq!(all, 256 + replicas);
    assert!(replicas >= 256 + 128, "{replicas} B, fewer than its two blocks");
    let held = client.reader.hold(&client.holds, Target::Id(id)).unwrap();
    assert_eq!(evictable(&home), (256, 0), "it is held");
    drop(held);
    let freed = home.evict_for(&ReplicasFirst, Need::Bytes(Length(1))).unwrap();
    assert_eq!((freed.objects, freed.bytes.0), (1, replicas));
    assert_eq!(evictable(&home), (256, 0));
}

#[test]
fn replicas_make_room_and_nothing_else_does_for_them() {
    let (far, world) = (TestRegion::new(small()), TestRegion::new(small()));
    let (mut far_home, mut home) = (far.create(), world.create());
    let client = TestClient::join(&world, &mut home).unwrap();
    let own = client.put(&mut home, &[9; 4000], Some("own")).unwrap();
    let of = far_table(&far, &mut far_home);
    let other = far_bytes(&far, &mut far_home, &[5; 3000]);
    let id = bring(&mut home, &of, Some("t")).unwrap();
    bring(&mut home, &other, None).unwrap();
    let held = client.reader.hold(&client.holds, Target::Id(id)).unwrap().unwrap();
    let evicted = home.evict_for(&ReplicasFirst, Need::Bytes(Length(1 << 30))).unwrap();
    assert_eq!(evicted.objects, 1, "one is held, the other is of this region");
    assert!(home.find(Target::Id(own)).is_ok() && home.find(Target::Id(id)).is_ok());
    drop(held);
    // A replica is not spilled.
    assert!(home.begin_spill(id).unwrap().is_none());
    let evicted = home.make_room(&ReplicasFirst, &Room::of_run(Length(64 << 12))).unwrap();
    assert_eq!(evicted.objects, 0, "that would not be enough");
    let evicted = home.evict_for(&Lru, Need::Bytes(Length(1 << 30))).unwrap();
    assert_eq!(evicted.objects, 2);
    home.check().unwrap();
}

#[test]
fn what_is_wrong_is_refused_and_leaves_no_memory() {
    let (far, world) = (TestRegion::new(small()), TestRegion::new(small()));
    let (mut far_home, mut home) = (far.create(), world.create());
    let client = TestClient::join(&world, &mut home).unwrap();
    client.put(&mut home, b"own", Some("t")).unwrap();
    let of = far_table(&far, &mut far_home);
    let free = home.free_bytes();
    let taken = bring(&mut home, &of, Some("t"));
    assert!(matches!(taken, Err(StoreError::NameTaken { .. })), "{taken:?}");
    assert_eq!(home.free_bytes(), free);
    // Of this region; twice; longer than the free memory; a descriptor of another length.
    let own = File { head: of.head.clone(), parts: of.parts.clone() };
    let mut of_this = own.head.clone();
    of_this.id.hi = home.uid().0;
    assert!(home.begin_replica(&of_this, NamespaceId::DEFAULT).is_err());
    home.begin_replica(&of.head, NamespaceId::DEFAULT).unwrap();
    assert!(home.begin_replica(&of.head, NamespaceId::DEFAULT).is_err());
    home.abort_replica(of.head.id).unwrap();
    let mut long = own.head.clone();
    long.origins[1] = Span::new(Offset(0), Length(64 << 12));
    let full = home.begin_replica(&long, NamespaceId::DEFAULT);
    assert!(matches!(full, Err(StoreError::OutOfMemory { .. } | StoreError::BadRequest { .. })));
    let mut short = File { head: of.head.clone(), parts: of.parts.clone() };
    short.parts[0].pop();
    assert!(matches!(bring(&mut home, &short, None), Err(StoreError::BadRequest { .. })));
    assert_eq!(home.free_bytes(), free);
    home.check().unwrap();
}

#[test]
fn an_adopted_region_has_no_replica_and_what_was_held_stays_readable() {
    let (far, world) = (TestRegion::new(small()), TestRegion::new(small()));
    let (mut far_home, mut home) = (far.create(), world.create());
    let client = TestClient::join(&world, &mut home).unwrap();
    let of = far_table(&far, &mut far_home);
    let other = far_bytes(&far, &mut far_home, &[5; 3000]);
    let id = bring(&mut home, &of, Some("t")).unwrap();
    let removed = bring(&mut home, &other, Some("u")).unwrap();
    let held = client.reader.hold(&client.holds, Target::Id(id)).unwrap().unwrap();
    let places = client.reader.places(held.entry()).unwrap();
    // Killed while a third one is copied.
    let third = far_bytes(&far, &mut far_home, &[6; 3000]);
    home.begin_replica(&third.head, NamespaceId::DEFAULT).unwrap();
    drop(home);
    let mut home = world.adopt();
    for target in [Target::Id(id), Target::Name("t"), Target::Id(removed), Target::Name("u")] {
        assert!(matches!(home.find(target), Err(StoreError::NotFound { .. })));
        assert!(client.reader.hold(&client.holds, target).unwrap().is_none());
    }
    assert_eq!(client.read(places[1].block), [1; 256]);
    assert_eq!(home.stats().unwrap().used.0, 0);
    drop(held);
    home.reclaim().unwrap();
    home.check().unwrap();
    let id = bring(&mut home, &of, Some("t")).unwrap();
    assert!(home.delete(Target::Id(id)).unwrap().freed_now);
    assert_eq!(home.free_bytes().0, Length(64 << 12));
}

#[test]
fn an_import_is_an_object_of_its_client_and_region_and_survives_adoption_and_spilling() {
    let (far, world) = (TestRegion::new(small()), TestRegion::new(small()));
    let (mut far_home, mut home) = (far.create(), world.create());
    let client = TestClient::join(&world, &mut home).unwrap();
    let of = far_table(&far, &mut far_home);
    home.reserve(client.slot, "t").unwrap();
    let id = import(&mut home, &client, &of, Some("t")).unwrap();
    assert!(!home.is_reserved("t"), "the object has the name");
    let usage = home.usage_of(client.slot);
    assert!(usage.objects == 1 && usage.bytes.0 > 0, "it counts for its client");
    let event = home.events(0).unwrap().advance().unwrap();
    assert!(matches!(event, Some(crate::Seen::Event(event)) if event.id == id), "it is reported");
    let check = |home: &Home, client: &TestClient| {
        let held = client.reader.hold(&client.holds, Target::Name("t")).unwrap().unwrap();
        let entry = *held.entry();
        assert_eq!((entry.id, entry.is_replica), (id, false));
        assert_eq!(client.reader.origin(&entry).unwrap(), None);
        assert_eq!(client.read(entry.descriptor), of.parts[0]);
        let places = client.reader.places(&entry).unwrap();
        let origins: Vec<Span> = places.iter().map(|place| place.origin).collect();
        assert_eq!(origins, of.head.origins);
        assert_eq!(client.read(places[1].block), [1; 256]);
        assert_eq!(client.read(places[2].block), [2; 128]);
        home.check().unwrap();
    };
    check(&home, &client);
    let listed = client.reader.list("").unwrap();
    assert_eq!(listed.iter().map(|one| one.entry.id).collect::<Vec<_>>(), [id]);
    drop(home);
    let mut home = world.adopt();
    check(&home, &client);
    let file = File::of(&mut home, id).unwrap();
    home.finish_spill(id).unwrap().unwrap();
    let blocks = home.begin_restore(&file.head).unwrap();
    for (block, bytes) in blocks.iter().zip(&file.parts[2..]) {
        home.region().write_by_call(block.offset, bytes).unwrap();
    }
    home.finish_restore(id, &file.parts[0], &file.parts[1]).unwrap();
    check(&home, &client);
    assert!(home.delete(Target::Id(id)).unwrap().freed_now);
    assert_eq!(home.free_bytes().0, Length(64 << 12));
}

#[test]
fn an_import_gets_no_name_that_another_client_has_reserved_and_leaves_no_memory() {
    let (far, world) = (TestRegion::new(small()), TestRegion::new(small()));
    let (mut far_home, mut home) = (far.create(), world.create());
    let client = TestClient::join(&world, &mut home).unwrap();
    let other = TestClient::join(&world, &mut home).unwrap();
    let of = far_table(&far, &mut far_home);
    let free = home.free_bytes();
    home.reserve(other.slot, "t").unwrap();
    let taken = import(&mut home, &client, &of, Some("t"));
    assert!(matches!(taken, Err(StoreError::NameTaken { .. })), "{taken:?}");
    assert!(home.is_reserved("t"));
    let mut own = File { head: of.head.clone(), parts: of.parts.clone() };
    own.head.id.hi = home.uid().0;
    assert!(home.begin_import(&own.head, client.slot).is_err());
    home.begin_import(&of.head, client.slot).unwrap();
    assert!(home.begin_import(&of.head, client.slot).is_err(), "twice");
    home.abort_replica(of.head.id).unwrap();
    assert_eq!(home.free_bytes(), free);
    home.check().unwrap();
}
