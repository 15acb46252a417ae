//! Gets of objects that do not exist any more.

use std::time::Duration;

use crate::node::TestNode;
use farrow::{Error, ObjectKey, Value};

/// The node answers at once that an id is not there, and the client asked it a thousand times a
/// second. A few such clients kept the node busy until their timeouts.
#[test]
fn a_get_of_an_id_that_was_removed_asks_the_node_a_few_times_only() {
    let node = TestNode::start(16 << 20);
    let (client, other) = (node.client(), node.client());
    let id: ObjectKey = client.put(&Value::Bytes(b"gone"), None).unwrap().into();
    client.delete(std::slice::from_ref(&id)).unwrap();
    let before = other.stats().unwrap().node.requests;
    let missing = client.get(&id, Duration::from_secs(2)).map(drop);
    assert!(matches!(missing, Err(Error::Timeout { .. })), "{missing:?}");
    let requests = other.stats().unwrap().node.requests - before;
    // Pauses of 1, 2, 4 and so on up to 100 ms: 26 in two seconds.
    assert!(requests <= 40, "{requests} requests");
}
