//! A daemon is killed after it has sealed a named object and before it answers. Another thread of the
//! client connected to the next daemon before the object was looked up, and the put raised
//! `Disconnected`, although its object was there: a second attempt found the name taken.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::{Daemon, bytes_of};
use farrow::Value;
use farrow_store::failpoints;

const LENGTH: usize = 68 << 10;
const PUTTER: &str = "putter";

/// Where the thread that puts says that it is about to look, and waits.
static LOOK: Mutex<Option<(Sender<()>, Receiver<()>)>> = Mutex::new(None);

#[test]
fn a_put_finds_its_object_after_another_thread_has_connected_again() {
    assert!(failpoints::set_global(Box::new(|place| {
        if place == "seal.lost" && std::thread::current().name() == Some(PUTTER) {
            let look = LOOK.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some((arrived, may_go)) = look {
                arrived.send(()).unwrap();
                may_go.recv().unwrap();
            }
        }
    })));
    // Killed behind the seal, and before it: then there is no object to find.
    for (place, is_sealed) in [("seal.carved", true), ("seal.name", false)] {
        let (arrived, has_arrived) = channel();
        let (go, may_go) = channel();
        *LOOK.lock().unwrap() = Some((arrived, may_go));
        let mut daemon = Daemon::start("16MiB", &["--no-prepare"]);
        daemon.kill9();
        daemon.set_failpoint(Some((place, 1)));
        daemon.restart();
        daemon.set_failpoint(None);
        let client = daemon.client();
        let bytes = bytes_of(1, LENGTH);
        std::thread::scope(|scope| {
            let put = std::thread::Builder::new().name(PUTTER.to_owned());
            let put = put.spawn_scoped(scope, || client.put(&Value::Bytes(&bytes), Some("name")));
            has_arrived.recv_timeout(common::PATIENCE).unwrap();
            assert!(!daemon.wait_end().success());
            daemon.restart();
            client.put(&Value::Bytes(&[7; LENGTH]), Some("another")).unwrap();
            go.send(()).unwrap();
            let put = put.unwrap().join().unwrap();
            assert_eq!(put.is_ok(), is_sealed, "{place}: {put:?}");
        });
        if !is_sealed {
            client.put(&Value::Bytes(&bytes), Some("name")).unwrap();
        }
        let found = client.get(&"name".into(), Duration::ZERO).unwrap();
        assert!(found.view().unwrap().to_vec() == bytes);
        // Memory of both is known to the client and its node.
        client.delete(&["name".into(), "another".into()]).unwrap();
        drop(found);
        client.put(&Value::Bytes(&bytes_of(2, 8 << 20)), Some("large")).unwrap();
    }
}
