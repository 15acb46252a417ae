//! `client.list()`: the directory as an Arrow table.

use crate::errors::{defect, raise};
use crate::pyarrow::Pyarrow;
use arrow_array::builder::{
    BooleanBuilder, FixedSizeBinaryBuilder, MapBuilder, StringBuilder, TimestampNanosecondBuilder,
    UInt32Builder, UInt64Builder,
};
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow_schema::{ArrowError, DataType, Field, Schema, TimeUnit};
use farrow::arrow::Kind;
use farrow::arrow_ffi;
use farrow::{ArrowObject, BatchData, ClusterList, ListedObject, SchemaNode};
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::sync::Arc;

/// Key of the nodes whose objects are missing, and why, as an object of JSON.
const NOT_LISTED: &str = "farrow.not_listed";

/// Bytes of an id.
const ID_BYTES: i32 = 16;

/// Warns of objects that have no name in the list because it was overwritten.
fn warn_of_damage<'a>(
    py: Python<'_>,
    objects: impl IntoIterator<Item = &'a ListedObject>,
) -> PyResult<()> {
    for object in objects.into_iter().filter(|object| object.is_name_damaged) {
        let text = format!(
            "object {} has lost its name: the memory of the name was overwritten. It is listed \
             without a name and can be read and deleted by its id.",
            object.id
        );
        let text = CString::new(text).map_err(|error| defect(error.to_string()))?;
        PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 2)?;
    }
    Ok(())
}

/// The pyarrow table of the objects.
pub fn table<'py>(py: Python<'py>, objects: &[ListedObject]) -> PyResult<Bound<'py, PyAny>> {
    warn_of_damage(py, objects)?;
    wrap(py, batch(objects))
}

/// As [`table`], with a column for the node of each object, and the nodes whose objects are missing
/// in the metadata of the schema.
pub fn table_of_nodes(py: Python<'_>, found: ClusterList) -> PyResult<Bound<'_, PyAny>> {
    let ClusterList { objects, not_listed, .. } = found;
    warn_of_damage(py, objects.iter().map(|(_, object)| object))?;
    let missing: BTreeMap<String, String> =
        not_listed.into_iter().map(|(node, error)| (node, error.to_string())).collect();
    let metadata = match missing.is_empty() {
        true => HashMap::new(),
        false => HashMap::from([(NOT_LISTED.to_owned(), json!(missing).to_string())]),
    };
    let (nodes, objects): (Vec<_>, Vec<_>) = objects.into_iter().unzip();
    wrap(py, batch(&objects).and_then(|batch| with_nodes(&batch, nodes, metadata)))
}

fn with_nodes(
    batch: &RecordBatch,
    nodes: Vec<Option<String>>,
    metadata: HashMap<String, String>,
) -> Result<RecordBatch, ArrowError> {
    let mut fields = batch.schema().fields().to_vec();
    fields.push(Arc::new(Field::new("node", DataType::Utf8, true)));
    let mut columns = batch.columns().to_vec();
    columns.push(Arc::new(StringArray::from(nodes)));
    RecordBatch::try_new(Arc::new(Schema::new(fields).with_metadata(metadata)), columns)
}

fn wrap(py: Python<'_>, batch: Result<RecordBatch, ArrowError>) -> PyResult<Bound<'_, PyAny>> {
    let wrong = |error: String| defect(format!("the list of objects: {error}"));
    let batch = batch.map_err(|error| wrong(error.to_string()))?;
    let schema =
        SchemaNode::try_from(batch.schema().as_ref()).map_err(|error| wrong(error.to_string()))?;
    let columns = batch.columns().iter().map(|column| column.to_data()).collect();
    let rows = BatchData { rows: batch.num_rows(), columns };
    let object = ArrowObject { kind: Kind::Table, schema: Arc::new(schema), batches: vec![rows] };
    Pyarrow::get(py)?.wrap_table(py, arrow_ffi::export(&object).map_err(raise)?)
}

fn batch(objects: &[ListedObject]) -> Result<RecordBatch, ArrowError> {
    let count = objects.len();
    let mut name = StringBuilder::with_capacity(count, 16 * count);
    let mut id = FixedSizeBinaryBuilder::with_capacity(count, ID_BYTES);
    let mut kind = StringBuilder::with_capacity(count, 8 * count);
    let mut bytes = UInt64Builder::with_capacity(count);
    let mut sealed_at = TimestampNanosecondBuilder::with_capacity(count).with_timezone("UTC");
    let mut creator_pid = UInt32Builder::with_capacity(count);
    let mut metadata = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    let mut pinned = BooleanBuilder::with_capacity(count);
    let mut spilled = BooleanBuilder::with_capacity(count);
    let mut last_use = TimestampNanosecondBuilder::with_capacity(count).with_timezone("UTC");
    for object in objects {
        pinned.append_value(object.is_pinned);
        spilled.append_value(object.is_spilled);
        last_use.append_value(i64::try_from(object.last_use_ns).unwrap_or(i64::MAX));
        name.append_option(object.name.as_deref());
        id.append_value(object.id.to_bytes())?;
        kind.append_value(object.kind.as_str());
        bytes.append_value(object.bytes);
        sealed_at.append_value(i64::try_from(object.sealed_at_ns).unwrap_or(i64::MAX));
        creator_pid.append_value(object.creator_pid);
        for (key, value) in object.metadata.iter() {
            metadata.keys().append_value(key);
            metadata.values().append_value(value);
        }
        metadata.append(true)?;
    }
    let metadata = metadata.finish();
    let moment = DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()));
    let schema = Schema::new(vec![
        Field::new("name", DataType::Utf8, true),
        Field::new("id", DataType::FixedSizeBinary(ID_BYTES), false),
        Field::new("kind", DataType::Utf8, false),
        Field::new("bytes", DataType::UInt64, false),
        Field::new("sealed_at", moment.clone(), false),
        Field::new("creator_pid", DataType::UInt32, false),
        Field::new("metadata", metadata.data_type().clone(), false),
        Field::new("pinned", DataType::Boolean, false),
        Field::new("last_use", moment, false),
        Field::new("spilled", DataType::Boolean, false),
    ]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(name.finish()),
        Arc::new(id.finish()),
        Arc::new(kind.finish()),
        Arc::new(bytes.finish()),
        Arc::new(sealed_at.finish()),
        Arc::new(creator_pid.finish()),
        Arc::new(metadata),
        Arc::new(pinned.finish()),
        Arc::new(last_use.finish()),
        Arc::new(spilled.finish()),
    ];
    RecordBatch::try_new(Arc::new(schema), columns)
}
