//! A graph in two parts: the newest edges, which change, and immutable segments for older ones.
//!
//! Segments hold what came in order of time, each a span of its own, none later than the next. What
//! came late stays with the newest edges, wherever in time it belongs. An account's edges are those
//! of its segments one after the other, then the newest; only where some came late are they merged.

use super::Adjacency;
use super::accounts::{Side, Spread};
use super::arena::Entry;
use super::dynamic::Dynamic;
use super::indexes::{Indexes, Look, TOGETHER};
use super::lens::Lens;
use super::segment::{List, Packing, Row, Segment, Wanted};
use super::stamp::Stamp;
use crate::error::GraphError;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// Of accounts with more edges a search looks at few of the accounts next to them: it takes the
/// shorter of two ways.
const NEXT_MAX: usize = 256;

/// Accounts whose lists are touched together.
const TOUCHED: usize = 32;

/// Who has more is looked at again and again, or in part.
const READ_MAX: usize = 64;

/// Entries of a line of memory: of so few each is looked at.
const LINE: usize = 8;

/// A segment as this graph sees it.
/// A segment as this graph sees it.
#[derive(Debug)]
pub(crate) struct Part<T> {
    pub segment: Arc<Segment>,
    packing: Packing,
    has_table: bool,
    /// Ends of the numbers of arrival of its first edge and of the one behind its last.
    seq: u32,
    end_seq: u32,
    /// From the graph's base to the segment's.
    base: u64,
    /// Times of its first and last edge.
    first: T,
    last: T,
    /// 1 by the time from the first to the last.
    scale: f64,
}

impl<T: Stamp> Part<T> {
    fn new(segment: Arc<Segment>, graph_base: i64) -> Option<Part<T>> {
        let about = segment.about();
        let base = u64::try_from(i128::from(about.base) - i128::from(graph_base)).ok()?;
        let last = base.checked_add(about.span).filter(|&last| last <= T::OFFSET_MAX)?;
        let (seq, end_seq) = (about.first as u32, (about.first + about.numbers) as u32);
        let (first, last) = (T::from_offset(base), T::from_offset(last));
        let (packing, has_table) = (segment.packing(), segment.has_table());
        let scale = 1.0 / (about.span.max(1) as f64);
        Some(Part { segment, packing, has_table, seq, end_seq, base, first, last, scale })
    }

    /// The stamp of a time that counts from the segment's base.
    fn stamp(&self, time: u64) -> T {
        T::from_offset(self.base.saturating_add(time).min(T::OFFSET_MAX))
    }

    #[inline]
    fn entry(&self, packed: u64) -> Entry<T> {
        let seq = self.seq.wrapping_add(self.packing.rank(packed) as u32);
        Entry { time: self.stamp(self.offset(packed)), other: self.packing.other(packed), seq }
    }

    /// Of an entry's time, from the segment's base on.
    #[inline]
    fn offset(&self, packed: u64) -> u64 {
        if self.has_table { self.segment.time(packed) } else { self.packing.time(packed) }
    }

    /// Where in a row of that length the first entry from this time on is, by the look of it: an
    /// account's edges are spread over the span more or less.
    #[inline]
    fn guess(&self, from: u64, length: usize) -> usize {
        (length as f64 * from as f64 * self.scale) as usize
    }

    /// How many entries of a row are older than that.
    #[inline]
    fn older(&self, row: &[u64], from: T) -> usize {
        let from = from.offset().saturating_sub(self.base);
        search(row, self.guess(from, row.len()), |packed| self.offset(packed) < from)
    }

    /// How many entries of a row are not newer than that.
    #[inline]
    fn until(&self, row: &[u64], to: T) -> usize {
        let Some(to) = to.offset().checked_sub(self.base) else { return 0 };
        search(row, self.guess(to, row.len()), |packed| self.offset(packed) <= to)
    }

    /// Which entries of an account's row a window holds, up to what `until` has seen come.
    #[inline]
    fn inside(&self, row: &[u64], (from, to): (T, T), until: Option<Lens<T>>) -> Range<usize> {
        let start = if self.first >= from { 0 } else { self.older(row, from) };
        let mut end = if self.last <= to { row.len() } else { self.until(row, to) };
        if let Some(lens) = until
            && !lens.has_come(self.end_seq.wrapping_sub(1))
        {
            // Entries of a row are in order of arrival.
            let has_come = |&packed: &u64| lens.has_come(self.entry(packed).seq);
            end = end.min(row.partition_point(has_come));
        }
        start..end.max(start)
    }
}

