//! Removal of edges that are outside the window.

use super::engine::StreamEngine;
use crate::edge::{Adjacency, EdgeRecord, EdgeRemoval, Stamp};
use crate::settings::{Mode, Settings, StatisticsSettings};
use crate::store::REMOVED_TOGETHER;

/// Whether a time is more than a window before `now`.
fn is_older(time: i64, now: i64, window: u64) -> bool {
    i128::from(time) < i128::from(now) - i128::from(window)
}

impl<T: Stamp> StreamEngine<T> {
    /// Removes the edges that are too old after the rows just added.
    pub(crate) fn evict(&mut self, settings: &Settings, pool: Option<&rayon::ThreadPool>) {
        if self.pending.is_some() {
            // Sealed edges are removed from the store anyway.
            self.drain();
            self.columns.forget(self.graph.head());
            return;
        }
        match settings.mode {
            Mode::Causal => {
                let oldest = self.oldest(settings.horizon());
                self.forget(oldest);
                self.graph.remove_all(&self.evictions.removals, pool);
                self.evictions.settle();
            }
            Mode::Batch => {
                self.evict_in_arrival_order(settings, pool);
                let oldest = self.oldest(settings.horizon());
                self.search.hubs.forget(oldest, self.graph.is_ordered());
            }
        }
        if settings.segment.is_some() {
            self.evict_segments(settings);
        }
        self.columns.forget(self.graph.head());
        self.release_unneeded(pool);
        self.release_call();
    }

    /// Drops carried windows in which all edges are older than `oldest`.
    pub(crate) fn forget(&mut self, oldest: T) {
        self.statistics.scratch.forget(oldest, self.graph.is_ordered());
        self.search.hubs.forget(oldest, self.graph.is_ordered());
    }

    /// Evicts as batch mode does (specification, B3 and E3).
    fn evict_in_arrival_order(&mut self, settings: &Settings, pool: Option<&rayon::ThreadPool>) {
        let newest = self.batch.triggers.iter().map(|one| one.time).max();
        let Some(newest) = newest else { return };
        // The clock starts at 0.
        let now = self.now.unwrap_or(0).max(self.graph.time(newest));
        self.now = Some(now);
        self.evict_late(settings, now, pool);
        self.evict_front(settings, now, pool);
        if let Some(statistics) = &settings.statistics {
            self.advance_recent(statistics, now);
        }
    }

    /// Evicts late edges from before all records.
    fn evict_late(&mut self, settings: &Settings, now: i64, pool: Option<&rayon::ThreadPool>) {
        let horizon = settings.horizon();
        let late = self.graph.late_edges();
        let old = late.filter(|(.., front)| is_older(self.graph.time(*front), now, horizon));
        let removals = old.map(|(number, record, _)| EdgeRemoval { record, seq: number as u32 });
        let removals: Vec<EdgeRemoval<T>> = removals.collect();
        self.graph.remove_all(&removals, pool);
    }

    /// Evicts edges from the front of the records: those that are too old, and those in excess of
    /// `edges_max`.
    fn evict_front(&mut self, settings: &Settings, now: i64, pool: Option<&rayon::ThreadPool>) {
        let (horizon, most) = (settings.horizon(), settings.edges_max.unwrap_or(usize::MAX));
        let mut surplus = self.graph.len().saturating_sub(most);
        let mut removals = std::mem::take(&mut self.evictions.removals);
        loop {
            removals.clear();
            let is_due = |&(place, (number, record)): &(usize, (u64, EdgeRecord<T>))| {
                // A late edge stays as long as the edge in front of it, which may be in a segment.
                let time = self.graph.front(number).unwrap_or(record.time);
                place < surplus || is_older(self.graph.time(time), now, horizon)
            };
            let room = removals.capacity().clamp(1, REMOVED_TOGETHER);
            let due = self.graph.records().take(room).enumerate().take_while(is_due);
            removals.extend(
                due.map(|(_, (number, record))| EdgeRemoval { record, seq: number as u32 }),
            );
            if removals.is_empty() {
                break;
            }
            surplus = surplus.saturating_sub(removals.len());
            self.graph.remove_all(&removals, pool);
        }
        self.evictions.removals = removals;
    }

    /// Moves `recent` to the first edge that the moments of batch mode still count.
    fn advance_recent(&mut self, statistics: &StatisticsSettings, now: i64) {
        let oldest = i128::from(now) - i128::from(statistics.window);
        self.columns.recent_time = Some(i64::try_from(oldest).unwrap_or(i64::MIN));
        self.columns.recent = self.columns.recent.max(self.graph.head());
        while let Some(record) = self.graph.record(self.columns.recent) {
            let time = self.graph.front(self.columns.recent).unwrap_or(record.time);
            if !is_older(self.graph.time(time), now, statistics.window) {
                break;
            }
            self.columns.recent += 1;
        }
    }
}
