//! Statistics against slow definitions, and bytes against anything.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, Float64Array, Int32Array, Int64Array, ListArray, RecordBatch, StringArray,
    StringViewArray, StructArray, types::Int8Type,
};
use arrow_array::{BinaryArray, BooleanArray, Decimal256Array, DictionaryArray};
use arrow_buffer::{NullBuffer, i256};
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, Schema};
use proptest::prelude::*;

use super::*;
use crate::describe::BatchData;
use crate::testing::any_table;

/// The statistics of a table, as they come back from their bytes.
fn count(schema: &SchemaNode, batches: &[BatchData], threads: usize) -> TableStatistics {
    let (fields, bytes) = reserved_bytes(schema, 1 << 20);
    let counting = Counting::new(schema, batches, fields);
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| drop(scope.spawn(|| counting.work())));
    });
    let counted = counting.finish();
    if bytes == 0 {
        return counted;
    }
    let mut encoded = counted.encode(schema, bytes).unwrap();
    encoded.resize(bytes, 0);
    assert_eq!(TableStatistics::decode(&encoded, schema, counted.rows).as_ref(), Some(&counted));
    counted
}

fn of(chunks: &[ArrayRef]) -> Vec<ColumnStatistics> {
    let field = Field::new("c", chunks[0].data_type().clone(), true);
    let schema = Arc::new(Schema::new(vec![field]));
    let batches: Vec<BatchData> = chunks
        .iter()
        .map(|chunk| {
            BatchData::from(&RecordBatch::try_new(schema.clone(), vec![chunk.clone()]).unwrap())
        })
        .collect();
    count(&SchemaNode::try_from(schema.as_ref()).unwrap(), &batches, 2).columns
}

fn exact(bytes: &[u8]) -> Option<Bound> {
    Some(Bound { bytes: bytes.to_vec(), is_exact: true })
}

fn shortened(text: &str) -> Option<Bound> {
    Some(Bound { bytes: text.as_bytes().to_vec(), is_exact: false })
}

fn floats(values: &[Option<f64>]) -> ColumnStatistics {
    of(&[Arc::new(Float64Array::from(values.to_vec()))]).remove(0)
}

/// Counts what begins in each piece of each buffer of an array, as a copy does.
fn see(counting: &Counting<'_>, data: &ArrayData) {
    data.buffers()
        .iter()
        .flat_map(|buffer| buffer.chunks(7))
        .for_each(|piece| counting.work_on(piece));
    data.child_data().iter().for_each(|child| see(counting, child));
}

/// A column of 100,000 numbers is counted piece by piece, and nothing is left.
#[test]
fn a_copy_leaves_nothing_to_count() {
    let column = Int64Array::from_iter_values(0..100_000).slice(3, 99_000);
    let schema = Schema::new(vec![Field::new("n", DataType::Int64, true)]);
    let schema = SchemaNode::try_from(&schema).unwrap();
    let batches = [BatchData { rows: column.len(), columns: vec![column.to_data()] }];
    let counting = Counting::new(&schema, &batches, 1);
    assert!(counting.tasks_left() > 2);
    see(&counting, &batches[0].columns[0]);
    assert_eq!(counting.tasks_left(), 0);
    assert_eq!(counting.finish().columns, of(&[Arc::new(column)]));
}

#[test]
fn nan_is_no_bound_and_is_reported() {
    let found = floats(&[Some(1.0), Some(f64::NAN), None, Some(-2.0)]);
    assert_eq!((found.nulls, found.has_nan), (Some(1), true));
    assert_eq!(found.min, exact(&(-2.0f64).to_le_bytes()));
    assert_eq!(found.max, exact(&1.0f64.to_le_bytes()));
    assert!(!found.is_ascending && !found.is_descending);
    let none = floats(&[Some(f64::NAN), Some(f64::NAN)]);
    assert_eq!((none.nulls, none.has_nan, none.min, none.max), (Some(0), true, None, None));
}

#[test]
fn both_zeros_lie_between_the_bounds() {
    for zero in [0.0, -0.0] {
        let found = floats(&[Some(zero)]);
        assert_eq!(found.min, exact(&(-0.0f64).to_le_bytes()));
        assert_eq!(found.max, exact(&0.0f64.to_le_bytes()));
        assert!(found.is_ascending && found.is_descending);
    }
}

