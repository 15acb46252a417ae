//! Patterns round one account: fan, degree and gather-scatter (specification, D1, D2, X1).
//!
//! The triggers of a batch that meet at one account share its list: their windows slide over it
//! once.

use super::credits::Credits;
use super::search_context::{SearchContext, SearchSettings};
use crate::accounts::AccountTable;
use crate::edge::{Adjacency, Stamp};
use crate::edge::{Entry, Side};
use crate::kind::Kind;
use crate::patterns::hubs;
use crate::statistics::{NoValues, SlidingWindow, Vertex};

/// So many neighbours are looked through one by one.
const FEW: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct StarScratch<T> {
    /// How often each neighbour is in the window.
    inside: AccountTable<u32>,
    entries: Vec<Entry<T>>,
    sizes: Vec<u32>,
    other_sizes: Vec<u32>,
    /// Patterns of each bin that reach the edge at hand.
    reach: Vec<u32>,
}

impl<T> StarScratch<T> {
    pub(crate) fn bytes(&self) -> usize {
        self.inside.bytes() + self.entries.capacity() * size_of::<Entry<T>>()
    }
}

/// Where a star is and how it is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Star {
    pub kind: Kind,
    pub side: Side,
    /// Size by distinct neighbours, not by edges.
    pub by_neighbour: bool,
}

/// Fan or degree of the account that all triggers of `group` have on `star.side`.
pub(crate) fn star<T: Stamp, G: Adjacency<T>>(
    context: &SearchContext<'_, T, G>,
    search: SearchSettings<'_>,
    star: Star,
    group: &[u32],
    scratch: &mut StarScratch<T>,
    credits: &mut Credits,
) {
    let Some(centre) = centre(context, star.side, group) else { return };
    let mut sizes = std::mem::take(&mut scratch.sizes);
    measure(
        context,
        search.window,
        centre,
        star.side,
        star.by_neighbour,
        group,
        scratch,
        &mut sizes,
    );
    for (&place, &size) in group.iter().zip(&sizes) {
        if size >= 2 {
            let accounts = || vec![context.graph.key(centre)];
            credits.found(place, star.kind, size as usize, accounts);
        }
    }
    credit(context, search, centre, &[star.side], group, &sizes, scratch, credits);
    scratch.sizes = sizes;
}

/// Gather-scatter of the account that all triggers of `group` have on `side`.
pub(crate) fn gather_scatter<T: Stamp, G: Adjacency<T>>(
    context: &SearchContext<'_, T, G>,
    search: SearchSettings<'_>,
    side: Side,
    group: &[u32],
    scratch: &mut StarScratch<T>,
    credits: &mut Credits,
) {
    let Some(centre) = centre(context, side, group) else { return };
    let whole = T::always();
    let (Some(&first), Some(&last)) = (group.first(), group.last()) else { return };
    // All that any of the group sees: the first one sees edges that are gone for the last.
    let view = context.view(last).with_floor_of(context.view(first));
    let is_possible = |side| context.graph.at_most(centre, side, whole, view) >= 2;
    if !is_possible(Side::In) || !is_possible(Side::Out) {
        return;
    }
    let mut sizes = std::mem::take(&mut scratch.sizes);
    let mut others = std::mem::take(&mut scratch.other_sizes);
    measure(context, search.window, centre, Side::In, true, group, scratch, &mut sizes);
    measure(context, search.window, centre, Side::Out, true, group, scratch, &mut others);
    for ((&place, size), &other) in group.iter().zip(&mut sizes).zip(&others) {
        let is_loop = context.triggers[place as usize].is_loop();
        *size = if is_loop { 0 } else { other.min(*size) };
        if *size >= 2 {
            let accounts = || vec![context.graph.key(centre)];
            credits.found(place, Kind::GatherScatter, *size as usize, accounts);
        }
    }
    credit(context, search, centre, &[Side::In, Side::Out], group, &sizes, scratch, credits);
    scratch.sizes = sizes;
    scratch.other_sizes = others;
}

fn centre<T: Stamp, G>(
    context: &SearchContext<'_, T, G>,
    side: Side,
    group: &[u32],
) -> Option<u32> {
    let first = context.triggers.get(*group.first()? as usize)?;
    Some(first.end(side))
}

