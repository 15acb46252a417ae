//! The faults of a run, from a seed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::client::ClientProcess;
use super::common::SeededDice;
use super::common::ground::Ground;
use super::record::now_ns;

pub const LEASE_MS: u64 = 1000;
/// Processes with clients on each node.
const PER_NODE: usize = 2;

pub struct FaultyRun {
    pub ground: Ground,
    pub folder: PathBuf,
    pub from_ns: i64,
    seed: u64,
    dice: SeededDice,
    /// Each with the number of its node.
    clients: Vec<(usize, ClientProcess)>,
    started: u64,
    pub faults: u64,
    /// From when to when each of them was that may have cost a node what it retained for others.
    pub losses: Vec<(i64, i64)>,
    /// The last view that was seen, and when.
    view: (u64, i64),
}

impl FaultyRun {
    pub fn start(ground: Ground, folder: &Path, seed: u64) -> Self {
        let from_ns = now_ns();
        let mut run = Self {
            ground,
            folder: folder.to_owned(),
            from_ns,
            seed,
            dice: SeededDice(seed | 1),
            clients: Vec::new(),
            started: 0,
            faults: 0,
            losses: Vec::new(),
            view: (0, from_ns),
        };
        run.see_view();
        let count = run.ground.count();
        (0..count * PER_NODE).for_each(|number| run.start_clients(number % count));
        run
    }

    fn start_clients(&mut self, node: usize) {
        let socket = &self.ground.nodes().daemons[node].socket;
        let clients =
            ClientProcess::start(socket, &self.folder, self.started, (self.seed, self.from_ns));
        self.started += 1;
        self.clients.push((node, clients));
    }

    pub fn sleep(&mut self, from_ms: u64, to_ms: u64) {
        let more = self.dice.roll(to_ms - from_ms);
        std::thread::sleep(Duration::from_millis(from_ms + more));
    }

    /// Notes the view. Returns whether it is another one, and when the last one was seen.
    fn see_view(&mut self) -> (bool, i64) {
        let (epoch, since_ns) = self.view;
        let members = self.ground.nodes().client(0).members();
        self.view = (members.map_or(epoch, |members| members.epoch), now_ns());
        (self.view.0 != epoch, since_ns)
    }

    /// On a busy machine a node may be excluded without a fault, since it had no time for a lease.
    pub fn note_exclusions(&mut self) {
        if let (true, since_ns) = self.see_view() {
            self.losses.push((since_ns, now_ns()));
        }
    }

    fn one_of(&mut self, count: usize) -> usize {
        self.dice.roll(count as u64) as usize
    }

    /// Bytes that all clients recorded.
    pub fn recorded_bytes(&self) -> u64 {
        let files = std::fs::read_dir(&self.folder).unwrap();
        files.map(|one| one.unwrap().metadata().unwrap().len()).sum()
    }

    /// One fault, until all nodes are in one view again; in words.
    pub fn fault(&mut self) -> String {
        let begin_ns = now_ns();
        self.faults += 1;
        let what = match (self.ground.has_links(), self.dice.roll(4)) {
            (_, 0) => {
                let what = self.fault_of_clients();
                self.note_exclusions();
                return what;
            }
            (false, 1) => {
                let what = self.visit();
                self.see_view();
                return what;
            }
            (true, 1) => self.fault_of_links(),
            _ => self.fault_of_nodes(),
        };
        self.ground.nodes().settle(self.ground.count());
        self.losses.push((begin_ns, now_ns()));
        self.see_view();
        what
    }

    /// No fault: another node comes, keeps what is its part, and goes in good order. Nothing is
    /// lost.
    fn visit(&mut self) -> String {
        let count = self.ground.count();
        let mut visitor = self.ground.nodes().visitor(&["--lease-ms", &LEASE_MS.to_string()]);
        self.ground.nodes().settle(count + 1);
        self.sleep(LEASE_MS / 2, 2 * LEASE_MS);
        signal(visitor.pid(), Signal::TERM);
        assert!(visitor.wait_end().success());
        self.ground.nodes().settle(count);
        "a node comes and goes".to_owned()
    }

    fn fault_of_clients(&mut self) -> String {
        let at = self.one_of(self.clients.len());
        if self.dice.roll(2) == 0 {
            let (node, clients) = self.clients.swap_remove(at);
            clients.kill9();
            self.start_clients(node);
            return format!("kill the clients on {node}");
        }
        let (node, pid) = (self.clients[at].0, self.clients[at].1.pid());
        signal(pid, Signal::STOP);
        self.sleep(200, 2 * LEASE_MS);
        signal(pid, Signal::CONT);
        format!("pause the clients on {node}")
    }

    fn fault_of_nodes(&mut self) -> String {
        let node = self.one_of(self.ground.count());
        match self.dice.roll(5) {
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
                self.ground.upgrade(node);
                format!("upgrade {node}")
            }
            _ => {
                signal(self.ground.nodes().daemons[node].pid(), Signal::STOP);
                self.sleep(LEASE_MS * 3 / 2, 4 * LEASE_MS);
                signal(self.ground.nodes().daemons[node].pid(), Signal::CONT);
                format!("pause {node}")
            }
        }
    }

    fn fault_of_links(&mut self) -> String {
        let node = self.one_of(self.ground.count());
        let other = (node + 1 + self.one_of(self.ground.count() - 1)) % self.ground.count();
        let weather = self.ground.roll_weather(&mut self.dice).unwrap_or_default();
        let what = match self.dice.roll(4) {
            0 => {
                self.ground.set_link(node, other, false);
                self.sleep(LEASE_MS / 2, 3 * LEASE_MS);
                self.ground.set_link(node, other, true);
                format!("cut {node} from {other}")
            }
            1 => {
                self.ground.set_links_of(node, false);
                self.sleep(LEASE_MS, 4 * LEASE_MS);
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
            _ => {
                self.ground.set_one_way(node, other, true);
                self.sleep(LEASE_MS / 2, 4 * LEASE_MS);
                self.ground.set_one_way(node, other, false);
                format!("{other} does not hear {node}")
            }
        };
        self.ground.heal();
        format!("{what}, {weather}")
    }

    /// All clients end, then all nodes, as an operator ends them.
    pub fn finish(mut self) -> (u64, Vec<(i64, i64)>) {
        self.ground.heal();
        self.note_exclusions();
        self.clients.drain(..).for_each(|(_, clients)| clients.end());
        self.ground.terminate();
        (self.faults, self.losses)
    }
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}
