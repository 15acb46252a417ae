//! Objects of nodes whose memory cannot be mapped: replicas of them here, and of ours there.
//!
//! **A get.** A client that finds an object nowhere in mapped memory asks its node to fetch it. The node
//! opens the object at its home, takes room for it, has its bytes brought, and seals a replica under the same
//! name. From then on each process of the node finds that by loads.
//!
//! **A delete.** The home notes each member that opened an object. When the object retires, the home tells
//! these members, and answers the delete when all of them have dropped their replicas or are lost. What
//! readers hold stays readable. Objects with replicas elsewhere are not evicted: their names could be given
//! to others.
//!
//! **Lives.** When a life of a node ends, its objects are not known to exist any more: replicas of them
//! are dropped, and its interest in objects of this node ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use farrow_memory::{Length, Span};
use farrow_net::frame::Opened;
use farrow_net::source::Member;
use farrow_store::{
    Candidate, EvictionPolicy, Home, NamespaceId, Need, ObjectId, ReplicaSeal, ReplicasFirst, Room,
    SpillHead, StoreError, Target, own_name,
};
use farrow_wire::{ReplyBody, Rights, WireError, WireTarget};

use super::admission::answer_to;
use super::cluster::{Answer, Question};
use super::convert::{limit, store_error, store_target};
use super::node::NodeState;
use super::{Action, SessionId};
use crate::net::wish::{Brought, Wish};
use crate::net::{Interests, NetAction, NetEvent, NetFault, Rules};

/// Objects that are looked for or brought at a time.
const FETCHES_MAX: usize = 1024;

/// Clients that wait for them.
const WAITERS_MAX: usize = 16_384;

/// An object waits so long for room; and for its home to bring it back into its memory.
const ROOM_MS_MAX: u64 = 60_000;

/// Pause before a home that was busy is asked again.
const BUSY_PAUSE_MS: u64 = 50;

/// A member that did not hear that an object is gone is told again after so long.
const TELL_AGAIN_MS: u64 = 100;

/// Stands for all objects of an earlier life of this node: which of them other nodes have replicas of
/// is not known any more.
const EVERYTHING: ObjectId = ObjectId { hi: 0, lo: u64::MAX };

/// Objects whose replicas elsewhere are called in at a time, where memory is short.
const RECALLS_MAX: usize = 64;

/// What the state needs of the network fabric.
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

/// A client that waits for an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct FetchWaiter {
    pub(super) session: SessionId,
    pub(super) seq: u64,
    /// Then it is told that the object is on its way.
    pub(super) until_ms: u64,
}

/// A client that waits for a delete.
#[derive(Debug, Clone, Copy)]
struct Waiter {
    session: SessionId,
    seq: u64,
}

/// An object that is looked for.
#[derive(Debug)]
struct Opening {
    wish: Wish,
    waiters: Vec<FetchWaiter>,
    /// Nodes that have not answered.
    left: BTreeSet<String>,
    /// Nodes that are to be asked again, and when.
    again: BTreeMap<String, u64>,
    /// What is wrong with a node that may have it.
    fault: Option<WireError>,
    /// Objects that were deleted meanwhile: their opening may have been answered before.
    gone: BTreeSet<ObjectId>,
    deadline_ms: u64,
}

/// An object that is brought.
#[derive(Debug)]
struct Loading {
    node: String,
    hold: u64,
    head: SpillHead,
    brought: Brought,
    opened: Opened,
    /// Its full name here, if it gets one, and its namespace.
    name: Option<String>,
    namespace: NamespaceId,
    waiters: Vec<FetchWaiter>,
    /// Its bytes are on their way; else it waits for room.
    is_on_its_way: bool,
    /// It was deleted meanwhile.
    is_gone: bool,
    deadline_ms: u64,
}

#[derive(Debug)]
struct Replica {
    local: ObjectId,
    node: String,
    bytes: u64,
}

/// Who waits until an object is gone everywhere.
#[derive(Debug)]
enum Asker {
    Client(Waiter, ReplyBody),
    Node(u64, Answer),
}

#[derive(Debug)]
struct Parked {
    asker: Asker,
    /// Objects that members have not dropped.
    left: BTreeSet<ObjectId>,
}

/// Members that have not dropped their replicas of an object that is gone; each with when it is told
/// again, if it did not hear.
type Leaving = BTreeMap<Member, Option<u64>>;

/// A delete of which a part is other nodes' to do.
#[derive(Debug)]
struct Forwarded {
    waiter: Waiter,
    results: Vec<Result<(), WireError>>,
    /// For each question its targets' place, and who did not answer.
    left: usize,
}

/// All that is known of replicas.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    port: Option<Port>,
    next: u64,
    openings: BTreeMap<u64, Opening>,
    loading: BTreeMap<ObjectId, Loading>,
    by_origin: BTreeMap<ObjectId, Replica>,
    /// Most bytes of replicas; none: as much as there is room.
    bytes_max: Option<u64>,
    /// Bytes for which there was no room.
    wanted_bytes: u64,
    /// Members may have replicas from an earlier life of this node, and none was told of this one yet.
    is_new_life: bool,
    leaving: BTreeMap<ObjectId, Leaving>,
    parked: Vec<Parked>,
    forwarded: BTreeMap<u64, Forwarded>,
    pub(super) fetched_total: u64,
    pub(super) fetched_bytes_total: u64,
}

