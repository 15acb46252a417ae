//! The features of a stream, call by call.

mod evidence;
mod offline;
mod provisional;
mod segments;

use crate::edge::Stamp;
use crate::error::GraphError;
use crate::memory::{OutOfMemory, probe, reserve_exact};
use crate::patterns::Kind;
use crate::settings::{Mode, Settings, StatisticsSettings};
use crate::store::EDGES_MAX;
use crate::stream::FeatureOutput;
use crate::stream::{CallOutcome, LEARNT_AT_ONCE, State, StreamEngine, WorkShare, call_bytes};
pub use evidence::Pattern;
pub(crate) use evidence::name;
use hashbrown::HashMap;
use provisional::Provisional;

/// Rows that causal mode adds at once; the cut of a call changes nothing.
const ROWS_AT_ONCE: usize = 4096;
/// Calls of so few rows have next to nothing to order.
const FEW_ROWS: usize = 64;
/// Room for rows that come later but are older: a quarter of what a narrow stamp spans.
const SLACK: i64 = 1 << 30;
/// What a row adds to a graph, at most: a record of 16 B, two entries of 16 B in blocks that are half
/// empty, two accounts of 20 B with 14 B in the index and in their order, and an id; a sixteenth of
/// all that, by which they grow; and the index once more, which grows beside itself.
const KEPT_BYTES: usize = 208;
/// The same for a measured column.
const VALUE_BYTES: usize = 9;

/// Rows of a stream: column by column, all of the same length.
#[derive(Clone, Copy, Debug)]
pub struct Edges<'a> {
    /// The edges' ids. In batch mode, of rows with one id only the first of a call is an edge.
    pub ids: &'a [i64],
    /// Who pays.
    pub sources: &'a [i64],
    /// Who is paid.
    pub targets: &'a [i64],
    /// When, in any unit.
    pub times: &'a [i64],
    /// The columns that the statistics measure.
    pub columns: &'a [&'a [f64]],
}

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

#[derive(Debug)]
enum Graph {
    Empty,
    Narrow(Box<StreamEngine<u32>>),
    Wide(Box<StreamEngine<u64>>),
}

/// A graph of the newest edges of a stream, and the features of the rows that come.
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
    graph: Graph,
    /// All threads but the caller's.
    pool: Option<rayon::ThreadPool>,
    rows: u64,
    cut_short: [u64; Kind::COUNT],
    provisional: Provisional,
}

/// Patterns that rows completed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// In the order of the rows that completed them.
    pub patterns: Vec<Pattern>,
    /// Patterns beyond the limit.
    pub dropped: u64,
}

impl GraphFeatures {
    /// An empty graph.
    ///
    /// # Errors
    /// A setting that makes no sense, or threads that cannot be started.
    pub fn new(settings: Settings) -> Result<GraphFeatures, GraphError> {
        settings.check()?;
        let threads = settings.threads;
        let pool = if threads > 1 {
            let built = rayon::ThreadPoolBuilder::new().num_threads(threads - 1).build();
            Some(
                built
                    .map_err(|error| GraphError::Threads { threads, reason: error.to_string() })?,
            )
        } else {
            None
        };
        Ok(GraphFeatures {
            settings,
            graph: Graph::Empty,
            pool,
            rows: 0,
            cut_short: [0; Kind::COUNT],
            provisional: Provisional::None,
        })
    }

    /// A graph that goes on where another stopped.
    ///
    /// # Errors
    /// As [`GraphFeatures::new`], columns that do not fit each other or the settings, and no memory.
    pub fn restore(settings: Settings, state: &State) -> Result<GraphFeatures, GraphError> {
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
        // A graph without edges may still know the time, and its accounts.
        if let (Graph::Empty, Some(now)) = (&features.graph, state.now) {
            let base = now.saturating_sub(SLACK);
            features.graph = Graph::Narrow(Box::new(StreamEngine::new(&features.settings, base)));
        }
        match &mut features.graph {
            Graph::Empty => Ok(()),
            Graph::Narrow(core) => core.restore(&features.settings, state),
            Graph::Wide(core) => core.restore(&features.settings, state),
        }
        .map_err(|OutOfMemory { bytes }| GraphError::OutOfMemory {
            rows,
            bytes,
            taken: 0,
        })?;
        features.rows = state.rows;
        Ok(features)
    }

