//! Simple cycles of a limited length (specification, D6 and D7).
//!
//! A cycle through the trigger `a -> b` is a path from `b` back to `a`. Two searches walk towards
//! each other; the one with less work takes the next step. They stop when the sum of their hops is
//! the limit of a path. By then each hop of a path has been seen by one of them. For most triggers
//! they did not meet, and the search ends. Otherwise the search towards the source continues over
//! hops that the other one saw, so that only hops of paths remain.

use super::breadth_first::{BreadthFirst, Hop, NONE};
use super::credits::Credits;
use super::search_context::{PatternSearch, SearchContext, SearchSettings, is_before};
use super::trigger::Trigger;
use crate::edge::Side;
use crate::edge::{Adjacency, Stamp, Visibility};
use crate::kind::PatternKind;

/// Lists that are prefetched together before the first is searched.
const TOUCHED_MAX: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct SimpleCycleScratch {
    towards: BreadthFirst,
    away: BreadthFirst,
    path: Vec<SimpleFrame>,
}

impl SimpleCycleScratch {
    pub(crate) fn bytes(&self) -> usize {
        self.towards.bytes() + self.away.bytes() + self.path.capacity() * size_of::<SimpleFrame>()
    }
}

/// An account of the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimpleFrame {
    /// The account's place in the search towards the source.
    place: u32,
    /// The next hop to try.
    cursor: u32,
    /// The hop that the path takes.
    taken: u32,
}

/// The trigger, and the limits of its paths.
#[derive(Debug)]
struct SimplePaths<'a, T, G> {
    context: &'a SearchContext<'a, T, G>,
    search: SearchSettings<'a>,
    view: Visibility<T>,
    place: u32,
    trigger: Trigger<T>,
    from: T,
    hops_max: u32,
    is_ordered: bool,
}

/// Finds the cycles of at most `length_max` edges that the edge at `place` completes.
pub(crate) fn simple_cycle<T: Stamp, G: Adjacency<T>>(
    pattern: &PatternSearch<'_, T, G>,
    length_max: usize,
    place: u32,
    scratch: &mut SimpleCycleScratch,
    credits: &mut Credits,
) {
    let PatternSearch { context, settings: search } = *pattern;
    let trigger = context.triggers[place as usize];
    if trigger.is_loop() {
        return;
    }
    let view = context.view(place);
    // No path has more hops than there are edges.
    let hops_max = u32::try_from(length_max - 1).unwrap_or(NONE);
    let (from, is_ordered) = (trigger.time.closed(search.window), context.graph.is_ordered());
    let hops = SimplePaths { context, search, view, place, trigger, from, hops_max, is_ordered };
    let SimpleCycleScratch { towards, away, path } = scratch;
    let is_done =
        hops.meet(towards, away) && hops.join(towards, away) && hops.walk(towards, path, credits);
    if !is_done {
        credits.cut_short[PatternKind::SimpleCycle as usize] += 1;
    }
}

