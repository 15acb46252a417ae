//! State of all replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use farrow_memory::Length;
use farrow_store::{ClientSlot, Home, NamespaceId, ObjectId};
use farrow_wire::WireTarget;

use super::imported::ImportedObjects;
use super::lazy_objects::LazyObjects;
use super::replica_table::ReplicaTable;
use super::transfers::{FetchKey, FetchWaiter, Fetching, ImportTarget, Opening, SenderQuestion};
use super::withdrawals::{
    EVERYTHING, Forwarded, Leaving, PendingDelete, PendingReplacement, Withdrawal,
};
use crate::protocol::cluster::OptionalCluster;
use crate::protocol::context::ReplyTo;
use crate::protocol::core::residency::RemoteReplicas;
use crate::protocol::identity::SessionId;
use crate::protocol::net::{NetReaders, ReaderRules};
use crate::protocol::rights::RightsTable;

/// Access of the state to the network fabric.
pub(in crate::protocol) struct Port {
    pub(in crate::protocol) readers: Arc<dyn NetReaders>,
    pub(in crate::protocol) kind: &'static str,
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind)
    }
}

/// An import whose bytes are all here, and of which its client has said what it becomes. The node
/// seals it.
#[derive(Debug)]
#[must_use]
pub(in crate::protocol) struct BroughtImport {
    pub(in crate::protocol) origin: ObjectId,
    pub(in crate::protocol) target: ImportTarget,
}

/// State of all replicas.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Replicas {
    pub(in crate::protocol) port: Option<Port>,
    /// The client slot of the threads that read for other nodes.
    pub(in crate::protocol) net_client: Option<ClientSlot>,
    pub(in crate::protocol) next: u64,
    pub(in crate::protocol) openings: BTreeMap<u64, Opening>,
    pub(in crate::protocol) loading: BTreeMap<ObjectId, Fetching>,
    /// Questions about senders of large objects.
    pub(in crate::protocol) senders: BTreeMap<u64, SenderQuestion>,
    pub(in crate::protocol) imported: ImportedObjects,
    /// Replicas of objects and of parts of objects. Those that were evicted for other objects stay
    /// until a sweep.
    pub(in crate::protocol) made: ReplicaTable,
    /// The objects whose parts were found by name.
    pub(in crate::protocol) named_parts: BTreeMap<FetchKey, ObjectId>,
    /// Number of replicas at which the next sweep is due.
    pub(in crate::protocol) sweep_at: usize,
    /// Limit of the bytes of replicas; `None`: all free memory.
    pub(in crate::protocol) bytes_max: Option<u64>,
    /// Bytes of the largest request without room.
    pub(in crate::protocol) wanted_bytes: u64,
    /// Members may have replicas from an earlier incarnation of this node, and none was notified
    /// yet.
    pub(in crate::protocol) is_new_life: bool,
    pub(in crate::protocol) leaving: BTreeMap<ObjectId, Leaving>,
    pub(in crate::protocol) withdrawals: Vec<Withdrawal>,
    /// Clients that wait for pages of lists.
    pub(in crate::protocol) listings: BTreeMap<u64, ReplyTo>,
    pub(in crate::protocol) forwarded: BTreeMap<u64, Forwarded>,
    pub(in crate::protocol) replacements: BTreeMap<u64, PendingReplacement>,
    pub(in crate::protocol) indebted: Vec<PendingDelete>,
    /// Objects whose pages are brought one by one.
    pub(in crate::protocol) lazy: LazyObjects,
    pub(in crate::protocol) fetched_total: u64,
    pub(in crate::protocol) fetched_bytes_total: u64,
}

