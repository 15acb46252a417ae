//! Messages between nodes, persistent state, and outputs of the state machine.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::types::{ClusterId, Epoch, Incarnation, NodeName, NodeNumber, NodeSet};
use super::view::{JoinCandidate, View, is_address};

/// Most bytes of a message, in postcard: 64 members of at most 1,360 bytes, the largest sender,
/// and room for a few numbers.
pub const MESSAGE_BYTES_MAX: usize = 96 * 1024;

/// Most addresses, configured or learned, that a node asks for admission.
pub const SEEDS_MAX: usize = 64;

/// The sender of a message. The transport has checked the name against the certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sender {
    /// Its name.
    pub name: NodeName,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The address that it announces.
    pub address: String,
}

/// One message from one node to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The sender.
    pub from: Sender,
    /// The sender's cluster, once it is in one.
    pub cluster: Option<ClusterId>,
    /// The sender's epoch; 0 without a cluster.
    pub epoch: Epoch,
    /// The content.
    pub body: Body,
}

impl Message {
    /// Whether each part is within its limits.
    pub(super) fn is_sound(&self) -> bool {
        let body = match &self.body {
            Body::Ask { info, .. } => info.len() <= super::types::INFO_BYTES_MAX,
            Body::Forward(candidate) => candidate.is_sound(),
            Body::Refused(Refusal::NameInUse { address }) => is_address(address),
            Body::Promise { accepted: Some((_, view)), .. }
            | Body::Accept { value: view, .. }
            | Body::Decided { view, .. } => view.is_sound(),
            _ => true,
        };
        body && is_address(&self.from.address) && self.cluster.is_some() == (self.epoch > Epoch(0))
    }
}

/// Position in the order of proposals for one view; no two nodes have the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ballot {
    /// Grows with each attempt.
    pub round: u64,
    /// The proposer.
    pub name: NodeName,
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// Asks for admission. `echo` is the number of the receiver's last [`Body::Wait`]: it proves
    /// the return path.
    Ask {
        /// See [`super::Member::info`].
        info: Vec<u8>,
        /// 0 at first.
        echo: u64,
    },
    /// Asks the receiver to ask again with this echo.
    Wait {
        /// A number that only the receiver of this message can know.
        echo: u64,
    },
    /// Refuses admission for now.
    Refused(Refusal),
    /// Forwards a request for admission to the node that should propose it.
    Forward(JoinCandidate),
    /// Reports that the sender is alive, and acknowledges beats of the receiver.
    Beat(Beat),
    /// Asks for the receiver's cluster and epoch; also sent to lost nodes.
    Probe {
        /// This probe answers another one, so it needs no answer.
        is_answer: bool,
    },
    /// First step of a proposal for the next view.
    Prepare {
        /// See [`Ballot`].
        ballot: Ballot,
        /// The electorate: the cluster's id, or before the first view a hash of all addresses.
        electorate: u64,
        /// The members that the proposal would exclude.
        without: NodeSet,
    },
    /// Promises to follow no lower ballot.
    Promise {
        /// The ballot promised.
        ballot: Ballot,
        /// The value that the sender had accepted.
        accepted: Option<(Ballot, View)>,
    },
    /// Second step of a proposal.
    Accept {
        /// See [`Ballot`].
        ballot: Ballot,
        /// As in [`Body::Prepare`].
        electorate: u64,
        /// The next view.
        value: View,
        /// A voter had accepted the value before.
        is_adopted: bool,
    },
    /// Reports that the sender accepted the value.
    Accepted {
        /// The ballot accepted.
        ballot: Ballot,
    },
    /// Reports that the sender refused the proposal.
    Nack {
        /// The refused ballot.
        ballot: Ballot,
        /// The highest ballot that the sender follows.
        promised: Option<Ballot>,
        /// The members that the sender would not exclude yet.
        hears: NodeSet,
    },
    /// Announces a decided view.
    Decided {
        /// The view.
        view: View,
        /// The sender has the lease in it.
        is_live: bool,
    },
}

/// A sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// Number of this beat, for the acknowledgement.
    pub beat: u64,
    /// The last beat of the receiver that the sender acknowledges.
    pub ack: Option<u64>,
    /// The sender has no lease and requests an answer at once.
    pub is_urgent: bool,
    /// The sender is leaving, and no longer has the lease.
    pub is_leaving: bool,
}

