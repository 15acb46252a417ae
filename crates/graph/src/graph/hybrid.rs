//! A graph in two parts: the newest edges, which change, and immutable segments for older ones.
//!
//! Segments hold what came in order of time, each a span of its own, none later than the next. What
//! came late stays with the newest edges, wherever in time it belongs. An account's edges are those
//! of its segments one after the other, then the newest; only where some came late are they merged.

use super::Adjacency;
use super::accounts::{Side, Spread};
use super::arena::Entry;
use super::dynamic::Dynamic;
use super::lens::Lens;
use super::segment::{List, Row, Segment, TOUCHED};
use super::stamp::Stamp;
use crate::error::GraphError;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Of accounts with more edges a search looks at few of the accounts next to them: it takes the
/// shorter of two ways.
const NEXT_MAX: usize = 256;

/// A segment as this graph sees it.
#[derive(Debug)]
pub(crate) struct Part<T> {
    pub segment: Arc<Segment>,
    /// From the graph's base to the segment's.
    base: u64,
    /// Times of its first and last edge.
    first: T,
    last: T,
}

impl<T: Stamp> Part<T> {
    fn new(segment: Arc<Segment>, graph_base: i64) -> Option<Part<T>> {
        let about = segment.about();
        let base = u64::try_from(i128::from(about.base) - i128::from(graph_base)).ok()?;
        let last = base.checked_add(about.span).filter(|&last| last <= T::OFFSET_MAX)?;
        Some(Part { base, first: T::from_offset(base), last: T::from_offset(last), segment })
    }

    /// The stamp of a time that counts from the segment's base.
    fn stamp(&self, time: u64) -> T {
        T::from_offset(self.base.saturating_add(time).min(T::OFFSET_MAX))
    }

    fn time(&self, packed: u64) -> T {
        self.stamp(self.segment.time(packed))
    }

    fn entry(&self, packed: u64) -> Entry<T> {
        let (rank, time, other) = self.segment.unpack(packed);
        let seq = (self.segment.about().first as u32).wrapping_add(rank as u32);
        Entry { time: self.stamp(time), other, seq }
    }

    /// The row of an account and which of its entries a window holds, up to what `until` has seen
    /// come.
    fn inside(
        &self,
        account: u32,
        list: List,
        (from, to): (T, T),
        until: Option<Lens<T>>,
    ) -> (Row<'_>, usize, usize) {
        let row = self.segment.row(account, list);
        let is_old = |&packed: &u64| self.time(packed) < from;
        let is_in = |&packed: &u64| self.time(packed) <= to;
        let start = if self.first >= from { 0 } else { row.partition_point(is_old) };
        let mut end = if self.last <= to { row.len() } else { row.partition_point(is_in) };
        if let Some(lens) = until
            && !lens.has_come(self.end().wrapping_sub(1) as u32)
        {
            // Entries of a row are in order of arrival.
            let has_come = |&packed: &u64| lens.has_come(self.entry(packed).seq);
            end = end.min(row.partition_point(has_come));
        }
        (row, start, end.max(start))
    }
}

#[derive(Debug)]
pub(crate) struct Hybrid<T> {
    dynamic: Dynamic<T>,
    parts: Vec<Part<T>>,
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
        Hybrid { dynamic, parts, floor: T::default(), looped, shown: None }
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
        let floor = dynamic.stamp(floor).unwrap_or_default();
        let (looped, shown) = (self.looped, self.shown);
        Hybrid { parts: parts.collect(), floor, looped, shown, dynamic }
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
        self.dynamic.bytes() + self.looped.capacity() * size_of::<u64>()
    }

    /// The segments that a window may touch, and the window as they know it.
    fn window(&self, (from, to): (T, T), lens: Lens<T>) -> (&[Part<T>], (T, T)) {
        let from = from.max(self.floor).max(lens.oldest());
        let parts = self.parts();
        let start = parts.partition_point(|part| part.last < from);
        let end = parts.partition_point(|part| part.first <= to);
        (parts.get(start..end).unwrap_or_default(), (from, to))
    }

    /// Whether some segment would bring rows of this window ahead.
    pub(crate) fn is_prefetching(&self, window: (T, T), lens: Lens<T>) -> bool {
        self.window(window, lens).0.iter().any(|part| part.segment.is_prefetching())
    }

    /// Has far segments bring rows of these accounts, and then, with `has_next` and if any had to
    /// be brought, those of the accounts next to them: a search will ask for many of them one by
    /// one.
    pub(crate) fn prefetch(&self, accounts: &[u32], window: (T, T), lens: Lens<T>, has_next: bool) {
        let (parts, window) = self.window(window, lens);
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
        let (parts, window) = self.window(window, lens);
        let count = |part: &Part<T>| {
            let (_, start, end) = part.inside(account, side.into(), window, self.until(lens));
            end - start
        };
        parts.iter().map(count).sum()
    }
}

impl<T> Part<T> {
    fn end(&self) -> u64 {
        let about = self.segment.about();
        about.first + about.numbers
    }
}

