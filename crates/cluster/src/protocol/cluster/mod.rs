//! A node in its cluster: members, their memory, and free names.
//!
//! The state machines of membership and naming decide. This module connects them to the store and
//! to the requests of clients. Messages to other nodes are [`PeerAction`]s.
//!
//! `state` joins the states of the rooms:
//!
//! * `membership/`: this node as a member, and the nodes that are or are not members.
//! * `peers/`: the other nodes, their memory, and what is known of them.
//! * `names/`: requests that take names, hints and lookups.
//! * `waits/`: names of other nodes that clients wait for.
//! * `questions/`: questions and notifications between nodes.
//! * `clients/`: clients that use the memory of another node.

mod action;
mod clients;
mod membership;
mod names;
mod options;
mod peers;
mod questions;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod waits;

pub use action::PeerAction;
pub(in crate::protocol) use names::hint_table::HintFor;
pub(in crate::protocol) use names::hints::{AskFirst, NameSearch};
pub use options::{AgreementKind, ClusterOptions, JoinError};
pub use peers::offer::{MemoryRoute, Offer};
pub use peers::peer::MappablePeer;
pub use questions::message::{Answer, Question};
pub(in crate::protocol) use questions::pending::PendingQuestion;
#[cfg(test)]
pub(in crate::protocol) use questions::queues::WAITING_MAX;
pub(in crate::protocol) use questions::send::PeerQuestion;
pub(in crate::protocol) use state::OptionalCluster;
pub use stats::ClusterStats;
pub(in crate::protocol) use waits::remote::AwaitContext;
