//! Without a free descriptor a node refuses a newcomer and says why. It said that its memory was
//! damaged, and the newcomer's slot stayed taken for up to a minute.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::collections::BTreeSet;

use common::raw::RawSocket;
use common::requested::hello;
use common::{Daemon, wait_for};
use farrow::Value;
use farrow_wire::WireError;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// Soft and hard limit of a daemon.
fn limit_of(daemon: &Daemon) -> Rlimit {
    let line = std::fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let line = line.lines().find(|line| line.starts_with("Max open files")).unwrap().to_owned();
    let mut limits = line.split_whitespace().skip(3).map(|word| word.parse().ok());
    Rlimit { current: limits.next().unwrap(), maximum: limits.next().unwrap() }
}

fn set_limit(daemon: &Daemon, current: Option<u64>) {
    let limit = Rlimit { current, ..limit_of(daemon) };
    prlimit(Pid::from_raw(daemon.pid() as i32), Resource::Nofile, limit).unwrap();
}

fn open_files(daemon: &Daemon) -> BTreeSet<u64> {
    let all = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    all.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
}

#[test]
fn a_newcomer_for_whom_there_is_no_descriptor_learns_that_and_takes_no_slot() {
    let daemon = Daemon::start("8M", &["--no-prepare"]);
    let limit = limit_of(&daemon);
    assert_eq!(limit.current, limit.maximum, "a node raises its limit");
    let client = daemon.client();
    client.put(&Value::Bytes(b"there"), Some("object")).unwrap();
    let clients = || client.overview(1, 0).unwrap().clients.len();
    assert_eq!(clients(), 1);
    let before = open_files(&daemon).len();
    let mut newcomer = RawSocket::open(&daemon);
    // The connection and its process.
    wait_for("the connection", || (open_files(&daemon).len() == before + 2).then_some(())).unwrap();
    let open = open_files(&daemon);
    let max = (0..).find(|number| !open.contains(number)).unwrap();
    set_limit(&daemon, Some(max));
    let refused = newcomer.ask(hello("", None, "")).map(drop).unwrap_err();
    assert_eq!(refused, WireError::TooMany { what: "descriptors of the node".into(), max });
    set_limit(&daemon, limit.maximum);
    wait_for("the slot", || (clients() == 1).then_some(())).unwrap();
    daemon.client().get(&"object".into(), std::time::Duration::ZERO).unwrap();
}
