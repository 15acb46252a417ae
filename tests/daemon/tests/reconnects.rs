//! What a client gives back while it connects again to the successor of a killed daemon.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use common::{Daemon, wait_for};

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
