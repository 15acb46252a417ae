//! Objects are read across machines: each node in its own network, mount and process namespace,
//! with certificates. Before, a node reported objects of another node as unreachable.
//!
//! Needs root and `ip`: prints a message without them, and fails with `FARROW_NETNS=require`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::time::{Duration, Instant};

use common::apart::Apart;
use common::netns::required;
use common::nodes;
use common::{PATIENCE, bytes_of, wait_for};
use farrow::error::NodeUnreachable;
use farrow::{Client, Error, ObjectOptions, Value};

const NODES: &[&str] = &["--lease-ms", "1000", "--no-prepare"];
const NOW: Duration = Duration::ZERO;

/// Three machines, each of which knows the addresses of the others.
fn machines() -> Option<Apart> {
    let apart = required(Apart::start(3, "32MiB", NODES))?;
    for number in 0..3 {
        nodes::wait_for(&apart.client(number), |members| {
            let others = members.nodes.iter().filter(|node| !node.is_own);
            others.filter(|node| node.fabric == "net+TLS").count() == 2
        });
    }
    Some(apart)
}

fn put(client: &Client, name: &str, seed: u64, length: usize) {
    client.put(&Value::Bytes(&bytes_of(seed, length)), Some(name)).unwrap();
}

fn get(client: &Client, name: &str) -> Result<Vec<u8>, Error> {
    client.get(&name.into(), NOW)?.view().map(|view| view.to_vec())
}

#[test]
fn objects_are_read_and_deleted_across_machines() {
    let Some(apart) = machines() else {
        return;
    };
    let clients: Vec<Client> = (0..3).map(|number| apart.client(number)).collect();
    // Small ones come with the answer, large ones behind it.
    let lengths = [1, 1000, 60_000, 70_000, 1 << 20, 5_000_001];
    for (number, length) in lengths.into_iter().enumerate() {
        let (home, name) = (&clients[number % 3], format!("{length}"));
        put(home, &name, number as u64, length);
        for client in &clients {
            assert!(get(client, &name).unwrap() == bytes_of(number as u64, length), "{name}");
            assert!(client.contains(&name.as_str().into()).unwrap());
        }
        // By a node that has a copy, and nobody finds it any more.
        clients[(number + 1) % 3].delete(&[name.as_str().into()]).unwrap();
        for client in &clients {
            assert!(matches!(get(client, &name), Err(Error::NotFound { .. })), "{name}");
        }
    }
    for client in &clients {
        let is_empty = || (client.stats().unwrap().node.used == 0).then_some(());
        assert!(wait_for("memory comes back", is_empty).is_some());
    }
}

#[test]
fn a_machine_that_is_lost_takes_its_objects_along_and_nothing_else() {
    let Some(mut apart) = machines() else {
        return;
    };
    let (a, b) = (apart.client(0), apart.client(1));
    let c = apart.client(2);
    put(&c, "held", 1, 300_000);
    put(&c, "never read", 2, 300_000);
    put(&b, "of b", 3, 300_000);
    let held = a.get(&"held".into(), NOW).unwrap();
    assert!(get(&a, "of b").unwrap() == bytes_of(3, 300_000));
    drop(c);
    apart.kill9(2);
    let began = Instant::now();
    // At first by its connection, then by its lease.
    for _ in 0..2 {
        match get(&a, "never read") {
            Err(
                Error::NodeLost { node, .. } | Error::NodeUnreachable(NodeUnreachable { node, .. }),
            ) => {
                assert_eq!(node, "c");
            }
            other => panic!("{other:?}"),
        }
        nodes::wait_for(&a, |members| members.find("c").is_some_and(|c| !c.is_member()));
    }
    assert!(began.elapsed() < PATIENCE);
    assert!(held.view().unwrap().to_vec() == bytes_of(1, 300_000), "what is held stays");
    assert!(get(&a, "of b").unwrap() == bytes_of(3, 300_000));
    a.delete(&["of b".into()]).unwrap();
    assert!(get(&b, "of b").is_err());
}

/// Regression: each client that had put something on another machine left its slot there occupied.
#[test]
fn clients_that_put_on_another_machine_leave_nothing_there() {
    let Some(apart) = machines() else {
        return;
    };
    let there = apart.client(1);
    let used_there = there.stats().unwrap().node.clients;
    for turn in 0..3 {
        let client = apart.client(0);
        let (bytes, name) = (bytes_of(turn, 200_000), format!("from a {turn}"));
        let id = client.put_on("b", &Value::Bytes(&bytes), &named(&name)).unwrap();
        let batch = [(Value::Bytes(&bytes), ObjectOptions::default())];
        client.put_many_on("b", &batch).unwrap();
        assert!(get(&there, &name).unwrap() == bytes);
        assert_eq!(there.get(&id.into(), NOW).unwrap().id(), id, "it is an object of that node");
        assert!(matches!(
            client.put_on("b", &Value::Bytes(&bytes), &named(&name)),
            Err(Error::AlreadyExists { .. })
        ));
    }
    let is_as_before = || {
        let stats = there.stats().unwrap().node;
        (stats.clients == used_there && stats.holds == 0).then_some(())
    };
    assert!(wait_for("the places come back", is_as_before).is_some(), "{:?}", there.stats());
    let home = apart.client(0);
    let is_empty = || (home.stats().unwrap().node.used == 0).then_some(());
    assert!(wait_for("what was staged is gone", is_empty).is_some());
    // Names of clients that ended are free, also after the end of the node that carried them.
    let writer = home.create_on("b", 100, &named("never sealed")).unwrap();
    assert!(matches!(
        there.put(&Value::Bytes(b"x"), Some("never sealed")),
        Err(Error::AlreadyExists { .. })
    ));
    drop(writer);
    let is_free = || there.put(&Value::Bytes(b"x"), Some("never sealed")).is_ok().then_some(());
    assert!(wait_for("the name is free", is_free).is_some());
}

fn named(name: &str) -> ObjectOptions<'_> {
    ObjectOptions::named(Some(name))
}
