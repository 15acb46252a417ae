//! Selected parts of tables and arrays equal the same parts of the original, and need only the
//! bytes of the ranges that they list.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

use std::ops::Range;

use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, Schema};
use farrow_arrow::testing::{
    Random, RegionBytes, any_chunks, any_table, random_array, sample_types,
};
use farrow_arrow::{
    ArrowObject, BatchData, Decoded, Limits, Plan, Rebuilt, RowSlice, SchemaNode, SelectError,
    Selected,
};
use proptest::prelude::*;

/// Rebuilds a part over the bytes of its ranges; all other bytes are wrong.
fn rebuild(arena: &RegionBytes, selected: &Selected) -> ArrowObject {
    let mut bytes = vec![0xA5; arena.as_buffer().len()];
    for (offset, length) in &selected.ranges {
        let range = *offset as usize..(offset + length) as usize;
        bytes[range.clone()].copy_from_slice(&arena.as_buffer()[range]);
    }
    let arena = RegionBytes::new(&bytes);
    let decoded = Decoded::parse(&selected.descriptor, &Limits::default()).unwrap();
    let resolve = |offset: u64, length: u64| {
        let is_listed = selected.ranges.contains(&(offset, length));
        arena.resolve(offset, length).filter(|_| is_listed)
    };
    match decoded.rebuild_checked(&resolve).unwrap() {
        Rebuilt::Arrow(object) => object,
        Rebuilt::NdArray(..) => panic!("not an Arrow object"),
    }
}

/// The rows of a range, by batch, without empty batches.
fn expected(batches: &[BatchData], columns: &[usize], rows: Range<usize>) -> Vec<BatchData> {
    let mut first = 0;
    let mut parts = Vec::new();
    for batch in batches {
        let start = rows.start.clamp(first, first + batch.rows) - first;
        let stop = rows.end.clamp(first, first + batch.rows) - first;
        if start < stop {
            let cut = |column: &usize| batch.columns[*column].slice(start, stop - start);
            parts
                .push(BatchData { rows: stop - start, columns: columns.iter().map(cut).collect() });
        }
        first += batch.rows;
    }
    parts
}

fn check(object: &ArrowObject, selected: &Selected, expected: &[BatchData]) {
    assert_eq!(object.batches.len(), expected.len());
    for (found, expected) in object.batches.iter().zip(expected) {
        assert_eq!(found.rows, expected.rows);
        assert_eq!(found.columns, expected.columns);
    }
    assert_eq!(selected.rows, expected.iter().map(|batch| batch.rows as u64).sum::<u64>());
}

fn select_of_table(
    (schema, batches): &(Schema, Vec<BatchData>),
    columns: &[usize],
    rows: RowSlice,
) -> Result<(), TestCaseError> {
    let node = SchemaNode::try_from(schema).unwrap();
    let mut arena = RegionBytes::default();
    let plan = arena.plan(|locate| Plan::table(&node, batches, locate)).unwrap();
    let descriptor = arena.write(&plan).unwrap();
    let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
    let names: Vec<String> =
        columns.iter().map(|column| schema.field(*column).name().clone()).collect();
    let selected = decoded.select(Some(&names), rows).unwrap();
    let total: usize = batches.iter().map(|batch| batch.rows).sum();
    let range = rows.of(total as u64);
    let object = rebuild(&arena, &selected);
    check(
        &object,
        &selected,
        &expected(batches, columns, range.start as usize..range.end as usize),
    );
    let fields: Vec<&[u8]> = object.schema.children().iter().filter_map(SchemaNode::name).collect();
    prop_assert_eq!(fields, names.iter().map(String::as_bytes).collect::<Vec<_>>());
    prop_assert_eq!(object.schema.metadata().len(), node.metadata().len());
    Ok(())
}

