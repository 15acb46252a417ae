//! A seal is executed but not answered; its object is deleted, and the range is granted to the same
//! client again. The client still had the range on its list of doubtful ranges, and released it
//! with the next connection while it wrote there. The node considered it free and could have
//! granted it to another client, and each later put failed with `range ... is not granted to client
//! ...`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::time::Duration;

use common::{Daemon, assert_balanced, bytes_of, wait_for};
use farrow::{Client, ConnectOptions, Error, Value};
use rustix::process::{Pid, Signal, kill_process};

/// Small objects of this length are cut from chunks.
const LENGTH: usize = 16 << 10;
/// Puts that find the daemon stopped.
const DOUBTFUL: u64 = 6;
/// More objects than the node has room for are made, so that each range is granted again.
const OBJECTS: u64 = 2_000;

fn signal(daemon: &Daemon, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

fn put(client: &Client, number: u64) -> Result<(), Error> {
    let bytes = bytes_of(number, LENGTH);
    client.put(&Value::Bytes(&bytes), Some(&format!("o{number}"))).map(drop)
}

#[test]
fn a_range_that_was_granted_again_is_not_given_back() {
    let mut daemon = Daemon::start("16MiB", &[]);
    let other = daemon.client();
    let options = ConnectOptions {
        timeout: Duration::from_millis(300),
        ..ConnectOptions::at(&daemon.socket)
    };
    let client = Client::connect(&options).unwrap();
    // Chunks as large as they get, so that there is room for all that is asked of a stopped daemon.
    for number in 0..200 {
        put(&client, number).unwrap();
    }
    let mut next = 200;
    for _ in 0..3 {
        signal(&daemon, Signal::STOP);
        let failed: Vec<_> = (next..next + DOUBTFUL).map(|number| put(&client, number)).collect();
        signal(&daemon, Signal::CONT);
        assert!(failed.iter().any(Result::is_err), "nothing was in doubt");
        next += DOUBTFUL;
        wait_for("the late seals", || other.stats().is_ok().then_some(()));
    }
    for _ in 0..2 {
        for number in next..next + OBJECTS {
            put(&client, number).unwrap();
            if number % 100 == 0 {
                let ids: Vec<_> = other.list("").unwrap().into_iter().map(|one| one.id).collect();
                let targets: Vec<_> = ids.into_iter().map(Into::into).collect();
                other.delete(&targets).unwrap();
            }
        }
        next += OBJECTS;
        daemon.kill9();
        daemon.restart();
    }
    let last = next..next + 200;
    for number in last.clone() {
        put(&client, number).unwrap_or_else(|error| panic!("o{number}: {error}"));
    }
    for number in last {
        let object = other.get(&format!("o{number}").as_str().into(), Duration::ZERO).unwrap();
        assert_eq!(&object.view().unwrap()[..], bytes_of(number, LENGTH), "o{number}");
    }
    drop(client);
    let stats = wait_for("the client's end", || {
        let stats = other.stats().unwrap();
        (stats.node.clients == 1).then_some(stats)
    });
    assert_balanced(&stats.unwrap());
}
