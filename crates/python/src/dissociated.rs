//! Objects in Arrow's Dissociated IPC form: messages apart from the bodies they point into.

use crate::client::Client;
use crate::errors::invalid_argument;
use pyo3::prelude::*;

/// Encapsulated metadata messages, and where the region they point into lies.
#[pyclass(frozen, get_all, module = "farrow._native")]
pub struct DissociatedMessages {
    schema: Vec<u8>,
    dictionaries: Vec<Vec<u8>>,
    batches: Vec<Vec<u8>>,
    base: usize,
    length: u64,
}

/// An object in Arrow's Dissociated IPC form, with offsets relative to the region.
#[pyfunction]
pub fn export_dissociated(
    client: &Bound<'_, Client>,
    target: &Bound<'_, PyAny>,
) -> PyResult<DissociatedMessages> {
    let _ = (client, target);
    Err(invalid_argument("not built yet"))
}

/// The table that such messages describe, over the region this client maps.
#[pyfunction]
pub fn import_dissociated<'py>(
    client: &Bound<'py, Client>,
    schema: &[u8],
    dictionaries: Vec<Vec<u8>>,
    batches: Vec<Vec<u8>>,
) -> PyResult<Bound<'py, PyAny>> {
    let _ = (client, schema, dictionaries, batches);
    Err(invalid_argument("not built yet"))
}
