//! Search for objects of other nodes: which node has one, and who waits for it.

use std::collections::{BTreeMap, BTreeSet};

use farrow_net::frame::Opened;
use farrow_store::{Home, ObjectId, Target};
use farrow_wire::{Extent, PartSpec, ReplyBody, WAIT_MS_MAX, WireError, WireTarget};

use super::context::ReplicaContext;
use super::lazy_objects::can_be_lazy;
use super::senders::SenderReply;
use super::state::{BroughtImport, Replicas};
use super::transfers::{
    FetchKey, FetchWaiter, ObjectAtHome, Opening, answer_ms_max, release, wish_of,
};
use crate::protocol::Action;
use crate::protocol::action::answer_to;
use crate::protocol::cluster::{AskFirst, HintFor, NameSearch, OptionalCluster};
use crate::protocol::context::RequestContext;
use crate::protocol::core::namespaces::full_target;
use crate::protocol::limits::check_limit;
use crate::protocol::net::NetFault;
use crate::protocol::net::query::{Brought, NetQuery};

/// Limit of objects that are searched or fetched at a time.
const FETCHES_MAX: usize = 1024;

/// Limit of clients that wait for them.
const WAITERS_MAX: usize = 16_384;

/// Pause before a home that recalled an object is asked whether it still has it.
const CALLED_IN_PAUSE_MS: u64 = 5;

/// Pause before a busy home is asked again.
const BUSY_PAUSE_MS: u64 = 50;

/// A transfer whose connection was lost.
pub(super) struct LostFetch {
    pub(super) node: String,
    /// Until this time its node may be restarting.
    pub(super) until_ms: u64,
}

/// An object that a node has opened for this one.
struct OpenReply<'a> {
    token: u64,
    node: &'a str,
    hold: u64,
    opened: Opened,
}

/// An object of this node that replicates one of another node.
#[derive(Debug, Clone, Copy)]
pub(super) enum LocalReplica {
    Whole(ObjectId),
    Part(ObjectId),
}

pub(super) fn fetched(found: Option<LocalReplica>) -> ReplyBody {
    match found {
        None => ReplyBody::Fetched(None),
        Some(LocalReplica::Whole(id)) => ReplyBody::Fetched(Some(id.into())),
        Some(LocalReplica::Part(id)) => ReplyBody::FetchedPart(id.into()),
    }
}

/// The answer to a request for pages over a connection for other requests.
pub(in crate::protocol) fn pages_elsewhere() -> WireError {
    WireError::Invalid("pages are brought over another connection".into())
}

impl Replicas {
    /// Fetches an object or part for a client. Returns `None` if the answer follows later.
    pub(in crate::protocol) fn fetch_for(
        &mut self,
        request: RequestContext,
        target: &WireTarget,
        extent: Extent,
        wait_ms: u64,
        context: &mut ReplicaContext<'_>,
    ) -> Result<Option<ReplyBody>, WireError> {
        if matches!(extent, Extent::Lazy { .. }) {
            return Err(pages_elsewhere());
        }
        let RequestContext { session, slot, seq, now_ms } = request;
        let key = FetchKey::new(wish_of(&full_target(context.home, slot, target)?), extent)?;
        let until_ms = now_ms.saturating_add(wait_ms.min(WAIT_MS_MAX));
        self.fetch(FetchWaiter { key, session, seq, until_ms }, context)
    }

    /// Finds an object in memory that cannot be mapped, and fetches it. Returns `None` if the
    /// answer follows later.
    pub(in crate::protocol) fn fetch(
        &mut self,
        waiter: FetchWaiter,
        context: &mut ReplicaContext<'_>,
    ) -> Result<Option<ReplyBody>, WireError> {
        if let Some(known) = self.known_by_net(&waiter.key, context) {
            return Ok(Some(fetched(known)));
        }
        check_limit(
            "clients that wait for objects of other nodes",
            self.waiting() + 1,
            WAITERS_MAX,
        )?;
        let mut openings = self.openings.values_mut();
        if let Some(opening) = openings.find(|one| one.key == waiter.key && one.import.is_none()) {
            opening.late.push(waiter);
            return Ok(None);
        }
        let under_way = self.openings.len() + self.loading.len();
        check_limit("objects that are brought from other nodes", under_way + 1, FETCHES_MAX)?;
        self.begin_opening(waiter.key.clone(), vec![waiter], context);
        Ok(None)
    }

