//! The objects of a draining node move to other nodes. `outgoing` is the draining node, `incoming`
//! the one that takes an object; members are notified in `notices`, and `state` is what all share. The node
//! performs what `context` names: it deletes objects and serves requests.

pub(in crate::protocol) mod context;
pub(in crate::protocol) mod incoming;
pub(in crate::protocol) mod notices;
pub(in crate::protocol) mod outgoing;
pub(in crate::protocol) mod state;
