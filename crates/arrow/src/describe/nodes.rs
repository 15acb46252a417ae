//! The walk over arrays. Each node is cut to its used window, and written.
//!
//! In a descriptor, a window over an array with a bitmap retains up to seven elements before
//! its first one, so that it begins at a whole byte of the bitmap. No bitmap is shifted, and
//! all buffers of a node share one offset below eight, as the C Data Interface requires.

use super::access::{Window, buffer, check_range, child, element_range, malformed, overflow};
use super::in_place::all_in_place;
use super::place::{Placer, Reference};
use super::sink::{NodeHead, Sink};
use super::trim::{self, Rewrite};
use crate::error::DescribeError;
use crate::layout::{ArrayLayout, OffsetWidth, VIEW_BYTES};
use crate::schema::DEPTH_MAX;
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow_data::ArrayData;
use std::ops::Range;

/// A dictionary that is already written; later nodes may refer to it.
struct WrittenDictionary {
    values: ArrayData,
    nodes: u64,
    number: u64,
}

/// Passes nodes to a sink and places their buffers.
pub(crate) struct Walker<'l, S> {
    sink: S,
    placer: Placer<'l>,
    /// Number of nodes that a reader builds, with references expanded.
    nodes: u64,
    dictionaries: u64,
    /// The last dictionary at each position of the schema, in order of the walk.
    latest: Vec<Option<WrittenDictionary>>,
    place: usize,
}

impl<'l, S: Sink> Walker<'l, S> {
    pub fn new(sink: S, placer: Placer<'l>) -> Self {
        Walker { sink, placer, nodes: 0, dictionaries: 0, latest: Vec::new(), place: 0 }
    }

    pub fn finish(self) -> (S, Placer<'l>) {
        (self.sink, self.placer)
    }

    pub fn begin_batch(&mut self, rows: u64) {
        self.place = 0;
        self.sink.batch(rows);
    }

    pub fn array(&mut self, data: &ArrayData) -> Result<(), DescribeError> {
        self.node(data, 0, data.len(), 0)
    }

    /// Writes elements `start..start + length` of `data`.
    fn node(
        &mut self,
        data: &ArrayData,
        start: usize,
        length: usize,
        depth: usize,
    ) -> Result<(), DescribeError> {
        if depth >= DEPTH_MAX {
            return Err(DescribeError::TooDeep { max: DEPTH_MAX });
        }
        let end = start.checked_add(length).ok_or_else(overflow)?;
        if end > data.len() {
            return Err(malformed(data, "a parent needs more elements", end, data.len()));
        }
        let layout = ArrayLayout::of(data.data_type())
            .ok_or_else(|| malformed(data, "a size below zero", 0, 0))?;
        self.nodes += 1;
        if length == 0 {
            return self.empty_node(data, layout, depth);
        }
        let first = data.offset().checked_add(start).ok_or_else(overflow)?;
        let nulls = match data.nulls() {
            Some(nulls) if layout.has_validity() => window_nulls(data, nulls, start, length)?,
            _ => None,
        };
        let lead = match layout {
            _ if S::IS_NORMALISED => 0,
            // Run ends count from the start of the array, so the offset is retained.
            ArrayLayout::RunEnd { .. } => first,
            ArrayLayout::Bits => first % 8,
            _ if nulls.is_some() => first % 8,
            _ => 0,
        };
        let window = Window { first, length, lead };
        let reused = self.reusable_dictionary(data, layout);
        self.sink.node(NodeHead {
            layout,
            length,
            offset: lead,
            null_count: nulls.as_ref().map(NullBuffer::null_count),
            shares_dictionary: reused.is_some(),
        });
        if let Some(nulls) = &nulls {
            self.validity(nulls, window)?;
        }
        self.body(data, layout, window, depth)?;
        self.dictionary(data, layout, reused, depth)
    }

    /// Writes an empty array: no offset, no validity, empty buffers; children likewise.
    fn empty_node(
        &mut self,
        data: &ArrayData,
        layout: ArrayLayout,
        depth: usize,
    ) -> Result<(), DescribeError> {
        let reused = self.reusable_dictionary(data, layout);
        let shares_dictionary = reused.is_some();
        let null_count = None;
        self.sink.node(NodeHead { layout, length: 0, offset: 0, null_count, shares_dictionary });
        if layout == ArrayLayout::View {
            self.sink.data_buffers(0);
        }
        for _ in 0..layout.buffers() {
            self.sink.buffer(Reference::Empty);
        }
        if is_dictionary(layout) {
            return self.dictionary(data, layout, reused, depth);
        }
        for child in data.child_data() {
            self.node(child, 0, 0, depth + 1)?;
        }
        Ok(())
    }

