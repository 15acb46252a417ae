//! Objects come back from files into memory.

use farrow_memory::Length;
use farrow_store::{Home, ObjectId, Room, StoreError, Target};
use farrow_wire::{ReplyBody, WireError};

use super::Residency;
use super::room::evicted_report;
use super::room::make_room_of_replicas;
use super::spills::{LOOK_MS, ManualEviction, PendingRestore, SpillWaiter, Stage};
use crate::protocol::action::{Action, answer_to};
use crate::protocol::context::Asker;
use crate::protocol::convert::store_error;
use crate::protocol::core::reclaim::reclaim_for;
use crate::protocol::limits::check_limit;
use crate::protocol::spill_job::SpillJob;

/// Limit of objects that are restored at a time. Further ones wait.
pub(super) const RESTORES_MAX: usize = 256;

/// Retries of one search for room when a reader took hold of an object that was to leave.
const RESTORE_ROUNDS_MAX: usize = 4;
/// Limit of requests that wait for spilled objects, and of those of one client.
const WAITING_MAX: usize = 4096;
const WAITING_PER_SESSION_MAX: usize = 1024;

/// Longest wait of a request for a restore.
const RESTORE_MS_MAX: u64 = 60_000;

/// What a turn has learned of sizes for which there is no room: each search looks at all objects,
/// several times.
#[derive(Debug, Default)]
pub(super) struct SearchedSizes {
    /// The least size for which no object could leave memory.
    least_in_vain: Option<Length>,
}

impl SearchedSizes {
    fn is_worth_a_search(&self, bytes: Length) -> bool {
        self.least_in_vain.is_none_or(|least| bytes < least)
    }

    fn note_in_vain(&mut self, bytes: Length) {
        self.least_in_vain = Some(bytes);
    }
}

impl Residency {
    /// Restores an object that a reader found and cannot hold. `None`: the answer follows later.
    pub(in crate::protocol) fn restore(
        &mut self,
        home: &Home,
        asker: Asker,
        id: ObjectId,
        now_ms: u64,
    ) -> Result<Option<ReplyBody>, WireError> {
        // An object that was leaving is by now sealed again, spilled or deleted.
        if home.find(Target::Id(id)).is_ok() {
            return Ok(Some(ReplyBody::Done));
        }
        let found = home.find_spilled(Target::Id(id)).map_err(store_error)?;
        let missing = || WireError::NotFound { what: Target::Id(id).to_string() };
        let id = found.ok_or_else(missing)?.id;
        if !self.spills.is_on() {
            let reason = "this node runs without --spill".to_owned();
            return Err(self.spills.not_restored_because(id, reason));
        }
        let Asker { session, seq, .. } = asker;
        let spills = &mut self.spills;
        let waiters = || spills.restores.values().flat_map(|one| &one.waiters);
        let own = waiters().filter(|waiter| waiter.session == session).count();
        let what = "requests of a client that wait for spilled objects";
        check_limit(what, own + 1, WAITING_PER_SESSION_MAX)?;
        check_limit("requests that wait for spilled objects", waiters().count() + 1, WAITING_MAX)?;
        if !spills.restores.contains_key(&id) {
            spills.restore_queue.push_back(id);
        }
        let fresh = || PendingRestore { stage: Stage::Queued, waiters: Vec::new() };
        let deadline_ms = now_ms.saturating_add(RESTORE_MS_MAX);
        let restore = spills.restores.entry(id).or_insert_with(fresh);
        restore.waiters.push(SpillWaiter { session, seq, deadline_ms });
        self.begin_restores();
        Ok(None)
    }

    /// Begins the restores that are queued, as far as the limit allows.
    fn begin_restores(&mut self) {
        let spills = &mut self.spills;
        if spills.restore_queue.is_empty() {
            return;
        }
        let begun = spills.restores.values().filter(|one| !matches!(one.stage, Stage::Queued));
        let mut left = RESTORES_MAX.saturating_sub(begun.count());
        while left > 0
            && let Some(id) = spills.restore_queue.pop_front()
        {
            let Some(restore) = spills.restores.get_mut(&id) else { continue };
            if !matches!(restore.stage, Stage::Queued) {
                continue;
            }
            if restore.waiters.is_empty() {
                // Its requests have ended.
                spills.restores.remove(&id);
                continue;
            }
            restore.stage = Stage::Looking;
            spills.jobs.push(SpillJob::Look { id });
            left -= 1;
        }
    }

