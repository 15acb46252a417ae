//! Long lives: slots that run out of generations, indexes that run out of places, regions created
//! over other files, objects that are retained for their creator.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use farrow_memory::device::DeviceFabric;
use farrow_memory::{Access, CoherenceClass, Fabric, Length, Offset};

use super::support::{TestClient, TestRegion, part, small};
use crate::format::entry::{EntryState, Sequence};
use crate::format::hash::{HashKey, NameHash};
use crate::format::header::{INDEX_TURN, RegionHeader};
use crate::format::layout::HOLD_HEADER_WORDS;
use crate::{
    ClientSlot, Generation, HeldObjects, Home, Layout, ObjectId, RegionOptions, RegionUid,
    SealRequest, StoreError, Target, Whereabouts, failpoints,
};

#[test]
fn a_slot_is_given_up_when_its_generations_are_used_up() {
    let world = TestRegion::new(RegionOptions { objects_max: 2, ..small() });
    let home = world.create();
    let directory = home.layout().directory;
    drop(home);
    // Slot 0 has two lives left; it is not used in the last one.
    let region = world.map(Access::Home);
    let word = Sequence::new(Generation(u32::MAX - 1), EntryState::Free).0;
    region.write(directory.offset, &word.to_le_bytes()).unwrap();
    region.write(Offset(768), &1u64.to_le_bytes()).unwrap();
    let mut home = world.adopt();
    let client = TestClient::join(&world, &mut home).unwrap();
    let last = client.put(&mut home, b"last", None).unwrap();
    assert_eq!((last.slot().0, last.generation().0), (0, u32::MAX - 1));
    home.delete(Target::Id(last)).unwrap();
    home.check().unwrap();
    let next = client.put(&mut home, b"next", None).unwrap();
    assert_eq!((next.slot().0, next.generation().0), (1, 1));
    let none = client.put(&mut home, b"none", None);
    assert!(matches!(none, Err(StoreError::TooManyObjects { max: 2 })));
    let mut home = world.adopt();
    let none = client.put(&mut home, b"none", None);
    assert!(matches!(none, Err(StoreError::TooManyObjects { .. })));
    assert_eq!(client.reader.by_id(last).unwrap(), None);
}

#[test]
fn a_name_index_full_of_tombstones_is_rebuilt_while_clients_read() {
    let world = TestRegion::new(small());
    let key = HashKey([5, 6]);
    let layout = Layout::new(&small()).unwrap();
    let header = RegionHeader { uid: RegionUid(9), key, created_at_ns: 0, layout };
    let mut home = Home::create_as(world.map(Access::Home), header, Length(u64::MAX)).unwrap();
    let client = TestClient::join(&world, &mut home).unwrap();
    let turn = || {
        let words = client.reader.region().words(farrow_memory::Span::new(INDEX_TURN, Length(8)));
        words.unwrap().load(0, farrow_memory::sync::Ordering::Acquire).unwrap()
    };
    // A name whose probe starts at each place in turn. While the next place is used, the place of a
    // deleted name cannot become empty.
    let places = layout.index_places;
    let name_at = |place: u64| {
        let names = (0..).map(|n| format!("name-{place}-{n}"));
        let at = |name: &String| NameHash::of(key, name.as_bytes()).0 % places == place;
        names.into_iter().find(at).unwrap()
    };
    client.put(&mut home, b"0", Some(&name_at(0))).unwrap();
    for place in 1..places {
        client.put(&mut home, b"n", Some(&name_at(place))).unwrap();
        home.delete(Target::Name(&name_at(place - 1))).unwrap();
        assert_eq!(client.reader.find(&name_at(place - 1)).unwrap(), None);
        assert!(client.reader.find(&name_at(place)).unwrap().is_some());
        home.check().unwrap();
    }
    assert_eq!(turn(), 1, "three quarters of the places were used once");
}

