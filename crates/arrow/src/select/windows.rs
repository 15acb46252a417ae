//! Which values the elements of a window use, from the bytes of their offsets, views, type codes or
//! run ends, and the same buffers for values of which the others are left out.
//!
//! The bytes are those of another node: every value is checked before it is used.

use std::ops::Range;

use arrow_schema::DataType;

use crate::describe::{Rewrite, child_of_code, referenced};
use crate::error::InvalidDescriptor;
use crate::layout::{OffsetWidth, VIEW_BYTES};

/// Ranges of a data buffer with fewer bytes between them become one: the bytes cost less than
/// another range, as for the ranges of a part.
const GAP_BYTES: u64 = 4096;

/// Limit on the data buffers of a cut view array. To stay below it, larger gaps are transferred.
const VIEW_BUFFERS_MAX: usize = 256;

/// The values of no element.
const UNUSED: Range<u64> = Range { start: u64::MAX, end: 0 };

/// The elements of a node that are retained.
#[derive(Debug, Clone, Copy)]
pub(super) struct ElementWindow<'a> {
    pub data_type: &'a DataType,
    /// Elements in front, kept so that bitmaps begin at a whole byte. Their values are not.
    pub lead: usize,
    pub length: usize,
}

impl ElementWindow<'_> {
    fn error(&self, what: impl std::fmt::Display) -> InvalidDescriptor {
        InvalidDescriptor::Data { reason: format!("{}: {what}", self.data_type) }
    }

    fn elements(&self) -> Range<usize> {
        self.lead..self.lead.saturating_add(self.length)
    }
}

/// A new buffer that `rewrite` fills from these bytes, with zeros for the lead.
fn rewritten(rewrite: &Rewrite, from: &[u8], lead_bytes: usize) -> Vec<u8> {
    let mut into = vec![0; from.len()];
    if let (Some(into), Some(from)) = (into.get_mut(lead_bytes..), from.get(lead_bytes..)) {
        rewrite.fill(from, into);
    }
    into
}

/// Values of strings, binaries, lists and maps, and the offsets into these values alone.
pub(super) fn by_offsets(
    window: ElementWindow<'_>,
    width: OffsetWidth,
    offsets: &[u8],
    values: u64,
) -> Result<(Range<u64>, Vec<u8>), InvalidDescriptor> {
    let read = |index: usize| {
        let negative = || window.error(format_args!("offset {index} is missing or negative"));
        width.read(offsets, index).ok_or_else(negative)
    };
    let first = read(window.lead)?;
    let mut last = first;
    for index in window.elements() {
        let next = read(index.saturating_add(1))?;
        if next < last {
            let what = format_args!("offset {} is {next}, the one before is {last}", index + 1);
            return Err(window.error(what));
        }
        last = next;
    }
    if last > values {
        return Err(window.error(format_args!("an offset is {last}, there are {values} values")));
    }
    let new = rewritten(&Rewrite::Offsets { width, first }, offsets, window.lead * width.bytes());
    Ok((first..last, new))
}

/// Items of list views, and the offsets and sizes for these items alone.
pub(super) fn by_list_views(
    window: ElementWindow<'_>,
    width: OffsetWidth,
    (offsets, sizes): (&[u8], &[u8]),
    items: u64,
) -> Result<(Range<u64>, [Vec<u8>; 2]), InvalidDescriptor> {
    let mut span = UNUSED;
    for index in window.elements() {
        let negative = || window.error(format_args!("list view {index} is missing or negative"));
        let offset = width.read(offsets, index).ok_or_else(negative)?;
        let size = width.read(sizes, index).ok_or_else(negative)?;
        let end = offset.checked_add(size).filter(|end| *end <= items);
        let end = end.ok_or_else(|| {
            let view = format!("list view {index} has {size} items from {offset}");
            window.error(format_args!("{view}, there are {items}"))
        })?;
        if size > 0 {
            span = span.start.min(offset)..span.end.max(end);
        }
    }
    if span.is_empty() {
        span = 0..0;
    }
    let lead = window.lead * width.bytes();
    let shift =
        Rewrite::ListViewOffsets { width, first: span.start, extent: span.end - span.start };
    let mut new_sizes = sizes.to_vec();
    new_sizes.iter_mut().take(lead).for_each(|byte| *byte = 0);
    Ok((span, [rewritten(&shift, offsets, lead), new_sizes]))
}

/// Elements of each child of a dense union, and the offsets into these alone.
pub(super) fn by_union_offsets(
    window: ElementWindow<'_>,
    (codes, offsets): (&[u8], &[u8]),
    children: &[u64],
) -> Result<(Vec<Range<u64>>, Vec<u8>), InvalidDescriptor> {
    let child_of = child_of_code(window.data_type);
    let child = |index: usize| {
        let code = codes.get(index).copied().unwrap_or(u8::MAX);
        let child = child_of.get(usize::from(code)).copied().map(usize::from);
        let known = child.filter(|child| *child < children.len());
        known.ok_or_else(|| window.error(format_args!("element {index} has type code {code}")))
    };
    let mut spans = vec![UNUSED; children.len()];
    for index in window.elements() {
        let child = child(index)?;
        let (Some(span), Some(length)) = (spans.get_mut(child), children.get(child)) else {
            continue;
        };
        let offset = OffsetWidth::Four.read(offsets, index).filter(|offset| offset < length);
        let offset = offset.ok_or_else(|| {
            let what = format!("element {index} lies outside child {child}");
            window.error(format_args!("{what}, which has {length}"))
        })?;
        *span = span.start.min(offset)..span.end.max(offset + 1);
    }
    let mut new = vec![0; offsets.len()];
    for (index, into) in new.chunks_exact_mut(4).enumerate().take(window.elements().end) {
        let start = spans.get(child(index)?).map_or(0, |span| span.start);
        let offset = OffsetWidth::Four.read(offsets, index).unwrap_or(0).saturating_sub(start);
        // A shifted offset is no larger than the original, so it fits.
        into.copy_from_slice(&(offset as u32).to_ne_bytes());
    }
    for span in spans.iter_mut().filter(|span| span.is_empty()) {
        *span = 0..0;
    }
    Ok((spans, new))
}

