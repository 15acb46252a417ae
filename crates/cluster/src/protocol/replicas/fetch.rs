//! Transfers of objects of other nodes: memory for them, their bytes, and their seals.

use farrow_membership::naming::NameRefusal;
use farrow_memory::{Length, Span};
use farrow_store::{
    Home, NamespaceId, ObjectId, ReplicaSeal, ReplicasFirst, SpillHead, StoreError, Target,
    namespace_of, own_name,
};
use farrow_wire::{Extent, NoRoom, WireError};

use super::context::ReplicaContext;
use super::replica_table::Replica;
use super::search::{LocalReplica, LostFetch, answer_all, fetched};
use super::state::{BroughtImport, Replicas};
use super::transfers::{
    FetchKey, FetchSender, Fetching, ObjectAtHome, Opening, ROOM_MS_MAX, release,
};
use crate::protocol::convert::store_error;
use crate::protocol::core::residency::CopyRoom;
use crate::protocol::net::NetFault;
use crate::protocol::net::query::{Brought, NetQuery};

/// Fewest remembered replicas at which evicted ones are forgotten.
const REMEMBERED_MIN: usize = 1024;

impl Replicas {
    pub(super) fn begin_load(
        &mut self,
        opening: Opening,
        found: ObjectAtHome,
        context: &mut ReplicaContext<'_>,
    ) -> Option<BroughtImport> {
        let ObjectAtHome { node, hold, opened, brought, head } = found;
        let origin = head.id;
        let Opening { key: FetchKey { wish, extent }, waiters, late, import, lost_ms, .. } =
            opening;
        let part = extent.part().cloned();
        // The object exists until it is recalled, also for clients that asked after the answer.
        let waiters: Vec<_> = waiters.into_iter().chain(late).collect();
        let whole = self.replica_of(origin, None, context.home).map(LocalReplica::Whole);
        let of_part = || self.replica_of(origin, part.as_ref(), context.home);
        let known = whole.or_else(|| of_part().map(LocalReplica::Part));
        let is_loading = self.loading.contains_key(&origin);
        if import.is_some() && is_loading {
            release(context.out, node, hold);
            let text = format!("object {origin} is being brought already");
            answer_all(waiters, &Err(WireError::Invalid(text)), context.out);
            return None;
        }
        if import.is_none() && (known.is_some() || is_loading) {
            // Somebody else was faster.
            release(context.out, node, hold);
            match self.loading.get_mut(&origin) {
                // The answers to the steps of an import are for its client only.
                Some(one) if known.is_none() && one.part == part && one.import.is_none() => {
                    one.waiters.extend(waiters);
                }
                Some(loading) if known.is_none() => loading.later.extend(waiters),
                _ => answer_all(waiters, &Ok(fetched(known)), context.out),
            }
            return None;
        }
        let (name, namespace) = name_of_fetched(&wish, &brought, context.home);
        let (name, part_of) = if part.is_some() { (None, name) } else { (name, None) };
        let importer = import.as_ref().and_then(|one| context.home.client(one.slot).ok());
        let namespace = importer.map_or(namespace, |record| record.namespace);
        let loading = Fetching {
            node,
            hold,
            head,
            brought,
            opened,
            blocks: Vec::new(),
            sender: FetchSender::default(),
            part,
            part_of,
            name,
            namespace,
            waiters,
            later: Vec::new(),
            is_on_its_way: false,
            is_brought: false,
            brought_ms: 0,
            is_invalidated: false,
            is_recalled: false,
            lost_ms,
            deadline_ms: context.now_ms.saturating_add(ROOM_MS_MAX),
            import,
        };
        self.loading.insert(origin, loading);
        self.load_replica(origin, context)
    }

