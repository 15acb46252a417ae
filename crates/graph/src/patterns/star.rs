//! Patterns of one account: fan, degree and gather-scatter (specification, D1, D2, D4b).
//!
//! Triggers of a batch that share an account share its list: their windows slide over it once.

use super::credits::Credits;
use super::search_context::{PatternSearch, SearchContext, SearchSettings};
use crate::accounts::AccountTable;
use crate::edge::{Adjacency, Stamp};
use crate::edge::{EdgeEntry, Side};
use crate::edge::{Vertex, Visibility};
use crate::kind::PatternKind;
use crate::patterns::hubs;
use crate::statistics::{NoValues, SlidingWindow};

/// Up to this many neighbours are compared one by one.
const FEW: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct StarScratch<T> {
    /// The number of edges of each neighbour in the window.
    inside: AccountTable<u32>,
    entries: Vec<EdgeEntry<T>>,
    sizes: Vec<u32>,
    other_sizes: Vec<u32>,
    /// For each bin, the patterns that reach the current edge.
    reach: Vec<u32>,
}

impl<T> StarScratch<T> {
    pub(crate) fn bytes(&self) -> usize {
        self.inside.bytes() + self.entries.capacity() * size_of::<EdgeEntry<T>>()
    }
}

/// The kind of star, and how it is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Star {
    pub kind: PatternKind,
    pub side: Side,
    /// Whether the size counts distinct neighbours rather than edges.
    pub by_neighbour: bool,
}

/// Fan or degree of the account that all triggers of `group` share on `star.side`.
pub(crate) fn star<T: Stamp, G: Adjacency<T>>(
    pattern: &PatternSearch<'_, T, G>,
    star: Star,
    group: &[u32],
    scratch: &mut StarScratch<T>,
    credits: &mut Credits,
) {
    let Some(centre) = Centre::of(pattern, star.side, group) else { return };
    let mut sizes = std::mem::take(&mut scratch.sizes);
    centre.measure(star.side, star.by_neighbour, scratch, &mut sizes);
    for (&place, &size) in group.iter().zip(&sizes) {
        if size >= 2 {
            centre.found(place, star.kind, size, credits);
        }
    }
    centre.credit(&[star.side], &sizes, scratch, credits);
    scratch.sizes = sizes;
}

/// Gather-scatter of the account that all triggers of `group` share on `side`.
pub(crate) fn gather_scatter<T: Stamp, G: Adjacency<T>>(
    pattern: &PatternSearch<'_, T, G>,
    side: Side,
    group: &[u32],
    scratch: &mut StarScratch<T>,
    credits: &mut Credits,
) {
    let Some(centre) = Centre::of(pattern, side, group) else { return };
    if !centre.has_two(Side::In) || !centre.has_two(Side::Out) {
        return;
    }
    let mut sizes = std::mem::take(&mut scratch.sizes);
    let mut other_sizes = std::mem::take(&mut scratch.other_sizes);
    centre.measure(Side::In, true, scratch, &mut sizes);
    centre.measure(Side::Out, true, scratch, &mut other_sizes);
    for ((&place, size), &other) in group.iter().zip(&mut sizes).zip(&other_sizes) {
        let is_loop = pattern.context.triggers[place as usize].is_loop();
        *size = if is_loop { 0 } else { other.min(*size) };
        if *size >= 2 {
            centre.found(place, PatternKind::GatherScatter, *size, credits);
        }
    }
    centre.credit(&[Side::In, Side::Out], &sizes, scratch, credits);
    scratch.sizes = sizes;
    scratch.other_sizes = other_sizes;
}

/// An account, and the triggers of the batch that share it.
struct Centre<'a, T, G> {
    context: &'a SearchContext<'a, T, G>,
    search: SearchSettings<'a>,
    account: u32,
    group: &'a [u32],
    first: u32,
    last: u32,
}

