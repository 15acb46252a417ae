//! Barriers and flags of clients, on any node.
//!
//! Each name has one owner, which is the same for all nodes with the same view. Requests for names
//! of another owner are sent there, and outcomes are sent back. A node takes requests only for
//! names that it owns by its own view, and requests for flags only with a lease. When a view moves
//! a name to another node, flags and members of barriers move before the new owner answers for the
//! name (see `moves`). The waiters then ask the new owner.

mod barrier;
mod budget;
mod ended;
mod flags;
mod message;
mod moves;
mod moving;
mod name_state;
mod received;
mod requests;
mod state;
mod successor;
mod table;
#[cfg(test)]
mod tests;
mod waits;

pub use barrier::{PARTIES_MAX, Party};
pub use message::SyncQuestion;
pub(in crate::protocol) use message::right_for;
pub use name_state::NameState;
pub(in crate::protocol) use state::{BarrierContext, Barriers};
pub use waits::{WaitOutcome, Waiter};
