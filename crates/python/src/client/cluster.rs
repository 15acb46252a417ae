//! Methods of `farrow.Client` about nodes, namespaces and permissions, and what clients agree on.

use super::{OpenClient, PyClient, duration};
use crate::errors::raise;
use crate::namespaces::{self, NamespaceLimits};
use crate::nodes::{self, at};
use crate::waiting::without_gil;
use crate::{plain, settings};
use farrow::ObjectId;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::sync::Arc;
use std::time::Instant;

#[pymethods]
impl PyClient {
    #[doc = doc!("Client.node")]
    #[getter]
    fn node(&self) -> PyResult<Option<String>> {
        let open = self.open()?;
        open.client.node().map_err(raise)
    }

    #[doc = doc!("Client.at")]
    pub(super) fn at(&self, py: Python<'_>, node: &str) -> PyResult<PyClient> {
        let open = self.open()?;
        let client = without_gil(py, || open.client.at(node))?;
        let pools = open.places.pools(node, &client);
        Ok(PyClient::new(OpenClient { client, pools, places: Arc::clone(&open.places) }))
    }

    #[doc = doc!("Client.nodes")]
    fn nodes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let open = self.open()?;
        nodes::infos(py, &open.client)
    }

    #[doc = doc!("Client.forget_node")]
    fn forget_node(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let open = self.open()?;
        without_gil(py, || open.client.forget_node(name))
    }

    #[doc = doc!("Client.create_namespace")]
    #[pyo3(signature = (name, *, nbytes=None, objects=None, writers=None))]
    fn create_namespace(
        &self,
        py: Python<'_>,
        name: String,
        nbytes: Option<&Bound<'_, PyAny>>,
        objects: Option<&Bound<'_, PyAny>>,
        writers: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let open = self.open()?;
        let limits = NamespaceLimits { nbytes, objects, writers };
        namespaces::create(py, &open.client, name, limits)
    }

    #[doc = doc!("Client.drop_namespace")]
    fn drop_namespace(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let open = self.open()?;
        without_gil(py, || open.client.drop_namespace(name))
    }

    #[doc = doc!("Client.namespaces")]
    fn namespaces<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let open = self.open()?;
        namespaces::list(py, &open.client)
    }

    #[doc = doc!("Client.permit")]
    #[pyo3(signature = (node, rights, *, namespace=None))]
    fn permit(
        &self,
        py: Python<'_>,
        node: String,
        rights: &Bound<'_, PyAny>,
        namespace: Option<String>,
    ) -> PyResult<()> {
        let open = self.open()?;
        namespaces::permit(py, &open.client, node, rights, namespace)
    }

    #[doc = doc!("Client.drop_permission")]
    #[pyo3(signature = (node, *, namespace=None))]
    fn drop_permission(&self, py: Python<'_>, node: &str, namespace: Option<&str>) -> PyResult<()> {
        let open = self.open()?;
        let namespace = namespace.unwrap_or_else(|| open.client.namespace());
        without_gil(py, || open.client.drop_permission(namespace, node))
    }

    #[doc = doc!("Client.permissions")]
    fn permissions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let open = self.open()?;
        namespaces::permissions(py, &open.client)
    }

    #[doc = doc!("Client.barrier")]
    #[pyo3(signature = (name, parties, *, timeout=60.0))]
    fn barrier(&self, py: Python<'_>, name: &str, parties: u32, timeout: f64) -> PyResult<()> {
        let open = self.open()?;
        let timeout = duration(timeout)?;
        without_gil(py, || open.client.barrier(name, parties, timeout))
    }

    #[doc = doc!("Client.set_flags")]
    #[pyo3(signature = (name, bits, *, clear=0))]
    fn set_flags(&self, py: Python<'_>, name: &str, bits: u64, clear: u64) -> PyResult<u64> {
        let open = self.open()?;
        without_gil(py, || open.client.set_flags(name, bits, clear))
    }

    #[doc = doc!("Client.wait_flags")]
    #[pyo3(signature = (name, bits, *, timeout=60.0))]
    fn wait_flags(&self, py: Python<'_>, name: &str, bits: u64, timeout: f64) -> PyResult<u64> {
        let open = self.open()?;
        let timeout = duration(timeout)?;
        without_gil(py, || open.client.wait_flags(name, bits, timeout))
    }

    #[doc = doc!("Client.stats")]
    #[pyo3(signature = (*, node=None))]
    fn stats<'py>(&self, py: Python<'py>, node: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
        let open = self.open()?;
        let stats = without_gil(py, || at(&open.client, node)?.stats())?;
        let stats = plain::to_python(py, &stats)?;
        py.import("farrow._pages._html")?.getattr("Stats")?.call1((stats,))
    }

    #[doc = doc!("Client._shut_down_node")]
    fn _shut_down_node(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.open()?;
        without_gil(py, || open.client.shut_down_node())
    }

    #[doc = doc!("Client._change_settings")]
    #[pyo3(signature = (changes, namespace=None))]
    fn _change_settings(
        &self,
        py: Python<'_>,
        changes: &Bound<'_, PyDict>,
        namespace: Option<&str>,
    ) -> PyResult<()> {
        let open = self.open()?;
        settings::change(py, &open.client, changes, namespace)
    }

    #[doc = doc!("Client._drain")]
    #[pyo3(signature = (is_draining=None))]
    fn _drain<'py>(
        &self,
        py: Python<'py>,
        is_draining: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let open = self.open()?;
        let report = without_gil(py, || match is_draining {
            None => open.client.drain_report(),
            Some(true) => open.client.begin_drain(),
            Some(false) => open.client.cancel_drain(),
        })?;
        plain::to_python(py, &report)
    }

    #[doc = doc!("Client._move_object")]
    fn _move_object(&self, py: Python<'_>, id: [u8; 16], node: &str, timeout: f64) -> PyResult<()> {
        let open = self.open()?;
        let (deadline, id) = (Instant::now() + duration(timeout)?, ObjectId::from_bytes(id));
        without_gil(py, || open.client.move_object(id, node, deadline)).map(drop)
    }

    #[doc = doc!("Client._overview")]
    #[pyo3(signature = (cells, held=0))]
    fn _overview<'py>(
        &self,
        py: Python<'py>,
        cells: u32,
        held: u32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let open = self.open()?;
        let overview = without_gil(py, || open.client.overview(cells, held))?;
        plain::to_python(py, &overview)
    }

    #[doc = doc!("Client._origins")]
    fn _origins<'py>(&self, py: Python<'py>, ids: Vec<[u8; 16]>) -> PyResult<Bound<'py, PyDict>> {
        let open = self.open()?;
        let ids: Vec<ObjectId> = ids.into_iter().map(ObjectId::from_bytes).collect();
        let origins = PyDict::new(py);
        for (id, origin) in without_gil(py, || open.client.origins(&ids))? {
            let [id, origin] = [id, origin].map(|id| PyBytes::new(py, &id.to_bytes()));
            origins.set_item(id, origin)?;
        }
        Ok(origins)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let open = self.open()?;
        let of = open.client.namespace();
        let all = without_gil(py, || open.client.namespaces())?;
        let own = all.iter().find(|one| one.name == of);
        Ok(own.map_or(0, |one| usize::try_from(one.objects).unwrap_or(usize::MAX)))
    }
}