#[test]
fn a_region_can_be_made_over_anything() {
    let layout = Layout::new(&small()).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let garbage = vec![0xff; layout.geometry.total().0 as usize];
    file.write_all(&garbage).unwrap();
    for class in [CoherenceClass::Coherent, CoherenceClass::NodeLocal] {
        let open = DeviceFabric::open(file.path(), 0, layout.geometry, class).unwrap();
        let fabric: Arc<dyn Fabric> = Arc::new(open);
        let world = TestRegion { fabric, options: small() };
        let mut home = world.create();
        home.check().unwrap();
        let client = TestClient::join(&world, &mut home).unwrap();
        let id = client.put(&mut home, b"on a device", Some("n")).unwrap();
        let entry = client.reader.find("n").unwrap().unwrap();
        assert_eq!((entry.id, client.read(entry.payload())), (id, b"on a device".to_vec()));
        drop(home);
        let mut home = world.adopt();
        assert_eq!(home.find(Target::Name("n")).unwrap().id, id);
        assert!(home.delete(Target::Name("n")).unwrap().freed_now);
    }
}

#[test]
fn an_object_retained_for_its_creator_outlives_its_deletion() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, b) = (
        TestClient::join(&world, &mut home).unwrap(),
        TestClient::join(&world, &mut home).unwrap(),
    );
    let ids = [a.put(&mut home, b"1", None).unwrap(), a.put(&mut home, b"2", None).unwrap()];
    for id in ids {
        home.keep_for(a.slot, id);
        assert!(!home.delete(Target::Id(id)).unwrap().freed_now);
    }
    assert_eq!(home.reclaim().unwrap().objects, 0);
    home.confirm(b.slot, ids[0]);
    assert_eq!(home.reclaim().unwrap().objects, 0);
    home.confirm(a.slot, ids[0]);
    assert_eq!(home.reclaim().unwrap().objects, 1);
    assert_eq!(home.client_leave(a.slot).unwrap().objects, 1);
    home.check().unwrap();
}

/// Another client deleted an object before its creator could hold it. The creator got nothing to
/// confirm, so the memory stayed until the creator ended, also after the creator had freed its buffers.
#[test]
fn a_creator_claims_an_object_that_was_deleted_before_its_hold() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let a = TestClient::join(&world, &mut home).unwrap();
    let id = a.put(&mut home, b"in use", None).unwrap();
    home.keep_for(a.slot, id);
    assert!(a.reader.hold_retained(&a.holds, id).unwrap().is_none(), "it is not deleted");
    assert!(!home.delete(Target::Id(id)).unwrap().freed_now);
    assert!(a.reader.hold(&a.holds, Target::Id(id)).unwrap().is_none());
    let held = a.reader.hold_retained(&a.holds, id).unwrap().unwrap();
    home.confirm(a.slot, id);
    assert_eq!(home.reclaim().unwrap().objects, 0, "its creator holds it");
    assert_eq!(a.read(held.entry().payload()), b"in use");
    drop(held);
    assert_eq!(home.reclaim().unwrap().objects, 1);
    assert!(a.reader.hold_retained(&a.holds, id).unwrap().is_none(), "it is freed");
    home.check().unwrap();
}

/// A client seals bytes that it wrote in place.
fn seal_in_place(home: &mut Home, client: &TestClient) -> ObjectId {
    let block = home.grant(client.slot, Length(128), Length(128)).unwrap();
    home.seal(client.slot, &SealRequest::bytes(block, block.length, None), 1).unwrap()
}

