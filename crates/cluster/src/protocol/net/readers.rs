//! The threads that serve other nodes: the members that may have replicas of this node's objects,
//! the replicas that others may read here, and the rules for both.

use std::collections::{BTreeMap, BTreeSet};

use farrow_net::source::MemberLife;
use farrow_store::ObjectId;

use super::broadcast::ReplicaKey;
use crate::protocol::rights::RightsTable;

/// Limit on the objects that one member holds.
pub(crate) const HOLDS_PER_MEMBER_MAX: usize = 256;

/// The access rules for readers of other nodes.
#[derive(Debug, Default)]
pub(crate) struct ReaderRules {
    pub(crate) rights: RightsTable,
    /// Names of namespaces by number.
    pub(crate) namespaces: BTreeMap<u16, String>,
}

/// The threads that serve other nodes, as the decisions see them.
pub(crate) trait NetReaders: Send + Sync {
    /// Replaces the access rules. They apply to all opens from now on.
    fn publish_rules(&self, rules: ReaderRules);

    /// Returns the members that may have a replica, and forgets them.
    fn take(&self, object: ObjectId) -> BTreeSet<MemberLife>;

    /// Prevents opens of an object until each close is undone. Returns the members that may have a
    /// replica.
    fn close(&self, object: ObjectId) -> BTreeSet<MemberLife>;

    /// Undoes a [`NetReaders::close`].
    fn reopen(&self, object: ObjectId);

    /// Whether any member may have a replica.
    fn is_any(&self, object: ObjectId) -> bool;

    /// Lets other nodes read this node's replica of an object. Returns the key that they need;
    /// `None` if there are no random bytes.
    fn serve_replica(&self, origin: ObjectId, local: ObjectId) -> Option<ReplicaKey>;

    /// Undoes a [`NetReaders::serve_replica`]. Reads that have begun go on.
    fn hide_replica(&self, origin: ObjectId);

    /// Lets opens of a spilled object fail for a moment: it cannot be restored.
    fn not_restored(&self, object: ObjectId, reason: String);

    /// Bytes that other nodes read of this node's objects, and of its replicas.
    fn served(&self) -> [u64; 2];

    /// Bytes of the pieces that were sent compressed and of their compressed form, then of those
    /// that were received.
    fn packed(&self) -> [[u64; 2]; 2];
}
