//! Readers in threads against a home that seals, deletes and reuses memory at once.
//!
//! Every extent is filled with poison before an object is written into it, and every object with
//! one number, which is also in its entry. A reader that holds an object and sees another number in
//! it has caught the home freeing held memory.

use std::sync::Arc;
use std::thread;

use farrow_memory::sync::{AtomicBool, AtomicU64, Ordering};
use farrow_memory::{Alias, Length, Span};
use farrow_testkit::random::Random;

use super::support::{TestClient, TestRegion, part, small};
use crate::{Home, ObjectId, RegionOptions, SealRequest, StoreError, Target};

pub(super) const NAMES: u64 = 12;
const READERS: usize = 3;
/// Objects made, of which all but the last few are deleted.
const OBJECTS: u64 = 6_000;
/// Checks of held objects before the test may end.
pub(super) const READS_MIN: u64 = 3_000;
/// Spins in which the home waits for these.
pub(super) const WAITS_MAX: u64 = 50_000_000;
const POISON: u64 = 0xdddd_dddd_dddd_dddd;

/// State shared by the threads.
#[derive(Default)]
pub(super) struct RaceState {
    pub(super) is_over: AtomicBool,
    pub(super) reads: AtomicU64,
    pub(super) wrong: AtomicU64,
    pub(super) lost: AtomicU64,
}

/// Hold names at random, and check each held object twice.
pub(super) fn read(client: &TestClient, shared: &RaceState, seed: u64) {
    let mut random = Random::new(seed);
    while !shared.is_over.load(Ordering::Relaxed) {
        if random.next().is_multiple_of(3) {
            read_together(client, shared, &mut random);
            continue;
        }
        let name = format!("n{}", random.next() % NAMES);
        // As a client does, or with time to be overtaken between lookup and claim.
        let held = if random.next().is_multiple_of(2) {
            client.reader.hold(&client.holds, Target::Name(&name)).unwrap()
        } else {
            client.reader.find(&name).unwrap().and_then(|entry| {
                thread::yield_now();
                client.holds.hold(&entry).unwrap()
            })
        };
        if client.reader.find("anchor").unwrap().is_none() {
            shared.lost.fetch_add(1, Ordering::Relaxed);
        }
        let Some(held) = held else { continue };
        let shares = held.clone();
        let entry = *shares.entry();
        for _ in 0..2 {
            let words = client.reader.region().words(entry.payload()).unwrap();
            let is_right = |i| words.load(i, Ordering::Relaxed) == Some(entry.sealed_at_ns);
            if !(0..words.len()).all(is_right) {
                shared.wrong.fetch_add(1, Ordering::Relaxed);
            }
            thread::yield_now();
        }
        drop(held);
        drop(shares);
        shared.reads.fetch_add(1, Ordering::Relaxed);
    }
}

/// Hold several names at once, one of them perhaps twice, and check them while they are released
/// one by one.
fn read_together(client: &TestClient, shared: &RaceState, random: &mut Random) {
    let names: Vec<String> = (0..4).map(|_| format!("n{}", random.next() % NAMES)).collect();
    let targets: Vec<_> = names.iter().map(|name| Target::Name(name)).collect();
    let more = |_| panic!("the holds are used up");
    let held = client.reader.hold_bytes(&client.holds, &targets, Length(1 << 20), more).unwrap();
    for index in 0..names.len() {
        let Some((id, payload)) = held.get(index) else { continue };
        let words = client.reader.region().words(payload).unwrap();
        let number = words.load(0, Ordering::Relaxed);
        thread::yield_now();
        let is_right = |i| words.load(i, Ordering::Relaxed) == number && number != Some(POISON);
        if !(0..words.len()).all(is_right) {
            shared.wrong.fetch_add(1, Ordering::Relaxed);
        }
        assert_eq!(held.let_go(index), Some(id));
        shared.reads.fetch_add(1, Ordering::Relaxed);
    }
}

fn fill(alias: &Alias, span: Span, value: u64) {
    let words = alias.words_mut(span).unwrap();
    for i in 0..words.len() {
        words.store(i, value, Ordering::Relaxed);
    }
}

/// An object to make: each of its words is its number.
pub(super) struct NumberedObject<'a> {
    pub(super) name: &'a str,
    pub(super) number: u64,
    pub(super) blocks: u64,
}

/// Make an object in memory that is filled with poison first.
pub(super) fn put(
    home: &mut Home,
    client: &TestClient,
    alias: &Alias,
    object: &NumberedObject<'_>,
) -> bool {
    let NumberedObject { name, number, blocks } = *object;
    let length = Length(blocks * 128);
    let extent = match home.grant(client.slot, length, length) {
        Ok(extent) => extent,
        Err(StoreError::OutOfMemory { .. }) => return false,
        Err(error) => panic!("{error}"),
    };
    fill(alias, extent, POISON);
    let primary = Span::new(extent.offset, length);
    fill(alias, primary, number);
    match home.seal(client.slot, &SealRequest::bytes(primary, length, Some(name)), number) {
        Ok(_) => {}
        Err(StoreError::TooManyObjects { .. }) => {
            home.release(client.slot, &[extent]).unwrap();
            return false;
        }
        Err(error) => panic!("{error}"),
    }
    let left = Span::between(primary.end().unwrap(), extent.end().unwrap()).unwrap();
    if !left.is_empty() {
        home.release(client.slot, &[left]).unwrap();
    }
    true
}

