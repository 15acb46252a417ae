//! Arrow values through a node: equal, in place, read-only, shared between objects.

use std::sync::Arc;
use std::time::Duration;

use crate::node::{TestNode, free_bytes, wait_for};
use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::{Array, ArrayRef, Int64Array, StringArray, StructArray, make_array};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, Fields, Schema};
use farrow::{ArrowObject, BatchData, Client, Error, NdArray, ObjectId, Order, Rebuilt};
use farrow::{ObjectOptions, SchemaNode, Value};

fn schema_of(columns: &[(&str, ArrayRef)]) -> SchemaNode {
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, array)| Field::new(*name, array.data_type().clone(), true))
        .collect();
    SchemaNode::try_from(&Schema::new(fields)).unwrap()
}

fn batch_of(columns: &[(&str, ArrayRef)]) -> BatchData {
    let rows = columns.first().map_or(0, |(_, array)| array.len());
    BatchData { rows, columns: columns.iter().map(|(_, array)| array.to_data()).collect() }
}

fn get(client: &Client, id: ObjectId) -> ArrowObject {
    match client.get(&id.into(), Duration::ZERO).unwrap().rebuild().unwrap() {
        Rebuilt::Arrow(object) => object,
        Rebuilt::NdArray(..) => panic!("not an ndarray"),
    }
}

fn columns(rows: i64) -> Vec<(&'static str, ArrayRef)> {
    let numbers = Int64Array::from_iter((0..rows).map(|n| (n % 7 != 0).then_some(n)));
    let words = StringArray::from_iter((0..rows).map(|n| (n % 5 != 0).then(|| format!("w{n}"))));
    let mut lists = ListBuilder::new(StringBuilder::new());
    for n in 0..rows {
        for k in 0..n % 3 {
            lists.values().append_value(format!("{n}.{k}"));
        }
        lists.append(n % 11 != 0);
    }
    let numbers: ArrayRef = Arc::new(numbers);
    let fields = Fields::from(vec![Field::new("n", DataType::Int64, true)]);
    let nested = StructArray::new(fields, vec![Arc::clone(&numbers)], None);
    vec![
        ("numbers", numbers),
        ("words", Arc::new(words)),
        ("lists", Arc::new(lists.finish())),
        ("nested", Arc::new(nested)),
    ]
}

fn buffers(data: &ArrayData) -> Vec<Buffer> {
    let mut all = data.buffers().to_vec();
    all.extend(data.nulls().map(|nulls| nulls.buffer().clone()));
    all.extend(data.child_data().iter().flat_map(buffers));
    all
}

#[test]
fn tables_small_and_large_come_back_equal_to_another_client_and_lie_in_the_region() {
    let node = TestNode::start(64 << 20);
    let (writer, reader) = (node.client(), node.client());
    for rows in [0, 1, 100, 50_000] {
        let columns = columns(rows);
        let schema = schema_of(&columns);
        let whole = batch_of(&columns);
        let halves: Vec<BatchData> = [(0, rows / 2), (rows / 2, rows - rows / 2)]
            .into_iter()
            .map(|(start, length)| {
                let slice = |data: &ArrayData| data.slice(start as usize, length as usize);
                let columns = whole.columns.iter().map(slice).collect();
                BatchData { rows: length as usize, columns }
            })
            .collect();
        let id = writer.put(&Value::Table { schema: &schema, batches: &halves }, None).unwrap();
        let object = get(&reader, id);
        assert_eq!(object.rows(), rows as u64);
        for (batch, expected) in object.batches.iter().zip(&halves) {
            for (column, expected) in batch.columns.iter().zip(&expected.columns) {
                assert_eq!(
                    make_array(column.clone()).as_ref(),
                    make_array(expected.clone()).as_ref()
                );
                // An array of no rows has its one offset elsewhere.
                let all = buffers(column);
                for buffer in all.iter().filter(|buffer| buffer.len() > 8) {
                    let place = reader.locate(buffer.as_ptr(), buffer.len());
                    assert!(place.is_some(), "a buffer of {} B lies elsewhere", buffer.len());
                }
            }
        }
    }
}

