//! Spills and restores in progress.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farrow_memory::Length;
use farrow_store::{Evicted, EvictionCandidate, EvictionPolicy, Freed, ObjectId, SpillHead};
use farrow_wire::WireError;

use crate::protocol::action::Action;
use crate::protocol::identity::SessionId;
use crate::protocol::spill_job::{SpillJob, WriteFault};

/// Pause before restores look for room again while nothing has changed: readers release holds
/// without a message.
pub(in crate::protocol) const LOOK_MS: u64 = 50;

/// Pause of all spilling after a failed write.
pub(in crate::protocol) const PAUSE_MS: u64 = 1_000;

/// A request that waits for an object.
#[derive(Debug)]
pub(in crate::protocol) struct SpillWaiter {
    pub(in crate::protocol) session: SessionId,
    pub(in crate::protocol) seq: u64,
    pub(in crate::protocol) deadline_ms: u64,
}

/// Progress of a restore.
#[derive(Debug)]
pub(in crate::protocol) enum Stage {
    /// The head of its file is being read.
    Looking,
    /// It waits for room.
    Waiting(SpillHead),
    /// Its bytes are being read.
    Loading,
}

#[derive(Debug)]
pub(in crate::protocol) struct PendingRestore {
    pub(in crate::protocol) stage: Stage,
    pub(in crate::protocol) waiters: Vec<SpillWaiter>,
}

/// A manual eviction in progress.
#[derive(Debug)]
pub(in crate::protocol) struct ManualEviction {
    pub(in crate::protocol) session: SessionId,
    pub(in crate::protocol) seq: u64,
    pub(in crate::protocol) left: BTreeSet<ObjectId>,
    pub(in crate::protocol) evicted: Evicted,
    /// Whether a file for it could not be written.
    pub(in crate::protocol) has_failed: bool,
}

/// The last failure to write a file, until a write succeeds.
#[derive(Debug)]
pub(in crate::protocol) struct SpillFailure {
    pub(in crate::protocol) fault: WriteFault,
    pub(in crate::protocol) bytes: u64,
    /// The file would have used the space to leave free.
    pub(in crate::protocol) is_of_spare: bool,
}

/// Spills and restores in progress.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Spills {
    /// Prefix of the names of files; `None`: nothing is spilled.
    pub(in crate::protocol) label: Option<String>,
    pub(in crate::protocol) now_ms: u64,
    /// Objects chosen to leave memory.
    pub(in crate::protocol) queue: VecDeque<ObjectId>,
    /// Objects being written: their bytes, and the space to leave free.
    pub(in crate::protocol) writing: BTreeMap<ObjectId, (u64, u64)>,
    /// Objects in memory with an up-to-date file: they leave memory without a write.
    pub(in crate::protocol) copied: BTreeSet<ObjectId>,
    pub(in crate::protocol) restores: BTreeMap<ObjectId, PendingRestore>,
    pub(in crate::protocol) evictions: Vec<ManualEviction>,
    pub(in crate::protocol) jobs: Vec<SpillJob>,
    pub(in crate::protocol) paused_until_ms: u64,
    pub(in crate::protocol) failure: Option<SpillFailure>,
    /// Objects could leave memory if their files could be written.
    pub(in crate::protocol) is_blocked: bool,
    /// The store's freed amount when restores last looked for room.
    pub(in crate::protocol) seen_freed: Freed,
    /// A job has ended since then.
    pub(in crate::protocol) has_settled: bool,
    /// When they look again in any case; `None`: none waits.
    pub(in crate::protocol) look_at_ms: Option<u64>,
    pub(in crate::protocol) spilled_total: u64,
    pub(in crate::protocol) restored_total: u64,
    pub(in crate::protocol) failures_total: u64,
}

impl Spills {
    pub(in crate::protocol) fn is_on(&self) -> bool {
        self.label.is_some()
    }