/// Why a node is not admitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// A live member has its name.
    NameInUse {
        /// Address of that member.
        address: String,
    },
    /// This incarnation, or a later one, was a member before.
    Stale {
        /// The last known incarnation.
        known: Incarnation,
    },
    /// The cluster has 64 members.
    Full,
    /// Its lease differs from that of the refusing node.
    Lease {
        /// Lease of the refusing node, in milliseconds.
        lease_ms: u64,
    },
}

/// State that must survive the process, so that the node can continue the same life. It contains at
/// most two views.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistentState {
    /// The node's name.
    pub name: NodeName,
    /// The node's incarnation.
    pub incarnation: Incarnation,
    /// The node's address, as in its view.
    pub address: String,
    /// See [`super::Member::info`].
    pub info: Vec<u8>,
    /// The node is leaving, so it never has the lease again.
    pub is_leaving: bool,
    /// This life is over and must not be continued.
    pub is_over: bool,
    /// The electorate of the votes below.
    pub electorate: u64,
    /// The current view.
    pub view: Option<View>,
    /// The highest ballot that the node follows for the next view.
    pub promised: Option<Ballot>,
    /// The value that the node accepted for the next view.
    pub accepted: Option<(Ballot, View)>,
}

/// Reachability of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reachability {
    /// Heard within the last lease.
    Live,
    /// Not heard for a lease, but still in the view.
    Suspect,
    /// Not in the view.
    Lost,
}

/// A problem that the operator of the node should know.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClashError {
    /// Another node has this name.
    #[error("the name {name} is used by the node at {address} too")]
    NameInUse {
        /// The name.
        name: NodeName,
        /// Address of the other node.
        address: String,
    },
    /// A node of another cluster sent a message to this one.
    #[error("{name} at {address} is in the cluster {theirs:?}, this node in {own:?}")]
    OtherCluster {
        /// Name of the sender.
        name: NodeName,
        /// Address of the sender.
        address: String,
        /// This node's cluster.
        own: ClusterId,
        /// Cluster of the sender.
        theirs: ClusterId,
    },
    /// The leases differ, but all nodes of a cluster must have the same lease.
    #[error(
        "the node at {address} does not let this one in: its lease is {theirs_ms} ms, that of this \
         node {own_ms} ms (--lease-ms)"
    )]
    Lease {
        /// Address of the other node.
        address: String,
        /// Lease of this node.
        own_ms: u64,
        /// Lease of the other node.
        theirs_ms: u64,
    },
    /// Etcd does not answer, or its answer is not usable.
    #[error("etcd: {reason}")]
    Etcd {
        /// Cause.
        reason: String,
    },
    /// The cluster is full.
    #[error("the cluster has all of its {members} members")]
    Full {
        /// Number of members.
        members: usize,
    },
}

impl ClashError {
    /// Address of the other node, if there is one.
    #[must_use]
    pub fn address(&self) -> Option<&str> {
        match self {
            Self::NameInUse { address, .. }
            | Self::OtherCluster { address, .. }
            | Self::Lease { address, .. } => Some(address),
            Self::Etcd { .. } | Self::Full { .. } => None,
        }
    }
}

/// Outputs of the state machine, to be executed in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send a message; it may be lost.
    Send {
        /// Address of the receiver.
        address: String,
        /// The message.
        message: Message,
    },
    /// Make this durable before anything that follows.
    Keep(PersistentState),
    /// A view was installed.
    View(View),
    /// The reachability of a node changed.
    Reach {
        /// Its number in the previous or current view.
        number: NodeNumber,
        /// Its new reachability.
        state: Reachability,
    },
    /// This life is over: the others continue without it. Only `rejoin` continues.
    Outcast {
        /// The first known epoch without it.
        epoch: Epoch,
    },
    /// The node has left as requested. Only `rejoin` continues.
    Left,
    /// From now on a view may exclude this node.
    LeaseLost,
    /// No view excludes this node during the lease.
    LeaseFound,
    /// A problem that only the operator can solve; at most once in four leases.
    Clash(ClashError),
}
