//! Spills and restores in progress.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farrow_memory::Length;
use farrow_store::{Evicted, Freed, ObjectId, SpillHead, StoreError};
use farrow_wire::{NotRestored, NotSpilled, WireError};

use crate::protocol::action::Action;
use crate::protocol::convert::store_error;
use crate::protocol::identity::SessionId;
use crate::protocol::spill_job::{SpillJob, WriteFault};

/// Pause before restores look for room again while nothing has changed: readers release holds
/// without a message.
pub(super) const LOOK_MS: u64 = 50;

/// Pause of all spilling after a failed write.
pub(super) const PAUSE_MS: u64 = 1_000;

/// Longest wait for objects being spilled, of a request that may not wait for memory.
pub(in crate::protocol) const SPILL_MS_MAX: u64 = 8_000;

/// Time after which a write that has not ended is the reason of a lack of memory: half of the wait
/// of a request, since the write may have begun after it.
const STALL_MS: u64 = SPILL_MS_MAX / 2;

/// A request that waits for an object.
#[derive(Debug)]
pub(super) struct SpillWaiter {
    pub(super) session: SessionId,
    pub(super) seq: u64,
    pub(super) deadline_ms: u64,
}

/// Progress of a restore.
#[derive(Debug)]
pub(super) enum Stage {
    /// As many objects come back as may at a time.
    Queued,
    /// The head of its file is being read.
    Looking,
    /// It waits for room.
    Waiting(SpillHead),
    /// Its bytes are being read.
    Loading,
}

#[derive(Debug)]
pub(super) struct PendingRestore {
    pub(super) stage: Stage,
    pub(super) waiters: Vec<SpillWaiter>,
}

/// A manual eviction in progress.
#[derive(Debug)]
pub(super) struct ManualEviction {
    pub(super) session: SessionId,
    pub(super) seq: u64,
    pub(super) left: BTreeSet<ObjectId>,
    pub(super) evicted: Evicted,
    /// Whether a file for it could not be written.
    pub(super) has_failed: bool,
}

/// The last failure to write a file, until a write succeeds.
#[derive(Debug)]
pub(super) struct SpillFailure {
    pub(super) fault: WriteFault,
    pub(super) bytes: u64,
    /// The file would have used the space to leave free.
    pub(super) is_of_spare: bool,
}

/// Spills and restores in progress.
#[derive(Debug, Default)]
pub(super) struct Spills {
    /// Prefix of the names of files; `None`: nothing is spilled.
    pub(super) label: Option<String>,
    pub(super) now_ms: u64,
    /// Objects chosen to leave memory.
    pub(super) queue: VecDeque<ObjectId>,
    /// Objects being written: their bytes, and the space to leave free.
    pub(super) writing: BTreeMap<ObjectId, (u64, u64)>,
    /// When the oldest of these writes began, or the one before it ended.
    pub(super) writing_since_ms: u64,
    /// Objects in memory with an up-to-date file: they leave memory without a write, if it is there.
    pub(super) copied: BTreeSet<ObjectId>,
    pub(super) restores: BTreeMap<ObjectId, PendingRestore>,
    /// Those of them that are queued, in order of arrival.
    pub(super) restore_queue: VecDeque<ObjectId>,
    /// Objects that could not be restored since the last [`Residency::take_unrestored`], and why.
    ///
    /// [`Residency::take_unrestored`]: super::Residency::take_unrestored
    pub(super) unrestored: Vec<(ObjectId, String)>,
    pub(super) evictions: Vec<ManualEviction>,
    pub(super) jobs: Vec<SpillJob>,
    pub(super) paused_until_ms: u64,
    pub(super) failure: Option<SpillFailure>,
    /// Objects could leave memory if their files could be written.
    pub(super) is_blocked: bool,
    /// The store's freed amount when restores last looked for room.
    pub(super) seen_freed: Freed,
    /// A job has ended since then.
    pub(super) has_settled: bool,
    /// When they look again in any case; `None`: none waits.
    pub(super) look_at_ms: Option<u64>,
    pub(super) spilled_total: u64,
    pub(super) restored_total: u64,
    pub(super) failures_total: u64,
}

impl Spills {
    pub(super) fn is_on(&self) -> bool {
        self.label.is_some()
    }

