//! Nodes on a network that loses, delays, duplicates and cuts, on separate clocks, with pauses and
//! kills: all from one seed, with no thread and no real time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::message::{Body, ClashError, MESSAGE_BYTES_MAX, Message, Output, PersistentState};
use super::options::Options;
use super::state::{Membership, Mutant, next_random};
use super::types::{ClusterId, Epoch, Incarnation, NodeName};
use super::view::View;

/// The lease of all tests, in milliseconds of virtual time.
pub const LEASE_MS: u64 = 1000;

/// Messages of each node that can be sent again; with more, some are forgotten.
const SAID_MAX: usize = 2048;

/// One message in this many is measured, to keep runs short.
const MEASURED: u64 = 16;

/// One call in this many is checked for unsaved state.
const LOOKED_AT: u64 = 8;

/// Current state of the network. Each cut affects one direction.
#[derive(Debug, Clone, Default)]
pub struct Network {
    pub loss_percent: u64,
    pub double_percent: u64,
    pub delay_ms_max: u64,
    pub cuts: Vec<(usize, usize)>,
    /// Percentage of messages with which a node also repeats an earlier message, from any of its
    /// lives, to any node.
    pub replay_percent: u64,
}

#[derive(Debug)]
enum Event {
    Message {
        to: usize,
        message: Message,
    },
    /// For the process that ran when the timer was set.
    Tick {
        node: usize,
        number: u64,
    },
    Resume {
        node: usize,
    },
}

/// One node, with the state that survives its process.
#[derive(Debug)]
pub struct Node {
    pub process: Option<Membership>,
    pub retained: Option<PersistentState>,
    pub seeds: Vec<String>,
    pub is_paused: bool,
    pub has_left: bool,
    /// Its clock against true time: milliseconds ahead, and parts in a million faster.
    offset_ms: u64,
    drift_ppm: u64,
    inbox: Vec<Message>,
    /// Its messages, over all its lives.
    pub said: Vec<Message>,
    /// The number of the current timer, and when it is due.
    tick: (u64, u64),
}

/// The world. Methods that run it return the violated property.
#[derive(Debug)]
pub struct World {
    pub now_ms: u64,
    pub nodes: Vec<Node>,
    pub network: Network,
    pub random: u64,
    pub mutant: Option<Mutant>,
    pub messages: u64,
    calls: u64,
    pub bytes_max: usize,
    pub clashes: Vec<ClashError>,
    pub leases_lost: u64,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    waiting: BTreeMap<usize, Event>,
    next_event: usize,
    views: BTreeMap<(ClusterId, Epoch), View>,
    epochs: BTreeMap<(usize, Incarnation, ClusterId), Epoch>,
}

/// Factor for the number of seeds, for a long run by hand.
const SEEDS_VARIABLE: &str = "FARROW_SEEDS_TIMES";

