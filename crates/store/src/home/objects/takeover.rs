//! Takeover: the home gives an object that a client sealed itself a directory slot. Bytes and block
//! stay the same; a directory entry has state that a life word has no room for.
//!
//! The old id forwards to the new one until the object ends. During the takeover both entries are
//! valid, and a hold of either holds the object, so every lookup succeeds.

use farrow_memory::Length;

use crate::error::StoreError;
use crate::failpoint;
use crate::format::entry::{Entry, EntryState};
use crate::format::ids::{ObjectId, Slot, Target};
use crate::home::Home;

/// What [`Home::take_over_to_leave`] did.
pub(in crate::home) enum TakeoverOutcome {
    /// The object is in the directory, with this id.
    InDirectory(ObjectId),
    /// There is no room for a directory entry.
    NoRoom,
    /// The object was deleted; the bytes that are free. 0: it is held.
    Deleted(Length),
}

impl Home {
    /// Give an object a directory entry if it has none. Returns its id in the directory; an object
    /// that was sealed through the home keeps its id. Only an object that is registered gets one: the
    /// client can change its entry between any two looks of the home.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::TooManyObjects`], [`StoreError::TooManyGrants`].
    pub fn take_over(&mut self, id: ObjectId) -> Result<ObjectId, StoreError> {
        let id = self.forwarded(id)?;
        let Some(number) = self.layout().client_entry(id.slot()) else {
            return self.find(Target::Id(id)).map(|entry| entry.id);
        };
        if !self.locals.known.contains_key(&id.slot().0) {
            self.register_one(number)?;
        }
        failpoint!("takeover.registered");
        if self.locals.run_of(id.slot()).is_none() {
            return Err(StoreError::NotFound { what: Target::Id(id).to_string() });
        }
        let entry = self.find_local(id)?;
        let life = self.locals.area.life(number)?;
        let vacancy = self.directory.vacancy()?;
        let new = ObjectId::new(self.uid(), vacancy.sequence.generation(), vacancy.slot);
        self.locals.area.set_forward(number, new.lo)?;
        failpoint!("takeover.forward");
        // The new id may equal that of an object whose seal was drafted but not made.
        self.events.forget_draft()?;
        failpoint!("takeover.silent");
        self.directory.publish(vacancy, &Entry { id: new, ..entry })?;
        self.locals.area.set_life(number, life.with(EntryState::Leaving))?;
        failpoint!("takeover.moved");
        self.locals.known.remove(&id.slot().0);
        self.note_taken(id.slot(), new.slot());
        Ok(new)
    }

    /// As [`Home::take_over`], for an object that is to leave memory. Its client may have overwritten
    /// the entry since the home registered it: such an object is deleted, so that it is in no other
    /// client's way.
    pub(in crate::home) fn take_over_to_leave(
        &mut self,
        id: ObjectId,
    ) -> Result<TakeoverOutcome, StoreError> {
        match self.take_over(id) {
            Ok(id) => Ok(TakeoverOutcome::InDirectory(id)),
            Err(StoreError::TooManyObjects { .. } | StoreError::TooManyGrants { .. }) => {
                Ok(TakeoverOutcome::NoRoom)
            }
            Err(StoreError::NotFound { .. }) if self.locals.run_of(id.slot()).is_some() => {
                let deleted = self.delete(Target::Id(id))?;
                tracing::warn!(%id, bytes = deleted.bytes.0, "its entry was overwritten: deleted");
                let bytes = if deleted.freed_now { deleted.bytes } else { Length(0) };
                Ok(TakeoverOutcome::Deleted(bytes))
            }
            Err(error) => Err(error),
        }
    }

    /// The id of an object in the directory, if the home took it over; otherwise `id` itself.
    pub(in crate::home) fn forwarded(&self, id: ObjectId) -> Result<ObjectId, StoreError> {
        let Some(number) = self.layout().client_entry(id.slot()) else {
            return Ok(id);
        };
        let life = self.locals.area.life(number)?;
        let is_this = life.generation() == id.generation() && id.region() == self.uid();
        if is_this && self.locals.moved.contains_key(&id.slot().0) {
            return Ok(ObjectId { hi: id.hi, lo: self.locals.area.forward(number)? });
        }
        Ok(id)
    }

    pub(in crate::home) fn note_taken(&mut self, before: Slot, slot: Slot) {
        self.locals.moved.insert(before.0, slot.0);
        self.locals.taken.insert(slot.0, before.0);
    }

    /// After a directory slot became free, also free the client entry that forwarded to it.
    pub(in crate::home) fn forget_taken(&mut self, slot: Slot) -> Result<(), StoreError> {
        let Some(before) = self.locals.taken.remove(&slot.0) else {
            return Ok(());
        };
        self.locals.moved.remove(&before);
        let number = self.number_of(Slot(before))?;
        self.locals.area.end_life(number)?;
        failpoint!("takeover.ended");
        self.locals.area.leave(number)
    }
}
