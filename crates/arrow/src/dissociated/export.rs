//! From arrays to messages.

use super::message::{BatchMessage, encapsulate};
use super::{BatchMessages, Messages};
use crate::decode::ArrowObject;
use crate::describe::{CopyItem, CopyOut, Locate, Placer, Walker};
use crate::error::{DescribeError, ExportError};
use crate::schema::SchemaNode;
use arrow_data::ArrayData;
use arrow_ipc as ipc;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions};
use arrow_schema::{DataType, Schema};

/// An object for Dissociated IPC: the copies to perform into the region first, and then the
/// messages.
#[derive(Debug)]
pub struct Export {
    schema: Vec<u8>,
    /// Dictionaries and record batch message of each batch.
    batches: Vec<(Vec<BatchMessage>, BatchMessage)>,
    copies: Vec<CopyItem>,
    copy_bytes: u64,
    in_place: Vec<(u64, u64)>,
}

impl Export {
    /// Walks an object. `locate` returns region offsets, as for [`crate::Plan`]. Metadata of
    /// dictionary *values* and earlier values of a repeated metadata key are lost: arrow-rs does
    /// not write them to IPC.
    ///
    /// # Errors
    /// [`ExportError`], for what IPC cannot express (dictionaries of dictionaries, text that is
    /// not UTF-8), and for malformed arrays.
    pub fn new(object: &ArrowObject, locate: Locate<'_>) -> Result<Export, ExportError> {
        let schema = match object.schema.to_schema() {
            Some(schema) if object.kind.is_tabular() => schema,
            _ => Schema::new(vec![object.schema.to_field()]),
        };
        expressible(&object.schema)?;
        let (schema, ids) = schema_message(&schema)?;
        let mut exporter = Exporter { placer: Some(Placer::new(locate)), latest: Vec::new() };
        let mut batches = Vec::with_capacity(object.batches.len());
        for batch in &object.batches {
            let mut dictionaries = Vec::new();
            for (column, ids) in batch.columns.iter().zip(&ids) {
                exporter.dictionaries(column, ids, &mut dictionaries)?;
            }
            let record = exporter.record(None, batch.rows, &batch.columns)?;
            batches.push((dictionaries, record));
        }
        let placed = exporter.placer.take().map(Placer::finish);
        let placed = placed.ok_or(DescribeError::Overflow { what: "placers" })?;
        let (copies, copy_bytes) = (placed.copies, placed.copy_bytes);
        Ok(Export { schema, batches, copies, copy_bytes, in_place: placed.in_place })
    }

    /// Size in bytes of the copied area.
    pub fn copy_bytes(&self) -> u64 {
        self.copy_bytes
    }

    /// The necessary copies, as for [`crate::Plan::copies`].
    pub fn copies(&self) -> impl ExactSizeIterator<Item = CopyOut<'_>> {
        self.copies.iter().map(CopyItem::copy_out)
    }

    /// Ranges (region offset, length) that the messages refer to in place: sorted, disjoint,
    /// touching ranges merged.
    pub fn in_place(&self) -> &[(u64, u64)] {
        &self.in_place
    }

    /// The messages. The copied area begins at region offset `base`. `region_bytes` is the length
    /// of the region, which is the body of every message.
    pub fn messages(&self, base: u64, region_bytes: u64) -> Messages {
        let message = |record: &BatchMessage| record.message(base, region_bytes);
        let batches = self.batches.iter().map(|(dictionaries, record)| BatchMessages {
            dictionaries: dictionaries.iter().map(message).collect(),
            record_batch: message(record),
        });
        Messages { schema: self.schema.clone(), batches: batches.collect() }
    }
}

