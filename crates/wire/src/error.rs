//! Errors that the daemon returns.

use serde::{Deserialize, Serialize};

/// Why the daemon refused a request, in terms of how the caller can react.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum WireError {
    /// No run of free memory is long enough.
    #[error(
        "out of memory: asked {asked} B, {free} B free, longest free run {largest} B{}{}",
        before(*waiting),
        after(*waited_ms)
    )]
    OutOfMemory {
        /// Bytes asked.
        asked: u64,
        /// Bytes free.
        free: u64,
        /// Longest run.
        largest: u64,
        /// Requests that wait for memory ahead of this one.
        waiting: u64,
        /// How long the request waited for room, in milliseconds.
        waited_ms: u64,
    },
    /// A table of the region is full.
    #[error("too many {what}: the limit is {max}")]
    TooMany {
        /// Contents of the table.
        what: String,
        /// Limit.
        max: u64,
    },
    /// The name is in use.
    #[error("the name {name:?} is taken: delete the object, or replace it (replace=True)")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// No such object, or no such rule.
    #[error("no {what}")]
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
    #[error("{asked} B asked of a region of {capacity} B")]
    TooLarge {
        /// Bytes asked.
        asked: u64,
        /// Bytes of the heap.
        capacity: u64,
    },
    /// The quota of the client is exhausted.
    #[error(
        "quota of {whose}: {asked} {what} asked, {used} of {limit} in use{}{}",
        before(*waiting),
        after(*waited_ms)
    )]
    QuotaExceeded {
        /// Owner of the quota.
        whose: String,
        /// `bytes` or `objects`.
        what: String,
        /// Number requested.
        asked: u64,
        /// Number in use.
        used: u64,
        /// Largest allowed number.
        limit: u64,
        /// Requests that wait for objects of this quota ahead of this one.
        waiting: u64,
        /// How long the request waited for room, in milliseconds.
        waited_ms: u64,
    },
    /// No such namespace.
    #[error("no namespace {name:?}; there are {known:?}")]
    NoNamespace {
        /// The name asked for.
        name: String,
        /// Some of the existing namespaces, without the default one.
        known: Vec<String>,
    },
    /// A namespace is not empty.
    #[error("namespace {name:?} is in use: {objects} objects, {bytes} B, {clients} clients")]
    NamespaceInUse {
        /// Its name.
        name: String,
        /// Sealed objects in it.
        objects: u64,
        /// Bytes granted to its clients, and of objects that still occupy memory.
        bytes: u64,
        /// Clients in it.
        clients: u64,
    },
    /// The node that owns the memory cannot be reached.
    #[error("node {node:?} is lost: {reason}")]
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
    #[error("barrier {name:?} is broken by {who}: {reason}")]
    BarrierBroken {
        /// Its name.
        name: String,
        /// The party that does not arrive or gave up.
        who: String,
        /// Why.
        reason: String,
    },
    /// This node does not reach most of the cluster, so it cannot decide which names are free.
    #[error("node {node:?} is cut off from the cluster: {reason}")]
    CutOff {
        /// The node that was asked.
        node: String,
        /// Known cause.
        reason: String,
    },
    /// The rules for the client's node do not permit the request.
    #[error("node {node:?} was not granted {right:?} in namespace {namespace:?}")]
    NotGranted {
        /// The client's node.
        node: String,
        /// The namespace; empty: the default one.
        namespace: String,
        /// The missing right: `read`, `write` or `delete`.
        right: String,
    },
    /// A spilled object cannot be restored; it stays spilled.
    #[error("object {what} cannot be restored from {file}: {reason}")]
    NotRestored {
        /// Its id.
        what: String,
        /// Its file.
        file: String,
        /// Defect of the file.
        reason: String,
    },
    /// The node is alive, but the reporting node cannot map its memory.
    #[error("the memory of node {node:?} at {address} cannot be reached from here: {reason}")]
    NodeUnreachable {
        /// Its name.
        node: String,
        /// Where it listens.
        address: String,
        /// Why its memory cannot be mapped.
        reason: String,
    },
    /// Memory is free, but another limited resource is exhausted.
    #[error(
        "out of memory for {what}: asked {asked} B, {free} B free, longest free run {largest} B, \
         {used} B in use{}{}",
        before(*waiting),
        after(*waited_ms)
    )]
    NoRoom {
        /// The exhausted resource.
        what: String,
        /// Bytes asked.
        asked: u64,
        /// Bytes free.
        free: u64,
        /// Longest run.
        largest: u64,
        /// Bytes in use.
        used: u64,
        /// Requests that wait for memory ahead of this one.
        waiting: u64,
        /// How long the request waited for room, in milliseconds.
        waited_ms: u64,
    },
    /// Memory is full, and objects cannot be spilled to files.
    #[error(
        "out of memory: asked {asked} B, {free} B free, longest free run {largest} B{}, and an \
         object of {bytes} B cannot be spilled to {folder}: {reason}",
        after(*waited_ms)
    )]
    NotSpilled {
        /// Bytes asked.
        asked: u64,
        /// Bytes free.
        free: u64,
        /// Longest run.
        largest: u64,
        /// How long the request waited for room, in milliseconds.
        waited_ms: u64,
        /// Directory of the spill files.
        folder: String,
        /// Bytes of the file that could not be written.
        bytes: u64,
        /// Error of the system.
        reason: String,
    },
    /// The client cancelled the request while it waited.
    #[error("the request was cancelled")]
    Cancelled,
    /// The node takes no new objects, since it is about to leave.
    #[error(
        "node {node:?} is draining and takes no new objects: put at another node \
         (node=\"nearest\"), or end the drain by `farrow node drain --cancel`"
    )]
    Draining {
        /// Its name.
        node: String,
    },
    /// An object cannot move now. A later attempt may succeed.
    #[error("the object cannot move now: {0}")]
    NotMoved(String),
}

impl WireError {
    /// The kind of the error, as a label of metrics.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::TooMany { .. } => "too_many",
            Self::NameTaken { .. } => "name_taken",
            Self::NotFound { .. } => "not_found",
            Self::Invalid(_) => "invalid",
            Self::Denied(_) => "denied",
            Self::Version { .. } => "version",
            Self::OtherRegion { .. } => "other_region",
            Self::Closing => "closing",
            Self::Damaged(_) => "damaged",
            Self::TooLarge { .. } => "too_large",
            Self::QuotaExceeded { .. } => "quota_exceeded",
            Self::NoNamespace { .. } => "no_namespace",
            Self::NamespaceInUse { .. } => "namespace_in_use",
            Self::NodeLost { .. } => "node_lost",
            Self::NoRemoteSession { .. } => "no_remote_session",
            Self::NoNode { .. } => "no_node",
            Self::BarrierBroken { .. } => "barrier_broken",
            Self::CutOff { .. } => "cut_off",
            Self::NotGranted { .. } => "not_granted",
            Self::NotRestored { .. } => "not_restored",
            Self::NodeUnreachable { .. } => "node_unreachable",
            Self::NoRoom { .. } => "no_room",
            Self::NotSpilled { .. } => "not_spilled",
            Self::Cancelled => "cancelled",
            Self::Draining { .. } => "draining",
            Self::NotMoved(_) => "not_moved",
        }
    }
}

/// The part of an error message about requests ahead of this one.
pub fn before(waiting: u64) -> String {
    match waiting {
        0 => String::new(),
        1 => ", 1 request waits before".to_owned(),
        _ => format!(", {waiting} requests wait before"),
    }
}

/// The part of an error message about the time waited.
pub fn after(waited_ms: u64) -> String {
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
