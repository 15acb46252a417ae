//! The loops over numbers: bounds and order.

use arrow_array::types::{ArrowPrimitiveType, Float16Type};
use arrow_buffer::{NullBuffer, i256};

use super::scan::{Bounds, Comparable, OrderedValues, RangeStatistics};

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

/// Values that are found in or out of order together: the loop over their bounds finds them in the
/// first cache.
const BLOCK_VALUES: usize = 2048;
/// The first of them, of which most that are out of order have some.
const HEAD_VALUES: usize = 64;
/// Bits of a word of a validity bitmap.
const WORD_BITS: usize = u64::BITS as usize;
/// Independent minima and maxima, so that the loop fills vector registers of 128 bits.
pub(super) const LANES: usize = 8;
/// Those of 256 bits, twice as many of them.
#[cfg(target_arch = "x86_64")]
pub(super) const WIDE_LANES: usize = 32;
/// Longest number that the wide loop is for: the processor compares no longer ones.
#[cfg(target_arch = "x86_64")]
const WIDE_BYTES_MAX: usize = 8;
/// Longest number that is compared in lanes.
const LANE_BYTES_MAX: usize = 8;

/// A number as it is in a buffer, of `N` bytes.
pub(super) trait Number<const N: usize>: Copy + PartialOrd {
    /// No value is above it, or it is positive infinity.
    const HIGHEST: Self;
    /// No value is below it, or it is negative infinity.
    const LOWEST: Self;

    fn read(bytes: [u8; N]) -> Self;

    fn key<'a>(self) -> Comparable<'a>;

    /// Only NaN is unordered with itself.
    #[inline(always)]
    fn is_nan(self) -> bool {
        self.partial_cmp(&self).is_none()
    }
}

macro_rules! numbers {
    ($($native:ty, $bytes:literal, $highest:expr, $lowest:expr, $read:expr, $key:expr;)*) => {$(
        impl Number<$bytes> for $native {
            const HIGHEST: Self = $highest;
            const LOWEST: Self = $lowest;

            #[inline(always)]
            fn read(bytes: [u8; $bytes]) -> Self {
                $read(bytes)
            }

            #[inline(always)]
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

/// Statistics of numbers, of which those that are null do not count.
pub(super) fn numbers<'a, T: Number<N>, const N: usize>(
    cells: &[[u8; N]],
    nulls: Option<&NullBuffer>,
) -> RangeStatistics<'a> {
    #[cfg(target_arch = "x86_64")]
    if N <= WIDE_BYTES_MAX && is_x86_feature_detected!("avx2") {
        // SAFETY: this CPU has the instructions.
        return unsafe { numbers_by_avx2::<T, N>(cells, nulls) };
    }
    numbers_in_lanes::<T, N, LANES>(cells, nulls)
}

/// As [`numbers`], two to nine times as fast where the values are in the cache.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn numbers_by_avx2<'a, T: Number<N>, const N: usize>(
    cells: &[[u8; N]],
    nulls: Option<&NullBuffer>,
) -> RangeStatistics<'a> {
    numbers_in_lanes::<T, N, WIDE_LANES>(cells, nulls)
}

// Inlined, so that each caller compiles it for its own instructions.
#[inline(always)]
pub(super) fn numbers_in_lanes<'a, T: Number<N>, const N: usize, const L: usize>(
    cells: &[[u8; N]],
    nulls: Option<&NullBuffer>,
) -> RangeStatistics<'a> {
    let Some(first) = cells.first().map(|cell| T::read(*cell)) else {
        return RangeStatistics::empty();
    };
    let mut seen = Extremes::<T, N, L>::new();
    let length = cells.len() as u64;
    if let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0) {
        seen.add_valid(cells, nulls);
        let nulls = Some(nulls.null_count() as u64);
        let (bounds, has_nan) = (seen.bounds(), seen.has_nan);
        return RangeStatistics { length, nulls, has_nan, bounds, order: None };
    }
    let mut order =
        SortedSoFar { last: first, is_ascending: !first.is_nan(), is_descending: !first.is_nan() };
    for block in cells.chunks(BLOCK_VALUES) {
        match order.add(block) {
            // The ends of ordered values are their bounds, and none of them is NaN.
            Some((start, end)) => [start, end].into_iter().for_each(|value| seen.add_one(value)),
            None => seen.add(block),
        }
    }
    let SortedSoFar { last, is_ascending, is_descending } = order;
    let order = (is_ascending || is_descending).then(|| OrderedValues {
        first: first.key(),
        last: last.key(),
        is_ascending,
        is_descending,
    });
    let (bounds, has_nan) = (seen.bounds(), seen.has_nan);
    RangeStatistics { length, nulls: Some(0), has_nan, bounds, order }
}

/// Whether all values so far are in order, none of them NaN.
struct SortedSoFar<T> {
    last: T,
    is_ascending: bool,
    is_descending: bool,
}

