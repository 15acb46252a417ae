//! Eviction when memory is short: which objects, in which order, and which are never evicted.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use farrow_memory::{Length, Span};

use super::support::{TestClient, TestRegion, part, small, table};
use crate::failpoints;
use crate::format::entry::{EntryState, Sequence};
use crate::format::layout::ENTRY_BYTES;
use crate::tables::control::{Control, word_of};
use crate::{
    ByHand, EvictionCandidate, EvictionPolicy, Held, Home, Lru, Need, ObjectId, Room, SealRequest,
    StoreError, Target, UseStamps, Whereabouts,
};

const PAGE: u64 = 4096;

/// A home, a client, and its objects `0`, `1`, ... of one page each, in this order in the heap.
fn full(world: &TestRegion, count: u64) -> (Home, TestClient, Vec<ObjectId>) {
    let mut home = world.create();
    let client = TestClient::join(world, &mut home).unwrap();
    let all = home.grant(client.slot, Length(count * PAGE), Length(count * PAGE)).unwrap();
    let ids = (0..count)
        .map(|n| {
            let primary = part(all, n * PAGE, PAGE);
            let name = n.to_string();
            let request = SealRequest::bytes(primary, Length(PAGE), Some(&name));
            home.seal(client.slot, &request, 100 + n).unwrap()
        })
        .collect();
    home.set_time(10_000);
    (home, client, ids)
}

fn evict(home: &mut Home, bytes: u64) -> (u32, u64) {
    let evicted = home.evict_for(&Lru, Need::Bytes(Length(bytes))).unwrap();
    home.check().unwrap();
    (evicted.objects, evicted.bytes.0)
}

fn left(world: &TestRegion) -> Vec<String> {
    world.reader().list("").unwrap().into_iter().filter_map(|listed| listed.name).collect()
}

#[test]
fn what_was_used_last_goes_last() {
    let world = TestRegion::new(small());
    let (mut home, client, ids) = full(&world, 6);
    let uses = UseStamps::new(client.reader.region()).unwrap();
    uses.touch(ids[0].slot(), 900, 1);
    uses.touch(ids[2].slot(), 800, 1);
    // Older than the seal: left by an earlier life of the slot. Later than now: invalid.
    uses.touch(ids[1].slot(), 3, 1);
    uses.touch(ids[5].slot(), u64::MAX, 1);
    let used = client.reader.list("0").unwrap()[0].last_use_ns;
    assert_eq!(used, 900);
    assert_eq!(evict(&mut home, 1), (1, PAGE));
    assert_eq!(left(&world), ["0", "2", "3", "4", "5"]);
    assert_eq!(evict(&mut home, 2 * PAGE), (2, 2 * PAGE));
    assert_eq!(left(&world), ["0", "2", "5"]);
    assert_eq!(evict(&mut home, PAGE), (1, PAGE));
    assert_eq!(evict(&mut home, PAGE), (1, PAGE));
    assert_eq!(left(&world), ["5"]);
    assert_eq!(evict(&mut home, 100 * PAGE), (1, PAGE));
    assert_eq!(evict(&mut home, PAGE), (0, 0));
}

/// Each object of an eviction cost a scan of all holds.
#[test]
fn many_objects_leave_with_one_scan_of_the_holds() {
    const COUNT: u64 = 300;
    let options = crate::RegionOptions::for_capacity(Length(2 * COUNT * PAGE));
    let world = TestRegion::new(options);
    let (mut home, client, ids) = full(&world, COUNT);
    let held = client.reader.hold(&client.holds, Target::Id(ids[7])).unwrap().unwrap();
    let scans = Rc::new(Cell::new(0));
    let count = Rc::clone(&scans);
    failpoints::set_local(Some(Box::new(move |name| {
        count.set(count.get() + u32::from(["evict.scanned", "evict.held"].contains(&name)));
    })));
    let evicted = evict(&mut home, u64::MAX);
    failpoints::set_local(None);
    assert_eq!(evicted, (COUNT as u32 - 1, (COUNT - 1) * PAGE));
    assert_eq!(left(&world), ["7"]);
    assert!(scans.get() <= 2, "{} scans for {COUNT} objects", scans.get());
    drop(held);
    assert_eq!(evict(&mut home, u64::MAX), (1, PAGE));
}

