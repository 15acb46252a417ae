//! Threads of one client that need a message at the same time, and a node that does not answer.
//!
//! The first thread held a lock over its message, and each other one waited for that lock without a
//! deadline and then began its own timeout: the last of n threads came back after n timeouts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use common::Daemon;
use farrow::{Client, ConnectOptions, Error, ObjectKey, Value};
use rustix::process::{Pid, Signal, kill_process};

/// One after another they would take twice [`LIMIT`].
const THREADS: usize = 40;
const TIMEOUT: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(20);

fn signal(daemon: &Daemon, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

fn impatient(daemon: &Daemon) -> Client {
    drop(daemon.client());
    let options = ConnectOptions { timeout: TIMEOUT, ..ConnectOptions::at(&daemon.socket) };
    Client::connect(&options).unwrap()
}

/// Calls on many threads, all of which have to time out within the limit.
fn all_time_out(client: &Arc<Client>, call: fn(&Client, usize) -> Result<(), Error>) {
    let (sender, ended) = channel();
    for number in 0..THREADS {
        let (client, sender) = (Arc::clone(client), sender.clone());
        std::thread::spawn(move || {
            sender.send(call(&client, number)).unwrap();
        });
    }
    let until = std::time::Instant::now() + LIMIT;
    for number in 0..THREADS {
        let left = until.saturating_duration_since(std::time::Instant::now());
        let ended = ended.recv_timeout(left);
        let answer = ended.unwrap_or_else(|_| panic!("{number} of {THREADS} calls ended"));
        assert!(matches!(answer, Err(Error::Timeout { .. })), "{answer:?}");
    }
}

#[test]
fn puts_of_small_objects_at_a_node_that_hangs_all_end_in_time() {
    let daemon = Daemon::start("64MiB", &["--no-prepare"]);
    let client = Arc::new(impatient(&daemon));
    signal(&daemon, Signal::STOP);
    all_time_out(&client, |client, _| client.put(&Value::Bytes(&[1; 32 << 10]), None).map(drop));
    signal(&daemon, Signal::CONT);
    client.put(&Value::Bytes(b"again"), Some("again")).unwrap();
}

/// The daemon assigned a page of holds for each of the calls, once it went on; the answers were
/// dropped, and the pages lost until the client ended.
#[test]
fn gets_that_need_a_page_of_holds_at_a_node_that_hangs_all_end_in_time() {
    let daemon = Daemon::start("64MiB", &["--no-prepare"]);
    let other = daemon.client();
    let put = |number: u64| other.put(&Value::Bytes(&number.to_le_bytes()), None).unwrap();
    let ids: Vec<ObjectKey> = (0..4000).map(|number| put(number).into()).collect();
    let client = Arc::new(impatient(&daemon));
    signal(&daemon, Signal::STOP);
    let mut held = Vec::new();
    let full = ids.iter().find_map(|id| match client.get(id, Duration::ZERO) {
        Ok(object) => {
            held.push(object);
            None
        }
        Err(error) => Some(error),
    });
    assert!(matches!(full, Some(Error::Timeout { .. })), "{full:?} after {} gets", held.len());
    all_time_out(&client, |client, number| {
        let id = client.list("").unwrap()[3000 + number].id;
        client.get(&id.into(), Duration::ZERO).map(drop)
    });
    signal(&daemon, Signal::CONT);
    held.push(client.get(&ids[3000], Duration::ZERO).unwrap());
}

/// The sum of such a timeout and the time of day panicked.
#[test]
fn a_timeout_of_any_length_is_a_timeout() {
    let daemon = Daemon::start("64MiB", &["--no-prepare"]);
    drop(daemon.client());
    let options = ConnectOptions { timeout: Duration::MAX, ..ConnectOptions::at(&daemon.socket) };
    let client = Client::connect(&options).unwrap();
    let writer = client.create(100_000, Some("x")).unwrap();
    writer.memory().write_at(0, b"some").unwrap();
    let id = writer.seal().unwrap();
    client.put(&Value::Bytes(b"small"), Some("y")).unwrap();
    let object = client.get(&"x".into(), Duration::MAX).unwrap();
    assert_eq!(object.id(), id);
    let listening = client.subscribe(farrow::SubscribeOptions::default()).unwrap();
    drop(listening);
    client.stats().unwrap();
    client.delete(&[id.into()]).unwrap();
}
