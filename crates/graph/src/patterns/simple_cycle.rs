//! Simple cycles of a limited length (specification, D6 and D7).

use super::Kind;
use super::credits::Credits;
use super::reach::{Ends, NONE, Reach, Searches};
use super::scene::{Scene, Search, Trigger, is_before};
use crate::graph::{Adjacency, Lens, Side, Stamp};

pub(crate) type Scratch<T> = Searches<T, Frame>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    account: u32,
    cursor: u32,
}

/// The trigger and what its hops may be.
#[derive(Debug)]
struct Hops<'a, T, G> {
    scene: &'a Scene<'a, T, G>,
    lens: Lens<T>,
    trigger: Trigger<T>,
    from: T,
    hops_max: u64,
}

impl<T: Stamp, G: Adjacency<T>> Hops<'_, T, G> {
    /// Whether a hop to `target` counts as earlier than the trigger.
    fn is_earlier(&self, time: T, target: u32) -> bool {
        time < self.trigger.time
            || (time == self.trigger.time
                && is_before(self.scene.graph, self.scene.is_causal, target, self.trigger.target))
    }

    /// Looks at what leads to `account`, or where it leads.
    fn expand(&self, reach: &mut Reach<T>, ends: Ends, (rank, account): (u64, u32)) {
        reach.take(account);
        reach.work += 1;
        let window = (self.from, self.trigger.time);
        for one in self.scene.graph.descending(account, ends.side, window, self.lens) {
            let target = if ends.side == Side::In { account } else { one.other };
            reach.work += 1;
            let is_seen =
                reach.labels.get(one.other).is_some_and(|label| label.seen_from == account);
            let is_far = rank + 1 == self.hops_max && one.other != ends.goal;
            if !is_seen && !is_far && self.is_earlier(one.time, target) {
                reach.note(ends, account, one, rank + 1);
            }
        }
    }
}

/// Finds the cycles of at most `length_max` edges that the edge at `place` completes.
pub(crate) fn simple_cycle<T: Stamp, G: Adjacency<T>>(
    scene: &Scene<'_, T, G>,
    search: Search<'_>,
    length_max: usize,
    place: u32,
    scratch: &mut Scratch<T>,
    credits: &mut Credits,
) {
    let trigger = scene.triggers[place as usize];
    if trigger.is_loop() {
        return;
    }
    let lens = scene.lens(place);
    let hops_max = length_max as u64 - 1;
    let hops = Hops { scene, lens, trigger, from: trigger.time.closed(search.window), hops_max };
    let Searches { towards, away, path } = scratch;
    let to_source = Ends { side: Side::In, origin: trigger.source, goal: trigger.target };
    let from_target = Ends { side: Side::Out, origin: trigger.target, goal: trigger.source };
    towards.start(to_source);
    away.start(from_target);
    // What each search will have cost after its next step; only its own steps change that.
    let (mut known_to, mut known_from) = (None, None);
    let is_done = loop {
        let (Some(to), Some(from)) = (towards.peek(), away.peek()) else {
            let (reach, ends) =
                if towards.peek().is_none() { (towards, to_source) } else { (away, from_target) };
            break reach.head(ends.goal) == NONE
                || walk(&hops, search, place, reach, ends, path, credits);
        };
        let window = (hops.from, trigger.time);
        let cost_to = *known_to
            .get_or_insert_with(|| towards.work + scene.cost(search, to.1, Side::In, window, lens));
        let cost_from = *known_from
            .get_or_insert_with(|| away.work + scene.cost(search, from.1, Side::Out, window, lens));
        if cost_to.min(cost_from) > search.work_max {
            break false;
        }
        if cost_to <= cost_from {
            known_to = None;
            hops.expand(towards, to_source, to);
        } else {
            known_from = None;
            hops.expand(away, from_target, from);
        }
    };
    if !is_done {
        credits.cut_short[Kind::SimpleCycle as usize] += 1;
    }
}

/// Lists the paths from the goal of a complete search to its origin; says whether it saw all.
fn walk<T: Stamp, G: Adjacency<T>>(
    hops: &Hops<'_, T, G>,
    search: Search<'_>,
    place: u32,
    reach: &mut Reach<T>,
    ends: Ends,
    path: &mut Vec<Frame>,
    credits: &mut Credits,
) -> bool {
    path.clear();
    path.push(Frame { account: ends.goal, cursor: reach.head(ends.goal) });
    reach.set_on_path(ends.goal, true);
    loop {
        let taken = path.len() as u64;
        let Some(frame) = path.last_mut() else { return true };
        reach.work += 1;
        if reach.work > search.work_max {
            return false;
        }
        let Some(&step) = reach.step(frame.cursor) else {
            reach.set_on_path(frame.account, false);
            path.pop();
            continue;
        };
        frame.cursor = step.next;
        if step.to == ends.origin {
            found(hops, search, place, ends, path, credits);
            continue;
        }
        let Some(label) = reach.labels.get_mut(step.to) else { continue };
        // Its rank is the number of hops from there to the origin.
        if !label.is_on_path && taken + label.rank <= hops.hops_max {
            label.is_on_path = true;
            path.push(Frame { account: step.to, cursor: label.head });
        }
    }
}

fn found<T: Stamp, G: Adjacency<T>>(
    hops: &Hops<'_, T, G>,
    search: Search<'_>,
    place: u32,
    ends: Ends,
    path: &[Frame],
    credits: &mut Credits,
) {
    let size = path.len() + 1;
    let column = search.column_of(size);
    credits.add(place as usize, column);
    credits.found(place, Kind::SimpleCycle, size, || {
        // From the trigger's target to its source, whichever way the path was walked.
        let accounts = path.iter().map(|frame| frame.account).chain([ends.origin]);
        let mut keys: Vec<i64> = accounts.map(|one| hops.scene.graph.key(one)).collect();
        if ends.side == Side::Out {
            keys.reverse();
        }
        keys
    });
    if hops.scene.is_causal {
        return;
    }
    let accounts = path.iter().map(|frame| frame.account).chain([ends.origin]);
    let mut last = None;
    for account in accounts {
        if let Some(before) = last.replace(account) {
            let (source, target) =
                if ends.side == Side::In { (before, account) } else { (account, before) };
            credit(hops, source, target, column, credits);
        }
    }
}

/// Credits the batch's edges of one hop.
fn credit<T: Stamp, G: Adjacency<T>>(
    hops: &Hops<'_, T, G>,
    source: u32,
    target: u32,
    column: usize,
    credits: &mut Credits,
) {
    for &place in hops.scene.pairs.get(source, target) {
        let time = hops.scene.triggers[place as usize].time;
        if time >= hops.from && hops.is_earlier(time, target) {
            credits.add(place as usize, column);
        }
    }
}