    /// Starts the transfer of an object if there is room for it.
    pub(in crate::protocol) fn load_replica(
        &mut self,
        origin: ObjectId,
        context: &mut ReplicaContext<'_>,
    ) -> Option<BroughtImport> {
        let loading = self.loading.get(&origin)?;
        if loading.import.is_none() && !self.are_current(context.cluster, context.now_ms) {
            // What arrives without a lease is dropped, so the transfer begins with the lease.
            if context.now_ms >= loading.deadline_ms {
                let error = context.cluster.refusal_error("", &NameRefusal::NoLease);
                self.end_load(origin, Err(error), context);
            }
            return None;
        }
        let (head, namespace) = (loading.head.clone(), loading.namespace);
        let import = loading.import.as_ref().map(|import| (import.slot, import.seal.is_some()));
        let room = match import {
            Some((slot, is_put)) => self.room_for_import(&head, slot, is_put, context),
            None => self.room_for_replica(&head, namespace, context),
        };
        let blocks = match room {
            Ok(Some(blocks)) => blocks,
            // Memory will become free.
            Ok(None) if context.now_ms < loading_deadline(self, origin) => return None,
            Ok(None) => {
                let error = context.out_of_room(&head, ROOM_MS_MAX);
                self.end_load(origin, Err(error), context);
                return None;
            }
            Err(error) => {
                self.end_load(origin, Err(error), context);
                return None;
            }
        };
        let loading = self.loading.get_mut(&origin)?;
        let from = &loading.opened.blocks;
        let lengths = |spans: &[Span]| spans.iter().map(|span| span.length).collect::<Vec<_>>();
        if lengths(from) != lengths(&blocks) {
            let node = &loading.node;
            let text =
                format!("node {node} reported blocks of object {origin} that differ from its head");
            context.abort_replica(origin);
            self.end_load(origin, Err(WireError::Damaged(text)), context);
            return None;
        }
        loading.is_on_its_way = true;
        if !loading.opened.inline.is_empty() {
            let inline = std::mem::take(&mut loading.opened.inline);
            let written = write_blocks(context.home, &blocks, &inline);
            let written = written.map_err(|error| NetFault::Other(error.to_string()));
            return self.loaded(origin, written, context);
        }
        loading.blocks = blocks;
        self.begin_transfer(origin, context);
        None
    }

    /// Allocates memory for a replica. Other replicas are evicted first, then other objects.
    /// `None`: memory will become free.
    fn room_for_replica(
        &mut self,
        head: &SpillHead,
        namespace: NamespaceId,
        context: &mut ReplicaContext<'_>,
    ) -> Result<Option<Vec<Span>>, WireError> {
        let bytes = context.check_size(Home::replica_bytes(head))?;
        if let Some(max) = self.bytes_max {
            self.keep_below(context.home, max, bytes)?;
        }
        let room = CopyRoom { bytes, may_evict: true };
        let begin = |home: &mut Home| home.begin_replica(head, namespace);
        self.begin_with_room(head, room, begin, context)
    }

    /// Begins a copy of an object. `None`: memory will become free.
    pub(super) fn begin_with_room(
        &self,
        head: &SpillHead,
        room: CopyRoom,
        begin: impl Fn(&mut Home) -> Result<Vec<Span>, StoreError>,
        context: &mut ReplicaContext<'_>,
    ) -> Result<Option<Vec<Span>>, WireError> {
        let begun = context.residency.begin_copy(context.home, self, room, begin);
        begun.map_err(|error| match error {
            StoreError::OutOfMemory { .. } => context.out_of_room(head, 0),
            error => store_error(error),
        })
    }

    /// Evicts replicas until one more fits into their limit.
    pub(in crate::protocol) fn keep_below(
        &mut self,
        home: &mut Home,
        max: u64,
        bytes: Length,
    ) -> Result<(), WireError> {
        let excess_of = |used: u64| used.saturating_add(bytes.0).saturating_sub(max);
        let mut used = self.used_bytes();
        // A look at all of them is long: only if some were evicted for other objects.
        if excess_of(used) > 0 && self.made.len() != home.replica_count() {
            self.sweep(home);
            used = self.used_bytes();
        }
        let excess = excess_of(used);
        if excess == 0 {
            return Ok(());
        }
        let mut evicted_ids = Vec::new();
        let evicted =
            home.evict_bytes(&ReplicasFirst, Length(excess), &mut |id| evicted_ids.push(id));
        self.forget_evicted(evicted_ids);
        let evicted = evicted.map_err(store_error)?;
        if evicted.bytes.0 >= excess {
            return Ok(());
        }
        Err(WireError::NoRoom(NoRoom {
            what: "copies of other nodes' objects (--cache)".to_owned(),
            requested: bytes.0,
            free: max.saturating_sub(used.saturating_sub(evicted.bytes.0)),
            largest: max,
            used: used.saturating_sub(evicted.bytes.0),
            waiting: 0,
            waited_ms: 0,
        }))
    }

