//! Serializable structures as plain Python values: dict, list, str, int, float, bool, None.

use crate::errors::defect;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use serde::Serialize;
use serde_json::Value;

/// The Python value of `structure`.
pub fn to_python<'py, T: Serialize>(py: Python<'py>, structure: &T) -> PyResult<Bound<'py, PyAny>> {
    let value = serde_json::to_value(structure).map_err(|error| defect(error.to_string()))?;
    convert(py, &value)
}

fn convert<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Null => Ok(py.None().into_bound(py)),
        Value::Bool(flag) => Ok(flag.into_pyobject(py)?.to_owned().into_any()),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => Ok(number.into_pyobject(py)?.into_any()),
            (None, Some(number)) => Ok(number.into_pyobject(py)?.into_any()),
            (None, None) => Ok(number.as_f64().into_pyobject(py)?),
        },
        Value::String(text) => Ok(text.into_pyobject(py)?.into_any()),
        Value::Array(items) => {
            let list = PyList::empty(py);
            for item in items {
                list.append(convert(py, item)?)?;
            }
            Ok(list.into_any())
        }
        Value::Object(entries) => {
            let dict = PyDict::new(py);
            for (key, item) in entries {
                dict.set_item(key, convert(py, item)?)?;
            }
            Ok(dict.into_any())
        }
    }
}
