//! A graph in two parts: a mutable store of the newest edges, and immutable segments of older ones.
//!
//! Each segment holds the edges of a span of time that arrived in order; spans do not overlap. Late
//! edges stay in the store, whatever their time. An account's edges are those of its segments in
//! turn, then the newest; only late edges make a merge necessary.

mod adjacency;
mod numbers;
mod walk;

use crate::accounts::AccountHash;
use crate::edge::Side;
use crate::edge::{Adjacency, Stamp, Visibility};
use crate::error::GraphError;
use crate::segment::SegmentRows;
use crate::segment::{AttachedSegment, CombinedIndex, Segment, SegmentEntries, SegmentWindow};
use crate::segment::{ListKind, RowRequest};
use crate::store::{DynamicGraph, NumberMoves};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Neighbours of accounts with more edges are not prefetched: a search visits few of them, because
/// it takes the cheaper direction.
const NEXT_MAX: usize = 256;

#[derive(Debug)]
pub(crate) struct HybridGraph<T> {
    dynamic: DynamicGraph<T>,
    parts: Vec<AttachedSegment<T>>,
    indexes: CombinedIndex,
    /// The time before which edges of segments are evicted.
    floor: T,
    /// A bit for each account: whether a segment has a self-loop of it.
    looped: Vec<u64>,
    /// Only segments with edges before this sequence number are visible, and the view cuts the last
    /// of them. None: every trigger arrived after all segments.
    shown: Option<u64>,
}

/// Gives access to the store of the newest edges, which calls change.
impl<T> Deref for HybridGraph<T> {
    type Target = DynamicGraph<T>;

    fn deref(&self) -> &DynamicGraph<T> {
        &self.dynamic
    }
}

impl<T> DerefMut for HybridGraph<T> {
    fn deref_mut(&mut self) -> &mut DynamicGraph<T> {
        &mut self.dynamic
    }
}

impl<T: Stamp> From<DynamicGraph<T>> for HybridGraph<T> {
    fn from(dynamic: DynamicGraph<T>) -> HybridGraph<T> {
        let (parts, looped) = (Vec::new(), Vec::new());
        let indexes = CombinedIndex::default();
        HybridGraph { dynamic, parts, indexes, floor: T::default(), looped, shown: None }
    }
}

