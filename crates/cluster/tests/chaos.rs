//! Faults at random, by a seed: kill -9 and pauses, longer than a lease, of daemons and of clients,
//! while clients on all nodes work in the memory of all nodes.
//!
//! `FARROW_CHAOS_SECONDS` makes each run longer than the 15 s of every run of the tests,
//! `FARROW_CHAOS_SEED` another one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::nodes::Nodes;
use common::worker::{self, Worker, fault_in, seed_of_race};
use common::{Dice, PATIENCE, assert_balanced};
use farrow::{Client, Error, Target};
use farrow_cluster::wire::ClientOverview;
use rustix::process::{Pid, Signal, kill_process};

const NOW: Duration = Duration::ZERO;
const LEASE_MS: u64 = 1000;
const SECONDS_VARIABLE: &str = "FARROW_CHAOS_SECONDS";
const SEED_VARIABLE: &str = "FARROW_CHAOS_SEED";
const SECONDS: u64 = 15;
/// Names that are looked at after each fault; at the end all are.
const SAMPLE: usize = 10;

/// One at a time: each fills the machine.
static ONE: Mutex<()> = Mutex::new(());

/// Not a test by itself: a child process works.
#[test]
fn worker() {
    worker::work();
}

/// What all workers said.
#[derive(Debug, Default)]
struct Records {
    sealed: BTreeSet<String>,
    /// Somebody began to delete it.
    deleting: BTreeSet<String>,
    deleted: BTreeSet<String>,
    /// The seeds that won each raced name.
    won: BTreeMap<String, Vec<u64>>,
    /// What nobody should have seen.
    faults: Vec<String>,
    done: u64,
}

