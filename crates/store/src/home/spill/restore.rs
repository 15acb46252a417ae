//! Restore: a spilled object returns to memory, at another position, under the same id and name.
//!
//! The region does not show it until all its bytes are there: a kill before leaves the object
//! spilled and the memory free. The descriptor refers to positions of the blocks at seal. So the
//! primary block of everything but plain bytes gets a list of them appended: the descriptor again,
//! the extra blocks, their positions at seal, and the metadata at the end.

use farrow_memory::{Length, Offset, Span};

use crate::alloc::blocks::{BlockRole, ClientAccount};
use crate::alloc::space::Run;
use crate::error::StoreError;
use crate::events::EventKind;
use crate::format::entry::{
    EXTRA_BYTES, Entry, EntryState, ORIGIN_BYTES, REPLICA_ORIGIN_BYTES, encode_extra,
};
use crate::format::ids::{ObjectId, ObjectKind, Target};
use crate::format::options::BLOCK_BYTES;
use crate::format::spill_file::SpillHead;
use crate::home::Home;
use crate::home::objects::unknown_block;
use crate::home::state::Restoring;
use crate::tables::grants::span_of;

impl Home {
    /// Contiguous bytes that restoring an object needs; `None` on overflow.
    #[must_use]
    pub fn restored_bytes(head: &SpillHead) -> Option<Length> {
        bytes_in_memory(head, false)
    }

    /// Contiguous bytes that a replica needs; `None` on overflow.
    #[must_use]
    pub fn replica_bytes(head: &SpillHead) -> Option<Length> {
        bytes_in_memory(head, true)
    }

    /// Allocate memory to restore an object. Returns its blocks, each as long as in its file.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if it is not spilled, [`StoreError::BadRequest`] if the file is of
    /// another object or a restore is under way, [`StoreError::OutOfMemory`].
    pub fn begin_restore(&mut self, head: &SpillHead) -> Result<Vec<Span>, StoreError> {
        let entry = self.spilled_entry(head.id)?;
        let wrong = |reason| StoreError::BadRequest { reason };
        let is_it = (head.kind, head.size, head.metadata_bytes)
            == (entry.kind, entry.size, entry.metadata_bytes)
            && head.origins.len() as u64 == u64::from(entry.extra_count) + 1;
        if !is_it || self.loading.contains_key(&head.id) {
            return Err(wrong("the file is of another object"));
        }
        let owner = self.accounts.of_creator(&entry);
        self.take_blocks(head, false, owner)
    }

    /// Allocate memory for the blocks of an object. Returns the blocks, each as long as at seal.
    pub(in crate::home) fn take_blocks(
        &mut self,
        head: &SpillHead,
        is_replica: bool,
        owner: ClientAccount,
    ) -> Result<Vec<Span>, StoreError> {
        let wrong = |reason| StoreError::BadRequest { reason };
        let too_long = || wrong("the object is too long");
        let primary = primary_bytes(head, is_replica).ok_or_else(too_long)?;
        let all = bytes_in_memory(head, is_replica).ok_or_else(too_long)?;
        if all > self.layout().heap.length {
            return Err(wrong("the object is longer than the region"));
        }
        let run = self.take_space(all, all).ok_or_else(|| self.out_of_memory(all))?;
        let rest = Run { start: run.start + all.0, end: run.end };
        if rest.len() > 0 {
            self.free_run(rest)?;
        }
        let mut at = run.start;
        let extra = head.origins.iter().skip(1).map(|span| span.length.0);
        let runs: Vec<Run> = std::iter::once(primary)
            .chain(extra)
            .map(|bytes| {
                let start = at;
                at += bytes;
                Run { start, end: at }
            })
            .collect();
        for run in &runs {
            self.blocks.seal(*run, BlockRole::Extra, owner);
        }
        let blocks = runs.iter().zip(&head.origins);
        let blocks = blocks.map(|(run, origin)| Span::new(Offset(run.start), origin.length));
        let blocks = blocks.collect();
        self.loading.insert(head.id, Restoring { head: head.clone(), runs });
        Ok(blocks)
    }

    /// Publish a restored object, once its bytes are in memory and published: it can be held again.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if it was deleted meanwhile; memory that cannot be written. On
    /// error its memory is freed.
    pub fn finish_restore(
        &mut self,
        id: ObjectId,
        descriptor: &[u8],
        metadata: &[u8],
    ) -> Result<(), StoreError> {
        let prepared = self.prepare_restored(id, descriptor, metadata);
        let entry = match prepared {
            Ok(entry) => entry,
            Err(error) => {
                self.abort_restore(id)?;
                return Err(error);
            }
        };
        let slot = id.slot();
        self.draft_event_of(EventKind::Restored, &entry)?;
        self.directory.replace(&entry, EntryState::Sealed)?;
        self.publish_event()?;
        self.spilled.remove(slot);
        self.restored_at.insert(slot.0, self.now_ns);
        self.objects += 1;
        let Some(Restoring { runs, .. }) = self.loading.remove(&id) else {
            return Ok(());
        };
        if let Some(primary) = runs.first().copied() {
            let owner = self.accounts.of_creator(&entry);
            self.blocks.seal(primary, BlockRole::Primary, owner);
            self.blocks.retire(primary, BlockRole::Extra).map_err(unknown_block)?;
            self.blocks.release(primary).map_err(unknown_block)?;
        }
        if runs.len() > 1 {
            self.extras.insert(slot.0, runs.into_iter().skip(1).collect());
        }
        Ok(())
    }

