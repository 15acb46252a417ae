//! The pattern search of one call, divided among its threads.

use crate::edge::{Adjacency, Side, Stamp};
use crate::kind::PatternKind;
use crate::patterns::{
    CHUNK, MatchCollector, PatternMatch, SearchContext, SearchPlan, SearchScratch, TriggerGroups,
    find,
};
use crate::settings::{Mode, Settings};
use crate::stream::{CallContext, StreamEngine, WorkShare};
use crate::threads::together;
use std::cmp::Reverse;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The fewest ungrouped triggers in a piece of work for several threads.
const CHUNK_MIN: usize = 4;
/// A piece takes one in this many of the remaining triggers. Pieces become shorter towards the end,
/// so that the threads finish together.
const TAIL: usize = 8;
/// With fewer triggers, the search takes less time than waking another thread.
const HELPED_MIN: usize = if cfg!(debug_assertions) { 2 } else { 8 };

/// The results of a search besides its counts.
#[derive(Debug, Default)]
pub(super) struct SearchOutcome {
    /// Searches that ended at their budget, by kind.
    pub cut_short: [u64; PatternKind::COUNT],
    pub matches: Vec<PatternMatch>,
    /// Patterns beyond the caller's limit.
    pub dropped: u64,
}

impl<T: Stamp> StreamEngine<T> {
    /// Finds all patterns of a call. The first worker holds the sum of the counts afterwards.
    pub(super) fn search(
        &mut self,
        call: &CallContext<'_>,
        first: u64,
        share: WorkShare,
        patterns_max: Option<usize>,
    ) -> SearchOutcome {
        let CallContext { settings, pool, .. } = *call;
        let workers_count = 1 + pool.map_or(0, rayon::ThreadPool::current_num_threads);
        let mut workers = std::mem::take(&mut self.search.workers);
        workers.resize_with(workers_count, SearchScratch::default);
        for worker in &mut workers {
            let collector = patterns_max.map(MatchCollector::new);
            worker.start(self.batch.triggers.len(), settings.histogram_width(), collector);
        }
        let plans = plans(settings);
        self.index_batch(settings, &plans);
        if share.count > 1 {
            self.search.by_source.sort_by_arrival();
            self.search.by_target.sort_by_arrival();
        }
        let context = self.context(call, first);
        let groups = [&self.search.by_source, &self.search.by_target];
        // The pieces of all shares must be the same, independent of the number of workers.
        let is_divided = workers_count > 1 || share.count > 1;
        let work = SearchWork::new(&context, groups, &plans, share, is_divided);
        match (pool, workers.split_first_mut()) {
            (Some(pool), Some((own, helpers))) if self.batch.triggers.len() >= HELPED_MIN => {
                // This thread searches too: it is awake, and its caches hold the newest edges.
                let work = &work;
                let helpers = helpers.iter_mut().map(|worker| move || work.run(worker));
                together(pool, helpers, || work.run(own));
            }
            (_, Some((own, _))) => work.run(own),
            (_, None) => {}
        }
        let outcome = merged(&mut workers);
        self.search.workers = workers;
        outcome
    }

    /// Fills the indexes of the batch that these searches use.
    fn index_batch(&mut self, settings: &Settings, plans: &[SearchPlan<'_>]) {
        let has_side = |side| plans.iter().any(|plan| plan.kind.sides().contains(&side));
        let triggers = &self.batch.triggers;
        if has_side(Side::Out) {
            self.search.by_source.fill(triggers, Side::Out);
        }
        if has_side(Side::In) {
            self.search.by_target.fill(triggers, Side::In);
        }
        let credits_pairs = [PatternKind::ScatterGather, PatternKind::SimpleCycle];
        let needs_pairs = plans.iter().any(|plan| credits_pairs.contains(&plan.kind));
        if settings.mode == Mode::Batch && needs_pairs {
            self.search.pairs.fill(triggers);
        }
    }
}

/// Merges the workers' results into the first worker.
fn merged<T: Stamp>(workers: &mut [SearchScratch<T>]) -> SearchOutcome {
    let Some((first, helpers)) = workers.split_first_mut() else { return SearchOutcome::default() };
    for other in helpers {
        first.credits.merge(&mut other.credits);
    }
    let cut_short = first.credits.cut_short;
    let Some(mut collector) = first.credits.collector.take() else {
        return SearchOutcome { cut_short, ..SearchOutcome::default() };
    };
    // Workers finish in any order.
    collector.trim();
    SearchOutcome { cut_short, matches: collector.found, dropped: collector.dropped }
}

/// The enabled patterns, with their columns.
fn plans(settings: &Settings) -> Vec<SearchPlan<'_>> {
    let mut column = 0;
    let mut plans = Vec::new();
    for kind in PatternKind::ALL {
        let Some(pattern) = settings.pattern(kind) else { continue };
        let (length_max, work_max) = (settings.cycle_length_max, settings.work_max);
        plans.push(SearchPlan { kind, pattern, column, length_max, work_max });
        column += pattern.bins.len();
    }
    plans
}

