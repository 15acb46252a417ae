//! Replicas of objects between nodes whose memory cannot be mapped.
//!
//! **Get.** A client that finds an object nowhere in mapped memory asks its node to fetch it. The
//! node opens the object at its home, allocates memory, has the bytes transferred, and seals a
//! replica under the same name. From then on each process of the node finds the replica by loads.
//!
//! **Delete.** The home notes each member that opened an object. Before a delete it rejects further
//! opens and notifies these members. It deletes the object when all of them have dropped their
//! replicas or are lost. Objects held by readers stay readable. Objects with replicas elsewhere are
//! not evicted: other objects could take their names.
//!
//! **Incarnations.** When an incarnation of a node ends, its objects may no longer exist. Replicas
//! of them are dropped, and its interest in objects of this node ends.

mod delete;
mod fetch;
mod import;
mod invalidate;
mod listings;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use farrow_memory::{Length, Span};
use farrow_store::{EvictionCandidate, EvictionPolicy, ObjectId, StoreError};
use farrow_wire::{Extent, PART_COLUMNS_MAX, PART_NAME_BYTES_MAX, PartSpec, ReplyBody, WireError};

use super::admission::answer_to;
use super::convert::limit;
use super::node::NodeState;
use super::{Action, SessionId};
use crate::net::query::NetQuery;
use crate::net::{Interests, NetAction, NetEvent, Rules};
use delete::{Forwarded, PendingDelete};
pub(super) use fetch::wish_of;
use fetch::{Fetching, Opening, ROOM_MS_MAX};
pub(super) use import::ImportAsk;
use import::ImportTarget;
use invalidate::{EVERYTHING, Leaving, Withdrawal};

/// Start time in the client record of the threads that read for other nodes: no process has this
/// one. The record is in the region, so that the next incarnation finds it.
const NET_START_TIME: u64 = 0;

/// Access of the state to the network fabric.
struct Port {
    interests: Arc<dyn Interests>,
    rules: Arc<RwLock<Rules>>,
    kind: &'static str,
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind)
    }
}

/// An object or part that a client wants. Clients with equal keys share one transfer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FetchKey {
    wish: NetQuery,
    extent: Extent,
}

impl FetchKey {
    pub(super) fn new(wish: NetQuery, extent: Extent) -> Result<Self, WireError> {
        let columns = extent.part().and_then(|part| part.columns.as_deref()).unwrap_or_default();
        limit("columns of a part", columns.len(), PART_COLUMNS_MAX)?;
        let bytes = columns.iter().map(String::len).sum();
        limit("bytes of the names of a part's columns", bytes, PART_NAME_BYTES_MAX)?;
        Ok(Self { wish, extent })
    }

    fn open_at(&self, token: u64, node: String) -> Action {
        let (want, part) = (self.wish.encode(), self.extent.part().cloned());
        Action::Net(NetAction::Open { token, node, want, part })
    }
}

/// A client that waits for an object.
#[derive(Debug)]
pub(super) struct FetchWaiter {
    pub(super) key: FetchKey,
    pub(super) session: SessionId,
    pub(super) seq: u64,
    /// At this time the client is informed that the object is still being fetched.
    pub(super) until_ms: u64,
}

/// A client that waits for a delete.
#[derive(Debug, Clone, Copy)]
struct DeleteWaiter {
    session: SessionId,
    seq: u64,
}

#[derive(Debug)]
struct Replica {
    local: ObjectId,
    node: String,
    bytes: u64,
}

/// State of all replicas.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    port: Option<Port>,
    next: u64,
    openings: BTreeMap<u64, Opening>,
    loading: BTreeMap<ObjectId, Fetching>,
    /// Objects that were imported between two requests of their clients.
    imported: BTreeMap<(SessionId, ObjectId), ObjectId>,
    /// Replicas of objects and of parts of objects. Those that were evicted stay until a sweep.
    by_origin: BTreeMap<(ObjectId, Option<PartSpec>), Replica>,
    /// The objects whose parts were found by name.
    named_parts: BTreeMap<FetchKey, ObjectId>,
    /// Number of replicas at which the next sweep is due.
    sweep_at: usize,
    /// Limit of the bytes of replicas; `None`: all free memory.
    bytes_max: Option<u64>,
    /// Bytes of the largest request without room.
    wanted_bytes: u64,
    /// Members may have replicas from an earlier incarnation of this node, and none was notified
    /// yet.
    is_new_life: bool,
    leaving: BTreeMap<ObjectId, Leaving>,
    withdrawals: Vec<Withdrawal>,
    /// Clients that wait for pages of lists.
    listings: BTreeMap<u64, DeleteWaiter>,
    forwarded: BTreeMap<u64, Forwarded>,
    indebted: Vec<PendingDelete>,
    fetched_total: u64,
    fetched_bytes_total: u64,
}

