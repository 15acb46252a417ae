//! The public interface: the features of a stream, call by call.

mod batch;
mod engine;
mod evidence;
mod offline;
mod pending;
mod provisional;
mod rows;
mod search;
mod segments;
mod stats;

use crate::error::GraphError;
use crate::interrupt::CallInterrupt;
use crate::kind::PatternKind;
use crate::memory::reserve_exact;
use crate::settings::{Mode, Settings};
use crate::stream::{
    CallContext, Edges, FeatureOutput, FeatureRequest, GraphState, PartFailure, WorkShare,
};
use crate::threads::WorkerThreads;
use batch::CallOutcome;
use engine::{Engine, with_engine};
pub use evidence::Pattern;
use provisional::Provisional;
pub use stats::GraphStats;
use std::sync::Arc;

/// Rows that causal mode adds at once. Results do not depend on it.
const ROWS_AT_ONCE: usize = 4096;
/// A graph of the newest edges of a stream; it computes the features of new rows.
///
/// ```
/// use farrow_graph::{PatternSettings, Edges, GraphFeatures, Settings};
/// let fan = PatternSettings { window: 10, bins: vec![2, 3] };
/// let mut features = GraphFeatures::new(Settings { fan: Some(fan), ..Settings::default() })?;
/// // Three payers of account 9, the last within 10 of the first.
/// let edges = Edges {
///     ids: &[0, 1, 2],
///     sources: &[1, 2, 3],
///     targets: &[9, 9, 9],
///     times: &[1, 2, 3],
///     columns: &[],
/// };
/// let rows = features.transform(&edges)?;
/// // Fan in of 2 and of 3, then fan out.
/// assert_eq!(rows, [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
/// # Ok::<(), farrow_graph::GraphError>(())
/// ```
#[derive(Debug)]
pub struct GraphFeatures {
    settings: Settings,
    engine: Engine,
    workers: WorkerThreads,
    rows: u64,
    cut_short: [u64; PatternKind::COUNT],
    provisional: Provisional,
    interrupt: Option<Arc<dyn CallInterrupt>>,
}

/// Patterns that the rows of a call completed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The patterns, in the order of the rows that completed them.
    pub patterns: Vec<Pattern>,
    /// The number of patterns beyond the caller's limit.
    pub dropped: u64,
}

impl GraphFeatures {
    /// An empty graph.
    ///
    /// # Errors
    /// [`GraphError::Setting`] for a contradictory setting; [`GraphError::Threads`] if threads
    /// cannot be started.
    pub fn new(settings: Settings) -> Result<GraphFeatures, GraphError> {
        settings.check()?;
        let threads = settings.threads;
        let workers = WorkerThreads::new(threads.saturating_sub(1))
            .map_err(|error| GraphError::Threads { threads, reason: error.to_string() })?;
        Ok(GraphFeatures {
            settings,
            engine: Engine::Empty,
            workers,
            rows: 0,
            cut_short: [0; PatternKind::COUNT],
            provisional: Provisional::None,
            interrupt: None,
        })
    }

    /// A graph with the saved content of another.
    ///
    /// # Errors
    /// Those of [`GraphFeatures::new`]; columns that are inconsistent or do not match the settings;
    /// too little memory.
    pub fn restore(settings: Settings, state: &GraphState) -> Result<GraphFeatures, GraphError> {
        let mut features = GraphFeatures::new(settings)?;
        let columns: Vec<&[f64]> = state.columns.iter().map(Vec::as_slice).collect();
        let ids = match &state.ids {
            None if features.settings.keeps_ids => return Err(GraphError::NoIds),
            ids => ids.as_deref().unwrap_or(&state.times),
        };
        let edges = Edges {
            ids,
            sources: &state.sources,
            targets: &state.targets,
            times: &state.times,
            columns: &columns,
        };
        let rows = features.rows_of(&edges)?.len();
        features.afford(&edges)?;
        features.make_room(&edges, rows)?;
        // A graph without edges may still have a time and accounts.
        if let (Engine::Empty, Some(now)) = (&features.engine, state.now) {
            features.engine = Engine::around(&features.settings, now);
        }
        let settings = &features.settings;
        with_engine!(&mut features.engine, |engine| engine.restore(settings, state), Ok(()))
            .map_err(|full| full.error(rows, 0))?;
        features.rows = state.rows;
        Ok(features)
    }

