//! Why the daemon says no.

use serde::{Deserialize, Serialize};

/// Why not, in terms of what the caller can do.
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
        /// Requests that wait for memory and come first.
        waiting: u64,
        /// How long the request waited for room, in milliseconds.
        waited_ms: u64,
    },
    /// A table of the region is full.
    #[error("too many {what}: the limit is {max}")]
    TooMany {
        /// Of what.
        what: String,
        /// Limit.
        max: u64,
    },
    /// The name is in use.
    #[error("the name {name:?} is taken")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// No such object.
    #[error("no object {what}")]
    NotFound {
        /// Id or name.
        what: String,
    },
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// Not allowed.
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
    /// The region that the client knew is gone.
    #[error("the node lost its region {old:#018x} and serves {new:#018x} now")]
    OtherRegion {
        /// What the client had.
        old: u64,
        /// What is served.
        new: u64,
    },
    /// The daemon is ending.
    #[error("the node is shutting down")]
    Closing,
    /// Something is wrong with the region itself.
    #[error("the region is damaged: {0}")]
    Damaged(String),
    /// More than the region could ever hold.
    #[error("{asked} B asked of a region of {capacity} B")]
    TooLarge {
        /// Bytes asked.
        asked: u64,
        /// Bytes of the heap.
        capacity: u64,
    },
    /// A client may not have more.
    #[error(
        "quota of {whose}: {asked} {what} asked, {used} of {limit} in use{}{}",
        before(*waiting),
        after(*waited_ms)
    )]
    QuotaExceeded {
        /// Of whom.
        whose: String,
        /// `bytes` or `objects`.
        what: String,
        /// How many were asked.
        asked: u64,
        /// How many it has.
        used: u64,
        /// How many it may have.
        limit: u64,
        /// Requests that wait for objects of this quota and come first.
        waiting: u64,
        /// How long the request waited for room, in milliseconds.
        waited_ms: u64,
    },
    /// No such namespace.
    #[error("no namespace {name:?}; there are {known:?}")]
    NoNamespace {
        /// The name asked for.
        name: String,
        /// Some of those that there are, besides the default one.
        known: Vec<String>,
    },
    /// A namespace is not empty.
    #[error("namespace {name:?} is in use: {objects} objects, {bytes} B, {clients} clients")]
    NamespaceInUse {
        /// Its name.
        name: String,
        /// Sealed objects in it.
        objects: u64,
        /// Bytes granted to its clients, and those of objects not yet gone.
        bytes: u64,
        /// Clients in it.
        clients: u64,
    },
    /// The node whose memory is meant cannot be reached.
    #[error("node {node:?} is lost: {reason}")]
    NodeLost {
        /// Its name.
        node: String,
        /// What is known.
        reason: String,
    },
    /// The connection to the node broke before it answered: it may be there. Ask again.
    #[error("node {node:?} did not answer: {reason}")]
    NoRemoteSession {
        /// Its name.
        node: String,
        /// What is known.
        reason: String,
    },
    /// No such node.
    #[error("no node {name:?} in the cluster; there are {known:?}")]
    NoNode {
        /// The name asked for.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// Not all parties of a barrier will come.
    #[error("barrier {name:?} is broken by {who}: {reason}")]
    BarrierBroken {
        /// Its name.
        name: String,
        /// Who does not come, or gave up.
        who: String,
        /// Why.
        reason: String,
    },
    /// This node does not reach most of the cluster, so it cannot say what names are free.
    #[error("node {node:?} is cut off from the cluster: {reason}")]
    CutOff {
        /// The node that was asked.
        node: String,
        /// What is known.
        reason: String,
    },
    /// The rules for the client's node do not let it.
    #[error("node {node:?} was not granted {right:?} in namespace {namespace:?}")]
    NotGranted {
        /// The client's node.
        node: String,
        /// The namespace; empty: the default one.
        namespace: String,
        /// What it lacks: `read`, `write` or `delete`.
        right: String,
    },
    /// A spilled object cannot be brought back; it stays spilled.
    #[error("object {what} cannot be restored from {file}: {reason}")]
    NotRestored {
        /// Its id.
        what: String,
        /// Its file.
        file: String,
        /// What is wrong with the file.
        reason: String,
    },
    /// The node lives, and its memory cannot be mapped by the one that says so.
    #[error("the memory of node {node:?} at {address} cannot be reached from here: {reason}")]
    NodeUnreachable {
        /// Its name.
        node: String,
        /// Where it listens.
        address: String,
        /// Why its memory cannot be mapped.
        reason: String,
    },
    /// There is memory, and something else of which there is only so much is taken.
    #[error(
        "out of memory for {what}: asked {asked} B, {free} B free, longest free run {largest} B, \
         {used} B in use{}{}",
        before(*waiting),
        after(*waited_ms)
    )]
    NoRoom {
        /// For what.
        what: String,
        /// Bytes asked.
        asked: u64,
        /// Bytes free.
        free: u64,
        /// Longest run.
        largest: u64,
        /// Bytes taken.
        used: u64,
        /// Requests that wait for memory and come first.
        waiting: u64,
        /// How long the request waited for room, in milliseconds.
        waited_ms: u64,
    },
    /// Memory is full, and objects cannot leave it for files.
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
        /// Where files go.
        folder: String,
        /// Bytes of the file that could not be written.
        bytes: u64,
        /// What the system says.
        reason: String,
    },
    /// The client cancelled the request while it waited.
    #[error("the request was cancelled")]
    Cancelled,
}

/// What an error says of those who come first.
pub fn before(waiting: u64) -> String {
    match waiting {
        0 => String::new(),
        1 => ", 1 request waits before".to_owned(),
        _ => format!(", {waiting} requests wait before"),
    }
}

/// What an error says of a wait.
pub fn after(waited_ms: u64) -> String {
    if waited_ms == 0 { String::new() } else { format!(", after waiting {waited_ms} ms") }
}