/// A reader that is faster than the scan keeps its object; the rest of the batch leaves.
#[test]
fn an_object_that_is_held_during_the_eviction_stays_and_the_rest_leaves() {
    let world = TestRegion::new(small());
    let (mut home, client, ids) = full(&world, 6);
    let holds: Rc<RefCell<Vec<Held>>> = Rc::default();
    let taken = Rc::clone(&holds);
    let (reader, id) = (Rc::new(client), ids[3]);
    let client = Rc::clone(&reader);
    failpoints::set_local(Some(Box::new(move |name| {
        // The first object is marked, and the fourth one is not yet.
        if name == "evict.leaving" && taken.borrow().is_empty() {
            let held = client.reader.hold(&client.holds, Target::Id(id)).unwrap().unwrap();
            taken.borrow_mut().push(held);
        }
    })));
    let evicted = evict(&mut home, u64::MAX);
    failpoints::set_local(None);
    assert_eq!(evicted, (5, 5 * PAGE));
    assert_eq!(left(&world), ["3"]);
    drop(holds.borrow_mut().pop());
    assert_eq!(evict(&mut home, u64::MAX), (1, PAGE));
}

#[test]
fn what_is_held_pinned_retained_or_being_written_stays() {
    let world = TestRegion::new(small());
    let (mut home, client, ids) = full(&world, 5);
    let held = client.reader.hold(&client.holds, Target::Id(ids[0])).unwrap().unwrap();
    home.pin(Target::Name("1"), true).unwrap();
    home.keep_for(client.slot, ids[2]);
    let writing = home.grant(client.slot, Length(PAGE), Length(PAGE)).unwrap();
    let stats = home.stats().unwrap();
    assert_eq!((stats.held.0, stats.pinned.0, stats.objects_pinned), (PAGE, PAGE, 1));
    assert_eq!((stats.evictable.0, stats.granted.0), (2 * PAGE, PAGE));
    assert_eq!(evict(&mut home, u64::MAX), (2, 2 * PAGE));
    assert_eq!(left(&world), ["0", "1", "2"]);
    assert_eq!(home.grants_of(client.slot), [writing]);
    for id in &ids[..3] {
        assert_eq!(home.evict(*id).unwrap(), None);
    }
    drop(held);
    home.pin(Target::Id(ids[1]), false).unwrap();
    home.confirm(client.slot, ids[2]);
    assert_eq!(home.stats().unwrap().evictable.0, 3 * PAGE);
    assert_eq!(evict(&mut home, u64::MAX), (3, 3 * PAGE));
}

#[test]
fn a_full_directory_makes_room_for_objects() {
    let world = TestRegion::new(small());
    let count = world.options.objects_max;
    let (mut home, client, ids) = full(&world, count.into());
    let held = client.reader.hold(&client.holds, Target::Id(ids[0])).unwrap().unwrap();
    let refused = client.put(&mut home, b"one more", None);
    assert!(matches!(refused, Err(StoreError::TooManyObjects { .. })));
    let slots = |slots| Room { slots, ..Room::default() };
    assert_eq!(home.make_room(&Lru, &slots(3)).unwrap().objects, 3);
    assert_eq!(home.make_room(&Lru, &slots(3)).unwrap().objects, 0, "there are three");
    let left = left(&world);
    assert_eq!((left.len(), left.contains(&"0".to_owned())), (count as usize - 3, true));
    client.put(&mut home, b"one more", None).unwrap();
    assert_eq!(home.make_room(&Lru, &slots(count)).unwrap().objects, 0, "one of them is held");
    assert_eq!(home.make_room(&Lru, &slots(count - 1)).unwrap().objects, count - 3);
    drop(held);
}