impl Records {
    fn learn(&mut self, lines: Vec<String>) {
        for line in lines {
            // Others are those of the test harness.
            let Some(line) = line.strip_suffix(" .") else { continue };
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["sealed", name] => drop(self.sealed.insert(name.to_owned())),
                ["deleting", name] => drop(self.deleting.insert(name.to_owned())),
                ["deleted", name] => drop(self.deleted.insert(name.to_owned())),
                ["won", name, seed] => {
                    self.won.entry(name.to_owned()).or_default().push(seed.parse().unwrap());
                }
                ["done", count] => self.done += count.parse::<u64>().unwrap(),
                ["wrong" | "late" | "odd", ..] => self.faults.push(line.to_owned()),
                _ => {}
            }
        }
    }

    fn assert_clean(&self, seed: u64) {
        assert!(self.faults.is_empty(), "seed {seed:#x}: {:#?}", self.faults);
        for (name, winners) in &self.won {
            assert_eq!(winners.len(), 1, "seed {seed:#x}: {name} was won by {winners:?}");
        }
    }

    /// Names that must be there.
    fn kept(&self) -> Vec<&String> {
        let sealed = self.sealed.difference(&self.deleting);
        sealed.chain(self.won.keys()).collect()
    }

    /// Looks at an object that must be there.
    fn assert_there(&self, client: &Client, name: &str, seed: u64) {
        let until = Instant::now() + PATIENCE;
        let view = loop {
            match client.get(&name.into(), NOW).and_then(|object| object.view()) {
                Ok(view) => break view,
                Err(error @ Error::NotFound { .. }) => panic!("seed {seed:#x}: lost: {error}"),
                Err(error) => assert!(Instant::now() < until, "seed {seed:#x}: {name}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(fault_in(name, &view), None, "seed {seed:#x}");
        if let Some(winners) = self.won.get(name) {
            assert_eq!(seed_of_race(&view), winners.first().copied(), "seed {seed:#x}: {name}");
        }
    }
}

struct Chaos {
    seed: u64,
    dice: Dice,
    nodes: Nodes,
    /// Each with the number of its node.
    workers: Vec<(usize, Worker)>,
    started: u64,
    records: Records,
}

impl Chaos {
    fn new(count: usize, per_node: usize, seed: u64) -> Self {
        let lease = LEASE_MS.to_string();
        let nodes = Nodes::start(count, "64MiB", &["--lease-ms", &lease, "--no-prepare"]);
        let dice = Dice(seed | 1);
        let records = Records::default();
        let mut chaos = Self { seed, dice, nodes, workers: Vec::new(), started: 0, records };
        (0..count * per_node).for_each(|number| chaos.start_worker(number % count));
        chaos
    }

    fn start_worker(&mut self, node: usize) {
        let socket = &self.nodes.daemons[node].socket;
        let worker = Worker::start(socket, self.started, self.seed.wrapping_mul(self.started + 3));
        self.started += 1;
        self.workers.push((node, worker));
    }

    fn one_of(&mut self, count: usize) -> usize {
        self.dice.roll(count as u64) as usize
    }

    fn sleep(&mut self, from_ms: u64, to_ms: u64) {
        let more = self.dice.roll(to_ms - from_ms);
        std::thread::sleep(Duration::from_millis(from_ms + more));
    }

    /// What it did, for people.
    fn fault(&mut self) -> String {
        let node = self.one_of(self.nodes.daemons.len());
        let at = self.one_of(self.workers.len());
        match self.dice.roll(6) {
            0 => {
                self.nodes.daemons[node].kill9();
                self.sleep(0, 200);
                self.nodes.daemons[node].restart();
                format!("kill and restart {node} within the lease")
            }
            1 => {
                self.nodes.daemons[node].kill9();
                self.sleep(LEASE_MS, 3 * LEASE_MS);
                self.nodes.daemons[node].restart();
                format!("kill {node}, restart after the lease")
            }
            2 => {
                signal(self.nodes.daemons[node].pid(), Signal::STOP);
                self.sleep(LEASE_MS * 3 / 2, 3 * LEASE_MS);
                signal(self.nodes.daemons[node].pid(), Signal::CONT);
                format!("pause {node}")
            }
            3 => {
                let other = (node + 1) % self.nodes.daemons.len();
                self.nodes.daemons[node].kill9();
                self.nodes.daemons[other].kill9();
                self.sleep(0, 2 * LEASE_MS);
                self.nodes.daemons[node].restart();
                self.nodes.daemons[other].restart();
                format!("kill {node} and {other}")
            }
            4 => {
                let (node, worker) = self.workers.swap_remove(at);
                let words = worker.kill9();
                self.records.learn(words);
                self.start_worker(node);
                format!("kill a client on {node}")
            }
            _ => {
                let (node, pid) = (self.workers[at].0, self.workers[at].1.pid());
                signal(pid, Signal::STOP);
                self.sleep(200, 2 * LEASE_MS);
                signal(pid, Signal::CONT);
                format!("pause a client on {node}")
            }
        }
    }

    fn settle(&mut self) {
        self.nodes.settle(self.nodes.daemons.len());
        for (_, worker) in &self.workers {
            self.records.learn(worker.said());
        }
        self.records.assert_clean(self.seed);
        for daemon in &self.nodes.daemons {
            assert_balanced(&daemon.client().stats().unwrap());
        }
        let on = self.one_of(self.nodes.daemons.len());
        let client = self.nodes.client(on);
        for _ in 0..SAMPLE {
            let kept: Vec<String> = self.records.kept().into_iter().cloned().collect();
            if let Some(name) = kept.get(self.dice.roll(kept.len().max(1) as u64) as usize) {
                // Its maker may have deleted it since it was said to be sealed.
                for (_, worker) in &self.workers {
                    self.records.learn(worker.said());
                }
                if !self.records.deleting.contains(name) {
                    let is_there = client.contains(&name.as_str().into());
                    self.workers.iter().for_each(|(_, one)| self.records.learn(one.said()));
                    if matches!(is_there, Ok(false)) && self.records.deleting.contains(name) {
                        continue;
                    }
                    self.look_at(&client, name);
                }
            }
        }
    }

    fn look_at(&mut self, client: &Client, name: &str) {
        let found = client.get(&name.into(), NOW);
        if matches!(found, Err(Error::NotFound { .. })) {
            // Deleted this very moment? Then it has been said.
            std::thread::sleep(Duration::from_millis(200));
            self.workers.iter().for_each(|(_, one)| self.records.learn(one.said()));
            if self.records.deleting.contains(name) {
                return;
            }
        }
        self.records.assert_there(client, name, self.seed);
    }

    /// Half of the workers end, half are killed; then nothing is held or granted anywhere.
    fn finish(mut self) {
        for (number, (_, worker)) in self.workers.drain(..).enumerate() {
            let words = if number % 2 == 0 { worker.end() } else { worker.kill9() };
            self.records.learn(words);
        }
        self.records.assert_clean(self.seed);
        assert!(self.records.done > 50, "too tame: {} operations", self.records.done);
        assert!(self.records.won.len() > 5, "too tame: {:?}", self.records.won);
        self.nodes.settle(self.nodes.daemons.len());
        let clients: Vec<Client> =
            (0..self.nodes.daemons.len()).map(|node| self.nodes.client(node)).collect();
        for (node, client) in clients.iter().enumerate() {
            let until = Instant::now() + PATIENCE;
            loop {
                let stats = client.stats().unwrap();
                assert_balanced(&stats);
                let node_stats = &stats.node;
                let overview = client.overview(1).unwrap().clients;
                // A farewell of this process that met a dead daemon: its place stays, empty, until
                // the process ends.
                let is_empty = |one: &&ClientOverview| {
                    !one.is_connected && one.pid == std::process::id() && one.holds == 0
                };
                let empty = overview.iter().filter(is_empty).count() as u64;
                let left = (node_stats.clients - empty, node_stats.granted, node_stats.retiring);
                if left == (1, 0, 0) && node_stats.holds == 0 {
                    break;
                }
                assert!(
                    Instant::now() < until,
                    "seed {:#x}, node {node}: {node_stats:?} {overview:?}",
                    self.seed
                );
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        self.assert_one_owner(&clients);
        for name in self.records.kept() {
            let client = &clients[self.dice.0 as usize % clients.len()];
            self.dice.roll(2);
            self.records.assert_there(client, name, self.seed);
        }
        for name in &self.records.deleted {
            let is_there = clients[0].contains(&name.as_str().into()).unwrap();
            assert!(!is_there, "seed {:#x}: {name} was deleted", self.seed);
        }
        self.assert_all_comes_back(&clients);
    }

    fn assert_one_owner(&self, clients: &[Client]) {
        let mut owners = BTreeMap::new();
        for (node, client) in clients.iter().enumerate() {
            for name in client.list("").unwrap().into_iter().filter_map(|one| one.name) {
                let other = owners.insert(name.clone(), node);
                assert_eq!(other, None, "seed {:#x}: {name} is on {node} too", self.seed);
            }
        }
    }

    fn assert_all_comes_back(&self, clients: &[Client]) {
        for (node, client) in clients.iter().enumerate() {
            let all: Vec<Target> =
                client.list("").unwrap().into_iter().map(|one| one.id.into()).collect();
            all.chunks(1000).for_each(|some| client.delete(some).unwrap());
            let until = Instant::now() + PATIENCE;
            loop {
                let stats = client.stats().unwrap().node;
                if stats.free == stats.capacity {
                    break;
                }
                assert!(Instant::now() < until, "seed {:#x}, node {node}: {stats:?}", self.seed);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

fn number_of(variable: &str, otherwise: u64) -> u64 {
    let Ok(text) = std::env::var(variable) else { return otherwise };
    let digits = text.strip_prefix("0x");
    digits.map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16)).expect("a number")
}

fn run(count: usize, per_node: usize, seed: u64) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let seed = number_of(SEED_VARIABLE, seed);
    let mut chaos = Chaos::new(count, per_node, seed);
    let until = Instant::now() + Duration::from_secs(number_of(SECONDS_VARIABLE, SECONDS));
    let mut faults = 0;
    while Instant::now() < until {
        chaos.sleep(100, 600);
        let what = chaos.fault();
        println!(
            "{:?} left, seed {seed:#x}: {what}",
            until.saturating_duration_since(Instant::now())
        );
        chaos.settle();
        faults += 1;
    }
    assert!(faults >= 2, "too tame: {faults} faults");
    chaos.finish();
}

#[test]
fn three_nodes_survive_kills_and_pauses() {
    run(3, 2, 0xc4a0_5003);
}

#[test]
fn five_nodes_survive_kills_and_pauses() {
    run(5, 1, 0xc4a0_5005);
}

/// The canaries: what the workers would say is seen.
#[test]
#[should_panic(expected = "was won by")]
fn two_winners_are_seen() {
    let mut records = Records::default();
    records.learn(vec!["won race-1 5 .".into(), "won race-2 5 .".into(), "won race-1 6 .".into()]);
    records.assert_clean(0);
}

#[test]
#[should_panic(expected = "wrong w-1")]
fn a_wrong_byte_is_seen() {
    let mut bytes = common::bytes_of(1, 700);
    let name = worker::name_of(0, 1, 700);
    assert_eq!(fault_in(&name, &bytes), None);
    bytes[699] ^= 1;
    let fault = fault_in(&name, &bytes).expect("a byte is wrong");
    let mut records = Records::default();
    records.learn(vec![format!("wrong {fault} .")]);
    records.assert_clean(0);
}
