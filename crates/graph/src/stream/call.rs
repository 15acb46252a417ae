//! One call: its rows, the order in which they are added, and where their features go.

use crate::settings::Settings;
use rayon::ThreadPool;

/// Memory of one row of a call while the call lasts, beside its counts and statistics. It holds a
/// trigger, places in orders and groups, entries in account tables, and tree nodes of a late edge.
const ROW_BYTES: usize = 256;
/// Memory of the searches' tables, unless accounts have many thousands of edges.
const SEARCH_BYTES: usize = 64 << 10;

/// Rows of a stream: column by column, all of the same length.
#[derive(Clone, Copy, Debug)]
pub struct Edges<'a> {
    /// The edges' ids. In batch mode, of rows with one id only the first of a call is an edge.
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
    /// The rows from one to another, without the measured columns.
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

/// What every step of a call needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallContext<'a> {
    pub settings: &'a Settings,
    /// All threads but the caller's.
    pub pool: Option<&'a ThreadPool>,
    pub edges: &'a Edges<'a>,
    /// The rows that become edges, in the order in which they are added.
    pub order: &'a [u32],
}

/// The features that a call returns.
#[derive(Debug)]
pub(crate) struct FeatureRequest<'a> {
    /// For each row, the place of its edge in the call's order.
    pub places: &'a [u32],
    pub output: FeatureOutput<'a>,
    /// How many patterns the caller wants named; None: none.
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
    /// Which share; below `count`.
    pub index: usize,
    /// How many shares there are.
    pub count: usize,
}

impl WorkShare {
    pub(crate) const WHOLE: WorkShare = WorkShare { index: 0, count: 1 };

    pub(crate) fn has(self, piece: usize) -> bool {
        piece % self.count == self.index
    }
}

/// Memory of a call with `rows` rows, beside what the graph retains of them.
pub(crate) fn call_bytes(settings: &Settings, rows: usize) -> usize {
    let statistics = settings.statistics.as_ref().map_or(0, |one| 4 * one.width());
    let counts = settings.histogram_width() * settings.threads * size_of::<u32>();
    let row = ROW_BYTES + counts + statistics * size_of::<f64>();
    rows.saturating_mul(row).saturating_add(SEARCH_BYTES)
}
