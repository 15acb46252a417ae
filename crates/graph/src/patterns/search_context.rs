//! What every pattern is given: the graph with the batch in it, and the batch.

use super::hubs::Hubs;
use crate::accounts::AccountHash;
use crate::edge::{Adjacency, EvictionFloor, Stamp, Visibility};
use crate::edge::{Entry, Side};
use hashbrown::HashMap;
use std::ops::Range;

/// An edge of the batch, seen as the one that may complete a pattern.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trigger<T> {
    pub source: u32,
    pub target: u32,
    pub time: T,
    /// What was evicted before it came (causal mode).
    pub floor: EvictionFloor<T>,
}

impl<T: Stamp> Trigger<T> {
    pub(crate) fn is_loop(&self) -> bool {
        self.source == self.target
    }

    /// The account that has this edge on that side.
    pub(crate) fn end(&self, side: Side) -> u32 {
        match side {
            Side::Out => self.source,
            Side::In => self.target,
        }
    }
}

/// Triggers, or accounts, that a worker takes at once.
pub(crate) const CHUNK: usize = 32;
/// Triggers of one account that a worker takes at once, where they can be divided.
const PART: usize = if cfg!(debug_assertions) { 2 } else { 64 };

/// Places of the batch, those of one account together, in order of arrival within.
#[derive(Debug, Default)]
pub(crate) struct TriggerGroups {
    places: Vec<u32>,
    starts: Vec<u32>,
    keyed: Vec<u64>,
}

impl TriggerGroups {
    /// Groups the batch by the accounts that have its edges on `side`.
    pub(crate) fn fill<T: Stamp>(&mut self, triggers: &[Trigger<T>], side: Side) {
        let TriggerGroups { places, starts, keyed } = self;
        let keys = (0u64..).zip(triggers);
        keyed.clear();
        keyed.extend(keys.map(|(place, one)| u64::from(one.end(side)) << 32 | place));
        keyed.sort_unstable();
        places.clear();
        starts.clear();
        let mut last = None;
        for &key in keyed.iter() {
            if last != Some(key >> 32) {
                last = Some(key >> 32);
                starts.push(places.len() as u32);
            }
            places.push(key as u32);
        }
        starts.push(places.len() as u32);
    }

    pub(crate) fn bytes(&self) -> usize {
        (self.places.capacity() + self.starts.capacity()) * size_of::<u32>()
            + self.keyed.capacity() * size_of::<u64>()
    }

    /// What a worker takes at once, as ranges of `get`: whole groups, or where `is_divided` also
    /// parts of a long one, which follow each other.
    pub(crate) fn pieces(&self, is_divided: bool) -> Vec<Range<usize>> {
        let mut pieces = Vec::new();
        let (mut from, mut groups) = (0, 0);
        for pair in self.starts.windows(2) {
            let (start, end) = (pair[0] as usize, pair[1] as usize);
            if is_divided && end - start > PART {
                pieces.push(from..start);
                let parts = (start..end).step_by(PART);
                pieces.extend(parts.map(|part| part..(part + PART).min(end)));
                (from, groups) = (end, 0);
                continue;
            }
            groups += 1;
            if groups == CHUNK {
                pieces.push(from..end);
                (from, groups) = (end, 0);
            }
        }
        pieces.push(from..self.places.len());
        pieces.retain(|piece| !piece.is_empty());
        pieces
    }

    /// The places of a piece.
    pub(crate) fn places(&self, piece: Range<usize>) -> &[u32] {
        self.places.get(piece).unwrap_or_default()
    }

    /// The groups, or parts of them, of a piece.
    pub(crate) fn get(&self, piece: Range<usize>) -> impl Iterator<Item = &[u32]> + Clone {
        let next = self.starts.partition_point(|&start| start as usize <= piece.start);
        let mut ends = self.starts.get(next..).unwrap_or_default().iter();
        let mut rest = piece;
        std::iter::from_fn(move || {
            let start = rest.start;
            rest.start = (*ends.next()? as usize).min(rest.end);
            self.places.get(start..rest.start).filter(|group| !group.is_empty())
        })
    }
}

/// Bits of the filter in front of the pairs: a full batch sets few of them.
const FILTER_BITS: u32 = 16;

/// End of a list of places.
const NONE: u32 = u32::MAX;

/// The batch's own edges by their ends: batch mode credits them with what others complete.
#[derive(Debug, Default)]
pub(crate) struct TriggerPairs {
    /// The last place of each pair.
    last: HashMap<(u32, u32), u32, AccountHash>,
    /// The place before, of the same pair.
    before: Vec<u32>,
    /// Most pairs that are asked for have no edge in the batch.
    filter: Vec<u64>,
}

/// A bit of the filter: its word and the bit.
fn bit(source: u32, target: u32) -> (usize, u64) {
    let mixed = source.wrapping_mul(0x9e37_79b9) ^ target.wrapping_mul(0x85eb_ca6b).rotate_left(16);
    let at = mixed.wrapping_mul(0xc2b2_ae35) >> (u32::BITS - FILTER_BITS);
    ((at / u64::BITS) as usize, 1 << (at % u64::BITS))
}

