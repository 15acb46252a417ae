//! `--upgrade`: a daemon follows another, and neither readers nor writers notice.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::nodes::DaemonNodes;
use common::raw::RawSocket;
use common::{Daemon, PATIENCE, assert_balanced, bytes_of, client_at, this_test_again, wait_for};
use farrow::{Client, ConnectOptions, Error, ObjectKey, Value};
use farrow_memory::sync;
use farrow_wire::link::Link;
use farrow_wire::{
    self as wire, BATCH_ITEMS_MAX, Hello, Inheritance, PROTOCOL_VERSION, Reply, ReplyBody, Request,
    RequestBody, SealItem, WireError, WireObjectId, WireTarget,
};
use rustix::process::{Pid, Signal, kill_process};

const UPGRADES: u64 = 10;

/// Objects that the readers read all the time, and their bytes.
const READ: [(&str, usize); 3] = [("small", 1000), ("large", 3 << 20), ("odd", 70_001)];

/// Set in the environment of a child that plays the readers.
const CHILD_SOCKET: &str = "FARROW_TEST_UPGRADE_SOCKET";

/// Not a test by itself: two threads that get, read and let go until standard input ends, then
/// say how often.
#[test]
fn child_readers() {
    let Ok(socket) = std::env::var(CHILD_SOCKET) else {
        return;
    };
    let client = client_at(Path::new(&socket));
    let stop = sync::AtomicBool::new(false);
    let held = client.get(&"large".into(), Duration::ZERO).unwrap().view().unwrap();
    let rounds: u64 = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2).map(|_| scope.spawn(|| read_until(&client, &stop))).collect();
        println!("\nreading");
        let _ = std::io::stdin().read(&mut [0; 1]);
        stop.store(true, sync::Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    assert_eq!(&held[..], &bytes_of(1, 3 << 20)[..], "held all the time");
    println!("\nrounds {rounds}");
}

fn read_until(client: &Client, stop: &sync::AtomicBool) -> u64 {
    let expected: Vec<Vec<u8>> =
        (0..).zip(READ).map(|(seed, (_, length))| bytes_of(seed, length)).collect();
    let mut rounds = 0;
    while !stop.load(sync::Ordering::Relaxed) {
        for ((name, _), bytes) in READ.iter().zip(&expected) {
            let object = client.get(&(*name).into(), Duration::ZERO).unwrap();
            assert_eq!(&object.view().unwrap()[..], &bytes[..]);
        }
        assert!(client.list("").unwrap().len() >= READ.len());
        rounds += 1;
    }
    rounds
}

