//! A node that may mount, and shall keep its memory, mounts its own tmpfs with huge pages.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::path::PathBuf;
use std::time::Duration;

use common::{Daemon, assert_balanced, bytes_of, wait_for};
use farrow::{Client, Value};
use farrow_cluster::node::memory_choice;
use farrow_memory::mount;

/// A daemon that chooses its memory itself, and what it may leave.
struct Chooser {
    daemon: Daemon,
    memory: PathBuf,
}

impl Chooser {
    /// `None`, with the reason told, where no node would mount.
    fn start(more: &[&str]) -> Option<Self> {
        if memory_choice().dir.is_some() {
            eprintln!("skipped: a node here would not mount a tmpfs of its own");
            return None;
        }
        let daemon = Daemon::start_anywhere("32M", more);
        let memory = farrow_wire::paths::memory_mount_of(&daemon.socket);
        Some(Self { daemon, memory })
    }

    fn stop(&mut self, client: Client) {
        client.shut_down_node().unwrap();
        assert!(self.daemon.wait_end().success());
    }
}

impl Drop for Chooser {
    fn drop(&mut self) {
        if self.daemon.is_running() {
            self.daemon.kill9();
        }
        if mount::is_own_mount(&self.memory) {
            mount::unmount(&self.memory).unwrap();
        }
    }
}

#[test]
fn its_pages_are_huge_and_outlive_a_kill_but_not_a_clean_end() {
    let Some(mut chooser) = Chooser::start(&["--keep"]) else { return };
    let client = chooser.daemon.client();
    let stats = client.stats().unwrap();
    assert!(stats.node.huge_page_bytes > 0, "{stats:?}");
    assert!(mount::is_own_mount(&chooser.memory));
    let bytes = bytes_of(3, 8 << 20);
    client.put(&Value::Bytes(&bytes), Some("large")).unwrap();
    let view = client.get(&"large".into(), Duration::ZERO).unwrap().view().unwrap();
    chooser.daemon.kill9();
    assert_eq!(&view[..], &bytes[..], "a reader goes on");
    assert!(mount::is_own_mount(&chooser.memory));
    chooser.daemon.restart();
    let other = chooser.daemon.client();
    let again = other.get(&"large".into(), Duration::ZERO).unwrap().view().unwrap();
    assert_eq!(&again[..], &bytes[..]);
    let stats = other.stats().unwrap();
    assert_eq!(stats.node.adopted, 1);
    assert!(stats.node.huge_page_bytes > 0);
    assert_balanced(&stats);
    // Memory with a name stays where it is, also for a node that would give new memory none.
    chooser.daemon.remove_argument("--keep");
    chooser.daemon.upgrade();
    assert!(mount::is_own_mount(&chooser.memory), "it goes to the next daemon");
    assert_eq!(other.stats().unwrap().node.pid, chooser.daemon.pid());
    assert!(other.contains(&"large".into()).unwrap());
    chooser.stop(other);
    assert_eq!(&again[..], &bytes[..], "who has it mapped keeps it");
    assert!(!chooser.memory.exists(), "no mount, no folder");
    drop((client, view));
}

#[test]
fn keep_leaves_the_mount_and_fresh_throws_it_away() {
    let Some(mut chooser) = Chooser::start(&["--keep"]) else { return };
    let client = chooser.daemon.client();
    client.put(&Value::Bytes(b"kept"), Some("kept")).unwrap();
    chooser.stop(client);
    assert!(mount::is_own_mount(&chooser.memory));
    chooser.daemon.restart();
    let client = chooser.daemon.client();
    assert!(client.contains(&"kept".into()).unwrap());
    chooser.daemon.kill9();
    drop(client);
    chooser.daemon.add_argument("--fresh");
    chooser.daemon.restart();
    let client = chooser.daemon.client();
    assert!(!client.contains(&"kept".into()).unwrap());
    assert!(client.stats().unwrap().node.huge_page_bytes > 0);
}

#[test]
fn a_mount_without_a_region_is_no_hindrance() {
    // A node that is killed between its mount and its region leaves one, and likewise one that is
    // killed between taking the region away and the mount.
    let Some(mut chooser) = Chooser::start(&["--keep"]) else { return };
    drop(chooser.daemon.client());
    chooser.daemon.kill9();
    chooser.daemon.remove_argument("--keep");
    for section in std::fs::read_dir(&chooser.memory).unwrap() {
        let path = section.unwrap().path();
        if path.extension().is_some_and(|end| end == "data") {
            std::fs::remove_file(path).unwrap();
        }
    }
    chooser.daemon.restart();
    let client = chooser.daemon.client();
    assert!(client.stats().unwrap().node.huge_page_bytes > 0);
    chooser.stop(client);
    wait_for("the mount to go", || (!chooser.memory.exists()).then_some(())).unwrap();
}

#[test]
fn where_it_cannot_mount_it_uses_dev_shm() {
    let Some(mut chooser) = Chooser::start(&["--keep"]) else { return };
    let client = chooser.daemon.client();
    chooser.stop(client);
    mount::unmount(&chooser.memory).unwrap();
    // Something in the way of the mount.
    std::fs::create_dir(&chooser.memory).unwrap();
    std::fs::write(chooser.memory.join("in the way"), b"").unwrap();
    chooser.daemon.restart();
    let client = chooser.daemon.client();
    let stats = client.stats().unwrap();
    assert!(stats.node.memory.starts_with("/dev/shm/farrow-"), "{stats:?}");
    assert_eq!(stats.node.huge_page_bytes, 0);
    let left = PathBuf::from(format!("{}.data", stats.node.memory));
    assert!(left.exists());
    chooser.daemon.remove_argument("--keep");
    chooser.daemon.upgrade();
    chooser.stop(client);
    assert!(!left.exists());
    assert!(chooser.memory.join("in the way").exists());
}
