//! `farrow.HugeTable`: one table whose rows are in the memory of many nodes.

use std::time::Instant;

use crate::client::duration;
use crate::errors::{invalid_argument, raise, unsupported};
use crate::incoming::{self, Incoming};
use crate::part;
use crate::pyarrow::Pyarrow;
use crate::waiting::without_gil;
use farrow::arrow::statistics::{
    Bound as ColumnBound, ColumnStatistics, StatisticsField, TableStatistics, statistics_fields,
};
use farrow::arrow_ffi;
use farrow::{
    AppendOptions, Client, ObjectId, Partition, SchemaNode, Snapshot, TableOptions, Value, WaitFor,
    parts_statistics,
};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyBytes, PyList, PyTuple};

#[doc = doc!("HugeTable")]
#[pyclass(frozen, module = "farrow", name = "HugeTable")]
pub struct PyHugeTable {
    table: farrow::HugeTable,
}

/// Opens a table, or creates it.
pub fn open(
    py: Python<'_>,
    client: &Client,
    name: &str,
    schema: Option<&Bound<'_, PyAny>>,
    options: &TableOptions<'_>,
) -> PyResult<PyHugeTable> {
    let schema = schema.map(incoming::schema).transpose()?;
    let table = without_gil(py, || client.huge_table_with(name, schema.as_ref(), options))?;
    Ok(PyHugeTable { table })
}

/// A row, a number of rows or a version.
fn count(value: &Bound<'_, PyAny>, what: &str) -> PyResult<u64> {
    value.extract().map_err(|_| invalid_argument(format!("a {what} of {value}")))
}

fn partition<'py>(py: Python<'py>, chunk: &Partition) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = CLASS.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("farrow.huge")?.getattr("Partition")?.unbind())
    })?;
    let id = PyBytes::new(py, &chunk.id.to_bytes());
    let node = chunk.node.as_ref();
    class.bind(py).call1((chunk.position, chunk.rows, node, chunk.bytes, id, chunk.version))
}

/// Path, nulls, has_nan, is_ascending, is_descending, and each bound with whether it is exact.
fn field_statistics<'py>(
    py: Python<'py>,
    field: &StatisticsField<'_>,
    column: &ColumnStatistics,
) -> PyResult<Bound<'py, PyAny>> {
    let bound = |bound: &Option<ColumnBound>| {
        bound.as_ref().map(|bound| (PyBytes::new(py, &bound.bytes), bound.is_exact))
    };
    let (min, max) = (bound(&column.min), bound(&column.max));
    let ColumnStatistics { nulls, has_nan, is_ascending, is_descending, .. } = *column;
    let path = field.path.clone();
    (path, nulls, has_nan, is_ascending, is_descending, min, max).into_bound_py_any(py)
}

/// The statistics of each field that has some.
fn all_statistics<'py>(
    py: Python<'py>,
    fields: &[StatisticsField<'_>],
    found: &TableStatistics,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let fields = fields.iter().zip(&found.columns);
    fields.map(|(field, column)| field_statistics(py, field, column)).collect()
}

#[doc = doc!("table_statistics")]
#[pyfunction]
pub fn table_statistics<'py>(
    py: Python<'py>,
    text: &str,
    schema: &Bound<'py, PyAny>,
    rows: u64,
) -> PyResult<Option<Bound<'py, PyList>>> {
    let schema = incoming::schema(schema)?;
    let Some(parts) = parts_statistics(text, &schema, rows) else { return Ok(None) };
    let fields = statistics_fields(&schema);
    let list = PyList::empty(py);
    for part in &parts {
        list.append((part.rows, all_statistics(py, &fields, part)?))?;
    }
    Ok(Some(list))
}

impl PyHugeTable {
    fn snapshot(&self, py: Python<'_>, version: Option<u64>) -> PyResult<Snapshot> {
        without_gil(py, || self.table.snapshot(version))
    }

    fn empty(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let schema: SchemaNode = self.table.schema().as_ref().clone();
        let kind = farrow::arrow::Kind::Table;
        let empty = farrow::ArrowObject { kind, schema: schema.into(), batches: Vec::new() };
        let exported = arrow_ffi::export(&empty).map_err(raise)?;
        Ok(Pyarrow::get(py)?.wrap_table(py, exported)?.unbind())
    }
}

#[pymethods]
impl PyHugeTable {
    #[doc = doc!("HugeTable.name")]
    #[getter]
    fn name(&self) -> &str {
        self.table.name()
    }

