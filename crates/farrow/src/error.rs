//! One error for all of the client; bindings mirror its variants.

use std::path::PathBuf;

use farrow_arrow::{DescribeError, InvalidDescriptor, SelectError};
use farrow_memory::{AccessError, BoundsError, FabricError, MapError};
use farrow_store::{FormatError, StoreError};
use farrow_wire::link::LinkError;
use farrow_wire::{WireError, after, before};

/// Why an operation failed, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No sealed object has this id or name.
    #[error("no object {what}")]
    NotFound {
        /// Id or name.
        what: String,
    },
    /// Another object has the name.
    #[error("the name {name:?} is taken")]
    AlreadyExists {
        /// The name.
        name: String,
    },
    /// The region has no room.
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
        /// Longest free run in bytes.
        largest: u64,
        /// Requests that wait for memory and come first.
        waiting: u64,
        /// How long the request waited for room, in milliseconds.
        waited_ms: u64,
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
        /// Longest free run in bytes.
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
        /// Longest free run in bytes.
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
    /// More than the region could ever hold.
    #[error("{asked} B asked of a region of {capacity} B")]
    TooLarge {
        /// Bytes asked.
        asked: u64,
        /// Bytes of the heap.
        capacity: u64,
    },
    /// This client, or its namespace, may not have more.
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
    /// A spilled object cannot be brought back. It is still listed and can be deleted.
    #[error("object {what} cannot be restored from {file}: {reason}")]
    NotRestored {
        /// Its id.
        what: String,
        /// Its file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A limit of the node was reached.
    #[error("too many {what}: the limit is {max}")]
    TooMany {
        /// Of what.
        what: String,
        /// The limit.
        max: u64,
    },
    /// The time is over.
    #[error("{what}: nothing within {waited_ms} ms")]
    Timeout {
        /// What was waited for.
        what: String,
        /// For how long.
        waited_ms: u64,
    },
    /// Rows of a huge table that nobody has appended, before others that somebody has.
    #[error("huge table {table:?} has no rows {first} to {last} yet, of {rows}")]
    RowsMissing {
        /// The name of the table.
        table: String,
        /// The first row that is missing.
        first: u64,
        /// The last one of this gap.
        last: u64,
        /// All rows up to the last that is there.
        rows: u64,
    },
    /// Rows of a huge table that are there already.
    #[error(
        "rows {first} to {last} of huge table {table:?}: {taken_first} to {taken_last} are there \
         since version {version}"
    )]
    RowsTaken {
        /// The name of the table.
        table: String,
        /// The first row that was to be appended.
        first: u64,
        /// The last one.
        last: u64,
        /// The first row of those that are there.
        taken_first: u64,
        /// The last one.
        taken_last: u64,
        /// The version in which they came.
        version: u64,
    },
    /// The call was cancelled while it waited, and nothing has changed: see
    /// [`interrupt`](crate::interrupt).
    #[error("the call was interrupted while it waited")]
    Interrupted,
    /// The bytes that should describe an object do not.
    #[error("invalid descriptor: {0}")]
    InvalidDescriptor(String),
    /// The node is gone or was never there.
    #[error("no node at {}: {reason}", socket.display())]
    Disconnected {
        /// Where it should be.
        socket: PathBuf,
        /// What happened.
        reason: String,
    },
    /// The node in whose memory it lies, or is to lie, cannot be reached.
    #[error("node {node:?} is lost: {reason}")]
    NodeLost {
        /// Its name.
        node: String,
        /// What is known.
        reason: String,
    },
    /// The node in whose memory it lies, or is to lie, lives; its memory cannot be mapped by the node of
    /// this client.
    #[error("the memory of node {node:?} at {address} cannot be reached from here: {reason}")]
    NodeUnreachable {
        /// Its name.
        node: String,
        /// Where it listens.
        address: String,
        /// Why its memory cannot be mapped.
        reason: String,
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
    /// The node does not reach most of its cluster, and so cannot say what names are free.
    #[error("node {node:?} is cut off from the cluster: {reason}")]
    CutOff {
        /// The node that was asked.
        node: String,
        /// What is known.
        reason: String,
    },
    /// Not allowed.
    #[error("permission denied: {0}")]
    PermissionDenied(String),
    /// The node whose memory it is does not let this client's node do it.
    #[error("node {node:?} was not granted {right:?} in namespace {namespace:?}")]
    NotGranted {
        /// The client's node.
        node: String,
        /// The namespace; empty: the default one.
        namespace: String,
        /// What it lacks: `read`, `write` or `delete`.
        right: String,
    },
    /// The arguments make no sense.
    #[error("{0}")]
    InvalidArgument(String),
    /// The node speaks another version or said something out of turn.
    #[error("protocol: {0}")]
    Protocol(String),
    /// The system refused something.
    #[error("{what}: {reason}")]
    System {
        /// What was tried.
        what: &'static str,
        /// How it failed.
        reason: String,
    },
}