impl<T: Stamp, G: Adjacency<T>> SimplePaths<'_, T, G> {
    /// Whether a hop to `target` is earlier than the trigger.
    fn is_earlier(&self, time: T, target: u32) -> bool {
        time < self.trigger.time
            || (time == self.trigger.time
                && is_before(
                    self.context.graph,
                    self.context.is_causal,
                    target,
                    self.trigger.target,
                ))
    }

    /// Searches from both ends; false if the budget was too small.
    fn meet(&self, towards: &mut BreadthFirst, away: &mut BreadthFirst) -> bool {
        let Trigger { source, target, .. } = self.trigger;
        towards.start(source);
        away.start(target);
        let cost = |account, side| {
            let window = (self.from, self.trigger.time);
            self.context.cost(self.search, account, side, window, self.view)
        };
        // The work of each search after its next step. Only its own steps change it.
        let (mut known_to, mut known_from) = (None, None);
        loop {
            let (Some(to), Some(from)) = (towards.peek(target), away.peek(source)) else {
                return true;
            };
            if to.2.saturating_add(from.2) >= self.hops_max {
                return true;
            }
            let cost_to = *known_to.get_or_insert_with(|| towards.work + cost(to.1, Side::In));
            let cost_from = *known_from.get_or_insert_with(|| away.work + cost(from.1, Side::Out));
            if cost_to.min(cost_from) > self.search.work_max {
                return false;
            }
            if cost_to <= cost_from {
                known_to = None;
                self.expand(towards, Side::In, to);
            } else {
                known_from = None;
                self.expand(away, Side::Out, from);
            }
        }
    }

    /// Notes the hops from or to one account.
    fn expand(
        &self,
        reach: &mut BreadthFirst,
        side: Side,
        (place, account, hops): (u32, u32, u32),
    ) {
        let window = (self.from, self.trigger.time);
        let next = reach.ahead(TOUCHED_MAX);
        if next.len() > 1 {
            self.context.graph.touch(side, next.iter().map(|one| one.account), window);
        }
        reach.take();
        let (origin, goal) = match side {
            Side::In => (self.trigger.source, self.trigger.target),
            Side::Out => (self.trigger.target, self.trigger.source),
        };
        let is_last = hops + 1 == self.hops_max;
        for one in self.context.graph.descending(account, side, window, self.view) {
            reach.work += 1;
            let target = if side == Side::In { account } else { one.other };
            let is_possible = one.other != origin && (!is_last || one.other == goal);
            if is_possible && self.is_earlier(one.time, target) {
                // The newest edge is first: if it is older than the batch, all are.
                let is_new = !self.is_ordered || self.context.place(one).is_some();
                reach.note(place, one.other, hops + 1, is_new);
            }
        }
    }

    /// Completes the search towards the source, over hops that the other one has seen; false if the
    /// budget was too small.
    fn join(&self, towards: &mut BreadthFirst, away: &BreadthFirst) -> bool {
        while let Some((place, account, hops)) = towards.peek(self.trigger.target) {
            towards.take();
            let head = away.place(account).and_then(|at| away.get(at)).map_or(NONE, |at| at.head);
            let mut cursor = head;
            while let Some(&Hop { to, next, is_new }) = away.hops.get(cursor as usize) {
                cursor = next;
                towards.work += 1;
                let Some(before) = away.get(to) else { continue };
                if before.hops.saturating_add(hops + 1) <= self.hops_max {
                    towards.note(place, before.account, hops + 1, is_new);
                }
            }
            if towards.work > self.search.work_max {
                return false;
            }
        }
        true
    }

    /// Lists the paths; false if the budget was too small.
    fn walk(
        &self,
        reach: &mut BreadthFirst,
        path: &mut Vec<SimpleFrame>,
        credits: &mut Credits,
    ) -> bool {
        let Some(start) = reach.place(self.trigger.target) else { return true };
        path.clear();
        let Some(first) = reach.seen.get_mut(start as usize) else { return true };
        first.is_on_path = true;
        path.push(SimpleFrame { place: start, cursor: first.head, taken: NONE });
        loop {
            let taken = path.len() as u32;
            let Some(frame) = path.last_mut() else { return true };
            reach.work += 1;
            if reach.work > self.search.work_max || self.context.is_interrupted_at(reach.work) {
                return false;
            }
            let Some(hop) = reach.hops.get(frame.cursor as usize) else {
                if let Some(seen) = reach.seen.get_mut(frame.place as usize) {
                    seen.is_on_path = false;
                }
                path.pop();
                continue;
            };
            frame.taken = frame.cursor;
            frame.cursor = hop.next;
            // The source is at place 0.
            if hop.to == 0 {
                self.found(reach, path, credits);
                continue;
            }
            let Some(seen) = reach.seen.get_mut(hop.to as usize) else { continue };
            if !seen.is_on_path && taken + seen.hops <= self.hops_max {
                seen.is_on_path = true;
                path.push(SimpleFrame { place: hop.to, cursor: seen.head, taken: NONE });
            }
        }
    }

    fn found(&self, reach: &BreadthFirst, path: &[SimpleFrame], credits: &mut Credits) {
        let size = path.len() + 1;
        let column = self.search.column_of(size);
        credits.add(self.place as usize, column);
        let account = |place: u32| reach.get(place).map_or(NONE, |one| one.account);
        credits.found(self.place, PatternKind::SimpleCycle, size, || {
            let accounts = path.iter().map(|frame| frame.place).chain([0]).map(account);
            accounts.map(|one| self.context.graph.key(one)).collect()
        });
        if self.context.is_causal {
            return;
        }
        for frame in path {
            let hop = reach.hops.get(frame.taken as usize).filter(|hop| hop.is_new);
            if let Some(hop) = hop {
                self.credit(account(frame.place), account(hop.to), column, credits);
            }
        }
    }

    /// Credits the batch's edges of one hop.
    fn credit(&self, source: u32, target: u32, column: usize, credits: &mut Credits) {
        for place in self.context.pairs.get(source, target) {
            let time = self.context.triggers[place as usize].time;
            if time >= self.from && self.is_earlier(time, target) {
                credits.add(place as usize, column);
            }
        }
    }
}