#[test]
fn what_is_put_again_refers_to_the_blocks_it_came_from_and_outlives_the_first_object() {
    let node = TestNode::start(64 << 20);
    let client = node.client();
    let all_free = free_bytes(&client);
    let columns = columns(100_000);
    let schema = schema_of(&columns[..1]);
    let batch = batch_of(&columns[..1]);
    let first = client.put(&Value::RecordBatch { schema: &schema, batch: &batch }, None).unwrap();
    let used = client.stats().unwrap().node.used;
    let object = get(&client, first);
    let slice = object.batches[0].columns[0].slice(1000, 50_000);
    let second =
        client.put(&Value::Array { field: &schema.children()[0], data: &slice }, None).unwrap();
    let more = client.stats().unwrap().node.used - used;
    assert!(more < 16 << 10, "{more} B more for a view of what is there");
    client.delete(&[first.into()]).unwrap();
    drop((object, slice));
    let object = get(&client, second);
    let expected = columns[0].1.to_data().slice(1000, 50_000);
    assert_eq!(
        make_array(object.batches[0].columns[0].clone()).as_ref(),
        make_array(expected).as_ref()
    );
    drop(object);
    client.delete(&[second.into()]).unwrap();
    drop(client);
    let client = node.client();
    wait_for("all memory", || free_bytes(&client) == all_free);
}

/// An Int64 array whose values lie in the client's pool.
fn pooled(client: &Client, pool: &Arc<farrow::Pool>, rows: usize) -> (ArrayData, usize) {
    struct PoolPages(Arc<farrow::Pool>, usize, usize);
    impl Drop for PoolPages {
        fn drop(&mut self) {
            let pointer = std::ptr::NonNull::new(std::ptr::with_exposed_provenance_mut(self.1));
            self.0.free(pointer.unwrap(), self.2);
        }
    }
    let bytes = rows * 8;
    let pointer = pool.allocate(bytes, 64).unwrap();
    for row in 0..rows {
        // SAFETY: inside of an allocation of that size, which nobody else uses.
        unsafe { pointer.cast::<i64>().add(row).write(row as i64) };
    }
    let address = pointer.as_ptr().expose_provenance();
    let owner = PoolPages(Arc::clone(pool), address, bytes);
    let owner = Arc::new(std::panic::AssertUnwindSafe(owner));
    assert!(client.locate(pointer.as_ptr(), bytes).is_some());
    // SAFETY: the owner frees the bytes when the last buffer goes; nobody writes them any more.
    let buffer = unsafe { farrow::arrow::foreign_buffer(pointer, bytes, owner) };
    let data = ArrayData::builder(DataType::Int64).len(rows).add_buffer(buffer).build().unwrap();
    (data, address)
}

#[test]
fn a_table_built_in_the_pool_is_sealed_where_it_lies() {
    let node = TestNode::start(64 << 20);
    let (client, reader) = (node.client(), node.client());
    let all_free = free_bytes(&reader);
    let pool = Arc::new(client.pool());
    let (data, address) = pooled(&client, &pool, 1 << 20);
    let field = SchemaNode::try_from(&Field::new("n", DataType::Int64, false)).unwrap();
    let before = client.stats().unwrap().node.used;
    let id = client.put(&Value::Array { field: &field, data: &data }, Some("t")).unwrap();
    let used = client.stats().unwrap().node.used - before;
    assert!(used < (8 << 20) + (64 << 10), "copied: {used} B are used");
    let own = get(&client, id);
    let there = own.batches[0].columns[0].buffers()[0].as_ptr() as usize;
    assert_eq!(there, address, "in place");
    let other = get(&reader, id);
    assert_eq!(other.batches[0].columns[0], data);
    // The same buffers again: the second object shares them.
    let again = client.put(&Value::Array { field: &field, data: &data }, None).unwrap();
    assert_eq!(get(&reader, again).batches[0].columns[0], data);
    // Deleted and let go by all but its maker, whose own table must stay good.
    drop((own, other));
    client.delete(&[id.into(), again.into()]).unwrap();
    let filler = vec![0xff; 8 << 20];
    while client.put(&Value::Bytes(&filler), None).is_ok() {}
    let sum: i64 = data.buffers()[0].typed_data::<i64>().iter().sum();
    assert_eq!(sum, (1_i64 << 20) * ((1 << 20) - 1) / 2);
    drop((data, pool, client));
    for listed in reader.list("").unwrap() {
        reader.delete(&[listed.id.into()]).unwrap();
    }
    wait_for("all memory", || free_bytes(&reader) == all_free);
}

