//! A daemon that was stopped for longer than its lease between the check of a name and the write of
//! its entry gave the object the name when it continued, although another node had granted the name
//! meanwhile: two objects with one name.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::time::Duration;

use common::nodes::{DaemonNodes, wait_for as wait_for_members};
use common::{PATIENCE, wait_for};
use farrow::{Error, Reach, Value};
use rustix::process::{Pid, Signal, kill_process};

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
}

#[test]
fn a_daemon_that_was_stopped_while_it_wrote_a_name_gives_it_to_no_object() {
    let mut nodes = DaemonNodes::start(3, "16MiB", &["--no-prepare"]);
    nodes.restart_with_failpoint(0, "stop:seal.words", 1);
    let (a, b) = (nodes.client_with_timeout(0, PATIENCE), nodes.client(1));
    let pid = nodes.daemons[0].pid();
    let put = std::thread::spawn(move || {
        let put = a.put(&Value::Bytes(b"late"), Some("name"));
        (a, put)
    });
    wait_for("the daemon stops", || is_stopped(pid).then_some(())).unwrap();
    wait_for_members(&b, |members| {
        members.nodes.iter().all(|node| node.name != "a" || node.reach == Reach::Lost)
    });
    b.put(&Value::Bytes(b"granted"), Some("name")).unwrap();
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::CONT).unwrap();
    let (a, late) = put.join().unwrap();
    assert!(late.is_err(), "{late:?}");
    nodes.settle(3);
    for client in [&a, &b, &nodes.client(0)] {
        let found = || match client.get(&"name".into(), Duration::ZERO) {
            Ok(value) => Some(value.view().unwrap().to_vec()),
            // The node joins again.
            Err(_) => None,
        };
        assert_eq!(wait_for("the object", found).unwrap(), b"granted");
    }
    let refused = a.put(&Value::Bytes(b"again"), Some("name"));
    assert!(matches!(refused, Err(Error::AlreadyExists { .. })), "{refused:?}");
    a.put(&Value::Bytes(b"other"), Some("other")).unwrap();
}
