//! A daemon that is slow answers a request after its caller has given up, on a connection that lives
//! on. The client makes no further call.
//!
//! It used to leave a range with a late seal to its next connection: a refused range stayed granted
//! and unused, and a sealed object stayed retained for its creator after every delete. What other
//! late replies brought came back only when the client next read from its connection. What it gave
//! back while 8 MiB of requests were unsent was dropped without a word.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Daemon, assert_balanced, bytes_of, wait_for};
use farrow::{
    Client, ConnectOptions, Error, NdArray, ObjectKey, ObjectOptions, Order, Value, Writer,
};
use rustix::process::{Pid, Signal, kill_process};

const LENGTH: usize = 8 << 20;
/// More than a client retains of a heap of 64 MiB.
const LITTLE: u64 = 4 << 20;

fn signal(daemon: &Daemon, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Calls `call` while the daemon is stopped: the request arrives, and the answer is late.
fn late<T>(daemon: &Daemon, call: impl FnOnce() -> Result<T, Error>) {
    signal(daemon, Signal::STOP);
    let answer = call();
    signal(daemon, Signal::CONT);
    let error = answer.err();
    assert!(matches!(error, Some(Error::Timeout { .. })), "{error:?}");
}

/// Long enough for a busy machine to answer what is not to be late.
fn impatient(daemon: &Daemon) -> Client {
    let timeout = Duration::from_secs(2);
    Client::connect(&ConnectOptions { timeout, ..ConnectOptions::at(&daemon.socket) }).unwrap()
}

fn written(client: &Client, options: &ObjectOptions<'_>) -> Writer {
    let writer = client.create_with(LENGTH as u64, options).unwrap();
    writer.memory().write_at(0, &bytes_of(1, LENGTH)).unwrap();
    writer
}

/// Waits until nearly nothing is granted, and nothing else is used.
fn wait_until_free(other: &Client) {
    let mut last = None;
    let is_free = || {
        let stats = other.stats().unwrap();
        let node = stats.node.clone();
        last = Some(stats);
        (node.used == 0 && node.retiring == 0 && node.granted < LITTLE).then_some(())
    };
    let freed = wait_for("the memory", is_free);
    assert!(freed.is_some(), "{last:?}");
    assert_balanced(&last.unwrap());
}

#[test]
fn the_range_of_a_late_refusal_comes_back() {
    let daemon = Daemon::start("64MiB", &[]);
    let (other, client) = (daemon.client(), impatient(&daemon));
    let reserved = other.create(8, Some("x")).unwrap();
    let options = ObjectOptions { replace: true, ..ObjectOptions::named(Some("x")) };
    let writer = written(&client, &options);
    // The memory itself comes back with its last user.
    let memory = Arc::clone(writer.memory());
    late(&daemon, || writer.seal());
    drop(memory);
    // The client makes no further call, and stays connected. The name is reserved until the daemon
    // has refused the seal: if it were free by then, the seal would be carried out.
    wait_until_free(&other);
    drop(reserved);
    client.put(&Value::Bytes(&bytes_of(2, LENGTH)), Some("x")).unwrap();
}

#[test]
fn an_object_of_a_late_answer_is_not_retained_for_its_creator() {
    let daemon = Daemon::start("64MiB", &[]);
    let (other, client) = (daemon.client(), impatient(&daemon));
    let writer = written(&client, &ObjectOptions::named(Some("x")));
    let memory = Arc::clone(writer.memory());
    late(&daemon, || writer.seal());
    let object = other.get(&"x".into(), Duration::from_secs(60)).unwrap();
    assert!(object.view().unwrap()[..] == bytes_of(1, LENGTH));
    other.delete(&["x".into()]).unwrap();
    drop(object);
    drop(memory);
    wait_until_free(&other);
    drop(client);
}

/// Nobody knows the id of such an object.
#[test]
fn an_array_without_a_name_is_deleted_and_its_buffers_stay_good_until_they_are_freed() {
    let daemon = Daemon::start("64MiB", &[]);
    let (other, client) = (daemon.client(), impatient(&daemon));
    let pool = client.pool();
    let pointer = pool.allocate(LENGTH, 64).unwrap();
    // SAFETY: an allocation of that length, which nobody else uses.
    unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), LENGTH) }
        .copy_from_slice(&bytes_of(1, LENGTH));
    // SAFETY: the allocation outlives the buffer, and nobody writes to it any more.
    let buffer = unsafe { farrow::arrow::foreign_buffer(pointer, LENGTH, Arc::new(())) };
    let shape =
        NdArray { dtype: "|u1".into(), item_bytes: 1, shape: vec![LENGTH as u64], order: Order::C };
    // A first put, so that there is memory at hand for the descriptor of the second one.
    let first = client.put(&Value::Bytes(b"small"), None).unwrap();
    late(&daemon, || client.put(&Value::NdArray { shape: &shape, data: &buffer }, None));
    client.delete(&[first.into()]).unwrap();
    let is_deleted = || (other.stats().unwrap().node.objects == 0).then_some(());
    wait_for("the delete of what nobody knows", is_deleted).unwrap();
    while other.put(&Value::Bytes(&bytes_of(3, 1 << 20)), None).is_ok() {}
    assert!(buffer.as_slice() == bytes_of(1, LENGTH));
    let targets: Vec<_> = other.list("").unwrap().iter().map(|one| one.id.into()).collect();
    other.delete(&targets).unwrap();
    drop(buffer);
    pool.free(pointer, LENGTH);
    wait_until_free(&other);
}

