//! Statistics of a range of one array: picks the loop for its type and leaves out nulls.
//!
//! A malformed array has no statistics: the copy beside the count reports what is wrong with it.

use std::ops::Range;

use arrow_buffer::{BooleanBuffer, NullBuffer, i256};
use arrow_data::ArrayData;
use arrow_schema::{DataType, IntervalUnit};

use super::numbers::{self, F16, Number};
use super::scan::{Bounds, Comparable, RangeStatistics};
use super::texts::{self, Texts};
use crate::layout::{ArrayLayout, VIEW_BYTES};

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
        match self.plain() {
            Some(found) => {
                let order = found.order.filter(|_| nulls == 0);
                RangeStatistics { length, nulls: Some(nulls), order, ..found }
            }
            None => RangeStatistics::opaque(length, Some(nulls)),
        }
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

    /// Bounds and order of the elements that are not null; `None` if their type has none.
    fn plain(&self) -> Option<RangeStatistics<'a>> {
        use DataType as T;
        match self.data.data_type() {
            T::Boolean => self.booleans(),
            T::Int8 => self.numbers::<i8, 1>(),
            T::UInt8 => self.numbers::<u8, 1>(),
            T::Int16 => self.numbers::<i16, 2>(),
            T::UInt16 => self.numbers::<u16, 2>(),
            T::UInt32 => self.numbers::<u32, 4>(),
            T::Int32 | T::Date32 | T::Time32(_) | T::Decimal32(_, _) => self.numbers::<i32, 4>(),
            T::UInt64 => self.numbers::<u64, 8>(),
            T::Int64 | T::Date64 | T::Time64(_) | T::Timestamp(_, _) => self.numbers::<i64, 8>(),
            T::Duration(_) | T::Decimal64(_, _) => self.numbers::<i64, 8>(),
            T::Interval(IntervalUnit::YearMonth) => self.numbers::<i32, 4>(),
            T::Decimal128(_, _) => self.numbers::<i128, 16>(),
            T::Decimal256(_, _) => self.numbers::<i256, 32>(),
            T::Float16 => self.numbers::<F16, 2>(),
            T::Float32 => self.numbers::<f32, 4>(),
            T::Float64 => self.numbers::<f64, 8>(),
            T::FixedSizeBinary(bytes) => {
                let (bytes, values) = (usize::try_from(*bytes).ok()?, self.buffer(0)?);
                self.texts(&texts::Fixed { values, bytes })
            }
            T::Utf8 | T::Binary => {
                let (offsets, _) = self.buffer(0)?.as_chunks::<4>();
                self.texts(&texts::Short { offsets, values: self.buffer(1)? })
            }
            T::LargeUtf8 | T::LargeBinary => {
                let (offsets, _) = self.buffer(0)?.as_chunks::<8>();
                self.texts(&texts::Long { offsets, values: self.buffer(1)? })
            }
            T::Utf8View | T::BinaryView => {
                let (views, buffers) = self.data.buffers().split_first()?;
                let (views, _) = views.as_slice().as_chunks::<VIEW_BYTES>();
                self.texts(&texts::Views { views, buffers })
            }
            _ => None,
        }
    }

    fn buffer(&self, number: usize) -> Option<&'a [u8]> {
        self.data.buffers().get(number).map(|buffer| buffer.as_slice())
    }

    /// The first element in the buffers, and one behind the last.
    fn places(&self) -> Option<Range<usize>> {
        let shift = self.data.offset();
        Some(self.rows.start.checked_add(shift)?..self.rows.end.checked_add(shift)?)
    }

    fn numbers<T: Number<N>, const N: usize>(&self) -> Option<RangeStatistics<'a>> {
        let (cells, _) = self.buffer(0)?.as_chunks::<N>();
        Some(numbers::numbers::<T, N>(cells.get(self.places()?)?, self.nulls.as_ref()))
    }

    fn texts(&self, all: &impl Texts<'a>) -> Option<RangeStatistics<'a>> {
        texts::texts(all, self.places()?, self.nulls.as_ref())
    }

    fn booleans(&self) -> Option<RangeStatistics<'a>> {
        let places = self.places()?;
        let buffer = self.data.buffers().first()?;
        if places.end > buffer.len().checked_mul(8)? {
            return None;
        }
        let mut bits = BooleanBuffer::new(buffer.clone(), places.start, places.len());
        let mut present = places.len();
        if let Some(nulls) = &self.nulls {
            bits = &bits & nulls.inner();
            present -= nulls.null_count();
        }
        let length = places.len() as u64;
        if present == 0 {
            return Some(RangeStatistics { length, ..RangeStatistics::empty() });
        }
        let ones = bits.count_set_bits();
        let (low, high) = (ones == present, ones > 0);
        let bounds = Bounds::Found(Comparable::Int(low.into()), Comparable::Int(high.into()));
        Some(RangeStatistics { bounds, ..RangeStatistics::opaque(length, Some(0)) })
    }

    /// The values that the indices refer to. Null is a null index and an index of a null.
    fn dictionary(&self, index: &DataType) -> Option<RangeStatistics<'a>> {
        let values = self.data.child_data().first()?;
        let uses = match ArrayLayout::of(index)? {
            ArrayLayout::Fixed { bytes: 1, .. } => self.uses::<1>(values)?,
            ArrayLayout::Fixed { bytes: 2, .. } => self.uses::<2>(values)?,
            ArrayLayout::Fixed { bytes: 4, .. } => self.uses::<4>(values)?,
            ArrayLayout::Fixed { bytes: 8, .. } => self.uses::<8>(values)?,
            _ => return None,
        };
        let used = NullBuffer::union(Some(&NullBuffer::from(uses.marks)), values.nulls());
        let part = Part { data: values, rows: 0..values.len(), nulls: used };
        let RangeStatistics { has_nan, bounds, .. } = part.count();
        Some(RangeStatistics {
            length: self.rows.len() as u64,
            nulls: Some(uses.nulls),
            has_nan,
            bounds,
            order: None,
        })
    }

    /// Which values the indices, of `N` bytes, refer to; `None` if one refers to no value.
    fn uses<const N: usize>(&self, values: &ArrayData) -> Option<DictionaryUses> {
        let (indices, _) = self.buffer(0)?.as_chunks::<N>();
        let indices = indices.get(self.places()?)?;
        let value_nulls = values.nulls().filter(|nulls| nulls.null_count() > 0);
        let mut marks = vec![false; values.len()];
        let mut nulls = self.nulls.as_ref().map_or(0, NullBuffer::null_count) as u64;
        let mut mark = |index: &[u8; N]| {
            let mut wide = [0; 8];
            wide.iter_mut().zip(index).for_each(|(to, from)| *to = *from);
            let value = usize::try_from(u64::from_le_bytes(wide)).ok()?;
            *marks.get_mut(value)? = true;
            nulls += value_nulls.map_or(0, |all| u64::from(all.is_null(value)));
            Some(())
        };
        match self.nulls.as_ref().filter(|nulls| nulls.null_count() > 0) {
            None => indices.iter().try_for_each(mark)?,
            Some(nulls) => nulls.valid_indices().try_for_each(|row| mark(indices.get(row)?))?,
        }
        Some(DictionaryUses { marks, nulls })
    }
}

/// What some indices refer to.
struct DictionaryUses {
    /// Whether each value is used.
    marks: Vec<bool>,
    /// Indices that are null or refer to a null.
    nulls: u64,
}
