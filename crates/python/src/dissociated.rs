//! Objects in Arrow's Dissociated IPC form: messages apart from the bodies that they refer to.

use crate::client::PyClient;
use crate::errors::{invalid_argument, raise};
use crate::pyarrow::Pyarrow;
use crate::reference::{ObjectRef, target, targets};
use crate::waiting::without_gil;
use farrow::arrow::dissociated::{BatchMessages, Export, Messages, import};
use farrow::arrow_ffi;
use farrow::{Error, Object, Offset};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::time::Duration;

/// The dictionaries to read before a batch, and the batch.
type PyBatch<'py> = (Vec<Bound<'py, PyBytes>>, Bound<'py, PyBytes>);

#[doc = doc!("DissociatedMessages")]
#[pyclass(frozen, module = "farrow._native", name = "DissociatedMessages")]
pub struct DissociatedMessages {
    messages: Messages,
    refs: Vec<ObjectRef>,
    base: usize,
    length: u64,
    _held: Vec<Object>,
}

#[pymethods]
impl DissociatedMessages {
    #[doc = doc!("DissociatedMessages.schema")]
    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.messages.schema)
    }

    #[doc = doc!("DissociatedMessages.batches")]
    #[getter]
    fn batches<'py>(&self, py: Python<'py>) -> Vec<PyBatch<'py>> {
        let bytes = |message: &Vec<u8>| PyBytes::new(py, message);
        let batch = |batch: &BatchMessages| {
            (batch.dictionaries.iter().map(bytes).collect(), bytes(&batch.record_batch))
        };
        self.messages.batches.iter().map(batch).collect()
    }

    #[doc = doc!("DissociatedMessages.refs")]
    #[getter]
    fn refs(&self) -> Vec<ObjectRef> {
        self.refs.clone()
    }

    #[doc = doc!("DissociatedMessages.base")]
    #[getter]
    fn base(&self) -> usize {
        self.base
    }

    #[doc = doc!("DissociatedMessages.length")]
    #[getter]
    fn length(&self) -> u64 {
        self.length
    }
}

#[doc = doc!("export_dissociated")]
#[pyfunction]
#[pyo3(name = "export_dissociated", signature = (client, target))]
pub fn export(
    client: &Bound<'_, PyClient>,
    #[pyo3(from_py_with = target)] target: farrow::ObjectKey,
) -> PyResult<DissociatedMessages> {
    let (py, client) = (client.py(), client.get().inner()?);
    let object = without_gil(py, || client.get(&target, Duration::ZERO))?;
    let arrow = arrow_ffi::rebuild(&object).map_err(raise)?;
    let mut locate = |pointer, length| client.locate(pointer, length).map(|offset| offset.0);
    let export =
        Export::new(&arrow, &mut locate).map_err(|error| invalid_argument(error.to_string()))?;
    let mut held = vec![object];
    let mut base = 0;
    if export.copy_bytes() > 0 {
        let (offset, copies) = without_gil(py, || write_copies(&client, &export))?;
        base = offset.0;
        held.push(copies);
    }
    let region = client.region();
    let length = region.length().0;
    // Offsets are of this region: of an object at another node, all buffers were copied.
    let here = client.region_uid();
    let of_region = held.iter().filter(|object| object.id().region().0 == here);
    Ok(DissociatedMessages {
        messages: export.messages(base, length),
        refs: of_region.map(|object| ObjectRef { id: object.id(), name: None }).collect(),
        base: region.base().0,
        length,
        _held: held,
    })
}

/// Puts copied buffers into a separate object.
fn write_copies(client: &farrow::Client, export: &Export) -> Result<(Offset, Object), Error> {
    let writer = client.create(export.copy_bytes(), None)?;
    let mut bytes = Vec::new();
    for copy in export.copies() {
        bytes.clear();
        bytes.resize(usize::try_from(copy.length).unwrap_or(0), 0);
        copy.fill(&mut bytes);
        writer.memory().write_at(copy.offset, &bytes)?;
    }
    let offset = writer.memory().offset();
    let id = writer.seal()?;
    Ok((offset, client.get(&id.into(), Duration::ZERO)?))
}

#[doc = doc!("import_dissociated")]
#[pyfunction]
#[pyo3(name = "import_dissociated", signature = (client, refs, schema, batches))]
pub fn import_table<'py>(
    client: &Bound<'py, PyClient>,
    #[pyo3(from_py_with = targets)] refs: Vec<farrow::ObjectKey>,
    schema: &[u8],
    batches: Vec<(Vec<Vec<u8>>, Vec<u8>)>,
) -> PyResult<Bound<'py, PyAny>> {
    let inner = client.get().inner()?;
    let objects = without_gil(client.py(), || inner.get_many(&refs, Duration::ZERO))?;
    // The messages have offsets in one region.
    let mut regions = objects.iter().map(|object| object.id().region().0);
    if let Some(first) = regions.next()
        && let Some(other) = regions.find(|other| *other != first)
    {
        let reason = format!("objects of the regions {first:#018x} and {other:#018x}");
        return Err(raise(Error::InvalidDescriptor(reason)));
    }
    let resolve =
        |offset: u64, length: u64| objects.iter().find_map(|object| object.resolve(offset, length));
    let batches = batches
        .into_iter()
        .map(|(dictionaries, record_batch)| BatchMessages { dictionaries, record_batch })
        .collect();
    let messages = Messages { schema: schema.to_vec(), batches };
    let object = import(&messages, &resolve, true).map_err(|error| raise(Error::from(error)))?;
    Pyarrow::get(client.py())?.wrap_table(client.py(), arrow_ffi::export(&object).map_err(raise)?)
}
