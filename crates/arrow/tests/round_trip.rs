//! Any array, any table: describe, write, parse, rebuild, equal.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

use std::cell::RefCell;

use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field};
use farrow_arrow::testing::{
    RegionBytes, SplitMix64, any_array, any_chunks, any_table, random_array, sample_types,
};
use farrow_arrow::{BatchData, Decoded, Kind, Limits, Plan, Rebuilt, SchemaNode, ffi};
use proptest::prelude::*;

fn rebuild(arena: &RegionBytes, descriptor: &[u8]) -> farrow_arrow::ArrowObject {
    let decoded = Decoded::parse(descriptor, &Limits::default()).unwrap();
    match decoded.rebuild_checked(&|offset, length| arena.resolve(offset, length)).unwrap() {
        Rebuilt::Arrow(object) => object,
        Rebuilt::NdArray(..) => panic!("not an Arrow object"),
    }
}

fn field_of(array: &ArrayData) -> SchemaNode {
    SchemaNode::try_from(&Field::new("f", array.data_type().clone(), true)).unwrap()
}

/// Checks that every buffer of a rebuilt array is in the arena, empty, or the zero offset.
fn assert_inside(arena: &RegionBytes, array: &ArrayData) {
    let nulls = array.nulls().map(|nulls| nulls.buffer());
    for buffer in array.buffers().iter().chain(nulls) {
        let found = arena.locate(buffer.as_ptr(), buffer.len());
        assert!(buffer.is_empty() || array.is_empty() || found.is_some());
    }
    array.child_data().iter().for_each(|child| assert_inside(arena, child));
}

fn check_array(arena: &mut RegionBytes, array: &ArrayData) -> ArrayData {
    let field = field_of(array);
    let plan = arena.plan(|locate| Plan::array(&field, array, locate)).unwrap();
    assert_eq!(plan.kind(), Kind::Array);
    let descriptor = arena.write(&plan).unwrap();
    assert_eq!(descriptor.len() as u64, plan.descriptor_bytes());
    let object = rebuild(arena, &descriptor);
    assert_eq!(*object.schema, field);
    let back = object.batches[0].columns[0].clone();
    assert_eq!(&back, array);
    assert_eq!(back.null_count(), array.null_count());
    assert_inside(arena, &back);
    back
}

#[test]
fn every_type_survives_at_every_offset() {
    for data_type in sample_types() {
        for seed in 0..6 {
            let mut random = SplitMix64::new(seed);
            let array = random_array(&mut random, &data_type, 23, true);
            for (start, length) in [(0, 23), (3, 14), (8, 12), (5, 0), (22, 1), (0, 0)] {
                let (start, length) = if array.is_empty() { (0, 0) } else { (start, length) };
                check_array(&mut RegionBytes::default(), &array.slice(start, length));
            }
        }
    }
}

/// Buffers in place are not copied, and rebuilt buffers point to them.
#[test]
fn in_place_arrays_are_not_copied() {
    for data_type in sample_types() {
        let mut random = SplitMix64::new(9);
        let array = random_array(&mut random, &data_type, 50, true);
        let mut arena = RegionBytes::default();
        let array = arena.adopt(&array, &mut || true);
        for (start, length) in [(0, 50), (13, 20)] {
            let (start, length) = if array.is_empty() { (0, 0) } else { (start, length) };
            let slice = array.slice(start, length);
            let field = field_of(&slice);
            let plan = arena.plan(|locate| Plan::array(&field, &slice, locate)).unwrap();
            // Bitmaps whose offset differs from the array's must be shifted; see `nodes.rs`.
            let shifted = has_shifted_bits(&slice);
            let rewrites = plan.copies().count();
            assert!(rewrites == 0 || shifted, "{data_type}: {rewrites} copies");
            check_array(&mut arena.clone(), &slice);
        }
    }
}

/// A rebuild announces every byte that it reads: with all other bytes destroyed it is the same.
#[test]
fn what_a_rebuild_reads_is_announced() {
    for data_type in sample_types() {
        let array = random_array(&mut SplitMix64::new(4), &data_type, 40, true);
        let (start, length) = if array.is_empty() { (0, 0) } else { (5, 30) };
        let array = array.slice(start, length);
        let mut arena = RegionBytes::default();
        let field = field_of(&array);
        let plan = arena.plan(|locate| Plan::array(&field, &array, locate)).unwrap();
        let descriptor = arena.write(&plan).unwrap();
        let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
        let announced = |arena: &RegionBytes| {
            let ranges = RefCell::new(Vec::new());
            let resolve = |offset, length| arena.resolve(offset, length);
            let rebuilt = decoded.rebuild_with(&resolve, &|bytes| {
                let at = arena.locate(bytes.as_ptr(), bytes.len());
                ranges.borrow_mut().extend(at.map(|at| (at as usize, bytes.len())));
                true
            });
            rebuilt.unwrap_or_else(|error| panic!("{data_type}: {error}"));
            ranges.into_inner()
        };
        let ranges = announced(&arena);
        let mut bytes = vec![0xff; arena.as_buffer().len()];
        for (at, length) in &ranges {
            let range = *at..at + length;
            bytes[range.clone()].copy_from_slice(&arena.as_buffer()[range]);
        }
        assert_eq!(announced(&RegionBytes::new(&bytes)), ranges, "{data_type}");
        let resolve = |offset, length| arena.resolve(offset, length);
        let refused = decoded.rebuild_with(&resolve, &|_| false);
        let is_read = ranges.iter().any(|(_, length)| *length > 0);
        assert!(refused.is_err() || !is_read, "{data_type}");
    }
}

