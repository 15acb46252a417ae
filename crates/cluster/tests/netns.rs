//! Nodes in network namespaces of their own, with certificates, joined by links that are taken down
//! and up again. Needs root; says so where it is not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::io::Write;
use std::time::Duration;

use common::netns::Namespaces;
use common::nodes::{Nodes, wait_for};
use common::views::{
    assert_one_view, assert_there, by_its_deadline, hasty, owners, put_in_time, put_some_in_time,
};
use common::{Daemon, assert_balanced, bytes_of};
use farrow::{Error, Reach, Value};
use farrow_cluster::certs;

const COUNT: usize = 3;
const NOW: Duration = Duration::ZERO;
const DAY: Duration = Duration::from_secs(86_400);

/// Dropped in this order: the daemons before the places where they run.
struct Placed {
    nodes: Nodes,
    places: Namespaces,
    _certs: tempfile::TempDir,
}

impl Placed {
    fn start() -> Result<Self, String> {
        let places = Namespaces::make(COUNT)?;
        let dir = tempfile::tempdir().unwrap();
        certs::init(dir.path(), 30 * DAY).unwrap();
        let names: Vec<String> =
            (0..COUNT).map(|n| char::from(b'a' + n as u8).to_string()).collect();
        let addresses: Vec<String> =
            (0..COUNT).map(|number| format!("{}:7000", places.address(number))).collect();
        for (number, name) in names.iter().enumerate() {
            certs::issue(dir.path(), name, &[places.address(number)], DAY).unwrap();
        }
        let certs = dir.path().to_str().unwrap();
        let daemons = (0..COUNT).map(|number| {
            let mut words = vec!["--name", &names[number], "--listen", &addresses[number]];
            words.extend(["--certs", certs, "--lease-ms", "1000", "--no-prepare"]);
            for other in addresses.iter().enumerate().filter(|(n, _)| *n != number) {
                words.extend(["--join", other.1]);
            }
            let [enter, place] = places.enter(number);
            Daemon::start_by(&[&enter, &place], "32MiB", &words)
        });
        let nodes = Nodes { daemons: daemons.collect(), names: names.clone() };
        nodes.settle(COUNT);
        Ok(Self { nodes, places, _certs: dir })
    }

    fn set_links_of(&self, node: usize, is_up: bool) {
        let others = (0..COUNT).filter(|other| *other != node);
        others.for_each(|other| self.places.set_link(node, other, is_up));
    }
}

#[test]
fn nodes_with_certificates_outlive_links_that_go_down() {
    let mut placed = match Placed::start() {
        Ok(placed) => placed,
        Err(reason) => {
            // Past the harness, which keeps what tests that succeed print.
            let _ = writeln!(std::io::stderr(), "skipped nodes_with_certificates: {reason}");
            return;
        }
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
        wait_for(client, |roster| roster.find("c").unwrap().reach == Reach::Lost);
        wait_for(client, |roster| roster.has_lease);
    }
    wait_for(c, |roster| !roster.has_lease);
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
