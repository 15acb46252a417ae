//! A segment as part of a graph: its times as the graph's stamps, and its entries as the graph's.

use super::packing::Packing;
use crate::edge::EdgeEntry;
use crate::edge::{Stamp, Visibility};
use crate::segment::Segment;
use std::ops::Range;
use std::sync::Arc;

/// Entries in a cache line. In a row this short, all are compared.
const LINE: usize = 8;

/// A segment as part of one graph.
#[derive(Debug)]
pub(crate) struct AttachedSegment<T> {
    pub segment: Arc<Segment>,
    packing: Packing,
    has_table: bool,
    /// The sequence number of its first edge, modulo 2^32.
    seq: u32,
    /// The sequence number after its last edge, modulo 2^32.
    end_seq: u32,
    /// The distance from the graph's base to the segment's.
    pub base: u64,
    /// The time of its first edge.
    pub first: T,
    /// The time of its last edge.
    pub last: T,
    /// 1 divided by the segment's span.
    scale: f64,
}

impl<T: Stamp> AttachedSegment<T> {
    pub(crate) fn new(segment: Arc<Segment>, graph_base: i64) -> Option<AttachedSegment<T>> {
        let info = segment.info();
        let base = u64::try_from(i128::from(info.base) - i128::from(graph_base)).ok()?;
        let last = base.checked_add(info.span).filter(|&last| last <= T::OFFSET_MAX)?;
        let (seq, end_seq) = (info.first as u32, (info.first + info.numbers) as u32);
        let (first, last) = (T::from_offset(base), T::from_offset(last));
        let (packing, has_table) = (segment.packing(), segment.has_table());
        let scale = 1.0 / (info.span.max(1) as f64);
        Some(AttachedSegment {
            segment,
            packing,
            has_table,
            seq,
            end_seq,
            base,
            first,
            last,
            scale,
        })
    }

    /// The sequence number after its last edge.
    pub(crate) fn end(&self) -> u64 {
        let info = self.segment.info();
        info.first + info.numbers
    }

    /// The stamp of a time that counts from the segment's base.
    pub(crate) fn stamp(&self, time: u64) -> T {
        T::from_offset(self.base.saturating_add(time).min(T::OFFSET_MAX))
    }

    #[inline]
    pub(crate) fn entry(&self, packed: u64) -> EdgeEntry<T> {
        let seq = self.seq.wrapping_add(self.packing.position(packed) as u32);
        EdgeEntry {
            time: self.stamp(self.time_offset(packed)),
            other: self.packing.other(packed),
            seq,
        }
    }

    /// The time of an entry from the segment's base on.
    #[inline]
    fn time_offset(&self, packed: u64) -> u64 {
        if self.has_table { self.segment.time(packed) } else { self.packing.time(packed) }
    }

    /// A guess at the position in a row of the first entry from a time on. An account's edges are
    /// spread over the span more or less evenly.
    #[inline]
    pub(crate) fn guess(&self, from: u64, length: usize) -> usize {
        (length as f64 * from as f64 * self.scale) as usize
    }

    /// The number of entries in a row that are older than a time.
    #[inline]
    pub(crate) fn older(&self, row: &[u64], from: T) -> usize {
        let from = from.offset().saturating_sub(self.base);
        search(row, self.guess(from, row.len()), |packed| self.time_offset(packed) < from)
    }

    /// The number of entries in a row that are not newer than a time.
    #[inline]
    fn until(&self, row: &[u64], to: T) -> usize {
        let Some(to) = to.offset().checked_sub(self.base) else { return 0 };
        search(row, self.guess(to, row.len()), |packed| self.time_offset(packed) <= to)
    }

    /// The entries of a row in a window that have arrived in the view `until`.
    #[inline]
    pub(crate) fn inside(
        &self,
        row: &[u64],
        (from, to): (T, T),
        until: Option<Visibility<T>>,
    ) -> Range<usize> {
        let start = if self.first >= from { 0 } else { self.older(row, from) };
        let mut end = if self.last <= to { row.len() } else { self.until(row, to) };
        if let Some(view) = until
            && !view.has_arrived(self.end_seq.wrapping_sub(1))
        {
            // Entries of a row are in order of arrival.
            let has_arrived = |&packed: &u64| view.has_arrived(self.entry(packed).seq);
            end = end.min(row.partition_point(has_arrived));
        }
        start..end.max(start)
    }
}

/// The number of entries for which `is_before` holds, all at the beginning. The search starts at a
/// guess.
#[inline]
fn search(row: &[u64], guess: usize, is_before: impl Fn(u64) -> bool) -> usize {
    if row.len() <= LINE {
        return row.iter().map(|&packed| usize::from(is_before(packed))).sum();
    }
    let is_before = |at: usize| row.get(at).is_some_and(|&packed| is_before(packed));
    let (mut low, mut high, mut step) = (guess.min(row.len()), guess.min(row.len()), 1);
    if is_before(low) {
        while is_before(high) {
            low = high + 1;
            high = (high + step).min(row.len());
            step *= 2;
        }
    } else {
        while low > 0 && !is_before(low - 1) {
            high = low - 1;
            low = low.saturating_sub(step);
            step *= 2;
        }
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if is_before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::search;
    use proptest::prelude::*;

    proptest! {
        /// Any guess leads to the partition point.
        #[test]
        fn a_search_finds_the_end_of_what_is_before(
            mut row in prop::collection::vec(0..50u64, 0..90),
            bound in 0..52u64,
            guess in 0..100usize,
        ) {
            row.sort_unstable();
            let wanted = row.partition_point(|&one| one < bound);
            prop_assert_eq!(search(&row, guess, |one| one < bound), wanted);
        }

        /// The search of a malformed row ends, and reads nothing beyond the row.
        #[test]
        fn a_search_ends_in_a_row_without_order(
            row in prop::collection::vec(0..50u64, 0..90),
            guess in 0..100usize,
        ) {
            prop_assert!(search(&row, guess, |one| one < 25) <= row.len());
        }
    }
}