fn start_readers(socket: &Path) -> Child {
    let mut child = this_test_again("child_readers")
        .env(CHILD_SOCKET, socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_line(&mut child, "reading");
    child
}

fn wait_for_line(child: &mut Child, start: &str) -> String {
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    lines.find_map(|line| line.ok().filter(|line| line.starts_with(start))).expect(start)
}

/// Puts, creates, deletes, waits and connects without end; every call must succeed.
fn write_until(daemon: &Path, stop: &sync::AtomicBool, number: u64) -> u64 {
    let client = client_at(daemon);
    let options = ConnectOptions { timeout: PATIENCE, ..ConnectOptions::at(daemon) };
    let mut rounds = 0;
    while !stop.load(sync::Ordering::Relaxed) {
        let name = format!("w{number}-{rounds}");
        let bytes = bytes_of(rounds, 3000 + (rounds as usize % 7) * 10_000);
        client.put(&Value::Bytes(&bytes), Some(&name)).unwrap();
        let unnamed = client.put(&Value::Bytes(&bytes), None).unwrap();
        let writer = client.create(100, Some("taken in turn"));
        if let Ok(writer) = writer {
            writer.memory().write_at(0, &[7; 100]).unwrap();
            let id = writer.seal().unwrap();
            client.delete(&[id.into()]).unwrap();
        } else {
            assert!(matches!(writer, Err(Error::AlreadyExists { .. })), "{writer:?}");
        }
        let never = ObjectKey::Name(format!("never {number}"));
        assert_eq!(client.wait(&[never], 1, Duration::from_millis(2)).unwrap(), [false]);
        let object = client.get(&name.as_str().into(), Duration::ZERO).unwrap();
        assert_eq!(&object.view().unwrap()[..], &bytes[..]);
        client.delete(&[name.as_str().into(), unnamed.into()]).unwrap();
        let newcomer = Client::connect(&options).unwrap();
        assert!(newcomer.contains(&"small".into()).unwrap());
        rounds += 1;
    }
    rounds
}

#[test]
fn ten_upgrades_fail_no_call_and_no_read() {
    let mut daemon = Daemon::start("64M", &["--no-prepare"]);
    let client = daemon.client();
    for (seed, (name, length)) in (0..).zip(READ) {
        client.put(&Value::Bytes(&bytes_of(seed, length)), Some(name)).unwrap();
    }
    let mut readers = start_readers(&daemon.socket);
    let stop = sync::AtomicBool::new(false);
    let socket = daemon.socket.clone();
    let rounds: Vec<u64> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|number| {
                let (socket, stop) = (&socket, &stop);
                scope.spawn(move || write_until(socket, stop, number))
            })
            .collect();
        for _ in 0..UPGRADES {
            let old = daemon.pid();
            daemon.upgrade();
            assert_ne!(daemon.pid(), old);
            let stats = client.stats().unwrap();
            assert_eq!(stats.node.pid, daemon.pid());
            assert!(stats.node.adopted >= READ.len() as u64, "{stats:?}");
            assert_balanced(&stats);
        }
        stop.store(true, sync::Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    assert!(rounds.iter().all(|rounds| *rounds > 0), "{rounds:?}");
    drop(readers.stdin.take());
    let said = wait_for_line(&mut readers, "rounds");
    assert!(readers.wait().unwrap().success());
    assert_ne!(said, "rounds 0");
    wait_for("the places of those who went", || {
        let node = client.stats().unwrap().node;
        (node.clients == 1 && node.retiring == 0).then_some(())
    })
    .unwrap_or_else(|| panic!("{:?}", client.stats().unwrap()));
    assert_balanced(&client.stats().unwrap());
    assert_eq!(client.list("").unwrap().len(), READ.len());
}

#[test]
fn names_in_creation_waits_and_goodbyes_survive_an_upgrade() {
    let mut daemon = Daemon::start("16M", &["--no-prepare"]);
    let (one, other) = (daemon.client(), daemon.client());
    let writer = one.create(5, Some("mine")).unwrap();
    writer.memory().write_at(0, b"hello").unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| other.get(&"mine".into(), PATIENCE).unwrap());
        daemon.upgrade();
        let third = daemon.client();
        assert!(matches!(third.create(5, Some("mine")), Err(Error::AlreadyExists { .. })));
        writer.seal().unwrap();
        assert_eq!(&waiter.join().unwrap().view().unwrap()[..], b"hello");
    });
    // Given up after its client came back to a daemon that was told of it.
    let aborted = one.create(5, Some("aborted")).unwrap();
    daemon.upgrade();
    one.stats().unwrap();
    aborted.abort();
    drop(other.create(5, Some("aborted")).unwrap());
    // Has not spoken to the new daemon when it goes.
    let silent = daemon.client();
    daemon.upgrade();
    drop(silent);
    wait_for("its place", || (one.stats().unwrap().node.clients == 2).then_some(()))
        .unwrap_or_else(|| panic!("{:?}", one.stats().unwrap()));
    drop(other);
}

/// Regression test: an upgrade cleared all flags without a word, and who waited for them waited for
/// ever.
#[test]
fn flags_survive_an_upgrade() {
    let mut daemon = Daemon::start("8M", &["--no-prepare"]);
    let client = daemon.client();
    assert_eq!(client.set_flags("ready", 0b101, 0).unwrap(), 0b101);
    client.set_flags("cleared", 0b1, 0).unwrap();
    client.set_flags("cleared", 0, 0b1).unwrap();
    for _ in 0..2 {
        daemon.upgrade();
        assert_eq!(client.wait_flags("ready", 0b101, PATIENCE).unwrap(), 0b101);
        assert_eq!(client.set_flags("cleared", 0b10, 0b10).unwrap(), 0b10);
        assert_eq!(client.set_flags("cleared", 0, 0b10).unwrap(), 0);
    }
    assert_eq!(client.set_flags("ready", 0b10, 0b1).unwrap(), 0b110);
    assert_eq!(daemon.client().wait_flags("ready", 0b110, PATIENCE).unwrap(), 0b110);
}

