//! Several nodes as one store: real daemons of one machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::time::{Duration, Instant};

use common::nodes::{DaemonNodes, wait_for};
use common::{PATIENCE, bytes_of, scripted_client};
use farrow::error::BarrierBroken;
use farrow::{Client, Error, Reach, Value};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

const NOW: Duration = Duration::ZERO;
/// Where nothing is killed: on a busy machine a live node is not to be thought lost.
const CALM: &[&str] = &["--lease-ms", "20000"];
const SOON: Duration = Duration::from_secs(20);
/// Longer than anything here may take on a busy machine.
const WHILE: Duration = Duration::from_secs(50);

/// Not a test by itself: a child process plays a client.
#[test]
fn scripted_client() {
    scripted_client::play();
}

#[test]
fn what_is_put_on_one_node_is_used_in_place_on_all() {
    let nodes = DaemonNodes::start(3, "64MiB", CALM);
    let clients: Vec<_> = (0..3).map(|number| nodes.client(number)).collect();
    let text = vec![7_u8; 300_000];
    // In the memory of a, from b.
    let id = clients[1].at("a").unwrap().put(&Value::Bytes(&text), Some("far")).unwrap();
    for client in &clients {
        let object = client.get(&"far".into(), NOW).unwrap();
        assert_eq!((object.id(), &object.view().unwrap()[..]), (id, &text[..]));
        let by_id = client.get(&id.into(), NOW).unwrap();
        assert_eq!(by_id.id(), id);
    }
    assert_eq!(clients[0].stats().unwrap().node.objects, 1, "it lies in the memory of a");
    assert_eq!(clients[1].stats().unwrap().node.objects, 0);
    // Without a name, so without a message.
    let far = clients[2].at("b").unwrap();
    let ids: Vec<_> =
        (0..100_u8).map(|n| far.put(&Value::Bytes(&[n; 100]), None).unwrap()).collect();
    for (n, id) in ids.iter().enumerate() {
        let object = clients[0].get(&(*id).into(), NOW).unwrap();
        assert_eq!(&object.view().unwrap()[..], &[n as u8; 100]);
    }
    clients[0].delete(&["far".into()]).unwrap();
    assert!(!clients[2].contains(&"far".into()).unwrap());
    assert!(matches!(clients[1].get(&"far".into(), NOW), Err(Error::NotFound { .. })));
}

#[test]
fn a_wait_ends_when_a_name_is_sealed_on_another_node() {
    let nodes = DaemonNodes::start(2, "64MiB", CALM);
    let (a, b) = (nodes.client(0), nodes.client(1));
    let waiting = std::thread::spawn(move || {
        let object = a.get(&"late".into(), SOON).unwrap();
        object.view().unwrap().to_vec()
    });
    std::thread::sleep(Duration::from_millis(50));
    b.put(&Value::Bytes(b"here"), Some("late")).unwrap();
    assert_eq!(waiting.join().unwrap(), b"here");
}

