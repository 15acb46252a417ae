//! Random faults from a seed: kill -9 and pauses (longer than a lease) of daemons and clients, and
//! links that are cut, flap, delay and lose, while clients on all nodes work in the memory of all
//! nodes. After each fault every byte of each node is accounted for, by its own sums and by its
//! directory, no client has seen a wrong byte, and no call has exceeded its deadline.
//!
//! `FARROW_CHAOS_SECONDS` makes each run longer than the default of 12 s, `FARROW_CHAOS_SEED` sets
//! another seed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::directory_sum::{assert_counted, compare, sum_of};
use common::ground::Ground;
use common::nodes::{DaemonNodes, wait_for};
use common::proxy::Linked;
use common::records::Records;
use common::worker::{self, SLACK, WorkerLimits, WorkerProcess, fault_in};
use common::{Daemon, PATIENCE, SeededDice, assert_balanced};
use farrow::{Client, Error, ObjectKey, Reach};
use farrow_wire::ClientOverview;
use rustix::process::{Pid, Signal, kill_process};

const NOW: Duration = Duration::ZERO;
const LEASE_MS: u64 = 1000;
const SECONDS_VARIABLE: &str = "FARROW_CHAOS_SECONDS";
const SEED_VARIABLE: &str = "FARROW_CHAOS_SEED";
const SECONDS: u64 = 12;
/// Memory of a node.
const MEMORY: &str = "64MiB";
const MEMORY_BYTES: u64 = 64 << 20;
const NODES: &[&str] = &["--lease-ms", "1000", "--no-prepare"];
/// The module that logs the end of a quarantine, and its message.
const QUARANTINE_LOG: &str = "farrow_cluster::protocol::cluster::clients::remote_clients";
const QUARANTINE_WORDS: &str = "out of quarantine";
/// Names that are checked after each fault; at the end all are checked.
const SAMPLE: usize = 10;

/// One test at a time: each uses the whole machine.
static ONE: Mutex<()> = Mutex::new(());

/// Not a test by itself: a child process works.
#[test]
fn worker() {
    worker::work();
}

struct Chaos {
    seed: u64,
    dice: SeededDice,
    ground: Ground,
    /// Each with the number of its node.
    workers: Vec<(usize, WorkerProcess)>,
    started: u64,
    records: Records,
}

/// Workers that are stopped until this is dropped.
struct Stopped(Vec<u32>);

impl Stopped {
    fn all(workers: &[(usize, WorkerProcess)]) -> Self {
        let pids: Vec<u32> = workers.iter().map(|(_, worker)| worker.pid()).collect();
        pids.iter().for_each(|pid| signal(*pid, Signal::STOP));
        Self(pids)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.iter().for_each(|pid| signal(*pid, Signal::CONT));
    }
}

impl Chaos {
    fn new(ground: Ground, per_node: usize, seed: u64) -> Self {
        let (dice, records) = (SeededDice(seed | 1), Records::default());
        let count = ground.count();
        let mut chaos = Self { seed, dice, ground, workers: Vec::new(), started: 0, records };
        (0..count * per_node).for_each(|number| chaos.start_worker(number % count));
        chaos
    }

    fn daemons(&self) -> &[Daemon] {
        &self.ground.nodes().daemons
    }

