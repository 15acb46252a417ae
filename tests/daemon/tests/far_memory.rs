//! A remote client maps memory at the common addresses, and needs no messages to use it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::time::Duration;

use common::nodes::DaemonNodes;
use common::scripted_client::{ScriptedAnswer, ScriptedClient};
use common::{bytes_of, scripted_client};
use farrow::{Client, ObjectId, ObjectKey, ObjectOptions, Value};

const NOW: Duration = Duration::ZERO;
/// Nothing is killed here: on a busy machine a live node is not to be thought lost.
const CALM: &[&str] = &["--lease-ms", "20000"];

/// Not a test by itself: a child process plays a client.
#[test]
fn scripted_client() {
    scripted_client::play();
}

fn reported(scripted_client: &mut ScriptedClient, command: &str) -> String {
    match scripted_client.ask(command) {
        ScriptedAnswer::Done(words) => words,
        refused @ ScriptedAnswer::Refused(_) => panic!("{command}: {refused:?}"),
    }
}

/// Where the memory lies that a scripted client puts in, and whether that is where all are to have
/// it.
fn place(scripted_client: &mut ScriptedClient) -> (u64, bool) {
    let words = reported(scripted_client, "where");
    let (base, is_agreed) = words.split_once(' ').unwrap();
    (base.parse().unwrap(), is_agreed.parse().unwrap())
}

fn address(scripted_client: &mut ScriptedClient, key: u64) -> u64 {
    reported(scripted_client, &format!("address {key}")).parse().unwrap()
}

/// Two nodes whose regions are to lie at different addresses, and where that of a lies: of 64
/// places two may be the same.
fn apart() -> (DaemonNodes, u64) {
    for _ in 0..6 {
        let nodes = DaemonNodes::start(2, "64MiB", CALM);
        // Each with the memory of its own node alone.
        let [a, b] = [0, 1].map(|number: usize| {
            let mut scripted_client = ScriptedClient::start(&nodes.daemons[number].socket);
            let (base, is_agreed) = place(&mut scripted_client);
            assert!(is_agreed, "nothing else lies at {base:#x}");
            base
        });
        if a != b {
            return (nodes, a);
        }
    }
    panic!("six times two nodes wanted the same address")
}

#[test]
fn a_region_lies_at_one_address_on_all_nodes_and_where_that_is_taken_it_works_elsewhere() {
    let (nodes, base) = apart();
    let a = nodes.client(0);
    a.put(&Value::Bytes(&bytes_of(5, 100_000)), Some("first")).unwrap();
    let socket = |number: usize| &*nodes.daemons[number].socket;
    // Of node a and of node b; and the same in processes that have something else at that address.
    let mut scripted_clients = [
        ScriptedClient::start(socket(0)),
        ScriptedClient::start(socket(1)),
        ScriptedClient::start_beside(socket(0), base),
        ScriptedClient::start_beside(socket(1), base),
    ];
    for number in [1, 3] {
        reported(&mut scripted_clients[number], "at a");
    }
    let places = scripted_clients.each_mut().map(place);
    assert_eq!(places[0], (base, true));
    assert_eq!(places[1], (base, true), "another process, on another node");
    for (elsewhere, is_agreed) in &places[2..] {
        assert!(*elsewhere != base && !is_agreed, "{places:?}");
    }

    // The last two put, into memory that they have at other addresses.
    reported(&mut scripted_clients[2], "put second 6 50000");
    reported(&mut scripted_clients[3], "put third 7 3000");
    let holds = ["hold 1 first 5 100000", "hold 2 second 6 50000", "hold 3 third 7 3000"];
    for (key, hold) in (1..).zip(holds) {
        // A hold compares the bytes.
        scripted_clients
            .iter_mut()
            .for_each(|scripted_client| drop(reported(scripted_client, hold)));
        let addresses =
            scripted_clients.each_mut().map(|scripted_client| address(scripted_client, key));
        assert_eq!(addresses[0], addresses[1], "{hold}");
        let offsets = [0, 1, 2, 3].map(|number| addresses[number] - places[number].0);
        assert_eq!(offsets, [offsets[0]; 4], "the same place in the region: {hold}");
    }
}

/// Counts what daemons are asked. Its own questions are left out.
struct Counter(Vec<Client>);

impl Counter {
    fn requests(&self) -> Vec<u64> {
        self.0.iter().map(|client| client.stats().unwrap().node.requests).collect()
    }

    /// What each node was asked meanwhile.
    fn during(&self, act: impl FnOnce()) -> Vec<u64> {
        let before = self.requests();
        act();
        self.requests().iter().zip(before).map(|(after, before)| after - before - 1).collect()
    }
}

const NONE: [u64; 2] = [0, 0];
const COUNT: u64 = 1000;

fn look(client: &Client, target: &ObjectKey, seed: u64) {
    let object = client.get(target, NOW).unwrap();
    assert_eq!(&object.view().unwrap()[..], &bytes_of(seed, 100)[..], "{target}");
}

