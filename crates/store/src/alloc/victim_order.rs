//! Orders of eviction, which a home keeps from call to call.
//!
//! A scan of all objects takes time in their number, and the daemon answers no client meanwhile. So the
//! home keeps the first part of each order. When half of it is used up, every further choice scans
//! some of the objects, until the next order is complete. An order has the objects that were used
//! before its scan began: no object that is missing comes before one of them, except for those that
//! could not be evicted at the time of the scan.

use std::collections::{BTreeMap, VecDeque};

use crate::format::ids::{ObjectId, Slot};

/// Part of the candidates whose order is retained.
pub(crate) const RETAINED_PART: usize = 8;

/// Candidates whose order is retained at least.
const RETAINED_MIN: usize = 1024;

/// The place of a candidate in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VictimPlace {
    pub(crate) rank: u64,
    pub(crate) id: ObjectId,
}

/// The objects that a choice is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum VictimScope {
    /// All objects.
    All,
    /// Objects with a directory entry: the others free no slot and no name.
    Directory,
}

/// The retained orders, by [`EvictionPolicy::order`] and scope.
#[derive(Debug, Default)]
pub(crate) struct VictimOrders(BTreeMap<(&'static str, VictimScope), VictimOrder>);

/// The first candidates of a policy, those that go first.
#[derive(Debug)]
pub(crate) struct VictimOrder {
    pub(crate) scope: VictimScope,
    first: VecDeque<VictimPlace>,
    /// All others, in no order.
    later: Vec<VictimPlace>,
    /// The length of `first` after the scan.
    scanned: usize,
    /// The scan for the order that follows.
    pub(crate) next: Option<VictimScan>,
}

/// An incomplete scan for an order.
#[derive(Debug)]
pub(crate) struct VictimScan {
    pub(crate) scope: VictimScope,
    pub(crate) began_ns: u64,
    /// The next slot of the directory, then of client entries.
    pub(crate) at: Slot,
    pub(crate) places: Vec<VictimPlace>,
    /// Candidates that share a block.
    pub(crate) sharing: Vec<VictimPlace>,
}

impl VictimOrders {
    pub(crate) fn take(&mut self, name: &'static str, scope: VictimScope) -> Option<VictimOrder> {
        self.0.remove(&(name, scope))
    }

    pub(crate) fn keep(&mut self, name: &'static str, order: VictimOrder) {
        self.0.insert((name, order.scope), order);
    }
}

impl VictimOrder {
    pub(crate) fn new(scope: VictimScope, mut places: Vec<VictimPlace>) -> Self {
        let scanned = (places.len() / RETAINED_PART).max(RETAINED_MIN).min(places.len());
        if scanned < places.len() {
            places.select_nth_unstable(scanned);
        }
        let later = places.split_off(scanned);
        places.sort_unstable();
        Self { scope, first: places.into(), later, scanned, next: None }
    }

    /// Takes out the next candidate.
    pub(crate) fn next(&mut self) -> Option<VictimPlace> {
        if self.first.is_empty() && !self.later.is_empty() {
            self.later.sort_unstable();
            self.first = std::mem::take(&mut self.later).into();
        }
        self.first.pop_front()
    }

    /// Puts the candidates back that were taken out last, in their order.
    pub(crate) fn put_back(&mut self, places: impl DoubleEndedIterator<Item = VictimPlace>) {
        places.rev().for_each(|place| self.first.push_front(place));
    }

    /// Whether half of it is used up, so that the next order should follow.
    pub(crate) fn is_half_used(&self) -> bool {
        self.scanned >= RETAINED_MIN && self.first.len() <= self.scanned / 2
    }

    /// Drops the rest.
    pub(crate) fn shorten(&mut self) {
        self.later = Vec::new();
        self.first.truncate(self.scanned);
        self.first.shrink_to_fit();
    }
}

impl VictimScan {
    pub(crate) fn new(scope: VictimScope, began_ns: u64) -> Self {
        Self { scope, began_ns, at: Slot(0), places: Vec::new(), sharing: Vec::new() }
    }
}
