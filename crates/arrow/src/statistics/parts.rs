//! Statistics of the parts of a table that lies in one object.
//!
//! A table that was put at once has few batches, often one, so its rows are divided: bounds of all
//! rows together exclude nothing. `docs/formats/statistics.md` specifies the bytes.

use std::ops::Range;

use super::{Counting, TableStatistics, reserved_bytes};
use crate::describe::BatchData;
use crate::schema::SchemaNode;

/// Version of the bytes of all parts together.
pub const PARTS_VERSION: u8 = 1;

/// Version and number of parts.
const HEADER_BYTES: usize = 1 + 2;
/// Length of the statistics of a part.
const LENGTH_BYTES: usize = 2;
/// Least rows of a part: as many as Arrow scans at a time.
const ROWS_MIN: usize = 1 << 17;
/// A part ends at a multiple of this number of rows in its batch: whole words of a bitmap.
const ROWS_STEP: usize = 64;

/// Contiguous rows of one batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BatchRows {
    /// The number of the batch.
    pub(super) batch: usize,
    /// Rows of the batch.
    pub(super) rows: Range<usize>,
}

/// How a table is divided into parts, and the bytes reserved for their statistics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartsLayout {
    fields: usize,
    /// Bytes of a part, without its length.
    part_bytes: usize,
    parts: Vec<Vec<BatchRows>>,
}

impl PartsLayout {
    /// Plans parts whose statistics always fit in `bytes_max`. The fields are all that fit for one
    /// part, and as many parts as fit with these fields are allowed.
    ///
    /// A large batch is divided alone into parts of about 131,072 rows or more. Smaller batches that
    /// follow each other are joined up to that number, and never divided. The number of rows is at
    /// least that of the table divided by the allowed parts, and is doubled while there are more
    /// parts than allowed.
    ///
    /// `None` if not even one field fits, and for a table without rows.
    pub fn new(schema: &SchemaNode, batches: &[BatchData], bytes_max: usize) -> Option<Self> {
        let room = bytes_max.checked_sub(HEADER_BYTES)?.min(usize::from(u16::MAX));
        let (fields, part_bytes) = reserved_bytes(schema, room.checked_sub(LENGTH_BYTES)?);
        let parts_max = room / (LENGTH_BYTES + part_bytes);
        let parts = divide(batches, parts_max);
        (fields > 0 && !parts.is_empty()).then_some(Self { fields, part_bytes, parts })
    }

    /// The bytes to reserve.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.parts.len() * (LENGTH_BYTES + self.part_bytes)
    }

    /// Plans the count.
    pub fn counting<'a>(&self, schema: &'a SchemaNode, batches: &'a [BatchData]) -> Counting<'a> {
        Counting::of_parts(schema, batches, &self.parts, self.fields)
    }

    /// The bytes of the statistics of all parts, as many as are reserved.
    pub fn encode(&self, counted: &[TableStatistics], schema: &SchemaNode) -> Option<Vec<u8>> {
        let mut bytes = vec![PARTS_VERSION];
        bytes.extend(u16::try_from(counted.len()).ok()?.to_le_bytes());
        for part in counted {
            let encoded = part.encode(schema, self.part_bytes)?;
            bytes.extend(u16::try_from(encoded.len()).ok()?.to_le_bytes());
            bytes.extend(encoded);
        }
        let reserved = self.bytes();
        if bytes.len() > reserved {
            return None;
        }
        bytes.resize(reserved, 0);
        Some(bytes)
    }
}

/// Reads the statistics of all parts of a table of this schema and this many rows, in order, from
/// bytes that anybody may have written. `None` for another version, schema or number of rows, and
/// for bytes that are damaged.
pub fn decode_parts(bytes: &[u8], schema: &SchemaNode, rows: u64) -> Option<Vec<TableStatistics>> {
    let (version, rest) = bytes.split_first()?;
    let (count, mut rest) = rest.split_first_chunk()?;
    let mut parts = Vec::new();
    let mut left = rows;
    for _ in 0..u16::from_le_bytes(*count) {
        let (length, behind) = rest.split_first_chunk()?;
        let (part, behind) = behind.split_at_checked(u16::from_le_bytes(*length).into())?;
        let part = TableStatistics::decode_any(part, schema)?;
        left = left.checked_sub(part.rows).filter(|_| part.rows > 0)?;
        parts.push(part);
        rest = behind;
    }
    let is_whole = *version == PARTS_VERSION && left == 0 && !parts.is_empty();
    (is_whole && rest.iter().all(|byte| *byte == 0)).then_some(parts)
}

/// Divides the rows of a table into at most this number of parts, in order, none of them empty.
///
/// A large batch is divided alone, and small ones that follow each other are one part: rows that
/// were put as one batch often belong together.
fn divide(batches: &[BatchData], parts_max: usize) -> Vec<Vec<BatchRows>> {
    let rows = batches.iter().map(|batch| batch.rows).fold(0, usize::saturating_add);
    let mut target = rows.div_ceil(parts_max.max(1)).max(ROWS_MIN);
    loop {
        let parts = divide_by(batches, target);
        if parts.len() <= parts_max.max(1) {
            return parts;
        }
        // Ends: with as many rows as the table has, it is one part.
        target = target.saturating_mul(2);
    }
}

