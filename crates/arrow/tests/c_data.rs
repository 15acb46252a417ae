//! Unusual but valid structures of the C Data Interface, as other producers build them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, Schema, UnionFields, UnionMode};
use farrow_arrow::ffi::{self, FFI_ArrowArray, FFI_ArrowSchema};
use farrow_arrow::testing::{RegionBytes, SplitMix64, random_array, sample_types};
use farrow_arrow::{BatchData, Decoded, ImportError, Limits, Plan, Rebuilt, SchemaNode};
use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;

/// The structure with public fields, for unusual values.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut FFI_ArrowArray,
    dictionary: *mut FFI_ArrowArray,
    release: Option<unsafe extern "C" fn(*mut RawArray)>,
    private_data: *mut c_void,
}

/// Private data of the structures released so far.
static RELEASED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

unsafe extern "C" fn release(raw: *mut RawArray) {
    // SAFETY: called with the structure.
    let raw = unsafe { &mut *raw };
    raw.release = None;
    RELEASED.lock().unwrap().push(raw.private_data.addr());
}

fn raw(length: i64, offset: i64, null_count: i64, buffers: &mut [*const c_void]) -> RawArray {
    RawArray {
        length,
        null_count,
        offset,
        n_buffers: buffers.len() as i64,
        n_children: 0,
        buffers: buffers.as_mut_ptr(),
        children: ptr::null_mut(),
        dictionary: ptr::null_mut(),
        release: Some(release),
        private_data: ptr::null_mut(),
    }
}

fn import(raw: RawArray, data_type: &DataType) -> Result<ArrayData, ImportError> {
    // SAFETY: the same `repr(C)` structure.
    let array = unsafe { std::mem::transmute::<RawArray, FFI_ArrowArray>(raw) };
    let field = SchemaNode::try_from(&Field::new("f", data_type.clone(), true)).unwrap();
    // SAFETY: the tests below satisfy the contract, or violate it only where it is checked.
    unsafe { ffi::import_array(array, &field) }
}

fn address<T>(slice: &[T]) -> *const c_void {
    slice.as_ptr().cast()
}

fn round_trip(array: &ArrayData) {
    let field = SchemaNode::try_from(&Field::new("f", array.data_type().clone(), true)).unwrap();
    let plan = Plan::array(&field, array, &mut |_, _| None).unwrap();
    let mut arena = RegionBytes::default();
    let descriptor = arena.write(&plan).unwrap();
    let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
    let rebuilt = decoded.rebuild_checked(&|offset, length| arena.resolve(offset, length));
    let Rebuilt::Arrow(object) = rebuilt.unwrap() else { panic!("an array") };
    assert_eq!(&object.batches[0].columns[0], array);
}

/// Story: empty arrays may have no offsets, or an invalid pointer to them. arrow-rs rejects the
/// former and dereferences the latter.
#[test]
fn empty_arrays_need_no_buffers() {
    let dangling = ptr::without_provenance::<c_void>(1);
    for data_type in [DataType::Utf8, DataType::LargeBinary] {
        for pointer in [ptr::null(), dangling] {
            let mut buffers = [ptr::null(), pointer, pointer];
            let array = import(raw(0, 0, 0, &mut buffers), &data_type).unwrap();
            assert_eq!(array.len(), 0);
            round_trip(&array);
            let again = ffi::export_array(&array);
            // SAFETY: just exported.
            let exported = unsafe { &*(&raw const again).cast::<RawArray>() };
            // SAFETY: an offsets buffer holds one offset even for an empty array.
            let first = unsafe { (*exported.buffers.add(1)).cast::<i32>().read() };
            assert_eq!(first, 0);
        }
    }
    let mut buffers = [dangling, dangling];
    round_trip(&import(raw(0, 9, -1, &mut buffers), &DataType::Int64).unwrap());
    let mut buffers = [ptr::null(), dangling, dangling];
    round_trip(&import(raw(0, 3, 0, &mut buffers), &DataType::Utf8View).unwrap());
}

#[test]
fn unknown_null_counts_are_counted() {
    let (bits, values) = ([0b0000_1011u8], [1i32, 2, 3, 4, 5]);
    let mut buffers = [address(&bits), address(&values)];
    let array = import(raw(4, 1, -1, &mut buffers), &DataType::Int32).unwrap();
    assert_eq!((array.null_count(), array.offset()), (2, 1));
    round_trip(&array);
}

