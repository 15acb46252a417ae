//! Nodes that agree by majority, on a network that loses, delays, duplicates and cuts.

use std::collections::BTreeMap;

use super::message::{Body, MESSAGE_BYTES_MAX, Message, Output, PersistentState};
use super::options::Options;
use super::simulation::{self, Environment, address, options};
use super::state::{Membership, MembershipMutant, next_random};
use super::types::{ClusterId, Epoch, Incarnation};
use super::view::View;

/// Messages of each node that can be sent again; with more, some are forgotten.
const SENT_MAX: usize = 2048;

/// One message in this many is measured, to keep runs short.
const MEASURED: u64 = 16;

/// One call in this many is checked for unsaved state.
const LOOKED_AT: u64 = 8;

pub type PeerWorld = simulation::SimulatedWorld<SimulatedLinks>;

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
pub struct MessageDelivery {
    to: usize,
    message: Message,
}

/// The links between the nodes.
#[derive(Debug)]
pub struct SimulatedLinks {
    pub network: Network,
    /// The addresses that each node is configured with.
    seeds: Vec<Vec<String>>,
    /// The messages of each node, over all its lives.
    pub sent: Vec<Vec<Message>>,
    mutant: Option<MembershipMutant>,
    pub messages: u64,
    pub bytes_max: usize,
    calls: u64,
    epochs: BTreeMap<(usize, Incarnation, ClusterId), Epoch>,
}

// An accepted value may yet exclude a node that was silent at the time.
simulation::process!(
    Membership,
    retains PersistentState,
    puts out Output,
    is settled |membership| membership.retained.accepted.is_none()
);

impl Environment for SimulatedLinks {
    type Process = Membership;
    type Event = MessageDelivery;

    fn deliver(world: &mut PeerWorld, event: MessageDelivery) -> Result<(), String> {
        let MessageDelivery { to, message } = event;
        if world.nodes[to].is_paused {
            world.nodes[to].inbox.push(MessageDelivery { to, message });
            return Ok(());
        }
        world.receive(to, message)
    }

    fn perform(world: &mut PeerWorld, node: usize, out: Vec<Output>) -> Result<(), String> {
        let keep = out.iter().position(|output| matches!(output, Output::Keep(_)));
        let sent = out.iter().position(|output| matches!(output, Output::Send { .. }));
        if keep.is_some_and(|keep| sent.is_some_and(|sent| sent < keep)) {
            return Err("a message goes out before what it says is kept".to_owned());
        }
        world.environment.calls += 1;
        let is_looked_at = world.environment.calls.is_multiple_of(LOOKED_AT) && sent.is_some();
        let process = world.nodes[node].process.as_ref();
        let retained = process.filter(|_| is_looked_at || keep.is_some());
        let retained = retained.map(|process| process.retained.clone());
        for output in out {
            world.perform_one(node, output)?;
        }
        let it = &world.nodes[node];
        let is_same_life = it.process.as_ref().is_some_and(Membership::is_retained);
        if is_same_life && retained.is_some() && retained != it.retained {
            return Err("a message went out and what it says is not kept".to_owned());
        }
        Ok(())
    }

    fn check_leases(world: &PeerWorld) -> Result<(), String> {
        let holders = world.holders();
        for (node, _, view) in &holders {
            for (other, process, theirs) in &holders {
                let is_apart = view.cluster == theirs.cluster && view.epoch > theirs.epoch;
                let name = simulation::name(*other);
                if is_apart && view.number_of(&name, process.incarnation()).is_none() {
                    return Err(format!(
                        "at {} ms {node} has the lease in {:?} without {other}, which has it too",
                        world.now_ms, view.epoch
                    ));
                }
            }
        }
        Ok(())
    }
}

impl PeerWorld {
    /// Creates nodes without starting them. All found a cluster together, or the first one alone.
    pub fn new(count: usize, is_founded_alone: bool, seed: u64) -> Self {
        let seeds_of = |node: usize| match (is_founded_alone, node) {
            (true, 0) => Vec::new(),
            (true, _) => vec![address(0)],
            (false, _) => (0..count).map(address).collect(),
        };
        let links = SimulatedLinks {
            network: Network { delay_ms_max: 10, ..Network::default() },
            seeds: (0..count).map(seeds_of).collect(),
            sent: vec![Vec::new(); count],
            mutant: None,
            messages: 0,
            bytes_max: 0,
            calls: 0,
            epochs: BTreeMap::new(),
        };
        Self::with(links, count, seed)
    }

