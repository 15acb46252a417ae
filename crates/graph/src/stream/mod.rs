//! One stream: its newest edges, the order in which they leave, and what segments have of it.

mod columns;
mod engine;
mod eviction_queue;
mod hybrid;
mod pending_rows;
mod retention;
mod sealing;
mod state;

pub(crate) use engine::{Core, LEARNT_AT_ONCE, Outcome, Output, Share, call_bytes};
pub(crate) use hybrid::Hybrid;
pub(crate) use pending_rows::Ahead;
pub use sealing::Stragglers;
pub use state::State;
