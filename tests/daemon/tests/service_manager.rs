//! The protocol of systemd: a node reports readiness, and its memory is retained for the next
//! start.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::supervised::{children, is_there, kill};
use common::{PATIENCE, bytes_of, client_at, wait_for};
use farrow::Value;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Plays the service manager.
struct Manager {
    dir: tempfile::TempDir,
    socket: UnixDatagram,
    /// What it keeps, by name.
    stored: Vec<(String, OwnedFd)>,
}

impl Manager {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { dir, socket, stored: Vec::new() }
    }

    fn at(&self) -> std::path::PathBuf {
        self.dir.path().join("n.sock")
    }

    /// Starts the node as a service, with what is stored as descriptors from 3 on.
    fn start(&self, more: &[&str]) -> Child {
        let mut script = String::from("LISTEN_PID=$$; export LISTEN_PID; exec \"$0\" \"$@\"");
        for (number, (_, fd)) in self.stored.iter().enumerate() {
            let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
            script = format!("exec {}<>{path}; {script}", number + 3);
        }
        let names: Vec<&str> = self.stored.iter().map(|(name, _)| name.as_str()).collect();
        Command::new("/bin/sh")
            .arg("-c")
            .arg(script)
            .arg(common::FARROWD)
            .args(["--memory", "8M", "--socket"])
            .arg(self.at())
            .args(more)
            .env("NOTIFY_SOCKET", self.dir.path().join("notify"))
            .env("LISTEN_FDS", names.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"))
            .env_remove("FARROW_MEMORY_DIR")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap()
    }

    /// The next message; descriptors that come with it are stored.
    fn message(&mut self) -> String {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let count = recvmsg(&self.socket, into, &mut control, flags).unwrap().bytes;
        let text = String::from_utf8(bytes[..count].to_vec()).unwrap();
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                assert!(text.lines().any(|line| line == "FDSTORE=1"), "{text}");
                let name = name.expect("a name").to_owned();
                // As `FileDescriptorStoreMax=2` of the unit has it.
                let room = 2_usize.saturating_sub(self.stored.len());
                self.stored.extend(fds.take(room).map(|fd| (name.clone(), fd)));
            }
        }
        if text.lines().any(|line| line == "FDSTOREREMOVE=1") {
            self.stored.retain(|(stored, _)| Some(stored.as_str()) != name);
        }
        text
    }

    fn wait_ready(&mut self) {
        while self.message() != "READY=1" {}
    }

    /// No message has arrived. Call it when no process is about to send one.
    fn assert_silent(&self) {
        let mut bytes = [0; 4096];
        self.socket.set_nonblocking(true).unwrap();
        let got = self.socket.recv(&mut bytes);
        self.socket.set_nonblocking(false).unwrap();
        assert!(got.is_err(), "{}", String::from_utf8_lossy(&bytes));
    }

    fn names(&self) -> Vec<&str> {
        self.stored.iter().map(|(name, _)| name.as_str()).collect()
    }
}

fn kill_all(mut node: Child) {
    let daemons = children(node.id());
    node.kill().unwrap();
    node.wait().unwrap();
    for daemon in daemons {
        kill(daemon);
        wait_for("its end", || (!is_there(daemon)).then_some(())).unwrap();
    }
}

/// With `is_ours` there is a supervisor of Farrow's; without, the service manager starts the daemon
/// again by itself.
fn memory_is_retained(is_ours: bool) {
    let more: &[&str] = if is_ours { &[] } else { &["--unsupervised"] };
    let mut manager = Manager::new();
    let mut node = manager.start(more);
    manager.wait_ready();
    assert_eq!(manager.names(), ["farrow-control", "farrow-data"]);
    let client = client_at(&manager.at());
    client.put(&Value::Bytes(&bytes_of(1, 100_000)), Some("kept")).unwrap();
    for _ in 0..2 {
        // All that the node consists of; only the manager's descriptors are left, and a client.
        kill_all(node);
        node = manager.start(more);
        manager.wait_ready();
        assert_eq!(client.stats().unwrap().node.adopted, 1);
        let retained = client.get(&"kept".into(), Duration::ZERO).unwrap().view().unwrap();
        assert_eq!(&retained[..], &bytes_of(1, 100_000)[..]);
    }
    // After an end in order there is nothing to adopt.
    client.shut_down_node().unwrap();
    assert!(node.wait().unwrap().success());
    wait_for("the word that nothing is to be kept", || {
        manager.message();
        manager.stored.is_empty().then_some(())
    })
    .unwrap();
    node = manager.start(&[]);
    manager.wait_ready();
    assert_eq!(client_at(&manager.at()).stats().unwrap().node.adopted, 0);
    kill_all(node);
}

#[test]
fn memory_without_a_name_is_retained_by_the_service_manager_when_all_processes_are_killed() {
    memory_is_retained(true);
}

#[test]
fn a_service_manager_can_be_the_only_supervisor() {
    memory_is_retained(false);
}

