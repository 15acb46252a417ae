//! Delete: an object can no longer be found at once; its memory comes back when nobody holds it.

use std::collections::BTreeSet;

use farrow_memory::Length;

use super::Home;
use crate::books::blocks::{BlockRole, NoBlock};
use crate::books::space::Run;
use crate::error::StoreError;
use crate::events::EventKind;
use crate::failpoint;
use crate::format::entry::{Entry, EntryState};
use crate::format::hash::NameHash;
use crate::format::ids::{ObjectId, Slot, Target};
use crate::hazard::{self, Scan};

/// What [`Home::delete`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deleted {
    /// The object.
    pub id: ObjectId,
    /// Whether nobody held it, so that its memory is free.
    pub freed_now: bool,
    /// Whether it was out of memory: then its file is left.
    pub was_spilled: bool,
    /// Bytes of its blocks. A block that another object shares is freed with the last of them.
    pub bytes: Length,
}

/// What came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reclaimed {
    /// Retiring objects that nobody holds any more.
    pub objects: u32,
    /// Bytes that became free with them.
    pub bytes: Length,
    /// Bytes that were granted and not sealed.
    pub granted: Length,
    /// Hold blocks.
    pub hold_blocks: u32,
}

impl Home {
    /// Delete an object. It cannot be found from here on and its name is free; its memory is freed
    /// now if nobody holds it, else by the [`Home::reclaim`] after its last hold went.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub fn delete(&mut self, target: Target<'_>) -> Result<Deleted, StoreError> {
        let mut results = self.delete_many([target])?;
        let missing = || StoreError::NotFound { what: target.to_string() };
        results.pop().unwrap_or_else(|| Err(missing()))
    }

    /// Delete several objects, with one look at the holds for all of them.
    ///
    /// # Errors
    /// Memory that cannot be read. What is wrong with one object is in its own result.
    pub fn delete_many<'a>(
        &mut self,
        targets: impl IntoIterator<Item = Target<'a>>,
    ) -> Result<Vec<Result<Deleted, StoreError>>, StoreError> {
        // Hazard-pointer order, the home's half: retire, fence, look at the holds. A reader claims,
        // fences, looks at the entry. One of the two sees the other.
        let mut results: Vec<_> = targets.into_iter().map(|one| self.withdraw(one)).collect();
        let withdrawn = results.iter().flatten().filter(|deleted| !deleted.freed_now);
        let unheld = self.unheld(withdrawn.map(|deleted| deleted.id.slot().0).collect())?;
        failpoint!("delete.scanned");
        for deleted in results.iter_mut().flatten().filter(|deleted| !deleted.freed_now) {
            if unheld.contains(&deleted.id.slot().0) {
                self.free_object(deleted.id.slot())?;
                deleted.freed_now = true;
            }
        }
        Ok(results)
    }

    /// End an object by the wish of a client. One that is out of memory is gone with that.
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

    /// End an object: it cannot be found any more, its name and its pin go, its blocks wait for the
    /// last hold. Returns the bytes of these.
    pub(super) fn retire(&mut self, entry: &Entry, why: EventKind) -> Result<Length, StoreError> {
        let slot = entry.id.slot();
        let runs = self.runs_of(slot, entry)?;
        let sequence = self.directory.sequence(slot)?;
        // What becomes of a copy is no news of its object.
        let is_told = !entry.is_replica;
        if is_told {
            self.draft_event_of(why, entry)?;
        }
        self.directory.set_sequence(slot, sequence.with(EntryState::Retiring))?;
        failpoint!("delete.retiring");
        self.free_name(entry)?;
        if is_told {
            self.publish_event()?;
        }
        self.pins.set(slot, false)?;
        self.retire_blocks(&runs)?;
        self.objects = self.objects.saturating_sub(1);
        self.retiring.insert(slot.0);
        Ok(Length(runs.iter().map(|run| run.len()).sum()))
    }

    /// Take the name out of an object that cannot be found any more.
    pub(super) fn free_name(&mut self, entry: &Entry) -> Result<(), StoreError> {
        if !entry.name.is_empty() {
            self.names.remove(NameHash(entry.name_hash), entry.id.slot())?;
            failpoint!("delete.unindexed");
            self.names.erase(entry.name)?;
        }
        Ok(())
    }

    /// The blocks of an object, the primary one first, wait for its end.
    pub(super) fn retire_blocks(&mut self, runs: &[Run]) -> Result<(), StoreError> {
        let parts = std::iter::once(BlockRole::Primary).chain(std::iter::repeat(BlockRole::Extra));
        for (run, part) in runs.iter().zip(parts) {
            self.blocks.retire(*run, part).map_err(unknown_block)?;
        }
        Ok(())
    }

    /// As [`Self::release_block`] for each.
    pub(super) fn release_blocks(&mut self, runs: &[Run]) -> Result<u64, StoreError> {
        runs.iter().try_fold(0, |bytes, run| Ok(bytes + self.release_block(*run)?))
    }

    /// Let go of a block that retires; free it if it was the last to. Returns the bytes that became
    /// free.
    pub(super) fn release_block(&mut self, run: Run) -> Result<u64, StoreError> {
        if !self.blocks.release(run).map_err(unknown_block)? {
            return Ok(0);
        }
        self.free_run(run)?;
        Ok(run.len())
    }

    /// Free every retiring object that nobody holds any more. One pass over all holds.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn reclaim(&mut self) -> Result<Reclaimed, StoreError> {
        let mut reclaimed = Reclaimed::default();
        if self.retiring.is_empty() {
            return Ok(reclaimed);
        }
        for slot in self.unheld(self.retiring.clone())? {
            reclaimed.bytes.0 += self.free_object(Slot(slot))?;
            reclaimed.objects += 1;
        }
        Ok(reclaimed)
    }

    /// Those of the retiring `slots` that nobody holds. One pass over all holds.
    fn unheld(&self, mut slots: BTreeSet<u32>) -> Result<BTreeSet<u32>, StoreError> {
        // An object that was taken over may be held under either of its slots.
        let before = |slot: &u32| self.locals.taken.get(slot).copied();
        let mut looked_for = slots.clone();
        looked_for.extend(slots.iter().filter_map(before));
        let held = hazard::claims_left(&Scan(|| self.holds.held_among(&looked_for)))?;
        slots.retain(|slot| {
            let is_held = held.contains(slot) || before(slot).is_some_and(|b| held.contains(&b));
            !is_held && !self.retained.contains(*slot) && !self.spilling.contains(slot)
        });
        Ok(slots)
    }

    /// Whether [`Home::reclaim`] may find something to do, now or later.
    #[must_use]
    pub fn has_retiring(&self) -> bool {
        !self.retiring.is_empty()
    }

    /// Free a retiring object that nobody holds. Returns the bytes that became free.
    pub(super) fn free_object(&mut self, slot: Slot) -> Result<u64, StoreError> {
        if self.layout().client_entry(slot).is_some() {
            return self.free_local(slot);
        }
        let entry = self.directory.entry(slot)?;
        let runs = self.runs_of(slot, &entry)?;
        // The entry first: a kill right after it frees the blocks, for nothing names them then.
        self.directory.vacate(slot)?;
        failpoint!("free.entry");
        self.extras.remove(&slot.0);
        self.retiring.remove(&slot.0);
        self.restored_at.remove(&slot.0);
        self.forget_taken(slot)?;
        self.release_blocks(&runs)
    }
}

pub(super) fn unknown_block(NoBlock(run): NoBlock) -> StoreError {
    StoreError::Inconsistent(format!("no block {run:?} in the books"))
}