    fn validity(&mut self, nulls: &NullBuffer, window: Window) -> Result<(), DescribeError> {
        let reference = self.bits(nulls.inner(), window)?;
        self.sink.validity(window.lead, reference);
        Ok(())
    }

    /// Places the bits of a window; `bits` begins at its first element.
    fn bits(&mut self, bits: &BooleanBuffer, window: Window) -> Result<Reference, DescribeError> {
        let bytes = window.covered().div_ceil(8);
        if bits.offset() % 8 == window.lead {
            let alignment = alignment::<S>(1);
            return self.placer.range(bits.inner(), bits.offset() / 8, bytes, alignment);
        }
        let rewrite = Rewrite::Bits { bits: bits.clone(), lead: window.lead };
        self.placer.rewritten(bits.inner().clone(), bytes, rewrite)
    }

    /// Writes buffers and children of a node that has elements.
    fn body(
        &mut self,
        data: &ArrayData,
        layout: ArrayLayout,
        window: Window,
        depth: usize,
    ) -> Result<(), DescribeError> {
        match layout {
            ArrayLayout::Null => Ok(()),
            ArrayLayout::Bits => {
                let buffer = buffer(data, 0)?;
                check_range(data, buffer, 0, (window.first + window.length).div_ceil(8))?;
                let bits = BooleanBuffer::new(buffer.clone(), window.first, window.length);
                let reference = self.bits(&bits, window)?;
                self.sink.buffer(reference);
                Ok(())
            }
            ArrayLayout::Fixed { bytes, alignment, .. } => {
                self.elements(data, 0, window, bytes, alignment)
            }
            ArrayLayout::Binary(width) => self.binary(data, width, window),
            ArrayLayout::View => self.views(data, window),
            ArrayLayout::List(width) => self.list(data, width, window, depth),
            ArrayLayout::ListView(width) => self.list_view(data, width, window, depth),
            ArrayLayout::FixedList { items } => {
                let start = window.start().checked_mul(items).ok_or_else(overflow)?;
                let length = window.covered().checked_mul(items).ok_or_else(overflow)?;
                self.node(child(data, 0)?, start, length, depth + 1)
            }
            ArrayLayout::Struct => self.same_length_children(data, window, depth),
            ArrayLayout::SparseUnion => {
                self.elements(data, 0, window, 1, 1)?;
                self.same_length_children(data, window, depth)
            }
            ArrayLayout::DenseUnion => self.dense_union(data, window, depth),
            ArrayLayout::RunEnd { bytes } => {
                let runs = trim::run_window(data, bytes, window)?;
                if S::IS_NORMALISED && window.first > 0 {
                    self.normalised_run_ends(data, bytes, window, &runs)?;
                } else {
                    self.node(child(data, 0)?, runs.start, runs.len(), depth + 1)?;
                }
                self.node(child(data, 1)?, runs.start, runs.len(), depth + 1)
            }
        }
    }

    /// Writes run ends that count from the first element of the window.
    fn normalised_run_ends(
        &mut self,
        data: &ArrayData,
        bytes: usize,
        window: Window,
        runs: &Range<usize>,
    ) -> Result<(), DescribeError> {
        let ends = child(data, 0)?;
        let layout = ArrayLayout::of(ends.data_type()).ok_or_else(overflow)?;
        let (length, null_count, shares_dictionary) = (runs.len(), None, false);
        self.sink.node(NodeHead { layout, length, offset: 0, null_count, shares_dictionary });
        let first = ends.offset().checked_add(runs.start).ok_or_else(overflow)?;
        let runs = Window { first, length, lead: 0 };
        let (from, start, length) = element_range(ends, 0, runs, bytes, 0)?;
        let from = from.slice_with_length(start, length);
        let (first, last) = (window.first as u64, window.length as u64);
        let rewrite = Rewrite::RunEnds { bytes, first, last };
        let reference = self.placer.rewritten(from, length, rewrite)?;
        self.sink.buffer(reference);
        Ok(())
    }

    fn same_length_children(
        &mut self,
        data: &ArrayData,
        window: Window,
        depth: usize,
    ) -> Result<(), DescribeError> {
        for child in data.child_data() {
            self.node(child, window.start(), window.covered(), depth + 1)?;
        }
        Ok(())
    }

    fn reference(
        &mut self,
        buffer: &Buffer,
        start: usize,
        length: usize,
        alignment_needed: usize,
    ) -> Result<(), DescribeError> {
        let alignment = alignment::<S>(alignment_needed);
        let reference = self.placer.range(buffer, start, length, alignment)?;
        self.sink.buffer(reference);
        Ok(())
    }

