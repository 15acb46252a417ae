//! Selected parts of tables and arrays equal the same parts of the original, and need only the
//! bytes of the ranges that they list.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, StringArray, StringViewArray};
use arrow_buffer::{ArrowNativeType, Buffer, NullBuffer, ToByteSlice};
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, Schema, UnionMode};
use farrow_arrow::testing::{
    RegionBytes, SplitMix64, any_chunks, any_table, random_array, sample_types,
};
use farrow_arrow::{
    ArrowObject, BatchData, Decoded, Limits, PartContents, Plan, Rebuilt, RowSlice, SchemaNode,
    SelectError, SelectStep, Selected,
};
use proptest::prelude::*;

/// Offset of the first new buffer of a part.
fn base_of(arena: &RegionBytes) -> u64 {
    (arena.as_buffer().len() as u64).next_multiple_of(128)
}

/// The new buffers of a part, and the bytes of its ranges. All other bytes are wrong.
fn bytes_for(arena: &RegionBytes, selected: &Selected) -> RegionBytes {
    let mut bytes = vec![0xA5; base_of(arena) as usize];
    for (offset, length) in &selected.ranges {
        let range = *offset as usize..(offset + length) as usize;
        bytes[range.clone()].copy_from_slice(&arena.as_buffer()[range]);
    }
    bytes.extend(&selected.new_buffers);
    RegionBytes::new(&bytes)
}

/// Rebuilds a part over its bytes alone.
fn rebuild(arena: &RegionBytes, selected: &Selected) -> ArrowObject {
    let base = base_of(arena);
    let arena = bytes_for(arena, selected);
    let decoded = Decoded::parse(&selected.descriptor, &Limits::default()).unwrap();
    let resolve = |offset: u64, length: u64| {
        let is_listed = selected.ranges.contains(&(offset, length));
        arena.resolve(offset, length).filter(|_| is_listed || offset >= base)
    };
    match decoded.rebuild_checked(&resolve).unwrap() {
        Rebuilt::Arrow(object) => object,
        Rebuilt::NdArray(..) => panic!("not an Arrow object"),
    }
}

/// Selects in steps, with contents that `read` returns. Returns the number of steps too.
fn in_steps(
    decoded: &Decoded,
    (columns, rows): (Option<&[String]>, RowSlice),
    mut contents: PartContents,
    mut read: impl FnMut(u64, u64) -> Vec<u8>,
) -> Result<(Selected, usize), SelectError> {
    for steps in 0..70 {
        match decoded.select_step(columns, rows, &contents)? {
            SelectStep::Selected(selected) => return Ok((selected, steps)),
            SelectStep::Needed(ranges) => {
                assert!(!ranges.is_empty());
                for (offset, length) in ranges {
                    contents.add((offset, length), read(offset, length));
                }
            }
        }
    }
    panic!("more steps than a type has levels");
}

/// Selects with all contents that say anything.
fn cut_to_bytes(
    arena: &RegionBytes,
    decoded: &Decoded,
    (columns, rows): (Option<&[String]>, RowSlice),
) -> (Selected, usize) {
    let read = |offset, length| arena.resolve(offset, length).unwrap().to_vec();
    let contents = PartContents::with_limits(base_of(arena), 0, 1 << 24);
    in_steps(decoded, (columns, rows), contents, read).unwrap()
}

