//! `farrow_graph` computes features of a stream of transactions: the shapes that each one
//! completes in the graph of those before it, and statistics of the accounts at its ends.
//!
//! It reads no files and knows no Python and no other machines; the bindings and the command bring
//! rows as slices, and older parts of a graph as Arrow buffers, wherever these lie. What each figure means is defined in `docs/graph.md`.

#![forbid(unsafe_code)]

mod ahead;
mod columns;
mod core;
mod double;
mod error;
mod evidence;
mod features;
mod graph;
mod memory;
mod moments;
mod patterns;
mod queue;
mod running;
mod sealing;
mod settings;
mod state;
mod statistics;
mod threads;
mod upkeep;

pub use error::GraphError;
pub use evidence::Pattern;
pub use features::{Edges, Evidence, GraphFeatures, Stats};
pub use graph::{
    About, Buffers, Frozen, List, Plan, Room, Row, Rows, Segment, Sizes, Wanted, row_counts, row_of,
};
pub use patterns::Kind;
pub use sealing::Stragglers;
pub use settings::{Column, Measure, Mode, Pattern as Bins, Settings, Statistics};
pub use state::State;
