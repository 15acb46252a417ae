//! The daemon's buffers for clients have a total limit. Without it, 600 silent connections could
//! make it buffer 4 MiB each, 2.4 GB in all, plus unread replies and waits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use common::raw::RawSocket;
use common::{Daemon, PATIENCE, wait_for};
use farrow::{Client, Value};
use farrow_wire::{
    self as wire, FRAME_BYTES_MAX, HELLO_BYTES_MAX, QuotaExceeded, Request, RequestBody, WireError,
    WireTarget,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CONNECTIONS: usize = 600;

/// As `--buffers-max` in these tests.
const BUFFERS_MIB: u64 = 16;

/// Limit of the daemon's memory in addition to its buffers: tables of connections, the heap's
/// slack, pages of its region.
const SLACK_KIB: u64 = 48 << 10;

fn start() -> Daemon {
    let limit = getrlimit(Resource::Nofile);
    // For the other ends of the connections; the daemon raises its own.
    let raised = Rlimit { current: limit.maximum.map(|max| max.min(1 << 16)), ..limit };
    setrlimit(Resource::Nofile, raised).unwrap();
    Daemon::start("32M", &["--no-prepare", "--buffers-max", &format!("{BUFFERS_MIB}MiB")])
}

/// Memory of the daemon in KiB.
fn resident_kib(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse().unwrap()
}

/// Checks that an honest client is served.
fn assert_serves(client: &Client, daemon: &Daemon) {
    for client in [client, &daemon.client()] {
        // Longer than what is free to all.
        let values: Vec<Vec<u8>> = (0..40_u64).map(|n| n.to_le_bytes().to_vec()).collect();
        let names: Vec<String> = (0..40).map(|n| format!("{}{n}", "name ".repeat(40))).collect();
        let options = |name| farrow::ObjectOptions::named(Some(name));
        let items: Vec<_> = (values.iter().zip(&names))
            .map(|(value, name)| (Value::Bytes(value), options(name.as_str())))
            .collect();
        let ids = client.put_many(&items).unwrap();
        let targets: Vec<farrow::ObjectKey> = ids.into_iter().map(Into::into).collect();
        client.delete(&targets).unwrap();
    }
}

/// Writes until the socket is full; false if the daemon has closed it.
fn push(raw: &mut RawSocket, bytes: &[u8], sent: &mut usize) -> bool {
    raw.stream.set_nonblocking(true).unwrap();
    while *sent < bytes.len() {
        match raw.stream.write(&bytes[*sent..]) {
            Ok(count) => *sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Err(_) => return false,
        }
    }
    true
}

fn assert_bounded(daemon: &Daemon, before_kib: u64) {
    let (now, max) = (resident_kib(daemon), before_kib + (BUFFERS_MIB << 10) + SLACK_KIB);
    assert!(now <= max, "{now} KiB, {before_kib} KiB before");
}

/// Checks that buffers are freed, in the daemon and to the system.
fn assert_comes_back(client: &Client, daemon: &Daemon, before_kib: u64) {
    let is_back = || (client.stats().unwrap().node.buffers < 1 << 20).then_some(());
    wait_for("buffers to come back", is_back).unwrap();
    let is_back = || (resident_kib(daemon) < before_kib + SLACK_KIB).then_some(());
    wait_for("memory to come back", is_back).unwrap();
}

#[test]
fn before_its_first_message_a_connection_may_keep_no_more_than_that_needs() {
    let daemon = start();
    let client = daemon.client();
    let before = resident_kib(&daemon);
    let mut long = vec![0; FRAME_BYTES_MAX / 2];
    long[..4].copy_from_slice(&(FRAME_BYTES_MAX as u32).to_le_bytes());
    let mut short = vec![0; HELLO_BYTES_MAX];
    short[..4].copy_from_slice(&(HELLO_BYTES_MAX as u32).to_le_bytes());
    let mut connections: Vec<RawSocket> =
        (0..CONNECTIONS).map(|_| RawSocket::open(&daemon)).collect();
    for (number, raw) in connections.iter_mut().enumerate() {
        push(raw, if number % 2 == 0 { &long } else { &short }, &mut 0);
    }
    assert_serves(&client, &daemon);
    assert_bounded(&daemon, before);
    let node = client.stats().unwrap().node;
    assert!(node.buffers <= node.buffers_max, "{node:?}");
    assert_eq!(node.buffers_max, BUFFERS_MIB << 20);
    // One that announces more is refused at once, the others when their time is over.
    for raw in &mut connections {
        raw.stream.set_nonblocking(false).unwrap();
        let closed = raw.stream.read(&mut [0; 16]);
        assert!(
            matches!(closed, Ok(0))
                || closed.is_err_and(|e| e.kind() == ErrorKind::ConnectionReset)
        );
    }
    assert_comes_back(&client, &daemon, before);
}

#[test]
fn half_requests_of_many_clients_share_the_total() {
    let daemon = start();
    let client = daemon.client();
    let before = resident_kib(&daemon);
    let mut connections: Vec<(RawSocket, usize, bool)> =
        (0..CONNECTIONS).map(|_| (RawSocket::joined(&daemon).0, 0, true)).collect();
    // A request that is announced with the longest length, and of which the last bytes never come.
    let mut half = Vec::new();
    wire::encode(&Request { seq: 77, body: RequestBody::Stats }, &mut half).unwrap();
    half.resize(FRAME_BYTES_MAX / 2, 0);
    half[..4].copy_from_slice(&(FRAME_BYTES_MAX as u32).to_le_bytes());
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        for (raw, sent, is_open) in &mut connections {
            *is_open = *is_open && push(raw, &half, sent);
        }
        assert_bounded(&daemon, before);
        assert_serves(&client, &daemon);
    }
    // Some were refused, with the numbers, and told which request it was.
    let reported =
        connections.iter_mut().filter(|(_, _, is_open)| *is_open).find_map(|(raw, ..)| {
            raw.stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            raw.stream.set_nonblocking(true).unwrap();
            let mut bytes = vec![0; 4096];
            let count = raw.stream.read(&mut bytes).ok()?;
            let (reply, _) = wire::decode::<wire::Reply>(&bytes[..count]).unwrap()?;
            Some((reply.seq, reply.body.unwrap_err()))
        });
    let (seq, error) = reported.expect("nobody was refused");
    assert_eq!(seq, 77);
    assert!(
        matches!(
            &error,
            WireError::QuotaExceeded(QuotaExceeded { whose, .. }) if whose.contains("buffers")
        ),
        "{error}"
    );
    drop(connections);
    assert_comes_back(&client, &daemon, before);
}

