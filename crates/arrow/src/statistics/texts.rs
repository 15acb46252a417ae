//! The loops over strings: bounds and order of their bytes.
//!
//! A string is compared by a key first: its next seven bytes and its length as one number. Only
//! strings with equal keys that are longer than these are compared whole.

use std::cmp::Ordering;
use std::ops::Range;

use arrow_buffer::{Buffer, NullBuffer};

#[cfg(target_arch = "x86_64")]
use super::numbers::WIDE_LANES;
use super::numbers::{Extremes, LANES, are_pairs};
use super::scan::{Bounds, Comparable, OrderedValues, RangeStatistics};
use crate::layout::VIEW_BYTES;

/// Strings whose keys are compared together.
const BLOCK_TEXTS: usize = 256;
/// Bytes of a string in its key.
const KEY_TEXT_BYTES: usize = 7;
/// Bytes that all strings of a block may begin with before they are compared whole.
const DEPTH_MAX: usize = 8 * KEY_TEXT_BYTES;
/// Length of the longest value stored inline in a view (Arrow columnar format).
const VIEW_INLINE_BYTES: usize = 12;

/// Strings of an array, each at its place in the first buffer.
pub(super) trait Texts<'a> {
    /// The bytes of a string; `None` if it is malformed.
    fn value(&self, place: usize) -> Option<&'a [u8]>;

    /// As [`Self::value`], with its [key](key_of).
    #[inline(always)]
    fn keyed(&self, place: usize) -> Option<(u64, &'a [u8])> {
        let value = self.value(place)?;
        Some((key_of(value), value))
    }
}

/// The first seven bytes, most significant first, then the length up to eight. Keys are ordered as
/// the strings. Strings of equal keys are equal if they are not longer than seven bytes.
#[inline(always)]
fn key_of(bytes: &[u8]) -> u64 {
    if let Some(eight) = bytes.first_chunk() {
        return key_in(*eight, bytes.len());
    }
    // Overlapping loads: a loop over few bytes is slower.
    let from = |at: usize, byte: u8| u64::from(byte) << (56_usize.saturating_sub(8 * at) & 63);
    let word = match (bytes.first_chunk(), bytes.last_chunk()) {
        (Some(first), Some(last)) => {
            let (first, last) = (u32::from_be_bytes(*first), u32::from_be_bytes(*last));
            u64::from(first) << 32
                | u64::from(last) << (64_usize.saturating_sub(8 * bytes.len()) & 63)
        }
        _ => bytes.iter().enumerate().fold(0, |word, (at, byte)| word | from(at, *byte)),
    };
    word | bytes.len() as u64
}

/// The key of a string of this length, the first of these bytes.
#[inline(always)]
fn key_in(bytes: [u8; 8], length: usize) -> u64 {
    let text = length.min(KEY_TEXT_BYTES);
    let is_text = !0xFF << (8 * (KEY_TEXT_BYTES - text));
    u64::from_be_bytes(bytes) & is_text | length.min(KEY_TEXT_BYTES + 1) as u64
}

/// Whether strings of this key are equal.
fn is_whole(key: u64) -> bool {
    key & 0xFF <= KEY_TEXT_BYTES as u64
}

/// Strings between offsets.
pub(super) struct Offsets<'a, const N: usize> {
    pub offsets: &'a [[u8; N]],
    pub values: &'a [u8],
}

/// Strings with offsets of four bytes.
pub(super) type Short<'a> = Offsets<'a, 4>;
/// Strings with offsets of eight bytes.
pub(super) type Long<'a> = Offsets<'a, 8>;

impl<const N: usize> Offsets<'_, N> {
    #[inline(always)]
    fn range(&self, place: usize) -> Option<Range<usize>> {
        let pair = self.offsets.get(place..place.checked_add(2)?)?;
        let [start, end] = pair else { return None };
        Some(offset(*start)?..offset(*end)?)
    }
}

/// An offset, which is a signed number.
#[inline(always)]
fn offset<const N: usize>(bytes: [u8; N]) -> Option<usize> {
    match (bytes.first_chunk(), bytes.first_chunk()) {
        (Some(eight), _) => usize::try_from(i64::from_ne_bytes(*eight)).ok(),
        (None, Some(four)) => usize::try_from(i32::from_ne_bytes(*four)).ok(),
        (None, None) => None,
    }
}

