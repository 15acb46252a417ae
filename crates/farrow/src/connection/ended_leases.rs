//! Leases that this client has ended.
//!
//! A daemon keeps the ends of leases in private memory: its successor takes all leases of a living
//! client for open ones. So the client repeats the ends when it has connected again.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use farrow_memory::sync::{AtomicBool, Ordering};
use farrow_store::ObjectId;
use farrow_wire::link::{Link, Notification};

use crate::clock::deadline_after;
use crate::connection::session::Session;
use crate::interrupt::suspend;
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
    /// Adds a lease, and forgets those whose objects are deleted. Time alone does not tell: the
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

    fn ids(&self) -> Vec<(u64, u64)> {
        self.0.iter().map(|(_, id)| (id.hi, id.lo)).collect()
    }
}

impl Session {
    /// Ends a lease of this client. Does not wait: while there is no daemon, one thread waits for
    /// the next one, which learns of all ends.
    pub(crate) fn end_lease(&self, id: ObjectId, lease: Duration) {
        if !self.is_own_process() {
            return;
        }
        let is_there = |id| !matches!(self.reader.is_there(id), Ok(false));
        // Recorded before it is sent: a connection that follows meanwhile repeats it.
        lock(&self.ended_leases.ended).add(id, lease, Instant::now(), is_there);
        let connection = self.connection();
        if self.notify(Notification::EndLeases(vec![(id.hi, id.lo)]))
            || self.ended_leases.is_waiting.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let session = Weak::clone(&self.this);
        let wait = move || {
            let _quiet = suspend();
            if let Some(session) = session.upgrade() {
                let deadline = deadline_after(session.timeout);
                if let Err(error) = session.reconnect(&connection, deadline) {
                    tracing::debug!(%error, "leases last until the next connection");
                }
                session.ended_leases.is_waiting.store(false, Ordering::Release);
            }
        };
        let thread = std::thread::Builder::new().name("farrow-lease".into()).stack_size(256 << 10);
        if let Err(error) = thread.spawn(wait) {
            tracing::debug!(%error, "leases last until the next connection");
            self.ended_leases.is_waiting.store(false, Ordering::Release);
        }
    }

    /// Repeats the ends of leases to a daemon, over the connection that is the current one now.
    pub(super) fn repeat_ended_leases(&self, link: &Arc<Link>) {
        let ids = lock(&self.ended_leases.ended).ids();
        if !ids.is_empty() {
            self.late.notify(link, Notification::EndLeases(ids));
        }
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
        assert_eq!(ended.ids(), [(7, 1), (7, 2)]);
        // The daemon ended before it deleted the object.
        ended.add(id(3), 30 * second, now + 2 * second, |_| true);
        assert_eq!(ended.ids(), [(7, 2), (7, 1), (7, 3)]);
        ended.add(id(4), second, now + 20 * second, |one| one == id(2));
        assert_eq!(ended.ids(), [(7, 4), (7, 2), (7, 3)]);
    }

    #[test]
    fn the_list_has_a_limit() {
        let mut ended = EndedState::default();
        let now = Instant::now();
        for lo in 0..=LEASES_MAX as u64 {
            ended.add(id(lo), Duration::from_secs(60), now, |_| true);
        }
        assert_eq!(ended.ids().len(), LEASES_MAX);
        assert_eq!(ended.ids()[0], (7, 1));
    }
}