    pub(super) fn set_now(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Whether memory will become free without further requests.
    pub(super) fn is_making_room(&self) -> bool {
        !self.queue.is_empty() || !self.writing.is_empty()
    }

    /// Whether an object is being read back.
    pub(super) fn is_loading(&self) -> bool {
        self.restores.values().any(|restore| matches!(restore.stage, Stage::Loading))
    }

    pub(super) fn file_of(&self, id: ObjectId) -> String {
        format!("{}/{id}", self.label.as_deref().unwrap_or_default())
    }

    /// Notes that an object is being written: its bytes, and the space to leave free.
    pub(super) fn begin_write(&mut self, id: ObjectId, bytes: (u64, u64)) {
        if self.writing.is_empty() {
            self.writing_since_ms = self.now_ms;
        }
        self.writing.insert(id, bytes);
    }

    /// Notes the end of a write. Returns what was noted at its begin.
    pub(super) fn end_write(&mut self, id: ObjectId) -> (u64, u64) {
        self.writing_since_ms = self.now_ms;
        self.writing.remove(&id).unwrap_or_default()
    }

    /// Handles the delete of an object: removes its file, if it has one.
    pub(super) fn deleted(&mut self, id: ObjectId, was_spilled: bool) {
        if self.copied.remove(&id) || was_spilled {
            self.forget_file(id);
        }
    }

    /// The error for a lack of memory, if failed writes or a write that does not end are its cause.
    pub(super) fn failure(
        &self,
        requested: u64,
        (free, largest): (u64, u64),
        waited_ms: u64,
    ) -> Option<WireError> {
        let failure = self.failure.as_ref().filter(|_| self.is_blocked);
        let failure = failure.map(|one| (one.bytes, one.fault.reason.clone()));
        let (bytes, reason) = failure.or_else(|| self.stall())?;
        let folder = self.label.clone().unwrap_or_default();
        Some(WireError::NotSpilled(NotSpilled {
            requested,
            free,
            largest,
            waited_ms,
            folder,
            bytes,
            reason,
        }))
    }

    /// The bytes of a write that does not end, and the reason why that is a failure.
    fn stall(&self) -> Option<(u64, String)> {
        let ms = self.now_ms.saturating_sub(self.writing_since_ms);
        let (bytes, _) = self.writing.values().next().filter(|_| ms >= STALL_MS)?;
        Some((*bytes, format!("no answer for {} s", ms / 1000)))
    }

    /// Moves new jobs to the actions.
    pub(super) fn take_jobs(&mut self, out: &mut Vec<Action>) {
        out.extend(self.jobs.drain(..).map(Action::Spill));
    }

    pub(super) fn forget_file(&mut self, id: ObjectId) {
        if self.is_on() {
            self.jobs.push(SpillJob::Forget { id });
        }
        if self.failure.as_ref().is_some_and(|failure| failure.fault.is_full) {
            // There may be space again.
            self.paused_until_ms = 0;
        }
    }

    /// Forgets the requests of an ended session.
    pub(super) fn forget(&mut self, session: SessionId) {
        for restore in self.restores.values_mut() {
            restore.waiters.retain(|waiter| waiter.session != session);
        }
        self.evictions.retain(|eviction| eviction.session != session);
    }

    /// Forgets one request and returns whether there was one. Work begun for it continues: other
    /// requests may need it.
    pub(super) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        let before = self.waiting();
        for restore in self.restores.values_mut() {
            restore.waiters.retain(|waiter| (waiter.session, waiter.seq) != (session, seq));
        }
        self.evictions.retain(|one| (one.session, one.seq) != (session, seq));
        self.waiting() < before
    }

    pub(super) fn waiting(&self) -> usize {
        let restores = self.restores.values().map(|restore| restore.waiters.len());
        restores.sum::<usize>() + self.evictions.len()
    }

    /// Takes out all waiting requests at shutdown.
    pub(super) fn drain(&mut self) -> Vec<(SessionId, u64)> {
        let waiters = self.restores.values_mut().flat_map(|one| one.waiters.drain(..));
        let mut all: Vec<_> = waiters.map(|waiter| (waiter.session, waiter.seq)).collect();
        all.extend(self.evictions.drain(..).map(|one| (one.session, one.seq)));
        all
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        let waiters = self.restores.values().flat_map(|restore| &restore.waiters);
        waiters.map(|waiter| waiter.deadline_ms).chain(self.look_at_ms).min()
    }

    pub(super) fn renamed(&mut self, id: ObjectId, new: ObjectId) {
        for eviction in &mut self.evictions {
            if eviction.left.remove(&id) {
                eviction.left.insert(new);
            }
        }
    }

    /// Whether any object waits for room to be restored.
    pub(super) fn is_restoring(&self) -> bool {
        self.restores.values().any(|restore| matches!(restore.stage, Stage::Waiting(_)))
    }

    /// Whether spilling is paused. Restores may use the space that was left free for them.
    pub(super) fn is_paused(&self) -> bool {
        let has_spare = self.failure.as_ref().is_some_and(|failure| failure.is_of_spare);
        self.now_ms < self.paused_until_ms && !(has_spare && self.is_restoring())
    }

    /// Handles a failed write: spilling pauses for a while.
    pub(super) fn failed(&mut self, id: ObjectId, (bytes, spare): (u64, u64), fault: WriteFault) {
        let given_up = std::mem::take(&mut self.queue);
        for eviction in &mut self.evictions {
            let mut all = given_up.iter().chain([&id]);
            eviction.has_failed |= all.any(|id| eviction.left.contains(id));
        }
        self.failures_total += 1;
        self.paused_until_ms = self.now_ms.saturating_add(PAUSE_MS);
        let is_of_spare = fault.is_full && spare > 0;
        self.failure = Some(SpillFailure { fault, bytes, is_of_spare });
        self.is_blocked = true;
        for id in given_up {
            self.settled(id, None);
        }
    }

    /// Notes that an object has left memory, or stays; `freed` is the memory that became free.
    pub(super) fn settled(&mut self, id: ObjectId, freed: Option<Length>) {
        for eviction in self.evictions.iter_mut().filter(|one| one.left.contains(&id)) {
            eviction.left.remove(&id);
            eviction.evicted.objects += u32::from(freed.is_some());
            eviction.evicted.bytes.0 += freed.unwrap_or_default().0;
        }
    }

    pub(super) fn not_restored(&self, id: ObjectId, error: StoreError) -> WireError {
        match error {
            StoreError::NotFound { .. } | StoreError::OutOfMemory { .. } => store_error(error),
            error => self.not_restored_because(id, error.to_string()),
        }
    }

    pub(super) fn not_restored_because(&self, id: ObjectId, reason: String) -> WireError {
        WireError::NotRestored(NotRestored { what: id.to_string(), file: self.file_of(id), reason })
    }
}
