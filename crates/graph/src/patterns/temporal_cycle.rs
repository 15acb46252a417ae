//! Cycles whose edges follow each other in time (specification, D5).

use super::credits::Credits;
use super::reach::{NONE, SearchEnds, TimedReach, TimedSearches};
use super::search_context::{PatternSearch, SearchContext, SearchSettings};
use crate::edge::Visibility;
use crate::edge::{Adjacency, Stamp};
use crate::edge::{EdgeEntry, Side};
use crate::kind::PatternKind;

pub(crate) type TemporalCycleScratch<T> = TimedSearches<T, TemporalFrame<T>>;

/// Lists are prefetched together if at most this many are found. Of more, few are needed soon.
const TOUCHED_MAX: usize = 16;

/// An account of the path, and the step that the path takes from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TemporalFrame<T> {
    account: u32,
    /// The earliest time of a step from here.
    bound: T,
    /// The next run to try.
    cursor: u32,
    /// The end of the runs.
    end: u32,
    /// The step taken: the first of its run that is not before `bound`.
    taken: u32,
}

/// Finds the cycles that the edge at `place` completes.
pub(crate) fn temporal_cycle<T: Stamp, G: Adjacency<T>>(
    pattern: &PatternSearch<'_, T, G>,
    place: u32,
    scratch: &mut TemporalCycleScratch<T>,
    credits: &mut Credits,
) {
    let PatternSearch { context, settings: search } = *pattern;
    let trigger = context.triggers[place as usize];
    // Many searches end here, before any table is set up.
    let Some(window) = window_of(context, search, place) else { return };
    let TimedSearches { towards, away, path } = scratch;
    let to_source = SearchEnds { side: Side::In, origin: trigger.source, goal: trigger.target };
    let from_target = SearchEnds { side: Side::Out, origin: trigger.target, goal: trigger.source };
    let paths = TemporalPaths { context, search, place, window, to_source, from_target };
    let is_done = paths.meet(towards, away)
        && paths.join(towards, away)
        && (towards.head(trigger.target) == NONE || paths.walk(towards, path, credits));
    if !is_done {
        credits.cut_short[PatternKind::TemporalCycle as usize] += 1;
    }
}

/// The times of any path from the trigger's target to its source: from the first edge out of the
/// target to the last edge into the source. None: no path exists.
fn window_of<T: Stamp, G: Adjacency<T>>(
    context: &SearchContext<'_, T, G>,
    search: SearchSettings<'_>,
    place: u32,
) -> Option<(T, T)> {
    let trigger = context.triggers[place as usize];
    let last = trigger.time.offset().checked_sub(1).map(T::from_offset)?;
    let window = (trigger.time.closed(search.window), last);
    if trigger.is_loop() || window.0 > window.1 {
        return None;
    }
    let view = context.view(place);
    let last = context.graph.last(trigger.source, Side::In, window, view)?;
    let first = context.graph.first(trigger.target, Side::Out, (window.0, last), view)?;
    Some((first, last))
}

/// One of the two searches, and its next step.
struct Front<'r, 'a, T> {
    reach: &'r mut TimedReach<T>,
    ends: SearchEnds,
    /// Priority and account of the next step. Only the search's own steps change it.
    next: Option<(u64, u32)>,
    lookup: Option<StepEdges<'a, T>>,
}

/// The edges of one step.
#[derive(Clone, Copy)]
struct StepEdges<'a, T> {
    cost: u64,
    /// None if they are not contiguous.
    edges: Option<&'a [EdgeEntry<T>]>,
}

impl<'r, T: Stamp> Front<'r, '_, T> {
    fn start(reach: &'r mut TimedReach<T>, ends: SearchEnds) -> Self {
        reach.start(ends);
        let next = reach.peek();
        Front { reach, ends, next, lookup: None }
    }

    /// Finds the next step.
    fn renew(&mut self) {
        self.next = self.reach.peek();
        self.lookup = None;
    }

    /// Skips an account without edges.
    fn skip(&mut self, (_, account): (u64, u32)) {
        self.reach.take(account);
        self.renew();
    }
}

/// The paths from a trigger's target to its source.
struct TemporalPaths<'a, T, G> {
    context: &'a SearchContext<'a, T, G>,
    search: SearchSettings<'a>,
    place: u32,
    window: (T, T),
    to_source: SearchEnds,
    from_target: SearchEnds,
}

impl<'a, T: Stamp, G: Adjacency<T>> TemporalPaths<'a, T, G> {
    /// The window of edges to an account that leads to the source. It ends before the latest
    /// departure.
    fn window_to(&self, (priority, account): (u64, u32)) -> (T, T) {
        let is_origin = account == self.to_source.origin;
        let to = if is_origin { self.window.1 } else { T::from_offset(u64::MAX - priority - 1) };
        (self.window.0, to)
    }