#[test]
fn a_column_without_values_has_no_bounds() {
    let nulls: ArrayRef = Arc::new(Int64Array::from(vec![None, None]));
    let found = of(std::slice::from_ref(&nulls)).remove(0);
    assert_eq!((found.nulls, found.min, found.max), (Some(2), None, None));
    let empty = of(&[Arc::new(Int64Array::from(Vec::<i64>::new()))]).remove(0);
    assert_eq!((empty.nulls, empty.min, empty.is_ascending), (Some(0), None, false));
    // Values in another chunk.
    let found = of(&[nulls, Arc::new(Int64Array::from(vec![7]))]).remove(0);
    assert_eq!((found.nulls, found.min), (Some(2), exact(&7i64.to_le_bytes())));
}

#[test]
fn order_goes_through_all_chunks() {
    let chunk = |values: Vec<i32>| -> ArrayRef { Arc::new(Int32Array::from(values)) };
    let order = |chunks: &[ArrayRef]| {
        let found = of(chunks).remove(0);
        (found.is_ascending, found.is_descending)
    };
    assert_eq!(order(&[chunk(vec![1, 2, 2]), chunk(vec![]), chunk(vec![2, 9])]), (true, false));
    assert_eq!(order(&[chunk(vec![1, 2]), chunk(vec![1, 9])]), (false, false));
    assert_eq!(order(&[chunk(vec![3, 1]), chunk(vec![1])]), (false, true));
    assert_eq!(order(&[chunk(vec![3; 9000])]), (true, true));
    assert_eq!(order(&[chunk((0..9000).rev().collect())]), (false, true));
    let mut late: Vec<i32> = (0..9000).collect();
    late[8999] = 0;
    assert_eq!(order(&[chunk(late)]), (false, false));
    assert_eq!(order(&[Arc::new(Int32Array::from(vec![Some(1), None]))]), (false, false));
}

#[test]
fn bounds_of_long_strings_stay_bounds() {
    let text = |value: String| of(&[Arc::new(StringArray::from(vec![value]))]).remove(0);
    let found = text("a".repeat(40));
    assert_eq!(found.min, shortened(&"a".repeat(32)));
    assert_eq!(found.max, shortened(&format!("{}b", "a".repeat(31))));
    assert_eq!(text("a".repeat(32)).max, exact("a".repeat(32).as_bytes()));
    // A character is never cut in two, and the one after U+D7FF is U+E000.
    let found = text("\u{d7ff}".repeat(20));
    assert_eq!(found.min, shortened(&"\u{d7ff}".repeat(10)));
    assert_eq!(found.max, shortened(&format!("{}\u{e000}", "\u{d7ff}".repeat(9))));
    // Nothing is above the highest character.
    let found = text("\u{10ffff}".repeat(9));
    assert_eq!((found.min, found.max), (shortened(&"\u{10ffff}".repeat(8)), None));
    let bytes = |value: Vec<u8>| of(&[Arc::new(BinaryArray::from(vec![&value[..]]))]).remove(0);
    let mut value = vec![7; 40];
    value[31] = 255;
    let max = bytes(value).max.unwrap();
    assert_eq!((max.bytes.len(), max.bytes.last(), max.is_exact), (31, Some(&8), false));
    assert_eq!(bytes(vec![255; 40]).max, None);
}

#[test]
fn other_types_have_bounds_too() {
    let views: ArrayRef = Arc::new(StringViewArray::from(vec![
        Some("short"),
        None,
        Some("a string that is not inline"),
    ]));
    let found = of(&[views]).remove(0);
    assert_eq!(found.min, exact(b"a string that is not inline"));
    assert_eq!((found.nulls, found.max), (Some(1), exact(b"short")));
    let bits: ArrayRef = Arc::new(BooleanArray::from(vec![Some(true), None, Some(true)]));
    let found = of(&[bits]).remove(0);
    assert_eq!((found.min, found.max), (exact(&[1]), exact(&[1])));
    let big: ArrayRef = Arc::new(Decimal256Array::from(vec![i256::MAX, i256::MIN, i256::ZERO]));
    let found = of(&[big]).remove(0);
    assert_eq!(
        (found.min, found.max),
        (exact(&i256::MIN.to_le_bytes()), exact(&i256::MAX.to_le_bytes()))
    );
}

#[test]
fn a_dictionary_counts_the_values_that_are_used() {
    let values: ArrayRef = Arc::new(StringArray::from(vec![Some("z"), Some("b"), None, Some("c")]));
    let keys = arrow_array::Int8Array::from(vec![Some(1), None, Some(3), Some(2)]);
    let dictionary = DictionaryArray::<Int8Type>::try_new(keys, values).unwrap();
    let found = of(&[Arc::new(dictionary)]).remove(0);
    assert_eq!((found.nulls, found.min, found.max), (Some(2), exact(b"b"), exact(b"c")));
}