/// Checks that IPC can represent a schema: it has one dictionary for each field, so dictionary
/// values cannot be dictionaries themselves, and its text is UTF-8.
fn expressible(node: &SchemaNode) -> Result<(), ExportError> {
    let metadata = node.metadata().flat_map(|(key, value)| [key, value]);
    if metadata.chain(node.name()).any(|text| std::str::from_utf8(text).is_err()) {
        let what = "a name or metadata that is not UTF-8";
        return Err(ExportError::NotExpressible { what });
    }
    if let Some(values) = node.dictionary() {
        if values.dictionary().is_some() {
            let what = "a dictionary whose values are a dictionary";
            return Err(ExportError::NotExpressible { what });
        }
        expressible(values)?;
    }
    node.children().iter().try_for_each(expressible)
}

/// Dictionary ids of a field and of its descendants.
#[derive(Debug, Default)]
struct ExportedDictionaryIds {
    own: Option<i64>,
    children: Vec<ExportedDictionaryIds>,
}

fn ids_of(field: ipc::Field<'_>) -> ExportedDictionaryIds {
    ExportedDictionaryIds {
        own: field.dictionary().map(|dictionary| dictionary.id()),
        children: field.children().into_iter().flatten().map(ids_of).collect(),
    }
}

fn schema_message(schema: &Schema) -> Result<(Vec<u8>, Vec<ExportedDictionaryIds>), ExportError> {
    let mut tracker = DictionaryTracker::new(false);
    let encoded = IpcDataGenerator::default().schema_to_bytes_with_dictionary_tracker(
        schema,
        &mut tracker,
        &IpcWriteOptions::default(),
    );
    let failed = |reason: String| ExportError::Schema { reason };
    let message = ipc::root_as_message(&encoded.ipc_message);
    let message = message.map_err(|error| failed(error.to_string()))?;
    let fields = message.header_as_schema().and_then(|schema| schema.fields());
    let fields = fields.ok_or_else(|| failed("it has no fields".into()))?;
    Ok((encapsulate(&encoded.ipc_message), fields.iter().map(ids_of).collect()))
}

struct Exporter<'l> {
    /// `None` while the walker of a record batch uses it.
    placer: Option<Placer<'l>>,
    /// The last dictionary written for each id.
    latest: Vec<(i64, ArrayData)>,
}

impl Exporter<'_> {
    fn record(
        &mut self,
        dictionary: Option<i64>,
        rows: usize,
        columns: &[ArrayData],
    ) -> Result<BatchMessage, ExportError> {
        let placer = self.placer.take().ok_or(DescribeError::Overflow { what: "placers" })?;
        let mut walker = Walker::new(BatchMessage::new(dictionary), placer);
        walker.begin_batch(rows as u64);
        columns.iter().try_for_each(|column| walker.array(column))?;
        let (record, placer) = walker.finish();
        self.placer = Some(placer);
        Ok(record)
    }

    /// Appends messages for the changed dictionaries of a column, inner ones first.
    fn dictionaries(
        &mut self,
        data: &ArrayData,
        ids: &ExportedDictionaryIds,
        records: &mut Vec<BatchMessage>,
    ) -> Result<(), ExportError> {
        let DataType::Dictionary(_, _) = data.data_type() else {
            for (child, ids) in data.child_data().iter().zip(&ids.children) {
                self.dictionaries(child, ids, records)?;
            }
            return Ok(());
        };
        let (Some(values), Some(id)) = (data.child_data().first(), ids.own) else {
            return Err(ExportError::Schema { reason: "a dictionary without an id".into() });
        };
        // The field's children are those of the values.
        for (child, ids) in values.child_data().iter().zip(&ids.children) {
            self.dictionaries(child, ids, records)?;
        }
        match self.latest.iter_mut().find(|(known, _)| *known == id) {
            Some((_, latest)) if latest.ptr_eq(values) => return Ok(()),
            Some((_, latest)) => *latest = values.clone(),
            None => self.latest.push((id, values.clone())),
        }
        records.push(self.record(Some(id), values.len(), std::slice::from_ref(values))?);
        Ok(())
    }
}