    /// Forgets evicted replicas.
    fn sweep(&mut self, home: &Home) {
        let is_evicted = |local: &ObjectId| home.find(Target::Id(*local)).is_err();
        let locals = self.made.iter().map(|(_, replica)| replica.local);
        let evicted = locals.filter(is_evicted).collect();
        self.forget_evicted(evicted);
    }

    /// Forgets evicted replicas once they may be half of the remembered ones.
    fn sweep_sometimes(&mut self, home: &Home) {
        if self.made.len() >= self.sweep_at {
            self.sweep(home);
            self.sweep_at = REMEMBERED_MIN.max(2 * self.made.len());
        }
    }

    /// Handles the end of a transfer into the blocks of an object.
    pub(in crate::protocol) fn loaded(
        &mut self,
        origin: ObjectId,
        result: Result<(), NetFault>,
        context: &mut ReplicaContext<'_>,
    ) -> Option<BroughtImport> {
        if !self.loading.contains_key(&origin) {
            context.abort_replica(origin);
            return None;
        }
        if self.another_sender(origin, result.is_err(), context) {
            return None;
        }
        let loading = self.loading.get(&origin)?;
        let is_import = loading.import.is_some();
        // Without a lease the home may have forgotten this node already.
        let has_lease = self.are_current(context.cluster, context.now_ms);
        if loading.is_invalidated || (!has_lease && !is_import && result.is_ok()) {
            context.abort_replica(origin);
            self.open_again(origin, context);
            return None;
        }
        if !is_import
            && matches!(result, Err(NetFault::Lost(_)))
            && context.now_ms < loading.lost_ms
        {
            context.abort_replica(origin);
            self.open_after_loss(origin, context);
            return None;
        }
        if let Err(fault) = result {
            let error = context.cluster.unreachable_by_net(&loading.node)(
                fault,
                &Target::Id(origin).to_string(),
            );
            context.abort_replica(origin);
            self.end_load(origin, Err(error), context);
            return None;
        }
        if is_import {
            return self.import_brought(origin, context);
        }
        let bytes = Home::replica_bytes(&loading.head).unwrap_or_default().0;
        let node = loading.node.clone();
        let (part, part_of) = (loading.part.clone(), loading.part_of.clone());
        match self.seal_replica(origin, context.home) {
            Ok(local) => {
                let replica = Replica { local, node, bytes };
                if let (Some(full), Some(part)) = (part_of, &part) {
                    let key =
                        FetchKey { wish: NetQuery::Name(full), extent: Extent::Part(part.clone()) };
                    self.named_parts.insert(key, origin);
                }
                self.made.insert((origin, part), replica);
                self.sweep_sometimes(context.home);
                self.fetched_total += 1;
                self.fetched_bytes_total += bytes;
                self.serve_to_peers(origin, local, context);
                self.end_load(origin, Ok(local), context);
            }
            Err(error) => self.end_load(origin, Err(store_error(error)), context),
        }
        context.reclaim_soon();
        None
    }

    /// Fetches again after the home was lost or recalled the object during the fetch. The home may
    /// still have it, or another node may have one of its name.
    pub(super) fn open_again(&mut self, origin: ObjectId, context: &mut ReplicaContext<'_>) {
        let Some(loading) = self.loading.remove(&origin) else { return };
        let Fetching { node, hold, mut waiters, later, import, is_recalled, .. } = loading;
        context.cluster.find_by_net_again(&node, context.now_ms);
        release(context.out, node.as_str(), hold);
        if import.is_some() {
            let what = Target::Id(origin).to_string();
            let error = if is_recalled {
                let what = format!("{what}, which was deleted before all of its bytes arrived");
                WireError::NotFound { what }
            } else {
                let reason = format!("it ended before all bytes of object {what} arrived");
                WireError::NodeLost { node, reason }
            };
            answer_all(waiters, &Err(error), context.out);
            return self.fetch_again(later, context);
        }
        waiters.extend(later);
        self.fetch_again(waiters, context);
    }

