//! Leases: objects that references in flight name.
//!
//! A client that sends a reference seals an object with a lease. The object is pinned, so that no
//! eviction removes it before the reference arrives. The client ends the lease when its own value is
//! removed, or dies; some time later the object is deleted. Receivers that hold it keep its memory.
//!
//! A label of the object has the length of its lease, so that the next daemon resumes it. That
//! daemon gives the objects of clients that have ended a whole lease again.

use std::collections::{BTreeMap, BTreeSet};

use farrow_store::{ClientSlot, Home, ObjectId, Target};
use farrow_wire::{LEASE_LABEL, LEASE_MS_MAX, WireObjectId};

/// One object with a lease.
#[derive(Debug, Clone, Copy)]
struct LeaseEntry {
    term: Term,
    ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Term {
    /// The client has it.
    Owned(ClientSlot),
    /// The client has ended it, or itself: it is over at this time.
    UntilMs(u64),
}

/// The objects with a lease.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Leases {
    all: BTreeMap<ObjectId, LeaseEntry>,
    /// Deadlines of the leases that have no owner.
    due: BTreeSet<(u64, ObjectId)>,
}

impl Leases {
    /// The leases that an earlier daemon knew. The clocks of clients that are not expected back run
    /// from now.
    pub(in crate::protocol) fn resumed(
        home: &Home,
        is_expected: impl Fn(ClientSlot) -> bool,
        now_ms: u64,
    ) -> Self {
        let mut leases = Self::default();
        let labelled = home.pinned_with_label(LEASE_LABEL).unwrap_or_else(|error| {
            tracing::error!(%error, "leases cannot be resumed");
            Vec::new()
        });
        for object in labelled {
            let Ok(ms) = object.value.parse() else { continue };
            let owner = object.creator.unwrap_or(ClientSlot(u32::MAX));
            leases.insert(object.id, owner, ms);
            if object.creator.is_none() || !is_expected(owner) {
                leases.end(object.id, owner, now_ms);
            }
        }
        leases
    }

    /// Pins an object that a client just sealed with a lease.
    pub(in crate::protocol) fn begin(
        &mut self,
        home: &mut Home,
        id: ObjectId,
        owner: ClientSlot,
        ms: u64,
    ) {
        if let Err(error) = home.pin(Target::Id(id), true) {
            tracing::error!(%id, %error, "an object with a lease cannot be pinned");
        }
        self.insert(id, owner, ms);
    }

    /// Whether an object has a lease.
    pub(in crate::protocol) fn has(&self, id: ObjectId) -> bool {
        self.all.contains_key(&id)
    }

    fn insert(&mut self, id: ObjectId, owner: ClientSlot, ms: u64) {
        let lease = LeaseEntry { term: Term::Owned(owner), ms: ms.min(LEASE_MS_MAX) };
        self.all.insert(id, lease);
    }

    /// Starts the clock of a lease, if `owner` still has it.
    fn end(&mut self, id: ObjectId, owner: ClientSlot, now_ms: u64) {
        if let Some(lease) = self.all.get_mut(&id)
            && lease.term == Term::Owned(owner)
        {
            let at_ms = now_ms.saturating_add(lease.ms);
            lease.term = Term::UntilMs(at_ms);
            self.due.insert((at_ms, id));
        }
    }

    /// As [`Self::end`], for the objects of one message.
    pub(in crate::protocol) fn end_some(
        &mut self,
        ids: &[WireObjectId],
        owner: ClientSlot,
        now_ms: u64,
    ) {
        for id in ids {
            self.end((*id).into(), owner, now_ms);
        }
    }

    /// Starts the clocks of all leases of a client.
    pub(in crate::protocol) fn end_all(&mut self, owner: ClientSlot, now_ms: u64) {
        let is_its = |lease: &LeaseEntry| lease.term == Term::Owned(owner);
        let ids = self.all.iter().filter(|(_, lease)| is_its(lease)).map(|(id, _)| *id);
        for id in ids.collect::<Vec<_>>() {
            self.end(id, owner, now_ms);
        }
    }

    /// Forgets an object that was deleted.
    pub(in crate::protocol) fn forget(&mut self, id: ObjectId) {
        if let Some(LeaseEntry { term: Term::UntilMs(at_ms), .. }) = self.all.remove(&id) {
            self.due.remove(&(at_ms, id));
        }
    }

    /// When the next object is deleted.
    pub(in crate::protocol) fn next_deadline_ms(&self) -> Option<u64> {
        self.due.first().map(|(at_ms, _)| *at_ms)
    }

    /// Takes an object whose lease is over.
    pub(in crate::protocol) fn take_due(&mut self, now_ms: u64) -> Option<ObjectId> {
        let due = self.due.first().copied().filter(|(at_ms, _)| *at_ms <= now_ms)?;
        self.due.remove(&due);
        self.all.remove(&due.1);
        Some(due.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ClientSlot = ClientSlot(1);
    const OTHER: ClientSlot = ClientSlot(2);

    fn id(lo: u64) -> ObjectId {
        ObjectId { hi: 7, lo }
    }

    #[test]
    fn a_lease_runs_from_the_end_of_its_own_client() {
        let mut leases = Leases::default();
        leases.insert(id(1), ONE, 100);
        leases.insert(id(2), ONE, 50);
        leases.insert(id(3), OTHER, 10);
        assert_eq!(leases.next_deadline_ms(), None, "no clock runs while the client lives");
        leases.end(id(1), OTHER, 0);
        leases.end(id(9), ONE, 0);
        assert_eq!(leases.next_deadline_ms(), None, "only its own client ends a lease");
        leases.end(id(1), ONE, 1000);
        leases.end(id(1), ONE, 5000);
        leases.end_all(ONE, 1000);
        assert_eq!(leases.next_deadline_ms(), Some(1050));
        assert_eq!(leases.take_due(1049), None);
        assert_eq!(leases.take_due(1100), Some(id(2)));
        assert_eq!(leases.take_due(1100), Some(id(1)), "the first end of a lease counts");
        assert_eq!(leases.take_due(u64::MAX), None, "the other client lives");
    }

    #[test]
    fn a_deleted_object_has_no_lease_and_a_lease_has_a_limit() {
        let mut leases = Leases::default();
        leases.insert(id(1), ONE, u64::MAX);
        leases.insert(id(2), ONE, 5);
        leases.end_all(ONE, 10);
        leases.forget(id(2));
        assert_eq!(leases.next_deadline_ms(), Some(10 + LEASE_MS_MAX));
        leases.forget(id(1));
        assert_eq!(leases.next_deadline_ms(), None);
    }
}
