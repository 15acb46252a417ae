//! One account's rows in the segments of a window, and their entries.

use super::attached::AttachedSegment;
use super::combined_index::{RowLookup, TOGETHER};
use super::rows::{ListKind, RowRequest, SegmentRow};
use crate::edge::{EdgeEntry, Side};
use crate::edge::{Stamp, Visibility};
use std::ops::Range;

/// A window, and the segments that overlap it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentWindow<'a, T> {
    /// The segments that overlap the window.
    pub parts: &'a [AttachedSegment<T>],
    /// The position of the first of them among all segments.
    pub start: usize,
    pub span: (T, T),
    pub until: Option<Visibility<T>>,
}

/// The rows of one account in segments. An iterator is consumed from one end only.
pub(crate) struct SegmentRows<'a, T> {
    look: RowLookup<'a>,
    account: u32,
    list: ListKind,
    window: SegmentWindow<'a, T>,
    /// The segments that are not yet looked up.
    rest: Range<usize>,
    /// The segment of bit 0 in `present`, whose bits mark segments with a row.
    from: usize,
    present: u64,
}

pub(crate) type FoundRow<'a, T> = (&'a AttachedSegment<T>, SegmentRow<'a>, Range<usize>);

impl<'a, T: Stamp> SegmentRows<'a, T> {
    /// The rows of an account, which `look` locates.
    #[inline]
    pub(crate) fn new(
        look: RowLookup<'a>,
        account: u32,
        side: Side,
        window: SegmentWindow<'a, T>,
    ) -> SegmentRows<'a, T> {
        let rest = 0..window.parts.len();
        SegmentRows { look, account, list: side.into(), window, rest, from: 0, present: 0 }
    }

    /// The row in one segment, and the part of it in the window, if that is not empty.
    #[inline(always)]
    fn found(&self, at: usize) -> Option<FoundRow<'a, T>> {
        let part = self.window.parts.get(at)?;
        let place = self.look.row(self.window.start + at);
        let wanted = RowRequest { account: self.account, list: self.list, place };
        let row = part.segment.row_at(wanted);
        let inside = part.inside(&row, self.window.span, self.window.until);
        (!inside.is_empty()).then_some((part, row, inside))
    }
}

impl<'a, T: Stamp> Iterator for SegmentRows<'a, T> {
    type Item = FoundRow<'a, T>;

    #[inline]
    fn next(&mut self) -> Option<FoundRow<'a, T>> {
        loop {
            while self.present != 0 {
                let at = self.from + self.present.trailing_zeros() as usize;
                self.present &= self.present - 1;
                if let Some(found) = self.found(at) {
                    return Some(found);
                }
            }
            if self.rest.is_empty() {
                return None;
            }
            let count = self.rest.len().min(TOGETHER);
            self.from = self.rest.start;
            self.rest.start += count;
            self.present = self.look.present(self.window.start + self.from, count);
        }
    }
}

impl<'a, T: Stamp> DoubleEndedIterator for SegmentRows<'a, T> {
    #[inline]
    fn next_back(&mut self) -> Option<FoundRow<'a, T>> {
        loop {
            while self.present != 0 {
                let highest = self.present.ilog2();
                self.present ^= 1 << highest;
                if let Some(found) = self.found(self.from + highest as usize) {
                    return Some(found);
                }
            }
            if self.rest.is_empty() {
                return None;
            }
            let count = self.rest.len().min(TOGETHER);
            self.rest.end -= count;
            self.from = self.rest.end;
            self.present = self.look.present(self.window.start + self.from, count);
        }
    }
}

/// The rest of a row.
enum RemainingRow<'a> {
    Near(std::slice::Iter<'a, u64>),
    Far(SegmentRow<'a>, Range<usize>),
}

/// The entries of one account in segments, with `BACKWARD` the newest first.
pub(crate) struct SegmentEntries<'a, T, const BACKWARD: bool> {
    rows: SegmentRows<'a, T>,
    part: Option<&'a AttachedSegment<T>>,
    run: RemainingRow<'a>,
}

impl<'a, T: Stamp, const BACKWARD: bool> SegmentEntries<'a, T, BACKWARD> {
    #[inline]
    pub(crate) fn new(rows: SegmentRows<'a, T>) -> SegmentEntries<'a, T, BACKWARD> {
        SegmentEntries { rows, part: None, run: RemainingRow::Near([].iter()) }
    }

    #[inline]
    fn turn(&mut self) -> Option<FoundRow<'a, T>> {
        if BACKWARD { self.rows.next_back() } else { self.rows.next() }
    }
}

impl<T: Stamp, const BACKWARD: bool> Iterator for SegmentEntries<'_, T, BACKWARD> {
    type Item = EdgeEntry<T>;

    #[inline]
    fn next(&mut self) -> Option<EdgeEntry<T>> {
        loop {
            let packed = match &mut self.run {
                RemainingRow::Near(run) if BACKWARD => run.next_back().copied(),
                RemainingRow::Near(run) => run.next().copied(),
                RemainingRow::Far(row, inside) => {
                    let at = if BACKWARD { inside.next_back() } else { inside.next() };
                    at.and_then(|at| row.get(at).copied())
                }
            };
            if let (Some(packed), Some(part)) = (packed, self.part) {
                return Some(part.entry(packed));
            }
            let (part, row, inside) = self.turn()?;
            self.part = Some(part);
            self.run = match row {
                SegmentRow::Near(row) => {
                    RemainingRow::Near(row.get(inside).unwrap_or_default().iter())
                }
                row @ SegmentRow::Far(_) => RemainingRow::Far(row, inside),
            };
        }
    }

    /// Row by row: a fold reads all entries.
    fn fold<B, F: FnMut(B, EdgeEntry<T>) -> B>(mut self, init: B, mut add: F) -> B {
        let mut all = init;
        if self.part.is_some() {
            for one in self.by_ref() {
                all = add(all, one);
            }
            return all;
        }
        while let Some((part, row, inside)) = self.turn() {
            let entries = row.get(inside).unwrap_or_default().iter();
            let add = |all, &packed: &u64| add(all, part.entry(packed));
            all = if BACKWARD { entries.rev().fold(all, add) } else { entries.fold(all, add) };
        }
        all
    }
}
