//! What the state machines of two nodes ask each other. Carried by `Ask` of the gRPC service.

use farrow_membership::naming;
use farrow_wire::{WireError, WireSpan, WireTarget};
use serde::{Deserialize, Serialize};

use crate::protocol::sync::{NameState, SyncQuestion};

/// Most names in one question.
pub const NAMES_MAX: usize = 8192;

/// A question, or something told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// Of the protocol that keeps names unique.
    Naming(naming::NameMessage),
    /// About barriers and flags.
    Sync(SyncQuestion),
    /// Is this process of the node asked still there? Answered when it has gone, or after a while.
    Watch {
        /// Its process id.
        pid: u32,
        /// Its start time.
        start_time: u64,
    },
    /// A process of the node asked has gone: write back or drop what that node's caches hold of
    /// what it may have written.
    Clean {
        /// The asker's region.
        region_uid: u64,
        /// Parts of it.
        spans: Vec<WireSpan>,
    },
    /// Tell me when one of these names, in full, is sealed in your memory.
    Await {
        /// At most `NAMES_MAX`.
        names: Vec<String>,
    },
    /// These names, in full, were sealed in my memory.
    Sealed {
        /// At most `NAMES_MAX`.
        names: Vec<String>,
    },
    /// I cannot map your memory: which of these names, in full, do your objects have?
    Has {
        /// At most `NAMES_MAX`.
        names: Vec<String>,
    },
    /// Does a process of the node asked map my region through this place, which a client of that node
    /// had?
    Family {
        /// The asker's region.
        region_uid: u64,
        /// The place.
        place: u32,
    },
    /// Where does your data server listen?
    DataAddress,
    /// A ticket for a connection to your data server.
    Ticket {
        /// How often a daemon opened the asker's region: what an earlier one held is held no more.
        life: u64,
    },
    /// Objects of mine that you may have replicas of are gone.
    Gone {
        /// The low halves of their ids; at most `NAMES_MAX`.
        objects: Vec<u64>,
    },
    /// A client of mine deletes an object of yours.
    Delete {
        /// Which: by its full name, or its id.
        target: WireTarget,
    },
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Done, nothing to say.
    Done,
    /// To `Watch` and `Family`.
    IsThere(bool),
    /// To `Await`: which are sealed already.
    Sealed(Vec<String>),
    /// The question could not be read, or breaks a limit.
    No(String),
    /// To `Has`: for each name whether an object has it.
    Has(Vec<bool>),
    /// To `SyncQuestion::HandOver`: names, in full, and what was retained under them. None: that is all.
    HandedOver(Vec<(String, NameState)>),
    /// To `DataAddress`; `None`: there is none.
    DataAddress(Option<String>),
    /// To `Ticket`.
    Ticket([u8; 32]),
    /// To `Delete`.
    Deleted(Result<(), WireError>),
}
