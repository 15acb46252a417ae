//! Clients that use the memory of another node.
//!
//! `watched` is the state; the other files handle events.

pub(super) mod forward;
pub(super) mod remote_clients;
pub(super) mod watched;
pub(super) mod watching;
