//! A seal in progress.

use farrow_wire::RequestBody;

use crate::lock::lock;
use crate::session::Session;

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
        Sealing { session: self, number }
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
        let is_due = state.is_due();
        drop(state);
        if is_due {
            // If this daemon has ended meanwhile, its successor asks again.
            self.session.tell(RequestBody::ConfirmEarlier);
        }
    }
}
