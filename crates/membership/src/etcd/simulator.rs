//! Nodes and an etcd on a network that loses and delays messages, on separate clocks, with pauses
//! and kills of both: all from one seed, with no thread and no real time. This etcd is
//! linearizable; its leases are as bad as those of a real one can be.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::state::{EtcdMembership, EtcdMutant};
use super::types::{
    Change, EtcdOutput, EtcdReply, EtcdRequest, EtcdSnapshot, FoundKey, Key, LeaseId, Revision,
};
use crate::message::{ClashError, Output};
use crate::options::Options;
use crate::state::next_random;
use crate::types::{ClusterId, Epoch, Incarnation, NodeName};
use crate::view::View;

pub const LEASE_MS: u64 = 1000;

/// The shortest lease of a real etcd, and the delay until it detects an expired one.
const TTL_MS_MIN: u64 = 2000;
const LATE_MS_MAX: u64 = 500;

/// A call without a reply fails after this time.
const DEADLINE_MS: u64 = LEASE_MS / 4;

#[derive(Debug, Clone)]
struct Entry {
    revision: i64,
    lease: Option<i64>,
    value: Vec<u8>,
}

/// The stored data, and the faults of leases.
#[derive(Debug, Default, Clone)]
pub struct Etcd {
    pub revision: i64,
    entries: BTreeMap<Key, Entry>,
    leases: BTreeMap<i64, u64>,
    next_lease: i64,
    pub is_down: bool,
    /// Requests that wait until it is up.
    queue: Vec<(usize, u64, u64, EtcdRequest)>,
}

/// The faults of etcd and its network.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    pub loss_percent: u64,
    pub delay_ms_max: u64,
    /// Leases that etcd ends too early, per thousand requests.
    pub early_permille: u64,
    /// Expired leases that are reported as renewed.
    pub stale_percent: u64,
    pub poke_loss_percent: u64,
    pub poke_delay_ms_max: u64,
    /// Nodes that cannot reach it.
    pub cut: Vec<usize>,
}

#[derive(Debug)]
enum Event {
    Request { node: usize, life: u64, id: u64, request: EtcdRequest },
    Reply { node: usize, life: u64, id: u64, reply: EtcdReply },
    Poke { node: usize },
    Tick { node: usize, number: u64 },
    Resume { node: usize },
    EtcdUp,
}

#[derive(Debug)]
pub struct Node {
    pub process: Option<EtcdMembership>,
    pub retained: Option<Vec<u8>>,
    pub is_paused: bool,
    pub has_left: bool,
    /// Number of its process.
    life: u64,
    open: BTreeMap<u64, ()>,
    inbox: Vec<Event>,
    offset_ms: u64,
    drift_ppm: u64,
    tick: (u64, u64),
}

/// The world. Methods that run it return the violated property.
#[derive(Debug)]
pub struct World {
    pub now_ms: u64,
    pub nodes: Vec<Node>,
    pub etcd: Etcd,
    pub faults: Faults,
    pub random: u64,
    pub mutant: Option<EtcdMutant>,
    pub clashes: Vec<ClashError>,
    pub looks: u64,
    /// A node with another lease than the rest.
    pub other_lease: Option<(usize, u64)>,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    waiting: BTreeMap<u64, Event>,
    next_event: u64,
    views: BTreeMap<(ClusterId, Epoch), View>,
}

pub fn name(node: usize) -> NodeName {
    NodeName::new(format!("node-{node:02}")).unwrap()
}

pub fn options(node: usize, incarnation: u64, seed: u64) -> Options {
    Options {
        name: name(node),
        address: format!("10.0.0.{node}:7000"),
        info: vec![node as u8; 16],
        seeds: Vec::new(),
        lease_ms: LEASE_MS,
        incarnation: Incarnation(incarnation),
        seed,
    }
}

