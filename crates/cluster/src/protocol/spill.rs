//! Objects leave memory for files and come back. The files are another thread's: jobs go out,
//! what became of them comes in.

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

/// Objects that are being written at a time, and bytes of them: beyond either the next one waits.
/// The worker has one at a time in hand; this is what it need not be asked again for.
const WRITES_MAX: usize = 16;
const WRITE_BYTES_MAX: u64 = 1 << 30;

/// Objects that come back at a time, and requests that wait for any of them.
const RESTORES_MAX: usize = 256;

/// How often one look for room begins again when a reader took hold of an object that was to leave.
const RESTORE_ROUNDS_MAX: usize = 4;
const WAITING_MAX: usize = 4096;

/// A request waits so long for an object to come back.
const RESTORE_MS_MAX: u64 = 60_000;

/// A request that may not wait for memory waits so long for objects that are on their way out.
pub(super) const SPILL_MS_MAX: u64 = 8_000;

/// After a file could not be written, nothing is tried for so long.
const PAUSE_MS: u64 = 1_000;

/// What is to be done with files, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpillJob {
    /// Write an object.
    Write {
        /// The first bytes of the file.
        head: SpillHead,
        /// Where the parts lie that follow.
        parts: Vec<Span>,
        /// Bytes that are to be left in a folder, so that what is in it can come back: another
        /// object has to leave memory for it first.
        spare_bytes: u64,
    },
    /// Read the head of a file.
    Look {
        /// Of this object.
        id: ObjectId,
    },
    /// Read an object.
    Load {
        /// What its file says.
        head: SpillHead,
        /// Where its blocks go.
        blocks: Vec<Span>,
    },
    /// Remove a file.
    Forget {
        /// Of this object.
        id: ObjectId,
    },
}

/// Why a file could not be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteFault {
    /// There is no space left where it was to be.
    pub is_full: bool,
    /// What the system says.
    pub reason: String,
}

