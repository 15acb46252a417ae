//! The latest request of a session for a page of holds.

use farrow_wire::link::PendingReply;

#[derive(Debug, Default)]
pub(super) struct HoldBlockRequest {
    /// One more than the number of hold slots at that time.
    pub(super) slots: u64,
    /// Its reply, if its caller has given up.
    pub(super) late: Option<PendingReply>,
}