impl Replicas {
    /// `"net"` or `"net+TLS"`, where there is such a fabric.
    pub(super) fn kind(&self) -> Option<&'static str> {
        self.port.as_ref().map(|port| port.kind)
    }

    /// Whether memory comes free when other nodes have dropped replicas.
    pub(super) fn is_recalling(&self) -> bool {
        self.wanted_bytes > 0 || !self.leaving.is_empty()
    }

    /// There is no room for so many bytes.
    pub(super) fn want_room(&mut self, bytes: Length) {
        if self.port.is_some() {
            self.wanted_bytes = self.wanted_bytes.max(bytes.0);
        }
    }

    fn token(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Forgets the requests of a session that went. What was begun for it goes on.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.waiters().for_each(|all| all.retain(|one| one.session != session));
        self.forwarded.retain(|_, one| one.waiter.session != session);
        self.parked.retain(|one| match &one.asker {
            Asker::Client(waiter, _) => waiter.session != session,
            Asker::Node(..) => true,
        });
    }

    /// Forgets one request. False: there is none.
    pub(super) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        let before = self.waiting();
        let is_another = |one: &FetchWaiter| (one.session, one.seq) != (session, seq);
        self.waiters().for_each(|all| all.retain(is_another));
        self.waiting() < before
    }

    fn waiters(&mut self) -> impl Iterator<Item = &mut Vec<FetchWaiter>> {
        let openings = self.openings.values_mut().map(|one| &mut one.waiters);
        openings.chain(self.loading.values_mut().map(|one| &mut one.waiters))
    }

    fn waiting(&self) -> usize {
        let openings = self.openings.values().map(|one| one.waiters.len());
        let loading = self.loading.values().map(|one| one.waiters.len());
        openings.chain(loading).sum()
    }

    /// Takes out all requests that wait, for the end.
    pub(super) fn drain(&mut self) -> Vec<(SessionId, u64)> {
        let fetches = self.waiters().flat_map(|all| all.drain(..));
        let mut all: Vec<_> = fetches.map(|one| (one.session, one.seq)).collect();
        let forwarded = std::mem::take(&mut self.forwarded).into_values();
        all.extend(forwarded.map(|one| (one.waiter.session, one.waiter.seq)));
        all
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        let openings = self.openings.values();
        let openings =
            openings.flat_map(|one| one.again.values().copied().chain([one.deadline_ms]));
        let loading = self.loading.values().filter(|one| !one.is_on_its_way);
        let loading = loading.map(|one| one.deadline_ms);
        let leaving = self.leaving.values().flat_map(|all| all.values().flatten().copied());
        let waiters = self.openings.values().map(|one| &one.waiters);
        let waiters = waiters.chain(self.loading.values().map(|one| &one.waiters)).flatten();
        openings.chain(loading).chain(leaving).chain(waiters.map(|one| one.until_ms)).min()
    }

    /// Whether another node may have a replica of an object of this one.
    fn is_elsewhere(&self, id: ObjectId) -> bool {
        self.port.as_ref().is_some_and(|port| port.interests.is_any(id))
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

    fn rank(&self, candidate: &Candidate) -> Option<u64> {
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

    fn rank(&self, candidate: &Candidate) -> Option<u64> {
        let is_elsewhere = self.0.replicas.is_elsewhere(candidate.id);
        if is_elsewhere { self.0.policy.rank(candidate) } else { None }
    }
}

fn wish_of(target: &WireTarget) -> Wish {
    match target {
        WireTarget::Name(full) => Wish::Name(full.clone()),
        WireTarget::Id(hi, lo) => Wish::Id(*hi, *lo),
    }
}

fn fetched(id: Option<ObjectId>) -> ReplyBody {
    ReplyBody::Fetched(id.map(|id| (id.hi, id.lo)))
}

impl NodeState {
    /// Lends to, and reads from, nodes that cannot be mapped. `bytes_max`: for replicas.
    pub(crate) fn set_net(
        &mut self,
        interests: Arc<dyn Interests>,
        rules: Arc<RwLock<Rules>>,
        kind: &'static str,
        bytes_max: Option<u64>,
    ) {
        self.replicas.port = Some(Port { interests, rules, kind });
        self.replicas.bytes_max = bytes_max;
        self.replicas.is_new_life = self.home.life() > 1;
        self.tell_net_rules();
    }

    /// A place among the clients for the threads that read for other nodes: a hold block.
    pub(crate) fn join_net(&mut self) -> Result<Span, StoreError> {
        let joined = self.home.client_join(self.pid, 0, self.owner_uid)?;
        self.home.hold_block(joined.client)
    }

    /// Threads of the network fabric go by these rules from now on.
    pub(super) fn tell_net_rules(&self) {
        if let Some(port) = &self.replicas.port {
            let mut rules = port.rules.write().unwrap_or_else(PoisonError::into_inner);
            rules.rights = self.rules.clone();
            let namespaces = self.home.namespaces();
            let namespaces = namespaces.map(|one| (one.id.0, one.options.name.clone()));
            rules.namespaces = namespaces.collect();
        }
    }

    /// Finds an object in memory that cannot be mapped, and brings it. `None`: the answer comes later.
    pub(super) fn fetch(
        &mut self,
        waiter: FetchWaiter,
        target: &WireTarget,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let wish = wish_of(target);
        let nodes = match &wish {
            Wish::Id(hi, lo) => {
                if let Some(local) = self.replica_of(ObjectId { hi: *hi, lo: *lo }) {
                    return Ok(Some(fetched(Some(local))));
                }
                self.net_node_of(*hi).into_iter().collect()
            }
            Wish::Name(full) => {
                if let Some(local) = self.named_replica(full) {
                    return Ok(Some(fetched(Some(local))));
                }
                self.net_nodes()
            }
        };
        if nodes.is_empty() {
            return Ok(Some(fetched(None)));
        }
        limit(
            "clients that wait for objects of other nodes",
            self.replicas.waiting() + 1,
            WAITERS_MAX,
        )?;
        let mut openings = self.replicas.openings.values_mut();
        if let Some(opening) = openings.find(|one| one.wish == wish) {
            opening.waiters.push(waiter);
            return Ok(None);
        }
        let under_way = self.replicas.openings.len() + self.replicas.loading.len();
        limit("objects that are brought from other nodes", under_way + 1, FETCHES_MAX)?;
        let token = self.replicas.token();
        for node in &nodes {
            let want = wish.encode();
            out.push(Action::Net(NetAction::Open { token, node: node.clone(), want }));
        }
        let opening = Opening {
            wish,
            waiters: vec![waiter],
            left: nodes.into_iter().collect(),
            again: BTreeMap::new(),
            fault: None,
            gone: BTreeSet::new(),
            deadline_ms: now_ms.saturating_add(ROOM_MS_MAX),
        };
        self.replicas.openings.insert(token, opening);
        Ok(None)
    }

    /// The replica of an object that is there.
    fn replica_of(&self, origin: ObjectId) -> Option<ObjectId> {
        let local = self.replicas.by_origin.get(&origin)?.local;
        self.home.find(Target::Id(local)).is_ok().then_some(local)
    }

    fn named_replica(&self, full: &str) -> Option<ObjectId> {
        let entry = self.home.find(Target::Name(full)).ok()?;
        entry.is_replica.then_some(entry.id)
    }

    /// Something happened in the network fabric.
    pub(crate) fn net_event(&mut self, event: NetEvent, now_ms: u64, out: &mut Vec<Action>) {
        self.spills.set_now(now_ms);
        match event {
            NetEvent::Opened { token, node, result } => {
                self.opened_elsewhere(token, &node, result, now_ms, out);
            }
            NetEvent::Loaded { origin, result } => self.loaded(origin, result, now_ms, out),
            NetEvent::TicketWanted { node, number } => self.want_ticket(&node, number, out),
            NetEvent::Restore { id } => self.restore_for_net(id),
        }
        self.take_jobs(out);
    }

    fn opened_elsewhere(
        &mut self,
        token: u64,
        node: &str,
        result: Result<(u64, Opened), NetFault>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let region = self.net_region_of(node);
        let unreachable = self.unreachable_by_net(node);
        let Some(opening) = self.replicas.openings.get_mut(&token) else {
            if let Ok((hold, _)) = result {
                out.push(Action::Net(NetAction::Release { node: node.to_owned(), hold }));
            }
            return;
        };
        opening.left.remove(node);
        let what = opening.wish.to_string();
        match result {
            Ok((hold, opened)) => {
                let decoded = Brought::decode(&opened.entry);
                let is_of_it = |head: &SpillHead| Some(head.id.hi) == region;
                match decoded {
                    Ok((_, head)) if opening.gone.contains(&head.id) => {
                        out.push(Action::Net(NetAction::Release { node: node.to_owned(), hold }));
                    }
                    Ok((brought, head)) if is_of_it(&head) => {
                        let Some(opening) = self.replicas.openings.remove(&token) else { return };
                        let found = (node.to_owned(), hold, opened, brought, head);
                        return self.begin_load(opening, found, now_ms, out);
                    }
                    other => {
                        let why = other.err().unwrap_or_else(|| "it is another node's".to_owned());
                        out.push(Action::Net(NetAction::Release { node: node.to_owned(), hold }));
                        let text = format!("what node {node} told of object {what}: {why}");
                        opening.fault.get_or_insert(WireError::Damaged(text));
                    }
                }
            }
            Err(NetFault::NotFound) => {}
            Err(NetFault::Busy(_)) if now_ms < opening.deadline_ms => {
                opening.again.insert(node.to_owned(), now_ms + BUSY_PAUSE_MS);
            }
            Err(fault) => {
                opening.fault.get_or_insert(unreachable(fault, &what));
            }
        }
        self.settle_opening(token, out);
    }

    /// Answers who waits for an object if no node is left that may have it.
    fn settle_opening(&mut self, token: u64, out: &mut Vec<Action>) {
        let openings = &mut self.replicas.openings;
        let is_over =
            openings.get(&token).is_some_and(|one| one.left.is_empty() && one.again.is_empty());
        if is_over && let Some(opening) = openings.remove(&token) {
            let result = opening.fault.map_or_else(|| Ok(fetched(None)), Err);
            answer_all(opening.waiters, &result, out);
        }
    }

    fn begin_load(
        &mut self,
        opening: Opening,
        (node, hold, opened, brought, head): (String, u64, Opened, Brought, SpillHead),
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let origin = head.id;
        let known = self.replica_of(origin);
        if known.is_some() || self.replicas.loading.contains_key(&origin) {
            // Somebody else was faster.
            out.push(Action::Net(NetAction::Release { node, hold }));
            match self.replicas.loading.get_mut(&origin) {
                Some(loading) if known.is_none() => loading.waiters.extend(opening.waiters),
                _ => answer_all(opening.waiters, &Ok(fetched(known)), out),
            }
            return;
        }
        let (name, namespace) = match &opening.wish {
            Wish::Name(full) => {
                let own = own_name(full);
                let namespace = full.strip_suffix(own).and_then(|rest| rest.strip_suffix('\0'));
                let namespace = self.home.namespace(namespace.unwrap_or(""));
                let is_it = brought.name.as_deref() == Some(own);
                match namespace {
                    Ok(namespace) if is_it => (Some(full.clone()), namespace.id),
                    _ => (None, NamespaceId::DEFAULT),
                }
            }
            Wish::Id(..) => (None, NamespaceId::DEFAULT),
        };
        let loading = Loading {
            node,
            hold,
            head,
            brought,
            opened,
            name,
            namespace,
            waiters: opening.waiters,
            is_on_its_way: false,
            is_gone: false,
            deadline_ms: now_ms.saturating_add(ROOM_MS_MAX),
        };
        self.replicas.loading.insert(origin, loading);
        self.load_replica(origin, now_ms, out);
    }

    /// Has the bytes of an object brought, if there is room for it by now.
    fn load_replica(&mut self, origin: ObjectId, now_ms: u64, out: &mut Vec<Action>) {
        let Some(loading) = self.replicas.loading.get(&origin) else { return };
        let (head, namespace) = (loading.head.clone(), loading.namespace);
        let blocks = match self.room_for_replica(&head, namespace) {
            Ok(Some(blocks)) => blocks,
            // Something is on its way out.
            Ok(None) if now_ms < loading_deadline(&self.replicas, origin) => return,
            Ok(None) => {
                let error = self.out_of_room(&head, ROOM_MS_MAX);
                return self.end_load(origin, Err(error), out);
            }
            Err(error) => return self.end_load(origin, Err(error), out),
        };
        let Some(loading) = self.replicas.loading.get_mut(&origin) else { return };
        let from = &loading.opened.blocks;
        let lengths = |spans: &[Span]| spans.iter().map(|span| span.length).collect::<Vec<_>>();
        if lengths(from) != lengths(&blocks) {
            let node = &loading.node;
            let text = format!("node {node} told of other blocks than its head has: {origin}");
            self.abort_replica(origin);
            return self.end_load(origin, Err(WireError::Damaged(text)), out);
        }
        loading.is_on_its_way = true;
        if !loading.opened.inline.is_empty() {
            let inline = std::mem::take(&mut loading.opened.inline);
            let written = self.write_blocks(&blocks, &inline);
            let written = written.map_err(|error| NetFault::Other(error.to_string()));
            return self.loaded(origin, written, now_ms, out);
        }
        let pieces = from.iter().copied().zip(blocks.iter().map(|block| block.offset)).collect();
        let (node, hold) = (loading.node.clone(), loading.hold);
        out.push(Action::Net(NetAction::Load { origin, node, hold, pieces }));
    }

    fn write_blocks(&self, blocks: &[Span], mut bytes: &[u8]) -> Result<(), StoreError> {
        for block in blocks {
            let short = StoreError::BadRequest { reason: "fewer bytes than blocks" };
            let (part, rest) = bytes.split_at_checked(block.length.as_usize()).ok_or(short)?;
            self.home.region().write_by_call(block.offset, part)?;
            self.home.region().publish(*block)?;
            bytes = rest;
        }
        Ok(())
    }

    /// Memory for a replica. Other replicas go for it first, then what may be evicted. `None`: memory is
    /// on its way.
    fn room_for_replica(
        &mut self,
        head: &SpillHead,
        namespace: NamespaceId,
    ) -> Result<Option<Vec<Span>>, WireError> {
        let bytes = Home::replica_bytes(head).unwrap_or(Length(u64::MAX));
        if let Some(max) = self.replicas.bytes_max {
            self.keep_replicas_below(max, bytes)?;
        }
        let is_full =
            |begun: &Result<_, StoreError>| matches!(begun, Err(StoreError::OutOfMemory { .. }));
        let mut begun = self.home.begin_replica(head, namespace);
        if is_full(&begun) {
            self.reclaim();
            let room = Room::of_run(bytes);
            let evicted = self.home.make_room(&ReplicasFirst, &room).map_err(store_error)?;
            if evicted.objects == 0 {
                self.have_others_go(&room, bytes).map_err(store_error)?;
            }
            begun = self.home.begin_replica(head, namespace);
        }
        match begun {
            Ok(blocks) => Ok(Some(blocks)),
            Err(StoreError::OutOfMemory { .. }) if self.spills.is_making_room() => Ok(None),
            Err(StoreError::OutOfMemory { .. }) => Err(self.out_of_room(head, 0)),
            Err(error) => Err(store_error(error)),
        }
    }

    fn out_of_room(&self, head: &SpillHead, waited_ms: u64) -> WireError {
        let (free, largest) = self.home.free_bytes();
        let asked = Home::replica_bytes(head).unwrap_or(Length(u64::MAX)).0;
        WireError::OutOfMemory { asked, free: free.0, largest: largest.0, waiting: 0, waited_ms }
    }

    /// Drops replicas until there is room for one more within their limit.
    fn keep_replicas_below(&mut self, max: u64, bytes: Length) -> Result<(), WireError> {
        self.sweep_replicas();
        let loading = self.replicas.loading.values().filter(|one| one.is_on_its_way);
        let loading = loading.filter_map(|one| Home::replica_bytes(&one.head));
        let used = self.replicas.by_origin.values().map(|one| one.bytes);
        let used: u64 = used.chain(loading.map(|bytes| bytes.0)).sum();
        let excess = used.saturating_add(bytes.0).saturating_sub(max);
        if excess == 0 {
            return Ok(());
        }
        let evicted = self.home.evict_for(&ReplicasFirst, Need::Bytes(Length(excess)));
        let evicted = evicted.map_err(store_error)?;
        self.sweep_replicas();
        if evicted.bytes.0 >= excess {
            return Ok(());
        }
        Err(WireError::NoRoom {
            what: "copies of other nodes' objects (--cache)".to_owned(),
            asked: bytes.0,
            free: max.saturating_sub(used.saturating_sub(evicted.bytes.0)),
            largest: max,
            used: used.saturating_sub(evicted.bytes.0),
            waiting: 0,
            waited_ms: 0,
        })
    }

    /// Forgets replicas that were evicted.
    fn sweep_replicas(&mut self) {
        let home = &self.home;
        let by_origin = &mut self.replicas.by_origin;
        by_origin.retain(|_, replica| home.find(Target::Id(replica.local)).is_ok());
    }

    fn abort_replica(&mut self, origin: ObjectId) {
        if let Err(error) = self.home.abort_replica(origin) {
            tracing::error!(%origin, %error, "memory is lost");
        }
    }

    /// The bytes of an object are in its blocks, or not.
    fn loaded(
        &mut self,
        origin: ObjectId,
        result: Result<(), NetFault>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(loading) = self.replicas.loading.get(&origin) else {
            return self.abort_replica(origin);
        };
        if loading.is_gone {
            self.abort_replica(origin);
            return self.end_load(origin, Ok(None), out);
        }
        if let Err(fault) = result {
            let error = self.unreachable_by_net(&loading.node)(fault, &origin.to_string());
            self.abort_replica(origin);
            return self.end_load(origin, Err(error), out);
        }
        let bytes = Home::replica_bytes(&loading.head).unwrap_or_default().0;
        let node = loading.node.clone();
        match self.seal_replica(origin) {
            Ok(local) => {
                self.replicas.by_origin.insert(origin, Replica { local, node, bytes });
                self.replicas.fetched_total += 1;
                self.replicas.fetched_bytes_total += bytes;
                self.end_load(origin, Ok(Some(local)), out);
            }
            Err(error) => self.end_load(origin, Err(store_error(error)), out),
        }
        self.reclaim_soon(now_ms);
    }

    fn seal_replica(&mut self, origin: ObjectId) -> Result<ObjectId, StoreError> {
        let missing = || StoreError::NotFound { what: origin.to_string() };
        let loading = self.replicas.loading.get(&origin).ok_or_else(missing)?;
        let mut name = loading.name.as_deref();
        if let Some(full) = name
            && let Ok(entry) = self.home.find(Target::Name(full))
        {
            if entry.is_replica {
                // Of an object that had the name before, and whose end is being told.
                self.home.delete(Target::Id(entry.id))?;
            } else {
                name = None;
            }
        }
        if name.is_some_and(|full| self.home.is_reserved(full)) {
            name = None;
        }
        let brought = &loading.brought;
        let seal = ReplicaSeal {
            name,
            namespace: loading.namespace,
            descriptor: &brought.descriptor,
            descriptor_crc: brought.descriptor_crc,
            metadata: &brought.metadata,
            metadata_crc: brought.metadata_crc,
            sealed_at_ns: brought.sealed_at_ns,
        };
        let now_ns = self.home.now_ns();
        self.home.finish_replica(origin, &seal, now_ns)
    }

    /// An object is here, or does not come; its home's hold ends.
    fn end_load(
        &mut self,
        origin: ObjectId,
        result: Result<Option<ObjectId>, WireError>,
        out: &mut Vec<Action>,
    ) {
        if let Some(Loading { node, hold, waiters, .. }) = self.replicas.loading.remove(&origin) {
            out.push(Action::Net(NetAction::Release { node, hold }));
            answer_all(waiters, &result.map(fetched), out);
        }
    }

    /// A node says that objects of its are gone.
    pub(super) fn objects_gone(
        &mut self,
        node: &str,
        objects: &[u64],
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(hi) = self.net_region_of(node) else { return };
        if objects.contains(&EVERYTHING.lo) {
            self.drop_replicas_of(node, now_ms, out);
        }
        for lo in objects {
            let origin = ObjectId { hi, lo: *lo };
            for opening in self.replicas.openings.values_mut() {
                opening.gone.insert(origin);
            }
            match self.replicas.loading.get_mut(&origin) {
                Some(loading) if loading.is_on_its_way => loading.is_gone = true,
                Some(_) => self.end_load(origin, Ok(None), out),
                None => {}
            }
            self.drop_replica(origin);
        }
        self.reclaim_soon(now_ms);
    }

    fn drop_replica(&mut self, origin: ObjectId) {
        if let Some(replica) = self.replicas.by_origin.remove(&origin) {
            match self.home.delete(Target::Id(replica.local)) {
                Ok(_) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => tracing::error!(%origin, %error, "a replica cannot be dropped"),
            }
        }
    }

    /// A life of a node has ended, or this node does not know whether it has: what it had may be gone.
    pub(super) fn drop_replicas_of(&mut self, node: &str, now_ms: u64, out: &mut Vec<Action>) {
        let of_it = |(_, replica): &(&ObjectId, &Replica)| replica.node == node;
        let origins = self.replicas.by_origin.iter().filter(of_it).map(|(origin, _)| *origin);
        for origin in origins.collect::<Vec<_>>() {
            self.drop_replica(origin);
        }
        for loading in self.replicas.loading.values_mut().filter(|one| one.node == node) {
            // Its end is told by who brings it.
            loading.is_gone = true;
        }
        let waiting = self.replicas.loading.iter();
        let waiting = waiting.filter(|(_, one)| one.node == node && !one.is_on_its_way);
        for origin in waiting.map(|(origin, _)| *origin).collect::<Vec<_>>() {
            self.end_load(origin, Ok(None), out);
        }
        self.reclaim_soon(now_ms);
    }

    /// This node is a member in its new life: the others drop what they have from the one before.
    pub(super) fn tell_new_life(
        &mut self,
        members: impl IntoIterator<Item = (String, u64)>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        if !std::mem::take(&mut self.replicas.is_new_life) {
            return;
        }
        for (name, incarnation) in members {
            let member = Member { name, incarnation };
            self.tell_member_gone(&member, EVERYTHING, now_ms, out);
        }
        self.settle_leaving(out);
    }

    /// A life of a member has ended: it has no replicas of objects of this node.
    pub(super) fn member_has_ended(&mut self, node: &str, incarnation: u64, out: &mut Vec<Action>) {
        let member = Member { name: node.to_owned(), incarnation };
        for leaving in self.replicas.leaving.values_mut() {
            leaving.remove(&member);
        }
        self.settle_leaving(out);
    }

    /// Objects of this node are gone. The answer comes when no member finds them any more.
    fn tell_gone(
        &mut self,
        ids: impl IntoIterator<Item = ObjectId>,
        asker: Option<Asker>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let mut left = BTreeSet::new();
        let mut ids = ids.into_iter().peekable();
        let is_any = ids.peek().is_some();
        if is_any && (self.replicas.is_new_life || self.replicas.leaving.contains_key(&EVERYTHING))
        {
            left.insert(EVERYTHING);
        }
        for id in ids {
            let Some(port) = &self.replicas.port else { break };
            let members = port.interests.take(id);
            if members.is_empty() {
                continue;
            }
            for member in &members {
                self.tell_member_gone(member, id, now_ms, out);
            }
            left.insert(id);
        }
        match asker {
            Some(asker) if left.is_empty() => answer_asker(asker, out),
            Some(asker) => self.replicas.parked.push(Parked { asker, left }),
            None => {}
        }
        self.settle_leaving(out);
    }

    fn tell_member_gone(
        &mut self,
        member: &Member,
        id: ObjectId,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        if !self.is_in_life(member) {
            // It has ended, and its replicas with it.
            if let Some(leaving) = self.replicas.leaving.get_mut(&id) {
                leaving.remove(member);
            }
            return;
        }
        let is_asked = self.ask_gone(member, id, out);
        let leaving = self.replicas.leaving.entry(id).or_default();
        leaving.insert(member.clone(), (!is_asked).then_some(now_ms + TELL_AGAIN_MS));
    }

    /// A member has dropped its replica of an object, or did not answer.
    pub(super) fn gone_answered(
        &mut self,
        member: &Member,
        id: ObjectId,
        is_done: bool,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(leaving) = self.replicas.leaving.get_mut(&id) else { return };
        if is_done {
            leaving.remove(member);
        } else if let Some(again) = leaving.get_mut(member) {
            *again = Some(now_ms + TELL_AGAIN_MS);
        }
        self.settle_leaving(out);
    }

    fn settle_leaving(&mut self, out: &mut Vec<Action>) {
        let Replicas { leaving, parked, is_new_life, .. } = &mut self.replicas;
        leaving.retain(|_, members| !members.is_empty());
        for one in &mut *parked {
            let is_left =
                |id: &ObjectId| leaving.contains_key(id) || (*is_new_life && *id == EVERYTHING);
            one.left.retain(is_left);
        }
        for over in parked.extract_if(.., |one| one.left.is_empty()) {
            answer_asker(over.asker, out);
        }
        // What could not be evicted may be now.
        self.admission.look_again();
    }

    /// A client deletes objects. `None`: the answer comes later.
    pub(super) fn delete_anywhere(
        &mut self,
        (session, seq): (SessionId, u64),
        slot: farrow_store::ClientSlot,
        targets: &[WireTarget],
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        if self.replicas.port.is_none() {
            let (results, _) = self.delete(slot, targets).map_err(store_error)?;
            return Ok(Some(ReplyBody::Deleted(results)));
        }
        let mut results = vec![Ok(()); targets.len()];
        let (mut own, mut far) = (Vec::new(), Vec::new());
        for (place, target) in targets.iter().enumerate() {
            match self.homes_of(slot, target) {
                Ok(nodes) if nodes.is_empty() => own.push(place),
                Ok(nodes) => far.push((place, nodes)),
                Err(error) => {
                    if let Some(result) = results.get_mut(place) {
                        *result = Err(error);
                    }
                }
            }
        }
        let here: Vec<WireTarget> =
            own.iter().filter_map(|place| targets.get(*place).cloned()).collect();
        let (deleted, gone) = self.delete(slot, &here).map_err(store_error)?;
        for (place, result) in own.iter().zip(deleted) {
            if let Some(place) = results.get_mut(*place) {
                *place = result;
            }
        }
        let waiter = Waiter { session, seq };
        if far.is_empty() {
            let body = ReplyBody::Deleted(results);
            self.tell_gone(gone, Some(Asker::Client(waiter, body)), now_ms, out);
            return Ok(None);
        }
        self.tell_gone(gone, None, now_ms, out);
        self.forward(waiter, slot, targets, results, far, out);
        Ok(None)
    }

    /// The other nodes that may have an object which this node has not.
    fn homes_of(
        &self,
        slot: farrow_store::ClientSlot,
        target: &WireTarget,
    ) -> Result<Vec<String>, WireError> {
        let full = self.full_target(slot, target)?;
        let found = match &full {
            WireTarget::Id(hi, _) if *hi != self.home.uid().0 => {
                return Ok(self.net_node_of(*hi).into_iter().collect());
            }
            full => self.home.find(store_target(full)),
        };
        match (found, &full) {
            (Ok(entry), _) if entry.is_replica => {
                let mut all = self.replicas.by_origin.values();
                let home = all.find(|one| one.local == entry.id).map(|one| one.node.clone());
                Ok(home.into_iter().collect())
            }
            (Ok(_), _) | (Err(_), WireTarget::Id(..)) => Ok(Vec::new()),
            (Err(_), full) if self.home.has(store_target(full)).unwrap_or(true) => Ok(Vec::new()),
            (Err(_), WireTarget::Name(_)) => Ok(self.net_nodes()),
        }
    }

    /// Asks other nodes to delete what is theirs.
    fn forward(
        &mut self,
        waiter: Waiter,
        slot: farrow_store::ClientSlot,
        targets: &[WireTarget],
        mut results: Vec<Result<(), WireError>>,
        far: Vec<(usize, Vec<String>)>,
        out: &mut Vec<Action>,
    ) {
        let number = self.replicas.token();
        let mut left = 0;
        for (place, nodes) in far {
            let Some(target) = targets.get(place) else { continue };
            let what = target.to_string();
            if let Some(result) = results.get_mut(place) {
                *result = Err(WireError::NotFound { what });
            }
            let Ok(full) = self.full_target(slot, target) else { continue };
            let full = match (&full, self.home.find(store_target(&full))) {
                (WireTarget::Id(hi, _), Ok(entry)) if *hi == self.home.uid().0 => {
                    let origin = self.replicas.by_origin.iter();
                    let origin = origin.filter(|(_, one)| one.local == entry.id);
                    let origin = origin.map(|(origin, _)| WireTarget::Id(origin.hi, origin.lo));
                    origin.last().unwrap_or(full)
                }
                _ => full,
            };
            for node in nodes {
                let question = Question::Delete { target: full.clone() };
                left += usize::from(self.ask_delete(&node, question, (number, place), out));
            }
        }
        let forwarded = Forwarded { waiter, results, left };
        self.replicas.forwarded.insert(number, forwarded);
        self.settle_forwarded(number, out);
    }

    /// Another node did what it was asked, or did not answer.
    pub(super) fn delete_answered(
        &mut self,
        (number, place): (u64, usize),
        answer: Result<(), WireError>,
        out: &mut Vec<Action>,
    ) {
        let Some(forwarded) = self.replicas.forwarded.get_mut(&number) else { return };
        forwarded.left = forwarded.left.saturating_sub(1);
        if let Some(result) = forwarded.results.get_mut(place) {
            match (&answer, &result) {
                // One that has it counts more than those that do not.
                (Ok(()), _) => *result = Ok(()),
                (Err(WireError::NotFound { .. }), _) | (_, Ok(())) => {}
                (Err(error), _) => *result = Err(error.clone()),
            }
        }
        self.settle_forwarded(number, out);
    }

    fn settle_forwarded(&mut self, number: u64, out: &mut Vec<Action>) {
        if self.replicas.forwarded.get(&number).is_some_and(|one| one.left == 0)
            && let Some(Forwarded { waiter, results, .. }) = self.replicas.forwarded.remove(&number)
        {
            let body = Ok(ReplyBody::Deleted(results));
            out.push(answer_to(waiter.session, waiter.seq, body));
        }
    }

    /// Another node asks to delete an object for a client of its. `None`: the answer comes later.
    pub(super) fn delete_for(
        &mut self,
        token: u64,
        from: &str,
        target: &WireTarget,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Option<Answer> {
        let deleted = self.delete_for_node(from, target);
        match deleted {
            Ok(gone) => {
                let asker = Asker::Node(token, Answer::Deleted(Ok(())));
                self.tell_gone(gone, Some(asker), now_ms, out);
                self.reclaim_soon(now_ms);
                None
            }
            Err(error) => Some(Answer::Deleted(Err(error))),
        }
    }

    fn delete_for_node(
        &mut self,
        from: &str,
        target: &WireTarget,
    ) -> Result<Vec<ObjectId>, WireError> {
        let of_store = store_target(target);
        let missing = || WireError::NotFound { what: target.to_string() };
        if self.home.find(of_store).is_ok_and(|entry| entry.is_replica) {
            return Err(missing());
        }
        let full = match target {
            WireTarget::Name(full) => full.clone(),
            WireTarget::Id(hi, lo) => {
                let id = ObjectId { hi: *hi, lo: *lo };
                let number = self.home.namespace_of_object(id).map_err(store_error)?;
                let mut all = self.home.namespaces();
                let name = all.find(|one| one.id == number).map(|one| one.options.name.clone());
                format!("{}\0", name.unwrap_or_default())
            }
        };
        self.check_node_may(from, &full, Rights::DELETE)?;
        let former = self.former_ids(&[target]);
        let deleted = self.home.delete(of_store).map_err(store_error)?;
        self.spills.deleted(deleted.id, deleted.was_spilled);
        self.counts.deleted += 1;
        Ok(former.into_iter().chain([deleted.id]).collect())
    }

    /// Ids that these objects had before the home took them over from the clients that sealed them.
    pub(super) fn former_ids(&self, targets: &[&WireTarget]) -> Vec<ObjectId> {
        let ids = targets.iter().filter_map(|target| match target {
            WireTarget::Id(hi, lo) => Some(ObjectId { hi: *hi, lo: *lo }),
            WireTarget::Name(_) => None,
        });
        ids.flat_map(|id| [Some(id), self.home.former_id(id)]).flatten().collect()
    }

    /// Where memory is short and objects stay only because other nodes have replicas of them, these are
    /// called in.
    fn recall_replicas(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let mut left = std::mem::take(&mut self.replicas.wanted_bytes);
        let Some(port) = self.replicas.port.as_ref().filter(|_| left > 0) else { return };
        let interests = Arc::clone(&port.interests);
        if self.spills.is_on() || !self.eviction.policy.is_automatic() {
            return;
        }
        let policy = self.eviction.policy.as_ref();
        let policy = Replicated(WithoutReplicated::new(policy, &self.replicas));
        let Ok(mut ranked) = self.home.candidates(&policy) else { return };
        ranked.truncate(RECALLS_MAX);
        for candidate in ranked {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(candidate.bytes.0);
            for member in interests.take(candidate.id) {
                self.tell_member_gone(&member, candidate.id, now_ms, out);
            }
        }
    }

    /// A thread that reads for another node found an object that is out of memory.
    fn restore_for_net(&mut self, id: ObjectId) {
        self.restore_soon(id);
    }

    /// Does what has come due.
    pub(super) fn tick_replicas(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        self.recall_replicas(now_ms, out);
        for waiters in self.replicas.waiters() {
            for late in waiters.extract_if(.., |one| one.until_ms <= now_ms) {
                out.push(answer_to(late.session, late.seq, Ok(ReplyBody::Fetching)));
            }
        }
        let due: Vec<u64> = self.replicas.openings.keys().copied().collect();
        for token in due {
            let Some(opening) = self.replicas.openings.get_mut(&token) else { continue };
            let is_late = opening.deadline_ms <= now_ms;
            let nodes = opening.again.extract_if(.., |_, at_ms| *at_ms <= now_ms);
            let nodes: Vec<String> = nodes.map(|(node, _)| node).collect();
            for node in nodes {
                if is_late {
                    let reason = format!("it was busy for {ROOM_MS_MAX} ms");
                    opening.fault.get_or_insert(WireError::NodeLost { node, reason });
                } else {
                    opening.left.insert(node.clone());
                    let want = opening.wish.encode();
                    out.push(Action::Net(NetAction::Open { token, node, want }));
                }
            }
            self.settle_opening(token, out);
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
        for (id, member) in late.collect::<Vec<_>>() {
            self.tell_member_gone(&member, id, now_ms, out);
        }
    }
}

fn loading_deadline(replicas: &Replicas, origin: ObjectId) -> u64 {
    replicas.loading.get(&origin).map_or(0, |one| one.deadline_ms)
}

fn answer_all(
    waiters: Vec<FetchWaiter>,
    result: &Result<ReplyBody, WireError>,
    out: &mut Vec<Action>,
) {
    out.extend(waiters.into_iter().map(|one| answer_to(one.session, one.seq, result.clone())));
}

fn answer_asker(asker: Asker, out: &mut Vec<Action>) {
    match asker {
        Asker::Client(waiter, body) => out.push(answer_to(waiter.session, waiter.seq, Ok(body))),
        Asker::Node(token, answer) => out.push(super::cluster::answer_peer(token, &answer)),
    }
}
