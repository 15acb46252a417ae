//! The columns by which a table is sorted and partitioned, and their values in a chunk.

use arrow_schema::DataType;
use farrow_arrow::SchemaNode;
use farrow_arrow::statistics::{
    Bound, ColumnStatistics, TableStatistics, reserved_bytes, statistics_fields,
};

use crate::error::Error;

/// The order and the partitions of a new table, or those expected of an existing one.
#[derive(Debug, Clone, Copy, Default)]
pub struct TableOptions<'a> {
    /// The column by which the rows of each partition ascend. Its type is an integer, a date or a
    /// time, and it has no nulls.
    pub sort_by: Option<&'a str>,
    /// Columns that have one value, or nothing but nulls, in each chunk.
    pub partition_by: &'a [&'a str],
}

/// The same by the numbers of the columns, as the root of a table stores it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct TableOrder {
    pub(super) sort_by: Option<usize>,
    pub(super) partition_by: Vec<usize>,
}

/// The values of these columns in one chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChunkKeys {
    /// The value of each column of the partition; `None`: null.
    pub(super) partition: Vec<Option<Vec<u8>>>,
    /// The first and the last value of the sorted column.
    pub(super) range: Option<(i128, i128)>,
}

impl TableOptions<'_> {
    /// Whether nothing is asked for.
    fn is_default(&self) -> bool {
        self.sort_by.is_none() && self.partition_by.is_empty()
    }
}

impl TableOrder {
    /// Finds the columns.
    pub(super) fn resolve(schema: &SchemaNode, options: &TableOptions<'_>) -> Result<Self, Error> {
        let sort_by = options.sort_by.map(|name| column(schema, name)).transpose()?;
        if let Some(number) = sort_by
            && let Some(node) = schema.children().get(number)
            && integer_bytes(node.data_type()).is_none()
        {
            return Err(Error::InvalidArgument(format!(
                "sort_by {:?}: a column of integers, dates or times, not of {}",
                text(node),
                node.data_type()
            )));
        }
        let partition_by: Result<Vec<usize>, Error> =
            options.partition_by.iter().map(|name| column(schema, name)).collect();
        Ok(Self { sort_by, partition_by: partition_by? })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sort_by.is_none() && self.partition_by.is_empty()
    }

    /// Fails if the expected order is another one; no expectation fits each.
    pub(super) fn check(
        &self,
        table: &str,
        schema: &SchemaNode,
        wanted: &TableOptions<'_>,
    ) -> Result<(), Error> {
        if wanted.is_default() || Self::resolve(schema, wanted)? == *self {
            return Ok(());
        }
        let names = self.partition_by.iter().map(|number| name_of(schema, *number));
        let names: Vec<&str> = names.collect();
        let sort_by = self.sort_by.map(|number| name_of(schema, number));
        Err(Error::InvalidArgument(format!(
            "huge table {table:?} has sort_by {sort_by:?} and partition_by {names:?}, not {:?} \
             and {:?}",
            wanted.sort_by, wanted.partition_by
        )))
    }

    /// The values of the columns in a chunk with these statistics, or what is wrong with the rows.
    pub(super) fn keys(
        &self,
        schema: &SchemaNode,
        found: &TableStatistics,
    ) -> Result<ChunkKeys, String> {
        let statistics = |number: usize| {
            let fields = statistics_fields(schema);
            let at = fields.iter().position(|field| field.path == [number]);
            let column = at.and_then(|at| found.columns.get(at));
            column.ok_or_else(|| format!("column {:?} has no statistics", name_of(schema, number)))
        };
        let mut partition = Vec::with_capacity(self.partition_by.len());
        for number in &self.partition_by {
            let data_type = schema.children().get(*number).map(SchemaNode::data_type);
            let value = single_value(statistics(*number)?, data_type, found.rows);
            partition.push(value.ok_or_else(|| {
                let name = name_of(schema, *number);
                format!(
                    "column {name:?} of its partitions has several values in {} rows, NaN, or \
                         one of more than 32 B",
                    found.rows
                )
            })?);
        }
        let mut range = None;
        if let Some(number) = self.sort_by {
            let column = statistics(number)?;
            let data_type = schema.children().get(number).map(SchemaNode::data_type);
            let value = |bound: &Option<Bound>| {
                bound.as_ref().zip(data_type).and_then(|(bound, of)| integer(&bound.bytes, of))
            };
            let bounds = value(&column.min).zip(value(&column.max));
            range = Some(bounds.filter(|_| column.is_ascending).ok_or_else(|| {
                let (name, nulls) = (name_of(schema, number), column.nulls.unwrap_or_default());
                format!(
                    "its {} rows do not ascend by {name:?}, of which {nulls} are null",
                    found.rows
                )
            })?);
        }
        Ok(ChunkKeys { partition, range })
    }
}

/// Fails if a chunk's statistics, of limited length, have no room for these columns.
pub(super) fn check_statistics(
    schema: &SchemaNode,
    order: &TableOrder,
    bytes_max: usize,
) -> Result<(), Error> {
    let (fits, _) = reserved_bytes(schema, bytes_max);
    let fields = statistics_fields(schema);
    for number in order.sort_by.iter().chain(&order.partition_by) {
        let at = fields.iter().position(|field| field.path == [*number]);
        if at.is_none_or(|at| at >= fits) {
            let name = name_of(schema, *number);
            return Err(Error::InvalidArgument(format!(
                "column {name:?}: a chunk has room for statistics of {fits} fields, and it is field \
                 {}: move it to the front",
                at.map_or(number + 1, |at| at + 1)
            )));
        }
    }
    Ok(())
}

