//! Memory that this process has stopped using.

use std::sync::Mutex;

use farrow_memory::{Offset, Span};

use crate::memory::extents::SealTicket;

/// Memory of the pool that is unused in this process.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unused {
    /// Whole pages.
    Pages(Span),
    /// A slot of a slab.
    Slot(Offset),
    /// Pages with a seal request.
    Sealing(SealTicket),
}

/// Memory that forked children may share.
#[derive(Debug, Default)]
pub(crate) struct Inherited(pub(crate) Mutex<Vec<ForkSpan>>);

/// Memory allocated after fork number `since` and freed after fork number `until`.
#[derive(Debug)]
pub(crate) struct ForkSpan {
    pub(crate) since: u64,
    pub(crate) until: u64,
    pub(crate) memory: Unused,
}