impl<'a, T: Stamp, G: Adjacency<T>> Centre<'a, T, G> {
    fn of(
        pattern: &PatternSearch<'a, T, G>,
        side: Side,
        group: &'a [u32],
    ) -> Option<Centre<'a, T, G>> {
        let PatternSearch { context, settings: search } = *pattern;
        let (&first, &last) = (group.first()?, group.last()?);
        let account = context.triggers.get(first as usize)?.end(side);
        Some(Centre { context, search, account, group, first, last })
    }

    fn time(&self, place: u32) -> T {
        self.context.triggers[place as usize].time
    }

    /// The window `(t - window, t]` of a trigger.
    fn window(&self, place: u32) -> (T, T) {
        let time = self.time(place);
        (time.open(self.search.window), time)
    }

    /// The union of the views of the group: the first trigger sees edges that are evicted for the
    /// last.
    fn view_of_all(&self) -> Visibility<T> {
        self.context.view(self.last).with_floor_of(self.context.view(self.first))
    }

    /// Whether any trigger of the group can see two edges on a side.
    fn has_two(&self, side: Side) -> bool {
        self.context.graph.at_most(self.account, side, T::always(), self.view_of_all()) >= 2
    }

    fn found(&self, place: u32, kind: PatternKind, size: u32, credits: &mut Credits) {
        let accounts = || vec![self.context.graph.key(self.account)];
        credits.found(place, kind, size as usize, accounts);
    }

    /// The size of each trigger's window.
    fn measure(
        &self,
        side: Side,
        by_neighbour: bool,
        scratch: &mut StarScratch<T>,
        sizes: &mut Vec<u32>,
    ) {
        let Centre { context, account, group, last, .. } = *self;
        sizes.clear();
        if !by_neighbour {
            let count = |&place: &u32| {
                context.graph.count(account, side, self.window(place), context.view(place)) as u32
            };
            sizes.extend(group.iter().map(count));
            return;
        }
        if context.graph.is_ordered() {
            let (window, view) = (self.window(last), context.view(last));
            if group.len() == 1 {
                let entries = &mut scratch.entries;
                entries.clear();
                let most = hubs::LENGTH_MIN - 1;
                let vertex = Vertex { account, side, window, view };
                if !context.graph.gather(vertex, most, entries) {
                    return self.carry_on(side, sizes);
                }
                sizes.push(distinct(entries.iter().copied(), &mut scratch.inside));
                return;
            }
            if context.graph.at_most(account, side, window, view) >= hubs::LENGTH_MIN {
                return self.carry_on(side, sizes);
            }
        }
        if group.len() == 1 || !context.graph.is_ordered() {
            for &place in group {
                let view = context.view(place);
                let seen = context.graph.ascending(account, side, self.window(place), view);
                sizes.push(distinct(seen, &mut scratch.inside));
            }
            return;
        }
        self.slide(side, scratch, sizes);
    }

    /// Distinct neighbours of a hub, from the window of its last trigger on.
    fn carry_on(&self, side: Side, sizes: &mut Vec<u32>) {
        let Centre { context, account, .. } = *self;
        let hub = hubs::hub_key(account, side, self.search.window);
        let key = context.graph.key(account);
        let mut running = context.hubs.take_star(hub).unwrap_or_else(|| SlidingWindow::new(key, 0));
        for &place in self.group {
            let window = self.window(place);
            let vertex = Vertex { account, side, window, view: context.view(place) };
            if !running.is_of(context.graph, vertex) {
                running = SlidingWindow::new(key, 0);
            }
            running.advance(context.graph, &NoValues, vertex, false);
            sizes.push(running.fan() as u32);
        }
        context.hubs.put_star(hub, running);
    }

    /// Distinct neighbours of windows that only move forward, in a graph in order of time.
    fn slide(&self, side: Side, scratch: &mut StarScratch<T>, sizes: &mut Vec<u32>) {
        let Centre { context, account, first, last, .. } = *self;
        let window = (self.window(first).0, self.time(last));
        let vertex = Vertex { account, side, window, view: self.view_of_all() };
        let StarScratch { inside, entries, .. } = scratch;
        entries.clear();
        context.graph.gather(vertex, usize::MAX, entries);
        inside.clear();
        let (mut from, mut to, mut distinct) = (0, 0, 0u32);
        for &place in self.group {
            let ((oldest, time), view) = (self.window(place), context.view(place));
            while let Some(one) =
                entries.get(to).filter(|one| one.time <= time && view.has_arrived(one.seq))
            {
                let (count, _) = inside.entry(one.other);
                *count += 1;
                distinct += u32::from(*count == 1);
                to += 1;
            }
            while let Some(one) = entries
                .get(from)
                .filter(|one| from < to && (one.time < oldest || !view.sees(**one)))
            {
                if let Some(count) = inside.get_mut(one.other) {
                    *count -= 1;
                    distinct -= u32::from(*count == 0);
                }
                from += 1;
            }
            sizes.push(distinct);
        }
    }

    /// Credits each pattern to the batch's edges in it.
    fn credit(
        &self,
        sides: &[Side],
        sizes: &[u32],
        scratch: &mut StarScratch<T>,
        credits: &mut Credits,
    ) {
        let Centre { context, search, group, .. } = *self;
        if sizes.iter().all(|&size| size < 2) {
            return;
        }
        if context.is_causal || (group.len() == 1 && sides.len() == 1) {
            for (&place, &size) in group.iter().zip(sizes) {
                if size >= 2 && !context.triggers[place as usize].is_loop() {
                    credits.add(place as usize, search.column_of(size as usize));
                }
            }
            return;
        }
        for &side in sides {
            self.own_edges(side, &mut scratch.entries);
            self.credit_own(sizes, scratch, credits);
        }
    }

    /// The batch's own edges on a side, in order of time.
    fn own_edges(&self, side: Side, entries: &mut Vec<EdgeEntry<T>>) {
        let Centre { context, account, first, last, .. } = *self;
        let span = (self.window(first).0, self.time(last));
        entries.clear();
        let all = context.graph.descending(account, side, span, context.view(first));
        if context.graph.is_ordered() {
            entries.extend(all.take_while(|one| context.place(*one).is_some()));
        } else {
            entries.extend(all.filter(|one| context.place(*one).is_some()));
        }
        entries.reverse();
    }

    /// Credits each of the batch's own edges with the patterns whose windows reach it.
    fn credit_own(&self, sizes: &[u32], scratch: &mut StarScratch<T>, credits: &mut Credits) {
        let Centre { context, search, group, .. } = *self;
        let StarScratch { entries, reach, .. } = scratch;
        reach.clear();
        reach.resize(search.bins.len(), 0);
        // The current edge is in the windows of triggers `left..entered`.
        let (mut left, mut entered) = (0, 0);
        for entry in entries.iter() {
            let is_reached = |&place: &u32| self.window(place).0 <= entry.time;
            while group.get(entered).is_some_and(is_reached) {
                if sizes[entered] >= 2 {
                    reach[search.column_of(sizes[entered] as usize) - search.column] += 1;
                }
                entered += 1;
            }
            while left < entered && self.time(group[left]) < entry.time {
                if sizes[left] >= 2 {
                    reach[search.column_of(sizes[left] as usize) - search.column] -= 1;
                }
                left += 1;
            }
            let Some(place) = context.place(*entry) else { continue };
            for (bin, &patterns) in reach.iter().enumerate() {
                if patterns > 0 {
                    credits.add_many(place, search.column + bin, patterns);
                }
            }
        }
    }
}

/// The number of distinct neighbours.
fn distinct<T: Stamp>(
    mut seen: impl Iterator<Item = EdgeEntry<T>>,
    inside: &mut AccountTable<u32>,
) -> u32 {
    // Most accounts have a handful of neighbours; counting them is faster without a table.
    let mut few = [0; FEW];
    let mut count = 0;
    let known = loop {
        let Some(one) = seen.next() else { return count as u32 };
        if few[..count].contains(&one.other) {
            continue;
        }
        let Some(place) = few.get_mut(count) else { break one.other };
        *place = one.other;
        count += 1;
    };
    inside.clear();
    for other in few.into_iter().chain([known]).chain(seen.map(|one| one.other)) {
        inside.entry(other);
    }
    inside.len() as u32
}
