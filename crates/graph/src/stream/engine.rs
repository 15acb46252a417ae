//! One stream with timestamps of one width: its graph, and the state of searches between calls.

use super::columns::EdgeColumns;
use super::eviction_queue::EvictionQueue;
use super::hybrid::HybridGraph;
use super::pending_rows::PendingRows;
use super::rollback::RollbackPoint;
use crate::edge::{EdgeRecord, Stamp};
use crate::patterns::{SearchState, Trigger};
use crate::segment::SegmentInfo;
use crate::settings::{Mode, Settings};
use crate::statistics::StatisticsState;
use crate::store::DynamicGraph;

/// A graph whose stamps are of type `T`, and the operations of calls on it.
#[derive(Debug)]
pub(crate) struct StreamEngine<T> {
    pub graph: HybridGraph<T>,
    pub columns: EdgeColumns,
    /// The latest time of a row so far, if any.
    pub now: Option<i64>,
    pub evictions: EvictionQueue<T>,
    pub batch: RowBatch<T>,
    pub search: SearchState<T>,
    pub statistics: StatisticsState<T>,
    /// Evicted segments, until the caller takes the list.
    pub expired: Vec<SegmentInfo>,
    /// The state before rows that may be rolled back.
    pub rollback: Option<RollbackPoint<T>>,
    /// Rows in the graph that have no features yet. While there are any, nothing is evicted.
    pub pending: Option<PendingRows<T>>,
}

/// The rows of the current call.
#[derive(Debug)]
pub(crate) struct RowBatch<T> {
    pub triggers: Vec<Trigger<T>>,
    /// The part of the rows that is being added.
    pub added: Vec<EdgeRecord<T>>,
}

impl<T> Default for RowBatch<T> {
    fn default() -> RowBatch<T> {
        RowBatch { triggers: Vec::new(), added: Vec::new() }
    }
}

impl<T> RowBatch<T> {
    pub(crate) fn bytes(&self) -> usize {
        self.triggers.capacity() * size_of::<Trigger<T>>()
            + self.added.capacity() * size_of::<EdgeRecord<T>>()
    }
}

impl<T: Stamp> StreamEngine<T> {
    pub(crate) fn new(settings: &Settings, base: i64) -> StreamEngine<T> {
        // Only batch mode orders accounts by their first appearance.
        let remembers = settings.mode == Mode::Batch && settings.simple_cycle.is_some();
        let columns = settings.statistics.as_ref().map_or(0, |one| one.given());
        StreamEngine {
            graph: HybridGraph::from(match settings.segment {
                Some(_) => DynamicGraph::before_segments(base, remembers),
                None => DynamicGraph::new(base, remembers),
            }),
            columns: EdgeColumns::new(settings.keeps_ids, columns),
            now: None,
            evictions: EvictionQueue::default(),
            batch: RowBatch::default(),
            search: SearchState::default(),
            statistics: StatisticsState::default(),
            expired: Vec::new(),
            rollback: None,
            pending: None,
        }
    }

    /// The same graph with stamps of another type, or from another base.
    pub(crate) fn restamp<S: Stamp>(self, settings: &Settings, base: i64) -> StreamEngine<S> {
        let from = self.graph.base();
        let shift = |stamp: T| {
            let offset = i128::from(from) + i128::from(stamp.offset()) - i128::from(base);
            S::from_offset(offset.clamp(0, i128::from(S::OFFSET_MAX)) as u64)
        };
        StreamEngine {
            evictions: self.evictions.restamp(shift),
            pending: self.pending.map(|pending| pending.restamp(shift)),
            graph: self.graph.restamp(base),
            columns: self.columns,
            now: self.now,
            expired: self.expired,
            ..StreamEngine::new(settings, base)
        }
    }

    /// The oldest time that stays in the graph.
    pub(crate) fn oldest(&self, horizon: u64) -> T {
        let now = self.now.and_then(|now| self.graph.stamp(now));
        now.map_or(T::default(), |now| now.closed(horizon))
    }
}
