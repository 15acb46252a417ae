//! Edges that segments have, and those that came too late for one.

use super::{DynamicGraph, LateEdge, SealedBoundary};
use crate::edge::{Entry, Record, Stamp};
use crate::memory::or_abort;

impl<T: Stamp> DynamicGraph<T> {
    /// Adds an edge that came late before all that the records will hold, with the latest time
    /// that had come before it.
    pub(crate) fn insert_late(&mut self, number: u64, record: Record<T>, front: T) {
        let head = self.head;
        self.head = number;
        or_abort(self.insert(&[record], None));
        self.records.truncate(0);
        self.head = head;
        if let Some(late) = &mut self.late {
            late.insert(number, LateEdge { record, front });
        }
    }

    /// Has the next edge be number `next`, where there is none yet.
    pub(crate) fn skip(&mut self, next: u64) {
        if self.records.is_empty() {
            self.head = self.head.max(next);
            self.rebuilt_at = self.head;
        }
    }

    /// Stops to show what came in order of time before number `next`: a segment has it, whose last
    /// edge is of time `last`. `drain` takes it out.
    pub(crate) fn seal(&mut self, next: u64, last: T) {
        self.skip(next);
        self.newest = self.newest.max(last);
        self.sealed = SealedBoundary { last: Some(last), next };
    }

    /// Whether something is left to `drain`.
    pub(crate) fn is_draining(&self) -> bool {
        self.head < self.sealed.next
    }

    /// Takes out what has been sealed, so many edges at most.
    pub(crate) fn drain(&mut self, most: usize) {
        if !self.is_draining() {
            return;
        }
        let end = self.sealed.next.min(self.head.saturating_add(most as u64));
        let numbers = (self.head..end).filter(|one| !self.is_late(*one));
        let gone = numbers.filter_map(|number| self.gone(number)).collect::<Vec<_>>();
        self.remove_all(&gone, None);
        // What came late stays, apart from the records.
        while self.head < end && self.records.pop() {
            self.head += 1;
        }
    }

    fn is_late(&self, number: u64) -> bool {
        self.late.as_ref().is_some_and(|late| late.contains_key(&number))
    }

    /// What came in order before this number of arrival is in segments.
    pub(crate) fn sealed_end(&self) -> u64 {
        self.sealed.next
    }

    /// Whether a segment has this edge.
    pub(crate) fn is_sealed(&self, number: u64) -> bool {
        number < self.sealed.next && !self.is_late(number)
    }

    /// Whether a segment shows this edge.
    pub(super) fn is_hidden(&self, entry: Entry<T>) -> bool {
        self.is_draining() && self.is_sealed(self.number(entry.seq))
    }

    /// As `late_edges`, with those that will be once what is sealed has been taken out.
    pub(crate) fn unsealed(&self) -> impl Iterator<Item = (u64, Record<T>, T)> {
        let end = self.sealed.next.max(self.head);
        let late = self.late.iter().flat_map(move |late| late.range(..end));
        late.map(|(&number, late)| (number, late.record, late.front))
    }

    /// Edges that came late, older than all `records`: number of arrival, what it is, and the
    /// latest time that had come before it.
    pub(crate) fn late_edges(&self) -> impl Iterator<Item = (u64, Record<T>, T)> {
        let late = self.late.iter().flat_map(|late| late.range(..self.head));
        late.map(|(&number, late)| (number, late.record, late.front))
    }

    /// The latest time that had come before an edge that came late.
    pub(crate) fn front(&self, number: u64) -> Option<T> {
        self.late.as_ref()?.get(&number).map(|late| late.front)
    }

    /// The next edges to be sealed, from the oldest on, up to the first in order of time for which
    /// `is_over`; None in the place of those that cannot be.
    pub(crate) fn prefix(
        &self,
        is_over: impl Fn(T) -> bool,
    ) -> impl Iterator<Item = Option<Record<T>>> {
        let all = (self.head..).zip(0..self.records.len());
        let all = all.map(|(number, at)| self.at(at).filter(|_| !self.is_late(number)));
        all.take_while(move |one| one.is_none_or(|record| !is_over(record.time)))
    }
}