/// Unions of Arrow before 1.0 had a validity bitmap as their first buffer.
#[test]
fn old_unions_lose_their_bitmap() {
    let fields = UnionFields::try_new([0], [Field::new("a", DataType::Int32, true)]).unwrap();
    let union = DataType::Union(fields, UnionMode::Sparse);
    let (codes, values) = ([0i8, 0], [7i32, 8]);
    for leading in [false, true] {
        let mut child_buffers = [ptr::null(), address(&values)];
        let mut child = raw(2, 0, 0, &mut child_buffers);
        let mut children = [(&raw mut child).cast::<FFI_ArrowArray>()];
        let mut buffers = [ptr::null(), address(&codes)];
        let buffers = if leading { &mut buffers[..] } else { &mut buffers[1..] };
        let mut parent = raw(2, 0, 0, buffers);
        parent.n_children = 1;
        parent.children = children.as_mut_ptr();
        round_trip(&import(parent, &union).unwrap());
    }
}

/// arrow-rs requires alignment, so the import copies a misaligned buffer.
#[test]
fn under_aligned_buffers_are_realigned() {
    let values = [0u64; 9];
    let odd = address(&values[..]).cast::<u8>().wrapping_add(8).cast::<c_void>();
    let mut buffers = [ptr::null(), odd];
    let array = import(raw(4, 0, 0, &mut buffers), &DataType::Decimal128(9, 2)).unwrap();
    assert_eq!(array.buffers()[0].as_ptr().addr() % 16, 0);
    round_trip(&array);
}

#[test]
fn the_structure_is_released_with_its_last_buffer() {
    let values = [1i64, 2, 3];
    let mut buffers = [ptr::null(), address(&values)];
    let mut structure = raw(3, 0, 0, &mut buffers);
    structure.private_data = ptr::without_provenance_mut(0x5eed);
    let is_released = || RELEASED.lock().unwrap().contains(&0x5eed);
    let array = import(structure, &DataType::Int64).unwrap();
    let buffer = array.buffers()[0].clone();
    drop(array);
    assert!(!is_released());
    drop(buffer);
    assert!(is_released());
}

#[test]
fn broken_structures_are_errors() {
    let values = [0i64; 4];
    let good = || [ptr::null(), address(&values)];
    let int64 = DataType::Int64;
    let text = DataType::Utf8;
    assert!(import(raw(-1, 0, 0, &mut good()), &int64).is_err());
    assert!(import(raw(1, -1, 0, &mut good()), &int64).is_err());
    assert!(import(raw(i64::MAX, 1, 0, &mut good()), &int64).is_err());
    assert!(import(raw(i64::MAX / 2, 0, 0, &mut good()), &int64).is_err());
    assert!(import(raw(4, 0, 0, &mut good()[..1]), &int64).is_err());
    assert!(import(raw(4, 0, 0, &mut good()), &text).is_err());
    assert!(import(raw(4, 0, 0, &mut [ptr::null(), ptr::null()]), &int64).is_err());
    let offsets = [0i32, 1, 2, 3, -4];
    let mut buffers = [ptr::null(), address(&offsets), address(&values)];
    assert!(import(raw(4, 0, 0, &mut buffers), &text).is_err());
    let mut released = raw(4, 0, 0, &mut good());
    released.release = None;
    assert!(matches!(import(released, &int64), Err(ImportError::Null { .. })));
    let list = DataType::List(Field::new("item", int64.clone(), true).into());
    assert!(import(raw(1, 0, 0, &mut good()), &list).is_err());
    let dictionary = DataType::Dictionary(Box::new(int64), Box::new(text));
    assert!(import(raw(1, 0, 0, &mut good()), &dictionary).is_err());
}

