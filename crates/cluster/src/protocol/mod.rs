//! Decisions of the daemon, without a clock and without sockets.
//!
//! Events and the time are arguments, actions are results. The server, the tests and the fuzzers
//! run the same code.

mod admission;
mod buffers;
mod cancel;
pub mod cluster;
mod convert;
mod evict;
mod families;
mod fanout;
mod grants;
mod handover;
mod hello;
mod identity;
mod namespaces;
mod node;
mod overview;
mod quota;
mod replicas;
mod requests;
mod reservations;
pub mod rights;
mod spill;
mod stats;
pub mod sync;
mod waits;
mod watch;
mod watches;

pub use buffers::{BUFFERS_BYTES_DEFAULT, BUFFERS_BYTES_MIN};
pub(crate) use convert::span;
pub(crate) use handover::unfinished;
pub(crate) use identity::node_key;

pub use identity::{PeerIdentity, SessionId};
pub use node::{Action, AdoptedState, DaemonInfo, NodeState};
pub use quota::Quotas;
pub use spill::{SpillDone, SpillJob, WriteFault};
