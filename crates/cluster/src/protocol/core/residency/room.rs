//! Memory for requests: what is free, then what can be freed or evicted.

use farrow_memory::{Length, Span};
use farrow_store::{
    ClientSlot, Evicted, EvictionCandidate, Home, Need, ReplicasFirst, Room, StoreError, Within,
};
use farrow_wire::{EvictedReport, ReplyBody};

use super::Residency;
use super::order::{RemoteReplicas, Replicated, WithoutReplicated};
use crate::protocol::context::Asker;
use crate::protocol::core::reclaim::reclaim_for;

/// Objects are evicted for memory in advance of need up to this part of the region; beyond it only
/// for the least that the client needs.
const AHEAD_PART: u64 = 16;

/// Limit of objects that are evicted in advance of need: no other client is answered meanwhile.
const VICTIMS_AHEAD_MAX: usize = 256;

/// Objects that are looked at for these victims: what lies scattered is not evicted in advance.
const CANDIDATES_AHEAD_MAX: usize = 4 * VICTIMS_AHEAD_MAX;

/// Part of the directory that is freed when it is full, and the limit of it.
const SLOTS_AHEAD_PART: u32 = 64;
const SLOTS_AHEAD_MAX: u32 = 64;

/// A search for memory.
#[derive(Debug, Clone, Copy)]
pub(in crate::protocol) struct RoomSearch<'a> {
    pub(in crate::protocol) slot: ClientSlot,
    pub(in crate::protocol) room: &'a Room,
    /// Most bytes of a single range.
    pub(in crate::protocol) want: Length,
    /// Whether objects may be evicted for it.
    pub(in crate::protocol) may_evict: bool,
    /// Whether deleted objects may be free by now that were held.
    pub(in crate::protocol) may_reclaim: bool,
}

/// The memory that a copy of an object of another node takes.
#[derive(Debug, Clone, Copy)]
pub(in crate::protocol) struct CopyRoom {
    pub(in crate::protocol) bytes: Length,
    /// Whether objects of this node may be evicted for it.
    pub(in crate::protocol) may_evict: bool,
}

impl Residency {
    /// Allocates memory for a client, once the slots and names for it are free too.
    ///
    /// Without room, deleted objects that no reader holds are freed first. If that is not enough
    /// and `may_evict` is set, replicas are evicted, then other objects by an automatic policy.
    /// With spilling, objects begin to leave for files instead, and there is no room yet. Nothing
    /// is evicted if all objects together would not be enough.
    pub(in crate::protocol) fn find_room(
        &mut self,
        home: &mut Home,
        elsewhere: &mut dyn RemoteReplicas,
        search: RoomSearch<'_>,
    ) -> Result<Vec<Span>, StoreError> {
        let RoomSearch { slot, room, want, may_evict, may_reclaim } = search;
        let mut checked = home.check_room(room);
        if checked.is_err() && may_reclaim && home.has_retiring() {
            reclaim_for(home, room);
            checked = home.check_room(room);
        }
        if checked.is_err() && may_evict && make_room_of_replicas(home, room)? {
            checked = home.check_room(room);
        }
        if checked.is_err() && may_evict {
            self.evict_or_spill(home, elsewhere, room, want)?;
            checked = home.check_room(room);
        }
        if checked.is_err()
            && may_evict
            && elsewhere.are_possible()
            && self.could_evict(home, room)?
        {
            elsewhere.want_room(Length(room.runs.iter().map(|run| run.0).sum()));
        }
        checked?;
        match room.runs.is_empty() {
            true => Ok(Vec::new()),
            false => home.grant_all(slot, &room.runs, want),
        }
    }

    /// Begins a copy of an object of another node. If there is no room, replicas are evicted first,
    /// then other objects, unless they must stay. `None`: memory will become free.
    pub(in crate::protocol) fn begin_copy(
        &mut self,
        home: &mut Home,
        elsewhere: &dyn RemoteReplicas,
        CopyRoom { bytes, may_evict }: CopyRoom,
        begin: impl Fn(&mut Home) -> Result<Vec<Span>, StoreError>,
    ) -> Result<Option<Vec<Span>>, StoreError> {
        let mut begun = begin(home);
        if matches!(begun, Err(StoreError::OutOfMemory { .. })) {
            // Each search looks at all objects, and what leaves memory may be enough.
            if self.is_making_room() {
                return Ok(None);
            }
            let room = Room::of_run(bytes);
            reclaim_for(home, &room);
            let is_made = make_room_of_replicas(home, &room)?;
            if !is_made && (may_evict || self.spills.is_on()) {
                self.evict_or_spill(home, elsewhere, &room, bytes)?;
            }
            begun = begin(home);
        }
        match begun {
            Err(StoreError::OutOfMemory { .. }) if self.is_making_room() => Ok(None),
            begun => begun.map(Some),
        }
    }

