//! Statistics of consecutive values, and how those of two ranges are joined.

use std::cmp::Ordering;

use arrow_buffer::i256;

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
