//! Export and import over the Arrow C Data Interface, including the rare cases that pyarrow and
//! others produce: metadata of any bytes, dictionary order, dictionaries of dictionaries, unions
//! without types, empty arrays without offsets.
//!
//! Exporting never copies data. Importing copies only buffers that are not aligned as arrow-rs
//! requires for their type.

mod abi;
mod array;
mod imported;
mod schema;
mod stream;

pub use arrow_array::ffi_stream::FFI_ArrowArrayStream;
pub use arrow_data::ffi::FFI_ArrowArray;
pub use arrow_schema::ffi::FFI_ArrowSchema;

pub use array::import_array;
pub use imported::{Imported, StreamKind};
pub use schema::{export_schema, import_schema};
pub use stream::{export_stream, import_stream};

use crate::BatchData;
use crate::error::ImportError;
use crate::schema::SchemaNode;
use arrow_data::ArrayData;
use arrow_schema::DataType;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a callback, which must not unwind into its caller. `None`: the body
/// panicked, and the panic hook has reported the panic.
fn contained<T>(body: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(body)).ok()
}

/// Exports one array. Its buffers are not copied, and stay alive until the consumer releases the
/// structure. Null counts above 0 are exported as unknown: a descriptor's count may be wrong, and
/// the consumer would allocate by it.
pub fn export_array(array: &ArrayData) -> FFI_ArrowArray {
    let mut exported = FFI_ArrowArray::new(array);
    abi::forget_null_counts(&mut exported);
    exported
}

/// Exports one batch as the struct array of a record batch.
pub fn export_batch(schema: &SchemaNode, batch: &BatchData) -> FFI_ArrowArray {
    export_array(&struct_of_batch(schema, batch))
}

/// A batch as a struct array without nulls, for consumers that need one array.
pub fn struct_of_batch(schema: &SchemaNode, batch: &BatchData) -> ArrayData {
    let builder = ArrayData::builder(schema.data_type().clone())
        .len(batch.rows)
        .child_data(batch.columns.clone());
    // SAFETY: the columns of a batch have the types of its schema and its number of rows.
    unsafe { builder.build_unchecked() }
}

/// The columns of the struct array of a record batch.
///
/// # Errors
/// [`ImportError::NotAStruct`]; [`ImportError::Count`] if rows are null or columns too short.
pub fn batch_of_struct(array: ArrayData) -> Result<BatchData, ImportError> {
    if !matches!(array.data_type(), DataType::Struct(_)) {
        return Err(ImportError::NotAStruct { data_type: array.data_type().to_string() });
    }
    let rows = array.len();
    if array.null_count() > 0 {
        return Err(ImportError::Count {
            data_type: "a record batch".into(),
            what: "the number of null rows",
            needed: 0,
            found: array.null_count() as i64,
        });
    }
    let offset = array.offset();
    let mut columns = Vec::with_capacity(array.child_data().len());
    for column in array.child_data() {
        let end = offset.saturating_add(rows);
        if column.len() < end {
            return Err(ImportError::Count {
                data_type: column.data_type().to_string(),
                what: "a column of a record batch",
                needed: end as i64,
                found: column.len() as i64,
            });
        }
        let is_whole = offset == 0 && column.len() == rows;
        columns.push(if is_whole { column.clone() } else { column.slice(offset, rows) });
    }
    Ok(BatchData { rows, columns })
}
