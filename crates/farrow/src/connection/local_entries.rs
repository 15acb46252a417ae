//! The pages in which this client writes entries itself.

use std::sync::Mutex;

use farrow_memory::Span;
use farrow_store::{EntryTable, StoreError};
use farrow_wire::link::PendingReply;

/// The client's entry pages, and the state of its requests for more.
#[derive(Debug)]
pub(crate) struct LocalEntries {
    pub(crate) entries: EntryTable,
    /// Locked by the thread that requests pages. No other thread waits for it: the node seals.
    pub(crate) state: Mutex<EntryPageState>,
}

#[derive(Debug, Default)]
pub(crate) struct EntryPageState {
    /// Pages of the last request.
    pub(crate) pages: u32,
    /// Objects to be sealed by the node before the next request.
    pub(crate) pause: u32,
    /// The reply to the last request, if its caller has given up.
    pub(crate) late: Option<PendingReply>,
}

impl LocalEntries {
    pub(crate) fn new(entries: EntryTable) -> Self {
        Self { entries, state: Mutex::default() }
    }

    /// Adds pages that the node assigned to this client. Pages of an answer that was lost are new
    /// here.
    pub(crate) fn add(&self, pages: &[Span]) -> Result<(), StoreError> {
        pages.iter().try_for_each(|pages| self.entries.add_pages(*pages))
    }
}
