//! Work on the files of spilled objects, and its results.

use farrow_memory::Span;
use farrow_store::{ObjectId, SpillHead};

/// Work on files, in the order of the jobs. Removals may be later, but before a write of the same object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpillJob {
    /// Write an object.
    Write {
        /// The first bytes of the file.
        head: SpillHead,
        /// Positions of the parts that follow.
        parts: Vec<Span>,
        /// Space to leave free in the folder. A restore needs it: another object may have to leave
        /// memory first.
        spare_bytes: u64,
        /// The object has had a file, which is written again only if it is not there as it was.
        is_copied: bool,
    },
    /// Read the head of a file.
    Look {
        /// The object.
        id: ObjectId,
    },
    /// Read an object.
    Load {
        /// The head of its file.
        head: SpillHead,
        /// Destination of its blocks.
        blocks: Vec<Span>,
    },
    /// Remove a file.
    Forget {
        /// The object of the file.
        id: ObjectId,
    },
}

/// Failure to write a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteFault {
    /// No space was left for the file.
    pub is_full: bool,
    /// Error message of the system.
    pub reason: String,
}

/// Result of a job; an error is a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpillDone {
    /// An object is in its file.
    Written {
        /// The object.
        id: ObjectId,
        /// Success, or the failure.
        result: Result<(), WriteFault>,
    },
    /// The head of a file was read.
    Looked {
        /// The object.
        id: ObjectId,
        /// The head, or the error.
        result: Result<SpillHead, String>,
    },
    /// An object is in its blocks.
    Loaded {
        /// The object.
        id: ObjectId,
        /// Its descriptor and its metadata, or the error.
        result: Result<(Vec<u8>, Vec<u8>), String>,
    },
}