    /// The result that needs no other node: a replica of the object or part, or that no node can
    /// have it. `None`: other nodes must be asked.
    fn known_by_net(
        &self,
        key: &FetchKey,
        context: &ReplicaContext<'_>,
    ) -> Option<Option<LocalReplica>> {
        let home = &*context.home;
        // Without the lease, objects of replicas may be deleted: clients do not use replicas then.
        let is_current = self.are_current(context.cluster, context.now_ms);
        let whole = match &key.wish {
            NetQuery::Id(hi, lo) => self.replica_of(ObjectId { hi: *hi, lo: *lo }, None, home),
            NetQuery::Name(full) => named_replica(full, home),
            _ => None,
        };
        let whole = whole.filter(|_| key.extent != Extent::Lazy { is_again: true });
        let part = || {
            let part = key.extent.part()?;
            let origin = match &key.wish {
                NetQuery::Id(hi, lo) => ObjectId { hi: *hi, lo: *lo },
                _ => *self.named_parts.get(key)?,
            };
            self.replica_of(origin, Some(part), home)
        };
        let known = whole.map(LocalReplica::Whole).or_else(|| part().map(LocalReplica::Part));
        known
            .filter(|_| is_current)
            .map(Some)
            .or_else(|| nodes_with(&key.wish, context.cluster).is_empty().then_some(None))
    }

    fn begin_opening(
        &mut self,
        key: FetchKey,
        waiters: Vec<FetchWaiter>,
        context: &mut ReplicaContext<'_>,
    ) {
        let token = self.token();
        let nodes = nodes_with(&key.wish, context.cluster);
        let first = match &key.wish {
            NetQuery::Name(full) => {
                let search = NameSearch { full, nodes: &nodes, by: HintFor::Opening(token) };
                context.cluster.ask_first(context.home, search, context.out)
            }
            _ => AskFirst::All,
        };
        let lost_ms = context.now_ms.saturating_add(context.cluster.net_patience_ms());
        let mut opening = Opening::new(key, waiters, [], context.now_ms, lost_ms);
        opening.rest = nodes.into_iter().collect();
        opening.is_hint_awaited = first == AskFirst::Authority;
        self.openings.insert(token, opening);
        match first {
            AskFirst::All => self.open_at_hint(token, None, context),
            AskFirst::Node(node) => self.open_at_hint(token, Some(node), context),
            AskFirst::Authority => {}
        }
    }

    /// Opens an object at the hinted node, or without a hint at all that are left.
    pub(in crate::protocol) fn open_at_hint(
        &mut self,
        token: u64,
        hint: Option<String>,
        context: &mut ReplicaContext<'_>,
    ) {
        let Some(opening) = self.openings.get_mut(&token) else { return };
        opening.is_hint_awaited = false;
        let nodes = match hint.and_then(|node| opening.rest.take(&node)) {
            Some(node) => BTreeSet::from([node]),
            None => std::mem::take(&mut opening.rest),
        };
        for node in &nodes {
            context.out.push(opening.key.open_at(token, node.clone()));
        }
        opening.left.extend(nodes);
        self.settle_opening(token, context);
    }

    /// Fetches again from a node whose connection was lost, after a pause and until the same time.
    pub(super) fn fetch_after_loss(
        &mut self,
        waiters: Vec<FetchWaiter>,
        lost: &LostFetch,
        context: &ReplicaContext<'_>,
    ) {
        for (key, waiters) in by_key(waiters) {
            let mut openings = self.openings.values_mut();
            if let Some(opening) = openings.find(|one| one.key == key && one.import.is_none()) {
                opening.late.extend(waiters);
                continue;
            }
            let token = self.token();
            let rest = nodes_with(&key.wish, context.cluster)
                .into_iter()
                .filter(|node| *node != lost.node);
            let rest = rest.collect();
            let mut opening = Opening::new(key, waiters, [], context.now_ms, lost.until_ms);
            opening.rest = rest;
            opening.again.insert(lost.node.clone(), context.now_ms.saturating_add(BUSY_PAUSE_MS));
            self.openings.insert(token, opening);
        }
    }

    /// Fetches again for clients for which the answers of other nodes are too old.
    pub(super) fn fetch_again(
        &mut self,
        waiters: Vec<FetchWaiter>,
        context: &mut ReplicaContext<'_>,
    ) {
        for (key, waiters) in by_key(waiters) {
            if let Some(known) = self.known_by_net(&key, context) {
                answer_all(waiters, &Ok(fetched(known)), context.out);
                continue;
            }
            let mut openings = self.openings.values_mut();
            match openings.find(|one| one.key == key && one.import.is_none()) {
                Some(opening) => opening.late.extend(waiters),
                None => self.begin_opening(key, waiters, context),
            }
        }
    }