impl<T: Stamp> HybridGraph<T> {
    /// Adds a segment after the others. The store hides the segment's edges from then on. Accounts
    /// get the small numbers that the segment has for them; `moves` are the changes.
    ///
    /// # Errors
    /// [`GraphError::Segment`] if it is not the next one, or not of this graph.
    pub(crate) fn attach(
        &mut self,
        segment: Arc<Segment>,
        moves: &mut NumberMoves,
    ) -> Result<(), GraphError> {
        let info = segment.info();
        let end = self.parts.last().map_or(0, |part| part.end());
        if info.first < end {
            let what = "the first number of a segment, behind another,";
            return Err(GraphError::Segment { what, given: info.first, expected: end });
        }
        self.check_accounts(&segment)?;
        let what = "the time of a segment";
        let outside = GraphError::Segment { what, given: info.span, expected: T::OFFSET_MAX };
        let next = info.first + info.numbers;
        let part = AttachedSegment::new(segment, self.dynamic.base()).ok_or(outside.clone())?;
        if self.parts.last().is_some_and(|before| part.first <= before.last) {
            return Err(outside);
        }
        self.conform(&part.segment, moves)?;
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

    /// Makes segments visible up to a sequence number, for triggers that are older than other edges
    /// in the graph. None: all segments.
    pub(crate) fn show(&mut self, until: Option<u64>) {
        self.shown = until;
    }

    /// The visible segments.
    fn parts(&self) -> &[AttachedSegment<T>] {
        let Some(until) = self.shown else { return &self.parts };
        let end = self.parts.partition_point(|part| part.segment.info().first < until);
        self.parts.get(..end).unwrap_or_default()
    }

    /// The view that cuts segments; None if every trigger sees all segments.
    fn until(&self, view: Visibility<T>) -> Option<Visibility<T>> {
        self.shown.map(|_| view)
    }

    /// Evicts edges of segments that are older than this. Returns the segments without other edges.
    pub(crate) fn expire(&mut self, oldest: T) -> Vec<Arc<Segment>> {
        self.floor = self.floor.max(oldest);
        let floor = self.floor;
        let expired = self.parts.iter().take_while(|part| part.last < floor).count();
        for part in self.parts.iter().take(expired) {
            self.indexes.drop_first(&part.segment);
        }
        let expired: Vec<_> = self.parts.drain(..expired).map(|part| part.segment).collect();
        expired.iter().for_each(|segment| self.forget_numbers(segment));
        expired
    }

    /// The number of sealed edges that are still in the store.
    pub(crate) fn waiting(&self) -> usize {
        if !self.dynamic.is_draining() {
            return 0;
        }
        let numbers = self.dynamic.records().map(|(number, _)| number);
        let end = self.dynamic.sealed_end();
        numbers.take_while(|one| *one < end).filter(|one| self.dynamic.is_sealed(*one)).count()
    }

    /// The segment that covers a sequence number.
    pub(crate) fn of(&self, number: u64) -> Option<&Segment> {
        let at = self.parts.partition_point(|part| part.segment.info().first <= number);
        let part = self.parts.get(at.checked_sub(1)?)?;
        (number < part.end()).then_some(&*part.segment)
    }

    /// The failure of a segment that is not in this process's memory, with the time of its first
    /// edge.
    pub(crate) fn failure(&self) -> Option<(i64, String)> {
        let failed = |part: &AttachedSegment<T>| {
            part.segment.failure().map(|reason| (part.segment.info().base, reason))
        };
        self.parts.iter().find_map(failed)
    }

    /// The number of edges in segments, evicted or not.
    pub(crate) fn sealed(&self) -> usize {
        self.parts.iter().map(|part| part.segment.info().edges as usize).sum()
    }

    /// Edges of segments that are not evicted: sequence number, source, target, time.
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

    /// The earliest time of an edge, evicted or not.
    pub(crate) fn earliest(&self) -> Option<i64> {
        let sealed = self.parts.first().map(|part| part.segment.info().base);
        [sealed, self.dynamic.earliest()].into_iter().flatten().min()
    }

    pub(crate) fn restamp<S: Stamp>(self, base: i64) -> HybridGraph<S> {
        let floor = self.dynamic.time(self.floor);
        let dynamic: DynamicGraph<S> = self.dynamic.restamp(base);
        // The base is before all times in the graph.
        let parts =
            self.parts.into_iter().filter_map(|part| AttachedSegment::new(part.segment, base));
        let parts: Vec<AttachedSegment<S>> = parts.collect();
        let mut indexes = CombinedIndex::default();
        parts.iter().for_each(|part| indexes.push(&part.segment));
        let floor = dynamic.stamp(floor).unwrap_or_default();
        let (looped, shown) = (self.looped, self.shown);
        HybridGraph { parts, indexes, floor, looped, shown, dynamic }
    }

    /// Rebuilds the store without unused memory. Without memory for a copy, returns false.
    pub(crate) fn rebuild(&mut self, pool: Option<&rayon::ThreadPool>) -> bool {
        let rebuilt = self.dynamic.rebuilt(pool);
        let is_done = rebuilt.is_ok();
        if let Ok(dynamic) = rebuilt {
            self.dynamic = dynamic;
        }
        is_done
    }

    /// Memory of the graph in this process, without segments.
    pub(crate) fn bytes(&self) -> usize {
        self.dynamic.bytes() + self.indexes.bytes() + self.looped.capacity() * size_of::<u64>()
    }

    /// The segments with times in a window, and the position of the first of them.
    fn between(&self, (from, to): (T, T)) -> (usize, &[AttachedSegment<T>]) {
        let parts = self.parts();
        // Most windows begin in the first segment and end after the last.
        let start = match parts.first() {
            Some(oldest) if oldest.last < from => parts.partition_point(|part| part.last < from),
            _ => 0,
        };
        let end = match parts.last() {
            Some(newest) if newest.first > to => parts.partition_point(|part| part.first <= to),
            _ => parts.len(),
        };
        (start, parts.get(start..end).unwrap_or_default())
    }

    /// The segments that overlap a window, and the part of the window that is visible in them.
    fn window(&self, (from, to): (T, T), view: Visibility<T>) -> SegmentWindow<'_, T> {
        let span = (from.max(self.floor).max(view.oldest()), to);
        let (start, parts) = self.between(span);
        SegmentWindow { parts, start, span, until: self.until(view) }
    }

