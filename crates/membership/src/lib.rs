//! Who is in the cluster: nodes agree on a chain of views, by majority and without a server.
//!
//! Each view is decided by the members of the one before it, with a single-decree consensus
//! (Lamport, "Paxos Made Simple", 2001); the first by a majority of the addresses that a node is
//! configured with. A quorum is more than half of a view, or half of it with its lowest number,
//! so of two nodes one goes on ([`NodeSet::is_quorum`] says why two quorums meet).
//!
//! **Lease.** A node has the lease until `lease_ms` (less 1/32 for clocks that run apart) after it
//! *sent* the last beat that a quorum of its view acknowledged. A member acknowledges only beats
//! of its own epoch, and only while it has accepted no next view. It accepts one that excludes a
//! life no sooner than `lease_ms` after it last acknowledged that life, and after it installed
//! its view. So while a node has the lease no view without it is installed anywhere:
//!
//! - Its view e decides on e+1 by a quorum, which shares a member with the one that acknowledged.
//!   That member accepted after it acknowledged, so later than the beats were sent. If e+1
//!   excludes the node, it accepted a whole lease later.
//! - Whatever excludes the node in a later view is accepted a lease after that view was
//!   installed, so a lease after e+1 was decided.
//!
//! So the lease speaks of a life, not of one view, and outlasts a change of the view.
//!
//! **Joining.** A node asks all addresses that it knows; who has a view has it ask again with a
//! number that proves the way back, and passes it on to the lowest number that lives.
//! **Leaving** is said in beats; a node that leaves never has the lease again, so it is
//! excluded at once. **Coming back:** nodes that were excluded are looked for once in a lease; who
//! hears that it is out ends that life and asks again with a higher incarnation. A view whose
//! quorum cannot come back, since too many of its members began new lives, is given up.
//!
//! Time is milliseconds of a clock that never goes back; clocks of nodes need not agree. Forged
//! messages: names are authentic, and a vote counts for the name that wrote it only. Members are
//! trusted to follow the protocol; no message makes this code panic.
//!
//! | To | |
//! | --- | --- |
//! | agree by majority | [`Membership`], its [`Options`], [`Letter`]s and [`Output`]s |
//! | agree by an etcd | [`etcd`] |
//! | keep names unique in a view | [`naming`] |
//! | say who is in | [`View`], [`Member`], [`NodeSet`], [`NodeName`] |

#![forbid(unsafe_code)]

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
