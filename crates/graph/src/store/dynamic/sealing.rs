//! Sealed edges, which segments hold too, and late edges, which no segment contains.

use super::{DynamicGraph, LateEdge, SealedBoundary};
use crate::edge::{EdgeEntry, EdgeRecord, Stamp};
use crate::memory::or_abort;

impl<T: Stamp> DynamicGraph<T> {
    /// Adds a late edge before all records; `front` is the latest time of an earlier edge.
    pub(crate) fn insert_late(&mut self, number: u64, record: EdgeRecord<T>, front: T) {
        let head = self.head;
        self.head = number;
        or_abort(self.insert(&[record], None));
        self.records.truncate(0);
        self.head = head;
        if let Some(late) = &mut self.late {
            late.insert(number, LateEdge { record, front });
        }
    }

    /// Makes `next` the sequence number of the next edge, unless there are records.
    pub(crate) fn skip(&mut self, next: u64) {
        if self.records.is_empty() {
            self.head = self.head.max(next);
            self.rebuilt_at = self.head;
        }
    }

    /// Hides the edges that arrived in order before sequence number `next`, because a segment holds
    /// them. The last one has time `last`. `drain` removes them.
    pub(crate) fn seal(&mut self, next: u64, last: T) {
        self.skip(next);
        self.newest = self.newest.max(last);
        self.sealed = SealedBoundary { last: Some(last), next };
    }

    /// Whether `drain` still has sealed edges to remove.
    pub(crate) fn is_draining(&self) -> bool {
        self.head < self.sealed.next
    }

    /// Removes up to `most` sealed edges.
    pub(crate) fn drain(&mut self, most: usize) {
        if !self.is_draining() {
            return;
        }
        let end = self.sealed.next.min(self.head.saturating_add(most as u64));
        let numbers = (self.head..end).filter(|one| !self.is_late(*one));
        let removals = numbers.filter_map(|number| self.removal(number)).collect::<Vec<_>>();
        self.remove_all(&removals, None);
        // Late edges remain, outside the records.
        while self.head < end && self.records.pop() {
            self.head += 1;
        }
    }

    fn is_late(&self, number: u64) -> bool {
        self.late.as_ref().is_some_and(|late| late.contains_key(&number))
    }

    /// The sequence number before which all edges that arrived in order are in segments.
    pub(crate) fn sealed_end(&self) -> u64 {
        self.sealed.next
    }

    /// Whether a segment holds an edge.
    pub(crate) fn is_sealed(&self, number: u64) -> bool {
        number < self.sealed.next && !self.is_late(number)
    }

    /// Whether a segment provides an edge instead of this store.
    pub(super) fn is_hidden(&self, entry: EdgeEntry<T>) -> bool {
        self.is_draining() && self.is_sealed(self.number(entry.seq))
    }

    /// The `late_edges`, as they will be once the sealed edges are drained.
    pub(crate) fn unsealed(&self) -> impl Iterator<Item = (u64, EdgeRecord<T>, T)> {
        let end = self.sealed.next.max(self.head);
        let late = self.late.iter().flat_map(move |late| late.range(..end));
        late.map(|(&number, late)| (number, late.record, late.front))
    }

    /// The late edges before all records: sequence number, record, and the latest time of an
    /// earlier edge.
    pub(crate) fn late_edges(&self) -> impl Iterator<Item = (u64, EdgeRecord<T>, T)> {
        let late = self.late.iter().flat_map(|late| late.range(..self.head));
        late.map(|(&number, late)| (number, late.record, late.front))
    }

    /// The latest time of an edge before this late one.
    pub(crate) fn front(&self, number: u64) -> Option<T> {
        self.late.as_ref()?.get(&number).map(|late| late.front)
    }

    /// The records to be sealed next, up to the first one in order whose time `is_over`. None
    /// represents an edge that cannot be sealed.
    pub(crate) fn prefix(
        &self,
        is_over: impl Fn(T) -> bool,
    ) -> impl Iterator<Item = Option<EdgeRecord<T>>> {
        let all = (self.head..).zip(0..self.records.len());
        let all = all.map(|(number, at)| self.at(at).filter(|_| !self.is_late(number)));
        all.take_while(move |one| one.is_none_or(|record| !is_over(record.time)))
    }
}