/// How many entries at the beginning of a row are what `is_before` says, from a guess on.
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

#[derive(Debug)]
pub(crate) struct Hybrid<T> {
    dynamic: Dynamic<T>,
    parts: Vec<Part<T>>,
    indexes: Indexes,
    /// Edges of segments that are older are gone.
    floor: T,
    /// Accounts that pay themselves in some segment: 64 to a word.
    looped: Vec<u64>,
    /// Segments are shown that hold edges before this number of arrival, and of the last of them
    /// what a lens lets through. None: no trigger comes before an edge of a segment.
    shown: Option<u64>,
}

/// The newest edges are what calls change.
impl<T> Deref for Hybrid<T> {
    type Target = Dynamic<T>;

    fn deref(&self) -> &Dynamic<T> {
        &self.dynamic
    }
}

impl<T> DerefMut for Hybrid<T> {
    fn deref_mut(&mut self) -> &mut Dynamic<T> {
        &mut self.dynamic
    }
}

impl<T: Stamp> From<Dynamic<T>> for Hybrid<T> {
    fn from(dynamic: Dynamic<T>) -> Hybrid<T> {
        let (parts, looped) = (Vec::new(), Vec::new());
        let indexes = Indexes::default();
        Hybrid { dynamic, parts, indexes, floor: T::default(), looped, shown: None }
    }
}

impl<T: Stamp> Hybrid<T> {
    /// Puts a segment behind the others. Its edges, where the newest part has them, are shown no
    /// longer by that.
    ///
    /// # Errors
    /// [`GraphError::Segment`] where it is not the next one.
    pub(crate) fn attach(&mut self, segment: Arc<Segment>) -> Result<(), GraphError> {
        let about = segment.about();
        let end = self.parts.last().map_or(0, |part| part.end());
        if about.first < end {
            let what = "the first number of a segment, behind another,";
            return Err(GraphError::Segment { what, given: about.first, expected: end });
        }
        let accounts = self.dynamic.numbered() as u64;
        if about.accounts > accounts {
            let (what, given) = ("accounts of a segment", about.accounts);
            return Err(GraphError::Segment { what, given, expected: accounts });
        }
        let what = "the time of a segment";
        let outside = GraphError::Segment { what, given: about.span, expected: T::OFFSET_MAX };
        let next = about.first + about.numbers;
        let part = Part::new(segment, self.dynamic.base()).ok_or(outside.clone())?;
        if self.parts.last().is_some_and(|before| part.first <= before.last) {
            return Err(outside);
        }
        let words = part.segment.looped();
        for (at, word) in words.enumerate().filter(|(_, word)| *word != 0) {
            if self.looped.len() <= at {
                self.looped.resize(at + 1, 0);
            }
            self.looped[at] |= word;
        }
        self.dynamic.seal(next, part.last);
        self.indexes.push(&part.segment);
        self.parts.push(part);
        Ok(())
    }

    pub(crate) fn segments(&self) -> impl ExactSizeIterator<Item = &Arc<Segment>> {
        self.parts.iter().map(|part| &part.segment)
    }

    /// Shows segments up to this number of arrival: triggers are to come that are older than others
    /// that are there. None: shows all.
    pub(crate) fn show(&mut self, until: Option<u64>) {
        self.shown = until;
    }

    /// The segments that are shown.
    fn parts(&self) -> &[Part<T>] {
        let Some(until) = self.shown else { return &self.parts };
        let end = self.parts.partition_point(|part| part.segment.about().first < until);
        self.parts.get(..end).unwrap_or_default()
    }

    /// What has to be asked whether an edge of a segment had come.
    fn until(&self, lens: Lens<T>) -> Option<Lens<T>> {
        self.shown.map(|_| lens)
    }

    /// Edges of segments that are older than this are gone. Gives the segments of which nothing
    /// is left.
    pub(crate) fn expire(&mut self, oldest: T) -> Vec<Arc<Segment>> {
        self.floor = self.floor.max(oldest);
        let floor = self.floor;
        let gone = self.parts.iter().take_while(|part| part.last < floor).count();
        for part in self.parts.iter().take(gone) {
            self.indexes.drop_first(&part.segment);
        }
        self.parts.drain(..gone).map(|part| part.segment).collect()
    }