    /// What the graph holds, to be kept.
    pub fn state(&self) -> State {
        let state = match &self.graph {
            Graph::Empty => State {
                ids: self.settings.keeps_ids.then(Vec::new),
                columns: vec![
                    Vec::new();
                    self.settings.statistics.as_ref().map_or(0, StatisticsSettings::given)
                ],
                ..State::default()
            },
            Graph::Narrow(core) => core.state(),
            Graph::Wide(core) => core.state(),
        };
        State { rows: self.rows, ..state }
    }

    /// Whether the graph knows each of these accounts.
    pub fn knows(&self, accounts: &[i64]) -> Vec<bool> {
        let is_known = |&account: &i64| match &self.graph {
            Graph::Empty => false,
            Graph::Narrow(core) => core.graph.find(account).is_some(),
            Graph::Wide(core) => core.graph.find(account).is_some(),
        };
        accounts.iter().map(is_known).collect()
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.graph = Graph::Empty;
        self.rows = 0;
        self.cut_short = [0; Kind::COUNT];
        self.provisional = Provisional::None;
    }

    /// Adds rows, sorted by time in batch mode, and computes nothing.
    ///
    /// # Errors
    /// Columns that do not fit, more edges than a graph holds, or more than there is memory for;
    /// nothing has changed then, but see [`GraphError::OutOfMemory`].
    pub fn learn(&mut self, edges: &Edges<'_>) -> Result<(), GraphError> {
        let rows = self.rows_of(edges)?;
        self.afford(edges)?;
        let mut order: Vec<u32> = rows.collect();
        if self.settings.mode == Mode::Batch {
            order.sort_by_key(|&row| edges.times[row as usize]);
        }
        self.add(edges, &order)
    }

    /// Forgets everything and adds rows as they come.
    ///
    /// # Errors
    /// As [`GraphFeatures::learn`].
    pub fn start(&mut self, edges: &Edges<'_>) -> Result<(), GraphError> {
        self.refuse_while_provisional()?;
        let rows = self.rows_of(edges)?;
        self.afford(edges)?;
        let order: Vec<u32> = rows.collect();
        let before = std::mem::replace(&mut self.graph, Graph::Empty);
        let (rows, cut_short) = (self.rows, self.cut_short);
        self.clear();
        let added = self.add(edges, &order);
        if added.is_err() {
            (self.graph, self.rows, self.cut_short) = (before, rows, cut_short);
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
        let (settings, rows, pool) = (&self.settings, order.len(), self.pool.as_ref());
        let learnt = match &mut self.graph {
            Graph::Empty => Ok(()),
            Graph::Narrow(core) => core.learn(settings, edges, order, pool),
            Graph::Wide(core) => core.learn(settings, edges, order, pool),
        };
        self.count(rows, learnt)
    }

    /// Counts the rows of a call that were learned: all, or so many until there was no memory.
    fn count(
        &mut self,
        rows: usize,
        learnt: Result<(), (usize, OutOfMemory)>,
    ) -> Result<(), GraphError> {
        self.rows += learnt.map_or_else(|(taken, _)| taken, |()| rows) as u64;
        learnt.map_err(|(taken, OutOfMemory { bytes })| GraphError::OutOfMemory {
            rows,
            bytes,
            taken,
        })
    }

    /// Adds rows and gives their features, [`Settings::width`] values a row.
    ///
    /// # Errors
    /// As [`GraphFeatures::learn`].
    pub fn transform(&mut self, edges: &Edges<'_>) -> Result<Vec<f64>, GraphError> {
        let mut cells = self.room(edges)?;
        self.transform_into(edges, &mut cells, self.settings.width(), 0)?;
        Ok(cells)
    }

    /// Adds rows and writes their features: those of row `r` at `r * stride + offset`.
    ///
    /// # Errors
    /// As [`GraphFeatures::learn`], and room that is too small.
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

    /// Adds rows, gives their features as `transform` does, and up to `most` of the patterns that
    /// were completed.
    ///
    /// # Errors
    /// As [`GraphFeatures::learn`], and settings that do not keep ids.
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

    /// The features that rows would get if they came now, and up to `most` of the patterns that
    /// they would complete. The graph stays as it is. With None no patterns are named.
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
    /// As [`GraphFeatures::learn`], and settings that do not keep ids where patterns are wanted.
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
        // Now, so that no row changes how the graph keeps times.
        self.make_room(edges, edges.ids.len())?;
        match &mut self.graph {
            Graph::Empty => {}
            Graph::Narrow(core) => core.preview(),
            Graph::Wide(core) => core.preview(),
        }
        let (rows, cut_short) = (self.rows, self.cut_short);
        let (stride, share) = (self.settings.width(), WorkShare::WHOLE);
        let done =
            self.run(edges, FeatureOutput { cells: &mut cells, stride, offset: 0, share }, most);
        (self.rows, self.cut_short) = (rows, cut_short);
        match &mut self.graph {
            Graph::Empty => {}
            Graph::Narrow(core) => core.rewind(),
            Graph::Wide(core) => core.rewind(),
        }
        done.map(|evidence| (cells, evidence)).map_err(untouched)
    }

