//! The features of one call's rows: counts of patterns, then statistics of the accounts.

use super::evidence::PatternNamer;
use super::search::SearchOutcome;
use crate::Pattern;
use crate::edge::{Adjacency, Side, Stamp, Vertex, Visibility};
use crate::kind::PatternKind;
use crate::patterns::{CHUNK, SearchContext};
use crate::settings::{Mode, Settings, StatisticsSettings};
use crate::statistics::MeasurePlan;
use crate::stream::{
    CallContext, FeatureOutput, FeatureRequest, HybridGraph, MeasuredColumns, PartFailure,
    StreamEngine,
};
use crate::threads::KeepAwake;

/// Both ends of a trigger, and both lists of each.
const LISTS: [(Side, Side); 4] =
    [(Side::Out, Side::Out), (Side::Out, Side::In), (Side::In, Side::Out), (Side::In, Side::In)];

/// The results of a call besides its cells.
#[derive(Debug, Default)]
pub(crate) struct CallOutcome {
    /// Searches that ended at their budget, by kind.
    pub cut_short: [u64; PatternKind::COUNT],
    pub patterns: Vec<Pattern>,
    /// Patterns beyond the caller's limit.
    pub dropped: u64,
    /// The first segment whose edges could not be read: the time of its first edge, and the reason.
    pub lost: Option<(i64, String)>,
}

impl<T: Stamp> StreamEngine<T> {
    /// Adds the call's rows and writes the features of all rows. Without memory for the rows, or
    /// after an interrupt, nothing changes.
    pub(crate) fn transform(
        &mut self,
        call: &CallContext<'_>,
        request: FeatureRequest<'_>,
    ) -> Result<CallOutcome, PartFailure> {
        let _awake = KeepAwake::during(call.pool, call.order.len());
        let first = self.graph.next();
        let before = self.insert(call)?;
        let outcome = self.compute(call, request, first);
        if call.is_interrupted() {
            self.interrupt(before);
            return Err(PartFailure::Interrupted);
        }
        if self.rollback.is_none() {
            self.evict(call.settings, call.pool);
        }
        Ok(outcome)
    }

    /// Writes the features of rows whose edges are in the graph, as triggers from sequence number
    /// `first` on.
    pub(crate) fn compute(
        &mut self,
        call: &CallContext<'_>,
        request: FeatureRequest<'_>,
        first: u64,
    ) -> CallOutcome {
        let settings = call.settings;
        let FeatureRequest { places, output, patterns_max } = request;
        let FeatureOutput { cells, stride, offset, share } = output;
        self.prefetch(settings, first);
        let found = self.search(call, first, share, patterns_max);
        let width = settings.histogram_width();
        if let Some(worker) = self.search.workers.first() {
            for (row, &place) in cells.chunks_mut(stride.max(1)).zip(places) {
                let cells = &mut row[offset..offset + width];
                match worker.credits.row(place as usize) {
                    None => cells.fill(0.0),
                    Some(counts) => {
                        cells.iter_mut().zip(counts).for_each(|(cell, &one)| *cell = one.into());
                    }
                }
            }
        }
        if let Some(statistics) = settings.statistics.as_ref().filter(|one| one.width() > 0) {
            let output = FeatureOutput { cells, stride, offset: offset + width, share };
            let request = FeatureRequest { places, output, patterns_max: None };
            self.describe(call, statistics, request, first);
        }
        self.outcome(settings, found, first)
    }

    /// Translates a search's results to the callers' numbers and ids.
    fn outcome(&self, settings: &Settings, found: SearchOutcome, first: u64) -> CallOutcome {
        let (graph, columns) = (&self.graph, &self.columns);
        let namer =
            PatternNamer { graph, columns, settings, triggers: &self.batch.triggers, first };
        CallOutcome {
            cut_short: found.cut_short,
            lost: self.graph.failure(),
            patterns: found.matches.iter().map(|one| namer.name(one)).collect(),
            dropped: found.dropped,
        }
    }

