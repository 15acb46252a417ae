//! What graph features cost where the older edges are fetched over a network, and what they would
//! cost in remote memory of other speeds: the peers that a graph in far memory is compared with.
//!
//! The algorithms are those of `farrow_graph`; only where rows come from differs. Nothing here is
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

pub use wire::Key;
