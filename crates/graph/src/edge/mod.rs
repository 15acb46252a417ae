//! An edge, and what a search may ask of a graph of edges.

mod adjacency;
mod stamp;
mod visibility;

pub(crate) use crate::accounts::Side;
pub(crate) use crate::store::Entry;
pub(crate) use adjacency::Adjacency;
pub(crate) use stamp::Stamp;
pub(crate) use visibility::{Cut, Floor, Lens};
