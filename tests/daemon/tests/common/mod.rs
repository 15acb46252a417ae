//! A real daemon in a separate process, for tests to use, kill and restart.
#![allow(dead_code)] // each test file uses a part

pub mod apart;
pub mod directory_sum;
pub mod etcd;
pub mod flood;
pub mod ground;
pub mod netns;
pub mod nodes;
pub mod proxy;
pub mod raw;
pub mod records;
pub mod requested;
pub mod scripted_client;
pub mod shmem;
pub mod supervised;
pub mod views;
pub mod worker;

use std::fs::File;
use std::io::{Read, Seek};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use farrow::{Client, ConnectOptions, Stats};
use farrow_store::failpoints;

/// Waits may take this long on a busy machine before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of the end of a daemon's log, shown when a test fails.
const LOG_BYTES_SHOWN: usize = 16 << 10;

/// The program of the daemon.
pub const FARROWD: &str = env!("CARGO_BIN_EXE_test-farrowd");

pub struct Daemon {
    pub dir: tempfile::TempDir,
    pub socket: PathBuf,
    arguments: Vec<String>,
    /// A command that starts it, in a place that it prepares.
    before: Vec<String>,
    child: Option<Child>,
    /// Its log, over all restarts; shown if the test fails. In no folder: tests count files.
    log: File,
    /// Whether its own supervisor restarts it; in most tests the test does.
    is_supervised: bool,
}

impl Daemon {
    /// In a tmpfs of its own.
    pub fn start(memory: &str, more: &[&str]) -> Self {
        Self::start_in(memory, more, true, &[])
    }

    /// By a command that goes before.
    pub fn start_by(before: &[&str], memory: &str, more: &[&str]) -> Self {
        Self::start_in(memory, more, true, before)
    }

    /// In memory that the arguments name.
    pub fn start_anywhere(memory: &str, more: &[&str]) -> Self {
        Self::start_in(memory, more, false, &[])
    }

    /// As [`Self::start_anywhere`], with a supervisor, whose process this is then.
    pub fn start_supervised(before: &[&str], memory: &str, more: &[&str]) -> Self {
        let mut daemon = Self::prepared(folder(), Self::words(memory, more), before);
        daemon.is_supervised = true;
        daemon.restart();
        daemon
    }

    /// With these words and a socket, and no others.
    pub fn start_with(words: &[&str]) -> Self {
        Self::start_with_by(&[], words)
    }

    /// As [`Self::start_with`], by a command that goes before.
    pub fn start_with_by(before: &[&str], words: &[&str]) -> Self {
        let arguments = words.iter().map(|word| (*word).to_owned()).collect();
        Self::started(folder(), arguments, before)
    }

    fn start_in(memory: &str, more: &[&str], is_tmpfs: bool, before: &[&str]) -> Self {
        let dir = folder();
        let mut arguments = Self::words(memory, more);
        if is_tmpfs {
            arguments.extend(["--memory-dir".to_owned(), dir.path().to_str().unwrap().to_owned()]);
        }
        Self::started(dir, arguments, before)
    }

    fn words(memory: &str, more: &[&str]) -> Vec<String> {
        let mut arguments = vec!["--memory".to_owned(), memory.to_owned()];
        if !more.iter().any(|word| ["--evict", "--spill"].contains(word)) {
            // What does not fit is to be an error.
            arguments.extend(["--evict".to_owned(), "none".to_owned()]);
        }
        arguments.extend(more.iter().map(|word| (*word).to_owned()));
        arguments
    }

    fn started(dir: tempfile::TempDir, arguments: Vec<String>, before: &[&str]) -> Self {
        let mut daemon = Self::prepared(dir, arguments, before);
        daemon.restart();
        daemon
    }

    fn prepared(dir: tempfile::TempDir, arguments: Vec<String>, before: &[&str]) -> Self {
        let socket = dir.path().join("n.sock");
        let before = before.iter().map(|word| (*word).to_owned()).collect();
        let log = tempfile::tempfile().unwrap();
        Self { dir, socket, arguments, before, child: None, log, is_supervised: false }
    }

    pub fn restart(&mut self) {
        assert!(self.child.is_none(), "still running");
        self.child = Some(self.spawn(&[]));
    }

    /// Starts another daemon that takes over from this one, and waits for this one to end.
    pub fn upgrade(&mut self) {
        let next = self.spawn(&["--upgrade"]);
        assert!(self.wait_end().success());
        self.child = Some(next);
    }

    /// Starts another daemon that takes over from this one and fails, and waits for its end.
    pub fn fail_to_upgrade(&self, more: &[&str]) {
        let mut next = self.spawn(&[&["--upgrade"], more].concat());
        assert!(!next.wait().unwrap().success());
    }

