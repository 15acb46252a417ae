//! Decisions of the daemon, without a clock and without sockets.
//!
//! Events and the time are arguments, actions are results. The server, the tests and the fuzzers
//! run the same code.
//!
//! From below: `identity`, `context`, `action`, `convert` and `rights` are the vocabulary. `core/`,
//! and the states of `cluster/`, `core/barriers/` and `replicas/`, are structs that know only themselves, the
//! store and the actions. `state` joins them in [`NodeState`]. All other files handle one kind of
//! event or request each, and `node` routes to them.

mod action;
mod answers;
mod buffered;
mod cancel;
pub mod cluster;
mod context;
mod convert;
mod core;
mod deletes;
mod drain;
mod drain_notices;
mod families;
mod handover;
mod hello;
mod identity;
mod limits;
mod moved_in;
mod namespaces;
mod node;
mod overview;
mod permissions;
mod replicas;
mod requests;
mod resize;
pub mod rights;
mod settings;
mod spill_job;
mod state;
mod stats;
mod watch;

pub use self::core::barriers;
pub use self::core::buffers::{BUFFERS_BYTES_DEFAULT, BUFFERS_BYTES_MIN};
pub use self::core::quota::Quotas;
pub use action::Action;
pub(crate) use action::answer_peer;
pub(crate) use core::resize::Preparation;
pub(crate) use handover::unfinished;
pub(crate) use identity::node_key;
pub use identity::{PeerIdentity, PeerLife, SessionId};
pub use settings::LogControl;
pub use spill_job::{SpillDone, SpillJob, WriteFault};
pub use state::{AdoptedState, DaemonInfo, NodeState};
