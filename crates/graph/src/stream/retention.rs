//! Memory that an engine retains between calls, and memory that it frees.

use super::engine::{RowBatch, StreamEngine};
use super::pending_rows::PendingRows;
use crate::accounts::AccountHash;
use crate::edge::Stamp;
use crate::patterns::{Hubs, SearchScratch};
use crate::statistics::{DescribedAccounts, StatisticsScratch};
use hashbrown::HashMap;

/// The memory of a call is retained up to the graph's memory divided by this.
const CALL_RETAINED: usize = 64;
/// The memory of searches is retained up to the graph's memory divided by this.
const SEARCH_RETAINED: usize = 32;
/// Up to this many bytes are always retained.
const RETAINED_MIN: usize = 8 << 10;

impl<T: Stamp> StreamEngine<T> {
    /// Frees memory that the remaining edges do not need, after an eviction.
    pub(crate) fn release_unneeded(&mut self, pool: Option<&rayon::ThreadPool>) {
        let rows = self.batch.triggers.len();
        let is_rebuilt = self.graph.is_aged(rows) && self.graph.rebuild(pool);
        if is_rebuilt || self.graph.shrink(rows) || self.graph.release_numbers() {
            self.drop_carried();
        }
        self.columns.shrink();
    }

    /// Drops the windows that searches carry from call to call: they refer to accounts by small
    /// numbers, which have changed.
    pub(crate) fn drop_carried(&mut self) {
        self.search.hubs = Hubs::default();
        self.statistics.scratch = StatisticsScratch::default();
    }

    /// Accounts have moved to other small numbers, between two calls.
    pub(crate) fn follow(&mut self, moves: &[(u32, u32)]) {
        if moves.is_empty() {
            return;
        }
        self.drop_carried();
        // By the present number, the one before all moves.
        let mut before = HashMap::with_hasher(AccountHash);
        for &(old, new) in moves {
            let first = before.remove(&old).unwrap_or(old);
            before.insert(new, first);
        }
        let after: HashMap<u32, u32, AccountHash> =
            before.into_iter().map(|(now, first)| (first, now)).collect();
        let renamed = |account: u32| after.get(&account).copied().unwrap_or(account);
        if let Some(pending) = &mut self.pending {
            pending.rename(renamed);
        }
        self.evictions.rename(renamed);
    }

    /// Frees the temporary memory of a call, if it is large in proportion to the graph.
    pub(crate) fn release_call(&mut self) {
        let (call, search) = (self.call_bytes(), self.search_bytes());
        if call.max(search) <= RETAINED_MIN {
            return;
        }
        let graph = self.graph.bytes();
        if search > RETAINED_MIN.max(graph / SEARCH_RETAINED) {
            self.search.workers = Vec::new();
        }
        if call > RETAINED_MIN.max(graph / CALL_RETAINED) {
            self.batch = RowBatch::default();
            self.statistics.described = DescribedAccounts::default();
            self.search.release_batch();
            self.evictions.release_call();
        }
    }

    /// Memory of calls that is retained for the next one.
    fn call_bytes(&self) -> usize {
        self.batch.bytes()
            + self.statistics.described.bytes()
            + self.search.batch_bytes()
            + self.evictions.call_bytes()
    }

    /// Memory of searches that is retained for the next one.
    fn search_bytes(&self) -> usize {
        self.search.workers.iter().map(SearchScratch::bytes).sum()
    }

    /// All memory of the engine in this process, without segments.
    pub(crate) fn bytes(&self) -> usize {
        self.graph.bytes()
            + self.columns.bytes()
            + self.evictions.bytes()
            + self.call_bytes()
            + self.search_bytes()
            + self.statistics.scratch.bytes()
            + self.search.hubs.bytes()
            + self.pending.as_ref().map_or(0, PendingRows::bytes)
    }
}