    /// The replica of an object, or of a part of it, if it still exists.
    pub(super) fn replica_of(
        &self,
        origin: ObjectId,
        part: Option<&PartSpec>,
        home: &Home,
    ) -> Option<ObjectId> {
        let local = self.made.get(&(origin, part.cloned()))?.local;
        home.find(Target::Id(local)).is_ok().then_some(local)
    }

    /// Handles the answer of a node that was asked to open something.
    pub(in crate::protocol) fn opened_elsewhere(
        &mut self,
        token: u64,
        node: &str,
        result: Result<(u64, Opened), NetFault>,
        context: &mut ReplicaContext<'_>,
    ) -> Option<BroughtImport> {
        if self.page_came(token, node, &result, context) {
            return None;
        }
        if let Some(question) = self.senders.remove(&token) {
            let reply = SenderReply { token, node, result };
            self.sender_event(question, reply, context);
            return None;
        }
        let brought = match result {
            Ok((hold, opened)) => {
                let reply = OpenReply { token, node, hold, opened };
                self.object_opened(reply, context)
            }
            Err(fault) => {
                self.object_not_opened(token, node, fault, context);
                None
            }
        };
        self.settle_opening(token, context);
        brought
    }

    /// Begins the transfer of an object that a node has opened. If the answer may be outdated, the
    /// node is asked again.
    fn object_opened(
        &mut self,
        reply: OpenReply<'_>,
        context: &mut ReplicaContext<'_>,
    ) -> Option<BroughtImport> {
        let OpenReply { token, node, hold, opened } = reply;
        let region = self.region_for_opening(token, node, context.cluster);
        let Some(opening) = self.openings.get_mut(&token) else {
            release(context.out, node, hold);
            return None;
        };
        opening.left.remove(node);
        let is_outdated = opening.outdated.remove(node);
        let what = opening.key.wish.to_string();
        let Some(region) = region else {
            // The node was lost meanwhile: its answer may be outdated.
            release(context.out, node, hold);
            let lost = NetFault::Lost("it was lost meanwhile".to_owned());
            opening.fault.get_or_insert(context.cluster.unreachable_by_net(node)(lost, &what));
            return None;
        };
        if is_outdated {
            release(context.out, node, hold);
            opening.again.insert(node.to_owned(), context.now_ms + CALLED_IN_PAUSE_MS);
            return None;
        }
        match Brought::decode(&opened.entry) {
            Ok((_, head)) if opening.invalidated.contains(&head.id) => {
                // The next answer is newer than the notice.
                opening.invalidated.remove(&head.id);
                release(context.out, node, hold);
                // After the pause either all nodes find it, or none does.
                opening.again.insert(node.to_owned(), context.now_ms + CALLED_IN_PAUSE_MS);
            }
            Ok((brought, head)) if head.id.hi == region => {
                let node = node.to_owned();
                let found = ObjectAtHome { node, hold, opened, brought, head };
                return self.begin_fetch(token, found, context);
            }
            other => {
                let why = other.err().unwrap_or_else(|| "it is another node's".to_owned());
                release(context.out, node, hold);
                let text = format!("invalid description of object {what} from node {node}: {why}");
                opening.fault.get_or_insert(WireError::Damaged(text));
            }
        }
        None
    }

    fn begin_fetch(
        &mut self,
        token: u64,
        found: ObjectAtHome,
        context: &mut ReplicaContext<'_>,
    ) -> Option<BroughtImport> {
        let opening = self.openings.remove(&token)?;
        match opening.key.extent {
            Extent::Metadata => {
                release(context.out, found.node, found.hold);
                let waiters = opening.waiters.into_iter().chain(opening.late);
                answer_all(waiters, &Ok(ReplyBody::Metadata(found.brought.metadata)), context.out);
            }
            Extent::Lazy { .. } if can_be_lazy(&found.opened, &found.brought, &found.head) => {
                self.begin_lazy(opening, found, context);
            }
            _ => return self.begin_load(opening, found, context),
        }
        None
    }