    /// Abort a restore and free its memory. Does nothing if there is none.
    ///
    /// # Errors
    /// The home's private state is inconsistent.
    pub fn abort_restore(&mut self, id: ObjectId) -> Result<(), StoreError> {
        let Some(Restoring { runs, .. }) = self.loading.remove(&id) else {
            return Ok(());
        };
        for run in runs {
            self.blocks.retire(run, BlockRole::Extra).map_err(unknown_block)?;
            self.release_block(run)?;
        }
        Ok(())
    }

    /// Blocks of objects that are being restored.
    pub(in crate::home) fn loading_runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.loading.values().flat_map(|loading| loading.runs.iter().copied())
    }

    pub(in crate::home) fn is_loading(&self, id: ObjectId) -> bool {
        self.loading.contains_key(&id)
    }

    pub(in crate::home) fn loading(&self, id: ObjectId) -> Option<&Restoring> {
        self.loading.get(&id)
    }

    pub(in crate::home) fn take_loading(&mut self, id: ObjectId) -> Option<Restoring> {
        self.loading.remove(&id)
    }

    fn spilled_entry(&self, id: ObjectId) -> Result<Entry, StoreError> {
        let missing = || StoreError::NotFound { what: Target::Id(id).to_string() };
        self.find_spilled(Target::Id(id))?.ok_or_else(missing)
    }

    /// Write the appended part of the primary block. Returns the new entry.
    fn prepare_restored(
        &self,
        id: ObjectId,
        descriptor: &[u8],
        metadata: &[u8],
    ) -> Result<Entry, StoreError> {
        let entry = self.spilled_entry(id)?;
        let missing = || StoreError::NotFound { what: Target::Id(id).to_string() };
        let Restoring { head, runs } = self.loading.get(&id).ok_or_else(missing)?;
        let spans: Vec<Span> = runs.iter().copied().map(span_of).collect();
        let (primary, extra) = spans.split_first().ok_or_else(missing)?;
        let residency = entry.residency + 1;
        let mut entry = Entry { primary: *primary, residency, is_relocated: false, ..entry };
        entry.descriptor = Span::new(primary.offset, Length(0));
        if entry.kind != ObjectKind::Bytes {
            let at_seal = head.origins.first().map_or(0, |origin| origin.length.0);
            let start = Offset(primary.offset.0.saturating_add(at_seal));
            entry.descriptor = Span::new(start, Length(descriptor.len() as u64));
            entry.is_relocated = true;
            let origins = head.origins.iter().map(|origin| origin.offset.0);
            let mut list = encode_extra(extra);
            list.extend(origins.flat_map(u64::to_le_bytes));
            entry.extra_crc = crc32c::crc32c(&list);
            let place = entry.extra_list().unwrap_or_default();
            entry.validate(self.layout()).map_err(|reason| StoreError::BadRequest { reason })?;
            let at_end = entry.metadata().unwrap_or_default();
            for (at, bytes) in
                [(start, descriptor), (place.offset, &*list), (at_end.offset, metadata)]
            {
                self.region().write_by_call(at, bytes)?;
                self.region().publish(Span::new(at, Length(bytes.len() as u64)))?;
            }
        }
        entry.validate(self.layout()).map_err(|reason| StoreError::BadRequest { reason })?;
        Ok(entry)
    }
}

/// Total bytes of all blocks, which are allocated contiguously.
fn bytes_in_memory(head: &SpillHead, is_replica: bool) -> Option<Length> {
    let extra = head.origins.iter().skip(1).map(|span| span.length.0);
    let primary = primary_bytes(head, is_replica);
    extra.fold(primary, |sum, bytes| sum?.checked_add(bytes)).map(Length)
}

/// Bytes of the primary block of a restored object or a replica.
fn primary_bytes(head: &SpillHead, is_replica: bool) -> Option<u64> {
    let at_seal = head.origins.first()?.length.0;
    if head.kind == ObjectKind::Bytes && !is_replica {
        return Some(at_seal);
    }
    let blocks = head.origins.len() as u64;
    let descriptor = Length(head.descriptor_bytes).round_up(8)?.0;
    let lists = (blocks - 1) * EXTRA_BYTES + blocks * ORIGIN_BYTES;
    let metadata = u64::from(head.metadata_bytes).next_multiple_of(8);
    let origin = if is_replica { REPLICA_ORIGIN_BYTES } else { 0 };
    let all = at_seal.checked_add(descriptor)?.checked_add(lists + origin + metadata)?;
    Some(Length(all).round_up(BLOCK_BYTES)?.0)
}