/// Divides ungrouped triggers into pieces.
fn pieces(triggers: usize, is_divided: bool) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    let shortest = if is_divided { CHUNK_MIN } else { CHUNK };
    std::iter::from_fn(move || {
        let left = triggers - from;
        let piece = from..from + (left / TAIL).clamp(shortest, CHUNK).min(left);
        from = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// One piece of a search: triggers of the batch, or groups that share an account on one side.
struct SearchTask<'a> {
    plan: SearchPlan<'a>,
    side: Option<Side>,
    piece: Range<usize>,
}

/// The search of one batch as a queue of tasks for the workers.
struct SearchWork<'a, T, G> {
    context: &'a SearchContext<'a, T, G>,
    tasks: Vec<SearchTask<'a>>,
    /// The positions of all triggers.
    places: Vec<u32>,
    /// The triggers grouped by source, and by target.
    groups: [&'a TriggerGroups; 2],
    next: Mutex<usize>,
}

impl<'a, T: Stamp, G: Adjacency<T>> SearchWork<'a, T, G> {
    fn new(
        context: &'a SearchContext<'a, T, G>,
        groups: [&'a TriggerGroups; 2],
        plans: &[SearchPlan<'a>],
        share: WorkShare,
        is_divided: bool,
    ) -> SearchWork<'a, T, G> {
        let places = (0u32..).zip(context.triggers).map(|(place, _)| place).collect();
        let mut work =
            SearchWork { context, tasks: Vec::new(), places, groups, next: Mutex::new(0) };
        // The long searches first, so that the last tasks are short.
        for &plan in plans.iter().rev() {
            work.add(plan, is_divided);
        }
        let mut number = 0;
        work.tasks.retain(|_| {
            number += 1;
            share.has(number - 1)
        });
        work
    }

    fn add(&mut self, plan: SearchPlan<'a>, is_divided: bool) {
        let sides = plan.kind.sides();
        if sides.is_empty() {
            let pieces = pieces(self.context.triggers.len(), is_divided);
            self.tasks.extend(pieces.map(|piece| SearchTask { plan, side: None, piece }));
            return;
        }
        let first = self.tasks.len();
        // Most kinds cannot divide the triggers of a hub.
        let is_divided = is_divided && plan.kind == PatternKind::ScatterGather;
        for &side in sides {
            let pieces = self.groups_on(side).pieces(is_divided).into_iter();
            self.tasks.extend(pieces.map(|piece| SearchTask { plan, side: Some(side), piece }));
        }
        // The sort is stable, so the parts of a hub stay in order.
        self.tasks[first..].sort_by_key(|task| Reverse(task.piece.len()));
    }

    fn groups_on(&self, side: Side) -> &'a TriggerGroups {
        let [by_source, by_target] = self.groups;
        if side == Side::In { by_target } else { by_source }
    }

    fn run(&self, worker: &mut SearchScratch<T>) {
        loop {
            let number = {
                let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
                *next += 1;
                *next - 1
            };
            let Some(SearchTask { plan, side, piece }) = self.tasks.get(number) else { return };
            if self.context.is_interrupted() {
                return;
            }
            match side {
                None => {
                    let places = self.places.get(piece.clone()).unwrap_or_default();
                    find(self.context, *plan, None, places, worker);
                }
                Some(side) => {
                    let groups = self.groups_on(*side);
                    self.touch(*plan, *side, groups, piece.clone());
                    for group in groups.get(piece.clone()) {
                        if self.context.is_interrupted() {
                            return;
                        }
                        find(self.context, *plan, Some(*side), group, worker);
                    }
                }
            }
        }
    }

    /// Prefetches the lists that searches of these groups read first.
    fn touch(&self, plan: SearchPlan<'_>, side: Side, groups: &TriggerGroups, piece: Range<usize>) {
        let window = plan.pattern.window;
        match plan.kind {
            // The middle accounts differ from trigger to trigger.
            PatternKind::ScatterGather => {
                let places = groups.places(piece).iter().copied().take(2 * CHUNK);
                let ends = [(side, side), (side.other(), side.other()), (side.other(), side)];
                self.context.touch(places, window, &ends);
            }
            PatternKind::GatherScatter => {
                let places = groups.get(piece).filter_map(|group| group.first().copied());
                self.context.touch(places, window, &[(side, Side::In), (side, Side::Out)]);
            }
            _ => {
                let places = groups.get(piece).filter_map(|group| group.first().copied());
                self.context.touch(places, window, &[(side, side)]);
            }
        }
    }
}
