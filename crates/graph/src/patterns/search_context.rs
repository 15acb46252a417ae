//! The inputs of every search: the batch, and the graph that contains it.

use super::hubs::Hubs;
use super::trigger::Trigger;
use super::trigger_groups::TriggerPairs;
use crate::edge::{Adjacency, Stamp, Visibility};
use crate::edge::{EdgeEntry, Side};
use crate::interrupt::{CallInterrupt, is_set};

/// Steps of a search between two looks at the interrupt: less than a millisecond.
const STEPS_BETWEEN_LOOKS: u64 = if cfg!(debug_assertions) { 4 } else { 1 << 14 };

#[derive(Debug)]
pub(crate) struct SearchContext<'a, T, G> {
    pub graph: &'a G,
    /// The batch, in order of arrival.
    pub triggers: &'a [Trigger<T>],
    /// The sequence number of the first trigger, modulo 2^32.
    pub first: u32,
    pub is_causal: bool,
    /// Filled in batch mode only.
    pub pairs: &'a TriggerPairs,
    /// Used in causal mode only.
    pub hubs: &'a Hubs<T>,
    pub interrupt: Option<&'a dyn CallInterrupt>,
}

impl<T, G> SearchContext<'_, T, G> {
    /// Whether the call must end. Searches end then as at a budget, and their results do not count.
    #[inline]
    pub(crate) fn is_interrupted(&self) -> bool {
        is_set(self.interrupt)
    }

    /// Whether a search must end after this many steps. It looks at few of them.
    #[inline]
    pub(crate) fn is_interrupted_at(&self, steps: u64) -> bool {
        steps.is_multiple_of(STEPS_BETWEEN_LOOKS) && self.is_interrupted()
    }
}

impl<T: Stamp, G: Adjacency<T>> SearchContext<'_, T, G> {
    /// The part of the graph that the trigger at `place` sees.
    pub(crate) fn view(&self, place: u32) -> Visibility<T> {
        if self.is_causal {
            let trigger = self.triggers.get(place as usize);
            let (time, floor) = trigger.map(|one| (one.time, one.floor)).unwrap_or_default();
            Visibility::until(self.first, place, time, floor)
        } else {
            Visibility::all(self.first)
        }
    }

    /// Whether costs are counted edge by edge.
    pub(crate) fn is_budget_counted(&self, search: SearchSettings<'_>) -> bool {
        self.is_causal && search.work_max < u64::MAX && !self.graph.is_ordered()
    }

    /// The largest number of edges that a search visits. It counts the edges that the trigger sees,
    /// not the rest of its call. Counting stops when it exceeds the budget.
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

    /// Prefetches the lists that searches from these triggers read first, so that cache misses
    /// overlap. `ends` pairs an end of the trigger with a side of that account.
    pub(crate) fn touch(
        &self,
        places: impl Iterator<Item = u32> + Clone,
        window: u64,
        ends: &[(Side, Side)],
    ) {
        if self.triggers.len() == 1 {
            // With a single trigger, no cache misses overlap.
            return;
        }
        let triggers = places.filter_map(|place| self.triggers.get(place as usize));
        let Some(oldest) = triggers.clone().map(|one| one.time).min() else { return };
        for &(end, side) in ends {
            let accounts = triggers.clone().map(|one| one.end(end));
            self.graph.touch(side, accounts, oldest.closed(window).onward());
        }
    }

    /// The triggers that may close a cycle: their source has been paid, and their target has paid.
    /// Prefetches the lists that searches from them read first.
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

    pub(crate) fn place(&self, entry: EdgeEntry<T>) -> Option<usize> {
        Visibility::<T>::all(self.first).place(entry.seq)
    }
}

/// Whether `account` is before `than` among edges of one instant (specification, D7). Batch mode
/// compares first appearances. Causal mode forgets accounts, so it compares the callers' numbers.
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

/// A pattern's settings for its search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchSettings<'a> {
    pub window: u64,
    /// The increasing upper bounds of the bins.
    pub bins: &'a [u64],
    /// The column of the first bin.
    pub column: usize,
    /// The number of edges that one trigger's search may visit.
    pub work_max: u64,
}

/// The inputs of the searches for one pattern.
#[derive(Debug)]
pub(crate) struct PatternSearch<'a, T, G> {
    pub context: &'a SearchContext<'a, T, G>,
    pub settings: SearchSettings<'a>,
}

impl SearchSettings<'_> {
    /// The column of a size: that of the first bin that is not smaller, else of the last.
    pub(crate) fn column_of(&self, size: usize) -> usize {
        let bin = match self.bins.get(size.saturating_sub(2)) {
            // Bins of consecutive numbers from 2 on need no search.
            Some(&bin) if bin == size as u64 => size - 2,
            _ => self.bins.partition_point(|&bin| bin < size as u64),
        };
        self.column + bin.min(self.bins.len() - 1)
    }
}
