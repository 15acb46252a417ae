//! Requests to etcd, replies, and persistent state, in terms of membership.

use serde::{Deserialize, Serialize};

use crate::message::Output;
use crate::types::{Incarnation, NodeName};
use crate::view::{JoinCandidate, View};

/// Most members that one transaction excludes, and most that it admits. With two keys each and the
/// view they stay below the default limit of etcd, 128 operations.
pub const CHANGED_MAX: usize = 20;

/// Revision at which a key was last written, as etcd counts; 0: the key does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Revision(pub i64);

/// A lease of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseId(pub i64);

/// A key below the prefix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The last view.
    View,
    /// Current life of a node, and its address.
    Node(NodeName),
    /// Exists as long as a lease of etcd.
    Alive(NodeName),
}

/// A request to etcd. Each is answered once, within a deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EtcdRequest {
    /// Reads, linearizably and at one revision, the names of all keys, and the values of those that
    /// were written at `since` or later.
    Look {
        /// First revision of the values; 0: all values.
        since: Revision,
    },
    /// Grants a lease.
    Grant {
        /// Shortest duration; etcd may extend it.
        ttl_s: u64,
    },
    /// Renews a lease.
    KeepAlive {
        /// The lease.
        lease: LeaseId,
    },
    /// Writes, if all expected revisions match.
    Change(Change),
}

/// A transaction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// Keys, and the revision that each must have.
    pub expected: Vec<(Key, Revision)>,
    /// Keys to write.
    pub puts: Vec<Put>,
    /// Keys to delete.
    pub deletes: Vec<Key>,
}

/// A key to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// The key.
    pub key: Key,
    /// The value.
    pub value: Vec<u8>,
    /// Lease to attach the key to.
    pub lease: Option<LeaseId>,
}

/// A reply of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EtcdReply {
    /// To `Look`.
    Looked(EtcdSnapshot),
    /// To `Grant`.
    Granted {
        /// The lease.
        lease: LeaseId,
    },
    /// To `KeepAlive`.
    RetainedAlive {
        /// Whether the lease still exists.
        is_there: bool,
    },
    /// To `Change`.
    Changed {
        /// Whether all expected revisions matched.
        is_done: bool,
    },
    /// No reply, or an unusable one. The request may have been executed.
    Failed {
        /// Cause.
        reason: String,
    },
}

/// The result of a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdSnapshot {
    /// Revision of the look.
    pub revision: Revision,
    /// All keys, and the revision at which each was last written.
    pub keys: Vec<(Key, Revision)>,
    /// The requested keys with their values.
    pub changed: Vec<FoundKey>,
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundKey {
    /// The key.
    pub key: Key,
    /// Revision at which it was last written.
    pub revision: Revision,
    /// The lease that it is attached to.
    pub lease: Option<LeaseId>,
    /// The value.
    pub value: Vec<u8>,
}

/// Outputs, to be executed in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EtcdOutput {
    /// Send a request to etcd, and pass the reply in with this number.
    Ask {
        /// Number of the request.
        id: u64,
        /// The request.
        request: EtcdRequest,
    },
    /// Store these bytes for the next process, before anything that follows.
    Keep(Vec<u8>),
    /// An output like that of the embedded membership.
    Membership(Output),
}

/// Prefix of the persistent state, which distinguishes it from other data.
const RETAINED_MAGIC: &[u8] = b"etcd1";

/// State that must survive the process, so that the node can continue the same life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EtcdPersistentState {
    /// This life, as registered.
    pub(super) own: JoinCandidate,
    /// The previous life, which is certainly over.
    pub(super) former: Option<Incarnation>,
    /// The life is leaving, has left, or was excluded.
    pub(super) is_over: bool,
    /// The current view.
    pub(super) view: Option<View>,
}

impl EtcdPersistentState {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = RETAINED_MAGIC.to_vec();
        bytes.extend(postcard::to_allocvec(self).unwrap_or_default());
        bytes
    }

    /// Decodes the state; `None` for other data, such as the state of the embedded membership.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let retained: Self = postcard::from_bytes(bytes.strip_prefix(RETAINED_MAGIC)?).ok()?;
        let is_sound = retained.own.is_sound() && retained.view.as_ref().is_none_or(View::is_sound);
        is_sound.then_some(retained)
    }
}

/// The registration of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeRecord {
    /// Its life and address.
    pub(super) node: JoinCandidate,
    /// It is leaving, and no longer has the lease.
    pub(super) is_leaving: bool,
    /// Its lease, which all members rely on. `None`: it is of an earlier version.
    pub(super) lease_ms: Option<u64>,
}

impl NodeRecord {
    /// Earlier versions ignore the lease, which is last.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = postcard::to_allocvec(&(&self.node, self.is_leaving)).unwrap_or_default();
        let lease = self.lease_ms.map(|lease_ms| postcard::to_allocvec(&lease_ms));
        bytes.extend(lease.into_iter().flatten().flatten());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let ((node, is_leaving), rest) = postcard::take_from_bytes(bytes).ok()?;
        Some(Self { node, is_leaving, lease_ms: postcard::from_bytes(rest).ok() })
    }

    /// Whether a node with this lease may be in a view with it.
    pub(super) fn agrees_with(&self, lease_ms: u64) -> bool {
        self.lease_ms.is_none_or(|own_ms| own_ms == lease_ms)
    }
}
