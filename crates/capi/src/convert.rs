//! Conversion between Arrow's C structures and the values of the client.
//!
//! The C interface and the Python extension share it.

use arrow_data::ArrayData;
use arrow_schema::DataType;
use farrow::arrow::ImportError;
use farrow::arrow::ffi::{self, FFI_ArrowArray, FFI_ArrowArrayStream, FFI_ArrowSchema};
use farrow::{ArrowObject, BatchData, Error, ObjectKind, Rebuilt, SchemaNode, Value};

/// An Arrow value in this process, for the client.
#[derive(Debug)]
pub enum Imported {
    /// One array.
    Array(SchemaNode, ArrayData),
    /// Arrays of one type.
    Chunked(SchemaNode, Vec<ArrayData>),
    /// One record batch.
    Batch(SchemaNode, BatchData),
    /// Record batches of one schema.
    Table(SchemaNode, Vec<BatchData>),
}

impl Imported {
    /// The value in the form that the client accepts.
    pub fn value(&self) -> Value<'_> {
        match self {
            Imported::Array(field, data) => Value::Array { field, data },
            Imported::Chunked(field, chunks) => Value::ChunkedArray { field, chunks },
            Imported::Batch(schema, batch) => Value::RecordBatch { schema, batch },
            Imported::Table(schema, batches) => Value::Table { schema, batches },
        }
    }
}

fn refused(error: ImportError) -> Error {
    Error::InvalidArgument(error.to_string())
}

/// Imports an array, or with `is_batch` a struct array as a record batch.
///
/// # Safety
/// Both structures keep the contract of the C Data Interface.
///
/// # Errors
/// [`Error::InvalidArgument`] for a structure that breaks the rules of its type.
pub unsafe fn import_array(
    array: FFI_ArrowArray,
    schema: &FFI_ArrowSchema,
    is_batch: bool,
) -> Result<Imported, Error> {
    // SAFETY: guaranteed by the caller.
    let field = unsafe { ffi::import_schema(schema) }.map_err(refused)?;
    // SAFETY: guaranteed by the caller.
    unsafe { import_array_as(array, field, is_batch) }
}

/// As [`import_array`], with a schema that is already imported.
///
/// # Safety
/// As [`import_array`]; the array has the type of `field`.
///
/// # Errors
/// As [`import_array`].
pub unsafe fn import_array_as(
    array: FFI_ArrowArray,
    field: SchemaNode,
    is_batch: bool,
) -> Result<Imported, Error> {
    // SAFETY: guaranteed by the caller.
    let data = unsafe { ffi::import_array(array, &field) }.map_err(refused)?;
    if !is_batch {
        return Ok(Imported::Array(field, data));
    }
    Ok(Imported::Batch(field, ffi::batch_of_struct(data).map_err(refused)?))
}

/// Imports the chunks of a column.
///
/// # Safety
/// All structures keep the contract of the C Data Interface; the arrays have the type of `schema`.
///
/// # Errors
/// As [`import_array`].
pub unsafe fn import_chunks(
    arrays: Vec<FFI_ArrowArray>,
    schema: &FFI_ArrowSchema,
) -> Result<Imported, Error> {
    // SAFETY: guaranteed by the caller.
    let field = unsafe { ffi::import_schema(schema) }.map_err(refused)?;
    // SAFETY: guaranteed by the caller.
    let import = |array| unsafe { ffi::import_array(array, &field) }.map_err(refused);
    let chunks = arrays.into_iter().map(import).collect::<Result<_, _>>()?;
    Ok(Imported::Chunked(field, chunks))
}

/// How the arrays of a stream form one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// The batches of a table.
    Table,
    /// The chunks of a column.
    Chunked,
    /// A table if the arrays are structs, else a column.
    ByType,
}

/// Imports all arrays of a stream, which is read to its end.
///
/// # Safety
/// The stream and what it yields keep the contract of the C interfaces.
///
/// # Errors
/// [`Error::InvalidArgument`] with the message of a failing producer, or for arrays that break the
/// rules of their type.
pub unsafe fn import_stream(
    stream: FFI_ArrowArrayStream,
    kind: StreamKind,
) -> Result<Imported, Error> {
    // SAFETY: guaranteed by the caller.
    let (schema, arrays) = unsafe { ffi::import_stream(stream) }.map_err(refused)?;
    let is_table = match kind {
        StreamKind::Table => true,
        StreamKind::Chunked => false,
        StreamKind::ByType => matches!(schema.data_type(), DataType::Struct(_)),
    };
    if !is_table {
        return Ok(Imported::Chunked(schema, arrays));
    }
    let batches = arrays.into_iter().map(ffi::batch_of_struct).collect::<Result<_, _>>();
    Ok(Imported::Table(schema, batches.map_err(refused)?))
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
pub fn rebuild(object: &farrow::Object) -> Result<ArrowObject, Error> {
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