#[test]
fn a_killed_node_is_an_error_that_names_it_and_nothing_else_stops() {
    let mut nodes = DaemonNodes::start(3, "64MiB", &[]);
    let (a, b) = (nodes.client(0), nodes.client(1));
    b.put(&Value::Bytes(b"on b"), Some("on b")).unwrap();
    let far = a.at("c").unwrap();
    let id = far.put(&Value::Bytes(b"on c"), Some("on c")).unwrap();
    let held = a.get(&"on c".into(), NOW).unwrap();
    nodes.daemons[2].kill9();
    let killed = Instant::now();
    let lost = loop {
        // The first call that fails names it, not the socket of the client's own node.
        match far.create(1 << 20, Some("new")) {
            Err(Error::NodeLost { node, .. }) => break node,
            Ok(writer) => drop(writer),
            Err(error) => panic!("{error}"),
        }
        assert!(killed.elapsed() < PATIENCE, "no error that names it");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(lost, "c");
    wait_for(&a, |members| members.find("c").unwrap().reach == Reach::Lost && members.has_lease);
    // What is held stays good, and what lies elsewhere is found.
    assert_eq!(&held.view().unwrap()[..], b"on c");
    assert_eq!(&a.get(&"on b".into(), NOW).unwrap().view().unwrap()[..], b"on b");
    a.put(&Value::Bytes(b"still"), Some("still")).unwrap();
    assert_eq!(&b.get(&"still".into(), NOW).unwrap().view().unwrap()[..], b"still");
    for target in ["on c".into(), id.into()] {
        match a.get(&target, NOW) {
            Err(Error::NodeLost { node, .. }) => assert_eq!(node, "c"),
            other => panic!("{other:?}"),
        }
    }
    // It comes back with what it had.
    nodes.daemons[2].restart();
    nodes.settle(3);
    assert_eq!(&a.get(&"on c".into(), SOON).unwrap().view().unwrap()[..], b"on c");
    far.put(&Value::Bytes(b"again"), Some("again")).unwrap();
    assert_eq!(&b.get(&"again".into(), NOW).unwrap().view().unwrap()[..], b"again");
}

#[test]
fn one_of_many_that_make_a_name_at_once_has_it() {
    let nodes = DaemonNodes::start(3, "64MiB", CALM);
    let clients: Vec<_> = (0..3).map(|number| nodes.client(number)).collect();
    for round in 0..20 {
        let name = format!("race {round}");
        let wins: Vec<bool> = std::thread::scope(|scope| {
            let threads: Vec<_> = clients
                .iter()
                .enumerate()
                .map(|(number, client)| {
                    let (name, home) = (&name, &nodes.names[(number + round) % 3]);
                    scope.spawn(move || {
                        let value = [number as u8; 10];
                        let client = client.at(home).unwrap();
                        match client.put(&Value::Bytes(&value), Some(name)) {
                            Ok(_) => true,
                            Err(Error::AlreadyExists { .. }) => false,
                            Err(error) => panic!("{error}"),
                        }
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(wins.iter().filter(|won| **won).count(), 1, "{name}: {wins:?}");
        let winner = wins.iter().position(|won| *won).unwrap() as u8;
        for client in &clients {
            let object = client.get(&name.as_str().into(), NOW).unwrap();
            assert_eq!(&object.view().unwrap()[..], &[winner; 10]);
        }
    }
}

#[test]
fn what_a_dead_client_of_another_node_held_and_was_granted_comes_back() {
    let nodes = DaemonNodes::start(2, "64MiB", CALM);
    let a = nodes.client(0);
    let id = a.put(&Value::Bytes(&bytes_of(5, 1 << 20)), Some("held")).unwrap();
    let before = a.stats().unwrap().node;
    let mut scripted_client = scripted_client::ScriptedClient::start(&nodes.daemons[1].socket);
    for command in ["at a", "hold 1 held 5 1048576", "create 2 - 2097152"] {
        assert_eq!(
            scripted_client.ask(command),
            scripted_client::ScriptedAnswer::Done(String::new()),
            "{command}"
        );
    }
    let during = a.stats().unwrap().node;
    assert_eq!(during.clients, before.clients + 1);
    assert!(during.granted >= before.granted + (2 << 20), "{during:?}");
    a.delete(&[id.into()]).unwrap();
    assert!(a.stats().unwrap().node.retiring >= 1 << 20);
    scripted_client.kill9();
    let until = Instant::now() + PATIENCE;
    loop {
        let after = a.stats().unwrap().node;
        if after.clients == before.clients && after.retiring == 0 {
            assert_eq!(after.granted, before.granted);
            break;
        }
        assert!(Instant::now() < until, "{after:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A node without a descriptor left to watch a client of another node with took it for dead, and what
/// that was reading for free.
#[test]
fn a_client_that_cannot_be_watched_keeps_what_it_holds() {
    const BYTES: u64 = 1 << 20;
    let mut nodes = DaemonNodes::start(2, "64MiB", CALM);
    let a = nodes.client(0);
    a.put(&Value::Bytes(&bytes_of(5, BYTES as usize)), Some("held")).unwrap();
    let mut scripted_client = scripted_client::ScriptedClient::start(&nodes.daemons[1].socket);
    for command in ["at a", "hold 1 held 5 1048576"] {
        assert_eq!(
            scripted_client.ask(command),
            scripted_client::ScriptedAnswer::Done(String::new()),
            "{command}"
        );
    }
    a.delete(&["held".into()]).unwrap();
    let pid = Pid::from_raw(nodes.daemons[0].pid() as i32);
    let limit = |current| {
        let limit = Rlimit { current, maximum: getrlimit(Resource::Nofile).maximum };
        prlimit(pid, Resource::Nofile, limit).unwrap().current
    };
    // Less than it has open.
    let before = limit(Some(4));
    nodes.daemons[1].kill9();
    let stays = |why: &str| {
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            let node = a.stats().unwrap().node;
            assert!(node.retiring >= BYTES, "{why}: {node:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    stays("its node's daemon was killed");
    limit(before);
    nodes.daemons[1].restart();
    nodes.settle(2);
    stays("it is seen again");
    assert_eq!(
        scripted_client.ask("check 1"),
        scripted_client::ScriptedAnswer::Done(String::new())
    );
    scripted_client.kill9();
    let is_back = || (a.stats().unwrap().node.retiring == 0).then_some(());
    common::wait_for("what a dead client held", is_back).unwrap();
}

#[test]
fn a_barrier_releases_clients_of_all_nodes_or_names_who_does_not_come() {
    // A busy machine may not let a daemon run for some seconds: only what is killed is to be lost.
    let mut nodes = DaemonNodes::start(3, "64MiB", &["--lease-ms", "6000"]);
    let clients: Vec<_> = (0..3).map(|number| nodes.client(number)).collect();
    let passed = farrow_memory::sync::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                for round in 1..=30 {
                    client.barrier("rounds", 3, SOON).unwrap();
                    passed.fetch_add(1, farrow_memory::sync::Ordering::SeqCst);
                    client.barrier("counted", 3, SOON).unwrap();
                    let all = passed.load(farrow_memory::sync::Ordering::SeqCst);
                    assert_eq!(all, 3 * round, "nobody passes before all have come");
                    client.barrier("looked", 3, SOON).unwrap();
                }
            });
        }
    });
    let late = clients[0].barrier("alone", 2, Duration::from_millis(50)).unwrap_err();
    assert!(
        matches!(&late, Error::BarrierBroken(BarrierBroken { name, .. }) if name == "alone"),
        "{late}"
    );
    // A client that passed once and ends is not waited for.
    let leaver = nodes.client(1);
    std::thread::scope(|scope| {
        scope.spawn(|| clients[0].barrier("pair", 2, SOON).unwrap());
        leaver.barrier("pair", 2, SOON).unwrap();
    });
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| clients[0].barrier("pair", 2, SOON).unwrap_err());
        std::thread::sleep(Duration::from_millis(50));
        drop(leaver);
        let error = waiting.join().unwrap();
        let Error::BarrierBroken(BarrierBroken { who, .. }) = &error else { panic!("{error}") };
        assert!(who.contains(&std::process::id().to_string()), "{who}");
    });
    // Nor is one of a node that is lost.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let waits: Vec<_> = ["x", "y", "z", "w"]
                .map(|name| {
                    let client = &clients[0];
                    scope.spawn(move || client.barrier(name, 3, SOON).unwrap_err())
                })
                .into();
            waits.into_iter().map(|wait| wait.join().unwrap()).collect::<Vec<_>>()
        });
        let others: Vec<_> = ["x", "y", "z", "w"]
            .map(|name| {
                let client = &clients[2];
                scope.spawn(move || drop(client.barrier(name, 3, SOON)))
            })
            .into();
        std::thread::sleep(Duration::from_millis(300));
        nodes.daemons[2].kill9();
        for error in waiting.join().unwrap() {
            let text = error.to_string();
            assert!(text.contains("node c") || text.contains("node \"c\""), "{text}");
        }
        nodes.daemons[2].restart();
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

/// A daemon that slept for longer than its lease, or was not let run, comes back as a new life: what
/// its clients waited for at other nodes was forgotten there.
#[test]
fn waits_end_with_an_error_when_the_others_went_on_without_a_node() {
    let nodes = DaemonNodes::start(3, "64MiB", &[]);
    let (a, b) = (nodes.client(0), nodes.client(1));
    let names: Vec<String> = (0..24).map(|number| format!("barrier {number}")).collect();
    let retained = |client: &Client| -> Vec<u64> {
        names.iter().map(|name| client.set_flags(name, 0, 0).unwrap()).collect()
    };
    names.iter().for_each(|name| assert_eq!(b.set_flags(name, 1, 0).unwrap(), 1));
    std::thread::scope(|scope| {
        let mut waits = Vec::new();
        for (client, name) in
            [&a, &b].into_iter().flat_map(|client| names.iter().map(move |name| (client, name)))
        {
            waits.push(scope.spawn(move || client.barrier(name, 3, WHILE)));
        }
        std::thread::sleep(Duration::from_millis(300));
        let pid = Pid::from_raw(nodes.daemons[0].pid() as i32).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        wait_for(&b, |members| members.find("a").unwrap().reach == Reach::Lost);
        kill_process(pid, Signal::CONT).unwrap();
        let began = Instant::now();
        for wait in waits {
            let error = wait.join().unwrap().unwrap_err();
            let is_right = match &error {
                // Retained by a node that is lost, or was.
                Error::NodeLost { node, .. } | Error::CutOff { node, .. } => node == "a",
                // Retained by one that goes on without the other's client.
                Error::BarrierBroken(BarrierBroken { who, .. }) => {
                    who.contains("node a") || who.contains("node b")
                }
                _ => false,
            };
            assert!(is_right, "{error}");
        }
        assert!(
            began.elapsed() < WHILE / 2,
            "{:?}: nobody waits for the time limit",
            began.elapsed()
        );
    });
    // It takes part again. What it retained was lost to the others, and does not come back.
    nodes.settle(3);
    let flags = retained(&b);
    assert_eq!(retained(&a), flags);
    assert!(flags.contains(&0) && flags.contains(&1), "{flags:?}");
    for name in &names {
        std::thread::scope(|scope| {
            scope.spawn(|| a.barrier(name, 2, SOON).unwrap());
            b.barrier(name, 2, SOON).unwrap();
        });
    }
}

#[test]
fn flags_wake_clients_of_other_nodes() {
    let nodes = DaemonNodes::start(2, "64MiB", CALM);
    let (a, b) = (nodes.client(0), nodes.client(1));
    for round in 0..20_u32 {
        let name = format!("flags {round}");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| a.wait_flags(&name, 0b101, SOON).unwrap());
            b.set_flags(&name, 0b1, 0).unwrap();
            b.set_flags(&name, 0b100, 0).unwrap();
            assert_eq!(waiting.join().unwrap(), 0b101);
        });
        assert_eq!(a.set_flags(&name, 0, 0b1).unwrap(), 0b100);
        let late = b.wait_flags(&name, 0b1, Duration::from_millis(5)).unwrap_err();
        assert!(matches!(late, Error::Timeout { .. }), "{late}");
    }
}

