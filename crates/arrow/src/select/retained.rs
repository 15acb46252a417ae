//! A node and the buffers of it that are retained.

use std::ops::Range;

use crate::decode::{ArrayNode, MemoryRange, Tree, Validity};
use crate::error::InvalidDescriptor;
use crate::layout::{ArrayLayout, VIEW_BYTES};

/// A buffer of a part.
#[derive(Debug, Clone, Copy)]
pub(super) struct RetainedBuffer {
    pub range: MemoryRange,
    /// Whether it is rebuilt, and is not a range of the object.
    pub is_new: bool,
}

impl From<MemoryRange> for RetainedBuffer {
    fn from(range: MemoryRange) -> Self {
        Self { range, is_new: false }
    }
}

/// A node and the buffers that are retained.
#[derive(Debug, Clone)]
pub(super) struct RetainedNode {
    pub length: u64,
    pub offset: u64,
    pub validity: Option<Validity>,
    pub buffers: Vec<RetainedBuffer>,
}

/// What is retained of a child.
#[derive(Debug, Clone)]
pub(super) enum ChildCut {
    /// Some of its elements.
    Rows(Range<u64>),
    /// This node, without children, in its place.
    New(RetainedNode),
}

/// What is retained of a node.
#[derive(Debug, Clone)]
pub(super) struct NodeCut {
    pub node: RetainedNode,
    /// By number. The others stay whole.
    pub children: Vec<ChildCut>,
}

impl RetainedNode {
    pub fn whole(tree: &Tree, node: &ArrayNode) -> Self {
        let first = node.first_range as usize;
        let ranges = tree.ranges.get(first..first + node.range_count as usize);
        let buffers = ranges.unwrap_or_default().iter().copied().map(Into::into).collect();
        Self { length: node.length, offset: node.offset, validity: node.validity, buffers }
    }

    pub fn empty(buffers: usize) -> Self {
        let none = MemoryRange { offset: 0, length: 0 };
        Self { length: 0, offset: 0, validity: None, buffers: vec![none.into(); buffers] }
    }

    /// The same node with fewer elements. Its buffers begin at a whole byte of its bitmaps. Its
    /// `children` are cut too if they have as many elements, or a fixed number for each.
    pub fn cut(
        self,
        layout: ArrayLayout,
        rows: &Range<u64>,
        children: usize,
    ) -> Result<NodeCut, InvalidDescriptor> {
        let Self { offset, validity, buffers, .. } = self;
        let length = rows.end - rows.start;
        let wrong = || InvalidDescriptor::BadValue { what: "rows", at: 0, value: rows.end };
        let first = offset.checked_add(rows.start).ok_or_else(wrong)?;
        let first_bit = match &validity {
            Some(validity) => validity.bit_offset.checked_add(rows.start).ok_or_else(wrong)?,
            None => first,
        };
        let left_out = match layout {
            // Its offset counts elements, its children have one for each run.
            ArrayLayout::RunEnd { .. } => 0,
            ArrayLayout::Bits => first.min(first_bit) / 8 * 8,
            _ if validity.is_some() => first.min(first_bit) / 8 * 8,
            _ => first,
        };
        let validity = match validity {
            None => None,
            Some(Validity { range, .. }) => {
                let bit_offset = first_bit - left_out;
                let bytes = bits(bit_offset, length).ok_or_else(wrong)?;
                let range = part_of(range, left_out / 8, bytes).ok_or_else(wrong)?;
                Some(Validity { null_count: None, bit_offset, range })
            }
        };
        let offset = first - left_out;
        let elements = offset.checked_add(length).ok_or_else(wrong)?;
        let cut = buffers.into_iter().enumerate().map(|(number, buffer)| {
            let range = match element_bytes(layout, number) {
                None if layout == ArrayLayout::Bits => {
                    part_of(buffer.range, left_out / 8, bits(offset, length)?)
                }
                None => Some(buffer.range),
                Some(bytes) => {
                    let start = left_out.checked_mul(bytes)?;
                    let elements = elements.checked_add(extra(layout))?;
                    part_of(buffer.range, start, elements.checked_mul(bytes)?)
                }
            };
            range.map(Into::into)
        });
        let buffers = cut.collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
        let end = left_out.checked_add(elements).ok_or_else(wrong)?;
        let items = match layout {
            ArrayLayout::Struct | ArrayLayout::SparseUnion => Some(1),
            ArrayLayout::FixedList { items } => Some(items as u64),
            _ => None,
        };
        let bounds = items.map(|items| left_out.checked_mul(items).zip(end.checked_mul(items)));
        let children = match bounds {
            Some(bounds) => {
                let (start, end) = bounds.ok_or_else(wrong)?;
                vec![ChildCut::Rows(start..end); children]
            }
            None => Vec::new(),
        };
        let node = Self { length, offset, validity, buffers };
        Ok(NodeCut { node, children })
    }
}

/// Bytes of an element in a buffer that is cut; `None` for bitmaps, and buffers without an entry
/// for each element.
fn element_bytes(layout: ArrayLayout, number: usize) -> Option<u64> {
    let bytes = match (layout, number) {
        (ArrayLayout::Fixed { bytes, .. }, 0) => bytes,
        (ArrayLayout::Binary(width) | ArrayLayout::List(width), 0) => width.bytes(),
        (ArrayLayout::ListView(width), 0 | 1) => width.bytes(),
        (ArrayLayout::View, 0) => VIEW_BYTES,
        (ArrayLayout::SparseUnion | ArrayLayout::DenseUnion, 0) => 1,
        (ArrayLayout::DenseUnion, 1) => 4,
        _ => return None,
    };
    Some(bytes as u64)
}

/// Entries of a buffer beyond one for each element.
fn extra(layout: ArrayLayout) -> u64 {
    u64::from(matches!(layout, ArrayLayout::Binary(_) | ArrayLayout::List(_)))
}

/// Bytes of a bitmap.
fn bits(offset: u64, length: u64) -> Option<u64> {
    offset.checked_add(length).map(|end| end.div_ceil(8))
}

/// Part of a range; `None` if it exceeds the range.
pub(super) fn part_of(range: MemoryRange, start: u64, length: u64) -> Option<MemoryRange> {
    let end = start.checked_add(length)?;
    (end <= range.length).then_some(MemoryRange { offset: range.offset + start, length })
}
