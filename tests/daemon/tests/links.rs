//! Links between nodes that are slow, lose data, break in one or both directions, and recover.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::nodes::wait_for;
use common::proxy::Linked;
use common::views::{
    assert_one_view, assert_there, at_in_time, by_its_deadline, hasty, owners, put_in_time,
    put_some_in_time,
};
use common::{PATIENCE, SeededDice, assert_balanced, bytes_of};
use farrow::{Client, Error, Reach, Value};

const NOW: Duration = Duration::ZERO;
/// A busy machine takes a part of it for itself.
const LEASE_MS: u64 = 1000;
const NODES: &[&str] = &["--lease-ms", "1000", "--no-prepare"];
fn linked(count: usize) -> Linked {
    Linked::start(count, "32MiB", NODES)
}

#[test]
fn a_hundred_milliseconds_each_way_slow_all_down_and_break_nothing() {
    let linked = linked(3);
    let epoch = linked.nodes.client(0).members().unwrap().epoch;
    linked.links.set_all(|weather| weather.delay = Duration::from_millis(100));
    let clients: Vec<_> = (0..3).map(|n| hasty(&linked.nodes.daemons[n])).collect();
    for round in 0..6_u64 {
        let (from, home) = (round as usize % 3, (round as usize / 2 + 1) % 3);
        let name = format!("slow {round}");
        put_in_time(&at_in_time(&clients[from], &linked.nodes.names[home]), &name, round);
        for client in &clients {
            assert_there(client, &name, round);
        }
    }
    let (a, b) = (&clients[0], &clients[1]);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| a.get(&"late".into(), PATIENCE).unwrap());
        put_in_time(b, "late", 77);
        waiting.join().unwrap();
        for client in &clients {
            scope.spawn(|| client.barrier("all", 3, PATIENCE).unwrap());
        }
    });
    a.delete(&["late".into()]).unwrap();
    assert!(!b.contains(&"late".into()).unwrap());
    // Only slow: no node was excluded.
    let members = a.members().unwrap();
    assert_eq!((members.epoch, members.has_lease), (epoch, true), "{members:?}");
}

#[test]
fn a_node_that_is_cut_off_is_lost_for_the_others_and_comes_back_with_what_it_has() {
    let linked = linked(3);
    let clients: Vec<_> = (0..3).map(|n| hasty(&linked.nodes.daemons[n])).collect();
    let (a, b, c) = (&clients[0], &clients[1], &clients[2]);
    put_in_time(b, "on b", 1);
    put_in_time(c, "on c", 2);
    let far = a.at("c").unwrap();
    let id = far.put(&Value::Bytes(&bytes_of(3, 10_000)), None).unwrap();
    let held = a.get(&"on c".into(), NOW).unwrap().view().unwrap();
    linked.links.cut_off(2, true);
    for client in [a, b] {
        wait_for(client, |members| members.find("c").unwrap().reach == Reach::Lost);
        wait_for(client, |members| members.has_lease);
    }
    wait_for(c, |members| !members.has_lease);
    // The majority creates names, the other side rejects them.
    for (number, client) in [a, b].into_iter().enumerate() {
        put_in_time(client, &format!("majority {number}"), number as u64);
    }
    let late = by_its_deadline("a put of who is cut off", || {
        c.put(&Value::Bytes(b"minority"), Some("minority"))
    });
    assert!(matches!(&late, Err(Error::CutOff { node, .. }) if node == "c"), "{late:?}");
    // Operations without agreement keep working: remote, unnamed and held objects.
    assert_there(a, "on b", 1);
    assert_there(b, "majority 0", 0);
    assert_there(c, "on c", 2);
    let alone = c.put(&Value::Bytes(b"no name"), None).unwrap();
    assert_eq!(&held[..], &bytes_of(2, 10_000)[..]);
    for target in ["on c".into(), id.into()] {
        let found = by_its_deadline("get of a lost object", || a.get(&target, NOW));
        assert!(matches!(&found, Err(Error::NodeLost { node, .. }) if node == "c"), "{found:?}");
    }
    let made = by_its_deadline("create at a lost node", || far.create(1 << 20, Some("far")));
    assert!(matches!(&made, Err(Error::NodeLost { node, .. }) if node == "c"), "{made:?}");
    // Names in the memory of a lost node stay taken.
    let taken = by_its_deadline("put", || a.put(&Value::Bytes(b"x"), Some("on c")));
    assert!(matches!(taken, Err(Error::AlreadyExists { .. })), "{taken:?}");
    linked.links.cut_off(2, false);
    assert_one_view(&linked.nodes);
    for client in &clients {
        for (name, seed) in [("on b", 1), ("on c", 2), ("majority 0", 0), ("majority 1", 1)] {
            assert_there(client, name, seed);
        }
        assert_eq!(&client.get(&alone.into(), NOW).unwrap().view().unwrap()[..], b"no name");
    }
    put_in_time(c, "minority", 9);
    put_in_time(&far, "far", 10);
    assert_eq!(owners(&linked.nodes).get("far").map(String::as_str), Some("c"));
}