    fn start_worker(&mut self, node: usize) {
        let socket = &self.daemons()[node].socket;
        let worker =
            WorkerProcess::start(socket, self.started, self.seed.wrapping_mul(self.started + 3));
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

    /// Injects a fault; returns its description.
    fn fault(&mut self, number: u64) -> String {
        // In turn, so that each run has of both.
        match self.ground.has_links() && number.is_multiple_of(2) {
            true => self.fault_of_links(number == 0),
            false => self.fault_of_processes(),
        }
    }

    fn fault_of_processes(&mut self) -> String {
        let node = self.one_of(self.ground.count());
        let at = self.one_of(self.workers.len());
        match self.dice.roll(6) {
            0 => {
                self.ground.kill9(node);
                self.sleep(0, 200);
                self.ground.restart(node);
                format!("kill and restart {node} within the lease")
            }
            1 => {
                self.ground.kill9(node);
                self.sleep(LEASE_MS, 3 * LEASE_MS);
                self.ground.restart(node);
                format!("kill {node}, restart after the lease")
            }
            2 => {
                signal(self.daemons()[node].pid(), Signal::STOP);
                self.sleep(LEASE_MS * 3 / 2, 5 * LEASE_MS);
                signal(self.daemons()[node].pid(), Signal::CONT);
                format!("pause {node}")
            }
            3 => {
                let other = (node + 1) % self.ground.count();
                self.ground.kill9(node);
                self.ground.kill9(other);
                self.sleep(0, 2 * LEASE_MS);
                self.ground.restart(node);
                self.ground.restart(other);
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

    /// Waits until one node reports another as silent.
    fn wait_for_silence(&self, of: usize, at: usize) {
        let name = &self.ground.nodes().names[of];
        wait_for(&self.ground.nodes().client(at), |members| {
            members.find(name).is_none_or(|node| node.reach != Reach::Live)
        });
    }

    fn fault_of_links(&mut self, is_first: bool) -> String {
        let node = self.one_of(self.ground.count());
        let other = (node + 1 + self.one_of(self.ground.count() - 1)) % self.ground.count();
        let weather = self.ground.roll_weather(&mut self.dice).unwrap_or_default();
        // Each run cuts off at least one node.
        let what = match if is_first { 1 } else { self.dice.roll(5) } {
            0 => {
                self.ground.set_link(node, other, false);
                self.wait_for_silence(node, other);
                self.sleep(0, 2 * LEASE_MS);
                self.ground.set_link(node, other, true);
                format!("cut {node} from {other}")
            }
            1 => {
                self.ground.set_links_of(node, false);
                self.wait_for_silence(node, other);
                self.sleep(0, 4 * LEASE_MS);
                self.ground.set_links_of(node, true);
                format!("cut {node} from all")
            }
            2 => {
                for round in 0..6 {
                    self.ground.set_links_of(node, round % 2 == 1);
                    self.sleep(50, LEASE_MS / 2);
                }
                format!("the links of {node} flap")
            }
            3 => {
                self.ground.set_links_of(node, false);
                self.ground.kill9(node);
                self.sleep(0, 2 * LEASE_MS);
                // After a restart it may find no peer at first.
                let is_up_first = self.one_of(2) == 0;
                if is_up_first {
                    self.ground.set_links_of(node, true);
                }
                self.ground.restart(node);
                self.sleep(0, LEASE_MS);
                self.ground.set_links_of(node, true);
                format!("cut {node} from all and kill it, links first: {is_up_first}")
            }
            _ => {
                let is_one_way = self.ground.set_one_way(node, other, true);
                let third = (other + 1) % self.ground.count();
                self.ground.set_link(other, third, false);
                self.wait_for_silence(third, other);
                self.sleep(0, LEASE_MS);
                self.ground.set_link(other, third, true);
                self.sleep(0, LEASE_MS);
                self.ground.set_one_way(node, other, false);
                format!("cut {other} from {third}, and from {node} one way: {is_one_way}")
            }
        };
        format!("{what} {weather}")
    }

    fn settle(&mut self) {
        self.ground.nodes().settle(self.ground.count());
        for (_, worker) in &self.workers {
            self.records.learn(worker.said());
        }
        self.records.assert_clean(self.seed);
        self.assert_counted();
        let on = self.one_of(self.ground.count());
        let client = self.ground.nodes().client(on);
        for _ in 0..SAMPLE {
            let retained: Vec<String> = self.records.retained().into_iter().cloned().collect();
            if let Some(name) = retained.get(self.dice.roll(retained.len().max(1) as u64) as usize)
            {
                // Its creator may have deleted it since it reported the seal.
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

    fn assert_counted(&self) {
        for daemon in self.daemons() {
            assert_balanced(&daemon.client().stats().unwrap());
        }
        // The directory and the sums are consistent only while no client changes them.
        let _stopped = Stopped::all(&self.workers);
        for (node, daemon) in self.daemons().iter().enumerate() {
            assert_counted(daemon, &format!("seed {:#x}, node {node}", self.seed));
        }
    }

    fn look_at(&mut self, client: &Client, name: &str) {
        let found = client.get(&name.into(), NOW);
        if matches!(found, Err(Error::NotFound { .. })) {
            // If it was deleted meanwhile, the worker has reported that by now.
            std::thread::sleep(Duration::from_millis(200));
            self.workers.iter().for_each(|(_, one)| self.records.learn(one.said()));
            if self.records.deleting.contains(name) {
                return;
            }
        }
        self.records.assert_there(client, name, self.seed);
    }

    /// Ends half of the workers and kills the others; then nothing may be held or granted.
    fn finish(mut self) {
        self.ground.heal();
        for (number, (_, worker)) in self.workers.drain(..).enumerate() {
            let words = if number % 2 == 0 { worker.end() } else { worker.kill9() };
            self.records.learn(words);
        }
        self.records.assert_clean(self.seed);
        assert!(self.records.done > 50, "too tame: {} operations", self.records.done);
        assert!(self.records.won.len() > 5, "too tame: {:?}", self.records.won);
        self.ground.nodes().settle(self.ground.count());
        println!(
            "{} calls, none later than {SLACK:?} after its deadline; the latest: {:?}",
            self.records.calls, self.records.latest
        );
        let clients: Vec<Client> = self.daemons().iter().map(Daemon::client).collect();
        for (node, client) in clients.iter().enumerate() {
            let until = Instant::now() + PATIENCE;
            loop {
                let stats = client.stats().unwrap();
                assert_balanced(&stats);
                let node_stats = &stats.node;
                let overview = client.overview(1, 0).unwrap().clients;
                // A farewell of this process that met a dead daemon: its place stays, empty, until
                // the process ends.
                let is_empty = |one: &&ClientOverview| {
                    !one.is_connected && one.pid == std::process::id() && one.holds == 0
                };
                let empty = overview.iter().filter(is_empty).count() as u64;
                let left = [node_stats.granted, node_stats.retiring, node_stats.quarantine];
                if left == [0; 3] && node_stats.clients - empty == 1 && node_stats.holds == 0 {
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
        // All that is allocated is live now.
        self.assert_counted();
        self.assert_one_owner(&clients);
        for name in self.records.retained() {
            let client = &clients[self.dice.0 as usize % clients.len()];
            self.dice.roll(2);
            self.records.assert_there(client, name, self.seed);
        }
        for name in &self.records.deleted {
            let is_there = clients[0].contains(&name.as_str().into()).unwrap();
            assert!(!is_there, "seed {:#x}: {name} was deleted", self.seed);
        }
        self.assert_all_comes_back(&clients);
        if matches!(self.ground, Ground::NodeLocal(..)) {
            let cleaned: usize = self.daemons().iter().map(|one| one.said(QUARANTINE_WORDS)).sum();
            let [published, refreshed] = self.records.lines;
            println!("{cleaned} cleaned, {published} lines published, {refreshed} refreshed");
            assert!(cleaned > 0 && published > 0 && refreshed > 0, "too tame");
        }
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
            let all: Vec<ObjectKey> =
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

/// `None`: not on this machine.
fn run(seed: u64, per_node: usize, ground: impl FnOnce() -> Option<Ground>) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let seed = number_of(SEED_VARIABLE, seed);
    println!("seed {seed:#x}; {SEED_VARIABLE} sets it");
    let Some(ground) = ground() else { return };
    let mut chaos = Chaos::new(ground, per_node, seed);
    let until = Instant::now() + Duration::from_secs(number_of(SECONDS_VARIABLE, SECONDS));
    let mut faults = 0;
    while Instant::now() < until {
        chaos.sleep(100, 600);
        let what = chaos.fault(faults);
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
    run(0xc4a0_5003, 2, || Some(Ground::Loopback(DaemonNodes::start(3, MEMORY, NODES))));
}

#[test]
fn five_nodes_survive_kills_and_pauses() {
    run(0xc4a0_5005, 1, || Some(Ground::Loopback(DaemonNodes::start(5, MEMORY, NODES))));
}

/// Six links, and the proxies run in this process: five nodes would have twenty.
#[test]
fn three_nodes_survive_links_that_lose_delay_and_reset_as_well() {
    run(0xc4a0_5103, 1, || Some(Ground::Proxied(Linked::start(3, MEMORY, NODES))));
}

#[test]
fn three_nodes_in_namespaces_survive_links_that_are_cut_as_well() {
    run(0xc4a0_5203, 2, || Ground::namespaces(3, MEMORY, NODES));
}

#[test]
fn five_nodes_in_namespaces_survive_links_that_are_cut_as_well() {
    run(0xc4a0_5205, 1, || Ground::namespaces(5, MEMORY, NODES));
}

/// Memory that is coherent only inside a node: writes are published, reads are refreshed, and
/// memory that a killed client could write stays in quarantine until its node has cleaned it.
#[test]
fn three_nodes_with_memory_that_is_coherent_inside_a_node_survive_kills_and_pauses() {
    run(0xc4a0_5303, 2, || {
        let heard = format!("FARROW_LOG=warn,{QUARANTINE_LOG}=info");
        let more = [NODES, &["--evict", "none"]].concat();
        let (nodes, dir) = DaemonNodes::node_local(3, MEMORY_BYTES, &["env", &heard], &more);
        Some(Ground::NodeLocal(nodes, dir))
    });
}

/// The canaries: faults reported by workers are detected.
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

/// A daemon that does not answer, and a worker that is measured by less than its calls have.
#[test]
#[should_panic(expected = "late ")]
fn a_call_that_outlives_its_deadline_is_seen() {
    // No lease ends meanwhile.
    let nodes = DaemonNodes::start(2, MEMORY, &["--no-prepare", "--lease-ms", "30000"]);
    let node = &nodes.daemons[0];
    let limits =
        WorkerLimits { call: Duration::from_millis(300), slack: Duration::from_millis(100) };
    let worker = WorkerProcess::start_with(&node.socket, 0, 7, limits);
    let mut records = Records::default();
    let until = Instant::now() + PATIENCE;
    while records.sealed.is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
        records.learn(worker.said());
    }
    records.assert_clean(0);
    signal(node.pid(), Signal::STOP);
    std::thread::sleep(3 * worker::CALL);
    signal(node.pid(), Signal::CONT);
    records.learn(worker.end());
    records.assert_clean(0);
}

/// A page that is missing on both sides of a node's equation of memory.
#[test]
fn a_page_that_is_lost_on_both_sides_is_seen() {
    let node = Daemon::start(MEMORY, &["--no-prepare"]);
    let client = node.client();
    for seed in 0..20 {
        let bytes = common::bytes_of(seed, 5000);
        client.put(&farrow::Value::Bytes(&bytes), Some(&format!("{seed}"))).unwrap();
    }
    let stats = assert_counted(&node, "a node");
    for is_too_much in [true, false] {
        let mut lost = stats.clone();
        let pages = if is_too_much { 4096_i64 } else { -4096 };
        lost.node.used = lost.node.used.wrapping_add_signed(pages);
        lost.node.free = lost.node.free.wrapping_add_signed(-pages);
        assert_balanced(&lost);
        compare(stats.node.used, &stats.node).unwrap();
        compare(stats.node.used, &lost.node).unwrap_err();
    }
    let block = |offset, bytes| {
        farrow_memory::Span::new(farrow_memory::Offset(offset), farrow_memory::Length(bytes))
    };
    let heap = block(4096, 8192);
    assert_eq!(sum_of(vec![block(8192, 128), block(4096, 4096)], heap), Ok(4224));
    sum_of(vec![block(8192, 128), block(4096, 4224)], heap).unwrap_err();
    sum_of(vec![block(4096, 8193)], heap).unwrap_err();
    sum_of(vec![block(0, 128)], heap).unwrap_err();
}