/// A record batch may be a slice of a struct array.
#[test]
fn sliced_structs_are_batches() {
    let mut random = SplitMix64::new(4);
    let types = sample_types();
    let fields: Vec<Field> = types
        .iter()
        .filter(|data_type| !matches!(data_type, DataType::Union(fields, _) if fields.is_empty()))
        .map(|data_type| Field::new("c", data_type.clone(), true))
        .collect();
    let columns: Vec<ArrayData> =
        fields.iter().map(|f| random_array(&mut random, f.data_type(), 30, true)).collect();
    let data_type = DataType::Struct(fields.into());
    let builder = ArrayData::builder(data_type).len(12).offset(7).child_data(columns.clone());
    let batch = ffi::batch_of_struct(builder.build().unwrap()).unwrap();
    assert_eq!(batch.rows, 12);
    for (column, whole) in batch.columns.iter().zip(&columns) {
        assert_eq!(column, &whole.slice(7, 12));
    }
    let nothing = ArrayData::new_null(&DataType::Struct(Default::default()), 3);
    assert!(ffi::batch_of_struct(nothing).is_err());
    let number = random_array(&mut random, &DataType::Int8, 3, false);
    assert!(matches!(ffi::batch_of_struct(number), Err(ImportError::NotAStruct { .. })));
    let schema = SchemaNode::try_from(&arrow_schema::Schema::empty()).unwrap();
    let rows = BatchData { rows: 5, columns: vec![] };
    assert_eq!(ffi::export_batch(&schema, &rows).len(), 5);
}

/// An integer in a list in a list, with that many levels in all.
fn nested_lists(levels: usize) -> ArrayData {
    let integer = ArrayData::builder(DataType::Int32).len(1).add_buffer(Buffer::from(vec![7u8; 4]));
    (1..levels).fold(integer.build().unwrap(), |below, _| {
        let item = Field::new("item", below.data_type().clone(), true);
        let list = ArrayData::builder(DataType::List(item.into())).len(1);
        let list = list.add_buffer(Buffer::from_slice_ref([0i32, 1])).add_child_data(below);
        // SAFETY: its one list has the one element below it.
        unsafe { list.build_unchecked() }
    })
}

/// Story: a column of exactly 64 levels could be put in a table and never read again.
#[test]
fn values_that_nest_too_deeply_are_refused_by_the_writer_and_never_by_the_reader() {
    for levels in 62..=67 {
        let column = nested_lists(levels);
        let field = Field::new("c", column.data_type().clone(), true);
        let schema = Schema::new(vec![field.clone()]);
        let imported = |from: FFI_ArrowSchema| {
            // SAFETY: just exported by arrow-rs.
            unsafe { ffi::import_schema(&from) }.map_err(|error| error.to_string())
        };
        let text = |error: farrow_arrow::SchemaError| error.to_string();
        let fields = [
            ("C field", imported(FFI_ArrowSchema::try_from(&field).unwrap())),
            ("Rust field", SchemaNode::try_from(&field).map_err(text)),
        ];
        let schemas = [
            ("C schema", imported(FFI_ArrowSchema::try_from(&schema).unwrap())),
            ("Rust schema", SchemaNode::try_from(&schema).map_err(text)),
        ];
        let batch = BatchData { rows: 1, columns: vec![column.clone()] };
        let mut plans = Vec::new();
        for (from, field) in fields {
            plans.push((from, field.clone().map(|it| Plan::array(&it, &column, &mut |_, _| None))));
            for chunks in [&[], std::slice::from_ref(&column)] {
                let plan = |it| Plan::chunked_array(&it, chunks, &mut |_, _| None);
                plans.push((from, field.clone().map(plan)));
            }
        }
        for (from, schema) in schemas {
            let plan = |it| Plan::record_batch(&it, &batch, &mut |_, _| None);
            plans.push((from, schema.clone().map(plan)));
            for batches in [&[], std::slice::from_ref(&batch)] {
                let plan = |it| Plan::table(&it, batches, &mut |_, _| None);
                plans.push((from, schema.clone().map(plan)));
            }
        }
        for (from, plan) in plans {
            let plan = plan.and_then(|plan| plan.map_err(|error| error.to_string()));
            match plan {
                Ok(plan) => {
                    let mut arena = RegionBytes::default();
                    let descriptor = arena.write(&plan).unwrap();
                    let kind = plan.kind();
                    let decoded = Decoded::parse(&descriptor, &Limits::default())
                        .unwrap_or_else(|error| panic!("{from}, {kind}, {levels}: {error}"));
                    decoded
                        .rebuild_checked(&|offset, length| arena.resolve(offset, length))
                        .unwrap();
                    assert!(levels <= 64, "{from}, {kind}: {levels} levels are accepted");
                }
                Err(error) => {
                    assert!(levels > 64, "{from}: {levels} levels are refused: {error}");
                    assert!(error.contains("deeper than 64 levels"), "{from}: {error}");
                }
            }
        }
    }
}
