//! Sealing: full spans of time move from the store to segments.

use super::engine::StreamEngine;
use crate::edge::NO_ACCOUNT;
use crate::edge::{Adjacency, Stamp, Visibility};
use crate::edge::{EdgeEntry, EdgeRecord, Side};
use crate::error::GraphError;
use crate::segment::{FrozenSpan, Segment};
use crate::segment::{ListKind, SealedEdge, SegmentInfo};
use crate::settings::Settings;
use crate::store::NumberMoves;
use std::sync::Arc;

/// Sealed edges that each call removes from the store, in addition to as many as it has rows. Debug
/// builds remove them slowly, for tests.
const DRAINED: usize = if cfg!(debug_assertions) { 1 } else { 4096 };

/// The number after the largest one of these edges' accounts.
fn accounts_of(records: &[SealedEdge]) -> u64 {
    let edges = records.iter().filter(|one| one.source != NO_ACCOUNT);
    edges.map(|one| u64::from(one.source.max(one.target)) + 1).max().unwrap_or_default()
}

/// Late edges, which no segment holds, row by row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LateEdges {
    /// The increasing sequence numbers.
    pub numbers: Vec<u64>,
    /// For each, the latest time of an earlier edge.
    pub fronts: Vec<i64>,
    /// The ids, or 0 if the settings retain none.
    pub ids: Vec<i64>,
    /// The paying accounts.
    pub sources: Vec<i64>,
    /// The paid accounts.
    pub targets: Vec<i64>,
    /// The timestamps.
    pub times: Vec<i64>,
    /// The given columns that the statistics measure.
    pub columns: Vec<Vec<f64>>,
}

impl<T: Stamp> StreamEngine<T> {
    /// Evicts segments that are too old, and removes sealed edges from the store.
    pub(crate) fn evict_segments(&mut self, settings: &Settings) {
        let now = i128::from(self.now.unwrap_or(i64::MIN));
        let oldest = now - i128::from(settings.horizon()) - i128::from(self.graph.base());
        let oldest = oldest.clamp(0, i128::from(T::OFFSET_MAX)) as u64;
        let expired = self.graph.expire(T::from_offset(oldest));
        self.expired.extend(expired.iter().map(|segment| segment.info().clone()));
        self.drain();
    }

    /// Removes sealed edges from the store, some at each call.
    pub(crate) fn drain(&mut self) {
        self.graph.drain(DRAINED + self.batch.triggers.len());
        let StreamEngine { graph, columns, .. } = self;
        graph.late_edges().for_each(|(number, ..)| columns.keep(number));
        columns.retain(|number| graph.record(number).is_some());
    }

    /// A copy of the oldest full span of time, if there is one.
    pub(crate) fn freeze(&self, settings: &Settings) -> Option<FrozenSpan> {
        let (length, now) = (i128::from(settings.segment?), i128::from(self.now?));
        if self.graph.is_draining() {
            return None;
        }
        let base = self.graph.time(self.graph.prefix(|_| false).flatten().next()?.time);
        let end = (i128::from(base).div_euclid(length) + 1) * length;
        if now < end {
            return None;
        }
        let since = |time: T| (i128::from(self.graph.time(time)) - i128::from(base)) as u64;
        let records = self.graph.prefix(|time| i128::from(self.graph.time(time)) >= end);
        let records = records.map(|record| match record {
            Some(EdgeRecord { source, target, time }) => {
                SealedEdge { source, target, time: since(time) }
            }
            None => SealedEdge { source: NO_ACCOUNT, target: NO_ACCOUNT, time: 0 },
        });
        let records: Vec<SealedEdge> = records.collect();
        let is_permanent = self.graph.is_permanent();
        let accounts = match is_permanent {
            true => self.graph.numbered() as u64,
            false => accounts_of(&records),
        };
        // A copy of all of them: the segment's own are looked up on another thread.
        let keys = (!is_permanent).then(|| self.graph.account_keys().clone());
        let first = self.graph.head();
        let from = (first - self.columns.head) as usize;
        let range = from..from + records.len();
        let ids = self.columns.ids.as_ref();
        let ids = ids.map(|ids| ids.range(range.clone()).copied().collect()).unwrap_or_default();
        let values = self.columns.values.iter();
        let values = values.map(|all| all.range(range.clone()).copied().collect()).collect();
        let info = SegmentInfo {
            first,
            base,
            span: records.iter().map(|one| one.time).max().unwrap_or_default(),
            accounts,
            ..SegmentInfo::default()
        };
        Some(FrozenSpan::new(info, records, ids, values, keys))
    }