impl Replicas {
    /// `"net"` or `"net+TLS"`, if there is such a fabric.
    pub(super) fn kind(&self) -> Option<&'static str> {
        self.port.as_ref().map(|port| port.kind)
    }

    /// Number of objects fetched since the start, and their bytes.
    pub(super) fn fetched(&self) -> [u64; 2] {
        [self.fetched_total, self.fetched_bytes_total]
    }

    /// Whether memory becomes free when other nodes have dropped replicas.
    pub(super) fn is_recalling(&self) -> bool {
        self.wanted_bytes > 0 || !self.leaving.is_empty()
    }

    /// Notes that there is no room for `bytes`.
    pub(super) fn want_room(&mut self, bytes: Length) {
        if self.port.is_some() {
            self.wanted_bytes = self.wanted_bytes.max(bytes.0);
        }
    }

    fn token(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Forgets the requests of an ended session. Work begun for it continues.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.waiters().for_each(|all| all.retain(|one| one.session != session));
        self.forwarded.retain(|_, one| one.waiter.session != session);
        self.listings.retain(|_, one| one.session != session);
        self.imported.retain(|(of, _), _| *of != session);
    }

    /// Forgets one request and returns whether there was one.
    pub(super) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        let before = self.waiting();
        let is_another = |one: &FetchWaiter| (one.session, one.seq) != (session, seq);
        self.waiters().for_each(|all| all.retain(is_another));
        let listings = self.listings.len();
        self.listings.retain(|_, one| (one.session, one.seq) != (session, seq));
        self.cancel_imports(session);
        self.waiting() < before || self.listings.len() < listings
    }

    /// Ends the imports of a session for which it does not wait any more.
    fn cancel_imports(&mut self, session: SessionId) {
        let is_its = |import: &Option<ImportTarget>| {
            import.as_ref().is_some_and(|import| import.session == session)
        };
        self.openings.retain(|_, one| !is_its(&one.import) || !one.waiters.is_empty());
        for loading in self.loading.values_mut().filter(|one| is_its(&one.import)) {
            loading.is_gone |= loading.waiters.is_empty();
        }
    }

    fn waiters(&mut self) -> impl Iterator<Item = &mut Vec<FetchWaiter>> {
        let openings = self.openings.values_mut();
        let openings = openings.flat_map(|one| [&mut one.waiters, &mut one.late]);
        let loading = self.loading.values_mut();
        openings.chain(loading.flat_map(|one| [&mut one.waiters, &mut one.later]))
    }

    fn waiting(&self) -> usize {
        let openings = self.openings.values().map(|one| one.waiters.len() + one.late.len());
        let loading = self.loading.values().map(|one| one.waiters.len() + one.later.len());
        openings.chain(loading).sum()
    }

    /// Takes out all waiting requests at shutdown.
    pub(super) fn drain(&mut self) -> Vec<(SessionId, u64)> {
        let fetches = self.waiters().flat_map(|all| all.drain(..));
        let mut all: Vec<_> = fetches.map(|one| (one.session, one.seq)).collect();
        let forwarded = std::mem::take(&mut self.forwarded).into_values();
        all.extend(forwarded.map(|one| (one.waiter.session, one.waiter.seq)));
        let listings = std::mem::take(&mut self.listings).into_values();
        all.extend(listings.map(|one| (one.session, one.seq)));
        all
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        let openings = self.openings.values();
        let openings =
            openings.flat_map(|one| one.again.values().copied().chain([one.deadline_ms]));
        let loading = self.loading.values().filter(|one| !one.is_on_its_way);
        let loading = loading.map(|one| one.deadline_ms);
        let leaving = self.leaving.values().flat_map(|all| all.values().flatten().copied());
        let waiters = self.openings.values().flat_map(|one| [&one.waiters, &one.late]);
        let waiters = waiters
            .chain(self.loading.values().flat_map(|one| [&one.waiters, &one.later]))
            .flatten();
        let indebted = self.indebted.iter().map(|one| one.until_ms);
        let waiting = waiters.map(|one| one.until_ms).chain(indebted);
        openings.chain(loading).chain(leaving).chain(waiting).min()
    }

    /// Whether another node may have a replica of an object of this one.
    fn is_elsewhere(&self, id: ObjectId) -> bool {
        let Some(port) = &self.port else { return false };
        // What is being recalled may still be there, and after a restart all of it.
        port.interests.is_any(id)
            || self.leaving.contains_key(&id)
            || self.leaving.contains_key(&EVERYTHING)
    }
}

/// Another policy's order, without objects of which other nodes have replicas.
#[derive(Debug)]
pub(super) struct WithoutReplicated<'a> {
    policy: &'a dyn EvictionPolicy,
    replicas: &'a Replicas,
}

impl<'a> WithoutReplicated<'a> {
    pub(super) fn new(policy: &'a dyn EvictionPolicy, replicas: &'a Replicas) -> Self {
        Self { policy, replicas }
    }
}

impl EvictionPolicy for WithoutReplicated<'_> {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn is_automatic(&self) -> bool {
        self.policy.is_automatic()
    }

    fn rank(&self, candidate: &EvictionCandidate) -> Option<u64> {
        let is_elsewhere = self.replicas.is_elsewhere(candidate.id);
        if is_elsewhere { None } else { self.policy.rank(candidate) }
    }
}

