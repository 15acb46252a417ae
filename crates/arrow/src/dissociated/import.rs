//! From messages to arrays. A message is checked as strictly as a descriptor: the same code
//! creates the views.

use super::Messages;
use super::message::{batch_of, open};
use crate::BatchData;
use crate::decode::{
    ArrayNode, ArrowObject, MemoryRange, Resolve, Tree, Validity, check_contents, rebuild_columns,
};
use crate::error::InvalidDescriptor;
use crate::kind::Kind;
use crate::layout::{ArrayLayout, child_count, child_type, same_type};
use crate::schema::{DEPTH_MAX, SchemaNode, read_schema, write_schema};
use crate::wire::{DescriptorReader, DescriptorWriter};
use arrow_array::make_array;
use arrow_data::ArrayData;
use arrow_ipc as ipc;
use arrow_schema::DataType;
use std::sync::Arc;

/// Reads the messages of one object, in order, over a region.
///
/// Like [`crate::Decoded::rebuild`], it checks only the structure, unless `is_checked` asks for
/// checks of the contents.
#[derive(Debug)]
pub struct Importer {
    schema: Arc<SchemaNode>,
    fields: Vec<ImportedDictionaryIds>,
    dictionaries: Vec<ImportedDictionary>,
    is_checked: bool,
}

/// A dictionary of the schema; `values` is set when its message is read.
#[derive(Debug)]
struct ImportedDictionary {
    id: i64,
    values_type: DataType,
    /// Dictionary ids of the fields below the values.
    below: Vec<ImportedDictionaryIds>,
    values: Option<ArrayData>,
}

#[derive(Debug, Clone, Default)]
struct ImportedDictionaryIds {
    own: Option<i64>,
    children: Vec<ImportedDictionaryIds>,
}

/// Reads all messages of an object; the result is a table. `is_checked` enables checks of all
/// contents, which read all the data.
///
/// # Errors
/// [`InvalidDescriptor`] if a message is invalid.
pub fn import(
    messages: &Messages,
    resolve: Resolve<'_>,
    is_checked: bool,
) -> Result<ArrowObject, InvalidDescriptor> {
    let mut importer = Importer::new(&messages.schema, is_checked)?;
    let mut batches = Vec::with_capacity(messages.batches.len());
    for batch in &messages.batches {
        for dictionary in &batch.dictionaries {
            importer.dictionary(dictionary, resolve)?;
        }
        batches.push(importer.record_batch(&batch.record_batch, resolve)?);
    }
    Ok(ArrowObject { kind: Kind::Table, schema: Arc::clone(importer.schema()), batches })
}

fn bad(reason: impl Into<String>) -> InvalidDescriptor {
    InvalidDescriptor::BadMessage { reason: reason.into() }
}

impl Importer {
    /// Creates an importer from the schema message.
    ///
    /// # Errors
    /// [`InvalidDescriptor`] if the message holds no schema, or its types are unknown.
    pub fn new(message: &[u8], is_checked: bool) -> Result<Importer, InvalidDescriptor> {
        let opened = open(message)?;
        let header = opened.header_as_schema().ok_or_else(|| bad("it holds no schema"))?;
        if header.endianness() != ipc::Endianness::Little {
            return Err(InvalidDescriptor::Unsupported { what: "big-endian data" });
        }
        let schema = ipc::convert::try_fb_to_schema(header).map_err(|e| bad(e.to_string()))?;
        // The descriptor's reader rejects invalid types, such as negative sizes, that arrow-rs
        // accepts.
        let mut writer = DescriptorWriter::default();
        write_schema(&mut writer, &SchemaNode::try_from(&schema)?);
        let schema = read_schema(&mut DescriptorReader::new(&writer.bytes), 0, DEPTH_MAX)?;
        let fields: Vec<ImportedDictionaryIds> =
            header.fields().into_iter().flatten().map(ids_of).collect();
        let mut dictionaries = Vec::new();
        for (field, node) in fields.iter().zip(schema.children()) {
            collect(field, node.data_type(), &mut dictionaries)?;
        }
        Ok(Importer { schema: Arc::new(schema), fields, dictionaries, is_checked })
    }

    /// The schema: a struct whose children are the columns.
    pub fn schema(&self) -> &Arc<SchemaNode> {
        &self.schema
    }

