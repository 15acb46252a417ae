//! Arrow's C structures from and to the values of the client, for its bindings.

use farrow_arrow::ffi::{self, FFI_ArrowArray, FFI_ArrowSchema};

use crate::{ArrowObject, Error, Object, ObjectKind, Rebuilt, Value};

pub use farrow_arrow::ffi::{Imported, StreamKind};

impl<'a> From<&'a Imported> for Value<'a> {
    fn from(imported: &'a Imported) -> Self {
        match imported {
            Imported::Array(field, data) => Value::Array { field, data },
            Imported::Chunked(field, chunks) => Value::ChunkedArray { field, chunks },
            Imported::Batch(schema, batch) => Value::RecordBatch { schema, batch },
            Imported::Table(schema, batches) => Value::Table { schema, batches },
        }
    }
}

/// An Arrow object as C structures: one schema, and an array for each batch or chunk. Record
/// batches are struct arrays.
#[derive(Debug)]
pub struct Exported {
    /// Schema of all arrays.
    pub schema: FFI_ArrowSchema,
    /// The arrays; each keeps the object held.
    pub arrays: Vec<FFI_ArrowArray>,
}

/// The C structures of a rebuilt object.
///
/// # Errors
/// [`Error::InvalidDescriptor`] for a schema that the C Data Interface cannot express.
pub fn export(object: &ArrowObject) -> Result<Exported, Error> {
    let schema = ffi::export_schema(&object.schema)
        .map_err(|error| Error::InvalidDescriptor(error.to_string()))?;
    let is_table = object.kind.is_tabular();
    let arrays = object.batches.iter().map(|batch| match batch.columns.as_slice() {
        [array] if !is_table => Ok(ffi::export_array(array)),
        _ if is_table => Ok(ffi::export_batch(&object.schema, batch)),
        columns => Err(Error::InvalidDescriptor(format!("a chunk of {} arrays", columns.len()))),
    });
    Ok(Exported { schema, arrays: arrays.collect::<Result<_, _>>()? })
}

/// The Arrow part of an object.
///
/// # Errors
/// Those of `Object::rebuild`; [`Error::InvalidArgument`] for bytes and numpy arrays.
pub fn rebuild(object: &Object) -> Result<ArrowObject, Error> {
    let kind = object.kind();
    if matches!(kind, ObjectKind::Bytes | ObjectKind::NdArray) {
        let text = format!("{} is a {}, no Arrow value", object.id(), kind.as_str());
        return Err(Error::InvalidArgument(text));
    }
    match object.rebuild()? {
        Rebuilt::Arrow(arrow) => Ok(arrow),
        Rebuilt::NdArray(..) => {
            Err(Error::InvalidDescriptor(format!("a numpy array under kind {}", kind.as_str())))
        }
    }
}
