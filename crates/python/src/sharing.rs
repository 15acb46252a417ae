//! References to values of this process, for `farrow.sharing`.

use crate::client::{PyClient, duration};
use crate::incoming::Incoming;
use crate::outgoing;
use crate::waiting::without_gil;
use farrow::{OpenedValue, Rebuilt, ShareOptions, SharedValue};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::OsString;

#[doc = doc!("SharedReference")]
#[pyclass(frozen, module = "farrow._native", name = "SharedReference")]
pub struct SharedReference(SharedValue);

#[pymethods]
impl SharedReference {
    #[doc = doc!("SharedReference.message")]
    #[getter]
    fn message<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.message())
    }

    #[doc = doc!("SharedReference.address")]
    #[getter]
    fn address(&self) -> OsString {
        self.0.socket().as_os_str().to_owned()
    }

    #[doc = doc!("SharedReference.check")]
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        without_gil(py, || self.0.check())
    }

    #[doc = doc!("SharedReference.mark")]
    fn mark(&self, py: Python<'_>) -> PyResult<Self> {
        Ok(Self(without_gil(py, || self.0.mark())?))
    }

    #[doc = doc!("SharedReference.is_there")]
    fn is_there(&self, py: Python<'_>) -> PyResult<bool> {
        without_gil(py, || self.0.is_there())
    }
}

#[doc = doc!("share")]
#[pyfunction]
#[pyo3(signature = (obj, min_bytes, lease))]
pub fn share(
    py: Python<'_>,
    obj: &Bound<'_, PyAny>,
    min_bytes: u64,
    lease: f64,
) -> PyResult<Option<SharedReference>> {
    let incoming = Incoming::new(obj)?;
    let options = ShareOptions { bytes_min: min_bytes, lease: duration(lease)? };
    let shared = without_gil(py, || {
        let shared = farrow::share(&incoming.value(), &options);
        drop(incoming);
        shared
    })?;
    Ok(shared.map(SharedReference))
}

#[doc = doc!("put_shared")]
#[pyfunction]
#[pyo3(signature = (client, obj, lease, wait))]
pub fn put_shared(
    py: Python<'_>,
    client: &Bound<'_, PyClient>,
    obj: &Bound<'_, PyAny>,
    lease: f64,
    wait: f64,
) -> PyResult<SharedReference> {
    let inner = client.get().inner()?;
    let (lease, wait) = (duration(lease)?, duration(wait)?);
    let incoming = Incoming::new(obj)?;
    let shared = without_gil(py, || {
        let shared = inner.put_shared(&incoming.value(), lease, wait);
        drop(incoming);
        shared
    })?;
    Ok(SharedReference(shared))
}

#[doc = doc!("open_shared")]
#[pyfunction]
#[pyo3(signature = (client, message))]
pub fn open_shared<'py>(
    client: &Bound<'py, PyClient>,
    message: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    let py = client.py();
    let inner = client.get().inner()?;
    match without_gil(py, || inner.open_shared(message))? {
        OpenedValue::Object(object) => outgoing::build(py, object),
        OpenedValue::Rebuilt(Rebuilt::Arrow(arrow)) => outgoing::build_arrow(py, &arrow),
        OpenedValue::Rebuilt(Rebuilt::NdArray(shape, data)) => {
            outgoing::build_ndarray(py, &shape, data)
        }
    }
}
