//! The one error type of the client, and the numbers of its variants; bindings mirror them.

use std::path::PathBuf;

use farrow_arrow::{DescribeError, ImportError, InvalidDescriptor, SelectError};
use farrow_memory::{AccessError, BoundsError, FabricError, MapError};
use farrow_store::{FormatError, StoreError, Target};
use farrow_wire::link::LinkError;
use farrow_wire::{WireError, error_texts, timed_out};

pub use farrow_wire::{
    BarrierBroken, NamespaceInUse, NoNamespace, NoRoom, NodeUnreachable, NotPermitted, NotRestored,
    NotSpilled, OutOfMemory, QuotaExceeded, TooLarge,
};

/// Why an operation failed, grouped by possible reactions of the caller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No sealed object has this id or name.
    #[error("{}", error_texts::not_found(what))]
    NotFound {
        /// The kind of thing, and its id or name: `object named "trades"`.
        what: String,
    },
    /// Another object has the name.
    #[error("{}", error_texts::name_taken(name))]
    AlreadyExists {
        /// The name.
        name: String,
    },
    /// The region has no free run of this length.
    #[error(transparent)]
    OutOfMemory(OutOfMemory),
    /// A limited resource other than free memory is used up, such as the space for names.
    #[error(transparent)]
    NoRoom(NoRoom),
    /// Memory is full, and objects cannot be spilled to files.
    #[error(transparent)]
    NotSpilled(NotSpilled),
    /// No node of the cluster can take an object that is placed by a rule.
    #[error(
        "no node has room for {requested} B by {rule:?}: at most {free} B are free; {}",
        nodes.join("; ")
    )]
    NoNodeHasRoom {
        /// The rule: `nearest` or `most-free`.
        rule: &'static str,
        /// Bytes requested.
        requested: u64,
        /// Free bytes of the node that has most.
        free: u64,
        /// Each node, and why it cannot take the object.
        nodes: Vec<String>,
    },
    /// The request exceeds the capacity of the region.
    #[error(transparent)]
    TooLarge(TooLarge),
    /// The quota of this client, or of its namespace, is used up.
    #[error(transparent)]
    QuotaExceeded(QuotaExceeded),
    /// The namespace does not exist.
    #[error(transparent)]
    NoNamespace(NoNamespace),
    /// A namespace is not empty.
    #[error(transparent)]
    NamespaceInUse(NamespaceInUse),
    /// A spilled object cannot be restored. It is still listed and can be deleted.
    #[error(transparent)]
    NotRestored(NotRestored),
    /// A limit of the node was reached.
    #[error("{}", error_texts::too_many(what, *max))]
    TooMany {
        /// The limited resource.
        what: String,
        /// The limit.
        max: u64,
    },
    /// A timeout expired.
    #[error("{} waiting for {what}", timed_out(*waited_ms))]
    Timeout {
        /// The awaited event.
        what: String,
        /// How long the call waited, in milliseconds.
        waited_ms: u64,
    },
    /// A gap in a huge table: rows that are not appended yet, before rows that are.
    #[error("huge table {table:?} has no rows {first} to {last} yet, of {rows}")]
    RowsMissing {
        /// The name of the table.
        table: String,
        /// The first missing row.
        first: u64,
        /// The last row of this gap.
        last: u64,
        /// Number of rows up to the last existing one.
        rows: u64,
    },
    /// Some rows of a huge table exist already.
    #[error(
        "rows {first} to {last} of huge table {table:?}: {taken_first} to {taken_last} are there \
         since version {version}"
    )]
    RowsTaken {
        /// The name of the table.
        table: String,
        /// The first row to be appended.
        first: u64,
        /// The last row to be appended.
        last: u64,
        /// The first existing row.
        taken_first: u64,
        /// The last existing row.
        taken_last: u64,
        /// The version that added them.
        version: u64,
    },
    /// The call was cancelled while it waited, and changed nothing: see
    /// [`interrupt`](crate::interrupt).
    #[error("the call was interrupted while it waited")]
    Interrupted,
    /// The descriptor of an object is damaged or invalid.
    #[error("invalid descriptor: {0}")]
    InvalidDescriptor(String),
    /// The node has ended or never existed.
    #[error("no node at {}: {reason}", socket.display())]
    Disconnected {
        /// Where it was expected.
        socket: PathBuf,
        /// The failure.
        reason: String,
    },
    /// The node in whose memory the object is, or would be placed, cannot be reached.
    #[error("{}", error_texts::node_lost(node, reason))]
    NodeLost {
        /// Its name.
        node: String,
        /// The known reason.
        reason: String,
    },
    /// The node was killed with its memory, and another one serves the socket.
    #[error(
        "the node was replaced: its memory {old:#018x} no longer exists, and the node at {socket} serves \
         {new:#018x} now; connect again"
    )]
    NodeReplaced {
        /// Where the client connected.
        socket: PathBuf,
        /// Uid of the region that the client has.
        old: u64,
        /// Uid of the region that is served now.
        new: u64,
    },
    /// The node in whose memory the object is, or would be placed, is live, but this client's node
    /// cannot map its memory.
    #[error(transparent)]
    NodeUnreachable(NodeUnreachable),
    /// The node is about to leave and takes no new objects: see [`Client::begin_drain`].
    ///
    /// [`Client::begin_drain`]: crate::Client::begin_drain
    #[error("{}", error_texts::draining(node))]
    NodeDraining {
        /// Its name.
        node: String,
    },
    /// An object cannot move to another node at this moment.
    #[error("{}", error_texts::not_moved(_0))]
    NotMoved(String),
    /// A party of a barrier will not arrive.
    #[error(transparent)]
    BarrierBroken(BarrierBroken),
    /// The node does not reach a majority of its cluster, and so cannot tell which names are free.
    #[error("{}", error_texts::cut_off(node, reason))]
    CutOff {
        /// The node that was asked.
        node: String,
        /// The known reason.
        reason: String,
    },
    /// The operation is not permitted.
    #[error("permission denied: {0}")]
    PermissionDenied(String),
    /// The owner of the memory does not permit the operation to this client's node.
    #[error(transparent)]
    NotPermitted(NotPermitted),
    /// An argument is invalid.
    #[error("{0}")]
    InvalidArgument(String),
    /// The node has another protocol version, or sent an unexpected message.
    #[error("protocol: {0}")]
    Protocol(String),
    /// The system refused an operation.
    #[error("{what}: {reason}")]
    System {
        /// The operation.
        what: &'static str,
        /// The failure.
        reason: String,
    },
}

