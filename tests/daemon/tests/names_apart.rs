//! A node came back into its cluster with a name that another object had got meanwhile: `get` returned
//! one object at one node and another one at the other nodes, for as long as both served. Now the
//! object of the node that joins loses the name, and stays under its id.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::time::Duration;

use common::nodes::{DaemonNodes, LEASE_MS, wait_for as wait_for_members};
use common::{Daemon, free_ports, wait_for};
use farrow::{Client, Error, ObjectId, Reach, Value};

const NOW: Duration = Duration::ZERO;
const BY_NET: &[&str] = &["--no-prepare", "--net", "only"];

/// Puts a name as soon as the node has a lease.
fn put(client: &Client, bytes: &[u8]) -> ObjectId {
    let put = || client.put(&Value::Bytes(bytes), Some("x")).ok();
    wait_for("a lease", put).expect("a put")
}

fn bytes_of(client: &Client) -> Option<Vec<u8>> {
    Some(client.get(&"x".into(), NOW).ok()?.view().unwrap().to_vec())
}

/// All nodes find these bytes under the name, and no other.
fn assert_one(clients: &[&Client], bytes: &[u8]) {
    let is_one = || clients.iter().all(|client| bytes_of(client).as_deref() == Some(bytes));
    wait_for("one object", || is_one().then_some(())).expect("one object of the name");
    for client in clients {
        let refused = client.put(&Value::Bytes(b"more"), Some("x"));
        assert!(matches!(refused, Err(Error::AlreadyExists { .. })), "{refused:?}");
    }
}

/// The first node of most clusters: it is started without `--join`, and founds one.
#[test]
fn a_founder_that_forgot_all_and_founds_another_cluster() {
    let ports = free_ports(3);
    let addresses: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let lease = LEASE_MS.to_string();
    let start = |number: usize| {
        let name = ["b", "a", "c"][number];
        let mut words = vec!["--plaintext", "--name", name, "--listen", &addresses[number]];
        words.extend(["--lease-ms", &lease]);
        words.extend(BY_NET);
        if number > 0 {
            words.extend(["--join", &addresses[0]]);
        }
        // Memory without a name ends with the daemon.
        Daemon::start_anywhere("16MiB", &words)
    };
    let names = ["b", "a", "c"].map(str::to_owned).into();
    let mut nodes = DaemonNodes { daemons: (0..3).map(start).collect(), names };
    nodes.settle(3);
    put(&nodes.client(1), b"first");
    nodes.daemons[0].kill9();
    wait_for_members(&nodes.client(1), |members| {
        members.find("b").is_some_and(|node| !node.is_member())
    });
    nodes.daemons[0].restart();
    let founder = nodes.client(0);
    let second = put(&founder, b"second");
    assert!(nodes.daemons[0].said("founds a cluster") > 0, "{}", nodes.daemons[0].log());
    nodes.settle(3);
    let clients = [founder, nodes.client(1), nodes.client(2)];
    assert_one(&clients.each_ref(), b"first");
    // Its own object has no name any more, and is there.
    assert_eq!(&clients[0].get(&second.into(), NOW).unwrap().view().unwrap()[..], b"second");
    assert_eq!(nodes.daemons[0].said("without the name"), 1, "{}", nodes.daemons[0].log());
}

/// The memory of a node stays with `--keep`, and its names are free meanwhile.
#[test]
fn a_node_that_left_in_order_and_retained_its_memory() {
    let mut nodes = DaemonNodes::start(2, "16MiB", &[BY_NET, &["--keep"]].concat());
    let first = put(&nodes.client(0), b"first");
    nodes.client(0).shut_down_node().unwrap();
    assert!(nodes.daemons[0].wait_end().success());
    let b = nodes.client(1);
    wait_for_members(&b, |members| members.find("a").unwrap().reach == Reach::Left);
    put(&b, b"second");
    nodes.daemons[0].restart();
    nodes.settle(2);
    let a = nodes.client(0);
    assert_one(&[&a, &b], b"second");
    assert_eq!(&a.get(&first.into(), NOW).unwrap().view().unwrap()[..], b"first");
    // The next daemon of the same life has nothing to compare, and adopts the object without a name.
    nodes.daemons[0].kill9();
    nodes.daemons[0].restart();
    nodes.settle(2);
    let a = nodes.client(0);
    assert_one(&[&a, &b], b"second");
    assert_eq!(nodes.daemons[0].said("without the name"), 1);
}

/// A node was stopped in order while the other one was away. It continued the life that was leaving:
/// it served for ever, outside of its cluster.
#[test]
fn a_node_that_left_while_no_node_heard_it_comes_back() {
    let mut nodes =
        DaemonNodes::start(2, "16MiB", &[BY_NET, &["--keep", "--lease-ms", "500"]].concat());
    put(&nodes.client(1), b"first");
    nodes.daemons[0].kill9();
    nodes.client(1).shut_down_node().unwrap();
    assert!(nodes.daemons[1].wait_end().success());
    nodes.daemons.iter_mut().for_each(Daemon::restart);
    nodes.settle(2);
    assert_one(&[&nodes.client(0), &nodes.client(1)], b"first");
}

/// Other daemons mapped the files that a node removed when it left: the memory did not come back, and
/// its names were neither there nor free.
#[test]
fn the_memory_of_a_node_that_left_is_let_go() {
    let mut nodes = DaemonNodes::start(2, "16MiB", &["--no-prepare"]);
    put(&nodes.client(0), b"first");
    let b = nodes.client(1);
    assert_eq!(bytes_of(&b).unwrap(), b"first");
    drop(b);
    let maps = format!("/proc/{}/maps", nodes.daemons[1].pid());
    let folder = nodes.daemons[0].socket.parent().unwrap().display().to_string();
    let is_mapped = || std::fs::read_to_string(&maps).unwrap().contains(&folder);
    assert!(is_mapped());
    nodes.client(0).shut_down_node().unwrap();
    assert!(nodes.daemons[0].wait_end().success());
    wait_for("the end of the map", || (!is_mapped()).then_some(())).expect("it is mapped");
    let b = nodes.client(1);
    put(&b, b"second");
    assert_one(&[&b], b"second");
}

/// A client that had read one object there retained all of that memory until its end.
#[test]
fn a_client_retains_the_memory_of_a_node_that_left_only_for_its_values() {
    let mut nodes = DaemonNodes::start(2, "16MiB", &["--no-prepare"]);
    put(&nodes.client(0), b"first");
    let folder = nodes.daemons[0].socket.parent().unwrap().display().to_string();
    let is_mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains(&folder);
    let b = nodes.client(1);
    let value = b.get(&"x".into(), NOW).unwrap();
    assert!(is_mapped());
    nodes.client(0).shut_down_node().unwrap();
    assert!(nodes.daemons[0].wait_end().success());
    wait_for_members(&b, |members| members.find("a").unwrap().reach == Reach::Left);
    wait_for("the list", || bytes_of(&b).is_none().then_some(())).unwrap();
    assert_eq!(&value.view().unwrap()[..], b"first");
    drop(value);
    // Each search reads the list of the nodes, if it has changed.
    let is_free = || (bytes_of(&b).is_none() && !is_mapped()).then_some(());
    wait_for("the end of the map", is_free).expect("it is mapped");
}
