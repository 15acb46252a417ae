//! Requests that wait for a barrier or for flags, and how they end.

use serde::{Deserialize, Serialize};

/// A waiting request, of any node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Waiter {
    /// The node of the client.
    pub node: String,
    /// Number of the request there.
    pub number: u64,
}

/// Outcome of a wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitOutcome {
    /// All parties arrived.
    Released,
    /// Not all parties will arrive.
    Broken {
        /// The party at fault.
        who: String,
        /// The reason.
        reason: String,
    },
    /// The flags at the end of the wait.
    Flags {
        /// All flags of the word.
        value: u64,
        /// `false`: the wait timed out.
        is_met: bool,
    },
    /// The request is invalid.
    Refused(String),
    /// The owner's rules deny the request to that node.
    NotPermitted,
    /// Another node owns the name now: the request is to be made there.
    Moved,
}

/// Waiters with their outcomes.
pub type Outcomes = Vec<(Waiter, WaitOutcome)>;
