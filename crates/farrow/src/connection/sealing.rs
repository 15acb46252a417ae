//! A seal in progress.

use std::sync::{Arc, Weak};

use farrow_wire::link::Notification;

use crate::connection::pending_holds::PendingState;
use crate::connection::session::Session;
use crate::lock::lock;
use crate::memory::extents::UseGuard;

/// One seal in progress; it ends when this value is dropped. The ranges of a seal without an answer
/// share it, until none of them is in use.
#[derive(Debug)]
struct OpenSeal {
    session: Weak<Session>,
    number: u64,
}

impl Session {
    /// Begins a seal: create it before the request, and drop it once the hold is published or the
    /// seal failed.
    pub(crate) fn sealing(self: &Arc<Self>) -> UseGuard {
        let mut state = lock(&self.unheld.0);
        let number = state.next;
        state.next += 1;
        state.open.insert(number);
        self.publish_open_seals(&state);
        Arc::new(OpenSeal { session: Arc::downgrade(self), number })
    }

    /// The caller holds the lock, so that the last word is the current one.
    fn publish_open_seals(&self, state: &PendingState) {
        if let Err(error) = self.holds.publish_open_seals(state.open.len() as u64) {
            tracing::error!(%error, "the node does not learn of open seals");
        }
    }

    /// Records a new daemon. True: all objects sealed under earlier daemons are held.
    pub(crate) fn note_successor(&self) -> bool {
        let mut state = lock(&self.unheld.0);
        state.owed = Some(state.next);
        state.is_due()
    }
}

impl Drop for OpenSeal {
    fn drop(&mut self) {
        let Some(session) = self.session.upgrade().filter(|session| session.is_own_process())
        else {
            return;
        };
        let mut state = lock(&session.unheld.0);
        state.open.remove(&self.number);
        session.publish_open_seals(&state);
        let is_due = state.is_due();
        drop(state);
        if is_due {
            // If this daemon has ended meanwhile, its successor asks again.
            session.notify(Notification::ConfirmEarlier);
        }
    }
}
