//! kill -9 of clients and of the daemon at random moments: nothing sealed is lost, no byte leaks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::{
    Daemon, PATIENCE, SeededDice, assert_balanced, bytes_of, client_at, this_test_again, wait_for,
};
use farrow::{Client, Error, ObjectId, ObjectKey, Value};
use farrow_memory::sync;
use farrow_wire::link::Link;
use farrow_wire::{Hello, PROTOCOL_VERSION, ReplyBody, RequestBody, SealItem};

/// Kills in one run; the promise is tested with 200 and more.
const KILLS: u64 = 220;

/// Set in the environment of a child that plays a client.
const CHILD_SOCKET: &str = "FARROW_TEST_CHILD_SOCKET";
const CHILD_SEED: &str = "FARROW_TEST_CHILD_SEED";

/// Not a test by itself: what a child process runs until it is killed. Says on standard output
/// what it sealed, once it is sealed.
#[test]
fn child_client() {
    let Ok(socket) = std::env::var(CHILD_SOCKET) else {
        return;
    };
    let seed: u64 = std::env::var(CHILD_SEED).unwrap().parse().unwrap();
    let mut dice = SeededDice(seed | 1);
    let client = client_at(Path::new(&socket));
    let out = std::io::stdout();
    let mut retained = Vec::new();
    for number in 0.. {
        let name = format!("c{seed}-{number}");
        let length = [0, 1, 100, 5_000, 70_000, 300_000][dice.roll(6) as usize];
        let bytes = bytes_of(seed + number, length);
        match dice.roll(5) {
            0 => {
                if let Ok(writer) = client.create(length as u64, Some(&name)) {
                    writer.memory().write_at(0, &bytes).unwrap();
                    if dice.roll(3) == 0 {
                        retained.push(writer);
                    } else if writer.seal().is_ok() {
                        writeln!(out.lock(), "\nsealed {name} {} {length}", seed + number).unwrap();
                    }
                }
            }
            1 => drop(client.put(&Value::Bytes(&bytes), None)),
            2 => {
                let listed = client.list("").unwrap();
                if !listed.is_empty() {
                    let one = listed[dice.roll(listed.len() as u64) as usize].id;
                    if let Ok(object) = client.get(&one.into(), Duration::ZERO) {
                        std::mem::forget(object);
                    }
                }
            }
            _ => {
                if client.put(&Value::Bytes(&bytes), Some(&name)).is_ok() {
                    writeln!(out.lock(), "\nsealed {name} {} {length}", seed + number).unwrap();
                }
            }
        }
        retained.truncate(3);
    }
}

fn child(socket: &Path, seed: u64) -> Child {
    this_test_again("child_client")
        .env(CHILD_SOCKET, socket)
        .env(CHILD_SEED, seed.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// What the child said it sealed: name to (seed, length).
fn said(child: &mut Child) -> BTreeMap<String, (u64, usize)> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut sealed = BTreeMap::new();
    for line in lines.map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["sealed", name, seed, length] = words[..] {
            // The last line may be cut off by the kill.
            if let (Ok(seed), Ok(length)) = (seed.parse(), length.parse()) {
                sealed.insert(name.to_owned(), (seed, length));
            }
        }
    }
    sealed
}

fn assert_there(client: &Client, name: &str, seed: u64, length: usize) {
    let object = client.get(&name.into(), Duration::ZERO).unwrap_or_else(|error| {
        panic!("{name} of seed {seed} is lost: {error}");
    });
    assert_eq!(&object.view().unwrap()[..], &bytes_of(seed, length)[..], "{name} has changed");
}

fn delete_all(client: &Client) {
    let all: Vec<ObjectKey> =
        client.list("").unwrap().into_iter().map(|listed| listed.id.into()).collect();
    client.delete(&all).unwrap();
}

#[test]
fn a_killed_client_leaves_its_objects_and_nothing_else() {
    let daemon = Daemon::start("64M", &["--no-prepare"]);
    let client = daemon.client();
    let mut dice = SeededDice(0x5eed);
    for round in 0..KILLS / 2 {
        let mut victim = child(&daemon.socket, round * 1_000_000 + 1);
        wait_for("the child", || (client.stats().unwrap().node.clients > 1).then_some(())).unwrap();
        std::thread::sleep(Duration::from_micros(dice.roll(20_000)));
        victim.kill().unwrap();
        let sealed = said(&mut victim);
        victim.wait().unwrap();
        wait_for("its place to come back", || {
            let node = client.stats().unwrap().node;
            (node.clients == 1 && node.retiring == 0).then_some(())
        })
        .unwrap_or_else(|| panic!("round {round}: {:?}", client.stats().unwrap()));
        let stats = client.stats().unwrap();
        assert_balanced(&stats);
        assert_eq!(stats.node.granted, 0, "round {round}: unsealed memory leaks: {stats:?}");
        assert_eq!(stats.node.holds, 0, "round {round}: holds leak");
        for (name, (seed, length)) in &sealed {
            assert_there(&client, name, *seed, *length);
        }
        delete_all(&client);
    }
    let node = client.stats().unwrap().node;
    assert_eq!(node.free, node.capacity, "every byte is back: {node:?}");
}

