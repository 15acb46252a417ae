//! Messages about barriers and flags.

use farrow_membership::Epoch;
use farrow_wire::{Rights, SyncAsk};
use serde::{Deserialize, Serialize};

use super::name_state::NameState;
use super::waits::WaitOutcome;

/// The right that a client of a node other than the owner needs.
pub(in crate::protocol) fn right_for(ask: &SyncAsk) -> Rights {
    match ask {
        SyncAsk::Arrive { .. } | SyncAsk::SetFlags { .. } => Rights::WRITE,
        SyncAsk::WaitFlags { .. } => Rights::READ,
    }
}

/// Messages between the node of a client and the owner of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SyncQuestion {
    /// A request of a client of the asking node.
    Ask {
        /// The full name.
        name: String,
        /// The request.
        ask: SyncAsk,
        /// Number of the request at the asking node.
        number: u64,
        /// Number of the client there.
        client: u64,
        /// Its process id.
        pid: u32,
    },
    /// The outcome of a request of the receiving node.
    Outcome {
        /// Number of the request there.
        number: u64,
        /// The outcome.
        outcome: WaitOutcome,
    },
    /// A client of the asking node ended.
    Left {
        /// Number of the client there.
        client: u64,
    },
    /// The asking node no longer waits for the outcome of a request.
    GivenUp {
        /// Number of the request there.
        number: u64,
    },
    /// State of a name from its owner, which leaves. The receiver owns the name by the view without
    /// it.
    Retained {
        /// Number of the message; repetitions have the same one.
        number: u64,
        /// The full name.
        name: String,
        /// The state.
        retained: NameState,
        /// Epoch of the sender's view; in another epoch the message is rejected.
        epoch: Epoch,
    },
    /// A client of the asking node cancelled a request. The request is undone; it does not break a
    /// barrier.
    Withdrawn {
        /// Number of the request there.
        number: u64,
    },
    /// Asks for the retained state of names that the asking node owns by the view of this epoch.
    HandOver {
        /// Epoch of the asking node's view; in another epoch there is no answer.
        epoch: Epoch,
        /// The last name received; the answer has the names after it.
        after: Option<String>,
    },
    /// My daemon follows another one in this life of mine. The requests of that one are undone: its
    /// clients repeat them, or have ended. An earlier version answers `No`.
    Restarted {
        /// My requests have this number or a higher one.
        first_number: u64,
        /// Whether I still have the flags that I owned.
        has_flags: bool,
    },
}
