//! `farrow._native.GraphEngine`: the features of a transaction stream over NumPy arrays.
//!
//! `python/farrow/graph` checks types and names; this module does the checks of every row.

mod lock;
mod segments;
mod signals;

pub use segments::{GraphFrozen, GraphPlan, GraphSegment};

use farrow_graph::{
    CallInterrupt, Column, Edges, Evidence, GraphError, GraphFeatures, GraphState, Measure, Mode,
    PatternKind, PatternSettings, Settings, StatisticsSettings,
};
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::waiting::with_signals;
use lock::{EngineGuard, EngineLock};
use signals::Signals;
use std::sync::Arc;

/// The largest number up to which float64 represents every integer exactly.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

#[doc = doc!("GraphEngine")]
#[pyclass(frozen, module = "farrow._native")]
pub struct GraphEngine {
    engine: EngineLock,
    signals: Arc<Signals>,
    /// Number of columns that a row gets.
    width: usize,
    /// Columns of a matrix with statistics, except the timestamps.
    measured: Vec<usize>,
    /// Least number of columns of a matrix.
    columns_min: usize,
}

fn raise(error: GraphError) -> PyErr {
    match error {
        GraphError::TooMany { .. }
        | GraphError::Memory { .. }
        | GraphError::OutOfMemory { taken: 0, .. } => PyMemoryError::new_err(error.to_string()),
        // The graph may have changed.
        GraphError::OutOfMemory { .. } => PyRuntimeError::new_err(error.to_string()),
        GraphError::Threads { .. } | GraphError::Interrupted { .. } => {
            PyRuntimeError::new_err(error.to_string())
        }
        _ => PyValueError::new_err(error.to_string()),
    }
}

type PatternSetting = (String, u64, Vec<u64>);
type StatisticsSetting = (u64, Vec<usize>, Vec<usize>);

fn measures(codes: &[usize]) -> PyResult<Vec<Measure>> {
    let one = |&code: &usize| {
        let found = Measure::ALL.get(code).copied();
        found.ok_or_else(|| PyValueError::new_err(format!("a statistic with the code {code}")))
    };
    codes.iter().map(one).collect()
}

/// Columns of a matrix in the engine's form.
struct Rows {
    ids: Vec<i64>,
    sources: Vec<i64>,
    targets: Vec<i64>,
    times: Vec<i64>,
    measured: Vec<Vec<f64>>,
}

impl Rows {
    fn new(matrix: &PyReadonlyArray2<'_, f64>, engine: &GraphEngine) -> PyResult<Rows> {
        let view = matrix.as_array();
        let columns = view.ncols();
        if columns < engine.columns_min {
            return Err(PyValueError::new_err(format!(
                "X has {columns} columns, but {} are needed",
                engine.columns_min
            )));
        }
        let whole = |column: usize, what: &str, least: f64| -> PyResult<Vec<i64>> {
            let mut numbers = Vec::with_capacity(view.nrows());
            for (row, &value) in view.column(column).iter().enumerate() {
                let number = value as i64;
                let is_whole = number as f64 == value && value.abs() <= EXACT_MAX;
                if !is_whole || value < least {
                    return Err(PyValueError::new_err(format!(
                        "the {what} in row {row} is {value}; it must be an integer {}",
                        if least == 0.0 { "from 0 to 2**53" } else { "within 2**53 of 0" }
                    )));
                }
                numbers.push(number);
            }
            Ok(numbers)
        };
        let finite = |&column: &usize| -> PyResult<Vec<f64>> {
            let values = view.column(column).to_vec();
            match values.iter().position(|value| !value.is_finite()) {
                Some(row) => Err(PyValueError::new_err(format!(
                    "column {column} is {} in row {row}; it must be finite to be measured",
                    values[row]
                ))),
                None => Ok(values),
            }
        };
        Ok(Rows {
            ids: whole(0, "edge id", 0.0)?,
            sources: whole(1, "source account", 0.0)?,
            targets: whole(2, "target account", 0.0)?,
            times: whole(3, "timestamp", f64::NEG_INFINITY)?,
            measured: engine.measured.iter().map(finite).collect::<PyResult<_>>()?,
        })
    }

