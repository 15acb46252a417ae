//! Delete: an object cannot be found from then on; its memory is freed once it has no hold.

use farrow_memory::Length;

use crate::alloc::blocks::{BlockRole, NoBlock};
use crate::alloc::space::Run;
use crate::error::StoreError;
use crate::events::EventKind;
use crate::failpoint;
use crate::format::entry::{Entry, EntryState};
use crate::format::hash::NameHash;
use crate::format::ids::{ObjectId, Slot, Target};
use crate::hazard::{self, Scan};
use crate::home::{Home, RECLAIMED_MAX};
use crate::tables::slot_set::SlotSet;

/// What [`Home::delete`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deleted {
    /// The object.
    pub id: ObjectId,
    /// Whether it was not held, so that its memory is free.
    pub freed_now: bool,
    /// Whether it was spilled: its file still exists.
    pub was_spilled: bool,
    /// Bytes of its blocks. A block that another object shares is freed with the last of them.
    pub bytes: Length,
}

/// Resources that became free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reclaimed {
    /// Retiring objects without a hold.
    pub objects: u32,
    /// Bytes of those objects.
    pub bytes: Length,
    /// Bytes that were granted and not sealed.
    pub granted: Length,
    /// Hold blocks of a removed client.
    pub hold_blocks: u32,
}

impl Home {
    /// Delete an object. It cannot be found from here on, and its name is free. Its memory is freed
    /// now if it is not held, otherwise by the first [`Home::reclaim`] after the release of its
    /// last hold.
    /// # Errors
    /// [`StoreError::NotFound`].
    pub fn delete(&mut self, target: Target<'_>) -> Result<Deleted, StoreError> {
        let mut results = self.delete_many([target])?;
        let missing = || StoreError::NotFound { what: target.to_string() };
        results.pop().unwrap_or_else(|| Err(missing()))
    }

