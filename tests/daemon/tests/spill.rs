//! Objects that are spilled to files and restored, with real daemons and files: damaged files,
//! missing files, full disks, kills.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::nodes::DaemonNodes;
use common::supervised::SupervisedNode;
use common::{Daemon, SeededDice, assert_balanced, bytes_of, wait_for};
use farrow::error::{NotRestored, NotSpilled};
use farrow::{Client, Error, Metadata, ObjectOptions, Value};
use farrow_memory::sync;

const MIB: usize = 1 << 20;

/// A node that spills to a folder of this test's.
struct SpillingDaemon {
    daemon: Daemon,
    spill: tempfile::TempDir,
}

impl SpillingDaemon {
    fn new(memory: &str) -> Self {
        let spill = tempfile::tempdir().unwrap();
        let flags = ["--no-prepare", "--spill", spill.path().to_str().unwrap()];
        Self { daemon: Daemon::start(memory, &flags), spill }
    }

    /// The spill files there are.
    fn files(&self) -> Vec<PathBuf> {
        let regions = fs::read_dir(self.spill.path()).unwrap().map(|one| one.unwrap().path());
        regions
            .filter(|path| path.is_dir())
            .flat_map(|path| fs::read_dir(path).unwrap())
            .map(|file| file.unwrap().path())
            .collect()
    }

    /// Put `name`, have it spilled, and say where its file is.
    fn spilled(&self, client: &Client, name: &str, bytes: &[u8]) -> PathBuf {
        let before = self.files();
        client.put(&Value::Bytes(bytes), Some(name)).unwrap();
        assert_eq!(client.evict(1).unwrap().objects, 1);
        assert!(is_spilled(client, name));
        self.files().into_iter().find(|file| !before.contains(file)).unwrap()
    }
}

fn is_spilled(client: &Client, name: &str) -> bool {
    client.list(name).unwrap().iter().any(|listed| listed.is_spilled)
}

fn get(client: &Client, name: &str) -> Result<Vec<u8>, Error> {
    Ok(client.get(&name.into(), Duration::ZERO)?.view()?.to_vec())
}

#[test]
fn more_than_fits_is_retained_and_every_byte_comes_back() {
    let world = SpillingDaemon::new("32M");
    let client = world.daemon.client();
    for number in 0..40 {
        let bytes = bytes_of(number, 2 * MIB);
        client.put(&Value::Bytes(&bytes), Some(&format!("o{number}"))).unwrap();
    }
    let stats = client.stats().unwrap();
    assert_balanced(&stats);
    assert_eq!(stats.node.objects + stats.node.objects_spilled, 40);
    assert!(stats.node.objects_spilled >= 24 && stats.node.evicted_total == 0, "{stats:?}");
    for number in (0..40).rev() {
        let name = format!("o{number}");
        assert_eq!(get(&client, &name).unwrap(), bytes_of(number, 2 * MIB), "{name}");
    }
    assert_balanced(&client.stats().unwrap());
    assert!(client.stats().unwrap().node.restored_total >= 24);
    let all = client.list("").unwrap();
    assert_eq!(all.len(), 40);
    client.delete(&all.iter().map(|one| one.id.into()).collect::<Vec<_>>()).unwrap();
    wait_for("no file to be left", || world.files().is_empty().then_some(())).unwrap();
}

#[test]
fn ids_metadata_and_objects_without_a_name_come_back() {
    let world = SpillingDaemon::new("16M");
    let client = world.daemon.client();
    let id = client.put(&Value::Bytes(b"unnamed"), None).unwrap();
    let metadata = Metadata::new([("k", "v")]).unwrap();
    let options = ObjectOptions {
        name: Some("named"),
        metadata: Some(&metadata),
        ..ObjectOptions::default()
    };
    client.put_with(&Value::Bytes(b"with metadata"), &options).unwrap();
    assert_eq!(client.evict(u64::MAX).unwrap().objects, 2);
    assert_eq!(client.stats().unwrap().node.objects_spilled, 2);
    assert!(client.contains(&id.into()).unwrap() && client.contains(&"named".into()).unwrap());
    let ready = client.wait(&["named".into(), id.into()], 2, Duration::ZERO).unwrap();
    assert_eq!(ready, [true, true]);
    let object = client.get(&id.into(), Duration::ZERO).unwrap();
    assert_eq!(&object.view().unwrap()[..], b"unnamed");
    assert_eq!(client.metadata(&"named".into()).unwrap(), metadata);
    assert_eq!(client.evict(u64::MAX).unwrap().objects, 1, "what is held stays");
    client.pin(&["named".into()]).unwrap();
    assert!(!is_spilled(&client, "named"));
    assert_eq!(client.evict(u64::MAX).unwrap().objects, 0);
}

