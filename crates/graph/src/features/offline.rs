//! Offline mode: all rows are added first, then their features are computed row by row.

use super::engine::with_engine;
use super::{Evidence, GraphFeatures};
use crate::error::GraphError;
use crate::settings::Mode;
use crate::store::EDGES_MAX;
use crate::stream::CallContext;
use crate::stream::{Edges, PendingRows};

impl GraphFeatures {
    /// Adds rows whose features [`GraphFeatures::transform_pending`] computes later. The results
    /// are the same as on arrival. Until then, nothing is evicted, and no other rows are accepted.
    ///
    /// ```
    /// use farrow_graph::{PatternSettings, Edges, GraphFeatures, Mode, Settings};
    /// let fan = Some(PatternSettings { window: 10, bins: vec![2, 3] });
    /// let mut features = GraphFeatures::new(Settings { mode: Mode::Causal, fan, ..Settings::default() })?;
    /// let (sources, times) = ([1, 2, 3], [1, 2, 3]);
    /// let edges = Edges { ids: &times, sources: &sources, targets: &[9; 3], times: &times, columns: &[] };
    /// features.learn_pending(&edges)?;
    /// // All three are there, and the second one does not see the third.
    /// assert_eq!(features.transform_pending(2)?, [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
    /// assert_eq!(features.transform_pending(2)?, [0.0, 1.0, 0.0, 0.0]);
    /// # Ok::<(), farrow_graph::GraphError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`GraphFeatures::learn`]; [`GraphError::Setting`] in batch mode, where a row's
    /// features depend on the other rows of its call. Nothing changes then.
    pub fn learn_pending(&mut self, edges: &Edges<'_>) -> Result<(), GraphError> {
        if self.settings.mode == Mode::Batch {
            let reason = "must be causal: in batch mode a row's features are those of its call";
            return Err(GraphError::Setting { parameter: "mode".into(), reason: reason.into() });
        }
        self.refuse_while_provisional()?;
        let rows = self.rows_of(edges)?;
        self.afford(edges)?;
        let order: Vec<u32> = rows.collect();
        let (added, alive) = (order.len(), self.pending());
        if alive.saturating_add(added) > EDGES_MAX {
            return Err(GraphError::TooMany { added, alive, most: EDGES_MAX });
        }
        self.make_room(edges, added)?;
        self.note_provisional();
        let (settings, interrupt) = (&self.settings, self.interrupt.as_deref());
        let call = CallContext { settings, pool: None, edges, order: &order, interrupt };
        let learnt = with_engine!(&mut self.engine, |engine| engine.learn_pending(&call), Ok(()));
        self.count(added, learnt)
    }

    /// The number of rows without features.
    pub fn pending(&self) -> usize {
        with_engine!(&self.engine, |engine| engine.pending.as_ref().map_or(0, PendingRows::len), 0)
    }

    /// The features of the next `rows` pending rows, or of all if fewer are left:
    /// [`crate::Settings::width`] values for each row.
    ///
    /// # Errors
    /// Too little memory for the result, before anything is done; edges that cannot be read;
    /// [`GraphError::Interrupted`], after which all of these rows are pending again.
    pub fn transform_pending(&mut self, rows: usize) -> Result<Vec<f64>, GraphError> {
        let rows = rows.min(self.pending());
        let mut cells = self.cells(rows)?;
        let (settings, pool) = (&self.settings, self.workers.pool());
        let interrupt = self.interrupt.as_deref();
        let outcome = with_engine!(
            &mut self.engine,
            |engine| engine.transform_pending(settings, rows, &mut cells, pool, interrupt),
            return Ok(cells)
        );
        let outcome = outcome.map_err(|failure| failure.error(rows, 0))?;
        self.take(outcome, &mut Evidence::default())?;
        Ok(cells)
    }

    /// Leaves the pending rows in the graph without features.
    pub fn drop_pending(&mut self) {
        let settings = &self.settings;
        with_engine!(&mut self.engine, |engine| engine.drop_pending(settings), ())
    }

    pub(super) fn refuse_while_pending(&self) -> Result<(), GraphError> {
        match self.pending() {
            0 => Ok(()),
            rows => Err(GraphError::Pending { rows }),
        }
    }
}
