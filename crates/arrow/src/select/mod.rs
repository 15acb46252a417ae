//! Parts of an object: the descriptor of some columns and rows of it, and the bytes that the part
//! needs.
//!
//! [`Decoded::select`] reads no byte of the object. The new descriptor refers to the same region
//! offsets as the old one, so the part can be rebuilt from copies of the listed ranges alone. Which
//! bytes of strings, views, lists, dense unions and runs the rows use is in buffers, so these stay
//! whole. [`Decoded::select_step`] leaves out their other bytes too, for readers to which bytes are
//! dear: it asks for the contents of such buffers, level by level, and rebuilds them.

mod contents;
mod nodes;
mod retained;
mod values;
mod windows;

use std::ops::Range;

use arrow_schema::DataType;

use crate::decode::{ArrayNode, Content, Decoded, Tree};
use crate::describe::begin;
use crate::error::{InvalidDescriptor, SelectError};
use crate::kind::Kind;
use crate::layout::{ArrayLayout, child_count, child_type};
use crate::schema::{SchemaNode, write_schema};
use crate::wire::LENGTH_AT;
pub use contents::PartContents;
use nodes::SelectedNodes;

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
    pub fn of(self, rows: u64) -> Range<u64> {
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
    /// Ranges (region offset, length) of the whole object that the part refers to: unsorted, with
    /// repetitions.
    pub ranges: Vec<(u64, u64)>,
    /// New buffers, which the descriptor refers to at the base of the [`PartContents`]; empty
    /// without contents.
    pub new_buffers: Vec<u8>,
    /// Number of rows.
    pub rows: u64,
}

/// Result of [`Decoded::select_step`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SelectStep {
    /// The part.
    Selected(Selected),
    /// Ranges (region offset, length) of the object to add to the contents. Nothing is known about
    /// them: they may lie outside of the object.
    Needed(Vec<(u64, u64)>),
}

impl Decoded {
    /// Selects columns of a table or record batch, in the given order, and rows of any Arrow
    /// object. Batches without a selected row are omitted. Fixed-width buffers, bitmaps, offsets
    /// and views of a column are cut to the selected rows, and the fields of structs, fixed-size
    /// lists and sparse unions with them. What other buffers refer to stays whole: string bytes,
    /// items of lists and maps, children of dense unions, runs, dictionaries.
    ///
    /// # Errors
    /// [`SelectError`]: the object has no columns or rows to select from, or no such column.
    pub fn select(
        &self,
        columns: Option<&[String]>,
        rows: RowSlice,
    ) -> Result<Selected, SelectError> {
        match self.select_with(columns, rows, None)? {
            SelectStep::Selected(selected) => Ok(selected),
            // Nothing is asked for without contents.
            SelectStep::Needed(_) => {
                Err(InvalidDescriptor::Unsupported { what: "contents of a part" }.into())
            }
        }
    }

    /// As [`Decoded::select`], and cuts to the selected rows what `contents` say. Only dictionaries
    /// stay whole, and values for which that costs less: see [`PartContents`]. While contents are
    /// missing it returns their ranges. Each of at most as many steps as types nest asks for those
    /// of one level.
    ///
    /// # Errors
    /// As [`Decoded::select`]; [`InvalidDescriptor::Data`] for contents that contradict the array.
    pub fn select_step(
        &self,
        columns: Option<&[String]>,
        rows: RowSlice,
        contents: &PartContents,
    ) -> Result<SelectStep, SelectError> {
        self.select_with(columns, rows, Some(contents))
    }

    fn select_with(
        &self,
        columns: Option<&[String]>,
        rows: RowSlice,
        contents: Option<&PartContents>,
    ) -> Result<SelectStep, SelectError> {
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
        let (kind, rows) = (self.kind(), rows.of(total));
        let part = OutputPart { tree, kind, all, chosen, rows, contents };
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
        (Some(_), more) => {
            Err(SelectError::AmbiguousColumn { name: name.to_owned(), count: more + 1 })
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
    rows: Range<u64>,
    contents: Option<&'a PartContents>,
}

impl OutputPart<'_> {
    /// `None`: the descriptor would have more nodes than bytes.
    fn write(&self, of: &Decoded, shares: bool) -> Result<Option<SelectStep>, SelectError> {
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
        let mut nodes = SelectedNodes::new(self.tree, writer, shares, self.contents);
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
        let SelectedNodes { writer, ranges, expanded, new, needed, .. } = nodes;
        if !needed.is_empty() {
            return Ok(Some(SelectStep::Needed(needed.into_iter().collect())));
        }
        let mut descriptor = writer.bytes;
        let length = (descriptor.len() as u64).to_le_bytes();
        descriptor.splice(LENGTH_AT..LENGTH_AT + 8, length);
        let is_bounded = expanded <= descriptor.len() as u64;
        let selected = Selected { descriptor, ranges, new_buffers: new.bytes, rows };
        Ok(is_bounded.then_some(SelectStep::Selected(selected)))
    }

    /// The batches with selected rows, and the range of rows in each.
    fn batches(&self) -> Vec<(usize, Range<u64>)> {
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
        for child in children_of(data_type) {
            next = behind(tree, next, child)?;
        }
    }
    Ok(next)
}

/// The types of the children of an array.
fn children_of(data_type: &DataType) -> impl Iterator<Item = &DataType> {
    (0..child_count(data_type)).filter_map(|child| child_type(data_type, child))
}

fn layout_of(data_type: &DataType) -> Result<ArrayLayout, InvalidDescriptor> {
    let no_format = || crate::SchemaError::NoFormat { data_type: data_type.to_string() };
    ArrayLayout::of(data_type).ok_or_else(|| no_format().into())
}

fn node_at(tree: &Tree, index: usize) -> Result<&ArrayNode, InvalidDescriptor> {
    let length = tree.nodes.len();
    tree.nodes.get(index).ok_or(InvalidDescriptor::Truncated { at: index, length })
}
