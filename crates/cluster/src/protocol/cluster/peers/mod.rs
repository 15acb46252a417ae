//! The other nodes: their memory, and what is known of them.
//!
//! `peer` and `peer_cost` are states, `offer` is what nodes announce; the other files handle events
//! and requests.

pub(super) mod by_net;
pub(super) mod costs;
pub(super) mod offer;
pub(super) mod peer;
pub(super) mod peer_cost;
pub(super) mod queries;
pub(super) mod view;
