//! A client of this node that uses memory of another one.

use farrow_wire::RequestBody;

use crate::peers::RemoteSessionId;

/// A client's connection whose requests go to another node.
#[derive(Debug, Clone)]
pub(super) struct ForwardedSession {
    pub(super) remote_session: RemoteSessionId,
    pub(super) node: String,
    /// The sequence number of its first message, until that is answered.
    pub(super) first_seq: Option<u64>,
    /// False: the client sends requests and maps no memory of that node.
    pub(super) maps_memory: bool,
    /// The first answer, in pieces.
    pub(super) input: Vec<u8>,
}

impl ForwardedSession {
    /// Bytes that are buffered.
    pub(super) fn retained_bytes(&self) -> usize {
        self.input.capacity()
    }
}

/// The first message of a client that goes to another node.
pub(super) struct FirstMessage {
    pub(super) seq: u64,
    pub(super) body: RequestBody,
    pub(super) maps_memory: bool,
}