#[test]
fn a_torn_file_of_any_length_is_an_error_that_names_it() {
    let world = SpillingDaemon::new("16M");
    let client = world.daemon.client();
    let file = world.spilled(&client, "x", b"a few bytes");
    let whole = fs::read(&file).unwrap();
    let name = file.file_name().unwrap().to_str().unwrap();
    let refused = |what: &str| match get(&client, "x") {
        Err(Error::NotRestored(NotRestored { file, .. })) => {
            assert!(file.ends_with(name), "{what}: {file}")
        }
        other => panic!("{what}: {other:?}"),
    };
    for length in 0..whole.len() {
        fs::write(&file, &whole[..length]).unwrap();
        refused(&format!("cut at {length}"));
    }
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 0x20;
        fs::write(&file, &changed).unwrap();
        refused(&format!("changed at {at}"));
    }
    let mut longer = whole.clone();
    longer.push(0);
    fs::write(&file, &longer).unwrap();
    refused("longer");
    fs::remove_file(&file).unwrap();
    refused("missing");
    assert!(is_spilled(&client, "x"));
    let node = client.stats().unwrap().node;
    assert_eq!((node.used, node.objects_spilled), (0, 1));
    fs::write(&file, &whole).unwrap();
    assert_eq!(get(&client, "x").unwrap(), b"a few bytes");
}

#[test]
fn a_file_of_another_object_is_refused_and_the_object_can_be_deleted() {
    let world = SpillingDaemon::new("16M");
    let client = world.daemon.client();
    let one = world.spilled(&client, "one", b"first");
    let other = world.spilled(&client, "other", b"other");
    fs::copy(&one, &other).unwrap();
    let refused = get(&client, "other").unwrap_err();
    assert!(matches!(refused, Error::NotRestored(_)), "{refused}");
    client.delete(&["other".into()]).unwrap();
    assert!(matches!(get(&client, "other"), Err(Error::NotFound { .. })));
    client.put(&Value::Bytes(b"again"), Some("other")).unwrap();
    assert_eq!(get(&client, "one").unwrap(), b"first");
}

#[test]
fn what_cannot_be_written_stays_and_the_put_says_so() {
    let world = SpillingDaemon::new("16M");
    let client = world.daemon.client();
    let first = bytes_of(1, 10 * MIB);
    client.put(&Value::Bytes(&first), Some("first")).unwrap();
    // A file where the folder of the region was: nothing can be written any more.
    let region = fs::read_dir(world.spill.path()).unwrap().next();
    if let Some(region) = region {
        fs::remove_dir_all(region.unwrap().path()).unwrap();
    }
    let uid = format!("{:016x}", client.stats().unwrap().node.region_uid);
    fs::write(world.spill.path().join(&uid), b"in the way").unwrap();
    let refused = client.put(&Value::Bytes(&bytes_of(2, 10 * MIB)), Some("second"));
    let Err(Error::NotSpilled(NotSpilled { requested, folder, bytes, reason, .. })) = refused
    else {
        panic!("{refused:?}");
    };
    assert!(requested >= 10 * MIB as u64 && bytes >= 10 * MIB as u64, "{requested} {bytes}");
    assert!(folder.ends_with(&uid) && reason.contains("File exists"), "{folder}: {reason}");
    // Puts that need no eviction keep working.
    client.put(&Value::Bytes(&bytes_of(4, MIB)), Some("small")).unwrap();
    assert_eq!(get(&client, "first").unwrap(), first);
    let stats = client.stats().unwrap();
    assert_balanced(&stats);
    assert!(stats.node.spill_failures_total >= 1 && stats.node.objects_spilled == 0);
}

