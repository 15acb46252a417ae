//! What a graph holds, in numbers.

use crate::edge::Stamp;
use crate::kind::Kind;
use crate::stream::StreamEngine;

/// What a graph holds and has cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphStats {
    /// Edges that are alive.
    pub edges: usize,
    /// Accounts that are known.
    pub accounts: usize,
    /// Memory of the graph in this process, segments apart.
    pub bytes: usize,
    /// Segments, and their edges and bytes. They go as a whole: some of these edges, which count
    /// as alive above, may be too old to be seen.
    pub segments: usize,
    /// Edges in segments.
    pub sealed: usize,
    /// Edges that segments have and that wait to be taken out of this process.
    pub draining: usize,
    /// Memory of the segments, wherever it lies.
    pub sealed_bytes: usize,
    /// The latest time that came.
    pub now: Option<i64>,
    /// Rows that came since the graph was empty.
    pub rows: u64,
    /// Searches that ended at [`Settings::work_max`], by [`Kind`].
    pub cut_short: [u64; Kind::COUNT],
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
