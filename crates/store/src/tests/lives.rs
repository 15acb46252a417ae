//! Long lives: slots that run out of generations, indexes that run out of places, regions that are
//! made over other things, objects that are kept for their creator.

use std::io::Write;
use std::sync::Arc;

use farrow_memory::device::DeviceFabric;
use farrow_memory::{Access, CoherenceClass, Fabric, Length, Offset};

use super::support::{Client, World, small};
use crate::entry::{Sequence, State};
use crate::hash::{HashKey, NameHash};
use crate::header::{Header, INDEX_TURN};
use crate::{Generation, Home, Layout, RegionOptions, RegionUid, StoreError, Target};

#[test]
fn a_slot_is_given_up_when_its_generations_are_used_up() {
    let world = World::new(RegionOptions { objects_max: 2, ..small() });
    let home = world.create();
    let directory = home.layout().directory;
    drop(home);
    // Two lives are left to slot 0: it is free in the last but one that is used.
    let region = world.map(Access::Home);
    let word = Sequence::new(Generation(u32::MAX - 1), State::Free).0;
    region.write(directory.offset, &word.to_le_bytes()).unwrap();
    region.write(Offset(768), &1u64.to_le_bytes()).unwrap();
    let mut home = world.adopt();
    let client = Client::join(&world, &mut home).unwrap();
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
fn a_name_index_full_of_tombstones_is_built_anew_while_others_read() {
    let world = World::new(small());
    let key = HashKey([5, 6]);
    let layout = Layout::new(&small()).unwrap();
    let header = Header { uid: RegionUid(9), key, created_at_ns: 0, layout };
    let mut home = Home::create_as(world.map(Access::Home), header).unwrap();
    let client = Client::join(&world, &mut home).unwrap();
    let turn = || {
        let words = client.reader.region().words(farrow_memory::Span::new(INDEX_TURN, Length(8)));
        words.unwrap().load(0, farrow_memory::sync::Ordering::Acquire).unwrap()
    };
    // A name whose probe starts at each place in turn. While the next one is there already, the
    // place of a deleted name cannot become empty.
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
        let world = World { fabric, options: small() };
        let mut home = world.create();
        home.check().unwrap();
        let client = Client::join(&world, &mut home).unwrap();
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
fn an_object_kept_for_its_creator_outlives_its_deletion() {
    let world = World::new(small());
    let mut home = world.create();
    let (a, b) =
        (Client::join(&world, &mut home).unwrap(), Client::join(&world, &mut home).unwrap());
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

#[test]
fn a_home_that_follows_in_good_order_knows_what_is_unfinished() {
    let world = World::new(small());
    let mut home = world.create();
    let (a, b) =
        (Client::join(&world, &mut home).unwrap(), Client::join(&world, &mut home).unwrap());
    let ids = [a.put(&mut home, b"1", None).unwrap(), b.put(&mut home, b"2", None).unwrap()];
    home.keep_for(a.slot, ids[0]);
    home.keep_for(b.slot, ids[1]);
    assert!(!home.delete(Target::Id(ids[0])).unwrap().freed_now);
    home.reserve(a.slot, "mine").unwrap();
    home.reserve(b.slot, "gone").unwrap();
    let unfinished = home.unfinished(10).unwrap();
    assert_eq!(home.unfinished(1).unwrap().kept.len(), 1);
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

#[test]
fn an_overview_adds_up_to_the_heap() {
    let world = World::new(small());
    let mut home = world.create();
    let (a, b) =
        (Client::join(&world, &mut home).unwrap(), Client::join(&world, &mut home).unwrap());
    let id = a.put(&mut home, &[1; 9000], None).unwrap();
    a.put(&mut home, &[2; 9000], None).unwrap();
    let held = b.reader.hold(&b.holds, Target::Id(id)).unwrap().unwrap();
    home.grant(b.slot, Length(1 << 14), Length(1 << 14)).unwrap();
    let stats = home.stats().unwrap();
    for cells in [1, 3, 64, 1 << 20] {
        let cells = home.heap_cells(cells).unwrap();
        assert!(cells.len() <= crate::HEAP_CELLS_MAX as usize);
        let sum = |part: fn(&crate::HeapCell) -> u64| cells.iter().map(part).sum::<u64>();
        assert_eq!(sum(|cell| cell.free), stats.free.0);
        assert_eq!(sum(|cell| cell.granted), stats.granted.0);
        assert_eq!(sum(|cell| cell.held + cell.used), stats.used.0);
        assert!(sum(|cell| cell.held) >= 9000 && sum(|cell| cell.used) >= 9000);
    }
    let shares = home.client_shares().unwrap();
    let share = |slot| shares.iter().find(|share| share.record.client == slot).unwrap();
    assert_eq!((share(a.slot).holds, share(b.slot).holds), (0, 1));
    assert_eq!(share(b.slot).granted, Length(1 << 14));
    drop(held);
    assert_eq!(home.client_shares().unwrap()[1].holds, 0);
}