fn has_shifted_bits(array: &ArrayData) -> bool {
    array.nulls().is_some_and(|nulls| nulls.offset() % 8 != array.offset() % 8)
        || array.child_data().iter().any(has_shifted_bits)
}

/// A slice of ten rows copies only a small part of the array.
#[test]
fn small_slices_of_large_arrays_stay_small() {
    for data_type in sample_types() {
        let mut random = SplitMix64::new(3);
        let array = random_array(&mut random, &data_type, 20_000, true);
        if array.is_empty() || matches!(data_type, DataType::Dictionary(_, _)) {
            continue;
        }
        let slice = array.slice(9_003, 10);
        let field = field_of(&slice);
        let plan = Plan::array(&field, &slice, &mut |_, _| None).unwrap();
        let limit = 8_000;
        assert!(plan.copy_bytes() < limit, "{data_type}: {} bytes", plan.copy_bytes());
        check_array(&mut RegionBytes::default(), &slice);
    }
}

/// Checks that export over the C Data Interface and import preserve values and addresses.
fn check_ffi(arena: &RegionBytes, array: &ArrayData) {
    let field = field_of(array);
    let exported = ffi::export_array(array);
    // SAFETY: just exported.
    let back = unsafe { ffi::import_array(exported, &field) }.unwrap();
    assert_eq!(&back, array);
    assert_inside(arena, &back);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn any_array_survives(array in any_array(), choices in any::<u64>()) {
        // Some buffers are already in the region, others are not.
        let mut arena = RegionBytes::default();
        let mut random = SplitMix64::new(choices);
        let array = arena.adopt(&array, &mut || !random.chance(3));
        let back = check_array(&mut arena, &array);
        check_ffi(&arena, &back);
        // Rebuilt arrays are in place, so describing them copies nothing.
        let field = field_of(&back);
        let plan = arena.plan(|locate| Plan::array(&field, &back, locate)).unwrap();
        prop_assert_eq!(plan.copy_bytes(), 0);
        prop_assert_eq!(plan.data_bytes(), plan.in_place_bytes());
        check_array(&mut arena, &back);
    }

    #[test]
    fn any_chunks_survive((field, chunks) in any_chunks()) {
        let node = SchemaNode::try_from(&field).unwrap();
        let mut arena = RegionBytes::default();
        let plan = arena.plan(|locate| Plan::chunked_array(&node, &chunks, locate)).unwrap();
        let descriptor = arena.write(&plan).unwrap();
        let object = rebuild(&arena, &descriptor);
        prop_assert_eq!(object.schema.to_field(), field);
        let back: Vec<_> = object.batches.iter().map(|b| b.columns[0].clone()).collect();
        prop_assert_eq!(&back, &chunks);
        let stream = ffi::export_stream(&object).unwrap();
        // SAFETY: just exported.
        let (schema, arrays) = unsafe { ffi::import_stream(stream) }.unwrap();
        prop_assert_eq!(&schema, &*object.schema);
        prop_assert_eq!(&arrays, &chunks);
    }

    #[test]
    fn any_table_survives((schema, batches) in any_table()) {
        let node = SchemaNode::try_from(&schema).unwrap();
        let mut arena = RegionBytes::default();
        let plan = arena.plan(|locate| Plan::table(&node, &batches, locate)).unwrap();
        let descriptor = arena.write(&plan).unwrap();
        let object = rebuild(&arena, &descriptor);
        prop_assert_eq!(object.schema.to_schema().unwrap(), schema);
        prop_assert_eq!(object.batches.len(), batches.len());
        for (back, batch) in object.record_batches().unwrap().iter().zip(&batches) {
            prop_assert_eq!(&BatchData::from(back).columns, &batch.columns);
        }
        for (back, batch) in object.batches.iter().zip(&batches) {
            prop_assert_eq!(back.rows, batch.rows);
            prop_assert_eq!(&back.columns, &batch.columns);
        }
        let stream = ffi::export_stream(&object).unwrap();
        // SAFETY: just exported.
        let (schema, arrays) = unsafe { ffi::import_stream(stream) }.unwrap();
        prop_assert_eq!(&schema, &node);
        for (array, batch) in arrays.into_iter().zip(&batches) {
            let back = ffi::batch_of_struct(array).unwrap();
            prop_assert_eq!(back.rows, batch.rows);
            prop_assert_eq!(&back.columns, &batch.columns);
        }
    }
}