    /// Writes the elements of a buffer that the window covers.
    fn elements(
        &mut self,
        data: &ArrayData,
        index: usize,
        window: Window,
        bytes: usize,
        alignment: usize,
    ) -> Result<(), DescribeError> {
        let (buffer, start, length) = element_range(data, index, window, bytes, 0)?;
        self.reference(buffer, start, length, alignment)
    }

    fn binary(
        &mut self,
        data: &ArrayData,
        width: OffsetWidth,
        window: Window,
    ) -> Result<(), DescribeError> {
        let values = buffer(data, 1)?;
        let (first, last) = trim::offset_span(data, width, window, values.len())?;
        let all = values.get(..last).unwrap_or_default();
        let rebase = first > 0
            && !(self.offsets_in_place(data, width, window)?
                && self.placer.is_in_place(all, alignment::<S>(1)));
        self.offsets(data, width, window, if rebase { first } else { 0 })?;
        let start = if rebase { first } else { 0 };
        self.reference(values, start, last - start, 1)
    }

    fn list(
        &mut self,
        data: &ArrayData,
        width: OffsetWidth,
        window: Window,
        depth: usize,
    ) -> Result<(), DescribeError> {
        let values = child(data, 0)?;
        let (first, last) = trim::offset_span(data, width, window, values.len())?;
        let rebase = first > 0
            && !(self.offsets_in_place(data, width, window)?
                && all_in_place(values, &mut self.placer, depth + 1)?);
        let start = if rebase { first } else { 0 };
        self.offsets(data, width, window, start)?;
        self.node(values, start, last - start, depth + 1)
    }

    fn offsets_in_place(
        &mut self,
        data: &ArrayData,
        width: OffsetWidth,
        window: Window,
    ) -> Result<bool, DescribeError> {
        let (buffer, start, length) = element_range(data, 0, window, width.bytes(), 1)?;
        let bytes = buffer.get(start..start + length).unwrap_or_default();
        Ok(self.placer.is_in_place(bytes, alignment::<S>(width.bytes())))
    }

    /// Writes the offsets of the window, each minus `first`.
    fn offsets(
        &mut self,
        data: &ArrayData,
        width: OffsetWidth,
        window: Window,
        first: usize,
    ) -> Result<(), DescribeError> {
        let (buffer, start, length) = element_range(data, 0, window, width.bytes(), 1)?;
        let reference = if first == 0 {
            self.placer.range(buffer, start, length, alignment::<S>(width.bytes()))?
        } else {
            let from = buffer.slice_with_length(start, length);
            let rewrite = Rewrite::Offsets { width, first: first as u64 };
            self.placer.rewritten(from, length, rewrite)?
        };
        self.sink.buffer(reference);
        Ok(())
    }

    fn list_view(
        &mut self,
        data: &ArrayData,
        width: OffsetWidth,
        window: Window,
        depth: usize,
    ) -> Result<(), DescribeError> {
        let bytes = width.bytes();
        let values = child(data, 0)?;
        let used = if all_in_place(values, &mut self.placer, depth + 1)? {
            0..values.len()
        } else {
            trim::list_view_span(data, width, window, values.len())?
        };
        let (offsets, start, length) = element_range(data, 0, window, bytes, 0)?;
        let reference = if used.start == 0 {
            self.placer.range(offsets, start, length, alignment::<S>(bytes))?
        } else {
            let from = offsets.slice_with_length(start, length);
            let (first, extent) = (used.start as u64, used.len() as u64);
            let rewrite = Rewrite::ListViewOffsets { width, first, extent };
            self.placer.rewritten(from, length, rewrite)?
        };
        self.sink.buffer(reference);
        self.elements(data, 1, window, bytes, bytes)?;
        self.node(values, used.start, used.len(), depth + 1)
    }

    fn views(&mut self, data: &ArrayData, window: Window) -> Result<(), DescribeError> {
        let (views, start, length) = element_range(data, 0, window, VIEW_BYTES, 0)?;
        let data_buffers = data.buffers().get(1..).unwrap_or_default();
        let in_place =
            data_buffers.iter().all(|buffer| self.placer.is_in_place(buffer, alignment::<S>(1)));
        let used = if in_place { None } else { trim::used_by_views(data, window)? };
        let Some(used) = used else {
            self.sink.data_buffers(data_buffers.len());
            self.reference(views, start, length, VIEW_BYTES)?;
            return data_buffers
                .iter()
                .try_for_each(|buffer| self.reference(buffer, 0, buffer.len(), 1));
        };
        self.sink.data_buffers(used.retained().count());
        let ranges: Vec<_> = used.retained().collect();
        let from = views.slice_with_length(start, length);
        let nulls = data.nulls().cloned();
        let rewrite =
            Rewrite::Views { used, nulls, lead: window.lead, skip: window.first - data.offset() };
        let reference = self.placer.rewritten(from, length, rewrite)?;
        self.sink.buffer(reference);
        for (index, range) in ranges {
            self.reference(buffer(data, 1 + index)?, range.start, range.len(), 1)?;
        }
        Ok(())
    }

