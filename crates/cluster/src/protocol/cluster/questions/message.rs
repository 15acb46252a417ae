//! Questions between the state machines of two nodes. Carried by `Ask` of the gRPC service.

use farrow_membership::naming;
use farrow_wire::{WireError, WireObjectId, WireSpan, WireTarget};
use serde::{Deserialize, Serialize};

use crate::protocol::core::barriers::{NameState, SyncQuestion};

/// Limit of names in one question.
pub const NAMES_MAX: usize = 8192;

/// A question or a notification. "I" is the asking node, "you" the asked one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// A message of the protocol that keeps names unique.
    Naming(naming::NameMessage),
    /// A message about barriers and flags.
    Sync(SyncQuestion),
    /// Whether this process of yours still runs. Answered when it has ended, or after a while.
    Watch {
        /// Its process id.
        pid: u32,
        /// Its start time.
        start_time: u64,
    },
    /// A process of yours has ended: write back or drop the cache lines that it may have written.
    Clean {
        /// The asker's region.
        region_uid: u64,
        /// Parts of it.
        spans: Vec<WireSpan>,
    },
    /// Notify me when one of these full names is sealed in your memory.
    Await {
        /// At most `NAMES_MAX`.
        names: Vec<String>,
    },
    /// These full names were sealed in my memory.
    Sealed {
        /// At most `NAMES_MAX`.
        names: Vec<String>,
    },
    /// I cannot map your memory: which of these full names do your objects have?
    Has {
        /// At most `NAMES_MAX`.
        names: Vec<String>,
    },
    /// Whether a process of yours maps my region through this slot, which a client of yours had.
    Family {
        /// The asker's region.
        region_uid: u64,
        /// The slot.
        place: u32,
    },
    /// The address of your data server.
    DataAddress,
    /// A ticket for a connection to your data server.
    Ticket {
        /// How often a daemon opened my region: holds of earlier ones have ended.
        life: u64,
    },
    /// Drop your replicas of these objects of mine.
    Invalidate {
        /// The low halves of their ids; at most `NAMES_MAX`.
        objects: Vec<u64>,
    },
    /// A client of mine deletes an object of yours.
    Delete {
        /// The object: by its full name, or its id.
        target: WireTarget,
    },
    /// You are the authority of this full name: which node has it, as far as you know?
    Where {
        /// The name.
        name: String,
    },
    /// How much memory do you lend, and how much of it is free? An earlier version answers `No`.
    Room,
    /// Whether my objects move to other nodes, so that a look at one node after another may miss an
    /// object. An earlier version answers `No`.
    Draining(bool),
    /// Seal the object of mine that a client of mine had you bring, under its name: from your answer
    /// on it is yours. The same question again gets the same answer.
    Take {
        /// The low half of its id.
        object: u64,
        /// Number of the move: a question of an earlier one is late.
        number: u64,
        /// Its full name.
        name: String,
        /// Whether it is exempt from eviction.
        is_pinned: bool,
    },
    /// The object that you took is removed here.
    Taken {
        /// The low half of the id that it had.
        object: u64,
    },
    /// You were lost while you were asked to take this object: remove your copy, if you have one.
    Untake {
        /// The low half of its id.
        object: u64,
        /// Number of the move.
        number: u64,
    },
    /// My daemon follows another one, which has ended: so have its reads of your objects, and it does
    /// not know the names that you wait for. An earlier version answers `No`.
    Restarted {
        /// How often a daemon opened my region.
        life: u64,
    },
    /// You asked me to report these full names once they are sealed: for which of them do clients of
    /// yours still wait? Answered by `Has`. An earlier version answers `No`.
    StillAwaited {
        /// At most `NAMES_MAX`.
        names: Vec<String>,
    },
    /// Notifications of mine to you are lost: there were too many that you had not received. What
    /// you wait for at me may be over, and clients of mine that you know may have ended. An earlier
    /// version answers `No`.
    Missed,
    /// I have joined with objects of these full names: for which of them do objects of yours keep
    /// the name? Answered by `Has`. An earlier version answers `No`.
    Joined {
        /// At most `NAMES_MAX`.
        names: Vec<String>,
    },
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Done, without a result.
    Done,
    /// To `Watch` and `Family`.
    IsThere(bool),
    /// To `Await`: the names that are sealed already.
    Sealed(Vec<String>),
    /// The question is malformed, exceeds a limit or is rejected.
    No(String),
    /// To `Has` and `Joined`: for each name whether an object has it. To `StillAwaited`: whether clients
    /// wait for it.
    Has(Vec<bool>),
    /// To `SyncQuestion::HandOver`: full names with their state. An empty list ends the transfer.
    HandedOver(Vec<(String, NameState)>),
    /// To `DataAddress`; `None`: there is none.
    DataAddress(Option<String>),
    /// To `Ticket`.
    Ticket([u8; 32]),
    /// To `Delete`.
    Deleted(Result<(), WireError>),
    /// To `Where`: a hint, which may be old.
    Where(Option<String>),
    /// To `Room`.
    Room {
        /// Free bytes of the heap.
        free: u64,
        /// Bytes of the heap that it lends.
        capacity: u64,
    },
    /// To `Take`: the two halves of the new id. An error: there is no copy, and there will be none.
    Took(Result<WireObjectId, WireError>),
}

/// Part of the answer to a node that is in no view of the answering one.
const NO_MEMBER: &str = "is no member in life";

impl Answer {
    /// The answer to a node that is in no view of the answering one.
    pub(in crate::protocol) fn no_member(node: &str, incarnation: u64) -> Self {
        Self::No(format!("{node} {NO_MEMBER} {incarnation}"))
    }

    /// Whether the question was rejected for itself, as by an earlier version that does not understand
    /// it, and not because its node is no member.
    pub(in crate::protocol) fn is_rejection(&self) -> bool {
        matches!(self, Self::No(why) if !why.contains(NO_MEMBER))
    }
}