    /// Reads a dictionary batch. It replaces the earlier dictionary of its id. A delta is appended
    /// to the earlier one instead, which copies both and checks their contents.
    ///
    /// # Errors
    /// [`InvalidDescriptor`] if the message is invalid.
    pub fn dictionary(
        &mut self,
        message: &[u8],
        resolve: Resolve<'_>,
    ) -> Result<(), InvalidDescriptor> {
        let opened = open(message)?;
        let (batch, Some((id, is_delta))) = batch_of(&opened)? else {
            return Err(bad("it holds no dictionary"));
        };
        let known = self.dictionaries.iter().position(|dictionary| dictionary.id == id);
        let index = known.ok_or_else(|| bad(format!("no field has dictionary {id}")))?;
        let Some(dictionary) = self.dictionaries.get(index) else {
            return Err(bad(format!("no field has dictionary {id}")));
        };
        let below = ImportedDictionaryIds { own: None, children: dictionary.below.clone() };
        let values_type = dictionary.values_type.clone();
        let mut columns = self.columns(&batch, &[(&values_type, &below)], resolve)?;
        let mut values = columns.pop().ok_or_else(|| bad("it holds no values"))?;
        if is_delta {
            let before = self.dictionaries.get(index).and_then(|known| known.values.clone());
            let before = before.ok_or_else(|| bad(format!("dictionary {id} has no start")))?;
            values = append(&before, &values)?;
        }
        if let Some(dictionary) = self.dictionaries.get_mut(index) {
            dictionary.values = Some(values);
        }
        Ok(())
    }

    /// Reads a record batch.
    ///
    /// # Errors
    /// [`InvalidDescriptor`] if the message is invalid.
    pub fn record_batch(
        &self,
        message: &[u8],
        resolve: Resolve<'_>,
    ) -> Result<BatchData, InvalidDescriptor> {
        let opened = open(message)?;
        let (batch, None) = batch_of(&opened)? else {
            return Err(bad("it holds a dictionary, not a record batch"));
        };
        let columns: Vec<_> =
            self.schema.children().iter().map(SchemaNode::data_type).zip(&self.fields).collect();
        let columns = self.columns(&batch, &columns, resolve)?;
        let rows = usize::try_from(batch.length()).map_err(|_| bad("it has less than no rows"))?;
        Ok(BatchData { rows, columns })
    }

    /// Builds arrays of the given types from the nodes of a record batch.
    fn columns(
        &self,
        batch: &ipc::RecordBatch<'_>,
        types: &[(&DataType, &ImportedDictionaryIds)],
        resolve: Resolve<'_>,
    ) -> Result<Vec<ArrayData>, InvalidDescriptor> {
        let mut reader = BatchReader {
            dictionaries: &self.dictionaries,
            nodes_left: batch
                .nodes()
                .into_iter()
                .flatten()
                .copied()
                .collect::<Vec<_>>()
                .into_iter(),
            buffers_left: batch
                .buffers()
                .into_iter()
                .flatten()
                .copied()
                .collect::<Vec<_>>()
                .into_iter(),
            counts_left: batch
                .variadicBufferCounts()
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .into_iter(),
            nodes: Vec::new(),
            ranges: Vec::new(),
        };
        for (data_type, ids) in types {
            reader.node(data_type, ids)?;
        }
        if reader.nodes_left.next().is_some() || reader.buffers_left.next().is_some() {
            return Err(bad("it has more nodes or buffers than its schema"));
        }
        let tree = Tree {
            schema: Arc::clone(&self.schema),
            nodes: reader.nodes,
            ranges: reader.ranges,
            batches: Vec::new(),
            dictionaries: Vec::new(),
        };
        let known = self.dictionaries.iter().map(|known| known.values.clone()).collect();
        let types = types.iter().map(|(data_type, _)| *data_type);
        let columns = rebuild_columns(&tree, resolve, known, types)?;
        for column in &columns {
            if i64::try_from(column.len()) != Ok(batch.length()) {
                let found = column.len();
                return Err(bad(format!("a column has {found} rows, not {}", batch.length())));
            }
            if self.is_checked {
                check_contents(column)?;
            }
        }
        Ok(columns)
    }
}

fn append(before: &ArrayData, delta: &ArrayData) -> Result<ArrayData, InvalidDescriptor> {
    // Concatenation follows offsets, so they must be valid.
    check_contents(before)?;
    check_contents(delta)?;
    let parts = [make_array(before.clone()), make_array(delta.clone())];
    let joined = arrow_select::concat::concat(&[parts[0].as_ref(), parts[1].as_ref()]);
    joined.map(|joined| joined.to_data()).map_err(|error| bad(error.to_string()))
}

fn ids_of(field: ipc::Field<'_>) -> ImportedDictionaryIds {
    ImportedDictionaryIds {
        own: field.dictionary().map(|dictionary| dictionary.id()),
        children: field.children().into_iter().flatten().map(ids_of).collect(),
    }
}

