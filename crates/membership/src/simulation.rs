//! The skeleton of the simulators: nodes on separate clocks, with pauses and kills, in virtual time
//! and all from one seed. An [`Environment`] has what the nodes communicate with, and its faults.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::message::{ClashError, Output};
use super::options::Options;
use super::state::next_random;
use super::types::{ClusterId, Epoch, Incarnation, NodeName};
use super::view::View;

/// The lease of all tests, in milliseconds of virtual time.
pub const LEASE_MS: u64 = 1000;

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

pub fn options(node: usize, incarnation: u64, seed: u64) -> Options {
    Options {
        name: name(node),
        address: address(node),
        info: vec![node as u8; 16],
        seeds: Vec::new(),
        lease_ms: LEASE_MS,
        incarnation: Incarnation(incarnation),
        seed,
    }
}

/// The membership of one node, by whichever means.
pub trait MemberProcess: Debug {
    /// What survives it.
    type Retained: Debug + Clone;
    type Output;

    fn tick(&mut self, now_ms: u64, out: &mut Vec<Self::Output>);
    fn leave(&mut self, now_ms: u64, out: &mut Vec<Self::Output>);
    fn rejoin(&mut self, incarnation: Incarnation, now_ms: u64);
    fn next_deadline_ms(&self) -> u64;
    fn has_lease(&self, now_ms: u64) -> bool;
    fn view(&self) -> Option<&View>;
    fn incarnation(&self) -> Incarnation;
    /// Whether no view but the present one may be in force elsewhere.
    fn is_settled(&self) -> bool;
}

/// Implements [`MemberProcess`] by the methods of these names that each kind of membership has
/// itself.
macro_rules! process {
    ($membership:ty, retains $retained:ty, puts out $output:ty, is settled $is_settled:expr) => {
        impl $crate::simulation::MemberProcess for $membership {
            type Retained = $retained;
            type Output = $output;

            fn tick(&mut self, now_ms: u64, out: &mut Vec<$output>) {
                Self::tick(self, now_ms, out);
            }

            fn leave(&mut self, now_ms: u64, out: &mut Vec<$output>) {
                Self::leave(self, now_ms, out);
            }

            fn rejoin(&mut self, incarnation: $crate::types::Incarnation, now_ms: u64) {
                Self::rejoin(self, incarnation, now_ms);
            }

            fn next_deadline_ms(&self) -> u64 {
                Self::next_deadline_ms(self)
            }

            fn has_lease(&self, now_ms: u64) -> bool {
                Self::has_lease(self, now_ms)
            }

            fn view(&self) -> Option<&$crate::view::View> {
                Self::view(self)
            }

            fn incarnation(&self) -> $crate::types::Incarnation {
                Self::incarnation(self)
            }

            fn is_settled(&self) -> bool {
                let is_settled: fn(&Self) -> bool = $is_settled;
                is_settled(self)
            }
        }
    };
}
pub(crate) use process;

/// What the nodes communicate with.
pub trait Environment: Debug + Sized {
    type Process: MemberProcess;
    /// What arrives later.
    type Event: Debug;

    /// Delivers an event, to a node or to a part of the environment.
    fn deliver(world: &mut SimulatedWorld<Self>, event: Self::Event) -> Result<(), String>;

    /// Carries out what a call of a process put out.
    fn perform(
        world: &mut SimulatedWorld<Self>,
        node: usize,
        out: Vec<<Self::Process as MemberProcess>::Output>,
    ) -> Result<(), String>;

    /// Checks that no two nodes hold the lease while the view of one excludes the life of the
    /// other.
    fn check_leases(world: &SimulatedWorld<Self>) -> Result<(), String>;
}

