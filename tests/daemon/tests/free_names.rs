//! A history of many clients showed an unused name that could not be taken: an object was put on
//! one node and deleted at once, and a put of the same name on another node failed because the name
//! was taken. The authority did not know yet that the name was no longer in flight.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::time::Duration;

use common::proxy::Linked;
use farrow::{ObjectKey, Value};

/// What the first node says arrives late; far below a lease.
const DELAY: Duration = Duration::from_millis(60);
/// Each of three nodes is the authority of some.
const NAMES: u32 = 12;

#[test]
fn a_deleted_name_is_free_on_all_nodes_when_the_delete_is_answered() {
    let linked = Linked::start(3, "32MiB", &["--no-prepare", "--lease-ms", "10000"]);
    let (a, b) = (linked.nodes.client(0), linked.nodes.client(1));
    for other in [1, 2] {
        linked.links.set(0, other, |link| link.delay = DELAY);
    }
    for number in 0..NAMES {
        let name = format!("{number}");
        let id = a.put(&Value::Bytes(b"of a"), Some(&name)).unwrap();
        // By either way.
        let target = if number % 2 == 0 { ObjectKey::from(&*name) } else { ObjectKey::from(id) };
        a.delete(&[target]).unwrap();
        b.put(&Value::Bytes(b"of b"), Some(&name)).unwrap();
        assert!(a.contains(&name.as_str().into()).unwrap(), "{name}");
    }
}