/// As above, in a cluster: whichever node has the flags of a name, and while a client of the other
/// node waits for them.
#[test]
fn flags_of_a_cluster_survive_the_upgrade_of_each_node() {
    let mut nodes = DaemonNodes::start(2, "8M", &["--no-prepare"]);
    let names: Vec<String> = (0..8).map(|number| format!("word {number}")).collect();
    let clients = [nodes.client(0), nodes.client(1)];
    for (name, number) in names.iter().zip(0..) {
        clients[0].set_flags(name, 1 << number, 0).unwrap();
    }
    for upgraded in [0, 1] {
        let other = &clients[1 - upgraded];
        std::thread::scope(|scope| {
            let bit = 1 << (20 + upgraded);
            let waiters: Vec<_> = names
                .iter()
                .map(|name| scope.spawn(move || other.wait_flags(name, bit, PATIENCE)))
                .collect();
            nodes.daemons[upgraded].upgrade();
            nodes.settle(2);
            for (name, number) in names.iter().zip(0..) {
                for client in &clients {
                    let found = client.wait_flags(name, 1 << number, PATIENCE).unwrap();
                    assert_eq!(found & (1 << number), 1 << number, "{name}");
                }
                clients[upgraded].set_flags(name, bit, 0).unwrap();
            }
            for waiter in waiters {
                assert_eq!(waiter.join().unwrap().unwrap() & bit, bit);
            }
        });
    }
}

/// Regression test: while a daemon ended the waits of other nodes at its barriers, it reported its own
/// clients as ended, whose connections it had closed for the next daemon.
#[test]
fn barriers_of_live_clients_outlive_an_upgrade_while_other_nodes_wait_there() {
    let mut nodes = DaemonNodes::start(2, "8M", &["--no-prepare"]);
    let names: Vec<String> = (0..8).map(|number| format!("round {number}")).collect();
    let (a, b) = (nodes.client(0), nodes.client(1));
    for name in &names {
        std::thread::scope(|scope| {
            scope.spawn(|| a.barrier(name, 2, PATIENCE).unwrap());
            b.barrier(name, 2, PATIENCE).unwrap();
        });
    }
    std::thread::scope(|scope| {
        let b = &b;
        let waiters: Vec<_> =
            names.iter().map(|name| scope.spawn(move || b.barrier(name, 2, PATIENCE))).collect();
        std::thread::sleep(Duration::from_millis(200));
        nodes.daemons[0].upgrade();
        for name in &names {
            a.barrier(name, 2, PATIENCE).unwrap();
        }
        for waiter in waiters {
            waiter.join().unwrap().unwrap();
        }
    });
}

#[test]
fn a_device_is_handed_over_like_a_tmpfs() {
    let dir = tempfile::Builder::new().prefix("farrow-test-").tempdir_in("/dev/shm").unwrap();
    let device = dir.path().join("device");
    std::fs::File::create(&device).unwrap().set_len(32 << 20).unwrap();
    let arguments = ["--no-prepare", "--device", device.to_str().unwrap()];
    let mut daemon = Daemon::start_anywhere("8M", &arguments);
    let client = daemon.client();
    client.put(&Value::Bytes(b"there"), Some("x")).unwrap();
    for _ in 0..3 {
        daemon.upgrade();
        assert_eq!(client.stats().unwrap().node.adopted, 1);
    }
    let object = client.get(&"x".into(), Duration::ZERO).unwrap();
    assert_eq!(&object.view().unwrap()[..], b"there");
}

/// A daemon to be, as a test plays it.
struct ScriptedSuccessor {
    stream: UnixStream,
}

impl ScriptedSuccessor {
    fn connect(daemon: &Daemon) -> Self {
        let stream = UnixStream::connect(&daemon.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream }
    }

    fn ask(&mut self, body: RequestBody) -> Result<ReplyBody, WireError> {
        let mut frame = Vec::new();
        wire::encode(&Request { seq: 3, body }, &mut frame).unwrap();
        self.stream.write_all(&frame).unwrap();
        let mut input = Vec::new();
        loop {
            if let Some((reply, _)) = wire::decode::<Reply>(&input).unwrap() {
                assert_eq!(reply.seq, 3);
                return reply.body;
            }
            let mut bytes = [0; 4096];
            let count = self.stream.read(&mut bytes).unwrap();
            assert!(count > 0, "the daemon went away");
            input.extend_from_slice(&bytes[..count]);
        }
    }
}

