//! The interface through which searches read a graph.
//!
//! A `DynamicGraph` of the newest edges implements it, and so does a `HybridGraph` of those and the
//! segments. Self-loops are separate: most patterns exclude them.

use super::{EdgeEntry, Side, Stamp, Visibility};

/// What searches ask of a graph. Entries of an account come in order of time; entries of one
/// instant come in order of arrival. Windows are closed at both ends.
pub(crate) trait Adjacency<T: Stamp>: Sync {
    /// Whether all edges that are alive arrived in order of time.
    fn is_ordered(&self) -> bool;

    /// Whether an edge that existed has been removed for every later trigger. This is true only
    /// where edges leave in order of arrival.
    fn has_dropped(&self, entry: EdgeEntry<T>) -> bool;

    /// Whether an account has edges on this side, or had some recently.
    fn has_any(&self, account: u32, side: Side) -> bool;

    /// Reads what `has_any` needs, so that the waits of many accounts overlap.
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

    /// The edges of `ascending` as a slice, if they lie together.
    fn slice(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        view: Visibility<T>,
    ) -> Option<&[EdgeEntry<T>]>;

    /// Appends the edges of `ascending` if there are at most `most`, and says whether that is so.
    /// The graph is in order of time, or `most` is `usize::MAX`.
    fn gather(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        view: Visibility<T>,
        most: usize,
        into: &mut Vec<EdgeEntry<T>>,
    ) -> bool;

    /// Reads what `count_bound` needs, so that the waits for memory overlap.
    fn touch_counts(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone);

    /// Reads where these lists begin and end, so that the waits for memory overlap.
    fn touch(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone, window: (T, T));

    /// After `touch_counts`, reads what `touch` reads beyond that.
    fn touch_rows(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone, window: (T, T));

    /// An upper bound of `at_most`, found in less time.
    fn count_bound(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> usize;

    /// An upper bound of the number of edges in `ascending`, found without a look at each. It is
    /// exact where edges arrived in order of time.
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