    /// Notes why a node has not opened an object. If it may do so soon, it is asked again.
    fn object_not_opened(
        &mut self,
        token: u64,
        node: &str,
        fault: NetFault,
        context: &mut ReplicaContext<'_>,
    ) {
        let now_ms = context.now_ms;
        let is_import = self.is_import(token);
        let unreachable = context.cluster.unreachable_by_net(node);
        let is_lost = matches!(fault, NetFault::Lost(_));
        let is_mapped = context.cluster.is_mapped(node) && !is_import;
        let region = self.region_for_opening(token, node, context.cluster);
        let is_without_net = region.is_none() && context.cluster.is_peer(node);
        if is_lost && is_import {
            let has_net = self.kind().is_some();
            context.cluster.find_for_import(node, has_net, now_ms);
        } else if is_lost {
            context.cluster.find_by_net_again(node, context.now_ms);
        }
        let Some(opening) = self.openings.get_mut(&token) else { return };
        opening.left.remove(node);
        opening.outdated.remove(node);
        let what = opening.key.wish.to_string();
        match fault {
            NetFault::NotFound => {}
            // The client finds the objects of a mapped node by loads.
            NetFault::Lost(_) if is_mapped => {}
            NetFault::Lost(why) if is_without_net => {
                opening.fault.get_or_insert(unreachable(NetFault::Other(why), &what));
            }
            fault @ (NetFault::Busy(_) | NetFault::Lost(_))
                if now_ms < opening.deadline_ms && (!is_lost || now_ms < opening.lost_ms) =>
            {
                opening.again.insert(node.to_owned(), now_ms + BUSY_PAUSE_MS);
                opening.refusals.insert(node.to_owned(), fault);
            }
            fault => {
                opening.fault.get_or_insert(unreachable(fault, &what));
            }
        }
    }

    fn is_import(&self, token: u64) -> bool {
        self.openings.get(&token).is_some_and(|opening| opening.import.is_some())
    }

    /// The region in which a node has the object of an opening. `None`: it is lost, or reached by no
    /// network.
    fn region_for_opening(&self, token: u64, node: &str, cluster: &OptionalCluster) -> Option<u64> {
        match self.is_import(token) {
            true => cluster.region_offered_by(node).filter(|_| cluster.is_peer(node)),
            false => cluster.net_region_of(node),
        }
    }

    /// Waits no longer for nodes that have not answered within the limit. Later answers find no
    /// opening, and are released.
    pub(super) fn end_late_opening(&mut self, token: u64, context: &ReplicaContext<'_>) {
        let openings = &mut self.openings;
        let Some(opening) =
            openings.get_mut(&token).filter(|one| one.answers_until_ms <= context.now_ms)
        else {
            return;
        };
        if let Some(silent) = std::mem::take(&mut opening.left).first() {
            let limit_ms = answer_ms_max(&opening.key.extent);
            let fault = NetFault::Busy(format!("no answer within {limit_ms} ms"));
            let error =
                context.cluster.unreachable_by_net(silent)(fault, &opening.key.wish.to_string());
            opening.fault.get_or_insert(error);
        }
    }

    /// Answers the clients that wait for an object if no node is left that may have it.
    pub(super) fn settle_opening(&mut self, token: u64, context: &mut ReplicaContext<'_>) {
        let openings = &mut self.openings;
        let Some(opening) = openings.get(&token) else { return };
        if !opening.left.is_empty() || !opening.again.is_empty() || opening.is_hint_awaited {
            return;
        }
        if !opening.rest.is_empty() {
            return self.open_at_hint(token, None, context);
        }
        if let Some(opening) = openings.remove(&token) {
            let Opening { waiters, late, fault, .. } = opening;
            match fault {
                Some(fault) => {
                    answer_all(waiters.into_iter().chain(late), &Err(fault), context.out)
                }
                None => {
                    answer_all(waiters, &Ok(fetched(None)), context.out);
                    self.fetch_again(late, context);
                }
            }
        }
    }
}

/// Nodes that may have an object.
fn nodes_with(wish: &NetQuery, cluster: &OptionalCluster) -> Vec<String> {
    match wish {
        NetQuery::Id(hi, _) => cluster.net_node_of(*hi).into_iter().collect(),
        _ => cluster.net_nodes(),
    }
}

fn named_replica(full: &str, home: &Home) -> Option<ObjectId> {
    let entry = home.find(Target::Name(full)).ok()?;
    entry.is_replica.then_some(entry.id)
}

/// Clients by what they want: those with equal keys share one search.
fn by_key(waiters: Vec<FetchWaiter>) -> BTreeMap<FetchKey, Vec<FetchWaiter>> {
    let mut by_key: BTreeMap<FetchKey, Vec<FetchWaiter>> = BTreeMap::new();
    for waiter in waiters {
        by_key.entry(waiter.key.clone()).or_default().push(waiter);
    }
    by_key
}

pub(super) fn answer_all(
    waiters: impl IntoIterator<Item = FetchWaiter>,
    result: &Result<ReplyBody, WireError>,
    out: &mut Vec<Action>,
) {
    out.extend(waiters.into_iter().map(|one| answer_to(one.session, one.seq, result.clone())));
}
