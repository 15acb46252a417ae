//! One stream: its newest edges, the order in which they leave, and what segments have of it.

mod columns;
mod engine;
mod eviction_queue;
mod hybrid;
mod pending_rows;
mod retention;
mod sealing;
mod state;

pub(crate) use engine::FeatureOutput;
pub(crate) use engine::{CallOutcome, LEARNT_AT_ONCE, StreamEngine, WorkShare, call_bytes};
pub(crate) use hybrid::HybridGraph;
pub(crate) use pending_rows::PendingRows;
pub use sealing::LateEdges;
pub use state::State;