/// Lists the dictionaries of a field. Fields may share one if their values have the same type.
fn collect(
    ids: &ImportedDictionaryIds,
    data_type: &DataType,
    dictionaries: &mut Vec<ImportedDictionary>,
) -> Result<(), InvalidDescriptor> {
    let values = match (ids.own, data_type) {
        (Some(id), DataType::Dictionary(_, values)) => {
            match dictionaries.iter().find(|known| known.id == id) {
                Some(known) if !same_type(&known.values_type, values) => {
                    return Err(bad(format!("dictionary {id} has two types")));
                }
                Some(_) => {}
                None => dictionaries.push(ImportedDictionary {
                    id,
                    values_type: values.as_ref().clone(),
                    below: ids.children.clone(),
                    values: None,
                }),
            }
            values.as_ref()
        }
        _ => data_type,
    };
    for (index, ids) in ids.children.iter().enumerate() {
        if let Some(child) = child_type(values, index) {
            collect(ids, child, dictionaries)?;
        }
    }
    Ok(())
}

struct BatchReader<'a> {
    dictionaries: &'a [ImportedDictionary],
    nodes_left: std::vec::IntoIter<ipc::FieldNode>,
    buffers_left: std::vec::IntoIter<ipc::Buffer>,
    counts_left: std::vec::IntoIter<i64>,
    nodes: Vec<ArrayNode>,
    ranges: Vec<MemoryRange>,
}

impl BatchReader<'_> {
    fn range(&mut self) -> Result<MemoryRange, InvalidDescriptor> {
        let buffer = self.buffers_left.next().ok_or_else(|| bad("it has too few buffers"))?;
        let offset = u64::try_from(buffer.offset());
        let length = u64::try_from(buffer.length());
        match (offset, length) {
            (Ok(offset), Ok(length)) => Ok(MemoryRange { offset, length }),
            _ => Err(bad("a buffer lies before the region")),
        }
    }

    fn node(
        &mut self,
        data_type: &DataType,
        ids: &ImportedDictionaryIds,
    ) -> Result<(), InvalidDescriptor> {
        let node = self.nodes_left.next().ok_or_else(|| bad("it has too few nodes"))?;
        let length = u64::try_from(node.length()).map_err(|_| bad("a length is negative"))?;
        let layout = ArrayLayout::of(data_type).ok_or_else(|| bad("a size is negative"))?;
        let mut validity = None;
        if layout.has_validity() {
            let range = self.range()?;
            let null_count = u64::try_from(node.null_count());
            let null_count = null_count.ok().filter(|nulls| *nulls <= length);
            let null_count = null_count.ok_or_else(|| bad("a null count is out of range"))?;
            if null_count > 0 {
                let null_count = Some(null_count);
                validity = Some(Validity { null_count, bit_offset: 0, range });
            }
        }
        let first_range = self.ranges.len() as u32;
        let data_buffers = match layout {
            ArrayLayout::View => {
                let count = self.counts_left.next().and_then(|count| usize::try_from(count).ok());
                count.ok_or_else(|| bad("it has too few counts of view buffers"))?
            }
            _ => 0,
        };
        for _ in 0..layout.buffers().saturating_add(data_buffers) {
            let range = self.range()?;
            self.ranges.push(range);
        }
        let range_count = self.ranges.len() as u32 - first_range;
        let dictionary = match data_type {
            DataType::Dictionary(_, values) => Some(self.dictionary(values, ids)?),
            _ => None,
        };
        let offset = 0;
        self.nodes.push(ArrayNode {
            length,
            offset,
            validity,
            first_range,
            range_count,
            dictionary,
        });
        if dictionary.is_some() {
            return Ok(());
        }
        let none = ImportedDictionaryIds::default();
        for index in 0..child_count(data_type) {
            if let Some(child) = child_type(data_type, index) {
                self.node(child, ids.children.get(index).unwrap_or(&none))?;
            }
        }
        Ok(())
    }

    /// Index of the dictionary that a field uses.
    fn dictionary(
        &self,
        values: &DataType,
        ids: &ImportedDictionaryIds,
    ) -> Result<u32, InvalidDescriptor> {
        let id = ids.own.ok_or_else(|| bad("a dictionary has no id"))?;
        let index = self.dictionaries.iter().position(|known| known.id == id);
        let known = index.and_then(|index| self.dictionaries.get(index));
        match (index, known) {
            (Some(index), Some(known)) if same_type(&known.values_type, values) => Ok(index as u32),
            _ => Err(bad(format!("dictionary {id} is not known"))),
        }
    }
}