impl<'a, const N: usize> Texts<'a> for Offsets<'a, N> {
    #[inline(always)]
    fn value(&self, place: usize) -> Option<&'a [u8]> {
        self.values.get(self.range(place)?)
    }

    #[inline(always)]
    fn keyed(&self, place: usize) -> Option<(u64, &'a [u8])> {
        let Range { start, end } = self.range(place)?;
        let value = self.values.get(start..end)?;
        // The bytes behind a short string are masked.
        let key = match self.values.get(start..)?.first_chunk() {
            Some(eight) => key_in(*eight, value.len()),
            None => key_of(value),
        };
        Some((key, value))
    }
}

/// Strings of one length, below each other.
pub(super) struct Fixed<'a> {
    pub values: &'a [u8],
    /// Length of each.
    pub bytes: usize,
}

impl<'a> Texts<'a> for Fixed<'a> {
    #[inline(always)]
    fn value(&self, place: usize) -> Option<&'a [u8]> {
        let at = place.checked_mul(self.bytes)?;
        self.values.get(at..at.checked_add(self.bytes)?)
    }
}

/// Views of strings, which are short or in one of the buffers.
pub(super) struct Views<'a> {
    pub views: &'a [[u8; VIEW_BYTES]],
    pub buffers: &'a [Buffer],
}

impl<'a> Texts<'a> for Views<'a> {
    #[inline(always)]
    fn value(&self, place: usize) -> Option<&'a [u8]> {
        let (length, rest) = self.views.get(place)?.split_first_chunk::<4>()?;
        let length = usize::try_from(i32::from_le_bytes(*length)).ok()?;
        if length <= VIEW_INLINE_BYTES {
            return rest.get(..length);
        }
        let (_, place) = rest.split_first_chunk::<4>()?;
        let (number, at) = place.split_first_chunk::<4>()?;
        let number = usize::try_from(i32::from_le_bytes(*number)).ok()?;
        let at = usize::try_from(i32::from_le_bytes(at.try_into().ok()?)).ok()?;
        self.buffers.get(number)?.as_slice().get(at..at.checked_add(length)?)
    }
}

/// Statistics of strings, of which those that are null do not count; `None` if one is malformed.
pub(super) fn texts<'a>(
    all: &impl Texts<'a>,
    places: Range<usize>,
    nulls: Option<&NullBuffer>,
) -> Option<RangeStatistics<'a>> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: this CPU has the instructions.
        return unsafe { texts_by_avx2(all, places, nulls) };
    }
    texts_in_lanes::<_, LANES>(all, places, nulls)
}

/// As [`texts`], with the keys compared in wide registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn texts_by_avx2<'a>(
    all: &impl Texts<'a>,
    places: Range<usize>,
    nulls: Option<&NullBuffer>,
) -> Option<RangeStatistics<'a>> {
    texts_in_lanes::<_, WIDE_LANES>(all, places, nulls)
}

// Inlined, so that each caller compiles it for its own instructions.
#[inline(always)]
pub(super) fn texts_in_lanes<'a, T: Texts<'a>, const L: usize>(
    all: &T,
    places: Range<usize>,
    nulls: Option<&NullBuffer>,
) -> Option<RangeStatistics<'a>> {
    let (start, length) = (places.start, places.len() as u64);
    let mut scan = TextScan { all, found: None, is_ascending: true, is_descending: true };
    match nulls.filter(|nulls| nulls.null_count() > 0) {
        None => scan.add_all::<L>(places)?,
        Some(nulls) => {
            (scan.is_ascending, scan.is_descending) = (false, false);
            scan.add_all::<L>(nulls.valid_indices().map(|row| start + row))?;
        }
    }
    let TextScan { found, is_ascending, is_descending, .. } = scan;
    let Some(found) = found else {
        return Some(RangeStatistics { length, ..RangeStatistics::empty() });
    };
    let order = (is_ascending || is_descending).then_some(OrderedValues {
        first: Comparable::Bytes(found.first),
        last: Comparable::Bytes(found.last),
        is_ascending,
        is_descending,
    });
    let bounds = Bounds::Found(Comparable::Bytes(found.min), Comparable::Bytes(found.max));
    Some(RangeStatistics { length, nulls: Some(0), has_nan: false, bounds, order })
}

/// The running state of [`texts`].
struct TextScan<'s, 'a, T> {
    all: &'s T,
    /// `None` before the first string.
    found: Option<TextEnds<'a>>,
    is_ascending: bool,
    is_descending: bool,
}