    /// Edges of the newest part that segments have.
    pub(crate) fn waiting(&self) -> usize {
        if !self.dynamic.is_draining() {
            return 0;
        }
        let numbers = self.dynamic.records().map(|(number, _)| number);
        let end = self.dynamic.sealed_end();
        numbers.take_while(|one| *one < end).filter(|one| self.dynamic.is_sealed(*one)).count()
    }

    /// The segment that covers a number of arrival.
    pub(crate) fn of(&self, number: u64) -> Option<&Segment> {
        let at = self.parts.partition_point(|part| part.segment.about().first <= number);
        let part = self.parts.get(at.checked_sub(1)?)?;
        (number < part.end()).then_some(&*part.segment)
    }

    /// What went wrong with segments that are not in this process' memory.
    pub(crate) fn failure(&self) -> Option<(i64, String)> {
        let failed = |part: &Part<T>| {
            part.segment.failure().map(|reason| (part.segment.about().base, reason))
        };
        self.parts.iter().find_map(failed)
    }

    /// Edges of segments, whether gone or not.
    pub(crate) fn sealed(&self) -> usize {
        self.parts.iter().map(|part| part.segment.about().edges as usize).sum()
    }

    /// Edges of segments that are not gone: number of arrival, source, target, time.
    pub(crate) fn sealed_edges(&self) -> Vec<(u64, u32, u32, T)> {
        let mut all = Vec::new();
        for part in &self.parts {
            let edges = part
                .segment
                .edges()
                .map(|(number, source, target, time)| (number, source, target, part.stamp(time)));
            all.extend(edges.filter(|(.., time)| *time >= self.floor));
        }
        all.sort_unstable();
        all
    }

    /// The earliest time of an edge, gone or not.
    pub(crate) fn earliest(&self) -> Option<i64> {
        let sealed = self.parts.first().map(|part| part.segment.about().base);
        [sealed, self.dynamic.earliest()].into_iter().flatten().min()
    }

    pub(crate) fn restamp<S: Stamp>(self, base: i64) -> Hybrid<S> {
        let floor = self.dynamic.time(self.floor);
        let dynamic: Dynamic<S> = self.dynamic.restamp(base);
        // The base lies before all that the graph holds.
        let parts = self.parts.into_iter().filter_map(|part| Part::new(part.segment, base));
        let parts: Vec<Part<S>> = parts.collect();
        let mut indexes = Indexes::default();
        parts.iter().for_each(|part| indexes.push(&part.segment));
        let floor = dynamic.stamp(floor).unwrap_or_default();
        let (looped, shown) = (self.looped, self.shown);
        Hybrid { parts, indexes, floor, looped, shown, dynamic }
    }

    /// Moves to memory of its size; where there is no memory to do so, it stays where it is.
    pub(crate) fn rebuild(&mut self) -> bool {
        let rebuilt = self.dynamic.rebuilt();
        let is_done = rebuilt.is_ok();
        if let Ok(dynamic) = rebuilt {
            self.dynamic = dynamic;
        }
        is_done
    }

    /// Memory of the graph in this process, segments apart.
    pub(crate) fn bytes(&self) -> usize {
        self.dynamic.bytes() + self.indexes.bytes() + self.looped.capacity() * size_of::<u64>()
    }

