//! The parts of children and data buffers that a window uses, and the offsets and views that
//! match copies of only these parts.

use super::access::{Window, buffer, child, element_range, malformed, overflow};
use crate::error::DescribeError;
use crate::layout::{OffsetWidth, VIEW_BYTES};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow_data::ArrayData;
use arrow_schema::DataType;
use std::ops::Range;

/// Length of the longest value stored inline in a view (Arrow columnar format).
const VIEW_INLINE_BYTES: u32 = 12;
/// Type codes of a union are 0..=127.
const UNION_CODES: usize = 128;

/// The computation of copied bytes from their source.
#[derive(Debug)]
pub(crate) enum Rewrite {
    /// A bitmap shifted to begin after `lead` zero bits.
    Bits { bits: BooleanBuffer, lead: usize },
    /// Run ends minus `first`, none beyond `last`.
    RunEnds { bytes: usize, first: u64, last: u64 },
    /// Offsets minus `first`; smaller ones (before the window) become zero.
    Offsets { width: OffsetWidth, first: u64 },
    /// List-view offsets minus `first`, clamped to `0..=extent`.
    ListViewOffsets { width: OffsetWidth, first: u64, extent: u64 },
    /// Dense-union offsets, each minus the start of its child's used part.
    UnionOffsets { codes: Buffer, spans: UnionSpans, lead: usize },
    /// Views into data buffers that were trimmed or dropped. The window begins `skip` elements
    /// after the start of `nulls`.
    Views { used: UsedByViews, nulls: Option<NullBuffer>, lead: usize, skip: usize },
}

impl Rewrite {
    /// Computes `into` from `from`.
    pub fn fill(&self, from: &[u8], into: &mut [u8]) {
        match self {
            Rewrite::Bits { bits, lead } => {
                into.fill(0);
                let count = bits.len().min((into.len() * 8).saturating_sub(*lead));
                arrow_data::bit_mask::set_bits(into, bits.values(), *lead, bits.offset(), count);
            }
            Rewrite::RunEnds { bytes, first, last } => {
                let chunks = into.chunks_exact_mut(*bytes).zip(from.chunks_exact(*bytes));
                for (to, from) in chunks {
                    // Little-endian, and no run end is negative: widen, shift, narrow.
                    let mut wide = [0u8; 8];
                    wide.iter_mut().zip(from).for_each(|(wide, from)| *wide = *from);
                    let end = u64::from_le_bytes(wide).saturating_sub(*first).min(*last);
                    to.iter_mut().zip(end.to_le_bytes()).for_each(|(to, end)| *to = end);
                }
            }
            Rewrite::Offsets { width, first } => {
                shift_offsets(*width, from, into, |offset| offset.saturating_sub(*first));
            }
            Rewrite::ListViewOffsets { width, first, extent } => {
                shift_offsets(*width, from, into, |offset| {
                    offset.saturating_sub(*first).min(*extent)
                });
            }
            Rewrite::UnionOffsets { codes, spans, lead } => {
                let chunks = into.chunks_exact_mut(4).zip(from.chunks_exact(4));
                for (index, (to, from)) in chunks.enumerate() {
                    let code = codes.get(index).copied().filter(|_| index >= *lead);
                    let shift = code.map_or(u32::MAX, |code| spans.shift(code));
                    let offset = from.try_into().map_or(0, i32::from_ne_bytes).max(0) as u32;
                    to.copy_from_slice(&offset.saturating_sub(shift).to_ne_bytes());
                }
            }
            Rewrite::Views { used, nulls, lead, skip } => {
                let chunks = into.chunks_exact_mut(VIEW_BYTES).zip(from.chunks_exact(VIEW_BYTES));
                for (index, (to, from)) in chunks.enumerate() {
                    let element = index.checked_sub(*lead).map(|index| index + skip);
                    let is_valid = element.is_some_and(|element| {
                        nulls.as_ref().is_none_or(|n| element < n.len() && n.is_valid(element))
                    });
                    to.fill(0);
                    if let (true, Ok(view)) = (is_valid, from.try_into()) {
                        to.copy_from_slice(&used.rewrite(view));
                    }
                }
            }
        }
    }
}