    /// The window of edges from a reached account. It begins after the earliest arrival. It ends
    /// before the latest remaining departure, because the other search has seen later hops.
    fn window_from(&self, (priority, account): (u64, u32), next_to: (u64, u32)) -> (T, T) {
        let is_origin = account == self.from_target.origin;
        let from = if is_origin { self.window.0 } else { T::from_offset(priority + 1) };
        (from, self.window_to(next_to).1)
    }

    /// Searches from both ends, by latest departure and by earliest arrival, until each hop of a
    /// path has been seen by one of them; false if the budget was too small.
    fn meet(&self, towards: &mut TimedReach<T>, away: &mut TimedReach<T>) -> bool {
        let mut back = Front::start(towards, self.to_source);
        let mut ahead = Front::start(away, self.from_target);
        loop {
            let (Some(next_back), Some(next_ahead)) = (back.next, ahead.next) else { return true };
            if self.have_met(next_back, next_ahead) {
                return true;
            }
            let window_back = self.window_to(next_back);
            let lookup_back = self.look_up(&mut back, next_back.1, window_back);
            if lookup_back.cost == 0 {
                back.skip(next_back);
                continue;
            }
            let window_ahead = self.window_from(next_ahead, next_back);
            let lookup_ahead = self.look_up(&mut ahead, next_ahead.1, window_ahead);
            if lookup_ahead.cost == 0 {
                ahead.skip(next_ahead);
                continue;
            }
            let cost_back = back.reach.work + lookup_back.cost;
            let cost_ahead = ahead.reach.work + lookup_ahead.cost;
            if cost_back.min(cost_ahead) > self.search.work_max {
                return false;
            }
            if cost_back <= cost_ahead {
                self.expand(&mut back, next_back.1, lookup_back, window_back);
                // A path cannot leave an account before the earliest remaining arrival.
                let is_origin = next_ahead.1 == self.from_target.origin;
                let first = if is_origin { 0 } else { next_ahead.0 };
                back.reach.fresh.retain(|&(priority, ..)| u64::MAX - priority > first);
                self.touch(back.reach, Side::In);
                back.renew();
            } else {
                self.expand(&mut ahead, next_ahead.1, lookup_ahead, window_ahead);
                self.touch(ahead.reach, Side::Out);
                ahead.renew();
            }
        }
    }

    /// Whether the earliest remaining arrival is not before the latest remaining departure. Then
    /// every hop of a path has been seen by one of the searches.
    fn have_met(&self, next_back: (u64, u32), next_ahead: (u64, u32)) -> bool {
        let is_origin =
            next_back.1 == self.to_source.origin || next_ahead.1 == self.from_target.origin;
        !is_origin && next_ahead.0 >= u64::MAX - next_back.0
    }

