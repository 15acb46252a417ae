//! Nodes in network namespaces of their own, with certificates, joined by links that are taken down
//! and up again. Needs root and `ip`: says so where they are not, and fails with `FARROW_NETNS=require`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::time::Duration;

use common::netns::{Namespaces, PlacedNodes, required, required_if};
use common::nodes::wait_for;
use common::views::{
    assert_one_view, assert_there, by_its_deadline, hasty, owners, put_in_time, put_some_in_time,
};
use common::{assert_balanced, bytes_of};
use farrow::{Error, Reach, Value};

const COUNT: usize = 3;
const NOW: Duration = Duration::ZERO;
const NODES: &[&str] = &["--lease-ms", "1000", "--no-prepare"];

#[test]
fn nodes_with_certificates_outlive_links_that_go_down() {
    let Some(mut placed) = required(PlacedNodes::start(COUNT, "32MiB", NODES)) else {
        return;
    };
    let clients: Vec<_> = (0..COUNT).map(|n| hasty(&placed.nodes.daemons[n])).collect();
    let (a, b, c) = (&clients[0], &clients[1], &clients[2]);
    put_in_time(&a.at("b").unwrap(), "on b", 1);
    put_in_time(c, "on c", 2);
    clients.iter().for_each(|client| assert_there(client, "on b", 1));
    let held = a.get(&"on c".into(), NOW).unwrap().view().unwrap();

    // One of three links: whoever is taken for lost, two are left that make names.
    placed.places.set_link(0, 2, false);
    std::thread::sleep(Duration::from_millis(2500));
    let by_two_links = put_some_in_time(b, "two of three links", 3);
    assert_there(b, "on b", 1);
    placed.places.set_link(0, 2, true);
    assert_one_view(&placed.nodes);

    // All links of one node, longer than two leases.
    placed.set_links_of(2, false);
    for client in [a, b] {
        wait_for(client, |members| members.find("c").unwrap().reach == Reach::Lost);
        wait_for(client, |members| members.has_lease);
    }
    wait_for(c, |members| !members.has_lease);
    put_in_time(a, "majority", 4);
    let late = by_its_deadline("a put of who is cut off", || {
        c.put(&Value::Bytes(b"minority"), Some("minority"))
    });
    assert!(matches!(&late, Err(Error::CutOff { node, .. }) if node == "c"), "{late:?}");
    let found = by_its_deadline("get of a lost object", || a.get(&"on c".into(), NOW));
    assert!(matches!(&found, Err(Error::NodeLost { node, .. }) if node == "c"), "{found:?}");
    assert_there(b, "majority", 4);
    assert_there(c, "on c", 2);
    assert_eq!(&held[..], &bytes_of(2, 10_000)[..]);
    placed.set_links_of(2, true);
    assert_one_view(&placed.nodes);

    // A link that flaps.
    for round in 0..6 {
        placed.set_links_of(1, round % 2 == 1);
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_one_view(&placed.nodes);

    // A daemon that is killed and restarted in its place.
    placed.nodes.daemons[0].kill9();
    put_in_time(b, "without a", 5);
    placed.nodes.daemons[0].restart();
    assert_one_view(&placed.nodes);
    for client in &clients {
        for (name, seed) in
            [("on b", 1), ("on c", 2), (&by_two_links, 3), ("majority", 4), ("without a", 5)]
        {
            assert_there(client, name, seed);
        }
    }
    drop(held);
    owners(&placed.nodes);
    for node in &placed.nodes.names {
        assert_balanced(&b.at(node).unwrap().stats().unwrap());
    }
}

#[test]
fn namespaces_go_with_a_test_that_panics() {
    let names = std::panic::catch_unwind(|| {
        let Some(places) = required(Namespaces::make(2)) else { return };
        let names = places.names().to_vec();
        assert!(names.iter().all(|name| Namespaces::of_this_process().contains(name)));
        std::panic::panic_any(names);
    });
    let Err(names) = names else { return };
    let names = names.downcast::<Vec<String>>().expect("the panic above");
    let left = Namespaces::of_this_process();
    assert!(names.len() == 2 && names.iter().all(|name| !left.contains(name)), "{left:?}");
}

#[test]
fn what_cannot_be_made_is_skipped_unless_it_is_required() {
    let no: fn() -> Result<(), String> = || Err("no root".to_owned());
    required_if(false, no()).unwrap_err();
    required_if(true, Ok(())).unwrap();
    std::panic::catch_unwind(|| required_if(true, no())).unwrap_err();
}