impl TriggerPairs {
    pub(crate) fn fill<T: Stamp>(&mut self, triggers: &[Trigger<T>]) {
        self.last.clear();
        self.before.clear();
        self.filter.clear();
        self.filter.resize(1 << (FILTER_BITS - u64::BITS.ilog2()), 0);
        for (place, one) in (0u32..).zip(triggers) {
            let (word, bit) = bit(one.source, one.target);
            self.filter[word] |= bit;
            let before = self.last.insert((one.source, one.target), place);
            self.before.push(before.unwrap_or(NONE));
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.last.allocation_size()
            + self.before.capacity() * size_of::<u32>()
            + self.filter.capacity() * size_of::<u64>()
    }

    /// Places of the batch's edges from `source` to `target`.
    pub(crate) fn get(&self, source: u32, target: u32) -> impl Iterator<Item = u32> {
        let (word, bit) = bit(source, target);
        let may_be = self.filter.get(word).is_some_and(|bits| bits & bit != 0);
        let last = if may_be { self.last.get(&(source, target)).copied() } else { None };
        std::iter::successors(last, |&place| {
            self.before.get(place as usize).copied().filter(|&before| before != NONE)
        })
    }
}

#[derive(Debug)]
pub(crate) struct SearchContext<'a, T, G> {
    pub graph: &'a G,
    /// The batch, in its order of arrival.
    pub triggers: &'a [Trigger<T>],
    /// Number of arrival of the first of them, modulo 2^32.
    pub first: u32,
    pub is_causal: bool,
    /// Filled in batch mode only.
    pub pairs: &'a TriggerPairs,
    /// Legs are kept in causal mode only.
    pub hubs: &'a Hubs<T>,
}

impl<T: Stamp, G: Adjacency<T>> SearchContext<'_, T, G> {
    /// What the trigger at `place` sees.
    pub(crate) fn view(&self, place: u32) -> Visibility<T> {
        if self.is_causal {
            let trigger = self.triggers.get(place as usize);
            let (time, floor) = trigger.map(|one| (one.time, one.floor)).unwrap_or_default();
            Visibility::until(self.first, place, time, floor)
        } else {
            Visibility::all(self.first)
        }
    }

    /// Whether what a search looks at is counted edge by edge.
    pub(crate) fn is_budget_counted(&self, search: SearchSettings<'_>) -> bool {
        self.is_causal && search.work_max < u64::MAX && !self.graph.is_ordered()
    }

    /// How many edges a search looks at, at most. A budget is spent on what the trigger sees, not
    /// on what else its call brought: then it is counted, but no further than it reaches.
    pub(crate) fn cost(
        &self,
        search: SearchSettings<'_>,
        account: u32,
        side: Side,
        window: (T, T),
        view: Visibility<T>,
    ) -> u64 {
        if !self.is_budget_counted(search) {
            return self.graph.at_most(account, side, window, view) as u64;
        }
        let most = usize::try_from(search.work_max).unwrap_or(usize::MAX).saturating_add(1);
        self.graph.ascending(account, side, window, view).take(most).count() as u64
    }

    /// Reads where searches from these triggers begin, so that the waits for memory overlap. `ends`
    /// says which end of a trigger, and which of that account's lists.
    pub(crate) fn touch(
        &self,
        places: impl Iterator<Item = u32> + Clone,
        window: u64,
        ends: &[(Side, Side)],
    ) {
        if self.triggers.len() == 1 {
            // There is nothing to overlap.
            return;
        }
        let triggers = places.filter_map(|place| self.triggers.get(place as usize));
        let Some(oldest) = triggers.clone().map(|one| one.time).min() else { return };
        for &(end, side) in ends {
            let accounts = triggers.clone().map(|one| one.end(end));
            self.graph.touch(side, accounts, oldest.closed(window).onward());
        }
    }

    /// Which of these triggers may close a cycle: somebody has paid its source, and its target has
    /// paid somebody. Reads where searches from them begin.
    pub(crate) fn closing(&self, places: &[u32], window: u64, found: &mut Vec<u32>) {
        found.clear();
        let triggers =
            places.iter().filter_map(|&place| Some((place, self.triggers.get(place as usize)?)));
        if self.triggers.len() > 1 {
            self.graph.touch_any(Side::In, triggers.clone().map(|(_, one)| one.source));
            self.graph.touch_any(Side::Out, triggers.clone().map(|(_, one)| one.target));
        }
        let is_closing = |one: &Trigger<T>| {
            self.graph.has_any(one.source, Side::In) & self.graph.has_any(one.target, Side::Out)
        };
        found.extend(triggers.filter(|(_, one)| is_closing(one)).map(|(place, _)| place));
        let ends = [(Side::Out, Side::In), (Side::In, Side::Out)];
        self.touch(found.iter().copied(), window, &ends);
    }

    pub(crate) fn place(&self, entry: Entry<T>) -> Option<usize> {
        Visibility::<T>::all(self.first).place(entry.seq)
    }
}

/// Whether `account` stands before `than` where edges of one instant have to be put in order
/// (specification, D7): by first appearance, or by number in causal mode, which forgets accounts.
pub(crate) fn is_before<T: Stamp, G: Adjacency<T>>(
    graph: &G,
    is_causal: bool,
    account: u32,
    than: u32,
) -> bool {
    if is_causal {
        graph.key(account) < graph.key(than)
    } else {
        graph.order(account) < graph.order(than)
    }
}

/// A pattern's settings as the search uses them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchSettings<'a> {
    pub window: u64,
    /// Upper ends of the bins, increasing.
    pub bins: &'a [u64],
    /// Column of the first bin.
    pub column: usize,
    /// Steps that one trigger may take.
    pub work_max: u64,
}

impl SearchSettings<'_> {
    /// The column of a size: the first bin that is not smaller, else the last.
    pub(crate) fn column_of(&self, size: usize) -> usize {
        let bin = match self.bins.get(size.saturating_sub(2)) {
            // Bins of consecutive numbers from 2 on need no search.
            Some(&bin) if bin == size as u64 => size - 2,
            _ => self.bins.partition_point(|&bin| bin < size as u64),
        };
        self.column + bin.min(self.bins.len() - 1)
    }
}
