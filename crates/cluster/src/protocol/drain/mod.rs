//! The objects of a draining node move to other nodes. `outgoing` is the draining node, `incoming`
//! the one that takes an object.

pub(super) mod incoming;
pub(super) mod notices;
pub(super) mod outgoing;