/// All or nothing, also of names that another client could see meanwhile.
#[test]
fn a_batch_with_a_late_answer_leaves_none_of_its_objects() {
    let daemon = Daemon::start("64MiB", &[]);
    let (other, client) = (daemon.client(), impatient(&daemon));
    client.put(&Value::Bytes(&[0; 1000]), Some("before")).unwrap();
    let values = ["a", "b"].map(|name| (Value::Bytes(b"some"), ObjectOptions::named(Some(name))));
    late(&daemon, || client.put_many(&values));
    wait_for("the names of the batch", || client.put_many(&values).ok()).unwrap();
    let names = other.list("").unwrap();
    assert_eq!(names.len(), 3, "{names:?}");
}

/// A daemon that is killed while it is stopped has not served the request, and the next one knows it.
#[test]
fn a_seal_that_a_kill_lost_frees_its_range() {
    let mut daemon = Daemon::start("64MiB", &[]);
    drop(daemon.client());
    let client = impatient(&daemon);
    let writer = written(&client, &ObjectOptions::named(Some("x")));
    let memory = Arc::clone(writer.memory());
    signal(&daemon, Signal::STOP);
    assert!(matches!(writer.seal(), Err(Error::Timeout { .. })));
    daemon.kill9();
    daemon.restart();
    let other = daemon.client();
    // Still in use: neither freed nor granted to another client.
    client.put(&Value::Bytes(b"again"), Some("y")).unwrap();
    while other.put(&Value::Bytes(&bytes_of(3, 1 << 20)), None).is_ok() {}
    // SAFETY: the memory lives, and nobody writes to it after the seal began.
    let bytes = unsafe { std::slice::from_raw_parts(memory.as_mut_ptr(), LENGTH) };
    assert!(bytes == bytes_of(1, LENGTH));
    let targets: Vec<_> = other.list("").unwrap().iter().map(|one| one.id.into()).collect();
    other.delete(&targets).unwrap();
    drop(memory);
    wait_until_free(&other);
    drop(client);
}

#[test]
fn a_late_grant_comes_back_while_its_client_is_idle() {
    let daemon = Daemon::start("64MiB", &[]);
    let (other, client) = (daemon.client(), impatient(&daemon));
    // No grant is at hand, and the request for one is the first message of a writer without a name.
    let before = other.stats().unwrap().node.requests;
    late(&daemon, || client.create(LENGTH as u64, None));
    let mut requested = 0;
    // The request for the grant, and the one that returns it.
    let is_returned = || {
        requested += 1;
        (other.stats().unwrap().node.requests == before + requested + 2).then_some(())
    };
    wait_for("the return of the grant", is_returned).unwrap();
    wait_until_free(&other);
    drop(client);
}

#[test]
fn a_name_reserved_by_a_late_reply_is_free_while_its_client_is_idle() {
    let daemon = Daemon::start("64MiB", &[]);
    let (other, client) = (daemon.client(), impatient(&daemon));
    late(&daemon, || client.create(8, Some("x")));
    let put = || other.put(&Value::Bytes(b"other"), Some("x")).ok();
    wait_for("the name", put).unwrap();
    drop(client);
}

/// It was refused, because of the client's own reservation.
#[test]
fn a_name_reserved_by_a_late_reply_is_free_for_the_next_attempt_of_its_client() {
    let daemon = Daemon::start("64MiB", &[]);
    drop(daemon.client());
    let client = impatient(&daemon);
    for name in ["x", "y", "z"] {
        late(&daemon, || client.create(8, Some(name)));
        client.create(8, Some(name)).unwrap().seal().unwrap();
    }
}