    /// The segments that a window may touch, and the window as they know it.
    fn window(&self, (from, to): (T, T), lens: Lens<T>) -> Window<'_, T> {
        let from = from.max(self.floor).max(lens.oldest());
        let parts = self.parts();
        // Most windows begin in the first one and end behind all.
        let start = match parts.first() {
            Some(oldest) if oldest.last < from => parts.partition_point(|part| part.last < from),
            _ => 0,
        };
        let end = match parts.last() {
            Some(newest) if newest.first > to => parts.partition_point(|part| part.first <= to),
            _ => parts.len(),
        };
        let parts = parts.get(start..end).unwrap_or_default();
        Window { parts, start, span: (from, to), until: self.until(lens) }
    }

    /// Whether some segment would bring rows of this window ahead.
    pub(crate) fn is_prefetching(&self, window: (T, T), lens: Lens<T>) -> bool {
        self.window(window, lens).parts.iter().any(|part| part.segment.is_prefetching())
    }

    /// Has far segments bring rows of these accounts, and then, with `has_next` and if any had to
    /// be brought, those of the accounts next to them: a search will ask for many of them one by
    /// one.
    pub(crate) fn prefetch(&self, accounts: &[u32], window: (T, T), lens: Lens<T>, has_next: bool) {
        let parts = self.window(window, lens).parts;
        // Each of them, whether one before it brought any or not.
        let bring = |accounts: &[u32]| {
            parts.iter().filter(|part| part.segment.prefetch(accounts)).count() > 0
        };
        if !bring(accounts) || !has_next {
            return;
        }
        let mut next = hashbrown::HashSet::with_hasher(Spread);
        let lists = accounts.iter().flat_map(|&one| [(one, Side::Out), (one, Side::In)]);
        for (account, side) in lists {
            if self.at_most(account, side, window, lens) <= NEXT_MAX {
                let entries = self.ascending(account, side, window, lens);
                next.extend(entries.map(|one| one.other));
            }
        }
        let mut next: Vec<u32> = next.into_iter().collect();
        next.sort_unstable();
        bring(&next);
    }

    fn sealed_count(&self, account: u32, side: Side, window: (T, T), lens: Lens<T>) -> usize {
        if self.parts.is_empty() {
            return 0;
        }
        let window = self.window(window, lens);
        let look = self.indexes.look(account, side);
        let Some(first) = window.parts.first() else { return 0 };
        let is_newest = self.parts.last().is_some_and(|newest| newest.last <= window.span.1);
        let is_whole = is_newest && self.shown.is_none() && self.indexes.has_totals();
        if is_whole && window.start <= window.parts.len() {
            if look.total() == 0 {
                return 0;
            }
            // Fewer are outside than inside.
            let list = List::from(side);
            let wanted = |at| Wanted { account, list, place: look.row(at) };
            let mut outside = 0;
            for (at, part) in self.parts.iter().enumerate().take(window.start) {
                if look.is_present(at) {
                    outside += part.segment.row_at(wanted(at)).len();
                }
            }
            if first.first < window.span.0 && look.is_present(window.start) {
                let row = first.segment.row_at(wanted(window.start));
                outside += first.older(&row, window.span.0);
            }
            return look.total().saturating_sub(outside);
        }
        self.rows(account, side, window).map(|(_, _, inside)| inside.len()).sum()
    }

    /// The rows of an account in a window, the oldest first.
    fn rows<'a>(&'a self, account: u32, side: Side, window: Window<'a, T>) -> Sealed<'a, T> {
        let rest = 0..window.parts.len();
        let look = self.indexes.look(account, side);
        Sealed { look, account, list: side.into(), window, rest, from: 0, present: 0 }
    }

    /// The entries of an account in a window.
    fn older<'a, const BACKWARD: bool>(
        &'a self,
        account: u32,
        side: Side,
        window: (T, T),
        lens: Lens<T>,
    ) -> Older<'a, T, BACKWARD> {
        let rows = self.rows(account, side, self.window(window, lens));
        Older { rows, part: None, run: Run::Near([].iter()) }
    }
}

impl<T> Part<T> {
    fn end(&self) -> u64 {
        let about = self.segment.about();
        about.first + about.numbers
    }
}

/// What segments know of a window.
#[derive(Clone, Copy, Debug)]
struct Window<'a, T> {
    /// Those that it may touch,
    parts: &'a [Part<T>],
    /// and the number of the first of them.
    start: usize,
    span: (T, T),
    until: Option<Lens<T>>,
}

/// The rows of one account in segments, in either direction of time: only one in one iterator.
struct Sealed<'a, T> {
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

type Found<'a, T> = (&'a Part<T>, Row<'a>, Range<usize>);

impl<'a, T: Stamp> Sealed<'a, T> {
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
struct Older<'a, T, const BACKWARD: bool> {
    rows: Sealed<'a, T>,
    part: Option<&'a Part<T>>,
    run: Run<'a>,
}

