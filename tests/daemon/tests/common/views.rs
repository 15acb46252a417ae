//! Agreement between nodes, and calls that must end by their deadlines.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use farrow::{Client, ConnectOptions, Error, Members, Value};

use super::nodes::DaemonNodes;
use super::{Daemon, PATIENCE, bytes_of};

const NOW: Duration = Duration::ZERO;
/// Time that a client gives each of its calls, and what a busy machine adds to it.
pub const CALL: Duration = Duration::from_secs(5);
pub const GRACE: Duration = Duration::from_secs(5);

/// A client whose calls end by [`CALL`].
pub fn hasty(daemon: &Daemon) -> Client {
    let options = ConnectOptions { timeout: CALL, ..ConnectOptions::at(&daemon.socket) };
    Client::connect(&options).unwrap()
}

/// Fails with a description if a call exceeds its deadline.
pub fn by_its_deadline<T>(what: &str, ask: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let answer = ask();
    assert!(begin.elapsed() < CALL + GRACE, "{what} took {:?}", begin.elapsed());
    answer
}

/// A place at a node, as soon as it is reached.
pub fn at_in_time(client: &Client, node: &str) -> Client {
    let until = Instant::now() + PATIENCE;
    loop {
        match by_its_deadline("a place at a node", || client.at(node)) {
            Ok(client) => return client,
            Err(error) => assert!(Instant::now() < until, "{node}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Puts until it works; says how it failed in the end if it never does.
pub fn put_in_time(client: &Client, name: &str, seed: u64) {
    let until = Instant::now() + PATIENCE;
    let bytes = bytes_of(seed, 10_000);
    loop {
        let put = by_its_deadline("put", || client.put(&Value::Bytes(&bytes), Some(name)));
        match put {
            Ok(_) => return,
            // Put by a try that got no answer, or its name is still in flight for that.
            Err(Error::AlreadyExists { .. }) if client.contains(&name.into()).unwrap_or(false) => {
                return assert_there(client, name, seed);
            }
            Err(error) => assert!(Instant::now() < until, "{name}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Puts under one of several names until one works: while two members do not reach each other,
/// names that one of them looks after may have to wait. The name that did.
pub fn put_some_in_time(client: &Client, prefix: &str, seed: u64) -> String {
    let until = Instant::now() + PATIENCE;
    let bytes = bytes_of(seed, 10_000);
    for number in 0_u32.. {
        let name = format!("{prefix} {number}");
        match by_its_deadline("put", || client.put(&Value::Bytes(&bytes), Some(&name))) {
            Ok(_) => return name,
            Err(error) => assert!(Instant::now() < until, "{name}: {error}"),
        }
    }
    unreachable!("numbers do not end before time does")
}

pub fn assert_there(client: &Client, name: &str, seed: u64) {
    let until = Instant::now() + PATIENCE;
    let object = loop {
        match by_its_deadline("get", || client.get(&name.into(), NOW)) {
            Ok(object) => break object,
            // To say that it is nowhere would be wrong, to say that a node is not reached may be
            // right.
            Err(error @ Error::NotFound { .. }) => panic!("{name}: {error}"),
            Err(error) => assert!(Instant::now() < until, "{name}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let view = object.view().unwrap();
    if view[..] != bytes_of(seed, 10_000)[..] {
        // A number in place of ten thousand.
        let like = (0..100).find(|other| view[..] == bytes_of(*other, view.len())[..]);
        panic!("{name} of seed {seed}: {} wrong bytes, those of {like:?}", view.len());
    }
}

/// All see all, with leases; the views are one.
pub fn assert_one_view(nodes: &DaemonNodes) {
    let count = nodes.daemons.len();
    nodes.settle(count);
    let until = Instant::now() + PATIENCE;
    loop {
        let member_lists: Vec<_> = (0..count).map(|n| nodes.client(n).members().unwrap()).collect();
        let first = &member_lists[0];
        let is_one = member_lists.iter().all(|one| {
            let lives = |members: &Members| -> Vec<_> {
                members.nodes.iter().map(|node| (node.number, node.incarnation)).collect()
            };
            (one.cluster, one.epoch, lives(one)) == (first.cluster, first.epoch, lives(first))
        });
        if is_one {
            return;
        }
        assert!(Instant::now() < until, "{member_lists:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// No name is in the memory of two nodes.
pub fn owners(nodes: &DaemonNodes) -> BTreeMap<String, String> {
    let client = nodes.client(0);
    let mut owners = BTreeMap::new();
    for node in &nodes.names {
        for listed in at_in_time(&client, node).list("").unwrap() {
            if let Some(name) = listed.name {
                let other = owners.insert(name.clone(), node.clone());
                assert_eq!(other, None, "{name} is on {node} too");
            }
        }
    }
    owners
}
