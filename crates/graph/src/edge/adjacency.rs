//! The temporal graph: who paid whom, and when.
//!
//! [`DynamicGraph`] holds the newest edges as time-sorted lists of both ends, one half for each, a [`Segment`] those of an
//! older span of time; [`HybridGraph`] shows them as one graph. Patterns read it through [`Adjacency`]
//! alone. Self-loops lie apart: most patterns exclude them.

use super::{Entry, Side, Stamp, Visibility};

/// What patterns ask of a graph. Entries of an account come in order of time, those of one
/// instant in order of arrival. Windows are closed at both ends.
pub(crate) trait Adjacency<T: Stamp>: Sync {
    /// Whether edges arrived in order of time, all that are alive.
    fn is_ordered(&self) -> bool;

    /// Whether an edge that was there is gone for all that come: true only where edges leave in
    /// order of arrival.
    fn has_dropped(&self, entry: Entry<T>) -> bool;

    /// Whether an account has, or had lately, edges on this side.
    fn has_any(&self, account: u32, side: Side) -> bool;

    /// Reads what `has_any` asks, so that the waits of many overlap.
    fn touch_any(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone);

    /// The caller's number of an account.
    fn key(&self, account: u32) -> i64;

    /// Place of an account in the order of first appearance.
    fn order(&self, account: u32) -> u64;

    /// Edges of an account, self-loops apart, that the lens lets through.
    fn ascending(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        view: Visibility<T>,
    ) -> impl Iterator<Item = Entry<T>>;

    /// The same, the newest first.
    fn descending(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        view: Visibility<T>,
    ) -> impl Iterator<Item = Entry<T>>;

    /// What `ascending` gives where it lies, if it lies at one place.
    fn slice(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        view: Visibility<T>,
    ) -> Option<&[Entry<T>]>;

    /// Adds what `ascending` gives, if that is no more than `most`; says whether it is. The graph
    /// is in order of time, or `most` is the largest there is.
    fn gather(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        view: Visibility<T>,
        most: usize,
        into: &mut Vec<Entry<T>>,
    ) -> bool;

    /// Reads what `count_bound` asks of these lists, so that the waits for their memory overlap.
    fn touch_counts(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone);

    /// Reads where these lists begin and end, so that the waits for their memory overlap.
    fn touch(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone, window: (T, T));

    /// Of lists whose counts have been touched: what `touch` reads beside that.
    fn touch_rows(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone, window: (T, T));

    /// As `at_most`, and perhaps more than that, where it is found in less time.
    fn count_bound(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> usize;

    /// How many edges `ascending` would give, at most, found without looking at each. Exact where
    /// edges came in order of time.
    fn at_most(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> usize;

    /// Time of the first edge that `ascending` gives.
    fn first(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> Option<T>;

    /// Time of the last edge that `ascending` gives.
    fn last(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> Option<T>;

    /// How many edges `ascending` gives.
    fn count(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> usize;

    /// Self-loops of an account, in order of time.
    fn loops(&self, account: u32) -> impl Iterator<Item = Entry<T>>;
}
