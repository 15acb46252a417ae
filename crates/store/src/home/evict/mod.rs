//! Eviction: unused objects make room for others.
//!
//! The protocol is that of a hold against a free, with a way back. The home marks the object as
//! leaving, fences, and scans the holds. If it is held, the home restores the same sealed word as
//! before. If not, it cannot be held any more: a reader that claims it now sees the mark. Several
//! objects are marked together, and need one scan.

mod batch;
mod choose;
mod victim_scan;

use farrow_memory::Length;

use super::objects::TakeoverOutcome;
use super::{Home, Room};
use crate::alloc::eviction::{ByHand, Evicted, EvictionCandidate, EvictionPolicy, Need};
use crate::alloc::victim_order::VictimScope;
use crate::error::StoreError;
use crate::events::EventKind;
use crate::failpoint;
use crate::format::entry::{Entry, EntryState};
use crate::format::ids::{ObjectId, Slot, Target};
use crate::hazard::{self, Scan};
use crate::tables::slot_set::SlotSet;
use batch::BATCH_MAX;
pub(super) use choose::{Choice, Simulation};

/// Maximum rounds of replacing chosen objects that turn out to be held.
const ROUNDS_MAX: u32 = 4;

/// What [`Home::mark_leaving`] did. Not boxed: it lives on the stack of an eviction.
#[allow(clippy::large_enum_variant)]
pub(super) enum Marked {
    /// The object cannot be held any more.
    Leaving(Entry),
    /// It is protected, or has no directory entry and there is no room for one.
    Stays,
    /// Its entry was overwritten, so it was deleted; the bytes that are free. 0: it is held.
    Deleted(Length),
}

impl Home {
    /// Whether an object is exempt from eviction. One that a client sealed itself is not.
    #[must_use]
    pub fn is_pinned(&self, id: ObjectId) -> bool {
        let is_own = self.layout().client_entry(id.slot()).is_none();
        is_own && self.pins.is_pinned(id.slot())
    }