    /// Replaces the edges of a span with its segment. An empty graph just adds the segment.
    pub(crate) fn attach(&mut self, segment: Arc<Segment>) -> Result<(), GraphError> {
        let SegmentInfo { first, numbers, base, span, .. } = *segment.info();
        let mut moves = NumberMoves::new();
        let attached = self.graph.attach(segment, &mut moves);
        // Even if the segment was refused, accounts may have been moved.
        self.follow(&moves);
        attached?;
        self.evictions.cursor = self.evictions.cursor.max(first + numbers);
        let last = base.saturating_add_unsigned(span);
        self.now = self.now.max(Some(last));
        self.evictions.newest =
            self.evictions.newest.max(self.graph.stamp(last).unwrap_or_default());
        if !self.graph.is_draining() {
            // In an empty graph, the next sequence number is the one after the segment.
            self.columns.start(self.graph.head());
        }
        Ok(())
    }

    /// The edges of one account between two times: the other account, and the time.
    pub(crate) fn edges_of(
        &self,
        account: i64,
        list: ListKind,
        from: i64,
        to: i64,
    ) -> Vec<(i64, i64)> {
        let graph = &self.graph;
        let Some(account) = graph.find(account) else { return Vec::new() };
        let view = Visibility::all(graph.next() as u32);
        let one = |entry: EdgeEntry<T>| (graph.key(entry.other), graph.time(entry.time));
        let is_inside = |(_, time): &(i64, i64)| from <= *time && *time <= to;
        let side = match list {
            ListKind::Out => Side::Out,
            ListKind::In => Side::In,
            ListKind::Loops => return graph.loops(account).map(one).filter(is_inside).collect(),
        };
        let window = T::always();
        graph.ascending(account, side, window, view).map(one).filter(is_inside).collect()
    }

    /// The late edges, which no segment holds.
    pub(crate) fn late_edges(&self) -> LateEdges {
        let mut all = LateEdges::default();
        all.columns.resize(self.columns.values.len(), Vec::new());
        for (number, record, front) in self.graph.unsealed() {
            all.numbers.push(number);
            all.fronts.push(self.graph.time(front));
            all.ids.push(self.columns.id(number).unwrap_or_default());
            all.sources.push(self.graph.key(record.source));
            all.targets.push(self.graph.key(record.target));
            all.times.push(self.graph.time(record.time));
            for (at, column) in all.columns.iter_mut().enumerate() {
                column.push(self.columns.value(at, number).unwrap_or(f64::NAN));
            }
        }
        all
    }

    /// Adds late edges to a graph that has segments and no rows yet. The next row gets sequence
    /// number `next`.
    pub(crate) fn insert_late(&mut self, all: &LateEdges, next: u64) {
        self.graph.skip(next);
        self.columns.start(self.graph.head());
        self.evictions.cursor = self.evictions.cursor.max(self.graph.head());
        for (at, &number) in all.numbers.iter().enumerate() {
            let stamps = [all.times[at], all.fronts[at]].map(|one| self.graph.stamp(one));
            let [Some(time), Some(front)] = stamps else { continue };
            let [source, target] =
                [all.sources[at], all.targets[at]].map(|one| self.graph.remember_one(one));
            self.graph.insert_late(number, EdgeRecord { source, target, time }, front);
            self.evictions.late.insert((time, number));
            self.evictions.alive += 1;
            let values = all.columns.iter().map(|column| column[at]).collect();
            self.columns.insert(number, all.ids[at], values);
        }
    }
}