impl Error {
    /// No sealed object has this id or name.
    pub(crate) fn no_object<'a>(target: impl Into<Target<'a>>) -> Self {
        Self::NotFound { what: target.into().to_string() }
    }
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
            WireError::OutOfMemory(error) => Self::OutOfMemory(error),
            WireError::NoRoom(error) => Self::NoRoom(error),
            WireError::NotSpilled(error) => Self::NotSpilled(error),
            WireError::TooLarge(error) => Self::TooLarge(error),
            WireError::QuotaExceeded(error) => Self::QuotaExceeded(error),
            WireError::NoNamespace(error) => Self::NoNamespace(error),
            WireError::NamespaceInUse(error) => Self::NamespaceInUse(error),
            WireError::NotRestored(error) => Self::NotRestored(error),
            WireError::NodeLost { node, reason } | WireError::NoRemoteSession { node, reason } => {
                Self::NodeLost { node, reason }
            }
            WireError::NodeUnreachable(error) => Self::NodeUnreachable(error),
            WireError::BarrierBroken(error) => Self::BarrierBroken(error),
            WireError::CutOff { node, reason } => Self::CutOff { node, reason },
            WireError::Draining { node } => Self::NodeDraining { node },
            WireError::NotMoved(reason) => Self::NotMoved(reason),
            WireError::NotPermitted(error) => Self::NotPermitted(error),
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

impl From<ImportError> for Error {
    fn from(error: ImportError) -> Self {
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

/// Reports an invalid name as the caller's mistake, not the region's.
pub(crate) fn named(error: StoreError) -> Error {
    match error {
        StoreError::NameInvalid { .. } => Error::InvalidArgument(error.to_string()),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use farrow_store::ObjectId;

    use super::*;

    #[test]
    fn a_missing_object_is_named_in_one_form() {
        let id = ObjectId { hi: 1, lo: 2 };
        let texts = [
            (Target::Id(id), format!("no object {id}")),
            (Target::Name("trades"), r#"no object named "trades""#.to_owned()),
        ];
        for (target, text) in texts {
            let what = target.to_string();
            assert_eq!(Error::no_object(target).to_string(), text);
            assert_eq!(WireError::NotFound { what: what.clone() }.to_string(), text);
            assert_eq!(Error::from(WireError::NotFound { what: what.clone() }).to_string(), text);
            assert_eq!(StoreError::NotFound { what }.to_string(), text);
        }
    }

    #[test]
    fn a_timeout_says_how_long_and_for_what() {
        let text =
            |waited_ms| Error::Timeout { what: "an answer".to_owned(), waited_ms }.to_string();
        assert_eq!(text(0), "timed out waiting for an answer");
        assert_eq!(text(99), "timed out after 99 ms waiting for an answer");
        assert_eq!(text(1002), "timed out after 1.0 s waiting for an answer");
        assert_eq!(text(1450), "timed out after 1.5 s waiting for an answer");
        assert!(text(u64::MAX).starts_with("timed out after "));
    }
}