/// Each name is retained by one node of the view: a node that joins takes over its share, with what is
/// set and who waits.
#[test]
fn flags_and_barriers_outlive_a_change_of_nodes() {
    let mut nodes = DaemonNodes::start(3, "64MiB", CALM);
    let (a, b) = (nodes.client(0), nodes.client(1));
    // Others take over what this one retained, and later it comes back.
    b.shut_down_node().unwrap();
    assert!(nodes.daemons[1].wait_end().success());
    drop(b);
    nodes.settle(2);
    let names: Vec<String> = (0..12).map(|number| format!("name {number}")).collect();
    let c = nodes.client(2);
    for name in &names {
        assert_eq!(a.set_flags(name, 0b101, 0).unwrap(), 0b101);
        assert_eq!(c.set_flags(name, 0, 0b1).unwrap(), 0b100);
    }
    std::thread::scope(|scope| {
        let mut waits = Vec::new();
        for (client, name) in
            [&a, &c].into_iter().flat_map(|one| names.iter().map(move |n| (one, n)))
        {
            waits.push(scope.spawn(move || client.barrier(name, 3, WHILE).map(|()| 0)));
            waits.push(scope.spawn(move || client.wait_flags(name, 0b1100, WHILE)));
        }
        std::thread::sleep(Duration::from_millis(200));
        nodes.daemons[1].restart();
        nodes.settle(3);
        let b = nodes.client(1);
        for name in &names {
            assert_eq!(b.wait_flags(name, 0b100, SOON).unwrap(), 0b100, "{name}");
            assert_eq!(b.set_flags(name, 0b1000, 0).unwrap(), 0b1100, "{name}");
        }
        for name in &names {
            b.barrier(name, 3, SOON).unwrap();
        }
        for wait in waits {
            let value = wait.join().unwrap().unwrap();
            assert!([0, 0b1100].contains(&value), "{value:#b}");
        }
    });
}

