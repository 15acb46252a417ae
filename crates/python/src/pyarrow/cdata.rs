//! pyarrow values by the Arrow C Data Interface: methods that every pyarrow has since 15.

use super::class::ValueClass;
use super::owner::RawOwner;
use crate::errors::{invalid_argument, raise};
use farrow::arrow::ffi::{FFI_ArrowArray, FFI_ArrowArrayStream, FFI_ArrowSchema};
use farrow::arrow_ffi::{Exported, Imported, StreamKind};
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList};

/// pyarrow's classes and functions.
pub struct CData {
    /// Table, RecordBatch, Array, ChunkedArray, Buffer.
    classes: [(ValueClass, Py<PyAny>); 5],
    /// The base of pyarrow's exceptions.
    error: Py<PyAny>,
    schema: Py<PyAny>,
    data_type: Py<PyAny>,
    import_batch: Py<PyAny>,
    import_array: Py<PyAny>,
    table_of_batches: Py<PyAny>,
    chunked_array: Py<PyAny>,
    foreign_buffer: Py<PyAny>,
}

/// The address of a C structure, as pyarrow takes it.
fn address<T>(structure: &mut T) -> usize {
    std::ptr::from_mut(structure).addr()
}

impl CData {
    pub fn new(py: Python<'_>) -> PyResult<CData> {
        let pyarrow = py.import("pyarrow")?;
        let get = |name: &str| pyarrow.getattr(name);
        let import = |class: &str, name: &str| get(class)?.getattr(name).map(Bound::unbind);
        Ok(CData {
            classes: [
                (ValueClass::Table, get("Table")?.unbind()),
                (ValueClass::Batch, get("RecordBatch")?.unbind()),
                (ValueClass::Array, get("Array")?.unbind()),
                (ValueClass::Chunked, get("ChunkedArray")?.unbind()),
                (ValueClass::Buffer, get("Buffer")?.unbind()),
            ],
            error: get("ArrowException")?.unbind(),
            schema: import("Schema", "_import_from_c")?,
            data_type: import("DataType", "_import_from_c")?,
            import_batch: import("RecordBatch", "_import_from_c")?,
            import_array: import("Array", "_import_from_c")?,
            table_of_batches: import("Table", "from_batches")?,
            chunked_array: get("chunked_array")?.unbind(),
            foreign_buffer: get("foreign_buffer")?.unbind(),
        })
    }

    /// Errors of pyarrow are about the value.
    fn refused(&self, py: Python<'_>, error: PyErr) -> PyErr {
        let is_arrow = error.value(py).is_instance(self.error.bind(py)).unwrap_or(false);
        if is_arrow { invalid_argument(error.value(py).to_string()) } else { error }
    }

    /// Which pyarrow class `value` is.
    pub fn classify(&self, value: &Bound<'_, PyAny>) -> PyResult<ValueClass> {
        for (class, of) in &self.classes {
            if value.is_instance(of.bind(value.py()))? {
                return Ok(*class);
            }
        }
        Ok(ValueClass::None)
    }

    /// The batches of a Table.
    pub fn import_table(&self, value: &Bound<'_, PyAny>) -> PyResult<Imported> {
        let py = value.py();
        let mut stream = FFI_ArrowArrayStream::empty();
        value
            .call_method0(intern!(py, "to_reader"))
            .and_then(|reader| {
                reader.call_method1(intern!(py, "_export_to_c"), (address(&mut stream),))
            })
            .map_err(|error| self.refused(py, error))?;
        // SAFETY: pyarrow wrote the structure.
        unsafe { Imported::stream(stream, StreamKind::Table) }.map_err(raise)
    }

    /// The chunks of a ChunkedArray, which not every pyarrow exports as a stream.
    pub fn import_chunked(&self, value: &Bound<'_, PyAny>) -> PyResult<Imported> {
        let py = value.py();
        let mut schema = FFI_ArrowSchema::empty();
        let export = intern!(py, "_export_to_c");
        value
            .getattr(intern!(py, "type"))?
            .call_method1(export, (address(&mut schema),))
            .map_err(|error| self.refused(py, error))?;
        let mut arrays = Vec::new();
        for chunk in value.getattr(intern!(py, "chunks"))?.try_iter()? {
            let mut array = FFI_ArrowArray::empty();
            chunk?
                .call_method1(export, (address(&mut array),))
                .map_err(|error| self.refused(py, error))?;
            arrays.push(array);
        }
        // SAFETY: pyarrow wrote the structures; all chunks have the one type.
        unsafe { Imported::chunks(arrays, &schema) }.map_err(raise)
    }

