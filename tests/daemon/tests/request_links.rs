//! Requests to a node whose memory is not mapped, over connections that end between two of them.
//! After a node was cut off and was back, the first put there of a client that had used it before
//! raised `NodeLost`, although the node was there and had not received it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::time::Duration;

use common::nodes::wait_for as wait_for_members;
use common::proxy::Linked;
use common::views::{assert_one_view, hasty};
use common::{bytes_of, wait_for};
use farrow::{Client, Error, ObjectOptions, Reach, Value};

const NODES: &[&str] = &["--lease-ms", "1000", "--no-prepare", "--net", "only"];
/// On a busy machine a connection that ends is not to cost a node its lease too.
const CALM: &[&str] = &["--lease-ms", "20000", "--no-prepare", "--net", "only"];
const NOW: Duration = Duration::ZERO;

fn linked() -> Linked {
    Linked::start(2, "32MiB", CALM)
}

fn named(name: &str) -> ObjectOptions<'_> {
    ObjectOptions::named(Some(name))
}

/// Longer than a client uses a connection without a question whether it is still there.
const IDLE: Duration = Duration::from_millis(1100);

/// Ends all connections between the nodes, and waits until b has no client of a any more.
fn end_connections(linked: &Linked, there: &Client) {
    let clients = || there.stats().unwrap().node.clients;
    let before = clients();
    linked.links.reset();
    let is_ended = || (clients() < before).then_some(());
    assert!(wait_for("the end of a connection", is_ended).is_some());
    std::thread::sleep(IDLE);
}

fn assert_has(client: &Client, name: &str, bytes: &[u8]) {
    let found = client.get(&name.into(), NOW).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(found.view().unwrap()[..] == *bytes, "{name}");
}

#[test]
fn the_first_request_after_the_end_of_a_connection_succeeds() {
    let linked = linked();
    let (client, there) = (hasty(&linked.nodes.daemons[0]), linked.nodes.client(1));
    let bytes = bytes_of(1, 100_000);
    let value = Value::Bytes(&bytes);
    client.put_on("b", &value, &named("first")).unwrap();

    end_connections(&linked, &there);
    client.put_on("b", &value, &named("second")).unwrap();
    end_connections(&linked, &there);
    let id = client.put_on("b", &value, &ObjectOptions::default()).unwrap();
    assert!(there.get(&id.into(), NOW).unwrap().view().unwrap()[..] == bytes[..]);
    end_connections(&linked, &there);
    client.put_many_on("b", &[(value, named("third")), (value, named("fourth"))]).unwrap();
    end_connections(&linked, &there);
    // The pin asks for the name first, and that question may be the one that meets the broken link.
    let is_there = || client.contains(&"fourth".into()).ok();
    assert_eq!(wait_for("an answer about a name", is_there), Some(true));
    client.pin(&["fourth".into()]).unwrap();
    end_connections(&linked, &there);
    client.create_on("b", 4, &named("fifth")).unwrap().seal().unwrap();
    for name in ["first", "second", "third", "fourth"] {
        assert_has(&there, name, &bytes);
    }
    assert!(there.contains(&"fifth".into()).unwrap());
}

/// The reservation of a name ends with its connection. It is renewed before the object is sent.
#[test]
fn a_name_is_reserved_again_after_the_end_of_its_connection() {
    let linked = linked();
    let (client, there) = (hasty(&linked.nodes.daemons[0]), linked.nodes.client(1));
    let written = |name: &str| {
        let writer = client.create_on("b", 1000, &named(name)).unwrap();
        writer.memory().write_at(0, &bytes_of(7, 1000)).unwrap();
        writer
    };
    let writer = written("kept");
    assert!(matches!(
        there.put(&Value::Bytes(b"x"), Some("kept")),
        Err(Error::AlreadyExists { .. })
    ));
    end_connections(&linked, &there);
    writer.seal().unwrap();
    assert_has(&there, "kept", &bytes_of(7, 1000));

    // Another client may take it in between.
    let writer = written("taken");
    end_connections(&linked, &there);
    there.put(&Value::Bytes(b"of another"), Some("taken")).unwrap();
    let sealed = writer.seal();
    assert!(matches!(&sealed, Err(Error::AlreadyExists { name }) if name == "taken"), "{sealed:?}");
    assert_has(&there, "taken", b"of another");
    let own = linked.nodes.client(0);
    let is_empty = || (own.stats().unwrap().node.used == 0).then_some(());
    assert!(wait_for("what was staged is gone", is_empty).is_some());
}

#[test]
fn the_first_put_at_a_node_that_was_cut_off_and_is_back_succeeds() {
    let linked = Linked::start(3, "32MiB", NODES);
    let clients: Vec<Client> = linked.nodes.daemons.iter().map(hasty).collect();
    let bytes = bytes_of(3, 50_000);
    let value = Value::Bytes(&bytes);
    // Each way: at the node that was cut off, and from there.
    for (from, to) in [(0, "c"), (2, "a")] {
        clients[from].put_on(to, &value, &named(&format!("before, on {to}"))).unwrap();
    }
    linked.links.cut_off(2, true);
    for client in &clients[..2] {
        wait_for_members(client, |members| members.find("c").unwrap().reach == Reach::Lost);
    }
    wait_for_members(&clients[2], |members| !members.has_lease);
    linked.links.cut_off(2, false);
    assert_one_view(&linked.nodes);
    for (from, to) in [(0, "c"), (2, "a")] {
        clients[from].put_on(to, &value, &ObjectOptions::default()).unwrap();
        let name = format!("after, on {to}");
        clients[from].put_on(to, &value, &named(&name)).unwrap();
        clients.iter().for_each(|client| assert_has(client, &name, &bytes));
    }
}

/// A client that waits for less than the lease learned only that the node at its socket was silent.
#[test]
fn a_put_that_ends_before_the_node_refuses_it_says_that_the_node_is_cut_off() {
    let linked = Linked::start(3, "32MiB", NODES);
    let options = farrow::ConnectOptions {
        timeout: Duration::from_millis(300),
        ..farrow::ConnectOptions::at(&linked.nodes.daemons[2].socket)
    };
    let client = Client::connect(&options).unwrap();
    linked.links.cut_off(2, true);
    wait_for_members(&client, |members| !members.has_lease);
    let error = client.put(&Value::Bytes(b"x"), Some("name")).unwrap_err();
    match &error {
        Error::Timeout { what, .. } => {
            assert!(what.contains("\"c\"") && what.contains("cut off"), "{what}");
        }
        // On a busy machine the node may be quicker than the client.
        Error::CutOff { node, .. } => assert_eq!(node, "c"),
        other => panic!("{other:?}"),
    }
    let patient = hasty(&linked.nodes.daemons[2]);
    let error = patient.put(&Value::Bytes(b"x"), Some("another")).unwrap_err();
    assert!(matches!(&error, Error::CutOff { node, .. } if node == "c"), "{error:?}");
}
