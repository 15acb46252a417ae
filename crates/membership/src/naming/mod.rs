//! Names that are unique in the cluster, wherever they are created.
//!
//! A name belongs to its *home*, the node of its object. Before the home reserves or seals the
//! name, it asks the *name authority*: the member of the view with the highest [`authority_of`]
//! score, so each name has one authority that all members know. The authority remembers only names
//! in flight: granted, but not reported as settled. A settled name is either visible in a
//! directory, where `exists` finds it, or given up.
//!
//! **Change of the view.** The state of the authorities restarts in each epoch. Each home lists the
//! names that it holds to their new authorities, also an empty list. An authority grants nothing
//! before it has the lists of all members. A home drops messages of other epochs, so its list
//! contains all that it holds. A node outside the new view had lost the lease before the view was
//! installed anywhere, and [`Naming::holds`] is false without the lease. Therefore `holds` must be
//! true at the moment when an object is sealed under a name.
//!
//! **Lost and late messages.** Claims and settlements of a home have increasing serials, and an
//! authority drops those not above the last. So no claim outlives the settlement that gave it up. A
//! daemon that was killed and continues the same life has a higher session. Its list replaces all
//! its earlier state at the authorities, and all others send it their lists again.
//!
//! **Members with unreadable directories** are asked whether they have a claimed name, which is
//! meanwhile in flight for its home: see `unread`. While one of them is lost, its names are
//! unknown, so no name is granted ([`NameRefusal::Unread`]) until it returns or is forgotten.
//!
//! **A node that joins in a new life** may bring names that other members created meanwhile. It asks
//! them, and loses those that they have: see [`JoinedNames`].
//!
//! Without the lease nothing is granted and nothing claimed. Names have at most 512 bytes here. A
//! claim without an answer is repeated every 50 ms, until the deadline of its request.

mod authority;
mod debt;
mod home;
mod joined;
mod unread;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::fnv::{BASIS, fnv};
use crate::state::mix;

use crate::{ClusterId, Epoch, Incarnation, Member, NodeNumber, NodeSet, View};

pub use home::Naming;
pub use joined::{JoinedNames, JoinedQuestion};

/// Most names that a node holds or requests at a time.
pub const NAMES_MAX: usize = 65_536;

/// Most names in a message.
pub const MESSAGE_NAMES_MAX: usize = 8_192;

/// Most bytes of names in a message: a quarter of the default limit of gRPC.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Longest name, with its namespace.
pub const NAME_BYTES_MAX: usize = 512;

/// Interval at which a message without an answer is repeated: ten round trips of a slow network.
pub const RETRY_MS: u64 = 50;

/// Why a name was not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NameRefusal {
    /// An object has the name, or is being created with it.
    #[error("the name is taken")]
    Taken,
    /// This node may have been excluded; retry when it has the lease.
    #[error("this node does not have the lease of the cluster")]
    NoLease,
    /// The authority did not answer in time.
    #[error("node {} did not answer in time", authority.get())]
    NoResponse {
        /// The authority that was asked last.
        authority: NodeNumber,
    },
    /// The authority's rules do not permit this node to have names in that namespace.
    #[error("node {} does not let this one take the name", authority.get())]
    NotAllowed {
        /// The authority that refused.
        authority: NodeNumber,
    },
    /// A node is lost, and the refusing node could not read the names of its objects.
    #[error("which names node {} has is not known: it is lost", node.get())]
    Unread {
        /// The lost node.
        node: NodeNumber,
    },
    /// Too many names are in flight on this node.
    #[error("more than {limit} names in flight")]
    TooMany {
        /// See [`NAMES_MAX`].
        limit: usize,
    },
    /// The name is empty or too long.
    #[error("a name has 1 to {NAME_BYTES_MAX} bytes, not {bytes}")]
    Invalid {
        /// Length of the name.
        bytes: usize,
    },
}

/// A message between a home and an authority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameMessage {
    /// The cluster of the view.
    pub cluster: ClusterId,
    /// The epoch of the view.
    pub epoch: Epoch,
    /// Session of the home: the process within its life.
    pub session: u64,
    /// Session of the authority; 0 while the home does not know it. A message for or from another
    /// process than the current one may be old, and is dropped.
    pub authority: u64,
    /// Increases with each claim and settlement of a home; an answer repeats the serial of its
    /// request.
    pub serial: u64,
    /// The content.
    pub body: NameMessageBody,
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameMessageBody {
    /// Home: lists the names that it holds of this authority, in parts.
    List {
        /// From 0.
        part: u32,
        /// At least 1.
        parts: u32,
        /// The names of this part.
        names: Vec<String>,
    },
    /// Authority: acknowledges a part of the list.
    Listed {
        /// Number of the part.
        part: u32,
    },
    /// Home: claims names.
    Claim {
        /// Number of the claim; the same when it is repeated.
        claim: u64,
        /// The names.
        names: Vec<String>,
    },
    /// Authority: decides on a claim.
    Claimed {
        /// Number of the claim.
        claim: u64,
        /// One verdict per name, in the order of the claim.
        verdicts: Vec<Verdict>,
    },
    /// Home: no longer holds these names; they are visible or given up.
    Settle {
        /// The names.
        names: Vec<String>,
    },
    /// Authority: acknowledges a settlement.
    Settled,
    /// Authority: asks a member with an unreadable directory which of these names its objects have.
    Query {
        /// Number of the query; the same when it is repeated.
        question: u64,
        /// The names.
        names: Vec<String>,
    },
    /// Member: answers a query.
    Queried {
        /// Number of the query.
        question: u64,
        /// Whether an object has each name, in the order of the query.
        taken: Vec<bool>,
        /// A lost node with names that this member could not read: it may have the others.
        lost: Option<NodeNumber>,
    },
}

