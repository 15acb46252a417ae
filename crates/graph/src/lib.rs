//! `farrow_graph` computes features of a stream of transactions: the shapes that each one
//! completes in the graph of those before it, and statistics of the accounts at its ends.
//!
//! It reads no files and knows no Python and no other machines; the bindings and the command bring
//! rows as slices, and older parts of a graph as Arrow buffers, wherever these lie. What each figure means is defined in `docs/graph.md`.

#![forbid(unsafe_code)]

mod accounts;
mod edge;
mod error;
mod features;
mod kind;
mod memory;
mod patterns;
mod segment;
mod settings;
mod statistics;
mod store;
mod stream;
mod threads;

pub use error::GraphError;
pub use features::{Evidence, GraphFeatures, GraphStats, Pattern};
pub use kind::Kind;
pub use segment::{
    FrozenSpan, ListKind, RowRequest, RowSource, Segment, SegmentBuffers, SegmentBuffersMut,
    SegmentInfo, SegmentPlan, SegmentRow, SegmentSizes, row_counts, row_of,
};
pub use settings::{Column, Measure, Mode, PatternSettings, Settings, StatisticsSettings};
pub use stream::{Edges, LateEdges, State, WorkShare};
