//! A log that cannot be written, or is not read, neither ends nor stops a node.
//!
//! Before a thread wrote it, a warning ended the daemon where standard error was full or closed, and
//! after five of these the memory was lost. Where standard error was a pipe that was not read, or a
//! terminal that was held, the event loop stood still.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::raw::RawSocket;
use common::{FARROWD, client_at, spawn, wait_for};
use farrow::Value;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process};

/// How a node is started.
const KINDS: [&[&str]; 3] = [&[], &["--unsupervised"], &["--private", "--linger", "600"]];

/// More invalid messages than a node has daemons that may die in a row.
const MESSAGES: usize = 8;

struct LoggingDaemon {
    folder: tempfile::TempDir,
    child: Child,
}

impl LoggingDaemon {
    fn start(kind: &[&str], log: impl Into<Stdio>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(FARROWD);
        command.args(["--memory", "8M", "--no-prepare", "--socket"]);
        command.arg(folder.path().join("n.sock")).args(kind);
        command.env("FARROW_LOG", "debug").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = spawn(&mut command).unwrap();
        Self { folder, child }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("n.sock")
    }

    /// Sends invalid messages, each of which is worth a warning, while an object stays.
    fn provoke(&self) {
        let client = client_at(&self.socket());
        let id = client.put(&Value::Bytes(b"stays"), Some("stays")).unwrap();
        let (_open, first) = RawSocket::joined_at(&self.socket());
        for _ in 0..MESSAGES {
            let (mut raw, welcome) = RawSocket::joined_at(&self.socket());
            assert_eq!(welcome.pid, first.pid, "the daemon was started again");
            raw.stream.write_all(&[2, 0, 0, 0, 0xff, 0xff]).unwrap();
            assert_eq!(raw.reply(), None);
        }
        let object = client_at(&self.socket()).get(&id.into(), Duration::ZERO).unwrap();
        assert_eq!(&object.view().unwrap()[..], b"stays");
    }

    /// Ends the node in order.
    fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let status = wait_for("the end", || self.child.try_wait().unwrap()).unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for LoggingDaemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_node_whose_log_cannot_be_written_keeps_its_memory() {
    for kind in KINDS {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let node = LoggingDaemon::start(kind, full);
        node.provoke();
        node.end();
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        drop(reader);
        let node = LoggingDaemon::start(kind, writer);
        node.provoke();
        node.end();
    }
}

/// A pipe without room.
fn stuck() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    for bytes in [4096, 1] {
        while rustix::io::write(&writer, &vec![b'x'; bytes]) != Err(Errno::AGAIN) {}
    }
    rustix::fs::fcntl_setfl(&writer, OFlags::empty()).unwrap();
    (reader, writer)
}

#[test]
fn a_node_whose_log_is_not_read_serves_and_ends() {
    for kind in KINDS {
        let (reader, writer) = stuck();
        let node = LoggingDaemon::start(kind, writer);
        node.provoke();
        node.end();
        drop(reader);
    }
}

/// The lines that a node has written last are in its log, also if it ends with an error.
#[test]
fn the_last_lines_are_written_before_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(FARROWD);
    command.args(["--memory", "8M", "--spill", "/proc/none", "--socket"]);
    command.arg(folder.path().join("n.sock")).stdin(Stdio::null());
    let ended = command.output().unwrap();
    let log = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success() && log.contains("/proc/none"), "{log}");
}
