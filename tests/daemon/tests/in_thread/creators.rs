//! A client seals memory that it goes on using, and another client deletes the object before the
//! creator holds it. The seal then failed with `NotFound` although it was carried out, and the node
//! kept the memory until the creator ended.

use crate::node::{TestNode, free_bytes, wait_for};
use farrow::Error;
use farrow_memory::sync::{AtomicBool, Ordering};

/// Seals against the deletes of another client.
const ROUNDS: u64 = 3_000;

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
