//! Parts of an object: [`Decoded::select`] writes the descriptor of some columns and rows of an
//! object, and lists the bytes that the part needs.
//!
//! No byte of the object is read. The new descriptor refers to the same region offsets as the
//! old one, so the part can be rebuilt from copies of the listed ranges alone.

use std::collections::HashMap;
use std::ops::Range as Span;

use arrow_schema::DataType;

use crate::decode::{ArrayNode, Content, Decoded, Range, Tree, Validity};
use crate::describe::{DICTIONARY_REFERENCE, HAS_OFFSET, HAS_VALIDITY, NULL_COUNT_UNKNOWN, begin};
use crate::error::{InvalidDescriptor, SelectError};
use crate::kind::Kind;
use crate::layout::{ArrayLayout, VIEW_BYTES, child_count, child_type};
use crate::schema::{SchemaNode, write_schema};
use crate::wire::{DescriptorWriter, LENGTH_AT};

/// Rows as in a Python slice with step 1: a negative bound counts from the end, and a bound
/// beyond the end is the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowSlice {
    /// The first row; `None`: row 0.
    pub start: Option<i64>,
    /// The first row after the slice; `None`: the end.
    pub stop: Option<i64>,
}

impl RowSlice {
    /// The slice as a range of row numbers of an object of `rows` rows.
    pub fn of(self, rows: u64) -> Span<u64> {
        let bound = |bound: i64| match u64::try_from(bound) {
            Ok(bound) => bound.min(rows),
            Err(_) => rows.saturating_sub(bound.unsigned_abs()),
        };
        let start = self.start.map_or(0, bound);
        let stop = self.stop.map_or(rows, bound);
        start..stop.max(start)
    }
}

/// A part of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selected {
    /// Descriptor of the part. Offsets are those of the whole object.
    pub descriptor: Vec<u8>,
    /// Ranges (region offset, length) that the part refers to: unsorted, with repetitions.
    pub ranges: Vec<(u64, u64)>,
    /// Number of rows.
    pub rows: u64,
}

impl Decoded {
    /// Selects columns of a table or record batch, in the given order, and rows of any Arrow
    /// object. Batches without a selected row are omitted. Fixed-width buffers, bitmaps and
    /// offsets of a column are cut to the selected rows. String bytes, children and dictionaries
    /// of a column stay whole.
    ///
    /// # Errors
    /// [`SelectError`]: the object has no columns or rows to select from, or no such column.
    pub fn select(
        &self,
        columns: Option<&[String]>,
        rows: RowSlice,
    ) -> Result<Selected, SelectError> {
        let Content::Arrow(tree) = &self.content else {
            return Err(SelectError::NotArrow { kind: self.kind() });
        };
        let all = match self.kind().is_tabular() {
            true => tree.schema.children(),
            false => std::slice::from_ref(tree.schema.as_ref()),
        };
        let chosen = match columns {
            None => (0..all.len()).collect(),
            Some(_) if !self.kind().is_tabular() => {
                return Err(SelectError::NoColumns { kind: self.kind() });
            }
            Some(names) => {
                names.iter().map(|name| find(all, name)).collect::<Result<Vec<_>, _>>()?
            }
        };
        let total = tree.batches.iter().try_fold(0u64, |sum, rows| sum.checked_add(*rows));
        let total =
            total.ok_or(InvalidDescriptor::BadValue { what: "rows", at: 0, value: u64::MAX })?;
        let part = OutputPart { tree, kind: self.kind(), all, chosen, rows: rows.of(total) };
        let selected = part.write(self, true)?;
        // A descriptor may not have more nodes than bytes, and a shared dictionary counts at each
        // use. If the limit is exceeded, dictionaries are written in full.
        match selected {
            Some(selected) => Ok(selected),
            None => part.write(self, false)?.ok_or_else(|| {
                InvalidDescriptor::TooManyNodes { max: tree.nodes.len() as u64 }.into()
            }),
        }
    }
}

fn find(all: &[SchemaNode], name: &str) -> Result<usize, SelectError> {
    let mut found = all.iter().enumerate().filter(|(_, one)| one.name_text() == name);
    match (found.next(), found.count()) {
        (Some((index, _)), 0) => Ok(index),
        (Some(_), others) => {
            Err(SelectError::AmbiguousColumn { name: name.to_owned(), count: others + 1 })
        }
        (None, _) => Err(SelectError::UnknownColumn {
            name: name.to_owned(),
            known: all.iter().map(|one| one.name_text().into_owned()).collect(),
        }),
    }
}