/// Messages are lost in one direction between two nodes. A node that reaches both keeps working,
/// and no name is created twice.
#[test]
fn a_link_that_works_one_way_hurts_no_third_node_and_no_name() {
    for (from, to) in [(0, 2), (2, 0)] {
        let linked = linked(3);
        let clients: Vec<_> = (0..3).map(|n| hasty(&linked.nodes.daemons[n])).collect();
        put_in_time(&clients[1], "before", 1);
        linked.links.set(from, to, |weather| weather.is_cut = true);
        let begin = Instant::now();
        let mut round = 0;
        // Longer than 2 leases, whatever the nodes make of it.
        while begin.elapsed() < Duration::from_millis(4 * LEASE_MS) {
            race(&clients, &format!("one way {round}"));
            assert_there(&clients[1], "before", 1);
            round += 1;
        }
        // Two nodes reach each other and the third: names are made.
        let meanwhile = put_some_in_time(&clients[1], "meanwhile", 2);
        linked.links.set(from, to, |weather| weather.is_cut = false);
        assert_one_view(&linked.nodes);
        for client in &clients {
            assert_there(client, "before", 1);
            assert_there(client, &meanwhile, 2);
        }
        owners(&linked.nodes);
    }
}

/// All clients put one name at once, each with other bytes; at most one succeeds.
fn race(clients: &[Client], name: &str) -> Option<usize> {
    let wins: Vec<bool> = std::thread::scope(|scope| {
        let threads: Vec<_> = (clients.iter().enumerate())
            .map(|(number, client)| {
                scope.spawn(move || {
                    let value = [number as u8; 64];
                    let put = || client.put(&Value::Bytes(&value), Some(name));
                    match by_its_deadline("a raced put", put) {
                        Ok(_) => true,
                        Err(
                            Error::AlreadyExists { .. }
                            | Error::CutOff { .. }
                            | Error::NodeLost { .. }
                            | Error::Timeout { .. }
                            | Error::Disconnected { .. },
                        ) => false,
                        Err(error) => panic!("{name}: {error}"),
                    }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(wins.iter().filter(|won| **won).count() <= 1, "{name}: {wins:?}");
    wins.iter().position(|won| *won)
}

#[test]
fn a_name_raced_from_all_sides_of_a_partition_has_one_owner() {
    let linked = linked(5);
    let clients: Vec<_> = (0..5).map(|n| hasty(&linked.nodes.daemons[n])).collect();
    let mut dice = SeededDice(0x9ace);
    let mut winners = BTreeMap::new();
    for round in 0..6 {
        // Two or one against the rest, cut while the race goes on.
        let (one, other) = (dice.roll(5) as usize, dice.roll(5) as usize);
        let is_cut = round % 3 != 2;
        let links = linked.links.clone();
        let pause = Duration::from_millis(dice.roll(30));
        let cutter = std::thread::spawn(move || {
            std::thread::sleep(pause);
            for inside in [one, other] {
                for outside in (0..5).filter(|node| *node != one && *node != other) {
                    links.set(inside, outside, |weather| weather.is_cut = is_cut);
                    links.set(outside, inside, |weather| weather.is_cut = is_cut);
                }
            }
        });
        for half in ["x", "y"] {
            let name = format!("race {round} {half}");
            if let Some(winner) = race(&clients, &name) {
                winners.insert(name, winner);
            }
        }
        cutter.join().unwrap();
        if round % 3 == 2 {
            linked.links.set_all(|weather| weather.is_cut = false);
            assert_one_view(&linked.nodes);
        }
    }
    linked.links.set_all(|weather| weather.is_cut = false);
    assert_one_view(&linked.nodes);
    owners(&linked.nodes);
    assert!(winners.len() > 2, "too few had a winner: {winners:?}");
    for (name, winner) in winners {
        for client in &clients {
            let object = client.get(&name.as_str().into(), NOW).unwrap();
            assert_eq!(&object.view().unwrap()[..], &[winner as u8; 64], "{name}");
        }
    }
}

#[test]
fn a_link_that_flaps_and_loses_costs_time_only() {
    let linked = linked(3);
    let clients: Vec<_> = (0..3).map(|n| hasty(&linked.nodes.daemons[n])).collect();
    linked.links.set_all(|weather| {
        (weather.lost_per_mille, weather.reset_per_mille) = (10, 2);
        weather.delay = Duration::from_millis(2);
    });
    let mut dice = SeededDice(0xf1a9);
    for round in 0..24_u64 {
        linked.links.cut_off(2, round % 2 == 0);
        std::thread::sleep(Duration::from_millis(50 + dice.roll(LEASE_MS / 2)));
        // The two others always reach each other.
        let (from, home) = (dice.roll(2) as usize, dice.roll(2) as usize);
        let name = format!("flap {round}");
        put_in_time(&at_in_time(&clients[from], &linked.nodes.names[home]), &name, round);
        assert_there(&clients[1 - from], &name, round);
        // And the third may fail, by its deadline.
        let far = by_its_deadline("a put through a flapping link", || {
            let far = clients[2].at("a")?;
            far.put(&Value::Bytes(&bytes_of(round, 10_000)), Some(&format!("far {round}")))
        });
        if let Err(error) = far {
            let is_expected = matches!(
                error,
                Error::CutOff { .. }
                    | Error::NodeLost { .. }
                    | Error::Timeout { .. }
                    | Error::Disconnected { .. }
                    | Error::AlreadyExists { .. }
            );
            assert!(is_expected, "{error:?}");
        }
    }
    linked.links.set_all(|weather| *weather = Default::default());
    assert_one_view(&linked.nodes);
    for (name, node) in owners(&linked.nodes) {
        let round: u64 = name.split(' ').nth(1).unwrap().parse().unwrap();
        for client in &clients {
            assert_there(client, &name, round);
        }
        assert!(["a", "b"].contains(&node.as_str()), "{name} is on {node}");
    }
    let count = owners(&linked.nodes).keys().filter(|name| name.starts_with("flap")).count();
    assert_eq!(count, 24);
    for node in &linked.nodes.names {
        assert_balanced(&at_in_time(&clients[0], node).stats().unwrap());
    }
}

/// A client whose connection to another node ended looked whether its seal had been carried out,
/// found nothing, and wrote the next object to the same memory. The seal was still under way: it
/// arrived, and readers of the first object saw the bytes of the second.
#[test]
fn a_seal_that_arrives_after_its_connection_ended_keeps_its_bytes() {
    // Long leases: nobody is lost meanwhile. Whether a name needs a question first is by chance.
    let linked = Linked::start(2, "64MiB", &["--lease-ms", "20000", "--no-prepare"]);
    let far: Vec<Client> =
        (0..10).map(|_| at_in_time(&hasty(&linked.nodes.daemons[1]), "a")).collect();
    let lengths = [10_000, 100_000];
    for (number, client) in far.iter().enumerate() {
        // So that it needs no grant later.
        put_in_time(client, &format!("small {number}"), 1);
        let until = Instant::now() + PATIENCE;
        while let Err(error) = client.put(&Value::Bytes(&[1; 100_000]), None) {
            assert!(Instant::now() < until, "{error}");
        }
    }
    // Less than it takes to find out that nothing comes.
    linked.links.set(1, 0, |weather| weather.delay = Duration::from_millis(250));
    std::thread::scope(|scope| {
        for (number, client) in far.iter().enumerate() {
            scope.spawn(move || {
                let bytes = bytes_of(number as u64, lengths[number % 2]);
                let name = format!("first {number}");
                let put = || client.put(&Value::Bytes(&bytes), Some(&name));
                // On a slow machine its answer may have come, or been found.
                let put = by_its_deadline("a put whose connection ends", put);
                assert!(!matches!(put, Err(Error::AlreadyExists { .. })), "{put:?}");
            });
        }
        std::thread::sleep(Duration::from_millis(100));
        linked.links.hang_up(1);
        linked.links.set(1, 0, |weather| weather.delay = Duration::ZERO);
    });
    for (number, client) in far.iter().enumerate() {
        let bytes = bytes_of(100 + number as u64, lengths[number % 2]);
        let until = Instant::now() + PATIENCE;
        let name = format!("second {number}");
        while let Err(error) = client.put(&Value::Bytes(&bytes), Some(&name)) {
            assert!(Instant::now() < until, "{error}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let reader = linked.nodes.client(0);
    for number in 0..far.len() {
        for (name, seed) in [("first", number as u64), ("second", 100 + number as u64)] {
            let found = reader.get(&format!("{name} {number}").as_str().into(), NOW);
            let is_missing = matches!(found, Err(Error::NotFound { .. }));
            if name == "first" && is_missing {
                continue;
            }
            let right = bytes_of(seed, lengths[number % 2]);
            assert!(found.unwrap().view().unwrap()[..] == right[..], "{name} {number} is torn");
        }
    }
    drop(far);
    let balanced = || assert_balanced(&reader.stats().unwrap());
    balanced();
    let until = Instant::now() + PATIENCE;
    loop {
        let node = reader.stats().unwrap().node;
        if (node.clients, node.granted, node.retiring) == (1, 0, 0) {
            break;
        }
        assert!(Instant::now() < until, "{node:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    balanced();
}

/// A writer makes its pages read-only before it asks for the seal. When that was lost with the
/// connection, they were handed to the next writer as they were, and writing to them faulted.
#[test]
fn pages_of_a_seal_that_was_lost_can_be_written_again() {
    let linked = Linked::start(2, "64MiB", &["--lease-ms", "20000", "--no-prepare"]);
    let far = at_in_time(&hasty(&linked.nodes.daemons[1]), "a");
    let bytes = bytes_of(1, 10_000);
    // So that no grant is needed later.
    far.create(10_000, None).unwrap().abort();
    for round in 0..3 {
        let writer = far.create(10_000, Some(&format!("lost {round}"))).unwrap();
        writer.memory().write_at(0, &bytes).unwrap();
        linked.links.set(1, 0, |weather| weather.is_cut = true);
        std::thread::scope(|scope| {
            let seal = scope.spawn(|| by_its_deadline("a seal that is lost", || writer.seal()));
            std::thread::sleep(Duration::from_millis(100));
            linked.links.reset();
            linked.links.set(1, 0, |weather| weather.is_cut = false);
            seal.join().unwrap().unwrap_err();
        });
        let until = Instant::now() + PATIENCE;
        while let Err(error) = far.stats() {
            assert!(Instant::now() < until, "{error}");
        }
        let writers: Vec<_> = (0..8)
            .map(|n| far.create(10_000, Some(&format!("next {round} {n}"))).unwrap())
            .collect();
        for writer in writers {
            writer.memory().write_at(0, &bytes).unwrap();
            writer.seal().unwrap();
        }
    }
    drop(far);
    let client = linked.nodes.client(0);
    let until = Instant::now() + PATIENCE;
    while client.stats().unwrap().node.granted > 0 {
        assert!(Instant::now() < until, "{:?}", client.stats().unwrap().node);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_balanced(&client.stats().unwrap());
}

/// A node does not answer but is not excluded yet: clients without a session there were told that
/// its objects do not exist, because only objects of lost nodes were considered.
#[test]
fn what_is_on_a_node_that_does_not_answer_is_not_said_to_be_nowhere() {
    let linked = Linked::start(2, "16MiB", &["--lease-ms", "20000", "--no-prepare"]);
    put_in_time(&linked.nodes.client(0), "there", 1);
    linked.links.cut_off(0, true);
    let b = hasty(&linked.nodes.daemons[1]);
    let reach = b.members().unwrap().find("a").map(|node| node.reach);
    let found = by_its_deadline("get", || b.get(&"there".into(), NOW));
    assert!(matches!(&found, Err(Error::NodeLost { node, .. }) if node == "a"), "{found:?}");
    assert_eq!(reach, Some(Reach::Live));
    let found = by_its_deadline("get", || b.get(&"nowhere".into(), NOW));
    assert!(matches!(&found, Err(Error::NotFound { .. })), "{found:?}");
    linked.links.cut_off(0, false);
    let until = Instant::now() + PATIENCE;
    while let Err(error) = b.get(&"there".into(), NOW) {
        assert!(!matches!(error, Error::NotFound { .. }) && Instant::now() < until, "{error}");
    }
}

/// The canary: names created on both sides of a cut are detected.
#[test]
#[should_panic(expected = "is on")]
fn a_name_with_two_owners_is_seen() {
    // Two clusters of one node each, which make the same name, put side by side.
    let one = Linked::start(1, "8MiB", NODES);
    let other = Linked::start(1, "8MiB", NODES);
    put_in_time(&one.nodes.client(0), "twice", 1);
    put_in_time(&other.nodes.client(0), "twice", 2);
    let mut owners = owners(&one.nodes);
    for (name, node) in common::views::owners(&other.nodes) {
        assert_eq!(owners.insert(name.clone(), node.clone()), None, "{name} is on {node} too");
    }
}
