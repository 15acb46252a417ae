//! Rollback: removes rows as if they had never been added.

use super::engine::StreamEngine;
use super::eviction_queue::QueueCheckpoint;
use crate::edge::Stamp;
use crate::patterns::Hubs;
use crate::settings::Settings;
use crate::statistics::StatisticsScratch;
use crate::store::StoreCheckpoint;

/// The state that the insertion of rows changes, from before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checkpoint<T> {
    graph: StoreCheckpoint<T>,
    next: u64,
    now: Option<i64>,
    evictions: QueueCheckpoint<T>,
}

/// The state that rows change before the next eviction.
#[derive(Debug)]
pub(crate) struct RollbackPoint<T> {
    checkpoint: Checkpoint<T>,
    /// Searches carry these from row to row; `preview` sets them aside. None: the rows may be
    /// committed, and after a rollback both are rebuilt from the graph.
    carried: Option<(Hubs<T>, StatisticsScratch<T>)>,
}

impl<T: Stamp> StreamEngine<T> {
    /// Prepares for rows that `rewind` removes. Until then, nothing is evicted.
    pub(crate) fn preview(&mut self) {
        let hubs = std::mem::take(&mut self.search.hubs);
        let statistics = std::mem::take(&mut self.statistics.scratch);
        let carried = Some((hubs, statistics));
        self.rollback = Some(RollbackPoint { checkpoint: self.checkpoint(), carried });
    }

    /// Prepares for rows that `rewind` removes or `keep` commits. Until then, nothing is evicted.
    pub(crate) fn begin(&mut self) {
        self.rollback = Some(RollbackPoint { checkpoint: self.checkpoint(), carried: None });
    }

    /// Commits the rows added since `begin`.
    pub(crate) fn keep(&mut self, settings: &Settings, pool: Option<&rayon::ThreadPool>) {
        if self.rollback.take().is_some() {
            self.evict(settings, pool);
        }
    }

    /// Removes the rows added since `preview` or `begin`.
    pub(crate) fn rewind(&mut self) {
        let Some(RollbackPoint { checkpoint, carried }) = self.rollback.take() else { return };
        self.take_back(checkpoint);
        // No rows were pending before: `begin` and `preview` require that.
        self.pending = None;
        (self.search.hubs, self.statistics.scratch) = carried.unwrap_or_default();
    }

    /// Removes the rows of an interrupted call, unless `rewind` will do so.
    pub(crate) fn interrupt(&mut self, checkpoint: Checkpoint<T>) {
        if self.rollback.is_none() {
            self.take_back(checkpoint);
            self.drop_carried();
        }
    }

    pub(crate) fn checkpoint(&mut self) -> Checkpoint<T> {
        if self.rollback.is_none() {
            self.graph.commit_accounts();
        }
        Checkpoint {
            graph: self.graph.checkpoint(),
            next: self.graph.next(),
            now: self.now,
            evictions: self.evictions.checkpoint(),
        }
    }

    /// Removes the rows inserted since a checkpoint. No edge has been removed since then.
    pub(crate) fn take_back(&mut self, checkpoint: Checkpoint<T>) {
        self.evictions.rewind(checkpoint.evictions, checkpoint.next);
        self.graph.rewind(checkpoint.graph);
        self.columns.rewind(self.graph.next());
        self.now = checkpoint.now;
        self.batch.triggers.clear();
    }
}