/// Bytes of a part.
fn bytes_of(selected: &Selected) -> u64 {
    let ranges = selected.ranges.iter().map(|(_, length)| length).sum::<u64>();
    ranges + selected.new_buffers.len() as u64
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
    let total: usize = batches.iter().map(|batch| batch.rows).sum();
    let range = rows.of(total as u64);
    let expected = expected(batches, columns, range.start as usize..range.end as usize);
    let in_place = decoded.select(Some(&names), rows).unwrap();
    prop_assert!(in_place.new_buffers.is_empty());
    let (cut, _) = cut_to_bytes(&arena, &decoded, (Some(&names), rows));
    for selected in [in_place, cut] {
        let object = rebuild(&arena, &selected);
        check(&object, &selected, &expected);
        let fields: Vec<&[u8]> =
            object.schema.children().iter().filter_map(SchemaNode::name).collect();
        prop_assert_eq!(fields, names.iter().map(String::as_bytes).collect::<Vec<_>>());
        prop_assert_eq!(object.schema.metadata().len(), node.metadata().len());
    }
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
        let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
        let batches: Vec<BatchData> = chunks.iter().map(|chunk| {
            BatchData { rows: chunk.len(), columns: vec![chunk.clone()] }
        }).collect();
        let range = rows.of(chunks.iter().map(|chunk| chunk.len() as u64).sum());
        let range = range.start as usize..range.end as usize;
        let expected = expected(&batches, &[0], range);
        let (cut, _) = cut_to_bytes(&arena, &decoded, (None, rows));
        for selected in [decoded.select(None, rows).unwrap(), cut] {
            check(&rebuild(&arena, &selected), &selected, &expected);
        }
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
        let mut random = SplitMix64::new(5);
        let whole = random_array(&mut random, &data_type, 300, true);
        let array = whole.slice(whole.len().min(13), whole.len().saturating_sub(13));
        let (arena, descriptor) = described(&array);
        let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
        for (start, stop) in [(0, 287), (1, 2), (100, 250), (64, 128), (5, 5), (400, 500)] {
            let rows = RowSlice { start: Some(start), stop: Some(stop) };
            let range = rows.of(array.len() as u64);
            let (start, length) = (range.start as usize, (range.end - range.start) as usize);
            let (cut, _) = cut_to_bytes(&arena, &decoded, (None, rows));
            for selected in [decoded.select(None, rows).unwrap(), cut] {
                let object = rebuild(&arena, &selected);
                assert_eq!(object.batches[0].columns[0], array.slice(start, length), "{data_type}");
                // A part of the part.
                let arena = bytes_for(&arena, &selected);
                let decoded = Decoded::parse(&selected.descriptor, &Limits::default()).unwrap();
                let (start, length) = (start + length / 3, length / 2);
                let skipped = (range.end - range.start) as i64 / 3;
                let rows = RowSlice { start: Some(skipped), stop: Some(skipped + length as i64) };
                let (cut, _) = cut_to_bytes(&arena, &decoded, (None, rows));
                let object = rebuild(&arena, &cut);
                assert_eq!(object.batches[0].columns[0], array.slice(start, length), "{data_type}");
            }
        }
    }
}

/// Batches in place are slices of one array: their nodes have offsets, and their ranges overlap.
#[test]
fn rows_of_batches_that_share_buffers() {
    for data_type in sample_types() {
        let array = random_array(&mut SplitMix64::new(9), &data_type, 300, true);
        if array.is_empty() {
            continue;
        }
        let mut arena = RegionBytes::default();
        let array = arena.adopt(&array, &mut || true);
        let batches = [(3, 90), (93, 70), (163, 131)]
            .map(|(start, rows)| BatchData { rows, columns: vec![array.slice(start, rows)] });
        let schema = Schema::new(vec![Field::new("f", data_type.clone(), true)]);
        let node = SchemaNode::try_from(&schema).unwrap();
        let plan = arena.plan(|locate| Plan::table(&node, &batches, locate)).unwrap();
        let descriptor = arena.write(&plan).unwrap();
        let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
        for (start, stop) in [(1, 291), (50, 170), (88, 92), (0, 160), (95, 200), (290, 291)] {
            let rows = RowSlice { start: Some(start), stop: Some(stop) };
            let (cut, _) = cut_to_bytes(&arena, &decoded, (None, rows));
            for selected in [decoded.select(None, rows).unwrap(), cut] {
                let expected = expected(&batches, &[0], start as usize..stop as usize);
                check(&rebuild(&arena, &selected), &selected, &expected);
            }
        }
    }
}

/// Ten fixed-width rows need a few bytes, whatever the length of the array.
#[test]
fn few_rows_need_few_bytes() {
    for data_type in [DataType::Int64, DataType::Boolean, DataType::Int8, DataType::Float32] {
        let array = random_array(&mut SplitMix64::new(1), &data_type, 100_000, true);
        let (_, descriptor) = described(&array);
        let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
        let rows = RowSlice { start: Some(50_003), stop: Some(50_013) };
        let selected = decoded.select(None, rows).unwrap();
        let bytes = bytes_of(&selected);
        assert!(bytes < 200, "{data_type}: {bytes} bytes");
    }
}

/// Ten rows of any other type too, in as many steps as it nests. Only dictionaries stay whole.
#[test]
fn few_rows_of_nested_types_need_few_bytes() {
    let rows = RowSlice { start: Some(5_003), stop: Some(5_013) };
    let item = |data_type| Arc::new(Field::new("item", data_type, true));
    let mut types = sample_types();
    let list = DataType::List(item(DataType::LargeList(item(DataType::List(item(
        DataType::Struct(vec![Field::new("s", DataType::Utf8View, true)].into()),
    ))))));
    types.push(list.clone());
    let mut most_steps = 0;
    for data_type in types {
        let array = random_array(&mut SplitMix64::new(1), &data_type, 10_000, true);
        if array.is_empty() {
            continue;
        }
        let (arena, descriptor) = described(&array);
        let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
        let (selected, steps) = cut_to_bytes(&arena, &decoded, (None, rows));
        most_steps = most_steps.max(steps);
        let object = rebuild(&arena, &selected);
        assert_eq!(object.batches[0].columns[0], array.slice(5_003, 10), "{data_type}");
        let (bytes, whole) = (bytes_of(&selected), arena.as_buffer().len());
        // Of the random list views each one refers to any items.
        let is_random = matches!(data_type, DataType::ListView(_) | DataType::LargeListView(_));
        assert!(bytes < 8192 || is_random, "{data_type}: {bytes} of {whole} bytes");
        if data_type == list {
            assert_eq!(steps, 4, "{data_type}");
        }
    }
    assert_eq!(most_steps, 4);
}