/// Entries of one account in the segments, in either direction of time.
struct Older<'a, T> {
    parts: &'a [Part<T>],
    account: u32,
    list: List,
    window: (T, T),
    until: Option<Lens<T>>,
    is_backward: bool,
    row: Row<'a>,
    part: Option<&'a Part<T>>,
    start: usize,
    end: usize,
}

impl<'a, T: Stamp> Older<'a, T> {
    fn new(
        parts: &'a [Part<T>],
        account: u32,
        list: List,
        window: (T, T),
        until: Option<Lens<T>>,
    ) -> Older<'a, T> {
        let row = Row::Near(&[]);
        Older {
            parts,
            account,
            list,
            window,
            until,
            is_backward: false,
            row,
            part: None,
            start: 0,
            end: 0,
        }
    }

    fn backward(self) -> Older<'a, T> {
        Older { is_backward: true, ..self }
    }

    fn turn(&mut self) -> Option<Entry<T>> {
        loop {
            let (part, rest) = if self.is_backward {
                self.parts.split_last()?
            } else {
                self.parts.split_first()?
            };
            self.parts = rest;
            let (row, start, end) = part.inside(self.account, self.list, self.window, self.until);
            if start < end {
                (self.row, self.part, self.start, self.end) = (row, Some(part), start, end);
                return self.next();
            }
        }
    }
}

impl<T: Stamp> Iterator for Older<'_, T> {
    type Item = Entry<T>;

    fn next(&mut self) -> Option<Entry<T>> {
        if self.start == self.end {
            return if self.parts.is_empty() { None } else { self.turn() };
        }
        let at = if self.is_backward {
            self.end -= 1;
            self.end
        } else {
            self.start += 1;
            self.start - 1
        };
        let part = self.part?;
        self.row.get(at).map(|&packed| part.entry(packed))
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
        let (parts, window) = self.window(window, lens);
        let sealed = Older::new(parts, account, side.into(), window, self.until(lens));
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
        let (parts, window) = self.window(window, lens);
        let sealed = Older::new(parts, account, side.into(), window, self.until(lens)).backward();
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
        let (parts, inner) = self.window(window, lens);
        let before = into.len();
        for part in parts {
            let (row, start, end) = part.inside(account, side.into(), inner, self.until(lens));
            if into.len() - before + (end - start) > most {
                into.truncate(before);
                return false;
            }
            let inside = row.get(start..end).unwrap_or_default();
            into.extend(inside.iter().map(|&packed| part.entry(packed)));
        }
        let left = most - (into.len() - before);
        let is_all = self.dynamic.gather(account, side, window, lens, left, into);
        if !is_all {
            into.truncate(before);
        }
        is_all
    }

    fn touch(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone, window: (T, T)) {
        self.dynamic.touch(side, accounts.clone(), window);
        let parts = self.parts();
        let start = parts.partition_point(|part| part.last < window.0);
        let parts = parts.get(start..).unwrap_or_default();
        if parts.is_empty() {
            return;
        }
        let mut wanted = [(0, List::Out); TOUCHED];
        let mut rest = accounts;
        loop {
            let mut count = 0;
            for (place, account) in wanted.iter_mut().zip(&mut rest) {
                *place = (account, side.into());
                count += 1;
            }
            for part in parts {
                part.segment.touch(wanted.get(..count).unwrap_or_default());
            }
            if count < TOUCHED {
                return;
            }
        }
    }

    fn at_most(&self, account: u32, side: Side, window: (T, T), lens: Lens<T>) -> usize {
        self.dynamic.at_most(account, side, window, lens)
            + self.sealed_count(account, side, window, lens)
    }

    fn span(&self, account: u32, side: Side, window: (T, T), lens: Lens<T>) -> Option<(T, T)> {
        let newest = self.dynamic.span(account, side, window, lens);
        if self.parts.is_empty() {
            return newest;
        }
        let (parts, window) = self.window(window, lens);
        let sealed = || Older::new(parts, account, side.into(), window, self.until(lens));
        let ends = sealed().next().zip(sealed().backward().next());
        let sealed = ends.map(|(first, last)| (first.time, last.time));
        match (sealed, newest) {
            (Some(one), Some(other)) => Some((one.0.min(other.0), one.1.max(other.1))),
            (one, other) => one.or(other),
        }
    }

    fn count(&self, account: u32, side: Side, window: (T, T), lens: Lens<T>) -> usize {
        self.dynamic.count(account, side, window, lens)
            + self.sealed_count(account, side, window, lens)
    }

    fn loops(&self, account: u32) -> impl Iterator<Item = Entry<T>> {
        let word = self.looped.get(account as usize / 64).copied().unwrap_or_default();
        let parts = if word & (1 << (account % 64)) == 0 { &[] } else { self.parts() };
        let window = (self.floor, T::from_offset(T::OFFSET_MAX));
        let sealed = Older::new(parts, account, List::Loops, window, None);
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
