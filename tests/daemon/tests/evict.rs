//! A node that makes room does not evict objects held by a client of another node, and their bytes
//! do not change. After their release they are evicted like any others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::time::Duration;

use common::nodes::DaemonNodes;
use common::{assert_balanced, bytes_of, scripted_client, wait_for};
use farrow::{Client, Error, ObjectId, Value};

const NOW: Duration = Duration::ZERO;
const MEMORY: &str = "8MiB";
const MEMORY_BYTES: u64 = 8 << 20;
/// Of each object.
const BYTES: usize = 512 << 10;
/// Where nothing is killed: on a busy machine a live node is not to be thought lost.
const WORDS: &[&str] = &["--evict", "lru", "--lease-ms", "10000"];

/// Not a test by itself: a child process plays a client.
#[test]
fn scripted_client() {
    scripted_client::play();
}

fn put(client: &Client, seed: u64, name: Option<&str>) -> ObjectId {
    client.put(&Value::Bytes(&bytes_of(seed, BYTES)), name).unwrap()
}

/// Puts more than the memory twice over, and so has everything evicted that may go.
fn press(client: &Client, first_seed: u64) {
    for number in 0..2 * MEMORY_BYTES / BYTES as u64 {
        put(client, first_seed + number, None);
    }
}

fn is_removed(client: &Client, id: ObjectId) -> bool {
    match client.get(&id.into(), NOW) {
        Ok(_) => false,
        Err(Error::NotFound { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn what_a_client_of_another_node_holds_is_not_evicted() {
    let nodes = DaemonNodes::start(2, MEMORY, WORDS);
    hold_against_pressure(&nodes);
}

#[test]
fn what_a_client_of_another_machine_holds_is_not_evicted() {
    let (nodes, _dir) =
        DaemonNodes::node_local(2, MEMORY_BYTES, &[], &[WORDS, &["--no-prepare"]].concat());
    hold_against_pressure(&nodes);
}

/// The objects that are held are the oldest, so the first that would go.
fn hold_against_pressure(nodes: &DaemonNodes) {
    let (a, b) = (nodes.client(0), nodes.client(1));
    let with_name = put(&a, 1, Some("held"));
    // Sealed by the client itself: the home has to take it over to evict it.
    let nameless = put(&a, 2, None);
    let loose = put(&a, 3, Some("loose"));
    let views = [with_name, nameless].map(|id| b.get(&id.into(), NOW).unwrap().view().unwrap());
    drop(b.get(&loose.into(), NOW).unwrap());
    // Room is made for a client of the node, and for one of the other.
    for (client, first_seed) in [(a.clone(), 100), (b.at("a").unwrap(), 200)] {
        press(&client, first_seed);
        for (seed, view) in (1..).zip(&views) {
            assert_eq!(view[..], bytes_of(seed, BYTES), "held while {first_seed} and on came");
        }
    }
    assert!(is_removed(&a, loose) && is_removed(&b, loose), "nobody held it");
    let stats = a.stats().unwrap();
    assert!(stats.node.evicted_bytes_total >= 2 * MEMORY_BYTES, "{stats:?}");
    assert!(stats.node.retiring == 0, "what is evicted leaves nothing behind: {stats:?}");
    assert_balanced(&stats);
    // It is found as before, by all, and by name.
    for client in [&a, &b] {
        let found = client.get(&"held".into(), NOW).unwrap();
        assert_eq!((found.id(), &found.view().unwrap()[..]), (with_name, &bytes_of(1, BYTES)[..]));
        assert!(client.get(&nameless.into(), NOW).is_ok());
    }
    let requested = a.evict(u64::MAX).unwrap();
    assert_eq!(requested.held, 2 * BYTES as u64, "by hand neither");
    for (seed, view) in (1..).zip(&views) {
        assert_eq!(view[..], bytes_of(seed, BYTES));
    }
    // One is let go: it is evicted, and the other is not.
    let [first, second] = views;
    drop(first);
    press(&a, 300);
    assert!(is_removed(&a, with_name) && is_removed(&b, with_name));
    assert_eq!(second[..], bytes_of(2, BYTES));
    assert!(a.evict(u64::MAX).unwrap().objects > 0);
    assert!(!is_removed(&b, nameless));
    drop(second);
    a.evict(u64::MAX).unwrap();
    assert!(is_removed(&a, nameless) && is_removed(&b, nameless));
    assert_eq!(a.stats().unwrap().node.objects, 0);
}

/// A reader that dies holds nothing any more, and what it held goes when room is needed.
#[test]
fn what_a_dead_client_of_another_node_held_is_evicted() {
    let nodes = DaemonNodes::start(2, MEMORY, WORDS);
    let a = nodes.client(0);
    let id = put(&a, 5, Some("held"));
    let mut scripted_client = scripted_client::ScriptedClient::start(&nodes.daemons[1].socket);
    let hold = format!("hold 1 held 5 {BYTES}");
    assert_eq!(scripted_client.ask(&hold), scripted_client::ScriptedAnswer::Done(String::new()));
    press(&a, 100);
    assert_eq!(
        scripted_client.ask("check 1"),
        scripted_client::ScriptedAnswer::Done(String::new())
    );
    assert!(!is_removed(&a, id));
    scripted_client.kill9();
    wait_for("its place", || (a.stats().unwrap().node.clients == 1).then_some(())).unwrap();
    press(&a, 200);
    assert!(is_removed(&a, id));
    assert_balanced(&a.stats().unwrap());
}
