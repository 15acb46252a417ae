//! The newest edges of a stream: lists of both ends, and the edges in order of arrival.

mod adjacency_lists;
mod arena;
mod dynamic;
mod records;

pub(crate) use adjacency_lists::PIECE;
pub(crate) use arena::Entry;
pub(crate) use dynamic::{Dynamic, EDGES_MAX, Mark};
pub(crate) use records::{Gone, Record};