#[test]
fn what_clients_with_open_seals_sealed_outlives_a_kill_and_its_deletion() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, b) = (
        TestClient::join(&world, &mut home).unwrap(),
        TestClient::join(&world, &mut home).unwrap(),
    );
    a.holds.publish_open_seals(1).unwrap();
    let (first, second) = (seal_in_place(&mut home, &a), seal_in_place(&mut home, &a));
    // One that does not tell its open seals.
    let (removed, others) = (seal_in_place(&mut home, &a), seal_in_place(&mut home, &b));
    // Deleted by another client before its creator could hold it.
    home.keep_for(a.slot, removed);
    assert!(!home.delete(Target::Id(removed)).unwrap().freed_now);
    drop(home);

    let mut home = world.adopt_in_doubt();
    for id in [first, second, others] {
        assert_eq!(home.evict(id).unwrap(), None);
        assert!(!home.delete(Target::Id(id)).unwrap().freed_now);
    }
    assert_eq!(home.reclaim().unwrap().objects, 0);
    let held = a.reader.hold(&a.holds, Target::Id(second)).unwrap();
    assert!(held.is_none(), "it was deleted, but its memory is there");
    home.confirm(a.slot, first);
    assert_eq!(home.reclaim().unwrap().objects, 1);
    // In the slot of the first one, and retained for a reason of its own.
    let new = seal_in_place(&mut home, &a);
    home.keep_for(a.slot, new);
    home.confirm_earlier(a.slot);
    assert!(!home.delete(Target::Id(new)).unwrap().freed_now);
    assert_eq!(home.reclaim().unwrap().objects, 2, "the second one and the one that was gone");
    assert_eq!(home.client_leave(b.slot).unwrap().objects, 1);
    home.confirm(a.slot, new);
    assert_eq!(home.reclaim().unwrap().objects, 1);
    home.check().unwrap();
}

/// A killed home left behind an idle client that had sealed much in place in its last ten seconds. The
/// next home retained all of it, out of reach of eviction, until the client sent a message.
#[test]
fn what_a_client_without_open_seals_sealed_is_not_retained_after_a_kill() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (idle, busy) = (
        TestClient::join(&world, &mut home).unwrap(),
        TestClient::join(&world, &mut home).unwrap(),
    );
    idle.holds.publish_open_seals(1).unwrap();
    busy.holds.publish_open_seals(2).unwrap();
    let (free, used) = (seal_in_place(&mut home, &idle), seal_in_place(&mut home, &idle));
    let open = seal_in_place(&mut home, &busy);
    let hold = idle.reader.hold(&idle.holds, Target::Id(used)).unwrap().unwrap();
    idle.holds.publish_open_seals(0).unwrap();
    busy.holds.publish_open_seals(1).unwrap();
    drop(home);

    let mut home = world.adopt_in_doubt();
    assert!(home.clients_in_doubt().eq([busy.slot]));
    assert!(home.evict(free).unwrap().is_some());
    assert_eq!(home.evict(used).unwrap(), None, "it is held");
    assert_eq!(home.evict(open).unwrap(), None, "its seal is open");
    drop(hold);
    assert!(home.evict(used).unwrap().is_some());
    home.check().unwrap();
}

/// After a kill, an upgrade took place before the client came back. The objects in doubt were handed
/// over as if their confirmations were under way, which nobody sent: they stayed until the client ended.
#[test]
fn objects_in_doubt_stay_in_doubt_over_an_upgrade() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let a = TestClient::join(&world, &mut home).unwrap();
    a.holds.publish_open_seals(1).unwrap();
    let id = seal_in_place(&mut home, &a);
    drop(home);
    let home = world.adopt_in_doubt();
    let unfinished = home.unfinished(10).unwrap();
    drop(home);

    let (mut home, _) = Home::adopt_from(world.map(Access::Home), &unfinished).unwrap();
    assert!(home.clients_in_doubt().eq([a.slot]));
    assert!(!home.delete(Target::Id(id)).unwrap().freed_now);
    home.confirm_earlier(a.slot);
    assert_eq!(home.reclaim().unwrap().objects, 1);
    home.check().unwrap();
}