/// Runs that cover a window of elements from `first` on, and their ends counted from `first`.
pub(super) fn by_run_ends(
    window: ElementWindow<'_>,
    bytes: usize,
    ends: &[u8],
    first: u64,
) -> Result<(Range<u64>, Vec<u8>), InvalidDescriptor> {
    let behind = first.saturating_add(window.length as u64);
    let (mut from, mut to, mut end) = (None, None, 0);
    for (run, raw) in ends.chunks_exact(bytes.max(1)).enumerate() {
        let before = end;
        let signed = match bytes {
            2 => raw.try_into().ok().map(|raw| i64::from(i16::from_ne_bytes(raw))),
            4 => raw.try_into().ok().map(|raw| i64::from(i32::from_ne_bytes(raw))),
            _ => raw.try_into().ok().map(i64::from_ne_bytes),
        };
        let next = signed.and_then(|end| u64::try_from(end).ok()).filter(|next| *next > before);
        end = next.ok_or_else(|| {
            window.error(format_args!("run {run} does not end behind {before}, the end before"))
        })?;
        if end > first {
            from.get_or_insert(run);
        }
        if end >= behind {
            to.get_or_insert(run + 1);
        }
    }
    let (Some(from), Some(to)) = (from, to) else {
        let what = format_args!("the last run ends at {end}, {behind} elements are needed");
        return Err(window.error(what));
    };
    let used = ends.get(from * bytes..to * bytes).unwrap_or_default();
    let shift = Rewrite::RunEnds { bytes, first, last: window.length as u64 };
    Ok((from as u64..to as u64, rewritten(&shift, used, 0)))
}

/// A range of a data buffer that views refer to: number of the buffer, first byte and end.
pub(super) type DataRange = (u32, Range<u64>);

/// Ranges of the data buffers that the valid views of a window refer to, each of which becomes a
/// data buffer, and the views for them. `buffers` has the lengths of the data buffers; `is_valid`
/// says whether an element, counted with the lead, is not null.
pub(super) fn by_views(
    window: ElementWindow<'_>,
    views: &[u8],
    buffers: &[u64],
    is_valid: impl Fn(usize) -> bool,
) -> Result<(Vec<DataRange>, Vec<u8>), InvalidDescriptor> {
    let view_at = |index: usize| {
        let at = index.checked_mul(VIEW_BYTES)?;
        views.get(at..)?.first_chunk::<VIEW_BYTES>().copied()
    };
    let mut used: Vec<DataRange> = Vec::new();
    for index in window.elements().filter(|index| is_valid(*index)) {
        let Some((buffer, range)) = view_at(index).and_then(referenced) else { continue };
        let length = buffers.get(buffer as usize).copied().unwrap_or(0);
        if range.end > length {
            let what = format!("view {index} ends at byte {} of buffer {buffer}", range.end);
            return Err(window.error(format_args!("{what}, which has {length}")));
        }
        // Most views follow each other, which keeps the list short.
        match used.last_mut() {
            Some((last, span)) if *last == buffer && range.start == span.end => {
                span.end = range.end;
            }
            _ => used.push((buffer, range)),
        }
    }
    let used = join(used);
    let mut new = vec![0; views.len()];
    for (index, into) in new.chunks_exact_mut(VIEW_BYTES).enumerate().skip(window.lead) {
        let Some(view) = view_at(index).filter(|_| is_valid(index)) else { continue };
        into.copy_from_slice(&moved(view, &used));
    }
    Ok((used, new))
}

/// Joins ranges with small gaps. Gaps grow until few enough ranges remain.
fn join(mut used: Vec<DataRange>) -> Vec<DataRange> {
    used.sort_unstable_by_key(|(buffer, range)| (*buffer, range.start));
    let mut gap = GAP_BYTES;
    loop {
        used.dedup_by(|next, last| {
            let is_near = next.0 == last.0 && next.1.start <= last.1.end.saturating_add(gap);
            if is_near {
                last.1.end = last.1.end.max(next.1.end);
            }
            is_near
        });
        if used.len() <= VIEW_BUFFERS_MAX || gap == u64::MAX {
            return used;
        }
        gap = gap.saturating_mul(2);
    }
}

/// A view that refers to its bytes in the range that has them.
fn moved(view: [u8; VIEW_BYTES], used: &[DataRange]) -> [u8; VIEW_BYTES] {
    let Some((buffer, range)) = referenced(view) else { return view };
    let behind = used.partition_point(|(of, one)| (*of, one.start) <= (buffer, range.start));
    let number = behind.wrapping_sub(1);
    let Some((_, within)) = used.get(number) else { return [0; VIEW_BYTES] };
    let mut view = view;
    let offset = (range.start - within.start) as u32;
    let place = (number as u32).to_ne_bytes().into_iter().chain(offset.to_ne_bytes());
    view.iter_mut().skip(8).zip(place).for_each(|(to, from)| *to = from);
    view
}