    /// Room for the features of rows that fit.
    fn room(&self, edges: &Edges<'_>) -> Result<Vec<f64>, GraphError> {
        self.cells(self.rows_of(edges)?.len())
    }

    /// Room for the features of so many rows.
    fn cells(&self, rows: usize) -> Result<Vec<f64>, GraphError> {
        let values = rows.saturating_mul(self.settings.width());
        let mut cells = Vec::new();
        let bytes = values.saturating_mul(size_of::<f64>());
        reserve_exact(&mut cells, values).map_err(|_| GraphError::Memory { bytes })?;
        cells.resize(values, 0.0);
        Ok(cells)
    }

    /// What the graph holds.
    pub fn stats(&self) -> GraphStats {
        let stats = match &self.graph {
            Graph::Empty => GraphStats::default(),
            Graph::Narrow(core) => core.size(),
            Graph::Wide(core) => core.size(),
        };
        GraphStats { rows: self.rows, cut_short: self.cut_short, ..stats }
    }

    fn rows_of(&self, edges: &Edges<'_>) -> Result<std::ops::Range<u32>, GraphError> {
        let expected = edges.ids.len();
        let lengths = [
            ("source", edges.sources.len()),
            ("target", edges.targets.len()),
            ("timestamp", edges.times.len()),
        ];
        let measured = edges.columns.iter().map(|column| ("measured", column.len()));
        for (column, rows) in lengths.into_iter().chain(measured) {
            if rows != expected {
                return Err(GraphError::Rows { column, rows, expected });
            }
        }
        let wanted = self.settings.statistics.as_ref().map_or(0, StatisticsSettings::given);
        if edges.columns.len() != wanted {
            return Err(GraphError::Columns { given: edges.columns.len(), expected: wanted });
        }
        for (column, values) in edges.columns.iter().enumerate() {
            let mut rows = values.iter().copied().enumerate();
            if let Some((row, value)) = rows.find(|(_, value)| !value.is_finite()) {
                return Err(GraphError::NotFinite { column, row, value });
            }
        }
        match u32::try_from(expected) {
            Ok(rows) if expected <= EDGES_MAX => Ok(0..rows),
            _ => Err(GraphError::TooMany { added: expected, alive: 0, most: EDGES_MAX }),
        }
    }

    /// Whether there is memory for these rows now, whatever they are: for what the graph grows by
    /// and what it takes to add them.
    fn afford(&self, edges: &Edges<'_>) -> Result<(), GraphError> {
        let (settings, rows) = (&self.settings, edges.ids.len());
        if rows <= FEW_ROWS {
            // One part alone asks for it.
            return Ok(());
        }
        let (kept, at_once) = match settings.mode {
            Mode::Batch => (rows, rows),
            Mode::Causal => (self.most_at_once(edges.times), rows.min(ROWS_AT_ONCE)),
        };
        let row = KEPT_BYTES + VALUE_BYTES * edges.columns.len();
        let order = rows.saturating_mul(size_of::<u32>());
        let bytes = kept.saturating_mul(row).saturating_add(call_bytes(settings, at_once));
        probe(bytes.saturating_add(order))
            .map_err(|OutOfMemory { bytes }| GraphError::OutOfMemory { rows, bytes, taken: 0 })
    }