/// The number of the only column of this name.
fn column(schema: &SchemaNode, name: &str) -> Result<usize, Error> {
    let same = |node: &SchemaNode| text(node) == name;
    let mut found = schema.children().iter().enumerate().filter(|(_, node)| same(node));
    match (found.next(), found.next()) {
        (Some((number, _)), None) => Ok(number),
        _ => {
            let names: Vec<_> = schema.children().iter().map(text).collect();
            Err(Error::InvalidArgument(format!("no column {name:?}, or several, among {names:?}")))
        }
    }
}

pub(super) fn name_of(schema: &SchemaNode, number: usize) -> &str {
    schema.children().get(number).map_or("", text)
}

/// The name of a column; a name that is not UTF-8 is none that a caller can give.
fn text(node: &SchemaNode) -> &str {
    node.name().and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default()
}

/// The value that all rows have: `Some(None)` if they are null.
fn single_value(
    column: &ColumnStatistics,
    data_type: Option<&DataType>,
    rows: u64,
) -> Option<Option<Vec<u8>>> {
    if column.nulls == Some(rows) {
        return Some(None);
    }
    let (min, max) = (column.min.as_ref()?, column.max.as_ref()?);
    let is_same = min.bytes == max.bytes || are_zeros(&min.bytes, &max.bytes, data_type);
    let is_one = min.is_exact && max.is_exact && is_same;
    (is_one && column.nulls == Some(0) && !column.has_nan).then(|| Some(max.bytes.clone()))
}

/// Whether these are the bounds of floating-point zeros: -0.0 and 0.0, whatever their signs.
fn are_zeros(min: &[u8], max: &[u8], data_type: Option<&DataType>) -> bool {
    let values = match data_type {
        Some(DataType::Dictionary(_, values)) => values,
        Some(other) => other,
        None => return false,
    };
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    values.is_floating()
        && is_zero(max)
        && min.split_last().is_some_and(|(top, rest)| *top == 0x80 && is_zero(rest))
}

/// Bytes of a type whose values are integers in memory, and whether they have a sign.
fn integer_bytes(data_type: &DataType) -> Option<(usize, bool)> {
    use DataType as T;
    match data_type {
        T::Int8 => Some((1, true)),
        T::Int16 => Some((2, true)),
        T::Int32 | T::Date32 | T::Time32(_) => Some((4, true)),
        T::Int64 | T::Date64 | T::Time64(_) | T::Timestamp(_, _) | T::Duration(_) => {
            Some((8, true))
        }
        T::UInt8 => Some((1, false)),
        T::UInt16 => Some((2, false)),
        T::UInt32 => Some((4, false)),
        T::UInt64 => Some((8, false)),
        _ => None,
    }
}

/// A little-endian value of such a type.
fn integer(bytes: &[u8], data_type: &DataType) -> Option<i128> {
    let (length, is_signed) = integer_bytes(data_type)?;
    if bytes.len() != length {
        return None;
    }
    let is_negative = is_signed && bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = if is_negative { [0xff; 16] } else { [0; 16] };
    wide.get_mut(..length)?.copy_from_slice(bytes);
    Some(i128::from_le_bytes(wide))
}

#[cfg(test)]
mod tests {
    use arrow_schema::TimeUnit;

    use super::*;

    #[test]
    fn integers_of_all_widths_keep_their_sign() {
        for (bytes, data_type, value) in [
            (vec![0xff], DataType::Int8, Some(-1)),
            (vec![0xff], DataType::UInt8, Some(255)),
            (vec![0, 0x80], DataType::Int16, Some(-32768)),
            (vec![1, 0, 0, 0], DataType::Date32, Some(1)),
            (vec![0xff; 8], DataType::UInt64, Some(i128::from(u64::MAX))),
            (vec![0xfe; 8], DataType::Timestamp(TimeUnit::Second, None), Some(-0x101010101010102)),
            (vec![1, 2], DataType::Int32, None),
            (vec![0; 8], DataType::Float64, None),
        ] {
            assert_eq!(integer(&bytes, &data_type), value, "{data_type}");
        }
    }

    #[test]
    fn one_value_is_one_exact_bound_without_nulls() {
        let bound = |byte: u8, is_exact| Some(Bound { bytes: vec![byte], is_exact });
        let column = |nulls, min, max| ColumnStatistics {
            nulls: Some(nulls),
            min,
            max,
            ..ColumnStatistics::default()
        };
        let one = column(0, bound(7, true), bound(7, true));
        assert_eq!(single_value(&one, None, 3), Some(Some(vec![7])));
        assert_eq!(single_value(&column(3, None, None), None, 3), Some(None));
        for several in [
            column(1, bound(7, true), bound(7, true)),
            column(0, bound(7, true), bound(8, true)),
            column(0, bound(7, false), bound(7, false)),
            column(0, None, None),
        ] {
            assert_eq!(single_value(&several, None, 3), None, "{several:?}");
        }
        let zero = |top: u8| Some(Bound { bytes: vec![0, 0, 0, top], is_exact: true });
        let zeros = column(0, zero(0x80), zero(0));
        let found = single_value(&zeros, Some(&DataType::Float32), 3);
        assert_eq!(found, Some(Some(vec![0; 4])));
        assert_eq!(single_value(&zeros, Some(&DataType::Int32), 3), None);
    }
}
