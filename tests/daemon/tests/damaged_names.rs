//! A name whose bytes were overwritten while the node was down: after that each listing failed, for
//! all, and the object could be neither found nor deleted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::os::unix::fs::FileExt;
use std::time::Duration;

use common::{Daemon, wait_for};
use farrow::{Error, Value};

const NAME: &str = "a name that is nowhere else";

/// Other bytes where the name lies in the control section.
fn overwrite_name(daemon: &Daemon) {
    let files = std::fs::read_dir(daemon.dir.path()).unwrap();
    let path = (files.map(|entry| entry.unwrap().path()))
        .find(|path| path.extension().is_some_and(|end| end == "control"))
        .unwrap();
    let control = std::fs::read(&path).unwrap();
    let places = control.windows(NAME.len()).enumerate();
    // The ring of events has it too.
    let places = places.filter(|(_, bytes)| *bytes == NAME.as_bytes());
    let file = std::fs::File::options().write(true).open(path).unwrap();
    for (at, _) in places {
        file.write_all_at(b"\xff\xfe\xfd", at as u64).unwrap();
    }
}

#[test]
fn an_object_with_a_damaged_name_is_listed_and_deleted_by_id_and_the_node_says_which() {
    let mut daemon = Daemon::start("8M", &["--no-prepare"]);
    let client = daemon.client();
    let whole = client.put(&Value::Bytes(b"whole"), Some("whole")).unwrap();
    let damaged = client.put(&Value::Bytes(b"damaged"), Some(NAME)).unwrap();
    daemon.kill9();
    overwrite_name(&daemon);
    daemon.restart();
    let client = daemon.client();
    let listed = client.list("").unwrap();
    let listed: Vec<_> = listed.iter().map(|one| (one.id, one.name.as_deref())).collect();
    assert_eq!(listed, [(whole, Some("whole")), (damaged, None)]);
    assert!(matches!(client.get(&NAME.into(), Duration::ZERO), Err(Error::NotFound { .. })));
    let object = client.get(&damaged.into(), Duration::ZERO).unwrap();
    assert_eq!(&object.view().unwrap()[..], b"damaged");
    drop(object);
    let what = format!("kept without its name: object {damaged}");
    wait_for("words of the node", || (daemon.said(&what) > 0).then_some(())).unwrap();
    client.delete(&[damaged.into()]).unwrap();
    client.put(&Value::Bytes(b"again"), Some(NAME)).unwrap();
    assert_eq!(client.list("").unwrap().len(), 2);
}

/// The same while the node runs: a process of the same user can do that to a file in a tmpfs.
#[test]
fn a_name_that_is_damaged_while_the_node_runs_is_reported_as_such() {
    let daemon = Daemon::start("8M", &["--no-prepare"]);
    let client = daemon.client();
    client.put(&Value::Bytes(b"whole"), Some("whole")).unwrap();
    let damaged = client.put(&Value::Bytes(b"damaged"), Some(NAME)).unwrap();
    overwrite_name(&daemon);
    let listed = client.list("").unwrap();
    let one = listed.iter().find(|one| one.id == damaged).unwrap();
    assert_eq!((one.name.as_deref(), one.is_name_damaged), (None, true));
    assert_eq!(listed.iter().filter(|one| one.is_name_damaged).count(), 1);
    client.delete(&[damaged.into()]).unwrap();
    assert_eq!(client.list("").unwrap().len(), 1);
}