#[test]
fn several_objects_are_deleted_with_one_look_at_the_holds() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let a = TestClient::join(&world, &mut home).unwrap();
    let named = a.put(&mut home, b"1", Some("named")).unwrap();
    let held = a.put(&mut home, b"2", None).unwrap();
    let block = home.grant(a.slot, Length(128), Length(128)).unwrap();
    let pages = home.entry_pages(a.slot, 1).unwrap();
    a.entries.add_pages(pages).unwrap();
    let local = a.seal_local(block, 1).unwrap();
    let hold = a.reader.hold(&a.holds, Target::Id(held)).unwrap().unwrap();
    let targets = [Target::Name("named"), Target::Id(held), Target::Id(local), Target::Id(named)];
    let results = home.delete_many(targets).unwrap();
    let freed: Vec<_> = results.iter().map(|one| one.as_ref().map(|d| d.freed_now).ok()).collect();
    assert_eq!(freed, [Some(true), Some(false), Some(true), None]);
    drop(hold);
    assert_eq!(home.reclaim().unwrap().objects, 1);
    home.client_leave(a.slot).unwrap();
    assert_eq!(home.stats().unwrap().used.0, 0);
    home.check().unwrap();
}

#[test]
fn a_home_that_follows_in_good_order_knows_what_is_unfinished() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, b) = (
        TestClient::join(&world, &mut home).unwrap(),
        TestClient::join(&world, &mut home).unwrap(),
    );
    let ids = [a.put(&mut home, b"1", None).unwrap(), b.put(&mut home, b"2", None).unwrap()];
    home.keep_for(a.slot, ids[0]);
    home.keep_for(b.slot, ids[1]);
    assert!(!home.delete(Target::Id(ids[0])).unwrap().freed_now);
    home.reserve(a.slot, "mine").unwrap();
    home.reserve(b.slot, "gone").unwrap();
    let unfinished = home.unfinished(10).unwrap();
    assert_eq!(home.unfinished(1).unwrap().retained.len(), 1);
    home.client_leave(b.slot).unwrap();
    drop(home);

    let (mut home, report) = Home::adopt_from(world.map(Access::Home), &unfinished).unwrap();
    assert_eq!((report.objects, report.retiring), (1, 1));
    assert!(matches!(home.reserve(a.slot, "mine"), Err(StoreError::NameTaken { .. })));
    home.reserve(a.slot, "gone").unwrap();
    let names = ["mine".to_owned(), "new".to_owned(), "x".repeat(256)];
    assert_eq!(home.renew(a.slot, &names, false), [true, true, false]);
    assert_eq!(home.renew(a.slot, &names[..1], true), [true]);
    home.reserve(a.slot, "gone").unwrap();
    assert_eq!(home.reclaim().unwrap().objects, 0, "kept although it is deleted");
    home.confirm(a.slot, ids[0]);
    assert_eq!(home.reclaim().unwrap().objects, 1);
    assert!(home.delete(Target::Id(ids[1])).unwrap().freed_now);
    home.check().unwrap();
}

/// The message of a handover lists a limited number of objects. The next home once freed the others
/// when they were deleted before their creator held them.
#[test]
fn objects_that_a_handover_leaves_out_outlive_their_deletion_too() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let a = TestClient::join(&world, &mut home).unwrap();
    let ids = [b"1", b"2", b"3"].map(|bytes| a.put(&mut home, bytes, None).unwrap());
    ids.iter().for_each(|id| home.keep_for(a.slot, *id));
    let unfinished = home.unfinished(1).unwrap();
    assert_eq!(unfinished.retained.len(), 1);
    drop(home);

    let (mut home, _) = Home::adopt_from(world.map(Access::Home), &unfinished).unwrap();
    for id in ids {
        assert!(!home.delete(Target::Id(id)).unwrap().freed_now, "{id} is not held yet");
    }
    assert_eq!(home.reclaim().unwrap().objects, 0);
    home.confirm(a.slot, ids[0]);
    assert_eq!(home.reclaim().unwrap().objects, 1);
    // The confirmation covers the listed objects too.
    home.confirm_earlier(a.slot);
    assert_eq!(home.reclaim().unwrap().objects, 2);
    home.check().unwrap();
}

