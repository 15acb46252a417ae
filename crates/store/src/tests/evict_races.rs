//! Readers in threads against a home that evicts all the time, and overwrites evicted bytes at
//! once: no byte that a reader holds may change.

use std::sync::Arc;
use std::thread;

use farrow_memory::Length;
use farrow_memory::sync::Ordering;
use farrow_testkit::random::Random;

use super::poison;
use super::races::{NAMES, NumberedObject, READS_MIN, RaceState, WAITS_MAX, put, read};
use super::support::{TestClient, TestRegion, small};
use crate::{Lru, Need, RegionOptions, Target, UseStamps};

const READERS: usize = 4;
/// Objects made, of which all but the last few are evicted.
const OBJECTS: u64 = 6_000;

#[test]
fn what_is_held_does_not_change_while_the_home_evicts() {
    poison::turn_on();
    let options = RegionOptions { capacity: Length(16 << 12), grants_max: 64, ..small() };
    let world = TestRegion::new(options);
    let mut home = world.create();
    let writer = TestClient::join(&world, &mut home).unwrap();
    let alias = writer.reader.region().alias(home.layout().heap).unwrap();
    let uses = UseStamps::new(writer.reader.region()).unwrap();
    assert!(put(
        &mut home,
        &writer,
        &alias,
        &NumberedObject { name: "anchor", number: 1, blocks: 1 }
    ));
    home.pin(Target::Name("anchor"), true).unwrap();
    let shared = Arc::new(RaceState::default());
    // Three clients; the threads of the last share its holds.
    let clients: Vec<Arc<TestClient>> =
        (0..3).map(|_| Arc::new(TestClient::join(&world, &mut home).unwrap())).collect();
    let readers: Vec<_> = (0..READERS)
        .map(|i| {
            let (client, shared) = (Arc::clone(&clients[i.min(2)]), Arc::clone(&shared));
            thread::spawn(move || read(&client, &shared, i as u64))
        })
        .collect();

    let mut random = Random::new(99);
    let (mut made, mut evicted) = (0, 0);
    for round in 0..OBJECTS * 8 {
        let name = format!("n{}", random.next() % NAMES);
        let blocks = 1 + round % 40;
        home.set_time(round + 2);
        let need = match home.find(Target::Name(&name)) {
            Ok(entry) if round % 3 == 0 => {
                uses.touch(entry.id.slot(), round, 0);
                Need::Bytes(Length(128 * blocks))
            }
            Ok(_) => Need::Bytes(Length(1)),
            Err(_) => Need::Run(Length(128 * blocks).round_up(4096).unwrap()),
        };
        evicted += home.evict_for(&Lru, need).unwrap().objects;
        if home.find(Target::Name(&name)).is_err() {
            let object = NumberedObject { name: &name, number: round + 2, blocks };
            made += u64::from(put(&mut home, &writer, &alias, &object));
        }
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
    assert_eq!(shared.lost.load(Ordering::Relaxed), 0, "a pinned object was not found");
    assert!(made >= OBJECTS / 2 && evicted > OBJECTS as u32 / 4, "{made} made, {evicted} evicted");
    assert!(shared.reads.load(Ordering::Relaxed) >= READS_MIN);
    assert!(!home.has_retiring(), "an eviction never leaves anything behind");
    home.check().unwrap();
}

/// The canary of the test above: a reader that continues without a hold reads poison.
#[test]
fn what_was_evicted_is_overwritten_at_once() {
    poison::turn_on();
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let id = client.put(&mut home, &[7; 300], None).unwrap();
    let entry = client.reader.by_id(id).unwrap().unwrap();
    assert_eq!(client.read(entry.payload()), [7; 300]);
    assert!(home.evict(id).unwrap().is_some());
    assert_eq!(client.read(entry.payload()), [poison::BYTE; 300]);
}
