//! Which objects are in memory: evictions, spills to files, and restores.
//!
//! `room` finds memory, `spilling` moves objects to files, and `restoring` brings them back. Another
//! thread works on the files: jobs are actions, their results are events.

mod order;
mod restoring;
mod room;
mod spilling;
mod spills;
#[cfg(test)]
mod tests;

use farrow_memory::Length;
use farrow_store::{ByHand, Evicted, EvictionPolicy, Home, ObjectId, StoreStats};
use farrow_wire::WireError;

use crate::protocol::action::Action;
use crate::protocol::identity::SessionId;
pub(in crate::protocol) use order::RemoteReplicas;
pub(in crate::protocol) use room::{CopyRoom, RoomSearch};
pub(in crate::protocol) use spills::SPILL_MS_MAX;
use spills::Spills;

/// Which objects are in memory, and what is on its way to files and back.
#[derive(Debug)]
pub(in crate::protocol) struct Residency {
    policy: Box<dyn EvictionPolicy>,
    /// Number and bytes of evicted objects since the start.
    evicted_total: (u64, u64),
    spills: Spills,
}

/// Counters since the start.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(in crate::protocol) struct ResidencyTotals {
    pub(in crate::protocol) evicted: u64,
    pub(in crate::protocol) evicted_bytes: u64,
    pub(in crate::protocol) spilled: u64,
    pub(in crate::protocol) restored: u64,
    pub(in crate::protocol) spill_failures: u64,
}

impl Default for Residency {
    /// Objects are evicted by request only.
    fn default() -> Self {
        Self { policy: Box::new(ByHand), evicted_total: (0, 0), spills: Spills::default() }
    }
}

impl Residency {
    /// Sets the policy that chooses objects to evict.
    pub(in crate::protocol) fn set_policy(&mut self, policy: Box<dyn EvictionPolicy>) {
        self.policy = policy;
    }

    /// How objects leave memory: `spill`, or the name of the policy.
    pub(in crate::protocol) fn policy_name(&self) -> &'static str {
        if self.spills.is_on() { "spill" } else { self.policy.name() }
    }

    /// Whether objects leave memory without a request for it.
    fn may_leave(&self) -> bool {
        self.spills.is_on() || self.policy.is_automatic()
    }

    /// Bytes that could leave memory now without a request for it. Replicas may always.
    pub(in crate::protocol) fn evictable(&self, stats: &StoreStats) -> Length {
        if self.may_leave() { stats.evictable } else { stats.evictable_replicas }
    }

    pub(in crate::protocol) fn totals(&self) -> ResidencyTotals {
        let (evicted, evicted_bytes) = self.evicted_total;
        ResidencyTotals {
            evicted,
            evicted_bytes,
            spilled: self.spills.spilled_total,
            restored: self.spills.restored_total,
            spill_failures: self.spills.failures_total,
        }
    }

    fn note_evicted(&mut self, evicted: Evicted) {
        self.evicted_total.0 += u64::from(evicted.objects);
        self.evicted_total.1 += evicted.bytes.0;
        if evicted.objects > 0 {
            tracing::debug!(
                objects = evicted.objects,
                bytes = evicted.bytes.0,
                "objects are evicted"
            );
        }
    }

    /// Sets the time of the event that is handled.
    pub(in crate::protocol) fn set_now(&mut self, now_ms: u64) {
        self.spills.set_now(now_ms);
    }

    /// Whether memory will become free without further requests.
    pub(in crate::protocol) fn is_making_room(&self) -> bool {
        self.spills.is_making_room()
    }

    /// The error for a lack of memory, if failed writes of files are its cause.
    pub(in crate::protocol) fn shortage(
        &self,
        home: &Home,
        requested: u64,
        waited_ms: u64,
    ) -> Option<WireError> {
        let (free, largest) = home.free_bytes();
        self.spills.failure(requested, (free.0, largest.0), waited_ms)
    }

    /// Handles the delete of an object: removes its file, if it has one.
    pub(in crate::protocol) fn deleted(&mut self, id: ObjectId, was_spilled: bool) {
        self.spills.deleted(id, was_spilled);
    }

    /// Moves new jobs to the actions.
    pub(in crate::protocol) fn take_jobs(&mut self, out: &mut Vec<Action>) {
        self.spills.take_jobs(out);
    }

    /// Forgets the requests of an ended session.
    pub(in crate::protocol) fn forget(&mut self, session: SessionId) {
        self.spills.forget(session);
    }

    /// Forgets one request and returns whether there was one. Work begun for it continues: other
    /// requests may need it.
    pub(in crate::protocol) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        self.spills.cancel(session, seq)
    }

    /// Takes out all waiting requests at shutdown.
    pub(in crate::protocol) fn drain(&mut self) -> Vec<(SessionId, u64)> {
        self.spills.drain()
    }

    pub(in crate::protocol) fn next_deadline_ms(&self) -> Option<u64> {
        self.spills.next_deadline_ms()
    }
}