#[test]
fn spilled_objects_outlive_a_killed_daemon_and_no_other_file_does() {
    let mut world = SpillingDaemon::new("16M");
    let client = world.daemon.client();
    let bytes = bytes_of(3, 3 * MIB);
    let file = world.spilled(&client, "x", &bytes);
    world.daemon.kill9();
    let left = [file.with_file_name("stale"), file.with_file_name("x#1")];
    left.iter().for_each(|path| fs::write(path, b"left by a kill").unwrap());
    world.daemon.restart();
    wait_for("the next daemon", || client.stats().ok()).unwrap();
    assert!(is_spilled(&client, "x"));
    assert_eq!(get(&client, "x").unwrap(), bytes);
    // Its file stays, as a copy, as long as it is there.
    wait_for("the sweep", || (world.files() == [file.clone()]).then_some(())).unwrap();
    client.delete(&["x".into()]).unwrap();
    wait_for("its end", || world.files().is_empty().then_some(())).unwrap();
}

#[test]
fn the_next_daemon_of_an_upgrade_finds_them() {
    let mut world = SpillingDaemon::new("16M");
    let client = world.daemon.client();
    let bytes = bytes_of(3, 3 * MIB);
    world.spilled(&client, "x", &bytes);
    world.daemon.upgrade();
    assert_eq!(get(&client, "x").unwrap(), bytes);
}

#[test]
fn a_daemon_killed_while_it_spills_and_restores_loses_nothing() {
    let mut world = SpillingDaemon::new("16M");
    let client = world.daemon.client();
    let (count, mut dice) = (24, SeededDice(0x5711));
    for number in 0..count {
        let bytes = bytes_of(number, MIB);
        client.put(&Value::Bytes(&bytes), Some(&format!("o{number}"))).unwrap();
    }
    for round in 0..12 {
        let stop = sync::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut dice = SeededDice(round + 1);
                while !stop.load(sync::Ordering::Relaxed) {
                    let number = dice.roll(count);
                    if let Ok(bytes) = get(&client, &format!("o{number}")) {
                        assert_eq!(bytes, bytes_of(number, MIB), "o{number} has changed");
                    }
                }
            });
            std::thread::sleep(Duration::from_micros(dice.roll(30_000)));
            world.daemon.kill9();
            world.daemon.restart();
            stop.store(true, sync::Ordering::Relaxed);
            reader.join().unwrap();
        });
        wait_for("the next daemon", || client.stats().ok()).unwrap();
        assert_balanced(&client.stats().unwrap());
        assert_eq!(client.list("o").unwrap().len() as u64, count, "round {round}");
    }
    for number in 0..count {
        let bytes = get(&client, &format!("o{number}")).unwrap();
        assert_eq!(bytes, bytes_of(number, MIB), "o{number}");
    }
}

#[test]
fn four_readers_see_the_same_bytes_whatever_comes_and_goes() {
    let world = SpillingDaemon::new("16M");
    let clients: Vec<Client> = (0..4).map(|_| world.daemon.client()).collect();
    let count = 30;
    for number in 0..count {
        let bytes = bytes_of(number, MIB);
        clients[0].put(&Value::Bytes(&bytes), Some(&format!("o{number}"))).unwrap();
    }
    std::thread::scope(|scope| {
        for (reader, client) in (1..).zip(&clients) {
            scope.spawn(move || {
                let mut dice = SeededDice(reader);
                for _ in 0..60 {
                    let number = dice.roll(count);
                    let object = client.get(&format!("o{number}").as_str().into(), Duration::ZERO);
                    let view = object.unwrap().view().unwrap();
                    assert_eq!(&view[..], &bytes_of(number, MIB)[..], "o{number}");
                }
            });
        }
    });
    let stats = clients[0].stats().unwrap();
    assert_balanced(&stats);
    assert!(stats.node.spilled_total > count && stats.node.restored_total > 0, "{stats:?}");
}