impl From<LinkError> for Error {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Closed { socket, reason }
            | LinkError::Unwelcome { socket, reason }
            | LinkError::Unsent { socket, reason, .. } => Self::Disconnected { socket, reason },
            LinkError::Timeout { socket, waited_ms } => {
                Self::Timeout { what: format!("the node at {}", socket.display()), waited_ms }
            }
            LinkError::Interrupted { .. } => Self::Interrupted,
            LinkError::Refused(error) => error.into(),
            error => Self::Protocol(error.to_string()),
        }
    }
}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        match error {
            WireError::OutOfMemory { asked, free, largest, waiting, waited_ms } => {
                Self::OutOfMemory { asked, free, largest, waiting, waited_ms }
            }
            WireError::NoRoom { what, asked, free, largest, used, waiting, waited_ms } => {
                Self::NoRoom { what, asked, free, largest, used, waiting, waited_ms }
            }
            WireError::NotSpilled { asked, free, largest, waited_ms, folder, bytes, reason } => {
                Self::NotSpilled { asked, free, largest, waited_ms, folder, bytes, reason }
            }
            WireError::TooLarge { asked, capacity } => Self::TooLarge { asked, capacity },
            WireError::QuotaExceeded { whose, what, asked, used, limit, waiting, waited_ms } => {
                Self::QuotaExceeded { whose, what, asked, used, limit, waiting, waited_ms }
            }
            WireError::NoNamespace { name, known } => Self::NoNamespace { name, known },
            WireError::NamespaceInUse { name, objects, bytes, clients } => {
                Self::NamespaceInUse { name, objects, bytes, clients }
            }
            WireError::NotRestored { what, file, reason } => {
                Self::NotRestored { what, file, reason }
            }
            WireError::NodeLost { node, reason } | WireError::NoRemoteSession { node, reason } => {
                Self::NodeLost { node, reason }
            }
            WireError::NodeUnreachable { node, address, reason } => {
                Self::NodeUnreachable { node, address, reason }
            }
            WireError::BarrierBroken { name, who, reason } => {
                Self::BarrierBroken { name, who, reason }
            }
            WireError::CutOff { node, reason } => Self::CutOff { node, reason },
            WireError::NotGranted { node, namespace, right } => {
                Self::NotGranted { node, namespace, right }
            }
            error @ WireError::NoNode { .. } => Self::InvalidArgument(error.to_string()),
            WireError::TooMany { what, max } => Self::TooMany { what, max },
            WireError::NameTaken { name } => Self::AlreadyExists { name },
            WireError::NotFound { what } => Self::NotFound { what },
            WireError::Invalid(reason) => Self::InvalidArgument(reason),
            WireError::Denied(reason) => Self::PermissionDenied(reason),
            WireError::Cancelled => Self::Interrupted,
            error => Self::Protocol(error.to_string()),
        }
    }
}

impl From<SelectError> for Error {
    fn from(error: SelectError) -> Self {
        match error {
            SelectError::Invalid(error) => error.into(),
            SelectError::Schema(error) => Self::InvalidDescriptor(error.to_string()),
            error => Self::InvalidArgument(error.to_string()),
        }
    }
}

impl From<InvalidDescriptor> for Error {
    fn from(error: InvalidDescriptor) -> Self {
        Self::InvalidDescriptor(error.to_string())
    }
}

impl From<DescribeError> for Error {
    fn from(error: DescribeError) -> Self {
        Self::InvalidArgument(error.to_string())
    }
}

impl From<MapError> for Error {
    fn from(error: MapError) -> Self {
        if let MapError::TooManyMaps { used, limit } = error {
            let what = format!(
                "memory maps in this process, {used} of vm.max_map_count ({limit}): write fewer \
                 small pieces at a time, let go of some, or raise it"
            );
            return Self::TooMany { what, max: limit };
        }
        Self::System { what: "map the region", reason: error.to_string() }
    }
}

impl From<FabricError> for Error {
    fn from(error: FabricError) -> Self {
        Self::System { what: "the memory of the node", reason: error.to_string() }
    }
}

impl From<FormatError> for Error {
    fn from(error: FormatError) -> Self {
        Self::Protocol(format!("the region of the node: {error}"))
    }
}

impl From<AccessError> for Error {
    fn from(error: AccessError) -> Self {
        Self::System { what: "write to the region", reason: error.to_string() }
    }
}

impl From<BoundsError> for Error {
    fn from(error: BoundsError) -> Self {
        Self::InvalidDescriptor(error.to_string())
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::System { what: "read the region", reason: error.to_string() }
    }
}
