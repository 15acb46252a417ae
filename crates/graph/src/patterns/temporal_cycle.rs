//! Cycles whose edges follow each other in time (specification, D5).

use super::Kind;
use super::credits::Credits;
use super::reach::{Ends, NONE, Reach, Searches};
use super::scene::{Scene, Search, Trigger};
use crate::graph::{Adjacency, Side, Stamp};

pub(crate) type Scratch<T> = Searches<T, Frame<T>>;

/// An account of the path, and the step taken from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<T> {
    account: u32,
    /// No step from here may be on the wrong side of this time.
    bound: T,
    /// The next step to try.
    cursor: u32,
    /// The step taken: the first of its run that the bound allows.
    taken: u32,
}

/// Finds the cycles that the edge at `place` completes.
pub(crate) fn temporal_cycle<T: Stamp, G: Adjacency<T>>(
    scene: &Scene<'_, T, G>,
    search: Search<'_>,
    place: u32,
    scratch: &mut Scratch<T>,
    credits: &mut Credits,
) {
    let trigger = scene.triggers[place as usize];
    let Some(last) = trigger.time.offset().checked_sub(1).map(T::from_offset) else { return };
    let window = (trigger.time.closed(search.window), last);
    if trigger.is_loop() || window.0 > window.1 {
        return;
    }
    let Searches { towards, away, path } = scratch;
    let is_done = match meet(scene, search, place, window, towards, away) {
        Met::Never => true,
        Met::TooFar => false,
        Met::FromSource => Walk { scene, search, place, trigger, window, is_forward: true }
            .run(towards, path, credits),
        Met::FromTarget => Walk { scene, search, place, trigger, window, is_forward: false }
            .run(away, path, credits),
    };
    if !is_done {
        credits.cut_short[Kind::TemporalCycle as usize] += 1;
    }
}

enum Met {
    /// There is no path.
    Never,
    /// The trigger's work is used up.
    TooFar,
    /// All that leads to the trigger's source is known.
    FromSource,
    /// All that its target leads to is known.
    FromTarget,
}

/// Searches from both ends until one search is complete.
fn meet<T: Stamp, G: Adjacency<T>>(
    scene: &Scene<'_, T, G>,
    search: Search<'_>,
    place: u32,
    window: (T, T),
    towards: &mut Reach<T>,
    away: &mut Reach<T>,
) -> Met {
    let Trigger { source, target, .. } = scene.triggers[place as usize];
    let lens = scene.lens(place);
    let to_source = Ends { side: Side::In, origin: source, goal: target };
    let from_target = Ends { side: Side::Out, origin: target, goal: source };
    towards.start(to_source);
    away.start(from_target);
    // What the next step of each search may walk, and for how much.
    let window_to = |(rank, account): (u64, u32)| {
        let to = if account == source { window.1 } else { T::from_offset(u64::MAX - rank - 1) };
        (window.0, to)
    };
    let window_from = |(rank, account): (u64, u32)| {
        let from = if account == target { window.0 } else { T::from_offset(rank + 1) };
        (from, window.1)
    };
    // What each search will have cost after its next step; only its own steps change that.
    let (mut known_to, mut known_from) = (None, None);
    loop {
        let Some(next_to) = towards.peek() else {
            return if towards.head(target) == NONE { Met::Never } else { Met::FromSource };
        };
        let Some(next_from) = away.peek() else {
            return if away.head(source) == NONE { Met::Never } else { Met::FromTarget };
        };
        let (span_to, span_from) = (window_to(next_to), window_from(next_from));
        let cost_to = *known_to.get_or_insert_with(|| {
            towards.work + scene.cost(search, next_to.1, Side::In, span_to, lens)
        });
        let cost_from = *known_from.get_or_insert_with(|| {
            away.work + scene.cost(search, next_from.1, Side::Out, span_from, lens)
        });
        if cost_to.min(cost_from) > search.work_max {
            return Met::TooFar;
        }
        if cost_to <= cost_from {
            let account = next_to.1;
            known_to = None;
            towards.take(account);
            towards.work += 1;
            // The newest first: the oldest of a run ends up at its head, where a path starts.
            for one in scene.graph.descending(account, Side::In, span_to, lens) {
                towards.note(to_source, account, one, u64::MAX - one.time.offset());
            }
        } else {
            let account = next_from.1;
            known_from = None;
            away.take(account);
            away.work += 1;
            for one in scene.graph.ascending(account, Side::Out, span_from, lens) {
                away.note(from_target, account, one, one.time.offset());
            }
        }
    }
}

