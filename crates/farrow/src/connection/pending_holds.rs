//! Objects that this client is sealing, continues to use, and does not hold yet.
//!
//! The successor of a killed daemon does not know these objects. The client publishes in its hold block
//! how many such seals are open. While there are any, the successor retains all objects that the
//! client may use in place, until the client confirms that it holds those still in use.

use std::collections::BTreeSet;
use std::sync::Mutex;

/// Seals between their request and the hold on the sealed object.
#[derive(Debug, Default)]
pub(crate) struct PendingHolds(pub(crate) Mutex<PendingState>);

#[derive(Debug, Default)]
pub(crate) struct PendingState {
    pub(crate) next: u64,
    pub(crate) open: BTreeSet<u64>,
    /// The confirmation is due when all seals before this one are held.
    pub(crate) owed: Option<u64>,
}

impl PendingState {
    /// Whether the confirmation is due now.
    pub(crate) fn is_due(&mut self) -> bool {
        let first = self.open.first().copied().unwrap_or(self.next);
        self.owed.take_if(|before| first >= *before).is_some()
    }
}
