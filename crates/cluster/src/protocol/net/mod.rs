//! Objects of nodes whose memory cannot be mapped: what the decisions ask of the network fabric,
//! and the messages between its threads and those of other nodes.

pub(crate) mod broadcast;
mod events;
pub(crate) mod listing;
pub(crate) mod query;
mod readers;

pub use events::{NetAction, NetEvent, NetFault};
pub(crate) use readers::{HOLDS_PER_MEMBER_MAX, NetReaders, ReaderRules};
