//! Objects of nodes whose memory cannot be mapped: what the decisions ask of the network fabric, and
//! the messages between its threads and those of other nodes.

pub(crate) mod broadcast;
mod events;
pub(crate) mod listing;
pub(crate) mod query;

pub use events::{NetAction, NetEvent, NetFault};