/// One node, with the state that survives its process.
#[derive(Debug)]
pub struct SimulatedNode<P: MemberProcess, E> {
    pub process: Option<P>,
    pub retained: Option<P::Retained>,
    pub is_paused: bool,
    pub has_left: bool,
    /// What arrived during a pause.
    pub inbox: Vec<E>,
    /// Its clock against true time: milliseconds ahead, and parts in a million faster.
    offset_ms: u64,
    drift_ppm: u64,
    /// The number of the current timer, and when it is due.
    tick: (u64, u64),
}

#[derive(Debug)]
enum SimulatedEvent<E> {
    Delivery(E),
    /// For the process that ran when the timer was set.
    Tick {
        node: usize,
        number: u64,
    },
    Resume {
        node: usize,
    },
}

/// The world. Methods that run it return the violated property.
#[derive(Debug)]
pub struct SimulatedWorld<E: Environment> {
    pub now_ms: u64,
    pub nodes: Vec<SimulatedNode<E::Process, E::Event>>,
    pub random: u64,
    pub clashes: Vec<ClashError>,
    pub environment: E,
    /// By time, and of one time in the order in which they were planned.
    events: BTreeMap<(u64, u64), SimulatedEvent<E::Event>>,
    next_event: u64,
    views: BTreeMap<(ClusterId, Epoch), View>,
}

impl<E: Environment> SimulatedWorld<E> {
    /// Creates nodes without starting them.
    pub fn with(environment: E, count: usize, seed: u64) -> Self {
        let mut random = seed;
        let nodes = (0..count).map(|_| SimulatedNode {
            process: None,
            retained: None,
            is_paused: false,
            has_left: false,
            inbox: Vec::new(),
            offset_ms: next_random(&mut random) % 1_000_000,
            drift_ppm: next_random(&mut random) % 20_000,
            tick: (0, u64::MAX),
        });
        let nodes = nodes.collect();
        Self {
            now_ms: 0,
            nodes,
            random,
            clashes: Vec::new(),
            environment,
            events: BTreeMap::new(),
            next_event: 0,
            views: BTreeMap::new(),
        }
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        next_random(&mut self.random) % limit.max(1)
    }

    pub fn clock_ms(&self, node: usize) -> u64 {
        let SimulatedNode { offset_ms, drift_ppm, .. } = &self.nodes[node];
        self.now_ms + offset_ms + self.now_ms * drift_ppm / 1_000_000
    }

    /// Plans the delivery of an event.
    pub fn deliver_after(&mut self, delay_ms: u64, event: E::Event) {
        self.after(delay_ms, SimulatedEvent::Delivery(event));
    }

    fn after(&mut self, delay_ms: u64, event: SimulatedEvent<E::Event>) {
        self.events.insert((self.now_ms + delay_ms, self.next_event), event);
        self.next_event += 1;
    }

    /// Lets a new process run on a node.
    pub fn run_on(&mut self, node: usize, process: E::Process) -> Result<(), String> {
        let it = &mut self.nodes[node];
        (it.process, it.is_paused, it.has_left) = (Some(process), false, false);
        it.inbox.clear();
        it.tick = (it.tick.0 + 1, u64::MAX);
        self.tick(node)
    }

    pub fn kill(&mut self, node: usize) {
        let it = &mut self.nodes[node];
        (it.process, it.is_paused) = (None, false);
        it.inbox.clear();
    }

    pub fn pause(&mut self, node: usize, for_ms: u64) {
        self.nodes[node].is_paused = true;
        self.after(for_ms, SimulatedEvent::Resume { node });
    }

    pub fn resume(&mut self, node: usize) -> Result<(), String> {
        if !std::mem::take(&mut self.nodes[node].is_paused) {
            return Ok(());
        }
        // A timer and a socket are ready; either may be first.
        let inbox = std::mem::take(&mut self.nodes[node].inbox);
        if self.below(2) == 0 {
            self.tick(node)?;
        }
        inbox.into_iter().try_for_each(|event| E::deliver(self, event))?;
        self.tick(node)
    }

    pub fn leave(&mut self, node: usize) -> Result<(), String> {
        self.call(node, |process, now_ms, out| process.leave(now_ms, out))
    }