/// What a node keeps is handed over before it goes: flags, who waits, and whose end the others are to
/// hear of.
#[test]
fn a_node_that_ends_in_good_order_hands_over_flags_and_barriers() {
    let mut nodes = DaemonNodes::start(3, "64MiB", CALM);
    let (a, c) = (nodes.client(0), nodes.client(2));
    let names: Vec<String> = (0..12).map(|number| format!("name {number}")).collect();
    for name in &names {
        assert_eq!(a.set_flags(name, 0b101, 0).unwrap(), 0b101);
        std::thread::scope(|scope| {
            scope.spawn(|| a.barrier(name, 2, SOON).unwrap());
            c.barrier(name, 2, SOON).unwrap();
        });
    }
    std::thread::scope(|scope| {
        let mut flags = Vec::new();
        let mut barriers = Vec::new();
        for name in &names {
            flags.push(scope.spawn(|| a.wait_flags(name, 0b1100, WHILE)));
            barriers.push(scope.spawn(|| a.barrier(name, 2, WHILE)));
        }
        std::thread::sleep(Duration::from_millis(200));
        nodes.client(1).shut_down_node().unwrap();
        assert!(nodes.daemons[1].wait_end().success());
        nodes.settle(2);
        for name in &names {
            assert_eq!(c.wait_flags(name, 0b101, SOON).unwrap(), 0b101, "{name}");
            assert_eq!(c.set_flags(name, 0b1000, 0).unwrap(), 0b1101, "{name}");
        }
        for wait in flags {
            assert_eq!(wait.join().unwrap().unwrap(), 0b1101);
        }
        // A member of the last time: nobody waits for it in vain, wherever the barrier is now.
        let began = Instant::now();
        drop(c);
        for wait in barriers {
            let error = wait.join().unwrap().unwrap_err();
            let is_right = matches!(
                &error,
                Error::BarrierBroken(BarrierBroken { who, .. }) if who.contains("node c")
            );
            assert!(is_right, "{error}");
        }
        assert!(began.elapsed() < WHILE / 2, "{:?}", began.elapsed());
    });
}

