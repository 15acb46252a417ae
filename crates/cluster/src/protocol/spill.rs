//! Spilling: objects move from memory to files and back. Another thread works on the files: jobs
//! are actions, their results are events.

use std::collections::BTreeSet;

use farrow_memory::Length;
use farrow_store::{
    Evicted, Home, NamespaceId, Need, ObjectId, Room, SpillPlan, StoreError, Target, Within,
};
use farrow_wire::{EvictedReport, ReplyBody, WireError};

use super::action::answer_to;
use super::convert::{limit, store_error};
use super::core::spills::{
    CopiedOrder, LOOK_MS, ManualEviction, PendingRestore, SpillWaiter, Spills, Stage,
};
use super::spill_job::{SpillDone, SpillJob, WriteFault};
use super::state::NodeState;
use super::{Action, SessionId};
use crate::protocol::core::reclaim::reclaim;

/// Limit of objects being written at a time; the worker writes one, the others are its supply.
const WRITES_MAX: usize = 16;
/// Limit of bytes being written at a time.
const WRITE_BYTES_MAX: u64 = 1 << 30;

/// Limit of objects that are restored at a time.
const RESTORES_MAX: usize = 256;

/// Retries of one search for room when a reader took hold of an object that was to leave.
const RESTORE_ROUNDS_MAX: usize = 4;
/// Limit of requests that wait for spilled objects.
const WAITING_MAX: usize = 4096;

/// Longest wait of a request for a restore.
const RESTORE_MS_MAX: u64 = 60_000;

/// Longest wait for objects being spilled, of a request that may not wait for memory.
pub(super) const SPILL_MS_MAX: u64 = 8_000;

impl NodeState {
    /// Enables spilling to files named `label/ID`.
    pub fn set_spill(&mut self, label: String) {
        self.spills.label = Some(label);
    }