impl<'a, T: Stamp, const BACKWARD: bool> Older<'a, T, BACKWARD> {
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

/// Two runs of entries as one in order of time; of one instant those of segments arrived earlier.
struct Merged<T, S: Iterator<Item = Entry<T>>, D: Iterator<Item = Entry<T>>> {
    sealed: std::iter::Peekable<S>,
    dynamic: std::iter::Peekable<D>,
    is_backward: bool,
}

impl<T, S, D> Iterator for Merged<T, S, D>
where
    T: Stamp,
    S: Iterator<Item = Entry<T>>,
    D: Iterator<Item = Entry<T>>,
{
    type Item = Entry<T>;

    fn next(&mut self) -> Option<Entry<T>> {
        match (self.sealed.peek(), self.dynamic.peek()) {
            (Some(sealed), Some(newest)) => {
                let is_sealed = if self.is_backward {
                    sealed.time > newest.time
                } else {
                    sealed.time <= newest.time
                };
                if is_sealed { self.sealed.next() } else { self.dynamic.next() }
            }
            (Some(_), None) => self.sealed.next(),
            _ => self.dynamic.next(),
        }
    }
}

/// What an account's edges are made of.
enum Walk<S, D, M> {
    Newest(D),
    /// The first run, then the second.
    Forward(S, D),
    Backward(D, S),
    Merged(M),
}

impl<T, S, D, M> Iterator for Walk<S, D, M>
where
    S: Iterator<Item = Entry<T>>,
    D: Iterator<Item = Entry<T>>,
    M: Iterator<Item = Entry<T>>,
{
    type Item = Entry<T>;

    #[inline]
    fn next(&mut self) -> Option<Entry<T>> {
        match self {
            Walk::Newest(newest) => newest.next(),
            Walk::Forward(first, second) => first.next().or_else(|| second.next()),
            Walk::Backward(first, second) => first.next().or_else(|| second.next()),
            Walk::Merged(both) => both.next(),
        }
    }

    #[inline]
    fn fold<B, F: FnMut(B, Entry<T>) -> B>(self, init: B, mut add: F) -> B {
        match self {
            Walk::Newest(newest) => newest.fold(init, add),
            Walk::Forward(first, second) => second.fold(first.fold(init, &mut add), add),
            Walk::Backward(first, second) => second.fold(first.fold(init, &mut add), add),
            Walk::Merged(both) => both.fold(init, add),
        }
    }
}

impl<T: Stamp> Adjacency<T> for Hybrid<T> {
    fn is_ordered(&self) -> bool {
        self.dynamic.is_ordered()
    }

    fn has_dropped(&self, entry: Entry<T>) -> bool {
        if self.dynamic.is_sealed(self.dynamic.number(entry.seq)) {
            // What is older is seen no longer, though its segment may still be there.
            entry.time < self.floor
        } else {
            self.dynamic.has_dropped(entry)
        }
    }

    fn key(&self, account: u32) -> i64 {
        self.dynamic.key(account)
    }

    fn order(&self, account: u32) -> u64 {
        self.dynamic.order(account)
    }

    fn ascending(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        lens: Lens<T>,
    ) -> impl Iterator<Item = Entry<T>> {
        let newest = self.dynamic.ascending(account, side, window, lens);
        if self.parts.is_empty() {
            return Walk::Newest(newest);
        }
        let sealed = self.older::<false>(account, side, window, lens);
        if self.is_ordered() {
            return Walk::Forward(sealed, newest);
        }
        let (sealed, dynamic) = (sealed.peekable(), newest.peekable());
        Walk::Merged(Merged { sealed, dynamic, is_backward: false })
    }

    fn descending(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        lens: Lens<T>,
    ) -> impl Iterator<Item = Entry<T>> {
        let newest = self.dynamic.descending(account, side, window, lens);
        if self.parts.is_empty() {
            return Walk::Newest(newest);
        }
        let sealed = self.older::<true>(account, side, window, lens);
        if self.is_ordered() {
            return Walk::Backward(newest, sealed);
        }
        let (sealed, dynamic) = (sealed.peekable(), newest.peekable());
        Walk::Merged(Merged { sealed, dynamic, is_backward: true })
    }

    fn gather(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        lens: Lens<T>,
        most: usize,
        into: &mut Vec<Entry<T>>,
    ) -> bool {
        if self.parts.is_empty() {
            return self.dynamic.gather(account, side, window, lens, most, into);
        }
        if !self.is_ordered() {
            into.extend(self.ascending(account, side, window, lens));
            return true;
        }
        // Of a hub nothing is copied.
        if self.at_least_all(account, side, window, lens) > most
            && self.at_most(account, side, window, lens) > most
        {
            return false;
        }
        for (part, row, inside) in self.rows(account, side, self.window(window, lens)) {
            let inside = row.get(inside).unwrap_or_default();
            into.extend(inside.iter().map(|&packed| part.entry(packed)));
        }
        self.dynamic.gather(account, side, window, lens, usize::MAX, into)
    }

    fn touch_counts(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone) {
        self.dynamic.touch_counts(side, accounts.clone());
        if !self.parts.is_empty() {
            let totals = accounts.map(|account| self.indexes.total(account, side));
            std::hint::black_box(totals.fold(0, |all, one| all ^ one));
        }
    }