#[test]
fn a_buffer_that_failed_to_be_put_is_writable_again() {
    let node = TestNode::start(16 << 20);
    let client = node.client();
    client.put(&Value::Bytes(b"x"), Some("taken")).unwrap();
    let pool = Arc::new(client.pool());
    let (data, address) = pooled(&client, &pool, 10_000);
    let field = SchemaNode::try_from(&Field::new("n", DataType::Int64, false)).unwrap();
    let value = Value::Array { field: &field, data: &data };
    assert!(matches!(client.put(&value, Some("taken")), Err(Error::AlreadyExists { .. })));
    let pointer: *mut i64 = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the allocation is alive and, after a failed put, as writable as it was.
    unsafe { pointer.write(42) };
    client.put(&value, Some("free")).unwrap();
    let object = client.get(&"free".into(), Duration::ZERO).unwrap();
    assert_eq!(
        object
            .rebuild()
            .map(|rebuilt| match rebuilt {
                Rebuilt::Arrow(object) =>
                    object.batches[0].columns[0].buffers()[0].typed_data::<i64>()[0],
                Rebuilt::NdArray(..) => 0,
            })
            .unwrap(),
        42
    );
}

#[test]
fn ndarrays_and_many_values_in_one_message() {
    let node = TestNode::start(16 << 20);
    let client = node.client();
    let shape = NdArray { dtype: "<f8".into(), item_bytes: 8, shape: vec![3, 4], order: Order::F };
    let data = Buffer::from_vec((0..12).map(f64::from).collect::<Vec<_>>());
    let big = vec![5; 300_000];
    let values = [
        Value::NdArray { shape: &shape, data: &data },
        Value::Bytes(b"small"),
        Value::Bytes(&big),
        Value::Bytes(b""),
    ];
    let ids = client.put_many(&nameless(&values)).unwrap();
    let (found, bytes) = client.get(&ids[0].into(), Duration::ZERO).unwrap().ndarray().unwrap();
    assert_eq!((found, bytes), (shape, data));
    let targets: Vec<_> = ids[1..].iter().map(|id| (*id).into()).collect();
    let objects = client.get_many(&targets, Duration::ZERO).unwrap();
    let lengths: Vec<usize> = objects.iter().map(|object| object.view().unwrap().len()).collect();
    assert_eq!(lengths, [5, 300_000, 0]);
    assert!(objects[0].rebuild().is_err(), "bytes are no array");
    // All or none.
    let too_big = vec![0; 64 << 20];
    let before = client.list("").unwrap().len();
    let values = [Value::Bytes(b"one"), Value::Bytes(&too_big)];
    assert!(matches!(client.put_many(&nameless(&values)), Err(Error::TooLarge(_))));
    assert_eq!(client.list("").unwrap().len(), before);
}

/// The second of two values over one pool buffer copies the buffer. The memory for a batch that found no
/// free memory was computed as if both left it in place: the batch failed with `InvalidArgument`.
#[test]
fn many_values_over_one_buffer_are_put_when_memory_is_short() {
    let node = TestNode::start_spilling(32 << 20);
    let client = node.client();
    let pool = Arc::new(client.pool());
    let (data, _) = pooled(&client, &pool, 256 << 10);
    let filler = vec![7; 512 << 10];
    for _ in 0..80 {
        client.put(&Value::Bytes(&filler), None).unwrap();
    }
    let field = SchemaNode::try_from(&Field::new("n", DataType::Int64, false)).unwrap();
    let value = Value::Array { field: &field, data: &data };
    let ids = client.put_many(&nameless(&[value, value, value])).unwrap();
    for id in ids {
        assert_eq!(get(&client, id).batches[0].columns[0], data);
    }
}

#[test]
fn more_objects_are_held_than_fit_one_page_of_holds() {
    let node = TestNode::start(32 << 20);
    let (client, other) = (node.client(), node.client());
    let bytes: Vec<Vec<u8>> = (0..1500_u32).map(|n| n.to_le_bytes().to_vec()).collect();
    let values: Vec<Value<'_>> = bytes.iter().map(|one| Value::Bytes(one)).collect();
    let ids = client.put_many(&nameless(&values)).unwrap();
    let targets: Vec<_> = ids.iter().map(|id| (*id).into()).collect();
    let held = other.get_many(&targets, Duration::ZERO).unwrap();
    client.delete(&targets).unwrap();
    assert_eq!(client.stats().unwrap().node.objects_retiring, 1500);
    for (object, expected) in held.iter().zip(&bytes) {
        assert_eq!(&object.view().unwrap()[..], &expected[..]);
    }
    drop(held);
    wait_for("all to go", || client.stats().unwrap().node.objects_retiring == 0);
}

