//! From nodes to arrays over memory. The bytes that a view covers are checked here, before the
//! view exists.

use super::check::{BeforeRead, Checked, inconsistent, unreadable};
use super::{ArrayNode, MemoryRange, Resolve, Tree};
use crate::BatchData;
use crate::error::InvalidDescriptor;
use crate::foreign;
use crate::kind::Kind;
use crate::layout::{ArrayLayout, child_count, child_type};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow_data::ArrayData;
use arrow_schema::DataType;

/// Maximum size of a bitmap whose nulls are counted, in well under a microsecond. The null count
/// of a larger one is trusted, since counting would fault its pages in.
const COUNTED_BITMAP_BYTES_MAX: usize = 4096;

/// Builds all batches of a tree.
pub(crate) fn rebuild_batches(
    kind: Kind,
    tree: &Tree,
    (resolve, before_read): (Resolve<'_>, BeforeRead<'_>),
) -> Result<Vec<BatchData>, InvalidDescriptor> {
    let dictionaries = vec![None; tree.dictionaries.len()];
    let mut rebuilder =
        Rebuilder { tree, resolve, before_read, next: 0, dictionaries, completed: 0 };
    let single = std::slice::from_ref(tree.schema.as_ref());
    let columns = if kind.is_tabular() { tree.schema.children() } else { single };
    let mut batches = Vec::with_capacity(tree.batches.len());
    for rows in &tree.batches {
        let rows = to_usize(*rows, "rows")?;
        let columns = columns
            .iter()
            .map(|column| rebuilder.array(column.data_type()))
            .collect::<Result<Vec<_>, _>>()?;
        batches.push(BatchData { rows, columns });
    }
    Ok(batches)
}

/// Builds arrays of the given types from a tree whose dictionaries are already known.
pub(crate) fn rebuild_columns<'a>(
    tree: &Tree,
    resolve: Resolve<'_>,
    known: Vec<Option<ArrayData>>,
    types: impl Iterator<Item = &'a DataType>,
) -> Result<Vec<ArrayData>, InvalidDescriptor> {
    let completed = known.len();
    let before_read: BeforeRead<'_> = &|_| true;
    let mut rebuilder =
        Rebuilder { tree, resolve, before_read, next: 0, dictionaries: known, completed };
    types.map(|data_type| rebuilder.array(data_type)).collect()
}

/// The bytes of a range.
pub(crate) fn resolve_range(
    range: MemoryRange,
    resolve: Resolve<'_>,
) -> Result<Buffer, InvalidDescriptor> {
    if range.length == 0 {
        return Ok(foreign::empty());
    }
    let buffer = resolve(range.offset, range.length);
    let buffer = buffer.filter(|buffer| buffer.len() as u64 == range.length);
    buffer.ok_or(InvalidDescriptor::OutOfBounds { offset: range.offset, length: range.length })
}

fn to_usize(value: u64, what: &'static str) -> Result<usize, InvalidDescriptor> {
    usize::try_from(value).map_err(|_| InvalidDescriptor::BadValue { what, at: 0, value })
}

struct Rebuilder<'a> {
    tree: &'a Tree,
    resolve: Resolve<'a>,
    before_read: BeforeRead<'a>,
    next: usize,
    dictionaries: Vec<Option<ArrayData>>,
    /// Number of completed dictionaries. Dictionaries are numbered in order of completion.
    completed: usize,
}