#[test]
fn what_is_held_does_not_change_while_the_home_reuses_memory() {
    let options = RegionOptions { capacity: Length(16 << 12), grants_max: 64, ..small() };
    let world = TestRegion::new(options);
    let mut home = world.create();
    let writer = TestClient::join(&world, &mut home).unwrap();
    let alias = writer.reader.region().alias(home.layout().heap).unwrap();
    assert!(put(
        &mut home,
        &writer,
        &alias,
        &NumberedObject { name: "anchor", number: 1, blocks: 1 }
    ));
    let shared = Arc::new(RaceState::default());
    // Two clients; the threads of the second share its holds.
    let clients: Vec<Arc<TestClient>> =
        (0..2).map(|_| Arc::new(TestClient::join(&world, &mut home).unwrap())).collect();
    let readers: Vec<_> = (0..READERS)
        .map(|i| {
            let (client, shared) = (Arc::clone(&clients[i.min(1)]), Arc::clone(&shared));
            thread::spawn(move || read(&client, &shared, i as u64))
        })
        .collect();

    let mut random = Random::new(99);
    let (mut made, mut retained_by_holds) = (0, 0u64);
    for round in 0..OBJECTS * 4 {
        let name = format!("n{}", random.next() % NAMES);
        match home.delete(Target::Name(&name)) {
            Ok(deleted) => retained_by_holds += u64::from(!deleted.freed_now),
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        let object = NumberedObject { name: &name, number: round + 2, blocks: 1 + round % 40 };
        made += u64::from(put(&mut home, &writer, &alias, &object));
        home.reclaim().unwrap();
        if made >= OBJECTS {
            break;
        }
    }
    for _ in 0..WAITS_MAX {
        if shared.reads.load(Ordering::Relaxed) >= READS_MIN {
            break;
        }
        thread::yield_now();
    }
    shared.is_over.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
    assert_eq!(shared.wrong.load(Ordering::Relaxed), 0, "held objects changed");
    assert_eq!(shared.lost.load(Ordering::Relaxed), 0, "a name that was there was not found");
    assert!(made >= OBJECTS / 2, "only {made} objects were made");
    assert!(shared.reads.load(Ordering::Relaxed) >= READS_MIN);
    home.reclaim().unwrap();
    assert!(!home.has_retiring(), "{retained_by_holds} were kept by holds");
    home.check().unwrap();
}

/// Two threads that do their halves of a round at the same moment.
struct Lockstep {
    arrived: [AtomicU64; 2],
}

impl Lockstep {
    /// Wait until the other thread is in round `round` too.
    fn meet(&self, me: usize, round: u64) {
        self.arrived[me].store(round, Ordering::Release);
        for spins in 0..WAITS_MAX {
            if self.arrived[1 - me].load(Ordering::Acquire) >= round {
                return;
            }
            if spins % 256 == 255 {
                thread::yield_now();
            }
        }
        panic!("the other thread did not come to round {round}");
    }
}

#[test]
fn hold_and_delete_at_the_same_moment_never_both_win() {
    const ROUNDS: u64 = 20_000;
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = Arc::new(TestClient::join(&world, &mut home).unwrap());
    let extent = home.grant(client.slot, Length(128), Length(128)).unwrap();
    let anchor = SealRequest::bytes(part(extent, 0, 128), Length(0), None);
    home.seal(client.slot, &anchor, 0).unwrap();
    let step = Arc::new(Lockstep { arrived: Default::default() });
    // The object of a round, and the result of the hold: 1 held, 2 not.
    let (made, fate) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let reader = {
        let (client, step) = (Arc::clone(&client), Arc::clone(&step));
        let (made, fate) = (Arc::clone(&made), Arc::clone(&fate));
        thread::spawn(move || {
            let uid = client.reader.uid();
            for round in 0..ROUNDS {
                step.meet(0, 3 * round + 1);
                let id = ObjectId { hi: uid.0, lo: made.load(Ordering::Acquire) };
                let entry = client.reader.by_id(id).unwrap().unwrap();
                step.meet(0, 3 * round + 2);
                let held = client.holds.hold(&entry).unwrap();
                fate.store(if held.is_some() { 1 } else { 2 }, Ordering::Release);
                step.meet(0, 3 * round + 3);
                drop(held);
            }
        })
    };
    let mut outcomes = [0u64; 2];
    for round in 0..ROUNDS {
        home.reclaim().unwrap();
        // The object shares the block of the anchor, so that nothing else has to be done.
        let id = home.seal(client.slot, &anchor, 0).unwrap();
        made.store(id.lo, Ordering::Release);
        step.meet(1, 3 * round + 1);
        step.meet(1, 3 * round + 2);
        let freed_now = home.delete(Target::Id(id)).unwrap().freed_now;
        step.meet(1, 3 * round + 3);
        let is_held = fate.load(Ordering::Acquire) == 1;
        assert!(!(is_held && freed_now), "round {round}: held, and freed");
        outcomes[usize::from(is_held)] += 1;
    }
    reader.join().unwrap();
    home.reclaim().unwrap();
    assert!(!home.has_retiring());
    home.check().unwrap();
    assert_eq!(outcomes.iter().sum::<u64>(), ROUNDS);
}