#[test]
fn a_node_that_ends_in_good_order_leaves_at_once_and_its_peers_continue() {
    let mut nodes = DaemonNodes::start(3, "64MiB", &["--lease-ms", "30000"]);
    let a = nodes.client(0);
    nodes.client(2).shut_down_node().unwrap();
    assert!(nodes.daemons[2].wait_end().success());
    // Long before its lease is over.
    let members = wait_for(&a, |members| members.find("c").unwrap().reach == Reach::Left);
    assert!(members.has_lease);
    a.put(&Value::Bytes(b"on"), Some("on")).unwrap();
    assert!(nodes.client(1).contains(&"on".into()).unwrap());
}

fn node_local() -> (DaemonNodes, tempfile::TempDir) {
    DaemonNodes::node_local(2, 32 << 20, &[], &["--no-prepare", "--lease-ms", "20000"])
}

fn fabric(client: &farrow::Client) -> farrow::FabricStats {
    client.stats().unwrap().fabrics["device"].clone()
}

/// What calls copy is published by them, what they leave out by the seal, and who wrote every byte of
/// an object has nothing of it to refresh.
#[test]
fn an_object_written_in_place_is_published_once_and_not_refreshed_by_its_writer() {
    let (nodes, _dir) = node_local();
    let (a, b) = (nodes.client(0), nodes.client(1));
    let far = b.at("a").unwrap();
    for bytes in [100, 5000, 3 << 20] {
        let value = bytes_of(7, bytes);
        let lines = (bytes as u64).next_multiple_of(4096) / 64;
        for is_copied in [true, false] {
            let before = fabric(&far);
            let writer = far.create(bytes as u64, Some("written")).unwrap();
            let memory = writer.memory();
            if is_copied {
                let (head, tail) = value.split_at(bytes / 3);
                memory.write_at(head.len() as u64, tail).unwrap();
                memory.write_at(0, head).unwrap();
            } else {
                // SAFETY: all these bytes are writable, and no other thread knows them.
                let all = unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr(), bytes) };
                all.copy_from_slice(&value);
            }
            writer.seal().unwrap();
            let after = fabric(&far);
            let published = after.published_lines - before.published_lines;
            assert!(published <= lines + 300, "{bytes} {is_copied}: {published} of {lines}");
            assert!(is_copied || published >= lines, "{bytes}: {published} of {lines}");
            let refreshed = after.refreshed_lines - before.refreshed_lines;
            // Beside its own lines there are those of the directory.
            let is_right = match is_copied {
                true => refreshed < 100,
                false => refreshed >= bytes as u64 / 64,
            };
            assert!(is_right, "{bytes} {is_copied}: {refreshed}");
            let found = a.get(&"written".into(), NOW).unwrap();
            assert_eq!(&found.view().unwrap()[..], value, "{bytes} {is_copied}");
            drop(found);
            far.delete(&["written".into()]).unwrap();
        }
    }
    // A page that calls did not write to may hold lines of its last use: the seal publishes it.
    let before = fabric(&far);
    let writer = far.create(64 << 10, Some("with gaps")).unwrap();
    writer.memory().write_at(4096, &[1; 4096]).unwrap();
    writer.seal().unwrap();
    let published = fabric(&far).published_lines - before.published_lines;
    assert!(published >= 15 * 64, "{published}");
    // What it did not write it may know from another object: it reads what all others read.
    assert!(fabric(&far).refreshed_lines - before.refreshed_lines >= 16 * 64);
}