/// The part that is written.
struct OutputPart<'a> {
    tree: &'a Tree,
    kind: Kind,
    all: &'a [SchemaNode],
    /// Numbers of the columns.
    chosen: Vec<usize>,
    rows: Span<u64>,
}

impl OutputPart<'_> {
    /// `None`: the descriptor would have more nodes than bytes.
    fn write(&self, of: &Decoded, shares: bool) -> Result<Option<Selected>, SelectError> {
        let mut writer = begin(self.kind, 0);
        let stamp = of.stamp();
        writer
            .bytes
            .splice(8..24, [stamp.region.to_le_bytes(), stamp.epoch.to_le_bytes()].concat());
        match self.kind.is_tabular() {
            true => write_schema(&mut writer, &self.tree.schema.with_children(&self.chosen)?),
            false => write_schema(&mut writer, &self.tree.schema),
        }
        let batches = self.batches();
        writer.number(batches.len() as u64);
        let known = self.tree.dictionaries.iter().zip(0u32..);
        let mut nodes = SelectedNodes {
            tree: self.tree,
            writer,
            ranges: Vec::new(),
            known: known.map(|(node, number)| (*node, number)).collect(),
            written: HashMap::new(),
            dictionaries: 0,
            expanded: 0,
            shares,
        };
        let starts = self.starts()?;
        let mut rows = 0;
        for (batch, cut) in batches {
            let count = cut.end - cut.start;
            let is_whole = self.tree.batches.get(batch) == Some(&count);
            nodes.writer.number(count);
            rows += count;
            for column in &self.chosen {
                let start = starts.get(batch * self.all.len() + column).copied();
                let (Some(start), Some(field)) = (start, self.all.get(*column)) else { continue };
                match (count, is_whole) {
                    (_, true) => drop(nodes.copy(start, field.data_type(), None)?),
                    (0, _) => nodes.empty(field.data_type())?,
                    _ => drop(nodes.copy(start, field.data_type(), Some(&cut))?),
                }
            }
        }
        let SelectedNodes { writer, ranges, expanded, .. } = nodes;
        let mut descriptor = writer.bytes;
        let length = (descriptor.len() as u64).to_le_bytes();
        descriptor.splice(LENGTH_AT..LENGTH_AT + 8, length);
        let is_bounded = expanded <= descriptor.len() as u64;
        Ok(is_bounded.then_some(Selected { descriptor, ranges, rows }))
    }

    /// The batches with selected rows, and the range of rows in each.
    fn batches(&self) -> Vec<(usize, Span<u64>)> {
        let mut first = 0;
        let mut found = Vec::new();
        let must_be_one = matches!(self.kind, Kind::Array | Kind::RecordBatch);
        for (batch, rows) in self.tree.batches.iter().enumerate() {
            let start = self.rows.start.clamp(first, first + rows) - first;
            let stop = self.rows.end.clamp(first, first + rows) - first;
            if start < stop || must_be_one {
                found.push((batch, start..stop.max(start)));
            }
            first += rows;
        }
        found
    }

    /// The first node of each column of each batch.
    fn starts(&self) -> Result<Vec<usize>, InvalidDescriptor> {
        let mut starts = Vec::with_capacity(self.tree.batches.len() * self.all.len());
        let mut next = 0;
        for _ in &self.tree.batches {
            for column in self.all {
                starts.push(next);
                next = behind(self.tree, next, column.data_type())?;
            }
        }
        Ok(starts)
    }
}

/// Index of the node after a node and its descendants. Parsing has limited the depth.
fn behind(tree: &Tree, index: usize, data_type: &DataType) -> Result<usize, InvalidDescriptor> {
    let node = node_at(tree, index)?;
    let mut next = index + 1;
    if node.dictionary.is_none() {
        for child in (0..child_count(data_type)).filter_map(|child| child_type(data_type, child)) {
            next = behind(tree, next, child)?;
        }
    }
    Ok(next)
}

fn node_at(tree: &Tree, index: usize) -> Result<&ArrayNode, InvalidDescriptor> {
    let length = tree.nodes.len();
    tree.nodes.get(index).ok_or(InvalidDescriptor::Truncated { at: index, length })
}