    /// Starts to make room, unless that is in progress. No object is lost, and none leaves memory
    /// if all together would not be enough.
    pub(super) fn spill_for(&mut self, room: &Room) -> Result<(), StoreError> {
        if self.spills.is_making_room() {
            return Ok(());
        }
        let room = Room { runs: room.runs.clone(), ..Room::default() };
        let policy = self.eviction.policy.as_ref();
        let mut victims = self.home.victims_for(policy, &room)?;
        let is_paused = self.spills.is_paused();
        self.spills.is_blocked = is_paused && victims.is_some();
        if self.spills.is_blocked {
            let copied = CopiedOrder { policy, ids: &self.spills.copied };
            let without_writing = self.home.victims_for(&copied, &room)?;
            if without_writing.is_none() && !self.make_space() {
                return Ok(());
            }
            victims = without_writing.or(victims);
        }
        self.spills.queue.extend(victims.unwrap_or_default());
        self.begin_spills();
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

    /// Starts a manual eviction. The answer follows once each of its objects has left memory or
    /// stays.
    pub(super) fn spill_by_hand(
        &mut self,
        session: SessionId,
        seq: u64,
        namespace: NamespaceId,
        bytes: u64,
    ) -> Result<(), StoreError> {
        let within = Within { policy: self.eviction.policy.as_ref(), namespace };
        let victims = self.home.victims(&within, Need::Bytes(Length(bytes)))?;
        let left = victims.iter().copied().collect();
        let (evicted, has_failed) = (Evicted::default(), false);
        self.spills.evictions.push(ManualEviction { session, seq, left, evicted, has_failed });
        let queued: BTreeSet<ObjectId> = self.spills.queue.iter().copied().collect();
        self.spills.queue.extend(victims.into_iter().filter(|id| !queued.contains(id)));
        self.begin_spills();
        Ok(())
    }

    fn begin_spills(&mut self) {
        let is_full = |spills: &Spills| {
            spills.writing.len() >= WRITES_MAX
                || spills.writing.values().map(|(bytes, _)| bytes).sum::<u64>() >= WRITE_BYTES_MAX
        };
        while !is_full(&self.spills)
            && let Some(id) = self.spills.queue.pop_front()
        {
            match self.home.begin_spill(id) {
                Ok(Some(SpillPlan { head, parts })) => {
                    self.spills.renamed(id, head.id);
                    if self.spills.copied.contains(&head.id) {
                        self.leave_memory(head.id);
                        continue;
                    }
                    let bytes = head.file_bytes();
                    let largest = self.home.largest_spilled().max(bytes);
                    let spare_bytes = if self.spills.is_restoring() { 0 } else { largest };
                    self.spills.writing.insert(head.id, (bytes, spare_bytes));
                    self.spills.jobs.push(SpillJob::Write { head, parts, spare_bytes });
                }
                Ok(None) | Err(StoreError::NotFound { .. }) => self.spills.settled(id, None),
                Err(error) => {
                    tracing::error!(%id, %error, "an object cannot be spilled");
                    self.spills.settled(id, None);
                }
            }
        }
    }

    /// Handles the result of a job.
    pub fn spill_done(&mut self, done: SpillDone, now_ms: u64, out: &mut Vec<Action>) {
        self.spills.set_now(now_ms);
        self.spills.has_settled = true;
        match done {
            SpillDone::Written { id, result } => self.written(id, result),
            SpillDone::Looked { id, result: Ok(head) } => {
                if let Some(restore) = self.spills.restores.get_mut(&id) {
                    restore.stage = Stage::Waiting(head);
                    self.load(id, out);
                }
            }
            SpillDone::Loaded { id, result: Ok((descriptor, metadata)) } => {
                let result = self.home.finish_restore(id, &descriptor, &metadata);
                if result.is_ok() {
                    self.spills.restored_total += 1;
                    self.spills.copied.insert(id);
                }
                let result = result.map_err(|error| self.not_restored(id, error));
                self.restored(id, result, out);
            }
            SpillDone::Looked { id, result: Err(reason) }
            | SpillDone::Loaded { id, result: Err(reason) } => {
                self.spills.failures_total += 1;
                if let Err(error) = self.home.abort_restore(id) {
                    tracing::error!(%id, %error, "memory is lost");
                }
                let result = match self.home.has(Target::Id(id)) {
                    Ok(true) => Err(self.not_restored_because(id, reason)),
                    _ => Err(WireError::NotFound { what: id.to_string() }),
                };
                self.restored(id, result, out);
            }
        }
        self.begin_spills();
        self.admission.look_again();
        self.reclaim.soon(&self.home, now_ms);
    }

    fn written(&mut self, id: ObjectId, result: Result<(), WriteFault>) {
        let (bytes, spare_bytes) = self.spills.writing.remove(&id).unwrap_or_default();
        match result {
            Ok(()) => {
                // The write of a smaller file does not end a recent failure.
                if self.spills.now_ms >= self.spills.paused_until_ms {
                    self.spills.failure = None;
                    self.spills.is_blocked = false;
                }
                self.leave_memory(id);
            }
            Err(fault) => {
                let (file, reason) = (self.spills.file_of(id), &fault.reason);
                tracing::error!(file, bytes, reason, "an object is not spilled");
                self.home.cancel_spill(id);
                // Removes the partial file.
                self.spills.forget_file(id);
                self.spills.failed(id, (bytes, spare_bytes), fault);
                self.spills.settled(id, None);
            }
        }
    }

    /// Removes an object that has a file from memory, unless a reader holds it.
    fn leave_memory(&mut self, id: ObjectId) {
        let freed = self.home.finish_spill(id).unwrap_or_else(|error| {
            tracing::error!(%id, %error, "an object cannot leave memory");
            None
        });
        match freed {
            Some(bytes) => {
                self.spills.spilled_total += 1;
                self.spills.copied.remove(&id);
                tracing::debug!(%id, bytes = bytes.0, "spilled");
            }
            // An earlier copy is still valid.
            None if self.spills.copied.contains(&id) => {}
            None => self.spills.forget_file(id),
        }
        self.spills.settled(id, freed);
    }

    /// Restores an object that a reader found and cannot hold. `None`: the answer follows later.
    pub(super) fn restore(
        &mut self,
        session: SessionId,
        seq: u64,
        id: ObjectId,
        now_ms: u64,
    ) -> Result<Option<ReplyBody>, WireError> {
        // An object that was leaving is by now sealed again, spilled or deleted.
        if self.home.find(Target::Id(id)).is_ok() {
            return Ok(Some(ReplyBody::Done));
        }
        let found = self.home.find_spilled(Target::Id(id)).map_err(store_error)?;
        let missing = || WireError::NotFound { what: id.to_string() };
        let id = found.ok_or_else(missing)?.id;
        if !self.spills.is_on() {
            let reason = "this node runs without --spill".to_owned();
            return Err(self.not_restored_because(id, reason));
        }
        let spills = &mut self.spills;
        let waiting: usize = spills.restores.values().map(|one| one.waiters.len()).sum();
        limit("requests that wait for spilled objects", waiting + 1, WAITING_MAX)?;
        let is_new = !spills.restores.contains_key(&id);
        limit("objects that come back", spills.restores.len() + usize::from(is_new), RESTORES_MAX)?;
        if is_new {
            spills.jobs.push(SpillJob::Look { id });
        }
        let fresh = || PendingRestore { stage: Stage::Looking, waiters: Vec::new() };
        let deadline_ms = now_ms.saturating_add(RESTORE_MS_MAX);
        let restore = spills.restores.entry(id).or_insert_with(fresh);
        restore.waiters.push(SpillWaiter { session, seq, deadline_ms });
        Ok(None)
    }

    /// Restores a spilled object without a waiting request: the reader retries by itself.
    pub(super) fn restore_soon(&mut self, id: ObjectId) {
        let is_spilled = matches!(self.home.find_spilled(Target::Id(id)), Ok(Some(_)));
        let spills = &mut self.spills;
        if !is_spilled || !spills.is_on() || spills.restores.len() >= RESTORES_MAX {
            return;
        }
        if !spills.restores.contains_key(&id) {
            spills.jobs.push(SpillJob::Look { id });
            spills
                .restores
                .insert(id, PendingRestore { stage: Stage::Looking, waiters: Vec::new() });
        }
    }

    /// Starts the read of an object if there is room for it.
    fn load(&mut self, id: ObjectId, out: &mut Vec<Action>) {
        let Some(PendingRestore { stage: Stage::Waiting(head), .. }) =
            self.spills.restores.get(&id)
        else {
            return;
        };
        let head = head.clone();
        let mut begun = self.home.begin_restore(&head);
        for _ in 0..RESTORE_ROUNDS_MAX {
            if self.spills.is_making_room() || !matches!(begun, Err(StoreError::OutOfMemory { .. }))
            {
                break;
            }
            reclaim(&mut self.home);
            let bytes = Home::restored_bytes(&head).unwrap_or_default();
            if let Err(error) = self.spill_for(&Room::of_run(bytes)) {
                tracing::error!(%error, "no room can be made");
            }
            begun = self.home.begin_restore(&head);
        }
        match begun {
            Ok(blocks) => {
                if let Some(restore) = self.spills.restores.get_mut(&id) {
                    restore.stage = Stage::Loading;
                }
                self.spills.jobs.push(SpillJob::Load { head, blocks });
            }
            // An object being restored can leave memory again once it is complete.
            Err(StoreError::OutOfMemory { .. })
                if self.spills.is_making_room() || self.spills.is_loading() => {}
            Err(StoreError::OutOfMemory { asked, free, largest }) => {
                let blocked = self.spills.failure(asked.0, (free.0, largest.0), 0);
                let error = StoreError::OutOfMemory { asked, free, largest };
                self.restored(id, Err(blocked.unwrap_or_else(|| store_error(error))), out);
            }
            Err(error) => {
                let error = self.not_restored(id, error);
                self.restored(id, Err(error), out);
            }
        }
    }

    /// Does the work that is due: room for restores, answers, jobs.
    pub(super) fn tick_spills(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let freed = self.home.freed();
        let has_settled = std::mem::take(&mut self.spills.has_settled);
        let is_due = self.spills.look_at_ms.is_some_and(|at_ms| at_ms <= now_ms);
        let is_idle = !self.spills.is_making_room() && (has_settled || is_due);
        // A look visits all objects.
        if self.spills.seen_freed != freed || is_idle {
            self.spills.seen_freed = freed;
            self.spills.look_at_ms = None;
            let is_waiting = |restore: &PendingRestore| matches!(restore.stage, Stage::Waiting(_));
            let all = self.spills.restores.iter().filter(|(_, one)| is_waiting(one));
            for id in all.map(|(id, _)| *id).collect::<Vec<_>>() {
                self.load(id, out);
            }
        }
        match self.spills.is_restoring() {
            true => drop(self.spills.look_at_ms.get_or_insert(now_ms.saturating_add(LOOK_MS))),
            false => self.spills.look_at_ms = None,
        }
        self.expire_restores(now_ms, out);
        self.answer_evictions(out);
    }

    fn expire_restores(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let mut late = Vec::new();
        for (id, restore) in &mut self.spills.restores {
            let is_late = |waiter: &mut SpillWaiter| waiter.deadline_ms <= now_ms;
            late.extend(restore.waiters.extract_if(.., is_late).map(|waiter| (*id, waiter)));
        }
        for (id, waiter) in late {
            let reason = format!("nothing within {RESTORE_MS_MAX} ms");
            let error = self.not_restored_because(id, reason);
            out.push(answer_to(waiter.session, waiter.seq, Err(error)));
        }
    }

    fn answer_evictions(&mut self, out: &mut Vec<Action>) {
        let is_over = |eviction: &mut ManualEviction| eviction.left.is_empty();
        let (free, largest) = self.home.free_bytes();
        for over in self.spills.evictions.extract_if(.., is_over).collect::<Vec<_>>() {
            let failure = match over.has_failed && over.evicted.objects == 0 {
                true => self.spills.failure(0, (free.0, largest.0), 0),
                false => None,
            };
            let report = self.evicted_report(over.evicted).map_err(store_error);
            out.push(answer_to(over.session, over.seq, failure.map_or(report, Err)));
        }
    }

    fn restored(&mut self, id: ObjectId, result: Result<(), WireError>, out: &mut Vec<Action>) {
        let Some(restore) = self.spills.restores.remove(&id) else {
            return;
        };
        for SpillWaiter { session, seq, .. } in restore.waiters {
            out.push(answer_to(session, seq, result.clone().map(|()| ReplyBody::Done)));
        }
    }

    fn not_restored(&self, id: ObjectId, error: StoreError) -> WireError {
        match error {
            StoreError::NotFound { .. } | StoreError::OutOfMemory { .. } => store_error(error),
            error => self.not_restored_because(id, error.to_string()),
        }
    }

    fn not_restored_because(&self, id: ObjectId, reason: String) -> WireError {
        WireError::NotRestored { what: id.to_string(), file: self.spills.file_of(id), reason }
    }

    pub(super) fn evicted_report(&self, evicted: Evicted) -> Result<ReplyBody, StoreError> {
        let stats = self.home.stats()?;
        Ok(ReplyBody::Evicted(EvictedReport {
            objects: evicted.objects.into(),
            bytes: evicted.bytes.0,
            held: stats.held.0,
            pinned: stats.pinned.0,
            granted: stats.granted.0,
            retiring: stats.retiring.0,
        }))
    }
}

#[cfg(test)]
mod tests;