    /// Delete several objects, with one scan of the holds for all of them.
    ///
    /// # Errors
    /// Memory that cannot be read. The error of a single object is in its own result.
    pub fn delete_many<'a>(
        &mut self,
        targets: impl IntoIterator<Item = Target<'a>>,
    ) -> Result<Vec<Result<Deleted, StoreError>>, StoreError> {
        // The home's half of the hazard-pointer protocol: retire, fence, scan the holds. A reader
        // claims, fences, checks the entry. At least one of the two sees the other.
        let mut results: Vec<_> = targets.into_iter().map(|one| self.withdraw(one)).collect();
        let withdrawn = results.iter().flatten().filter(|deleted| !deleted.freed_now);
        let unheld = self.unheld(&withdrawn.map(|deleted| deleted.id.slot().0).collect())?;
        failpoint!("delete.scanned");
        for deleted in results.iter_mut().flatten().filter(|deleted| !deleted.freed_now) {
            if unheld.contains(deleted.id.slot().0) {
                self.free_object(deleted.id.slot())?;
                deleted.freed_now = true;
            }
        }
        Ok(results)
    }

    /// Retire an object on a client's request. A spilled object is deleted at once.
    fn withdraw(&mut self, target: Target<'_>) -> Result<Deleted, StoreError> {
        if let Some(entry) = self.find_spilled(target)? {
            return self.delete_spilled(&entry);
        }
        let entry = match target {
            Target::Id(id) => match self.forwarded(id)? {
                id if self.layout().client_entry(id.slot()).is_some() => {
                    return self.retire_local(id);
                }
                id => self.find(Target::Id(id))?,
            },
            Target::Name(_) => self.find(target)?,
        };
        let bytes = self.retire(&entry, EventKind::Deleted)?;
        Ok(Deleted { id: entry.id, freed_now: false, was_spilled: false, bytes })
    }

    /// Retire an object: it cannot be found any more, its name and pin are removed, its blocks wait
    /// for the last hold. Returns the bytes of the blocks.
    pub(in crate::home) fn retire(
        &mut self,
        entry: &Entry,
        why: EventKind,
    ) -> Result<Length, StoreError> {
        let slot = entry.id.slot();
        let runs = self.runs_of(slot, entry)?;
        let sequence = self.directory.sequence(slot)?;
        // Events describe the original, so a replica has none.
        let is_announced = !entry.is_replica;
        if is_announced {
            self.draft_event_of(why, entry)?;
        }
        self.directory.set_sequence(slot, sequence.with(EntryState::Retiring))?;
        failpoint!("delete.retiring");
        self.free_name(entry)?;
        if is_announced {
            self.publish_event()?;
        }
        self.pins.set(slot, false)?;
        self.retire_blocks(&runs)?;
        self.objects = self.objects.saturating_sub(1);
        self.replicas.remove(&slot.0);
        self.retiring.insert(slot.0);
        Ok(Length(runs.iter().map(|run| run.len()).sum()))
    }

    /// Remove the name of an object that cannot be found any more.
    pub(in crate::home) fn free_name(&mut self, entry: &Entry) -> Result<(), StoreError> {
        if !entry.name.is_empty() {
            let slot = entry.id.slot();
            // The name of a replaced object leads to its successor.
            if !self.replaced.remove(&slot.0) {
                self.names.remove(NameHash(entry.name_hash), slot)?;
            }
            failpoint!("delete.unindexed");
            self.names.erase(entry.name)?;
        }
        Ok(())
    }

    /// Mark the blocks of an object, the primary one first, as retiring.
    pub(in crate::home) fn retire_blocks(&mut self, runs: &[Run]) -> Result<(), StoreError> {
        let parts = std::iter::once(BlockRole::Primary).chain(std::iter::repeat(BlockRole::Extra));
        for (run, part) in runs.iter().zip(parts) {
            self.blocks.retire(*run, part).map_err(unknown_block)?;
        }
        Ok(())
    }

    /// Like [`Self::release_block`] for several blocks.
    pub(in crate::home) fn release_blocks(&mut self, runs: &[Run]) -> Result<u64, StoreError> {
        runs.iter().try_fold(0, |bytes, run| Ok(bytes + self.release_block(*run)?))
    }

    /// Release a retiring block, and free it if this was its last user. Returns the bytes that
    /// became free.
    pub(in crate::home) fn release_block(&mut self, run: Run) -> Result<u64, StoreError> {
        if !self.blocks.release(run).map_err(unknown_block)? {
            return Ok(0);
        }
        self.free_run(run)?;
        Ok(run.len())
    }

    /// Free every retiring object without a hold. One scan of all holds.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn reclaim(&mut self) -> Result<Reclaimed, StoreError> {
        self.reclaim_some(usize::MAX)
    }

    /// As [`Home::reclaim`], for at most `objects_max` of them. If it frees that many, more may be
    /// left that no hold covers.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn reclaim_some(&mut self, objects_max: usize) -> Result<Reclaimed, StoreError> {
        let mut reclaimed = Reclaimed::default();
        if self.retiring.is_empty() {
            return Ok(reclaimed);
        }
        for slot in self.some_unheld(&self.retiring, objects_max)? {
            reclaimed.bytes.0 += self.free_object(Slot(slot))?;
            reclaimed.objects += 1;
        }
        Ok(reclaimed)
    }

    /// Free retiring objects without a hold, [`RECLAIMED_MAX`] at a time, until `is_enough` holds
    /// or none is left. The rest is for the next [`Home::reclaim`]. At most one scan of all holds.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn reclaim_until(
        &mut self,
        mut is_enough: impl FnMut(&mut Home) -> bool,
    ) -> Result<(), StoreError> {
        if self.retiring.is_empty() || is_enough(self) {
            return Ok(());
        }
        // A retiring object gets no new hold.
        let unheld = self.some_unheld(&self.retiring, usize::MAX)?;
        for some in unheld.chunks(RECLAIMED_MAX) {
            for slot in some {
                self.free_object(Slot(*slot))?;
            }
            if is_enough(self) {
                break;
            }
        }
        Ok(())
    }

    /// Those of the retiring `slots` without a hold. One scan of all holds.
    fn unheld(&self, slots: &SlotSet) -> Result<SlotSet, StoreError> {
        Ok(self.some_unheld(slots, usize::MAX)?.into_iter().collect())
    }

    /// As [`Home::unheld`], at most `max` of them.
    fn some_unheld(&self, slots: &SlotSet, max: usize) -> Result<Vec<u32>, StoreError> {
        if slots.is_empty() {
            return Ok(Vec::new());
        }
        let held = hazard::claims_left(&Scan(|| self.held_of(slots)))?;
        let is_free = |slot: &u32| {
            let is_held = held.contains(*slot) || self.retained.contains(*slot);
            !is_held && !self.spilling.contains(slot)
        };
        Ok(slots.iter().filter(is_free).take(max).collect())
    }

    /// Those of `slots` that are held, in one pass over all holds. The caller has fenced.
    pub(in crate::home) fn held_of(&self, slots: &SlotSet) -> Result<SlotSet, StoreError> {
        let mut held = SlotSet::default();
        self.holds.each_held(|slot| {
            // An object that was taken over may be held under either of its slots.
            for slot in [Some(slot), self.locals.moved.get(&slot).copied()].into_iter().flatten() {
                if slots.contains(slot) {
                    held.insert(slot);
                }
            }
        })?;
        Ok(held)
    }

    /// Whether [`Home::reclaim`] may free anything, now or later.
    #[must_use]
    pub fn has_retiring(&self) -> bool {
        !self.retiring.is_empty()
    }

    /// Free a retiring object without a hold. Returns the bytes that became free.
    pub(in crate::home) fn free_object(&mut self, slot: Slot) -> Result<u64, StoreError> {
        if self.layout().client_entry(slot).is_some() {
            return self.free_local(slot);
        }
        let entry = self.directory.entry(slot)?;
        let runs = self.runs_of(slot, &entry)?;
        // The entry first: after a kill the blocks are free, because no entry has them.
        self.directory.vacate(slot)?;
        failpoint!("free.entry");
        self.extras.remove(&slot.0);
        self.retiring.remove(slot.0);
        self.restored_at.remove(&slot.0);
        self.forget_taken(slot)?;
        self.release_blocks(&runs)
    }
}

pub(in crate::home) fn unknown_block(NoBlock(run): NoBlock) -> StoreError {
    StoreError::Inconsistent(format!("no block {run:?} in the table of blocks"))
}