struct SelectedNodes<'a> {
    tree: &'a Tree,
    writer: DescriptorWriter,
    ranges: Vec<(u64, u64)>,
    /// Old number of each dictionary, by its first node.
    known: HashMap<u32, u32>,
    /// New number and node count of each dictionary already written, by old number.
    written: HashMap<u32, (u64, u64)>,
    dictionaries: u64,
    /// Number of nodes; those of shared dictionaries count at each use.
    expanded: u64,
    shares: bool,
}

/// A node and the buffers that are retained.
struct RetainedNode {
    length: u64,
    offset: u64,
    validity: Option<Validity>,
    ranges: Vec<Range>,
}

impl SelectedNodes<'_> {
    /// Writes a node and its descendants; `cut` limits the rows of the node itself. Returns the
    /// index of the next node.
    fn copy(
        &mut self,
        index: usize,
        data_type: &DataType,
        cut: Option<&Span<u64>>,
    ) -> Result<usize, InvalidDescriptor> {
        let node = node_at(self.tree, index)?;
        let first = node.first_range as usize;
        let ranges = self.tree.ranges.get(first..first + node.range_count as usize);
        let ranges = ranges.unwrap_or_default().to_vec();
        let ArrayNode { length, offset, validity, .. } = *node;
        let layout = layout_of(data_type)?;
        let whole = RetainedNode { length, offset, validity, ranges };
        let retained = match cut {
            Some(cut) => whole.cut(layout, cut)?,
            None => whole,
        };
        let shared = node.dictionary.filter(|old| self.shares && self.written.contains_key(old));
        self.node(&retained, layout, shared.is_some());
        if let Some(old) = shared
            && let Some((number, nodes)) = self.written.get(&old)
        {
            self.writer.number(*number);
            self.expanded += nodes;
            return Ok(index + 1);
        }
        if let Some(old) = node.dictionary {
            let values = child_type(data_type, 0);
            let at = self.tree.dictionaries.get(old as usize);
            if let (Some(values), Some(at)) = (values, at) {
                self.dictionary(*at as usize, values)?;
            }
            return Ok(index + 1);
        }
        if matches!(layout, ArrayLayout::Fixed { is_dictionary: true, .. }) {
            return match child_type(data_type, 0) {
                Some(values) => self.dictionary(index + 1, values),
                None => Ok(index + 1),
            };
        }
        let mut next = index + 1;
        for child in (0..child_count(data_type)).filter_map(|child| child_type(data_type, child)) {
            next = self.copy(next, child, None)?;
        }
        Ok(next)
    }

    /// Writes a dictionary in full and gives it the next number.
    fn dictionary(&mut self, index: usize, values: &DataType) -> Result<usize, InvalidDescriptor> {
        let before = self.expanded;
        let next = self.copy(index, values, None)?;
        let old = u32::try_from(index).ok().and_then(|index| self.known.get(&index));
        if let Some(old) = old {
            self.written.insert(*old, (self.dictionaries, self.expanded - before));
        }
        self.dictionaries += 1;
        Ok(next)
    }

    /// Writes a node of no elements and its descendants.
    fn empty(&mut self, data_type: &DataType) -> Result<(), InvalidDescriptor> {
        let layout = layout_of(data_type)?;
        let ranges = vec![Range { offset: 0, length: 0 }; layout.buffers()];
        self.node(&RetainedNode { length: 0, offset: 0, validity: None, ranges }, layout, false);
        for child in (0..child_count(data_type)).filter_map(|child| child_type(data_type, child)) {
            self.empty(child)?;
        }
        if matches!(layout, ArrayLayout::Fixed { is_dictionary: true, .. }) {
            self.dictionaries += 1;
        }
        Ok(())
    }

    fn node(&mut self, retained: &RetainedNode, layout: ArrayLayout, shares_dictionary: bool) {
        let RetainedNode { length, offset, validity, ranges } = retained;
        let flag = |bit: u8, on: bool| if on { bit } else { 0 };
        self.expanded += 1;
        self.writer.byte(
            flag(HAS_OFFSET, *offset > 0)
                | flag(HAS_VALIDITY, validity.is_some())
                | flag(NULL_COUNT_UNKNOWN, validity.is_some_and(|it| it.null_count.is_none()))
                | flag(DICTIONARY_REFERENCE, shares_dictionary),
        );
        self.writer.number(*length);
        if *offset > 0 {
            self.writer.number(*offset);
        }
        if let Some(Validity { null_count, bit_offset, range }) = *validity {
            if let Some(null_count) = null_count {
                self.writer.number(null_count);
            }
            self.writer.number(bit_offset);
            self.range(range);
        }
        if layout == ArrayLayout::View {
            self.writer.number(ranges.len().saturating_sub(layout.buffers()) as u64);
        }
        for range in ranges {
            self.range(*range);
        }
    }

    /// Writes a range whose offset counts from the start of the region.
    fn range(&mut self, Range { offset, length }: Range) {
        self.writer.number(length);
        if length > 0 {
            self.writer.number(offset << 1 | 1);
            self.ranges.push((offset, length));
        }
    }
}

