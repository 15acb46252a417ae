//! Layout of the buffers and children of a type, without the allocations of
//! `arrow_data::layout`.

use arrow_buffer::{IntervalMonthDayNano, i256};
use arrow_schema::{DataType, IntervalUnit, UnionMode};

/// Width of one offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OffsetWidth {
    Four,
    Eight,
}

impl OffsetWidth {
    pub fn bytes(self) -> usize {
        match self {
            OffsetWidth::Four => 4,
            OffsetWidth::Eight => 8,
        }
    }

    /// Offset number `index` of a buffer; `None` if it is out of bounds or negative.
    pub fn read(self, buffer: &[u8], index: usize) -> Option<u64> {
        let at = index.checked_mul(self.bytes())?;
        let bytes = buffer.get(at..at.checked_add(self.bytes())?)?;
        match self {
            OffsetWidth::Four => u64::try_from(i32::from_ne_bytes(bytes.try_into().ok()?)).ok(),
            OffsetWidth::Eight => u64::try_from(i64::from_ne_bytes(bytes.try_into().ok()?)).ok(),
        }
    }
}

/// Layout of the buffers of one array (not of its children).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArrayLayout {
    /// No buffers at all.
    Null,
    /// One bit for each element.
    Bits,
    /// Elements of one width; also the indices of a dictionary.
    Fixed { bytes: usize, alignment: usize, is_dictionary: bool },
    /// Offsets and bytes.
    Binary(OffsetWidth),
    /// Views of 16 bytes and any number of data buffers.
    View,
    /// Offsets, one child; also maps.
    List(OffsetWidth),
    /// Offsets and sizes, one child.
    ListView(OffsetWidth),
    /// One child, with `items` items for each element.
    FixedList { items: usize },
    /// Children only.
    Struct,
    /// Type codes; children of the same length.
    SparseUnion,
    /// Type codes and offsets into the children.
    DenseUnion,
    /// Children only: run ends (of this width) and values.
    RunEnd { bytes: usize },
}

/// Bytes of one view of the string and binary view types.
pub(crate) const VIEW_BYTES: usize = 16;

impl ArrayLayout {
    /// The layout of a type; `None` for sizes below zero, which no parsed type has.
    pub fn of(data_type: &DataType) -> Option<ArrayLayout> {
        use DataType as T;
        let fixed =
            |bytes: usize| ArrayLayout::Fixed { bytes, alignment: bytes, is_dictionary: false };
        let aligned = |bytes: usize, alignment: usize| ArrayLayout::Fixed {
            bytes,
            alignment,
            is_dictionary: false,
        };
        Some(match data_type {
            T::Null => ArrayLayout::Null,
            T::Boolean => ArrayLayout::Bits,
            T::Int8 | T::UInt8 => fixed(1),
            T::Int16 | T::UInt16 | T::Float16 => fixed(2),
            T::Int32 | T::UInt32 | T::Float32 | T::Date32 | T::Time32(_) => fixed(4),
            T::Interval(IntervalUnit::YearMonth) | T::Decimal32(_, _) => fixed(4),
            T::Int64 | T::UInt64 | T::Float64 | T::Date64 | T::Time64(_) => fixed(8),
            T::Timestamp(_, _) | T::Duration(_) | T::Decimal64(_, _) => fixed(8),
            // arrow-rs aligns this type to 4, but compares its arrays as 64-bit numbers.
            T::Interval(IntervalUnit::DayTime) => fixed(8),
            T::Interval(IntervalUnit::MonthDayNano) => {
                aligned(16, align_of::<IntervalMonthDayNano>())
            }
            T::Decimal128(_, _) => aligned(16, align_of::<i128>()),
            T::Decimal256(_, _) => aligned(32, align_of::<i256>()),
            T::FixedSizeBinary(bytes) => aligned(usize::try_from(*bytes).ok()?, 1),
            T::Binary | T::Utf8 => ArrayLayout::Binary(OffsetWidth::Four),
            T::LargeBinary | T::LargeUtf8 => ArrayLayout::Binary(OffsetWidth::Eight),
            T::BinaryView | T::Utf8View => ArrayLayout::View,
            T::List(_) | T::Map(_, _) => ArrayLayout::List(OffsetWidth::Four),
            T::LargeList(_) => ArrayLayout::List(OffsetWidth::Eight),
            T::ListView(_) => ArrayLayout::ListView(OffsetWidth::Four),
            T::LargeListView(_) => ArrayLayout::ListView(OffsetWidth::Eight),
            T::FixedSizeList(_, items) => {
                ArrayLayout::FixedList { items: usize::try_from(*items).ok()? }
            }
            T::Struct(_) => ArrayLayout::Struct,
            T::Union(_, UnionMode::Sparse) => ArrayLayout::SparseUnion,
            T::Union(_, UnionMode::Dense) => ArrayLayout::DenseUnion,
            T::Dictionary(index, _) => {
                let bytes = index.primitive_width()?;
                ArrayLayout::Fixed { bytes, alignment: bytes, is_dictionary: true }
            }
            T::RunEndEncoded(ends, _) => {
                ArrayLayout::RunEnd { bytes: ends.data_type().primitive_width()? }
            }
        })
    }

