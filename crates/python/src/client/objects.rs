//! Methods of `farrow.Client` about objects.

use super::{OpenClient, PyClient, duration};
use crate::errors::{invalid_argument, raise};
use crate::events::EventStream;
use crate::incoming::Incoming;
use crate::nodes::at;
use crate::reference::{ObjectRef, one_or_more};
use crate::waiting::without_gil;
use crate::writer::PyWriter;
use crate::{huge, labels, lazy, listing, outgoing, part, plain};
use farrow::{ObjectOptions, STATISTICS_KEY, TableOptions, Value};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use std::time::Duration;

fn size_of(nbytes: &Bound<'_, PyAny>) -> PyResult<u64> {
    nbytes.extract().map_err(|_| invalid_argument(format!("an object of {nbytes} bytes")))
}

/// A name, or none, for each of `count` objects.
fn names_for(count: usize, names: Option<Vec<Option<String>>>) -> PyResult<Vec<Option<String>>> {
    let names = names.unwrap_or_else(|| vec![None; count]);
    if names.len() != count {
        let given = names.len();
        return Err(invalid_argument(format!("{given} names for {count} objects")));
    }
    Ok(names)
}

/// Why a lookup failed, for a program whose client is the first of a node that it started: its
/// objects may be at another node, or have ended with one.
fn explain(error: PyErr, py: Python<'_>, open: &OpenClient) -> PyErr {
    let not_found = || py.import("farrow.exceptions")?.getattr("NotFound");
    // With objects it is most likely the right node, and the name a wrong one. No message: the node
    // may hang.
    let is_empty = || py.detach(|| open.client.is_empty().unwrap_or(false));
    if !open.client.has_started_node()
        || !not_found().is_ok_and(|class| error.is_instance(py, &class))
        || !is_empty()
    {
        return error;
    }
    let text = error.value(py).to_string();
    crate::errors::not_found(format!(
        "{text}: no node served at {}, so this program started an empty one. A private node \
         ends some time after its last client (FARROW_LINGER in seconds, {} by default); \
         \"farrow node\" runs until it is stopped",
        open.client.socket().display(),
        farrow::LINGER.as_secs(),
    ))
}