/// Views of a few rows may lie anywhere in the data buffers: near ones become one range.
#[test]
fn views_need_the_bytes_that_they_refer_to() {
    let texts: Vec<String> = (0..40_000).map(|n| format!("a text of some length, {n}")).collect();
    let whole = StringViewArray::from_iter_values(&texts);
    // Every hundredth row, from the end to the beginning.
    let views: Vec<u128> = whole.views().iter().rev().step_by(100).copied().collect();
    let buffers = whole.data_buffers().to_vec();
    let array = StringViewArray::try_new(views.into(), buffers, None).unwrap().to_data();
    let mut arena = RegionBytes::default();
    let array = arena.adopt(&array, &mut || true);
    let field = SchemaNode::try_from(&Field::new("f", DataType::Utf8View, true)).unwrap();
    let plan = arena.plan(|locate| Plan::array(&field, &array, locate)).unwrap();
    let descriptor = arena.write(&plan).unwrap();
    let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
    let rows = RowSlice { start: Some(10), stop: Some(350) };
    let (selected, steps) = cut_to_bytes(&arena, &decoded, (None, rows));
    assert_eq!(steps, 1);
    assert_eq!(rebuild(&arena, &selected).batches[0].columns[0], array.slice(10, 340));
    // The gaps between them are small, so the bytes from the first to the last are one range of
    // each data buffer.
    let data = array.buffers().len() - 1;
    assert!(selected.ranges.len() <= data, "{} ranges, {data} buffers", selected.ranges.len());
    // Three texts far from each other are three ranges.
    let far: Vec<u128> = [0, 300, 390].map(|row| whole.views()[row * 100]).into();
    let far = StringViewArray::try_new(
        far.repeat(2).into(),
        whole.data_buffers().to_vec(),
        Some(NullBuffer::from(vec![true, false, true, true, true, true])),
    );
    let far = arena.adopt(&far.unwrap().to_data(), &mut || true);
    let plan = arena.plan(|locate| Plan::array(&field, &far, locate)).unwrap();
    let descriptor = arena.write(&plan).unwrap();
    let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
    for (stop, ranges, bytes) in [(3, 2, 200), (5, 3, 300)] {
        let rows = RowSlice { start: None, stop: Some(stop) };
        let (selected, _) = cut_to_bytes(&arena, &decoded, (None, rows));
        let data: Vec<u64> =
            selected.ranges.iter().map(|it| it.1).filter(|length| *length > 1).collect();
        assert_eq!(data.len(), ranges, "{data:?}");
        assert!(bytes_of(&selected) < bytes, "{data:?}");
        let array = &rebuild(&arena, &selected).batches[0].columns[0];
        assert_eq!(*array, far.slice(0, stop as usize));
    }
}

/// Small values, and contents beyond the limit, are not worth steps: then all values are there.
#[test]
fn without_worth_or_room_values_stay_whole() {
    let array = random_array(&mut SplitMix64::new(1), &DataType::Utf8, 4_000, true);
    let (arena, descriptor) = described(&array);
    let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
    let rows = RowSlice { start: Some(100), stop: Some(1000) };
    let whole = decoded.select(None, rows).unwrap();
    let base = base_of(&arena);
    let none = |_, _| panic!("nothing is needed");
    for contents in [
        PartContents::with_limits(base, bytes_of(&whole), 1 << 20),
        PartContents::with_limits(base, 0, 3000),
        PartContents::with_limits(base, 0, 0),
        // It has less than the default limit.
        PartContents::new(base),
    ] {
        let selected = in_steps(&decoded, (None, rows), contents, none).unwrap();
        assert_eq!(selected, (whole.clone(), 0));
    }
    let one_column = vec!["f".to_owned(); 20];
    let schema = Schema::new(vec![Field::new("f", DataType::Utf8, true)]);
    let node = SchemaNode::try_from(&schema).unwrap();
    let batch = BatchData { rows: array.len(), columns: vec![array.clone()] };
    let mut arena = RegionBytes::default();
    let plan =
        arena.plan(|locate| Plan::table(&node, std::slice::from_ref(&batch), locate)).unwrap();
    let descriptor = arena.write(&plan).unwrap();
    let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
    // The offsets are read once; ten copies of them fit.
    let contents = PartContents::with_limits(base_of(&arena), 0, 40_000);
    let read = |offset, length| arena.resolve(offset, length).unwrap().to_vec();
    let (selected, steps) = in_steps(&decoded, (Some(&one_column), rows), contents, read).unwrap();
    assert_eq!(steps, 1);
    assert!((30_000..=40_000).contains(&selected.new_buffers.len()));
    check(&rebuild(&arena, &selected), &selected, &expected(&[batch], &[0; 20], 100..1000));
}

