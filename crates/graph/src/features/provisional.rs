//! Rows that are in the graph and may still go again: whoever keeps them elsewhere too, a log say,
//! does both at once and decides when both are done.

use super::GraphFeatures;
use super::engine::with_engine;
use crate::error::GraphError;
use crate::kind::Kind;

/// Whether rows may go again.
#[derive(Debug, Default)]
pub(super) enum Provisional {
    #[default]
    None,
    /// Those of the next call.
    Next,
    /// Those of a call that was made, after so many rows and cut searches.
    Made { rows: u64, cut_short: [u64; Kind::COUNT] },
}

impl GraphFeatures {
    /// Has the rows of the next call be provisional, until [`GraphFeatures::keep`] or
    /// [`GraphFeatures::undo`]. Meanwhile nothing is evicted, and no other rows are taken.
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
    /// [`GraphError::Pending`] and [`GraphError::Provisional`]: rows of an earlier call wait.
    pub fn begin(&mut self) -> Result<(), GraphError> {
        self.refuse_while_waiting()?;
        self.provisional = Provisional::Next;
        Ok(())
    }

    /// Keeps provisional rows.
    pub fn keep(&mut self) {
        if let Provisional::Made { .. } = std::mem::take(&mut self.provisional) {
            with_engine!(
                &mut self.engine,
                |engine| engine.keep(&self.settings, self.pool.as_ref()),
                ()
            );
        }
    }

    /// Takes provisional rows back: the graph is as it was before them.
    pub fn undo(&mut self) {
        if let Provisional::Made { rows, cut_short } = std::mem::take(&mut self.provisional) {
            (self.rows, self.cut_short) = (rows, cut_short);
            with_engine!(&mut self.engine, |engine| engine.rewind(), ());
        }
    }

    /// Rows of a call come now, and the graph keeps times in a way that has room for them.
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
            _ => Ok(()),
        }
    }

    /// Other rows would see those that have no features yet, or those that may go again.
    pub(super) fn refuse_while_waiting(&self) -> Result<(), GraphError> {
        self.refuse_while_pending()?;
        self.refuse_while_provisional()
    }
}
