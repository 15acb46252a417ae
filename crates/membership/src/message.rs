//! What nodes write to each other, what they keep, and what comes out of the state machine.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::types::{ClusterId, Epoch, Incarnation, NodeName, NodeNumber, NodeSet};
use super::view::{JoinCandidate, View, is_address};

/// Most bytes of a message, in postcard: 64 members of at most 1,360 bytes, the largest sender,
/// and room for a few numbers.
pub const MESSAGE_BYTES_MAX: usize = 96 * 1024;

/// Most addresses that a node is configured with, or learns, to ask for a way in.
pub const SEEDS_MAX: usize = 64;

/// Who wrote a message. The transport has checked the name against the certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sender {
    /// Its name.
    pub name: NodeName,
    /// Its life.
    pub incarnation: Incarnation,
    /// Where it says that it listens.
    pub address: String,
}

/// One message from one node to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who wrote it.
    pub from: Sender,
    /// The writer's cluster, once it is in one.
    pub cluster: Option<ClusterId>,
    /// The writer's epoch; 0 without a cluster.
    pub epoch: Epoch,
    /// What it says.
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

/// A place in the order of proposals for one view; no two nodes have the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ballot {
    /// Grows with each attempt.
    pub round: u64,
    /// Who proposes.
    pub name: NodeName,
}

/// What a message says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// Let me in. `echo` is what the receiver's last [`Body::Wait`] said: proof of a way back.
    Ask {
        /// See [`super::Member::info`].
        info: Vec<u8>,
        /// 0 at first.
        echo: u64,
    },
    /// Ask again, with this echo.
    Wait {
        /// A number that only who receives this message can know.
        echo: u64,
    },
    /// You cannot be let in now.
    Refused(Refusal),
    /// Somebody asked me to be let in; you are the one to propose it.
    Forward(JoinCandidate),
    /// I live, and so many of your beats did I hear.
    Beat(Beat),
    /// Whom are you with? Also to those that are lost.
    Probe {
        /// It answers one, so it needs no answer.
        is_answer: bool,
    },
    /// First step of a proposal for the next view.
    Prepare {
        /// See [`Ballot`].
        ballot: Ballot,
        /// Which electorate: the cluster's id, or before the first view a hash of all addresses.
        electorate: u64,
        /// Whom the proposal would exclude.
        without: NodeSet,
    },
    /// I shall follow no lower ballot.
    Promise {
        /// The ballot promised.
        ballot: Ballot,
        /// What I had accepted.
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
        /// Somebody had accepted it before.
        is_adopted: bool,
    },
    /// I accepted it.
    Accepted {
        /// The ballot accepted.
        ballot: Ballot,
    },
    /// I did not.
    Nack {
        /// The ballot that I do not follow.
        ballot: Ballot,
        /// The highest that I follow.
        promised: Option<Ballot>,
        /// Whom I would not exclude yet.
        hears: NodeSet,
    },
    /// A view that was agreed on.
    Decided {
        /// The view.
        view: View,
        /// The writer has the lease in it.
        is_live: bool,
    },
}

/// A sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// Number of this beat, for the answer.
    pub beat: u64,
    /// The last beat of the receiver that the writer vouches for.
    pub ack: Option<u64>,
    /// The writer has no lease and would like an answer at once.
    pub is_urgent: bool,
    /// The writer wants to go, and holds no lease any more.
    pub is_leaving: bool,
}

/// Why somebody is not let in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Its name is used by a member that lives.
    NameInUse {
        /// Where that one listens.
        address: String,
    },
    /// That life, or a later one, was here before.
    Stale {
        /// The last that was here.
        known: Incarnation,
    },
    /// There are 64 members.
    Full,
    /// Its lease is another one than that of the node that refuses it.
    Lease {
        /// That of the node that refuses, in milliseconds.
        lease_ms: u64,
    },
}

/// What must outlive the process, so that it can go on with the same life. It has no more than
/// two views in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistentState {
    /// The node's name.
    pub name: NodeName,
    /// The node's life.
    pub incarnation: Incarnation,
    /// The node's address, as its view has it.
    pub address: String,
    /// See [`super::Member::info`].
    pub info: Vec<u8>,
    /// It wants to go, so it never has the lease again.
    pub is_leaving: bool,
    /// That life is over, and is not to be gone on with.
    pub is_over: bool,
    /// The electorate of the votes below.
    pub electorate: u64,
    /// The view that it is in.
    pub view: Option<View>,
    /// The highest ballot that it follows for the next view.
    pub promised: Option<Ballot>,
    /// What it accepted for the next view.
    pub accepted: Option<(Ballot, View)>,
}

/// How well a node is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reachability {
    /// Heard within the last lease.
    Live,
    /// Not heard for a lease, but still in the view.
    Suspect,
    /// Not in the view.
    Lost,
}

/// What who runs a node should know.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClashError {
    /// Another node has this name.
    #[error("the name {name} is used by the node at {address} too")]
    NameInUse {
        /// The name.
        name: NodeName,
        /// Where the other listens.
        address: String,
    },
    /// A node of another cluster writes to this one.
    #[error("{name} at {address} is in the cluster {theirs:?}, this node in {own:?}")]
    OtherCluster {
        /// Who wrote.
        name: NodeName,
        /// Where it listens.
        address: String,
        /// This node's cluster.
        own: ClusterId,
        /// The other's.
        theirs: ClusterId,
    },
    /// Nodes of one cluster have one lease.
    #[error(
        "the node at {address} does not let this one in: its lease is {theirs_ms} ms, that of this \
         node {own_ms} ms (--lease-ms)"
    )]
    Lease {
        /// Where the other listens.
        address: String,
        /// This node's.
        own_ms: u64,
        /// The other's.
        theirs_ms: u64,
    },
    /// Etcd does not answer, or what it answers cannot be used.
    #[error("etcd: {reason}")]
    Etcd {
        /// Why.
        reason: String,
    },
    /// The cluster takes no more nodes.
    #[error("the cluster has all of its {members} members")]
    Full {
        /// How many.
        members: usize,
    },
}

impl ClashError {
    /// Where the other node listens, if there is one.
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

/// What comes out of the state machine, to be done in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send a message; it may get lost.
    Send {
        /// Where to.
        address: String,
        /// What.
        message: Message,
    },
    /// Make this durable before anything that follows.
    Keep(PersistentState),
    /// A view was installed.
    View(View),
    /// A node is reached better, or worse.
    Reach {
        /// Its number in the view before, or now.
        number: NodeNumber,
        /// How well.
        state: Reachability,
    },
    /// This life is over: others went on without it. Only `rejoin` goes on.
    Outcast {
        /// The first epoch without it, as far as is known.
        epoch: Epoch,
    },
    /// The node has left, as it wanted. Only `rejoin` goes on.
    Left,
    /// From now on others may go on without this node.
    LeaseLost,
    /// No view excludes this node for a while.
    LeaseFound,
    /// Something that only who runs the nodes can mend; at most once in four leases.
    Clash(ClashError),
}
