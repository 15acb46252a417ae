//! `--upgrade` of a node of two processes by another one: after the kill of any of the four, at any
//! moment, one pair serves, with all objects.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::supervised::{SupervisedNode, children, is_there, kill, runs_at};
use common::{Daemon, assert_balanced, bytes_of, client_at, wait_for};
use farrow::{Client, Value};
use rustix::process::{Pid, Signal, kill_process};

const OBJECTS: u64 = 20;

fn fill(client: &Client) {
    for seed in 0..OBJECTS {
        let bytes = bytes_of(seed, 1 + seed as usize * 5000);
        client.put(&Value::Bytes(&bytes), Some(&format!("o{seed}"))).unwrap();
    }
}

fn assert_whole(client: &Client, what: &str) {
    for seed in 0..OBJECTS {
        let there = client.get(&format!("o{seed}").as_str().into(), Duration::ZERO);
        let there = there.unwrap_or_else(|error| panic!("{what}: {error}")).view().unwrap();
        assert_eq!(&there[..], &bytes_of(seed, 1 + seed as usize * 5000)[..], "{what}");
    }
    assert_balanced(&client.stats().unwrap());
}

/// The supervisor of a node that is to take over; its daemon ends with it.
struct SucceedingSupervisor(Child);

impl SucceedingSupervisor {
    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for SucceedingSupervisor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn follow(node: &SupervisedNode) -> SucceedingSupervisor {
    let prefix = node.ledger.prefix();
    let mut command = match prefix.split_first() {
        None => Command::new(common::FARROWD),
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(common::FARROWD);
            command
        }
    };
    command.arg("--socket").arg(&node.node.socket).args(["--memory", "16M", "--upgrade"]);
    SucceedingSupervisor(
        command.stdin(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn().unwrap(),
    )
}

/// It took everything over, let the old node end, and then ended in order with all objects.
#[test]
fn a_successor_that_is_stopped_before_it_serves_leaves_the_old_node() {
    let node = SupervisedNode::start("stopped", "16M", &[]);
    let client = node.client();
    fill(&client);
    let send = |pid: u32, signal| kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
    // The old daemon is slow to hand over.
    let old = node.daemon();
    send(old, Signal::STOP);
    let mut successor = follow(&node);
    wait_for("its daemon", || children(successor.0.id()).first().copied()).unwrap();
    send(successor.0.id(), Signal::TERM);
    // The successor has the word before the old daemon goes on.
    std::thread::sleep(Duration::from_millis(500));
    send(old, Signal::CONT);
    wait_for("the end of the successor", || successor.has_ended().then_some(())).unwrap();
    assert_eq!(node.daemon(), old);
    assert_whole(&client, "after a stopped successor");
}

#[test]
fn a_node_with_a_supervisor_is_upgraded_without_loss() {
    let mut node = SupervisedNode::start("upgrade", "16M", &[]);
    let client = node.client();
    fill(&client);
    for _ in 0..3 {
        let old = node.daemon();
        node.node.upgrade();
        assert_ne!(node.daemon(), old);
        assert_eq!(client.stats().unwrap().node.pid, node.daemon());
        assert_whole(&client, "upgraded");
        node.kill_daemon();
        assert_whole(&client, "upgraded, and killed");
    }
    client.shut_down_node().unwrap();
    assert!(node.node.wait_end().success());
    drop(client);
    node.wait_empty("the memory of an upgraded node");
}

/// One pair is left, and it serves: its supervisor. `None`: nothing is left.
fn settle(node: &mut SupervisedNode, new: &mut SucceedingSupervisor, what: &str) -> Option<u32> {
    let pair = wait_for("one pair, or nothing", || match runs_at(&node.node.socket)[..] {
        // While it starts, a program has no arguments for a moment.
        [] => (new.has_ended() && !node.node.is_running()).then_some(None),
        [one, other] => {
            let pair = [(one, other), (other, one)].into_iter();
            let mut pair = pair.filter(|(first, second)| children(*first) == [*second]);
            let (supervisor, daemon) = pair.next()?;
            // A daemon that was just killed is there for a moment more.
            let serving = client_at(&node.node.socket).stats().ok()?.node.pid;
            (serving == daemon).then_some(Some(supervisor))
        }
        _ => None,
    });
    pair.unwrap_or_else(|| panic!("{what}: {:?} are left", runs_at(&node.node.socket)))
}

/// Moments of the kill, from the start of the new node on: it serves after some 15 ms. All of them
/// with `FARROW_KILLS`.
fn delays_us() -> Vec<u64> {
    match std::env::var_os("FARROW_KILLS") {
        Some(_) => (0..20).map(|step| step * 2_000).collect(),
        None => vec![0, 5_000, 10_000, 17_000],
    }
}

#[test]
fn a_kill_during_an_upgrade_leaves_one_pair_with_everything() {
    let (mut old_went_on, mut new_went_on) = (0, 0);
    for victim in ["old supervisor", "old daemon", "new supervisor", "new daemon"] {
        for delay_us in delays_us() {
            let what = format!("{victim} killed after {delay_us} us");
            let mut node = SupervisedNode::start("kills", "16M", &[]);
            let client = node.client();
            fill(&client);
            let (old, daemon) = (node.supervisor(), node.daemon());
            let mut new = follow(&node);
            std::thread::sleep(Duration::from_micros(delay_us));
            let victims = match victim {
                "old supervisor" => vec![old],
                "old daemon" => vec![daemon],
                "new supervisor" => vec![new.0.id()],
                _ => children(new.0.id()),
            };
            for pid in victims {
                kill(pid);
                // One that is about to end may serve for a moment more.
                wait_for("its end", || (!is_there(pid)).then_some(())).unwrap();
            }
            // The supervisor of the pair that ends is waited for, so that it is gone.
            wait_for("an end", || (new.has_ended() || !node.node.is_running()).then_some(()))
                .unwrap_or_else(|| panic!("{what}: both pairs are there"));
            let Some(supervisor) = settle(&mut node, &mut new, &what) else {
                // It was killed when the upgrade was over, and with it the node.
                assert_eq!(victim, "new supervisor", "{what}: nothing is left");
                assert!(node.node.wait_end().success(), "{what}: the old one was not told");
                drop(client);
                drop(new);
                node.wait_empty(&what);
                continue;
            };
            let is_new = supervisor == new.0.id();
            *(if is_new { &mut new_went_on } else { &mut old_went_on }) += 1;
            // Killed before it was asked, the old supervisor was the node.
            if victim != "old supervisor" || client.stats().is_ok() {
                assert_whole(&client, &what);
            }
            drop(client);
            client_at(&node.node.socket).shut_down_node().unwrap();
            wait_for("the end of all", || {
                let _ = new.has_ended();
                let _ = node.node.is_running();
                runs_at(&node.node.socket).is_empty().then_some(())
            })
            .unwrap();
            let _ = node.node.wait_end();
            drop(new);
            node.wait_empty(&what);
        }
    }
    eprintln!("the old pair went on {old_went_on} times, the new one {new_went_on} times");
    assert!(old_went_on > 0);
}

/// Without a supervisor the daemon itself says by which descriptors it holds the memory.
#[test]
fn memory_without_a_name_is_handed_over_by_daemons_without_supervisor() {
    let mut node = Daemon::start_anywhere("16M", &[]);
    let client = node.client();
    fill(&client);
    for _ in 0..3 {
        node.upgrade();
        assert_eq!(client.stats().unwrap().node.pid, node.pid());
        assert_whole(&client, "upgraded");
    }
    client.shut_down_node().unwrap();
    assert!(node.wait_end().success());
    assert_eq!(std::fs::read_dir(node.dir.path()).unwrap().count(), 0);
}

/// What a node of the version before has: memory with a name where nodes put it then, and a lock
/// that says nothing.
#[test]
fn memory_of_an_earlier_version_is_adopted_and_upgraded_where_it_lies() {
    let mut node = Daemon::start_anywhere("16M", &["--keep"]);
    let client = node.client();
    fill(&client);
    let lock = node.dir.path().join("n.sock.lock");
    std::fs::File::options().write(true).open(&lock).unwrap().set_len(0).unwrap();
    node.remove_argument("--keep");
    node.upgrade();
    assert_eq!(client.stats().unwrap().node.adopted, OBJECTS);
    let memory = client.stats().unwrap().node.memory;
    assert!(!memory.contains("without a name"), "{memory}");
    // Its end in order takes a place away that nobody named.
    node.kill9();
    node.restart();
    assert_whole(&client, "killed and started again");
    client.shut_down_node().unwrap();
    assert!(node.wait_end().success());
    assert_eq!(std::fs::read_dir(node.dir.path()).unwrap().count(), 0);
}

/// A leftover socket without a listener is no node to upgrade.
#[test]
fn without_a_daemon_an_upgrade_is_a_start() {
    let dir = tempfile::Builder::new().prefix("farrow-test-").tempdir_in("/dev/shm").unwrap();
    let socket = dir.path().join("n.sock");
    drop(UnixListener::bind(&socket).unwrap());
    let mut command = Command::new(common::FARROWD);
    command.arg("--socket").arg(&socket).args(["--memory", "8M", "--upgrade"]);
    let mut node = command.stderr(Stdio::null()).spawn().unwrap();
    let client = client_at(&socket);
    assert_eq!(client.stats().unwrap().node.adopted, 0);
    client.shut_down_node().unwrap();
    assert!(node.wait().unwrap().success());
    assert!(!is_there(node.id()));
}
