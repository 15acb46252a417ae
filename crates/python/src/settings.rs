//! `farrow node set`: settings of a node that are changed while it serves.

use crate::errors::invalid_argument;
use crate::waiting::without_gil;
use farrow::{Client, Setting};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Changes settings of the client's node, or with a name, limits of a namespace.
pub fn change(
    py: Python<'_>,
    client: &Client,
    changes: &Bound<'_, PyDict>,
    namespace: Option<&str>,
) -> PyResult<()> {
    let mut settings = Vec::new();
    for (key, value) in changes.iter() {
        let key: String = key.extract()?;
        settings.push(match namespace {
            None => of_node(&key, &value)?,
            Some(name) => of_namespace(&key, &value, name)?,
        });
    }
    without_gil(py, || client.change_settings(&settings))
}

fn of_node(key: &str, value: &Bound<'_, PyAny>) -> PyResult<Setting> {
    Ok(match key {
        "client_bytes" => Setting::ClientBytes(bytes(key, value)?),
        "client_objects" => Setting::ClientObjects(count(key, value)?),
        "cache" => Setting::Cache(bytes(key, value)?),
        "memory" => Setting::Memory(value.extract().map_err(|_| wrong(key, value))?),
        "is_evicting" => Setting::IsEvicting(value.extract().map_err(|_| wrong(key, value))?),
        "log" => Setting::Log(value.extract().map_err(|_| wrong(key, value))?),
        _ => return Err(invalid_argument(format!("no setting of a node is called {key:?}"))),
    })
}

fn of_namespace(key: &str, value: &Bound<'_, PyAny>, name: &str) -> PyResult<Setting> {
    let name = name.to_owned();
    Ok(match key {
        "bytes" => Setting::NamespaceBytes { name, max: bytes(key, value)? },
        "objects" => Setting::NamespaceObjects { name, max: count(key, value)? },
        _ => return Err(invalid_argument(format!("no limit of a namespace is called {key:?}"))),
    })
}

/// A limit; `None`: no limit.
fn bytes(key: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    value.extract().map_err(|_| wrong(key, value))
}

fn count(key: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    value.extract().map_err(|_| wrong(key, value))
}

fn wrong(key: &str, value: &Bound<'_, PyAny>) -> PyErr {
    invalid_argument(format!("{key}: {value} cannot be its value"))
}
