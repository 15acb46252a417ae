//! Transfers of objects of other nodes: memory for them, their bytes, and their seals.

use farrow_membership::naming::NameRefusal;
use farrow_memory::{Length, Span};
use farrow_store::{
    Home, NamespaceId, ObjectId, ReplicaSeal, ReplicasFirst, SpillHead, StoreError, Target,
    namespace_of, own_name,
};
use farrow_wire::{Extent, NoRoom, OutOfMemory, TooLarge, WireError};

use super::replica_table::Replica;
use super::search::{LocalReplica, LostFetch, answer_all, fetched};
use super::state::Replicas;
use super::transfers::{
    FetchKey, FetchSender, Fetching, ObjectAtHome, Opening, ROOM_MS_MAX, release,
};
use crate::protocol::Action;
use crate::protocol::convert::store_error;
use crate::protocol::core::residency::CopyRoom;
use crate::protocol::net::NetFault;
use crate::protocol::net::query::{Brought, NetQuery};
use crate::protocol::state::NodeState;

/// Fewest remembered replicas at which evicted ones are forgotten.
const REMEMBERED_MIN: usize = 1024;

impl NodeState {
    pub(super) fn begin_load(
        &mut self,
        opening: Opening,
        found: ObjectAtHome,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let ObjectAtHome { node, hold, opened, brought, head } = found;
        let origin = head.id;
        let Opening { key: FetchKey { wish, extent }, waiters, late, import, lost_ms, .. } =
            opening;
        let part = extent.part().cloned();
        // The object exists until it is recalled, also for clients that asked after the answer.
        let waiters: Vec<_> = waiters.into_iter().chain(late).collect();
        let whole = self.replica_of(origin, None).map(LocalReplica::Whole);
        let known =
            whole.or_else(|| self.replica_of(origin, part.as_ref()).map(LocalReplica::Part));
        let is_loading = self.replicas.loading.contains_key(&origin);
        if import.is_some() && is_loading {
            release(out, node, hold);
            let text = format!("object {origin} is being brought already");
            return answer_all(waiters, &Err(WireError::Invalid(text)), out);
        }
        if import.is_none() && (known.is_some() || is_loading) {
            // Somebody else was faster.
            release(out, node, hold);
            match self.replicas.loading.get_mut(&origin) {
                // The answers to the steps of an import are for its client only.
                Some(one) if known.is_none() && one.part == part && one.import.is_none() => {
                    one.waiters.extend(waiters);
                }
                Some(loading) if known.is_none() => loading.later.extend(waiters),
                _ => answer_all(waiters, &Ok(fetched(known)), out),
            }
            return;
        }
        let (name, namespace) = self.name_of_fetched(&wish, &brought);
        let (name, part_of) = if part.is_some() { (None, name) } else { (name, None) };
        let importer = import.as_ref().and_then(|one| self.home.client(one.slot).ok());
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
            deadline_ms: now_ms.saturating_add(ROOM_MS_MAX),
            import,
        };
        self.replicas.loading.insert(origin, loading);
        self.load_replica(origin, now_ms, out);
    }

    /// The full name for a replica, and its namespace here. `None`: it was not fetched by its name.
    fn name_of_fetched(&self, wish: &NetQuery, brought: &Brought) -> (Option<String>, NamespaceId) {
        let NetQuery::Name(full) = wish else { return (None, NamespaceId::DEFAULT) };
        let is_it = brought.name.as_deref() == Some(own_name(full));
        match self.home.namespace(namespace_of(full)) {
            Ok(namespace) if is_it => (Some(full.clone()), namespace.id),
            _ => (None, NamespaceId::DEFAULT),
        }
    }

    /// Starts the transfer of an object if there is room for it.
    pub(super) fn load_replica(&mut self, origin: ObjectId, now_ms: u64, out: &mut Vec<Action>) {
        let Some(loading) = self.replicas.loading.get(&origin) else { return };
        if loading.import.is_none() && !self.are_replicas_current(now_ms) {
            // What arrives without a lease is dropped, so the transfer begins with the lease.
            if now_ms >= loading.deadline_ms {
                let error = self.cluster.refusal_error("", &NameRefusal::NoLease);
                self.end_load(origin, Err(error), now_ms, out);
            }
            return;
        }
        let (head, namespace) = (loading.head.clone(), loading.namespace);
        let import = loading.import.as_ref().map(|import| (import.slot, import.seal.is_some()));
        let room = match import {
            Some((slot, is_put)) => self.room_for_import(&head, slot, is_put),
            None => self.room_for_replica(&head, namespace),
        };
        let blocks = match room {
            Ok(Some(blocks)) => blocks,
            // Memory will become free.
            Ok(None) if now_ms < loading_deadline(&self.replicas, origin) => return,
            Ok(None) => {
                let error = self.out_of_room(&head, ROOM_MS_MAX);
                return self.end_load(origin, Err(error), now_ms, out);
            }
            Err(error) => return self.end_load(origin, Err(error), now_ms, out),
        };
        let Some(loading) = self.replicas.loading.get_mut(&origin) else { return };
        let from = &loading.opened.blocks;
        let lengths = |spans: &[Span]| spans.iter().map(|span| span.length).collect::<Vec<_>>();
        if lengths(from) != lengths(&blocks) {
            let node = &loading.node;
            let text =
                format!("node {node} reported blocks of object {origin} that differ from its head");
            self.abort_replica(origin);
            return self.end_load(origin, Err(WireError::Damaged(text)), now_ms, out);
        }
        loading.is_on_its_way = true;
        if !loading.opened.inline.is_empty() {
            let inline = std::mem::take(&mut loading.opened.inline);
            let written = self.write_blocks(&blocks, &inline);
            let written = written.map_err(|error| NetFault::Other(error.to_string()));
            return self.loaded(origin, written, now_ms, out);
        }
        loading.blocks = blocks;
        self.begin_transfer(origin, now_ms, out);
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

    /// Allocates memory for a replica. Other replicas are evicted first, then other objects.
    /// `None`: memory will become free.
    fn room_for_replica(
        &mut self,
        head: &SpillHead,
        namespace: NamespaceId,
    ) -> Result<Option<Vec<Span>>, WireError> {
        let bytes = self.check_size(Home::replica_bytes(head))?;
        if let Some(max) = self.replicas.bytes_max {
            self.keep_replicas_below(max, bytes)?;
        }
        let room = CopyRoom { bytes, may_evict: true };
        self.begin_with_room(head, room, |home| home.begin_replica(head, namespace))
    }

    /// Begins a copy of an object. `None`: memory will become free.
    pub(super) fn begin_with_room(
        &mut self,
        head: &SpillHead,
        room: CopyRoom,
        begin: impl Fn(&mut Home) -> Result<Vec<Span>, StoreError>,
    ) -> Result<Option<Vec<Span>>, WireError> {
        let begun = self.residency.begin_copy(&mut self.home, &self.replicas, room, begin);
        begun.map_err(|error| match error {
            StoreError::OutOfMemory { .. } => self.out_of_room(head, 0),
            error => store_error(error),
        })
    }

    /// The size of a copy, unless no region of this node's size has room for it.
    pub(super) fn check_size(&self, bytes: Option<Length>) -> Result<Length, WireError> {
        let bytes = bytes.unwrap_or(Length(u64::MAX));
        let capacity = self.home.capacity();
        if bytes > capacity {
            return Err(WireError::TooLarge(TooLarge { asked: bytes.0, capacity: capacity.0 }));
        }
        Ok(bytes)
    }

    fn out_of_room(&self, head: &SpillHead, waited_ms: u64) -> WireError {
        let (free, largest) = self.home.free_bytes();
        let asked = Home::replica_bytes(head).unwrap_or(Length(u64::MAX)).0;
        WireError::OutOfMemory(OutOfMemory {
            asked,
            free: free.0,
            largest: largest.0,
            waiting: 0,
            waited_ms,
        })
    }

    /// Evicts replicas until one more fits into their limit.
    pub(in crate::protocol) fn keep_replicas_below(
        &mut self,
        max: u64,
        bytes: Length,
    ) -> Result<(), WireError> {
        let excess_of = |used: u64| used.saturating_add(bytes.0).saturating_sub(max);
        let mut used = self.replicas.used_bytes();
        // A look at all of them is long: only if some were evicted for other objects.
        if excess_of(used) > 0 && self.replicas.made.len() != self.home.replica_count() {
            self.sweep_replicas();
            used = self.replicas.used_bytes();
        }
        let excess = excess_of(used);
        if excess == 0 {
            return Ok(());
        }
        let mut evicted_ids = Vec::new();
        let evicted =
            self.home.evict_bytes(&ReplicasFirst, Length(excess), &mut |id| evicted_ids.push(id));
        self.replicas.forget_evicted(evicted_ids);
        let evicted = evicted.map_err(store_error)?;
        if evicted.bytes.0 >= excess {
            return Ok(());
        }
        Err(WireError::NoRoom(NoRoom {
            what: "copies of other nodes' objects (--cache)".to_owned(),
            asked: bytes.0,
            free: max.saturating_sub(used.saturating_sub(evicted.bytes.0)),
            largest: max,
            used: used.saturating_sub(evicted.bytes.0),
            waiting: 0,
            waited_ms: 0,
        }))
    }

    /// Forgets evicted replicas.
    fn sweep_replicas(&mut self) {
        let is_evicted = |local: &ObjectId| self.home.find(Target::Id(*local)).is_err();
        let locals = self.replicas.made.iter().map(|(_, replica)| replica.local);
        let evicted = locals.filter(is_evicted).collect();
        self.replicas.forget_evicted(evicted);
    }

    /// Forgets evicted replicas once they may be half of the remembered ones.
    fn sweep_replicas_sometimes(&mut self) {
        if self.replicas.made.len() >= self.replicas.sweep_at {
            self.sweep_replicas();
            self.replicas.sweep_at = REMEMBERED_MIN.max(2 * self.replicas.made.len());
        }
    }

    pub(super) fn abort_replica(&mut self, origin: ObjectId) {
        if let Err(error) = self.home.abort_replica(origin) {
            tracing::error!(%origin, %error, "memory is lost");
        }
    }

    /// Handles the end of a transfer into the blocks of an object.
    pub(super) fn loaded(
        &mut self,
        origin: ObjectId,
        result: Result<(), NetFault>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        if !self.replicas.loading.contains_key(&origin) {
            return self.abort_replica(origin);
        }
        if self.another_sender(origin, result.is_err(), out) {
            return;
        }
        let Some(loading) = self.replicas.loading.get(&origin) else { return };
        let is_import = loading.import.is_some();
        // Without a lease the home may have forgotten this node already.
        let has_lease = self.are_replicas_current(now_ms);
        if loading.is_invalidated || (!has_lease && !is_import && result.is_ok()) {
            self.abort_replica(origin);
            return self.open_again(origin, now_ms, out);
        }
        if !is_import && matches!(result, Err(NetFault::Lost(_))) && now_ms < loading.lost_ms {
            self.abort_replica(origin);
            return self.open_after_loss(origin, now_ms, out);
        }
        if let Err(fault) = result {
            let error = self.cluster.unreachable_by_net(&loading.node)(
                fault,
                &Target::Id(origin).to_string(),
            );
            self.abort_replica(origin);
            return self.end_load(origin, Err(error), now_ms, out);
        }
        if is_import {
            return self.finish_import(origin, now_ms, out);
        }
        let bytes = Home::replica_bytes(&loading.head).unwrap_or_default().0;
        let node = loading.node.clone();
        let (part, part_of) = (loading.part.clone(), loading.part_of.clone());
        match self.seal_replica(origin) {
            Ok(local) => {
                let replica = Replica { local, node, bytes };
                if let (Some(full), Some(part)) = (part_of, &part) {
                    let key =
                        FetchKey { wish: NetQuery::Name(full), extent: Extent::Part(part.clone()) };
                    self.replicas.named_parts.insert(key, origin);
                }
                self.replicas.made.insert((origin, part), replica);
                self.sweep_replicas_sometimes();
                self.replicas.fetched_total += 1;
                self.replicas.fetched_bytes_total += bytes;
                self.serve_to_others(origin, local, out);
                self.end_load(origin, Ok(local), now_ms, out);
            }
            Err(error) => self.end_load(origin, Err(store_error(error)), now_ms, out),
        }
        self.reclaim.soon(&self.home, now_ms);
    }

    /// Fetches again after the home was lost or recalled the object during the fetch. The home may
    /// still have it, or another node may have one of its name.
    pub(super) fn open_again(&mut self, origin: ObjectId, now_ms: u64, out: &mut Vec<Action>) {
        let Some(loading) = self.replicas.loading.remove(&origin) else { return };
        let Fetching { node, hold, mut waiters, later, import, is_recalled, .. } = loading;
        self.cluster.find_by_net_again(&node, now_ms);
        release(out, node.as_str(), hold);
        if import.is_some() {
            let what = Target::Id(origin).to_string();
            let error = if is_recalled {
                let what = format!("{what}, which was deleted before all of its bytes arrived");
                WireError::NotFound { what }
            } else {
                let reason = format!("it ended before all bytes of object {what} arrived");
                WireError::NodeLost { node, reason }
            };
            answer_all(waiters, &Err(error), out);
            return self.fetch_again(later, now_ms, out);
        }
        waiters.extend(later);
        self.fetch_again(waiters, now_ms, out);
    }

    /// Fetches again after the connection was lost. However often that happens, it ends when the first
    /// loss would have been an error.
    fn open_after_loss(&mut self, origin: ObjectId, now_ms: u64, out: &mut Vec<Action>) {
        let Some(loading) = self.replicas.loading.remove(&origin) else { return };
        let Fetching { node, hold, mut waiters, later, lost_ms, .. } = loading;
        self.cluster.find_by_net_again(&node, now_ms);
        release(out, node.as_str(), hold);
        waiters.extend(later);
        self.fetch_after_loss(waiters, &LostFetch { node, until_ms: lost_ms }, now_ms);
    }

    fn seal_replica(&mut self, origin: ObjectId) -> Result<ObjectId, StoreError> {
        let missing = || StoreError::NotFound { what: Target::Id(origin).to_string() };
        let loading = self.replicas.loading.get(&origin).ok_or_else(missing)?;
        let mut name = loading.name.as_deref();
        if let Some(full) = name
            && let Ok(entry) = self.home.find(Target::Name(full))
        {
            if entry.is_replica {
                // A replica of an earlier object of this name, whose invalidation is under way.
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
            importer: None,
        };
        let now_ns = self.home.now_ns();
        self.home.finish_replica(origin, &seal, now_ns)
    }

    /// Ends a fetch: answers its clients and releases the home's hold.
    pub(in crate::protocol) fn end_load(
        &mut self,
        origin: ObjectId,
        result: Result<ObjectId, WireError>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(loading) = self.replicas.loading.remove(&origin) else { return };
        let Fetching { node, hold, waiters, later, part, import, sender, .. } = loading;
        // The answer of the home to the notice about the replica releases it otherwise.
        if sender != FetchSender::Done {
            release(out, node, hold);
        }
        let importer = import.and_then(|import| self.clients.session(import.session));
        if let (Some(importer), Ok(id)) = (importer, &result) {
            self.replicas.imported.insert(origin, importer.peer, *id);
        }
        let local =
            |id| if part.is_some() { LocalReplica::Part(id) } else { LocalReplica::Whole(id) };
        answer_all(waiters, &result.map(|id| fetched(Some(local(id)))), out);
        self.fetch_again(later, now_ms, out);
    }
}

fn loading_deadline(replicas: &Replicas, origin: ObjectId) -> u64 {
    replicas.loading.get(&origin).map_or(0, |one| one.deadline_ms)
}
