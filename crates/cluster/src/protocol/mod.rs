//! Decisions of the daemon, without a clock and without sockets.
//!
//! Events and the time come in as arguments, actions come out; the server, the tests and the
//! fuzzers drive the very same code.

mod convert;
mod hello;
mod node;
mod numbers;
mod requests;
mod waits;

pub use node::{Action, NodeState, PeerIdentity, SessionId};
