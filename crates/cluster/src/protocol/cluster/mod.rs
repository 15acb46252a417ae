//! A node in its cluster: members, their memory, and free names.
//!
//! The state machines of membership and naming decide. This module connects them to the store and
//! to the requests of clients. Messages to other nodes are [`PeerAction`]s.
//!
//! `state` is the state, made of the parts `agreement`, `awaited`, `peer`, `waiting`, `watched` and
//! `not_joined`. The other files handle events and requests.

mod action;
mod agreement;
mod answering;
mod asking;
mod asks;
mod awaited;
mod by_net;
mod claims;
mod costs;
mod forward;
mod hint_table;
mod hints;
mod joined;
mod lookups;
mod members;
mod membership;
mod names;
mod newcomers;
mod not_joined;
mod notification_queues;
mod notifications;
mod offer;
mod options;
mod peer;
mod peer_cost;
mod peers;
mod pending;
mod queries;
mod questions;
mod remote_clients;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod unconfirmed;
mod waiting;
mod waits;
mod watched;
mod watching;

pub use action::PeerAction;
pub(in crate::protocol) use asks::PeerQuestion;
pub(in crate::protocol) use hint_table::HintFor;
pub(in crate::protocol) use hints::{AskFirst, NameSearch};
#[cfg(test)]
pub(in crate::protocol) use notification_queues::WAITING_MAX;
pub use offer::{MemoryRoute, Offer};
pub use options::{AgreementKind, ClusterOptions, JoinError};
pub use peer::MappablePeer;
pub(in crate::protocol) use pending::PendingQuestion;
pub use questions::{Answer, Question};
pub(in crate::protocol) use state::OptionalCluster;
pub use stats::ClusterStats;