#[pymethods]
impl PyClient {
    #[doc = doc!("Client.put")]
    #[pyo3(signature = (
        obj, name=None, *, metadata=None, wait=0.0, node=None, replace=false, statistics=false
    ))]
    #[expect(clippy::too_many_arguments, reason = "those of the Python method")]
    fn put(
        &self,
        py: Python<'_>,
        obj: &Bound<'_, PyAny>,
        name: Option<String>,
        metadata: Option<&Bound<'_, PyAny>>,
        wait: f64,
        node: Option<&str>,
        replace: bool,
        statistics: bool,
    ) -> PyResult<ObjectRef> {
        let open = self.open()?;
        let incoming = Incoming::new(obj)?;
        let metadata = labels::read(metadata)?;
        let wait = duration(wait)?;
        let id = without_gil(py, || {
            let (name, metadata) = (name.as_deref(), metadata.as_ref());
            let options = ObjectOptions { name, metadata, wait, replace, statistics };
            let done = match node {
                Some(node) => open.client.put_on(node, &incoming.value(), &options),
                None => open.client.put_with(&incoming.value(), &options),
            };
            drop(incoming);
            done
        });
        Ok(ObjectRef { id: id?, name })
    }

    #[doc = doc!("Client.get")]
    #[pyo3(signature = (target, *, timeout=0.0, columns=None, rows=None, as_=None, lazy=false))]
    #[expect(clippy::too_many_arguments, reason = "those of the Python method")]
    fn get<'py>(
        &self,
        py: Python<'py>,
        target: &Bound<'py, PyAny>,
        timeout: f64,
        columns: Option<&Bound<'py, PyAny>>,
        rows: Option<&Bound<'py, PyAny>>,
        as_: Option<&str>,
        lazy: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let target = crate::reference::target(target)?;
        if let Some(part) = part::read(columns, rows)? {
            if lazy {
                return Err(lazy::and_part());
            }
            let open = self.open()?;
            let timeout = duration(timeout)?;
            let found = without_gil(py, || open.client.get_part(&target, &part, timeout))?;
            return outgoing::convert(outgoing::build_arrow(py, &found)?, as_);
        }
        if lazy {
            let open = self.open()?;
            let value = lazy::get(py, &open.client, &target, duration(timeout)?)?;
            return outgoing::convert(value, as_);
        }
        // An object in memory is found by a few loads: releasing the GIL would cost more.
        let object = match self.get_here(&target)? {
            Some(object) => object,
            None => {
                let open = self.open()?;
                let timeout = duration(timeout)?;
                without_gil(py, || open.client.get(&target, timeout))
                    .map_err(|error| explain(error, py, &open))?
            }
        };
        outgoing::convert(outgoing::build(py, object)?, as_)
    }

    #[doc = doc!("Client.put_many")]
    #[pyo3(signature = (objs, names=None, *, node=None, statistics=false))]
    fn put_many(
        &self,
        py: Python<'_>,
        objs: &Bound<'_, PyAny>,
        names: Option<Vec<Option<String>>>,
        node: Option<&str>,
        statistics: bool,
    ) -> PyResult<Vec<ObjectRef>> {
        let open = self.open()?;
        let incoming =
            objs.try_iter()?.map(|obj| Incoming::new(&obj?)).collect::<PyResult<Vec<_>>>()?;
        let names = names_for(incoming.len(), names)?;
        let ids = without_gil(py, || {
            let options = |name| ObjectOptions { statistics, ..ObjectOptions::named(name) };
            let values: Vec<(Value<'_>, ObjectOptions<'_>)> = incoming
                .iter()
                .zip(&names)
                .map(|(one, name)| (one.value(), options(name.as_deref())))
                .collect();
            match node {
                Some(node) => open.client.put_many_on(node, &values),
                None => open.client.put_many(&values),
            }
        });
        Ok(ids?.into_iter().zip(names).map(|(id, name)| ObjectRef { id, name }).collect())
    }

    #[doc = doc!("Client.get_many")]
    #[pyo3(signature = (targets, *, timeout=0.0))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        targets: &Bound<'py, PyAny>,
        timeout: f64,
    ) -> PyResult<Bound<'py, PyList>> {
        let open = self.open()?;
        let targets = crate::reference::targets(targets)?;
        let timeout = duration(timeout)?;
        let found = without_gil(py, || open.client.get_batch(&targets, timeout))?;
        outgoing::build_all(py, found)
    }

    #[doc = doc!("Client.create")]
    #[pyo3(signature = (nbytes, name=None, *, metadata=None, wait=0.0, node=None, replace=false))]
    #[expect(clippy::too_many_arguments, reason = "those of the Python method")]
    fn create(
        &self,
        py: Python<'_>,
        nbytes: &Bound<'_, PyAny>,
        name: Option<String>,
        metadata: Option<&Bound<'_, PyAny>>,
        wait: f64,
        node: Option<&str>,
        replace: bool,
    ) -> PyResult<PyWriter> {
        let open = self.open()?;
        let size = size_of(nbytes)?;
        let metadata = labels::read(metadata)?;
        let wait = duration(wait)?;
        let (own_name, metadata) = (name.as_deref(), metadata.as_ref());
        let options = ObjectOptions { name: own_name, metadata, wait, replace, statistics: false };
        let create = || match node {
            Some(node) => open.client.create_on(node, size, &options),
            None => open.client.create_with(size, &options),
        };
        let writer = without_gil(py, create)?;
        Ok(PyWriter::new(writer, name))
    }

    #[doc = doc!("Client.create_many")]
    #[pyo3(signature = (sizes, names=None, *, node=None))]
    fn create_many(
        &self,
        py: Python<'_>,
        sizes: &Bound<'_, PyAny>,
        names: Option<Vec<Option<String>>>,
        node: Option<&str>,
    ) -> PyResult<Vec<PyWriter>> {
        let open = self.open()?;
        let sizes =
            sizes.try_iter()?.map(|size| size_of(&size?)).collect::<PyResult<Vec<u64>>>()?;
        let names = names_for(sizes.len(), names)?;
        let objects: Vec<(u64, ObjectOptions<'_>)> = sizes
            .into_iter()
            .zip(&names)
            .map(|(size, name)| (size, ObjectOptions::named(name.as_deref())))
            .collect();
        let create = || match node {
            Some(node) => open.client.create_many_on(node, &objects),
            None => open.client.create_many(&objects),
        };
        let writers = without_gil(py, create)?;
        let writers = writers.into_iter().zip(names.iter().cloned());
        Ok(writers.map(|(writer, name)| PyWriter::new(writer, name)).collect())
    }

    #[doc = doc!("Client.metadata")]
    fn metadata<'py>(
        &self,
        py: Python<'py>,
        target: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let open = self.open()?;
        let target = crate::reference::target(target)?;
        let metadata = without_gil(py, || open.client.metadata(&target))?;
        labels::dict(py, &metadata)
    }

    #[doc = doc!("Client._get_with_statistics")]
    fn _get_with_statistics<'py>(
        &self,
        py: Python<'py>,
        target: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let target = crate::reference::target(target)?;
        let open = self.open()?;
        let (object, node) = without_gil(py, || {
            let object = open.client.get(&target, Duration::ZERO)?;
            let node = open.client.node_of(object.id())?;
            Ok::<_, farrow::Error>((object, node))
        })?;
        let (id, bytes) = (object.id(), object.bytes());
        let metadata = object.metadata().map_err(raise)?;
        let text = metadata.get(STATISTICS_KEY).map(str::to_owned);
        let value = outgoing::build(py, object)?;
        (value, text, PyBytes::new(py, &id.to_bytes()), node, bytes).into_pyobject(py)
    }

    #[doc = doc!("Client.contains")]
    fn contains(&self, py: Python<'_>, target: &Bound<'_, PyAny>) -> PyResult<bool> {
        let open = self.open()?;
        let target = crate::reference::target(target)?;
        without_gil(py, || open.client.contains(&target))
    }

    #[doc = doc!("Client.delete")]
    fn delete(&self, py: Python<'_>, target: &Bound<'_, PyAny>) -> PyResult<()> {
        let open = self.open()?;
        let targets = one_or_more(target)?;
        without_gil(py, || open.client.delete(&targets))
    }

    #[doc = doc!("Client.delete_many")]
    fn delete_many(&self, py: Python<'_>, targets: &Bound<'_, PyAny>) -> PyResult<()> {
        let open = self.open()?;
        let targets = crate::reference::targets(targets)?;
        without_gil(py, || open.client.delete(&targets))
    }

    #[doc = doc!("Client.wait")]
    #[pyo3(signature = (targets, *, num=None, timeout=10.0))]
    fn wait(
        &self,
        py: Python<'_>,
        targets: &Bound<'_, PyAny>,
        num: Option<usize>,
        timeout: f64,
    ) -> PyResult<Vec<bool>> {
        let open = self.open()?;
        let targets = crate::reference::targets(targets)?;
        let num = num.unwrap_or(targets.len());
        if num > targets.len() {
            let have = targets.len();
            return Err(invalid_argument(format!("to wait for {num} of {have} objects")));
        }
        let timeout = duration(timeout)?;
        without_gil(py, || open.client.wait(&targets, num, timeout))
    }

    #[doc = doc!("Client.pin")]
    fn pin(&self, py: Python<'_>, target: &Bound<'_, PyAny>) -> PyResult<()> {
        let open = self.open()?;
        let targets = one_or_more(target)?;
        without_gil(py, || open.client.pin(&targets))
    }

    #[doc = doc!("Client.unpin")]
    fn unpin(&self, py: Python<'_>, target: &Bound<'_, PyAny>) -> PyResult<()> {
        let open = self.open()?;
        let targets = one_or_more(target)?;
        without_gil(py, || open.client.unpin(&targets))
    }

    #[doc = doc!("Client.evict")]
    #[pyo3(signature = (nbytes, *, node=None))]
    fn evict<'py>(
        &self,
        py: Python<'py>,
        nbytes: &Bound<'py, PyAny>,
        node: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let open = self.open()?;
        let bytes: u64 =
            nbytes.extract().map_err(|_| invalid_argument(format!("to evict {nbytes} bytes")))?;
        let report = without_gil(py, || at(&open.client, node)?.evict(bytes))?;
        plain::to_python(py, &report)
    }

    #[doc = doc!("Client.list")]
    #[pyo3(signature = (prefix="", *, r#where=None, node=None, all_nodes=false, strict=false))]
    fn list<'py>(
        &self,
        py: Python<'py>,
        prefix: &str,
        r#where: Option<&Bound<'py, PyAny>>,
        node: Option<&str>,
        all_nodes: bool,
        strict: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let open = self.open()?;
        let filter = labels::read(r#where)?.unwrap_or_default();
        if !all_nodes {
            let list = || match node {
                Some(node) => open.client.list_on(node, prefix, &filter),
                None => open.client.list_where(prefix, &filter),
            };
            return listing::table(py, &without_gil(py, list)?);
        }
        if node.is_some() {
            return Err(invalid_argument("both a node and all_nodes"));
        }
        let found = without_gil(py, || {
            let mut found = open.client.list_all(prefix, &filter)?;
            let missing = if strict { found.not_listed.pop() } else { None };
            missing.map_or(Ok(found), |(_, error)| Err(error))
        })?;
        listing::table_of_nodes(py, found)
    }

    #[doc = doc!("Client.huge_table")]
    #[pyo3(signature = (name, schema=None, *, sort_by=None, partition_by=None))]
    fn huge_table(
        &self,
        py: Python<'_>,
        name: &str,
        schema: Option<&Bound<'_, PyAny>>,
        sort_by: Option<&str>,
        partition_by: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<huge::PyHugeTable> {
        let open = self.open()?;
        let partition_by = partition_by.map(|names| part::names("partition_by", names));
        let partition_by = partition_by.transpose()?.unwrap_or_default();
        let partition_by: Vec<&str> = partition_by.iter().map(String::as_str).collect();
        let options = TableOptions { sort_by, partition_by: &partition_by };
        huge::open(py, &open.client, name, schema, &options)
    }

    #[doc = doc!("Client.subscribe")]
    #[pyo3(signature = (prefix="", *, kinds=None, start="now", timeout=None, node=None))]
    fn subscribe<'py>(
        &self,
        py: Python<'py>,
        prefix: &str,
        kinds: Option<Vec<String>>,
        start: &str,
        timeout: Option<f64>,
        node: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let open = self.open()?;
        static SUBSCRIPTION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let is_from_oldest = match start {
            "now" => false,
            "oldest" => true,
            other => {
                return Err(invalid_argument(format!("start is {other:?}, not now or oldest")));
            }
        };
        let client = without_gil(py, || at(&open.client, node))?;
        let stream = EventStream::new(py, &client, prefix.to_owned(), kinds, is_from_oldest)?;
        let class = SUBSCRIPTION.get_or_try_init(py, || {
            Ok::<_, PyErr>(py.import("farrow.events")?.getattr("Subscription")?.unbind())
        })?;
        class.bind(py).call1((stream, timeout))
    }

    fn __contains__(&self, py: Python<'_>, target: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.contains(py, target)
    }
}
