//! Edges, their timestamps, and what a search may ask of a graph of them.

mod adjacency;
mod entry;
mod record;
mod stamp;
mod visibility;

pub(crate) use adjacency::Adjacency;
pub(crate) use entry::{EdgeEntry, Side};
pub(crate) use record::EdgeRecord;
pub(crate) use record::{EdgeRemoval, NO_ACCOUNT};
pub(crate) use stamp::Stamp;
pub(crate) use visibility::{EvictionFloor, ListCut, Visibility};
