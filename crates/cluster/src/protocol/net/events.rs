//! What the event loop asks of the network fabric, and what its threads report.

use std::net::SocketAddr;

use farrow_memory::{Offset, Span};
use farrow_net::frame::{ErrorCode, Opened};
use farrow_net::{ConnectionError, NetError};
use farrow_store::ObjectId;
use farrow_wire::PartSpec;

/// Why another node did not serve a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetFault {
    /// The node has no such object.
    NotFound,
    /// The node does not allow it.
    Denied(String),
    /// The node is at a limit, or is restoring the object into its memory.
    Busy(String),
    /// The node is unreachable or has ended.
    Lost(String),
    /// The request is not possible for this object.
    Invalid(String),
    /// Any other failure.
    Other(String),
}

impl From<NetError> for NetFault {
    fn from(error: NetError) -> Self {
        match error {
            NetError::Refused { code: ErrorCode::NotFound, .. } => Self::NotFound,
            NetError::Refused { code: ErrorCode::Denied, text, .. } => Self::Denied(text),
            NetError::Refused { code: ErrorCode::Busy, text, .. } => Self::Busy(text),
            // Of this node, not of the other one.
            NetError::Connection { ref reason, .. }
                if matches!(**reason, ConnectionError::Memory(_)) =>
            {
                Self::Other(error.to_string())
            }
            NetError::Connection { .. } | NetError::Lost { .. } => Self::Lost(error.to_string()),
            error => Self::Other(error.to_string()),
        }
    }
}

/// An action of the network fabric. Offsets of pieces are those of the peer's data section, and of
/// this region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetAction {
    /// A node has become reachable.
    Connect {
        /// The node.
        node: String,
        /// The addresses of its data server, or its name and port.
        addresses: Vec<String>,
        /// Length of its data section in bytes.
        section: u64,
    },
    /// An incarnation of a node has ended, so the connections in both directions end.
    Cut {
        /// The node.
        node: String,
        /// The incarnation.
        incarnation: u64,
        /// Whether the node is unreachable now.
        is_lost: bool,
    },
    /// Find an object and hold it in its home.
    Open {
        /// The request.
        token: u64,
        /// The node.
        node: String,
        /// The object, as an encoded query.
        want: Vec<u8>,
        /// The part to transfer; `None`: the whole object.
        part: Option<PartSpec>,
    },
    /// Transfer the bytes of an opened object.
    Load {
        /// The object.
        origin: ObjectId,
        /// Its node.
        node: String,
        /// The hold on it.
        hold: u64,
        /// Source and destination of each piece.
        pieces: Vec<(Span, Offset)>,
    },
    /// Create the file of an opened object whose pages are brought one by one.
    OpenFile {
        /// Its number.
        file: u64,
        /// The object at its home.
        key: u64,
        /// The home.
        node: String,
        /// The hold on the object.
        hold: u64,
        /// Its blocks, with the offsets of the home's data section.
        blocks: Vec<Span>,
    },
    /// Bring bytes of such an object, as far as they are missing.
    Pages {
        /// The request.
        token: u64,
        /// The file.
        file: u64,
        /// The home.
        node: String,
        /// The hold on the object.
        hold: u64,
        /// The ranges, each within a block.
        ranges: Vec<Span>,
    },
    /// End the use of such a file.
    CloseFile {
        /// The file.
        file: u64,
    },
    /// Release an opened object.
    Release {
        /// Its node.
        node: String,
        /// The hold on it.
        hold: u64,
    },
    /// The ticket for a connection of this node, or the reason for its absence.
    Ticket {
        /// The request.
        number: u64,
        /// The ticket.
        result: Result<[u8; 32], String>,
    },
    /// What a member reads of this node has ended, with its daemon or with this node's incarnation.
    EndReads {
        /// The member.
        node: String,
        /// Its incarnation as a member.
        incarnation: u64,
        /// The life of the daemon that follows; `None`: this node's incarnation has ended, which the
        /// member releases nothing of.
        life: Option<u64>,
    },
    /// A member requests a ticket. The event loop answers it.
    IssueTicket {
        /// The request.
        token: u64,
        /// The member.
        node: String,
        /// Its incarnation as a member.
        incarnation: u64,
        /// The life of its daemon.
        life: u64,
    },
}

/// The result of an action, or a request of a thread.
#[derive(Debug)]
pub enum NetEvent {
    /// The result of opening an object.
    Opened {
        /// The request.
        token: u64,
        /// The node.
        node: String,
        /// The hold, and the node's description of the object.
        result: Result<(u64, Opened), NetFault>,
    },
    /// The result of loading an object. No thread writes to its memory any more.
    Loaded {
        /// The object.
        origin: ObjectId,
        /// Whether its bytes are complete.
        result: Result<(), NetFault>,
    },
    /// Pages of an object are complete.
    Pages {
        /// The request.
        token: u64,
        /// The bytes that were missing, or why some still are.
        result: Result<u64, NetFault>,
    },
    /// The bytes of a transfer from a node have arrived.
    Transferred {
        /// The node that sent them.
        node: String,
        /// Bytes of the transfer.
        bytes: u64,
        /// How they were read: `net` or `net+TLS`, with `+rdma` behind it if by the network card.
        way: &'static str,
        /// Its time, from the first request to the last byte in memory.
        elapsed_us: u64,
    },
    /// A connection to a node needs a ticket.
    TicketWanted {
        /// The node.
        node: String,
        /// The request.
        number: u64,
    },
    /// The name of a data server was resolved.
    Resolved {
        /// The node.
        node: String,
        /// The addresses of its data server, in the order in which they are tried.
        at: Vec<SocketAddr>,
        /// Length of its data section in bytes.
        section: u64,
    },
    /// Another node wants a spilled object.
    Restore {
        /// The object.
        id: ObjectId,
    },
}
