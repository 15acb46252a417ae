//! `columns=` and `rows=` of a get.

use farrow::PartSpec;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PySlice, PyString};

/// Names of columns, as an argument has them.
pub fn names(argument: &str, columns: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    // A string is a sequence of strings too.
    if columns.is_instance_of::<PyString>() {
        let text = format!("{argument}: a list of names, not the string {}", columns.repr()?);
        return Err(PyTypeError::new_err(text));
    }
    let names = columns.try_iter()?.map(|name| name?.extract()).collect::<PyResult<_>>();
    names.map_err(|error| PyTypeError::new_err(format!("{argument}: a list of names: {error}")))
}

/// The requested part; `None`: the whole object.
pub fn read(
    columns: Option<&Bound<'_, PyAny>>,
    rows: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<PartSpec>> {
    if columns.is_none() && rows.is_none() {
        return Ok(None);
    }
    let mut part = PartSpec::default();
    if let Some(columns) = columns {
        part.columns = Some(names("columns", columns)?);
    }
    if let Some(rows) = rows {
        let Ok(rows) = rows.cast::<PySlice>() else {
            let text = format!("rows: a slice, not {}", rows.get_type().name()?);
            return Err(PyTypeError::new_err(text));
        };
        let bound = |name: &str| rows.getattr(name)?.extract::<Option<i64>>();
        if !matches!(bound("step")?, None | Some(1)) {
            return Err(PyValueError::new_err(format!(
                "rows: a slice with step 1, not {}",
                rows.repr()?
            )));
        }
        (part.start, part.stop) = (bound("start")?, bound("stop")?);
    }
    Ok(Some(part))
}
