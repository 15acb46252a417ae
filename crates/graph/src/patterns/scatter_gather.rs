//! Scatter-gather: two accounts connected through several others (specification, D4).
//!
//! The trigger is one leg. All middle accounts share one of its ends, *near*; its other end is one
//! of them, *mid*. The list of mid contains the possible *far* accounts. The middle accounts that
//! each far one shares with near are an intersection, computed from the cheaper side.

use super::credits::Credits;
use super::legs::{Leg, Legs};
use super::search_context::{PatternSearch, SearchContext, SearchSettings};
use super::trigger::Trigger;
use crate::accounts::AccountTable;
use crate::edge::{Adjacency, Stamp, Visibility};
use crate::edge::{EdgeEntry, Side};
use crate::kind::PatternKind;
use crate::patterns::hubs;

/// Accounts whose lists are prefetched together.
const TOUCHED: usize = 64;

/// A far account, and its pattern so far.
#[derive(Clone, Copy, Debug, Default)]
struct FarAccount {
    /// The mark of the last middle account that was compared with this one.
    seen: u32,
    /// The number of middle accounts, or [`LATE`].
    size: u32,
}

/// The size of a pattern that a later edge completes.
const LATE: u32 = u32::MAX;

impl FarAccount {
    fn is_late(&self) -> bool {
        self.size == LATE
    }

    fn add(&mut self) {
        if !self.is_late() {
            self.size += 1;
        }
    }
}

#[derive(Debug)]
pub(crate) struct ScatterGatherScratch<T> {
    legs: Legs<T>,
    /// The account and side of `legs`, if all triggers of a call see the same legs.
    of: Option<(u32, Side)>,
    far: AccountTable<FarAccount>,
    /// The keys of `far`.
    fars: Vec<u32>,
    /// Far and middle account of each complete pair of legs.
    members: Vec<(u32, u32)>,
    /// For each leg, the mark of the last far account that was compared with it.
    seen: Vec<u32>,
    /// The current mark. Each account that is compared with others has its own.
    mark: u32,
    work: u64,
    /// Whether `work` is exact rather than an upper bound.
    is_exact: bool,
}

impl<T: Stamp> Default for ScatterGatherScratch<T> {
    fn default() -> ScatterGatherScratch<T> {
        ScatterGatherScratch {
            legs: Legs::default(),
            of: None,
            far: AccountTable::default(),
            fars: Vec::new(),
            members: Vec::new(),
            seen: Vec::new(),
            mark: 0,
            work: 0,
            is_exact: false,
        }
    }
}

impl<T: Stamp> ScatterGatherScratch<T> {
    /// Invalidates the legs of an earlier call.
    pub(crate) fn start(&mut self) {
        self.of = None;
    }

    fn next_mark(&mut self) -> u32 {
        self.mark = self.mark.wrapping_add(1);
        if self.mark == 0 {
            // No account has mark 0.
            self.seen.fill(0);
            self.mark = 1;
        }
        self.mark
    }

    pub(crate) fn bytes(&self) -> usize {
        self.legs.bytes()
            + self.far.bytes()
            + size_of::<(u32, u32)>() * self.members.capacity()
            + size_of::<u32>() * (self.fars.capacity() + self.seen.capacity())
    }
}

/// One trigger in one of its two roles.
struct TriggerRole<'a, T, G> {
    context: &'a SearchContext<'a, T, G>,
    search: SearchSettings<'a>,
    view: Visibility<T>,
    place: u32,
    trigger: Trigger<T>,
    near: u32,
    mid: u32,
    /// Near's side of the legs to the middle accounts: In if near gathers.
    side: Side,
    /// The time of the oldest live leg.
    from: T,
}