#[test]
fn the_files_go_with_the_memory() {
    let mut world = SpillingDaemon::new("16M");
    let client = world.daemon.client();
    world.spilled(&client, "x", b"bytes");
    client.shut_down_node().unwrap();
    assert!(world.daemon.wait_end().success());
    assert_eq!(world.files(), Vec::<PathBuf>::new());
}

/// Regression test: the marker of a spill folder could not be written, or the folder was gone, when
/// a killed daemon was started again. Five starts failed, and the objects in memory were lost.
#[test]
fn a_restart_survives_a_marker_or_a_folder_that_fails() {
    let spill = tempfile::tempdir().unwrap();
    let folder = spill.path().join("spilled");
    let flags = ["--no-prepare", "--spill", folder.to_str().unwrap()];
    let node = SupervisedNode::start("spill-marker", "8M", &flags);
    let client = node.client();
    client.put(&Value::Bytes(&bytes_of(1, MIB)), Some("kept")).unwrap();
    let is_marker = |path: &PathBuf| path.extension().is_some_and(|end| end == "node");
    let mut files = fs::read_dir(&folder).unwrap().map(|one| one.unwrap().path());
    let marker = files.find(is_marker).unwrap();
    // A folder in its place cannot be written, not even by root.
    fs::remove_file(&marker).unwrap();
    fs::create_dir(&marker).unwrap();
    node.kill_daemon();
    assert_eq!(get(&client, "kept").unwrap(), bytes_of(1, MIB));

    // The daemon may write to the folder, or create it again, between the two.
    let replaced = || {
        let _ = fs::remove_dir_all(&folder);
        fs::write(&folder, b"a file in its place").ok()
    };
    assert!(wait_for("a file in the place of the folder", replaced).is_some());
    node.kill_daemon();
    assert_eq!(get(&client, "kept").unwrap(), bytes_of(1, MIB));
    // Once the folder is back, objects are spilled and restored again.
    fs::remove_file(&folder).unwrap();
    let is_spilled = || client.evict(1).ok().filter(|report| report.objects == 1);
    assert!(wait_for("the folder is used again", is_spilled).is_some());
    assert_eq!(get(&client, "kept").unwrap(), bytes_of(1, MIB));
}

/// `metadata` found an object in memory, and reported `NotFound` if the object was spilled before its
/// metadata was copied.
#[test]
fn metadata_is_found_while_its_object_leaves_memory_and_returns() {
    let world = SpillingDaemon::new("16M");
    let (client, other) = (world.daemon.client(), world.daemon.client());
    let metadata = Metadata::new([("k", "v")]).unwrap();
    let options =
        ObjectOptions { name: Some("o"), metadata: Some(&metadata), ..ObjectOptions::default() };
    client.put_with(&Value::Bytes(&bytes_of(1, MIB)), &options).unwrap();
    let is_over = sync::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            while !is_over.load(sync::Ordering::Relaxed) {
                assert_eq!(other.metadata(&"o".into()).unwrap(), metadata);
            }
        });
        for _ in 0..200 {
            client.evict(1).unwrap();
            if reading.is_finished() {
                break;
            }
        }
        is_over.store(true, sync::Ordering::Relaxed);
        reading.join().unwrap();
    });
}

/// An object comes back slowly: its home has no room for some seconds. A reader at a node that cannot
/// map its memory waits for it as a reader at the home does.
#[test]
fn an_object_that_comes_back_late_is_found_from_a_node_that_cannot_map_its_home() {
    let (nodes, _folder) = apart();
    let (home, reader) = (nodes.client(0), nodes.client(1));
    home.put(&Value::Bytes(&bytes_of(1, 8 * MIB)), Some("x")).unwrap();
    assert_eq!(home.evict(1).unwrap().objects, 1);
    // What is held stays in memory.
    let mut held = Vec::new();
    while let Ok(id) = home.put(&Value::Bytes(&bytes_of(2, MIB)), None) {
        held.push(home.get(&id.into(), Duration::ZERO).unwrap());
    }
    let got = std::thread::spawn(move || get(&reader, "x"));
    // Longer than the home waits before it refuses a single request.
    std::thread::sleep(Duration::from_secs(4));
    assert!(!got.is_finished(), "{:?}", got.join().unwrap().err());
    drop(held);
    assert!(got.join().unwrap().unwrap() == bytes_of(1, 8 * MIB));
}

