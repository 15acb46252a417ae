//! Statistics of a table's columns: nulls, bounds and order, which let a reader skip whole tables.
//!
//! [`Counting`] divides the work into tasks for several threads, beside a copy of the same bytes.
//! [`TableStatistics::encode`] writes at most the bytes that were reserved before the count. A
//! reader trusts none of them: [`TableStatistics::decode`] returns `None` for anything else than
//! this version and this schema. `docs/formats/statistics.md` specifies bytes and meaning.

mod bounds;
mod counting;
mod numbers;
mod parts;
mod scan;
mod texts;
mod values;
mod wire;

#[cfg(test)]
mod loop_tests;
#[cfg(test)]
mod tests;

use arrow_schema::DataType;

use crate::schema::{DEPTH_MAX, SchemaNode};

pub use counting::Counting;
pub use parts::{PARTS_VERSION, PartsLayout, decode_parts};
pub use wire::{STATISTICS_VERSION, reserved_bytes};

/// Statistics of one table, or of one part of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TableStatistics {
    /// Number of rows.
    pub rows: u64,
    /// The first fields of [`statistics_fields`], as many as fit.
    pub columns: Vec<ColumnStatistics>,
}

/// Statistics of one field: a column or a field nested in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColumnStatistics {
    /// Number of nulls; `None`: unknown.
    pub nulls: Option<u64>,
    /// Whether some values are NaN, which the bounds leave out.
    pub has_nan: bool,
    /// Whether there is neither null nor NaN and no value is below its predecessor.
    pub is_ascending: bool,
    /// Whether there is neither null nor NaN and no value is above its predecessor.
    pub is_descending: bool,
    /// No value is below it; `None`: unknown, or there is no value.
    pub min: Option<Bound>,
    /// No value is above it; `None`: unknown, or there is no value.
    pub max: Option<Bound>,
}

/// A bound of the values of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// The value as in Arrow's buffers: little-endian, or the bytes of a string. A boolean is one
    /// byte. For a dictionary, one of its values.
    pub bytes: Vec<u8>,
    /// Whether it is one of the values; false for a shortened string.
    pub is_exact: bool,
}

/// A field that has statistics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatisticsField<'a> {
    /// Numbers of the children from the table's root down to the field.
    pub path: Vec<usize>,
    /// Its node of the schema.
    pub node: &'a SchemaNode,
}

/// The fields that have statistics, each before its children. Children of unions and of run-end
/// encoded arrays are left out, and a dictionary's values belong to its field.
pub fn statistics_fields(schema: &SchemaNode) -> Vec<StatisticsField<'_>> {
    fn visit<'a>(node: &'a SchemaNode, path: &[usize], found: &mut Vec<StatisticsField<'a>>) {
        if !has_counted_children(node.data_type()) || path.len() >= DEPTH_MAX {
            return;
        }
        for (number, child) in node.children().iter().enumerate() {
            let path: Vec<usize> = path.iter().copied().chain([number]).collect();
            found.push(StatisticsField { path: path.clone(), node: child });
            visit(child, &path, found);
        }
    }
    let mut found = Vec::new();
    visit(schema, &[], &mut found);
    found
}

/// Whether the children of an array of this type have statistics.
fn has_counted_children(data_type: &DataType) -> bool {
    use DataType as T;
    matches!(
        data_type,
        T::Struct(_)
            | T::Map(_, _)
            | T::List(_)
            | T::LargeList(_)
            | T::ListView(_)
            | T::LargeListView(_)
            | T::FixedSizeList(_, _)
    )
}