    fn evict_or_spill(
        &mut self,
        home: &mut Home,
        elsewhere: &dyn RemoteReplicas,
        room: &Room,
        want: Length,
    ) -> Result<(), StoreError> {
        if self.spills.is_on() {
            // A spilled object keeps its slot and its name.
            let entries = Room { runs: Vec::new(), ..room.clone() };
            return match home.has_room(&entries) {
                true => self.spill_for(home, room).map(drop),
                false => Ok(()),
            };
        }
        if !self.policy.is_automatic() {
            return Ok(());
        }
        let ahead = Length(home.capacity().0 / AHEAD_PART);
        if let [run] = room.runs[..]
            && want > run
            && want <= ahead
        {
            self.make_room_ahead(home, elsewhere, room, want)?;
        }
        // Evicts nothing more if there is room now.
        self.make_room(home, elsewhere, room)
    }

    /// Whether this many bytes in whole pages are free, or would be without the objects that may
    /// leave.
    pub(in crate::protocol) fn could_free_pages(
        &self,
        home: &mut Home,
        bytes: Length,
    ) -> Result<bool, StoreError> {
        home.reclaim_until(|home| home.free_page_bytes() >= bytes)?;
        let policy = if self.may_leave() { self.policy.as_ref() } else { &ReplicasFirst };
        Ok(home.victims_for_pages(policy, bytes)?.is_some())
    }

    /// Frees this many bytes in whole pages, now or soon: replicas leave first, then others by the
    /// policy. None leaves if all together would not be enough.
    pub(in crate::protocol) fn free_pages(
        &mut self,
        home: &mut Home,
        elsewhere: &mut dyn RemoteReplicas,
        bytes: Length,
    ) -> Result<(), StoreError> {
        home.reclaim_until(|home| home.free_page_bytes() >= bytes)?;
        home.evict_for_pages(&ReplicasFirst, bytes)?;
        if home.free_page_bytes() >= bytes {
            return Ok(());
        }
        if self.spills.is_on() {
            return self.spill_for_pages(home, bytes);
        }
        if !self.policy.is_automatic() {
            return Ok(());
        }
        let policy = WithoutReplicated { policy: self.policy.as_ref(), elsewhere };
        let evicted = home.evict_for_pages(&policy, bytes)?;
        self.note_evicted(evicted);
        if home.free_page_bytes() < bytes
            && elsewhere.are_possible()
            && self.could_free_pages(home, bytes)?
        {
            elsewhere.want_room(bytes);
        }
        Ok(())
    }

    /// Makes room for an entry of the directory and its full name, and for more than one. Returns
    /// whether there is room.
    pub(in crate::protocol) fn find_entry(
        &mut self,
        home: &mut Home,
        elsewhere: &dyn RemoteReplicas,
        name: Option<&str>,
    ) -> Result<bool, StoreError> {
        let names = |count: u32| {
            let bytes = name.map(|name| Length(name.len() as u64));
            bytes.into_iter().flat_map(|bytes| vec![bytes; count as usize]).collect()
        };
        let one = Room { slots: 1, names: names(1), ..Room::default() };
        home.reclaim_until(|home| home.has_room(&one))?;
        if home.has_room(&one) {
            return Ok(true);
        }
        if self.evicting_policy().is_none() {
            return Ok(false);
        }
        let slots = (home.layout().objects_max / SLOTS_AHEAD_PART).clamp(1, SLOTS_AHEAD_MAX);
        let ahead = Room { slots, names: names(slots), ..Room::default() };
        let policy = WithoutReplicated { policy: self.policy.as_ref(), elsewhere };
        if let Some(victims) = home.victims_ahead(&policy, &ahead, CANDIDATES_AHEAD_MAX)? {
            let evicted = home.evict_victims(&policy, victims)?;
            self.note_evicted(evicted);
        }
        self.make_room(home, elsewhere, &one)?;
        Ok(home.has_room(&one))
    }

