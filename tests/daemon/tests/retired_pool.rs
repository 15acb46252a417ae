//! A pool of the C interface that is retired while another thread allocates from it.
//!
//! The thread held the lock of the pool while it waited for a node that did not answer. The retiring
//! thread gave up waiting for that lock, the allocation failed, and nothing released the client.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::time::Duration;

use common::{Daemon, wait_for};
use farrow::{Client, ConnectOptions};
use farrow_capi::FarrowPool;
use rustix::process::{Pid, Signal, kill_process};

/// More than the node grants ahead.
const LENGTH: u64 = 8 << 20;

#[test]
fn a_pool_that_is_retired_during_a_failing_allocation_releases_its_client() {
    let daemon = Daemon::start("64MiB", &["--no-prepare"]);
    let other = daemon.client();
    let timeout = Duration::from_secs(2);
    let options = ConnectOptions { timeout, ..ConnectOptions::at(&daemon.socket) };
    let client = Client::connect(&options).unwrap();
    let pool = FarrowPool::new(client.pool(), true);
    drop(client);
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    std::thread::scope(|scope| {
        let allocation = scope.spawn(|| {
            // SAFETY: the pool lives until the end of the scope.
            unsafe { farrow_capi::pool::farrow_pool_allocate(&raw const pool, LENGTH, 64) }
                .is_null()
        });
        // Time for the thread to request memory: without the lock it is refused, and the test shows
        // nothing.
        std::thread::sleep(timeout / 4);
        pool.retire();
        assert!(allocation.join().unwrap(), "the node is stopped");
    });
    kill_process(pid, Signal::CONT).unwrap();
    assert!(pool.is_let_go());
    let has_left = || (other.stats().unwrap().node.clients == 1).then_some(());
    wait_for("the end of the client", has_left).unwrap();
}
