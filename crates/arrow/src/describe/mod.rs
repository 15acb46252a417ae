//! Describing arrays: [`Plan`] walks them once, decides for each buffer whether it stays in
//! place or is copied, and encodes the descriptor.

mod access;
mod copies;
mod in_place;
mod nodes;
mod place;
mod sink;
mod trim;

pub(crate) use copies::CopyItem;
pub use copies::{CopyOut, CopySource, Rewritten};
pub(crate) use nodes::Walker;
pub use place::Locate;
pub(crate) use place::{Placer, Reference};
pub(crate) use sink::{
    DICTIONARY_REFERENCE, HAS_OFFSET, HAS_VALIDITY, NODE_FLAGS_KNOWN, NULL_COUNT_UNKNOWN, NodeHead,
    Sink,
};
pub(crate) use trim::{Rewrite, child_of_code, referenced};

use crate::error::DescribeError;
use crate::kind::{Kind, NdArray, Order};
use crate::layout::same_type;
use crate::schema::{SchemaNode, write_schema};
use crate::wire::{
    BASE_AT, DescriptorWriter, EPOCH_AT, HEADER_BYTES, LENGTH_AT, MAGIC, REGION_AT, VERSION,
};
use arrow_array::{Array, RecordBatch};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;

/// One batch of columns. A batch without columns still has rows.
#[derive(Debug, Clone, Default)]
pub struct BatchData {
    /// Number of rows.
    pub rows: usize,
    /// One array for each column, each of `rows` elements.
    pub columns: Vec<ArrayData>,
}

impl From<&RecordBatch> for BatchData {
    fn from(batch: &RecordBatch) -> Self {
        let columns = batch.columns().iter().map(|column| column.to_data()).collect();
        BatchData { rows: batch.num_rows(), columns }
    }
}

/// Values in the header of a descriptor that do not depend on its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DescriptorStamp {
    /// Uid of the region that the offsets are relative to.
    pub region: u64,
    /// Epoch of that region.
    pub epoch: u64,
}

/// A described object that is not yet written: the descriptor, and the necessary copies.
///
/// Creating a plan copies nothing. It reads offsets, views, type codes and run ends where it
/// needs the used part of an array, and validity bitmaps to count nulls. The plan keeps alive
/// the buffers that it copies.
#[derive(Debug)]
pub struct Plan {
    kind: Kind,
    descriptor: Vec<u8>,
    copies: Vec<CopyItem>,
    copy_bytes: u64,
    in_place: Vec<(u64, u64)>,
    data_bytes: u64,
    in_place_bytes: u64,
}

impl Plan {
    /// Describes one array.
    ///
    /// # Errors
    /// [`DescribeError`] if the data is not of the field's type, or breaks its own layout.
    pub fn array(
        field: &SchemaNode,
        array: &ArrayData,
        locate: Locate<'_>,
    ) -> Result<Plan, DescribeError> {
        Self::chunks(Kind::Array, field, std::slice::from_ref(array), locate)
    }

    /// Describes arrays of one type as one chunked array, which may have no chunks.
    ///
    /// # Errors
    /// As [`Plan::array`].
    pub fn chunked_array(
        field: &SchemaNode,
        chunks: &[ArrayData],
        locate: Locate<'_>,
    ) -> Result<Plan, DescribeError> {
        Self::chunks(Kind::ChunkedArray, field, chunks, locate)
    }

    /// Describes one record batch. `schema` is a struct node, see [`SchemaNode`].
    ///
    /// # Errors
    /// As [`Plan::array`], and if column counts or row counts disagree.
    pub fn record_batch(
        schema: &SchemaNode,
        batch: &BatchData,
        locate: Locate<'_>,
    ) -> Result<Plan, DescribeError> {
        Self::batches(Kind::RecordBatch, schema, std::slice::from_ref(batch), locate)
    }