fn shift_offsets(width: OffsetWidth, from: &[u8], into: &mut [u8], shift: impl Fn(u64) -> u64) {
    match width {
        OffsetWidth::Four => {
            for (to, from) in into.chunks_exact_mut(4).zip(from.chunks_exact(4)) {
                let offset = from.try_into().map_or(0, i32::from_ne_bytes).max(0);
                // A shifted offset is no larger than the original, so it fits.
                to.copy_from_slice(&(shift(offset as u64) as i32).to_ne_bytes());
            }
        }
        OffsetWidth::Eight => {
            for (to, from) in into.chunks_exact_mut(8).zip(from.chunks_exact(8)) {
                let offset = from.try_into().map_or(0, i64::from_ne_bytes).max(0);
                to.copy_from_slice(&(shift(offset as u64) as i64).to_ne_bytes());
            }
        }
    }
}

/// First and last offset of a window, checked against the number of values.
pub(super) fn offset_span(
    data: &ArrayData,
    width: OffsetWidth,
    window: Window,
    values: usize,
) -> Result<(usize, usize), DescribeError> {
    element_range(data, 0, window, width.bytes(), 1)?;
    let offsets = buffer(data, 0)?;
    let read = |index: usize| {
        let offset = width.read(offsets, index).and_then(|offset| usize::try_from(offset).ok());
        offset.ok_or_else(|| malformed(data, "an offset is negative", 0, 0))
    };
    let first = read(window.first)?;
    let last = read(window.first.checked_add(window.length).ok_or_else(overflow)?)?;
    if first > last {
        return Err(malformed(data, "the last offset lies before the first", first, last));
    }
    if last > values {
        return Err(malformed(data, "the last offset lies beyond the values", last, values));
    }
    Ok((first, last))
}

/// Values that the list views of a window use.
pub(super) fn list_view_span(
    data: &ArrayData,
    width: OffsetWidth,
    window: Window,
    values: usize,
) -> Result<Range<usize>, DescribeError> {
    element_range(data, 0, window, width.bytes(), 0)?;
    element_range(data, 1, window, width.bytes(), 0)?;
    let (offsets, sizes) = (buffer(data, 0)?, buffer(data, 1)?);
    let mut span = values..0;
    let mut last_offset = 0;
    for index in window.first..window.first.saturating_add(window.length) {
        let outside = || malformed(data, "a list view lies beyond its values", index, values);
        let offset = width.read(offsets, index).ok_or_else(outside)?;
        let size = width.read(sizes, index).ok_or_else(outside)?;
        if size == 0 {
            last_offset = last_offset.max(offset.min(values as u64) as usize);
            continue;
        }
        let end = offset.checked_add(size).filter(|end| *end <= values as u64);
        let end = end.ok_or_else(outside)? as usize;
        span = span.start.min(offset as usize)..span.end.max(end);
    }
    if span.start >= span.end {
        span = 0..0;
    }
    // Unshifted offsets must be within the values, even those of empty lists.
    Ok(if span.start == 0 { 0..span.end.max(last_offset) } else { span })
}

