//! Version 1 of the descriptor, byte by byte: these bytes never change.
//! `docs/formats/descriptor.md` explains the same example.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

use arrow_array::{Array, DictionaryArray, Int64Array, StringArray, types::Int8Type};
use arrow_buffer::Buffer;
use arrow_schema::{DataType, Field, Schema};
use farrow_arrow::testing::RegionBytes;
use farrow_arrow::{
    BatchData, Decoded, DescribeError, DescriptorStamp, InvalidDescriptor, Kind, Limits, NdArray,
    Order, Plan, Rebuilt, SchemaNode,
};

const TABLE: &str = "
    46525744 0100 06 00  efbeadde00000000  0700000000000000  0010000000000000  7800000000000000
    30 02 2b73  01 01 6b 01 76
    03  0a 01 6c 01 6e
        0a 01 75 01 73
        4b 01 63 01 64
            02 01 75
    02
    03  02 03 01 00  01 00   18 8001
        00 03   10 8002  03 8003
        00 03   03 8004
            00 02   0c 8005  02 8006
    01  00 01   08 8007
        00 01   08 8008  03 8009
        08 01   01 800a  00
";

const TABLE_NOTE: &str = "the bytes of version 1 have changed: raise the version instead";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn table() -> (SchemaNode, Vec<BatchData>) {
    let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    let schema = Schema::new_with_metadata(
        vec![
            Field::new("n", DataType::Int64, true),
            Field::new("s", DataType::Utf8, true),
            Field::new("d", dictionary, true).with_dict_is_ordered(true),
        ],
        std::collections::HashMap::from([("k".to_string(), "v".to_string())]),
    );
    let n = Int64Array::from(vec![Some(1), None, Some(3), Some(4)]);
    let s = StringArray::from(vec!["a", "", "bc", "def"]);
    let d: DictionaryArray<Int8Type> = vec!["x", "y", "x", "x"].into_iter().collect();
    let whole = [n.to_data(), s.to_data(), d.to_data()];
    let batch = |start: usize, rows: usize| {
        let columns = whole.iter().map(|column| column.slice(start, rows)).collect();
        BatchData { rows, columns }
    };
    (SchemaNode::try_from(&schema).unwrap(), vec![batch(0, 3), batch(3, 1)])
}

#[test]
fn version_one_is_written_for_ever() {
    let (schema, batches) = table();
    let plan = Plan::table(&schema, &batches, &mut |_, _| None).unwrap();
    let descriptor = plan.descriptor(DescriptorStamp { region: 0xdead_beef, epoch: 7 }, 4096);
    let text: Vec<String> = descriptor.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(descriptor, hex(TABLE), "{TABLE_NOTE}\n{}", text.join(" "));
}

#[test]
fn version_one_is_read_for_ever() {
    let (schema, batches) = table();
    let mut arena = RegionBytes::default();
    let plan = Plan::table(&schema, &batches, &mut |_, _| None).unwrap();
    arena.write(&plan).unwrap();
    let decoded = Decoded::parse(&hex(TABLE), &Limits::default()).unwrap();
    assert_eq!(decoded.kind(), Kind::Table);
    assert_eq!(decoded.stamp(), DescriptorStamp { region: 0xdead_beef, epoch: 7 });
    let rebuilt = decoded.rebuild_checked(&|offset, length| arena.resolve(offset - 4096, length));
    let Rebuilt::Arrow(object) = rebuilt.unwrap() else { panic!("a table") };
    assert_eq!(*object.schema, schema);
    assert_eq!(object.batches.len(), batches.len());
    for (back, batch) in object.batches.iter().zip(&batches) {
        assert_eq!(back.columns, batch.columns);
    }
}

const NDARRAY: &str = "
    46525744 0100 02 00  0000000000000000  0000000000000000  0000000000000000  3400000000000000
    03 3c6634  04  01  02 02 03  18 81 40
";