    pub(in crate::protocol) fn set_now(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Whether memory will become free without further requests.
    pub(in crate::protocol) fn is_making_room(&self) -> bool {
        !self.queue.is_empty() || !self.writing.is_empty()
    }

    /// Whether an object is being read back.
    pub(in crate::protocol) fn is_loading(&self) -> bool {
        self.restores.values().any(|restore| matches!(restore.stage, Stage::Loading))
    }

    pub(in crate::protocol) fn file_of(&self, id: ObjectId) -> String {
        format!("{}/{id}", self.label.as_deref().unwrap_or_default())
    }

    /// Handles the delete of an object: removes its file, if it has one.
    pub(in crate::protocol) fn deleted(&mut self, id: ObjectId, was_spilled: bool) {
        if self.copied.remove(&id) || was_spilled {
            self.forget_file(id);
        }
    }

    /// The error for a lack of memory, if failed writes are its cause.
    pub(in crate::protocol) fn failure(
        &self,
        asked: u64,
        (free, largest): (u64, u64),
        waited_ms: u64,
    ) -> Option<WireError> {
        let SpillFailure { fault, bytes, .. } =
            self.failure.as_ref().filter(|_| self.is_blocked)?;
        let folder = self.label.clone().unwrap_or_default();
        let (bytes, reason) = (*bytes, fault.reason.clone());
        Some(WireError::NotSpilled { asked, free, largest, waited_ms, folder, bytes, reason })
    }

    /// Moves new jobs to the actions.
    pub(in crate::protocol) fn take_jobs(&mut self, out: &mut Vec<Action>) {
        out.extend(self.jobs.drain(..).map(Action::Spill));
    }

    pub(in crate::protocol) fn forget_file(&mut self, id: ObjectId) {
        if self.is_on() {
            self.jobs.push(SpillJob::Forget { id });
        }
        if self.failure.as_ref().is_some_and(|failure| failure.fault.is_full) {
            // There may be space again.
            self.paused_until_ms = 0;
        }
    }

    /// Forgets the requests of an ended session.
    pub(in crate::protocol) fn forget(&mut self, session: SessionId) {
        for restore in self.restores.values_mut() {
            restore.waiters.retain(|waiter| waiter.session != session);
        }
        self.evictions.retain(|eviction| eviction.session != session);
    }

    /// Forgets one request and returns whether there was one. Work begun for it continues: other
    /// requests may need it.
    pub(in crate::protocol) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        let before = self.waiting();
        for restore in self.restores.values_mut() {
            restore.waiters.retain(|waiter| (waiter.session, waiter.seq) != (session, seq));
        }
        self.evictions.retain(|one| (one.session, one.seq) != (session, seq));
        self.waiting() < before
    }

    pub(in crate::protocol) fn waiting(&self) -> usize {
        let restores = self.restores.values().map(|restore| restore.waiters.len());
        restores.sum::<usize>() + self.evictions.len()
    }

    /// Takes out all waiting requests at shutdown.
    pub(in crate::protocol) fn drain(&mut self) -> Vec<(SessionId, u64)> {
        let waiters = self.restores.values_mut().flat_map(|one| one.waiters.drain(..));
        let mut all: Vec<_> = waiters.map(|waiter| (waiter.session, waiter.seq)).collect();
        all.extend(self.evictions.drain(..).map(|one| (one.session, one.seq)));
        all
    }

    pub(in crate::protocol) fn next_deadline_ms(&self) -> Option<u64> {
        let waiters = self.restores.values().flat_map(|restore| &restore.waiters);
        waiters.map(|waiter| waiter.deadline_ms).chain(self.look_at_ms).min()
    }

    pub(in crate::protocol) fn renamed(&mut self, id: ObjectId, new: ObjectId) {
        for eviction in &mut self.evictions {
            if eviction.left.remove(&id) {
                eviction.left.insert(new);
            }
        }
    }

    /// Whether any object waits for room to be restored.
    pub(in crate::protocol) fn is_restoring(&self) -> bool {
        self.restores.values().any(|restore| matches!(restore.stage, Stage::Waiting(_)))
    }

    /// Whether spilling is paused. Restores may use the space that was left free for them.
    pub(in crate::protocol) fn is_paused(&self) -> bool {
        let has_spare = self.failure.as_ref().is_some_and(|failure| failure.is_of_spare);
        self.now_ms < self.paused_until_ms && !(has_spare && self.is_restoring())
    }

    /// Handles a failed write: spilling pauses for a while.
    pub(in crate::protocol) fn failed(
        &mut self,
        id: ObjectId,
        (bytes, spare): (u64, u64),
        fault: WriteFault,
    ) {
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
    pub(in crate::protocol) fn settled(&mut self, id: ObjectId, freed: Option<Length>) {
        for eviction in self.evictions.iter_mut().filter(|one| one.left.contains(&id)) {
            eviction.left.remove(&id);
            eviction.evicted.objects += u32::from(freed.is_some());
            eviction.evicted.bytes.0 += freed.unwrap_or_default().0;
        }
    }
}

/// Order of another policy, of the objects that already have a file.
#[derive(Debug)]
pub(in crate::protocol) struct CopiedOrder<'a> {
    pub(in crate::protocol) policy: &'a dyn EvictionPolicy,
    pub(in crate::protocol) ids: &'a BTreeSet<ObjectId>,
}

impl EvictionPolicy for CopiedOrder<'_> {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn is_automatic(&self) -> bool {
        self.policy.is_automatic()
    }

    fn rank(&self, candidate: &EvictionCandidate) -> Option<u64> {
        if self.ids.contains(&candidate.id) { self.policy.rank(candidate) } else { None }
    }
}
