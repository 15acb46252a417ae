//! References to values whose buffers are in the memory of two nodes.

use std::time::Duration;

use crate::node::{TestNode, wait_for};
use arrow_array::{Array, Int64Array};
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field};
use farrow::{Client, Error, OpenedValue, Rebuilt, SchemaNode, ShareOptions, Value};

/// A mebibyte.
const ROWS: i64 = 1 << 17;

/// An array in the memory of the client's node.
fn put_numbers(client: &Client, field: &SchemaNode) -> ArrayData {
    let data = Int64Array::from_iter_values(0..ROWS).to_data();
    let id = client.put(&Value::Array { field, data: &data }, None).unwrap();
    match client.get(&id.into(), Duration::ZERO).unwrap().rebuild().unwrap() {
        Rebuilt::Arrow(object) => object.batches[0].columns[0].clone(),
        Rebuilt::NdArray(..) => panic!("not an ndarray"),
    }
}

/// Tasks of Spark and Ray put a block, then shared it, and deleted the first object. The process of a
/// task that was killed in between left an object that nothing deleted.
#[test]
fn a_put_with_a_lease_makes_one_object_that_ends_with_the_lease() {
    let node = TestNode::start(16 << 20);
    let (writer, reader) = (node.client(), node.client());
    let field = SchemaNode::try_from(&Field::new("", DataType::Int64, false)).unwrap();
    let data = Int64Array::from_iter_values(0..ROWS).to_data();
    let value = Value::Array { field: &field, data: &data };
    let totals = || {
        let stats = reader.stats().unwrap().node;
        (stats.sealed_total, stats.deleted_total, stats.objects_pinned, stats.objects)
    };
    let lease = Duration::from_millis(20);
    let shared = writer.put_shared(&value, lease, Duration::ZERO).unwrap();
    assert_eq!(totals(), (1, 0, 1, 1));
    let Ok(OpenedValue::Object(object)) = reader.open_shared(shared.message()) else {
        panic!("no object");
    };
    match object.rebuild().unwrap() {
        Rebuilt::Arrow(arrow) => assert_eq!(arrow.batches[0].columns[0], data),
        Rebuilt::NdArray(..) => panic!("not an ndarray"),
    }
    drop((object, shared));
    wait_for("the end of the lease", || reader.stats().unwrap().node.objects == 0);
    // If there is no room, nothing stays.
    let large = vec![1; 15 << 20];
    let _held = writer.put_shared(&Value::Bytes(&large), lease, Duration::ZERO).unwrap();
    let before = totals();
    let full = writer.put_shared(&Value::Bytes(&large), lease, Duration::ZERO);
    assert!(matches!(full, Err(Error::OutOfMemory(_))), "{full:?}");
    assert_eq!(totals(), before);
}

/// The part at the first node stayed for the time of its lease, up to an hour, and nobody knew it.
#[test]
fn a_share_that_fails_at_one_node_leaves_nothing_at_the_other() {
    let nodes = [TestNode::start(16 << 20), TestNode::start(16 << 20)];
    let [a, b] = nodes.each_ref().map(TestNode::client);
    let field = SchemaNode::try_from(&Field::new("", DataType::Int64, false)).unwrap();
    let chunks = [put_numbers(&a, &field), put_numbers(&b, &field)];
    let value = Value::ChunkedArray { field: &field, chunks: &chunks };
    let options = ShareOptions { bytes_min: 1, lease: Duration::from_secs(3600) };
    let shared = farrow::share(&value, &options).unwrap();
    assert!(shared.is_some(), "it is in both memories");
    drop(shared);
    let before = a.stats().unwrap().node.objects;
    // The second node has no room for its part.
    for size in [1 << 20, 64 << 10, 4 << 10, 1] {
        while b.put(&Value::Bytes(&vec![1; size]), None).is_ok() {}
    }
    farrow::share(&value, &options).unwrap_err();
    wait_for("the delete of the part", || a.stats().unwrap().node.objects == before);
}
