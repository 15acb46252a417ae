//! A process forks while its threads hold locks, or prepare what all threads share.
//!
//! The child has only the thread that forked. It waited without end for a lock that a thread of its
//! parent had held, or for work that such a thread had begun.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use common::{Daemon, client_at, wait_for};
use farrow::Value;
use farrow_memory::fork::trial::{self, ForkSection};
use farrow_memory::sync::{AtomicBool, Ordering};
use std::path::Path;
use std::time::Duration;

/// A child that waits ends by this, in seconds.
const ALARM: u32 = 20;

/// Forks while other threads use the pool.
const FORKS: usize = 100;

/// Runs `work` in a child.
fn start(work: impl FnOnce() -> bool) -> u32 {
    let child = trial::in_child(|| {
        // SAFETY: sets a timer, whose signal ends this process.
        unsafe { libc::alarm(ALARM) };
        work()
    });
    child.unwrap()
}

fn assert_ends_well(child: u32, what: &str) {
    assert_eq!(wait_for(what, || trial::ended(child).unwrap()), Some(0), "{what}");
}

/// Forks while the first client of this process stops in a section, and connects in the child.
fn fork_in(section: ForkSection, socket: &Path) -> u32 {
    wait_for("the section", || trial::has_stopped_in(section).then_some(())).unwrap();
    start(|| client_at(socket).put(&Value::Bytes(b"of a child"), None).is_ok())
}

#[test]
fn a_child_connects_and_leaves_pools_alone() {
    let daemon = Daemon::start("64MiB", &["--no-prepare"]);
    // Each of them happens once in a process, in this order.
    trial::stop_in(&[ForkSection::Profile, ForkSection::Worker]);
    let client = std::thread::scope(|scope| {
        let first = scope.spawn(|| daemon.client());
        let in_profile = fork_in(ForkSection::Profile, &daemon.socket);
        let in_worker = fork_in(ForkSection::Worker, &daemon.socket);
        assert_ends_well(in_profile, "a child of the profile");
        assert_ends_well(in_worker, "a child of the thread for page tables");
        first.join().unwrap()
    });
    let pool = client.pool();
    let size = 16 << 10;
    pool.expect(&[1 << 20]).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let pointer = pool.allocate(size, 64).unwrap();
                    pool.free(pointer, size);
                }
            });
        }
        for _ in 0..FORKS {
            let child = start(|| {
                pool.expect_no_more();
                true
            });
            assert_ends_well(child, "a child with a pool");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Two threads share an object. The child of one waited for the other, which was making the object's
/// buffers.
#[test]
fn a_child_reads_an_object_whose_buffers_were_being_made() {
    let daemon = Daemon::start("64MiB", &["--no-prepare"]);
    let client = daemon.client();
    let id = client.put(&Value::Bytes(b"of both"), None).unwrap();
    let object = client.get(&id.into(), Duration::ZERO).unwrap();
    trial::stop_in(&[ForkSection::Buffers]);
    std::thread::scope(|scope| {
        let is_there = || {
            // No byte of the object is at 0, but its buffers are searched.
            let is_outside = object.resolve(0, 1).is_none();
            is_outside && *object.view().unwrap() == *b"of both"
        };
        let first = scope.spawn(is_there);
        let stopped = || trial::has_stopped_in(ForkSection::Buffers).then_some(());
        wait_for("the section", stopped).unwrap();
        assert_ends_well(start(is_there), "a child with an object");
        assert!(first.join().unwrap());
    });
}