/// Another policy's order, of objects of which other nodes have replicas.
#[derive(Debug)]
struct Replicated<'a>(WithoutReplicated<'a>);

impl EvictionPolicy for Replicated<'_> {
    fn name(&self) -> &'static str {
        self.0.policy.name()
    }

    fn is_automatic(&self) -> bool {
        true
    }

    fn rank(&self, candidate: &EvictionCandidate) -> Option<u64> {
        let is_elsewhere = self.0.replicas.is_elsewhere(candidate.id);
        if is_elsewhere { self.0.policy.rank(candidate) } else { None }
    }
}

impl NodeState {
    /// Attaches the network fabric. `bytes_max` limits the memory of replicas.
    pub(crate) fn set_net(
        &mut self,
        interests: Arc<dyn Interests>,
        rules: Arc<RwLock<Rules>>,
        kind: &'static str,
        bytes_max: Option<u64>,
    ) {
        self.replicas.port = Some(Port { interests, rules, kind });
        self.replicas.bytes_max = bytes_max;
        // An earlier incarnation created this record once another node read from it by network.
        self.replicas.is_new_life = self.home.clients().any(|one| one.start_time == NET_START_TIME);
        self.tell_net_rules();
    }

    /// Whether other nodes read from an earlier incarnation of this node by network.
    pub(crate) fn was_read_by_net(&self) -> bool {
        self.replicas.is_new_life
    }

    /// Joins as a client for the threads that read for other nodes; returns its hold block.
    pub(crate) fn join_net(&mut self) -> Result<Span, StoreError> {
        let joined = self.home.client_join(self.pid, NET_START_TIME, self.owner_uid)?;
        self.home.hold_block(joined.client)
    }

    /// Passes the current rules to the threads of the network fabric.
    pub(super) fn tell_net_rules(&self) {
        if let Some(port) = &self.replicas.port {
            let mut rules = port.rules.write().unwrap_or_else(PoisonError::into_inner);
            rules.rights = self.rules.clone();
            let namespaces = self.home.namespaces();
            let namespaces = namespaces.map(|one| (one.id.0, one.options.name.clone()));
            rules.namespaces = namespaces.collect();
        }
    }

    /// Handles an event of the network fabric.
    pub(crate) fn net_event(&mut self, event: NetEvent, now_ms: u64, out: &mut Vec<Action>) {
        self.spills.set_now(now_ms);
        match event {
            NetEvent::Opened { token, node, result } => {
                self.opened_elsewhere(token, &node, result, now_ms, out);
            }
            NetEvent::Loaded { origin, result } => self.loaded(origin, result, now_ms, out),
            NetEvent::Resolved { node, at, section } => {
                let address = at.to_string();
                out.push(Action::Net(NetAction::Connect { node, address, section }));
            }
            NetEvent::TicketWanted { node, number } => self.want_ticket(&node, number, out),
            NetEvent::Restore { id } => self.restore_soon(id),
        }
        self.take_jobs(out);
    }

    /// Does the work that is due.
    pub(super) fn tick_replicas(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        self.recall_replicas(now_ms, out);
        self.serve_deletes_in_debt(now_ms, out);
        for waiters in self.replicas.waiters() {
            for late in waiters.extract_if(.., |one| one.until_ms <= now_ms) {
                out.push(answer_to(late.session, late.seq, Ok(ReplyBody::Fetching)));
            }
        }
        let due: Vec<u64> = self.replicas.openings.keys().copied().collect();
        for token in due {
            let Some(opening) = self.replicas.openings.get_mut(&token) else { continue };
            let is_late = opening.deadline_ms <= now_ms;
            let nodes = opening.again.iter().filter(|(_, at_ms)| **at_ms <= now_ms);
            let nodes: Vec<String> = nodes.map(|(node, _)| node.clone()).collect();
            opening.again.retain(|_, at_ms| *at_ms > now_ms);
            for node in nodes {
                if is_late {
                    let reason = format!("it was busy for {ROOM_MS_MAX} ms");
                    opening.fault.get_or_insert(WireError::NodeLost { node, reason });
                } else {
                    opening.left.insert(node.clone());
                    out.push(opening.key.open_at(token, node));
                }
            }
            self.settle_opening(token, now_ms, out);
        }
        let waiting = self.replicas.loading.iter().filter(|(_, one)| !one.is_on_its_way);
        for origin in waiting.map(|(origin, _)| *origin).collect::<Vec<_>>() {
            self.load_replica(origin, now_ms, out);
        }
        let leaving = self.replicas.leaving.iter();
        let late = leaving.flat_map(|(id, members)| {
            let late = members.iter().filter(|(_, again)| again.is_some_and(|at| at <= now_ms));
            late.map(|(member, _)| (*id, member.clone())).collect::<Vec<_>>()
        });
        let late = late.collect::<Vec<_>>();
        if !late.is_empty() {
            for (id, member) in late {
                self.tell_member_gone(&member, id, now_ms, out);
            }
            self.settle_leaving(now_ms, out);
        }
    }
}
