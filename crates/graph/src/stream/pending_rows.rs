//! Offline mode: rows that are in the graph before their features are computed.

use crate::edge::{EvictionFloor, Stamp};
use crate::memory::AllocationFailed;
use crate::patterns::Trigger;
use std::collections::VecDeque;

/// Rows without features. Each has the eviction floor from the time of its arrival.
#[derive(Debug)]
pub(crate) struct PendingRows<T> {
    /// The sequence number from which the floors count positions.
    origin: u64,
    /// The sequence number of the first row without features.
    next: u64,
    triggers: VecDeque<Trigger<T>>,
}

/// A trigger whose floor counts positions from an edge that arrived `distance` edges earlier.
fn rebased<T: Stamp>(trigger: Trigger<T>, distance: i64) -> Trigger<T> {
    let shift = |place: i32| {
        let place = i64::from(place).saturating_add(distance);
        place.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
    };
    let floor = EvictionFloor { place: trigger.floor.place.map(shift), ..trigger.floor };
    Trigger { floor, ..trigger }
}

impl<T: Stamp> PendingRows<T> {
    pub(crate) fn new(next: u64) -> PendingRows<T> {
        PendingRows { origin: next, next, triggers: VecDeque::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.triggers.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.triggers.is_empty()
    }

    /// The sequence number of the first row without features.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn reserve(&mut self, more: usize) -> Result<(), AllocationFailed> {
        let bytes = (self.len() + more) * size_of::<Trigger<T>>();
        self.triggers.try_reserve(more).map_err(|_| AllocationFailed { bytes })
    }

    /// Adds triggers of a batch whose first edge has sequence number `first`.
    pub(super) fn extend(&mut self, triggers: &[Trigger<T>], first: u64) {
        let distance = (first - self.origin).cast_signed();
        self.triggers.extend(triggers.iter().map(|&one| rebased(one, distance)));
    }

    /// Removes the next rows, and returns them as triggers of a separate batch.
    pub(crate) fn take(&mut self, rows: usize) -> impl Iterator<Item = Trigger<T>> {
        let distance = (self.next - self.origin).cast_signed();
        self.next += rows as u64;
        self.triggers.drain(..rows).map(move |one| rebased(one, -distance))
    }

    /// Puts back the rows that `take` removed last.
    pub(crate) fn put_back(&mut self, triggers: &[Trigger<T>]) {
        let distance = (self.next - self.origin).cast_signed() - triggers.len() as i64;
        self.next -= triggers.len() as u64;
        for &one in triggers.iter().rev() {
            self.triggers.push_front(rebased(one, distance));
        }
    }

    /// Changes the small numbers of accounts.
    pub(crate) fn rename(&mut self, renamed: impl Fn(u32) -> u32) {
        for trigger in &mut self.triggers {
            trigger.source = renamed(trigger.source);
            trigger.target = renamed(trigger.target);
        }
    }

    pub(crate) fn restamp<S: Stamp>(self, change: impl Fn(T) -> S) -> PendingRows<S> {
        let triggers = self.triggers.into_iter().map(|Trigger { source, target, time, floor }| {
            let floor = EvictionFloor { time: change(floor.time), place: floor.place };
            Trigger { source, target, time: change(time), floor }
        });
        PendingRows { origin: self.origin, next: self.next, triggers: triggers.collect() }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.triggers.capacity() * size_of::<Trigger<T>>()
    }
}
