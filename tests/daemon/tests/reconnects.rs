//! What a client gives back while it connects again to the successor of a killed daemon.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::time::Duration;

use common::{Daemon, wait_for};
use farrow::{ObjectKey, Value};

const NAMES: usize = 300;
const KILLS: usize = 3;

/// A name that was given back after it had been renewed, and before the client had switched to its new
/// connection, was given back through the old one. It stayed reserved until the client ended.
#[test]
fn a_name_that_is_given_back_during_a_reconnect_is_free() {
    let mut daemon = Daemon::start("64M", &["--no-prepare"]);
    let client = daemon.client();
    for round in 0..KILLS {
        let names: Vec<String> = (0..NAMES).map(|number| format!("n{round}-{number}")).collect();
        let writers: Vec<_> =
            names.iter().map(|name| client.create(8, Some(name)).unwrap()).collect();
        daemon.kill9();
        daemon.restart();
        std::thread::scope(|scope| {
            scope.spawn(|| wait_for("the next daemon", || client.stats().ok()).unwrap());
            scope.spawn(|| {
                for writer in writers {
                    drop(writer);
                    std::thread::yield_now();
                }
            });
        });
        // What was given back without an answer has arrived once there is one.
        client.stats().unwrap();
        let other = daemon.client();
        for name in &names {
            other.create(8, Some(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

/// The get ended with an error, though the next daemon was there at once, and nothing used the page
/// until the client ended.
#[test]
fn a_page_of_holds_that_a_daemon_assigned_before_it_was_killed_is_used() {
    let mut daemon = Daemon::start("64M", &["--no-prepare"]);
    daemon.kill9();
    // A client has one page from the beginning.
    daemon.set_failpoint(Some(("hold_block.owned", 2)));
    daemon.restart();
    let client = daemon.client();
    let put = |number: u64| client.put(&Value::Bytes(&number.to_le_bytes()), None).unwrap();
    let ids: Vec<ObjectKey> = (0..3000).map(|number| put(number).into()).collect();
    let mut held = Vec::new();
    std::thread::scope(|scope| {
        let gets = scope.spawn(|| {
            ids.iter().map(|id| client.get(id, Duration::ZERO)).collect::<Result<Vec<_>, _>>()
        });
        daemon.wait_end();
        daemon.set_failpoint(None);
        daemon.restart();
        held.extend(gets.join().unwrap().unwrap());
    });
    assert_eq!(held.len(), ids.len());
    assert_eq!(client.stats().unwrap().node.holds, ids.len() as u64);
}
