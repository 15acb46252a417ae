//! Metadata of objects as Python dictionaries of text.

use crate::errors::{invalid_argument, unsupported};
use farrow::Metadata;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};

/// The metadata in a mapping of `str` to `str`.
pub fn read(pairs: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Metadata>> {
    let Some(pairs) = pairs else {
        return Ok(None);
    };
    let is_other = |_| unsupported("metadata is a mapping of str to str");
    let items = pairs.cast::<PyMapping>().map_err(|error| is_other(error.into()))?.items()?;
    let pairs = items
        .iter()
        .map(|item| item.extract::<(String, String)>().map_err(is_other))
        .collect::<PyResult<Vec<_>>>()?;
    let metadata = Metadata::new(pairs).map_err(|error| invalid_argument(error.to_string()))?;
    Ok(Some(metadata))
}

/// A new dictionary of them.
pub fn dict<'py>(py: Python<'py>, metadata: &Metadata) -> PyResult<Bound<'py, PyDict>> {
    let pairs = PyDict::new(py);
    for (key, value) in metadata.iter() {
        pairs.set_item(key, value)?;
    }
    Ok(pairs)
}