#[test]
fn an_overview_adds_up_to_the_heap() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, b) = (
        TestClient::join(&world, &mut home).unwrap(),
        TestClient::join(&world, &mut home).unwrap(),
    );
    let id = a.put(&mut home, &[1; 9000], None).unwrap();
    a.put(&mut home, &[2; 9000], None).unwrap();
    let held = b.reader.hold(&b.holds, Target::Id(id)).unwrap().unwrap();
    home.grant(b.slot, Length(1 << 14), Length(1 << 14)).unwrap();
    let stats = home.stats().unwrap();
    for cells in [1, 3, 64, 1 << 20] {
        let cells = home.overview(cells).unwrap().1;
        assert!(cells.len() <= crate::HEAP_CELLS_MAX as usize);
        let sum = |part: fn(&crate::HeapCell) -> u64| cells.iter().map(part).sum::<u64>();
        assert_eq!(sum(|cell| cell.free), stats.free.0);
        assert_eq!(sum(|cell| cell.granted), stats.granted.0);
        assert_eq!(sum(|cell| cell.held + cell.used), stats.used.0);
        assert!(sum(|cell| cell.held) >= 9000 && sum(|cell| cell.used) >= 9000);
    }
    let shares = home.overview(1).unwrap().0;
    let share = |slot| shares.iter().find(|share| share.record.client == slot).unwrap();
    assert_eq!((share(a.slot).holds, share(b.slot).holds), (0, 1));
    assert_eq!(share(b.slot).granted, Length(1 << 14));
    drop(held);
    assert_eq!(home.overview(1).unwrap().0[1].holds, 0);
}

/// The overview once counted holds on directory slots only, so that objects in entry pages of
/// clients were never shown as held.
#[test]
fn an_overview_shows_objects_that_clients_sealed_themselves_as_held() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, b) = (
        TestClient::join(&world, &mut home).unwrap(),
        TestClient::join(&world, &mut home).unwrap(),
    );
    a.entries.add_pages(home.entry_pages(a.slot, 1).unwrap()).unwrap();
    let extent = home.grant(a.slot, Length(4 << 12), Length(4 << 12)).unwrap();
    let ids = [0, 1, 2].map(|n| a.seal_local(part(extent, n * 1024, 1024), n).unwrap());
    home.register_all().unwrap();
    let held = |home: &Home| home.overview(1).unwrap().1[0].held;
    assert_eq!(held(&home), 0);
    let holds = ids.map(|id| b.reader.hold(&b.holds, Target::Id(id)).unwrap().unwrap());
    assert_eq!(held(&home), 3 * 1024);
    // The first is deleted. The second moves to the directory and is held under its old slot.
    assert!(!home.delete(Target::Id(ids[0])).unwrap().freed_now);
    home.take_over(ids[1]).unwrap();
    assert_eq!(held(&home), 3 * 1024);
    drop(holds);
    home.reclaim().unwrap();
    assert_eq!(held(&home), 0);
}

fn held(home: &Home, listed_max: u32) -> BTreeMap<ClientSlot, HeldObjects> {
    let mut survey = home.survey_for_overview(1);
    while !home.survey_some(&mut survey).unwrap() {}
    home.held_objects(&survey, listed_max).unwrap()
}

