//! The values of a node of which only some rows are retained: children, bytes and runs.

use std::ops::Range;

use arrow_schema::DataType;

use super::contents::{PartContents, counted};
use super::nodes::SelectedNodes;
use super::retained::{ChildCut, NodeCut, RetainedBuffer, RetainedNode, part_of};
use super::windows::{self, ElementWindow};
use super::{behind, children_of, layout_of, node_at};
use crate::decode::{MemoryRange, Tree};
use crate::error::InvalidDescriptor;
use crate::layout::ArrayLayout;

/// Contents of a node that decide which of its values are used.
enum NodeContents<'a> {
    Known(Vec<&'a [u8]>),
    /// They have to be read first.
    Unknown,
    /// They are not worth it, or too many. The values stay whole.
    Unwanted,
}

impl<'a> SelectedNodes<'a> {
    /// Cuts a node to some of its rows, with its children and values as far as the contents tell.
    /// `None`: contents have to be read first.
    pub fn cut(
        &mut self,
        index: usize,
        data_type: &DataType,
        rows: &Range<u64>,
    ) -> Result<Option<NodeCut>, InvalidDescriptor> {
        let (node, layout) = (node_at(self.tree, index)?, layout_of(data_type)?);
        if rows.end > node.length {
            return Err(InvalidDescriptor::Inconsistent {
                data_type: data_type.to_string(),
                what: "a child",
                needed: rows.end,
                found: node.length,
            });
        }
        let children = children_of(data_type).count();
        let mut cut = RetainedNode::whole(self.tree, node).cut(layout, rows, children)?;
        match self.contents_of(index, data_type, &cut.node)? {
            NodeContents::Unwanted => Ok(Some(cut)),
            NodeContents::Unknown => Ok(None),
            NodeContents::Known(bytes) => {
                self.cut_values(index, data_type, &bytes, &mut cut)?;
                Ok(Some(cut))
            }
        }
    }

