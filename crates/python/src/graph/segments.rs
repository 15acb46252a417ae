//! `farrow._native.GraphFrozen`, `GraphPlan` and `GraphSegment`: older parts of a graph, converted
//! to segments in shared memory. `python/farrow/graph/cluster` places them.

use super::{GivenColumns, GraphEngine, Rows, raise};
use crate::incoming::pinned_buffer;
use arrow_buffer::{ArrowNativeType, Buffer, ScalarBuffer};
use farrow_graph::{
    FrozenSpan, GraphFeatures, LateEdges, ListKind, Segment, SegmentBuffers, SegmentBuffersMut,
    SegmentInfo, SegmentPlan, SegmentSizes, WorkShare,
};
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray1};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Arc, Mutex, PoisonError};

#[doc = doc!("GraphFrozen")]
#[pyclass(frozen, module = "farrow._native")]
pub struct GraphFrozen(Mutex<Option<FrozenSpan>>);

#[doc = doc!("GraphPlan")]
#[pyclass(frozen, module = "farrow._native")]
pub struct GraphPlan(SegmentPlan);

#[doc = doc!("GraphSegment")]
#[pyclass(frozen, module = "farrow._native")]
pub struct GraphSegment(Arc<Segment>);

/// Ends of rows (id, source, target, time), and their measured columns.
type Columns<'py> = ([Bound<'py, PyArray1<i64>>; 4], Vec<Bound<'py, PyArray1<f64>>>);

fn about_dict<'py>(py: Python<'py>, about: &SegmentInfo) -> PyResult<Bound<'py, PyDict>> {
    let SegmentInfo { first, numbers, base, span, edges, loops, accounts } = *about;
    let all = PyDict::new(py);
    for (name, number) in [
        ("first", first),
        ("numbers", numbers),
        ("span", span),
        ("edges", edges),
        ("loops", loops),
        ("accounts", accounts),
    ] {
        all.set_item(name, number)?;
    }
    all.set_item("base", base)?;
    Ok(all)
}

fn about(from: &Bound<'_, PyDict>) -> PyResult<SegmentInfo> {
    let get = |name: &str| {
        let found = from.get_item(name)?;
        found.ok_or_else(|| PyValueError::new_err(format!("a segment without {name:?}")))
    };
    let whole = |name: &str| -> PyResult<u64> { get(name)?.extract() };
    Ok(SegmentInfo {
        first: whole("first")?,
        numbers: whole("numbers")?,
        base: get("base")?.extract()?,
        span: whole("span")?,
        edges: whole("edges")?,
        loops: whole("loops")?,
        accounts: whole("accounts")?,
    })
}

#[pymethods]
impl GraphFrozen {
    #[doc = doc!("GraphFrozen.about")]
    fn about<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(frozen) => about_dict(py, frozen.info()),
            None => Err(PyRuntimeError::new_err("it has become a plan")),
        }
    }

    #[doc = doc!("GraphFrozen.plan")]
    fn plan(&self, py: Python<'_>) -> PyResult<GraphPlan> {
        let frozen = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let frozen = frozen.ok_or_else(|| PyRuntimeError::new_err("it has become a plan"))?;
        py.detach(|| frozen.plan()).map(GraphPlan).map_err(raise)
    }
}