#[test]
fn nested_fields_are_counted_where_they_are_used() {
    let inner: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), Some(-9), None, Some(4)]));
    let field = Arc::new(Field::new("n", DataType::Int32, true));
    // The null of a struct hides -9.
    let nulls = NullBuffer::from(vec![true, false, true, true]);
    let nested = StructArray::new(vec![field].into(), vec![inner], Some(nulls));
    let found = of(&[Arc::new(nested.slice(1, 3))]);
    assert_eq!((found[0].nulls, found[1].nulls), (Some(1), Some(2)));
    assert_eq!((&found[0].min, &found[1].min), (&None, &exact(&4i32.to_le_bytes())));
    let lists = ListArray::from_iter_primitive::<arrow_array::types::Int32Type, _, _>([
        Some(vec![Some(100)]),
        Some(vec![Some(1), None]),
        None,
        Some(vec![Some(3)]),
    ]);
    let found = of(&[Arc::new(lists.slice(1, 3))]);
    assert_eq!((found[0].nulls, found[1].nulls), (Some(1), Some(1)));
    assert_eq!(found[1].max, exact(&3i32.to_le_bytes()));
}

#[test]
fn what_does_not_fit_is_left_out_from_the_end() {
    let fields: Vec<Field> =
        (0..100).map(|n| Field::new(format!("c{n}"), DataType::Int64, true)).collect();
    let schema = SchemaNode::try_from(&Schema::new(fields)).unwrap();
    let (fields, bytes) = reserved_bytes(&schema, 1000);
    assert_eq!((fields, bytes), (39, 15 + 39 * 25));
    assert_eq!(reserved_bytes(&schema, 39), (0, 0));
    let counted = Counting::new(&schema, &[], fields).finish();
    assert_eq!(counted.columns.len(), 39);
    let bytes = counted.encode(&schema, 100).unwrap();
    let read = TableStatistics::decode(&bytes, &schema, 0).unwrap();
    assert_eq!((bytes.len(), read.columns.len()), (96, 9));
    assert_eq!(counted.encode(&schema, 23), None);
}

#[test]
fn another_version_schema_or_number_of_rows_has_no_statistics() {
    let node = |name: &str, data_type| {
        SchemaNode::try_from(&Schema::new(vec![Field::new(name, data_type, true)])).unwrap()
    };
    let schema = node("c", DataType::Int64);
    let batch = BatchData { rows: 2, columns: vec![Int64Array::from(vec![3, 4]).to_data()] };
    let batches = [batch];
    let (fields, length) = reserved_bytes(&schema, 1000);
    let bytes = Counting::new(&schema, &batches, fields).finish().encode(&schema, length).unwrap();
    assert!(TableStatistics::decode(&bytes, &schema, 2).is_some());
    assert_eq!(TableStatistics::decode(&bytes, &schema, 3), None);
    assert_eq!(TableStatistics::decode(&bytes, &node("d", DataType::Int64), 2), None);
    assert_eq!(TableStatistics::decode(&bytes, &node("c", DataType::UInt64), 2), None);
    let mut newer = bytes.clone();
    newer[0] = STATISTICS_VERSION + 1;
    assert_eq!(TableStatistics::decode(&newer, &schema, 2), None);
    // More nulls than rows.
    let mut wrong = bytes.clone();
    wrong[16] = 3;
    assert_eq!(TableStatistics::decode(&wrong, &schema, 2), None);
    assert_eq!(TableStatistics::decode(&bytes[..bytes.len() - 1], &schema, 2), None);
}

/// Bytes of version 1, which never change: a reader of a later version still meets them.
#[test]
fn golden_bytes() {
    let schema = Schema::new(vec![
        Field::new("n", DataType::Int32, true),
        Field::new("s", DataType::Utf8, true),
    ]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int32Array::from(vec![1, 2, 5])),
        Arc::new(StringArray::from(vec![Some("b"), None, Some("a")])),
    ];
    let batch = RecordBatch::try_new(Arc::new(schema.clone()), columns).unwrap();
    let node = SchemaNode::try_from(&schema).unwrap();
    let batches = [BatchData::from(&batch)];
    let bytes = Counting::new(&node, &batches, 2).finish().encode(&node, 60).unwrap();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, GOLDEN);
}

const GOLDEN: &str = "01f3cbb2d403000000000000000200f50000000000000000010000000500000\
    0f1010000000000000001610162";

