//! A call that another thread cancels ends at once, and leaves no state.
//!
//! Before, a wait lasted until its timeout; only the end of the process could cut it short.

use std::sync::mpsc;
use std::time::Duration;

use crate::node::{TestNode, wait_for};
use farrow::{CancelToken, Error, ObjectOptions, Value};

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn a_cancelled_call_ends_and_leaves_everything_as_it_was() {
    let node = TestNode::start(64 << 20);
    let (client, watcher) = (node.client(), node.client());
    client.put(&Value::Bytes(&vec![1; 60 << 20]), Some("full")).unwrap();
    let before = watcher.stats().unwrap().node;
    let token = CancelToken::new();
    let (end, ended) = mpsc::channel();
    let thread = {
        let (client, token) = (client.clone(), token.clone());
        std::thread::spawn(move || {
            let options = ObjectOptions { wait: HOUR, ..ObjectOptions::named(Some("late")) };
            let bytes = vec![2; 20 << 20];
            let put = token.run(|| client.put_with(&Value::Bytes(&bytes), &options));
            end.send(put).unwrap();
            // A cancelled token also cancels later calls, until it is reset.
            let again = token.run(|| client.get(&"never".into(), HOUR)).err();
            assert!(matches!(again, Some(Error::Interrupted)), "{again:?}");
        })
    };
    wait_for("the put waits", || watcher.stats().unwrap().node.waiting == 1);
    token.cancel();
    let put = ended.recv_timeout(Duration::from_secs(30)).unwrap();
    assert!(matches!(put, Err(Error::Interrupted)), "{put:?}");
    thread.join().unwrap();
    let after = watcher.stats().unwrap().node;
    assert_eq!(after.waiting, 0);
    assert_eq!((after.granted, after.free), (before.granted, before.free));
    // The same client keeps working, and the name is free.
    token.reset();
    let put = token.run(|| client.put(&Value::Bytes(b"small"), Some("late")));
    assert!(put.is_ok(), "{put:?}");
}