    /// The content of the graph, for [`GraphFeatures::restore`].
    pub fn state(&self) -> GraphState {
        let empty = || GraphState {
            ids: self.settings.keeps_ids.then(Vec::new),
            columns: vec![Vec::new(); self.given_columns()],
            ..GraphState::default()
        };
        let state = with_engine!(&self.engine, |engine| engine.state(), empty());
        GraphState { rows: self.rows, ..state }
    }

    /// For each account, whether the graph knows it.
    pub fn knows(&self, accounts: &[i64]) -> Vec<bool> {
        let find = |account| with_engine!(&self.engine, |engine| engine.graph.find(account), None);
        accounts.iter().map(|&account| find(account).is_some()).collect()
    }

    /// The settings of this graph.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Ends later calls early when this is set: [`GraphFeatures::transform`] and the like,
    /// [`GraphFeatures::preview`], [`GraphFeatures::learn`] between parts of its rows, and
    /// [`GraphFeatures::transform_pending`].
    pub fn set_interrupt(&mut self, interrupt: Arc<dyn CallInterrupt>) {
        self.interrupt = Some(interrupt);
    }

    /// Removes all edges and accounts.
    pub fn clear(&mut self) {
        self.engine = Engine::Empty;
        self.rows = 0;
        self.cut_short = [0; PatternKind::COUNT];
        self.provisional = Provisional::None;
    }

    /// Adds rows, in batch mode sorted by time, without computing features.
    ///
    /// # Errors
    /// Mismatched columns, values that are not finite, too many edges, too little memory, an
    /// interrupt, or earlier pending or provisional rows. Nothing changes then, except as
    /// [`GraphError::OutOfMemory`] and [`GraphError::Interrupted`] describe.
    pub fn learn(&mut self, edges: &Edges<'_>) -> Result<(), GraphError> {
        let rows = self.rows_of(edges)?;
        self.afford(edges)?;
        let mut order: Vec<u32> = rows.collect();
        if self.settings.mode == Mode::Batch {
            order.sort_by_key(|&row| edges.times[row as usize]);
        }
        self.add(edges, &order)
    }

    /// Removes everything, then adds rows in their order. After [`GraphFeatures::begin`], memory
    /// holds both graphs until [`GraphFeatures::keep`] or [`GraphFeatures::undo`].
    ///
    /// # Errors
    /// Those of [`GraphFeatures::learn`].
    pub fn start(&mut self, edges: &Edges<'_>) -> Result<(), GraphError> {
        self.refuse_while_provisional()?;
        let rows = self.rows_of(edges)?;
        self.afford(edges)?;
        let order: Vec<u32> = rows.collect();
        let before = std::mem::replace(&mut self.engine, Engine::Empty);
        let (rows, cut_short) = (self.rows, self.cut_short);
        let provisional = std::mem::take(&mut self.provisional);
        self.clear();
        let added = self.add(edges, &order);
        if added.is_err() {
            (self.engine, self.rows, self.cut_short) = (before, rows, cut_short);
            self.provisional = provisional;
        } else if matches!(provisional, Provisional::Next) {
            self.provisional = Provisional::Restarted { before, rows, cut_short };
        }
        added.map_err(untouched)
    }

    fn add(&mut self, edges: &Edges<'_>, order: &[u32]) -> Result<(), GraphError> {
        self.refuse_while_provisional()?;
        if !order.is_empty() {
            self.refuse_while_pending()?;
        }
        self.make_room(edges, order.len())?;
        self.note_provisional();
        let (settings, pool) = (&self.settings, self.workers.pool());
        let interrupt = self.interrupt.as_deref();
        let call = CallContext { settings, pool, edges, order, interrupt };
        let learnt = with_engine!(&mut self.engine, |engine| engine.learn(&call), Ok(()));
        self.count(order.len(), learnt)
    }

    /// Counts the rows that a call has added: all of them, or those before memory ran out.
    fn count(
        &mut self,
        rows: usize,
        learnt: Result<(), (usize, PartFailure)>,
    ) -> Result<(), GraphError> {
        self.rows += learnt.map_or_else(|(taken, _)| taken, |()| rows) as u64;
        learnt.map_err(|(taken, full)| full.error(rows, taken))
    }