    fn tick(&mut self, node: usize) -> Result<(), String> {
        self.call(node, |process, now_ms, out| process.tick(now_ms, out))
    }

    /// Runs until a time.
    pub fn run_until(&mut self, end_ms: u64) -> Result<(), String> {
        while let Some(first) = self.events.first_entry().filter(|first| first.key().0 <= end_ms) {
            let ((at_ms, _), event) = first.remove_entry();
            self.now_ms = at_ms;
            match event {
                SimulatedEvent::Delivery(event) => E::deliver(self, event)?,
                SimulatedEvent::Tick { node, number } => {
                    let it = &mut self.nodes[node];
                    if it.tick.0 == number && !it.is_paused {
                        it.tick.1 = u64::MAX;
                        self.tick(node)?;
                    }
                }
                SimulatedEvent::Resume { node } => self.resume(node)?,
            }
            E::check_leases(self)?;
        }
        self.now_ms = end_ms;
        E::check_leases(self)
    }

    /// Runs while a condition holds, which is checked every tenth of a lease; returns the time.
    pub fn run_while(
        &mut self,
        leases_max: u64,
        condition: impl Fn(&Self) -> bool,
    ) -> Result<u64, String> {
        let begin_ms = self.now_ms;
        while condition(self) {
            if self.now_ms - begin_ms > leases_max * LEASE_MS {
                return Err(format!("not within {leases_max} leases: {}", self.sketch()));
            }
            self.run_until(self.now_ms + LEASE_MS / 10)?;
        }
        Ok(self.now_ms - begin_ms)
    }

    /// Calls the process of a node, if one runs.
    pub fn call(
        &mut self,
        node: usize,
        what: impl FnOnce(&mut E::Process, u64, &mut Vec<<E::Process as MemberProcess>::Output>),
    ) -> Result<(), String> {
        let clock_ms = self.clock_ms(node);
        let Some(process) = &mut self.nodes[node].process else { return Ok(()) };
        let mut out = Vec::new();
        what(process, clock_ms, &mut out);
        E::perform(self, node, out)?;
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
        let it = &mut self.nodes[node];
        it.tick = (it.tick.0 + 1, due_ms);
        let number = it.tick.0;
        self.after(due_ms.saturating_sub(clock_ms), SimulatedEvent::Tick { node, number });
    }

    /// Carries out what every membership puts out.
    pub fn perform_common(&mut self, node: usize, output: Output) -> Result<(), String> {
        match output {
            Output::View(view) => {
                let key = (view.cluster, view.epoch);
                let old = self.views.entry(key).or_insert_with(|| view.clone());
                if *old != view {
                    return Err(format!("two views of one epoch: {old:?} and {view:?}"));
                }
            }
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
            _ => {}
        }
        Ok(())
    }

    /// The nodes that have the lease, with their views.
    pub fn holders(&self) -> Vec<(usize, &E::Process, &View)> {
        (0..self.nodes.len())
            .filter_map(|node| {
                let process = self.nodes[node].process.as_ref()?;
                let has_lease = process.has_lease(self.clock_ms(node));
                Some((node, process, process.view().filter(|_| has_lease)?))
            })
            .collect()
    }

    /// Whether all running nodes have the lease and one view with exactly them, and may have no
    /// other.
    pub fn is_whole(&self) -> bool {
        let running = || self.nodes.iter().enumerate().filter(|(_, node)| node.process.is_some());
        let Some((_, first)) = running().next() else { return true };
        let Some(view) = first.process.as_ref().and_then(MemberProcess::view) else { return false };
        view.members.len() == running().count()
            && running().all(|(index, node)| {
                let process = node.process.as_ref().unwrap();
                let has_lease = process.has_lease(self.clock_ms(index));
                process.view() == Some(view) && has_lease && process.is_settled()
            })
    }

    pub fn sketch(&self) -> String {
        let sketch = |node: &SimulatedNode<E::Process, E::Event>| {
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
