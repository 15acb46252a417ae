//! Nodes and an etcd on a network that loses and delays messages, with pauses of etcd too. This
//! etcd is linearizable; its leases are as bad as those of a real one can be.

use std::collections::{BTreeMap, BTreeSet};

use super::state::{EtcdMembership, EtcdMutant};
use super::types::{
    Change, EtcdOutput, EtcdReply, EtcdRequest, EtcdSnapshot, FoundKey, Key, LeaseId, Revision,
};
use crate::simulation::{self, Environment, LEASE_MS, name, options};
use crate::state::next_random;
use crate::view::View;

/// The shortest lease of a real etcd, and the delay until it detects an expired one.
const TTL_MS_MIN: u64 = 2000;
const LATE_MS_MAX: u64 = 500;

/// A call without a reply fails after this time.
const DEADLINE_MS: u64 = LEASE_MS / 4;

pub type EtcdWorld = simulation::SimulatedWorld<SimulatedService>;

#[derive(Debug, Clone)]
struct StoredKey {
    revision: i64,
    lease: Option<i64>,
    value: Vec<u8>,
}

/// The stored data, and the faults of leases.
#[derive(Debug, Default, Clone)]
pub struct SimulatedEtcd {
    pub revision: i64,
    entries: BTreeMap<Key, StoredKey>,
    leases: BTreeMap<i64, u64>,
    next_lease: i64,
    pub is_down: bool,
    /// Requests that wait until it is up.
    queue: Vec<(usize, u64, u64, EtcdRequest)>,
}

/// The faults of etcd and its network.
#[derive(Debug, Clone, Default)]
pub struct EtcdFaults {
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

/// What arrives later, at a node or at etcd.
#[derive(Debug)]
pub enum EtcdEvent {
    Request { node: usize, life: u64, id: u64, request: EtcdRequest },
    Reply { node: usize, life: u64, id: u64, reply: EtcdReply },
    Poke { node: usize },
    EtcdUp,
}

/// The calls of a node.
#[derive(Debug, Clone, Default)]
struct NodeCalls {
    /// Number of its process.
    life: u64,
    /// Those without a reply.
    open: BTreeSet<u64>,
}

/// Etcd, and the way to it.
#[derive(Debug)]
pub struct SimulatedService {
    pub etcd: SimulatedEtcd,
    pub faults: EtcdFaults,
    pub(super) mutant: Option<EtcdMutant>,
    pub looks: u64,
    /// A node with another lease than the rest.
    pub other_lease: Option<(usize, u64)>,
    calls: Vec<NodeCalls>,
}

simulation::process!(EtcdMembership, retains Vec<u8>, puts out EtcdOutput, is settled |_| true);

impl Environment for SimulatedService {
    type Process = EtcdMembership;
    type Event = EtcdEvent;

    fn deliver(world: &mut EtcdWorld, event: EtcdEvent) -> Result<(), String> {
        match event {
            EtcdEvent::Request { node, life, id, request } if world.environment.etcd.is_down => {
                world.environment.etcd.queue.push((node, life, id, request));
                Ok(())
            }
            EtcdEvent::Request { node, life, id, request } => {
                world.serve(node, life, id, request);
                Ok(())
            }
            EtcdEvent::EtcdUp => {
                world.environment.etcd.is_down = false;
                if world.below(2) == 0 {
                    world.expire();
                }
                let queue = std::mem::take(&mut world.environment.etcd.queue);
                for (node, life, id, request) in queue {
                    world.serve(node, life, id, request);
                }
                Ok(())
            }
            EtcdEvent::Reply { node, .. } | EtcdEvent::Poke { node }
                if world.nodes[node].is_paused =>
            {
                world.nodes[node].inbox.push(event);
                Ok(())
            }
            EtcdEvent::Reply { node, life, id, reply } => {
                let calls = &mut world.environment.calls[node];
                // One reply for each call: the first.
                if calls.life != life || !calls.open.remove(&id) {
                    return Ok(());
                }
                world.call(node, |process, now_ms, out| process.on_response(id, reply, now_ms, out))
            }
            EtcdEvent::Poke { node } => {
                world.call(node, |process, now_ms, out| process.poked(now_ms, out))
            }
        }
    }

    fn perform(world: &mut EtcdWorld, node: usize, out: Vec<EtcdOutput>) -> Result<(), String> {
        out.into_iter().try_for_each(|output| match output {
            EtcdOutput::Ask { id, request } => {
                world.send(node, id, request);
                Ok(())
            }
            EtcdOutput::Keep(retained) => {
                world.nodes[node].retained = Some(retained);
                Ok(())
            }
            EtcdOutput::Membership(output) => world.perform_common(node, output),
        })
    }