impl Replicas {
    /// `"net"` or `"net+TLS"`, if there is such a fabric.
    pub(in crate::protocol) fn kind(&self) -> Option<&'static str> {
        self.port.as_ref().map(|port| port.kind)
    }

    /// Time for which replicas are known to be current; `None`: no limit applies.
    pub(in crate::protocol) fn last_ms(
        &self,
        cluster: &OptionalCluster,
        now_ms: u64,
    ) -> Option<u64> {
        self.kind()?;
        cluster.lease_left_ms(now_ms)
    }

    /// Whether replicas are current, so that clients may read them.
    pub(in crate::protocol) fn are_current(&self, cluster: &OptionalCluster, now_ms: u64) -> bool {
        self.last_ms(cluster, now_ms).is_none_or(|left_ms| left_ms > 0)
    }

    /// Passes the current rules to the threads of the network fabric.
    pub(in crate::protocol) fn publish_rules(&self, rights: &RightsTable, home: &Home) {
        if let Some(port) = &self.port {
            let namespaces = home.namespaces();
            let namespaces = namespaces.map(|one| (one.id.0, one.options.name.clone()));
            let namespaces = namespaces.collect();
            port.readers.publish_rules(ReaderRules { rights: rights.clone(), namespaces });
        }
    }

    /// Number of objects fetched since the start, and their bytes.
    pub(in crate::protocol) fn fetched(&self) -> [u64; 2] {
        [self.fetched_total, self.fetched_bytes_total]
    }

    /// Bytes that travelled compressed: see [`NetReaders::packed`].
    pub(in crate::protocol) fn packed(&self) -> [[u64; 2]; 2] {
        self.port.as_ref().map(|port| port.readers.packed()).unwrap_or_default()
    }

    /// Bytes that other nodes read of objects of this node, and of its replicas.
    pub(in crate::protocol) fn served(&self) -> [u64; 2] {
        self.port.as_ref().map(|port| port.readers.served()).unwrap_or_default()
    }

    /// An import whose bytes are here and whose client says later what becomes of it, and its
    /// namespace.
    pub(in crate::protocol) fn staged_import(
        &self,
        origin: ObjectId,
    ) -> Option<(ImportTarget, NamespaceId)> {
        let loading =
            self.loading.get(&origin).filter(|one| one.is_brought && !one.is_invalidated)?;
        let import = loading.import.clone().filter(|import| import.seal.is_none())?;
        Some((import, loading.namespace))
    }

    /// Whether an object is about to be deleted or replaced.
    pub(in crate::protocol) fn is_withdrawn(&self, target: &WireTarget) -> bool {
        self.withdrawals.iter().any(|one| one.target == *target)
    }

    /// Full names that were granted for seals that wait for replicas.
    pub(in crate::protocol) fn granted_names(&self) -> impl Iterator<Item = &String> {
        self.replacements.values().flat_map(|one| &one.seal.granted)
    }

    pub(in crate::protocol) fn token(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Bytes of all replicas, with those on their way.
    pub(in crate::protocol) fn used_bytes(&self) -> u64 {
        let loading = self.loading.values().filter(|one| one.is_on_its_way);
        let loading = loading.filter_map(|one| Home::replica_bytes(&one.head));
        loading.map(|bytes| bytes.0).sum::<u64>().saturating_add(self.made.bytes())
    }

    /// Forgets replicas that were evicted.
    pub(in crate::protocol) fn forget_evicted(&mut self, evicted: Vec<ObjectId>) {
        let Self { made, named_parts, port, .. } = self;
        let mut of_parts = BTreeSet::new();
        for (origin, part) in evicted.into_iter().filter_map(|local| made.remove_local(local)) {
            if part.is_some() {
                of_parts.insert(origin);
            } else if let Some(port) = port {
                port.readers.hide_replica(origin);
            }
        }
        if !of_parts.is_empty() {
            let is_made = |key: &FetchKey, of: ObjectId| {
                made.get(&(of, key.extent.part().cloned())).is_some()
            };
            named_parts.retain(|key, of| !of_parts.contains(of) || is_made(key, *of));
        }
    }

    /// Forgets the requests of an ended session, and ends its imports. Other work begun for it
    /// continues.
    pub(in crate::protocol) fn forget(&mut self, session: SessionId) {
        let is_its = |import: &Option<ImportTarget>| {
            import.as_ref().is_some_and(|import| import.session == session)
        };
        self.waiters().for_each(|all| all.retain(|one| one.session != session));
        self.forwarded.retain(|_, one| one.waiter.session != session);
        self.listings.retain(|_, one| one.session != session);
        // The home's answer finds no opening, and its hold is released.
        self.openings.retain(|_, one| !is_its(&one.import));
        for loading in self.loading.values_mut() {
            loading.is_invalidated |= is_its(&loading.import);
        }
    }

    /// Forgets one request and returns whether there was one. Ends an import for which only this
    /// request waited.
    pub(in crate::protocol) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        let is_it = |one: &FetchWaiter| (one.session, one.seq) == (session, seq);
        let before = self.waiting();
        // An import whose client is about to take the next step has no waiter either.
        self.openings.retain(|_, one| {
            let all = one.waiters.len();
            one.waiters.retain(|waiter| !is_it(waiter));
            one.late.retain(|waiter| !is_it(waiter));
            one.import.is_none() || one.waiters.len() == all || !one.waiters.is_empty()
        });
        for loading in self.loading.values_mut() {
            let all = loading.waiters.len();
            loading.waiters.retain(|waiter| !is_it(waiter));
            loading.later.retain(|waiter| !is_it(waiter));
            let was_last = loading.waiters.len() < all && loading.waiters.is_empty();
            loading.is_invalidated |= loading.import.is_some() && !loading.is_brought && was_last;
        }
        let listings = self.listings.len();
        self.listings.retain(|_, one| (one.session, one.seq) != (session, seq));
        self.waiting() < before || self.listings.len() < listings
    }

    pub(in crate::protocol) fn waiters(&mut self) -> impl Iterator<Item = &mut Vec<FetchWaiter>> {
        let openings = self.openings.values_mut();
        let openings = openings.flat_map(|one| [&mut one.waiters, &mut one.late]);
        let loading = self.loading.values_mut();
        openings.chain(loading.flat_map(|one| [&mut one.waiters, &mut one.later]))
    }

    pub(in crate::protocol) fn waiting(&self) -> usize {
        let openings = self.openings.values().map(|one| one.waiters.len() + one.late.len());
        let loading = self.loading.values().map(|one| one.waiters.len() + one.later.len());
        openings.chain(loading).sum()
    }

    /// Takes out all waiting requests at shutdown.
    pub(in crate::protocol) fn drain(&mut self) -> Vec<(SessionId, u64)> {
        let fetches = self.waiters().flat_map(|all| all.drain(..));
        let mut all: Vec<_> = fetches.map(|one| (one.session, one.seq)).collect();
        let forwarded = std::mem::take(&mut self.forwarded).into_values();
        all.extend(forwarded.map(|one| (one.waiter.session, one.waiter.seq)));
        let replacements = std::mem::take(&mut self.replacements).into_values();
        all.extend(replacements.map(|one| {
            let context = one.seal.context;
            (context.session, context.seq)
        }));
        let listings = std::mem::take(&mut self.listings).into_values();
        all.extend(listings.map(|one| (one.session, one.seq)));
        all.extend(self.lazy.drain());
        all
    }

    pub(in crate::protocol) fn next_deadline_ms(&self) -> Option<u64> {
        let openings = self.openings.values();
        let openings =
            openings.flat_map(|one| one.again.values().copied().chain([one.answers_until_ms]));
        let loading = self.loading.values().filter(|one| !one.is_on_its_way);
        let loading = loading.map(|one| one.deadline_ms);
        let loading = loading.chain(self.loading.values().filter_map(Fetching::step_until_ms));
        let senders = self.loading.values().filter_map(|one| one.sender.ask_again_at_ms());
        let leaving = self.leaving.values().flat_map(BTreeMap::values);
        let leaving = leaving.filter_map(|last| last.again_at_ms);
        let waiters = self.openings.values().flat_map(|one| [&one.waiters, &one.late]);
        let waiters = waiters
            .chain(self.loading.values().flat_map(|one| [&one.waiters, &one.later]))
            .flatten();
        let indebted = self.indebted.iter().map(|one| one.until_ms);
        let waiting = waiters.map(|one| one.until_ms).chain(indebted);
        let timers = openings.chain(loading).chain(senders).chain(leaving).chain(waiting);
        timers.chain(self.lazy.next_deadline_ms()).min()
    }
}

impl RemoteReplicas for Replicas {
    fn is_elsewhere(&self, id: ObjectId) -> bool {
        let Some(port) = &self.port else { return false };
        // What is being recalled may still be there, and after a restart all of it.
        self.is_new_life
            || port.readers.is_any(id)
            || self.leaving.contains_key(&id)
            || self.leaving.contains_key(&EVERYTHING)
    }

    fn are_possible(&self) -> bool {
        self.port.is_some()
    }

    fn is_recalling(&self) -> bool {
        self.wanted_bytes > 0 || !self.leaving.is_empty()
    }

    fn want_room(&mut self, bytes: Length) {
        if self.port.is_some() {
            self.wanted_bytes = self.wanted_bytes.max(bytes.0);
        }
    }
}
