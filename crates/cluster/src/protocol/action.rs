//! Work that the state has the server do.

use farrow_wire::{NodeStats, Reply, ReplyBody, WireError};

use super::cluster::{Answer, PeerAction};
use super::context::Asker;
use super::core::waits::Wait;
use super::identity::SessionId;
use super::spill_job::SpillJob;
use crate::protocol::net::NetAction;

/// Work for the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Sends a reply, with the region's file descriptors if `has_descriptors` is set.
    Send {
        /// The receiving connection.
        session: SessionId,
        /// The reply.
        reply: Reply,
        /// Whether to attach the descriptors.
        has_descriptors: bool,
    },
    /// Sends a reply, with the descriptors of a file for an object's pages.
    SendFile {
        /// The receiving connection.
        session: SessionId,
        /// The reply.
        reply: Reply,
        /// The file.
        file: u64,
    },
    /// Closes the connection after pending replies.
    Close {
        /// The connection.
        session: SessionId,
    },
    /// Works on a file, after all earlier jobs.
    Spill(SpillJob),
    /// Exchanges messages with another node.
    Peer(PeerAction),
    /// Uses the network fabric.
    Net(NetAction),
    /// Answers the scrapers that wait for metrics; `None`: the region cannot be read.
    Scraped(Option<Box<NodeStats>>),
    /// Ends the daemon.
    Stop,
    /// Handles the requests that have arrived and hands the region over to the next daemon.
    HandOver {
        /// The connection of the next daemon.
        session: SessionId,
        /// The request to answer with [`NodeState::inheritance`](crate::protocol::NodeState::inheritance).
        seq: u64,
    },
}

/// The answer to a request that waited.
pub(in crate::protocol) fn answer(asker: Asker, body: Result<ReplyBody, WireError>) -> Action {
    answer_to(asker.session, asker.seq, body)
}

/// As [`answer`], by session and sequence number.
pub(in crate::protocol) fn answer_to(
    session: SessionId,
    seq: u64,
    body: Result<ReplyBody, WireError>,
) -> Action {
    Action::Send { session, reply: Reply { seq, body }, has_descriptors: false }
}

pub(in crate::protocol) fn answer_wait(wait: Wait) -> Action {
    let reply = Reply { seq: wait.seq, body: Ok(ReplyBody::Ready(wait.ready)) };
    Action::Send { session: wait.session, reply, has_descriptors: false }
}

/// Sends an answer to another node.
pub(crate) fn answer_peer(token: u64, answer: &Answer) -> Action {
    let body = postcard::to_allocvec(answer).unwrap_or_default();
    Action::Peer(PeerAction::Answer { token, body })
}
