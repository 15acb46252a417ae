//! The inner loops: bounds and order of values without nulls.

use std::cmp::Ordering;

use arrow_array::types::{ArrowPrimitiveType, Float16Type};
use arrow_buffer::i256;

/// Half-precision floating point.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(super) struct F16(Half);

type Half = <Float16Type as ArrowPrimitiveType>::Native;

impl F16 {
    const INFINITY: Self = Self(Half::INFINITY);
    const NEG_INFINITY: Self = Self(Half::NEG_INFINITY);

    #[inline]
    fn from_le_bytes(bytes: [u8; 2]) -> Self {
        Self(Half::from_le_bytes(bytes))
    }

    /// The bytes of a number that was widened from this type.
    pub fn bytes_of(value: f64) -> [u8; 2] {
        Half::from_f64(value).to_le_bytes()
    }
}

/// Values of one loop: small enough that the second pass over them finds them in the first cache.
const BLOCK_VALUES: usize = 2048;
/// Independent minima and maxima, so that the loop fills vector registers of 128 bits.
pub(super) const LANES: usize = 8;
/// Those of 256 bits, twice as many of them.
#[cfg(target_arch = "x86_64")]
const WIDE_LANES: usize = 32;
/// Longest number that the wide loop is for: the processor compares no longer ones.
#[cfg(target_arch = "x86_64")]
const WIDE_BYTES_MAX: usize = 8;

/// A value of any type, for comparisons between parts of a column.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(super) enum Comparable<'a> {
    Int(i128),
    Big(i256),
    Float(f64),
    Bytes(&'a [u8]),
}

/// The statistics of some consecutive values of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RangeStatistics<'a> {
    /// Number of values, with the nulls.
    pub length: u64,
    /// Number of nulls; `None`: unknown.
    pub nulls: Option<u64>,
    pub has_nan: bool,
    pub bounds: Bounds<'a>,
    /// `None` once the values are known to be unordered.
    pub order: Option<OrderedValues<'a>>,
}

/// Bounds of the values of a piece.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Bounds<'a> {
    Unknown,
    /// All values are null or NaN.
    Absent,
    /// Least and greatest value.
    Found(Comparable<'a>, Comparable<'a>),
}

/// Ordered values, all of them neither null nor NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct OrderedValues<'a> {
    pub first: Comparable<'a>,
    pub last: Comparable<'a>,
    pub is_ascending: bool,
    pub is_descending: bool,
}

impl<'a> RangeStatistics<'a> {
    /// No values.
    pub fn empty() -> Self {
        Self { length: 0, nulls: Some(0), has_nan: false, bounds: Bounds::Absent, order: None }
    }

    /// Values of which nothing but the nulls is known.
    pub fn opaque(length: u64, nulls: Option<u64>) -> Self {
        Self { length, nulls, bounds: Bounds::Unknown, ..Self::empty() }
    }

    /// The statistics of these values and, behind them, the next ones.
    pub fn then(self, next: Self) -> Self {
        if self.length == 0 || next.length == 0 {
            return if self.length == 0 { next } else { self };
        }
        Self {
            length: self.length + next.length,
            nulls: self.nulls.zip(next.nulls).map(|(one, other)| one + other),
            has_nan: self.has_nan || next.has_nan,
            bounds: self.bounds.and(next.bounds),
            order: self.order.zip(next.order).and_then(|(one, other)| one.then(other)),
        }
    }
}

impl Bounds<'_> {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Absent, found) | (found, Self::Absent) => found,
            (Self::Found(low, high), Self::Found(min, max)) => {
                let low = if min < low { min } else { low };
                Self::Found(low, if max > high { max } else { high })
            }
        }
    }
}

impl OrderedValues<'_> {
    fn then(self, next: Self) -> Option<Self> {
        let step = self.last.partial_cmp(&next.first)?;
        let is_ascending = self.is_ascending && next.is_ascending && step != Ordering::Greater;
        let is_descending = self.is_descending && next.is_descending && step != Ordering::Less;
        (is_ascending || is_descending).then_some(Self {
            last: next.last,
            is_ascending,
            is_descending,
            ..self
        })
    }
}

