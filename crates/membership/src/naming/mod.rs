//! Names that are unique in the cluster, whoever creates them from wherever.
//!
//! A name belongs to its *home*, the node where its object will lie. Before the home reserves or
//! seals it, it asks the *name authority*: the member of the view with the highest
//! [`authority_of`] score, so that all know who that is and each name has one. The authority
//! remembers only names in flight: granted, and not yet said to be settled. A settled name is
//! either visible in a directory, where `exists` finds it, or given up.
//!
//! **Change of the view.** All books of the authorities begin anew in each epoch. Each home lists
//! the names that it holds to their new authorities, empty lists too, and an authority grants
//! nothing before it has the lists of all members. A home drops what comes from another epoch
//! than its own, so what it holds is what it lists. Who is not in the new view had lost the lease
//! before the view was installed anywhere, and [`Naming::holds`] is false without it. So before an
//! object is sealed under a name, `holds` must be true at that moment.
//!
//! **Lost and late messages.** Claims and settlements of a home bear rising serials, and a
//! authority drops what is not above the last: so no claim outlives the settlement that gave it
//! up. A daemon that was killed and goes on with the same life has a higher session: its list
//! replaces all that authorities had of it, and it gets the lists of all others anew.
//!
//! **Members whose directories this authority cannot read** are asked whether they have a claimed name,
//! which is in flight for its home meanwhile: see `unread`. While one of them is lost, nobody can
//! know its names, so none is granted ([`Refusal::Unread`]) until it is back or is forgotten.
//!
//! Without the lease nothing is granted and nothing asked. Names are at most 512 bytes here; an
//! answer that does not come is asked for again each 50 ms, until the deadline of who asks.

mod authority;
mod debt;
mod home;
mod unread;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::fnv::{BASIS, fnv};
use crate::state::mix;

use crate::{ClusterId, Epoch, Incarnation, Member, NodeNumber, NodeSet, View};

pub use home::Naming;

/// Most names that a node holds or asks for at a time.
pub const NAMES_MAX: usize = 65_536;

/// Most names in a message.
pub const MESSAGE_NAMES_MAX: usize = 8_192;

/// Most bytes of names in a message: a quarter of what gRPC takes by default.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Longest name, with its namespace.
pub const NAME_BYTES_MAX: usize = 512;

/// After how long a message without an answer is sent again: ten round trips of a slow network.
pub const RETRY_MS: u64 = 50;

/// Why a name was not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NameRefusal {
    /// An object has it, or somebody is about to make one.
    #[error("the name is taken")]
    Taken,
    /// This node may have been excluded; ask again when it has the lease.
    #[error("this node does not have the lease of the cluster")]
    NoLease,
    /// The one to ask did not answer in time.
    #[error("node {} did not answer in time", authority.get())]
    NotAnswered {
        /// The one that was asked last.
        authority: NodeNumber,
    },
    /// The authority's rules do not let this node have names in that namespace.
    #[error("node {} does not let this one take the name", authority.get())]
    NotAllowed {
        /// Who says so.
        authority: NodeNumber,
    },
    /// A node is lost, and the one that says so could not read which names its objects have.
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
        /// Bytes that it has.
        bytes: usize,
    },
}

/// What a home and an authority say to each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameMessage {
    /// The cluster of the view that it is about.
    pub cluster: ClusterId,
    /// The epoch of that view.
    pub epoch: Epoch,
    /// Which process of the home's life.
    pub session: u64,
    /// Which process of the authority's life; 0 as long as the home does not know. What was meant
    /// for, or comes from, another process than the one that runs may be old, and is dropped.
    pub authority: u64,
    /// Rises with each claim and settlement of a home; an answer has that of what it answers.
    pub serial: u64,
    /// What it says.
    pub body: NameMessageBody,
}

/// What a message says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameMessageBody {
    /// Home: of your names I hold these, in so many parts.
    List {
        /// From 0.
        part: u32,
        /// At least 1.
        parts: u32,
        /// The names of this part.
        names: Vec<String>,
    },
    /// Authority: I have that part.
    Listed {
        /// Which.
        part: u32,
    },
    /// Home: may I have these?
    Claim {
        /// Which claim; the same when it is sent again.
        claim: u64,
        /// The names.
        names: Vec<String>,
    },
    /// Authority: some.
    Claimed {
        /// Which claim.
        claim: u64,
        /// For each name, in the order of the claim.
        verdicts: Vec<Verdict>,
    },
    /// Home: these I hold no more; they are visible or given up.
    Settle {
        /// The names.
        names: Vec<String>,
    },
    /// Authority: I know.
    Settled,
    /// Authority: I cannot read your directory. Which of these names have your objects?
    Query {
        /// Which question; the same when it is sent again.
        question: u64,
        /// The names.
        names: Vec<String>,
    },
    /// A member that was asked: these.
    Queried {
        /// Which question.
        question: u64,
        /// For each name, in the order of the question.
        taken: Vec<bool>,
        /// A lost node whose names this member could not read: it may have the others.
        lost: Option<NodeNumber>,
    },
}

/// What is asked of a name: whether an object has it, and whether a home may have it.
pub type NameChecks<'a> = (&'a dyn Fn(&str) -> bool, &'a dyn Fn(&str) -> bool);

/// What an authority says of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It is the home's.
    Granted,
    /// Somebody has it.
    Taken,
    /// The home may have no names in its namespace.
    NotAllowed,
    /// This lost node may have it: its directory could not be read.
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

/// Most parts of a list: all names of a node, as long as they may be, each part more than half
/// full.
const LIST_PARTS_MAX: usize = 2 * NAMES_MAX * NAME_BYTES_MAX / MESSAGE_BYTES_MAX + 1;

fn are_sound(names: &[String]) -> bool {
    names.len() <= MESSAGE_NAMES_MAX
        && names.iter().all(|name| is_name(name))
        && names.iter().map(String::len).sum::<usize>() <= MESSAGE_BYTES_MAX
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX
}

/// Whose directories this node cannot read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unread {
    /// Members of the view, which are asked: those, and all if members were lost that this process
    /// never knew.
    pub members: NodeSet,
    /// Of those that are lost and may come back with their objects, the one with the lowest number.
    pub lost: Option<NodeNumber>,
}

/// What comes out, to be done in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameOutput {
    /// Send it to a member of the view; it may get lost.
    Send {
        /// To whom.
        to: NodeNumber,
        /// What.
        message: NameMessage,
    },
    /// An ask is answered.
    Answer {
        /// The ticket of the ask.
        ticket: u64,
        /// For each name, in the order of the ask.
        results: Vec<Result<(), NameRefusal>>,
    },
}

/// Whom to ask for a name: the member with the highest score by rendezvous hashing (Thaler and
/// Ravishankar, 1998), the lowest number of those that have it. The score is the finalizer of
/// SplitMix64 over FNV-1a of the name, xor the same of the member's name and incarnation (8 bytes,
/// the lowest first), each finalized too. `None` in an empty view.
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
