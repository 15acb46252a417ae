//! Objects that this client seals, goes on using, and does not hold yet.
//!
//! A daemon that follows a killed one does not know which these are, and keeps everything that was
//! sealed last until it is told that what is still in use is held.

use std::collections::BTreeSet;
use std::sync::Mutex;

use farrow_wire::RequestBody;

use crate::session::{Session, lock};

/// Seals between their request and the hold on what they sealed.
#[derive(Debug, Default)]
pub(crate) struct PendingHolds(Mutex<PendingState>);

#[derive(Debug, Default)]
struct PendingState {
    next: u64,
    open: BTreeSet<u64>,
    /// The daemon is to be told when all seals before this one are held.
    owed: Option<u64>,
}

impl PendingState {
    /// Whether the daemon is to be told now.
    fn is_due(&mut self) -> bool {
        let first = self.open.first().copied().unwrap_or(self.next);
        self.owed.take_if(|before| first >= *before).is_some()
    }
}

/// One such seal; it ends with this value.
#[derive(Debug)]
pub(crate) struct Sealing<'a> {
    session: &'a Session,
    number: u64,
}

impl Session {
    /// From before the request until the hold is published, or nothing was sealed.
    pub(crate) fn sealing(&self) -> Sealing<'_> {
        let mut state = lock(&self.unheld.0);
        let number = state.next;
        state.next += 1;
        state.open.insert(number);
        Sealing { session: self, number }
    }

    /// There is another daemon. True: all that was sealed under the ones before is held.
    pub(crate) fn note_successor(&self) -> bool {
        let mut state = lock(&self.unheld.0);
        state.owed = Some(state.next);
        state.is_due()
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
            // If it has gone meanwhile, its successor asks anew.
            self.session.tell(RequestBody::ConfirmEarlier);
        }
    }
}