    /// The buffers of a node that tell which of its values are used: of its own, if `node` is the
    /// node cut to its rows.
    fn contents_of(
        &mut self,
        index: usize,
        data_type: &DataType,
        node: &RetainedNode,
    ) -> Result<NodeContents<'a>, InvalidDescriptor> {
        let Some(contents) = self.contents else { return Ok(NodeContents::Unwanted) };
        let buffers = node.buffers.iter().map(|buffer| buffer.range);
        let ranges: Vec<MemoryRange> = match layout_of(data_type)? {
            ArrayLayout::Binary(_) | ArrayLayout::List(_) => buffers.take(1).collect(),
            ArrayLayout::ListView(_) | ArrayLayout::DenseUnion => buffers.take(2).collect(),
            ArrayLayout::View => {
                buffers.take(1).chain(node.validity.map(|validity| validity.range)).collect()
            }
            ArrayLayout::RunEnd { bytes } => {
                match run_ends(node_at(self.tree, index + 1)?, self.tree, bytes) {
                    Some(ends) => vec![ends],
                    None => return Ok(NodeContents::Unwanted),
                }
            }
            _ => return Ok(NodeContents::Unwanted),
        };
        let ranges = ranges.into_iter().map(|range| (range.offset, range.length));
        let ranges: Vec<(u64, u64)> = ranges.collect();
        let new: u64 = ranges.iter().map(|range| counted(range.1)).fold(0, u64::saturating_add);
        let new = new.saturating_add(counted(self.new.bytes.len() as u64));
        let saved = saved_bytes(self.tree, index, data_type, node.length)?;
        if !contents.is_worth(saved) || !contents.has_room_for_new(new) {
            return Ok(NodeContents::Unwanted);
        }
        let known: Option<Vec<&[u8]>> = ranges.iter().map(|range| contents.get(*range)).collect();
        if let Some(known) = known {
            return Ok(NodeContents::Known(known));
        }
        let is_unknown =
            |range: &&(u64, u64)| contents.get(**range).is_none() && !self.needed.contains(range);
        let requested = ranges.iter().filter(is_unknown).map(|range| counted(range.1));
        let total = requested.fold(self.needed_bytes, u64::saturating_add);
        if !contents.has_room(total) {
            return Ok(NodeContents::Unwanted);
        }
        self.needed_bytes = total;
        self.needed.extend(ranges.iter().filter(|range| contents.get(**range).is_none()));
        Ok(NodeContents::Unknown)
    }

    /// Cuts the values of a node to those that its contents refer to.
    fn cut_values(
        &mut self,
        index: usize,
        data_type: &DataType,
        bytes: &[&[u8]],
        cut: &mut NodeCut,
    ) -> Result<(), InvalidDescriptor> {
        let to_usize = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let (lead, length) = (to_usize(cut.node.offset), to_usize(cut.node.length));
        let window = ElementWindow { data_type, lead, length };
        let first = bytes.first().copied().unwrap_or_default();
        let second = bytes.get(1).copied().unwrap_or_default();
        let children = child_lengths(self.tree, index, data_type)?;
        let items = children.first().copied().unwrap_or(0);
        match layout_of(data_type)? {
            ArrayLayout::Binary(width) => {
                let values = cut.node.buffers.get(1).map_or(0, |values| values.range.length);
                let (used, offsets) = windows::by_offsets(window, width, first, values)?;
                self.replace(&mut cut.node, 0, &offsets);
                if let Some(values) = cut.node.buffers.get_mut(1) {
                    let part = part_of(values.range, used.start, used.end - used.start);
                    values.range = part.unwrap_or(values.range);
                }
            }
            ArrayLayout::List(width) => {
                let (used, offsets) = windows::by_offsets(window, width, first, items)?;
                self.replace(&mut cut.node, 0, &offsets);
                cut.children = vec![ChildCut::Rows(used)];
            }
            ArrayLayout::ListView(width) => {
                let views = (first, second);
                let (used, [offsets, sizes]) = windows::by_list_views(window, width, views, items)?;
                self.replace(&mut cut.node, 0, &offsets);
                self.replace(&mut cut.node, 1, &sizes);
                cut.children = vec![ChildCut::Rows(used)];
            }
            ArrayLayout::DenseUnion => {
                let of_elements = (first, second);
                let (used, offsets) = windows::by_union_offsets(window, of_elements, &children)?;
                self.replace(&mut cut.node, 0, first);
                self.replace(&mut cut.node, 1, &offsets);
                cut.children = used.into_iter().map(ChildCut::Rows).collect();
            }
            ArrayLayout::RunEnd { bytes } => {
                // The offset of such a node is its first element.
                let window = ElementWindow { lead: 0, ..window };
                let (runs, ends) = windows::by_run_ends(window, bytes, first, cut.node.offset)?;
                let mut node = RetainedNode::empty(1);
                node.length = runs.end - runs.start;
                self.replace(&mut node, 0, &ends);
                cut.node.offset = 0;
                cut.children = vec![ChildCut::New(node), ChildCut::Rows(runs)];
            }
            ArrayLayout::View => self.cut_views(window, (first, second), &mut cut.node)?,
            _ => {}
        }
        Ok(())
    }

    fn cut_views(
        &mut self,
        window: ElementWindow<'_>,
        (views, validity): (&[u8], &[u8]),
        node: &mut RetainedNode,
    ) -> Result<(), InvalidDescriptor> {
        let ranges: Vec<MemoryRange> = node.buffers.iter().skip(1).map(|it| it.range).collect();
        let lengths: Vec<u64> = ranges.iter().map(|range| range.length).collect();
        let (offset, bits_at) = (node.offset, node.validity.map(|validity| validity.bit_offset));
        let is_valid = |element: usize| {
            let Some(bits_at) = bits_at else { return true };
            let bit = (element as u64).checked_sub(offset).and_then(|it| it.checked_add(bits_at));
            let byte = bit.and_then(|bit| validity.get(usize::try_from(bit / 8).ok()?));
            byte.zip(bit).is_some_and(|(byte, bit)| byte >> (bit % 8) & 1 == 1)
        };
        let (used, views) = windows::by_views(window, views, &lengths, is_valid)?;
        self.replace(node, 0, &views);
        node.buffers.truncate(1);
        let used = used.into_iter().filter_map(|(buffer, span)| {
            part_of(*ranges.get(buffer as usize)?, span.start, span.end - span.start)
        });
        node.buffers.extend(used.map(RetainedBuffer::from));
        Ok(())
    }

    /// Replaces a buffer by a new one.
    fn replace(&mut self, node: &mut RetainedNode, number: usize, bytes: &[u8]) {
        let base = self.contents.map_or(0, PartContents::base);
        let offset = base.saturating_add(self.new.append(bytes));
        if let Some(buffer) = node.buffers.get_mut(number) {
            let range = MemoryRange { offset, length: bytes.len() as u64 };
            *buffer = RetainedBuffer { range, is_new: true };
        }
    }
}

