//! Objects of the region as Python values: zero-copy, read-only, of the kind that was put.

use crate::errors::raise;
use crate::numpy::Numpy;
use crate::pyarrow::{Pyarrow, RawOwner};
use arrow_buffer::Buffer;
use farrow::arrow::Kind;
use farrow::arrow_ffi;
use farrow::{ArrowObject, BatchItem, NdArray, Object, ObjectBytes, ObjectKind};
use pyo3::prelude::*;
use pyo3::types::PyList;

/// The Python value of a held object.
pub fn build(py: Python<'_>, object: Object) -> PyResult<Bound<'_, PyAny>> {
    match object.kind() {
        ObjectKind::Bytes => buffer(py, object.into_view().map_err(raise)?),
        ObjectKind::NdArray => {
            let (shape, data) = object.ndarray().map_err(raise)?;
            build_ndarray(py, &shape, data)
        }
        _ => build_arrow(py, &arrow_ffi::rebuild(&object).map_err(raise)?),
    }
}

/// The value for the library that the caller named, if any.
pub fn convert<'py>(
    value: Bound<'py, PyAny>,
    library: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    match library {
        None => Ok(value),
        Some(library) => value
            .py()
            .import("farrow._values._convert")?
            .getattr("convert")?
            .call1((value, library)),
    }
}

/// A numpy array over its bytes.
pub fn build_ndarray<'py>(
    py: Python<'py>,
    shape: &NdArray,
    data: Buffer,
) -> PyResult<Bound<'py, PyAny>> {
    Numpy::get(py)?.build(&arrow_buffer(py, data)?, shape)
}

/// The pyarrow value of an Arrow object.
pub fn build_arrow<'py>(py: Python<'py>, arrow: &ArrowObject) -> PyResult<Bound<'py, PyAny>> {
    let exported = arrow_ffi::export(arrow).map_err(raise)?;
    let pyarrow = Pyarrow::get(py)?;
    match arrow.kind {
        Kind::Table => pyarrow.wrap_table(py, exported),
        Kind::ChunkedArray => pyarrow.wrap_chunked(py, exported),
        Kind::RecordBatch => pyarrow.wrap_one(py, exported, true),
        Kind::Array | Kind::NdArray => pyarrow.wrap_one(py, exported, false),
    }
}

/// The Python values of many objects, in their order.
pub fn build_all(py: Python<'_>, all: Vec<BatchItem>) -> PyResult<Bound<'_, PyList>> {
    let mut bytes = Vec::with_capacity(all.len());
    // Indices of the others, in order.
    let mut objects = Vec::new();
    for (index, one) in all.into_iter().enumerate() {
        match one {
            BatchItem::Bytes(one) => {
                let (data, size) = one.place().map_err(raise)?;
                bytes.push((data, size, one));
            }
            BatchItem::Object(object) => objects.push((index, object)),
        }
    }
    // SAFETY: the bytes stay mapped and unchanged while their owner is retained; a read-only buffer
    // permits no writes.
    let buffers = unsafe { Pyarrow::get(py)?.wrap_all(py, bytes)? };
    if objects.is_empty() {
        return PyList::new(py, buffers);
    }
    let mut buffers = buffers.into_iter();
    let mut values = Vec::with_capacity(buffers.len() + objects.len());
    for (index, object) in objects {
        values.extend(buffers.by_ref().take(index - values.len()));
        values.push(build(py, object)?);
    }
    values.extend(buffers);
    PyList::new(py, values)
}

fn arrow_buffer(py: Python<'_>, data: Buffer) -> PyResult<Bound<'_, PyAny>> {
    let bytes = (data.as_ptr(), data.len());
    // SAFETY: as below.
    unsafe { Pyarrow::get(py)?.wrap_buffer(py, bytes, RawOwner::boxed(data)) }
}

fn buffer(py: Python<'_>, bytes: ObjectBytes) -> PyResult<Bound<'_, PyAny>> {
    let (data, size, hold) = bytes.into_hold();
    // SAFETY: the bytes stay mapped and unchanged while the hold is retained, which the buffer
    // does; it is read-only.
    unsafe { Pyarrow::get(py)?.wrap_buffer(py, (data, size), RawOwner::shared(hold)) }
}
