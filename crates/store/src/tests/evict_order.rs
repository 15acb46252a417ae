//! The home keeps a part of the order in which objects are evicted. Its victims are those of a scan.

use farrow_memory::Length;
use farrow_testkit::random::Random;

use super::support::{TestClient, TestRegion, part, small};
use crate::{
    EvictionCandidate, EvictionPolicy, Home, Lru, Need, ObjectId, RegionOptions, Room, SealRequest,
    Target, UseStamps,
};

const PAGE: u64 = 4096;
/// More objects than a home keeps in order.
const OBJECTS: u64 = 2_400;
const STEPS: u64 = 4_000;

/// The order of [`Lru`], found by a scan for each eviction.
#[derive(Debug)]
struct Scanned;

impl EvictionPolicy for Scanned {
    fn name(&self) -> &'static str {
        "scanned"
    }

    fn is_automatic(&self) -> bool {
        true
    }

    fn rank(&self, candidate: &EvictionCandidate) -> Option<u64> {
        Lru.rank(candidate)
    }
}

/// A home with a client, whose memory is full.
struct Full {
    world: TestRegion,
    home: Home,
    client: TestClient,
    uses: UseStamps,
    policy: &'static dyn EvictionPolicy,
    /// Its objects, by the times of their seals.
    ids: Vec<ObjectId>,
}

impl Full {
    fn new(policy: &'static dyn EvictionPolicy) -> Self {
        let objects = OBJECTS as u32;
        let world = TestRegion::new(RegionOptions {
            capacity: Length(OBJECTS * PAGE),
            objects_max: objects,
            client_objects_max: objects,
            grants_max: objects,
            name_bytes: Length(OBJECTS * 32),
            ..small()
        });
        let mut home = world.create();
        let client = TestClient::join(&world, &mut home).unwrap();
        let pages = home.entry_pages(client.slot, u32::MAX).unwrap();
        client.entries.add_pages(pages).unwrap();
        let uses = UseStamps::new(client.reader.region()).unwrap();
        let mut full = Self { world, home, client, uses, policy, ids: Vec::new() };
        for n in 0..OBJECTS {
            assert!(full.put(100 + n));
        }
        full
    }

    /// Adds an object of a page: every third is sealed by the client itself, as far as it has
    /// entries. False: there is no room.
    fn put(&mut self, now_ns: u64) -> bool {
        self.home.set_time(now_ns);
        let slot = self.client.slot;
        let Ok(span) = self.home.grant(slot, Length(PAGE), Length(PAGE)) else {
            return false;
        };
        let is_local = now_ns.is_multiple_of(3);
        if is_local && let Some(id) = self.client.seal_local(part(span, 0, PAGE), now_ns) {
            self.ids.push(id);
            return true;
        }
        let name = now_ns.to_string();
        let request = SealRequest::bytes(span, Length(PAGE), Some(&name));
        self.ids.push(self.home.seal(slot, &request, now_ns).unwrap());
        true
    }

    /// The victims for `need`, evicted: their numbers in this region.
    fn evict(&mut self, need: Need) -> Vec<u64> {
        let victims = self.home.victims(self.policy, need).unwrap();
        let evicted = self.home.evict_for(self.policy, need).unwrap();
        assert_eq!(evicted.objects as usize, victims.len());
        self.ids.retain(|id| self.home.find(Target::Id(*id)).is_ok());
        victims.into_iter().map(|id| id.lo).collect()
    }

    /// The same for directory slots: as many as are vacant, and some.
    fn evict_for_slots(&mut self, more: u32) -> Vec<u64> {
        let named = self.ids.iter().filter(|id| id.slot().0 < OBJECTS as u32).count() as u32;
        let slots = OBJECTS as u32 - named + more;
        // Every other time with a range, so that both kinds of victims are needed.
        let runs = if more == 1 { vec![Length(2 * PAGE)] } else { Vec::new() };
        let room = Room { runs, slots, ..Room::default() };
        let victims = self.home.victims_for(self.policy, &room).unwrap().unwrap();
        let evicted = self.home.make_room(self.policy, &room).unwrap();
        assert_eq!(evicted.objects as usize, victims.len());
        self.ids.retain(|id| self.home.find(Target::Id(*id)).is_ok());
        victims.into_iter().map(|id| id.lo).collect()
    }
}