    fn with<R>(&self, run: impl FnOnce(&Edges<'_>) -> R) -> R {
        let columns: Vec<&[f64]> = self.measured.iter().map(Vec::as_slice).collect();
        run(&Edges {
            ids: &self.ids,
            sources: &self.sources,
            targets: &self.targets,
            times: &self.times,
            columns: &columns,
        })
    }
}

/// Features of rows, and the patterns that they complete.
type FeaturesResult = Result<(Vec<f64>, Evidence), GraphError>;
type Matrix<'py> = Bound<'py, PyArray2<f64>>;
type Named = (Vec<&'static str>, Vec<u32>, Vec<i64>, Vec<Vec<i64>>, Vec<Vec<i64>>, u64);

/// Patterns column by column: kind, size, trigger, accounts, edges, and the number omitted.
fn named(evidence: Evidence) -> Named {
    let Evidence { patterns, dropped } = evidence;
    let mut all: Named = (vec![], vec![], vec![], vec![], vec![], dropped);
    for one in patterns {
        all.0.push(one.kind.name());
        all.1.push(one.size);
        all.2.push(one.trigger);
        all.3.push(one.accounts);
        all.4.push(one.edges);
    }
    all
}

impl GraphEngine {
    /// Rows with their features appended.
    fn joined<'py>(
        &self,
        py: Python<'py>,
        matrix: &PyReadonlyArray2<'py, f64>,
        features: &[f64],
    ) -> PyResult<Matrix<'py>> {
        let view = matrix.as_array();
        let width = self.width();
        let mut cells = Vec::with_capacity(view.nrows() * (view.ncols() + width));
        for (number, row) in view.rows().into_iter().enumerate() {
            cells.extend(row.iter());
            cells.extend(&features[number * width..(number + 1) * width]);
        }
        PyArray1::from_vec(py, cells).reshape([view.nrows(), view.ncols() + width])
    }

    /// Rows with the features that a call returns appended, and the patterns.
    fn found<'py>(
        &self,
        py: Python<'py>,
        matrix: &PyReadonlyArray2<'py, f64>,
        call: impl FnOnce(&mut GraphFeatures, &Edges<'_>) -> FeaturesResult + Send,
    ) -> PyResult<(Matrix<'py>, Named)> {
        let rows = Rows::new(matrix, self)?;
        let run = |engine: &mut GraphFeatures| rows.with(|edges| call(engine, edges));
        let (features, evidence) = self.run(py, run)?.map_err(raise)?;
        Ok((self.joined(py, matrix, &features)?, named(evidence)))
    }

    /// The features that a call returns for rows of columns, and the patterns.
    fn found_in<'py>(
        &self,
        py: Python<'py>,
        columns: &GivenColumns<'py>,
        call: impl FnOnce(&mut GraphFeatures, &Edges<'_>) -> FeaturesResult + Send,
    ) -> PyResult<(Matrix<'py>, Named)> {
        let (features, evidence) =
            columns.with(|edges| self.run(py, |engine| call(engine, edges))?.map_err(raise))?;
        Ok((self.reshaped(py, features, columns.rows()?)?, named(evidence)))
    }

    fn reshaped<'py>(
        &self,
        py: Python<'py>,
        features: Vec<f64>,
        rows: usize,
    ) -> PyResult<Matrix<'py>> {
        PyArray1::from_vec(py, features).reshape([rows, self.width()])
    }

    /// Runs a call of the engine without the GIL. If a signal handler raises during it, the call ends
    /// with that exception.
    fn run<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut GraphFeatures) -> R + Send,
    ) -> PyResult<R> {
        py.detach(|| {
            with_signals(|| {
                let mut engine = self.engine.lock()?;
                self.signals.begin();
                Ok(call(&mut engine))
            })
        })?
    }

    /// The engine, for short calls. A call of another thread may last: other threads run meanwhile.
    fn acquire(&self, py: Python<'_>) -> PyResult<EngineGuard<'_>> {
        loop {
            if let Some(engine) = self.engine.try_lock() {
                return Ok(engine);
            }
            py.detach(|| self.engine.lock().map(drop))?;
        }
    }
}