proptest! {
    #[test]
    fn numbers_agree_with_the_definition(
        values in prop::collection::vec(prop::option::weighted(0.9, -50..50i64), 0..9000),
        cuts in prop::collection::vec(0..9000usize, 0..3),
    ) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(values.len())).collect();
        cuts.extend([0, values.len()]);
        cuts.sort_unstable();
        let whole = Int64Array::from(values.clone());
        let pairs = cuts.windows(2).map(|pair| whole.slice(pair[0], pair[1] - pair[0]));
        let chunks: Vec<ArrayRef> = pairs.map(|chunk| Arc::new(chunk) as ArrayRef).collect();
        let found = of(&chunks).remove(0);
        let present: Vec<i64> = values.iter().flatten().copied().collect();
        prop_assert_eq!(found.nulls, Some((values.len() - present.len()) as u64));
        let bound = |value: Option<&i64>| value.and_then(|value| exact(&value.to_le_bytes()));
        prop_assert_eq!(found.min, bound(present.iter().min()));
        prop_assert_eq!(found.max, bound(present.iter().max()));
        let is_ordered = present.is_sorted() && present.len() == values.len() && !values.is_empty();
        prop_assert_eq!(found.is_ascending, is_ordered);
    }

    #[test]
    fn strings_lie_between_their_bounds(
        values in prop::collection::vec("[a\u{7f}\u{ff}\u{d7ff}\u{10ffff}]{0,40}", 1..20),
    ) {
        let found = of(&[Arc::new(StringArray::from(values.clone()))]).remove(0);
        let (least, most) = (values.iter().min().unwrap(), values.iter().max().unwrap());
        let min = found.min.unwrap();
        prop_assert!(std::str::from_utf8(&min.bytes).is_ok());
        prop_assert!(min.bytes.as_slice() <= least.as_bytes());
        prop_assert_eq!(min.is_exact, min.bytes == least.as_bytes());
        if let Some(max) = found.max {
            prop_assert!(std::str::from_utf8(&max.bytes).is_ok());
            prop_assert!(max.bytes.as_slice() >= most.as_bytes());
            prop_assert_eq!(max.is_exact, max.bytes == most.as_bytes());
        }
        prop_assert_eq!(found.is_ascending, values.is_sorted());
    }

    #[test]
    fn any_table_is_counted_alike_by_any_number_of_threads((schema, batches) in any_table()) {
        let schema = SchemaNode::try_from(&schema).unwrap();
        let one = count(&schema, &batches, 0);
        prop_assert_eq!(&one, &count(&schema, &batches, 3));
        let (fields, _) = reserved_bytes(&schema, 1 << 20);
        let counting = Counting::new(&schema, &batches, fields);
        batches.iter().flat_map(|batch| &batch.columns).for_each(|data| see(&counting, data));
        prop_assert_eq!(one, counting.finish());
    }

    #[test]
    fn both_loops_over_numbers_agree(
        values in prop::collection::vec(any::<f64>(), 0..200),
        is_sorted in any::<bool>(),
    ) {
        let mut values = values;
        if is_sorted {
            values.sort_by(f64::total_cmp);
        }
        let cells: Vec<[u8; 8]> = values.iter().map(|value| value.to_le_bytes()).collect();
        let plain = numbers::numbers_in_lanes::<f64, 8, { numbers::LANES }>(&cells, None);
        prop_assert_eq!(numbers::numbers::<f64, 8>(&cells, None), plain);
        let cells: Vec<[u8; 1]> = values.iter().map(|value| [value.to_le_bytes()[7]]).collect();
        let plain = numbers::numbers_in_lanes::<i8, 1, { numbers::LANES }>(&cells, None);
        prop_assert_eq!(numbers::numbers::<i8, 1>(&cells, None), plain);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        (schema, batches) in any_table(),
        at in any::<usize>(),
    ) {
        let schema = SchemaNode::try_from(&schema).unwrap();
        let _ = TableStatistics::decode(&bytes, &schema, 3);
        let (fields, length) = reserved_bytes(&schema, 1 << 20);
        if length > 0 {
            let counted = Counting::new(&schema, &batches, fields).finish();
            let mut encoded = counted.encode(&schema, length).unwrap();
            let length = encoded.len();
            for (number, byte) in bytes.iter().enumerate() {
                let place = at.wrapping_mul(number + 1) % length;
                encoded[place] = *byte;
                let _ = TableStatistics::decode(&encoded, &schema, counted.rows);
            }
        }
    }
}