/// A number as it is in a buffer, of `N` bytes.
pub(super) trait Number<const N: usize>: Copy + PartialOrd {
    /// No value is above it, or it is positive infinity.
    const HIGHEST: Self;
    /// No value is below it, or it is negative infinity.
    const LOWEST: Self;

    fn read(bytes: [u8; N]) -> Self;

    fn key<'a>(self) -> Comparable<'a>;

    /// Only NaN is unordered with itself.
    #[inline]
    fn is_nan(self) -> bool {
        self.partial_cmp(&self).is_none()
    }
}

macro_rules! numbers {
    ($($native:ty, $bytes:literal, $highest:expr, $lowest:expr, $read:expr, $key:expr;)*) => {$(
        impl Number<$bytes> for $native {
            const HIGHEST: Self = $highest;
            const LOWEST: Self = $lowest;

            #[inline]
            fn read(bytes: [u8; $bytes]) -> Self {
                $read(bytes)
            }

            #[inline]
            fn key<'a>(self) -> Comparable<'a> {
                $key(self)
            }
        }
    )*};
}

macro_rules! integers {
    ($($native:ty, $bytes:literal;)*) => {
        numbers! {$(
            $native, $bytes, <$native>::MAX, <$native>::MIN, <$native>::from_le_bytes,
            |value: $native| Comparable::Int(i128::from(value));
        )*}
    };
}

integers! { i8, 1; u8, 1; i16, 2; u16, 2; i32, 4; u32, 4; i64, 8; u64, 8; i128, 16; }
numbers! {
    F16, 2, F16::INFINITY, F16::NEG_INFINITY, F16::from_le_bytes,
        |value: F16| Comparable::Float(f64::from(value.0));
    f32, 4, f32::INFINITY, f32::NEG_INFINITY, f32::from_le_bytes,
        |value: f32| Comparable::Float(f64::from(value));
    f64, 8, f64::INFINITY, f64::NEG_INFINITY, f64::from_le_bytes, Comparable::Float;
    i256, 32, i256::MAX, i256::MIN, i256::from_le_bytes, Comparable::Big;
}

/// The running state of [`numbers`].
struct NumberScan<T> {
    min: T,
    max: T,
    last: T,
    is_ascending: bool,
    is_descending: bool,
    nans: usize,
}

/// Statistics of numbers without nulls.
pub(super) fn numbers<'a, T: Number<N>, const N: usize>(cells: &[[u8; N]]) -> RangeStatistics<'a> {
    #[cfg(target_arch = "x86_64")]
    if N <= WIDE_BYTES_MAX && is_x86_feature_detected!("avx2") {
        // SAFETY: this CPU has the instructions.
        return unsafe { numbers_by_avx2::<T, N>(cells) };
    }
    numbers_in_lanes::<T, N, LANES>(cells)
}

/// As [`numbers`], two to nine times as fast where the values are in the cache.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn numbers_by_avx2<'a, T: Number<N>, const N: usize>(cells: &[[u8; N]]) -> RangeStatistics<'a> {
    numbers_in_lanes::<T, N, WIDE_LANES>(cells)
}

// Inlined, so that each caller compiles it for its own instructions.
#[inline(always)]
pub(super) fn numbers_in_lanes<'a, T: Number<N>, const N: usize, const L: usize>(
    cells: &[[u8; N]],
) -> RangeStatistics<'a> {
    let Some(first) = cells.first().map(|cell| T::read(*cell)) else {
        return RangeStatistics::empty();
    };
    let mut seen = NumberScan {
        min: T::HIGHEST,
        max: T::LOWEST,
        last: first,
        is_ascending: true,
        is_descending: true,
        nans: 0,
    };
    for block in cells.chunks(BLOCK_VALUES) {
        seen.add::<N, L>(block);
    }
    let NumberScan { min, max, last, is_ascending, is_descending, nans } = seen;
    let order = (is_ascending || is_descending).then(|| OrderedValues {
        first: first.key(),
        last: last.key(),
        is_ascending,
        is_descending,
    });
    let bounds = match nans < cells.len() {
        true => Bounds::Found(min.key(), max.key()),
        false => Bounds::Absent,
    };
    RangeStatistics { length: cells.len() as u64, nulls: Some(0), has_nan: nans > 0, bounds, order }
}

