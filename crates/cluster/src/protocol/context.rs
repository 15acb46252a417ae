//! A request of a client, and whom its answer goes to.

use farrow_store::ClientSlot;

use super::identity::{PeerIdentity, SessionId};

/// The request that an answer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::protocol) struct ReplyTo {
    pub(in crate::protocol) session: SessionId,
    /// Number of the request in its session.
    pub(in crate::protocol) seq: u64,
}

/// The first request of a connection.
#[derive(Debug, Clone, Copy)]
pub(in crate::protocol) struct FirstRequest {
    pub(in crate::protocol) session: SessionId,
    pub(in crate::protocol) seq: u64,
    pub(in crate::protocol) peer: PeerIdentity,
    pub(in crate::protocol) now_ms: u64,
}

/// Identifies a request and its client.
#[derive(Debug, Clone, Copy)]
pub(in crate::protocol) struct Asker {
    pub(in crate::protocol) session: SessionId,
    pub(in crate::protocol) seq: u64,
    pub(in crate::protocol) slot: ClientSlot,
}

/// A request of a client that has joined, and the time.
#[derive(Debug, Clone, Copy)]
pub(in crate::protocol) struct RequestContext {
    pub(in crate::protocol) session: SessionId,
    pub(in crate::protocol) slot: ClientSlot,
    /// Number of the request in its session.
    pub(in crate::protocol) seq: u64,
    pub(in crate::protocol) now_ms: u64,
}

impl RequestContext {
    pub(in crate::protocol) fn asker(&self) -> Asker {
        Asker { session: self.session, seq: self.seq, slot: self.slot }
    }

    pub(in crate::protocol) fn reply_to(&self) -> ReplyTo {
        ReplyTo { session: self.session, seq: self.seq }
    }
}

/// How a refused request waited: the number of requests ahead of it, and the time.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::protocol) struct QueueWait {
    pub(in crate::protocol) ahead: usize,
    pub(in crate::protocol) ms: u64,
}