    fn dense_union(
        &mut self,
        data: &ArrayData,
        window: Window,
        depth: usize,
    ) -> Result<(), DescribeError> {
        self.elements(data, 0, window, 1, 1)?;
        let mut in_place = true;
        for child in data.child_data() {
            in_place = in_place && all_in_place(child, &mut self.placer, depth + 1)?;
        }
        let spans = if in_place {
            trim::UnionSpans::everything(data)
        } else {
            trim::union_spans(data, window)?
        };
        let (offsets, start, length) = element_range(data, 1, window, 4, 0)?;
        let reference = if spans.is_unshifted() {
            self.placer.range(offsets, start, length, alignment::<S>(4))?
        } else {
            let (codes, at, count) = element_range(data, 0, window, 1, 0)?;
            let codes = codes.slice_with_length(at, count);
            let rewrite = Rewrite::UnionOffsets { codes, spans: spans.clone(), lead: window.lead };
            self.placer.rewritten(offsets.slice_with_length(start, length), length, rewrite)?
        };
        self.sink.buffer(reference);
        for (index, child) in data.child_data().iter().enumerate() {
            let span = spans.of_child(index);
            self.node(child, span.start, span.len(), depth + 1)?;
        }
        Ok(())
    }

    /// Number and node count of the last dictionary written at this position of the schema, if
    /// it is the same array.
    fn reusable_dictionary(&mut self, data: &ArrayData, layout: ArrayLayout) -> Option<(u64, u64)> {
        if S::IS_NORMALISED || !is_dictionary(layout) {
            return None;
        }
        let written = self.latest.get(self.place)?.as_ref()?;
        let same = written.values.ptr_eq(data.child_data().first()?);
        // Readers reject a descriptor with more nodes than bytes.
        let fits = self.nodes + written.nodes < self.sink.bytes();
        (same && fits).then_some((written.number, written.nodes))
    }

    /// Writes the values of a dictionary: its number if already written, else in full.
    fn dictionary(
        &mut self,
        data: &ArrayData,
        layout: ArrayLayout,
        reused: Option<(u64, u64)>,
        depth: usize,
    ) -> Result<(), DescribeError> {
        if S::IS_NORMALISED || !is_dictionary(layout) {
            return Ok(());
        }
        let place = self.place;
        self.place += 1;
        if let Some((number, nodes)) = reused {
            self.nodes += nodes;
            self.sink.shared_dictionary(number);
            // Skip the positions of nested dictionaries.
            self.place += nested_dictionaries(child(data, 0)?);
            return Ok(());
        }
        let values = child(data, 0)?;
        let before = self.nodes;
        self.node(values, 0, values.len(), depth + 1)?;
        let number = self.dictionaries;
        self.dictionaries += 1;
        let nodes = self.nodes - before;
        if self.latest.len() <= place {
            self.latest.resize_with(place + 1, || None);
        }
        if let Some(slot) = self.latest.get_mut(place) {
            *slot = Some(WrittenDictionary { values: values.clone(), nodes, number });
        }
        Ok(())
    }
}

/// Alignment that a buffer needs: IPC requires at least 8 bytes.
fn alignment<S: Sink>(needed: usize) -> usize {
    if S::IS_NORMALISED { needed.max(8) } else { needed }
}

fn nested_dictionaries(data: &ArrayData) -> usize {
    let own = usize::from(matches!(data.data_type(), arrow_schema::DataType::Dictionary(_, _)));
    own + data.child_data().iter().map(nested_dictionaries).sum::<usize>()
}

fn is_dictionary(layout: ArrayLayout) -> bool {
    matches!(layout, ArrayLayout::Fixed { is_dictionary: true, .. })
}

/// Validity of the window; `None` if it has no nulls.
fn window_nulls(
    data: &ArrayData,
    nulls: &NullBuffer,
    start: usize,
    length: usize,
) -> Result<Option<NullBuffer>, DescribeError> {
    if nulls.len() != data.len() {
        return Err(malformed(data, "validity has another length", data.len(), nulls.len()));
    }
    let whole = start == 0 && length == nulls.len();
    let nulls = if whole { nulls.clone() } else { nulls.slice(start, length) };
    Ok((nulls.null_count() > 0).then_some(nulls))
}
