//! Objects that this client is sealing, continues to use, and does not hold yet.
//!
//! The successor of a killed daemon does not know these objects. It retains all recently sealed
//! objects until each client confirms that it holds those still in use.

use std::collections::BTreeSet;
use std::sync::Mutex;

use farrow_wire::RequestBody;

use crate::lock::lock;
use crate::session::Session;

/// Seals between their request and the hold on the sealed object.
#[derive(Debug, Default)]
pub(crate) struct PendingHolds(Mutex<PendingState>);

#[derive(Debug, Default)]
struct PendingState {
    next: u64,
    open: BTreeSet<u64>,
    /// The confirmation is due when all seals before this one are held.
    owed: Option<u64>,
}

impl PendingState {
    /// Whether the confirmation is due now.
    fn is_due(&mut self) -> bool {
        let first = self.open.first().copied().unwrap_or(self.next);
        self.owed.take_if(|before| first >= *before).is_some()
    }
}

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