    /// The edges of a search's next step, cached while the other search takes steps.
    fn look_up(
        &self,
        front: &mut Front<'_, 'a, T>,
        account: u32,
        window: (T, T),
    ) -> StepEdges<'a, T> {
        *front.lookup.get_or_insert_with(|| {
            let (graph, view, side) = (self.context.graph, self.view(), front.ends.side);
            let edges = graph.slice(account, side, window, view);
            let cost = || self.context.cost(self.search, account, side, window, view);
            StepEdges { cost: edges.map_or_else(cost, |edges| edges.len() as u64), edges }
        })
    }

    /// Takes a search's next step: notes the edges of one account.
    fn expand(
        &self,
        front: &mut Front<'_, 'a, T>,
        account: u32,
        lookup: StepEdges<'a, T>,
        window: (T, T),
    ) {
        let (graph, view, ends) = (self.context.graph, self.view(), front.ends);
        let reach = &mut *front.reach;
        reach.take(account);
        reach.work += 1;
        match ends.side {
            // The newest first, so that the oldest of a run is at its head, where a path starts.
            Side::In => {
                let note = |one: EdgeEntry<T>| {
                    reach.note(ends, account, one, u64::MAX - one.time.offset());
                };
                match lookup.edges {
                    Some(edges) => edges.iter().rev().copied().for_each(note),
                    None => graph.descending(account, Side::In, window, view).for_each(note),
                }
            }
            Side::Out => {
                let note = |one: EdgeEntry<T>| reach.note(ends, account, one, one.time.offset());
                match lookup.edges {
                    // The window may have become shorter since the lookup.
                    Some(edges) => {
                        edges.iter().copied().take_while(|one| one.time <= window.1).for_each(note);
                    }
                    None => graph.ascending(account, Side::Out, window, view).for_each(note),
                }
            }
        }
        self.queue(front.reach, ends.side);
    }

    fn view(&self) -> Visibility<T> {
        self.context.view(self.place)
    }

    /// Queues the newly found accounts, except for dead ends.
    fn queue(&self, reach: &mut TimedReach<T>, side: Side) {
        let found = reach.fresh.iter().map(|&(.., account)| account);
        self.context.graph.touch_any(side, found);
        reach.queue(|account| self.context.graph.has_any(account, side));
    }

    /// Prefetches the lists of the newly found accounts, so that cache misses overlap.
    fn touch(&self, reach: &mut TimedReach<T>, side: Side) {
        let fresh = &reach.fresh;
        if fresh.len() <= TOUCHED_MAX
            && let Some(best) = fresh.iter().map(|one| one.0).min()
        {
            // The best priority has the widest window.
            let window = match side {
                Side::In => (self.window.0, T::from_offset(u64::MAX - best - 1)),
                Side::Out => (T::from_offset(best + 1), self.window.1),
            };
            self.context.graph.touch(side, fresh.iter().map(|one| one.2), window);
        }
        reach.fresh.clear();
    }

    /// Completes the search towards the source, over hops that only the other one has seen; false
    /// if the budget was too small.
    fn join(&self, towards: &mut TimedReach<T>, away: &TimedReach<T>) -> bool {
        while let Some(next) = towards.peek() {
            let (_, latest) = self.window_to(next);
            let account = next.1;
            towards.take(account);
            // Steps were noted in order of time, so the newest is at the head.
            let mut cursor = away.head(account);
            while let Some(step) = away.step(cursor) {
                cursor = step.next;
                if step.time <= latest {
                    let entry = EdgeEntry { time: step.time, other: step.to, seq: step.seq };
                    towards.note(self.to_source, account, entry, u64::MAX - step.time.offset());
                }
            }
            towards.queue(|_| true);
            towards.fresh.clear();
            if towards.work > self.search.work_max {
                return false;
            }
        }
        true
    }

    /// Lists the paths; false if the budget was too small.
    fn walk(
        &self,
        reach: &mut TimedReach<T>,
        path: &mut Vec<TemporalFrame<T>>,
        credits: &mut Credits,
    ) -> bool {
        let (start, goal) = (self.from_target.origin, self.to_source.origin);
        path.clear();
        path.push(TemporalFrame::new(reach, start, self.window.0));
        reach.set_on_path(start, true);
        let mut steps = 0;
        while let Some(frame) = path.last_mut() {
            steps += 1;
            if reach.work > self.search.work_max || self.context.is_interrupted_at(steps) {
                return false;
            }
            let Some((to, taken)) = choose(reach, frame) else {
                reach.set_on_path(frame.account, false);
                path.pop();
                continue;
            };
            if to == goal {
                self.found(reach, path, credits);
            } else if !reach.labels.get(to).is_some_and(|label| label.is_on_path) {
                let bound = T::from_offset(reach.steps[taken as usize].time.offset() + 1);
                reach.set_on_path(to, true);
                path.push(TemporalFrame::new(reach, to, bound));
            }
        }
        true
    }

    fn found(&self, reach: &mut TimedReach<T>, path: &[TemporalFrame<T>], credits: &mut Credits) {
        let size = path.len() + 1;
        let column = self.search.column_of(size);
        credits.add(self.place as usize, column);
        credits.found(self.place, PatternKind::TemporalCycle, size, || {
            let accounts = path.iter().map(|frame| frame.account).chain([self.to_source.origin]);
            accounts.map(|one| self.context.graph.key(one)).collect()
        });
        if self.context.is_causal {
            return;
        }
        // From the end of the path backwards: the edges of each hop, up to the limit from the hop
        // after it.
        let mut limit = self.window.1;
        for frame in path.iter().rev() {
            let mut cursor = frame.taken;
            let Some(to) = reach.step(cursor).map(|step| step.to) else { return };
            let mut last = None;
            while let Some(step) =
                reach.step(cursor).filter(|step| step.to == to && step.time <= limit)
            {
                let entry = EdgeEntry { time: step.time, other: to, seq: step.seq };
                if let Some(place) = self.context.place(entry) {
                    credits.add(place, column);
                }
                last = Some(step.time.offset());
                cursor = step.next;
            }
            // Strictly before the last of them.
            let Some(next) = last.and_then(|time| time.checked_sub(1)) else { return };
            limit = T::from_offset(next);
        }
    }
}

impl<T: Stamp> TemporalFrame<T> {
    fn new(reach: &mut TimedReach<T>, account: u32, bound: T) -> TemporalFrame<T> {
        let runs = reach.runs_of(account);
        TemporalFrame { account, bound, cursor: runs.start, end: runs.end, taken: NONE }
    }
}

/// Takes the next neighbour of a frame: the first step of its run that is not before the bound.
fn choose<T: Stamp>(reach: &mut TimedReach<T>, frame: &mut TemporalFrame<T>) -> Option<(u32, u32)> {
    if frame.cursor == frame.end {
        return None;
    }
    reach.work += 1;
    let run = reach.runs.get(frame.cursor as usize).filter(|run| run.latest >= frame.bound)?;
    frame.cursor += 1;
    let (mut taken, to) = (run.first, run.to);
    // The last step of the run is not too early.
    while let Some(step) = reach.steps.get(taken as usize).filter(|step| step.time < frame.bound) {
        reach.work += 1;
        taken = step.next;
    }
    frame.taken = taken;
    Some((to, taken))
}
