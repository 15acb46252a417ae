//! The cost of graph features if older edges are fetched over a network, and in remote memory of
//! other speeds: the baselines for a graph in far memory.
//!
//! The algorithms are those of `farrow_graph`; only the source of rows differs. This crate is not
//! shipped.

#![forbid(unsafe_code)]

pub mod cache;
pub mod client;
pub mod hits;
mod pinned;
pub mod process;
pub mod rows;
pub mod run;
pub mod server;
#[path = "../../../crates/graph/examples/stream/mod.rs"]
pub mod stream;
pub mod whatif;
mod wire;

pub use wire::RowKey;
