//! Spill: an object leaves memory for a file, and keeps its id, its name and its place in the
//! directory.
//!
//! The file is written first, while the object is sealed and readable: it does not change. Then
//! the home says leaving, fences and looks at the holds, as for an eviction. Held: it stays, and
//! the file is of no use. Not: it is spilled, and its blocks are free.

use farrow_memory::{Length, Offset, Span};

use super::Home;
use super::delete::Deleted;
use crate::books::grants::span_of;
use crate::error::StoreError;
use crate::events::EventKind;
use crate::failpoint;
use crate::format::entry::{Entry, EntryState, decode_list};
use crate::format::ids::{ObjectId, Target};
use crate::format::spill_file::SpillHead;

/// An object may come back so often; then it stays.
const RESIDENCY_MAX: u32 = (1 << 29) - 1;

/// What is to be written of an object that is to leave memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpillPlan {
    /// The first bytes of the file.
    pub head: SpillHead,
    /// Where the parts lie that follow: descriptor, metadata, blocks. They stay as they are until
    /// [`Home::finish_spill`] or [`Home::cancel_spill`]. Refresh them before they are read.
    pub parts: Vec<Span>,
}

impl Home {
    /// Choose an object to leave memory. None: it may not go, or is being written already.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; memory that cannot be read.
    pub fn begin_spill(&mut self, id: ObjectId) -> Result<Option<SpillPlan>, StoreError> {
        // Only an entry of the directory can say that its object is out of memory.
        let id = match self.take_over(id) {
            Err(StoreError::TooManyObjects { .. } | StoreError::TooManyGrants { .. }) => {
                return Ok(None);
            }
            taken => taken?,
        };
        let entry = self.find(Target::Id(id))?;
        let slot = id.slot();
        // A replica needs no file: it can be brought again.
        if self.is_protected(slot) || entry.is_replica || entry.residency >= RESIDENCY_MAX {
            return Ok(None);
        }
        let corrupt = |reason| StoreError::Corrupt { slot, reason };
        let metadata = entry.metadata().ok_or_else(|| corrupt("its metadata leaves its block"))?;
        let blocks = self.blocks_at_seal(&entry)?;
        let head = SpillHead {
            id,
            kind: entry.kind,
            size: entry.size,
            descriptor_bytes: entry.descriptor.length.0,
            metadata_bytes: entry.metadata_bytes,
            origins: blocks.iter().map(|(_, origin)| *origin).collect(),
        };
        let parts = [entry.descriptor, metadata].into_iter();
        let parts = parts.chain(blocks.iter().map(|(block, _)| *block)).collect();
        self.spilling.insert(slot.0);
        Ok(Some(SpillPlan { head, parts }))
    }

    /// The file of an object could not be written, or is not wanted any more: it stays in memory.
    /// What was deleted meanwhile is freed by the next [`Home::reclaim`].
    pub fn cancel_spill(&mut self, id: ObjectId) {
        self.spilling.remove(&id.slot().0);
    }

    /// The file of an object is written: it leaves memory, unless somebody holds it by now. None:
    /// it stays, or is gone; the file is not wanted. Else the bytes that became free.
    ///
    /// # Errors
    /// Memory that cannot be read or written.
    pub fn finish_spill(&mut self, id: ObjectId) -> Result<Option<Length>, StoreError> {
        let slot = id.slot();
        self.spilling.remove(&slot.0);
        let entry = match self.find(Target::Id(id)) {
            Err(StoreError::NotFound { .. }) => return Ok(None),
            found => found?,
        };
        if !self.try_leave(slot)? {
            return Ok(None);
        }
        let runs = self.runs_of(slot, &entry)?;
        self.draft_event_of(EventKind::Spilled, &entry)?;
        let sequence = self.directory.sequence(slot)?;
        self.directory.set_sequence(slot, sequence.with(EntryState::Spilled))?;
        failpoint!("spill.spilled");
        self.publish_event()?;
        self.extras.remove(&slot.0);
        self.restored_at.remove(&slot.0);
        self.objects = self.objects.saturating_sub(1);
        self.spilled.insert(slot.0, entry.size.0);
        self.retire_blocks(&runs)?;
        let bytes = self.release_blocks(&runs)?;
        failpoint!("spill.freed");
        Ok(Some(Length(bytes)))
    }