#[test]
fn a_run_is_made_of_what_goes_first_and_nothing_beside_it_goes() {
    let world = TestRegion::new(small());
    let pages = world.options.capacity.0 / PAGE;
    let mut options = small();
    options.objects_max = pages as u32;
    options.name_bytes = Length(pages * 32);
    let world = TestRegion::new(options);
    let (mut home, client, ids) = full(&world, pages);
    let uses = UseStamps::new(client.reader.region()).unwrap();
    for (n, id) in (0..).zip(&ids) {
        // 0, 10, 20 and so on were used the longest ago, 7 and 8 and 9 next.
        let at = match n {
            n if n % 10 == 0 => 1_000 + n,
            7..=9 => 2_000,
            _ => 3_000,
        };
        uses.touch(id.slot(), at, 1);
    }
    let run = Need::Run(Length(4 * PAGE));
    assert_eq!(home.victims(&Lru, run).unwrap(), [ids[10], ids[7], ids[8], ids[9]]);
    let evicted = home.evict_for(&Lru, run).unwrap();
    assert_eq!((evicted.objects, evicted.bytes.0), (4, 4 * PAGE));
    assert_eq!(home.stats().unwrap().largest_free.0, 4 * PAGE);
    // The run is free now.
    assert_eq!(home.evict_for(&Lru, run).unwrap().objects, 0);
    // With a pinned object in the middle there is no such run, so nothing is evicted for it.
    home.pin(Target::Id(ids[pages as usize / 2]), true).unwrap();
    let most = Need::Run(Length(pages * PAGE / 2 + PAGE));
    assert_eq!(home.evict_for(&Lru, most).unwrap().objects, 0);
    home.check().unwrap();
}

#[test]
fn a_shared_block_comes_back_with_the_last_that_has_it() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let all = home.grant(client.slot, Length(4 * PAGE), Length(4 * PAGE)).unwrap();
    let shared = part(all, 2 * PAGE, PAGE);
    let seal = |home: &mut Home, primary: Span, at| {
        let request = table(&client, primary, &[shared], None);
        home.seal(client.slot, &request, at).unwrap()
    };
    let first = seal(&mut home, part(all, 0, 128), 1);
    let second = seal(&mut home, part(all, 128, 256), 2);
    home.pin(Target::Id(second), true).unwrap();
    assert_eq!(home.stats().unwrap().evictable.0, 128);
    assert_eq!(home.victims(&Lru, Need::Bytes(Length(PAGE))).unwrap(), [first]);
    home.pin(Target::Id(second), false).unwrap();
    assert_eq!(home.stats().unwrap().evictable.0, 128 + 256 + PAGE);
    assert_eq!(evict(&mut home, 129), (2, 128 + 256 + PAGE));
}

#[test]
fn an_object_whose_blocks_all_stay_does_not_go_for_nothing() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let all = home.grant(client.slot, Length(PAGE), Length(PAGE)).unwrap();
    let block = part(all, 0, PAGE);
    let seal = |home: &mut Home, at| {
        home.seal(client.slot, &SealRequest::bytes(block, Length(9), None), at).unwrap()
    };
    let (_, pinned) = (seal(&mut home, 1), seal(&mut home, 2));
    home.pin(Target::Id(pinned), true).unwrap();
    assert_eq!(evict(&mut home, PAGE), (0, 0));
    home.pin(Target::Id(pinned), false).unwrap();
    assert_eq!(evict(&mut home, PAGE), (2, PAGE));
}

#[test]
fn pins_outlive_the_home_but_not_the_object() {
    let world = TestRegion::new(small());
    let (mut home, _, ids) = full(&world, 3);
    home.pin(Target::Id(ids[0]), true).unwrap();
    home.pin(Target::Id(ids[1]), true).unwrap();
    home.delete(Target::Id(ids[1])).unwrap();
    drop(home);
    let mut home = world.adopt();
    assert_eq!(home.stats().unwrap().objects_pinned, 1);
    assert_eq!(evict(&mut home, u64::MAX), (1, PAGE));
    home.delete(Target::Id(ids[0])).unwrap();
    let client = TestClient::join(&world, &mut home).unwrap();
    let again = client.put(&mut home, b"again", None).unwrap();
    assert!(ids.iter().any(|id| id.slot() == again.slot()));
    assert_eq!(evict(&mut home, u64::MAX), (1, 128));
}