    /// Pin an object, so that it is never evicted, or unpin it. Returns its id in the directory; a
    /// former id still forwards there.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub fn pin(&mut self, target: Target<'_>, is_pinned: bool) -> Result<ObjectId, StoreError> {
        let mut id = self.find(target)?.id;
        if is_pinned {
            // An object that a client sealed itself has no bit in the pin table.
            id = self.take_over(id)?;
        }
        if self.layout().client_entry(id.slot()).is_none() {
            self.pins.set(id.slot(), is_pinned)?;
        }
        Ok(id)
    }

    /// Evict objects in the order of `policy` until `need` is met. If evicting all candidates is
    /// not enough, bytes are freed as far as possible; for a run nothing is evicted.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn evict_for(
        &mut self,
        policy: &dyn EvictionPolicy,
        need: Need,
    ) -> Result<Evicted, StoreError> {
        match need {
            Need::Bytes(requested) => self.evict_bytes(policy, requested, &mut |_| {}),
            Need::Run(bytes) => self.make_room(policy, &Room::of_run(bytes)),
        }
    }

    /// As [`Home::evict_for`], for bytes. Reports each object that was evicted, also before an error.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn evict_bytes(
        &mut self,
        policy: &dyn EvictionPolicy,
        requested: Length,
        on_evicted: &mut dyn FnMut(ObjectId),
    ) -> Result<Evicted, StoreError> {
        let mut evicted = Evicted::default();
        for _ in 0..ROUNDS_MAX {
            let left = Length(requested.0.saturating_sub(evicted.bytes.0));
            let mut have_all_left = true;
            for batch in self.victims(policy, Need::Bytes(left))?.chunks(BATCH_MAX) {
                have_all_left &= self.evict_batch(policy, batch, &mut |id, bytes| {
                    on_evicted(id);
                    evicted.objects += 1;
                    evicted.bytes.0 += bytes.0;
                })?;
            }
            if have_all_left {
                break;
            }
        }
        Ok(evicted)
    }

    /// The objects to evict for `need`, in the order of `policy`. Empty if `need` is met already,
    /// or if evicting all candidates would not make the requested run free.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn victims(
        &mut self,
        policy: &dyn EvictionPolicy,
        need: Need,
    ) -> Result<Vec<ObjectId>, StoreError> {
        let requested = match need {
            Need::Bytes(requested) => requested,
            Need::Run(bytes) => {
                let victims = self.victims_for(policy, &Room::of_run(bytes))?;
                return Ok(victims.unwrap_or_default());
            }
        };
        if requested.0 == 0 {
            return Ok(Vec::new());
        }
        let (choices, _) =
            self.choose(policy, VictimScope::All, None, &mut |_, simulation, _| {
                simulation.bytes >= requested.0
            })?;
        Ok(choices.into_iter().map(|choice| choice.candidate.id).collect())
    }

    /// The candidates of this policy, in its order.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn candidates(
        &self,
        policy: &dyn EvictionPolicy,
    ) -> Result<Vec<EvictionCandidate>, StoreError> {
        let choices = self.all_choices(policy)?;
        Ok(choices.into_iter().map(|choice| choice.candidate).collect())
    }

    /// Evict one object, as if it were deleted. Returns the bytes that became free. `None`: the
    /// object is held or protected, and stays.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; memory that cannot be read.
    pub fn evict(&mut self, id: ObjectId) -> Result<Option<Length>, StoreError> {
        self.evict_by(&ByHand, id)
    }

    /// Evict one object of those that `policy` has chosen. `None`: it stays, as for
    /// [`Home::evict`], or since the policy keeps it now.
    pub(super) fn evict_by(
        &mut self,
        policy: &dyn EvictionPolicy,
        id: ObjectId,
    ) -> Result<Option<Length>, StoreError> {
        let entry = match self.mark_leaving(id)? {
            Marked::Leaving(entry) => entry,
            Marked::Stays => return Ok(None),
            Marked::Deleted(bytes) => return Ok((!bytes.is_zero()).then_some(bytes)),
        };
        if !self.settle_leaving(policy, std::slice::from_ref(&entry))? {
            return Ok(None);
        }
        self.retire(&entry, EventKind::Evicted)?;
        self.free_object(entry.id.slot()).map(|bytes| Some(Length(bytes)))
    }

    /// Mark an object as leaving; [`Home::settle_leaving`] must follow.
    pub(super) fn mark_leaving(&mut self, id: ObjectId) -> Result<Marked, StoreError> {
        // Only a directory entry can be in state leaving.
        let id = match self.take_over_to_leave(id)? {
            TakeoverOutcome::InDirectory(id) => id,
            TakeoverOutcome::NoRoom => return Ok(Marked::Stays),
            TakeoverOutcome::Deleted(bytes) => return Ok(Marked::Deleted(bytes)),
        };
        let entry = self.find(Target::Id(id))?;
        if self.is_protected(id.slot()) {
            return Ok(Marked::Stays);
        }
        self.set_state(id.slot(), EntryState::Leaving)?;
        failpoint!("evict.leaving");
        Ok(Marked::Leaving(entry))
    }

    /// Whether all objects that are marked as leaving may leave: none is held, and `policy` keeps
    /// none. If not, all are sealed as before. One scan of all holds.
    pub(super) fn settle_leaving(
        &mut self,
        policy: &dyn EvictionPolicy,
        leaving: &[Entry],
    ) -> Result<bool, StoreError> {
        let slots: SlotSet = leaving.iter().map(|entry| entry.id.slot().0).collect();
        let held = hazard::claims_left(&Scan(|| self.held_of(&slots)));
        if held.as_ref().is_ok_and(SlotSet::is_empty) {
            failpoint!("evict.scanned");
            let may_leave = |entry: &Entry| policy.may_leave(entry.id, self.former_id(entry.id));
            if leaving.iter().all(may_leave) {
                return Ok(true);
            }
        } else {
            failpoint!("evict.held");
        }
        self.stay(leaving)?;
        held.map(|_| false)
    }

    /// Bring objects back from state leaving.
    pub(super) fn stay(&mut self, leaving: &[Entry]) -> Result<(), StoreError> {
        leaving.iter().try_for_each(|entry| self.set_state(entry.id.slot(), EntryState::Sealed))
    }

    fn set_state(&mut self, slot: Slot, state: EntryState) -> Result<(), StoreError> {
        let sequence = self.directory.sequence(slot)?;
        self.directory.set_sequence(slot, sequence.with(state))
    }

    /// Whether a reason other than a hold protects an object from eviction.
    pub(super) fn is_protected(&self, slot: Slot) -> bool {
        self.pins.is_pinned(slot)
            || self.retained.contains(slot.0)
            || self.spilling.contains(&slot.0)
    }
}