#[pymethods]
impl GraphPlan {
    #[doc = doc!("GraphPlan.about")]
    fn about<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        about_dict(py, self.0.info())
    }

    #[doc = doc!("GraphPlan.sizes")]
    fn sizes(&self) -> (usize, usize, [usize; 3], [usize; 3], usize, usize, Vec<usize>) {
        let SegmentSizes { index, accounts, starts, entries, times, ids, values } = self.0.sizes();
        (index, accounts, starts, entries, times, ids, values)
    }

    #[doc = doc!("GraphPlan.fill")]
    #[expect(clippy::too_many_arguments, reason = "all buffers of a segment")]
    fn fill(
        &self,
        py: Python<'_>,
        mut index: PyReadwriteArray1<'_, u64>,
        mut accounts: PyReadwriteArray1<'_, i64>,
        mut starts: [PyReadwriteArray1<'_, i32>; 3],
        mut entries: [PyReadwriteArray1<'_, u64>; 3],
        mut times: PyReadwriteArray1<'_, u64>,
        mut ids: PyReadwriteArray1<'_, i64>,
        mut values: Vec<PyReadwriteArray1<'_, f64>>,
    ) -> PyResult<()> {
        let [out, into, loops] = &mut starts;
        let starts = [out.as_slice_mut()?, into.as_slice_mut()?, loops.as_slice_mut()?];
        let [out, into, loops] = &mut entries;
        let entries = [out.as_slice_mut()?, into.as_slice_mut()?, loops.as_slice_mut()?];
        let values: Result<Vec<&mut [f64]>, _> =
            values.iter_mut().map(|one| one.as_slice_mut()).collect();
        let mut room = SegmentBuffersMut {
            index: index.as_slice_mut()?,
            accounts: accounts.as_slice_mut()?,
            starts,
            entries,
            times: times.as_slice_mut()?,
            ids: ids.as_slice_mut()?,
            values: values?,
        };
        py.detach(|| self.0.fill(&mut room)).map_err(raise)
    }
}

/// Values of a buffer whose bytes a Python object owns.
fn scalars<T: ArrowNativeType>(buffer: &Bound<'_, PyAny>) -> PyResult<ScalarBuffer<T>> {
    let buffer: Buffer = pinned_buffer(buffer)?;
    let (size, length) = (size_of::<T>(), buffer.len() / size_of::<T>());
    if length == 0 {
        return Ok(ScalarBuffer::from(Vec::new()));
    }
    if buffer.as_ptr().align_offset(size) != 0 {
        return Err(PyValueError::new_err(format!("a buffer that is not aligned to {size} B")));
    }
    Ok(ScalarBuffer::new(buffer, 0, length))
}

#[pymethods]
impl GraphSegment {
    /// From `GraphPlan.about` and buffers in the order of `GraphPlan.sizes`.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "all buffers of a segment")]
    fn new(
        of: &Bound<'_, PyDict>,
        index: &Bound<'_, PyAny>,
        accounts: &Bound<'_, PyAny>,
        starts: [Bound<'_, PyAny>; 3],
        entries: [Bound<'_, PyAny>; 3],
        times: &Bound<'_, PyAny>,
        ids: &Bound<'_, PyAny>,
        values: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<GraphSegment> {
        let [out, into, loops] = &starts;
        let starts = [scalars(out)?, scalars(into)?, scalars(loops)?];
        let [out, into, loops] = &entries;
        let entries = [scalars(out)?, scalars(into)?, scalars(loops)?];
        let values: PyResult<Vec<_>> = values.iter().map(scalars).collect();
        let buffers = SegmentBuffers {
            index: scalars(index)?,
            accounts: scalars(accounts)?,
            starts,
            entries,
            times: scalars(times)?,
            ids: scalars(ids)?,
            values: values?,
        };
        let segment = Segment::new(about(of)?, buffers).map_err(raise)?;
        Ok(GraphSegment(Arc::new(segment)))
    }

    #[doc = doc!("GraphSegment.about")]
    fn about<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        about_dict(py, self.0.info())
    }

    #[doc = doc!("GraphSegment.nbytes")]
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.bytes()
    }
}

#[pymethods]
impl GraphEngine {
    #[doc = doc!("GraphEngine.freeze")]
    fn freeze(&self, py: Python<'_>) -> PyResult<Option<GraphFrozen>> {
        let frozen = self.run(py, |engine| engine.freeze())?;
        Ok(frozen.map(|frozen| GraphFrozen(Mutex::new(Some(frozen)))))
    }

    #[doc = doc!("GraphEngine.attach")]
    fn attach(&self, py: Python<'_>, segment: &GraphSegment) -> PyResult<()> {
        let segment = Arc::clone(&segment.0);
        self.run(py, |engine| engine.attach(segment))?.map_err(raise)
    }

    #[doc = doc!("GraphEngine.adopt")]
    fn adopt(
        &self,
        py: Python<'_>,
        accounts: PyReadonlyArray1<'_, i64>,
        segments: Vec<PyRef<'_, GraphSegment>>,
        late: &Bound<'_, PyDict>,
        next: u64,
    ) -> PyResult<()> {
        let get = |name: &str| {
            let found = late.get_item(name)?;
            found.ok_or_else(|| PyValueError::new_err(format!("late edges without {name:?}")))
        };
        let whole = |name: &str| -> PyResult<Vec<i64>> {
            Ok(get(name)?.extract::<PyReadonlyArray1<'_, i64>>()?.as_slice()?.to_vec())
        };
        let columns: Vec<PyReadonlyArray1<'_, f64>> = get("columns")?.extract()?;
        let columns: Result<_, _> =
            columns.iter().map(|one| one.as_slice().map(<[f64]>::to_vec)).collect();
        let late = LateEdges {
            numbers: whole("numbers")?.into_iter().map(i64::cast_unsigned).collect(),
            fronts: whole("fronts")?,
            ids: whole("ids")?,
            sources: whole("sources")?,
            targets: whole("targets")?,
            times: whole("times")?,
            columns: columns?,
        };
        let segments: Vec<_> = segments.iter().map(|one| Arc::clone(&one.0)).collect();
        let accounts = accounts.as_slice()?;
        self.run(py, |engine| engine.adopt(accounts, segments, &late, next))?.map_err(raise)
    }

    #[doc = doc!("GraphEngine.split")]
    fn split<'py>(
        &self,
        py: Python<'py>,
        matrix: PyReadonlyArray2<'py, f64>,
    ) -> PyResult<Columns<'py>> {
        let Rows { ids, sources, targets, times, measured } = Rows::new(&matrix, self)?;
        let ends = [ids, sources, targets, times].map(|one| PyArray1::from_vec(py, one));
        Ok((ends, measured.into_iter().map(|one| PyArray1::from_vec(py, one)).collect()))
    }

    #[doc = doc!("GraphEngine.accounts")]
    #[pyo3(signature = (from, /))]
    fn accounts<'py>(&self, py: Python<'py>, from: usize) -> PyResult<Bound<'py, PyArray1<i64>>> {
        Ok(PyArray1::from_vec(py, self.acquire(py)?.accounts(from)))
    }

    #[doc = doc!("GraphEngine.edges_of")]
    #[pyo3(signature = (account, list, from, to, /))]
    fn edges_of<'py>(
        &self,
        py: Python<'py>,
        account: i64,
        list: usize,
        from: i64,
        to: i64,
    ) -> PyResult<[Bound<'py, PyArray1<i64>>; 2]> {
        let list = ListKind::ALL.get(list).copied();
        let list = list.ok_or_else(|| PyValueError::new_err("list is 0, 1 or 2"))?;
        let edges = self.run(py, |engine| engine.edges_of(account, list, from, to))?;
        let (counterparts, times): (Vec<i64>, Vec<i64>) = edges.into_iter().unzip();
        Ok([PyArray1::from_vec(py, counterparts), PyArray1::from_vec(py, times)])
    }

    #[doc = doc!("GraphEngine.stragglers")]
    fn stragglers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let LateEdges { numbers, fronts, ids, sources, targets, times, columns } =
            self.acquire(py)?.late_edges();
        let all = PyDict::new(py);
        let numbers = numbers.into_iter().map(u64::cast_signed).collect();
        let whole = [
            ("numbers", numbers),
            ("fronts", fronts),
            ("ids", ids),
            ("sources", sources),
            ("targets", targets),
            ("times", times),
        ];
        for (name, column) in whole {
            all.set_item(name, PyArray1::from_vec(py, column))?;
        }
        let columns: Vec<_> = columns.into_iter().map(|one| PyArray1::from_vec(py, one)).collect();
        all.set_item("columns", columns)?;
        Ok(all)
    }

    #[doc = doc!("GraphEngine.begin")]
    fn begin(&self, py: Python<'_>) -> PyResult<()> {
        self.acquire(py)?.begin().map_err(raise)
    }

    #[doc = doc!("GraphEngine.keep")]
    fn keep(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, GraphFeatures::keep)
    }

    #[doc = doc!("GraphEngine.undo")]
    fn undo(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, GraphFeatures::undo)
    }

    #[doc = doc!("GraphEngine.next_number")]
    fn next_number(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.acquire(py)?.next_number())
    }

    #[doc = doc!("GraphEngine.is_draining")]
    fn is_draining(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.acquire(py)?.is_draining())
    }

    #[doc = doc!("GraphEngine.expired")]
    fn expired<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let expired = self.acquire(py)?.expired();
        expired.iter().map(|one| about_dict(py, one)).collect()
    }

    #[doc = doc!("GraphEngine.transform_share")]
    fn transform_share<'py>(
        &self,
        py: Python<'py>,
        ends: [PyReadonlyArray1<'py, i64>; 4],
        measured: Vec<PyReadonlyArray1<'py, f64>>,
        share: (usize, usize),
    ) -> PyResult<super::Matrix<'py>> {
        let width = self.width();
        let share = WorkShare { index: share.0, count: share.1 };
        let rows = ends[0].as_slice()?.len();
        let mut cells = vec![0.0; rows * width];
        GivenColumns { ends, measured }.with(|edges| {
            let run = |engine: &mut GraphFeatures| {
                engine.transform_share(edges, &mut cells, width, 0, share)
            };
            self.run(py, run)?.map_err(raise)
        })?;
        PyArray1::from_vec(py, cells).reshape([rows, width])
    }
}