fn values<const N: usize, T: ArrowNativeType>(values: [T; N]) -> Vec<u8> {
    values.iter().flat_map(ToByteSlice::to_byte_slice).copied().collect()
}

/// Contents come from another node. Whatever they are, the result is an error that says what is
/// wrong, or a part.
#[test]
fn contents_that_contradict_their_array_are_refused() {
    let item = Arc::new(Field::new("item", DataType::Int8, true));
    let union = sample_types()
        .into_iter()
        .find(|one| matches!(one, DataType::Union(fields, UnionMode::Dense) if fields.len() == 2));
    let runs = DataType::RunEndEncoded(
        Arc::new(Field::new("run_ends", DataType::Int32, false)),
        Arc::new(Field::new("values", DataType::Int64, true)),
    );
    let ints = random_array(&mut SplitMix64::new(1), &DataType::Int64, 3, false);
    let ends = ArrayData::builder(DataType::Int32)
        .len(3)
        .add_buffer(Buffer::from_slice_ref([4i32, 6, 8]))
        .build()
        .unwrap();
    let runs = ArrayData::builder(runs).len(8).child_data(vec![ends, ints]).build().unwrap();
    let of_type = |data_type: &DataType| random_array(&mut SplitMix64::new(3), data_type, 8, false);
    let texts = StringArray::from_iter_values((0..8).map(|n| format!("text {n}"))).to_data();
    let views = StringViewArray::from_iter_values((0..8).map(|n| format!("a longer text {n}")));
    let mut view = values([20u32, 0, 1, 0]);
    view.extend(values([20u32, 0, 0, 1 << 31]));
    let cases: [(ArrayData, Vec<u8>, &str); 11] = [
        (texts.clone(), values([3i32, 2, 4]), "Utf8: offset 1 is 2, the one before is 3"),
        (texts.clone(), values([3i32, 9, 4]), "Utf8: offset 2 is 4, the one before is 9"),
        (texts.clone(), values([-1i32, 2, 4]), "Utf8: offset 0 is missing or negative"),
        (texts.clone(), values([3i32, 9, 999]), "Utf8: an offset is 999, there are 48 values"),
        (of_type(&DataType::List(item.clone())), values([0i32, 1, 999]), "an offset is 999"),
        (of_type(&DataType::ListView(item)), values([1i32, -1]), "list view 1 is missing or"),
        (of_type(&union.unwrap()), vec![5, 77], "element 1 has type code 77"),
        (runs.clone(), values([4i32, 4, 8]), "run 1 does not end behind 4, the end before"),
        (runs.clone(), values([-4i32, 6, 8]), "run 0 does not end behind 0, the end before"),
        (runs, values([1i32, 2, 3]), "the last run ends at 3, 5 elements are needed"),
        (views.to_data(), view, "view 0 ends at byte 20 of buffer 1, which has 0"),
    ];
    for (array, forged, message) in cases {
        let (arena, descriptor) = described(&array);
        let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
        let rows = RowSlice { start: Some(3), stop: Some(5) };
        let contents = PartContents::with_limits(base_of(&arena), 0, 1 << 20);
        let mut is_first = true;
        let read = |offset, length| {
            let bytes = arena.resolve(offset, length).unwrap().to_vec();
            let is_forged = is_first && bytes.len() == forged.len();
            is_first &= !is_forged;
            if is_forged { forged.clone() } else { bytes }
        };
        let error = in_steps(&decoded, (None, rows), contents, read).unwrap_err().to_string();
        assert!(error.contains(message), "{error:?}, not {message:?}");
    }
    // Bytes of another length than asked for are none.
    let (arena, descriptor) = described(&texts);
    let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
    let mut contents = PartContents::with_limits(base_of(&arena), 0, 1 << 20);
    let rows = RowSlice { start: Some(3), stop: Some(5) };
    let step = decoded.select_step(None, rows, &contents).unwrap();
    let SelectStep::Needed(ranges) = &step else { panic!("{step:?}") };
    contents.add(ranges[0], vec![0; 5]);
    assert_eq!(decoded.select_step(None, rows, &contents).unwrap(), step);
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
    let (_, descriptor) =
        described(&random_array(&mut SplitMix64::new(1), &DataType::Int8, 3, true));
    let array = Decoded::parse(&descriptor, &Limits::default()).unwrap();
    let error = array.select(Some(&names(&["a"])), RowSlice::default()).unwrap_err();
    assert!(matches!(error, SelectError::NoColumns { .. }), "{error}");
}
