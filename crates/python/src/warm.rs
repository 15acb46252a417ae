//! The code path of a `get`, run once in advance.
//!
//! The first Arrow value that a process rebuilds and passes to pyarrow costs some 0.15 ms more than
//! the next: the code of both libraries is loaded, and their caches are filled. `connect` pays
//! that instead, with a private table of two columns.

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_buffer::Buffer;
use arrow_schema::{DataType, Field, Schema};
use farrow::arrow::{Decoded, DescriptorStamp, Limits, Plan};
use farrow::arrow_ffi;
use farrow::{BatchData, ObjectKey, Rebuilt, SchemaNode};
use pyo3::prelude::*;
use std::sync::Arc;

use crate::pyarrow::Pyarrow;

/// A search for a name that no object has: the code of the search is loaded, and the directory is
/// mapped. It sends no message.
pub fn search(client: &farrow::Client) {
    let _ = client.get_here(&ObjectKey::Name("farrow: no object".to_owned()));
}

/// Needs no node and changes nothing. An error here is ignored: a real `get` will report it.
pub fn rebuild_a_table(py: Python<'_>) {
    if let Some(exported) = rebuilt().and_then(|table| arrow_ffi::export(&table).ok()) {
        let _ = Pyarrow::get(py).and_then(|pyarrow| pyarrow.wrap_table(py, exported));
    }
}

/// The table, by way of its descriptor, over private memory.
fn rebuilt() -> Option<farrow::ArrowObject> {
    let (schema, batch) = table()?;
    let plan = Plan::table(&schema, &[batch], &mut |_, _| None).ok()?;
    let mut bytes = vec![0; usize::try_from(plan.copy_bytes()).ok()?];
    plan.write_copies(&mut bytes).ok()?;
    // A vector of words is aligned like a region.
    let words: Vec<u64> = bytes
        .chunks(8)
        .map(|chunk| chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
        .collect();
    let area = Buffer::from_vec(words);
    let descriptor = plan.descriptor(DescriptorStamp::default(), 0);
    let decoded = Decoded::parse(&descriptor, &Limits::default()).ok()?;
    let rebuilt = decoded.rebuild(&|offset, length| {
        let (start, length) = (usize::try_from(offset).ok()?, usize::try_from(length).ok()?);
        let is_inside = start.checked_add(length).is_some_and(|end| end <= area.len());
        is_inside.then(|| area.slice_with_length(start, length))
    });
    match rebuilt.ok()? {
        Rebuilt::Arrow(table) => Some(table),
        Rebuilt::NdArray(..) => None,
    }
}

/// A column of plain numbers and one of strings with a null: most types share their code paths.
fn table() -> Option<(SchemaNode, BatchData)> {
    let columns: [ArrayRef; 2] = [
        Arc::new(Int64Array::from_iter_values([1, 2])),
        Arc::new(StringArray::from_iter([Some("one"), None])),
    ];
    let fields = vec![
        Field::new("numbers", DataType::Int64, false),
        Field::new("words", DataType::Utf8, true),
    ];
    let schema = Schema::new(fields);
    let batch = RecordBatch::try_new(Arc::new(schema.clone()), columns.to_vec()).ok()?;
    Some((SchemaNode::try_from(&schema).ok()?, BatchData::from(&batch)))
}
