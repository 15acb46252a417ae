//! Records: edges in order of arrival.

use crate::accounts::Renumbering;
use crate::edge::{EdgeRecord, NO_ACCOUNT, Stamp};
use crate::memory::{AllocationFailed, fit, make_room};
use std::collections::VecDeque;

/// Marks the record of a self-loop.
const LOOP: u32 = 1 << 31;

/// The list that has an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordOwner {
    pub source: u32,
    pub is_loop: bool,
}

/// All edges from the oldest live one on, four bytes each. The list of the source contains target
/// and time. Graphs with segments copy whole spans at once, so their records also have both.
#[derive(Debug, Default)]
pub(crate) struct EdgeRecords<T> {
    owners: VecDeque<u32>,
    rest: Option<(VecDeque<u32>, VecDeque<T>)>,
}

impl<T: Stamp> EdgeRecords<T> {
    pub(crate) fn new(is_whole: bool) -> EdgeRecords<T> {
        EdgeRecords { owners: VecDeque::new(), rest: is_whole.then(Default::default) }
    }

    /// Ensures that the next `more` calls of `push` allocate nothing.
    pub(crate) fn make_room(&mut self, more: usize) -> Result<(), AllocationFailed> {
        make_room(&mut self.owners, more)?;
        if let Some((targets, times)) = &mut self.rest {
            make_room(targets, more)?;
            make_room(times, more)?;
        }
        Ok(())
    }

    pub(crate) fn push(&mut self, EdgeRecord { source, target, time }: EdgeRecord<T>) {
        debug_assert!(source < LOOP, "EDGES_MAX, and segments, limit the number of accounts");
        self.owners.push_back(if source == target { source | LOOP } else { source });
        if let Some((targets, times)) = &mut self.rest {
            targets.push_back(target);
            times.push_back(time);
        }
    }

    /// The same records with new small numbers, if they hold the source alone.
    pub(crate) fn rebuilt(
        &self,
        numbering: &Renumbering,
    ) -> Result<EdgeRecords<T>, AllocationFailed> {
        let mut records = EdgeRecords::new(false);
        records.make_room(self.len())?;
        records.owners.extend(self.owners.iter().map(|&word| match word {
            NO_ACCOUNT => NO_ACCOUNT,
            _ => numbering.of(word & !LOOP) | (word & LOOP),
        }));
        Ok(records)
    }

    /// The list that has an edge; None if the edge was removed or never existed.
    pub(crate) fn owner(&self, place: usize) -> Option<RecordOwner> {
        let word = self.owners.get(place).copied().filter(|word| *word != NO_ACCOUNT)?;
        Some(RecordOwner { source: word & !LOOP, is_loop: word & LOOP != 0 })
    }

    /// The whole edge, if records hold it.
    pub(crate) fn whole(&self, place: usize) -> Option<EdgeRecord<T>> {
        let (targets, times) = self.rest.as_ref()?;
        let RecordOwner { source, .. } = self.owner(place)?;
        Some(EdgeRecord { source, target: *targets.get(place)?, time: *times.get(place)? })
    }

    /// Whether records hold whole edges.
    pub(crate) fn are_whole(&self) -> bool {
        self.rest.is_some()
    }

    /// Marks an edge as removed.
    pub(crate) fn mark_removed(&mut self, place: usize) {
        if let Some(word) = self.owners.get_mut(place) {
            *word = NO_ACCOUNT;
        }
    }

    /// Changes ends of an edge that is alive: its source, its target, or both.
    pub(crate) fn rename(&mut self, place: usize, account: u32, [source, target]: [bool; 2]) {
        let owner = self.owners.get_mut(place).filter(|word| source && **word != NO_ACCOUNT);
        if let Some(word) = owner {
            *word = account | (*word & LOOP);
        }
        if target
            && let Some((targets, _)) = &mut self.rest
            && let Some(word) = targets.get_mut(place)
        {
            *word = account;
        }
    }

    /// Frees memory if much of it is unused.
    pub(crate) fn shrink(&mut self) {
        fit(&mut self.owners);
        if let Some((targets, times)) = &mut self.rest {
            fit(targets);
            fit(times);
        }
    }

    /// Drops the oldest record; false if there is none.
    pub(crate) fn pop(&mut self) -> bool {
        if let Some((targets, times)) = &mut self.rest {
            targets.pop_front();
            times.pop_front();
        }
        self.owners.pop_front().is_some()
    }

    /// Drops removed records at the old end, and returns their number.
    pub(crate) fn pop_removed(&mut self) -> u64 {
        let mut count = 0;
        while self.owners.front() == Some(&NO_ACCOUNT) {
            self.pop();
            count += 1;
        }
        count
    }

    /// Retains only the oldest `count` records.
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