    /// Restores a spilled object without a waiting request: the reader retries by itself.
    pub(in crate::protocol) fn restore_soon(&mut self, home: &Home, id: ObjectId) {
        let is_spilled = matches!(home.find_spilled(Target::Id(id)), Ok(Some(_)));
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

    /// Objects that could not be restored since the last call, and why. Readers on other nodes have no
    /// request here that would be answered.
    pub(in crate::protocol) fn take_unrestored(&mut self) -> Vec<(ObjectId, String)> {
        std::mem::take(&mut self.spills.unrestored)
    }

    /// Starts the read of an object if there is room for it.
    pub(super) fn load(
        &mut self,
        home: &mut Home,
        id: ObjectId,
        searched: &mut SearchedSizes,
        out: &mut Vec<Action>,
    ) {
        let Some(PendingRestore { stage: Stage::Waiting(head), .. }) =
            self.spills.restores.get(&id)
        else {
            return;
        };
        let head = head.clone();
        let bytes = Home::restored_bytes(&head).unwrap_or_default();
        let mut begun = home.begin_restore(&head);
        for _ in 0..RESTORE_ROUNDS_MAX {
            let is_full = matches!(begun, Err(StoreError::OutOfMemory { .. }));
            if !is_full || self.spills.is_making_room() || !searched.is_worth_a_search(bytes) {
                break;
            }
            let room = Room::of_run(bytes);
            reclaim_for(home, &room);
            begun = home.begin_restore(&head);
            if begun.is_ok() {
                break;
            }
            let found = self.make_room_for_restore(home, &room);
            begun = home.begin_restore(&head);
            match found {
                Ok(true) => {}
                Ok(false) => searched.note_in_vain(bytes),
                Err(error) => {
                    tracing::error!(%error, "no room can be made");
                    searched.note_in_vain(bytes);
                }
            }
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
            Err(StoreError::OutOfMemory { requested, free, largest }) => {
                let blocked = self.spills.failure(requested.0, (free.0, largest.0), 0);
                let error = StoreError::OutOfMemory { requested, free, largest };
                self.restored(id, Err(blocked.unwrap_or_else(|| store_error(error))), out);
            }
            Err(error) => {
                let error = self.spills.not_restored(id, error);
                self.restored(id, Err(error), out);
            }
        }
    }

    /// Replicas leave first, as for a put. False: nothing can leave.
    fn make_room_for_restore(&mut self, home: &mut Home, room: &Room) -> Result<bool, StoreError> {
        match make_room_of_replicas(home, room)? {
            true => Ok(true),
            false => self.spill_for(home, room),
        }
    }

    /// Does the work that is due: room for restores, answers, jobs.
    pub(in crate::protocol) fn tick(
        &mut self,
        home: &mut Home,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let freed = home.freed();
        let has_settled = std::mem::take(&mut self.spills.has_settled);
        let is_due = self.spills.look_at_ms.is_some_and(|at_ms| at_ms <= now_ms);
        let is_idle = !self.spills.is_making_room() && (has_settled || is_due);
        // A look visits all objects.
        if self.spills.seen_freed != freed || is_idle {
            self.spills.seen_freed = freed;
            self.spills.look_at_ms = None;
            let is_waiting = |restore: &PendingRestore| matches!(restore.stage, Stage::Waiting(_));
            let all = self.spills.restores.iter().filter(|(_, one)| is_waiting(one));
            let mut searched = SearchedSizes::default();
            for id in all.map(|(id, _)| *id).collect::<Vec<_>>() {
                self.load(home, id, &mut searched, out);
            }
        }
        match self.spills.is_restoring() {
            true => {
                // A look that is due while objects leave memory is made later.
                let next_ms = self.spills.look_at_ms.filter(|at_ms| *at_ms > now_ms);
                let next_ms = next_ms.unwrap_or_else(|| now_ms.saturating_add(LOOK_MS));
                self.spills.look_at_ms = Some(next_ms);
            }
            false => self.spills.look_at_ms = None,
        }
        self.expire_restores(now_ms, out);
        self.begin_restores();
        self.answer_evictions(home, out);
    }

    fn expire_restores(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let mut late = Vec::new();
        for (id, restore) in &mut self.spills.restores {
            let is_late = |waiter: &mut SpillWaiter| waiter.deadline_ms <= now_ms;
            late.extend(restore.waiters.extract_if(.., is_late).map(|waiter| (*id, waiter)));
        }
        for (id, waiter) in late {
            let reason = format!("timed out after {RESTORE_MS_MAX} ms");
            let error = self.spills.not_restored_because(id, reason);
            out.push(answer_to(waiter.session, waiter.seq, Err(error)));
        }
    }

    fn answer_evictions(&mut self, home: &Home, out: &mut Vec<Action>) {
        let is_over = |eviction: &mut ManualEviction| eviction.left.is_empty();
        let (free, largest) = home.free_bytes();
        for over in self.spills.evictions.extract_if(.., is_over).collect::<Vec<_>>() {
            let failure = match over.has_failed && over.evicted.objects == 0 {
                true => self.spills.failure(0, (free.0, largest.0), 0),
                false => None,
            };
            let report = evicted_report(home, over.evicted).map_err(store_error);
            out.push(answer_to(over.session, over.seq, failure.map_or(report, Err)));
        }
    }

    pub(super) fn restored(
        &mut self,
        id: ObjectId,
        result: Result<(), WireError>,
        out: &mut Vec<Action>,
    ) {
        let Some(restore) = self.spills.restores.remove(&id) else {
            return;
        };
        if let Err(error @ WireError::NotRestored(_)) = &result {
            self.spills.unrestored.push((id, error.to_string()));
        }
        for SpillWaiter { session, seq, .. } in restore.waiters {
            out.push(answer_to(session, seq, result.clone().map(|()| ReplyBody::Done)));
        }
    }
}