#[pymethods]
impl GraphEngine {
    #[new]
    #[pyo3(signature = (*, is_causal, time_window, edges_max, patterns, cycle_length, statistics,
        threads, work_max, keeps_ids, segment=None))]
    #[expect(clippy::too_many_arguments, reason = "all settings, by keyword")]
    fn new(
        is_causal: bool,
        time_window: Option<u64>,
        edges_max: Option<usize>,
        patterns: Vec<PatternSetting>,
        cycle_length: usize,
        statistics: Option<StatisticsSetting>,
        threads: usize,
        work_max: Option<u64>,
        keeps_ids: bool,
        segment: Option<u64>,
    ) -> PyResult<GraphEngine> {
        let mut settings = Settings {
            mode: if is_causal { Mode::Causal } else { Mode::Batch },
            time_window,
            edges_max,
            cycle_length_max: cycle_length,
            threads,
            work_max: work_max.unwrap_or(u64::MAX),
            keeps_ids,
            segment,
            ..Settings::default()
        };
        for (name, window, bins) in patterns {
            let place = match name.as_str() {
                "fan" => &mut settings.fan,
                "degree" => &mut settings.degree,
                "scatter-gather" => &mut settings.scatter_gather,
                "temp-cycle" => &mut settings.temporal_cycle,
                "lc-cycle" => &mut settings.simple_cycle,
                "gather-scatter" => &mut settings.gather_scatter,
                _ => return Err(PyValueError::new_err(format!("a pattern {name:?}"))),
            };
            *place = Some(PatternSettings { window, bins });
        }
        let mut measured = Vec::new();
        if let Some((window, columns, codes)) = statistics {
            // Column 3 holds the timestamps, which the graph stores already.
            let kind = |&column: &usize| if column == 3 { Column::Time } else { Column::Given };
            settings.statistics = Some(StatisticsSettings {
                window,
                columns: columns.iter().map(kind).collect(),
                measures: measures(&codes)?,
            });
            measured.extend(columns.into_iter().filter(|&column| column != 3));
        }
        let columns_min = measured.iter().map(|&column| column + 1).max().unwrap_or(0).max(4);
        let mut engine = GraphFeatures::new(settings).map_err(raise)?;
        let width = engine.settings().width();
        let signals = Arc::new(Signals::new());
        engine.set_interrupt(Arc::clone(&signals) as Arc<dyn CallInterrupt>);
        Ok(GraphEngine { engine: EngineLock::new(engine), signals, width, measured, columns_min })
    }

    #[doc = doc!("GraphEngine.width")]
    fn width(&self) -> usize {
        self.width
    }

    #[doc = doc!("GraphEngine.start")]
    fn start(&self, py: Python<'_>, matrix: PyReadonlyArray2<'_, f64>) -> PyResult<()> {
        let rows = Rows::new(&matrix, self)?;
        self.run(py, |engine| rows.with(|edges| engine.start(edges)))?.map_err(raise)
    }

    #[doc = doc!("GraphEngine.learn")]
    fn learn(&self, py: Python<'_>, matrix: PyReadonlyArray2<'_, f64>) -> PyResult<()> {
        let rows = Rows::new(&matrix, self)?;
        self.run(py, |engine| rows.with(|edges| engine.learn(edges)))?.map_err(raise)
    }

    #[doc = doc!("GraphEngine.transform")]
    fn transform<'py>(
        &self,
        py: Python<'py>,
        matrix: PyReadonlyArray2<'py, f64>,
    ) -> PyResult<Matrix<'py>> {
        let rows = Rows::new(&matrix, self)?;
        let view = matrix.as_array();
        let (count, own) = (view.nrows(), view.ncols());
        let mut cells = Vec::new();
        let stride = own + self.width();
        let values = count.checked_mul(stride).ok_or_else(|| PyMemoryError::new_err("overflow"))?;
        cells.try_reserve_exact(values).map_err(|_| {
            PyMemoryError::new_err(format!("{values} values of 8 bytes for {count} rows"))
        })?;
        cells.resize(values, 0.0);
        for (row, cells) in view.rows().into_iter().zip(cells.chunks_mut(stride.max(1))) {
            for (cell, value) in cells.iter_mut().zip(row) {
                *cell = *value;
            }
        }
        let run = |engine: &mut GraphFeatures| {
            rows.with(|edges| engine.transform_into(edges, &mut cells, stride, own))
        };
        self.run(py, run)?.map_err(raise)?;
        let array = PyArray1::from_vec(py, cells);
        array.reshape([count, stride])
    }

    #[doc = doc!("GraphEngine.patterns")]
    fn patterns<'py>(
        &self,
        py: Python<'py>,
        matrix: PyReadonlyArray2<'py, f64>,
        most: usize,
    ) -> PyResult<(Matrix<'py>, Named)> {
        self.found(py, &matrix, |engine, edges| engine.patterns(edges, most))
    }

    #[doc = doc!("GraphEngine.preview")]
    fn preview<'py>(
        &self,
        py: Python<'py>,
        matrix: PyReadonlyArray2<'py, f64>,
        most: Option<usize>,
    ) -> PyResult<(Matrix<'py>, Named)> {
        self.found(py, &matrix, |engine, edges| engine.preview(edges, most))
    }

    #[doc = doc!("GraphEngine.preview_columns")]
    fn preview_columns<'py>(
        &self,
        py: Python<'py>,
        ends: [PyReadonlyArray1<'py, i64>; 4],
        measured: Vec<PyReadonlyArray1<'py, f64>>,
        most: Option<usize>,
    ) -> PyResult<(Matrix<'py>, Named)> {
        let columns = GivenColumns { ends, measured };
        self.found_in(py, &columns, |engine, edges| engine.preview(edges, most))
    }

    #[doc = doc!("GraphEngine.transform_columns")]
    fn transform_columns<'py>(
        &self,
        py: Python<'py>,
        ends: [PyReadonlyArray1<'py, i64>; 4],
        measured: Vec<PyReadonlyArray1<'py, f64>>,
    ) -> PyResult<Matrix<'py>> {
        let columns = GivenColumns { ends, measured };
        let features =
            columns.with(|edges| self.run(py, |engine| engine.transform(edges))?.map_err(raise))?;
        self.reshaped(py, features, columns.rows()?)
    }

    #[doc = doc!("GraphEngine.learn_columns")]
    fn learn_columns(
        &self,
        py: Python<'_>,
        ends: [PyReadonlyArray1<'_, i64>; 4],
        measured: Vec<PyReadonlyArray1<'_, f64>>,
    ) -> PyResult<()> {
        GivenColumns { ends, measured }
            .with(|edges| self.run(py, |engine| engine.learn(edges))?.map_err(raise))
    }

    #[doc = doc!("GraphEngine.learn_ahead")]
    fn learn_ahead(
        &self,
        py: Python<'_>,
        ends: [PyReadonlyArray1<'_, i64>; 4],
        measured: Vec<PyReadonlyArray1<'_, f64>>,
    ) -> PyResult<()> {
        GivenColumns { ends, measured }
            .with(|edges| self.run(py, |engine| engine.learn_pending(edges))?.map_err(raise))
    }

    #[doc = doc!("GraphEngine.transform_ahead")]
    fn transform_ahead<'py>(&self, py: Python<'py>, rows: usize) -> PyResult<Matrix<'py>> {
        let (cells, count, width) = self
            .run(py, |engine| {
                let count = rows.min(engine.pending());
                let width = engine.settings().width();
                engine.transform_pending(rows).map(|cells| (cells, count, width))
            })?
            .map_err(raise)?;
        PyArray1::from_vec(py, cells).reshape([count, width])
    }

    #[doc = doc!("GraphEngine.drop_ahead")]
    fn drop_ahead(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, GraphFeatures::drop_pending)
    }

    #[doc = doc!("GraphEngine.patterns_columns")]
    fn patterns_columns<'py>(
        &self,
        py: Python<'py>,
        ends: [PyReadonlyArray1<'py, i64>; 4],
        measured: Vec<PyReadonlyArray1<'py, f64>>,
        most: usize,
    ) -> PyResult<(Matrix<'py>, Named)> {
        let columns = GivenColumns { ends, measured };
        self.found_in(py, &columns, |engine, edges| engine.patterns(edges, most))
    }

    #[doc = doc!("GraphEngine.knows")]
    fn knows<'py>(
        &self,
        py: Python<'py>,
        accounts: PyReadonlyArray1<'py, i64>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        Ok(PyArray1::from_vec(py, self.acquire(py)?.knows(accounts.as_slice()?)))
    }

    #[doc = doc!("GraphEngine.state")]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let GraphState { ids, sources, targets, times, columns, now, unmeasured, order, rows } =
            self.acquire(py)?.state();
        let all = PyDict::new(py);
        all.set_item("ids", ids.map(|ids| PyArray1::from_vec(py, ids)))?;
        all.set_item("sources", PyArray1::from_vec(py, sources))?;
        all.set_item("targets", PyArray1::from_vec(py, targets))?;
        all.set_item("times", PyArray1::from_vec(py, times))?;
        let columns: Vec<_> = columns.into_iter().map(|one| PyArray1::from_vec(py, one)).collect();
        all.set_item("columns", columns)?;
        all.set_item("now", now)?;
        all.set_item("unmeasured", unmeasured)?;
        all.set_item("order", PyArray1::from_vec(py, order))?;
        all.set_item("rows", rows)?;
        Ok(all)
    }

    #[doc = doc!("GraphEngine.restore")]
    fn restore(&self, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let py = state.py();
        let get = |name: &str| {
            let found = state.get_item(name)?;
            found.ok_or_else(|| PyValueError::new_err(format!("a state without {name:?}")))
        };
        let whole = |name: &str| -> PyResult<Vec<i64>> {
            Ok(get(name)?.extract::<PyReadonlyArray1<'_, i64>>()?.as_slice()?.to_vec())
        };
        let columns: Vec<PyReadonlyArray1<'_, f64>> = get("columns")?.extract()?;
        let columns: Result<_, _> =
            columns.iter().map(|one| one.as_slice().map(<[f64]>::to_vec)).collect();
        let ids = if get("ids")?.is_none() { None } else { Some(whole("ids")?) };
        let state = GraphState {
            ids,
            sources: whole("sources")?,
            targets: whole("targets")?,
            times: whole("times")?,
            columns: columns?,
            now: get("now")?.extract()?,
            unmeasured: get("unmeasured")?.extract()?,
            order: whole("order")?,
            rows: get("rows")?.extract()?,
        };
        let mut engine = self.acquire(py)?;
        *engine = GraphFeatures::restore(engine.settings().clone(), &state).map_err(raise)?;
        engine.set_interrupt(Arc::clone(&self.signals) as Arc<dyn CallInterrupt>);
        Ok(())
    }

    #[doc = doc!("GraphEngine.stats")]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.acquire(py)?.stats();
        let all = PyDict::new(py);
        all.set_item("edges", stats.edges)?;
        all.set_item("accounts", stats.accounts)?;
        all.set_item("bytes", stats.bytes)?;
        all.set_item("segments", stats.segments)?;
        all.set_item("sealed", stats.sealed)?;
        all.set_item("draining", stats.draining)?;
        all.set_item("sealed_bytes", stats.sealed_bytes)?;
        all.set_item("now", stats.now)?;
        all.set_item("rows", stats.rows)?;
        let cut_short = PyDict::new(py);
        for (kind, count) in PatternKind::ALL.iter().zip(stats.cut_short) {
            cut_short.set_item(kind.name(), count)?;
        }
        all.set_item("cut_short", cut_short)?;
        Ok(all)
    }
}

/// Rows by column: ids, sources, targets and times, and the measured columns.
struct GivenColumns<'py> {
    ends: [PyReadonlyArray1<'py, i64>; 4],
    measured: Vec<PyReadonlyArray1<'py, f64>>,
}

impl GivenColumns<'_> {
    /// Number of rows.
    fn rows(&self) -> PyResult<usize> {
        Ok(self.ends[0].as_slice()?.len())
    }

    fn with<R>(&self, run: impl FnOnce(&Edges<'_>) -> PyResult<R>) -> PyResult<R> {
        let columns: Result<Vec<&[f64]>, _> =
            self.measured.iter().map(|one| one.as_slice()).collect();
        let [ids, sources, targets, times] = &self.ends;
        run(&Edges {
            ids: ids.as_slice()?,
            sources: sources.as_slice()?,
            targets: targets.as_slice()?,
            times: times.as_slice()?,
            columns: &columns?,
        })
    }
}