/// Runs that cover a window of a run-end encoded array.
pub(super) fn run_window(
    data: &ArrayData,
    bytes: usize,
    window: Window,
) -> Result<Range<usize>, DescribeError> {
    let ends = child(data, 0)?;
    let runs = ends.len();
    let raw = buffer(ends, 0)?;
    let end_of = |run: usize| -> Result<usize, DescribeError> {
        let at = ends.offset().checked_add(run).and_then(|run| run.checked_mul(bytes));
        let raw = at.and_then(|at| raw.get(at..at.checked_add(bytes)?));
        let raw = raw.ok_or_else(|| malformed(data, "run ends are too short", runs, run))?;
        let end = match bytes {
            2 => raw.try_into().ok().map(|raw| i64::from(i16::from_ne_bytes(raw))),
            4 => raw.try_into().ok().map(|raw| i64::from(i32::from_ne_bytes(raw))),
            _ => raw.try_into().ok().map(i64::from_ne_bytes),
        };
        let end = end.and_then(|end| usize::try_from(end).ok());
        end.ok_or_else(|| malformed(data, "a run end is negative", 0, 0))
    };
    // The first run that ends after `element`, by bisection.
    let run_of = |element: usize| -> Result<usize, DescribeError> {
        let (mut low, mut high) = (0, runs);
        while low < high {
            let middle = low + (high - low) / 2;
            if end_of(middle)? > element { high = middle } else { low = middle + 1 }
        }
        Ok(low)
    };
    let last = window.first.checked_add(window.length).ok_or_else(overflow)? - 1;
    let (start, end) = (run_of(window.first)?, run_of(last)?);
    if end >= runs || start > end {
        let covered = if runs == 0 { 0 } else { end_of(runs - 1)? };
        return Err(malformed(data, "run ends do not cover the array", last + 1, covered));
    }
    Ok(start..end + 1)
}

/// Part of each child that a dense union uses, by type code.
#[derive(Debug, Clone)]
pub(crate) struct UnionSpans {
    children: Vec<Range<usize>>,
    /// Child of each type code; `u8::MAX` if there is none.
    child_of: [u8; UNION_CODES],
}

impl UnionSpans {
    /// Every child in full.
    pub fn everything(data: &ArrayData) -> Self {
        let children = data.child_data().iter().map(|child| 0..child.len()).collect();
        UnionSpans { children, child_of: child_of_code(data.data_type()) }
    }

    pub fn of_child(&self, index: usize) -> Range<usize> {
        self.children.get(index).cloned().unwrap_or(0..0)
    }

    pub fn is_unshifted(&self) -> bool {
        self.children.iter().all(|span| span.start == 0)
    }

    fn shift(&self, code: u8) -> u32 {
        let child = self.child_of.get(usize::from(code)).copied().unwrap_or(u8::MAX);
        self.children.get(usize::from(child)).map_or(u32::MAX, |span| span.start as u32)
    }
}

/// Child of each type code of a union type; `u8::MAX` if there is none.
pub(crate) fn child_of_code(data_type: &DataType) -> [u8; UNION_CODES] {
    let mut child_of = [u8::MAX; UNION_CODES];
    if let DataType::Union(fields, _) = data_type {
        for (index, (code, _)) in fields.iter().enumerate() {
            if let Some(slot) = usize::try_from(code).ok().and_then(|code| child_of.get_mut(code)) {
                *slot = u8::try_from(index).unwrap_or(u8::MAX);
            }
        }
    }
    child_of
}

/// Part of each child that a window of a dense union uses.
pub(super) fn union_spans(data: &ArrayData, window: Window) -> Result<UnionSpans, DescribeError> {
    element_range(data, 0, window, 1, 0)?;
    element_range(data, 1, window, 4, 0)?;
    let (codes, offsets) = (buffer(data, 0)?, buffer(data, 1)?);
    let child_of = child_of_code(data.data_type());
    let unused = Range { start: usize::MAX, end: 0 };
    let mut children = vec![unused; data.child_data().len()];
    for index in window.first..window.first.saturating_add(window.length) {
        let code = usize::from(codes.get(index).copied().unwrap_or(u8::MAX));
        let child = usize::from(child_of.get(code).copied().unwrap_or(u8::MAX));
        let span = children.get_mut(child);
        let span =
            span.ok_or_else(|| malformed(data, "unknown type code at element", index, code))?;
        let limit = data.child_data().get(child).map_or(0, ArrayData::len);
        let offset = OffsetWidth::Four.read(offsets, index).unwrap_or(u64::MAX);
        if offset >= limit as u64 {
            return Err(malformed(data, "an offset lies beyond its child", index, limit));
        }
        let offset = offset as usize;
        *span = span.start.min(offset)..span.end.max(offset + 1);
    }
    for span in &mut children {
        if span.start >= span.end {
            *span = 0..0;
        }
    }
    Ok(UnionSpans { children, child_of })
}