    fn check_leases(world: &EtcdWorld) -> Result<(), String> {
        let holders = world.holders();
        // Nor may a view in etcd exclude a holder.
        let written = world.environment.etcd.entries.get(&Key::View);
        let written: Option<View> = written.and_then(|e| postcard::from_bytes(&e.value).ok());
        let views = holders.iter().map(|(_, _, view)| *view).chain(&written);
        for view in views {
            for (other, process, theirs) in &holders {
                let is_later = view.cluster != theirs.cluster || view.epoch > theirs.epoch;
                if is_later && view.number_of(&name(*other), process.incarnation()).is_none() {
                    return Err(format!(
                        "at {} ms a view {:?} without {other}, which has the lease",
                        world.now_ms, view.epoch
                    ));
                }
            }
        }
        Ok(())
    }
}

impl EtcdWorld {
    pub fn new(count: usize, seed: u64) -> Self {
        let service = SimulatedService {
            etcd: SimulatedEtcd { revision: 1, ..SimulatedEtcd::default() },
            faults: EtcdFaults { delay_ms_max: 5, poke_delay_ms_max: 5, ..EtcdFaults::default() },
            mutant: None,
            looks: 0,
            other_lease: None,
            calls: vec![NodeCalls::default(); count],
        };
        Self::with(service, count, seed)
    }

    pub fn start(&mut self, node: usize, has_retained: bool) -> Result<(), String> {
        let retained = self.nodes[node].retained.clone().filter(|_| has_retained);
        let seed = next_random(&mut self.random);
        let mut options = options(node, 1 + self.now_ms, seed);
        let other_lease = self.environment.other_lease;
        if let Some((_, lease_ms)) = other_lease.filter(|(other, _)| *other == node) {
            options.lease_ms = lease_ms;
        }
        let clock_ms = self.clock_ms(node);
        let mut process = EtcdMembership::new(options, retained.as_deref(), clock_ms).unwrap();
        process.mutant = self.environment.mutant;
        let calls = &mut self.environment.calls[node];
        calls.life += 1;
        calls.open.clear();
        self.run_on(node, process)
    }

    /// Stops etcd; requests wait for it meanwhile.
    pub fn pause_etcd(&mut self, for_ms: u64) {
        self.environment.etcd.is_down = true;
        self.deliver_after(for_ms, EtcdEvent::EtcdUp);
    }

    fn send(&mut self, node: usize, id: u64, request: EtcdRequest) {
        self.environment.looks += u64::from(matches!(request, EtcdRequest::Look { .. }));
        let calls = &mut self.environment.calls[node];
        let life = calls.life;
        calls.open.insert(id);
        let reply = EtcdReply::Failed { reason: "no answer".to_owned() };
        self.deliver_after(DEADLINE_MS, EtcdEvent::Reply { node, life, id, reply });
        if !self.is_lost(node) {
            let delay_ms = self.delay_ms();
            self.deliver_after(delay_ms, EtcdEvent::Request { node, life, id, request });
        }
    }

    fn is_lost(&mut self, node: usize) -> bool {
        self.environment.faults.cut.contains(&node)
            || self.below(100) < self.environment.faults.loss_percent
    }

    fn delay_ms(&mut self) -> u64 {
        self.below(self.environment.faults.delay_ms_max) + u64::from(self.below(4) == 0)
    }

    fn serve(&mut self, node: usize, life: u64, id: u64, request: EtcdRequest) {
        self.expire();
        let before = self.environment.etcd.revision;
        let reply = self.answer(request);
        if self.environment.etcd.revision > before {
            self.poke_all();
        }
        if !self.is_lost(node) {
            let delay_ms = self.delay_ms();
            self.deliver_after(delay_ms, EtcdEvent::Reply { node, life, id, reply });
        }
    }

    fn poke_all(&mut self) {
        for node in 0..self.nodes.len() {
            if self.below(100) >= self.environment.faults.poke_loss_percent {
                for _ in 0..=self.below(2) {
                    let delay_ms = self.below(self.environment.faults.poke_delay_ms_max);
                    self.deliver_after(delay_ms, EtcdEvent::Poke { node });
                }
            }
        }
    }

    /// Ends leases that have expired, or that it ends for no reason.
    fn expire(&mut self) {
        let now_ms = self.now_ms;
        if self.below(1000) < self.environment.faults.early_permille {
            let count = self.environment.etcd.leases.len() as u64;
            let unlucky = self.below(count) as usize;
            if let Some(until_ms) = self.environment.etcd.leases.values_mut().nth(unlucky) {
                *until_ms = now_ms;
            }
        }
        let etcd = &mut self.environment.etcd;
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
            EtcdRequest::Look { since } => EtcdReply::Looked(self.environment.etcd.look(since)),
            EtcdRequest::Grant { .. } => {
                let until_ms = self.renewed_ms();
                self.environment.etcd.next_lease += 1;
                self.environment.etcd.leases.insert(self.environment.etcd.next_lease, until_ms);
                EtcdReply::Granted { lease: LeaseId(self.environment.etcd.next_lease) }
            }
            EtcdRequest::KeepAlive { lease } => {
                let until_ms = self.renewed_ms();
                let is_stale = self.below(100) < self.environment.faults.stale_percent;
                let known = self.environment.etcd.leases.get_mut(&lease.0);
                let is_there = known.map(|until| *until = until_ms).is_some();
                EtcdReply::RetainedAlive { is_there: is_there || is_stale }
            }
            EtcdRequest::Change(change) => self.environment.etcd.change(change),
        }
    }
}

impl SimulatedEtcd {
    pub fn look(&self, since: Revision) -> EtcdSnapshot {
        let revision_of = |entry: &StoredKey| Revision(entry.revision);
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
            self.entries.insert(put.key, StoredKey { revision, lease, value: put.value });
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
        let entry = StoredKey { revision: self.revision, lease: None, value: value.to_vec() };
        self.entries.insert(key, entry);
    }
}
