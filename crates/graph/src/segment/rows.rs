//! Rows of a segment: each is one list of one account.

use crate::edge::Side;
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

/// One of an account's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListKind {
    /// Outgoing edges.
    Out,
    /// Incoming edges.
    In,
    /// Self-loops, which are in no other list.
    Loops,
}

impl ListKind {
    /// All three.
    pub const ALL: [ListKind; 3] = [ListKind::Out, ListKind::In, ListKind::Loops];
}

impl From<Side> for ListKind {
    fn from(side: Side) -> ListKind {
        match side {
            Side::Out => ListKind::Out,
            Side::In => ListKind::In,
        }
    }
}

/// A request for one row of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRequest {
    /// The account of the row.
    pub account: u32,
    /// The list of the row.
    pub list: ListKind,
    /// The position of the row in this list, from the segment's index
    /// ([`row_of`](crate::row_of)).
    pub place: usize,
}

/// A source of rows for a segment whose lists are not in this process's memory.
pub trait RowSource: Debug + Send + Sync {
    /// One row.
    ///
    /// A source remembers a failure, and reports it by [`RowSource::failure`] after the search.
    fn row(&self, wanted: RowRequest) -> SegmentRow<'_>;

    /// Prefetches the beginnings of these rows of one list, as far as they are local, so that cache
    /// misses overlap. Requests for the rows follow. By default, does nothing.
    fn touch(&self, _list: ListKind, _places: &[usize]) {}

    /// Whether [`RowSource::prefetch`] does anything now.
    fn is_prefetching(&self) -> bool {
        false
    }

    /// Announces rows that will be requested soon. Returns whether some of them were not local and
    /// have been fetched. In that case, rows of neighbouring accounts may be missing too.
    fn prefetch(&self, _wanted: &mut dyn Iterator<Item = RowRequest>) -> bool {
        false
    }

    /// The failure since the last call of this method.
    fn failure(&self) -> Option<String>;
}

/// A row of a segment: packed entries.
#[derive(Debug)]
pub enum SegmentRow<'a> {
    /// Borrowed from the segment's memory.
    Near(&'a [u64]),
    /// Shared with a cache that may drop it at any time.
    Far(Arc<[u64]>),
}

impl Deref for SegmentRow<'_> {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        match self {
            SegmentRow::Near(row) => row,
            SegmentRow::Far(row) => row,
        }
    }
}