impl<T> NumberScan<T> {
    #[inline(always)]
    fn add<const N: usize, const L: usize>(&mut self, block: &[[u8; N]])
    where
        T: Number<N>,
    {
        let (Some(start), Some(end)) = (block.first(), block.last()) else {
            return;
        };
        let (start, end) = (T::read(*start), T::read(*end));
        self.nans += block.iter().map(|cell| usize::from(T::read(*cell).is_nan())).sum::<usize>();
        if self.nans > 0 {
            (self.is_ascending, self.is_descending) = (false, false);
        }
        if self.is_ascending || self.is_descending {
            let pairs = block.iter().zip(block.get(1..).unwrap_or_default());
            let (falls, rises) = pairs.fold((0_usize, 0_usize), |(falls, rises), (one, next)| {
                let (one, next) = (T::read(*one), T::read(*next));
                (falls + usize::from(next < one), rises + usize::from(next > one))
            });
            self.is_ascending &= falls == 0 && start >= self.last;
            self.is_descending &= rises == 0 && start <= self.last;
        }
        self.last = end;
        if self.is_ascending || self.is_descending {
            // The ends of ordered values are their bounds.
            let (low, high) = if start <= end { (start, end) } else { (end, start) };
            self.widen(low, high);
            return;
        }
        let (mut lows, mut highs) = ([self.min; L], [self.max; L]);
        let (groups, rest) = block.as_chunks::<L>();
        for group in groups {
            for ((low, high), cell) in lows.iter_mut().zip(&mut highs).zip(group) {
                let value = T::read(*cell);
                *low = if value < *low { value } else { *low };
                *high = if value > *high { value } else { *high };
            }
        }
        lows.into_iter().zip(highs).for_each(|(low, high)| self.widen(low, high));
        for value in rest.iter().map(|cell| T::read(*cell)) {
            self.widen(value, value);
        }
    }

    #[inline(always)]
    fn widen<const N: usize>(&mut self, low: T, high: T)
    where
        T: Number<N>,
    {
        self.min = if low < self.min { low } else { self.min };
        self.max = if high > self.max { high } else { self.max };
    }
}

/// A string with its first eight bytes as a number, which decides most comparisons.
#[derive(Clone, Copy)]
struct Text<'a> {
    prefix: u64,
    bytes: &'a [u8],
}

impl<'a> Text<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let prefix = match bytes.first_chunk::<8>() {
            Some(chunk) => u64::from_be_bytes(*chunk),
            None => {
                let mut padded = [0; 8];
                padded.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                u64::from_be_bytes(padded)
            }
        };
        Self { prefix, bytes }
    }

    fn compare(&self, other: &Self) -> Ordering {
        self.prefix.cmp(&other.prefix).then_with(|| self.bytes.cmp(other.bytes))
    }
}

/// Statistics of strings without nulls, in the order of their bytes; `None` if one is malformed.
pub(super) fn texts<'a>(
    mut values: impl Iterator<Item = Option<&'a [u8]>>,
) -> Option<RangeStatistics<'a>> {
    let Some(first) = values.next() else {
        return Some(RangeStatistics::empty());
    };
    let first = Text::new(first?);
    let (mut min, mut max, mut last) = (first, first, first);
    let (mut is_ascending, mut is_descending) = (true, true);
    let mut length = 1;
    for value in values {
        let value = Text::new(value?);
        length += 1;
        if value.compare(&min).is_lt() {
            min = value;
        } else if value.compare(&max).is_gt() {
            max = value;
        }
        if is_ascending || is_descending {
            let step = value.compare(&last);
            is_ascending &= step.is_ge();
            is_descending &= step.is_le();
            last = value;
        }
    }
    let [min, max, first, last] = [min, max, first, last].map(|text| Comparable::Bytes(text.bytes));
    let order = (is_ascending || is_descending).then_some(OrderedValues {
        first,
        last,
        is_ascending,
        is_descending,
    });
    Some(RangeStatistics {
        length,
        nulls: Some(0),
        has_nan: false,
        bounds: Bounds::Found(min, max),
        order,
    })
}
