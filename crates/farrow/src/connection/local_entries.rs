//! The pages in which this client writes entries itself.

use std::sync::Mutex;

use farrow_memory::Span;
use farrow_store::{EntryTable, StoreError};

/// The client's entry pages, and the state of its requests for more.
#[derive(Debug)]
pub(crate) struct LocalEntries {
    pub(crate) entries: EntryTable,
    pub(crate) state: Mutex<EntryPageState>,
}

#[derive(Debug, Default)]
pub(crate) struct EntryPageState {
    /// Pages of the last request.
    pub(crate) pages: u32,
    /// Objects to be sealed by the node before the next request.
    pub(crate) pause: u32,
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