#[test]
fn threads_share_a_client_and_its_pool() {
    let node = TestNode::start(128 << 20);
    let client = node.client();
    let all_free = free_bytes(&client);
    let pool = Arc::new(client.pool());
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (client, pool) = (client.clone(), Arc::clone(&pool));
            scope.spawn(move || {
                let mut live: Vec<(std::ptr::NonNull<u8>, usize, u8)> = Vec::new();
                let mut state = thread * 77 + 1;
                let mut dice = |sides: u64| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state % sides
                };
                for _ in 0..3000 {
                    let size = [1, 64, 100, 2048, 2049, 5000, 70_000, 400_000][dice(8) as usize];
                    match dice(4) {
                        0 if !live.is_empty() => {
                            let (pointer, size, byte) =
                                live.swap_remove(dice(live.len() as u64) as usize);
                            check(pointer, size, byte);
                            pool.free(pointer, size);
                        }
                        1 if !live.is_empty() => {
                            let place = dice(live.len() as u64) as usize;
                            let (pointer, old, byte) = live[place];
                            let Some(moved) = pool.reallocate(pointer, old, size, 64) else {
                                continue;
                            };
                            check(moved, old.min(size), byte);
                            // SAFETY: an allocation of this size that is ours.
                            unsafe { moved.write_bytes(byte, size) };
                            live[place] = (moved, size, byte);
                        }
                        2 if live.len() > 40 => {
                            let bytes = vec![thread as u8; size];
                            let id = client.put(&Value::Bytes(&bytes), None).unwrap();
                            let object = client.get(&id.into(), Duration::ZERO).unwrap();
                            assert_eq!(&object.view().unwrap()[..], &bytes[..]);
                            client.delete(&[id.into()]).unwrap();
                        }
                        _ => {
                            let Some(pointer) = pool.allocate(size, 64) else {
                                continue;
                            };
                            assert_eq!(pointer.as_ptr() as usize % 64, 0);
                            let byte = dice(256) as u8;
                            // SAFETY: an allocation of this size that is ours.
                            unsafe { pointer.write_bytes(byte, size) };
                            live.push((pointer, size, byte));
                        }
                    }
                }
                for (pointer, size, byte) in live {
                    check(pointer, size, byte);
                    pool.free(pointer, size);
                }
            });
        }
    });
    assert_eq!(pool.stats().allocated, 0);
    drop((client, pool));
    let client = node.client();
    wait_for("all memory", || free_bytes(&client) == all_free);
}

fn check(pointer: std::ptr::NonNull<u8>, size: usize, byte: u8) {
    // SAFETY: an allocation of at least this size that only this thread writes.
    let bytes = unsafe { std::slice::from_raw_parts(pointer.as_ptr(), size) };
    assert!(bytes.iter().all(|found| *found == byte), "somebody else wrote here");
}

/// Without names and metadata.
fn nameless<'a>(values: &[Value<'a>]) -> Vec<(Value<'a>, ObjectOptions<'static>)> {
    values.iter().map(|value| (*value, ObjectOptions::default())).collect()
}

/// Places in a descriptor count from where the blocks lay at seal; these are elsewhere now.
#[test]
fn tables_come_back_from_files_as_they_were() {
    let node = TestNode::start_spilling(32 << 20);
    let client = node.client();
    let columns = columns(5000);
    let schema = schema_of(&columns);
    let batches = [batch_of(&columns), batch_of(&columns)];
    let id = client.put(&Value::Table { schema: &schema, batches: &batches }, Some("t")).unwrap();
    let whole = |id: ObjectId| -> Vec<ArrayData> {
        get(&client, id).batches.into_iter().flat_map(|batch| batch.columns).collect()
    };
    let expected: Vec<ArrayData> = batches.iter().flat_map(|batch| batch.columns.clone()).collect();
    for round in 0..3 {
        // Something else takes the place it had.
        assert!(client.evict(u64::MAX).unwrap().objects >= 1, "round {round}");
        assert!(client.list("t").unwrap()[0].is_spilled);
        let other = client.put(&Value::Bytes(&[7; 100_000]), Some("other")).unwrap();
        assert_eq!(whole(id), expected, "round {round}");
        let object = client.get(&id.into(), Duration::ZERO).unwrap();
        let Rebuilt::Arrow(checked) = object.rebuild_checked().unwrap() else {
            panic!("not arrays");
        };
        // What came back can be part of another object, in place.
        let again = client
            .put(&Value::Table { schema: &checked.schema, batches: &checked.batches }, None)
            .unwrap();
        drop((object, checked));
        assert_eq!(whole(again), expected, "round {round}");
        client.delete(&[other.into(), again.into()]).unwrap();
    }
    client.delete(&["t".into()]).unwrap();
    // What is left was granted to this client, which keeps some at hand.
    wait_for("all memory", || {
        let node = client.stats().unwrap().node;
        node.used == 0 && node.retiring == 0 && node.free + node.granted == node.capacity
    });
}
