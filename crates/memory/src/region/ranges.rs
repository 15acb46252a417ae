//! The ranges of a region that are writable in the window, and their active writers.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::error::AccessError;
use crate::maps;
use crate::units::{Length, Offset, Span};

/// Disjoint, merged ranges, and pins: spans whose protection must not change at the moment.
#[derive(Debug, Default)]
pub(super) struct WritableRanges {
    /// Maps the start of each range to its end.
    ranges: BTreeMap<u64, u64>,
    pins: BTreeMap<u64, Span>,
    next_pin: u64,
    bytes: u64,
}

impl WritableRanges {
    /// Adds a span, which may overlap others.
    pub(super) fn insert(&mut self, span: Span) {
        let Some((mut start, mut end)) = ends(span) else {
            return;
        };
        let before = self.ranges.len();
        // Remove every range that touches the new one, and insert the union.
        while let Some((&other_start, &other_end)) = self.ranges.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            self.ranges.remove(&other_start);
            self.bytes -= other_end - other_start;
            start = start.min(other_start);
            end = end.max(other_end);
        }
        self.ranges.insert(start, end);
        self.bytes += end - start;
        maps::changed(before, self.ranges.len());
    }

    /// Removes a span, of which any part may be writable.
    pub(super) fn remove(&mut self, span: Span) {
        let Some((start, end)) = ends(span) else {
            return;
        };
        let before = self.ranges.len();
        while let Some((&other_start, &other_end)) = self.ranges.range(..end).next_back() {
            if other_end <= start {
                break;
            }
            self.ranges.remove(&other_start);
            self.bytes -= other_end - other_start;
            for (left, right) in [(other_start, start), (end, other_end)] {
                if left < right {
                    self.ranges.insert(left, right);
                    self.bytes += right - left;
                }
            }
            if other_start < start {
                break;
            }
        }
        maps::changed(before, self.ranges.len());
    }

    /// Whether a span neither overlaps nor touches any range.
    pub(super) fn is_apart(&self, span: Span) -> bool {
        let Some((start, end)) = ends(span) else {
            return false;
        };
        self.ranges.range(..=end).next_back().is_none_or(|(_, &other_end)| other_end < start)
    }

    /// Whether a span is in the middle of a range, so that removing it splits the range in two.
    pub(super) fn divides(&self, span: Span) -> bool {
        let Some((start, end)) = ends(span) else {
            return false;
        };
        let around = self.ranges.range(..start).next_back();
        around.is_some_and(|(_, &other_end)| other_end > end)
    }

    /// Whether every byte of the span is writable. True for an empty span.
    pub(super) fn covers(&self, span: Span) -> bool {
        let Some((start, end)) = ends(span) else {
            return span.is_empty();
        };
        self.ranges.range(..=start).next_back().is_some_and(|(_, &range_end)| end <= range_end)
    }

    /// The writable parts of a span.
    pub(super) fn pieces(&self, span: Span) -> Vec<Span> {
        let Some((start, end)) = ends(span) else {
            return Vec::new();
        };
        let first = self.ranges.range(..=start).next_back().map_or(start, |(&first, _)| first);
        self.ranges
            .range(first..end)
            .filter_map(|(&left, &right)| {
                Span::between(Offset(left.max(start)), Offset(right.min(end)))
            })
            .filter(|piece| !piece.is_empty())
            .collect()
    }

    /// Number of writable bytes.
    pub(super) fn bytes(&self) -> Length {
        Length(self.bytes)
    }

    /// Keeps a span writable until [`Self::unpin`]. `None` if part of it is not writable.
    pub(super) fn pin(&mut self, span: Span) -> Option<u64> {
        if !self.covers(span) {
            return None;
        }
        let pin = self.next_pin;
        self.next_pin += 1;
        self.pins.insert(pin, span);
        Some(pin)
    }

    pub(super) fn unpin(&mut self, pin: u64) {
        self.pins.remove(&pin);
    }

    /// Number of pins that overlap a span.
    pub(super) fn pins_over(&self, span: Span) -> usize {
        self.pins.values().filter(|pinned| pinned.overlaps(span)).count()
    }
}

impl Drop for WritableRanges {
    fn drop(&mut self) {
        maps::changed(self.ranges.len(), 0);
    }
}

/// Start and end of a span, or `None` if it is empty or too long.
fn ends(span: Span) -> Option<(u64, u64)> {
    let end = span.end()?;
    (!span.is_empty()).then_some((span.offset.0, end.0))
}

/// Keeps a range writable while it lives.
#[derive(Debug)]
pub(crate) struct Pin<'a> {
    pub(super) ranges: &'a Mutex<WritableRanges>,
    pub(super) pin: u64,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner).unpin(self.pin);
    }
}

/// Checks that `span` is inside `held`.
pub(super) fn check_held(held: Span, span: Span) -> Result<(), AccessError> {
    if held.contains(span) {
        return Ok(());
    }
    Err(AccessError::OutsideHeld {
        offset: span.offset,
        length: span.length,
        held_offset: held.offset,
        held_length: held.length,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(offset: u64, length: u64) -> Span {
        Span::new(Offset(offset), Length(length))
    }

    #[test]
    fn neighbours_merge_and_holes_split() {
        let mut ranges = WritableRanges::default();
        ranges.insert(span(0, 10));
        ranges.insert(span(20, 10));
        assert!(!ranges.covers(span(0, 30)));
        ranges.insert(span(10, 10));
        assert!(ranges.covers(span(0, 30)));
        ranges.remove(span(5, 10));
        assert!(ranges.covers(span(0, 5)) && ranges.covers(span(15, 15)));
        assert!(!ranges.covers(span(4, 2)));
        assert_eq!(ranges.bytes(), Length(20));
        assert_eq!(ranges.pieces(span(3, 14)), vec![span(3, 2), span(15, 2)]);
    }

    #[test]
    fn agrees_with_a_bitmap() {
        let mut ranges = WritableRanges::default();
        let mut bitmap = [false; 96];
        // A fixed linear congruential generator (Knuth, MMIX), so that each run is the same.
        let mut state = 42u64;
        let mut next = |bound: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        for _ in 0..5000 {
            let start = next(96);
            let length = next(97 - start);
            let is_insert = next(2) == 0;
            let changed = span(start, length);
            if is_insert {
                ranges.insert(changed)
            } else {
                ranges.remove(changed)
            }
            bitmap[start as usize..(start + length) as usize].fill(is_insert);
            assert_eq!(ranges.bytes().0, bitmap.iter().filter(|bit| **bit).count() as u64);
            let requested = next(96);
            let requested = span(requested, next(97 - requested));
            let bits = &bitmap[requested.offset.0 as usize..requested.end().unwrap().0 as usize];
            assert_eq!(ranges.covers(requested), bits.iter().all(|bit| *bit));
            let pieces: u64 = ranges.pieces(requested).iter().map(|piece| piece.length.0).sum();
            assert_eq!(pieces, bits.iter().filter(|bit| **bit).count() as u64);
        }
    }

    #[test]
    fn pins_are_counted_by_overlap() {
        let mut ranges = WritableRanges::default();
        ranges.insert(span(0, 100));
        assert_eq!(ranges.pin(span(90, 20)), None);
        let pin = ranges.pin(span(10, 10)).unwrap();
        assert_eq!(ranges.pins_over(span(19, 1)), 1);
        assert_eq!(ranges.pins_over(span(20, 1)), 0);
        ranges.unpin(pin);
        assert_eq!(ranges.pins_over(span(0, 100)), 0);
    }
}