    /// Describes record batches of one schema as one table, which may have no batches.
    ///
    /// # Errors
    /// As [`Plan::record_batch`].
    pub fn table(
        schema: &SchemaNode,
        batches: &[BatchData],
        locate: Locate<'_>,
    ) -> Result<Plan, DescribeError> {
        Self::batches(Kind::Table, schema, batches, locate)
    }

    /// Describes a contiguous NumPy array.
    ///
    /// # Errors
    /// [`DescribeError::NdArraySize`] if shape and bytes disagree.
    pub fn ndarray(
        shape: &NdArray,
        data: &Buffer,
        locate: Locate<'_>,
    ) -> Result<Plan, DescribeError> {
        let overflow = DescribeError::Overflow { what: "items of the shape" };
        let items = shape.items().ok_or(overflow.clone())?;
        let needed = shape.bytes().ok_or(overflow)?;
        if needed != data.len() as u64 {
            return Err(DescribeError::NdArraySize {
                items,
                item_bytes: shape.item_bytes,
                needed,
                found: data.len() as u64,
            });
        }
        let mut writer = begin(Kind::NdArray, 64);
        writer.text(shape.dtype.as_bytes());
        writer.number(shape.item_bytes);
        writer.byte(if shape.order == Order::C { 0 } else { 1 });
        writer.number(shape.shape.len() as u64);
        for axis in &shape.shape {
            writer.number(*axis);
        }
        let mut placer = Placer::new(locate);
        let reference = placer.whole(data, 1)?;
        place::write_reference(&mut writer, reference);
        finish(Kind::NdArray, writer, placer)
    }

    fn chunks(
        kind: Kind,
        field: &SchemaNode,
        chunks: &[ArrayData],
        locate: Locate<'_>,
    ) -> Result<Plan, DescribeError> {
        field.check_depth(kind)?;
        let mut writer = begin(kind, 64 + 64 * chunks.len());
        write_schema(&mut writer, field);
        writer.number(chunks.len() as u64);
        let mut walker = Walker::new(writer, Placer::new(locate));
        for chunk in chunks {
            check_type(0, field, chunk)?;
            walker.begin_batch(chunk.len() as u64);
            walker.array(chunk)?;
        }
        let (writer, placer) = walker.finish();
        finish(kind, writer, placer)
    }

    fn batches(
        kind: Kind,
        schema: &SchemaNode,
        batches: &[BatchData],
        locate: Locate<'_>,
    ) -> Result<Plan, DescribeError> {
        schema.check_depth(kind)?;
        let fields = schema.children();
        let mut writer = begin(kind, 64 + 48 * fields.len() * (1 + batches.len()));
        write_schema(&mut writer, schema);
        writer.number(batches.len() as u64);
        let mut walker = Walker::new(writer, Placer::new(locate));
        for (number, batch) in batches.iter().enumerate() {
            if batch.columns.len() != fields.len() {
                return Err(DescribeError::ColumnCount {
                    batch: number,
                    expected: fields.len(),
                    found: batch.columns.len(),
                });
            }
            walker.begin_batch(batch.rows as u64);
            for (column, (field, array)) in fields.iter().zip(&batch.columns).enumerate() {
                check_type(column, field, array)?;
                if array.len() != batch.rows {
                    return Err(DescribeError::RowCount {
                        batch: number,
                        column,
                        expected: batch.rows,
                        found: array.len(),
                    });
                }
                walker.array(array)?;
            }
        }
        let (writer, placer) = walker.finish();
        finish(kind, writer, placer)
    }

    /// Kind of the object.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Size in bytes of the copied area, which must begin at a multiple of
    /// [`crate::COPY_ALIGNMENT`] in the region.
    pub fn copy_bytes(&self) -> u64 {
        self.copy_bytes
    }

    /// Exact length of the descriptor, which does not depend on the base.
    pub fn descriptor_bytes(&self) -> u64 {
        self.descriptor.len() as u64
    }

    /// Bytes of all buffers, each shared buffer counted once.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Bytes of the buffers that stay in place, out of [`Plan::data_bytes`].
    pub fn in_place_bytes(&self) -> u64 {
        self.in_place_bytes
    }

