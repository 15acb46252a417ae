//! `farrow.ObjectRef`, and the targets of calls.

use crate::errors::{invalid_argument, unsupported};
use farrow::{ObjectId, ObjectKey};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyType};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Limit of targets to allocate in advance, for iterables that report a larger length.
const ROOM_MAX: usize = 1 << 16;

#[doc = doc!("ObjectRef")]
#[pyclass(frozen, module = "farrow", name = "ObjectRef")]
#[derive(Clone, Debug)]
pub struct ObjectRef {
    /// The id of the object.
    pub id: ObjectId,
    /// The name under which it was put or requested.
    pub name: Option<String>,
}

#[pymethods]
impl ObjectRef {
    /// A reference from the 16 bytes of an id.
    #[new]
    #[pyo3(signature = (id, name=None))]
    fn new(id: &[u8], name: Option<String>) -> PyResult<Self> {
        Ok(ObjectRef { id: id_of(id)?, name })
    }

    #[doc = doc!("ObjectRef.id")]
    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.id.to_bytes())
    }

    #[doc = doc!("ObjectRef.name")]
    #[getter]
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    #[doc = doc!("ObjectRef.hex")]
    fn hex(&self) -> String {
        self.id.to_string()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let id = self.id;
        Ok(match &self.name {
            Some(name) => {
                format!("<farrow.ObjectRef {id} {}>", PyString::new(py, name).repr()?)
            }
            None => format!("<farrow.ObjectRef {id}>"),
        })
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.id.hash(&mut hasher);
        hasher.finish()
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<ObjectRef>().is_ok_and(|other| other.get().id == self.id)
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> (Bound<'py, PyType>, (Bound<'py, PyBytes>, Option<&str>)) {
        (py.get_type::<ObjectRef>(), (self.id(py), self.name()))
    }
}

fn id_of(bytes: &[u8]) -> PyResult<ObjectId> {
    let bytes: [u8; 16] = bytes.try_into().map_err(|_| {
        invalid_argument(format!("an id has 16 bytes, this one has {}", bytes.len()))
    })?;
    Ok(ObjectId::from_bytes(bytes))
}

/// The key of a reference, a name or an id of 16 bytes.
pub fn target(value: &Bound<'_, PyAny>) -> PyResult<ObjectKey> {
    if let Ok(reference) = value.cast::<ObjectRef>() {
        return Ok(ObjectKey::Id(reference.get().id));
    }
    if let Ok(name) = value.cast::<PyString>() {
        return Ok(ObjectKey::Name(name.to_cow()?.into_owned()));
    }
    if let Ok(id) = value.cast::<PyBytes>() {
        return Ok(ObjectKey::Id(id_of(id.as_bytes())?));
    }
    Err(unsupported(format!(
        "an object is named by an ObjectRef, a str, or an id of 16 bytes, not by {}",
        value.get_type().fully_qualified_name()?
    )))
}

/// The targets of an iterable.
pub fn targets(values: &Bound<'_, PyAny>) -> PyResult<Vec<ObjectKey>> {
    if values.is_instance_of::<PyString>() || values.is_instance_of::<PyBytes>() {
        return Err(unsupported("expected a sequence of references, got one name or id"));
    }
    let count = values.len().unwrap_or_default().min(ROOM_MAX);
    let mut targets = Vec::with_capacity(count);
    for value in values.try_iter()? {
        targets.push(target(&value?)?);
    }
    Ok(targets)
}

/// One target, or the targets of an iterable.
pub fn one_or_more(values: &Bound<'_, PyAny>) -> PyResult<Vec<ObjectKey>> {
    let is_one = values.is_instance_of::<ObjectRef>()
        || values.is_instance_of::<PyString>()
        || values.is_instance_of::<PyBytes>();
    if is_one || values.try_iter().is_err() {
        return Ok(vec![target(values)?]);
    }
    targets(values)
}
