//! Errors that the daemon returns.

use serde::{Deserialize, Serialize};

use crate::error_texts;

/// Why the daemon refused a request, in terms of how the caller can react.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum WireError {
    /// No run of free memory is long enough.
    #[error(transparent)]
    OutOfMemory(OutOfMemory),
    /// A table of the region is full.
    #[error("{}", error_texts::too_many(what, *max))]
    TooMany {
        /// Contents of the table.
        what: String,
        /// Limit.
        max: u64,
    },
    /// The name is in use.
    #[error("{}", error_texts::name_taken(name))]
    NameTaken {
        /// The name.
        name: String,
    },
    /// No such object, or no such rule.
    #[error("{}", error_texts::not_found(what))]
    NotFound {
        /// The kind of thing, and its id or name.
        what: String,
    },
    /// The request is not valid.
    #[error("{0}")]
    Invalid(String),
    /// The client lacks permission.
    #[error("{0}")]
    Denied(String),
    /// The client speaks another version.
    #[error("protocol version {theirs} asked, this daemon speaks {ours}")]
    Version {
        /// Of the client.
        theirs: u32,
        /// Of the daemon.
        ours: u32,
    },
    /// The region that the client knew no longer exists.
    #[error("the node lost its region {old:#018x} and serves {new:#018x} now")]
    OtherRegion {
        /// Uid of the region that the client knew.
        old: u64,
        /// Uid of the region that the node serves.
        new: u64,
    },
    /// The daemon is shutting down.
    #[error("the node is shutting down")]
    Closing,
    /// The region itself is damaged.
    #[error("the region is damaged: {0}")]
    Damaged(String),
    /// The request exceeds the capacity of the region.
    #[error(transparent)]
    TooLarge(TooLarge),
    /// The quota of the client is exhausted.
    #[error(transparent)]
    QuotaExceeded(QuotaExceeded),
    /// No such namespace.
    #[error(transparent)]
    NoNamespace(NoNamespace),
    /// A namespace is not empty.
    #[error(transparent)]
    NamespaceInUse(NamespaceInUse),
    /// The node that owns the memory cannot be reached.
    #[error("{}", error_texts::node_lost(node, reason))]
    NodeLost {
        /// Its name.
        node: String,
        /// Known cause.
        reason: String,
    },
    /// The connection to the node broke before it answered. The node may be alive: retry.
    #[error("node {node:?} did not answer: {reason}")]
    NoRemoteSession {
        /// Its name.
        node: String,
        /// Known cause.
        reason: String,
    },
    /// No such node.
    #[error("no node {name:?} in the cluster; there are {known:?}")]
    NoNode {
        /// The name asked for.
        name: String,
        /// Names of the existing nodes.
        known: Vec<String>,
    },
    /// Not every party will arrive at the barrier.
    #[error(transparent)]
    BarrierBroken(BarrierBroken),
    /// This node does not reach most of the cluster, so it cannot decide which names are free.
    #[error("{}", error_texts::cut_off(node, reason))]
    CutOff {
        /// The node that was asked.
        node: String,
        /// Known cause.
        reason: String,
    },
    /// The rules for the client's node do not permit the request.
    #[error(transparent)]
    NotPermitted(NotPermitted),
    /// A spilled object cannot be restored; it stays spilled.
    #[error(transparent)]
    NotRestored(NotRestored),
    /// The node is alive, but the reporting node cannot map its memory.
    #[error(transparent)]
    NodeUnreachable(NodeUnreachable),
    /// Memory is free, but another limited resource is exhausted.
    #[error(transparent)]
    NoRoom(NoRoom),
    /// Memory is full, and objects cannot be spilled to files.
    #[error(transparent)]
    NotSpilled(NotSpilled),
    /// The client cancelled the request while it waited.
    #[error("the request was cancelled")]
    Cancelled,
    /// The node takes no new objects, since it is about to leave.
    #[error("{}", error_texts::draining(node))]
    Draining {
        /// Its name.
        node: String,
    },
    /// An object cannot move now. A later attempt may succeed.
    #[error("{}", error_texts::not_moved(_0))]
    NotMoved(String),
}

impl WireError {
    /// The kind of the error, as a label of metrics.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::OutOfMemory(_) => "out_of_memory",
            Self::TooMany { .. } => "too_many",
            Self::NameTaken { .. } => "name_taken",
            Self::NotFound { .. } => "not_found",
            Self::Invalid(_) => "invalid",
            Self::Denied(_) => "denied",
            Self::Version { .. } => "version",
            Self::OtherRegion { .. } => "other_region",
            Self::Closing => "closing",
            Self::Damaged(_) => "damaged",
            Self::TooLarge(_) => "too_large",
            Self::QuotaExceeded(_) => "quota_exceeded",
            Self::NoNamespace(_) => "no_namespace",
            Self::NamespaceInUse(_) => "namespace_in_use",
            Self::NodeLost { .. } => "node_lost",
            Self::NoRemoteSession { .. } => "no_remote_session",
            Self::NoNode { .. } => "no_node",
            Self::BarrierBroken(_) => "barrier_broken",
            Self::CutOff { .. } => "cut_off",
            Self::NotPermitted(_) => "not_permitted",
            Self::NotRestored(_) => "not_restored",
            Self::NodeUnreachable(_) => "node_unreachable",
            Self::NoRoom(_) => "no_room",
            Self::NotSpilled(_) => "not_spilled",
            Self::Cancelled => "cancelled",
            Self::Draining { .. } => "draining",
            Self::NotMoved(_) => "not_moved",
        }
    }
}