/// The size of the window `(t - window, t]` at `centre` for each trigger of the group.
#[expect(clippy::too_many_arguments, reason = "one call each for fan, degree and both sides")]
fn measure<T: Stamp, G: Adjacency<T>>(
    context: &SearchContext<'_, T, G>,
    window: u64,
    centre: u32,
    side: Side,
    by_neighbour: bool,
    group: &[u32],
    scratch: &mut StarScratch<T>,
    sizes: &mut Vec<u32>,
) {
    sizes.clear();
    let of = |place: u32| {
        let time = context.triggers[place as usize].time;
        (time.open(window), time)
    };
    if !by_neighbour {
        sizes.extend(group.iter().map(|&place| {
            context.graph.count(centre, side, of(place), context.view(place)) as u32
        }));
        return;
    }
    if context.graph.is_ordered() {
        let last = group[group.len() - 1];
        let view = context.view(last);
        if group.len() == 1 {
            let entries = &mut scratch.entries;
            entries.clear();
            if !context.graph.gather(centre, side, of(last), view, hubs::LENGTH_MIN - 1, entries) {
                return carry_on(context, window, centre, side, group, sizes);
            }
            sizes.push(distinct(entries.iter().copied(), &mut scratch.inside));
            return;
        }
        let length = context.graph.at_most(centre, side, of(last), view);
        if length >= hubs::LENGTH_MIN {
            return carry_on(context, window, centre, side, group, sizes);
        }
    }
    if group.len() == 1 || !context.graph.is_ordered() {
        for &place in group {
            let seen = context.graph.ascending(centre, side, of(place), context.view(place));
            sizes.push(distinct(seen, &mut scratch.inside));
        }
        return;
    }
    slide(context, window, centre, side, group, scratch, sizes);
}

/// Distinct neighbours of a hub, from where its last trigger left off.
fn carry_on<T: Stamp, G: Adjacency<T>>(
    context: &SearchContext<'_, T, G>,
    window: u64,
    account: u32,
    side: Side,
    group: &[u32],
    sizes: &mut Vec<u32>,
) {
    let kept = hubs::hub_key(account, side, window);
    let key = context.graph.key(account);
    let mut running = context.hubs.take_star(kept).unwrap_or_else(|| SlidingWindow::new(key, 0));
    for &place in group {
        let time = context.triggers[place as usize].time;
        let window = (time.open(window), time);
        let vertex = Vertex { account, side, window, view: context.view(place) };
        if !running.is_of(context.graph, vertex) {
            running = SlidingWindow::new(key, 0);
        }
        running.advance(context.graph, &NoValues, vertex, false);
        sizes.push(running.fan() as u32);
    }
    context.hubs.put_star(kept, running);
}

/// How many different neighbours there are.
fn distinct<T: Stamp>(
    mut seen: impl Iterator<Item = Entry<T>>,
    inside: &mut AccountTable<u32>,
) -> u32 {
    // Most accounts have a handful: looking through those takes less than a table.
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

/// Distinct neighbours of windows that only move forward, for a graph in order of time.
fn slide<T: Stamp, G: Adjacency<T>>(
    context: &SearchContext<'_, T, G>,
    window: u64,
    centre: u32,
    side: Side,
    group: &[u32],
    scratch: &mut StarScratch<T>,
    sizes: &mut Vec<u32>,
) {
    let (Some(&first), Some(&last)) = (group.first(), group.last()) else { return };
    let span =
        (context.triggers[first as usize].time.open(window), context.triggers[last as usize].time);
    let StarScratch { inside, entries, .. } = scratch;
    entries.clear();
    // What the first trigger sees at the old end and the last one at the new end.
    let view = context.view(last).with_floor_of(context.view(first));
    context.graph.gather(centre, side, span, view, usize::MAX, entries);
    inside.clear();
    let (mut from, mut to, mut distinct) = (0, 0, 0u32);
    for &place in group {
        let time = context.triggers[place as usize].time;
        let (oldest, view) = (time.open(window), context.view(place));
        while let Some(one) =
            entries.get(to).filter(|one| one.time <= time && view.has_arrived(one.seq))
        {
            let (count, _) = inside.entry(one.other);
            *count += 1;
            distinct += u32::from(*count == 1);
            to += 1;
        }
        while let Some(one) =
            entries.get(from).filter(|one| from < to && (one.time < oldest || !view.sees(**one)))
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
#[expect(clippy::too_many_arguments, reason = "one call each for stars and gather-scatters")]
fn credit<T: Stamp, G: Adjacency<T>>(
    context: &SearchContext<'_, T, G>,
    search: SearchSettings<'_>,
    centre: u32,
    sides: &[Side],
    group: &[u32],
    sizes: &[u32],
    scratch: &mut StarScratch<T>,
    credits: &mut Credits,
) {
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
    let time = |place: u32| context.triggers[place as usize].time;
    let (Some(&first), Some(&last)) = (group.first(), group.last()) else { return };
    let span = (time(first).open(search.window), time(last));
    for &side in sides {
        let StarScratch { entries, reach, .. } = scratch;
        entries.clear();
        let all = context.graph.descending(centre, side, span, context.view(first));
        if context.graph.is_ordered() {
            entries.extend(all.take_while(|one| context.place(*one).is_some()));
        } else {
            entries.extend(all.filter(|one| context.place(*one).is_some()));
        }
        entries.reverse();
        reach.clear();
        reach.resize(search.bins.len(), 0);
        // Triggers `left..entered` have the edge at hand in their windows.
        let (mut left, mut entered) = (0, 0);
        for entry in entries.iter() {
            let is_reached = |&place: &u32| time(place).open(search.window) <= entry.time;
            while group.get(entered).is_some_and(is_reached) {
                if sizes[entered] >= 2 {
                    reach[search.column_of(sizes[entered] as usize) - search.column] += 1;
                }
                entered += 1;
            }
            while left < entered && time(group[left]) < entry.time {
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