impl World {
    pub fn new(count: usize, seed: u64) -> Self {
        let mut random = seed;
        let nodes = (0..count).map(|_| Node {
            process: None,
            retained: None,
            is_paused: false,
            has_left: false,
            life: 0,
            open: BTreeMap::new(),
            inbox: Vec::new(),
            offset_ms: next_random(&mut random) % 1_000_000,
            drift_ppm: next_random(&mut random) % 20_000,
            tick: (0, u64::MAX),
        });
        let nodes = nodes.collect();
        Self {
            now_ms: 0,
            nodes,
            etcd: Etcd { revision: 1, ..Etcd::default() },
            faults: Faults { delay_ms_max: 5, poke_delay_ms_max: 5, ..Faults::default() },
            random,
            mutant: None,
            clashes: Vec::new(),
            looks: 0,
            other_lease: None,
            events: BinaryHeap::new(),
            waiting: BTreeMap::new(),
            next_event: 0,
            views: BTreeMap::new(),
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
        self.events.push(Reverse((time_ms.max(self.now_ms), id)));
        self.waiting.insert(id, event);
    }

    pub fn start(&mut self, node: usize, has_retained: bool) -> Result<(), String> {
        let retained = self.nodes[node].retained.clone().filter(|_| has_retained);
        let seed = next_random(&mut self.random);
        let mut options = options(node, 1 + self.now_ms, seed);
        if let Some((_, lease_ms)) = self.other_lease.filter(|(other, _)| *other == node) {
            options.lease_ms = lease_ms;
        }
        let clock_ms = self.clock_ms(node);
        let mut process = EtcdMembership::new(options, retained.as_deref(), clock_ms).unwrap();
        process.mutant = self.mutant;
        let place = &mut self.nodes[node];
        (place.process, place.is_paused, place.has_left) = (Some(process), false, false);
        place.life += 1;
        place.inbox.clear();
        place.open.clear();
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

    pub fn leave(&mut self, node: usize) -> Result<(), String> {
        self.call(node, |process, now_ms, out| process.leave(now_ms, out))
    }

    /// Stops etcd; requests wait for it meanwhile.
    pub fn pause_etcd(&mut self, for_ms: u64) {
        self.etcd.is_down = true;
        self.at(self.now_ms + for_ms, Event::EtcdUp);
    }

    pub fn run_until(&mut self, end_ms: u64) -> Result<(), String> {
        while let Some(Reverse((at_ms, id))) = self.events.peek().copied() {
            if at_ms > end_ms {
                break;
            }
            self.events.pop();
            self.now_ms = at_ms;
            if let Some(event) = self.waiting.remove(&id) {
                self.happen(event)?;
                self.check_leases()?;
            }
        }
        self.now_ms = end_ms;
        self.check_leases()
    }

    /// Runs until a condition holds, checked every tenth of a lease.
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

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Request { node, life, id, request } if self.etcd.is_down => {
                self.etcd.queue.push((node, life, id, request));
                Ok(())
            }
            Event::Request { node, life, id, request } => {
                self.serve(node, life, id, request);
                Ok(())
            }
            Event::EtcdUp => {
                self.etcd.is_down = false;
                if self.below(2) == 0 {
                    self.expire();
                }
                for (node, life, id, request) in std::mem::take(&mut self.etcd.queue) {
                    self.serve(node, life, id, request);
                }
                Ok(())
            }
            Event::Resume { node } => {
                if !std::mem::take(&mut self.nodes[node].is_paused) {
                    return Ok(());
                }
                let inbox = std::mem::take(&mut self.nodes[node].inbox);
                if self.below(2) == 0 {
                    self.call(node, |process, now_ms, out| process.tick(now_ms, out))?;
                }
                inbox.into_iter().try_for_each(|event| self.happen(event))?;
                self.call(node, |process, now_ms, out| process.tick(now_ms, out))
            }
            Event::Reply { node, .. } | Event::Poke { node } if self.nodes[node].is_paused => {
                self.nodes[node].inbox.push(event);
                Ok(())
            }
            Event::Reply { node, life, id, reply } => {
                let place = &mut self.nodes[node];
                // One reply for each call: the first.
                if place.life != life || place.open.remove(&id).is_none() {
                    return Ok(());
                }
                self.call(node, |process, now_ms, out| process.on_response(id, reply, now_ms, out))
            }
            Event::Poke { node } => {
                self.call(node, |process, now_ms, out| process.poked(now_ms, out))
            }
            Event::Tick { node, number } => {
                let place = &mut self.nodes[node];
                if place.tick.0 != number || place.is_paused {
                    return Ok(());
                }
                place.tick.1 = u64::MAX;
                self.call(node, |process, now_ms, out| process.tick(now_ms, out))
            }
        }
    }

