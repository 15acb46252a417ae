//! Many objects in one message, and the metadata of objects.

use std::time::Duration;

use crate::node::TestNode;
use arrow_buffer::Buffer;
use farrow::{Error, Metadata, NdArray, ObjectKey, ObjectOptions, Order, Value};

#[test]
fn metadata_is_read_listed_and_filtered() {
    let node = TestNode::start(16 << 20);
    let client = node.client();
    let metadata = Metadata::new([("team", "risk"), ("day", "22")]).unwrap();
    let options = |name| ObjectOptions {
        name: Some(name),
        metadata: Some(&metadata),
        ..ObjectOptions::default()
    };
    let id = client.put_with(&Value::Bytes(b"small"), &options("small")).unwrap();
    client.put_with(&Value::Bytes(&vec![7; 1 << 20]), &options("large")).unwrap();
    let shape = NdArray { dtype: "<f8".into(), item_bytes: 8, shape: vec![3], order: Order::C };
    let data = Buffer::from_vec(vec![1.0, 2.0, 3.0]);
    client.put_with(&Value::NdArray { shape: &shape, data: &data }, &options("array")).unwrap();
    let writer = client.create_with(4096, &options("written")).unwrap();
    writer.memory().write_at(0, &[9; 4096]).unwrap();
    writer.seal().unwrap();
    client.put(&Value::Bytes(b"plain"), Some("plain")).unwrap();

    for name in ["small", "large", "array", "written"] {
        assert_eq!(client.metadata(&name.into()).unwrap(), metadata, "{name}");
    }
    assert_eq!(client.metadata(&id.into()).unwrap(), metadata);
    assert!(client.metadata(&"plain".into()).unwrap().is_empty());
    assert!(matches!(client.metadata(&"none".into()), Err(Error::NotFound { .. })));
    let written = client.get(&"written".into(), Duration::ZERO).unwrap();
    assert_eq!(written.view().unwrap()[..], [9; 4096]);
    let listed = |filter: &[(&str, &str)]| {
        let filter = Metadata::new(filter.iter().copied()).unwrap();
        let all = client.list_where("", &filter).unwrap();
        all.into_iter().filter_map(|one| one.name).collect::<Vec<_>>()
    };
    assert_eq!(listed(&[("team", "risk")]), ["array", "large", "small", "written"]);
    assert_eq!(listed(&[("team", "other")]), [""; 0]);
    assert_eq!(listed(&[]).len(), 5);
}

#[test]
fn create_many_takes_all_names_or_none() {
    let node = TestNode::start(16 << 20);
    let client = node.client();
    let names: Vec<String> = (0..40).map(|number| format!("object {number}")).collect();
    let objects: Vec<(u64, ObjectOptions<'_>)> =
        names.iter().map(|name| (1000, ObjectOptions::named(Some(name)))).collect();
    let writers = client.create_many(&objects).unwrap();
    for (number, writer) in writers.into_iter().enumerate() {
        writer.memory().write_at(0, &[number as u8; 1000]).unwrap();
        writer.seal().unwrap();
    }
    let targets: Vec<ObjectKey> = names.iter().map(|name| name.as_str().into()).collect();
    for (number, object) in client.get_many(&targets, Duration::ZERO).unwrap().iter().enumerate() {
        assert_eq!(object.view().unwrap()[..], [number as u8; 1000]);
    }
    let again = [(8, ObjectOptions::named(Some("fresh"))), objects[3]];
    assert!(matches!(client.create_many(&again), Err(Error::AlreadyExists { .. })));
    client.put(&Value::Bytes(b"x"), Some("fresh")).unwrap();
    let huge = [(8, ObjectOptions::named(Some("one"))), (u64::MAX / 4, ObjectOptions::default())];
    assert!(matches!(client.create_many(&huge), Err(Error::TooLarge(_))));
    client.put(&Value::Bytes(b"x"), Some("one")).unwrap();
}
