//! Provisional rows: they are in the graph, and the caller may still roll them back.
//!
//! A caller that also writes rows to a log can do both in parallel, and decide when both are done.

use super::GraphFeatures;
use super::engine::{Engine, with_engine};
use crate::error::GraphError;
use crate::kind::PatternKind;

/// Whether rows are provisional.
#[derive(Debug, Default)]
pub(super) enum Provisional {
    #[default]
    None,
    /// The rows of the next call will be provisional.
    Next,
    /// The rows of a past call are provisional. The counters are from before that call.
    Made { rows: u64, cut_short: [u64; PatternKind::COUNT] },
    /// All rows are: they replaced this graph, which had these counters.
    Restarted { before: Engine, rows: u64, cut_short: [u64; PatternKind::COUNT] },
}

impl GraphFeatures {
    /// Makes the rows of the next call provisional, until [`GraphFeatures::keep`] or
    /// [`GraphFeatures::undo`]. Until then, nothing is evicted and no other rows are accepted.
    ///
    /// ```
    /// use farrow_graph::{PatternSettings, Edges, GraphFeatures, Settings};
    /// let fan = PatternSettings { window: 10, bins: vec![2, 3] };
    /// let mut features = GraphFeatures::new(Settings { fan: Some(fan), ..Settings::default() })?;
    /// let edges = Edges { ids: &[0], sources: &[1], targets: &[9], times: &[1], columns: &[] };
    /// features.begin()?;
    /// features.transform(&edges)?;
    /// features.undo();
    /// assert_eq!(features.stats().edges, 0);
    /// # Ok::<(), farrow_graph::GraphError>(())
    /// ```
    ///
    /// # Errors
    /// [`GraphError::Pending`] or [`GraphError::Provisional`] if an earlier call left such rows.
    pub fn begin(&mut self) -> Result<(), GraphError> {
        self.refuse_while_waiting()?;
        self.provisional = Provisional::Next;
        Ok(())
    }

    /// Commits the provisional rows.
    pub fn keep(&mut self) {
        if let Provisional::Made { .. } = std::mem::take(&mut self.provisional) {
            with_engine!(
                &mut self.engine,
                |engine| engine.keep(&self.settings, self.workers.pool()),
                ()
            );
        }
    }

    /// Rolls the provisional rows back; the graph is as it was before them.
    pub fn undo(&mut self) {
        match std::mem::take(&mut self.provisional) {
            Provisional::None | Provisional::Next => {}
            Provisional::Made { rows, cut_short } => {
                (self.rows, self.cut_short) = (rows, cut_short);
                with_engine!(&mut self.engine, |engine| engine.rewind(), ());
            }
            Provisional::Restarted { before, rows, cut_short } => {
                (self.engine, self.rows, self.cut_short) = (before, rows, cut_short);
            }
        }
    }

    /// Sets the rollback point of provisional rows, just before they are added. The graph's stamps
    /// already cover their times.
    pub(super) fn note_provisional(&mut self) {
        if !matches!(self.provisional, Provisional::Next) {
            return;
        }
        with_engine!(&mut self.engine, |engine| engine.begin(), return);
        self.provisional = Provisional::Made { rows: self.rows, cut_short: self.cut_short };
    }

    pub(super) fn refuse_while_provisional(&self) -> Result<(), GraphError> {
        match self.provisional {
            Provisional::Made { rows, .. } => {
                Err(GraphError::Provisional { rows: self.rows - rows })
            }
            Provisional::Restarted { .. } => Err(GraphError::Provisional { rows: self.rows }),
            Provisional::None | Provisional::Next => Ok(()),
        }
    }

    /// Fails if there are pending or provisional rows, which other rows must not see.
    pub(super) fn refuse_while_waiting(&self) -> Result<(), GraphError> {
        self.refuse_while_pending()?;
        self.refuse_while_provisional()
    }
}