/// Some strings of several.
struct TextEnds<'a> {
    min: &'a [u8],
    max: &'a [u8],
    first: &'a [u8],
    last: &'a [u8],
}

impl<'a, T: Texts<'a>> TextScan<'_, 'a, T> {
    #[inline(always)]
    fn add_all<const L: usize>(&mut self, mut places: impl Iterator<Item = usize>) -> Option<()> {
        let mut keys = [[0; 8]; BLOCK_TEXTS];
        let mut values: [&[u8]; BLOCK_TEXTS] = [&[]; BLOCK_TEXTS];
        loop {
            let mut length = 0;
            for ((key, value), place) in keys.iter_mut().zip(&mut values).zip(places.by_ref()) {
                let (found, bytes) = self.all.keyed(place)?;
                (*key, *value) = (found.to_le_bytes(), bytes);
                length += 1;
            }
            if length == 0 {
                return Some(());
            }
            let block = TextBlock { keys: keys.get_mut(..length)?, values: values.get(..length)? };
            self.add::<L>(block)?;
        }
    }

    /// Adds a block of strings, which is not empty.
    #[inline(always)]
    fn add<const L: usize>(&mut self, mut block: TextBlock<'_, 'a>) -> Option<()> {
        let (low, high) = block.decide::<L>();
        let [min, max] = [(low, Ordering::Less), (high, Ordering::Greater)]
            .map(|(key, better)| block.extreme(key, better));
        let (min, max) = (min?, max?);
        let (first, last) = (*block.values.first()?, *block.values.last()?);
        let step = self.found.as_ref().map_or(Ordering::Equal, |found| found.last.cmp(first));
        self.is_ascending = self.is_ascending
            && step.is_le()
            && block.is_ordered(|one, next| one <= next, |one, next| one <= next);
        self.is_descending = self.is_descending
            && step.is_ge()
            && block.is_ordered(|one, next| one >= next, |one, next| one >= next);
        let all = self.found.get_or_insert(TextEnds { min, max, first, last });
        all.min = all.min.min(min);
        all.max = all.max.max(max);
        all.last = last;
        Some(())
    }
}

/// Strings that are compared together, and a key of each.
struct TextBlock<'s, 'a> {
    keys: &'s mut [[u8; 8]],
    values: &'s [&'a [u8]],
}

impl<'a> TextBlock<'_, 'a> {
    /// The least and the greatest key, of the bytes from where the strings differ.
    #[inline(always)]
    fn decide<const L: usize>(&mut self) -> (u64, u64) {
        let mut depth = 0;
        loop {
            let mut extremes = Extremes::<u64, 8, L>::new();
            extremes.add(self.keys);
            let (low, high) = extremes.ends();
            if low != high || is_whole(low) || depth >= DEPTH_MAX {
                return (low, high);
            }
            // All begin with the same seven bytes, as addresses of one site do, and are longer.
            depth += KEY_TEXT_BYTES;
            for (key, value) in self.keys.iter_mut().zip(self.values) {
                *key = key_of(value.get(depth..).unwrap_or_default()).to_le_bytes();
            }
        }
    }

    /// The least or the greatest of the strings that have this key.
    fn extreme(&self, key: u64, better: Ordering) -> Option<&'a [u8]> {
        let wanted = key.to_le_bytes();
        let same = self.values.iter().zip(&*self.keys).filter(|(_, key)| **key == wanted);
        let mut same = same.map(|(value, _)| *value);
        let first = same.next()?;
        if is_whole(key) {
            return Some(first);
        }
        Some(same.fold(first, |best, value| if value.cmp(best) == better { value } else { best }))
    }

    /// Whether each string and its successor are in order, by their keys and, if these do not
    /// decide, by their bytes.
    #[inline(always)]
    fn is_ordered(
        &self,
        are_keys: impl Fn(u64, u64) -> bool,
        are_texts: impl Fn(&[u8], &[u8]) -> bool,
    ) -> bool {
        let pair = |(number, (one, next)): (usize, (&[u8; 8], &[u8; 8]))| {
            one != next
                || is_whole(u64::from_le_bytes(*one))
                || matches!(self.values.get(number..), Some([one, next, ..]) if are_texts(one, next))
        };
        are_pairs::<u64, 8>(self.keys, are_keys)
            && self.keys.iter().zip(self.keys.iter().skip(1)).enumerate().all(pair)
    }
}
