//! A process puts an object, forks, and releases it: its child then read the bytes of the next
//! object at that place. These tests fork from Rust, and run a long random mixture of forks,
//! deaths, deletions, evictions and ending daemons, in which each process checks each inherited
//! byte.
//!
//! `FARROW_FORKS` sets the number of forks, `FARROW_FORKS_SEED` repeats a run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::{Daemon, SeededDice, client_at, wait_for};
use farrow::{Client, Error, ObjectBytes, Stats, Value};
use farrow_memory::fork::{self, trial};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, kill_process};

/// Forks of a run that is part of all tests.
const FORKS: u64 = 150;

/// Views that a process keeps, and children that live at a time.
const VIEWS_MAX: usize = 24;
const CHILDREN_MAX: usize = 6;

const OBJECT_BYTES_MAX: u64 = 256 << 10;

/// Forks and daemons of one test at a time: all share this process.
static ONE: Mutex<()> = Mutex::new(());

/// Bytes that tell which object they are of, wherever one looks.
fn contents(seed: u64, length: usize) -> Vec<u8> {
    let word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let mut bytes = word.repeat(length / word.len() + 1);
    bytes.truncate(length);
    bytes
}

struct MappedBytes {
    seed: u64,
    bytes: ObjectBytes,
}

impl MappedBytes {
    fn is_right(&self) -> bool {
        self.bytes[..] == contents(self.seed, self.bytes.len())[..]
    }
}

fn put(client: &Client, seed: u64, length: u64) -> Result<MappedBytes, Error> {
    let bytes = contents(seed, length as usize);
    // Every other one has a name, and so is sealed by the node.
    let name = format!("{}-{seed}", std::process::id());
    let name = seed.is_multiple_of(2).then_some(name.as_str());
    let id = client.put(&Value::Bytes(&bytes), name)?;
    let bytes = client.get(&id.into(), Duration::ZERO)?.into_view()?;
    Ok(MappedBytes { seed, bytes })
}

fn delete(client: &Client, view: &MappedBytes) {
    // It may have been deleted before.
    let _ = client.delete(&[view.bytes.id().into()]);
}

/// Overwrites all that is free.
fn overwrite(client: &Client) {
    for _ in 0..2 {
        let mut made = Vec::new();
        while let Ok(view) = put(client, 1, OBJECT_BYTES_MAX) {
            made.push(view);
        }
        made.iter().for_each(|view| delete(client, view));
    }
}

fn taken(stats: &Stats) -> u64 {
    stats.node.used + stats.node.retiring + stats.node.pinned
}

fn wait_end(pid: u32) -> i32 {
    wait_for("the end of a child", || trial::ended(pid).unwrap()).unwrap()
}

/// One process waits for another.
struct ProcessGate {
    reader: File,
    writer: File,
}

impl ProcessGate {
    fn new() -> Self {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        Self { reader: File::from(reader), writer: File::from(writer) }
    }

    fn open(&self) {
        (&self.writer).write_all(b".").unwrap();
    }

    fn pass(&self) {
        (&self.reader).read_exact(&mut [0; 1]).unwrap();
    }
}

fn one_at_a_time() -> std::sync::MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a child still reads what its parent deleted, while everything free is overwritten.
fn is_left_alone(daemon: &Daemon) -> bool {
    let client = daemon.client();
    let view = put(&client, 2, 1 << 20).unwrap();
    let go = ProcessGate::new();
    let pid = trial::in_child(|| {
        go.pass();
        view.is_right()
    });
    delete(&client, &view);
    drop(view);
    overwrite(&client);
    go.open();
    wait_end(pid.unwrap()) == 0
}

#[test]
fn a_child_reads_what_its_parent_deleted() {
    let _one = one_at_a_time();
    let daemon = Daemon::start("16MiB", &[]);
    assert!(is_left_alone(&daemon));
    let client = daemon.client();
    wait_for("the memory to come back", || (taken(&client.stats().unwrap()) == 0).then_some(()));
}

#[test]
fn a_child_on_a_device_reads_what_its_parent_deleted() {
    // Both sections lie in one file, all of which its home has locked.
    let _one = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("device");
    File::create(&device).unwrap().set_len(32 << 20).unwrap();
    let daemon = Daemon::start_anywhere("16MiB", &["--device", device.to_str().unwrap()]);
    assert!(is_left_alone(&daemon));
    let client = daemon.client();
    wait_for("the memory to come back", || (taken(&client.stats().unwrap()) == 0).then_some(()));
}

