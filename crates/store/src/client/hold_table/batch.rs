//! Batches of plain-byte objects, held together: the fixed cost of a claim (locks, the fence, a
//! copy of the entry) is paid once for several objects.

use std::collections::hash_map;
use std::sync::Arc;

use farrow_memory::sync::{AtomicU64, Ordering};
use farrow_memory::{Length, Span, fork};

use super::{
    ClaimWords, HoldClaim, HoldPool, HoldSlot, HoldTable, Shard, claim_on, lock, shard_of,
};
use crate::client::reader::Reader;
use crate::error::StoreError;
use crate::format::entry::{Entry, Sequence};
use crate::format::ids::{ObjectId, ObjectKind, RegionUid, Slot, Target};
use crate::hazard::{self, ClaimRequest};

/// Objects claimed while all locks are held: enough that the 17 locks are a small part of the work,
/// and few enough that other threads of the client wait only some microseconds.
const AT_ONCE: usize = 64;

/// An item of [`HeldBytes`] that is not held: no generation is 0.
const NOT_HELD: u64 = 0;

/// An object to claim, and whether it is claimed.
#[derive(Debug)]
struct BatchClaim {
    /// Index of the target.
    index: usize,
    slot: Slot,
    /// The word of the object's life.
    sequence: Sequence,
    /// The word of its entry, and its primary block: both are for the refresh.
    sealed: Sequence,
    primary: Span,
    is_held: bool,
}

/// One target of a batch.
#[derive(Debug)]
struct BatchTarget {
    /// Low half of the object's id while it is held.
    held: AtomicU64,
    /// The object's bytes.
    payload: Span,
}

/// Held objects of plain bytes. Each is held until it is released, or until this is dropped.
#[derive(Debug)]
pub struct HeldBytes {
    table: Arc<HoldTable>,
    region: RegionUid,
    items: Vec<BatchTarget>,
}

impl HeldBytes {
    /// The object of target `index` and the span of its bytes, if it is held here.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<(ObjectId, Span)> {
        let item = self.items.get(index)?;
        let lo = item.held.load(Ordering::Acquire);
        (lo != NOT_HELD).then_some((ObjectId { hi: self.region.0, lo }, item.payload))
    }

    /// Release the object of target `index` and return its id. None: it was not held, or was
    /// already released.
    pub fn let_go(&self, index: usize) -> Option<ObjectId> {
        let lo = self.items.get(index)?.held.swap(NOT_HELD, Ordering::AcqRel);
        if lo == NOT_HELD {
            return None;
        }
        let id = ObjectId { hi: self.region.0, lo };
        self.table.release(id.slot());
        Some(id)
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        for index in 0..self.items.len() {
            let _ = self.let_go(index);
        }
    }
}

impl Reader {
    /// Find many objects and hold those that are plain bytes of at most `bytes_max`. Other objects,
    /// and those that are absent or are deleted at this moment, are left to [`Reader::hold`].
    ///
    /// When the slots for claims run out, `more` receives the number of slots. It adds a block to
    /// the table and returns true, or returns false to leave the remaining targets.
    ///
    /// # Errors
    /// As [`Reader::lookup`]. Nothing is held then.
    pub fn hold_bytes(
        &self,
        table: &Arc<HoldTable>,
        targets: &[Target<'_>],
        bytes_max: Length,
        mut more: impl FnMut(u64) -> bool,
    ) -> Result<HeldBytes, StoreError> {
        let nothing = || BatchTarget { held: AtomicU64::new(NOT_HELD), payload: Span::default() };
        let items = targets.iter().map(|_| nothing()).collect();
        let mut held = HeldBytes { table: Arc::clone(table), region: self.uid(), items };
        let mut wanted = Vec::with_capacity(AT_ONCE.min(targets.len()));
        for (number, some) in targets.chunks(AT_ONCE).enumerate() {
            self.look_for_many(some, |place, entry| {
                if !is_plain(entry, bytes_max) {
                    return;
                }
                let (index, slot) = (number * AT_ONCE + place, entry.id.slot());
                let (sequence, sealed) = (table.expected(entry), entry.sequence());
                let primary = entry.primary;
                wanted.push(BatchClaim { index, slot, sequence, sealed, primary, is_held: false });
                if let Some(item) = held.items.get_mut(index) {
                    item.payload = entry.payload();
                }
            })?;
            let has_room = held.claim(&mut wanted, &mut more)?;
            self.refresh_payloads(&wanted)?;
            wanted.clear();
            if !has_room {
                break;
            }
        }
        Ok(held)
    }

    /// As [`Reader::refresh_payload`], for the objects just held.
    fn refresh_payloads(&self, all: &[BatchClaim]) -> Result<(), StoreError> {
        if !self.region().is_node_local() {
            return Ok(());
        }
        let is_new = |one: &&BatchClaim| one.is_held && !self.has_refreshed(one.slot, one.sealed);
        let new: Vec<&BatchClaim> = all.iter().filter(is_new).collect();
        if new.is_empty() {
            return Ok(());
        }
        let blocks: Vec<Span> = new.iter().map(|one| one.primary).collect();
        self.region().refresh_all(&blocks)?;
        new.iter().for_each(|one| self.note_refreshed(one.slot, one.sealed));
        Ok(())
    }
}

fn is_plain(entry: &Entry, bytes_max: Length) -> bool {
    entry.kind == ObjectKind::Bytes
        && !entry.is_replica
        && entry.primary.length <= bytes_max
        && entry.primary.contains(entry.payload())
}

impl HeldBytes {
    /// Claims the wanted objects and records those that are held. False: no more slots are
    /// available.
    fn claim(
        &mut self,
        wanted: &mut [BatchClaim],
        more: &mut impl FnMut(u64) -> bool,
    ) -> Result<bool, StoreError> {
        let mut done = 0;
        let mut result = Ok(true);
        while let Some(rest) = wanted.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.table.hold_many(rest) {
                Ok(count) => done += count,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
            if done < wanted.len() && !more(self.table.slots()) {
                result = Ok(false);
                break;
            }
        }
        for one in wanted.iter().filter(|one| one.is_held) {
            let id = ObjectId::new(self.region, one.sequence.generation(), one.slot);
            if let Some(item) = self.items.get(one.index) {
                item.held.store(id.lo, Ordering::Release);
            }
        }
        result
    }
}

impl HoldTable {
    /// Slots of all blocks: the objects that can be held at a time.
    #[must_use]
    pub fn slots(&self) -> u64 {
        lock(&self.pool).blocks.len() as u64 * self.layout.hold_slots()
    }