    fn call(
        &mut self,
        node: usize,
        what: impl FnOnce(&mut EtcdMembership, u64, &mut Vec<EtcdOutput>),
    ) -> Result<(), String> {
        let clock_ms = self.clock_ms(node);
        let Some(process) = &mut self.nodes[node].process else { return Ok(()) };
        let mut out = Vec::new();
        what(process, clock_ms, &mut out);
        for output in out {
            self.put(node, output)?;
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
        let (number, ahead_ms) = (place.tick.0, due_ms.saturating_sub(clock_ms));
        self.at(self.now_ms + ahead_ms, Event::Tick { node, number });
    }

    fn put(&mut self, node: usize, output: EtcdOutput) -> Result<(), String> {
        match output {
            EtcdOutput::Ask { id, request } => self.send(node, id, request),
            EtcdOutput::Keep(retained) => self.nodes[node].retained = Some(retained),
            EtcdOutput::Membership(Output::View(view)) => {
                let key = (view.cluster, view.epoch);
                let old = self.views.entry(key).or_insert_with(|| view.clone());
                if *old != view {
                    return Err(format!("two views of one epoch: {old:?} and {view:?}"));
                }
            }
            EtcdOutput::Membership(Output::Outcast { .. }) => {
                let (now_ms, clock_ms) = (self.now_ms, self.clock_ms(node));
                let process = self.nodes[node].process.as_mut();
                process.unwrap().rejoin(Incarnation(1 + now_ms), clock_ms);
            }
            EtcdOutput::Membership(Output::Left) => {
                self.nodes[node].has_left = true;
                self.nodes[node].process = None;
            }
            EtcdOutput::Membership(Output::Clash(error)) => self.clashes.push(error),
            EtcdOutput::Membership(_) => {}
        }
        Ok(())
    }

    fn send(&mut self, node: usize, id: u64, request: EtcdRequest) {
        self.looks += u64::from(matches!(request, EtcdRequest::Look { .. }));
        let life = self.nodes[node].life;
        self.nodes[node].open.insert(id, ());
        let reply = EtcdReply::Failed { reason: "no answer".to_owned() };
        self.at(self.now_ms + DEADLINE_MS, Event::Reply { node, life, id, reply });
        if !self.is_lost(node) {
            let at_ms = self.now_ms + self.delay_ms();
            self.at(at_ms, Event::Request { node, life, id, request });
        }
    }

    fn is_lost(&mut self, node: usize) -> bool {
        self.faults.cut.contains(&node) || self.below(100) < self.faults.loss_percent
    }

    fn delay_ms(&mut self) -> u64 {
        self.below(self.faults.delay_ms_max) + u64::from(self.below(4) == 0)
    }

    fn serve(&mut self, node: usize, life: u64, id: u64, request: EtcdRequest) {
        self.expire();
        let before = self.etcd.revision;
        let reply = self.answer(request);
        if self.etcd.revision > before {
            self.poke_all();
        }
        if !self.is_lost(node) {
            let at_ms = self.now_ms + self.delay_ms();
            self.at(at_ms, Event::Reply { node, life, id, reply });
        }
    }

    fn poke_all(&mut self) {
        for node in 0..self.nodes.len() {
            if self.below(100) >= self.faults.poke_loss_percent {
                for _ in 0..=self.below(2) {
                    let delay_ms = self.below(self.faults.poke_delay_ms_max);
                    self.at(self.now_ms + delay_ms, Event::Poke { node });
                }
            }
        }
    }

    /// Ends leases that have expired, or that it ends for no reason.
    fn expire(&mut self) {
        if self.below(1000) < self.faults.early_permille {
            let count = self.etcd.leases.len() as u64;
            let unlucky = self.below(count) as usize;
            if let Some(until_ms) = self.etcd.leases.values_mut().nth(unlucky) {
                *until_ms = self.now_ms;
            }
        }
        let now_ms = self.now_ms;
        let etcd = &mut self.etcd;
        let over: Vec<i64> =
            etcd.leases.iter().filter(|(_, until)| **until <= now_ms).map(|(id, _)| *id).collect();
        for lease in over {
            etcd.leases.remove(&lease);
            let before = etcd.entries.len();
            etcd.entries.retain(|_, entry| entry.lease != Some(lease));
            etcd.revision += i64::from(etcd.entries.len() < before);
        }
    }

    fn renewed_ms(&mut self) -> u64 {
        self.now_ms + TTL_MS_MIN + self.below(LATE_MS_MAX)
    }

    fn answer(&mut self, request: EtcdRequest) -> EtcdReply {
        match request {
            EtcdRequest::Look { since } => EtcdReply::Looked(self.etcd.look(since)),
            EtcdRequest::Grant { .. } => {
                let until_ms = self.renewed_ms();
                self.etcd.next_lease += 1;
                self.etcd.leases.insert(self.etcd.next_lease, until_ms);
                EtcdReply::Granted { lease: LeaseId(self.etcd.next_lease) }
            }
            EtcdRequest::KeepAlive { lease } => {
                let until_ms = self.renewed_ms();
                let is_stale = self.below(100) < self.faults.stale_percent;
                let known = self.etcd.leases.get_mut(&lease.0);
                let is_there = known.map(|until| *until = until_ms).is_some();
                EtcdReply::RetainedAlive { is_there: is_there || is_stale }
            }
            EtcdRequest::Change(change) => self.etcd.change(change),
        }
    }

    /// Checks that no two nodes hold the lease while the view of one excludes the life of the
    /// other.
    fn check_leases(&self) -> Result<(), String> {
        let holders: Vec<(usize, &EtcdMembership, &View)> = (0..self.nodes.len())
            .filter_map(|node| {
                let process = self.nodes[node].process.as_ref()?;
                let has_lease = process.has_lease(self.clock_ms(node));
                Some((node, process, process.view().filter(|_| has_lease)?))
            })
            .collect();
        // Nor may a view in etcd exclude a holder.
        let written = self.etcd.entries.get(&Key::View);
        let written: Option<View> = written.and_then(|e| postcard::from_bytes(&e.value).ok());
        let views = holders.iter().map(|(_, _, view)| *view).chain(&written);
        for view in views {
            for (other, process, theirs) in &holders {
                let is_later = view.cluster != theirs.cluster || view.epoch > theirs.epoch;
                if is_later && view.number_of(&name(*other), process.incarnation()).is_none() {
                    return Err(format!(
                        "at {} ms a view {:?} without {other}, which has the lease",
                        self.now_ms, view.epoch
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether all running nodes have the lease and one view with exactly them.
    pub fn is_whole(&self) -> bool {
        let running = || self.nodes.iter().enumerate().filter(|(_, node)| node.process.is_some());
        let Some((_, first)) = running().next() else { return true };
        let Some(view) = first.process.as_ref().and_then(EtcdMembership::view) else {
            return false;
        };
        view.members.len() == running().count()
            && running().all(|(place, node)| {
                let process = node.process.as_ref().unwrap();
                process.view() == Some(view) && process.has_lease(self.clock_ms(place))
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
            format!("{} in {} {members:?}", process.incarnation().0, view.epoch.0)
        };
        self.nodes.iter().map(sketch).collect::<Vec<_>>().join("\n  ")
    }
}

impl Etcd {
    pub fn look(&self, since: Revision) -> EtcdSnapshot {
        let revision_of = |entry: &Entry| Revision(entry.revision);
        let changed = self.entries.iter().filter(|(_, entry)| revision_of(entry) >= since);
        EtcdSnapshot {
            revision: Revision(self.revision),
            keys: self.entries.iter().map(|(key, one)| (key.clone(), revision_of(one))).collect(),
            changed: changed
                .map(|(key, entry)| FoundKey {
                    key: key.clone(),
                    revision: revision_of(entry),
                    lease: entry.lease.map(LeaseId),
                    value: entry.value.clone(),
                })
                .collect(),
        }
    }

    fn change(&mut self, change: Change) -> EtcdReply {
        let revision_of =
            |key: &Key| Revision(self.entries.get(key).map_or(0, |entry| entry.revision));
        if !change.expected.iter().all(|(key, revision)| revision_of(key) == *revision) {
            return EtcdReply::Changed { is_done: false };
        }
        let is_there = |lease: &LeaseId| self.leases.contains_key(&lease.0);
        if !change.puts.iter().filter_map(|put| put.lease.as_ref()).all(is_there) {
            return EtcdReply::Failed { reason: "requested lease not found".to_owned() };
        }
        self.revision += 1;
        let revision = self.revision;
        for put in change.puts {
            let lease = put.lease.map(|lease| lease.0);
            self.entries.insert(put.key, Entry { revision, lease, value: put.value });
        }
        for key in change.deletes {
            self.entries.remove(&key);
        }
        EtcdReply::Changed { is_done: true }
    }

    /// Loses all data.
    pub fn wipe(&mut self) {
        (self.revision, self.entries, self.leases) = (1, BTreeMap::new(), BTreeMap::new());
    }

    /// Copies the data, to be restored later.
    pub fn backup(&self) -> Self {
        Self { queue: Vec::new(), ..self.clone() }
    }

    pub fn keys(&self) -> Vec<Key> {
        self.entries.keys().cloned().collect()
    }

    /// Writes foreign data.
    pub fn scribble(&mut self, key: Key, value: &[u8]) {
        self.revision += 1;
        let entry = Entry { revision: self.revision, lease: None, value: value.to_vec() };
        self.entries.insert(key, entry);
    }
}