    /// How many of the rows of these times are in a graph at once, at most, in causal mode.
    fn most_at_once(&self, times: &[i64]) -> usize {
        if times.len() <= LEARNT_AT_ONCE || !times.is_sorted() {
            return times.len();
        }
        let horizon = i128::from(self.settings.horizon());
        let (mut first, mut most) = (0, 0);
        for (at, &time) in times.iter().enumerate() {
            while i128::from(times[first]) < i128::from(time) - horizon {
                first += 1;
            }
            most = most.max(at + 1 - first);
        }
        // What one part of a call makes too old leaves when the part is over.
        (most + LEARNT_AT_ONCE).min(times.len())
    }

    /// Sees to it that the graph can hold so many rows, of those times.
    fn make_room(&mut self, edges: &Edges<'_>, added: usize) -> Result<(), GraphError> {
        let alive = match &self.graph {
            Graph::Empty => 0,
            Graph::Narrow(core) => core.span(),
            Graph::Wide(core) => core.span(),
        };
        if alive.saturating_add(added) > EDGES_MAX {
            return Err(GraphError::TooMany { added, alive, most: EDGES_MAX });
        }
        let (Some(&first), Some(&last)) = (edges.times.iter().min(), edges.times.iter().max())
        else {
            return Ok(());
        };
        let settings = &self.settings;
        if let Graph::Narrow(core) = &self.graph
            && !(core.holds(first) && core.holds(last))
        {
            // It is made again beside what is there.
            let error =
                |OutOfMemory { bytes }| GraphError::OutOfMemory { rows: added, bytes, taken: 0 };
            probe(core.bytes().saturating_mul(2)).map_err(error)?;
        }
        self.graph = match std::mem::replace(&mut self.graph, Graph::Empty) {
            Graph::Empty => match narrow_base(first, last) {
                Some(base) => Graph::Narrow(Box::new(StreamEngine::new(settings, base))),
                None => Graph::Wide(Box::new(StreamEngine::new(settings, i64::MIN))),
            },
            Graph::Narrow(core) if core.holds(first) && core.holds(last) => Graph::Narrow(core),
            Graph::Narrow(core) => {
                let oldest = core.graph.earliest().unwrap_or(first).min(first);
                let newest = core.now.unwrap_or(last).max(last);
                match narrow_base(oldest, newest) {
                    Some(base) => Graph::Narrow(Box::new(core.restamp(settings, base))),
                    None => Graph::Wide(Box::new(core.restamp(settings, i64::MIN))),
                }
            }
            wide @ Graph::Wide(_) => wide,
        };
        Ok(())
    }

    fn run(
        &mut self,
        edges: &Edges<'_>,
        output: FeatureOutput<'_>,
        most: Option<usize>,
    ) -> Result<Evidence, GraphError> {
        let FeatureOutput { cells, stride, offset, share } = output;
        self.refuse_while_waiting()?;
        let rows = self.rows_of(edges)?;
        let (given, used) = (cells.len(), offset.saturating_add(self.settings.width()));
        if stride < used || given != rows.len().saturating_mul(stride) {
            let expected = rows.len().max(1).saturating_mul(stride.max(used));
            return Err(GraphError::Room { given, expected });
        }
        self.afford(edges)?;
        let mut evidence = Evidence::default();
        let full = |taken, OutOfMemory { bytes }| GraphError::OutOfMemory {
            rows: edges.ids.len(),
            bytes,
            taken,
        };
        match self.settings.mode {
            Mode::Batch => {
                let (order, places) = order_of_batch(edges);
                self.make_room(edges, order.len())?;
                self.note_provisional();
                let output = FeatureOutput { cells, stride, offset, share };
                let outcome = self.call(edges, &order, &places, output, most);
                let outcome = outcome.map_err(|error| full(0, error))?;
                self.rows += order.len() as u64;
                self.take(outcome, &mut evidence)?;
            }
            Mode::Causal => {
                self.make_room(edges, rows.len())?;
                self.note_provisional();
                for from in (0..rows.len()).step_by(ROWS_AT_ONCE) {
                    let to = (from + ROWS_AT_ONCE).min(rows.len());
                    let cells = &mut cells[from * stride..to * stride];
                    let part = edges.slice(from, to);
                    let columns: Vec<&[f64]> =
                        edges.columns.iter().map(|column| &column[from..to]).collect();
                    let part = Edges { columns: &columns, ..part };
                    let order: Vec<u32> = (0..(to - from) as u32).collect();
                    let output = FeatureOutput { cells, stride, offset, share };
                    let left = most.map(|most| most.saturating_sub(evidence.patterns.len()));
                    let outcome = self.call(&part, &order, &order, output, left);
                    let outcome = outcome.map_err(|error| full(from, error))?;
                    self.rows += order.len() as u64;
                    self.take(outcome, &mut evidence)?;
                }
            }
        }
        Ok(evidence)
    }

