//! One stream: its newest edges, their eviction, and its segments.

mod call;
mod columns;
mod engine;
mod evict;
mod eviction_queue;
mod hybrid;
mod insert;
mod pending_rows;
mod retention;
mod rollback;
mod sealing;
mod state;

pub(crate) use call::{CallContext, FeatureOutput, FeatureRequest, PartFailure, call_bytes};
pub use call::{Edges, WorkShare};
pub(crate) use columns::{EdgeColumns, MeasuredColumns};
pub(crate) use engine::StreamEngine;
pub(crate) use hybrid::HybridGraph;
pub(crate) use insert::LEARNT_AT_ONCE;
pub(crate) use pending_rows::PendingRows;
pub use sealing::LateEdges;
pub use state::GraphState;
