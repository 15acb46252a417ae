//! A node is killed, and nothing starts it again: it has no supervisor.
//!
//! A call of its clients that waited for something else, such as a `get` with a timeout of an hour, used
//! to look for the next daemon for that hour. So it did where the other members had excluded the node.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use common::nodes::{self, DaemonNodes};
use common::{Daemon, PATIENCE};
use farrow::{Client, ConnectOptions, Error, SubscribeOptions, Value};

/// Far longer than the test waits.
const LONG: Duration = Duration::from_secs(3600);
/// By then a call has usually sent its request. One that has not ends in the same way.
const UNDER_WAY: Duration = Duration::from_millis(300);

fn client(daemon: &Daemon, timeout: Duration) -> Client {
    // It has just been started.
    drop(daemon.client());
    Client::connect(&ConnectOptions { timeout, ..ConnectOptions::at(&daemon.socket) }).unwrap()
}

/// A client in a thread, with what its call returned.
fn call<T: Send + 'static>(
    client: Client,
    call: impl FnOnce(&Client) -> Result<T, Error> + Send + 'static,
) -> Receiver<Result<T, Error>> {
    let (sender, ended) = channel();
    thread::spawn(move || sender.send(call(&client)));
    ended
}

/// The call has ended, since no node serves the socket.
fn assert_disconnected<T: std::fmt::Debug>(
    what: &str,
    ended: &Receiver<Result<T, Error>>,
    words: &[&str],
) {
    let ended = ended.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what} does not end"));
    match ended {
        Err(error @ Error::Disconnected { .. }) => {
            let text = error.to_string();
            words.iter().for_each(|word| assert!(text.contains(word), "{what}: {text}"));
        }
        other => panic!("{what}: {other:?}"),
    }
}

#[test]
fn no_call_waits_longer_for_a_daemon_than_its_client() {
    let mut daemon = Daemon::start("16MiB", &["--no-prepare"]);
    let short = Duration::from_millis(1500);
    // One is under way when the node is killed, one begins later.
    let before = call(client(&daemon, short), |client| client.get(&"missing".into(), LONG));
    let later = client(&daemon, short);
    thread::sleep(UNDER_WAY);
    daemon.kill9();
    assert_disconnected("a get", &before, &[]);
    let later = call(later, |client| client.wait(&["missing".into()], 1, LONG));
    assert_disconnected("a later wait", &later, &[]);
}

#[test]
fn calls_end_when_the_other_members_have_excluded_the_node() {
    let mut nodes = DaemonNodes::start(3, "16M", &["--no-prepare"]);
    nodes.client(0).put(&Value::Bytes(b"of a"), Some("of a")).unwrap();
    let connected = || {
        let client = client(&nodes.daemons[2], LONG);
        // From now on it has the memory of node a, and so what that says of the members.
        client.get(&"of a".into(), Duration::ZERO).unwrap();
        client
    };
    let get = call(connected(), |client| client.get(&"missing".into(), LONG));
    let wait = call(connected(), |client| client.wait(&["missing".into()], 1, LONG));
    let flags = call(connected(), |client| client.wait_flags("flags", 1, LONG));
    let events = call(connected(), |client| {
        client.subscribe(SubscribeOptions::default())?.next(LONG).map(drop)
    });
    let [put, stats, pin] = [(); 3].map(|()| connected());
    thread::sleep(UNDER_WAY);
    nodes.daemons[2].kill9();
    nodes::wait_for(&nodes.client(0), |members| {
        members.find("c").is_some_and(|node| !node.is_member())
    });
    let words = ["\"c\"", "is lost, says node \"a\""];
    assert_disconnected("a get", &get, &words);
    assert_disconnected("a wait", &wait, &words);
    assert_disconnected("a wait for flags", &flags, &[]);
    assert_disconnected("a wait for events", &events, &words[1..]);
    let put = call(put, |client| client.put(&Value::Bytes(b"new"), Some("new")));
    assert_disconnected("a put", &put, &words);
    let stats = call(stats, |client| client.stats());
    assert_disconnected("stats", &stats, &words);
    // Over the session at node a, which the daemon of node c would forward.
    let pin = call(pin, |client| client.pin(&["of a".into()]));
    assert_disconnected("a pin at another node", &pin, &words);
}
