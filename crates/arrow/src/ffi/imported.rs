//! Values that other libraries hand over by the C interfaces.

use super::{FFI_ArrowArray, FFI_ArrowArrayStream, FFI_ArrowSchema};
use super::{batch_of_struct, import_array, import_schema, import_stream};
use crate::BatchData;
use crate::error::ImportError;
use crate::schema::SchemaNode;
use arrow_data::ArrayData;
use arrow_schema::DataType;

/// An imported value.
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

impl Imported {
    /// Imports an array, or with `is_batch` a struct array as a record batch.
    ///
    /// # Safety
    /// Both structures keep the contract of the C Data Interface.
    ///
    /// # Errors
    /// [`ImportError`] for a structure that breaks the rules of its type.
    pub unsafe fn array(
        array: FFI_ArrowArray,
        schema: &FFI_ArrowSchema,
        is_batch: bool,
    ) -> Result<Imported, ImportError> {
        // SAFETY: guaranteed by the caller.
        let field = unsafe { import_schema(schema) }?;
        // SAFETY: guaranteed by the caller.
        unsafe { Imported::array_as(array, field, is_batch) }
    }

    /// As [`Imported::array`], with a schema that is already imported.
    ///
    /// # Safety
    /// As [`Imported::array`]; the array has the type of `field`.
    ///
    /// # Errors
    /// As [`Imported::array`].
    pub unsafe fn array_as(
        array: FFI_ArrowArray,
        field: SchemaNode,
        is_batch: bool,
    ) -> Result<Imported, ImportError> {
        // SAFETY: guaranteed by the caller.
        let data = unsafe { import_array(array, &field) }?;
        if !is_batch {
            return Ok(Imported::Array(field, data));
        }
        Ok(Imported::Batch(field, batch_of_struct(data)?))
    }

    /// Imports the chunks of a column.
    ///
    /// # Safety
    /// All structures keep the contract of the C Data Interface; the arrays have the type of
    /// `schema`.
    ///
    /// # Errors
    /// As [`Imported::array`].
    pub unsafe fn chunks(
        arrays: Vec<FFI_ArrowArray>,
        schema: &FFI_ArrowSchema,
    ) -> Result<Imported, ImportError> {
        // SAFETY: guaranteed by the caller.
        let field = unsafe { import_schema(schema) }?;
        // SAFETY: guaranteed by the caller.
        let import = |array| unsafe { import_array(array, &field) };
        let chunks = arrays.into_iter().map(import).collect::<Result<_, _>>()?;
        Ok(Imported::Chunked(field, chunks))
    }

    /// Imports all arrays of a stream, which is read to its end.
    ///
    /// # Safety
    /// The stream and what it yields keep the contract of the C interfaces.
    ///
    /// # Errors
    /// [`ImportError::Stream`] with the message of a failing producer; others for arrays that break
    /// the rules of their type.
    pub unsafe fn stream(
        stream: FFI_ArrowArrayStream,
        kind: StreamKind,
    ) -> Result<Imported, ImportError> {
        // SAFETY: guaranteed by the caller.
        let (schema, arrays) = unsafe { import_stream(stream) }?;
        let is_table = match kind {
            StreamKind::Table => true,
            StreamKind::Chunked => false,
            StreamKind::ByType => matches!(schema.data_type(), DataType::Struct(_)),
        };
        if !is_table {
            return Ok(Imported::Chunked(schema, arrays));
        }
        let batches = arrays.into_iter().map(batch_of_struct).collect::<Result<_, _>>();
        Ok(Imported::Table(schema, batches?))
    }
}
