//! The membership of this node, and the nodes that are or are not members.
//!
//! `agreement` and `not_joined` are states; the other files handle events.

pub(super) mod agreement;
pub(super) mod lifecycle;
pub(super) mod members;
pub(super) mod newcomers;
pub(super) mod not_joined;
