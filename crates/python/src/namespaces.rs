//! `client.create_namespace()` and `client.namespaces()`.

use crate::errors::{invalid_argument, raise};
use crate::plain;
use farrow::{Client, NamespaceReport, NamespaceSpec};
use pyo3::prelude::*;
use serde_json::json;

fn number(what: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    let extract = |value: &Bound<'_, PyAny>| {
        value.extract().map_err(|_| invalid_argument(format!("a limit of {value} {what}")))
    };
    value.map(extract).transpose()
}

/// Make one.
pub fn create(
    py: Python<'_>,
    client: &Client,
    name: String,
    nbytes: Option<&Bound<'_, PyAny>>,
    objects: Option<&Bound<'_, PyAny>>,
    writers: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let users = |writers: &Bound<'_, PyAny>| {
        let wrong = || invalid_argument(format!("writers are user ids, not {writers}"));
        let users = writers.try_iter().map_err(|_| wrong())?;
        users.map(|user| user?.extract().map_err(|_| wrong())).collect::<PyResult<Vec<u32>>>()
    };
    let spec = NamespaceSpec {
        name,
        bytes_max: number("bytes", nbytes)?,
        objects_max: number("objects", objects)?,
        writers: writers.map(users).transpose()?,
    };
    py.detach(|| client.create_namespace(&spec)).map_err(raise)
}

/// All of them, as dictionaries.
pub fn list<'py>(py: Python<'py>, client: &Client) -> PyResult<Bound<'py, PyAny>> {
    let all = py.detach(|| client.namespaces()).map_err(raise)?;
    let as_json = |one: NamespaceReport| {
        json!({
            "name": one.name,
            "used_bytes": one.bytes,
            "nbytes": one.bytes_max,
            "used_objects": one.objects,
            "objects": one.objects_max,
            "writers": one.writers,
            "clients": one.clients,
        })
    };
    plain::to_python(py, &all.into_iter().map(as_json).collect::<Vec<_>>())
}