#[test]
fn a_table_of_no_columns_keeps_its_rows() {
    let node = SchemaNode::try_from(&arrow_schema::Schema::empty()).unwrap();
    let batches = [7, 0].map(|rows| BatchData { rows, columns: vec![] });
    let plan = Plan::table(&node, &batches, &mut |_, _| None).unwrap();
    let mut arena = RegionBytes::default();
    let descriptor = arena.write(&plan).unwrap();
    assert_eq!(rebuild(&arena, &descriptor).rows(), 7);
}

/// Story: chunks of one dictionary-encoded column share their dictionary, which the descriptor
/// holds once. Chunks with their own dictionaries retain them.
#[test]
fn shared_dictionaries_are_written_once() {
    let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    let nested = DataType::Dictionary(Box::new(DataType::Int16), Box::new(dictionary));
    let mut random = SplitMix64::new(1);
    let whole = random_array(&mut random, &nested, 64, true);
    let other = random_array(&mut random, &nested, 8, true);
    let field = field_of(&whole);
    let bytes = |chunks: &[ArrayData]| {
        let plan = Plan::chunked_array(&field, chunks, &mut |_, _| None).unwrap();
        let mut arena = RegionBytes::default();
        let descriptor = arena.write(&plan).unwrap();
        let object = rebuild(&arena, &descriptor);
        let back: Vec<_> = object.batches.iter().map(|b| b.columns[0].clone()).collect();
        assert_eq!(back, chunks);
        descriptor.len()
    };
    let one = bytes(&[whole.slice(0, 8)]);
    let eight: Vec<_> = (0..8).map(|index| whole.slice(index * 8, 8)).collect();
    let shared = bytes(&eight);
    assert!(shared < one + 7 * 16, "{one} bytes for one chunk, {shared} for eight");
    bytes(&[whole.slice(0, 8), other.clone(), whole.slice(8, 8), other]);
}

/// A misaligned buffer is copied to an aligned offset.
#[test]
fn under_aligned_buffers_are_copied() {
    let mut arena = RegionBytes::default();
    let at = arena.append(8 + 16 * 4, |bytes| bytes.fill(0)) as usize;
    let inside = arena.as_buffer().slice_with_length(at + 8, 64);
    for data_type in [DataType::Decimal128(20, 2), DataType::Utf8View] {
        let builder = ArrayData::builder(data_type).len(4).add_buffer(inside.clone());
        // SAFETY: well-formed except for the alignment, which this test is about.
        let array = unsafe { builder.build_unchecked() };
        let field = field_of(&array);
        let plan = arena.plan(|locate| Plan::array(&field, &array, locate)).unwrap();
        assert_eq!(plan.copy_bytes(), 64);
    }
    let floats = ArrayData::builder(DataType::Float64).len(8).add_buffer(inside).build().unwrap();
    let field = field_of(&floats);
    let plan = arena.plan(|locate| Plan::array(&field, &floats, locate)).unwrap();
    assert_eq!(plan.in_place(), [(at as u64 + 8, 64)]);
}

#[test]
fn malformed_arrays_are_errors() {
    let array = |data_type: DataType, length: usize, offsets: &[i32], values: usize| {
        let builder = ArrayData::builder(data_type)
            .len(length)
            .add_buffer(Buffer::from_slice_ref(offsets))
            .add_buffer(Buffer::from(vec![0u8; values]));
        // SAFETY: never used as an array; describing must detect the defect.
        unsafe { builder.build_unchecked() }
    };
    for bad in [
        array(DataType::Utf8, 3, &[0, 1, 2], 5),
        array(DataType::Utf8, 2, &[0, 1, 6], 5),
        array(DataType::Utf8, 2, &[3, 1, 2], 5),
        array(DataType::Utf8, 2, &[-1, 1, 2], 5),
        array(DataType::Int64, 2, &[0, 0, 0], 0),
        array(DataType::Boolean, 100, &[0, 0, 0], 0),
    ] {
        let field = field_of(&bad);
        let error = Plan::array(&field, &bad, &mut |_, _| None).unwrap_err();
        assert!(error.to_string().contains("malformed"), "{error}");
    }
}