/// The ids are those of the list, also for objects that moved to the directory and for deleted ones.
#[test]
fn held_objects_are_listed_by_client() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let clients = [(); 3].map(|()| TestClient::join(&world, &mut home).unwrap());
    let [a, b, c] = &clients;
    a.entries.add_pages(home.entry_pages(a.slot, 1).unwrap()).unwrap();
    let extent = home.grant(a.slot, Length(4 << 12), Length(4 << 12)).unwrap();
    let [local, moved] = [0, 1].map(|n| a.seal_local(part(extent, n * 1024, 1024), n).unwrap());
    let named = a.put(&mut home, &[1; 64], Some("named")).unwrap();
    home.register_all().unwrap();
    let hold = |client: &TestClient, id| client.reader.hold(&client.holds, Target::Id(id)).unwrap();
    let holds = [local, moved, named].map(|id| hold(b, id).unwrap());
    let other = hold(c, named).unwrap();
    assert!(!home.delete(Target::Id(named)).unwrap().freed_now);
    let taken = home.take_over(moved).unwrap();
    let all = held(&home, u32::MAX);
    let sorted = |mut ids: Vec<ObjectId>| {
        ids.sort();
        ids
    };
    assert_eq!(sorted(all[&b.slot].ids.clone()), sorted(vec![local, taken, named]));
    assert!(all[&b.slot].are_all);
    assert_eq!(all[&a.slot], HeldObjects { ids: Vec::new(), are_all: true });
    assert_eq!(all[&c.slot], HeldObjects { ids: vec![named], are_all: true });
    // The client with few holds is complete first.
    let some = held(&home, 3);
    assert_eq!((some[&b.slot].ids.len(), some[&b.slot].are_all), (2, false));
    assert_eq!(some[&c.slot], all[&c.slot]);
    let none = held(&home, 0);
    for client in [b, c] {
        assert_eq!(none[&client.slot], HeldObjects::default());
    }
    drop((holds, other));
    assert!(held(&home, 3).values().all(|one| one.ids.is_empty() && one.are_all));
}

/// A client can write any slot into its hold blocks. The entry of a spilled object keeps its old
/// span, which another object may occupy.
#[test]
fn an_overview_shows_no_object_as_held_for_a_hold_on_a_spilled_one() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let spilled = client.put(&mut home, &[1; 1024], None).unwrap();
    let place = home.find(Target::Id(spilled)).unwrap().primary;
    home.begin_spill(spilled).unwrap().unwrap();
    home.finish_spill(spilled).unwrap().unwrap();
    let other = client.put(&mut home, &[2; 1024], None).unwrap();
    assert_eq!(home.find(Target::Id(other)).unwrap().primary, place);
    let block = home.hold_blocks_of(client.slot)[0].offset;
    let claim = u64::from(spilled.slot().0) + 1;
    client.write(Offset(block.0 + HOLD_HEADER_WORDS * 8), &claim.to_le_bytes());
    client.write(block, &1u64.to_le_bytes());
    assert_eq!(home.stats().unwrap().holds, 1);
    assert_eq!(home.overview(1).unwrap().1[0].held, 0);
    assert!(held(&home, 8)[&client.slot].ids.is_empty());
}

/// A reader loaded the life of an entry, and then the forward of its next life: it returned the object
/// of that life for the id of the one before.
#[test]
fn an_id_does_not_lead_to_the_object_of_the_next_life() {
    let world = TestRegion::new(small());
    let reader = {
        let mut home = world.create();
        TestClient::join(&world, &mut home).unwrap()
    };
    for look in [0, 1] {
        let mut home = world.adopt();
        let client = TestClient::join(&world, &mut home).unwrap();
        client.entries.add_pages(home.entry_pages(client.slot, 1).unwrap()).unwrap();
        let extent = home.grant(client.slot, Length(1 << 12), Length(1 << 12)).unwrap();
        let old = client.seal_local(part(extent, 0, 128), 1).unwrap();
        let mut state = Some((home, client));
        failpoints::set_reader(Some(Box::new(move |name| {
            if let (Some((home, client)), "look.forward") = (&mut state, name) {
                home.delete(Target::Id(old)).unwrap();
                let next = loop {
                    let id = client.seal_local(part(extent, 128, 128), 2).unwrap();
                    if id.slot() == old.slot() {
                        break id;
                    }
                };
                home.take_over(next).unwrap();
                state = None;
            }
        })));
        let found = match look {
            0 => reader.reader.by_id(old).unwrap().map(|entry| entry.id),
            _ => match reader.reader.whereabouts(Target::Id(old)).unwrap() {
                Whereabouts::Nowhere => None,
                there => panic!("{there:?}"),
            },
        };
        failpoints::set_reader(None);
        assert_eq!(found, None);
    }
}
