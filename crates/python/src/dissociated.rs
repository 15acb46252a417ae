//! Objects in Arrow's Dissociated IPC form: messages apart from the bodies that they refer to.

use crate::client::Client;
use crate::errors::{invalid_argument, raise};
use crate::pyarrow::Pyarrow;
use crate::reference::{ObjectRef, target, targets};
use crate::waiting::without_gil;
use arrow_buffer::Buffer;
use farrow::arrow::dissociated::{BatchMessages, Export, Messages, import};
use farrow::arrow::foreign_buffer;
use farrow::{Error, Length, Object, Offset, Span};
use farrow_capi::convert;
use farrow_memory::SealedBytes;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::panic::RefUnwindSafe;
use std::ptr::NonNull;
use std::sync::Arc;
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
    client: &Bound<'_, Client>,
    #[pyo3(from_py_with = target)] target: farrow::ObjectKey,
) -> PyResult<DissociatedMessages> {
    let (py, client) = (client.py(), client.get().inner()?);
    let object = without_gil(py, || client.get(&target, Duration::ZERO))?;
    let arrow = convert::rebuild(&object).map_err(raise)?;
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
    Ok(DissociatedMessages {
        messages: export.messages(base, length),
        refs: held.iter().map(|object| ObjectRef { id: object.id(), name: None }).collect(),
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

/// Bytes of a block, and the hold on its object.
struct HeldBlock {
    bytes: SealedBytes,
    _object: Object,
}

// A panic cannot leave it inconsistent: its fields never change.
impl RefUnwindSafe for HeldBlock {}

/// The blocks of the objects as buffers that hold them.
fn block_buffers(
    client: &farrow::Client,
    objects: &[Object],
) -> Result<Vec<(Span, Buffer)>, Error> {
    let mut buffers = Vec::new();
    for object in objects {
        for block in object.blocks() {
            let bytes = client.region().sealed(*block)?;
            let size = bytes.as_slice().len();
            let Some(data) = NonNull::new(bytes.as_ptr().cast_mut()) else { continue };
            let owner = Arc::new(HeldBlock { bytes, _object: object.clone() });
            debug_assert_eq!(owner.bytes.as_ptr(), data.as_ptr());
            // SAFETY: the owner holds the object: its bytes stay mapped and unchanged.
            buffers.push((*block, unsafe { foreign_buffer(data, size, owner) }));
        }
    }
    Ok(buffers)
}

#[doc = doc!("import_dissociated")]
#[pyfunction]
#[pyo3(name = "import_dissociated", signature = (client, refs, schema, batches))]
pub fn import_table<'py>(
    client: &Bound<'py, Client>,
    #[pyo3(from_py_with = targets)] refs: Vec<farrow::ObjectKey>,
    schema: &[u8],
    batches: Vec<(Vec<Vec<u8>>, Vec<u8>)>,
) -> PyResult<Bound<'py, PyAny>> {
    let inner = client.get().inner()?;
    let objects = without_gil(client.py(), || inner.get_many(&refs, Duration::ZERO))?;
    let buffers = block_buffers(&inner, &objects).map_err(raise)?;
    let resolve = |offset: u64, length: u64| {
        let wanted = Span { offset: Offset(offset), length: Length(length) };
        let (block, buffer) = buffers.iter().find(|(block, _)| block.contains(wanted))?;
        let start = usize::try_from(offset - block.offset.0).ok()?;
        Some(buffer.slice_with_length(start, usize::try_from(length).ok()?))
    };
    let batches = batches
        .into_iter()
        .map(|(dictionaries, record_batch)| BatchMessages { dictionaries, record_batch })
        .collect();
    let messages = Messages { schema: schema.to_vec(), batches };
    let object = import(&messages, &resolve, true).map_err(|error| raise(Error::from(error)))?;
    Pyarrow::get(client.py())?.wrap_table(client.py(), convert::export(&object).map_err(raise)?)
}
