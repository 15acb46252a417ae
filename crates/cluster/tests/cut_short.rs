//! A client has a descriptor with which it may write to the data section, and so may cut its file
//! short or punch holes in it where that is a file of a tmpfs. A daemon that then read the holds of
//! its clients ended by SIGBUS, and its successor refused the file, which was too short.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::fs::File;
use std::time::Duration;

use common::{Daemon, assert_balanced, bytes_of};
use farrow::Value;
use rustix::fs::FallocateFlags;

const NOW: Duration = Duration::ZERO;
const BYTES: usize = 100_000;

/// What the descriptor of a client leads to.
fn data_of(node: &Daemon) -> File {
    let files = std::fs::read_dir(node.dir.path()).unwrap().map(|one| one.unwrap().path());
    let data = files.into_iter().find(|path| path.extension().is_some_and(|end| end == "data"));
    File::options().read(true).write(true).open(data.unwrap()).unwrap()
}

/// One client harms the data, another one goes on. Nothing here reads what was harmed.
fn outlives(harm: impl Fn(&File)) {
    let mut node = Daemon::start("32MiB", &["--no-prepare"]);
    let client = node.client();
    for name in ["held", "deleted", "left"] {
        client.put(&Value::Bytes(&bytes_of(1, BYTES)), Some(name)).unwrap();
    }
    // So that there are holds, which the daemon reads at each delete.
    let held = client.get(&"held".into(), NOW).unwrap();
    let file = data_of(&node);
    let bytes = file.metadata().unwrap().len();
    harm(&file);
    client.delete(&["deleted".into()]).unwrap();
    assert!(node.is_running());
    assert_eq!(file.metadata().unwrap().len(), bytes);
    client.put(&Value::Bytes(&bytes_of(2, BYTES)), Some("new")).unwrap();
    let new = client.get(&"new".into(), NOW).unwrap().into_view().unwrap();
    assert_eq!(&new[..], &bytes_of(2, BYTES)[..]);
    assert_balanced(&client.stats().unwrap());
    drop((held, new));
    // Its successor adopts what is there.
    node.kill9();
    node.restart();
    let client = node.client();
    let new = client.get(&"new".into(), NOW).unwrap().into_view().unwrap();
    assert_eq!(&new[..], &bytes_of(2, BYTES)[..]);
}

#[test]
fn a_daemon_outlives_a_client_that_cuts_its_data_short() {
    outlives(|file| file.set_len(0).unwrap());
}

#[test]
fn a_daemon_outlives_a_client_that_cuts_off_an_uneven_end() {
    outlives(|file| file.set_len(12_345).unwrap());
}

#[test]
fn a_daemon_outlives_a_client_that_punches_a_hole_into_its_data() {
    outlives(|file| {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, flags, 0, file.metadata().unwrap().len()).unwrap();
    });
}
