//! Edges, their timestamps, and the interface through which searches read a graph.

mod adjacency;
mod entry;
mod record;
mod stamp;
mod visibility;

pub(crate) use adjacency::{Adjacency, Vertex};
pub(crate) use entry::{EdgeEntry, Side};
pub(crate) use record::EdgeRecord;
pub(crate) use record::{EdgeRemoval, NO_ACCOUNT};
pub(crate) use stamp::Stamp;
pub(crate) use visibility::{EvictionFloor, ListCut, Visibility};
