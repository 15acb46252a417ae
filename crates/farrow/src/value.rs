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

impl<'a> Value<'a> {
    /// The schema and the batches of a table or record batch.
    pub(crate) fn batches(&self) -> Option<(&'a SchemaNode, &'a [BatchData])> {
        match *self {
            Self::RecordBatch { schema, batch } => Some((schema, std::slice::from_ref(batch))),
            Self::Table { schema, batches } => Some((schema, batches)),
            _ => None,
        }
    }

    /// About as many bytes as the object of this value takes.
    pub(crate) fn bytes(&self) -> u64 {
        fn of_arrays<'b>(arrays: impl IntoIterator<Item = &'b ArrayData>) -> u64 {
            let size = |array: &ArrayData| {
                let sliced = array.get_slice_memory_size();
                sliced.unwrap_or_else(|_| array.get_buffer_memory_size()) as u64
            };
            arrays.into_iter().map(size).sum()
        }
        match *self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::NdArray { data, .. } => data.len() as u64,
            Self::Array { data, .. } => of_arrays([data]),
            Self::ChunkedArray { chunks, .. } => of_arrays(chunks),
            Self::RecordBatch { batch, .. } => of_arrays(&batch.columns),
            Self::Table { batches, .. } => {
                batches.iter().map(|batch| of_arrays(&batch.columns)).sum()
            }
        }
    }
}
