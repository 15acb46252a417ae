//! Bounds as bytes: numbers in the width of their type, long strings shortened and still sound.

use arrow_schema::DataType;

use super::numbers::F16;
use super::scan::{Bounds, Comparable, RangeStatistics};
use super::{Bound, ColumnStatistics};

/// A string longer than this is shortened: what follows rarely decides a filter.
pub(super) const TEXT_BYTES_MAX: usize = 32;
/// Longest bound of a string: its last character may become a longer one.
pub(super) const BOUND_BYTES_MAX: usize = TEXT_BYTES_MAX + 3;

/// The statistics of all values of a column of this type.
pub(super) fn column(piece: &RangeStatistics<'_>, data_type: &DataType) -> ColumnStatistics {
    let values = match data_type {
        DataType::Dictionary(_, values) => values.as_ref(),
        other => other,
    };
    let (min, max) = match piece.bounds {
        Bounds::Found(min, max) => (bound(min, values, false), bound(max, values, true)),
        Bounds::Absent | Bounds::Unknown => (None, None),
    };
    let order = piece.order.filter(|_| piece.nulls == Some(0));
    ColumnStatistics {
        nulls: piece.nulls,
        has_nan: piece.has_nan,
        is_ascending: order.is_some_and(|order| order.is_ascending),
        is_descending: order.is_some_and(|order| order.is_descending),
        min,
        max,
    }
}

/// Bytes of a number of this type; `None` for strings and for types without bounds.
pub(super) fn number_bytes(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Boolean => Some(1),
        DataType::Interval(unit) => {
            (*unit == arrow_schema::IntervalUnit::YearMonth).then_some(size_of::<i32>())
        }
        other => other.primitive_width(),
    }
}

/// Whether values of this type are strings, and whether these are UTF-8.
pub(super) fn text(data_type: &DataType) -> Option<bool> {
    use DataType as T;
    match data_type {
        T::Utf8 | T::LargeUtf8 | T::Utf8View => Some(true),
        T::Binary | T::LargeBinary | T::BinaryView => Some(false),
        _ => None,
    }
}

fn bound(key: Comparable<'_>, data_type: &DataType, is_upper: bool) -> Option<Bound> {
    let exact = |bytes: &[u8]| Some(Bound { bytes: bytes.to_vec(), is_exact: true });
    match key {
        Comparable::Int(value) => exact(value.to_le_bytes().get(..number_bytes(data_type)?)?),
        Comparable::Big(value) => exact(&value.to_le_bytes()),
        Comparable::Float(value) => {
            // The two zeros are equal: both lie between the bounds in any order.
            let value = match value {
                0.0 if is_upper => 0.0,
                0.0 => -0.0,
                value => value,
            };
            match data_type {
                DataType::Float64 => exact(&value.to_le_bytes()),
                // Widened from this type, so it fits.
                DataType::Float32 => exact(&(value as f32).to_le_bytes()),
                DataType::Float16 => exact(&F16::bytes_of(value)),
                _ => None,
            }
        }
        Comparable::Bytes(bytes) if bytes.len() <= TEXT_BYTES_MAX => exact(bytes),
        Comparable::Bytes(bytes) => {
            // A shortened value of a type of fixed width would be none of that type.
            let is_utf8 = text(data_type)?;
            let bytes = if is_upper { above(bytes, is_utf8) } else { below(bytes, is_utf8) };
            bytes.map(|bytes| Bound { bytes, is_exact: false })
        }
    }
}

/// The beginning of a string, up to a whole character.
fn below(bytes: &[u8], is_utf8: bool) -> Option<Vec<u8>> {
    let start = bytes.get(..TEXT_BYTES_MAX)?;
    match std::str::from_utf8(start) {
        Err(error) if is_utf8 => start.get(..error.valid_up_to()).map(<[u8]>::to_vec),
        _ => Some(start.to_vec()),
    }
}

/// The least string, of whole characters, above all strings that begin as this one; `None` if
/// there is none.
fn above(bytes: &[u8], is_utf8: bool) -> Option<Vec<u8>> {
    let mut start = below(bytes, is_utf8)?;
    if !is_utf8 {
        while let Some(last) = start.pop() {
            if let Some(next) = last.checked_add(1) {
                start.push(next);
                return Some(start);
            }
        }
        return None;
    }
    if start.len() + char::MAX.len_utf8() <= TEXT_BYTES_MAX {
        // Cut off because it is not UTF-8: no string stands for the bytes behind.
        return None;
    }
    let mut text = String::from_utf8(start).ok()?;
    while let Some(last) = text.pop() {
        // Surrogates are no characters.
        let next = if last == '\u{d7ff}' { Some('\u{e000}') } else { char_after(last) };
        if let Some(next) = next {
            text.push(next);
            return Some(text.into_bytes());
        }
    }
    None
}

fn char_after(last: char) -> Option<char> {
    char::from_u32(u32::from(last).checked_add(1)?)
}
