//! Older parts of a graph as immutable segments: frozen, attached, adopted, shared.

use super::GraphFeatures;
use super::engine::{Engine, with_engine};
use crate::error::GraphError;
use crate::segment::{FrozenSpan, Segment};
use crate::segment::{ListKind, SegmentInfo};
use crate::stream::{Edges, FeatureOutput, LateEdges, WorkShare};
use std::sync::Arc;

impl GraphFeatures {
    /// A copy of the oldest full span of time ([`crate::Settings::segment`]) that has no segment
    /// yet. The graph retains the span until [`GraphFeatures::attach`] adds its segment, which
    /// another thread may build.
    ///
    /// ```
    /// use farrow_graph::{PatternSettings, Edges, GraphFeatures, Settings};
    /// use std::sync::Arc;
    /// let fan = PatternSettings { window: 30, bins: vec![2, 3] };
    /// let settings = Settings { fan: Some(fan), segment: Some(10), ..Settings::default() };
    /// let mut features = GraphFeatures::new(settings)?;
    /// let (ids, times) = ([0, 1, 2], [1, 9, 10]);
    /// let edges = Edges { ids: &ids, sources: &[1, 2, 3], targets: &[9; 3], times: &times, columns: &[] };
    /// features.learn(&edges)?;
    /// // Times 0 to 9 are over.
    /// let frozen = features.freeze().expect("a full span");
    /// features.attach(Arc::new(frozen.plan()?.build()?))?;
    /// assert_eq!((features.stats().sealed, features.stats().edges), (2, 3));
    /// # Ok::<(), farrow_graph::GraphError>(())
    /// ```
    pub fn freeze(&self) -> Option<FrozenSpan> {
        // A segment must not contain rows that may be rolled back.
        self.refuse_while_provisional().ok()?;
        with_engine!(&self.engine, |engine| engine.freeze(&self.settings), None)
    }

    /// Replaces the edges of a span with the segment that was built from it.
    ///
    /// # Errors
    /// [`GraphError::Segment`] if it is not the next one of this graph;
    /// [`GraphError::Provisional`]. Nothing changes then.
    pub fn attach(&mut self, segment: Arc<Segment>) -> Result<(), GraphError> {
        self.refuse_while_provisional()?;
        self.fits(&segment)?;
        with_engine!(&mut self.engine, |engine| engine.attach(segment), Ok(()))
    }

    /// Replaces this graph's content with another one's segments, oldest first, the result of its
    /// [`GraphFeatures::accounts`], and its late edges. Later rows get sequence numbers from `next`
    /// on.
    ///
    /// # Errors
    /// Those of [`GraphFeatures::attach`]; [`GraphError::Setting`] without
    /// [`crate::Settings::segment`]. The graph is empty then.
    pub fn adopt(
        &mut self,
        accounts: &[i64],
        segments: impl IntoIterator<Item = Arc<Segment>>,
        late: &LateEdges,
        next: u64,
    ) -> Result<(), GraphError> {
        if self.settings.segment.is_none() {
            let (parameter, reason) = ("segment".into(), "is needed to take segments up".into());
            return Err(GraphError::Setting { parameter, reason });
        }
        self.clear();
        let segments: Vec<Arc<Segment>> = segments.into_iter().collect();
        let rows = late.numbers.len();
        let LateEdges { ids, fronts, sources, targets, times, columns, .. } = late;
        let plain = [ids.len(), fronts.len(), sources.len(), targets.len(), times.len()];
        for length in plain.into_iter().chain(columns.iter().map(Vec::len)) {
            if length != rows {
                let column = "of a late edge";
                return Err(GraphError::Rows { column, rows: length, expected: rows });
            }
        }
        let bases = segments.iter().map(|one| one.info().base);
        let first = bases.chain(late.times.iter().copied()).min();
        let last = segments.last().map(|one| end(one.info()));
        let first = first.unwrap_or_default();
        self.engine = Engine::spanning(&self.settings, first, last.unwrap_or(first));
        with_engine!(&mut self.engine, |engine| engine.graph.remember(accounts), ());
        let adopted = segments.into_iter().try_for_each(|segment| self.attach(segment));
        with_engine!(&mut self.engine, |engine| engine.insert_late(late, next), ());
        if adopted.is_err() {
            self.clear();
        }
        adopted
    }

    /// The late edges, which no segment holds.
    pub fn late_edges(&self) -> LateEdges {
        with_engine!(&self.engine, |engine| engine.late_edges(), LateEdges::default())
    }

    /// The accounts with small numbers from `from` on, which [`GraphFeatures::adopt`] needs from 0
    /// on. None, unless this graph always remembers in which order accounts appeared: in batch
    /// mode, simple cycles depend on it. Otherwise segments name their accounts.
    pub fn accounts(&self, from: usize) -> Vec<i64> {
        with_engine!(&self.engine, |engine| engine.graph.permanent_keys(from), Vec::new())
    }

    /// The edges of one account between two times, both included, in order of time. Each item is
    /// the account at the other end, and the time. Self-loops are in a separate list.
    pub fn edges_of(&self, account: i64, list: ListKind, from: i64, to: i64) -> Vec<(i64, i64)> {
        with_engine!(&self.engine, |engine| engine.edges_of(account, list, from, to), Vec::new())
    }

    /// The sequence number of the next row.
    pub fn next_number(&self) -> u64 {
        with_engine!(&self.engine, |engine| engine.graph.next(), 0)
    }

    /// Whether edges that a segment holds have yet to be removed from this process. Costs the same for
    /// any number of edges; [`GraphStats::draining`](crate::GraphStats::draining) counts them.
    pub fn is_draining(&self) -> bool {
        with_engine!(&self.engine, |engine| engine.graph.is_draining(), false)
    }

    /// The segments that were evicted since the last call of this method.
    pub fn expired(&mut self) -> Vec<SegmentInfo> {
        with_engine!(&mut self.engine, |engine| std::mem::take(&mut engine.expired), Vec::new())
    }

    /// Does one share of the work of [`GraphFeatures::transform_into`]. If several graphs with the
    /// same edges each do one share, their cells add up to those of the whole.
    ///
    /// # Errors
    /// Those of [`GraphFeatures::transform_into`]; [`GraphError::Setting`] if the share does not
    /// exist.
    pub fn transform_share(
        &mut self,
        edges: &Edges<'_>,
        cells: &mut [f64],
        stride: usize,
        offset: usize,
        share: WorkShare,
    ) -> Result<(), GraphError> {
        let WorkShare { index, count } = share;
        if index >= count {
            let reason = format!("is {index}; there are {count}");
            return Err(GraphError::Setting { parameter: "share".into(), reason });
        }
        let output = FeatureOutput { cells, stride, offset, share };
        self.run(edges, output, None).map(|_| ())
    }

    /// Checks that a segment has the columns that the settings need.
    fn fits(&self, segment: &Segment) -> Result<(), GraphError> {
        if self.settings.keeps_ids && !segment.has_ids() {
            return Err(GraphError::NoIds);
        }
        let expected = self.given_columns();
        if segment.columns() != expected {
            return Err(GraphError::Columns { given: segment.columns(), expected });
        }
        let span = i128::from(segment.info().base) + i128::from(segment.info().span);
        if span > i128::from(i64::MAX) {
            let what = "the span of a segment in time";
            let given = segment.info().span;
            let expected = i64::MAX.abs_diff(segment.info().base);
            return Err(GraphError::Segment { what, given, expected });
        }
        Ok(())
    }
}

/// The time of a segment's last edge.
fn end(info: &SegmentInfo) -> i64 {
    info.base.saturating_add_unsigned(info.span)
}
