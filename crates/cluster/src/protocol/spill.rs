//! Spilling: objects move from memory to files and back. Another thread works on the files: jobs
//! are actions, their results are events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farrow_memory::{Length, Span};
use farrow_store::{
    Evicted, EvictionCandidate, EvictionPolicy, Freed, Home, NamespaceId, Need, ObjectId, Room,
    SpillHead, SpillPlan, StoreError, Target, Within,
};
use farrow_wire::{ReplyBody, WireError};

use super::admission::answer_to;
use super::convert::{limit, store_error};
use super::node::NodeState;
use super::{Action, SessionId};

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

/// Pause of all spilling after a failed write.
const PAUSE_MS: u64 = 1_000;

/// Work on files, in the order of the jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpillJob {
    /// Write an object.
    Write {
        /// The first bytes of the file.
        head: SpillHead,
        /// Positions of the parts that follow.
        parts: Vec<Span>,
        /// Space to leave free in the folder. A restore needs it: another object may have to leave
        /// memory first.
        spare_bytes: u64,
    },
    /// Read the head of a file.
    Look {
        /// The object.
        id: ObjectId,
    },
    /// Read an object.
    Load {
        /// The head of its file.
        head: SpillHead,
        /// Destination of its blocks.
        blocks: Vec<Span>,
    },
    /// Remove a file.
    Forget {
        /// The object of the file.
        id: ObjectId,
    },
}

/// Failure to write a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteFault {
    /// No space was left for the file.
    pub is_full: bool,
    /// Error message of the system.
    pub reason: String,
}

/// Result of a job; an error is a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpillDone {
    /// An object is in its file.
    Written {
        /// The object.
        id: ObjectId,
        /// Success, or the failure.
        result: Result<(), WriteFault>,
    },
    /// The head of a file was read.
    Looked {
        /// The object.
        id: ObjectId,
        /// The head, or the error.
        result: Result<SpillHead, String>,
    },
    /// An object is in its blocks.
    Loaded {
        /// The object.
        id: ObjectId,
        /// Its descriptor and its metadata, or the error.
        result: Result<(Vec<u8>, Vec<u8>), String>,
    },
}

/// A request that waits for an object.
#[derive(Debug)]
struct SpillWaiter {
    session: SessionId,
    seq: u64,
    deadline_ms: u64,
}

/// Progress of a restore.
#[derive(Debug)]
enum Stage {
    /// The head of its file is being read.
    Looking,
    /// It waits for room.
    Waiting(SpillHead),
    /// Its bytes are being read.
    Loading,
}

#[derive(Debug)]
struct PendingRestore {
    stage: Stage,
    waiters: Vec<SpillWaiter>,
}

/// A manual eviction in progress.
#[derive(Debug)]
struct ManualEviction {
    session: SessionId,
    seq: u64,
    left: BTreeSet<ObjectId>,
    evicted: Evicted,
    /// Whether a file for it could not be written.
    has_failed: bool,
}

/// The last failure to write a file, until a write succeeds.
#[derive(Debug)]
struct SpillFailure {
    fault: WriteFault,
    bytes: u64,
    /// The file would have used the space to leave free.
    is_of_spare: bool,
}

/// Spills and restores in progress.
#[derive(Debug, Default)]
pub(super) struct Spills {
    /// Prefix of the names of files; `None`: nothing is spilled.
    label: Option<String>,
    now_ms: u64,
    /// Objects chosen to leave memory.
    queue: VecDeque<ObjectId>,
    /// Objects being written: their bytes, and the space to leave free.
    writing: BTreeMap<ObjectId, (u64, u64)>,
    /// Objects in memory with an up-to-date file: they leave memory without a write.
    copied: BTreeSet<ObjectId>,
    restores: BTreeMap<ObjectId, PendingRestore>,
    evictions: Vec<ManualEviction>,
    jobs: Vec<SpillJob>,
    paused_until_ms: u64,
    failure: Option<SpillFailure>,
    /// Objects could leave memory if their files could be written.
    is_blocked: bool,
    /// The store's freed amount when restores last looked for room.
    seen_freed: Freed,
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
    fn is_loading(&self) -> bool {
        self.restores.values().any(|restore| matches!(restore.stage, Stage::Loading))
    }

    pub(super) fn file_of(&self, id: ObjectId) -> String {
        format!("{}/{id}", self.label.as_deref().unwrap_or_default())
    }

    /// Handles the delete of an object: removes its file, if it has one.
    pub(super) fn deleted(&mut self, id: ObjectId, was_spilled: bool) {
        if self.copied.remove(&id) || was_spilled {
            self.forget_file(id);
        }
    }

    /// The error for a lack of memory, if failed writes are its cause.
    pub(super) fn failure(
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

    fn forget_file(&mut self, id: ObjectId) {
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

    fn waiting(&self) -> usize {
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
        waiters.map(|waiter| waiter.deadline_ms).min()
    }

    fn renamed(&mut self, id: ObjectId, new: ObjectId) {
        for eviction in &mut self.evictions {
            if eviction.left.remove(&id) {
                eviction.left.insert(new);
            }
        }
    }

    /// Whether any object waits for room to be restored.
    fn is_restoring(&self) -> bool {
        self.restores.values().any(|restore| matches!(restore.stage, Stage::Waiting(_)))
    }

    /// Whether spilling is paused. Restores may use the space that was left free for them.
    fn is_paused(&self) -> bool {
        let has_spare = self.failure.as_ref().is_some_and(|failure| failure.is_of_spare);
        self.now_ms < self.paused_until_ms && !(has_spare && self.is_restoring())
    }

    /// Handles a failed write: spilling pauses for a while.
    fn failed(&mut self, id: ObjectId, (bytes, spare): (u64, u64), fault: WriteFault) {
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
    fn settled(&mut self, id: ObjectId, freed: Option<Length>) {
        for eviction in self.evictions.iter_mut().filter(|one| one.left.contains(&id)) {
            eviction.left.remove(&id);
            eviction.evicted.objects += u32::from(freed.is_some());
            eviction.evicted.bytes.0 += freed.unwrap_or_default().0;
        }
    }
}

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
        self.reclaim_soon(now_ms);
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
            self.reclaim();
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
        let is_waiting = |restore: &PendingRestore| matches!(restore.stage, Stage::Waiting(_));
        if self.spills.seen_freed != freed || !self.spills.is_making_room() {
            self.spills.seen_freed = freed;
            let all = self.spills.restores.iter().filter(|(_, one)| is_waiting(one));
            for id in all.map(|(id, _)| *id).collect::<Vec<_>>() {
                self.load(id, out);
            }
        }
        self.expire_restores(now_ms, out);
        self.answer_evictions(out);
    }

    /// Moves new jobs to the actions.
    pub(super) fn take_jobs(&mut self, out: &mut Vec<Action>) {
        out.extend(self.spills.jobs.drain(..).map(Action::Spill));
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
}

/// Order of another policy, of the objects that already have a file.
#[derive(Debug)]
struct CopiedOrder<'a> {
    policy: &'a dyn EvictionPolicy,
    ids: &'a BTreeSet<ObjectId>,
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