#[test]
fn clients_that_read_no_replies_share_the_total() {
    let daemon = start();
    let client = daemon.client();
    let before = resident_kib(&daemon);
    let mut frame = Vec::new();
    let body = RequestBody::Overview { cells: farrow_store::HEAP_CELLS_MAX, held_max: 0 };
    wire::encode(&Request { seq: 1, body }, &mut frame).unwrap();
    let frames = frame.repeat(2000);
    let mut connections: Vec<(RawSocket, usize)> =
        (0..CONNECTIONS / 3).map(|_| (RawSocket::joined(&daemon).0, 0)).collect();
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        for (raw, sent) in &mut connections {
            push(raw, &frames, sent);
        }
        assert_bounded(&daemon, before);
        assert_serves(&client, &daemon);
    }
    drop(connections);
    assert_comes_back(&client, &daemon, before);
}

#[test]
fn waits_and_names_beyond_the_share_are_refused_with_the_numbers_and_leave_room_for_others() {
    let daemon = start();
    let client = daemon.client();
    let mut greedy: Vec<RawSocket> = (0..40).map(|_| RawSocket::joined(&daemon).0).collect();
    let long = "x".repeat(200);
    let mut refused = 0;
    let until = Instant::now() + PATIENCE;
    for (of, raw) in greedy.iter_mut().enumerate() {
        let names: Vec<String> = (0..2000).map(|n| format!("{of} {n} {long}")).collect();
        let targets = names.into_iter().map(WireTarget::Name).collect::<Vec<_>>();
        for seq in 10..20 {
            let body =
                RequestBody::Wait { targets: targets.clone(), count: 1, timeout_ms: 600_000 };
            let mut frame = Vec::new();
            wire::encode(&Request { seq, body }, &mut frame).unwrap();
            raw.stream.write_all(&frame).unwrap();
        }
        assert!(Instant::now() < until);
        // The next reply: a wait that was refused, or this one.
        let body = raw.ask(RequestBody::Reserve { names: vec![format!("own {of}")] });
        refused += usize::from(matches!(body, Err(WireError::QuotaExceeded(_))));
    }
    assert!(refused > 20, "{refused}");
    let node = client.stats().unwrap().node;
    assert!(node.buffers <= node.buffers_max, "{node:?}");
    // Another client waits and reserves all the same.
    let late = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| daemon.client().get(&"late".into(), PATIENCE).is_ok());
        let writer = client.create(5, Some("late")).unwrap();
        writer.memory().write_at(0, b"right").unwrap();
        writer.seal().unwrap();
        waiting.join().unwrap()
    });
    assert!(late);
    drop(greedy);
    let is_back = || (client.stats().unwrap().node.buffers < 1 << 20).then_some(());
    wait_for("waits to be forgotten", is_back).unwrap();
}
