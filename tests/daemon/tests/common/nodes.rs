//! Several daemons on this machine that are nodes of one cluster.

use std::time::{Duration, Instant};

use farrow::{Client, ConnectOptions, Members, Reach};

use super::{Daemon, PATIENCE};

pub struct DaemonNodes {
    pub daemons: Vec<Daemon>,
    pub names: Vec<String>,
}

/// Lease of the nodes in tests.
pub const LEASE_MS: u64 = 2000;

impl DaemonNodes {
    /// So many nodes, of which each knows all others, or an etcd; named a, b, c and so on.
    pub fn start(count: usize, memory: &str, more: &[&str]) -> Self {
        Self::start_each(count, more, |_, words| Daemon::start(memory, words))
    }

    /// As [`Self::start`]; each node is started with words of its own, given its number.
    pub fn start_each(
        count: usize,
        more: &[&str],
        start: impl Fn(usize, &[&str]) -> Daemon,
    ) -> Self {
        let ports = super::free_ports(count);
        let addresses: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let names: Vec<String> =
            (0..count).map(|n| char::from(b'a' + n as u8).to_string()).collect();
        let lease = if more.contains(&"--lease-ms") { None } else { Some(LEASE_MS.to_string()) };
        let daemons = (0..count).map(|number| {
            let mut words = vec!["--plaintext"];
            if let Some(lease) = &lease {
                words.extend(["--lease-ms", lease]);
            }
            words.extend(["--name", &names[number], "--listen", &addresses[number]]);
            // Where etcd says who is there nobody has to be named.
            let is_joining = !more.contains(&"--membership");
            let others = addresses.iter().enumerate().filter(|(n, _)| is_joining && *n != number);
            for other in others {
                words.extend(["--join", other.1]);
            }
            words.extend(more);
            start(number, &words)
        });
        let nodes = Self { daemons: daemons.collect(), names: names.clone() };
        nodes.settle(count);
        nodes
    }

    /// In regular files that stand for devices which all machines have, each cache-coherent only
    /// inside; they are in this folder. `before` starts the daemons, if it is not empty.
    pub fn node_local(
        count: usize,
        bytes: u64,
        before: &[&str],
        more: &[&str],
    ) -> (Self, tempfile::TempDir) {
        let dir = super::folder();
        let nodes = Self::start_each(count, more, |number, words| {
            let device = dir.path().join(number.to_string());
            // Room for the tables of the region too.
            std::fs::File::create(&device).unwrap().set_len(bytes + (32 << 20)).unwrap();
            let region = format!("device:{},{bytes}", device.display());
            let mut words = words.to_vec();
            let folder = dir.path().to_str().unwrap();
            words.extend(["--region", &region, "--node-local", "--allow-device", folder]);
            Daemon::start_with_by(before, &words)
        });
        (nodes, dir)
    }

    /// One more node, of another name each time, which is none of [`Self::daemons`].
    pub fn visitor(&self, more: &[&str]) -> Daemon {
        let port = super::free_ports(1)[0];
        let (name, address) = (format!("visitor-{port}"), format!("127.0.0.1:{port}"));
        let mut words = vec!["--plaintext", "--no-prepare", "--name", &name, "--listen", &address];
        for daemon in &self.daemons {
            let at = daemon.arguments.iter().position(|word| word == "--listen").unwrap();
            words.extend(["--join", &daemon.arguments[at + 1]]);
        }
        words.extend(more);
        Daemon::start("16MiB", &words)
    }

    pub fn client(&self, number: usize) -> Client {
        self.daemons[number].client()
    }

    /// Kills a node, and starts it again to die when it passes a point for the nth time. Later starts
    /// have no such point.
    pub fn restart_with_failpoint(&mut self, number: usize, place: &str, nth: u64) {
        let daemon = &mut self.daemons[number];
        daemon.kill9();
        daemon.set_failpoint(Some((place, nth)));
        daemon.restart();
        daemon.set_failpoint(None);
        self.settle(self.daemons.len());
    }

    /// A client of a node whose calls wait for a daemon no longer than this.
    pub fn client_with_timeout(&self, number: usize, timeout: Duration) -> Client {
        let socket = &self.daemons[number].socket;
        Client::connect(&ConnectOptions { timeout, ..ConnectOptions::at(socket) }).unwrap()
    }

    /// Waits until all that run see this number of live nodes with their memory, and have a lease.
    pub fn settle(&self, live: usize) {
        for daemon in self.daemons.iter().filter(|one| one.is_started()) {
            let client = daemon.client();
            wait_for(&client, |members| {
                let usable = members
                    .nodes
                    .iter()
                    .filter(|node| node.reach == Reach::Live && !node.fabric.is_empty());
                usable.count() == live && members.has_lease
            });
        }
    }
}

/// Waits until the node of a client tells such a members.
pub fn wait_for(client: &Client, is_right: impl Fn(&Members) -> bool) -> Members {
    let until = Instant::now() + PATIENCE;
    loop {
        let members = client.members().unwrap();
        if is_right(&members) {
            return members;
        }
        assert!(Instant::now() < until, "{members:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
