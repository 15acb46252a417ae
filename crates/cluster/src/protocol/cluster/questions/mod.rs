//! Questions and notifications between nodes.
//!
//! `pending` and `queues` are states, `message` is what nodes send. The other files send and handle
//! it.

pub(super) mod message;
pub(super) mod notifications;
pub(super) mod on_request;
pub(super) mod on_response;
pub(super) mod pending;
pub(super) mod queues;
pub(super) mod send;