    /// Evicts at least `bytes`, as far as possible, in the client's namespace alone: a client may
    /// not evict what it may not delete. `None`: the objects are being spilled and the answer
    /// follows later.
    pub(in crate::protocol) fn evict(
        &mut self,
        home: &mut Home,
        elsewhere: &dyn RemoteReplicas,
        asker: Asker,
        bytes: u64,
    ) -> Result<Option<ReplyBody>, StoreError> {
        let namespace = home.namespace_of(asker.slot)?.id;
        if self.spills.is_on() {
            return self.spill_by_hand(home, asker, namespace, bytes).map(|()| None);
        }
        let policy = WithoutReplicated { policy: self.policy.as_ref(), elsewhere };
        let within = Within { policy: &policy, namespace };
        let evicted = home.evict_for(&within, Need::Bytes(Length(bytes)))?;
        self.note_evicted(evicted);
        evicted_report(home, evicted).map(Some)
    }

    /// Objects that could be evicted, the first ones first, were there no replicas of them on other
    /// nodes.
    pub(in crate::protocol) fn held_by_replicas(
        &self,
        home: &Home,
        elsewhere: &dyn RemoteReplicas,
    ) -> Result<Vec<EvictionCandidate>, StoreError> {
        match self.evicting_policy() {
            Some(policy) => home.candidates(&Replicated(WithoutReplicated { policy, elsewhere })),
            None => Ok(Vec::new()),
        }
    }

    /// Whether evictions would make room, were there no replicas on other nodes.
    fn could_evict(&self, home: &mut Home, room: &Room) -> Result<bool, StoreError> {
        match self.evicting_policy() {
            Some(policy) => Ok(home.victims_for(policy, room)?.is_some()),
            None => Ok(false),
        }
    }

    /// The policy, if objects are evicted without a request for it.
    fn evicting_policy(&self) -> Option<&dyn farrow_store::EvictionPolicy> {
        let is_evicting = !self.spills.is_on() && self.policy.is_automatic();
        is_evicting.then_some(self.policy.as_ref())
    }

    /// Makes room for `want` bytes instead of the single range of `room`, or for fewer if more
    /// objects than the limit would leave for them.
    fn make_room_ahead(
        &mut self,
        home: &mut Home,
        elsewhere: &dyn RemoteReplicas,
        room: &Room,
        mut want: Length,
    ) -> Result<(), StoreError> {
        let policy = WithoutReplicated { policy: self.policy.as_ref(), elsewhere };
        let page = home.layout().page.0;
        // A guess that spares most of a simulation.
        let mean = home.object_bytes().0 / u64::from(home.objects().max(1));
        let guess = mean.saturating_mul(VICTIMS_AHEAD_MAX as u64).max(page);
        want = Length(want.0.min(guess / page * page));
        while room.runs.iter().all(|run| want > *run) {
            let ahead = Room { runs: vec![want], ..room.clone() };
            let victims = home.victims_ahead(&policy, &ahead, CANDIDATES_AHEAD_MAX)?;
            let Some(victims) = victims else {
                return Ok(());
            };
            if victims.len() <= VICTIMS_AHEAD_MAX {
                let evicted = home.evict_victims(&policy, victims)?;
                self.note_evicted(evicted);
                return Ok(());
            }
            // At most half: the loop ends soon.
            let fewer = want.0 / victims.len() as u64 * VICTIMS_AHEAD_MAX as u64;
            want = Length(fewer.min(want.0 / 2) / page * page);
        }
        Ok(())
    }

    fn make_room(
        &mut self,
        home: &mut Home,
        elsewhere: &dyn RemoteReplicas,
        room: &Room,
    ) -> Result<(), StoreError> {
        let policy = WithoutReplicated { policy: self.policy.as_ref(), elsewhere };
        let evicted = home.make_room(&policy, room)?;
        self.note_evicted(evicted);
        Ok(())
    }
}

/// Makes room of replicas alone: they can be fetched again, so they are evicted before other objects.
/// False: none was evicted.
pub(super) fn make_room_of_replicas(home: &mut Home, room: &Room) -> Result<bool, StoreError> {
    home.make_room(&ReplicasFirst, room).map(|evicted| evicted.objects > 0)
}