#[test]
fn a_daemon_takes_back_what_its_successor_drops() {
    let mut daemon = Daemon::start("16M", &["--no-prepare"]);
    let client = daemon.client();
    client.put(&Value::Bytes(b"x"), Some("x")).unwrap();
    let writer = client.create(1, Some("mine")).unwrap();
    let region_uid = client.stats().unwrap().node.region_uid;
    for _ in 0..3 {
        let mut successor = ScriptedSuccessor::connect(&daemon);
        let reply = successor.ask(RequestBody::Handover { region_uid });
        let Ok(ReplyBody::HandedOver(Inheritance { reserved, retained, .. })) = reply else {
            panic!("{reply:?}");
        };
        assert_eq!((reserved.len(), retained.len()), (1, 0));
        drop(successor);
        let stats = client.stats().unwrap();
        assert_eq!((stats.node.pid, stats.node.adopted), (daemon.pid(), 1));
        assert_balanced(&stats);
        let other = daemon.client();
        assert!(matches!(other.create(5, Some("mine")), Err(Error::AlreadyExists { .. })));
    }
    assert!(daemon.is_running());
    writer.seal().unwrap();
    // And it can still be followed.
    daemon.upgrade();
    assert_eq!(client.stats().unwrap().node.adopted, 2);
}

/// Regression test: a successor that failed ended its connection to the former daemon first, and then
/// left the port at which both listen for other nodes. The former daemon could not listen there, and
/// ended too.
#[test]
fn a_node_of_a_cluster_takes_back_what_its_successor_drops() {
    let nodes = DaemonNodes::start(2, "16MiB", &["--no-prepare", "--lease-ms", "20000"]);
    let (daemon, client) = (&nodes.daemons[0], nodes.client(0));
    client.put(&Value::Bytes(b"x"), Some("x")).unwrap();
    for _ in 0..5 {
        // There is no such folder.
        daemon.fail_to_upgrade(&["--audit-log", "/dev/shm/farrow-test-none/audit"]);
        assert_eq!(client.stats().unwrap().node.pid, daemon.pid());
    }
    let there = nodes.client(1);
    assert!(there.contains(&"x".into()).unwrap());
}

/// The message of a handover lists a limited number of objects. The next daemon once freed the
/// others when they were deleted before their creator held them.
#[test]
fn objects_beyond_the_limit_of_a_handover_outlive_it_and_their_deletion() {
    const OBJECTS: u64 = BATCH_ITEMS_MAX as u64 + 1;
    let mut daemon = Daemon::start("16M", &["--no-prepare", "--objects-max", "16384"]);
    drop(daemon.client());
    let hello = Hello {
        version: PROTOCOL_VERSION,
        resume: None,
        namespace: String::new(),
        node: String::new(),
        maps_memory: true,
    };
    // The descriptors stand for the creator's mapping.
    let (creator, _, _mapping) =
        Link::connect(&daemon.socket, hello, Instant::now() + PATIENCE).unwrap();
    let ask = |body| creator.call(body, Instant::now() + PATIENCE);
    let bytes = (OBJECTS * 128).next_multiple_of(4096);
    let grant = ask(RequestBody::Grant { min: bytes, want: bytes, wait_ms: 0 });
    let Ok(ReplyBody::Granted((offset, _))) = grant else { panic!("{grant:?}") };
    let item = |number| {
        let block = (offset + number * 128, 128);
        SealItem { is_held_by_creator: true, ..SealItem::bytes(block, 128) }
    };
    let items: Vec<SealItem> = (0..OBJECTS).map(item).collect();
    let mut ids: Vec<ObjectKey> = Vec::new();
    for items in items.chunks(BATCH_ITEMS_MAX) {
        let sealed = ask(RequestBody::Seal { items: items.to_vec() });
        let Ok(ReplyBody::Sealed(sealed)) = sealed else { panic!("{sealed:?}") };
        ids.extend(sealed.into_iter().map(|one| ObjectKey::Id(one.unwrap().into())));
    }
    daemon.upgrade();

    let other = daemon.client();
    for ids in ids.chunks(BATCH_ITEMS_MAX) {
        other.delete(ids).unwrap();
    }
    assert_eq!(other.stats().unwrap().node.retiring, OBJECTS * 128, "their creator may use them");
}