/// Each attempt requested another page of holds. The daemon assigned them all once it went on, and the
/// answers were dropped: a client could use up the pages of all others, at 2,048 in all.
#[test]
fn gets_that_time_out_request_one_page_of_holds_together() {
    let daemon = Daemon::start("64MiB", &["--no-prepare"]);
    let other = daemon.client();
    let put = |number: u64| other.put(&Value::Bytes(&number.to_le_bytes()), None).unwrap();
    let ids: Vec<ObjectKey> = (0..4000).map(|number| put(number).into()).collect();
    let timeout = Duration::from_millis(300);
    let options = ConnectOptions { timeout, ..ConnectOptions::at(&daemon.socket) };
    let client = Client::connect(&options).unwrap();
    let before = other.stats().unwrap().node.requests;
    signal(&daemon, Signal::STOP);
    let (mut held, mut attempts) = (Vec::new(), 0);
    for id in &ids {
        match client.get(id, Duration::ZERO) {
            Ok(object) => held.push(object),
            Err(Error::Timeout { .. }) => attempts += 1,
            Err(error) => panic!("{error}"),
        }
        if attempts == 12 {
            break;
        }
    }
    assert_eq!(attempts, 12, "{} gets", held.len());
    signal(&daemon, Signal::CONT);
    let last = || client.get(&ids[3999], Duration::ZERO).ok();
    held.push(wait_for("the page", last).unwrap());
    let after = other.stats().unwrap().node.requests;
    // The request for the page, and those for the statistics.
    assert!(after - before <= 4, "{} requests", after - before);
}

/// The pages of its late answer belonged to the client, which did not know them: a node that hung
/// now and then lost them each time, until the client's next connection.
#[test]
fn entry_pages_of_a_late_reply_are_used() {
    /// Objects that the node seals before the client looks for pages again.
    const PAUSE: u64 = 256;
    let daemon = Daemon::start("64MiB", &["--no-prepare"]);
    let (other, client) = (daemon.client(), impatient(&daemon));
    let put = || client.put(&Value::Bytes(b"some"), None);
    put().unwrap();
    // The client seals them itself, until it needs more pages.
    late(&daemon, || -> Result<(), Error> {
        loop {
            put()?;
        }
    });
    let requests = || other.stats().unwrap().node.requests;
    let mut last = requests();
    // Those of the late seal, and of the delete of its object, which nobody knows.
    let is_quiet = || {
        std::thread::sleep(Duration::from_millis(50));
        let (before, now) = (last, requests());
        last = now;
        (now == before + 1).then_some(())
    };
    wait_for("the late answers", is_quiet).unwrap();
    let before = requests();
    for _ in 0..PAUSE + 40 {
        put().unwrap();
    }
    // No request for pages is among them.
    assert_eq!(requests() - before - 1, PAUSE);
    drop(client);
}

/// The next daemon had named the page of the late reply too. The client counted it twice: each
/// further get took the page for one that another thread had added, requested none, and never
/// returned.
#[test]
fn a_late_page_of_holds_that_the_next_daemon_also_names_is_followed_by_another() {
    let mut daemon = Daemon::start("64MiB", &["--no-prepare"]);
    let other = daemon.client();
    let put = |number: u64| other.put(&Value::Bytes(&number.to_le_bytes()), None).unwrap();
    let ids: Vec<ObjectKey> = (0..2000).map(|number| put(number).into()).collect();
    let client = impatient(&daemon);
    let mut held = Vec::new();
    let get = |id: &ObjectKey| client.get(id, Duration::ZERO);
    late(&daemon, || {
        ids.iter().try_for_each(|id| {
            held.push(get(id)?);
            Ok(())
        })
    });
    // Its answer follows the late one.
    client.stats().unwrap();
    daemon.kill9();
    daemon.restart();
    wait_for("the next daemon", || client.stats().ok()).unwrap();
    let gets = {
        let client = client.clone();
        std::thread::spawn(move || {
            let get = |id: &ObjectKey| client.get(id, Duration::ZERO);
            ids.iter().map(get).collect::<Result<Vec<_>, _>>()
        })
    };
    // A get that never returns would block a join.
    wait_for("the gets", || gets.is_finished().then_some(())).unwrap();
    assert_eq!(gets.join().unwrap().unwrap().len(), 2000);
    drop(held);
}

/// Nothing of it was lost before 8 MiB: it came with the next call.
#[test]
fn what_goes_back_while_the_daemon_reads_nothing_arrives() {
    let daemon = Daemon::start("64MiB", &[]);
    let (other, client) = (daemon.client(), impatient(&daemon));
    let writer = written(&client, &ObjectOptions::named(Some("x")));
    assert!(other.stats().unwrap().node.granted >= LENGTH as u64);
    signal(&daemon, Signal::STOP);
    // Each is a request of 2 MB.
    for round in 0..6 {
        let names: Vec<String> = (0..8000).map(|n| format!("{round} {n:0>240}")).collect();
        let named = names.iter().map(|name| (8, ObjectOptions::named(Some(name.as_str()))));
        let objects: Vec<_> = named.collect();
        let error = client.create_many(&objects).err();
        assert!(matches!(error, Some(Error::Timeout { .. })), "{error:?}");
    }
    // The name and the range go back; neither drop waits for the daemon.
    drop(writer);
    signal(&daemon, Signal::CONT);
    wait_until_free(&other);
    let put = || other.put(&Value::Bytes(b"other"), Some("x")).ok();
    wait_for("the name", put).unwrap();
    drop(client);
}
