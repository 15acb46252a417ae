//! Objects leave memory for files.

use std::collections::BTreeSet;

use farrow_memory::Length;
use farrow_store::{
    Evicted, Home, NamespaceId, Need, ObjectId, Room, SpillPlan, StoreError, Target, Within,
};
use farrow_wire::WireError;

use super::Residency;
use super::order::CopiedOrder;
use super::restoring::SearchedSizes;
use super::spills::{ManualEviction, Spills, Stage};
use crate::protocol::action::Action;
use crate::protocol::context::Asker;
use crate::protocol::identity::SessionId;
use crate::protocol::limits::check_limit;
use crate::protocol::spill_job::{SpillDone, SpillJob, WriteFault};

/// Limit of objects being written at a time; the worker writes one, the others are its supply.
const WRITES_MAX: usize = 16;
/// Limit of bytes being written at a time.
const WRITE_BYTES_MAX: u64 = 1 << 30;

/// Limit of manual evictions under way, and of those of one session.
const EVICTIONS_MAX: usize = 32;
const OWN_EVICTIONS_MAX: usize = 8;

impl Residency {
    /// Enables spilling to files named `label/ID`.
    pub(in crate::protocol) fn set_spill(&mut self, label: String) {
        self.spills.label = Some(label);
    }

    /// Starts to make room, unless that is in progress. No object is lost, and none leaves memory
    /// if all together would not be enough. Returns whether any is to leave.
    pub(super) fn spill_for(&mut self, home: &mut Home, room: &Room) -> Result<bool, StoreError> {
        if self.spills.is_making_room() {
            return Ok(true);
        }
        let room = Room { runs: room.runs.clone(), ..Room::default() };
        let mut victims = home.victims_for(self.policy.as_ref(), &room)?;
        let (is_paused, could_leave) = (self.spills.is_paused(), victims.is_some());
        // After the pause the cause is still reported, until a write succeeds.
        self.spills.is_blocked = could_leave && (is_paused || self.spills.is_blocked);
        if is_paused && could_leave {
            let copied = CopiedOrder { policy: self.policy.as_ref(), ids: &self.spills.copied };
            let without_writing = home.victims_for(&copied, &room)?;
            if without_writing.is_none() && !self.make_space() {
                return Ok(false);
            }
            victims = without_writing.or(victims);
        }
        let victims = victims.unwrap_or_default();
        let are_found = !victims.is_empty();
        self.spills.queue.extend(victims);
        self.begin_spills(home);
        Ok(are_found)
    }

    /// Starts to spill objects until this many bytes in whole pages are free, unless objects are
    /// being spilled or files cannot be written at present.
    pub(super) fn spill_for_pages(
        &mut self,
        home: &mut Home,
        bytes: Length,
    ) -> Result<(), StoreError> {
        if self.spills.is_making_room() || self.spills.is_paused() {
            return Ok(());
        }
        let victims = home.victims_for_pages(self.policy.as_ref(), bytes)?;
        self.spills.queue.extend(victims.unwrap_or_default());
        self.begin_spills(home);
        Ok(())
    }

    /// If the folder is full, removes files of objects that are in memory. Returns whether there
    /// were any.
    fn make_space(&mut self) -> bool {
        let spills = &mut self.spills;
        let is_full = spills.failure.as_ref().is_some_and(|failure| failure.fault.is_full);
        if !is_full || spills.copied.is_empty() {
            return false;
        }
        for id in std::mem::take(&mut spills.copied) {
            spills.forget_file(id);
        }
        true
    }

    /// # Errors
    ///
    /// [`WireError::TooMany`]: each eviction under way keeps a list of its objects.
    pub(in crate::protocol) fn check_evictions(&self, session: SessionId) -> Result<(), WireError> {
        let all = &self.spills.evictions;
        let own = all.iter().filter(|one| one.session == session).count();
        check_limit("evictions of a client under way", own + 1, OWN_EVICTIONS_MAX)?;
        check_limit("evictions under way", all.len() + 1, EVICTIONS_MAX)
    }

    /// Starts a manual eviction. The answer follows once each of its objects has left memory or
    /// stays.
    pub(super) fn spill_by_hand(
        &mut self,
        home: &mut Home,
        asker: Asker,
        namespace: NamespaceId,
        bytes: u64,
    ) -> Result<(), StoreError> {
        let Asker { session, seq, .. } = asker;
        let within = Within { policy: self.policy.as_ref(), namespace };
        let victims = home.victims(&within, Need::Bytes(Length(bytes)))?;
        let left = victims.iter().copied().collect();
        let (evicted, has_failed) = (Evicted::default(), false);
        self.spills.evictions.push(ManualEviction { session, seq, left, evicted, has_failed });
        let queued: BTreeSet<ObjectId> = self.spills.queue.iter().copied().collect();
        self.spills.queue.extend(victims.into_iter().filter(|id| !queued.contains(id)));
        self.begin_spills(home);
        Ok(())
    }

