//! Edges in order of arrival.

use crate::accounts::Renumbering;
use crate::edge::{NO_ACCOUNT, Record, Stamp};
use crate::memory::{OutOfMemory, fit, make_room};
use std::collections::VecDeque;

/// Said of an edge that is a self-loop.
const LOOP: u32 = 1 << 31;

/// Whose list has an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordOwner {
    pub source: u32,
    pub is_loop: bool,
}

/// All edges since the oldest that is alive, four bytes each: target and time are found in the list
/// of the source. Only where all of a day's edges are copied at once are they kept here too.
#[derive(Debug, Default)]
pub(crate) struct EdgeRecords<T> {
    owners: VecDeque<u32>,
    rest: Option<(VecDeque<u32>, VecDeque<T>)>,
}

impl<T: Stamp> EdgeRecords<T> {
    pub(crate) fn new(is_whole: bool) -> EdgeRecords<T> {
        EdgeRecords { owners: VecDeque::new(), rest: is_whole.then(Default::default) }
    }

    /// Sees to it that so many `push`es need no memory.
    pub(crate) fn make_room(&mut self, more: usize) -> Result<(), OutOfMemory> {
        make_room(&mut self.owners, more)?;
        if let Some((targets, times)) = &mut self.rest {
            make_room(targets, more)?;
            make_room(times, more)?;
        }
        Ok(())
    }

    pub(crate) fn push(&mut self, Record { source, target, time }: Record<T>) {
        debug_assert!(source < LOOP, "EDGES_MAX, and segments, limit the number of accounts");
        self.owners.push_back(if source == target { source | LOOP } else { source });
        if let Some((targets, times)) = &mut self.rest {
            targets.push_back(target);
            times.push_back(time);
        }
    }

    /// The same edges, of accounts with other numbers, where nothing else is kept of them.
    pub(crate) fn rebuilt(&self, numbering: &Renumbering) -> Result<EdgeRecords<T>, OutOfMemory> {
        let mut records = EdgeRecords::new(false);
        records.make_room(self.len())?;
        records.owners.extend(self.owners.iter().map(|&word| match word {
            NO_ACCOUNT => NO_ACCOUNT,
            _ => numbering.of(word & !LOOP) | (word & LOOP),
        }));
        Ok(records)
    }

    /// Whose list has the edge; None: it is gone, or was never there.
    pub(crate) fn owner(&self, place: usize) -> Option<RecordOwner> {
        let word = self.owners.get(place).copied().filter(|word| *word != NO_ACCOUNT)?;
        Some(RecordOwner { source: word & !LOOP, is_loop: word & LOOP != 0 })
    }

    /// The whole edge, where it is kept.
    pub(crate) fn whole(&self, place: usize) -> Option<Record<T>> {
        let (targets, times) = self.rest.as_ref()?;
        let RecordOwner { source, .. } = self.owner(place)?;
        Some(Record { source, target: *targets.get(place)?, time: *times.get(place)? })
    }

    /// Whether nothing has to be looked up elsewhere.
    pub(crate) fn are_whole(&self) -> bool {
        self.rest.is_some()
    }

    /// Says that an edge is gone.
    pub(crate) fn mark_removed(&mut self, place: usize) {
        if let Some(word) = self.owners.get_mut(place) {
            *word = NO_ACCOUNT;
        }
    }

    /// Says that the source of an edge that is there has another small number now.
    pub(crate) fn rename(&mut self, place: usize, source: u32) {
        if let Some(word) = self.owners.get_mut(place).filter(|word| **word != NO_ACCOUNT) {
            *word = source | (*word & LOOP);
        }
    }

    /// Gives memory back, where much is free.
    pub(crate) fn shrink(&mut self) {
        fit(&mut self.owners);
        if let Some((targets, times)) = &mut self.rest {
            fit(targets);
            fit(times);
        }
    }

    /// Forgets the oldest; false if there is none.
    pub(crate) fn pop(&mut self) -> bool {
        if let Some((targets, times)) = &mut self.rest {
            targets.pop_front();
            times.pop_front();
        }
        self.owners.pop_front().is_some()
    }

    /// Forgets those at the old end that are gone; how many.
    pub(crate) fn pop_removed(&mut self) -> u64 {
        let mut count = 0;
        while self.owners.front() == Some(&NO_ACCOUNT) {
            self.pop();
            count += 1;
        }
        count
    }

    /// Keeps the oldest.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.owners.truncate(count);
        if let Some((targets, times)) = &mut self.rest {
            targets.truncate(count);
            times.truncate(count);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.owners.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    pub(crate) fn restamp<S: Stamp>(self, change: &impl Fn(T) -> S) -> EdgeRecords<S> {
        let rest = self.rest.map(|(targets, times)| {
            let times: VecDeque<S> = times.into_iter().map(change).collect();
            (targets, times)
        });
        EdgeRecords { owners: self.owners, rest }
    }

    pub(crate) fn bytes(&self) -> usize {
        let rest = self.rest.as_ref().map_or(0, |(targets, times)| {
            targets.capacity() * size_of::<u32>() + times.capacity() * size_of::<T>()
        });
        self.owners.capacity() * size_of::<u32>() + rest
    }
}
