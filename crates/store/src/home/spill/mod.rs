//! Spill: an object moves from memory to a file, and keeps its id, its name and its directory slot.
//!
//! The file is written first, while the object is sealed, readable and immutable. Then the home
//! marks the object as leaving, fences and scans the holds, as for an eviction. If it is held, it
//! stays and the file is discarded. Otherwise it is spilled and its blocks are freed.

mod restore;

use farrow_memory::{Length, Offset, Span};

use super::Home;
use super::evict::Marked;
use super::objects::{Deleted, TakeoverOutcome};
use crate::alloc::eviction::ByHand;
use crate::error::StoreError;
use crate::events::EventKind;
use crate::failpoint;
use crate::format::entry::{Entry, EntryState, decode_list};
use crate::format::ids::{ObjectId, Target};
use crate::format::spill_file::SpillHead;
use crate::tables::grants::span_of;

/// Maximum number of restores of an object; after that it is not spilled again.
const RESIDENCY_MAX: u32 = (1 << 29) - 1;

/// The contents of a spill file, for an object to be spilled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpillPlan {
    /// The first bytes of the file.
    pub head: SpillHead,
    /// The parts that follow: descriptor, metadata, blocks. They stay unchanged until
    /// [`Home::finish_spill`] or [`Home::cancel_spill`]. Refresh them before reading.
    pub parts: Vec<Span>,
}

impl Home {
    /// Begin to spill an object. Returns `None` if it must stay, is being spilled already, or was
    /// deleted because its client had overwritten its entry.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; memory that cannot be read.
    pub fn begin_spill(&mut self, id: ObjectId) -> Result<Option<SpillPlan>, StoreError> {
        // Only a directory entry can be in state spilled.
        let TakeoverOutcome::InDirectory(id) = self.take_over_to_leave(id)? else {
            return Ok(None);
        };
        let entry = self.find(Target::Id(id))?;
        let slot = id.slot();
        // A replica needs no file: it can be fetched again.
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

    /// Give up a spill, because the file could not be written or is not wanted any more: the object
    /// stays in memory. If it was deleted meanwhile, the next [`Home::reclaim`] frees it.
    pub fn cancel_spill(&mut self, id: ObjectId) {
        self.spilling.remove(&id.slot().0);
    }

    /// Move an object out of memory after its file was written, unless it is held. Returns the
    /// bytes that became free. `None`: it stays or was deleted, and the file is not needed.
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
        let Marked::Leaving(leaving) = self.mark_leaving(id)? else {
            return Ok(None);
        };
        if !self.settle_leaving(&ByHand, &[leaving])? {
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
        self.spilled.insert(slot, entry.size.0, self.accounts.of_creator(&entry));
        self.retire_blocks(&runs)?;
        let bytes = self.release_blocks(&runs)?;
        failpoint!("spill.freed");
        Ok(Some(Length(bytes)))
    }

    /// The entry of a spilled object; `None` if it is not spilled or does not exist.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn find_spilled(&self, target: Target<'_>) -> Result<Option<Entry>, StoreError> {
        let slot = match target {
            Target::Name(name) => self.slot_of_name(name)?,
            Target::Id(id) => Some(self.forwarded(id)?.slot()),
        };
        let Some(slot) = slot.filter(|slot| self.spilled.contains(*slot)) else {
            return Ok(None);
        };
        let entry = self.directory.entry(slot)?;
        Ok(match target {
            Target::Id(id) if self.forwarded(id)? != entry.id => None,
            _ => Some(entry),
        })
    }

    /// Whether the object exists, in memory or spilled.
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

    /// The ids of all spilled objects.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn spilled_ids(&self) -> Result<Vec<ObjectId>, StoreError> {
        self.spilled.slots().map(|slot| self.directory.entry(slot).map(|entry| entry.id)).collect()
    }

    /// Size of the largest spilled object, as its users see it.
    #[must_use]
    pub fn largest_spilled(&self) -> u64 {
        self.spilled.largest()
    }

    /// Delete a spilled object. It has no block that could be held, so its slot is free at once.
    pub(super) fn delete_spilled(&mut self, entry: &Entry) -> Result<Deleted, StoreError> {
        let slot = entry.id.slot();
        self.draft_event_of(EventKind::Deleted, entry)?;
        self.directory.vacate(slot)?;
        failpoint!("spill.deleted");
        self.free_name(entry)?;
        self.publish_event()?;
        self.pins.set(slot, false)?;
        self.spilled.remove(slot);
        self.forget_taken(slot)?;
        Ok(Deleted { id: entry.id, freed_now: true, was_spilled: true, bytes: Length(0) })
    }

    /// The blocks of an object, limited to their lengths at seal, with their positions at seal.
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
            self.region().copy_out_by_call(list.offset, &mut bytes)?;
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