/// Lists the paths through what a search has found: forward from the trigger's target, or
/// backward from its source.
struct Walk<'a, T, G> {
    scene: &'a Scene<'a, T, G>,
    search: Search<'a>,
    place: u32,
    trigger: Trigger<T>,
    window: (T, T),
    is_forward: bool,
}

impl<T: Stamp, G: Adjacency<T>> Walk<'_, T, G> {
    /// Says whether all paths were seen.
    fn run(&self, reach: &mut Reach<T>, path: &mut Vec<Frame<T>>, credits: &mut Credits) -> bool {
        let (start, goal, bound) = if self.is_forward {
            (self.trigger.target, self.trigger.source, self.window.0)
        } else {
            (self.trigger.source, self.trigger.target, self.window.1)
        };
        path.clear();
        path.push(Frame { account: start, bound, cursor: reach.head(start), taken: NONE });
        reach.set_on_path(start, true);
        while let Some(frame) = path.last_mut() {
            if reach.work > self.search.work_max {
                return false;
            }
            let Some((to, taken)) = self.choose(reach, frame) else {
                reach.set_on_path(frame.account, false);
                path.pop();
                continue;
            };
            let time = reach.steps[taken as usize].time.offset();
            if to == goal {
                self.found(reach, path, credits);
            } else if !reach.labels.get(to).is_some_and(|label| label.is_on_path) {
                let bound = if self.is_forward { time + 1 } else { time.saturating_sub(1) };
                if self.is_forward || time > 0 {
                    reach.set_on_path(to, true);
                    let (bound, cursor) = (T::from_offset(bound), reach.head(to));
                    path.push(Frame { account: to, bound, cursor, taken: NONE });
                }
            }
        }
        true
    }

    fn allows(&self, bound: T, time: T) -> bool {
        if self.is_forward { time >= bound } else { time <= bound }
    }

    /// Takes the next neighbour of a frame: the first step of its run that the bound allows.
    fn choose(&self, reach: &mut Reach<T>, frame: &mut Frame<T>) -> Option<(u32, u32)> {
        while let Some(&first) = reach.step(frame.cursor) {
            let mut found = None;
            while let Some(step) =
                reach.steps.get(frame.cursor as usize).filter(|one| one.to == first.to)
            {
                reach.work += 1;
                if found.is_none() && self.allows(frame.bound, step.time) {
                    found = Some(frame.cursor);
                }
                frame.cursor = step.next;
            }
            if let Some(taken) = found {
                frame.taken = taken;
                return Some((first.to, taken));
            }
        }
        None
    }

    fn found(&self, reach: &mut Reach<T>, path: &[Frame<T>], credits: &mut Credits) {
        let size = path.len() + 1;
        let column = self.search.column_of(size);
        credits.add(self.place as usize, column);
        credits.found(self.place, Kind::TemporalCycle, size, || {
            let last = if self.is_forward { self.trigger.source } else { self.trigger.target };
            let accounts = path.iter().map(|frame| frame.account).chain([last]);
            let mut keys: Vec<i64> = accounts.map(|one| self.scene.graph.key(one)).collect();
            if !self.is_forward {
                keys.reverse();
            }
            keys
        });
        if self.scene.is_causal {
            return;
        }
        // From the end of the path back: each hop's edges up to what the hop behind it allows.
        let mut limit = if self.is_forward { self.window.1 } else { self.window.0 };
        for frame in path.iter().rev() {
            let mut cursor = frame.taken;
            let Some(to) = reach.step(cursor).map(|step| step.to) else { return };
            let mut last = None;
            while let Some(step) = reach.step(cursor).filter(|step| {
                step.to == to
                    && if self.is_forward { step.time <= limit } else { step.time >= limit }
            }) {
                let entry = crate::graph::Entry { time: step.time, other: to, seq: step.seq };
                if let Some(place) = self.scene.place(entry) {
                    credits.add(place, column);
                }
                last = Some(step.time.offset());
                cursor = step.next;
            }
            // Strictly before the last of these (after the first, walking backward).
            let next = last.and_then(|time| {
                if self.is_forward { time.checked_sub(1) } else { time.checked_add(1) }
            });
            let Some(next) = next.filter(|&next| next <= T::OFFSET_MAX) else { return };
            limit = T::from_offset(next);
        }
    }
}