#[test]
fn a_killed_daemon_loses_nothing_that_is_sealed() {
    let mut daemon = Daemon::start("64M", &["--no-prepare"]);
    let client = daemon.client();
    let mut dice = SeededDice(0xfee1);
    let retained = bytes_of(7, 1 << 20);
    client.put(&Value::Bytes(&retained), Some("kept")).unwrap();
    let reader = client.get(&"kept".into(), Duration::ZERO).unwrap().view().unwrap();
    let mut sealed: BTreeMap<String, (u64, usize)> = BTreeMap::new();
    for round in 0..KILLS / 2 {
        let stop = sync::AtomicBool::new(false);
        let delay = Duration::from_micros(dice.roll(8_000));
        let fresh = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_until(&client, &stop, round));
            std::thread::sleep(delay);
            daemon.kill9();
            assert_eq!(&reader[..], &retained[..], "a reader goes on while the daemon is dead");
            stop.store(true, sync::Ordering::Relaxed);
            daemon.restart();
            writer.join().unwrap()
        });
        sealed.extend(fresh);
        // The same client finds the next daemon by itself.
        wait_for("the next daemon", || client.stats().ok())
            .unwrap_or_else(|| panic!("round {round}: no reconnection"));
        assert_balanced(&client.stats().unwrap());
        for (name, (seed, length)) in &sealed {
            assert_there(&client, name, *seed, *length);
        }
        assert_eq!(&reader[..], &retained[..]);
        if round % 8 == 7 {
            let names: Vec<ObjectKey> = sealed.keys().map(|name| name.as_str().into()).collect();
            client.delete(&names).unwrap();
            sealed.clear();
        }
    }
    drop(reader);
    delete_all(&client);
    drop(client);
    let client = daemon.client();
    wait_for("all memory", || {
        let node = client.stats().unwrap().node;
        (node.free == node.capacity).then_some(())
    })
    .unwrap_or_else(|| panic!("bytes leaked: {:?}", client.stats().unwrap()));
}

/// The successor of a killed daemon retained everything that a client had written in place in its last
/// ten seconds. An idle client sends no message, so deleted objects of it stayed in memory.
#[test]
fn deleted_objects_of_an_idle_client_are_freed_after_a_kill() {
    let mut daemon = Daemon::start("16M", &["--no-prepare"]);
    let idle = daemon.client();
    let writer = idle.create(1 << 20, Some("in place")).unwrap();
    drop(writer.memory().clone());
    writer.seal().unwrap();
    daemon.kill9();
    daemon.restart();
    let other = daemon.client();
    other.delete(&["in place".into()]).unwrap();
    wait_for("the object to go", || {
        let node = other.stats().unwrap().node;
        (node.objects_retiring == 0).then_some(())
    })
    .unwrap();
    drop(idle);
}

/// Regression: a daemon that adopted the memory of a killed one let other clients free what its creator
/// was about to hold.
#[test]
fn an_object_that_its_creator_does_not_hold_yet_outlives_a_kill_and_its_deletion() {
    let mut daemon = Daemon::start("16M", &["--no-prepare"]);
    let hello = |resume| Hello {
        version: PROTOCOL_VERSION,
        resume,
        namespace: String::new(),
        node: String::new(),
        maps_memory: true,
    };
    let deadline = || Instant::now() + PATIENCE;
    drop(daemon.client());
    // The descriptors stand for the creator's mapping.
    let (creator, welcome, mapping) =
        Link::connect(&daemon.socket, hello(None), deadline()).unwrap();
    let grant = RequestBody::Grant { min: 4096, want: 4096, wait_ms: 0 };
    let granted = creator.call(grant, deadline());
    let Ok(ReplyBody::Granted((offset, _))) = granted else { panic!("{granted:?}") };
    let seal = |at| {
        let block = (offset + at, 128);
        let item = SealItem { is_held_by_creator: true, ..SealItem::bytes(block, 128) };
        let sealed = creator.call(RequestBody::Seal { items: vec![item] }, deadline());
        let Ok(ReplyBody::Sealed(ids)) = sealed else { panic!("{sealed:?}") };
        ObjectId::from(ids[0].clone().unwrap())
    };
    let (id, next) = (seal(0), seal(128));
    daemon.kill9();
    daemon.restart();

    let other = daemon.client();
    other.delete(&[id.into()]).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(other.stats().unwrap().node.retiring, 128, "its creator may use its bytes");
    let wait_for_memory = |what| {
        let is_back = || other.stats().unwrap().node.retiring == 0;
        wait_for(what, || is_back().then_some(())).unwrap();
    };
    let resume = Some((welcome.region_uid, welcome.slot, welcome.nonce));
    let (creator, ..) = Link::connect(&daemon.socket, hello(resume), deadline()).unwrap();
    creator.call(RequestBody::ConfirmEarlier, deadline()).unwrap();
    wait_for_memory("the memory of a confirmed object");

    // A creator that never returns retains nothing once its mapping has ended.
    drop(creator);
    daemon.kill9();
    daemon.restart();
    other.delete(&[next.into()]).unwrap();
    assert_eq!(other.stats().unwrap().node.retiring, 128, "it is still mapped");
    drop(mapping);
    wait_for_memory("the memory of an object whose creator has ended");
}