fn layout_of(data_type: &DataType) -> Result<ArrayLayout, InvalidDescriptor> {
    let no_format = || crate::SchemaError::NoFormat { data_type: data_type.to_string() };
    ArrayLayout::of(data_type).ok_or_else(|| no_format().into())
}

impl RetainedNode {
    /// The same node with fewer elements. Its buffers begin at a whole byte of its bitmaps.
    fn cut(self, layout: ArrayLayout, rows: &Span<u64>) -> Result<Self, InvalidDescriptor> {
        let Self { offset, validity, ranges, .. } = self;
        let length = rows.end - rows.start;
        let wrong = || InvalidDescriptor::BadValue { what: "rows", at: 0, value: rows.end };
        let first = offset.checked_add(rows.start).ok_or_else(wrong)?;
        let first_bit = match &validity {
            Some(validity) => validity.bit_offset.checked_add(rows.start).ok_or_else(wrong)?,
            None => first,
        };
        let left_out = match (element_bytes(layout), layout) {
            (None, ArrayLayout::Bits) => first.min(first_bit) / 8 * 8,
            (None, _) => 0,
            (Some(_), _) if validity.is_some() => first.min(first_bit) / 8 * 8,
            (Some(_), _) => first,
        };
        let bits = |end: u64| end.checked_add(length).map(|end| end.div_ceil(8));
        let validity = match validity {
            None => None,
            Some(Validity { range, .. }) => {
                let bit_offset = first_bit - left_out;
                let bytes = bits(bit_offset).ok_or_else(wrong)?;
                let range = part_of(range, left_out / 8, bytes).ok_or_else(wrong)?;
                Some(Validity { null_count: None, bit_offset, range })
            }
        };
        let offset = first - left_out;
        let is_whole = element_bytes(layout).is_none() && layout != ArrayLayout::Bits;
        let cut = ranges.into_iter().enumerate().map(|(number, range)| {
            if is_whole || number >= counted_buffers(layout) {
                return Some(range);
            }
            match element_bytes(layout) {
                None => part_of(range, left_out / 8, bits(offset)?),
                Some(bytes) => {
                    let elements = offset.checked_add(length)?.checked_add(extra(layout))?;
                    let start = left_out.checked_mul(bytes)?;
                    part_of(range, start, elements.checked_mul(bytes)?)
                }
            }
        });
        let ranges = cut.collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
        Ok(Self { length, offset, validity, ranges })
    }
}

/// Bytes of an element in the buffers that are cut; `None` for bitmaps and whole buffers.
fn element_bytes(layout: ArrayLayout) -> Option<u64> {
    match layout {
        ArrayLayout::Fixed { bytes, .. } => Some(bytes as u64),
        ArrayLayout::Binary(width) | ArrayLayout::List(width) | ArrayLayout::ListView(width) => {
            Some(width.bytes() as u64)
        }
        ArrayLayout::View => Some(VIEW_BYTES as u64),
        _ => None,
    }
}

/// Number of buffers with an entry for each element.
fn counted_buffers(layout: ArrayLayout) -> usize {
    match layout {
        ArrayLayout::ListView(_) => 2,
        _ => 1,
    }
}

/// Entries of a buffer beyond one for each element.
fn extra(layout: ArrayLayout) -> u64 {
    u64::from(matches!(layout, ArrayLayout::Binary(_) | ArrayLayout::List(_)))
}

/// Part of a range; `None` if it exceeds the range.
fn part_of(range: Range, start: u64, length: u64) -> Option<Range> {
    let end = start.checked_add(length)?;
    (end <= range.length).then_some(Range { offset: range.offset + start, length })
}