    /// Whether a segment of this window would prefetch rows.
    pub(crate) fn is_prefetching(&self, window: (T, T), view: Visibility<T>) -> bool {
        self.window(window, view).parts.iter().any(|part| part.segment.is_prefetching())
    }

    /// Announces rows of these accounts to far segments. If any had to be fetched, `has_next` also
    /// announces rows of their neighbours, which the search would request one by one.
    pub(crate) fn prefetch(
        &self,
        accounts: &[u32],
        window: (T, T),
        view: Visibility<T>,
        has_next: bool,
    ) {
        let parts = self.window(window, view).parts;
        // No short circuit: every segment must prefetch.
        let bring = |accounts: &[u32]| {
            parts.iter().filter(|part| part.segment.prefetch(accounts)).count() > 0
        };
        if !bring(accounts) || !has_next {
            return;
        }
        let mut next = hashbrown::HashSet::with_hasher(AccountHash);
        let lists = accounts.iter().flat_map(|&one| [(one, Side::Out), (one, Side::In)]);
        for (account, side) in lists {
            if self.at_most(account, side, window, view) <= NEXT_MAX {
                let entries = self.ascending(account, side, window, view);
                next.extend(entries.map(|one| one.other));
            }
        }
        let mut next: Vec<u32> = next.into_iter().collect();
        next.sort_unstable();
        bring(&next);
    }

    fn sealed_count(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> usize {
        if self.parts.is_empty() {
            return 0;
        }
        let window = self.window(window, view);
        let look = self.indexes.look(account, side);
        let Some(first) = window.parts.first() else { return 0 };
        let is_newest = self.parts.last().is_some_and(|newest| newest.last <= window.span.1);
        let is_whole = is_newest && self.shown.is_none() && self.indexes.has_totals();
        if is_whole && window.start <= window.parts.len() {
            if look.total() == 0 {
                return 0;
            }
            // Fewer segments are outside the window than inside, so count those.
            let list = ListKind::from(side);
            let wanted = |at| RowRequest { account, list, place: look.row(at) };
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

    /// The rows of an account in a window, from the oldest to the newest.
    fn rows<'a>(
        &'a self,
        account: u32,
        side: Side,
        window: SegmentWindow<'a, T>,
    ) -> SegmentRows<'a, T> {
        SegmentRows::new(self.indexes.look(account, side), account, side, window)
    }

    /// Prefetches the totals of these accounts in segments.
    fn touch_totals(&self, side: Side, accounts: impl Iterator<Item = u32>) {
        if !self.parts.is_empty() {
            let totals = accounts.map(|account| self.indexes.total(account, side));
            std::hint::black_box(totals.fold(0, |all, one| all ^ one));
        }
    }

    /// The entries of an account in the segments of a window.
    fn older<'a, const BACKWARD: bool>(
        &'a self,
        account: u32,
        side: Side,
        window: (T, T),
        view: Visibility<T>,
    ) -> SegmentEntries<'a, T, BACKWARD> {
        SegmentEntries::new(self.rows(account, side, self.window(window, view)))
    }
}
