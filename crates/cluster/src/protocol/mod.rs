//! Decisions of the daemon, without a clock and without sockets.
//!
//! Events and the time are arguments, actions are results. The server, the tests and the fuzzers
//! run the same code.
//!
//! From below: `identity`, `context`, `action`, `convert`, `limits`, `net/`, `rights` and
//! `spill_job` are the vocabulary. `core/`, and the states of `cluster/`, `core/barriers/` and `replicas/`, are structs
//! that know only themselves, the store and the actions. `state` joins them in [`NodeState`]. The
//! files of `sessions/`, `requests/` and `drain/`, and the others of `cluster/` and `replicas/`,
//! handle one kind of event or request each, and `node` routes to them.

mod action;
pub mod cluster;
mod context;
mod convert;
mod core;
mod drain;
mod identity;
mod limits;
pub(crate) mod net;
mod node;
mod record;
mod replicas;
mod requests;
pub mod rights;
mod sessions;
mod spill_job;
mod state;

pub use self::core::barriers;
pub use self::core::buffers::{BUFFERS_BYTES_DEFAULT, BUFFERS_BYTES_MIN};
pub use self::core::quota::Quotas;
pub use action::Action;
pub(crate) use action::answer_peer;
pub(crate) use core::resize::Preparation;
pub(crate) use identity::node_key;
pub use identity::{PeerIdentity, PeerLife, SessionId};
pub use limits::MEMORY_BYTES_MIN;
pub use requests::settings::LogControl;
pub(crate) use sessions::handover::unfinished;
pub use spill_job::{SpillDone, SpillJob, WriteFault};
pub use state::{AdoptedState, DaemonInfo, NodeState};
