//! Network namespaces for tests, each pair joined by a link that can be taken down.
//!
//! Needs root and `ip`. Mounts and processes stay those of the machine: nodes in the namespaces
//! share memory and see each other's processes, but reach each other only by these links.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use farrow_cluster::certs;
use farrow_memory::sync::{AtomicU64, Ordering};

use super::Daemon;
use super::nodes::DaemonNodes;

/// Makes a machine without namespaces a failure.
const REQUIRE: &str = "FARROW_NETNS";
/// Where `ip netns` keeps them.
const FOLDER: &str = "/run/netns";
/// Begin of the names; then the process, which set of this process, and which of the set.
const PREFIX: &str = "farrow-test-";
/// Sets that this process has begun to make.
static SETS: AtomicU64 = AtomicU64::new(0);
const DAY: Duration = Duration::from_secs(86_400);

/// `None`, with a word, where it could not be made and need not be.
pub fn required<T>(made: Result<T, String>) -> Option<T> {
    let is_required = std::env::var(REQUIRE).is_ok_and(|word| word == "require");
    required_if(is_required, made)
        .map_err(|reason| {
            // Past the harness, which keeps what tests that succeed print.
            let test = std::thread::current().name().unwrap_or_default().to_owned();
            let words = format!("skipped {test}: {reason}; {REQUIRE}=require makes it a failure");
            let _ = writeln!(std::io::stderr(), "{words}");
        })
        .ok()
}

/// # Panics
///
/// It is required, and could not be made.
pub fn required_if<T>(is_required: bool, made: Result<T, String>) -> Result<T, String> {
    if let Err(reason) = &made {
        assert!(!is_required, "no network namespaces here: {reason}");
    }
    made
}

/// Nodes with certificates, each in its own namespace. Dropped in this order: the daemons before
/// their namespaces.
pub struct PlacedNodes {
    pub nodes: DaemonNodes,
    pub places: Namespaces,
    _certs: tempfile::TempDir,
}

impl PlacedNodes {
    /// So many nodes that know all others, started with more words.
    ///
    /// # Errors
    ///
    /// Why it cannot be done here.
    pub fn start(count: usize, memory: &str, more: &[&str]) -> Result<Self, String> {
        let places = Namespaces::make(count)?;
        let dir = tempfile::tempdir().unwrap();
        certs::init(dir.path(), 30 * DAY).unwrap();
        let names: Vec<String> =
            (0..count).map(|n| char::from(b'a' + n as u8).to_string()).collect();
        let addresses: Vec<String> =
            (0..count).map(|number| format!("{}:7000", places.address(number))).collect();
        for (number, name) in names.iter().enumerate() {
            certs::issue(dir.path(), name, &[places.address(number)], DAY).unwrap();
        }
        let certs = dir.path().to_str().unwrap();
        let daemons = (0..count).map(|number| {
            let mut words = vec!["--name", &names[number], "--listen", &addresses[number]];
            words.extend(["--certs", certs]);
            for other in addresses.iter().enumerate().filter(|(n, _)| *n != number) {
                words.extend(["--join", other.1]);
            }
            words.extend(more);
            let [enter, place] = places.enter(number);
            Daemon::start_by(&[&enter, &place], memory, &words)
        });
        let nodes = DaemonNodes { daemons: daemons.collect(), names: names.clone() };
        nodes.settle(count);
        Ok(Self { nodes, places, _certs: dir })
    }

    /// All links of a node.
    pub fn set_links_of(&self, node: usize, is_up: bool) {
        let others = (0..self.nodes.daemons.len()).filter(|other| *other != node);
        others.for_each(|other| self.places.set_link(node, other, is_up));
    }
}

/// Namespaces that are there as long as this.
pub struct Namespaces {
    names: Vec<String>,
}

impl Namespaces {
    /// So many, at most 9, all joined to all.
    ///
    /// # Errors
    ///
    /// Why it cannot be done here.
    pub fn make(count: usize) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("network namespaces need root".to_owned());
        }
        remove_leftovers();
        let mut made = Self { names: Vec::new() };
        let set = SETS.fetch_add(1, Ordering::Relaxed);
        for number in 0..count {
            let name = format!("{PREFIX}{}-{set}-{number}", std::process::id());
            ip(&["netns", "add", &name])?;
            made.names.push(name);
            let address = format!("{}/32", made.address(number));
            made.ip_in(number, &["link", "set", "lo", "up"])?;
            made.ip_in(number, &["address", "add", &address, "dev", "lo"])?;
        }
        for one in 0..count {
            for other in 0..one {
                made.join(one, other)?;
            }
        }
        Ok(made)
    }

    /// Names of those that are there, this set's and others' of this process.
    pub fn of_this_process() -> Vec<String> {
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let Ok(there) = fs::read_dir(FOLDER) else { return Vec::new() };
        let names = there.flatten().filter_map(|one| one.file_name().into_string().ok());
        names.filter(|name| name.starts_with(&prefix)).collect()
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Of the node in this namespace.
    pub fn address(&self, number: usize) -> String {
        format!("10.77.0.{}", number + 1)
    }

    /// What starts a command in it; that keeps the process id.
    pub fn enter(&self, number: usize) -> [String; 2] {
        ["nsenter".to_owned(), format!("--net={FOLDER}/{}", self.names[number])]
    }

    /// Takes the link between two down, or up again.
    pub fn set_link(&self, one: usize, other: usize, is_up: bool) {
        for (here, there) in [(one, other), (other, one)] {
            let state = if is_up { "up" } else { "down" };
            self.ip_in(here, &["link", "set", &link(here, there), state]).unwrap();
            if is_up {
                self.route(here, there).unwrap();
            }
        }
    }

    fn join(&self, one: usize, other: usize) -> Result<(), String> {
        let (near, far) = (link(one, other), link(other, one));
        let there = &self.names[other];
        let peer = ["type", "veth", "peer", "name", &far, "netns", there];
        self.ip_in(one, &[&["link", "add", &near][..], &peer].concat())?;
        for (here, there) in [(one, other), (other, one)] {
            self.ip_in(here, &["link", "set", &link(here, there), "up"])?;
            self.route(here, there)?;
        }
        Ok(())
    }

    /// Routes go with their links.
    fn route(&self, here: usize, there: usize) -> Result<(), String> {
        let (to, from) = (self.address(there), self.address(here));
        let words = ["route", "replace", &to, "dev", &link(here, there), "src", &from];
        self.ip_in(here, &words)
    }

    fn ip_in(&self, number: usize, words: &[&str]) -> Result<(), String> {
        ip(&[&["-n", &self.names[number]], words].concat())
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        // Their links go with them.
        self.names.iter().for_each(|name| drop(ip(&["netns", "delete", name])));
    }
}

/// At this end of a link; names of links have 15 characters at most.
fn link(here: usize, there: usize) -> String {
    format!("fw{here}to{there}")
}

fn ip(words: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(words).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {words:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Those of tests that were killed.
fn remove_leftovers() {
    let Ok(there) = fs::read_dir(FOLDER) else { return };
    let names = there.flatten().filter_map(|one| one.file_name().into_string().ok());
    for name in names {
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        let is_over = |process: &str| !Path::new("/proc").join(process).exists();
        if process.is_some_and(is_over) {
            let _ = ip(&["netns", "delete", &name]);
        }
    }
}
