//! A client looks for the objects of a seal whose answer its daemon's end has lost.
//!
//! It looked by primary block alone. While a background thread was about to look, another thread
//! found the next daemon and gave the block back; the client got it again, for another object. The
//! background thread took that object for an unwanted part of the failed batch, and deleted it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::{Daemon, wait_for};
use farrow::{Client, ConnectOptions, Error, ObjectOptions, Value};
use farrow_store::failpoints;
use rustix::process::{Pid, Signal, kill_process};

/// Longer than the objects that share pages, and short enough for three in the first grant.
const LENGTH: usize = 68 << 10;
/// The thread that waits for late answers.
const LATE_THREAD: &str = "farrow-late";

/// Where the late thread says that it is about to look, and waits.
static LOOK: Mutex<Option<(Sender<()>, Receiver<()>)>> = Mutex::new(None);

fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|own| own.trim_end() == name).count()
}

#[test]
fn an_object_in_the_block_of_a_late_seal_is_not_deleted_for_it() {
    let (arrived, has_arrived) = channel();
    let (go, may_go) = channel();
    *LOOK.lock().unwrap() = Some((arrived, may_go));
    assert!(failpoints::set_global(Box::new(|place| {
        if place == "seal.lost" && std::thread::current().name() == Some(LATE_THREAD) {
            let look = LOOK.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some((arrived, may_go)) = look {
                arrived.send(()).unwrap();
                may_go.recv().unwrap();
            }
        }
    })));
    let mut daemon = Daemon::start("16MiB", &["--no-prepare"]);
    drop(daemon.client());
    let timeout = Duration::from_secs(1);
    let options = ConnectOptions { timeout, ..ConnectOptions::at(&daemon.socket) };
    let client = Client::connect(&options).unwrap();
    // So that memory for the others is at hand.
    client.put(&Value::Bytes(&[1; LENGTH]), Some("first")).unwrap();
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let bytes = [2; LENGTH];
    let both = ["a", "b"].map(|name| (Value::Bytes(&bytes), ObjectOptions::named(Some(name))));
    let answer = client.put_many(&both);
    assert!(matches!(answer, Err(Error::Timeout { .. })), "{answer:?}");
    daemon.kill9();
    has_arrived.recv_timeout(common::PATIENCE).unwrap();
    daemon.restart();
    // All memory there is: one of them has the block of "a".
    let mut names = Vec::new();
    loop {
        let name = format!("next{}", names.len());
        match client.put(&Value::Bytes(&[3; LENGTH]), Some(&name)) {
            Ok(_) => names.push(name),
            Err(Error::OutOfMemory(_)) => break,
            Err(error) => panic!("{name}: {error}"),
        }
    }
    assert!(names.len() > 100, "{}", names.len());
    go.send(()).unwrap();
    wait_for("the late thread", || (threads(LATE_THREAD) == 0).then_some(())).unwrap();
    let lost = names.iter().filter(|name| !client.contains(&name.as_str().into()).unwrap());
    assert_eq!(lost.collect::<Vec<_>>(), Vec::<&String>::new());
}
