//! Nodes that cannot map each other's memory: each in its own network, mount and process namespace,
//! with its memory in a private tmpfs, and with certificates.
//!
//! Needs root, `ip`, `nsenter` and `unshare`. The processes that hold the mounts end with the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use farrow::{Client, Reach};
use farrow_cluster::certs;

use super::netns::Namespaces;
use super::nodes::wait_for;
use super::{Daemon, spawn};

const DAY: Duration = Duration::from_secs(86_400);
/// Longer than any test; then the mounts are removed automatically.
const HELD_SECONDS: &str = "600";

/// Dropped in this order: the daemons before their namespaces.
pub struct Apart {
    pub daemons: Vec<Daemon>,
    pub names: Vec<String>,
    pub places: Namespaces,
    mounts: Vec<MountNamespace>,
    _folder: tempfile::TempDir,
}

/// A mount namespace with a tmpfs, as long as this lives.
struct MountNamespace(Child);

impl MountNamespace {
    fn make(at: &str) -> Result<Self, String> {
        let script = format!(
            "mount -t tmpfs -o size=256m none {at} && echo ok && exec sleep {HELD_SECONDS}"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = spawn(&mut command).map_err(|error| format!("unshare: {error}"))?;
        let mut word = String::new();
        let read = BufReader::new(child.stdout.take().unwrap()).read_line(&mut word);
        let mount = Self(child);
        match (read, word.trim()) {
            (Ok(_), "ok") => Ok(mount),
            other => Err(format!("a mount namespace: {other:?}")),
        }
    }
}

impl Drop for MountNamespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Apart {
    /// Starts `count` nodes that know all others, with more arguments.
    ///
    /// # Errors
    ///
    /// The reason why this machine cannot do it.
    pub fn start(count: usize, memory: &str, more: &[&str]) -> Result<Self, String> {
        let places = Namespaces::make(count)?;
        let folder = tempfile::tempdir().unwrap();
        let shm = folder.path().join("shm");
        fs::create_dir(&shm).unwrap();
        let shm = shm.to_str().unwrap().to_owned();
        let mounts =
            (0..count).map(|_| MountNamespace::make(&shm)).collect::<Result<Vec<_>, _>>()?;
        let certs_dir = folder.path().join("certs");
        certs::init(&certs_dir, 30 * DAY).unwrap();
        let names: Vec<String> =
            (0..count).map(|n| char::from(b'a' + n as u8).to_string()).collect();
        let addresses: Vec<String> =
            (0..count).map(|number| format!("{}:7000", places.address(number))).collect();
        for (number, name) in names.iter().enumerate() {
            certs::issue(&certs_dir, name, &[places.address(number)], DAY).unwrap();
        }
        let daemons = (0..count).map(|number| {
            let mut words = vec!["--memory", memory, "--memory-dir", &shm, "--evict", "none"];
            words.extend(["--name", &names[number], "--listen", &addresses[number]]);
            words.extend(["--certs", certs_dir.to_str().unwrap()]);
            for other in addresses.iter().enumerate().filter(|(n, _)| *n != number) {
                words.extend(["--join", other.1]);
            }
            words.extend(more);
            let [enter, place] = places.enter(number);
            let mount = format!("--mount=/proc/{}/ns/mnt", mounts[number].0.id());
            let apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
            let before: Vec<&str> = [&[enter.as_str(), &place, &mount][..], &apart].concat();
            Daemon::start_with_by(&before, &words)
        });
        let daemons = daemons.collect();
        let apart = Self { daemons, names, places, mounts, _folder: folder };
        assert_eq!(apart.mounts.len(), count);
        apart.settle();
        Ok(apart)
    }

    /// Waits until all nodes see each other, without memory, and have a lease.
    pub fn settle(&self) {
        for daemon in &self.daemons {
            wait_for(&daemon.client(), |members| {
                let live = members.nodes.iter().filter(|node| node.reach == Reach::Live);
                let unread = live.clone().filter(|node| !node.is_usable()).count();
                let count = self.daemons.len();
                live.count() == count && unread == count - 1 && members.has_lease
            });
        }
    }

    pub fn client(&self, number: usize) -> Client {
        self.daemons[number].client()
    }

    /// Kills the daemon of a node, but not the holder of its mount.
    pub fn kill9(&mut self, number: usize) {
        let outer = self.daemons[number].pid();
        let children = format!("/proc/{outer}/task/{outer}/children");
        let inner = fs::read_to_string(children).unwrap();
        let inner = inner.split_whitespace().next().expect("the daemon").to_owned();
        self.daemons[number].kill9();
        // It is killed with its parent, and lets go of its lock as it ends.
        let is_over = || {
            let stat = fs::read_to_string(format!("/proc/{inner}/stat")).unwrap_or_default();
            let state = stat.rsplit(')').next().unwrap_or_default().trim().chars().next();
            matches!(state, None | Some('Z' | 'X')).then_some(())
        };
        super::wait_for("the daemon's end", is_over).expect("the daemon's end");
    }
}
