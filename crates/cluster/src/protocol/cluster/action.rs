//! Work of the server that involves other nodes.

use farrow_membership::etcd;
use farrow_store::ClientSlot;
use farrow_wire::RequestBody;

use super::peers::offer::Offer;
use crate::protocol::identity::SessionId;

/// Work that involves other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerAction {
    /// Sends a message of the membership protocol; it may be lost.
    Message {
        /// The destination.
        address: String,
        /// The sending incarnation of this node.
        incarnation: u64,
        /// The message.
        body: Vec<u8>,
    },
    /// Asks another node; [`NodeState::on_response`](crate::protocol::NodeState::on_response) is called by the deadline.
    Ask {
        /// Identifies the question.
        token: u64,
        /// The node.
        node: String,
        /// Its address.
        address: String,
        /// The asking incarnation of this node.
        incarnation: u64,
        /// The question.
        body: Vec<u8>,
        /// Limit of the time for an answer.
        timeout_ms: u64,
    },
    /// Answers a question of another node.
    Answer {
        /// Identifies the question.
        token: u64,
        /// The answer.
        body: Vec<u8>,
    },
    /// Maps the memory of a node and calls [`NodeState::mapped`](crate::protocol::NodeState::mapped).
    Map {
        /// The node.
        node: String,
        /// The ways to its memory.
        offer: Offer,
    },
    /// Forwards the messages of a client to another node and back.
    Bridge {
        /// The client's connection.
        session: SessionId,
        /// Number of its first request.
        seq: u64,
        /// The node.
        node: String,
        /// Its address.
        address: String,
        /// The incarnation of this node.
        incarnation: u64,
        /// The first message for the other node: `Hello` or `Listen`.
        first: RequestBody,
        /// The client maps the other node's memory.
        maps_memory: bool,
    },
    /// A node is lost: ends the connections that are forwarded to it.
    CutOff {
        /// The node.
        node: String,
        /// Its address.
        address: String,
    },
    /// Watches a process of this node for another one, for a while, and answers.
    WatchProcess {
        /// Identifies the question.
        token: u64,
        /// The node that asks.
        node: String,
        /// The process.
        pid: u32,
        /// Its start time.
        start_time: u64,
    },
    /// Watches the process of a client that runs on another node of this machine, and calls
    /// [`NodeState::orphan_died`](crate::protocol::NodeState::orphan_died).
    WatchRemoteClient {
        /// Its slot.
        slot: ClientSlot,
    },
    /// Asks etcd, which stores the membership; [`NodeState::on_etcd_response`](crate::protocol::NodeState::on_etcd_response) is called by a
    /// deadline.
    AskEtcd {
        /// Identifies the question.
        id: u64,
        /// The request.
        request: etcd::EtcdRequest,
    },
    /// Drops these parts of a mapped region from this machine's caches, after writing them back.
    Clean {
        /// Identifies the question.
        token: u64,
        /// The node that owns the region.
        node: String,
        /// Parts of it.
        spans: Vec<farrow_wire::WireSpan>,
    },
}