    /// Ranges (region offset, length) that the object refers to in place: sorted, disjoint,
    /// touching ranges merged.
    pub fn in_place(&self) -> &[(u64, u64)] {
        &self.in_place
    }

    /// The necessary copies, by ascending offset within the copied area.
    pub fn copies(&self) -> impl ExactSizeIterator<Item = CopyOut<'_>> {
        self.copies.iter().map(CopyItem::copy_out)
    }

    /// Writes all copies into `area`, which is the copied area from its first byte.
    ///
    /// # Errors
    /// [`DescribeError::AreaTooSmall`] if `area` is shorter than [`Plan::copy_bytes`].
    pub fn write_copies(&self, area: &mut [u8]) -> Result<(), DescribeError> {
        let found = area.len() as u64;
        for copy in self.copies() {
            let start = copy.offset as usize;
            let length = copy.length as usize;
            let into = start.checked_add(length).and_then(|end| area.get_mut(start..end));
            let needed = self.copy_bytes;
            copy.fill(into.ok_or(DescribeError::AreaTooSmall { needed, found })?);
        }
        Ok(())
    }

    /// The descriptor. `base` is the region offset at which the copied area begins (any value
    /// if nothing is copied).
    pub fn descriptor(&self, stamp: DescriptorStamp, base: u64) -> Vec<u8> {
        let mut bytes = self.descriptor.clone();
        let mut patch = |at: usize, value: u64| {
            if let Some(field) = bytes.get_mut(at..at + 8) {
                field.copy_from_slice(&value.to_le_bytes());
            }
        };
        patch(REGION_AT, stamp.region);
        patch(EPOCH_AT, stamp.epoch);
        patch(BASE_AT, base);
        bytes
    }
}

/// Writes another region into the header of a descriptor: for an object that becomes one of that
/// region. Its offsets stay those of its blocks at seal. False: there is no whole header.
#[must_use]
pub fn restamp(descriptor: &mut [u8], stamp: DescriptorStamp) -> bool {
    if descriptor.len() < HEADER_BYTES {
        return false;
    }
    for (at, value) in [(REGION_AT, stamp.region), (EPOCH_AT, stamp.epoch)] {
        if let Some(field) = descriptor.get_mut(at..at + 8) {
            field.copy_from_slice(&value.to_le_bytes());
        }
    }
    true
}

fn check_type(column: usize, field: &SchemaNode, array: &ArrayData) -> Result<(), DescribeError> {
    if same_type(field.data_type(), array.data_type()) {
        return Ok(());
    }
    Err(DescribeError::TypeMismatch {
        column,
        expected: field.data_type().to_string(),
        found: array.data_type().to_string(),
    })
}

/// Starts a descriptor: the header, with zeros for the fields that are not yet known.
pub(crate) fn begin(kind: Kind, capacity: usize) -> DescriptorWriter {
    let mut writer = DescriptorWriter { bytes: Vec::with_capacity(HEADER_BYTES + capacity) };
    writer.fixed(&MAGIC);
    writer.fixed(&VERSION.to_le_bytes());
    writer.byte(kind as u8);
    writer.byte(0);
    writer.fixed(&[0; HEADER_BYTES - 8]);
    writer
}

fn finish(kind: Kind, writer: DescriptorWriter, placer: Placer<'_>) -> Result<Plan, DescribeError> {
    let mut descriptor = writer.bytes;
    let length = (descriptor.len() as u64).to_le_bytes();
    if let Some(field) = descriptor.get_mut(LENGTH_AT..LENGTH_AT + 8) {
        field.copy_from_slice(&length);
    }
    let placed = placer.finish();
    Ok(Plan {
        kind,
        descriptor,
        copies: placed.copies,
        copy_bytes: placed.copy_bytes,
        in_place: placed.in_place,
        data_bytes: placed.data_bytes,
        in_place_bytes: placed.in_place_bytes,
    })
}
