//! Decisions of the daemon, without a clock and without sockets.
//!
//! Events and the time come in as arguments, actions come out; the server, the tests and the
//! fuzzers drive the very same code.

mod node;
mod waits;

pub use node::{Action, NodeState, PeerIdentity, SessionId};