/// Found by drains with spilled objects. The least recently used object of the home was a replica, of
/// which the spill made no file and which it did not evict either. So each restore looked for room in
/// vain. A get at the home failed with `OutOfMemory`, one at another node with `NodeUnreachable`, after
/// a minute.
#[test]
fn a_restore_evicts_the_replicas_of_other_objects() {
    let (nodes, _folder) = apart();
    let (home, other) = (nodes.client(0), nodes.client(1));
    // Each time six fit into the memory of a node.
    for number in 0..10 {
        let (bytes, name) = (bytes_of(number, 5 * MIB), format!("a{number}"));
        home.put(&Value::Bytes(&bytes), Some(&name)).unwrap();
    }
    for number in 0..5 {
        let (bytes, name) = (bytes_of(number, 5 * MIB), format!("b{number}"));
        other.put(&Value::Bytes(&bytes), Some(&name)).unwrap();
        assert!(get(&home, &name).unwrap() == bytes, "{name}");
    }
    let own = (0..10).map(|number| (number, format!("a{number}")));
    for (number, name) in own.clone() {
        assert!(get(&home, &name).unwrap() == bytes_of(number, 5 * MIB), "{name}");
    }
    for number in 0..5 {
        assert!(get(&home, &format!("b{number}")).is_ok());
    }
    for (number, name) in own {
        assert!(get(&other, &name).unwrap() == bytes_of(number, 5 * MIB), "{name}");
    }
    assert_balanced(&home.stats().unwrap());
}

/// A manual eviction counts a replica as evicted that leaves memory without a file.
#[test]
fn a_manual_eviction_evicts_replicas() {
    let (nodes, _folder) = apart();
    let (home, other) = (nodes.client(0), nodes.client(1));
    other.put(&Value::Bytes(&bytes_of(1, MIB)), Some("x")).unwrap();
    assert!(get(&home, "x").is_ok());
    assert_eq!(home.evict(1).unwrap().objects, 1);
    let stats = home.stats().unwrap();
    assert_eq!((stats.node.used, stats.node.objects_spilled), (0, 0));
    assert!(get(&home, "x").unwrap() == bytes_of(1, MIB));
}

/// Two nodes that cannot map each other's memory, and the folder of their files.
fn apart() -> (DaemonNodes, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let spill = folder.path().to_str().unwrap();
    let nodes = DaemonNodes::start(2, "32M", &["--no-prepare", "--net", "only", "--spill", spill]);
    (nodes, folder)
}

/// Regression test: the reader waited for a minute.
#[test]
fn a_reader_on_another_node_learns_that_a_file_is_missing() {
    let spill = tempfile::tempdir().unwrap();
    let flags = ["--no-prepare", "--net", "only", "--spill", spill.path().to_str().unwrap()];
    let nodes = DaemonNodes::start(2, "8M", &flags);
    let owner = nodes.client(0);
    owner.put(&Value::Bytes(&bytes_of(1, 100_000)), Some("x")).unwrap();
    owner.evict(1).unwrap();
    assert!(is_spilled(&owner, "x"));
    let regions = fs::read_dir(spill.path()).unwrap().map(|one| one.unwrap().path());
    let files = regions.filter(|path| path.is_dir()).flat_map(|dir| fs::read_dir(dir).unwrap());
    let objects = files.map(|one| one.unwrap().path());
    let removed = objects.filter(|path| path.metadata().unwrap().len() > 100_000);
    assert_eq!(removed.map(|path| fs::remove_file(path).unwrap()).count(), 1);
    let began = Instant::now();
    let error = nodes.client(1).get(&"x".into(), Duration::ZERO).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}: {error}", began.elapsed());
    assert!(error.to_string().contains("No such file"), "{error}");
}
