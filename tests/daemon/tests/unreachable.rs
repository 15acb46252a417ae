//! Nodes that cannot map each other's memory. Three of them, each in namespaces of its own, were all
//! `live`; of the same 60 names put on each, 60, 34 and 17 were accepted, `contains` was False and
//! `get` NotFound for what another had, `wait` said True of what `get` could not find, `at` said that a
//! living node was lost, and opening a huge table hung. Now a name is one in the cluster, and what
//! cannot be reached is said to be so.
//!
//! Needs root and `ip`: says so where they are not, and fails with `FARROW_NETNS=require`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use common::apart::Apart;
use common::netns::required;
use common::nodes::wait_for;
use common::views::{assert_there, by_its_deadline, hasty, put_in_time};
use common::{PATIENCE, bytes_of};
use farrow::error::NodeUnreachable;
use farrow::{Client, Error, Metadata, Reach, SchemaNode, Value};

const COUNT: usize = 3;
const NAMES: usize = 60;
const NOW: Duration = Duration::ZERO;
const NODES: &[&str] = &["--lease-ms", "1000", "--no-prepare", "--net", "off"];

fn schema() -> SchemaNode {
    let x: ArrayRef = Arc::new(Int64Array::from(Vec::<i64>::new()));
    let batch = RecordBatch::try_from_iter([("x", x)]).unwrap();
    SchemaNode::try_from(batch.schema().as_ref()).unwrap()
}

/// That a call says of a node that its memory cannot be reached, where it is and why.
fn assert_unreachable<T: std::fmt::Debug>(
    what: &str,
    of: &str,
    ask: impl FnOnce() -> Result<T, Error>,
) {
    match by_its_deadline(what, ask) {
        Err(Error::NodeUnreachable(NodeUnreachable { node, address, reason })) => {
            assert_eq!(node, of, "{what}");
            assert!(address.starts_with("10.77.0.") && address.ends_with(":7000"), "{address}");
            assert!(!reason.is_empty(), "{what}");
        }
        other => panic!("{what}: {other:?}"),
    }
}

/// Which node has each name, by the nodes' own directories; no name is on two.
fn owners(apart: &Apart) -> BTreeMap<String, String> {
    let mut owners = BTreeMap::new();
    for (number, node) in apart.names.iter().enumerate() {
        for listed in apart.client(number).list("").unwrap() {
            let Some(name) = listed.name else { continue };
            let other = owners.insert(name.clone(), node.clone());
            assert_eq!(other, None, "{name} is on {node} too");
        }
    }
    owners
}

/// All nodes put the same names at once. How many each got.
fn put_everywhere(clients: &[Client]) -> usize {
    let counts = std::thread::scope(|scope| {
        let all = clients.iter().enumerate().map(|(node, client)| {
            scope.spawn(move || {
                let mut count = 0;
                for number in 0..NAMES {
                    // Each begins elsewhere, so that all get some.
                    let name = format!("name {}", (number + node * NAMES / COUNT) % NAMES);
                    let bytes = bytes_of(node as u64, 10_000);
                    match by_its_deadline("put", || client.put(&Value::Bytes(&bytes), Some(&name)))
                    {
                        Ok(_) => count += 1,
                        Err(Error::AlreadyExists { name: taken }) => assert_eq!(taken, name),
                        Err(error) => panic!("{name} on {node}: {error}"),
                    }
                }
                count
            })
        });
        let all: Vec<_> = all.collect();
        all.into_iter().map(|one| one.join().unwrap()).collect::<Vec<usize>>()
    });
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    counts.into_iter().sum()
}

/// What each call says of an object that a has and of one that nobody has, where a cannot be reached.
fn look_from(client: &Client, name: &str) {
    let (there, nowhere) = (name.into(), "nowhere".into());
    let (one, second) = (std::slice::from_ref(&there), Duration::from_secs(1));
    assert_unreachable("get", "a", || client.get(&there, NOW));
    assert_unreachable("get with a timeout", "a", || client.get(&there, second));
    assert_unreachable("get_batch", "a", || client.get_batch(one, NOW));
    assert_unreachable("contains", "a", || client.contains(&there));
    assert_unreachable("metadata", "a", || client.metadata(&there));
    assert_unreachable("wait", "a", || client.wait(one, 1, second));
    assert_unreachable("pin", "a", || client.pin(one));
    assert_unreachable("delete", "a", || client.delete(one));
    assert_unreachable("at", "a", || client.at("a").map(drop));
    assert_unreachable("huge_table", "a", || client.huge_table("huge", None).map(drop));
    let table = schema();
    assert_unreachable("huge_table that may be made", "a", || {
        client.huge_table("huge", Some(&table)).map(drop)
    });
    let listed = by_its_deadline("list", || client.list_all("", &Metadata::default()));
    assert!(matches!(&listed, Err(Error::NodeUnreachable(_))), "{listed:?}");
    // What is nowhere is nowhere.
    let found = by_its_deadline("get", || client.get(&nowhere, NOW));
    assert!(matches!(&found, Err(Error::NotFound { .. })), "{found:?}");
    assert!(!by_its_deadline("contains", || client.contains(&nowhere)).unwrap());
    let short = Duration::from_millis(200);
    assert_eq!(by_its_deadline("wait", || client.wait(&[nowhere], 1, short)).unwrap(), [false]);
}