    fn call(
        &mut self,
        edges: &Edges<'_>,
        order: &[u32],
        places: &[u32],
        output: FeatureOutput<'_>,
        most: Option<usize>,
    ) -> Result<CallOutcome, OutOfMemory> {
        let (settings, pool) = (&self.settings, self.pool.as_ref());
        match &mut self.graph {
            Graph::Empty => Ok(CallOutcome::default()),
            Graph::Narrow(core) => {
                core.transform(settings, edges, order, places, output, most, pool)
            }
            Graph::Wide(core) => core.transform(settings, edges, order, places, output, most, pool),
        }
    }

    fn take(&mut self, outcome: CallOutcome, evidence: &mut Evidence) -> Result<(), GraphError> {
        for (count, more) in self.cut_short.iter_mut().zip(outcome.cut_short) {
            *count += more;
        }
        evidence.patterns.extend(outcome.named);
        evidence.dropped += outcome.dropped;
        match outcome.lost {
            None => Ok(()),
            Some((base, reason)) => Err(GraphError::Lost { base, reason }),
        }
    }
}

impl<'a> Edges<'a> {
    fn slice(&self, from: usize, to: usize) -> Edges<'a> {
        Edges {
            ids: &self.ids[from..to],
            sources: &self.sources[from..to],
            targets: &self.targets[from..to],
            times: &self.times[from..to],
            columns: &[],
        }
    }
}

impl<T: Stamp> StreamEngine<T> {
    fn size(&self) -> GraphStats {
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

    /// Numbers of arrival between the oldest and the newest edge.
    fn span(&self) -> usize {
        (self.graph.next() - self.graph.head()) as usize
    }

    fn holds(&self, time: i64) -> bool {
        self.graph.stamp(time).is_some()
    }
}

/// The error of a call that left a graph as it was, though it had taken rows.
fn untouched(error: GraphError) -> GraphError {
    match error {
        GraphError::OutOfMemory { rows, bytes, .. } => {
            GraphError::OutOfMemory { rows, bytes, taken: 0 }
        }
        other => other,
    }
}

/// A base from which narrow stamps reach all these times, with room for older ones.
fn narrow_base(first: i64, last: i64) -> Option<i64> {
    let base = first.saturating_sub(SLACK);
    let span = i128::from(last) - i128::from(base);
    (span <= i128::from(u32::OFFSET_MAX) - i128::from(SLACK)).then_some(base)
}

/// Rows in order of time without those whose id came before, and each row's place in it
/// (specification, B2).
fn order_of_batch(edges: &Edges<'_>) -> (Vec<u32>, Vec<u32>) {
    if edges.ids.is_sorted_by(|one, next| one < next) && edges.times.is_sorted() {
        let order: Vec<u32> = (0u32..).zip(edges.ids).map(|(row, _)| row).collect();
        return (order.clone(), order);
    }
    let mut kept: HashMap<i64, u32> = HashMap::with_capacity(edges.ids.len());
    let mut order = Vec::with_capacity(edges.ids.len());
    let mut same = Vec::with_capacity(edges.ids.len());
    for (row, id) in (0u32..).zip(edges.ids) {
        let first = *kept.entry(*id).or_insert(row);
        if first == row {
            order.push(row);
        }
        same.push(first);
    }
    order.sort_by_key(|&row| edges.times[row as usize]);
    let mut place_of = vec![0; edges.ids.len()];
    for (place, &row) in (0u32..).zip(&order) {
        place_of[row as usize] = place;
    }
    let places = same.into_iter().map(|row| place_of[row as usize]).collect();
    (order, places)
}
