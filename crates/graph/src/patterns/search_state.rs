//! The state of searches between calls.

use super::SearchScratch;
use super::hubs::Hubs;
use super::trigger_groups::{TriggerGroups, TriggerPairs};

/// The workers' tables, the indexes of the current batch, and the hubs.
#[derive(Debug)]
pub(crate) struct SearchState<T> {
    /// The tables of each search thread.
    pub workers: Vec<SearchScratch<T>>,
    pub by_source: TriggerGroups,
    pub by_target: TriggerGroups,
    /// Filled in batch mode only.
    pub pairs: TriggerPairs,
    pub hubs: Hubs<T>,
}

impl<T> Default for SearchState<T> {
    fn default() -> SearchState<T> {
        SearchState {
            workers: Vec::new(),
            by_source: TriggerGroups::default(),
            by_target: TriggerGroups::default(),
            pairs: TriggerPairs::default(),
            hubs: Hubs::default(),
        }
    }
}

impl<T> SearchState<T> {
    /// Frees the memory of the batch's indexes.
    pub(crate) fn release_batch(&mut self) {
        self.by_source = TriggerGroups::default();
        self.by_target = TriggerGroups::default();
        self.pairs = TriggerPairs::default();
    }

    /// Memory of the batch's indexes.
    pub(crate) fn batch_bytes(&self) -> usize {
        self.by_source.bytes() + self.by_target.bytes() + self.pairs.bytes()
    }
}