    /// Fetches again after the connection was lost. However often that happens, it ends when the first
    /// loss would have been an error.
    fn open_after_loss(&mut self, origin: ObjectId, context: &mut ReplicaContext<'_>) {
        let Some(loading) = self.loading.remove(&origin) else { return };
        let Fetching { node, hold, mut waiters, later, lost_ms, .. } = loading;
        context.cluster.find_by_net_again(&node, context.now_ms);
        release(context.out, node.as_str(), hold);
        waiters.extend(later);
        self.fetch_after_loss(waiters, &LostFetch { node, until_ms: lost_ms }, context);
    }

    fn seal_replica(&self, origin: ObjectId, home: &mut Home) -> Result<ObjectId, StoreError> {
        let missing = || StoreError::NotFound { what: Target::Id(origin).to_string() };
        let loading = self.loading.get(&origin).ok_or_else(missing)?;
        let mut name = loading.name.as_deref();
        if let Some(full) = name
            && let Ok(entry) = home.find(Target::Name(full))
        {
            if entry.is_replica {
                // A replica of an earlier object of this name, whose invalidation is under way.
                home.delete(Target::Id(entry.id))?;
            } else {
                name = None;
            }
        }
        if name.is_some_and(|full| home.is_reserved(full)) {
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
            importer: None,
        };
        let now_ns = home.now_ns();
        home.finish_replica(origin, &seal, now_ns)
    }

    /// Ends a fetch: answers its clients and releases the home's hold.
    pub(in crate::protocol) fn end_load(
        &mut self,
        origin: ObjectId,
        result: Result<ObjectId, WireError>,
        context: &mut ReplicaContext<'_>,
    ) {
        let Some(loading) = self.loading.remove(&origin) else { return };
        let Fetching { node, hold, waiters, later, part, import, sender, .. } = loading;
        // The answer of the home to the notice about the replica releases it otherwise.
        if sender != FetchSender::Done {
            release(context.out, node, hold);
        }
        let importer = import.and_then(|import| context.clients.session(import.session));
        if let (Some(importer), Ok(id)) = (importer, &result) {
            self.imported.insert(origin, importer.peer, *id);
        }
        let local =
            |id| if part.is_some() { LocalReplica::Part(id) } else { LocalReplica::Whole(id) };
        answer_all(waiters, &result.map(|id| fetched(Some(local(id)))), context.out);
        self.fetch_again(later, context);
    }
}

/// The full name for a replica, and its namespace here. `None`: it was not fetched by its name.
fn name_of_fetched(
    wish: &NetQuery,
    brought: &Brought,
    home: &Home,
) -> (Option<String>, NamespaceId) {
    let NetQuery::Name(full) = wish else { return (None, NamespaceId::DEFAULT) };
    let is_it = brought.name.as_deref() == Some(own_name(full));
    match home.namespace(namespace_of(full)) {
        Ok(namespace) if is_it => (Some(full.clone()), namespace.id),
        _ => (None, NamespaceId::DEFAULT),
    }
}

fn write_blocks(home: &Home, blocks: &[Span], mut bytes: &[u8]) -> Result<(), StoreError> {
    for block in blocks {
        let short = StoreError::BadRequest { reason: "fewer bytes than blocks" };
        let (part, rest) = bytes.split_at_checked(block.length.as_usize()).ok_or(short)?;
        home.region().write_by_call(block.offset, part)?;
        home.region().publish(*block)?;
        bytes = rest;
    }
    Ok(())
}

fn loading_deadline(replicas: &Replicas, origin: ObjectId) -> u64 {
    replicas.loading.get(&origin).map_or(0, |one| one.deadline_ms)
}
