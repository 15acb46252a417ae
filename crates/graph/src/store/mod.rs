//! The store of the newest edges: adjacency lists of both sides, self-loops, and records in order
//! of arrival.

mod adjacency_lists;
mod arena;
mod dynamic;
mod records;
mod self_loops;

pub(crate) use adjacency_lists::REMOVED_TOGETHER;
pub(crate) use dynamic::{DynamicGraph, EDGES_MAX, StoreCheckpoint};
pub(crate) use dynamic::{NumberMoves, NumberingError, NumbersInUse};
