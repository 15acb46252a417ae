//! What can be put.

use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use farrow_arrow::{BatchData, NdArray, SchemaNode};

/// A value that can be put.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Value<'a> {
    /// Plain bytes.
    Bytes(&'a [u8]),
    /// A contiguous NumPy array.
    NdArray {
        /// Type and shape.
        shape: &'a NdArray,
        /// Its bytes.
        data: &'a Buffer,
    },
    /// One Arrow array.
    Array {
        /// Its type, name and metadata.
        field: &'a SchemaNode,
        /// The array.
        data: &'a ArrayData,
    },
    /// Arrow arrays of one type.
    ChunkedArray {
        /// Their type, name and metadata.
        field: &'a SchemaNode,
        /// The arrays.
        chunks: &'a [ArrayData],
    },
    /// One record batch.
    RecordBatch {
        /// A struct of its columns.
        schema: &'a SchemaNode,
        /// The batch.
        batch: &'a BatchData,
    },
    /// Record batches of one schema.
    Table {
        /// A struct of their columns.
        schema: &'a SchemaNode,
        /// The batches.
        batches: &'a [BatchData],
    },
}