    fn spawn(&self, more: &[&str]) -> Child {
        let mut command = match self.before.split_first() {
            None => Command::new(FARROWD),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(FARROWD);
                command
            }
        };
        command
            .arg("--socket")
            .arg(&self.socket)
            .args(&self.arguments)
            .args(more)
            .args((!self.is_supervised).then_some("--unsupervised"))
            .stdin(Stdio::null())
            .stderr(self.log.try_clone().unwrap());
        spawn(&mut command).unwrap()
    }

    /// Sets or clears the failpoint at which later starts die, at its n-th pass.
    pub fn set_failpoint(&mut self, place: Option<(&str, u64)>) {
        let before =
            place.map(|(place, nth)| vec!["/usr/bin/env".to_owned(), failpoint(place, nth)]);
        self.before = before.unwrap_or_default();
    }

    /// How often its log has a text, over all restarts.
    pub fn said(&self, what: &str) -> usize {
        self.log().matches(what).count()
    }

    /// Its whole log, over all restarts.
    pub fn log(&self) -> String {
        // Its own writes go on from where the file's place is, so that is left where it is.
        let mut log = vec![0; self.log.metadata().unwrap().len() as usize];
        let read = self.log.read_at(&mut log, 0).unwrap();
        String::from_utf8_lossy(&log[..read]).into_owned()
    }

    /// For the next start.
    pub fn add_argument(&mut self, word: &str) {
        self.arguments.push(word.to_owned());
    }

    /// For the next start.
    pub fn remove_argument(&mut self, word: &str) {
        self.arguments.retain(|argument| argument != word);
    }

    /// For the next start: another value of an option.
    pub fn set_option(&mut self, option: &str, value: &str) {
        let at = self.arguments.iter().position(|word| word == option).unwrap();
        value.clone_into(&mut self.arguments[at + 1]);
    }

    /// For the next start: whether it has a supervisor.
    pub fn set_supervised(&mut self, is_supervised: bool) {
        self.is_supervised = is_supervised;
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub fn kill9(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub fn is_started(&self) -> bool {
        self.child.is_some()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    /// Waits for the daemon to end by itself.
    pub fn wait_end(&mut self) -> std::process::ExitStatus {
        let ended = self.ended_within(PATIENCE);
        assert!(ended.is_some(), "the daemon does not end");
        ended.unwrap()
    }

    /// How the daemon ended by itself; `None`: it runs.
    pub fn ended_within(&mut self, time: Duration) -> Option<std::process::ExitStatus> {
        let until = Instant::now() + time;
        loop {
            // One that does not end stays here, to be killed.
            if let Some(status) = self.child.as_mut().unwrap().try_wait().unwrap() {
                self.child = None;
                return Some(status);
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn client(&self) -> Client {
        client_at(&self.socket)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let mut log = Vec::new();
        if std::thread::panicking()
            && self.log.rewind().is_ok()
            && self.log.read_to_end(&mut log).is_ok()
        {
            let end = &log[log.len().saturating_sub(LOG_BYTES_SHOWN)..];
            eprintln!("{:?}:\n{}", self.arguments, String::from_utf8_lossy(end));
        }
    }
}

/// Holds the last chosen port. No process is spawned while ports are chosen: a new process shares
/// the sockets of this one until it runs its own program, so the ports would be in use.
static PORTS: Mutex<Option<u16>> = Mutex::new(None);

/// The lowest port that is given, and how many are tried.
const PORT_LOWEST: u16 = 10_000;
const PORTS_TRIED: usize = 20_000;

/// Starts a program; it runs when this returns.
pub fn spawn(command: &mut Command) -> std::io::Result<Child> {
    let _chosen = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    command.spawn()
}

/// Different free loopback ports, outside the kernel's range for outgoing connections (ip(7)): such
/// a connection could take the port while a node restarts.
pub fn free_ports(count: usize) -> Vec<u16> {
    let mut last = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    let end = outgoing_from();
    let mut port = last.unwrap_or_else(|| {
        // Other programs of tests begin elsewhere.
        let span = u32::from(end - PORT_LOWEST);
        PORT_LOWEST + u16::try_from(std::process::id().wrapping_mul(7919) % span).unwrap()
    });
    let mut found = Vec::new();
    for _ in 0..PORTS_TRIED {
        if found.len() == count {
            break;
        }
        port = if port + 1 < end { port + 1 } else { PORT_LOWEST };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            found.push(port);
        }
    }
    *last = Some(port);
    assert_eq!(found.len(), count, "free ports from {PORT_LOWEST} to {end}");
    found
}

fn outgoing_from() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let lowest = range.ok().and_then(|it| it.split_whitespace().next()?.parse().ok());
    // A machine may leave nothing below.
    lowest.filter(|it| *it > PORT_LOWEST + 1_000).unwrap_or(u16::MAX)
}

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("farrow-test-").tempdir_in("/dev/shm").unwrap()
}

/// The command that runs one test of this program as a child process.
pub fn this_test_again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command
}

/// For `env`: dies where this place is passed for the n-th time.
pub fn failpoint(place: &str, nth: u64) -> String {
    format!("{}={place}:{nth}", failpoints::VARIABLE)
}

/// Connects as soon as the daemon listens.
pub fn client_at(socket: &Path) -> Client {
    client_in(socket, "")
}

/// As [`client_at`], in a namespace.
pub fn client_in(socket: &Path, namespace: &str) -> Client {
    let namespace = namespace.to_owned();
    let options = ConnectOptions { timeout: PATIENCE, namespace, ..ConnectOptions::at(socket) };
    let mut last = None;
    wait_for("a daemon that listens", || match Client::connect(&options) {
        Ok(client) => Some(client),
        Err(error) => {
            last = Some(error);
            None
        }
    })
    .unwrap_or_else(|| panic!("{last:?}"))
}

/// Asks again and again, with a limit.
pub fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if Instant::now() > until {
            eprintln!("gave up waiting for {what}");
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Every byte of the heap is accounted for.
pub fn assert_balanced(stats: &Stats) {
    let node = &stats.node;
    assert_eq!(
        node.capacity,
        node.used + node.free + node.granted + node.retiring + node.quarantine,
        "capacity = live + free + granted + retiring + quarantine: {node:?}"
    );
}

/// Bytes that only this number gives.
pub fn bytes_of(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A small random number generator; failing tests print their seed.
pub struct SeededDice(pub u64);

impl SeededDice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}