#[test]
fn a_process_that_forgets_its_children_shows_them_other_bytes() {
    // The canary: were the checks of this file blind, it would not find this bug either.
    let _one = one_at_a_time();
    let daemon = Daemon::start("16MiB", &[]);
    trial::forget_children(true);
    let is_right = is_left_alone(&daemon);
    trial::forget_children(false);
    assert!(!is_right);
}

#[test]
fn a_program_that_is_started_costs_no_fork() {
    let _one = one_at_a_time();
    let daemon = Daemon::start("8MiB", &[]);
    let client = daemon.client();
    let view = put(&client, 4, 1000).unwrap();
    let before = fork::forks();
    assert!(std::process::Command::new("true").status().unwrap().success());
    assert_eq!(fork::forks(), before, "vfork and posix_spawn share the memory");
    assert_eq!(wait_end(trial::in_child(|| view.is_right()).unwrap()), 0);
    assert_eq!(fork::forks(), before + 1);
}

#[test]
fn inherited_handles_do_nothing_and_new_ones_work() {
    let _one = one_at_a_time();
    let daemon = Daemon::start("16MiB", &[]);
    let client = daemon.client();
    let view = put(&client, 5, 5000).unwrap();
    let writer = client.create(100, Some("written")).unwrap();
    writer.memory().write_at(0, &[1; 50]).unwrap();
    let pool = client.pool();
    let block = pool.allocate(100_000, 64).unwrap();
    let pid = trial::in_child(|| {
        let is_removed = |error: Error| matches!(error, Error::Disconnected { .. });
        assert!(client.put(&Value::Bytes(b"x"), None).is_err_and(is_removed));
        assert!(client.get(&"written".into(), Duration::ZERO).is_err_and(is_removed));
        assert!(client.list("").is_err_and(is_removed));
        assert!(writer.memory().write_at(50, &[2; 50]).is_err_and(is_removed));
        assert!(!writer.memory().is_writable());
        assert!(pool.allocate(1000, 64).is_none());
        assert!(pool.reallocate(block, 100_000, 10, 64).is_none());
        pool.free(block, 100_000);
        let own = client_at(&daemon.socket);
        let ours = put(&own, 7, 5000).unwrap();
        assert!(ours.is_right() && view.is_right());
        drop((writer, client, own, pool));
        ours.is_right() && view.is_right()
    });
    // What was moved into the child's work is dropped here without being run: only there it was.
    assert_eq!(wait_end(pid.unwrap()), 0);
    assert!(view.is_right());
}

/// What a run does, and where its processes report.
struct ForkRun {
    daemon: Daemon,
    random: SeededDice,
    views: Vec<MappedBytes>,
    children: Vec<u32>,
    next_seed: u64,
    reports: Reports,
    counts: ForkCounts,
}

#[derive(Debug, Default)]
struct ForkCounts {
    forks: u64,
    kills: u64,
    restarts: u64,
    upgrades: u64,
    wrong: u64,
    right: u64,
}

/// Each process writes a message for what it found; the end of all is the end of the pipe.
struct Reports {
    reader: File,
    writer: Option<OwnedFd>,
}

impl Reports {
    fn say(&self, message: &[u8; 1]) {
        let writer = self.writer.as_ref().unwrap();
        assert_eq!(rustix::io::write(writer, message), Ok(1));
    }
}

/// Looks at all views, twice and some time apart; every third child has a child of its own.
fn check(views: &[MappedBytes], reports: &Reports, mut random: SeededDice, depth: u32) {
    let all = || views.iter().all(MappedBytes::is_right);
    let is_first_right = all();
    if depth < 2 && random.roll(3) == 0 {
        let next = SeededDice(random.roll(u64::MAX));
        let _ = trial::in_child(|| {
            check(views, reports, next, depth + 1);
            true
        });
        if random.roll(2) == 0 {
            return reports.say(if is_first_right { b"y" } else { b"n" });
        }
    }
    std::thread::sleep(Duration::from_millis(random.roll(60)));
    reports.say(if is_first_right && all() { b"y" } else { b"n" });
}

impl ForkRun {
    fn step(&mut self, client: &Client) {
        match self.random.roll(8) {
            0..3 => self.put(client),
            3 | 4 if !self.views.is_empty() => {
                let which = self.random.roll(self.views.len() as u64) as usize;
                let view = self.views.swap_remove(which);
                if self.random.roll(2) == 0 {
                    delete(client, &view);
                }
            }
            5 if !self.children.is_empty() => {
                let which = self.random.roll(self.children.len() as u64) as usize;
                let pid = Pid::from_raw(self.children[which].cast_signed()).unwrap();
                if self.random.roll(4) == 0 && kill_process(pid, Signal::KILL).is_ok() {
                    self.counts.kills += 1;
                }
            }
            6 => self.family(),
            _ => self.fork(),
        }
        self.children.retain(|pid| trial::ended(*pid).unwrap().is_none());
    }