/// A request for names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameRequest {
    /// Identifies the request in [`NameOutput::Answer`].
    pub ticket: u64,
    /// The names.
    pub names: Vec<String>,
    /// The request is answered at this time at the latest.
    pub deadline_ms: u64,
}

/// Checks of a name.
#[derive(Clone, Copy)]
pub struct NameChecks<'a> {
    /// Whether an object has it.
    pub exists: &'a dyn Fn(&str) -> bool,
    /// Whether the home that claims it may have it.
    pub may_name: &'a dyn Fn(&str) -> bool,
}

/// One incarnation of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NumberedLife {
    /// Number of the member in the view.
    pub number: NodeNumber,
    /// Its incarnation.
    pub incarnation: Incarnation,
}

/// The decision of an authority on a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The home has the name.
    Granted,
    /// Another home or an object has it.
    Taken,
    /// The home may not have names in its namespace.
    NotAllowed,
    /// This lost node may have it: its directory was not readable.
    Unread(NodeNumber),
}

impl NameMessageBody {
    /// Whether its parts are within their limits.
    fn is_sound(&self) -> bool {
        match self {
            Self::List { part, parts, names, .. } => {
                part < parts && *parts as usize <= LIST_PARTS_MAX && are_sound(names)
            }
            Self::Claim { names, .. } | Self::Settle { names } | Self::Query { names, .. } => {
                are_sound(names)
            }
            Self::Queried { taken, .. } => taken.len() <= MESSAGE_NAMES_MAX,
            Self::Claimed { verdicts, .. } => verdicts.len() <= MESSAGE_NAMES_MAX,
            Self::Listed { .. } | Self::Settled => true,
        }
    }
}

/// Most parts of a list: all names of a node at full length, with each part more than half full.
const LIST_PARTS_MAX: usize = 2 * NAMES_MAX * NAME_BYTES_MAX / MESSAGE_BYTES_MAX + 1;

fn are_sound(names: &[String]) -> bool {
    names.len() <= MESSAGE_NAMES_MAX
        && names.iter().all(|name| is_name(name))
        && names.iter().map(String::len).sum::<usize>() <= MESSAGE_BYTES_MAX
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX
}

/// The nodes with directories that this node cannot read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unread {
    /// Members of the view to query: those with unreadable directories. All members, if members
    /// were lost that this process never knew.
    pub members: NodeSet,
    /// The lost node with the lowest number that may return with its objects.
    pub lost: Option<NodeNumber>,
    /// Number of members with objects that move to other members. A name may leave one directory
    /// after another one, which has it by then, was read. So all are read once more for each.
    pub movers: usize,
}

/// Outputs, to be executed in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameOutput {
    /// Send a message to a member of the view; it may be lost.
    Send {
        /// Number of the receiver.
        to: NodeNumber,
        /// The message.
        message: NameMessage,
    },
    /// Answer a request for names.
    Answer {
        /// The ticket of the request.
        ticket: u64,
        /// One result per name, in the order of the request.
        results: Vec<Result<(), NameRefusal>>,
    },
}

/// The authority of a name: the member with the highest score by rendezvous hashing (Thaler and
/// Ravishankar, 1998), and the lowest number among equals. The score is the finalizer of SplitMix64
/// over FNV-1a of the name, xor the same of the member's name and incarnation (8 bytes, the lowest
/// first), each finalized too. `None` in an empty view.
#[must_use]
pub fn authority_of(view: &View, name: &str) -> Option<NodeNumber> {
    let scored = view.members.iter().map(|member| (member.number, hash_of_member(member)));
    highest(scored, name)
}

fn highest(members: impl Iterator<Item = (NodeNumber, u64)>, name: &str) -> Option<NodeNumber> {
    let name = mix(fnv(BASIS, name.as_bytes()));
    let score = |hash: u64| mix(hash ^ name);
    let best = members.max_by_key(|(number, hash)| (score(*hash), std::cmp::Reverse(*number)));
    best.map(|(number, _)| number)
}

fn hash_of_member(member: &Member) -> u64 {
    let Incarnation(incarnation) = member.incarnation;
    let name = fnv(BASIS, member.name.as_str().as_bytes());
    mix(fnv(name, &incarnation.to_le_bytes()))
}
