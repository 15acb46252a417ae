//! A put of pages in place that the node refuses, in a process that has no room for more maps.
//!
//! The pages could not be made writable again, and stayed read-only. Once freed they were handed out
//! again as they were: the first store to the next buffer ended the process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::sync::Arc;

use common::{Daemon, bytes_of, wait_for};
use farrow::{Client, Error, NdArray, Order, Value};
use farrow_memory::maps_trial;

/// Less than a client retains of the memory, so that the next buffer of this length has the same
/// pages. A grant for it has no other pages, so no map is divided.
const LENGTH: usize = 512 << 10;

fn put_in_place(client: &Client, buffer: &arrow_buffer::Buffer, name: &str) -> Result<(), Error> {
    let shape =
        NdArray { dtype: "|u1".into(), item_bytes: 1, shape: vec![LENGTH as u64], order: Order::C };
    client.put(&Value::NdArray { shape: &shape, data: buffer }, Some(name)).map(drop)
}

#[test]
fn a_buffer_that_stays_read_only_is_not_handed_out_again() {
    let daemon = Daemon::start("64MiB", &["--no-prepare"]);
    let (client, other) = (daemon.client(), daemon.client());
    other.put(&Value::Bytes(b"other"), Some("x")).unwrap();
    // Memory for the descriptor of the array.
    client.put(&Value::Bytes(b"own"), None).unwrap();
    let pool = client.pool();
    let granted = |what: &str, bytes: u64| {
        let is_as = || (other.stats().unwrap().node.granted == bytes).then_some(());
        wait_for(what, is_as).unwrap_or_else(|| panic!("{what}: {:?}", other.stats().unwrap()));
    };
    let before = other.stats().unwrap().node.granted;
    for round in 0..3 {
        let pointer = pool.allocate(LENGTH, 64).unwrap();
        // SAFETY: an allocation of that length, which nobody else uses.
        unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), LENGTH) }
            .copy_from_slice(&bytes_of(round, LENGTH));
        // SAFETY: the allocation outlives the buffer, and nobody writes to it meanwhile.
        let buffer = unsafe { farrow::arrow::foreign_buffer(pointer, LENGTH, Arc::new(())) };
        // The first check is for the way of the put, the second after its failure.
        maps_trial::refuse_after(1);
        let answer = put_in_place(&client, &buffer, "x");
        maps_trial::refuse_after(u64::MAX);
        assert!(matches!(answer, Err(Error::AlreadyExists { .. })), "{answer:?}");
        assert!(buffer.as_slice() == bytes_of(round, LENGTH));
        drop(buffer);
        pool.free(pointer, LENGTH);
        granted("the pages of the buffer", before);
    }
    drop(client);
}