impl Rebuilder<'_> {
    fn array(&mut self, data_type: &DataType) -> Result<ArrayData, InvalidDescriptor> {
        let truncated =
            InvalidDescriptor::Truncated { at: self.next, length: self.tree.nodes.len() };
        let node = self.tree.nodes.get(self.next).ok_or(truncated)?;
        self.next += 1;
        let no_layout = || inconsistent(data_type, "the layout", 1, 0);
        let layout = ArrayLayout::of(data_type).ok_or_else(no_layout)?;
        let length = to_usize(node.length, "length")?;
        // The offset of an empty array is dropped: consumers read buffers[offset].
        let is_trivial = length == 0 && !matches!(layout, ArrayLayout::RunEnd { .. });
        let offset = if is_trivial { 0 } else { to_usize(node.offset, "offset")? };
        let nulls = self.nulls(node, data_type, length)?;
        let mut buffers = self.buffers(node)?;
        let children = self.children(node, data_type, layout)?;
        let checked = Checked { data_type, layout, length, offset, before_read: self.before_read };
        checked.alignment(&buffers)?;
        checked.sizes(&mut buffers)?;
        checked.children(&buffers, &children)?;
        let builder = ArrayData::builder(data_type.clone())
            .len(length)
            .offset(offset)
            .nulls(nulls)
            .buffers(buffers)
            .child_data(children);
        // SAFETY: `Checked` and `nulls` have established that every buffer and child is present,
        // aligned and long enough. The object's writer guarantees well-formed contents, or
        // `rebuild_checked` checks them.
        Ok(unsafe { builder.build_unchecked() })
    }

    fn nulls(
        &self,
        node: &ArrayNode,
        data_type: &DataType,
        length: usize,
    ) -> Result<Option<NullBuffer>, InvalidDescriptor> {
        let Some(validity) = node.validity else { return Ok(None) };
        let bit_offset = to_usize(validity.bit_offset, "validity bit offset")?;
        let end = bit_offset.checked_add(length);
        let bytes = end.map_or(usize::MAX, |end| end.div_ceil(8));
        if bytes as u64 > validity.range.length {
            let found = validity.range.length as usize;
            return Err(inconsistent(data_type, "validity", bytes, found));
        }
        let bits = resolve_range(validity.range, self.resolve)?;
        let is_counted = validity.null_count.is_none() || bytes <= COUNTED_BITMAP_BYTES_MAX;
        if is_counted && !(self.before_read)(bits.get(..bytes).unwrap_or_default()) {
            return Err(unreadable(data_type));
        }
        let bits = BooleanBuffer::new(bits, bit_offset, length);
        let Some(count) = validity.null_count else {
            return Ok(Some(NullBuffer::new(bits)));
        };
        if bytes <= COUNTED_BITMAP_BYTES_MAX {
            let nulls = NullBuffer::new(bits);
            let found = nulls.null_count() as u64;
            if found != count {
                return Err(InvalidDescriptor::Data {
                    reason: format!("null count is {count}, the bitmap has {found}"),
                });
            }
            return Ok(Some(nulls));
        }
        // SAFETY: the writer guarantees the count (see `Decoded::rebuild`), and it does not exceed
        // the length (checked by the parser). Counting would fault a large bitmap in.
        Ok(Some(unsafe { NullBuffer::new_unchecked(bits, count as usize) }))
    }

    fn buffers(&self, node: &ArrayNode) -> Result<Vec<Buffer>, InvalidDescriptor> {
        let first = node.first_range as usize;
        let ranges = self.tree.ranges.get(first..first + node.range_count as usize);
        let ranges = ranges.unwrap_or_default();
        ranges.iter().map(|range| resolve_range(*range, self.resolve)).collect()
    }

    fn children(
        &mut self,
        node: &ArrayNode,
        data_type: &DataType,
        layout: ArrayLayout,
    ) -> Result<Vec<ArrayData>, InvalidDescriptor> {
        if let Some(number) = node.dictionary {
            let known = self.dictionaries.get(number as usize).cloned().flatten();
            let bad = InvalidDescriptor::BadValue {
                what: "dictionary reference",
                at: 0,
                value: number.into(),
            };
            return Ok(vec![known.ok_or(bad)?]);
        }
        let count = child_count(data_type);
        let mut children = Vec::with_capacity(count);
        for index in 0..count {
            if let Some(child) = child_type(data_type, index) {
                children.push(self.array(child)?);
            }
        }
        if matches!(layout, ArrayLayout::Fixed { is_dictionary: true, .. }) {
            if let Some(slot) = self.dictionaries.get_mut(self.completed) {
                *slot = children.first().cloned();
            }
            self.completed += 1;
        }
        Ok(children)
    }
}