    /// Adds rows and returns their features: [`Settings::width`] values for each row.
    ///
    /// # Errors
    /// Those of [`GraphFeatures::learn`].
    pub fn transform(&mut self, edges: &Edges<'_>) -> Result<Vec<f64>, GraphError> {
        let mut cells = self.room(edges)?;
        self.transform_into(edges, &mut cells, self.settings.width(), 0)?;
        Ok(cells)
    }

    /// Adds rows and writes their features. Those of row `r` begin at `r * stride + offset`.
    ///
    /// # Errors
    /// Those of [`GraphFeatures::learn`]; [`GraphError::Room`] if `cells` has the wrong length.
    pub fn transform_into(
        &mut self,
        edges: &Edges<'_>,
        cells: &mut [f64],
        stride: usize,
        offset: usize,
    ) -> Result<(), GraphError> {
        let output = FeatureOutput { cells, stride, offset, share: WorkShare::WHOLE };
        self.run(edges, output, None).map(|_| ())
    }

    /// Adds rows and returns their features, and up to `most` of the patterns that they complete.
    ///
    /// # Errors
    /// Those of [`GraphFeatures::learn`]; [`GraphError::NoIds`] if the settings retain no ids.
    pub fn patterns(
        &mut self,
        edges: &Edges<'_>,
        most: usize,
    ) -> Result<(Vec<f64>, Evidence), GraphError> {
        if !self.settings.keeps_ids {
            return Err(GraphError::NoIds);
        }
        let mut cells = self.room(edges)?;
        let (stride, share) = (self.settings.width(), WorkShare::WHOLE);
        let output = FeatureOutput { cells: &mut cells, stride, offset: 0, share };
        let evidence = self.run(edges, output, Some(most))?;
        Ok((cells, evidence))
    }

    /// The features that rows would get if they arrived now, and up to `most` of the patterns that
    /// they would complete; None: no patterns. The graph does not change.
    ///
    /// ```
    /// # use farrow_graph::{PatternSettings, Edges, GraphFeatures, Settings};
    /// # let fan = PatternSettings { window: 10, bins: vec![2] };
    /// # let mut features = GraphFeatures::new(Settings { fan: Some(fan), ..Settings::default() })?;
    /// # let first = Edges { ids: &[0], sources: &[1], targets: &[9], times: &[1], columns: &[] };
    /// features.learn(&first)?;
    /// let next = Edges { ids: &[1], sources: &[2], targets: &[9], times: &[2], columns: &[] };
    /// let (seen, _) = features.preview(&next, None)?;
    /// assert_eq!(features.stats().edges, 1);
    /// assert_eq!(features.transform(&next)?, seen);
    /// # Ok::<(), farrow_graph::GraphError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`GraphFeatures::learn`]; [`GraphError::NoIds`] if patterns are requested and the
    /// settings retain no ids.
    pub fn preview(
        &mut self,
        edges: &Edges<'_>,
        most: Option<usize>,
    ) -> Result<(Vec<f64>, Evidence), GraphError> {
        if most.is_some() && !self.settings.keeps_ids {
            return Err(GraphError::NoIds);
        }
        self.refuse_while_waiting()?;
        let mut cells = self.room(edges)?;
        self.afford(edges)?;
        // Widen the stamps first, because a rollback cannot undo it.
        self.make_room(edges, edges.ids.len())?;
        with_engine!(&mut self.engine, |engine| engine.preview(), ());
        let (rows, cut_short) = (self.rows, self.cut_short);
        // These rows are not those that `begin` makes provisional.
        let provisional = std::mem::take(&mut self.provisional);
        let (stride, share) = (self.settings.width(), WorkShare::WHOLE);
        let done =
            self.run(edges, FeatureOutput { cells: &mut cells, stride, offset: 0, share }, most);
        (self.rows, self.cut_short) = (rows, cut_short);
        self.provisional = provisional;
        with_engine!(&mut self.engine, |engine| engine.rewind(), ());
        done.map(|evidence| (cells, evidence)).map_err(untouched)
    }

    /// Zeros for the features of rows, after a check of their columns.
    fn room(&self, edges: &Edges<'_>) -> Result<Vec<f64>, GraphError> {
        self.cells(self.rows_of(edges)?.len())
    }

    /// Zeros for the features of a number of rows.
    fn cells(&self, rows: usize) -> Result<Vec<f64>, GraphError> {
        let values = rows.saturating_mul(self.settings.width());
        let mut cells = Vec::new();
        let bytes = values.saturating_mul(size_of::<f64>());
        reserve_exact(&mut cells, values).map_err(|_| GraphError::Memory { bytes })?;
        cells.resize(values, 0.0);
        Ok(cells)
    }

