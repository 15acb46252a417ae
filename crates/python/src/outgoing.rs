//! Objects of the region as Python values: zero-copy, read-only, of the kind that was put.

use crate::errors::raise;
use crate::incoming::Numpy;
use crate::shim;
use arrow_buffer::Buffer;
use farrow::{Object, ObjectBytes, ObjectKind};
use farrow_capi::convert;
use pyo3::prelude::*;

/// The Python value of a held object.
pub fn build(py: Python<'_>, object: Object) -> PyResult<Bound<'_, PyAny>> {
    match object.kind() {
        ObjectKind::Bytes => buffer(py, object.into_view().map_err(raise)?),
        ObjectKind::NdArray => {
            let (shape, data) = object.ndarray().map_err(raise)?;
            Numpy::get(py)?.build(&arrow_buffer(py, data)?, &shape)
        }
        kind => {
            let exported = convert::rebuild(&object)
                .and_then(|arrow| convert::export(&arrow))
                .map_err(raise)?;
            match kind {
                ObjectKind::Table => shim::wrap_table(py, exported),
                ObjectKind::ChunkedArray => shim::wrap_chunked(py, exported),
                ObjectKind::RecordBatch => shim::wrap_one(py, exported, true),
                _ => shim::wrap_one(py, exported, false),
            }
        }
    }
}

fn arrow_buffer(py: Python<'_>, data: Buffer) -> PyResult<Bound<'_, PyAny>> {
    let (address, size) = (data.as_ptr().cast_mut(), data.len());
    // SAFETY: as below.
    unsafe { shim::wrap_buffer(py, address, size, false, data) }
}

fn buffer(py: Python<'_>, bytes: ObjectBytes) -> PyResult<Bound<'_, PyAny>> {
    let (data, size, hold) = bytes.into_hold();
    // SAFETY: the bytes stay mapped and unchanged while the hold is kept, which the buffer does; it
    // is read-only.
    unsafe { shim::wrap_shared(py, data, size, hold) }
}