    /// An Array, or a RecordBatch.
    pub fn import_one(&self, value: &Bound<'_, PyAny>, is_batch: bool) -> PyResult<Imported> {
        let py = value.py();
        let (mut array, mut schema) = (FFI_ArrowArray::empty(), FFI_ArrowSchema::empty());
        let places = (address(&mut array), address(&mut schema));
        value
            .call_method1(intern!(py, "_export_to_c"), places)
            .map_err(|error| self.refused(py, error))?;
        // SAFETY: pyarrow wrote the structures.
        unsafe { Imported::array(array, &schema, is_batch) }.map_err(raise)
    }

    /// Address and length of a pyarrow.Buffer; valid while `value` is retained.
    pub fn buffer_view(value: &Bound<'_, PyAny>) -> PyResult<(*const u8, usize)> {
        let py = value.py();
        if !value.getattr(intern!(py, "is_cpu"))?.is_truthy()? {
            return Err(invalid_argument("a buffer that is not in main memory"));
        }
        let address: usize = value.getattr(intern!(py, "address"))?.extract()?;
        let size: usize = value.getattr(intern!(py, "size"))?.extract()?;
        Ok((std::ptr::with_exposed_provenance(address), size))
    }

    /// A new pyarrow Table of the batches.
    pub fn wrap_table<'py>(
        &self,
        py: Python<'py>,
        mut from: Exported,
    ) -> PyResult<Bound<'py, PyAny>> {
        let schema = self.schema.bind(py).call1((address(&mut from.schema),))?;
        let batches = PyList::empty(py);
        for batch in &mut from.arrays {
            batches.append(self.import_batch.bind(py).call1((address(batch), &schema))?)?;
        }
        self.table_of_batches.bind(py).call1((batches, schema))
    }

    /// A new pyarrow ChunkedArray of the arrays.
    pub fn wrap_chunked<'py>(
        &self,
        py: Python<'py>,
        mut from: Exported,
    ) -> PyResult<Bound<'py, PyAny>> {
        let data_type = self.data_type.bind(py).call1((address(&mut from.schema),))?;
        let chunks = PyList::empty(py);
        for chunk in &mut from.arrays {
            chunks.append(self.import_array.bind(py).call1((address(chunk), &data_type))?)?;
        }
        self.chunked_array.bind(py).call1((chunks, data_type))
    }

    /// A new pyarrow RecordBatch (`is_batch`) or Array of the one array.
    pub fn wrap_one<'py>(
        &self,
        py: Python<'py>,
        mut from: Exported,
        is_batch: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(array) = from.arrays.first_mut() else {
            return Err(PyRuntimeError::new_err("an array object without an array"));
        };
        let import = if is_batch { &self.import_batch } else { &self.import_array };
        import.bind(py).call1((address(array), address(&mut from.schema)))
    }

    /// Runs `wrap`, whose errors are about the value.
    pub fn wrapped<'py>(
        &self,
        py: Python<'py>,
        wrap: impl FnOnce(&Self) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        wrap(self).map_err(|error| self.refused(py, error))
    }

    /// A read-only pyarrow.Buffer over `size` bytes at `data`.
    ///
    /// # Safety
    /// The bytes must stay readable until `owner` is dropped.
    pub unsafe fn wrap_buffer<'py>(
        &self,
        py: Python<'py>,
        (data, size): (*const u8, usize),
        owner: RawOwner,
    ) -> PyResult<Bound<'py, PyAny>> {
        let owner = PyCapsule::new_with_value(py, owner, c"farrow.owner")?;
        self.foreign_buffer.bind(py).call1((data.expose_provenance(), size, owner))
    }
}
