//! What is asked of etcd and answered, in terms of membership; and what is retained.

use serde::{Deserialize, Serialize};

use crate::message::Output as Told;
use crate::types::{Incarnation, NodeName};
use crate::view::{JoinCandidate, View};

/// Most members that one transaction excludes, and as many that it takes in: with two keys each
/// and the view they stay below the 128 operations that etcd takes by default.
pub const CHANGED_MAX: usize = 20;

/// When a key was last written, in etcd's own count; 0: it is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Revision(pub i64);

/// A lease of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseId(pub i64);

/// What lies below the prefix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The last view.
    View,
    /// Which life of a node is there, and how it is reached.
    Node(NodeName),
    /// There as long as a lease of etcd.
    Alive(NodeName),
}

/// Something to ask etcd. Each is answered once, within a deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EtcdRequest {
    /// Read, linearizably and at one revision, the names of all keys, and those with their values
    /// that were written at this revision or later.
    Look {
        /// 0: all values.
        since: Revision,
    },
    /// Grant a lease.
    Grant {
        /// For at least so long; etcd may make it more.
        ttl_s: u64,
    },
    /// Renew a lease.
    KeepAlive {
        /// Which.
        lease: LeaseId,
    },
    /// Write, if all is as expected.
    Change(Change),
}

/// A transaction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// Keys, and when each has to have been written last for anything to be done.
    pub expected: Vec<(Key, Revision)>,
    /// What to write.
    pub puts: Vec<Put>,
    /// What to take away.
    pub deletes: Vec<Key>,
}

/// A key to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// Which.
    pub key: Key,
    /// With what.
    pub value: Vec<u8>,
    /// Goes with this lease.
    pub lease: Option<LeaseId>,
}

/// What etcd answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EtcdReply {
    /// To a look.
    Looked(EtcdSnapshot),
    /// A lease.
    Granted {
        /// Its number.
        lease: LeaseId,
    },
    /// What became of a lease.
    RetainedAlive {
        /// Whether it is still there.
        is_there: bool,
    },
    /// What became of a change.
    Changed {
        /// Whether all was as expected.
        is_done: bool,
    },
    /// No answer, or none of use. What was asked may have been done.
    Failed {
        /// Why.
        reason: String,
    },
}

/// What a look found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdSnapshot {
    /// Of the whole.
    pub revision: Revision,
    /// All keys, and when each was written last.
    pub keys: Vec<(Key, Revision)>,
    /// Those that were asked for, with their values.
    pub changed: Vec<FoundKey>,
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundKey {
    /// Which.
    pub key: Key,
    /// When it was written last.
    pub revision: Revision,
    /// The lease that it goes with.
    pub lease: Option<LeaseId>,
    /// What it says.
    pub value: Vec<u8>,
}

/// What comes out, to be done in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EtcdOutput {
    /// Ask etcd, and hand the answer in with this number.
    Ask {
        /// The number.
        id: u64,
        /// What.
        request: EtcdRequest,
    },
    /// Keep these bytes for the next process, before anything that follows.
    Keep(Vec<u8>),
    /// As from the embedded membership.
    Told(Told),
}

/// Begins what is retained, so that nothing else is taken for it.
const RETAINED_MAGIC: &[u8] = b"etcd1";

/// What must outlive the process, so that it can go on with the same life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EtcdPersistentState {
    /// This life, as it registers.
    pub(super) own: JoinCandidate,
    /// The life before it, which is certainly over.
    pub(super) former: Option<Incarnation>,
    /// It wants to go, or did, or others went on without it.
    pub(super) is_over: bool,
    /// The view that it is in.
    pub(super) view: Option<View>,
}

impl EtcdPersistentState {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = RETAINED_MAGIC.to_vec();
        bytes.extend(postcard::to_allocvec(self).unwrap_or_default());
        bytes
    }

    /// `None` for anything else, such as what the embedded membership keeps.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let retained: Self = postcard::from_bytes(bytes.strip_prefix(RETAINED_MAGIC)?).ok()?;
        let is_sound = retained.own.is_sound() && retained.view.as_ref().is_none_or(View::is_sound);
        is_sound.then_some(retained)
    }
}

/// What a node writes of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeRecord {
    /// Which life it is, and how it is reached.
    pub(super) node: JoinCandidate,
    /// It goes, and has no lease any more.
    pub(super) is_leaving: bool,
}

impl NodeRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).unwrap_or_default()
    }
}