impl<T> SortedSoFar<T> {
    /// Adds a block. Returns its ends if all values so far are in order.
    #[inline(always)]
    fn add<const N: usize>(&mut self, block: &[[u8; N]]) -> Option<(T, T)>
    where
        T: Number<N>,
    {
        if !self.is_ascending && !self.is_descending {
            return None;
        }
        let (start, end) = (T::read(*block.first()?), T::read(*block.last()?));
        let head = block.get(..HEAD_VALUES).unwrap_or(block);
        // Comparisons with NaN are false.
        let (rises, falls) = (|one: T, next| one <= next, |one: T, next| one >= next);
        self.is_ascending = self.is_ascending
            && self.last <= start
            && are_pairs(head, rises)
            && are_pairs(block, rises);
        self.is_descending = self.is_descending
            && self.last >= start
            && are_pairs(head, falls)
            && are_pairs(block, falls);
        self.last = end;
        (self.is_ascending || self.is_descending).then_some((start, end))
    }
}

/// Whether this is true of each value and its successor. Looks at all of them, since a loop with an
/// early end is slow.
#[inline(always)]
pub(super) fn are_pairs<T: Number<N>, const N: usize>(
    cells: &[[u8; N]],
    is_true: impl Fn(T, T) -> bool,
) -> bool {
    let pairs = cells.iter().zip(cells.get(1..).unwrap_or_default());
    pairs.fold(true, |all, (one, next)| all & is_true(T::read(*one), T::read(*next)))
}

/// Bounds of values, found by `L` independent lanes, and whether one is NaN.
pub(super) struct Extremes<T, const N: usize, const L: usize> {
    lows: [T; L],
    highs: [T; L],
    has_nan: bool,
}

impl<T: Number<N>, const N: usize, const L: usize> Extremes<T, N, L> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { lows: [T::HIGHEST; L], highs: [T::LOWEST; L], has_nan: false }
    }

    /// The least and the greatest value; without values, the first is above the second.
    #[inline(always)]
    pub(super) fn ends(&self) -> (T, T) {
        let least = |low, value| if value < low { value } else { low };
        let most = |high, value| if value > high { value } else { high };
        let low = self.lows.into_iter().fold(T::HIGHEST, least);
        let high = self.highs.into_iter().fold(T::LOWEST, most);
        (low, high)
    }

    #[inline(always)]
    fn bounds<'a>(&self) -> Bounds<'a> {
        let (low, high) = self.ends();
        if low <= high { Bounds::Found(low.key(), high.key()) } else { Bounds::Absent }
    }

    #[inline(always)]
    fn add_one(&mut self, value: T) {
        if let [low, ..] = self.lows.as_mut_slice()
            && value < *low
        {
            *low = value;
        }
        if let [high, ..] = self.highs.as_mut_slice()
            && value > *high
        {
            *high = value;
        }
        self.has_nan |= value.is_nan();
    }

    #[inline(always)]
    pub(super) fn add(&mut self, cells: &[[u8; N]]) {
        if N > LANE_BYTES_MAX {
            // No vector instruction compares them, and a branch that is rarely taken costs less.
            return cells.iter().for_each(|cell| self.add_one(T::read(*cell)));
        }
        let (groups, rest) = cells.as_chunks::<L>();
        self.add_groups(groups);
        rest.iter().for_each(|cell| self.add_one(T::read(*cell)));
    }

    #[inline(always)]
    fn add_groups(&mut self, groups: &[[[u8; N]; L]]) {
        let cells = groups.as_flattened().iter();
        self.has_nan |= cells.fold(false, |any, cell| any | T::read(*cell).is_nan());
        // Copies of the lanes stay in registers.
        let (mut lows, mut highs) = (self.lows, self.highs);
        for group in groups {
            for ((low, high), cell) in lows.iter_mut().zip(&mut highs).zip(group) {
                let value = T::read(*cell);
                *low = if value < *low { value } else { *low };
                *high = if value > *high { value } else { *high };
            }
        }
        (self.lows, self.highs) = (lows, highs);
    }

    /// Adds the values that are not null.
    #[inline(always)]
    fn add_valid(&mut self, cells: &[[u8; N]], nulls: &NullBuffer) {
        let bits = nulls.inner().bit_chunks();
        let words = bits.iter().chain([bits.remainder_bits()]);
        for (cells, word) in cells.chunks(WORD_BITS).zip(words) {
            let all = u64::MAX >> (WORD_BITS - cells.len().min(WORD_BITS));
            match word & all {
                0 => {}
                word if word == all => self.add(cells),
                word => self.add_masked(cells, word),
            }
        }
    }

    /// Adds the values whose bits are set, at most as many as a word has bits, one of them set.
    #[inline(always)]
    fn add_masked(&mut self, cells: &[[u8; N]], word: u64) {
        // In the place of each null is a value that counts anyway.
        let at = (word.trailing_zeros() as usize).min(cells.len().saturating_sub(1));
        let Some(filler) = cells.get(at).copied() else { return };
        let mut filled = [filler; WORD_BITS];
        let mut place = 0;
        for (half, cells) in [word as u32, (word >> 32) as u32].into_iter().zip(cells.chunks(32)) {
            let here = filled.get_mut(place..).unwrap_or_default();
            for ((bit, to), cell) in (0_u32..32).zip(here).zip(cells) {
                *to = if half >> bit & 1 == 1 { *cell } else { filler };
            }
            place += 32;
        }
        let (groups, _) = filled.as_chunks::<L>();
        self.add_groups(groups);
    }
}
