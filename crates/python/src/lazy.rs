//! Values whose pages are brought when they are first read.

use std::time::Duration;

use farrow::{Client, LazyValue, ObjectKey, Rebuilt};
use pyo3::prelude::*;

use crate::errors::invalid_argument;
use crate::outgoing;
use crate::waiting::without_gil;

/// The value of an object, as far as possible without its bytes.
pub fn get<'py>(
    py: Python<'py>,
    client: &Client,
    target: &ObjectKey,
    timeout: Duration,
) -> PyResult<Bound<'py, PyAny>> {
    match without_gil(py, || client.get_lazy(target, timeout))? {
        LazyValue::Object(object) => outgoing::build(py, object),
        LazyValue::Pages(Rebuilt::NdArray(shape, data)) => {
            outgoing::build_ndarray(py, &shape, data)
        }
        LazyValue::Pages(Rebuilt::Arrow(arrow)) => outgoing::build_arrow(py, &arrow),
    }
}

/// The error of a get of pages that names a part too.
pub fn and_part() -> PyErr {
    invalid_argument(
        "lazy=True with columns or rows: a part is brought at once; select from the lazy value",
    )
}

#[doc = doc!("fetch_pages")]
#[pyfunction]
pub fn fetch_pages(py: Python<'_>, ranges: Vec<(usize, usize)>) -> PyResult<u64> {
    without_gil(py, || farrow::fetch(&ranges))
}
