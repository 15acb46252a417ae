//! Membership of the cluster: nodes agree by majority on a chain of views, without a server.
//!
//! The members of each view decide on the next one with a single-decree consensus (Lamport, "Paxos
//! Made Simple", 2001). A majority of the configured addresses decides on the first view. A quorum
//! is more than half of a view, or half of it with its lowest number, so one of two nodes can
//! continue ([`NodeSet::is_quorum`] explains why two quorums meet).
//!
//! **Lease.** A node has the lease until `lease_ms` (less 1/32 for clock drift) after it *sent* the
//! last beat that a quorum of its view acknowledged. A member acknowledges only beats of its own
//! epoch, and only until it accepts a next view. It accepts a view that excludes a life no sooner
//! than `lease_ms` after it last acknowledged that life, and after it installed its own view. So
//! while a node has the lease, no view without it is installed anywhere:
//!
//! - A quorum of its view e decides on e+1, and shares a member with the quorum that acknowledged.
//!   That member accepted after it acknowledged, so after the beats were sent. If e+1 excludes the
//!   node, it accepted a whole lease later.
//! - A later view that excludes the node is accepted a lease after its predecessor was installed,
//!   so a lease after e+1 was decided.
//!
//! So the lease belongs to a life, not to one view, and survives a change of the view.
//!
//! **Joining.** A node asks all addresses that it knows. A member answers with a number that proves
//! the return path; the node asks again with this number, and the member forwards the request to
//! the lowest live number.
//! **Leaving** is announced in beats. A leaving node never has the lease again, so the others
//! exclude it at once. **Return:** members probe excluded nodes once in a lease. A node that learns
//! of its exclusion ends that life and asks again with a higher incarnation. A view is abandoned
//! when too many of its members began new lives for a quorum.
//!
//! Time is milliseconds of a monotonic clock; clocks of nodes need not agree. Names in messages are
//! authentic, and a vote counts only for its sender. Members are trusted to follow the protocol; no
//! message causes a panic.
//!
//! | Task | Module or type |
//! | --- | --- |
//! | agree by majority | [`Membership`], its [`Options`], [`Message`]s and [`Output`]s |
//! | agree with an etcd | [`etcd`] |
//! | keep names unique in a view | [`naming`] |
//! | describe the members | [`View`], [`Member`], [`NodeSet`], [`NodeName`] |

#![forbid(unsafe_code)]

mod ballots;
mod beats;
mod consensus;
pub mod etcd;
pub mod fnv;
mod joining;
mod message;
pub mod naming;
mod node_name;
mod options;
mod proposal;
mod state;
mod types;
mod view;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod simulator;
#[cfg(test)]
mod tests;

pub use message::{
    Ballot, Beat, Body, ClashError, MESSAGE_BYTES_MAX, Message, Output, PersistentState,
    Reachability, Refusal, SEEDS_MAX, Sender,
};
pub use node_name::{CERTIFICATE_DOMAIN, NODE_NAME_CHARS_MAX, NodeNameError};
pub use options::{Options, OptionsError};
pub use state::Membership;
pub use types::{
    ADDRESS_BYTES_MAX, ClusterId, Epoch, INFO_BYTES_MAX, Incarnation, MEMBERS_MAX, NodeName,
    NodeNumber, NodeSet,
};
pub use view::{Former, JoinCandidate, Member, View};
