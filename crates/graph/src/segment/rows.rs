//! Rows of a segment: one list of one account each.

use crate::edge::Side;
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

/// Which of an account's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListKind {
    /// Edges that it is the source of.
    Out,
    /// Edges that it is the target of.
    In,
    /// Edges that it is both of, which are in no other list.
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

/// A row that a segment has by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRequest {
    /// Whose row it is.
    pub account: u32,
    /// Which of his.
    pub list: ListKind,
    /// Which of the rows of this list it is, by the index that the segment was given ([`row_of`]).
    pub place: usize,
}

/// Gives rows of a segment whose lists are not in this process' memory.
pub trait RowSource: Debug + Send + Sync {
    /// One list of one account.
    ///
    /// What fails is remembered, and told by [`RowSource::failure`] after the search.
    fn row(&self, wanted: RowRequest) -> SegmentRow<'_>;

    /// Reads where these rows of one kind begin, by their places, as far as they are at hand, so that
    /// the waits for their memory overlap: they are asked for next. Unless it is said how, nothing is
    /// read.
    fn touch(&self, _list: ListKind, _places: &[usize]) {}

    /// Whether [`RowSource::prefetch`] does anything now.
    fn is_prefetching(&self) -> bool {
        false
    }

    /// Says that these rows will be asked for soon. Gives whether it brought some that were not at
    /// hand: then those of the accounts next to them may be missing, too.
    fn prefetch(&self, _wanted: &mut dyn Iterator<Item = RowRequest>) -> bool {
        false
    }

    /// What went wrong since the last question.
    fn failure(&self) -> Option<String>;
}

/// A row of a segment, wherever it came from: entries as they are packed there.
#[derive(Debug)]
pub enum SegmentRow<'a> {
    /// Lent by whoever has it.
    Near(&'a [u64]),
    /// Shared with whoever may drop it at any time.
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