/// The range of the run ends, if their node can be cut.
fn run_ends(ends: &crate::decode::ArrayNode, tree: &Tree, bytes: usize) -> Option<MemoryRange> {
    let range = tree.ranges.get(ends.first_range as usize).filter(|_| ends.range_count == 1)?;
    let (start, length) = (ends.offset.checked_mul(bytes as u64)?, ends.length);
    let is_plain = ends.validity.is_none() && ends.dictionary.is_none();
    part_of(*range, start, length.checked_mul(bytes as u64)?).filter(|_| is_plain)
}

/// The lengths of the children of a node.
fn child_lengths(
    tree: &Tree,
    index: usize,
    data_type: &DataType,
) -> Result<Vec<u64>, InvalidDescriptor> {
    let mut next = index + 1;
    let mut lengths = Vec::new();
    for child in children_of(data_type) {
        lengths.push(node_at(tree, next)?.length);
        next = behind(tree, next, child)?;
    }
    Ok(lengths)
}

/// Bytes of the values that some of a node's elements do probably not use: of values of equal
/// size.
fn saved_bytes(
    tree: &Tree,
    index: usize,
    data_type: &DataType,
    retained: u64,
) -> Result<u64, InvalidDescriptor> {
    let node = node_at(tree, index)?;
    let of_values = match layout_of(data_type)? {
        ArrayLayout::Binary(_) | ArrayLayout::View => {
            let node = RetainedNode::whole(tree, node);
            let values = node.buffers.iter().skip(1).map(|buffer| buffer.range.length);
            values.fold(0, u64::saturating_add)
        }
        _ => {
            let (mut bytes, mut next) = (0u64, index + 1);
            for child in children_of(data_type) {
                let of_child = bytes_of(tree, next, child)?;
                bytes = bytes.saturating_add(of_child.0);
                next = of_child.1;
            }
            bytes
        }
    };
    let unused = u128::from(node.length.saturating_sub(retained));
    let saved = u128::from(of_values) * unused / u128::from(node.length.max(1));
    Ok(u64::try_from(saved).unwrap_or(u64::MAX))
}

/// Bytes of a node and its descendants without dictionaries, and the index of the next node.
fn bytes_of(
    tree: &Tree,
    index: usize,
    data_type: &DataType,
) -> Result<(u64, usize), InvalidDescriptor> {
    let node = RetainedNode::whole(tree, node_at(tree, index)?);
    let validity = node.validity.map(|validity| validity.range.length);
    let buffers = node.buffers.iter().map(|buffer| buffer.range.length);
    let mut bytes = buffers.chain(validity).fold(0, u64::saturating_add);
    if matches!(layout_of(data_type)?, ArrayLayout::Fixed { is_dictionary: true, .. }) {
        return Ok((bytes, behind(tree, index, data_type)?));
    }
    let mut next = index + 1;
    for child in children_of(data_type) {
        let of_child = bytes_of(tree, next, child)?;
        bytes = bytes.saturating_add(of_child.0);
        next = of_child.1;
    }
    Ok((bytes, next))
}