#[test]
fn memory_that_is_coherent_only_inside_a_machine_is_published_refreshed_and_cleaned() {
    let (nodes, _dir) = node_local();
    let (a, b) = (nodes.client(0), nodes.client(1));
    let far = b.at("a").unwrap();
    let value = bytes_of(3, 1 << 20);
    let id = far.put(&Value::Bytes(&value), Some("far")).unwrap();
    let ids: Vec<_> =
        (0..50).map(|n| far.put(&Value::Bytes(&bytes_of(n, 500)), None).unwrap()).collect();
    let published = fabric(&far);
    assert!(published.published_lines > 0, "{published:?}");
    let before = fabric(&a);
    for _ in 0..3 {
        assert_eq!(&a.get(&"far".into(), NOW).unwrap().view().unwrap()[..], value);
    }
    let lines = (1 << 20) / 64;
    let refreshed = fabric(&a).refreshed_lines - before.refreshed_lines;
    assert!((lines..lines + 1000).contains(&refreshed), "once, not three times: {refreshed}");
    // Nor once more by other clients of the same node and user; on the other node once too.
    for (number, is_first) in [(0, false), (1, true), (1, false)] {
        let client = nodes.client(number).at("a").unwrap();
        let before = fabric(&client);
        assert_eq!(&client.get(&"far".into(), NOW).unwrap().view().unwrap()[..], value);
        let refreshed = fabric(&client).refreshed_lines - before.refreshed_lines;
        assert_eq!(refreshed >= lines, is_first, "node {number}: {refreshed}");
        assert!(refreshed < 1000 || is_first, "node {number}: {refreshed}");
    }
    for (n, id) in (0..).zip(&ids) {
        assert_eq!(&a.get(&(*id).into(), NOW).unwrap().view().unwrap()[..], bytes_of(n, 500));
    }
    // A reader on the other machine keeps it, and its death leaves nothing in quarantine.
    let mut scripted_client = scripted_client::ScriptedClient::start(&nodes.daemons[1].socket);
    let done = scripted_client::ScriptedAnswer::Done(String::new());
    for command in ["at a", "hold 1 far 3 1048576", "create 2 - 2097152"] {
        assert_eq!(scripted_client.ask(command), done, "{command}");
    }
    a.delete(&[id.into()]).unwrap();
    assert!(a.stats().unwrap().node.retiring >= 1 << 20);
    scripted_client.kill9();
    let until = Instant::now() + PATIENCE;
    loop {
        let node = a.stats().unwrap().node;
        let all = node.used + node.granted + node.retiring + node.quarantine + node.free;
        assert_eq!(node.capacity, all, "{node:?}");
        if node.retiring == 0 && node.quarantine == 0 && node.clients == 2 {
            break;
        }
        assert!(Instant::now() < until, "{node:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
