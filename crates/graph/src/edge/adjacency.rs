//! The interface through which searches read a graph.
//!
//! `DynamicGraph` implements it for the newest edges, and `HybridGraph` for those and the segments.
//! Self-loops are separate: most patterns exclude them.

use super::{EdgeEntry, Side, Stamp, Visibility};

/// One side of one account, as a trigger sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vertex<T> {
    pub account: u32,
    pub side: Side,
    pub window: (T, T),
    pub view: Visibility<T>,
}

/// Read access to a graph for searches. Entries of an account are in order of time; entries of one
/// instant are in order of arrival. Windows are closed at both ends.
pub(crate) trait Adjacency<T: Stamp>: Sync {
    /// Whether all edges that are alive arrived in order of time.
    fn is_ordered(&self) -> bool;

    /// Whether an edge that was in the graph is removed for every later trigger. This can be true
    /// only where edges are removed in order of arrival.
    fn has_dropped(&self, entry: EdgeEntry<T>) -> bool;

    /// Whether an account has edges on this side, or had some recently.
    fn has_any(&self, account: u32, side: Side) -> bool;

    /// Prefetches the data of `has_any`, so that the cache misses of many accounts overlap.
    fn touch_any(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone);

    /// The caller's number of an account.
    fn key(&self, account: u32) -> i64;

    /// The position of an account in the order of first appearance.
    fn order(&self, account: u32) -> u64;

    /// The visible edges of an account on one side, self-loops excluded.
    fn ascending(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        view: Visibility<T>,
    ) -> impl Iterator<Item = EdgeEntry<T>>;

    /// The edges of `ascending`, the newest first.
    fn descending(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        view: Visibility<T>,
    ) -> impl Iterator<Item = EdgeEntry<T>>;

    /// The edges of `ascending` as a slice, if they are contiguous.
    fn slice(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        view: Visibility<T>,
    ) -> Option<&[EdgeEntry<T>]>;

    /// Appends the edges of `ascending` if there are at most `most`; returns whether it did. The
    /// graph is in order of time, or `most` is `usize::MAX`.
    fn gather(&self, vertex: Vertex<T>, most: usize, into: &mut Vec<EdgeEntry<T>>) -> bool;

    /// Prefetches the data of `count_bound`, so that cache misses overlap.
    fn touch_counts(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone);

    /// Prefetches the beginning and end of these lists, so that cache misses overlap.
    fn touch(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone, window: (T, T));

    /// After `touch_counts`, prefetches the rest of the data of `touch`.
    fn touch_rows(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone, window: (T, T));

    /// An upper bound of `at_most`, computed in less time.
    fn count_bound(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> usize;

    /// An upper bound of the number of edges in `ascending`, computed without a scan. It is exact
    /// if edges arrived in order of time.
    fn at_most(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> usize;

    /// The time of the first edge in `ascending`.
    fn first(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> Option<T>;

    /// The time of the last edge in `ascending`.
    fn last(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> Option<T>;

    /// The number of edges in `ascending`.
    fn count(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> usize;

    /// The self-loops of an account, in order of time.
    fn loops(&self, account: u32) -> impl Iterator<Item = EdgeEntry<T>>;
}