#[test]
fn one_that_was_leaving_when_the_home_was_killed_stays() {
    let world = TestRegion::new(small());
    let (home, client, ids) = full(&world, 2);
    let control = Control::new(world.map(farrow_memory::Access::Home));
    let at = word_of(home.layout().directory, ENTRY_BYTES, ids[0].slot().0, 0);
    let sealed = Sequence(control.load(at).unwrap());
    control.store(at, sealed.with(EntryState::Leaving).0).unwrap();
    let reader = &client.reader;
    // It cannot be held for the moment, but it is there, and listed.
    assert!(reader.hold(&client.holds, Target::Name("0")).unwrap().is_none());
    for target in [Target::Id(ids[0]), Target::Name("0")] {
        assert_eq!(reader.whereabouts(target).unwrap(), Whereabouts::Away(ids[0]));
    }
    assert_eq!(reader.whereabouts(Target::Name("1")).unwrap(), Whereabouts::InMemory);
    assert_eq!(reader.whereabouts(Target::Name("2")).unwrap(), Whereabouts::Nowhere);
    assert_eq!(left(&world), ["0", "1"]);
    drop(home);
    let home = world.adopt();
    assert_eq!(home.stats().unwrap().objects, 2);
    assert!(reader.hold(&client.holds, Target::Name("0")).unwrap().is_some());
}

#[test]
fn policies_say_what_they_are() {
    assert!(Lru.is_automatic() && !ByHand.is_automatic());
    assert_eq!((Lru.name(), ByHand.name()), ("lru", "none"));
}

/// Keeps one object when it is about to leave, although it had a rank.
#[derive(Debug)]
struct KeepsAtLast(ObjectId);

impl EvictionPolicy for KeepsAtLast {
    fn name(&self) -> &'static str {
        "keeps at last"
    }

    fn is_automatic(&self) -> bool {
        true
    }

    fn rank(&self, candidate: &EvictionCandidate) -> Option<u64> {
        Lru.rank(candidate)
    }

    fn may_leave(&self, id: ObjectId, former: Option<ObjectId>) -> bool {
        id != self.0 && former != Some(self.0)
    }
}

/// Regression test: a member opened an object, made a replica and released its hold, all after the
/// eviction had asked for replicas. The object left, and another one could take its name.
#[test]
fn what_a_policy_keeps_at_the_last_moment_stays() {
    let world = TestRegion::new(small());
    let (mut home, client, ids) = full(&world, 3);
    let policy = KeepsAtLast(ids[1]);
    let evicted = home.evict_for(&policy, Need::Bytes(Length(u64::MAX))).unwrap();
    assert_eq!(evicted.objects, 2);
    assert_eq!(left(&world), ["1"]);
    let room = Room { slots: world.options.objects_max, ..Room::default() };
    assert_eq!(home.make_room(&policy, &room).unwrap().objects, 0);
    let held = client.reader.hold(&client.holds, Target::Id(ids[1])).unwrap();
    assert!(held.is_some(), "it is sealed as before");
    drop(held);
    assert_eq!(home.make_room(&Lru, &room).unwrap().objects, 1);
    home.check().unwrap();
}

/// Regression test: a member opened an object by the id that its creator had given it. After the home
/// had taken it over, replicas were looked for by its new id only, and it was evicted.
#[test]
fn a_policy_knows_an_object_by_its_former_id() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    client.entries.add_pages(home.entry_pages(client.slot, 1).unwrap()).unwrap();
    let extent = home.grant(client.slot, Length(PAGE), Length(PAGE)).unwrap();
    let id = client.seal_local(part(extent, 0, 128), 7).unwrap();
    home.register_all().unwrap();
    let candidates = home.candidates(&Lru).unwrap();
    assert_eq!(candidates.iter().map(|one| (one.id, one.former)).collect::<Vec<_>>(), [(id, None)]);
    let new = home.pin(Target::Id(id), true).unwrap();
    home.pin(Target::Id(new), false).unwrap();
    assert_ne!(new, id);
    let candidates = home.candidates(&Lru).unwrap();
    assert_eq!(
        candidates.iter().map(|one| (one.id, one.former)).collect::<Vec<_>>(),
        [(new, Some(id))]
    );
    assert_eq!(
        home.make_room(&KeepsAtLast(id), &Room::of_run(world.options.capacity)).unwrap().objects,
        0
    );
    assert!(home.evict(new).unwrap().is_some());
    home.check().unwrap();
}