/// The used range of one data buffer of a view array, and its new index.
#[derive(Debug, Clone)]
struct UsedBuffer {
    range: Range<u32>,
    new_index: u32,
}

/// Parts of the data buffers that the views of a window use.
#[derive(Debug)]
pub(crate) struct UsedByViews {
    buffers: Vec<UsedBuffer>,
}

impl UsedByViews {
    /// Index and used range of each data buffer that is retained, in order.
    pub fn retained(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let used = self.buffers.iter().enumerate().filter(|(_, used)| !used.range.is_empty());
        used.map(|(index, used)| (index, used.range.start as usize..used.range.end as usize))
    }

    fn rewrite(&self, view: [u8; VIEW_BYTES]) -> [u8; VIEW_BYTES] {
        let Some((index, range)) = referenced(view) else { return view };
        let Some(used) = self.buffers.get(index as usize) else { return [0; VIEW_BYTES] };
        if range.start < u64::from(used.range.start) || range.end > u64::from(used.range.end) {
            return [0; VIEW_BYTES];
        }
        let offset = range.start as u32 - used.range.start;
        let mut view = view;
        let (_, place) = view.split_at_mut(8);
        let (place_index, place_offset) = place.split_at_mut(4);
        place_index.copy_from_slice(&used.new_index.to_ne_bytes());
        place_offset.copy_from_slice(&offset.to_ne_bytes());
        view
    }
}

/// Buffer index and byte range that a view refers to; `None` if the value is inline.
/// A view is four 32-bit words: length, prefix, buffer index, offset.
pub(crate) fn referenced(view: [u8; VIEW_BYTES]) -> Option<(u32, Range<u64>)> {
    let word = |at: usize| {
        let bytes = view.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_ne_bytes)
    };
    let (length, index, offset) = (word(0), word(8), word(12));
    if length <= VIEW_INLINE_BYTES {
        return None;
    }
    Some((index, u64::from(offset)..u64::from(offset) + u64::from(length)))
}

/// Finds the used parts of data buffers; `None` if the views may stay as they are, since all
/// bytes are used or a range cannot be rewritten.
pub(super) fn used_by_views(
    data: &ArrayData,
    window: Window,
) -> Result<Option<UsedByViews>, DescribeError> {
    let (views, _, _) = element_range(data, 0, window, VIEW_BYTES, 0)?;
    let lengths: Vec<u64> =
        data.buffers().get(1..).unwrap_or_default().iter().map(|b| b.len() as u64).collect();
    let unused = Range { start: u64::MAX, end: 0 };
    let mut ranges = vec![unused; lengths.len()];
    for element in window.first..window.first.saturating_add(window.length) {
        let at = element.saturating_mul(VIEW_BYTES);
        let view = views.get(at..).and_then(|rest| rest.first_chunk()).copied();
        let Some((index, range)) = view.and_then(referenced) else { continue };
        let slot = ranges.get_mut(index as usize).zip(lengths.get(index as usize));
        match slot {
            Some((used, length)) if range.end <= *length => {
                *used = used.start.min(range.start)..used.end.max(range.end);
            }
            _ if data.is_null(element - data.offset()) => {}
            _ => {
                return Err(malformed(
                    data,
                    "a view lies beyond its buffers",
                    element,
                    lengths.len(),
                ));
            }
        }
    }
    let used: u64 = ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum();
    if used == lengths.iter().sum::<u64>() {
        return Ok(None);
    }
    let mut next = 0;
    let mut buffers = Vec::with_capacity(ranges.len());
    for range in ranges {
        let is_used = range.start < range.end;
        // Views hold 32-bit offsets. A range with a larger bound cannot be rewritten.
        let start = u32::try_from(range.start).ok();
        let end = u32::try_from(range.end).ok();
        let range = match (is_used, start, end) {
            (false, _, _) => 0..0,
            (true, Some(start), Some(end)) => start..end,
            (true, _, _) => return Ok(None),
        };
        buffers.push(UsedBuffer { range, new_index: next });
        next += u32::from(is_used);
    }
    Ok(Some(UsedByViews { buffers }))
}