#[test]
fn numpy_arrays_have_a_descriptor_too() {
    let shape = NdArray { dtype: "<f4".into(), item_bytes: 4, shape: vec![2, 3], order: Order::F };
    let data = Buffer::from_vec(vec![1f32, 2., 3., 4., 5., 6.]);
    // The data is in place at offset 4096.
    let plan = Plan::ndarray(&shape, &data, &mut |_, _| Some(4096)).unwrap();
    assert_eq!((plan.copy_bytes(), plan.in_place()), (0, [(4096, 24)].as_slice()));
    let descriptor = plan.descriptor(DescriptorStamp::default(), 0);
    let text: Vec<String> = descriptor.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(descriptor, hex(NDARRAY), "{TABLE_NOTE}\n{}", text.join(" "));
    let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
    let rebuilt = decoded.rebuild(&|offset, length| {
        assert_eq!((offset, length), (4096, 24));
        Some(data.clone())
    });
    let Rebuilt::NdArray(back, bytes) = rebuilt.unwrap() else { panic!("an ndarray") };
    assert_eq!(back, shape);
    assert_eq!(bytes.as_ptr(), data.as_ptr());

    let wrong = NdArray { shape: vec![2, 4], ..shape.clone() };
    let error = Plan::ndarray(&wrong, &data, &mut |_, _| None).unwrap_err();
    assert!(matches!(error, DescribeError::NdArraySize { needed: 32, found: 24, .. }), "{error}");
    let huge = NdArray { shape: vec![u64::MAX, 3], ..shape };
    let error = Plan::ndarray(&huge, &data, &mut |_, _| None).unwrap_err();
    assert!(matches!(error, DescribeError::Overflow { .. }), "{error}");
}

#[test]
fn scalars_and_empty_arrays_of_numpy() {
    for shape in [vec![], vec![0, 5], vec![1]] {
        let items: u64 = shape.iter().product();
        let shape = NdArray { dtype: "|V7".into(), item_bytes: 7, shape, order: Order::C };
        let data = Buffer::from(vec![1u8; 7 * items as usize]);
        let plan = Plan::ndarray(&shape, &data, &mut |_, _| None).unwrap();
        let mut arena = RegionBytes::default();
        let descriptor = arena.write(&plan).unwrap();
        let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
        let rebuilt = decoded.rebuild(&|offset, length| arena.resolve(offset, length)).unwrap();
        let Rebuilt::NdArray(back, bytes) = rebuilt else { panic!("an ndarray") };
        assert_eq!((back, bytes.as_slice()), (shape, data.as_slice()));
    }
}

#[test]
fn a_resolver_must_give_exactly_the_bytes() {
    let (schema, batches) = table();
    let plan = Plan::table(&schema, &batches, &mut |_, _| None).unwrap();
    let descriptor = plan.descriptor(DescriptorStamp::default(), 0);
    let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
    let short = Buffer::from(vec![0u8; 2]);
    let error = decoded.rebuild(&|_, _| Some(short.clone())).unwrap_err();
    assert!(matches!(error, InvalidDescriptor::OutOfBounds { .. }), "{error}");
    let zeros = Buffer::from_vec(vec![0u64; 200]);
    let error = decoded
        .rebuild(&|_, length| Some(zeros.slice_with_length(0, length as usize)))
        .unwrap_err();
    assert!(
        matches!(&error, InvalidDescriptor::Data { reason } if reason.contains("null count")),
        "not the bitmap that was counted: {error}"
    );
    let field = SchemaNode::try_from(&Field::new("n", DataType::Int64, false)).unwrap();
    let numbers = Int64Array::from(vec![1, 2, 3]).to_data();
    let plan = Plan::array(&field, &numbers, &mut |_, _| None).unwrap();
    let descriptor = plan.descriptor(DescriptorStamp::default(), 0);
    let decoded = Decoded::parse(&descriptor, &Limits::default()).unwrap();
    let error = decoded
        .rebuild(&|_, length| Some(zeros.slice_with_length(1, length as usize)))
        .unwrap_err();
    assert!(matches!(error, InvalidDescriptor::Misaligned { .. }), "{error}");
}
