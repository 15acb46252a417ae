//! Notices to other nodes that an object is removed.

use farrow_net::source::MemberLife;
use farrow_store::ObjectId;

/// A notice to a member that it must drop its replica of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::protocol) struct InvalidationNotice {
    pub(in crate::protocol) member: MemberLife,
    pub(in crate::protocol) id: ObjectId,
    /// Differs for each notice: after the answer to an earlier one, the member may have opened the
    /// object again.
    pub(in crate::protocol) number: u64,
}

/// The last notice to a member that still has a replica.
#[derive(Debug)]
pub(in crate::protocol) struct LastNotice {
    pub(in crate::protocol) number: u64,
    /// Time of the next notice, if this one was not sent or not answered.
    pub(in crate::protocol) again_at_ms: Option<u64>,
}
