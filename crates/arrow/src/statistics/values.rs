//! Statistics of a range of one array: picks the loop for its type and leaves out nulls.
//!
//! A malformed array has no statistics: the copy beside the count reports what is wrong with it.

use std::ops::Range;

use arrow_buffer::{BooleanBuffer, NullBuffer, i256};
use arrow_data::ArrayData;
use arrow_schema::{DataType, IntervalUnit};

use super::scan::{self, Bounds, Comparable, F16, Number, RangeStatistics};
use crate::layout::{ArrayLayout, OffsetWidth, VIEW_BYTES};

/// Length of the longest value stored inline in a view (Arrow columnar format).
const VIEW_INLINE_BYTES: usize = 12;

/// Some elements of an array, and which of them are null; `nulls` has one bit for each of them.
#[derive(Debug, Clone)]
pub(super) struct Part<'a> {
    pub data: &'a ArrayData,
    pub rows: Range<usize>,
    pub nulls: Option<NullBuffer>,
}

impl<'a> Part<'a> {
    /// The statistics of the elements.
    pub fn count(&self) -> RangeStatistics<'a> {
        let length = self.rows.len() as u64;
        let nulls = self.nulls.as_ref().map_or(0, NullBuffer::null_count) as u64;
        if let DataType::Null = self.data.data_type() {
            return RangeStatistics {
                bounds: Bounds::Absent,
                ..RangeStatistics::opaque(length, Some(length))
            };
        }
        if let DataType::Dictionary(index, _) = self.data.data_type() {
            return self.dictionary(index).unwrap_or(RangeStatistics::opaque(length, None));
        }
        let mut whole = RangeStatistics::empty();
        for run in self.runs() {
            match self.plain(run) {
                Some(piece) => whole = whole.then(piece),
                None => return RangeStatistics::opaque(length, Some(nulls)),
            }
        }
        let order = whole.order.filter(|_| nulls == 0);
        RangeStatistics { length, nulls: Some(nulls), order, ..whole }
    }

    /// The address of the first of those bytes that make up most of the elements.
    pub fn address(&self) -> Option<usize> {
        let first = self.rows.start.checked_add(self.data.offset())?;
        let (buffer, at) = match ArrayLayout::of(self.data.data_type())? {
            ArrayLayout::Bits => (0, first / 8),
            ArrayLayout::Fixed { bytes, .. } => (0, first.checked_mul(bytes)?),
            ArrayLayout::View => (0, first.checked_mul(VIEW_BYTES)?),
            ArrayLayout::Binary(width) => {
                (1, usize::try_from(width.read(self.buffer(0)?, first)?).ok()?)
            }
            _ => return None,
        };
        Some(self.buffer(buffer)?.get(at..)?.as_ptr().addr())
    }

    /// The elements that are not null, as ranges.
    fn runs(&self) -> Vec<Range<usize>> {
        let start = self.rows.start;
        match &self.nulls {
            Some(nulls) if nulls.null_count() > 0 => {
                nulls.valid_slices().map(|(from, to)| start + from..start + to).collect()
            }
            _ => vec![self.rows.clone()],
        }
    }

    /// Elements without nulls; `None` if their type has no bounds.
    fn plain(&self, rows: Range<usize>) -> Option<RangeStatistics<'a>> {
        use DataType as T;
        match self.data.data_type() {
            T::Boolean => self.booleans(rows),
            T::Int8 => self.numbers::<i8, 1>(rows),
            T::UInt8 => self.numbers::<u8, 1>(rows),
            T::Int16 => self.numbers::<i16, 2>(rows),
            T::UInt16 => self.numbers::<u16, 2>(rows),
            T::UInt32 => self.numbers::<u32, 4>(rows),
            T::Int32 | T::Date32 | T::Time32(_) | T::Decimal32(_, _) => {
                self.numbers::<i32, 4>(rows)
            }
            T::UInt64 => self.numbers::<u64, 8>(rows),
            T::Int64 | T::Date64 | T::Time64(_) | T::Timestamp(_, _) => {
                self.numbers::<i64, 8>(rows)
            }
            T::Duration(_) | T::Decimal64(_, _) => self.numbers::<i64, 8>(rows),
            T::Interval(IntervalUnit::YearMonth) => self.numbers::<i32, 4>(rows),
            T::Decimal128(_, _) => self.numbers::<i128, 16>(rows),
            T::Decimal256(_, _) => self.numbers::<i256, 32>(rows),
            T::Float16 => self.numbers::<F16, 2>(rows),
            T::Float32 => self.numbers::<f32, 4>(rows),
            T::Float64 => self.numbers::<f64, 8>(rows),
            T::FixedSizeBinary(bytes) => {
                let (bytes, values) = (usize::try_from(*bytes).ok()?, self.buffer(0)?);
                scan::texts(rows.map(|row| {
                    let at = row.checked_add(self.data.offset())?.checked_mul(bytes)?;
                    values.get(at..at.checked_add(bytes)?)
                }))
            }
            T::Utf8 | T::Binary => self.texts(rows, OffsetWidth::Four),
            T::LargeUtf8 | T::LargeBinary => self.texts(rows, OffsetWidth::Eight),
            T::Utf8View | T::BinaryView => self.views(rows),
            _ => None,
        }
    }

    fn buffer(&self, number: usize) -> Option<&'a [u8]> {
        self.data.buffers().get(number).map(|buffer| buffer.as_slice())
    }

    fn numbers<T: Number<N>, const N: usize>(
        &self,
        rows: Range<usize>,
    ) -> Option<RangeStatistics<'a>> {
        let first = rows.start.checked_add(self.data.offset())?;
        let (cells, _) = self.buffer(0)?.as_chunks::<N>();
        Some(scan::numbers::<T, N>(cells.get(first..first.checked_add(rows.len())?)?))
    }

    fn booleans(&self, rows: Range<usize>) -> Option<RangeStatistics<'a>> {
        let first = rows.start.checked_add(self.data.offset())?;
        let buffer = self.data.buffers().first()?;
        if first.checked_add(rows.len())? > buffer.len().checked_mul(8)? {
            return None;
        }
        let bits = BooleanBuffer::new(buffer.clone(), first, rows.len());
        let ones = bits.count_set_bits();
        let length = rows.len() as u64;
        if length == 0 {
            return Some(RangeStatistics::empty());
        }
        let (low, high) = (ones == rows.len(), ones > 0);
        let bounds = Bounds::Found(Comparable::Int(low.into()), Comparable::Int(high.into()));
        Some(RangeStatistics { bounds, ..RangeStatistics::opaque(length, Some(0)) })
    }

    fn texts(&self, rows: Range<usize>, width: OffsetWidth) -> Option<RangeStatistics<'a>> {
        let (offsets, values) = (self.buffer(0)?, self.buffer(1)?);
        let shift = self.data.offset();
        if rows.is_empty() {
            return Some(RangeStatistics::empty());
        }
        let offset = |row: usize| usize::try_from(width.read(offsets, row)?).ok();
        let mut start = offset(rows.start.checked_add(shift)?)?;
        scan::texts(rows.map(|row| {
            let end = offset(row.checked_add(shift)?.checked_add(1)?)?;
            let value = values.get(start..end);
            start = end;
            value
        }))
    }

    fn views(&self, rows: Range<usize>) -> Option<RangeStatistics<'a>> {
        let (views, _) = self.buffer(0)?.as_chunks::<VIEW_BYTES>();
        let shift = self.data.offset();
        scan::texts(rows.map(|row| {
            let view = views.get(row.checked_add(shift)?)?;
            let (length, rest) = view.split_first_chunk::<4>()?;
            let length = usize::try_from(i32::from_le_bytes(*length)).ok()?;
            if length <= VIEW_INLINE_BYTES {
                return rest.get(..length);
            }
            let (_, place) = rest.split_first_chunk::<4>()?;
            let (number, at) = place.split_first_chunk::<4>()?;
            let number = usize::try_from(i32::from_le_bytes(*number)).ok()?;
            let at = usize::try_from(i32::from_le_bytes(at.try_into().ok()?)).ok()?;
            self.buffer(number.checked_add(1)?)?.get(at..at.checked_add(length)?)
        }))
    }

    /// The values that the indices refer to. Null is a null index and an index of a null.
    fn dictionary(&self, index: &DataType) -> Option<RangeStatistics<'a>> {
        let values = self.data.child_data().first()?;
        let Some(ArrayLayout::Fixed { bytes, .. }) = ArrayLayout::of(index) else {
            return None;
        };
        let (indices, shift) = (self.buffer(0)?, self.data.offset());
        let mut uses = vec![false; values.len()];
        let mut nulls = self.nulls.as_ref().map_or(0, NullBuffer::null_count) as u64;
        for row in self.runs().into_iter().flatten() {
            let at = row.checked_add(shift)?.checked_mul(bytes)?;
            let mut wide = [0; 8];
            wide.get_mut(..bytes)?.copy_from_slice(indices.get(at..at.checked_add(bytes)?)?);
            let value = usize::try_from(u64::from_le_bytes(wide)).ok()?;
            *uses.get_mut(value)? = true;
            nulls += u64::from(values.is_null(value));
        }
        let used = NullBuffer::union(Some(&NullBuffer::from(uses)), values.nulls());
        let part = Part { data: values, rows: 0..values.len(), nulls: used };
        let RangeStatistics { has_nan, bounds, .. } = part.count();
        Some(RangeStatistics {
            length: self.rows.len() as u64,
            nulls: Some(nulls),
            has_nan,
            bounds,
            order: None,
        })
    }
}
