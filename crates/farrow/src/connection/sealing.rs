//! A seal in progress.

use farrow_wire::RequestBody;

use crate::connection::pending_holds::PendingState;
use crate::connection::session::Session;
use crate::lock::lock;

/// One seal in progress; it ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Sealing<'a> {
    session: &'a Session,
    number: u64,
}

impl Session {
    /// Begins a seal: create it before the request, and drop it once the hold is published or the
    /// seal failed.
    pub(crate) fn sealing(&self) -> Sealing<'_> {
        let mut state = lock(&self.unheld.0);
        let number = state.next;
        state.next += 1;
        state.open.insert(number);
        self.tell_open_seals(&state);
        Sealing { session: self, number }
    }

    /// The caller holds the lock, so that the last word is the current one.
    fn tell_open_seals(&self, state: &PendingState) {
        if let Err(error) = self.holds.tell_open_seals(state.open.len() as u64) {
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

impl Sealing<'_> {
    /// The object may be sealed, and is not held although its bytes are in use: nothing that was sealed
    /// before a kill is confirmed any more.
    pub(crate) fn never_ends(self) {
        std::mem::forget(self);
    }
}

impl Drop for Sealing<'_> {
    fn drop(&mut self) {
        if !self.session.is_own_process() {
            return;
        }
        let mut state = lock(&self.session.unheld.0);
        state.open.remove(&self.number);
        self.session.tell_open_seals(&state);
        let is_due = state.is_due();
        drop(state);
        if is_due {
            // If this daemon has ended meanwhile, its successor asks again.
            self.session.tell(RequestBody::ConfirmEarlier);
        }
    }
}