/// Divides the rows into parts of about this number of rows.
fn divide_by(batches: &[BatchData], target: usize) -> Vec<Vec<BatchRows>> {
    let mut parts: Vec<Vec<BatchRows>> = Vec::new();
    // Rows of the last part, if small batches may still follow in it.
    let mut open: Option<usize> = None;
    for (batch, rows) in batches.iter().map(|batch| batch.rows).enumerate() {
        if rows == 0 {
            continue;
        }
        if rows >= target {
            let step = rows.div_ceil(rows / target).next_multiple_of(ROWS_STEP);
            for start in (0..rows).step_by(step) {
                let rows = start..rows.min(start.saturating_add(step));
                parts.push(vec![BatchRows { batch, rows }]);
            }
            open = None;
            continue;
        }
        let own = BatchRows { batch, rows: 0..rows };
        match (open, parts.last_mut()) {
            (Some(before), Some(last)) if before + rows <= target => {
                last.push(own);
                open = Some(before + rows);
            }
            _ => {
                parts.push(vec![own]);
                open = Some(rows);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Array, ArrayRef, Int64Array, StringArray};
    use arrow_schema::{DataType, Field, Schema};
    use proptest::prelude::*;

    use super::*;
    use crate::testing::any_table;

    fn of_rows(rows: &[usize]) -> Vec<BatchData> {
        rows.iter().map(|rows| BatchData { rows: *rows, columns: Vec::new() }).collect()
    }

    fn rows_of(parts: &[Vec<BatchRows>]) -> Vec<usize> {
        let of_part = |part: &Vec<BatchRows>| part.iter().map(|one| one.rows.len()).sum();
        parts.iter().map(of_part).collect()
    }

    fn numbers(rows: Range<i64>) -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(rows))
    }

    fn table(columns: &[(&str, ArrayRef)]) -> (SchemaNode, Vec<BatchData>) {
        let field =
            |(name, column): &(&str, ArrayRef)| Field::new(*name, column.data_type().clone(), true);
        let schema = Schema::new(columns.iter().map(field).collect::<Vec<_>>());
        let rows = columns[0].1.len();
        let columns = columns.iter().map(|(_, column)| column.to_data()).collect();
        (SchemaNode::try_from(&schema).unwrap(), vec![BatchData { rows, columns }])
    }

    fn count(schema: &SchemaNode, batches: &[BatchData], bytes_max: usize) -> Option<Vec<u8>> {
        let layout = PartsLayout::new(schema, batches, bytes_max)?;
        let bytes = layout.encode(&layout.counting(schema, batches).finish_parts(), schema)?;
        assert_eq!(bytes.len(), layout.bytes());
        assert!(bytes.len() <= bytes_max);
        Some(bytes)
    }

    #[test]
    fn large_batches_are_divided_and_small_ones_joined() {
        let all = |rows: &[usize], parts_max| rows_of(&divide(&of_rows(rows), parts_max));
        assert_eq!(all(&[5, 0, 7], 40), [12]);
        assert_eq!(all(&[ROWS_MIN; 3], 40), [ROWS_MIN; 3]);
        assert_eq!(all(&[10 * ROWS_MIN], 40), [ROWS_MIN; 10]);
        assert_eq!(all(&[10 * ROWS_MIN], 5), [2 * ROWS_MIN; 5]);
        assert_eq!(all(&[10 * ROWS_MIN], 1), [10 * ROWS_MIN]);
        // Batches of days stay apart, whatever their length is.
        assert_eq!(all(&[200_000, 70, 150_000], 40), [200_000, 70, 150_000]);
        assert_eq!(all(&[], 40), [0; 0]);
        assert_eq!(all(&[0, 0], 40), [0; 0]);
    }

    proptest! {
        #[test]
        fn a_division_has_all_rows_once_in_order(
            rows in prop::collection::vec(0_usize..600_000, 0..40),
            parts_max in 1_usize..50,
        ) {
            let parts = divide(&of_rows(&rows), parts_max);
            prop_assert!(parts.len() <= parts_max);
            let mut found = vec![0; rows.len()];
            let mut last = 0;
            for part in &parts {
                prop_assert!(!part.is_empty());
                for one in part {
                    prop_assert!(one.batch >= last && !one.rows.is_empty());
                    prop_assert_eq!(one.rows.start, found[one.batch]);
                    (last, found[one.batch]) = (one.batch, one.rows.end);
                }
            }
            prop_assert_eq!(found, rows);
        }

        /// The parts of a table of small batches are one: its statistics are those of the table.
        #[test]
        fn one_part_has_the_statistics_of_the_table((schema, batches) in any_table()) {
            let schema = SchemaNode::try_from(&schema).unwrap();
            let rows: usize = batches.iter().map(|batch| batch.rows).sum();
            let Some(bytes) = count(&schema, &batches, 1 << 15) else {
                prop_assert!(rows == 0 || schema.children().is_empty());
                return Ok(());
            };
            let parts = decode_parts(&bytes, &schema, rows as u64).unwrap();
            let whole = Counting::new(&schema, &batches, parts[0].columns.len()).finish();
            prop_assert_eq!(parts, vec![whole]);
        }

        #[test]
        fn any_bytes_are_read_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..100),
            at in 0_usize..200,
            byte: u8,
        ) {
            let (schema, batches) = table(&[("n", numbers(0..9))]);
            prop_assert_eq!(decode_parts(&bytes, &schema, 9), None);
            let mut changed = count(&schema, &batches, 3000).unwrap();
            if let Some(place) = changed.get_mut(at) {
                *place = byte;
            }
            for part in decode_parts(&changed, &schema, 9).unwrap_or_default() {
                prop_assert_eq!(part.rows, 9);
            }
        }
    }

    /// Each part has its own bounds, also where a batch is divided, and also of nested values.
    #[test]
    fn parts_have_their_own_bounds() {
        let rows = 3 * ROWS_MIN as i64;
        let nested = arrow_array::StructArray::from(vec![(
            Arc::new(Field::new("x", DataType::Int64, true)),
            numbers(-5..rows + 5).slice(5, rows as usize),
        )]);
        let (schema, batches) = table(&[("n", numbers(0..rows)), ("s", Arc::new(nested))]);
        let bytes = count(&schema, &batches, 3000).unwrap();
        let parts = decode_parts(&bytes, &schema, rows as u64).unwrap();
        let step = ROWS_MIN as i64;
        for (part, start) in parts.iter().zip((0..rows).step_by(ROWS_MIN)) {
            let bounds: Vec<_> = part.columns.iter().map(|one| (&one.min, &one.max)).collect();
            let bound = |value: i64| Some(value.to_le_bytes().to_vec());
            for (min, max) in [bounds[0], bounds[2]] {
                assert_eq!(min.as_ref().map(|one| one.bytes.clone()), bound(start));
                assert_eq!(max.as_ref().map(|one| one.bytes.clone()), bound(start + step - 1));
            }
            assert!(part.columns[0].is_ascending);
            assert_eq!(part.rows, ROWS_MIN as u64);
        }
        assert_eq!(parts.len(), 3);
        for rows in [0, rows as u64 - 1, rows as u64 + 1] {
            assert_eq!(decode_parts(&bytes, &schema, rows), None);
        }
    }

    /// A table of many columns has few parts, or one, before it loses columns.
    #[test]
    fn columns_come_before_parts() {
        let parts_of = |columns: usize, bytes_max: usize| {
            let names: Vec<String> = (0..columns).map(|number| number.to_string()).collect();
            let column = numbers(0..8 * ROWS_MIN as i64);
            let all: Vec<_> = names.iter().map(|name| (&**name, Arc::clone(&column))).collect();
            let (schema, batches) = table(&all);
            let layout = PartsLayout::new(&schema, &batches, bytes_max)?;
            Some((layout.parts.len(), layout.fields))
        };
        assert_eq!(parts_of(2, 3000), Some((8, 2)));
        assert_eq!(parts_of(40, 3000), Some((2, 40)));
        assert_eq!(parts_of(100, 3000), Some((1, 100)));
        assert_eq!(parts_of(300, 3000), Some((1, 119)));
        assert_eq!(parts_of(2, 30), None);
        assert_eq!(parts_of(2, 2), None);
    }

    #[test]
    fn golden_bytes() {
        let text: ArrayRef = Arc::new(StringArray::from(vec![Some("b"), None, Some("a")]));
        let numbers: ArrayRef = Arc::new(arrow_array::Int32Array::from(vec![1, 2, 5]));
        let (schema, batches) = table(&[("n", numbers), ("s", text)]);
        let bytes = count(&schema, &batches, 3000).unwrap();
        let (used, zeros) = bytes.split_at(GOLDEN.len() / 2);
        let hex: String = used.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, GOLDEN);
        assert_eq!(zeros, [0; 68]);
    }

    /// Version, one part, its length, and its statistics.
    const GOLDEN: &str = "0101002d0001f3cbb2d403000000000000000200f50000000000000000010000000500\
        0000f1010000000000000001610162";

    #[test]
    fn texts_leave_zeros_behind_them() {
        let text: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
        let (schema, batches) = table(&[("t", text)]);
        let bytes = count(&schema, &batches, 3000).unwrap();
        assert!(decode_parts(&bytes, &schema, 2).is_some());
        let mut longer = bytes.clone();
        longer.push(1);
        assert_eq!(decode_parts(&longer, &schema, 2), None);
    }
}
