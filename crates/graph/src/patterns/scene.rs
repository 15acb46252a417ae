//! What every pattern is given: the graph with the batch in it, and the batch.

use super::hubs::Hubs;
use crate::graph::{Adjacency, Entry, Floor, Lens, Side, Spread, Stamp};
use hashbrown::HashMap;

/// An edge of the batch, seen as the one that may complete a pattern.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trigger<T> {
    pub source: u32,
    pub target: u32,
    pub time: T,
    /// What was evicted before it came (causal mode).
    pub floor: Floor<T>,
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

/// Places of the batch, those of one account together, in order of arrival within.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    places: Vec<u32>,
    starts: Vec<u32>,
    keyed: Vec<u64>,
}

impl Groups {
    /// Groups the batch by the accounts that have its edges on `side`.
    pub(crate) fn fill<T: Stamp>(&mut self, triggers: &[Trigger<T>], side: Side) {
        let Groups { places, starts, keyed } = self;
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

    pub(crate) fn len(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    pub(crate) fn get(&self, group: usize) -> &[u32] {
        match (self.starts.get(group), self.starts.get(group + 1)) {
            (Some(&from), Some(&to)) => &self.places[from as usize..to as usize],
            _ => &[],
        }
    }
}

/// The batch's own edges by their ends: batch mode credits them with what others complete.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    places: HashMap<(u32, u32), Vec<u32>, Spread>,
    sources: HashMap<u32, (), Spread>,
    targets: HashMap<u32, (), Spread>,
}

impl Pairs {
    pub(crate) fn fill<T: Stamp>(&mut self, triggers: &[Trigger<T>]) {
        self.places.clear();
        self.sources.clear();
        self.targets.clear();
        for (place, one) in (0u32..).zip(triggers) {
            self.places.entry((one.source, one.target)).or_default().push(place);
            self.sources.insert(one.source, ());
            self.targets.insert(one.target, ());
        }
    }

    /// Places of the batch's edges from `source` to `target`.
    pub(crate) fn get(&self, source: u32, target: u32) -> &[u32] {
        // Most accounts have no edge in the batch, and their maps are small.
        if !self.sources.contains_key(&source) || !self.targets.contains_key(&target) {
            return &[];
        }
        self.places.get(&(source, target)).map_or(&[], Vec::as_slice)
    }
}

#[derive(Debug)]
pub(crate) struct Scene<'a, T, G> {
    pub graph: &'a G,
    /// The batch, in its order of arrival.
    pub triggers: &'a [Trigger<T>],
    /// Number of arrival of the first of them, modulo 2^32.
    pub first: u32,
    pub is_causal: bool,
    /// Filled in batch mode only.
    pub pairs: &'a Pairs,
    /// Filled in causal mode only.
    pub hubs: &'a Hubs<T>,
}

impl<T: Stamp, G: Adjacency<T>> Scene<'_, T, G> {
    /// What the trigger at `place` sees.
    pub(crate) fn lens(&self, place: u32) -> Lens<T> {
        if self.is_causal {
            let floor = self.triggers.get(place as usize).map(|one| one.floor).unwrap_or_default();
            Lens::until(self.first, place, floor)
        } else {
            Lens::whole(self.first)
        }
    }

    /// How many edges a search looks at, at most. A budget is spent on what the trigger sees, not
    /// on what else its call brought: then it is counted, but no further than it reaches.
    pub(crate) fn cost(
        &self,
        search: Search<'_>,
        account: u32,
        side: Side,
        window: (T, T),
        lens: Lens<T>,
    ) -> u64 {
        if !self.is_causal || search.work_max == u64::MAX || self.graph.is_ordered() {
            return self.graph.at_most(account, side, window, lens) as u64;
        }
        let most = usize::try_from(search.work_max).unwrap_or(usize::MAX).saturating_add(1);
        self.graph.ascending(account, side, window, lens).take(most).count() as u64
    }

    pub(crate) fn place(&self, entry: Entry<T>) -> Option<usize> {
        Lens::<T>::whole(self.first).place(entry.seq)
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
pub(crate) struct Search<'a> {
    pub window: u64,
    /// Upper ends of the bins, increasing.
    pub bins: &'a [u64],
    /// Column of the first bin.
    pub column: usize,
    /// Steps that one trigger may take.
    pub work_max: u64,
}

impl Search<'_> {
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