fn any_rows() -> impl Strategy<Value = RowSlice> {
    let bound = || prop::option::of(-30..80i64);
    (bound(), bound()).prop_map(|(start, stop)| RowSlice { start, stop })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn columns_and_rows_of_any_table(
        table in any_table(),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        rows in any_rows(),
    ) {
        let count = table.0.fields().len();
        let columns: Vec<usize> = match count {
            0 => Vec::new(),
            _ => order.iter().map(|one| one.index(count)).collect(),
        };
        select_of_table(&table, &columns, rows)?;
    }

    #[test]
    fn rows_of_any_chunks((field, chunks) in any_chunks(), rows in any_rows()) {
        let node = SchemaNode::try_from(&field).unwrap();
        let mut arena = RegionBytes::default();
        let plan = arena.plan(|locate| Plan::chunked_array(&node, &chunks, locate)).unwrap();
        let descriptor = arena.write(&plan).unwrap();
        let selected = Decoded::parse(&descriptor, &Limits::default()).unwrap().select(None, rows);
        let selected = selected.unwrap();
        let batches: Vec<BatchData> = chunks.iter().map(|chunk| {
            BatchData { rows: chunk.len(), columns: vec![chunk.clone()] }
        }).collect();
        let range = rows.of(chunks.iter().map(|chunk| chunk.len() as u64).sum());
        let range = range.start as usize..range.end as usize;
        check(&rebuild(&arena, &selected), &selected, &expected(&batches, &[0], range));
    }

    #[test]
    fn row_slices_are_those_of_python(start in prop::option::of(-9..9i64), stop in prop::option::of(-9..9i64)) {
        // The semantics of `range(6)[start:stop]` in Python.
        let clamp = |bound: i64| if bound < 0 { (bound + 6).max(0) } else { bound.min(6) };
        let (first, last) = (start.map_or(0, clamp), stop.map_or(6, clamp));
        let expected: Vec<u64> = (first..last).map(|row| row as u64).collect();
        prop_assert_eq!(RowSlice { start, stop }.of(6).collect::<Vec<_>>(), expected);
    }
}

fn described(array: &ArrayData) -> (RegionBytes, Vec<u8>) {
    let field = Field::new("f", array.data_type().clone(), true);
    let field = SchemaNode::try_from(&field).unwrap();
    let mut arena = RegionBytes::default();
    let plan = arena.plan(|locate| Plan::array(&field, array, locate)).unwrap();
    let descriptor = arena.write(&plan).unwrap();
    (arena, descriptor)
}

/// Each type, at offsets within and across bytes of its bitmaps, and without rows.
#[test]
fn rows_of_an_array_of_each_type() {
    for data_type in sample_types() {
        let mut random = Random::new(5);
        let whole = random_array(&mut random, &data_type, 300, true);
        let array = whole.slice(whole.len().min(13), whole.len().saturating_sub(13));
        let (arena, descriptor) = described(&array);
        let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
        for (start, stop) in [(0, 287), (1, 2), (100, 250), (64, 128), (5, 5), (400, 500)] {
            let rows = RowSlice { start: Some(start), stop: Some(stop) };
            let selected = decoded.select(None, rows).unwrap();
            let object = rebuild(&arena, &selected);
            let range = rows.of(array.len() as u64);
            let (start, length) = (range.start as usize, (range.end - range.start) as usize);
            assert_eq!(object.batches[0].columns[0], array.slice(start, length), "{data_type}");
        }
    }
}

/// Ten fixed-width rows need a few bytes, whatever the length of the array.
#[test]
fn few_rows_need_few_bytes() {
    for data_type in [DataType::Int64, DataType::Boolean, DataType::Int8, DataType::Float32] {
        let array = random_array(&mut Random::new(1), &data_type, 100_000, true);
        let (_, descriptor) = described(&array);
        let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
        let rows = RowSlice { start: Some(50_003), stop: Some(50_013) };
        let selected = decoded.select(None, rows).unwrap();
        let bytes: u64 = selected.ranges.iter().map(|(_, length)| length).sum();
        assert!(bytes < 200, "{data_type}: {bytes} bytes");
    }
}

#[test]
fn what_cannot_be_selected_is_said() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let schema = Schema::new(vec![
        Field::new("a", DataType::Int64, true),
        Field::new("b", DataType::Int64, true),
        Field::new("b", DataType::Utf8, true),
    ]);
    let node = SchemaNode::try_from(&schema).unwrap();
    let plan = Plan::table(&node, &[], &mut |_, _| None).unwrap();
    let descriptor = plan.descriptor(farrow_arrow::DescriptorStamp { region: 1, epoch: 1 }, 64);
    let table = Decoded::parse(&descriptor, &Limits::default()).unwrap();
    let select = |columns: &[&str]| table.select(Some(&names(columns)), RowSlice::default());
    assert_eq!(select(&["a"]).unwrap().rows, 0);
    let missing = select(&["a", "c"]).unwrap_err();
    assert_eq!(missing.to_string(), r#"no column "c"; the columns are "a", "b", "b""#);
    assert_eq!(select(&["b"]).unwrap_err().to_string(), r#"2 columns are named "b""#);
    let (_, descriptor) = described(&random_array(&mut Random::new(1), &DataType::Int8, 3, true));
    let array = Decoded::parse(&descriptor, &Limits::default()).unwrap();
    let error = array.select(Some(&names(&["a"])), RowSlice::default()).unwrap_err();
    assert!(matches!(error, SelectError::NoColumns { .. }), "{error}");
}
