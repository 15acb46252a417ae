//! `client.create_namespace()`, `client.namespaces()`, `client.permit()` and `client.permissions()`.

use crate::errors::invalid_argument;
use crate::plain;
use crate::waiting::without_gil;
use farrow::{Client, NamespaceReport, NamespaceSpec, Rights, Rule};
use pyo3::prelude::*;
use serde_json::json;

fn number(what: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    let extract = |value: &Bound<'_, PyAny>| {
        value.extract().map_err(|_| invalid_argument(format!("a limit of {value} {what}")))
    };
    value.map(extract).transpose()
}

/// The limits of a namespace, as Python objects; none without a value.
pub struct NamespaceLimits<'a, 'py> {
    /// Bytes of its objects.
    pub nbytes: Option<&'a Bound<'py, PyAny>>,
    /// Number of its objects.
    pub objects: Option<&'a Bound<'py, PyAny>>,
    /// Users that may write to it.
    pub writers: Option<&'a Bound<'py, PyAny>>,
}

/// Creates a namespace.
pub fn create(
    py: Python<'_>,
    client: &Client,
    name: String,
    limits: NamespaceLimits<'_, '_>,
) -> PyResult<()> {
    let NamespaceLimits { nbytes, objects, writers } = limits;
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
    without_gil(py, || client.create_namespace(&spec))
}

/// All namespaces, as dictionaries.
pub fn list<'py>(py: Python<'py>, client: &Client) -> PyResult<Bound<'py, PyAny>> {
    let all = without_gil(py, || client.namespaces())?;
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

/// Sets the rights of a node in a namespace: a text as on the command line, or a list of words.
pub fn permit(
    py: Python<'_>,
    client: &Client,
    node: String,
    rights: &Bound<'_, PyAny>,
    namespace: Option<String>,
) -> PyResult<()> {
    let wrong = || invalid_argument(format!("rights are words such as \"read\", not {rights}"));
    let mut all = Rights::NONE;
    let words: Vec<String> = match rights.extract::<String>() {
        Ok(text) => vec![text],
        Err(_) => {
            let words = rights.try_iter().map_err(|_| wrong())?;
            words.map(|word| word?.extract().map_err(|_| wrong())).collect::<PyResult<_>>()?
        }
    };
    for word in words {
        let more: Rights = word.parse().map_err(|error| invalid_argument(format!("{error}")))?;
        all = all.with(more);
    }
    let namespace = namespace.unwrap_or_else(|| client.namespace().to_owned());
    let rule = Rule { namespace, node, rights: all };
    without_gil(py, || client.permit(&rule))
}

/// All rules, as dictionaries.
pub fn permissions<'py>(py: Python<'py>, client: &Client) -> PyResult<Bound<'py, PyAny>> {
    let all = without_gil(py, || client.permissions())?;
    let as_json = |rule: Rule| {
        let rights: Vec<&str> = rule.rights.words().collect();
        json!({ "namespace": rule.namespace, "node": rule.node, "rights": rights })
    };
    plain::to_python(py, &all.into_iter().map(as_json).collect::<Vec<_>>())
}
