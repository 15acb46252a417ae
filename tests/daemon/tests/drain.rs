//! A node is drained, and nodes die at every step of a move. The moving name is found at each
//! moment at which all nodes run, at one node in the end, with the same bytes, and can be deleted and
//! given again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use common::nodes::{self, DaemonNodes, LEASE_MS};
use common::{bytes_of, wait_for};
use farrow::{Client, Error, Members, ObjectOptions, Reach, Value};
use farrow_store::failpoints;
use rustix::process::{Pid, Signal, kill_process};

const NOW: Duration = Duration::ZERO;
// Calls, each of which waits for the failpoint to end a daemon.
const MOVES_MAX: usize = 10;
/// It ends before a lease.
const SHORT: Duration = Duration::from_millis(LEASE_MS / 8);
const NAME: &str = "moving";
const LENGTH: usize = 300_000;

/// Options of nodes without shared memory.
const NET: &[&str] = &["--no-prepare", "--net", "only"];
const MAPPED: &[&str] = &["--no-prepare"];

fn begin_drain(client: &Client) {
    client.begin_drain().unwrap();
    wait_for("all members to know", || {
        client.drain_report().unwrap().untold.is_empty().then_some(())
    })
    .unwrap_or_else(|| panic!("{:?}", client.drain_report()));
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

/// Moves everything from node a to node b, whatever is under way.
fn move_all(client: &Client) {
    wait_for("all objects to move", || {
        let left = client.list("").unwrap();
        for one in &left {
            match client.move_object(one.id, "b", deadline()) {
                Ok(_) | Err(Error::NotFound { .. } | Error::NotMoved(_)) => {}
                Err(error) => eprintln!("{:?} has not moved: {error}", one.name),
            }
        }
        left.is_empty().then_some(())
    })
    .unwrap();
}

/// The number of objects with the name, on all nodes.
fn count(nodes: &DaemonNodes) -> usize {
    let number = |daemon: &common::Daemon| {
        let all = daemon.client().list(NAME).unwrap();
        all.into_iter().filter(|one| one.name.as_deref() == Some(NAME)).count()
    };
    nodes.daemons.iter().map(number).sum()
}

/// What each node has, for a test that fails.
fn where_it_is(nodes: &DaemonNodes) -> String {
    let mut text = String::new();
    for (number, daemon) in nodes.daemons.iter().enumerate() {
        let client = daemon.client();
        let names = client.list("").unwrap().into_iter().map(|one| (one.name, one.id));
        let (names, report) = (names.collect::<Vec<_>>(), client.drain_report().unwrap());
        let members = client.members().unwrap().nodes;
        let members =
            members.iter().map(|one| (&one.name, one.reach, &one.fabric, one.is_draining));
        let members = members.collect::<Vec<_>>();
        let found = client.contains(&NAME.into());
        text += &format!("\n{number}: {names:?}; {report:?}; {members:?}; contains: {found:?}");
    }
    text
}

fn assert_found(nodes: &DaemonNodes, what: &str) {
    for number in 0..nodes.daemons.len() {
        let object = nodes.client(number).get(&NAME.into(), NOW);
        let object = object.unwrap_or_else(|error| {
            panic!("{what}: lost at {number}: {error}; {}", where_it_is(nodes))
        });
        assert_eq!(&object.view().unwrap()[..], &bytes_of(7, LENGTH)[..], "{what}");
    }
}

/// Begins a drain of node a and moves the object to node b, until node `victim` dies at a point of that.
/// The call waits for its daemon no longer than `timeout`.
fn move_until_death(
    nodes: &mut DaemonNodes,
    (place, victim): (&str, usize),
    timeout: Duration,
    what: &str,
) {
    nodes.restart_with_failpoint(victim, place, 1);
    let client = nodes.client_with_timeout(0, timeout);
    begin_drain(&client);
    let id = client.list(NAME).unwrap()[0].id;
    // A busy machine may end the call before the node has begun to move the object.
    for _ in 0..MOVES_MAX {
        let moved = client.move_object(id, "b", deadline());
        if let Some(ended) = nodes.daemons[victim].ended_within(Duration::from_secs(5)) {
            assert_eq!(ended.signal(), Some(6), "{what}: not passed: {moved:?}");
            return;
        }
    }
    panic!("{what}: not passed in {MOVES_MAX} moves");
}

/// Node `victim` dies at a point of a move from a to b, and is restarted at once, or after the others
/// have excluded it.
fn die_at(place: &str, victim: usize, is_late: bool, flags: &[&str]) {
    let what = format!("{place} of {victim}, late: {is_late}, {flags:?}");
    let mut nodes = DaemonNodes::start(3, "16M", flags);
    let options = ObjectOptions { name: Some(NAME), ..ObjectOptions::default() };
    nodes.client(0).put_with(&Value::Bytes(&bytes_of(7, LENGTH)), &options).unwrap();
    nodes.client(0).pin(&[NAME.into()]).unwrap();
    nodes.client(0).put(&Value::Bytes(b"other"), Some("other")).unwrap();
    // The node is started again after the call.
    move_until_death(&mut nodes, (place, victim), Duration::from_secs(3), &what);
    if is_late {
        let lost = char::from(b'a' + victim as u8).to_string();
        nodes::wait_for(&nodes.client(2), |members| {
            members.find(&lost).is_some_and(|one| one.reach == Reach::Lost)
        });
        std::thread::sleep(Duration::from_millis(LEASE_MS / 4));
    }
    nodes.daemons[victim].restart();
    nodes.settle(3);
    wait_for("one object of the name", || {
        assert_found(&nodes, &what);
        let count = count(&nodes);
        assert!((1..=2).contains(&count), "{what}: {count} objects");
        (count == 1).then_some(())
    })
    .unwrap_or_else(|| panic!("{what}: {} objects", count(&nodes)));
    // The drain goes on, and ends.
    let client = nodes.client(0);
    assert!(client.drain_report().unwrap().is_draining, "{what}: the drain is forgotten");
    begin_drain(&client);
    move_all(&client);
    assert_found(&nodes, &what);
    let moved = nodes.client(1).list("").unwrap();
    let pinned = moved.iter().filter(|one| one.is_pinned).map(|one| one.name.as_deref());
    assert_eq!((moved.len(), pinned.collect::<Vec<_>>()), (2, vec![Some(NAME)]), "{what}");
    nodes.client(2).delete(&[NAME.into()]).unwrap();
    for number in 0..3 {
        assert!(!nodes.client(number).contains(&NAME.into()).unwrap(), "{what}: undeleted");
    }
    nodes.client(2).put(&Value::Bytes(b"again"), Some(NAME)).unwrap();
    assert_eq!(count(&nodes), 1, "{what}");
}

/// Which node passes a point: the source, or the target.
fn victim_of(place: &str) -> usize {
    usize::from(place.starts_with("take"))
}

#[test]
fn a_node_that_dies_at_any_step_of_a_move_loses_nothing() {
    for place in failpoints::OF_NODES {
        die_at(place, victim_of(place), false, MAPPED);
    }
}

#[test]
fn a_node_that_dies_at_any_step_and_is_excluded_loses_nothing() {
    for place in failpoints::OF_NODES {
        die_at(place, victim_of(place), true, MAPPED);
    }
}

#[test]
fn nodes_without_shared_memory_lose_nothing_either() {
    for place in failpoints::OF_NODES {
        die_at(place, victim_of(place), false, NET);
    }
}

#[test]
fn a_client_that_dies_leaves_the_object_where_it_is() {
    let nodes = DaemonNodes::start(2, "16M", MAPPED);
    let client = nodes.client(0);
    client.put(&Value::Bytes(&bytes_of(7, LENGTH)), Some(NAME)).unwrap();
    begin_drain(&client);
    let id = client.list(NAME).unwrap()[0].id;
    // Without the bytes at the target nothing moves.
    let late = client.move_object(id, "nowhere", deadline());
    assert!(matches!(late, Err(Error::InvalidArgument(_))), "{late:?}");
    assert_eq!(count(&nodes), 1);
    let free = nodes.client(1).stats().unwrap().node.free;
    client.cancel_drain().unwrap();
    let refused = client.move_object(id, "b", deadline());
    assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
    assert_eq!(nodes.client(1).stats().unwrap().node.free, free, "the copy is gone");
    assert_found(&nodes, "after a refused move");
}

#[test]
fn a_draining_node_that_returns_is_known_to_drain_before_anything_moves() {
    let nodes = DaemonNodes::start(3, "16M", MAPPED);
    let client = nodes.client(0);
    client.put(&Value::Bytes(&bytes_of(7, LENGTH)), Some(NAME)).unwrap();
    begin_drain(&client);
    let pid = Pid::from_raw(nodes.daemons[0].pid().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let is_lost = |members: &Members| members.find("a").is_some_and(|a| a.reach == Reach::Lost);
    nodes::wait_for(&nodes.client(1), is_lost);
    kill_process(pid, Signal::CONT).unwrap();
    for number in [1, 2] {
        nodes::wait_for(&nodes.client(number), |members| {
            members.find("a").is_some_and(|a| a.reach == Reach::Live && a.is_draining)
        });
    }
    move_all(&client);
    assert_found(&nodes, "moved after the return");
}

#[test]
fn an_object_that_moves_is_replaced_once_its_old_node_has_removed_it() {
    let mut nodes = DaemonNodes::start(3, "16M", MAPPED);
    nodes.client(0).put(&Value::Bytes(b"old"), Some(NAME)).unwrap();
    move_until_death(&mut nodes, ("move.taken", 0), SHORT, "move.taken");
    // The old object is in mapped memory, and readers at the third node find it there.
    let (writer, reader) = (nodes.client(1), nodes.client(2));
    let replace = ObjectOptions { replace: true, ..ObjectOptions::named(Some(NAME)) };
    std::thread::scope(|scope| {
        let put = scope.spawn(|| {
            wait_for("the replacement", || match writer.put_with(&Value::Bytes(b"new"), &replace) {
                Ok(_) => Some(()),
                Err(Error::NotMoved(_) | Error::Timeout { .. } | Error::NodeLost { .. }) => None,
                Err(error) => panic!("{error}"),
            })
        });
        std::thread::sleep(SHORT);
        let is_early = put.is_finished();
        // It may wait for the old node, which has to be back within its lease.
        let read = scope.spawn(|| reader.get(&NAME.into(), NOW).unwrap());
        std::thread::sleep(SHORT);
        nodes.daemons[0].restart();
        let seen = read.join().unwrap();
        let seen = seen.view().unwrap().to_vec();
        assert!(!is_early || seen == b"new", "{:?} after the replacement", seen.as_slice());
        put.join().unwrap().unwrap();
    });
    for number in 0..3 {
        let seen = nodes.client(number).get(&NAME.into(), NOW).unwrap();
        assert_eq!(&seen.view().unwrap()[..], b"new", "at {number}");
    }
    assert_eq!(count(&nodes), 1);
}

/// Regression test: the target waited for a notice that its source could not send any more.
#[test]
fn an_object_that_moved_is_replaced_though_its_old_node_died_before_it_said_so() {
    let mut nodes = DaemonNodes::start(2, "16M", MAPPED);
    nodes.client(0).put(&Value::Bytes(b"old"), Some(NAME)).unwrap();
    move_until_death(&mut nodes, ("move.ended", 0), SHORT, "move.ended");
    nodes.daemons[0].restart();
    nodes.settle(2);
    let replace = ObjectOptions { replace: true, ..ObjectOptions::named(Some(NAME)) };
    nodes.client(1).put_with(&Value::Bytes(b"new"), &replace).unwrap();
    assert_eq!(&nodes.client(0).get(&NAME.into(), NOW).unwrap().view().unwrap()[..], b"new");
}
