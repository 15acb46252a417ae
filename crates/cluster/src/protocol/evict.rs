//! Making room: pins, evictions, and the grants that need them.

use farrow_memory::{Length, Span};
use farrow_store::{
    ClientSlot, Evicted, EvictionPolicy, Need, ReplicasFirst, Room, StoreError, Within,
};
use farrow_wire::{BATCH_ITEMS_MAX, ReplyBody, WireError, WireTarget};

use super::context::Asker;
use super::convert::{limit, store_error, store_target};
use super::replicas::WithoutReplicated;
use super::state::NodeState;
use crate::protocol::core::reclaim::reclaim;

/// Objects are evicted for memory in advance of need up to this part of the region; beyond it only
/// for the least that the client needs.
const AHEAD_PART: u64 = 16;

/// Part of the directory that is freed when it is full.
const SLOTS_AHEAD_PART: u32 = 64;

/// Limit of names for which room is made at a time.
const NAMES_AHEAD_MAX: u32 = 64;

impl NodeState {
    /// Sets the eviction policy. Without this call objects are evicted by request only.
    pub fn set_eviction_policy(&mut self, policy: Box<dyn EvictionPolicy>) {
        self.eviction.policy = policy;
    }

    /// Allocates memory for a client, once the slots and names for it are free too.
    ///
    /// Without room, deleted objects that no reader holds are freed first. If that is not enough
    /// and `may_evict` is set, replicas are evicted, then other objects by an automatic policy.
    /// With spilling, objects begin to leave for files instead, and there is no room yet. Nothing
    /// is evicted if all objects together would not be enough.
    pub(super) fn find_room(
        &mut self,
        slot: ClientSlot,
        room: &Room,
        want: Length,
        may_evict: bool,
    ) -> Result<Vec<Span>, StoreError> {
        let mut checked = self.home.check_room(room);
        if checked.is_err() && self.home.has_retiring() {
            reclaim(&mut self.home);
            checked = self.home.check_room(room);
        }
        if checked.is_err() && may_evict {
            // Replicas can be fetched again, so they are evicted first.
            self.home.make_room(&ReplicasFirst, room)?;
            checked = self.home.check_room(room);
        }
        if checked.is_err() && may_evict {
            self.have_others_go(room, want)?;
            checked = self.home.check_room(room);
        }
        if checked.is_err() && may_evict {
            self.replicas.want_room(Length(room.runs.iter().map(|run| run.0).sum()));
        }
        checked?;
        match room.runs.is_empty() {
            true => Ok(Vec::new()),
            false => self.home.grant_all(slot, &room.runs, want),
        }
    }

    /// Whether memory will become free without further requests: objects are being spilled, or
    /// other nodes drop replicas that prevent evictions.
    pub(super) fn is_making_room(&self) -> bool {
        self.spills.is_making_room() || self.replicas.is_recalling()
    }

    pub(super) fn have_others_go(&mut self, room: &Room, want: Length) -> Result<(), StoreError> {
        if self.spills.is_on() {
            // A spilled object keeps its slot and its name.
            let entries = Room { runs: Vec::new(), ..room.clone() };
            return match self.home.has_room(&entries) {
                true => self.spill_for(room),
                false => Ok(()),
            };
        }
        if !self.eviction.policy.is_automatic() {
            return Ok(());
        }
        let ahead = Length(self.home.layout().heap.length.0 / AHEAD_PART);
        if let [run] = room.runs[..]
            && want > run
            && want <= ahead
        {
            self.make_room(&Room { runs: vec![want], ..room.clone() })?;
        }
        // Evicts nothing more if there is room now.
        self.make_room(room)
    }

    /// Makes room for an entry of the directory and its full name, and for more than one, since the
    /// choice scans all objects. Returns whether there is room.
    pub(super) fn find_entry(&mut self, name: Option<&str>) -> Result<bool, StoreError> {
        let names = |count: u32| {
            let bytes = name.map(|name| Length(name.len() as u64));
            bytes.into_iter().flat_map(|bytes| vec![bytes; count as usize]).collect()
        };
        let one = Room { slots: 1, names: names(1), ..Room::default() };
        self.home.reclaim()?;
        if self.home.has_room(&one) {
            return Ok(true);
        }
        if self.spills.is_on() || !self.eviction.policy.is_automatic() {
            return Ok(false);
        }
        let slots = (self.home.layout().objects_max / SLOTS_AHEAD_PART).max(1);
        let names = names(slots.min(NAMES_AHEAD_MAX));
        self.make_room(&Room { slots, names, ..Room::default() })?;
        self.make_room(&one)?;
        Ok(self.home.has_room(&one))
    }

    /// Evicts at least `bytes`, as far as possible, in the client's namespace alone: a client may
    /// not evict what it may not delete. `None`: the objects are being spilled and the answer
    /// follows later.
    pub(super) fn evict(
        &mut self,
        Asker { session, seq, slot }: Asker,
        bytes: u64,
    ) -> Result<Option<ReplyBody>, StoreError> {
        self.home.reclaim()?;
        let namespace = self.home.namespace_of(slot)?.id;
        if self.spills.is_on() {
            return self.spill_by_hand(session, seq, namespace, bytes).map(|()| None);
        }
        let policy = WithoutReplicated::new(self.eviction.policy.as_ref(), &self.replicas);
        let within = Within { policy: &policy, namespace };
        let evicted = self.home.evict_for(&within, Need::Bytes(Length(bytes)))?;
        self.note_evicted(evicted);
        self.evicted_report(evicted).map(Some)
    }

    fn make_room(&mut self, room: &Room) -> Result<(), StoreError> {
        let policy = WithoutReplicated::new(self.eviction.policy.as_ref(), &self.replicas);
        let evicted = self.home.make_room(&policy, room)?;
        self.note_evicted(evicted);
        Ok(())
    }

    fn note_evicted(&mut self, evicted: Evicted) {
        self.eviction.objects += u64::from(evicted.objects);
        self.eviction.bytes += evicted.bytes.0;
        if evicted.objects > 0 {
            tracing::debug!(objects = evicted.objects, bytes = evicted.bytes.0, "evicted");
        }
    }

    pub(super) fn pin(
        &mut self,
        slot: ClientSlot,
        targets: &[WireTarget],
        is_pinned: bool,
    ) -> Result<ReplyBody, WireError> {
        limit("objects in one message", targets.len(), BATCH_ITEMS_MAX)?;
        let pin = |target| {
            let target = self.target_to_change(slot, target)?;
            self.home.pin(store_target(&target), is_pinned).map(drop).map_err(store_error)
        };
        let pinned = targets.iter().map(pin);
        Ok(ReplyBody::Pinned(pinned.collect()))
    }
}