#[test]
fn names_are_one_and_nothing_is_said_of_memory_that_cannot_be_reached() {
    let Some(mut apart) = required(Apart::start(COUNT, "32MiB", NODES)) else {
        return;
    };
    let clients: Vec<_> = (0..COUNT).map(|n| hasty(&apart.daemons[n])).collect();
    assert_eq!(put_everywhere(&clients), NAMES);
    let owned = owners(&apart);
    assert_eq!(owned.len(), NAMES);
    let of = |node: &str| owned.iter().find(|(_, of)| *of == node).unwrap().0.clone();

    // Every call, for what another node has.
    let (a, b, c) = (&clients[0], &clients[1], &clients[2]);
    a.huge_table("huge", Some(&schema())).unwrap();
    look_from(b, &of("a"));
    look_from(c, &of("a"));
    assert_there(a, &of("a"), 0);

    // A wait for a name that comes there ends with that, not with True.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| c.wait(&["later".into()], 1, PATIENCE));
        // It may be under way by then, or begin later: it has to end in the same way.
        std::thread::sleep(Duration::from_millis(300));
        put_in_time(a, "later", 1);
        assert_unreachable("wait", "a", || waiting.join().unwrap());
    });

    // A node that is killed and comes back with what it has.
    let b_has = of("b");
    apart.kill9(1);
    let lost = |client: &Client| {
        wait_for(client, |members| members.find("b").unwrap().reach == Reach::Lost);
        wait_for(client, |members| members.has_lease);
    };
    [a, c].into_iter().for_each(lost);
    for client in [a, c] {
        // It may have any name that is not known to be another's.
        let put = by_its_deadline("put", || client.put(&Value::Bytes(b"x"), Some(&b_has)));
        assert!(matches!(&put, Err(Error::NodeLost { node, .. }) if node == "b"), "{put:?}");
        let found = by_its_deadline("contains", || client.contains(&b_has.as_str().into()));
        assert!(matches!(&found, Err(Error::NodeLost { node, .. }) if node == "b"), "{found:?}");
        by_its_deadline("a put without a name", || client.put(&Value::Bytes(b"x"), None)).unwrap();
    }
    apart.daemons[1].restart();
    apart.settle();
    // Its clients run where it does not see their processes, so it does not wait for them.
    let again: Vec<_> = (0..COUNT).map(|n| hasty(&apart.daemons[n])).collect();
    assert_eq!(put_again(&again, &owned), 0);
    assert_eq!(owners(&apart).get(&b_has).map(String::as_str), Some("b"));

    // What was deleted is free, for one.
    let b = &again[1];
    b.delete(&[b_has.as_str().into()]).unwrap();
    let puts = [a, c].map(|client| {
        by_its_deadline("put", || client.put(&Value::Bytes(&bytes_of(7, 10_000)), Some(&b_has)))
    });
    assert!(puts[0].is_ok() && matches!(puts[1], Err(Error::AlreadyExists { .. })), "{puts:?}");
    assert_unreachable("get", "a", || b.get(&b_has.as_str().into(), NOW));
    assert_eq!(owners(&apart).get(&b_has).map(String::as_str), Some("a"));

    // One that is forgotten has no names any more.
    apart.kill9(1);
    [a, c].into_iter().for_each(lost);
    [a, c].into_iter().for_each(|client| client.forget_node("b").unwrap());
    put_in_time(c, "after b", 3);
    assert!(!by_its_deadline("contains", || a.contains(&"nobody".into())).unwrap());
    assert_unreachable("contains", "c", || a.contains(&"after b".into()));
}

/// Puts names that are taken once more, each on all nodes. How many were accepted.
fn put_again(clients: &[Client], owned: &BTreeMap<String, String>) -> usize {
    let mut accepted = 0;
    for name in owned.keys() {
        for client in clients {
            let until = Instant::now() + PATIENCE;
            loop {
                match by_its_deadline("put", || client.put(&Value::Bytes(b"again"), Some(name))) {
                    Ok(_) => accepted += 1,
                    Err(Error::AlreadyExists { .. }) => {}
                    // A view changes.
                    Err(error) => {
                        assert!(Instant::now() < until, "{name}: {error}");
                        std::thread::sleep(Duration::from_millis(20));
                        continue;
                    }
                }
                break;
            }
        }
    }
    accepted
}