    /// Whether arrays of this layout have a validity bitmap.
    pub fn has_validity(self) -> bool {
        !matches!(
            self,
            ArrayLayout::Null
                | ArrayLayout::SparseUnion
                | ArrayLayout::DenseUnion
                | ArrayLayout::RunEnd { .. }
        )
    }

    /// Number of buffers besides validity; for views, without the data buffers.
    pub fn buffers(self) -> usize {
        match self {
            ArrayLayout::Null
            | ArrayLayout::FixedList { .. }
            | ArrayLayout::Struct
            | ArrayLayout::RunEnd { .. } => 0,
            ArrayLayout::Bits
            | ArrayLayout::Fixed { .. }
            | ArrayLayout::View
            | ArrayLayout::List(_) => 1,
            ArrayLayout::SparseUnion => 1,
            ArrayLayout::Binary(_) | ArrayLayout::ListView(_) | ArrayLayout::DenseUnion => 2,
        }
    }
}

/// The arrow-rs type of a child, as stored in `ArrayData` (a dictionary's values are its only
/// child).
pub(crate) fn child_type(data_type: &DataType, index: usize) -> Option<&DataType> {
    use DataType as T;
    match data_type {
        T::List(child)
        | T::LargeList(child)
        | T::ListView(child)
        | T::LargeListView(child)
        | T::FixedSizeList(child, _)
        | T::Map(child, _) => (index == 0).then(|| child.data_type()),
        T::Struct(fields) => fields.get(index).map(|field| field.data_type()),
        T::Union(fields, _) => fields.iter().nth(index).map(|(_, field)| field.data_type()),
        T::RunEndEncoded(ends, values) => match index {
            0 => Some(ends.data_type()),
            1 => Some(values.data_type()),
            _ => None,
        },
        T::Dictionary(_, values) => (index == 0).then_some(values.as_ref()),
        _ => None,
    }
}

/// Number of children in `ArrayData` of this type.
pub(crate) fn child_count(data_type: &DataType) -> usize {
    use DataType as T;
    match data_type {
        T::List(_)
        | T::LargeList(_)
        | T::ListView(_)
        | T::LargeListView(_)
        | T::FixedSizeList(_, _)
        | T::Map(_, _)
        | T::Dictionary(_, _) => 1,
        T::Struct(fields) => fields.len(),
        T::Union(fields, _) => fields.len(),
        T::RunEndEncoded(_, _) => 2,
        _ => 0,
    }
}

/// Whether two types have the same layout and meaning. Names and nullability of fields are
/// ignored.
pub(crate) fn same_type(a: &DataType, b: &DataType) -> bool {
    use DataType as T;
    match (a, b) {
        (T::FixedSizeList(_, m), T::FixedSizeList(_, n)) if m != n => return false,
        (T::Union(m, _), T::Union(n, _)) if !m.iter().map(|x| x.0).eq(n.iter().map(|x| x.0)) => {
            return false;
        }
        (T::Union(_, m), T::Union(_, n)) if m != n => return false,
        (T::Dictionary(m, _), T::Dictionary(n, _)) if m != n => return false,
        _ => {}
    }
    let count = child_count(a);
    if count == 0 && child_count(b) == 0 {
        return a == b;
    }
    std::mem::discriminant(a) == std::mem::discriminant(b)
        && count == child_count(b)
        && (0..count).all(|index| match (child_type(a, index), child_type(b, index)) {
            (Some(a), Some(b)) => same_type(a, b),
            _ => false,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_data::BufferSpec;

    /// arrow-rs is the reference for widths and alignments.
    #[test]
    fn layouts_agree_with_arrow() {
        for data_type in crate::testing::sample_types() {
            let ours = ArrayLayout::of(&data_type).unwrap();
            let theirs = arrow_data::layout(&data_type);
            assert_eq!(ours.has_validity(), theirs.can_contain_null_mask, "{data_type}");
            assert_eq!(ours.buffers(), theirs.buffers.len(), "{data_type}");
            if let ArrayLayout::Fixed { bytes, alignment, .. } = ours {
                let BufferSpec::FixedWidth { byte_width, alignment: least } = theirs.buffers[0]
                else {
                    panic!("{data_type} has a fixed width here only");
                };
                assert_eq!(bytes, byte_width, "{data_type}");
                assert!(alignment >= least, "{data_type}");
            }
        }
    }
}