    fn touch(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone, window: (T, T)) {
        self.dynamic.touch(side, accounts.clone(), window);
        self.touch_rows(side, accounts, window);
    }

    fn touch_rows(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone, window: (T, T)) {
        let parts = self.parts();
        let start = parts.partition_point(|part| part.last < window.0);
        let end = parts.partition_point(|part| part.first <= window.1);
        let parts = parts.get(start..end).unwrap_or_default();
        if parts.is_empty() {
            return;
        }
        let mut rest = accounts;
        loop {
            let mut some = [0; TOUCHED];
            let count = some.iter_mut().zip(&mut rest).map(|(to, account)| *to = account).count();
            let some = some.get(..count).unwrap_or_default();
            let looks = some.iter().map(|&account| self.indexes.look(account, side));
            let touched = looks.clone().map(|look| look.touch(start));
            std::hint::black_box(touched.fold(0, |all, one| all ^ one));
            for (at, part) in (start..).zip(parts) {
                let (mut rows, mut found) = ([0; TOUCHED], 0);
                for look in looks.clone() {
                    if let Some(row) = rows.get_mut(found) {
                        *row = look.row(at);
                        // No branch: there is nothing to guess it by.
                        found += usize::from(look.is_present(at) & (look.total() <= READ_MAX));
                    }
                }
                let rows = rows.get(..found).unwrap_or_default();
                if part.first < window.0 {
                    let from = window.0.offset().saturating_sub(part.base);
                    part.segment.touch(side.into(), rows, |length| part.guess(from, length));
                } else {
                    part.segment.touch(side.into(), rows, |_| 0);
                }
            }
            if count < TOUCHED {
                return;
            }
        }
    }

    fn at_least_all(&self, account: u32, side: Side, window: (T, T), lens: Lens<T>) -> usize {
        if self.shown.is_some() || !self.indexes.has_totals() {
            return self.at_most(account, side, window, lens);
        }
        let sealed = self.indexes.total(account, side) as usize;
        self.dynamic.at_most(account, side, window, lens) + sealed
    }

    fn at_most(&self, account: u32, side: Side, window: (T, T), lens: Lens<T>) -> usize {
        self.dynamic.at_most(account, side, window, lens)
            + self.sealed_count(account, side, window, lens)
    }

    fn first(&self, account: u32, side: Side, window: (T, T), lens: Lens<T>) -> Option<T> {
        let sealed = || self.older::<false>(account, side, window, lens).next().map(|one| one.time);
        let sealed = if self.parts.is_empty() { None } else { sealed() };
        if sealed.is_some() && self.is_ordered() {
            return sealed;
        }
        let newest = self.dynamic.first(account, side, window, lens);
        [sealed, newest].into_iter().flatten().min()
    }

    fn last(&self, account: u32, side: Side, window: (T, T), lens: Lens<T>) -> Option<T> {
        let newest = self.dynamic.last(account, side, window, lens);
        if self.parts.is_empty() || (newest.is_some() && self.is_ordered()) {
            return newest;
        }
        let sealed = self.older::<true>(account, side, window, lens).next().map(|one| one.time);
        [sealed, newest].into_iter().flatten().max()
    }

    fn count(&self, account: u32, side: Side, window: (T, T), lens: Lens<T>) -> usize {
        self.dynamic.count(account, side, window, lens)
            + self.sealed_count(account, side, window, lens)
    }

    fn loops(&self, account: u32) -> impl Iterator<Item = Entry<T>> {
        let word = self.looped.get(account as usize / 64).copied().unwrap_or_default();
        let parts = if word & (1 << (account % 64)) == 0 { &[] } else { self.parts() };
        let sealed = parts.iter().flat_map(move |part| {
            let row = part.segment.row(account, List::Loops);
            (0..row.len()).filter_map(move |at| Some(part.entry(*row.get(at)?)))
        });
        let sealed = sealed.skip_while(|one| one.time < self.floor);
        let newest = self.dynamic.loops(account);
        if parts.is_empty() {
            return Walk::Newest(newest);
        }
        if self.is_ordered() {
            return Walk::Forward(sealed, newest);
        }
        let (sealed, dynamic) = (sealed.peekable(), newest.peekable());
        Walk::Merged(Merged { sealed, dynamic, is_backward: false })
    }
}