#[test]
fn what_cannot_follow_is_refused_and_disturbs_no_client() {
    let daemon = Daemon::start("16M", &["--no-prepare"]);
    let client = daemon.client();
    let uid = client.stats().unwrap().node.region_uid;
    let mut successor = ScriptedSuccessor::connect(&daemon);
    let reply = successor.ask(RequestBody::Handover { region_uid: uid ^ 1 });
    assert_eq!(reply, Err(WireError::OtherRegion { old: uid ^ 1, new: uid }));
    let hello = RequestBody::Hello(Hello {
        version: PROTOCOL_VERSION,
        resume: None,
        namespace: String::new(),
        node: String::new(),
        maps_memory: true,
    });
    assert!(matches!(successor.ask(hello), Ok(ReplyBody::Welcome(_))));
    let reply = successor.ask(RequestBody::Handover { region_uid: uid });
    assert!(matches!(reply, Err(WireError::Invalid(_))), "{reply:?}");
    drop(successor);

    let socket = daemon.socket.to_str().unwrap();
    let elsewhere = tempfile::Builder::new().prefix("farrow-test-").tempdir_in("/dev/shm").unwrap();
    let elsewhere = elsewhere.path().to_str().unwrap();
    for (arguments, code, words) in [
        (["--memory-dir", elsewhere].as_slice(), 1, "control"),
        (["--memory-dir", elsewhere, "--fresh"].as_slice(), 2, "cannot be used with"),
    ] {
        let output = Command::new(common::FARROWD)
            .args(["--socket", socket, "--upgrade"])
            .args(arguments)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(client.stats().unwrap().node.pid, daemon.pid());

    // With nobody there it is an ordinary start.
    let first = Daemon::start("8M", &["--no-prepare", "--upgrade"]);
    assert_eq!(first.client().stats().unwrap().node.adopted, 0);
}

/// A client that does not read its answers once took all the time that a replaced daemon has for
/// its last answers, and more: other clients' requests were dropped, and those that may not be
/// repeated failed.
#[test]
fn a_client_that_reads_nothing_costs_others_no_request_at_an_upgrade() {
    let mut daemon = Daemon::start("64M", &["--no-prepare"]);
    // First in order.
    let (mut silent, _) = RawSocket::joined(&daemon);
    let targets: Vec<WireTarget> =
        (0..BATCH_ITEMS_MAX as u64).map(|lo| WireTarget::Id(WireObjectId { hi: 7, lo })).collect();
    let mut frame = Vec::new();
    let body = RequestBody::Pin { targets, is_pinned: true };
    wire::encode(&Request { seq: 2, body }, &mut frame).unwrap();
    silent.stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    // Until the daemon reads no more of it.
    while silent.stream.write_all(&frame).is_ok() {}
    let stop = sync::AtomicBool::new(false);
    let client = daemon.client();
    std::thread::scope(|scope| {
        let busy: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut calls = 0_u64;
                    while !stop.load(sync::Ordering::Relaxed) {
                        let id = client.put(&Value::Bytes(b"some"), None).unwrap();
                        client.delete(&[id.into()]).map_err(|error| format!("{calls}: {error}"))?;
                        calls += 1;
                    }
                    Ok::<_, String>(calls)
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        for _ in 0..2 {
            daemon.upgrade();
        }
        stop.store(true, sync::Ordering::Relaxed);
        for thread in busy {
            assert!(thread.join().unwrap().unwrap() > 0);
        }
    });
}

/// A daemon that is replaced once dropped what it had not read yet of the requests that had arrived.
#[test]
fn all_requests_that_arrived_before_an_upgrade_are_answered() {
    const REQUESTS: u64 = 20;
    let mut daemon = Daemon::start("8M", &["--no-prepare"]);
    let (mut raw, _) = RawSocket::joined(&daemon);
    let pid = Pid::from_raw(daemon.pid() as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    // Long requests with short answers.
    let names: Vec<String> = (0..12).map(|n| format!("{n:0250}")).collect();
    let mut frames = Vec::new();
    for seq in 2..2 + REQUESTS {
        let body = RequestBody::Unreserve { names: names.clone() };
        wire::encode(&Request { seq, body }, &mut frames).unwrap();
    }
    assert!(frames.len() > 40_000, "{} bytes", frames.len());
    raw.stream.write_all(&frames).unwrap();
    std::thread::scope(|scope| {
        let upgrade = scope.spawn(|| daemon.upgrade());
        // The next daemon has sent its request.
        std::thread::sleep(Duration::from_millis(500));
        kill_process(pid, Signal::CONT).unwrap();
        upgrade.join().unwrap();
    });
    let answered = std::iter::from_fn(|| raw.reply()).count() as u64;
    assert_eq!(answered, REQUESTS);
}
