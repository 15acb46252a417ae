//! Writers of objects, and what others do to their objects and names meanwhile.

use std::time::{Duration, Instant};

use crate::node::{PATIENCE, TestNode, free_bytes, wait_for};
use arrow_schema::{DataType, Field, Schema};
use farrow::{Error, ObjectOptions, SchemaNode, Value};
use farrow_memory::sync::{AtomicBool, Ordering};
use farrow_wire::link::Link;
use farrow_wire::{Hello, PROTOCOL_VERSION, RequestBody};

/// Seals against the deletes of another client.
const ROUNDS: u64 = 3_000;

/// A client seals memory that it goes on using, and another client deletes the object before the
/// creator holds it. The seal then failed with `NotFound` although it was carried out, and the node
/// kept the memory until the creator ended.
#[test]
fn memory_of_an_object_that_is_deleted_at_once_comes_back() {
    let node = TestNode::start(16 << 20);
    let other = node.client();
    let all_free = free_bytes(&other);
    let client = node.client();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                match other.delete(&["x".into()]) {
                    Ok(()) | Err(Error::NotFound { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let mut failed = None;
        for round in 0..ROUNDS {
            let writer = match client.create(4096, Some("x")) {
                Err(Error::AlreadyExists { .. }) => continue,
                writer => writer.unwrap(),
            };
            writer.memory().write_at(0, &[round as u8; 4096]).unwrap();
            if let Err(error) = writer.seal() {
                failed = Some(error);
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(failed.is_none(), "{failed:?}");
    });
    let _ = other.delete(&["x".into()]);
    wait_for("deleted objects", || other.stats().unwrap().node.objects_retiring == 0);
    drop(client);
    wait_for("all memory", || free_bytes(&other) == all_free);
}

/// A writer that was to replace the object of a name, and did not, freed the name that another
/// writer of the same client had reserved. A third writer took it, and the object that was written
/// first was lost.
#[test]
fn a_name_stays_reserved_whatever_becomes_of_a_writer_that_would_replace_its_object() {
    let node = TestNode::start(16 << 20);
    let (client, other) = (node.client(), node.client());
    let put = || other.put(&Value::Bytes(b"other"), Some("x"));
    let first = client.create(10, Some("x")).unwrap();
    assert!(matches!(put(), Err(Error::AlreadyExists { .. })));
    let replacing = ObjectOptions { replace: true, ..ObjectOptions::named(Some("x")) };
    drop(client.create_with(10, &replacing).unwrap());
    assert!(matches!(put(), Err(Error::AlreadyExists { .. })));
    let refused = client.create_with(10, &replacing).unwrap().seal();
    assert!(matches!(refused, Err(Error::AlreadyExists { .. })), "{refused:?}");
    assert!(matches!(put(), Err(Error::AlreadyExists { .. })));
    first.memory().write_at(0, b"0123456789").unwrap();
    first.seal().unwrap();
    let sealed = other.get(&"x".into(), Duration::ZERO).unwrap();
    assert_eq!(&sealed.view().unwrap()[..], b"0123456789");
}

/// The creator of a named object could not hold it, since the node had no page of holds left, and
/// did not confirm it either. After its deletion the object stayed until the end of its creator.
#[test]
fn an_object_that_its_creator_cannot_hold_is_not_retained_for_it() {
    let node = TestNode::start(64 << 20);
    let (client, other) = (node.client(), node.client());
    let hello = Hello {
        version: PROTOCOL_VERSION,
        resume: None,
        namespace: String::new(),
        node: String::new(),
        maps_memory: true,
    };
    let deadline = Instant::now() + PATIENCE;
    let (greedy, ..) = Link::connect(node.socket(), hello, deadline).unwrap();
    while greedy.call(RequestBody::HoldBlock, deadline).is_ok() {}
    let mut held = Vec::new();
    let refused = loop {
        let id = client.put(&Value::Bytes(b"held"), None).unwrap();
        match client.get(&id.into(), Duration::ZERO) {
            Ok(object) => held.push(object),
            Err(error) => break error,
        }
    };
    assert!(refused.to_string().contains("hold blocks"), "{refused}");
    let field = Field::new("n", DataType::Int64, false);
    let schema = SchemaNode::try_from(&Schema::new(vec![field])).unwrap();
    let error = client.huge_table("table", Some(&schema)).unwrap_err();
    assert!(error.to_string().contains("hold blocks"), "{error}");
    assert!(other.contains(&"table".into()).unwrap());
    other.delete(&["table".into()]).unwrap();
    wait_for("the deleted object", || other.stats().unwrap().node.objects_retiring == 0);
    drop(held);
}
