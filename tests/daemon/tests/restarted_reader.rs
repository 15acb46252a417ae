//! A node that reads an object of another node is killed, and its next daemon continues the same life
//! of the member.
//!
//! Its holds at the other node used to stay until it read there again. A drain of that node waited
//! for them until its timeout, and the memory of deleted objects did not become free.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::time::{Duration, Instant};

use arrow_buffer::Buffer;
use common::nodes::DaemonNodes;
use common::raw::RawSocket;
use common::{bytes_of, wait_for};
use farrow::{NdArray, Order, Value};
use farrow_wire::link::Link;
use farrow_wire::{Listen, OpenLazy, PROTOCOL_VERSION, ReplyBody, WireTarget};

const LENGTH: usize = 1 << 20;
/// The other node excludes nobody during the test.
const NODES: &[&str] = &["--no-prepare", "--net", "only", "--lease-ms", "8000"];

#[test]
fn what_a_killed_daemon_read_has_ended_when_the_next_one_is_there() {
    let mut nodes = DaemonNodes::start(2, "16M", NODES);
    let home = nodes.client(0);
    let shape = [LENGTH as u64].to_vec();
    let shape = NdArray { dtype: "|u1".into(), item_bytes: 1, shape, order: Order::C };
    let data = Buffer::from_vec(bytes_of(1, LENGTH));
    home.put(&Value::NdArray { shape: &shape, data: &data }, Some("x")).unwrap();
    let incarnation = || home.members().unwrap().find("b").unwrap().incarnation;
    let before = incarnation();

    // Its pages are brought one by one, so the home holds the object as long as it is open.
    let (_client, welcome) = RawSocket::joined(&nodes.daemons[1]);
    let client = Listen {
        version: PROTOCOL_VERSION,
        region_uid: welcome.region_uid,
        slot: welcome.slot,
        nonce: welcome.nonce,
        node: String::new(),
    };
    let target = WireTarget::Name("x".into());
    let open = OpenLazy { client, target, is_again: false, wait_ms: 60_000 };
    let deadline = Instant::now() + Duration::from_secs(60);
    let opened = Link::open_lazy(&nodes.daemons[1].socket, open, deadline).unwrap();
    assert!(matches!(opened.1, ReplyBody::Lazy(_)), "{:?}", opened.1);
    let holds = || home.stats().unwrap().node.holds;
    assert_eq!(holds(), 1);

    nodes.daemons[1].kill9();
    // The daemon may be on its way back, and then need the object still.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(holds(), 1);
    nodes.daemons[1].restart();
    let ended = wait_for("the hold to end", || (holds() == 0).then_some(()));
    assert!(ended.is_some(), "{:?}", home.stats());
    assert_eq!(incarnation(), before, "it was excluded");

    // What the next daemon reads is its own.
    nodes.client(1).get(&"x".into(), Duration::ZERO).unwrap();
    home.delete(&["x".into()]).unwrap();
    let is_free = || (home.stats().unwrap().node.used == 0).then_some(());
    assert!(wait_for("memory", is_free).is_some(), "{:?}", home.stats());
}
