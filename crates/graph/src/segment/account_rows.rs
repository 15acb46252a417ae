//! The rows of an account in the segments that a window touches, and their entries.

use super::attached::Part;
use super::combined_index::{Look, TOGETHER};
use crate::accounts::Side;
use crate::edge::{Lens, Stamp};
use crate::segment::{List, Row, Wanted};
use crate::store::Entry;
use std::ops::Range;

/// What segments know of a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window<'a, T> {
    /// Those that it may touch,
    pub parts: &'a [Part<T>],
    /// and the number of the first of them.
    pub start: usize,
    pub span: (T, T),
    pub until: Option<Lens<T>>,
}

/// The rows of one account in segments, in either direction of time: only one in one iterator.
pub(crate) struct Sealed<'a, T> {
    look: Look<'a>,
    account: u32,
    list: List,
    window: Window<'a, T>,
    /// Parts that were not looked at.
    rest: Range<usize>,
    /// Of those from here on `present` have a row.
    from: usize,
    present: u64,
}

pub(crate) type Found<'a, T> = (&'a Part<T>, Row<'a>, Range<usize>);

impl<'a, T: Stamp> Sealed<'a, T> {
    /// The rows of an account, which `look` finds.
    #[inline]
    pub(crate) fn new(
        look: Look<'a>,
        account: u32,
        side: Side,
        window: Window<'a, T>,
    ) -> Sealed<'a, T> {
        let rest = 0..window.parts.len();
        Sealed { look, account, list: side.into(), window, rest, from: 0, present: 0 }
    }

    /// The row in the part of this number, where it has one, and what of it the window holds.
    #[inline(always)]
    fn found(&self, at: usize) -> Option<Found<'a, T>> {
        let part = self.window.parts.get(at)?;
        let place = self.look.row(self.window.start + at);
        let wanted = Wanted { account: self.account, list: self.list, place };
        let row = part.segment.row_at(wanted);
        let inside = part.inside(&row, self.window.span, self.window.until);
        (!inside.is_empty()).then_some((part, row, inside))
    }
}

impl<'a, T: Stamp> Iterator for Sealed<'a, T> {
    type Item = Found<'a, T>;

    #[inline]
    fn next(&mut self) -> Option<Found<'a, T>> {
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

impl<'a, T: Stamp> DoubleEndedIterator for Sealed<'a, T> {
    #[inline]
    fn next_back(&mut self) -> Option<Found<'a, T>> {
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

/// What is left of a row.
enum Run<'a> {
    Near(std::slice::Iter<'a, u64>),
    Far(Row<'a>, Range<usize>),
}

/// Entries of one account in the segments, in either direction of time.
pub(crate) struct Older<'a, T, const BACKWARD: bool> {
    rows: Sealed<'a, T>,
    part: Option<&'a Part<T>>,
    run: Run<'a>,
}

impl<'a, T: Stamp, const BACKWARD: bool> Older<'a, T, BACKWARD> {
    #[inline]
    pub(crate) fn new(rows: Sealed<'a, T>) -> Older<'a, T, BACKWARD> {
        Older { rows, part: None, run: Run::Near([].iter()) }
    }

    #[inline]
    fn turn(&mut self) -> Option<Found<'a, T>> {
        if BACKWARD { self.rows.next_back() } else { self.rows.next() }
    }
}

impl<T: Stamp, const BACKWARD: bool> Iterator for Older<'_, T, BACKWARD> {
    type Item = Entry<T>;

    #[inline]
    fn next(&mut self) -> Option<Entry<T>> {
        loop {
            let packed = match &mut self.run {
                Run::Near(run) if BACKWARD => run.next_back().copied(),
                Run::Near(run) => run.next().copied(),
                Run::Far(row, inside) => {
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
                Row::Near(row) => Run::Near(row.get(inside).unwrap_or_default().iter()),
                row @ Row::Far(_) => Run::Far(row, inside),
            };
        }
    }

    /// Row by row, where nobody wants to stop.
    fn fold<B, F: FnMut(B, Entry<T>) -> B>(mut self, init: B, mut add: F) -> B {
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
