//! The memory of objects that are on their way back from files.

use crate::alloc::space::Run;
use crate::format::spill_file::SpillHead;

/// Memory for an object that is being restored.
#[derive(Debug)]
pub(in crate::home) struct Restoring {
    pub(in crate::home) head: SpillHead,
    /// The primary block first.
    pub(in crate::home) runs: Vec<Run>,
}