    fn put(&mut self, client: &Client) {
        self.next_seed += 1;
        let length = 1 + self.random.roll(OBJECT_BYTES_MAX);
        if self.views.len() >= VIEWS_MAX {
            self.views.remove(0);
        }
        // Full of what children have: then there is one view less.
        match put(client, self.next_seed, length) {
            Ok(view) => self.views.push(view),
            Err(_) => drop(self.views.pop()),
        }
    }

    fn fork(&mut self) {
        if self.children.len() >= CHILDREN_MAX {
            return;
        }
        let random = SeededDice(self.random.roll(u64::MAX));
        let (views, reports) = (&self.views, &self.reports);
        let pid = trial::in_child(|| {
            check(views, reports, random, 0);
            true
        });
        self.children.push(pid.unwrap());
        self.counts.forks += 1;
    }

    /// A client that ends, or is killed, while its child reads.
    fn family(&mut self) {
        if self.children.len() >= CHILDREN_MAX || self.random.roll(4) > 0 {
            return;
        }
        let mut random = SeededDice(self.random.roll(u64::MAX));
        let (reports, socket) = (&self.reports, &self.daemon.socket);
        let pid = trial::in_child(|| {
            let client = client_at(socket);
            let made =
                (0..3).filter_map(|one| put(&client, random.roll(1 << 40) + one, 50_000).ok());
            let views: Vec<MappedBytes> = made.collect();
            let next = SeededDice(random.roll(u64::MAX));
            let _ = trial::in_child(|| {
                std::thread::sleep(Duration::from_millis(20));
                check(&views, reports, next, 1);
                true
            });
            views.iter().for_each(|view| delete(&client, view));
            drop((views, client));
            true
        });
        self.children.push(pid.unwrap());
        self.counts.forks += 2;
    }

    /// Another daemon in the place of this one, each way.
    fn next_daemon(&mut self) {
        if self.random.roll(2) == 0 {
            self.daemon.kill9();
            self.daemon.restart();
            self.counts.restarts += 1;
        } else {
            self.daemon.upgrade();
            self.counts.upgrades += 1;
        }
    }

    /// Waits for the end of all, and counts what they found.
    fn finish(&mut self) {
        self.views.clear();
        self.children.drain(..).for_each(|pid| _ = wait_end(pid));
        self.reports.writer = None;
        let mut messages = Vec::new();
        self.reports.reader.read_to_end(&mut messages).unwrap();
        self.counts.right = messages.iter().filter(|message| **message == b'y').count() as u64;
        self.counts.wrong = messages.len() as u64 - self.counts.right;
    }
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |value| value.parse().unwrap())
}

#[test]
fn no_child_ever_sees_other_bytes() {
    let _one = one_at_a_time();
    let (forks, seed) = (number("FARROW_FORKS", FORKS), number("FARROW_FORKS_SEED", 1));
    // Daemons must not have it: its end is the end of all children.
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
    let mut run = ForkRun {
        daemon: Daemon::start("8MiB", &["--evict", "lru"]),
        random: SeededDice(seed),
        views: Vec::new(),
        children: Vec::new(),
        next_seed: 2,
        reports: Reports { reader: File::from(reader), writer: Some(writer) },
        counts: ForkCounts::default(),
    };
    let client = run.daemon.client();
    let mut next_daemon = 100;
    while run.counts.forks < forks {
        run.step(&client);
        if run.counts.forks >= next_daemon {
            next_daemon += 100;
            run.next_daemon();
        }
    }
    run.finish();
    println!("seed {seed}: {:?}", run.counts);
    assert_eq!(run.counts.wrong, 0, "seed {seed}: {:?}", run.counts);
    assert!(run.counts.right > run.counts.forks / 2, "{:?}", run.counts);
    for listed in client.list("").unwrap() {
        let _ = client.delete(&[listed.id.into()]);
    }
    let is_back = || (taken(&client.stats().unwrap()) == 0).then_some(());
    wait_for("all memory to come back", is_back);
    // No place is left but those of clients that are here.
    wait_for("all places to come back", || {
        (client.stats().unwrap().node.clients <= 2).then_some(())
    });
}