/// Memory that `--fresh` threw away stayed in the store, which had no room for the new one: the next
/// start adopted the old memory.
#[test]
fn the_memory_of_a_fresh_start_takes_the_place_of_the_old_one() {
    let mut manager = Manager::new();
    for (more, name) in [(&[][..], "old"), (&["--fresh"][..], "new")] {
        let node = manager.start(more);
        manager.wait_ready();
        assert_eq!(manager.names(), ["farrow-control", "farrow-data"]);
        client_at(&manager.at()).put(&Value::Bytes(b"value"), Some(name)).unwrap();
        kill_all(node);
    }
    let node = manager.start(&[]);
    manager.wait_ready();
    let client = client_at(&manager.at());
    assert_eq!(&client.get(&"new".into(), Duration::ZERO).unwrap().view().unwrap()[..], b"value");
    assert!(client.get(&"old".into(), Duration::ZERO).is_err());
    kill_all(node);
}

/// An upgrade inside the service. Before, the service manager took the end of the old node for the end
/// of the service. The old node also had the memory removed that the new one had just stored: a kill
/// of everything then lost all objects.
fn an_upgrade_stays_one_service(is_ours: bool) {
    let more: &[&str] = if is_ours { &[] } else { &["--unsupervised"] };
    let mut manager = Manager::new();
    let mut old = manager.start(more);
    manager.wait_ready();
    let client = client_at(&manager.at());
    client.put(&Value::Bytes(&bytes_of(2, 100_000)), Some("retained")).unwrap();
    // The next node is given none of them, and stores the same memory again.
    let stored = std::mem::take(&mut manager.stored);
    let new = manager.start(&[more, &["--upgrade"]].concat());
    assert_eq!(manager.message(), format!("MAINPID={}", new.id()));
    manager.wait_ready();
    assert!(old.wait().unwrap().success());
    assert_eq!(manager.names(), ["farrow-control", "farrow-data"]);
    drop(stored);
    manager.assert_silent();
    kill_all(new);
    let node = manager.start(more);
    manager.wait_ready();
    assert_eq!(client.stats().unwrap().node.adopted, 1);
    let retained = client.get(&"retained".into(), Duration::ZERO).unwrap().view().unwrap();
    assert_eq!(&retained[..], &bytes_of(2, 100_000)[..]);
    kill_all(node);
}

#[test]
fn an_upgrade_moves_the_service_to_the_next_supervisor() {
    an_upgrade_stays_one_service(true);
}

#[test]
fn an_upgrade_moves_the_service_to_the_next_daemon() {
    an_upgrade_stays_one_service(false);
}

/// What `systemctl reload` runs, with the options of the node.
fn reload(manager: &Manager, more: &[&str]) -> Child {
    Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd/reload"))
        .arg(common::FARROWD)
        .args(["--memory", "8M", "--socket"])
        .arg(manager.at())
        .args(more)
        .env("NOTIFY_SOCKET", manager.dir.path().join("notify"))
        .env_remove("FARROW_MEMORY_DIR")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_reload_ends_when_the_next_node_serves() {
    for more in [&[][..], &["--unsupervised"]] {
        let mut manager = Manager::new();
        let mut old = manager.start(more);
        manager.wait_ready();
        let mut script = reload(&manager, more);
        let message = manager.message();
        let next: u32 = message.strip_prefix("MAINPID=").unwrap().parse().unwrap();
        // systemd does not watch a main process that another process is to wait for.
        assert!(!children(script.id()).contains(&next));
        assert!(script.wait().unwrap().success());
        manager.wait_ready();
        assert!(old.wait().unwrap().success());
        client_at(&manager.at()).shut_down_node().unwrap();
        wait_for("the end of the next node", || (!is_there(next)).then_some(())).unwrap();
    }
}

#[test]
fn a_reload_that_fails_leaves_the_service_as_it_was() {
    let mut manager = Manager::new();
    let old = manager.start(&[]);
    manager.wait_ready();
    let client = client_at(&manager.at());
    client.put(&Value::Bytes(b"here"), Some("retained")).unwrap();
    let mut script = reload(&manager, &["--no-such-option"]);
    assert_eq!(script.wait().unwrap().code(), Some(1));
    manager.assert_silent();
    assert_eq!(client.stats().unwrap().node.pid, children(old.id())[0]);
    assert_eq!(manager.names(), ["farrow-control", "farrow-data"]);
    kill_all(old);
}

#[test]
fn what_is_no_memory_of_a_node_is_not_adopted() {
    let mut manager = Manager::new();
    let file = tempfile::tempfile().unwrap();
    for name in ["farrow-control", "farrow-data"] {
        manager.stored.push((name.to_owned(), file.try_clone().unwrap().into()));
    }
    manager.stored.push(("other".to_owned(), file.into()));
    let node = manager.start(&[]);
    manager.wait_ready();
    assert_eq!(client_at(&manager.at()).stats().unwrap().node.adopted, 0);
    kill_all(node);
}
