//! Kinds of objects, as stored in the descriptor's kind byte.

use std::fmt;

/// Kind of an object. The store's directory uses the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A NumPy array: one buffer, a dtype and a shape.
    NdArray = 2,
    /// One Arrow array.
    Array = 3,
    /// A sequence of Arrow arrays of one type.
    ChunkedArray = 4,
    /// One record batch.
    RecordBatch = 5,
    /// A sequence of record batches of one schema.
    Table = 6,
}

impl Kind {
    /// The kind of a kind byte. `None` for an unknown byte, and for 1 (plain bytes), which
    /// has no descriptor.
    pub fn from_u8(byte: u8) -> Option<Kind> {
        Some(match byte {
            2 => Kind::NdArray,
            3 => Kind::Array,
            4 => Kind::ChunkedArray,
            5 => Kind::RecordBatch,
            6 => Kind::Table,
            _ => return None,
        })
    }

    /// Whether the root of the schema is a struct whose children are columns.
    pub fn is_tabular(self) -> bool {
        matches!(self, Kind::RecordBatch | Kind::Table)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::NdArray => "a NumPy array",
            Kind::Array => "an array",
            Kind::ChunkedArray => "a chunked array",
            Kind::RecordBatch => "a record batch",
            Kind::Table => "a table",
        })
    }
}

/// Order of the items of a NumPy array in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Row-major: the last index varies fastest.
    C,
    /// Column-major: the first index varies fastest.
    F,
}

/// Type and shape of a contiguous NumPy array.
///
/// `dtype` is opaque to this crate: any text that the binding can convert back to a dtype, for
/// example `<f8` or the text of a structured `descr`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NdArray {
    /// The dtype as text.
    pub dtype: String,
    /// Bytes of one item.
    pub item_bytes: u64,
    /// Items along each axis; empty for a scalar.
    pub shape: Vec<u64>,
    /// Order of items.
    pub order: Order,
}

impl NdArray {
    /// Number of items, `None` on overflow.
    pub fn items(&self) -> Option<u64> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        self.shape.iter().try_fold(1u64, |n, axis| n.checked_mul(*axis))
    }

    /// Number of bytes, `None` on overflow.
    pub fn bytes(&self) -> Option<u64> {
        self.items()?.checked_mul(self.item_bytes)
    }
}