    /// Counters of the graph: its size and its work.
    pub fn stats(&self) -> GraphStats {
        let stats = with_engine!(&self.engine, |engine| engine.size(), GraphStats::default());
        GraphStats { rows: self.rows, cut_short: self.cut_short, ..stats }
    }

    /// Adds rows, writes their features, and returns up to `patterns_max` patterns.
    fn run(
        &mut self,
        edges: &Edges<'_>,
        output: FeatureOutput<'_>,
        patterns_max: Option<usize>,
    ) -> Result<Evidence, GraphError> {
        self.refuse_while_waiting()?;
        let rows = self.rows_of(edges)?.len();
        self.check_output(&output, rows)?;
        self.afford(edges)?;
        match self.settings.mode {
            Mode::Batch => self.run_batch(edges, output, patterns_max),
            Mode::Causal => self.run_causal(edges, output, patterns_max),
        }
    }

    fn run_batch(
        &mut self,
        edges: &Edges<'_>,
        output: FeatureOutput<'_>,
        patterns_max: Option<usize>,
    ) -> Result<Evidence, GraphError> {
        let (order, places) = rows::order_of_batch(edges);
        self.make_room(edges, order.len())?;
        self.note_provisional();
        let request = FeatureRequest { places: &places, output, patterns_max };
        let outcome = self.call(edges, &order, request);
        let outcome = outcome.map_err(|full| full.error(edges.ids.len(), 0))?;
        self.rows += order.len() as u64;
        let mut evidence = Evidence::default();
        self.take(outcome, &mut evidence)?;
        Ok(evidence)
    }

    fn run_causal(
        &mut self,
        edges: &Edges<'_>,
        output: FeatureOutput<'_>,
        patterns_max: Option<usize>,
    ) -> Result<Evidence, GraphError> {
        let FeatureOutput { cells, stride, offset, share } = output;
        let rows = edges.ids.len();
        self.make_room(edges, rows)?;
        self.note_provisional();
        let mut evidence = Evidence::default();
        for from in (0..rows).step_by(ROWS_AT_ONCE) {
            let to = (from + ROWS_AT_ONCE).min(rows);
            let columns: Vec<&[f64]> =
                edges.columns.iter().map(|column| &column[from..to]).collect();
            let part = Edges { columns: &columns, ..edges.slice(from, to) };
            let order: Vec<u32> = (0..(to - from) as u32).collect();
            let cells = &mut cells[from * stride..to * stride];
            let output = FeatureOutput { cells, stride, offset, share };
            let patterns_max =
                patterns_max.map(|most| most.saturating_sub(evidence.patterns.len()));
            let request = FeatureRequest { places: &order, output, patterns_max };
            let outcome = self.call(&part, &order, request);
            let outcome = outcome.map_err(|full| full.error(rows, from))?;
            self.rows += order.len() as u64;
            self.take(outcome, &mut evidence)?;
        }
        Ok(evidence)
    }

    fn call(
        &mut self,
        edges: &Edges<'_>,
        order: &[u32],
        request: FeatureRequest<'_>,
    ) -> Result<CallOutcome, PartFailure> {
        let (settings, pool) = (&self.settings, self.workers.pool());
        let interrupt = self.interrupt.as_deref();
        let call = CallContext { settings, pool, edges, order, interrupt };
        let empty = || Ok(CallOutcome::default());
        with_engine!(&mut self.engine, |engine| engine.transform(&call, request), empty())
    }

    fn take(&mut self, outcome: CallOutcome, evidence: &mut Evidence) -> Result<(), GraphError> {
        for (count, more) in self.cut_short.iter_mut().zip(outcome.cut_short) {
            *count += more;
        }
        evidence.patterns.extend(outcome.patterns);
        evidence.dropped += outcome.dropped;
        match outcome.lost {
            None => Ok(()),
            Some((base, reason)) => Err(GraphError::Lost { base, reason }),
        }
    }
}

/// The error of a call that was rolled back completely.
fn untouched(error: GraphError) -> GraphError {
    match error {
        GraphError::OutOfMemory { rows, bytes, .. } => {
            GraphError::OutOfMemory { rows, bytes, taken: 0 }
        }
        GraphError::Interrupted { rows, .. } => GraphError::Interrupted { rows, taken: 0 },
        other => other,
    }
}
