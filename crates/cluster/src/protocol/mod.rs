//! Decisions of the daemon, without a clock and without sockets.
//!
//! Events and the time are arguments, actions are results. The server, the tests and the fuzzers
//! run the same code.
//!
//! From below: `identity`, `context`, `action`, `convert`, `limits`, `net/`, `rights` and
//! `spill_job` are the vocabulary. `core/`, `cluster/` and `replicas/` are parts: structs that know
//! themselves, the store and the actions. A part that drives another gets it in a struct of borrows
//! (`DrainContext`, `ReplicaContext`, `AwaitContext`, `BarrierContext`). `state` joins the parts in
//! [`NodeState`], and `node` routes events and requests to them. What follows from one part in another
//! is in `moves`, `replication`, `sessions/`, `requests/`, and in a few files of `cluster/`.

mod action;
pub mod cluster;
mod context;
mod convert;
mod core;
mod identity;
mod limits;
mod moves;
pub(crate) mod net;
mod node;
mod replicas;
mod replication;
mod requests;
pub mod rights;
mod sessions;
mod spill_job;
mod state;

pub use self::core::barriers;
pub use self::core::buffers::{BUFFERS_BYTES_DEFAULT, BUFFERS_BYTES_MIN};
pub use self::core::quota::Quotas;
pub use self::core::settings::LogControl;
pub use action::Action;
pub(crate) use action::answer_peer;
pub(crate) use core::resize::Preparation;
pub(crate) use identity::node_key;
pub use identity::{PeerIdentity, PeerLife, SessionId};
pub use limits::MEMORY_BYTES_MIN;
pub(crate) use sessions::handover::unfinished;
pub use spill_job::{SpillDone, SpillJob, WriteFault};
pub use state::{AdoptedState, DaemonInfo, NodeState};