pub(super) fn evicted_report(home: &Home, evicted: Evicted) -> Result<ReplyBody, StoreError> {
    let stats = home.stats()?;
    Ok(ReplyBody::Evicted(EvictedReport {
        objects: evicted.objects.into(),
        bytes: evicted.bytes.0,
        held: stats.held.0,
        pinned: stats.pinned.0,
        granted: stats.granted.0,
        retiring: stats.retiring.0,
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use farrow_memory::shm::ShmFabric;
    use farrow_memory::{Access, Offset, Region};
    use farrow_store::{Layout, Lru, ObjectId, RECLAIMED_MAX, RegionOptions, SealRequest, Target};

    use super::*;

    const CAPACITY: u64 = 256 << 10;
    const OBJECT_BYTES: u64 = 64 << 10;

    /// Objects of which other nodes have replicas, and the room that was wanted.
    #[derive(Debug, Default)]
    struct ListedReplicas {
        of: Vec<ObjectId>,
        wanted: u64,
    }

    impl RemoteReplicas for ListedReplicas {
        fn is_elsewhere(&self, id: ObjectId) -> bool {
            self.of.contains(&id)
        }

        fn are_possible(&self) -> bool {
            !self.of.is_empty()
        }

        fn is_recalling(&self) -> bool {
            self.wanted > 0
        }

        fn want_room(&mut self, bytes: Length) {
            self.wanted = bytes.0;
        }
    }

    /// A store full of objects, in order of their seals.
    fn full() -> (Home, ClientSlot, Vec<ObjectId>) {
        full_of(CAPACITY, OBJECT_BYTES)
    }

    fn full_of(capacity: u64, object: u64) -> (Home, ClientSlot, Vec<ObjectId>) {
        let mut options = RegionOptions::for_capacity(Length(capacity));
        options.objects_max = options.objects_max.max((capacity / object) as u32);
        let geometry = Layout::new(&options).unwrap().geometry;
        let fabric = Arc::new(ShmFabric::memfd("residency-test", geometry).unwrap());
        let region = Region::map(fabric, Access::Home, None).unwrap();
        let mut home = Home::create(Arc::new(region), &options, 0).unwrap();
        let slot = home.client_join(1, 1, 0).unwrap().client;
        let mut ids = Vec::new();
        let whole = object.max(home.layout().page.0);
        while let Ok(spans) = home.grant_all(slot, &[Length(whole)], Length(whole)) {
            for at in (0..whole).step_by(object as usize) {
                let block = Span::new(Offset(spans[0].offset.0 + at), Length(object));
                let request = SealRequest::bytes(block, Length(object), None);
                ids.push(home.seal(slot, &request, ids.len() as u64).unwrap());
            }
        }
        assert!(ids.len() >= 3, "{ids:?}");
        (home, slot, ids)
    }

    fn search(room: &Room, slot: ClientSlot, may_evict: bool) -> RoomSearch<'_> {
        let (want, may_reclaim) = (Length(OBJECT_BYTES), true);
        RoomSearch { slot, room, want, may_evict, may_reclaim }
    }

    #[test]
    fn only_an_automatic_policy_evicts_and_only_if_the_request_may() {
        let (mut home, slot, ids) = full();
        let (mut residency, mut replicas) = (Residency::default(), ListedReplicas::default());
        let room = Room::of_run(Length(OBJECT_BYTES));
        let by_hand = residency.find_room(&mut home, &mut replicas, search(&room, slot, true));
        assert!(matches!(by_hand, Err(StoreError::OutOfMemory { .. })), "{by_hand:?}");
        assert_eq!(replicas.wanted, 0);
        residency.set_policy(Box::new(Lru));
        let denied = residency.find_room(&mut home, &mut replicas, search(&room, slot, false));
        assert!(matches!(denied, Err(StoreError::OutOfMemory { .. })), "{denied:?}");
        residency.find_room(&mut home, &mut replicas, search(&room, slot, true)).unwrap();
        assert!(home.find(Target::Id(ids[0])).is_err() && home.find(Target::Id(ids[1])).is_ok());
        let totals = residency.totals();
        assert_eq!((totals.evicted, totals.evicted_bytes), (1, OBJECT_BYTES));
    }

    /// A full node with `--evict none` reported all of its objects as evictable: the alert for full
    /// memory did not fire.
    #[test]
    fn only_what_leaves_without_a_request_counts_as_evictable() {
        let (home, _, ids) = full();
        let mut residency = Residency::default();
        let stats = home.stats().unwrap();
        assert_eq!(residency.evictable(&stats), Length(0));
        residency.set_policy(Box::new(Lru));
        assert_eq!(residency.evictable(&stats), Length(ids.len() as u64 * OBJECT_BYTES));
    }

    /// One client that wants memory ahead of need does not keep the node from the others.
    #[test]
    fn few_objects_leave_for_memory_that_is_not_needed_yet() {
        const SMALL: u64 = 256;
        let (mut home, slot, ids) = full_of(4 << 20, SMALL);
        assert!(ids.len() > 10 * VICTIMS_AHEAD_MAX, "{}", ids.len());
        let (mut residency, mut replicas) = (Residency::default(), ListedReplicas::default());
        residency.set_policy(Box::new(Lru));
        let room = Room::of_run(Length(4096));
        let want = Length(home.capacity().0 / AHEAD_PART);
        let search = RoomSearch { slot, room: &room, want, may_evict: true, may_reclaim: true };
        let spans = residency.find_room(&mut home, &mut replicas, search).unwrap();
        let evicted = residency.totals().evicted as usize;
        assert!((16..=VICTIMS_AHEAD_MAX).contains(&evicted), "{evicted}");
        assert!(spans[0].length > Length(4096) && spans[0].length < want, "{spans:?}");
        // What is needed is found, whatever it takes.
        let all = Room::of_run(Length(want.0));
        let search = RoomSearch { slot, room: &all, want, may_evict: true, may_reclaim: true };
        residency.find_room(&mut home, &mut replicas, search).unwrap();
        assert!(residency.totals().evicted as usize > evicted + VICTIMS_AHEAD_MAX);
    }

    /// A request on a full node freed all deleted objects that were held no more, at once: after
    /// the end of a client that held a hundred thousand, no other client was served meanwhile.
    #[test]
    fn a_request_frees_no_more_deleted_objects_than_it_needs() {
        const SMALL: u64 = 256;
        let (mut home, slot, ids) = full_of(4 << 20, SMALL);
        assert!(ids.len() > 3 * RECLAIMED_MAX, "{}", ids.len());
        let retiring = |home: &Home| home.stats().unwrap().objects_retiring as usize;
        for id in &ids {
            home.keep_for(slot, *id);
            assert!(!home.delete(Target::Id(*id)).unwrap().freed_now);
        }
        for id in &ids {
            home.confirm(slot, *id);
        }
        assert_eq!(retiring(&home), ids.len());
        let (mut residency, mut replicas) = (Residency::default(), ListedReplicas::default());
        let few = Room::of_run(Length(4096));
        residency.find_room(&mut home, &mut replicas, search(&few, slot, true)).unwrap();
        assert_eq!(retiring(&home), ids.len() - RECLAIMED_MAX);
        // A request that needs more frees more.
        let many = Room::of_run(Length(2 * RECLAIMED_MAX as u64 * SMALL));
        residency.find_room(&mut home, &mut replicas, search(&many, slot, true)).unwrap();
        assert!(retiring(&home) < ids.len() - 2 * RECLAIMED_MAX);
        let all = Room::of_run(Length(2 * (4 << 20)));
        let none = residency.find_room(&mut home, &mut replicas, search(&all, slot, true));
        assert!(matches!(none, Err(StoreError::OutOfMemory { .. })), "{none:?}");
        assert_eq!(retiring(&home), 0);
    }

    /// A request that no eviction can serve once waited for replicas that did not exist: eight
    /// seconds on every full node of a cluster.
    #[test]
    fn no_replica_is_recalled_where_that_would_make_no_room() {
        let (mut home, slot, ids) = full();
        let mut residency = Residency::default();
        residency.set_policy(Box::new(Lru));
        let mut replicas = ListedReplicas { of: ids, wanted: 0 };
        let room = Room::of_run(Length(2 * CAPACITY));
        let full = residency.find_room(&mut home, &mut replicas, search(&room, slot, true));
        assert!(matches!(full, Err(StoreError::OutOfMemory { .. })), "{full:?}");
        assert_eq!(replicas.wanted, 0);
    }

    /// While a reader on another node finds a replica, its object stays.
    #[test]
    fn objects_with_replicas_on_other_nodes_stay_and_are_recalled() {
        let (mut home, slot, ids) = full();
        let mut residency = Residency::default();
        residency.set_policy(Box::new(Lru));
        let mut replicas = ListedReplicas { of: ids.clone(), wanted: 0 };
        let room = Room::of_run(Length(OBJECT_BYTES));
        let full = residency.find_room(&mut home, &mut replicas, search(&room, slot, true));
        assert!(matches!(full, Err(StoreError::OutOfMemory { .. })), "{full:?}");
        assert_eq!((replicas.wanted, residency.totals().evicted), (OBJECT_BYTES, 0));
        let retained = residency.held_by_replicas(&home, &replicas).unwrap();
        assert_eq!(retained.iter().map(|one| one.id).collect::<Vec<_>>(), ids);
        // The second object has none any more.
        replicas.of.remove(1);
        residency.find_room(&mut home, &mut replicas, search(&room, slot, true)).unwrap();
        assert!(home.find(Target::Id(ids[0])).is_ok() && home.find(Target::Id(ids[1])).is_err());
    }
}