    /// Claims all wanted objects in the reader's steps: all claims, one fence, all second loads.
    /// Returns how many were processed before slots ran out. An object that is no longer there is
    /// not held.
    fn hold_many(&self, wanted: &mut [BatchClaim]) -> Result<usize, StoreError> {
        if !self.is_usable() {
            return Ok(wanted.len());
        }
        let since = fork::completed_forks();
        // In the order in which every thread locks them. No other thread uses a claim before its
        // second load.
        let mut shards = self.shards.each_ref().map(lock);
        let mut pool = lock(&self.pool);
        let mut fresh = Vec::with_capacity(wanted.len());
        let mut done = 0;
        for (at, one) in wanted.iter_mut().enumerate() {
            let shard = &mut shards[shard_of(one.slot)];
            if let Some(claim) = shard.claims.get_mut(&one.slot.0) {
                one.is_held = claim.sequence == one.sequence;
                claim.count += u64::from(one.is_held);
            } else {
                let place = match shard.spare.pop() {
                    Some(place) => Some(place),
                    None => pool.take()?,
                };
                let spare_elsewhere = || shards.iter_mut().find_map(|shard| shard.spare.pop());
                let Some(place) = place.or_else(spare_elsewhere) else { break };
                fresh.push(Fresh { at, slot: one.slot, sequence: one.sequence, place });
            }
            done = at + 1;
        }
        let mut wishes: Vec<ClaimRequest<ClaimWords<'_>>> =
            fresh.iter().map(|fresh| fresh.wish(self)).collect();
        let looked = hazard::claim_many(&mut wishes);
        let are_there: Vec<bool> = wishes.iter().map(|wish| wish.is_there).collect();
        for (fresh, is_there) in fresh.into_iter().zip(are_there) {
            let (at, shard) = (fresh.at, &mut *shards[shard_of(fresh.slot)]);
            // A slot that cannot be cleared is not used again.
            if looked.is_err() && fresh.place.store(0).is_err() {
                continue;
            }
            let is_held = fresh.settle(shard, &mut pool, since, is_there && looked.is_ok());
            if let Some(one) = wanted.get_mut(at) {
                one.is_held = is_held;
            }
        }
        looked.map(|()| done)
    }
}

/// A claim of a batch, before it is recorded in its shard.
struct Fresh {
    at: usize,
    slot: Slot,
    sequence: Sequence,
    place: HoldSlot,
}

impl Fresh {
    fn wish<'a>(&'a self, table: &'a HoldTable) -> ClaimRequest<ClaimWords<'a>> {
        let reader = ClaimWords { table, place: &self.place, slot: self.slot };
        ClaimRequest {
            reader,
            claim: claim_on(self.slot),
            expected: self.sequence.0,
            is_there: false,
        }
    }

    /// Record the claim in its shard, or give its slot back. Returns whether it holds.
    fn settle(self, shard: &mut Shard, pool: &mut HoldPool, since: u64, is_there: bool) -> bool {
        let Self { slot, sequence, place, .. } = self;
        if is_there {
            match shard.claims.entry(slot.0) {
                hash_map::Entry::Vacant(free) => {
                    free.insert(HoldClaim::new(sequence, since, place));
                    return true;
                }
                // The object is in the batch twice: one claim counts both.
                hash_map::Entry::Occupied(mut claim) => {
                    let is_same = claim.get().sequence == sequence;
                    claim.get_mut().count += u64::from(is_same);
                    if place.store(0).is_ok() {
                        shard.give_back(pool, place);
                    }
                    return is_same;
                }
            }
        }
        shard.give_back(pool, place);
        false
    }
}