    /// Injects a fault into all nodes, also those that start later.
    pub fn infect(&mut self, mutant: Option<MembershipMutant>) {
        self.environment.mutant = mutant;
        for process in self.nodes.iter_mut().filter_map(|node| node.process.as_mut()) {
            process.mutant = mutant;
        }
    }

    pub fn start(&mut self, node: usize, has_retained: bool) -> Result<(), String> {
        let mutant = self.environment.mutant;
        let mut retained = self.nodes[node].retained.clone().filter(|_| has_retained);
        if let Some(retained) = &mut retained
            && mutant == Some(MembershipMutant::ForgetsPromise)
        {
            retained.promised = None;
            retained.accepted = None;
            self.nodes[node].retained = Some(retained.clone());
        }
        let seed = next_random(&mut self.random);
        let seeds = self.environment.seeds[node].clone();
        let options = Options { seeds, ..options(node, 1 + self.now_ms, seed) };
        let mut process = Membership::new(options, retained, self.clock_ms(node)).unwrap();
        process.mutant = mutant;
        self.run_on(node, process)
    }

    /// Delivers a message to a node as if it arrived from the network.
    pub fn receive(&mut self, node: usize, message: Message) -> Result<(), String> {
        self.call(node, |process, now_ms, out| process.handle(message, now_ms, out))
    }

    fn perform_one(&mut self, node: usize, output: Output) -> Result<(), String> {
        match output {
            Output::Send { address, message } => self.send(node, &address, message),
            Output::Keep(retained) => {
                self.nodes[node].retained = Some(retained);
                Ok(())
            }
            output => {
                if let Output::View(view) = &output {
                    self.check_order(node, view)?;
                }
                self.perform_common(node, output)
            }
        }
    }

    fn send(&mut self, from: usize, to: &str, message: Message) -> Result<(), String> {
        let links = &mut self.environment;
        links.messages += 1;
        let is_large = matches!(message.body, Body::Accept { .. } | Body::Promise { .. });
        if is_large || links.messages.is_multiple_of(MEASURED) {
            let bytes = postcard::to_stdvec(&message).map_err(|error| error.to_string())?;
            links.bytes_max = links.bytes_max.max(bytes.len());
            if bytes.len() > MESSAGE_BYTES_MAX {
                return Err(format!("a message of {} B", bytes.len()));
            }
        }
        links.remember(from, &message);
        let index = to.strip_prefix("10.0.0.").and_then(|to| to.strip_suffix(":7000"));
        let index = index.and_then(|index| index.parse().ok());
        let Some(to) = index.filter(|index| *index < self.nodes.len()) else {
            return Ok(());
        };
        self.replay(from);
        let is_cut = self.environment.network.cuts.contains(&(from, to));
        if is_cut || self.below(100) < self.environment.network.loss_percent {
            return Ok(());
        }
        let copies = 1 + u64::from(self.below(100) < self.environment.network.double_percent);
        for _ in 0..copies {
            let delay_ms_max = self.environment.network.delay_ms_max;
            let delay_ms = self.below(delay_ms_max) + u64::from(self.below(4) == 0);
            let message = message.clone();
            self.deliver_after(delay_ms, MessageDelivery { to, message });
        }
        Ok(())
    }

    /// Repeats an earlier message of a node.
    fn replay(&mut self, from: usize) {
        let percent = self.environment.network.replay_percent;
        if percent == 0 || self.below(100) >= percent {
            return;
        }
        let at = self.below(self.environment.sent[from].len() as u64) as usize;
        let to = self.below(self.nodes.len() as u64) as usize;
        let message = self.environment.sent[from][at].clone();
        if !self.environment.network.cuts.contains(&(from, to)) {
            self.deliver_after(0, MessageDelivery { to, message });
        }
    }

    /// Checks that no life of a node returns to an earlier view.
    fn check_order(&mut self, node: usize, view: &View) -> Result<(), String> {
        let process = self.nodes[node].process.as_ref();
        let life = process.map(Membership::incarnation).unwrap_or_default();
        let known = self.environment.epochs.insert((node, life, view.cluster), view.epoch);
        if known.is_some_and(|known| known > view.epoch) {
            return Err(format!("node {node} went from {known:?} back to {:?}", view.epoch));
        }
        Ok(())
    }
}

impl SimulatedLinks {
    fn remember(&mut self, from: usize, message: &Message) {
        let sent = &mut self.sent[from];
        if sent.len() < SENT_MAX {
            sent.push(message.clone());
        } else {
            // Any of them, in an order that depends on nothing else.
            let at = (self.messages.wrapping_mul(0x9e37_79b9) % SENT_MAX as u64) as usize;
            sent[at] = message.clone();
        }
    }
}