/// What a client seals only to have it brought to another node was known to the daemon alone. After a
/// kill it stayed, without a name, if the client did not come back.
#[test]
fn what_was_staged_by_a_client_that_does_not_come_back_goes_after_a_kill() {
    let mut daemon = Daemon::start("16M", &["--no-prepare"]);
    let hello = Hello {
        version: PROTOCOL_VERSION,
        resume: None,
        namespace: String::new(),
        node: String::new(),
        maps_memory: true,
    };
    let deadline = || Instant::now() + PATIENCE;
    drop(daemon.client());
    // The descriptors stand for the creator's mapping.
    let (creator, _, mapping) = Link::connect(&daemon.socket, hello, deadline()).unwrap();
    let grant = RequestBody::Grant { min: 4096, want: 4096, wait_ms: 0 };
    let granted = creator.call(grant, deadline());
    let Ok(ReplyBody::Granted((offset, _))) = granted else { panic!("{granted:?}") };
    let item = SealItem {
        is_staged: true,
        is_held_by_creator: true,
        ..SealItem::bytes((offset, 4096), 4096)
    };
    let sealed = creator.call(RequestBody::Seal { items: vec![item] }, deadline());
    assert!(matches!(sealed, Ok(ReplyBody::Sealed(_))), "{sealed:?}");
    daemon.kill9();
    drop(creator);
    daemon.restart();
    let other = daemon.client();
    assert_eq!(other.stats().unwrap().node.used, 4096, "its creator is still mapped");
    drop(mapping);
    let is_free = || {
        let node = other.stats().unwrap().node;
        (node.used == 0 && node.retiring == 0).then_some(())
    };
    wait_for("the staged object of a client that has ended", is_free).unwrap();
}

/// Puts and deletes until the daemon is gone; what it returns was acknowledged.
fn write_until(
    client: &Client,
    stop: &sync::AtomicBool,
    round: u64,
) -> BTreeMap<String, (u64, usize)> {
    let mut dice = SeededDice(round.wrapping_mul(77) | 1);
    let mut sealed = BTreeMap::new();
    for number in 0.. {
        if stop.load(sync::Ordering::Relaxed) {
            break;
        }
        let seed = round * 1_000_000 + number;
        let length = [10, 3_000, 100_000][dice.roll(3) as usize];
        let name = format!("d{seed}");
        match client.put(&Value::Bytes(&bytes_of(seed, length)), Some(&name)) {
            Ok(_) => drop(sealed.insert(name, (seed, length))),
            Err(Error::OutOfMemory(_)) => break,
            // Cut off by the kill: sealed or not, the client was told that it is not known.
            Err(_) => {}
        }
        if dice.roll(4) == 0 && !sealed.is_empty() {
            let name = sealed.keys().next().unwrap().clone();
            // Asked to go: whether it did before the kill is not known.
            sealed.remove(&name);
            let _ = client.delete(&[ObjectKey::Name(name)]);
        }
    }
    sealed
}

#[test]
fn a_client_keeps_what_it_holds_while_another_deletes_it() {
    let daemon = Daemon::start("16M", &["--no-prepare"]);
    let (one, other) = (daemon.client(), daemon.client());
    let bytes = bytes_of(1, 2 << 20);
    let id = one.put(&Value::Bytes(&bytes), Some("x")).unwrap();
    let held = other.get(&id.into(), Duration::ZERO).unwrap().view().unwrap();
    one.delete(&["x".into()]).unwrap();
    assert!(matches!(other.get(&id.into(), Duration::ZERO), Err(Error::NotFound { .. })));
    // The name is free, the memory is not.
    one.put(&Value::Bytes(b"new"), Some("x")).unwrap();
    for _ in 0..20 {
        let filler = bytes_of(2, 2 << 20);
        match one.put(&Value::Bytes(&filler), None) {
            Ok(_) | Err(Error::OutOfMemory(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(&held[..], &bytes[..]);
    assert!(one.stats().unwrap().node.retiring >= 2 << 20);
    drop(held);
    wait_for("the memory to come back", || (one.stats().unwrap().node.retiring == 0).then_some(()))
        .unwrap();
    assert_balanced(&one.stats().unwrap());
}
