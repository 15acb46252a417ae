//! A node of two processes: a supervisor and its daemon.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;

use farrow::Client;
use rustix::process::{Pid, Signal, kill_process};

use super::shmem::Ledger;
use super::{Daemon, wait_for};

/// A node with a supervisor and memory without a name, whose memory is counted.
pub struct SupervisedNode {
    /// Its process is the supervisor's.
    pub node: Daemon,
    // After the node, which runs in it.
    pub ledger: Ledger,
}

impl SupervisedNode {
    pub fn start(name: &str, memory: &str, more: &[&str]) -> Self {
        let ledger = Ledger::new(name);
        let prefix = ledger.prefix();
        let prefix: Vec<&str> = prefix.iter().map(String::as_str).collect();
        Self { node: Daemon::start_supervised(&prefix, memory, more), ledger }
    }

    pub fn supervisor(&self) -> u32 {
        self.node.pid()
    }

    /// The daemon that runs now.
    pub fn daemon(&self) -> u32 {
        daemon_of(self.supervisor())
    }

    /// Kills the daemon; another one follows.
    pub fn kill_daemon(&self) {
        let pid = self.daemon();
        kill(pid);
        wait_for("the next daemon", || {
            let next = children(self.supervisor());
            next.first().is_some_and(|next| *next != pid).then_some(())
        })
        .expect("another daemon");
    }

    /// Kills both, in this order, and waits until nothing of them is left.
    pub fn kill_all(&mut self, is_daemon_first: bool) {
        let daemon = self.daemon();
        // Else who is left for a moment does something about it: a daemon ends in order.
        for pid in [self.supervisor(), daemon] {
            kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::STOP).unwrap();
        }
        if is_daemon_first {
            kill(daemon);
        }
        self.node.kill9();
        kill(daemon);
        self.wait_end(daemon);
    }

    /// Kills the supervisor alone; the daemon follows it by itself.
    pub fn kill_supervisor(&mut self) {
        let daemon = self.daemon();
        self.node.kill9();
        self.wait_end(daemon);
    }

    /// Also a daemon that was started at the last moment is to end.
    fn wait_end(&self, daemon: u32) {
        wait_for("the end of the daemon", || (!is_there(daemon)).then_some(())).expect("an end");
        wait_for("the end of all", || runs_at(&self.node.socket).is_empty().then_some(()))
            .unwrap_or_else(|| panic!("{:?} run on", runs_at(&self.node.socket)));
    }

    /// Waits until the memory of all of it is back.
    pub fn wait_empty(&self, what: &str) {
        self.ledger.wait_empty(self.node.dir.path(), what);
    }

    /// Checks that connections are accepted, even without a daemon.
    pub fn assert_listening(&self) {
        UnixStream::connect(&self.node.socket).expect("its socket listens all the time");
    }

    pub fn client(&self) -> Client {
        self.node.client()
    }
}

pub fn daemon_of(supervisor: u32) -> u32 {
    wait_for("a daemon", || children(supervisor).first().copied()).expect("a daemon")
}

pub fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let all = text.split_whitespace().filter_map(|word| word.parse().ok());
    // A child that ended and is not waited for yet is one too.
    all.filter(|pid| is_there(*pid)).collect()
}

/// Whether a process is running. Its first thread may end before the others, which then have its
/// files open.
pub fn is_there(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, state)) = stat.rsplit_once(") ") else { return false };
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    !state.starts_with(['Z', 'X']) || threads() > 1
}

/// Processes that were started for a socket.
pub fn runs_at(socket: &Path) -> Vec<u32> {
    let socket = socket.to_str().unwrap();
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|one| one.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let has_it = line.split(|byte| *byte == 0).any(|word| word == socket.as_bytes());
        has_it && is_there(*pid)
    })
    .collect()
}

pub fn kill(pid: u32) {
    let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
}