/// What became of a job; an error is in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpillDone {
    /// An object is in its file.
    Written {
        /// The object.
        id: ObjectId,
        /// Whether it is.
        result: Result<(), WriteFault>,
    },
    /// The head of a file was read.
    Looked {
        /// The object.
        id: ObjectId,
        /// What it says.
        result: Result<SpillHead, String>,
    },
    /// An object is in its blocks.
    Loaded {
        /// The object.
        id: ObjectId,
        /// Its descriptor and its metadata.
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

/// How far an object has come back.
#[derive(Debug)]
enum Stage {
    /// Its file is asked how long it is.
    Looking,
    /// It waits for room.
    Waiting(SpillHead),
    /// Its bytes are read.
    Loading,
}

#[derive(Debug)]
struct PendingRestore {
    stage: Stage,
    waiters: Vec<SpillWaiter>,
}

/// An eviction by hand that is under way.
#[derive(Debug)]
struct ManualEviction {
    session: SessionId,
    seq: u64,
    left: BTreeSet<ObjectId>,
    evicted: Evicted,
    /// A file could not be written for it.
    has_failed: bool,
}

/// The last file that could not be written, until one can.
#[derive(Debug)]
struct SpillFailure {
    fault: WriteFault,
    bytes: u64,
    /// Less would have been left than is to be.
    is_of_spare: bool,
}

/// What is on its way out and back.
#[derive(Debug, Default)]
pub(super) struct Spills {
    /// What files are called; none: nothing is spilled.
    label: Option<String>,
    now_ms: u64,
    /// Chosen to go.
    queue: VecDeque<ObjectId>,
    /// Being written, with their bytes, and those that are to be left.
    writing: BTreeMap<ObjectId, (u64, u64)>,
    /// In memory, with a file that still has the same bytes: these need not be written to leave.
    copied: BTreeSet<ObjectId>,
    restores: BTreeMap<ObjectId, PendingRestore>,
    evictions: Vec<ManualEviction>,
    jobs: Vec<SpillJob>,
    paused_until_ms: u64,
    failure: Option<SpillFailure>,
    /// Objects might leave if their files could be written.
    is_blocked: bool,
    /// What the store had freed when restores last looked for room.
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

    /// Whether memory will come free without anybody's doing.
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

    /// An object was deleted: its file goes, if it has one.
    pub(super) fn deleted(&mut self, id: ObjectId, was_spilled: bool) {
        if self.copied.remove(&id) || was_spilled {
            self.forget_file(id);
        }
    }

    /// Why there is no memory, if that is because files cannot be written.
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
            // There is space again, or may be.
            self.paused_until_ms = 0;
        }
    }

    /// Forgets the requests of a session that went.
    pub(super) fn forget(&mut self, session: SessionId) {
        for restore in self.restores.values_mut() {
            restore.waiters.retain(|waiter| waiter.session != session);
        }
        self.evictions.retain(|eviction| eviction.session != session);
    }

    /// Forgets one request. False: there is none. What was begun for it goes on: others may want
    /// it too.
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

    /// Takes out all requests that wait, for the end.
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

    /// Whether some object waits for room to come back to.
    fn is_restoring(&self) -> bool {
        self.restores.values().any(|restore| matches!(restore.stage, Stage::Waiting(_)))
    }

    /// Whether nothing is to be tried yet. What is left in the folder is for those that come back.
    fn is_paused(&self) -> bool {
        let has_spare = self.failure.as_ref().is_some_and(|failure| failure.is_of_spare);
        self.now_ms < self.paused_until_ms && !(has_spare && self.is_restoring())
    }

    /// A file could not be written: nothing more is tried for a while.
    fn failed(&mut self, id: ObjectId, (bytes, spare): (u64, u64), fault: WriteFault) {
        for eviction in self.evictions.iter_mut().filter(|one| one.left.contains(&id)) {
            eviction.has_failed = true;
        }
        self.failures_total += 1;
        self.paused_until_ms = self.now_ms.saturating_add(PAUSE_MS);
        let is_of_spare = fault.is_full && spare > 0;
        self.failure = Some(SpillFailure { fault, bytes, is_of_spare });
        self.is_blocked = true;
        for id in std::mem::take(&mut self.queue) {
            self.settled(id, None);
        }
    }

    /// An object has gone, or stays: so many bytes are free.
    fn settled(&mut self, id: ObjectId, freed: Option<Length>) {
        for eviction in self.evictions.iter_mut().filter(|one| one.left.contains(&id)) {
            eviction.left.remove(&id);
            eviction.evicted.objects += u32::from(freed.is_some());
            eviction.evicted.bytes.0 += freed.unwrap_or_default().0;
        }
    }
}

impl NodeState {
    /// Spills to files from now on, which are called `label/ID`. Without this call nothing is.
    pub fn set_spill(&mut self, label: String) {
        self.spills.label = Some(label);
    }

    /// Starts to make room, unless that is under way. Nothing is lost by it, and nothing leaves
    /// memory where all of it would not be enough.
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

    /// Where files find no space, those that are only copies go. False: there are none.
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

    /// An eviction by hand; answered when all that goes for it is gone.
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

    /// A job is done.
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
                // One that was smaller than what failed just now says nothing.
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
                // What of it was written.
                self.spills.forget_file(id);
                self.spills.failed(id, (bytes, spare_bytes), fault);
                self.spills.settled(id, None);
            }
        }
    }

    /// An object that has a file leaves memory, unless somebody holds it.
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
            // A copy that was there before is as good as it was.
            None if self.spills.copied.contains(&id) => {}
            None => self.spills.forget_file(id),
        }
        self.spills.settled(id, freed);
    }

    /// A reader found an object that it cannot hold. `None`: it is told when it can.
    pub(super) fn restore(
        &mut self,
        session: SessionId,
        seq: u64,
        id: ObjectId,
        now_ms: u64,
    ) -> Result<Option<ReplyBody>, WireError> {
        // One that was leaving is sealed again by now, or spilled, or gone.
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

    /// Has a spilled object brought back for nobody in particular: somebody looks for it again and again.
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

    /// Has an object read, if there is room for it by now.
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
            // What is coming back now can leave again as soon as it is there.
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

    /// Does what has come due: room for those that come back, answers, jobs.
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

    /// Jobs that came up.
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

/// Another policy's order, of the objects that have a file already.
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