/// Finds the patterns that triggers with one near account complete. `group` has all such triggers
/// of a call, or a part of them.
pub(crate) fn scatter_gather<T: Stamp, G: Adjacency<T>>(
    pattern: &PatternSearch<'_, T, G>,
    side: Side,
    group: &[u32],
    scratch: &mut ScatterGatherScratch<T>,
    credits: &mut Credits,
) {
    let PatternSearch { context, settings: search } = *pattern;
    let Some(first) = group.first().and_then(|&place| context.triggers.get(place as usize)) else {
        return;
    };
    let near = first.end(side);
    let whole = T::always();
    let is_ordered = context.graph.is_ordered();
    let view = context.view(group[group.len() - 1]);
    let is_retained = context.is_causal
        && is_ordered
        && context.graph.at_most(near, side, whole, view) >= hubs::LEGS_RETAINED_MIN;
    let hub = hubs::hub_key(near, side, search.window);
    let key = context.graph.key(near);
    let own = is_retained.then(|| {
        let legs = context.hubs.take_legs(hub, context.view(group[0])).unwrap_or_default();
        std::mem::replace(&mut scratch.legs, legs)
    });
    let is_causal = context.is_causal;
    // In batch mode all triggers see the same legs, including those of other parts.
    let of = (!is_causal).then_some((near, side));
    if (is_causal && !is_retained) || scratch.legs.key() != key {
        scratch.legs.clear(key);
        scratch.of = None;
    }
    for &place in group {
        if context.is_interrupted() {
            break;
        }
        let trigger = context.triggers[place as usize];
        let from = trigger.time.closed(search.window);
        let mid = trigger.end(side.other());
        let view = context.view(place);
        let role = TriggerRole { context, search, view, place, trigger, near, mid, side, from };
        // Charged for carried legs too: the budget must not depend on whether they are carried.
        scratch.work = context.cost(search, near, side, role.live(), view);
        if scratch.work > search.work_max {
            credits.cut_short[PatternKind::ScatterGather as usize] += 1;
            continue;
        }
        // A pattern needs two legs at near and one at mid.
        if scratch.work < 2 || context.graph.at_most(mid, side, role.live(), view) == 0 {
            continue;
        }
        if is_causal && is_ordered {
            role.follow(&mut scratch.legs);
        } else if is_causal || scratch.of != of {
            scratch.legs.clear(key);
            role.follow(&mut scratch.legs);
            scratch.of = of;
        }
        let work = scratch.work;
        let mut run = |is_exact| {
            (scratch.work, scratch.is_exact) = (work, is_exact);
            role.run(scratch, credits)
        };
        // An upper bound within the budget is enough.
        let is_counted = context.is_budget_counted(search);
        if !run(is_counted) && (is_counted || !run(true)) {
            credits.cut_short[PatternKind::ScatterGather as usize] += 1;
        }
    }
    if let Some(own) = own {
        context.hubs.put_legs(hub, std::mem::replace(&mut scratch.legs, own));
    }
}