    fn begin_spills(&mut self, home: &mut Home) {
        let is_full = |spills: &Spills| {
            spills.writing.len() >= WRITES_MAX
                || spills.writing.values().map(|(bytes, _)| bytes).sum::<u64>() >= WRITE_BYTES_MAX
        };
        while !is_full(&self.spills)
            && let Some(id) = self.spills.queue.pop_front()
        {
            match home.begin_spill(id) {
                Ok(Some(SpillPlan { head, parts })) => {
                    self.spills.renamed(id, head.id);
                    let is_copied = self.spills.copied.contains(&head.id);
                    let bytes = head.file_bytes();
                    let largest = home.largest_spilled().max(bytes);
                    let spare_bytes = if self.spills.is_restoring() { 0 } else { largest };
                    self.spills.begin_write(head.id, (bytes, spare_bytes));
                    let job = SpillJob::Write { head, parts, spare_bytes, is_copied };
                    self.spills.jobs.push(job);
                }
                Ok(None) | Err(StoreError::NotFound { .. }) => {
                    let freed = evict_replica(home, id);
                    self.spills.settled(id, freed);
                }
                Err(error) => {
                    tracing::error!(%id, %error, "an object cannot be spilled");
                    self.spills.settled(id, None);
                }
            }
        }
    }

    /// Handles the result of a job.
    pub(in crate::protocol) fn done(
        &mut self,
        home: &mut Home,
        done: SpillDone,
        out: &mut Vec<Action>,
    ) {
        self.spills.has_settled = true;
        match done {
            SpillDone::Written { id, result } => self.written(home, id, result),
            SpillDone::Looked { id, result: Ok(head) } => {
                if let Some(restore) = self.spills.restores.get_mut(&id) {
                    restore.stage = Stage::Waiting(head);
                    self.load(home, id, &mut SearchedSizes::default(), out);
                }
            }
            SpillDone::Loaded { id, result: Ok((descriptor, metadata)) } => {
                let result = home.finish_restore(id, &descriptor, &metadata);
                if result.is_ok() {
                    self.spills.restored_total += 1;
                    self.spills.copied.insert(id);
                }
                let result = result.map_err(|error| self.spills.not_restored(id, error));
                self.restored(id, result, out);
            }
            SpillDone::Looked { id, result: Err(reason) }
            | SpillDone::Loaded { id, result: Err(reason) } => {
                self.spills.failures_total += 1;
                if let Err(error) = home.abort_restore(id) {
                    tracing::error!(%id, %error, "memory is lost");
                }
                let result = match home.has(Target::Id(id)) {
                    Ok(true) => Err(self.spills.not_restored_because(id, reason)),
                    _ => Err(WireError::NotFound { what: Target::Id(id).to_string() }),
                };
                self.restored(id, result, out);
            }
        }
        self.begin_spills(home);
    }

    fn written(&mut self, home: &mut Home, id: ObjectId, result: Result<(), WriteFault>) {
        let (bytes, spare_bytes) = self.spills.end_write(id);
        match result {
            Ok(()) => {
                // The write of a smaller file does not end a recent failure.
                if self.spills.now_ms >= self.spills.paused_until_ms {
                    self.spills.failure = None;
                    self.spills.is_blocked = false;
                }
                self.leave_memory(home, id);
            }
            Err(fault) => {
                let (file, reason) = (self.spills.file_of(id), &fault.reason);
                tracing::error!(file, bytes, reason, "an object is not spilled");
                home.cancel_spill(id);
                // Removes the partial file. An earlier one was not there, or could not be looked at.
                self.spills.copied.remove(&id);
                self.spills.forget_file(id);
                self.spills.failed(id, (bytes, spare_bytes), fault);
                self.spills.settled(id, None);
            }
        }
    }

    /// Removes an object that has a file from memory, unless a reader holds it.
    fn leave_memory(&mut self, home: &mut Home, id: ObjectId) {
        let freed = home.finish_spill(id).unwrap_or_else(|error| {
            tracing::error!(%id, %error, "an object cannot leave memory");
            None
        });
        match freed {
            Some(bytes) => {
                self.spills.spilled_total += 1;
                self.spills.copied.remove(&id);
                tracing::debug!(%id, bytes = bytes.0, "an object is spilled");
            }
            // An earlier copy is still valid.
            None if self.spills.copied.contains(&id) => {}
            None => self.spills.forget_file(id),
        }
        self.spills.settled(id, freed);
    }
}

/// Evicts an object that is a replica: it needs no file, since it can be fetched again. Returns the
/// bytes that became free; `None` if it is none, or is held.
fn evict_replica(home: &mut Home, id: ObjectId) -> Option<Length> {
    if !home.is_replica(Target::Id(id)).unwrap_or(false) {
        return None;
    }
    home.evict(id).unwrap_or_else(|error| {
        tracing::error!(%id, %error, "a replica cannot be evicted");
        None
    })
}