    /// Announces to far segments the rows that the search will read first.
    fn prefetch(&self, settings: &Settings, first: u64) {
        let triggers = &self.batch.triggers;
        let Some(oldest) = triggers.iter().map(|one| one.time).min() else { return };
        let window = oldest.closed(settings.horizon()).onward();
        let view = Visibility::all(first as u32);
        if !self.graph.is_prefetching(window, view) {
            return;
        }
        let ends = triggers.iter().flat_map(|one| [one.source, one.target]);
        let mut accounts: Vec<u32> = ends.collect();
        accounts.sort_unstable();
        accounts.dedup();
        let deep =
            [PatternKind::ScatterGather, PatternKind::TemporalCycle, PatternKind::SimpleCycle];
        let has_next = deep.into_iter().any(|kind| settings.pattern(kind).is_some());
        self.graph.prefetch(&accounts, window, view, has_next);
    }

    /// Writes the statistics of both ends of each row.
    fn describe(
        &mut self,
        call: &CallContext<'_>,
        statistics: &StatisticsSettings,
        request: FeatureRequest<'_>,
        first: u64,
    ) {
        let FeatureRequest { places, output, .. } = request;
        let FeatureOutput { cells, stride, offset, share } = output;
        let width = statistics.width();
        let is_causal = call.settings.mode == Mode::Causal;
        let plan = MeasurePlan::new(statistics, is_causal);
        let measured = MeasuredColumns::new(&self.graph, &self.columns, statistics);
        // In batch mode all rows of an account get the same cells.
        let mut described = std::mem::take(&mut self.statistics.described);
        described.clear();
        for (row, &place) in places.iter().enumerate() {
            if row % CHUNK == 0 {
                if call.is_interrupted() {
                    break;
                }
                let chunk = places[row..].iter().take(CHUNK).copied();
                self.context(call, first).touch(chunk, statistics.window, &LISTS);
            }
            let cells = &mut cells[row * stride + offset..][..4 * width];
            if !share.has(row) {
                cells.fill(0.0);
                continue;
            }
            let keys = [call.edges.sources[row], call.edges.targets[row]];
            let ends = [Side::Out, Side::In].into_iter().zip(keys);
            for ((end, key), cells) in ends.zip(cells.chunks_exact_mut(2 * width)) {
                if !is_causal && let Some(known) = described.get(key, 2 * width) {
                    cells.copy_from_slice(known);
                    continue;
                }
                let Some(account) = self.account_at(place, end, key, is_causal) else {
                    cells.fill(0.0);
                    continue;
                };
                let (window, view) = self.statistics_window(statistics, place, first, is_causal);
                for (side, cells) in
                    [Side::Out, Side::In].into_iter().zip(cells.chunks_exact_mut(width))
                {
                    let vertex = Vertex { account, side, window, view };
                    self.statistics.scratch.measure(&self.graph, &measured, plan, vertex, cells);
                }
                if !is_causal {
                    described.insert(key, cells);
                }
            }
        }
        self.statistics.described = described;
    }

    /// The small number of the account at one end of a row.
    fn account_at(&self, place: u32, end: Side, key: i64, is_causal: bool) -> Option<u32> {
        // The row's own edge has it, unless another row with the same id became the edge.
        let own = self.batch.triggers.get(place as usize).map(|edge| edge.end(end));
        let own = own.filter(|&account| is_causal || self.graph.key(account) == key);
        own.or_else(|| self.graph.find(key))
    }

    /// The window and view of the edges in the statistics of a row's accounts.
    fn statistics_window(
        &self,
        statistics: &StatisticsSettings,
        place: u32,
        first: u64,
        is_causal: bool,
    ) -> ((T, T), Visibility<T>) {
        if !is_causal {
            return (T::always(), Visibility::all(first as u32));
        }
        let trigger = self.batch.triggers[place as usize];
        let view = Visibility::until(first as u32, place, trigger.time, trigger.floor);
        ((trigger.time.open(statistics.window), trigger.time), view)
    }

    /// The search context of a call whose first edge has sequence number `first`.
    pub(crate) fn context<'a>(
        &'a self,
        call: &CallContext<'a>,
        first: u64,
    ) -> SearchContext<'a, T, HybridGraph<T>> {
        SearchContext {
            graph: &self.graph,
            triggers: &self.batch.triggers,
            first: first as u32,
            is_causal: call.settings.mode == Mode::Causal,
            interrupt: call.interrupt,
            pairs: &self.search.pairs,
            hubs: &self.search.hubs,
        }
    }
}