impl<T: Stamp, G: Adjacency<T>> TriggerRole<'_, T, G> {
    fn live(&self) -> (T, T) {
        self.from.onward()
    }

    /// Whether a leg at near is in the window and not evicted. The table may contain older legs.
    fn is_live(&self, leg: &Leg<T>) -> bool {
        let Leg { middle, newest, seq } = *leg;
        newest >= self.from && !self.view.is_evicted(EdgeEntry { time: newest, other: middle, seq })
    }

    /// Adds the legs at near that arrived since the last trigger.
    fn follow(&self, legs: &mut Legs<T>) {
        let from = match legs.last() {
            None => self.from,
            // Too many legs are outside the window.
            Some(_) if legs.all().len() * 2 > 3 * (self.lively() + hubs::LENGTH_MIN) => {
                *legs = Legs::new(legs.key());
                self.from
            }
            Some(_) => legs.newest().max(self.from),
        };
        let window = from.onward();
        let last = legs.last();
        for one in self.context.graph.ascending(self.near, self.side, window, self.view) {
            if last.is_none_or(|last| self.view.is_after(one.seq, last)) {
                legs.see(one);
            }
        }
    }

    /// An upper bound of the number of legs at near in the window.
    fn lively(&self) -> usize {
        self.context.graph.at_most(self.near, self.side, self.live(), self.view)
    }

    /// Finds and counts the patterns; false if the budget was too small.
    fn run(&self, scratch: &mut ScatterGatherScratch<T>, credits: &mut Credits) -> bool {
        let time = self.trigger.time;
        if !self.trigger.is_loop() && scratch.legs.get(self.mid).is_none_or(|leg| leg.newest > time)
        {
            // A later edge of the same pair completes every pattern of this one.
            return true;
        }
        let mut live = scratch.legs.all().iter().rev().filter(|leg| self.is_live(leg));
        if live.nth(1).is_none() {
            return true;
        }
        let is_late = scratch.legs.newest() > time;
        let is_done = self.collect_far(scratch) && self.intersect(scratch, is_late);
        if is_done {
            self.count(scratch, credits);
        }
        is_done
    }

    /// Collects the far accounts: those with a live leg at mid.
    fn collect_far(&self, scratch: &mut ScatterGatherScratch<T>) -> bool {
        scratch.work += self.cost(scratch.is_exact, self.mid, self.side, self.live());
        let ScatterGatherScratch { far, fars, work, .. } = scratch;
        far.clear();
        fars.clear();
        if *work > self.search.work_max {
            return false;
        }
        let all = self.context.graph.descending(self.mid, self.side, self.live(), self.view);
        all.filter(|one| one.other != self.near).for_each(|one| {
            let (account, is_new) = far.entry(one.other);
            if is_new {
                // The newest leg is first.
                if !self.trigger.is_loop() && one.time > self.trigger.time {
                    account.size = LATE;
                }
                fars.push(one.other);
            }
        });
        true
    }

    /// The number of edges that a search visits: exact, or an upper bound.
    fn cost(&self, is_exact: bool, account: u32, side: Side, window: (T, T)) -> u64 {
        let TriggerRole { context, search, view, .. } = *self;
        if is_exact {
            return context.cost(search, account, side, window, view);
        }
        context.graph.count_bound(account, side, window, view) as u64
    }

    /// Finds the middle accounts of each far one, from the lists of the far or of the middle
    /// accounts.
    fn intersect(&self, scratch: &mut ScatterGatherScratch<T>, is_late: bool) -> bool {
        scratch.members.clear();
        // Dead legs matter only if a live leg at near is too late.
        let window = if is_late { T::always() } else { self.live() };
        let is_exact = scratch.is_exact;
        let length = |account: u32, side| self.cost(is_exact, account, side, window);
        let mut far_cost = 0;
        for fars in scratch.fars.chunks(TOUCHED) {
            self.context.graph.touch_counts(self.side.other(), fars.iter().copied());
            for &far in fars {
                if far_cost > self.search.work_max {
                    break;
                }
                far_cost += length(far, self.side.other());
            }
        }
        let mut middle_cost = 0;
        let mut rest = scratch.legs.all();
        while middle_cost < far_cost && !rest.is_empty() {
            // Each live leg costs at least one.
            let most = usize::try_from(far_cost - middle_cost).unwrap_or(TOUCHED).min(TOUCHED);
            let (legs, more) = rest.split_at(most.min(rest.len()));
            rest = more;
            self.context.graph.touch_counts(self.side, legs.iter().map(|leg| leg.middle));
            for leg in legs {
                if middle_cost >= far_cost {
                    break;
                }
                // Dead legs must not count, because the table may lack them.
                if self.is_live(leg) {
                    middle_cost += length(leg.middle, self.side) + 1;
                }
            }
        }
        scratch.work += far_cost.min(middle_cost);
        if scratch.work > self.search.work_max {
            return false;
        }
        if middle_cost < far_cost {
            self.by_middles(scratch, window);
        } else {
            self.by_fars(scratch, window);
        }
        self.add_loops(scratch);
        true
    }

    fn by_fars(&self, scratch: &mut ScatterGatherScratch<T>, window: (T, T)) {
        let time = self.trigger.time;
        scratch.seen.resize(scratch.legs.all().len(), 0);
        for at in 0..scratch.fars.len() {
            if at % TOUCHED == 0 {
                let fars = scratch.fars[at..].iter().copied().take(TOUCHED);
                self.context.graph.touch_rows(self.side.other(), fars, window);
            }
            let account = scratch.fars[at];
            let mark = scratch.next_mark();
            let Some(far) = scratch.far.get_mut(account).filter(|far| !far.is_late()) else {
                continue;
            };
            let start = scratch.members.len();
            for one in self.context.graph.descending(account, self.side.other(), window, self.view)
            {
                let Some(at) = scratch.legs.find(one.other) else { continue };
                let leg = scratch.legs.all()[at];
                if scratch.seen[at] == mark || !self.is_live(&leg) {
                    continue;
                }
                scratch.seen[at] = mark;
                if leg.newest > time || one.time > time {
                    far.size = LATE;
                    break;
                }
                if one.time >= self.from {
                    far.add();
                    scratch.members.push((account, one.other));
                }
            }
            if far.is_late() {
                scratch.members.truncate(start);
            }
        }
    }

    fn by_middles(&self, scratch: &mut ScatterGatherScratch<T>, window: (T, T)) {
        let time = self.trigger.time;
        for at in 0..scratch.legs.all().len() {
            if at % TOUCHED == 0 {
                let middles = scratch.legs.all()[at..].iter().map(|leg| leg.middle).take(TOUCHED);
                self.context.graph.touch_rows(self.side, middles, window);
            }
            let near = scratch.legs.all()[at];
            if !self.is_live(&near) {
                continue;
            }
            let (middle, mark) = (near.middle, scratch.next_mark());
            let (all, members) = (&mut scratch.far, &mut scratch.members);
            let legs = self.context.graph.descending(middle, self.side, window, self.view);
            legs.for_each(|one| {
                let far = all.get_mut(one.other).filter(|far| far.seen != mark);
                let Some(far) = far else { return };
                far.seen = mark;
                if near.newest > time || one.time > time {
                    far.size = LATE;
                } else if one.time >= self.from {
                    far.add();
                    members.push((one.other, middle));
                }
            });
        }
    }

    /// A far account with a self-loop is also a middle account, if it has a live leg at near.
    fn add_loops(&self, scratch: &mut ScatterGatherScratch<T>) {
        let time = self.trigger.time;
        for &account in &scratch.fars {
            let loops = self.context.graph.loops(account).filter(|one| self.view.sees(*one));
            let Some(newest) = loops.max_by_key(|one| one.time) else { continue };
            let Some(near) = scratch.legs.get(account).filter(|leg| self.is_live(leg)) else {
                continue;
            };
            let Some(far) = scratch.far.get_mut(account) else { continue };
            if near.newest > time || newest.time > time {
                far.size = LATE;
            } else if newest.time >= self.from {
                far.add();
                scratch.members.push((account, account));
            }
        }
    }

    fn count(&self, scratch: &mut ScatterGatherScratch<T>, credits: &mut Credits) {
        let ScatterGatherScratch { far, fars, members, .. } = scratch;
        let is_pattern = |far: &FarAccount| !far.is_late() && far.size >= 2;
        for &account in fars.iter() {
            let Some(one) = far.get(account).filter(|one| is_pattern(one)) else { continue };
            if self.context.is_causal && !self.trigger.is_loop() {
                credits.add(self.place as usize, self.search.column_of(one.size as usize));
            }
            credits.found(self.place, PatternKind::ScatterGather, one.size as usize, || {
                let middles = members.iter().filter(|(far, _)| *far == account);
                let (from, to) = match self.side {
                    Side::In => (account, self.near),
                    Side::Out => (self.near, account),
                };
                let accounts = [from, to].into_iter().chain(middles.map(|(_, middle)| *middle));
                let mut keys: Vec<i64> = accounts.map(|one| self.context.graph.key(one)).collect();
                keys[2..].sort_unstable();
                keys
            });
        }
        if self.context.is_causal {
            return;
        }
        for &(account, middle) in members.iter() {
            let Some(one) = far.get(account).filter(|one| is_pattern(one)) else { continue };
            let column = self.search.column_of(one.size as usize);
            for (one, other) in [(middle, self.near), (account, middle)] {
                let (source, target) = match self.side {
                    Side::In => (one, other),
                    Side::Out => (other, one),
                };
                for place in self.context.pairs.get(source, target) {
                    if self.context.triggers[place as usize].time >= self.from {
                        credits.add(place as usize, column);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::hubs::{Hubs, hub_key};
    use super::Legs;
    use crate::edge::{EdgeEntry, Side};
    use crate::edge::{EvictionFloor, Visibility};

    #[test]
    fn legs_that_are_ahead_of_a_part_are_left_to_later_ones() {
        let hubs = Hubs::<u32>::default();
        let place = hub_key(7, Side::In, 10);
        let mut legs = Legs::default();
        legs.see(EdgeEntry { time: 5, other: 1, seq: 120 });
        hubs.put_legs(place, legs);
        let until = |at| Visibility::until(100, at, 20, EvictionFloor::default());
        assert!(hubs.take_legs(place, until(19)).is_none(), "its last edge is yet to come");
        assert!(hubs.take_legs(place, until(20)).is_some());
        assert!(hubs.take_legs(place, until(21)).is_none(), "another worker has them");
    }
}
