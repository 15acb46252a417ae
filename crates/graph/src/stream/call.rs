//! One call: its rows, the order in which they are added, and the output for their features.

use crate::error::GraphError;
use crate::interrupt::{CallInterrupt, is_set};
use crate::memory::AllocationFailed;
use crate::settings::Settings;
use rayon::ThreadPool;

/// Temporary memory of one row of a call, besides its counts and statistics: a trigger, positions
/// in orders and groups, entries in account tables, and tree nodes of a late edge.
const ROW_BYTES: usize = 256;
/// Memory of the searches' tables, unless accounts have many thousands of edges.
const SEARCH_BYTES: usize = 64 << 10;

/// Rows of a stream: column by column, all of the same length.
#[derive(Clone, Copy, Debug)]
pub struct Edges<'a> {
    /// The edges' ids. In batch mode, only the first row of a call with some id becomes an edge.
    pub ids: &'a [i64],
    /// The paying accounts.
    pub sources: &'a [i64],
    /// The paid accounts.
    pub targets: &'a [i64],
    /// The timestamps, in any unit.
    pub times: &'a [i64],
    /// The columns that the statistics measure.
    pub columns: &'a [&'a [f64]],
}

impl<'a> Edges<'a> {
    /// The rows from `from` to `to`, without the measured columns.
    pub(crate) fn slice(&self, from: usize, to: usize) -> Edges<'a> {
        Edges {
            ids: &self.ids[from..to],
            sources: &self.sources[from..to],
            targets: &self.targets[from..to],
            times: &self.times[from..to],
            columns: &[],
        }
    }
}

/// The inputs of every step of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallContext<'a> {
    pub settings: &'a Settings,
    /// All threads except the caller's.
    pub pool: Option<&'a ThreadPool>,
    pub edges: &'a Edges<'a>,
    /// The rows that become edges, in the order in which they are added.
    pub order: &'a [u32],
    pub interrupt: Option<&'a dyn CallInterrupt>,
}

impl CallContext<'_> {
    /// Whether the call must end without a result.
    pub(crate) fn is_interrupted(&self) -> bool {
        is_set(self.interrupt)
    }
}

/// The reason why a part of a call was not done. The graph is as before this part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartFailure {
    OutOfMemory(AllocationFailed),
    Interrupted,
}

impl From<AllocationFailed> for PartFailure {
    fn from(full: AllocationFailed) -> PartFailure {
        PartFailure::OutOfMemory(full)
    }
}

impl PartFailure {
    /// The error of a call with `rows` rows, of which `taken` are in the graph.
    pub(crate) fn error(self, rows: usize, taken: usize) -> GraphError {
        match self {
            PartFailure::OutOfMemory(full) => full.error(rows, taken),
            PartFailure::Interrupted => GraphError::Interrupted { rows, taken },
        }
    }
}

/// The features that a call returns.
#[derive(Debug)]
pub(crate) struct FeatureRequest<'a> {
    /// For each row, the position of its edge in the call's order.
    pub places: &'a [u32],
    pub output: FeatureOutput<'a>,
    /// The most patterns to return; None: no patterns.
    pub patterns_max: Option<usize>,
}

/// The cells to write: those of row `r` begin at `r * stride + offset`.
#[derive(Debug)]
pub(crate) struct FeatureOutput<'a> {
    pub cells: &'a mut [f64],
    pub stride: usize,
    pub offset: usize,
    pub share: WorkShare,
}

/// One part of a call's work: every `count`-th piece, from `index` on. The counts of all shares
/// add up to those of the whole.
#[derive(Clone, Copy, Debug)]
pub struct WorkShare {
    /// The number of the share, below `count`.
    pub index: usize,
    /// The number of shares.
    pub count: usize,
}

impl WorkShare {
    pub(crate) const WHOLE: WorkShare = WorkShare { index: 0, count: 1 };

    pub(crate) fn has(self, piece: usize) -> bool {
        piece % self.count == self.index
    }
}

/// Temporary memory of a call with `rows` rows.
pub(crate) fn call_bytes(settings: &Settings, rows: usize) -> usize {
    let statistics = settings.statistics.as_ref().map_or(0, |one| 4 * one.width());
    let counts = settings.histogram_width() * settings.threads * size_of::<u32>();
    let row = ROW_BYTES + counts + statistics * size_of::<f64>();
    rows.saturating_mul(row).saturating_add(SEARCH_BYTES)
}
