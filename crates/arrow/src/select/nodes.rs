//! The nodes of a part: which of them are written, and their bytes in the descriptor.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use arrow_schema::DataType;

use super::contents::{NewBuffers, PartContents};
use super::retained::{ChildCut, NodeCut, RetainedBuffer, RetainedNode};
use super::{behind, children_of, layout_of, node_at};
use crate::decode::{MemoryRange, Tree, Validity};
use crate::describe::{DICTIONARY_REFERENCE, HAS_OFFSET, HAS_VALIDITY, NULL_COUNT_UNKNOWN};
use crate::error::InvalidDescriptor;
use crate::layout::{ArrayLayout, child_type};
use crate::wire::DescriptorWriter;

/// Writes the nodes of a part.
pub(super) struct SelectedNodes<'a> {
    pub tree: &'a Tree,
    pub writer: DescriptorWriter,
    pub ranges: Vec<(u64, u64)>,
    /// Old number of each dictionary, by its first node.
    known: HashMap<u32, u32>,
    /// New number and node count of each dictionary already written, by old number.
    written: HashMap<u32, (u64, u64)>,
    dictionaries: u64,
    /// Number of nodes; those of shared dictionaries count at each use.
    pub expanded: u64,
    shares: bool,
    /// `None`: what only contents can tell stays whole.
    pub contents: Option<&'a PartContents>,
    pub new: NewBuffers,
    /// Ranges of the object that must be read before the part can be written, and their total.
    pub needed: BTreeSet<(u64, u64)>,
    pub needed_bytes: u64,
}

impl<'a> SelectedNodes<'a> {
    pub fn new(
        tree: &'a Tree,
        writer: DescriptorWriter,
        shares: bool,
        contents: Option<&'a PartContents>,
    ) -> Self {
        let known = tree.dictionaries.iter().zip(0u32..);
        Self {
            tree,
            writer,
            ranges: Vec::new(),
            known: known.map(|(node, number)| (*node, number)).collect(),
            written: HashMap::new(),
            dictionaries: 0,
            expanded: 0,
            shares,
            contents,
            new: NewBuffers::default(),
            needed: BTreeSet::new(),
            needed_bytes: 0,
        }
    }

    /// Writes a node and its descendants; `rows` limits the rows of the node itself. Returns the
    /// index of the next node.
    pub fn copy(
        &mut self,
        index: usize,
        data_type: &DataType,
        rows: Option<&Range<u64>>,
    ) -> Result<usize, InvalidDescriptor> {
        let node = node_at(self.tree, index)?;
        let layout = layout_of(data_type)?;
        let cut = match rows.filter(|rows| **rows != (0..node.length)) {
            Some(rows) if rows.is_empty() => {
                self.empty(data_type)?;
                return behind(self.tree, index, data_type);
            }
            Some(rows) => match self.cut(index, data_type, rows)? {
                Some(cut) => cut,
                // Written once its contents are known.
                None => return behind(self.tree, index, data_type),
            },
            None => NodeCut { node: RetainedNode::whole(self.tree, node), children: Vec::new() },
        };
        let shared = node.dictionary.filter(|old| self.shares && self.written.contains_key(old));
        self.node(&cut.node, layout, shared.is_some());
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
        for (number, child) in children_of(data_type).enumerate() {
            next = match cut.children.get(number) {
                Some(ChildCut::Rows(rows)) => self.copy(next, child, Some(rows))?,
                Some(ChildCut::New(node)) => {
                    self.node(node, layout_of(child)?, false);
                    behind(self.tree, next, child)?
                }
                None => self.copy(next, child, None)?,
            };
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
    pub fn empty(&mut self, data_type: &DataType) -> Result<(), InvalidDescriptor> {
        let layout = layout_of(data_type)?;
        self.node(&RetainedNode::empty(layout.buffers()), layout, false);
        for child in children_of(data_type) {
            self.empty(child)?;
        }
        if matches!(layout, ArrayLayout::Fixed { is_dictionary: true, .. }) {
            self.dictionaries += 1;
        }
        Ok(())
    }

    fn node(&mut self, retained: &RetainedNode, layout: ArrayLayout, shares_dictionary: bool) {
        let RetainedNode { length, offset, validity, buffers } = retained;
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
            self.buffer(range.into());
        }
        if layout == ArrayLayout::View {
            self.writer.number(buffers.len().saturating_sub(layout.buffers()) as u64);
        }
        for buffer in buffers {
            self.buffer(*buffer);
        }
    }

    /// Writes a buffer, whose offset counts from the start of the region.
    fn buffer(&mut self, RetainedBuffer { range, is_new }: RetainedBuffer) {
        let MemoryRange { offset, length } = range;
        self.writer.number(length);
        if length > 0 {
            self.writer.number(offset << 1 | 1);
            if !is_new {
                self.ranges.push((offset, length));
            }
        }
    }
}
