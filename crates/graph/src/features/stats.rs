//! Counters of a graph: its size and its work.

use crate::edge::Stamp;
use crate::kind::PatternKind;
use crate::stream::StreamEngine;

/// Counters of a graph: its size and its work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphStats {
    /// Edges that are alive. Edges of a segment count until the whole segment is evicted, although
    /// some of them may be too old to be visible.
    pub edges: usize,
    /// Known accounts.
    pub accounts: usize,
    /// Memory of the graph in this process, without segments, in bytes.
    pub bytes: usize,
    /// The number of segments.
    pub segments: usize,
    /// Edges in segments.
    pub sealed: usize,
    /// Edges that a segment holds and this process has yet to remove.
    pub draining: usize,
    /// Memory of the segments in bytes, without lists that are not mapped.
    pub sealed_bytes: usize,
    /// The latest time of a row so far.
    pub now: Option<i64>,
    /// Rows that were added since the graph was empty.
    pub rows: u64,
    /// Searches that ended at [`Settings::work_max`](crate::Settings::work_max), by
    /// [`PatternKind`].
    pub cut_short: [u64; PatternKind::COUNT],
}

impl<T: Stamp> StreamEngine<T> {
    pub(super) fn size(&self) -> GraphStats {
        let segments = self.graph.segments();
        GraphStats {
            edges: self.graph.len() - self.graph.waiting() + self.graph.sealed(),
            accounts: self.graph.accounts(),
            bytes: self.bytes(),
            segments: segments.len(),
            sealed: self.graph.sealed(),
            draining: self.graph.waiting(),
            sealed_bytes: segments.map(|one| one.bytes()).sum(),
            now: self.now,
            ..GraphStats::default()
        }
    }
}