/// Value of that variable, 1 if it is not set.
pub fn seeds_times() -> u64 {
    std::env::var(SEEDS_VARIABLE).ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

pub fn address(node: usize) -> String {
    format!("10.0.0.{node}:7000")
}

pub fn name(node: usize) -> NodeName {
    NodeName::new(format!("node-{node:02}")).unwrap()
}

impl World {
    /// Creates nodes without starting them. All found a cluster together, or the first one alone.
    pub fn new(count: usize, is_founded_alone: bool, seed: u64) -> Self {
        let mut random = seed;
        let seeds_of = |node: usize| match (is_founded_alone, node) {
            (true, 0) => Vec::new(),
            (true, _) => vec![address(0)],
            (false, _) => (0..count).map(address).collect(),
        };
        let nodes = (0..count).map(|node| Node {
            process: None,
            retained: None,
            seeds: seeds_of(node),
            is_paused: false,
            has_left: false,
            offset_ms: next_random(&mut random) % 1_000_000,
            drift_ppm: next_random(&mut random) % 20_000,
            inbox: Vec::new(),
            said: Vec::new(),
            tick: (0, u64::MAX),
        });
        let nodes = nodes.collect();
        Self {
            now_ms: 0,
            nodes,
            network: Network { delay_ms_max: 10, ..Network::default() },
            random,
            mutant: None,
            messages: 0,
            calls: 0,
            bytes_max: 0,
            clashes: Vec::new(),
            leases_lost: 0,
            events: BinaryHeap::new(),
            waiting: BTreeMap::new(),
            next_event: 0,
            views: BTreeMap::new(),
            epochs: BTreeMap::new(),
        }
    }

    /// Injects a fault into all nodes, also those that start later.
    pub fn infect(&mut self, mutant: Option<Mutant>) {
        self.mutant = mutant;
        for process in self.nodes.iter_mut().filter_map(|node| node.process.as_mut()) {
            process.mutant = mutant;
        }
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        next_random(&mut self.random) % limit.max(1)
    }

    pub fn clock_ms(&self, node: usize) -> u64 {
        let Node { offset_ms, drift_ppm, .. } = &self.nodes[node];
        self.now_ms + offset_ms + self.now_ms * drift_ppm / 1_000_000
    }

    fn at(&mut self, time_ms: u64, event: Event) {
        let id = self.next_event;
        self.next_event += 1;
        self.events.push(Reverse((time_ms.max(self.now_ms), id as u64, id)));
        self.waiting.insert(id, event);
    }

    pub fn start(&mut self, node: usize, has_retained: bool) -> Result<(), String> {
        let mut retained = self.nodes[node].retained.clone().filter(|_| has_retained);
        if let Some(retained) = &mut retained
            && self.mutant == Some(Mutant::ForgetsPromise)
        {
            retained.promised = None;
            retained.accepted = None;
            self.nodes[node].retained = Some(retained.clone());
        }
        let options = Options {
            name: name(node),
            address: address(node),
            info: vec![node as u8; 16],
            seeds: self.nodes[node].seeds.clone(),
            lease_ms: LEASE_MS,
            incarnation: Incarnation(1 + self.now_ms),
            seed: next_random(&mut self.random),
        };
        let mut process = Membership::new(options, retained, self.clock_ms(node)).unwrap();
        process.mutant = self.mutant;
        let place = &mut self.nodes[node];
        (place.process, place.is_paused, place.has_left) = (Some(process), false, false);
        place.inbox.clear();
        place.tick = (place.tick.0 + 1, u64::MAX);
        self.call(node, |process, now_ms, out| process.tick(now_ms, out))
    }

    pub fn kill(&mut self, node: usize) {
        let place = &mut self.nodes[node];
        (place.process, place.is_paused) = (None, false);
        place.inbox.clear();
    }

    pub fn pause(&mut self, node: usize, for_ms: u64) {
        self.nodes[node].is_paused = true;
        self.at(self.now_ms + for_ms, Event::Resume { node });
    }

    pub fn resume(&mut self, node: usize) -> Result<(), String> {
        if !std::mem::take(&mut self.nodes[node].is_paused) {
            return Ok(());
        }
        // A timer and a socket are ready; either may be first.
        let messages = std::mem::take(&mut self.nodes[node].inbox);
        if self.below(2) == 0 {
            self.call(node, |process, now_ms, out| process.tick(now_ms, out))?;
        }
        for message in messages {
            self.call(node, |process, now_ms, out| process.handle(message, now_ms, out))?;
        }
        self.call(node, |process, now_ms, out| process.tick(now_ms, out))
    }

    pub fn leave(&mut self, node: usize) -> Result<(), String> {
        self.call(node, |process, now_ms, out| process.leave(now_ms, out))
    }

    /// Delivers a message to a node as if it arrived from the network.
    pub fn deliver(&mut self, node: usize, message: Message) -> Result<(), String> {
        self.call(node, |process, now_ms, out| process.handle(message, now_ms, out))
    }

    /// Runs until a time.
    pub fn run_until(&mut self, end_ms: u64) -> Result<(), String> {
        while let Some(Reverse((at_ms, _, id))) = self.events.peek().copied() {
            if at_ms > end_ms {
                break;
            }
            self.events.pop();
            self.now_ms = at_ms;
            let Some(event) = self.waiting.remove(&id) else { continue };
            match event {
                Event::Message { to, message } => {
                    if self.nodes[to].is_paused {
                        self.nodes[to].inbox.push(message);
                    } else {
                        self.deliver(to, message)?;
                    }
                }
                Event::Tick { node, number } => {
                    let place = &mut self.nodes[node];
                    if place.tick.0 == number && !place.is_paused {
                        place.tick.1 = u64::MAX;
                        self.call(node, |process, now_ms, out| process.tick(now_ms, out))?;
                    }
                }
                Event::Resume { node } => self.resume(node)?,
            }
            self.check_leases()?;
        }
        self.now_ms = end_ms;
        self.check_leases()
    }

    /// Runs until a condition holds, checked every tenth of a lease; returns the time.
    pub fn run_while(
        &mut self,
        leases_max: u64,
        goes_on: impl Fn(&Self) -> bool,
    ) -> Result<u64, String> {
        let begin_ms = self.now_ms;
        while goes_on(self) {
            if self.now_ms - begin_ms > leases_max * LEASE_MS {
                return Err(format!("not within {leases_max} leases: {}", self.sketch()));
            }
            self.run_until(self.now_ms + LEASE_MS / 10)?;
        }
        Ok(self.now_ms - begin_ms)
    }

    fn call(
        &mut self,
        node: usize,
        what: impl FnOnce(&mut Membership, u64, &mut Vec<Output>),
    ) -> Result<(), String> {
        let clock_ms = self.clock_ms(node);
        let Some(process) = &mut self.nodes[node].process else { return Ok(()) };
        let mut out = Vec::new();
        what(process, clock_ms, &mut out);
        let keep = out.iter().position(|output| matches!(output, Output::Keep(_)));
        let sent = out.iter().position(|output| matches!(output, Output::Send { .. }));
        if keep.is_some_and(|keep| sent.is_some_and(|sent| sent < keep)) {
            return Err("a message goes out before what it says is kept".to_owned());
        }
        self.calls += 1;
        let is_looked_at = self.calls.is_multiple_of(LOOKED_AT) && sent.is_some();
        let retained = (is_looked_at || keep.is_some()).then(|| process.retained.clone());
        for output in out {
            self.put(node, output)?;
        }
        let place = &self.nodes[node];
        let is_same_life = place.process.as_ref().is_some_and(|process| process.is_retained());
        if is_same_life && retained.is_some() && retained != place.retained {
            return Err("a message went out and what it says is not kept".to_owned());
        }
        self.set_timer(node);
        Ok(())
    }

    fn set_timer(&mut self, node: usize) {
        let clock_ms = self.clock_ms(node);
        let Some(process) = &self.nodes[node].process else { return };
        let due_ms = process.next_deadline_ms();
        if due_ms == u64::MAX || self.nodes[node].tick.1 == due_ms {
            return;
        }
        let place = &mut self.nodes[node];
        place.tick = (place.tick.0 + 1, due_ms);
        let ahead_ms = due_ms.saturating_sub(clock_ms);
        let (number, at_ms) = (place.tick.0, self.now_ms + ahead_ms);
        self.at(at_ms, Event::Tick { node, number });
    }

    fn put(&mut self, node: usize, output: Output) -> Result<(), String> {
        match output {
            Output::Send { address, message } => self.send(node, &address, message)?,
            Output::Keep(retained) => self.nodes[node].retained = Some(retained),
            Output::View(view) => self.check_view(node, view)?,
            Output::Outcast { .. } => {
                let (now_ms, clock_ms) = (self.now_ms, self.clock_ms(node));
                let process = self.nodes[node].process.as_mut();
                process.unwrap().rejoin(Incarnation(1 + now_ms), clock_ms);
            }
            Output::Left => {
                self.nodes[node].has_left = true;
                self.nodes[node].process = None;
            }
            Output::Clash(error) => self.clashes.push(error),
            Output::LeaseLost => self.leases_lost += 1,
            Output::LeaseFound | Output::Reach { .. } => {}
        }
        Ok(())
    }

    fn send(&mut self, from: usize, to: &str, message: Message) -> Result<(), String> {
        self.messages += 1;
        let is_large = matches!(message.body, Body::Accept { .. } | Body::Promise { .. });
        if is_large || self.messages.is_multiple_of(MEASURED) {
            let bytes = postcard::to_stdvec(&message).map_err(|error| error.to_string())?;
            self.bytes_max = self.bytes_max.max(bytes.len());
            if bytes.len() > MESSAGE_BYTES_MAX {
                return Err(format!("a message of {} B", bytes.len()));
            }
        }
        self.remember(from, &message);
        let place = to.strip_prefix("10.0.0.").and_then(|to| to.strip_suffix(":7000"));
        let place = place.and_then(|place| place.parse().ok());
        let Some(to) = place.filter(|place| *place < self.nodes.len()) else {
            return Ok(());
        };
        self.replay(from);
        if self.network.cuts.contains(&(from, to)) || self.below(100) < self.network.loss_percent {
            return Ok(());
        }
        let copies = 1 + u64::from(self.below(100) < self.network.double_percent);
        for _ in 0..copies {
            let delay_ms = self.below(self.network.delay_ms_max) + u64::from(self.below(4) == 0);
            let message = message.clone();
            self.at(self.now_ms + delay_ms, Event::Message { to, message });
        }
        Ok(())
    }

    fn remember(&mut self, from: usize, message: &Message) {
        let said = &mut self.nodes[from].said;
        if said.len() < SAID_MAX {
            said.push(message.clone());
        } else {
            // Any of them, in an order that depends on nothing else.
            let at = (self.messages.wrapping_mul(0x9e37_79b9) % SAID_MAX as u64) as usize;
            said[at] = message.clone();
        }
    }

    /// Repeats an earlier message of a node.
    fn replay(&mut self, from: usize) {
        let percent = self.network.replay_percent;
        if percent == 0 || self.below(100) >= percent {
            return;
        }
        let (at, to) = (self.below(self.nodes[from].said.len() as u64), self.nodes.len() as u64);
        let (message, to) = (self.nodes[from].said[at as usize].clone(), self.below(to) as usize);
        if !self.network.cuts.contains(&(from, to)) {
            self.at(self.now_ms, Event::Message { to, message });
        }
    }

    fn check_view(&mut self, node: usize, view: View) -> Result<(), String> {
        let process = self.nodes[node].process.as_ref();
        let life = process.map(Membership::incarnation).unwrap_or_default();
        let known = self.epochs.insert((node, life, view.cluster), view.epoch);
        if known.is_some_and(|known| known > view.epoch) {
            return Err(format!("node {node} went from {known:?} back to {:?}", view.epoch));
        }
        let old = self.views.entry((view.cluster, view.epoch)).or_insert_with(|| view.clone());
        if *old != view {
            return Err(format!("two views of one epoch: {old:?} and {view:?}"));
        }
        Ok(())
    }

    /// Checks that no two nodes hold the lease while the view of one excludes the life of the
    /// other.
    pub fn check_leases(&self) -> Result<(), String> {
        let holders: Vec<(usize, &Membership, &View)> = (0..self.nodes.len())
            .filter_map(|node| {
                let process = self.nodes[node].process.as_ref()?;
                let has_lease = process.has_lease(self.clock_ms(node));
                Some((node, process, process.view().filter(|_| has_lease)?))
            })
            .collect();
        for (node, _, view) in &holders {
            for (other, process, theirs) in &holders {
                let is_apart = view.cluster == theirs.cluster && view.epoch > theirs.epoch;
                if is_apart && view.number_of(&name(*other), process.incarnation()).is_none() {
                    return Err(format!(
                        "at {} ms {node} has the lease in {:?} without {other}, which has it too",
                        self.now_ms, view.epoch
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether all running nodes have the lease and one view with exactly them, and accepted no
    /// other.
    pub fn is_whole(&self) -> bool {
        let running = || self.nodes.iter().enumerate().filter(|(_, node)| node.process.is_some());
        let Some((_, first)) = running().next() else { return true };
        let Some(view) = first.process.as_ref().and_then(Membership::view) else { return false };
        view.members.len() == running().count()
            && running().all(|(place, node)| {
                let process = node.process.as_ref().unwrap();
                // An accepted value may yet exclude a node that was silent at the time.
                let is_undecided = process.retained.accepted.is_some();
                let has_lease = process.has_lease(self.clock_ms(place));
                process.view() == Some(view) && has_lease && !is_undecided
            })
    }

    pub fn sketch(&self) -> String {
        let sketch = |node: &Node| {
            let Some(process) = &node.process else { return "down".to_owned() };
            let Some(view) = process.view() else {
                return format!("{:?} outside", process.incarnation());
            };
            let members: Vec<String> =
                view.members.iter().map(|m| format!("{}/{}", m.name, m.incarnation.0)).collect();
            let (cluster, epoch) = (view.cluster.0 % 1000, view.epoch.0);
            format!("{} in {cluster}.{epoch} {members:?}", process.incarnation().0)
        };
        self.nodes.iter().map(sketch).collect::<Vec<_>>().join("\n  ")
    }
}