/// No run of free memory is long enough.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error(
    "out of memory: asked {requested} B, {free} B free, longest free run {largest} B{}{}",
    before(*waiting),
    after(*waited_ms)
)]
pub struct OutOfMemory {
    /// Bytes requested.
    pub requested: u64,
    /// Free bytes.
    pub free: u64,
    /// Longest free run in bytes.
    pub largest: u64,
    /// Requests that wait for memory ahead of this one.
    pub waiting: u64,
    /// How long the request waited for room, in milliseconds.
    pub waited_ms: u64,
}

/// The request exceeds the capacity of the region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{requested} B asked of a region of {capacity} B")]
pub struct TooLarge {
    /// Bytes requested.
    pub requested: u64,
    /// Bytes of the heap.
    pub capacity: u64,
}

/// The quota of the client is exhausted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error(
    "quota of {whose}: {requested} {what} asked, {used} of {limit} in use{}{}",
    before(*waiting),
    after(*waited_ms)
)]
pub struct QuotaExceeded {
    /// The owner of the quota.
    pub whose: String,
    /// `bytes` or `objects`.
    pub what: String,
    /// The number requested.
    pub requested: u64,
    /// The number in use.
    pub used: u64,
    /// The limit.
    pub limit: u64,
    /// Requests that wait for objects of this quota ahead of this one.
    pub waiting: u64,
    /// How long the request waited for room, in milliseconds.
    pub waited_ms: u64,
}

/// No such namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("no namespace {name:?}; there are {known:?}")]
pub struct NoNamespace {
    /// The requested name.
    pub name: String,
    /// Some of the existing namespaces, without the default one.
    pub known: Vec<String>,
}

/// A namespace is not empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("namespace {name:?} is in use: {objects} objects, {bytes} B, {clients} clients")]
pub struct NamespaceInUse {
    /// Its name.
    pub name: String,
    /// Sealed objects in it.
    pub objects: u64,
    /// Bytes granted to its clients, and of objects that still occupy memory.
    pub bytes: u64,
    /// Clients in it.
    pub clients: u64,
}

/// Not every party will arrive at the barrier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("barrier {name:?} is broken by {who}: {reason}")]
pub struct BarrierBroken {
    /// Its name.
    pub name: String,
    /// The missing party.
    pub who: String,
    /// The reason.
    pub reason: String,
}

/// The rules for the client's node do not permit the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("node {node:?} has no permission to {right} in namespace {namespace:?}")]
pub struct NotPermitted {
    /// The client's node.
    pub node: String,
    /// The namespace; empty: the default one.
    pub namespace: String,
    /// The missing right: `read`, `write` or `delete`.
    pub right: String,
}

/// A spilled object cannot be restored; it stays spilled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("object {what} cannot be restored from {file}: {reason}")]
pub struct NotRestored {
    /// Its id.
    pub what: String,
    /// Its file.
    pub file: String,
    /// The defect of the file.
    pub reason: String,
}

/// The node is alive, but the reporting node cannot map its memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("the memory of node {node:?} at {address} cannot be reached from here: {reason}")]
pub struct NodeUnreachable {
    /// Its name.
    pub node: String,
    /// Where it listens.
    pub address: String,
    /// Why its memory cannot be mapped.
    pub reason: String,
}

/// Memory is free, but another limited resource is exhausted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error(
    "out of memory for {what}: asked {requested} B, {free} B free, longest free run {largest} B, \
     {used} B in use{}{}",
    before(*waiting),
    after(*waited_ms)
)]
pub struct NoRoom {
    /// The exhausted resource.
    pub what: String,
    /// Bytes requested.
    pub requested: u64,
    /// Free bytes.
    pub free: u64,
    /// Longest free run in bytes.
    pub largest: u64,
    /// Bytes in use.
    pub used: u64,
    /// Requests that wait for memory ahead of this one.
    pub waiting: u64,
    /// How long the request waited for room, in milliseconds.
    pub waited_ms: u64,
}

/// Memory is full, and objects cannot be spilled to files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error(
    "out of memory: asked {requested} B, {free} B free, longest free run {largest} B{}, and an \
     object of {bytes} B cannot be spilled to {folder}: {reason}",
    after(*waited_ms)
)]
pub struct NotSpilled {
    /// Bytes requested.
    pub requested: u64,
    /// Free bytes.
    pub free: u64,
    /// Longest free run in bytes.
    pub largest: u64,
    /// How long the request waited for room, in milliseconds.
    pub waited_ms: u64,
    /// Directory of the spill files.
    pub folder: String,
    /// Bytes of the file that could not be written.
    pub bytes: u64,
    /// Error of the system.
    pub reason: String,
}

/// The part of an error message about requests ahead of this one.
fn before(waiting: u64) -> String {
    match waiting {
        0 => String::new(),
        1 => ", 1 request waits before".to_owned(),
        _ => format!(", {waiting} requests wait before"),
    }
}

/// The part of an error message about the time waited.
fn after(waited_ms: u64) -> String {
    if waited_ms == 0 { String::new() } else { format!(", after waiting {waited_ms} ms") }
}

/// The start of the message of an expired timeout. 0: the limit is not one of time.
pub fn timed_out(waited_ms: u64) -> String {
    match waited_ms {
        0 => "timed out".to_owned(),
        1..100 => format!("timed out after {waited_ms} ms"),
        // Rounded, in integers.
        _ => {
            let tenths = waited_ms.saturating_add(50) / 100;
            format!("timed out after {}.{} s", tenths / 10, tenths % 10)
        }
    }
}
