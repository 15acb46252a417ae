//! Leases that this client has ended.
//!
//! A daemon keeps the ends of leases in private memory: its successor takes all leases of a living
//! client for open ones. So the client repeats the ends when it has connected again.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use farrow_memory::sync::{AtomicBool, Ordering};
use farrow_store::ObjectId;
use farrow_wire::WireObjectId;

use crate::lock::lock;

/// Most leases that are repeated. Of more, those that are over first are forgotten: if a daemon ends
/// before them, their objects last until the client ends.
const LEASES_MAX: usize = 65_536;

/// A lease that should be over, and whose object is still there, is looked at again after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct EndedLeases {
    ended: Mutex<EndedState>,
    /// A thread waits for the next daemon.
    is_waiting: AtomicBool,
}

/// The time when each lease should be over, and its object.
#[derive(Debug, Default)]
struct EndedState(BTreeSet<(Instant, ObjectId)>);

impl EndedState {
    /// Adds a lease, and forgets those whose objects are deleted. Time alone decides nothing: the
    /// daemon may have ended before it deleted them.
    fn add(
        &mut self,
        id: ObjectId,
        lease: Duration,
        now: Instant,
        is_there: impl Fn(ObjectId) -> bool,
    ) {
        let over = |(until, _): &(Instant, ObjectId)| *until <= now;
        let mut left = Vec::new();
        while self.0.first().is_some_and(over) {
            left.extend(self.0.pop_first().map(|(_, id)| id).filter(|id| is_there(*id)));
        }
        self.0.extend(left.into_iter().map(|id| (now + LOOK_AGAIN, id)));
        self.0.insert((now + lease, id));
        while self.0.len() > LEASES_MAX {
            self.0.pop_first();
        }
    }

    fn ids(&self) -> Vec<WireObjectId> {
        self.0.iter().map(|(_, id)| (*id).into()).collect()
    }
}

impl EndedLeases {
    /// Notes the end of a lease before the daemon learns of it: a connection that follows meanwhile
    /// repeats it.
    pub(super) fn note(&self, id: ObjectId, lease: Duration, is_there: impl Fn(ObjectId) -> bool) {
        lock(&self.ended).add(id, lease, Instant::now(), is_there);
    }

    /// The two halves of the id of each object.
    pub(super) fn ids(&self) -> Vec<WireObjectId> {
        lock(&self.ended).ids()
    }

    /// Whether this call is the first since the last [`Self::waited`].
    pub(super) fn begin_wait(&self) -> bool {
        !self.is_waiting.swap(true, Ordering::AcqRel)
    }

    pub(super) fn waited(&self) {
        self.is_waiting.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(lo: u64) -> ObjectId {
        ObjectId { hi: 7, lo }
    }

    #[test]
    fn an_ended_lease_is_repeated_until_its_object_is_deleted() {
        let mut ended = EndedState::default();
        let (second, now) = (Duration::from_secs(1), Instant::now());
        ended.add(id(1), second, now, |_| true);
        ended.add(id(2), 5 * second, now, |_| true);
        let ids = |ended: &EndedState| ended.ids().into_iter().map(|id| id.lo).collect::<Vec<_>>();
        assert_eq!(ids(&ended), [1, 2]);
        // The daemon ended before it deleted the object.
        ended.add(id(3), 30 * second, now + 2 * second, |_| true);
        assert_eq!(ids(&ended), [2, 1, 3]);
        ended.add(id(4), second, now + 20 * second, |one| one == id(2));
        assert_eq!(ids(&ended), [4, 2, 3]);
    }

    #[test]
    fn the_list_has_a_limit() {
        let mut ended = EndedState::default();
        let now = Instant::now();
        for lo in 0..=LEASES_MAX as u64 {
            ended.add(id(lo), Duration::from_secs(60), now, |_| true);
        }
        assert_eq!(ended.ids().len(), LEASES_MAX);
        assert_eq!(ended.ids()[0], ObjectId { hi: 7, lo: 1 }.into());
    }
}