/// One step of the test, the same in each home.
fn step(full: &mut Full, choice: u64, value: u64, now_ns: u64) -> Vec<u64> {
    full.home.set_time(now_ns);
    let any = full.ids[(value % full.ids.len() as u64) as usize];
    match choice % 8 {
        0..=2 => full.uses.touch(any.slot(), now_ns, 0),
        3 => {
            full.home.delete(Target::Id(any)).unwrap();
            full.ids.retain(|id| *id != any);
        }
        4 => return full.evict(Need::Bytes(Length((1 + value % 5) * PAGE))),
        5 if value.is_multiple_of(4) => return full.evict_for_slots(1 + value as u32 % 3),
        5 => return full.evict(Need::Run(Length((1 + value % 3) * PAGE))),
        _ => {
            if !full.put(now_ns) {
                let removed = full.evict(Need::Run(Length(PAGE)));
                assert!(full.put(now_ns));
                return removed;
            }
        }
    }
    Vec::new()
}

#[test]
fn victims_of_a_retained_order_are_those_of_a_scan() {
    let mut retained = Full::new(&Lru);
    let mut scanned = Full::new(&Scanned);
    let mut random = Random::new(7);
    let mut evicted = 0;
    for now_ns in 1_000_000..1_000_000 + STEPS {
        let (choice, value) = (random.next(), random.next());
        let removed = step(&mut retained, choice, value, now_ns);
        assert_eq!(removed, step(&mut scanned, choice, value, now_ns), "at {now_ns}");
        evicted += removed.len() as u64;
    }
    assert!(evicted > OBJECTS / 2, "{evicted} objects were evicted");
    for full in [&mut retained, &mut scanned] {
        full.home.register_all().unwrap();
        full.home.check().unwrap();
        let listed = full.world.reader().list("").unwrap().len();
        assert_eq!(listed, full.home.objects() as usize);
    }
}

#[test]
fn what_was_held_pinned_or_used_after_the_scan_stays() {
    let mut full = Full::new(&Lru);
    let first: Vec<ObjectId> = full.ids[..5].to_vec();
    // The scan, whose order is kept.
    assert_eq!(full.evict(Need::Bytes(Length(1))), [first[0].lo]);
    let held = full.client.reader.hold(&full.client.holds, Target::Id(first[1])).unwrap().unwrap();
    full.home.pin(Target::Id(first[2]), true).unwrap();
    full.home.set_time(9_000);
    full.uses.touch(first[3].slot(), 9_000, 0);
    assert_eq!(full.evict(Need::Bytes(Length(1))), [first[4].lo]);
    // Two of them were no candidates for a while, and count as used at the scan.
    drop(held);
    full.home.pin(Target::Id(first[2]), false).unwrap();
    let next = full.ids[3];
    assert_eq!(full.evict(Need::Bytes(Length(1))), [next.lo]);
    // All of them go before a call fails.
    let all = Need::Bytes(Length(u64::MAX));
    assert_eq!(full.evict(all).len() as u64, OBJECTS - 3);
    full.home.check().unwrap();
}

#[test]
fn room_that_cannot_be_made_is_refused_as_by_a_scan() {
    let mut full = Full::new(&Lru);
    let middle = full.ids[OBJECTS as usize / 2];
    full.home.pin(Target::Id(middle), true).unwrap();
    full.evict(Need::Bytes(Length(1)));
    let free = full.home.free_bytes();
    let too_long = Room::of_run(Length((OBJECTS / 2 + 1) * PAGE));
    for _ in 0..2 {
        assert_eq!(full.home.victims_for(&Lru, &too_long).unwrap(), None);
        assert_eq!(full.home.free_bytes(), free, "a simulation left something free");
    }
    let pages = Length((OBJECTS / 4) * PAGE);
    assert!(full.home.victims_for(&Lru, &Room::of_run(pages)).unwrap().is_some());
    assert_eq!(full.home.free_bytes(), free);
    assert!(full.home.evict_for_pages(&Lru, pages).unwrap().bytes >= Length(pages.0 - PAGE));
    assert!(full.home.free_page_bytes() >= pages);
    full.home.check().unwrap();
}
