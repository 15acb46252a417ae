//! What a graph keeps between calls, and what it gives back.

use super::engine::StreamEngine;
use super::pending_rows::PendingRows;
use crate::edge::{Record, Stamp};
use crate::patterns::{Hubs, SearchScratch, Trigger, TriggerGroups, TriggerPairs};
use crate::statistics;

/// What one call needed stays for the next one while it is no more than this part of the graph,
const CALL_KEPT: usize = 64;
/// what its searches needed no more than this one,
const SEARCH_KEPT: usize = 32;
/// or no more than so many bytes.
const KEPT_MIN: usize = 8 << 10;

impl<T: Stamp> StreamEngine<T> {
    /// Gives back what the edges that are left do not need, when some have been evicted.
    pub(crate) fn give_back(&mut self, pool: Option<&rayon::ThreadPool>) {
        let rows = self.triggers.len();
        let is_rebuilt = self.graph.is_aged(rows) && self.graph.rebuild(pool);
        if is_rebuilt || self.graph.shrink(rows) {
            // They go by small numbers.
            self.hubs = Hubs::default();
            self.statistics = statistics::StatisticsScratch::default();
        }
        self.columns.shrink();
    }

    /// Gives back what a call needed while it lasted, where that is much beside the graph.
    pub(crate) fn end(&mut self) {
        let (call, search) = (self.call_bytes(), self.search_bytes());
        if call.max(search) <= KEPT_MIN {
            return;
        }
        let graph = self.graph.bytes();
        if search > KEPT_MIN.max(graph / SEARCH_KEPT) {
            self.scratch = Vec::new();
        }
        if call > KEPT_MIN.max(graph / CALL_KEPT) {
            self.triggers = Vec::new();
            self.added = Vec::new();
            self.described = Default::default();
            self.by_source = TriggerGroups::default();
            self.by_target = TriggerGroups::default();
            self.pairs = TriggerPairs::default();
            self.queue.end();
        }
    }

    /// What is kept of calls for the next one.
    fn call_bytes(&self) -> usize {
        self.triggers.capacity() * size_of::<Trigger<T>>()
            + self.added.capacity() * size_of::<Record<T>>()
            + self.described.0.allocation_size()
            + self.described.1.capacity() * size_of::<f64>()
            + self.by_source.bytes()
            + self.by_target.bytes()
            + self.pairs.bytes()
            + self.queue.call_bytes()
    }

    /// The same of searches.
    fn search_bytes(&self) -> usize {
        self.scratch.iter().map(SearchScratch::bytes).sum()
    }

    /// Memory of all that is kept in this process.
    pub(crate) fn bytes(&self) -> usize {
        self.graph.bytes()
            + self.columns.bytes()
            + self.queue.bytes()
            + self.call_bytes()
            + self.search_bytes()
            + self.statistics.bytes()
            + self.hubs.bytes()
            + self.ahead.as_ref().map_or(0, PendingRows::bytes)
    }
}
