//! Why a call over a link has no result.

use std::path::PathBuf;

use crate::{MessageError, ReplyBody, RequestBody, WireError};

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// No daemon listens, or the connection is closed.
    #[error("no node at {}: {reason}", socket.display())]
    Closed {
        /// Path of the socket.
        socket: PathBuf,
        /// Cause.
        reason: String,
    },
    /// The connection is closed, and the request was not sent completely: it may be sent to the
    /// next daemon.
    #[error("no node at {}: {reason}", socket.display())]
    Unsent {
        /// Path of the socket.
        socket: PathBuf,
        /// Cause.
        reason: String,
        /// The request.
        body: Box<RequestBody>,
    },
    /// The connection ended before the reply to `Hello`: the daemon that accepted it has ended or
    /// handed over. Another attempt shows which.
    #[error("the node at {} ended the connection: {reason}", socket.display())]
    Unwelcome {
        /// Path of the socket.
        socket: PathBuf,
        /// Cause.
        reason: String,
    },
    /// The deadline passed.
    #[error("the node at {} did not answer within {waited_ms} ms", socket.display())]
    Timeout {
        /// Path of the socket.
        socket: PathBuf,
        /// Milliseconds until the deadline.
        waited_ms: u64,
    },
    /// An interrupt ended the wait, and the request was withdrawn.
    #[error("interrupted after {waited_ms} ms")]
    Interrupted {
        /// Milliseconds waited.
        waited_ms: u64,
    },
    /// The daemon refused the request.
    #[error(transparent)]
    Refused(#[from] WireError),
    /// A message cannot be encoded or decoded.
    #[error(transparent)]
    Frame(#[from] MessageError),
    /// The reply does not fit the request.
    #[error("the node answered {what} out of turn")]
    Confused {
        /// The start of the reply.
        what: String,
    },
}

/// The error for a reply that does not fit the request.
pub fn confused(reply: &ReplyBody) -> LinkError {
    let mut what = format!("{reply:?}");
    if let Some((cut, _)) = what.char_indices().nth(80) {
        what.truncate(cut);
    }
    LinkError::Confused { what }
}