    #[doc = doc!("HugeTable.schema")]
    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.empty(py)?.into_bound(py).getattr("schema")
    }

    #[doc = doc!("HugeTable.sort_by")]
    #[getter]
    fn sort_by(&self) -> Option<&str> {
        self.table.sort_by()
    }

    #[doc = doc!("HugeTable.partition_by")]
    #[getter]
    fn partition_by<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.table.partition_by())
    }

    #[doc = doc!("HugeTable.rows")]
    #[getter]
    fn rows(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.snapshot(py, None)?.rows)
    }

    #[doc = doc!("HugeTable.version")]
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.snapshot(py, None)?.version)
    }

    #[doc = doc!("HugeTable.append")]
    #[pyo3(signature = (data, position=None, *, node=None, timeout=10.0, statistics=true))]
    fn append<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        position: Option<&Bound<'py, PyAny>>,
        node: Option<&str>,
        timeout: f64,
        statistics: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Incoming::Arrow(rows) = Incoming::new(data)? else {
            let name = data.get_type().fully_qualified_name()?;
            let text = format!("a huge table takes record batches and tables, not {name}");
            return Err(unsupported(text));
        };
        let position = position.map(|row| count(row, "position")).transpose()?;
        let timeout = duration(timeout)?;
        let done = without_gil(py, || {
            let options = AppendOptions { position, node, timeout, statistics };
            let done = self.table.append(&Value::from(&*rows), &options);
            drop(rows);
            done
        });
        partition(py, &done?)
    }

    #[doc = doc!("HugeTable.table")]
    #[pyo3(signature = (version=None, *, columns=None, rows=None))]
    fn table<'py>(
        &self,
        py: Python<'py>,
        version: Option<&Bound<'py, PyAny>>,
        columns: Option<&Bound<'py, PyAny>>,
        rows: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let version = version.map(|number| count(number, "version")).transpose()?;
        let part = part::read(columns, rows)?.unwrap_or_default();
        let arrow = without_gil(py, || self.table.table_part(version, &part))?;
        Pyarrow::get(py)?.wrap_table(py, arrow_ffi::export(&arrow).map_err(raise)?)
    }

    #[doc = doc!("HugeTable.partitions")]
    #[pyo3(signature = (version=None))]
    fn partitions<'py>(
        &self,
        py: Python<'py>,
        version: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let version = version.map(|number| count(number, "version")).transpose()?;
        let list = PyList::empty(py);
        for chunk in &self.snapshot(py, version)?.partitions {
            list.append(partition(py, chunk)?)?;
        }
        Ok(list)
    }

    #[doc = doc!("HugeTable.dataset")]
    #[pyo3(signature = (version=None))]
    fn dataset<'py>(
        slf: &Bound<'py, Self>,
        version: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let arguments = [("version", version)].into_py_dict(py)?;
        py.import("farrow.dataset")?.getattr("dataset")?.call((slf,), Some(&arguments))
    }

    #[doc = doc!("HugeTable._id")]
    #[getter]
    fn _id<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.table.id().to_bytes())
    }

    #[doc = doc!("HugeTable._statistics")]
    #[pyo3(name = "_statistics", signature = (version, after))]
    fn statistics<'py>(
        &self,
        py: Python<'py>,
        version: &Bound<'py, PyAny>,
        after: u64,
    ) -> PyResult<Bound<'py, PyList>> {
        let version = count(version, "version")?;
        let (partitions, mapped, found) = without_gil(py, || {
            let partitions = self.table.snapshot(Some(version))?.partitions;
            let mapped = partitions.iter().map(|chunk| self.table.is_mapped(chunk));
            let mapped = mapped.collect::<Result<Vec<bool>, _>>()?;
            let new: Vec<Partition> =
                partitions.iter().filter(|chunk| chunk.version > after).cloned().collect();
            let found = self.table.statistics(&new)?;
            Ok::<_, farrow::Error>((partitions, mapped, found))
        })?;
        let fields = statistics_fields(self.table.schema());
        let mut found = found.iter();
        let list = PyList::empty(py);
        for (chunk, is_mapped) in partitions.iter().zip(mapped) {
            let statistics = match chunk.version > after {
                true => found.next().and_then(Option::as_ref),
                false => None,
            };
            let statistics = statistics.map(|found| all_statistics(py, &fields, found));
            list.append((partition(py, chunk)?, is_mapped, statistics.transpose()?))?;
        }
        Ok(list)
    }

    #[doc = doc!("HugeTable.wait")]
    #[pyo3(signature = (*, rows=None, version=None, timeout=10.0))]
    fn wait(
        &self,
        py: Python<'_>,
        rows: Option<&Bound<'_, PyAny>>,
        version: Option<&Bound<'_, PyAny>>,
        timeout: f64,
    ) -> PyResult<u64> {
        let until = match (rows, version) {
            (Some(rows), None) => WaitFor::Rows(count(rows, "number of rows")?),
            (None, Some(version)) => WaitFor::Version(count(version, "version")?),
            _ => return Err(invalid_argument("either rows or a version can be waited for")),
        };
        let timeout = duration(timeout)?;
        Ok(without_gil(py, || self.table.wait(until, timeout))?.version)
    }

    #[doc = doc!("HugeTable.drop")]
    fn drop(&self, py: Python<'_>) -> PyResult<()> {
        without_gil(py, || self.table.drop_table())
    }

    #[doc = doc!("HugeTable._move_part")]
    fn _move_part(
        &self,
        py: Python<'_>,
        id: [u8; 16],
        part: &str,
        node: &str,
        timeout: f64,
    ) -> PyResult<()> {
        let (deadline, id) = (Instant::now() + duration(timeout)?, ObjectId::from_bytes(id));
        without_gil(py, || self.table.move_part(id, part, node, deadline))
    }

    #[doc = doc!("HugeTable._leave_node")]
    fn _leave_node(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let deadline = Instant::now() + duration(timeout)?;
        without_gil(py, || self.table.leave_node(deadline))
    }

    fn __repr__(&self) -> String {
        format!("<farrow.HugeTable {:?}>", self.table.name())
    }
}