#[test]
fn a_get_of_an_object_on_another_node_sends_no_message() {
    let nodes = DaemonNodes::start(2, "64MiB", CALM);
    let (a, b) = (nodes.client(0), nodes.client(1));
    let counter = Counter(vec![nodes.client(0), nodes.client(1)]);
    let bytes: Vec<Vec<u8>> = (0..COUNT).map(|seed| bytes_of(seed, 100)).collect();
    let names: Vec<String> = (0..COUNT).map(|seed| format!("name {seed}")).collect();
    let values: Vec<_> = bytes
        .iter()
        .zip(&names)
        .map(|(bytes, name)| (Value::Bytes(bytes), ObjectOptions::named(Some(name))))
        .collect();
    let ids = a.put_many(&values).unwrap();
    let targets: Vec<[ObjectKey; 2]> =
        ids.iter().zip(&names).map(|(id, name)| [(*id).into(), name.as_str().into()]).collect();
    // The first takes a place at the other node, which is asked for: so requests are counted.
    let first = counter.during(|| look(&b, &targets[0][0], 0));
    assert!(first.iter().all(|count| *count > 0), "{first:?}");
    for kind in 0..2 {
        let requested = counter.during(|| {
            for (seed, target) in (0..).zip(&targets) {
                look(&b, &target[kind], seed);
            }
        });
        assert_eq!(requested, NONE, "{:?}", targets[0][kind]);
    }
    let far = b.at("a").unwrap();
    let requested = counter.during(|| {
        for (seed, target) in (0..).zip(&targets) {
            assert!(b.contains(&target[1]).unwrap());
            look(&far, &target[1], seed);
        }
    });
    assert_eq!(requested, NONE);
    // Who holds many at a time needs pages to say so.
    let mut held = Vec::new();
    let requested = counter.during(|| {
        held.extend(targets.iter().map(|target| b.get(&target[0], NOW).unwrap()));
    });
    assert!(requested.iter().all(|count| *count <= HOLD_PAGES_MAX), "{requested:?}");
    assert_eq!(held.len() as u64, COUNT);
    drop(held);
    // With those pages, many at a time too.
    let all: Vec<ObjectKey> = targets.iter().map(|target| target[0].clone()).collect();
    let requested = counter.during(|| {
        assert_eq!(b.get_many(&all, NOW).unwrap().len(), all.len());
        assert_eq!(b.get_batch(&all, NOW).unwrap().len(), all.len());
        assert!(all.iter().all(|target| b.get_here(target).unwrap().is_some()));
    });
    assert_eq!(requested, NONE);
}

/// A page has room for some 500 holds.
const HOLD_PAGES_MAX: u64 = 2;

/// What a client asks for ahead of need doubles each time: pages of entries, 42 in each, up to 64
/// pages; memory up to a 64th of the heap.
const ENTRY_PAGES_MAX: u64 = 3;

#[test]
fn memory_on_another_node_is_given_without_a_call_in_the_common_case() {
    let nodes = DaemonNodes::start(2, "64MiB", CALM);
    let (a, b) = (nodes.client(0), nodes.client(1));
    let counter = Counter(vec![nodes.client(0), nodes.client(1)]);
    let far = b.at("a").unwrap();
    let small = bytes_of(1, 100);
    let put = || far.put(&Value::Bytes(&small), None).unwrap();
    let create = || {
        let writer = far.create(100, None).unwrap();
        writer.memory().write_at(0, &small).unwrap();
        writer.seal().unwrap()
    };
    // The first are granted, and counted so.
    let first = counter.during(|| {
        put();
    });
    assert!(first[0] > 0, "{first:?}");
    let mut ids: Vec<ObjectId> = (0..300).map(|_| put()).collect();
    // Most allocations: those that fit in what is granted.
    let requested = counter.during(|| ids.extend((0..50).map(|_| put())));
    assert!(requested.iter().sum::<u64>() <= 1, "{requested:?}");
    // And all of them, with what is granted meanwhile.
    let requested = counter.during(|| ids.extend((0..COUNT).map(|_| put())));
    eprintln!("puts: {requested:?}");
    let grants = 2;
    assert!(requested.iter().all(|count| *count <= ENTRY_PAGES_MAX + grants), "{requested:?}");
    // Each of these takes a page, so there are some MiB to be granted, at most one at a time.
    let requested = counter.during(|| ids.extend((0..COUNT).map(|_| create())));
    eprintln!("creates: {requested:?}");
    let grants = 8;
    assert!(requested.iter().all(|count| *count <= ENTRY_PAGES_MAX + grants), "{requested:?}");
    for id in &ids {
        let object = a.get(&(*id).into(), NOW).unwrap();
        assert_eq!(&object.view().unwrap()[..], &small[..]);
    }
}