    /// The entry of an object that is out of memory; none if it is not, or is not there.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn find_spilled(&self, target: Target<'_>) -> Result<Option<Entry>, StoreError> {
        let slot = match target {
            Target::Name(name) => self.slot_of_name(name)?,
            Target::Id(id) => Some(self.forwarded(id)?.slot()),
        };
        let Some(slot) = slot.filter(|slot| self.spilled.contains_key(&slot.0)) else {
            return Ok(None);
        };
        let entry = self.directory.entry(slot)?;
        Ok(match target {
            Target::Id(id) if self.forwarded(id)? != entry.id => None,
            _ => Some(entry),
        })
    }

    /// Whether there is such an object, in memory or not.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn has(&self, target: Target<'_>) -> Result<bool, StoreError> {
        match self.find(target) {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(self.find_spilled(target)?.is_some()),
            Err(error) => Err(error),
        }
    }

    /// Objects that are out of memory.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn spilled_ids(&self) -> Result<Vec<ObjectId>, StoreError> {
        let slots = self.spilled.keys().copied().map(crate::format::ids::Slot);
        slots.map(|slot| self.directory.entry(slot).map(|entry| entry.id)).collect()
    }

    /// Bytes of the largest object that is out of memory, as its users see it.
    #[must_use]
    pub fn largest_spilled(&self) -> u64 {
        self.spilled.values().max().copied().unwrap_or_default()
    }

    /// Delete an object that is out of memory. It has no block that anybody could hold, so its
    /// slot is free at once.
    pub(super) fn delete_spilled(&mut self, entry: &Entry) -> Result<Deleted, StoreError> {
        let slot = entry.id.slot();
        self.draft_event_of(EventKind::Deleted, entry)?;
        self.directory.vacate(slot)?;
        failpoint!("spill.deleted");
        self.free_name(entry)?;
        self.publish_event()?;
        self.pins.set(slot, false)?;
        self.spilled.remove(&slot.0);
        self.forget_taken(slot)?;
        Ok(Deleted { id: entry.id, freed_now: true, was_spilled: true, bytes: Length(0) })
    }

    /// The blocks of an object as far as they were part of it at seal, and where they lay then.
    fn blocks_at_seal(&self, entry: &Entry) -> Result<Vec<(Span, Span)>, StoreError> {
        let slot = entry.id.slot();
        let mut blocks: Vec<Span> = self.runs_of(slot, entry)?.into_iter().map(span_of).collect();
        let mut origins: Vec<Offset> = blocks.iter().map(|block| block.offset).collect();
        if let Some(primary) = blocks.first_mut() {
            primary.length = entry.primary_bytes_at_seal();
        }
        if entry.is_relocated {
            let list = entry.extra_list().unwrap_or_default();
            let mut bytes = vec![0; list.length.0 as usize];
            self.region().refresh(list)?;
            self.region().copy_out(list.offset, &mut bytes)?;
            let (stored, computed) = (entry.extra_crc, crc32c::crc32c(&bytes));
            if stored != computed {
                return Err(StoreError::BlockListDamaged { id: entry.id, stored, computed });
            }
            let corrupt = |reason| StoreError::Corrupt { slot, reason };
            origins = decode_list(&bytes, entry, self.layout()).map_err(corrupt)?.1;
        }
        let origin = |(block, offset): (Span, Offset)| (block, Span::new(offset, block.length));
        Ok(blocks.into_iter().zip(origins).map(origin).collect())
    }
}
