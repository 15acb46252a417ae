//! Deletes that wait until other nodes have dropped their replicas, or perform them.

use std::collections::{BTreeMap, BTreeSet};

use farrow_net::source::MemberLife;
use farrow_store::ObjectId;
use farrow_wire::{SealItem, WireError, WireTarget};

use super::invalidation_notice::LastNotice;
use crate::protocol::context::{ReplyTo, RequestContext};

/// A delete that other nodes perform or allow in part.
#[derive(Debug)]
pub(in crate::protocol) struct Forwarded {
    pub(in crate::protocol) number: u64,
    pub(in crate::protocol) waiter: ReplyTo,
    pub(in crate::protocol) targets: Vec<WireTarget>,
    pub(in crate::protocol) results: Vec<Result<(), WireError>>,
    /// Number of parts that are not done.
    pub(in crate::protocol) left: usize,
}

/// A delete for another node, waiting until the name authority knows that the name is taken.
#[derive(Debug)]
pub(in crate::protocol) struct PendingDelete {
    pub(in crate::protocol) token: u64,
    pub(in crate::protocol) from: String,
    pub(in crate::protocol) target: WireTarget,
    pub(in crate::protocol) until_ms: u64,
}

/// Stands for all objects of an earlier incarnation of this node: which of them have replicas
/// elsewhere is unknown.
pub(in crate::protocol) const EVERYTHING: ObjectId = ObjectId { hi: 0, lo: u64::MAX };

/// Origin of a delete.
#[derive(Debug)]
pub(in crate::protocol) enum DeleteOrigin {
    /// The number of the delete, and the index of the object in it.
    Client(u64, usize),
    Node(u64),
    /// The end of a lease: no client waits for an answer.
    Lease,
    /// The object has moved to another node.
    Move,
    /// The object stays, and only its name ends: an object of another node has it.
    Name,
    /// The number of a seal that replaces the object, which deletes it.
    Replacement(u64),
}

/// A seal of objects, some of which replace others.
#[derive(Debug)]
pub(in crate::protocol) struct ReplacingSeal {
    pub(in crate::protocol) context: RequestContext,
    pub(in crate::protocol) items: Vec<SealItem>,
    /// Full names that were granted for it: in flight until it is served.
    pub(in crate::protocol) granted: Vec<String>,
}

/// A seal that waits until other nodes have dropped their replicas of the objects it replaces.
#[derive(Debug)]
pub(in crate::protocol) struct PendingReplacement {
    pub(in crate::protocol) seal: ReplacingSeal,
    /// Number of objects with replicas.
    pub(in crate::protocol) left: usize,
    /// Ids of the objects, which other nodes cannot open meanwhile.
    pub(in crate::protocol) ids: BTreeSet<ObjectId>,
}

/// A delete of an object of this node, waiting until no other node finds the object.
#[derive(Debug)]
pub(in crate::protocol) struct Withdrawal {
    pub(in crate::protocol) asker: DeleteOrigin,
    pub(in crate::protocol) target: WireTarget,
    /// Ids of the object; other nodes cannot open them.
    pub(in crate::protocol) ids: BTreeSet<ObjectId>,
    /// Ids of which members still have replicas.
    pub(in crate::protocol) left: BTreeSet<ObjectId>,
}

impl Withdrawal {
    pub(in crate::protocol) fn new(asker: DeleteOrigin, target: WireTarget) -> Self {
        Self { asker, target, ids: BTreeSet::new(), left: BTreeSet::new() }
    }
}

/// Members that still have replicas of an object.
pub(in crate::protocol) type Leaving = BTreeMap<MemberLife, LastNotice>;
