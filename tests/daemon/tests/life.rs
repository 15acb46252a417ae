//! Start, errors with their numbers, private nodes, shutdown.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use common::supervised::runs_at;
use common::{Daemon, PATIENCE, assert_balanced, bytes_of, client_at, wait_for};
use farrow::error::{OutOfMemory, TooLarge};
use farrow::{Client, ConnectOptions, Error, ObjectKey, SpawnCommand, Value};
use farrow_wire::ALREADY_SERVING_CODE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn farrowd() -> Command {
    Command::new(common::FARROWD)
}

fn refusal(arguments: &[&str]) -> String {
    let output = farrowd().args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn every_exhaustion_is_an_error_with_its_numbers_and_the_store_stays_usable() {
    let daemon = Daemon::start("4M", &["--no-prepare", "--objects-max", "5"]);
    let client = daemon.client();
    match client.put(&Value::Bytes(&vec![1; 100 << 20]), None) {
        Err(Error::TooLarge(TooLarge { requested, capacity })) => {
            assert!(requested >= 100 << 20);
            assert_eq!(capacity, 4 << 20);
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(client.create(1 << 40, None), Err(Error::TooLarge(_))));
    let most = client.create(3 << 20, None).unwrap();
    match client.put(&Value::Bytes(&vec![1; 2 << 20]), None) {
        Err(Error::OutOfMemory(OutOfMemory {
            requested,
            free,
            largest,
            waiting: 0,
            waited_ms: 0,
        })) => {
            assert_eq!(requested, 2 << 20);
            assert!(free <= 1 << 20 && largest <= free, "{free} {largest}");
        }
        other => panic!("{other:?}"),
    }
    drop(most);
    let put = |name: &str| client.put(&Value::Bytes(b"x"), Some(name));
    let mut ids: Vec<ObjectKey> = (0..5).map(|n| put(&format!("n{n}")).unwrap().into()).collect();
    match put("one more") {
        Err(Error::TooMany { what, max: 5 }) => assert_eq!(what, "objects"),
        other => panic!("{other:?}"),
    }
    // Objects without a name are in separate pages, of which this region has one.
    ids.extend((0..42).map(|_| ObjectKey::from(client.put(&Value::Bytes(b"x"), None).unwrap())));
    match client.put(&Value::Bytes(b"one more"), None) {
        Err(Error::TooMany { what, max: 5 }) => assert_eq!(what, "objects"),
        other => panic!("{other:?}"),
    }
    client.delete(&ids).unwrap();
    client.put(&Value::Bytes(b"again"), Some("name")).unwrap();
    match client.put(&Value::Bytes(b"x"), Some("name")) {
        Err(Error::AlreadyExists { name }) => assert_eq!(name, "name"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(client.create(10, Some("name")), Err(Error::AlreadyExists { .. })));
    for name in ["", "nul\0nul", &"x".repeat(256)] {
        let error = client.put(&Value::Bytes(b"x"), Some(name)).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{name:?}: {error:?}");
        assert!(error.to_string().contains(&name.len().to_string()), "{error}");
        assert!(client.get(&name.into(), Duration::ZERO).is_err());
    }
    client.put(&Value::Bytes(b"x"), Some(&"x".repeat(255))).unwrap();
    assert!(matches!(
        client.get(&"nobody".into(), Duration::ZERO),
        Err(Error::NotFound { what }) if what.contains("nobody")
    ));
    assert!(matches!(
        client.get(&"nobody".into(), Duration::from_millis(20)),
        Err(Error::Timeout { .. })
    ));
    assert!(matches!(client.delete(&["nobody".into()]), Err(Error::NotFound { .. })));
    assert_balanced(&client.stats().unwrap());
}

#[test]
fn a_get_that_waits_is_woken_by_the_seal() {
    let daemon = Daemon::start("4M", &["--no-prepare"]);
    let (one, other) = (daemon.client(), daemon.client());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| one.get(&"later".into(), PATIENCE).unwrap());
        let both = scope.spawn(|| {
            let targets = ["later".into(), "never".into(), "later".into()];
            one.wait(&targets, 2, PATIENCE).unwrap()
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(other.create(3, Some("later")).is_ok(), "an abort wakes nobody");
        let writer = other.create(3, Some("later")).unwrap();
        writer.memory().write_at(0, b"abc").unwrap();
        writer.seal().unwrap();
        assert_eq!(&waiter.join().unwrap().view().unwrap()[..], b"abc");
        assert_eq!(both.join().unwrap(), [true, false, true]);
    });
}

#[test]
fn small_objects_of_several_threads_keep_their_bytes_and_one_chunk_writable() {
    let daemon = Daemon::start("64M", &["--no-prepare"]);
    let (client, other) = (daemon.client(), daemon.client());
    // Lines, pages and chunks end inside of objects, between them, and under another thread's.
    let length = |seed: u64| 1 + (seed * 7919) as usize % (64 << 10);
    let seeds: Vec<u64> = (0..600).collect();
    let put = |seeds: &[u64]| -> Vec<_> {
        let put =
            |seed: &u64| client.put(&Value::Bytes(&bytes_of(*seed, length(*seed))), None).unwrap();
        seeds.iter().map(put).collect()
    };
    let ids: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            seeds.chunks(150).map(|part| scope.spawn(move || put(part))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    for (seed, id) in seeds.iter().zip(&ids) {
        for reader in [&client, &other] {
            let object = reader.get(&(*id).into(), Duration::ZERO).unwrap();
            assert_eq!(&object.view().unwrap()[..], bytes_of(*seed, length(*seed)));
        }
    }
    let stats = client.stats().unwrap();
    let writable: u64 = stats.fabrics.values().map(|fabric| fabric.mapped_writable).sum();
    // The last chunk, with what was left of the one before, and the client's pages in the tables.
    assert!((1..=2 << 20).contains(&writable), "{writable} of {} B", stats.node.used);
    assert_balanced(&stats);
}

#[test]
fn a_writer_that_is_dropped_or_aborted_leaves_nothing() {
    let daemon = Daemon::start("4M", &["--no-prepare"]);
    let client = daemon.client();
    let writer = client.create(1000, Some("w")).unwrap();
    assert!(writer.memory().write_at(990, &[0; 11]).is_err(), "behind its end");
    let memory = std::sync::Arc::clone(writer.memory());
    drop(writer);
    assert!(!memory.is_writable());
    assert!(memory.write_at(0, b"late").is_err());
    drop(memory);
    client.create(1000, Some("w")).unwrap().abort();
    let id = client.create(0, Some("w")).unwrap().seal().unwrap();
    assert_eq!(client.get(&id.into(), Duration::ZERO).unwrap().bytes(), 0);
    drop(client);
    let client = daemon.client();
    wait_for("memory", || (client.stats().unwrap().node.granted == 0).then_some(())).unwrap();
}

#[test]
fn no_daemon_a_dead_socket_and_a_second_daemon_are_distinguished() {
    let mut daemon = Daemon::start("4M", &["--no-prepare"]);
    drop(daemon.client());
    let socket = daemon.socket.to_str().unwrap().to_owned();
    let dir = daemon.dir.path().to_str().unwrap().to_owned();
    let mut second = farrowd();
    second.args(["--socket", &socket, "--memory", "4M", "--memory-dir", &dir]);
    let output = second.output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    // By its code, not by its words, another process knows that a node is there.
    assert_eq!(output.status.code(), Some(ALREADY_SERVING_CODE), "{words}");
    assert!(words.contains("already serves"), "{words}");
    let mode = std::fs::metadata(&daemon.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    daemon.kill9();
    let options = ConnectOptions::at(&daemon.socket);
    let error = Client::connect(&options).unwrap_err();
    assert!(matches!(&error, Error::Disconnected { socket: at, .. } if *at == daemon.socket));
    let missing = ConnectOptions::at(daemon.dir.path().join("nothing"));
    assert!(matches!(Client::connect(&missing), Err(Error::Disconnected { .. })));
    // The stale socket is no hindrance to the next one.
    daemon.restart();
    drop(daemon.client());
}

#[test]
fn memory_that_cannot_be_had_is_an_error_with_numbers_and_leaves_no_file() {
    let dir = tempfile::Builder::new().prefix("farrow-test-").tempdir_in("/dev/shm").unwrap();
    let path = dir.path().to_str().unwrap();
    let socket = format!("{path}/n.sock");
    let at = ["--socket", &socket, "--memory-dir", path, "--memory"];
    let words = refusal(&[&at[..], &["100T"]].concat());
    assert!(words.contains("no room") || words.contains("free"), "{words}");
    assert!(words.chars().any(|message| message.is_ascii_digit()), "{words}");
    let words = refusal(&[&at[..], &["1K"]].concat());
    assert!(words.contains("1024"), "{words}");
    let left: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".lock"))
        .collect();
    assert_eq!(left, Vec::<String>::new());
    let output = farrowd().args(["--memory", "lots"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let long = format!("/tmp/{}", "x".repeat(200));
    assert!(refusal(&["--socket", &long, "--memory", "4M"]).contains("107"));
}

#[test]
fn a_region_of_another_version_is_refused_and_fresh_throws_it_away() {
    let mut daemon = Daemon::start("4M", &["--no-prepare"]);
    daemon.client().put(&Value::Bytes(b"x"), Some("x")).unwrap();
    daemon.kill9();
    let control = std::fs::read_dir(daemon.dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|end| end == "control"))
        .unwrap();
    let mut bytes = std::fs::read(&control).unwrap();
    bytes[8] ^= 0x40;
    std::fs::write(&control, &bytes).unwrap();
    let socket = daemon.socket.to_str().unwrap().to_owned();
    let dir = daemon.dir.path().to_str().unwrap().to_owned();
    let words = refusal(&["--socket", &socket, "--memory-dir", &dir]);
    assert!(words.contains("cannot be adopted") && words.contains("--fresh"), "{words}");
    let mut fresh = farrowd()
        .args(["--socket", &socket, "--memory-dir", &dir, "--memory", "4M", "--fresh"])
        .spawn()
        .unwrap();
    let client = client_at(&daemon.socket);
    assert!(!client.contains(&"x".into()).unwrap());
    client.shut_down_node().unwrap();
    assert!(fresh.wait().unwrap().success());
    // With nothing to throw away it is as well.
    let daemon = Daemon::start("4M", &["--no-prepare", "--fresh"]);
    drop(daemon.client());
}

#[test]
fn a_stopped_node_takes_its_memory_along_and_a_keeping_one_leaves_it() {
    let mut daemon = Daemon::start("4M", &["--no-prepare", "--keep"]);
    let client = daemon.client();
    client.put(&Value::Bytes(b"kept"), Some("kept")).unwrap();
    let reader = client.get(&"kept".into(), Duration::ZERO).unwrap().view().unwrap();
    client.shut_down_node().unwrap();
    assert!(daemon.wait_end().success());
    assert_eq!(&reader[..], b"kept", "readers go on");
    drop((reader, client));
    daemon.restart();
    let client = daemon.client();
    let object = client.get(&"kept".into(), Duration::ZERO).unwrap();
    assert_eq!(&object.view().unwrap()[..], b"kept");
    let files = |daemon: &Daemon| std::fs::read_dir(daemon.dir.path()).unwrap().count();
    assert!(files(&daemon) > 0);

    let mut daemon = Daemon::start("4M", &["--no-prepare"]);
    drop(daemon.client());
    let pid = rustix::process::Pid::from_raw(daemon.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(daemon.wait_end().success());
    assert_eq!(files(&daemon), 0, "no socket, no lock, no memory");
}

/// A node killed while it creates a region leaves one file, or two of which one is empty, or a
/// region without its first word. The next start must succeed without `--fresh`.
#[test]
fn memory_whose_making_was_never_finished_is_made_again() {
    let mut daemon = Daemon::start("4M", &["--no-prepare", "--keep"]);
    drop(daemon.client());
    daemon.kill9();
    let files = std::fs::read_dir(daemon.dir.path()).unwrap().map(|one| one.unwrap().path());
    let files: Vec<PathBuf> = files.collect();
    let ending = |with: &str| files.iter().find(|path| path.to_str().unwrap().ends_with(with));
    let (control, data) = (ending(".control").unwrap(), ending(".data").unwrap());
    let remains: [&dyn Fn(); 5] = [
        &|| std::fs::remove_file(data).unwrap(),
        &|| std::fs::remove_file(control).unwrap(),
        &|| std::fs::File::create(data).unwrap().set_len(0).unwrap(),
        &|| std::fs::File::create(control).unwrap().set_len(0).unwrap(),
        &|| {
            let file = std::fs::OpenOptions::new().write(true).open(control).unwrap();
            file.write_all_at(&[0; 8], 0).unwrap();
        },
    ];
    for (number, leave) in remains.into_iter().enumerate() {
        leave();
        daemon.restart();
        let client = daemon.client();
        client.put(&Value::Bytes(&bytes_of(1, 100_000)), Some("x")).unwrap();
        drop(client);
        daemon.kill9();
        daemon.restart();
        let there = daemon.client().get(&"x".into(), Duration::ZERO).unwrap();
        assert_eq!(&there.view().unwrap()[..], &bytes_of(1, 100_000)[..], "{number}");
        drop(there);
        daemon.kill9();
    }
}

/// Every node that creates a region adds its measurements to the profile of the machine; a node
/// with a complete profile measures nothing, and a damaged profile is measured again.
#[test]
fn a_node_that_makes_a_region_knows_its_machine() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache").join("profile.toml");
    let said = format!("FARROW_PROFILE={}", path.display());
    let start = || {
        let daemon = Daemon::start_by(&["/usr/bin/env", &said], "4M", &["--no-prepare"]);
        drop(daemon.client());
    };
    let runs = || {
        let text = std::fs::read_to_string(&path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("runs = ").map(str::to_owned));
        line.unwrap().parse::<u32>().unwrap()
    };
    for expected in 1..=8 {
        start();
        assert_eq!(runs(), expected);
    }
    let settled = std::fs::read(&path).unwrap();
    start();
    assert_eq!(std::fs::read(&path).unwrap(), settled, "it was measured although all was known");
    std::fs::write(&path, &settled[..settled.len() / 2]).unwrap();
    start();
    assert_eq!(runs(), 1, "half a file is none");
}

/// Runs another test of this program in a child, with a default socket of its own: that lies in
/// `XDG_RUNTIME_DIR`, which a test must not change for its threads.
fn pass_in_child(test: &str, variable: &str) {
    let dir = tempfile::Builder::new().prefix("farrow-test-").tempdir_in("/dev/shm").unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(variable, "1")
        .env("XDG_RUNTIME_DIR", dir.path())
        .env("FARROW_MEMORY_DIR", dir.path())
        .env("FARROW_MEMORY", "8M")
        .env_remove("FARROW_SOCKET")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_private_node_is_shared_and_ends_with_its_last_client() {
    pass_in_child("private_child", "FARROW_TEST_PRIVATE");
}

/// Not a test by itself, see above.
#[test]
fn private_child() {
    if std::env::var_os("FARROW_TEST_PRIVATE").is_none() {
        return;
    }
    let none = ConnectOptions { timeout: Duration::from_millis(300), ..Default::default() };
    assert!(matches!(Client::connect(&none), Err(Error::Disconnected { .. })));
    let daemon = SpawnCommand::daemon(common::FARROWD);
    let spawn = Some(SpawnCommand { linger: Some(Duration::ZERO), ..daemon });
    let options = ConnectOptions { timeout: PATIENCE, spawn, ..ConnectOptions::default() };
    let clients: Vec<Client> = std::thread::scope(|scope| {
        let all: Vec<_> =
            (0..4).map(|_| scope.spawn(|| Client::connect(&options).unwrap())).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    clients[0].put(&Value::Bytes(b"x"), Some("x")).unwrap();
    for client in &clients {
        assert!(client.contains(&"x".into()).unwrap(), "all use one node");
    }
    let stats = clients[0].stats().unwrap().node;
    assert_eq!((stats.capacity, stats.clients), (8 << 20, 4));
    // An object keeps its client's place, and so the node.
    let held = clients[0].get(&"x".into(), Duration::ZERO).unwrap();
    let socket = clients[0].socket().to_owned();
    drop(clients);
    assert_eq!(&held.view().unwrap()[..], b"x");
    assert!(socket.exists());
    drop(held);
    // A daemon that one of the threads started in vain may serve for a moment yet.
    let is_over = || !socket.exists() && runs_at(&socket).is_empty();
    wait_for("the end of the node", || is_over().then_some(())).unwrap();

    let bad = ConnectOptions {
        timeout: PATIENCE,
        spawn: Some(SpawnCommand::daemon("/bin/false")),
        socket: None,
        ..ConnectOptions::default()
    };
    match Client::connect(&bad) {
        Err(Error::Disconnected { reason, .. }) => {
            assert!(reason.contains("ended with"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

/// A program in C or Rust opens descriptors that its children inherit. A private node had them for
/// as long as it lived: the other end of a pipe waited for the node, not for the program.
#[test]
fn a_private_node_has_no_descriptor_of_the_program_that_started_it() {
    pass_in_child("piping_child", "FARROW_TEST_PIPING");
}

/// Not a test by itself, see above.
#[test]
fn piping_child() {
    if std::env::var_os("FARROW_TEST_PIPING").is_none() {
        return;
    }
    // Without close-on-exec, as pipe(2) makes it.
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let spawn = Some(SpawnCommand {
        linger: Some(Duration::ZERO),
        ..SpawnCommand::daemon(common::FARROWD)
    });
    let options = ConnectOptions { timeout: PATIENCE, spawn, ..ConnectOptions::default() };
    let client = Client::connect(&options).unwrap();
    drop(writer);
    let mut wait = [PollFd::new(&reader, PollFlags::IN)];
    let patience = Timespec::try_from(PATIENCE).unwrap();
    assert_eq!(poll(&mut wait, Some(&patience)).unwrap(), 1, "the node has the pipe");
    assert_eq!(rustix::io::read(&reader, &mut [0; 1]).unwrap(), 0);
    client.put(&Value::Bytes(b"x"), Some("x")).unwrap();
}

#[test]
fn a_node_that_is_stopped_while_it_starts_leaves_nothing() {
    // A signal between the making of the memory and the first turn of the event loop once killed
    // the daemon outright, and its files stayed.
    for delay_us in (0..40).map(|step| step * 700) {
        let mut daemon = Daemon::start("16M", &["--no-prepare"]);
        std::thread::sleep(Duration::from_micros(delay_us));
        let pid = rustix::process::Pid::from_raw(daemon.pid() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        daemon.wait_end();
        let left: Vec<_> = std::fs::read_dir(daemon.dir.path()).unwrap().collect();
        assert!(left.is_empty(), "after {delay_us} us: {left:?}");
    }
}

#[test]
fn a_device_is_lent_adopted_and_shared_like_a_tmpfs() {
    // A regular file stands for the device: mapped by path, at an offset, both sections in one.
    let dir = tempfile::Builder::new().prefix("farrow-test-").tempdir_in("/dev/shm").unwrap();
    let device = dir.path().join("device");
    std::fs::File::create(&device).unwrap().set_len(32 << 20).unwrap();
    let place = device.to_str().unwrap();
    let arguments = ["--no-prepare", "--device", place, "--device-offset", "64K", "--node-local"];
    let mut daemon = Daemon::start_anywhere("8M", &arguments);
    let (one, other) = (daemon.client(), daemon.client());
    let bytes = common::bytes_of(5, 3 << 20);
    one.put(&Value::Bytes(&bytes), Some("large")).unwrap();
    one.put(&Value::Bytes(b"small"), Some("small")).unwrap();
    let large = other.get(&"large".into(), Duration::ZERO).unwrap().view().unwrap();
    assert_eq!(&large[..], &bytes[..]);
    let stats = one.stats().unwrap();
    assert_eq!((&*stats.node.fabric, &*stats.node.coherence), ("device", "node-local"));
    assert!(stats.fabrics["device"].published_lines > 0, "published: {stats:?}");
    daemon.kill9();
    assert_eq!(&large[..], &bytes[..]);
    daemon.restart();
    let small = one.get(&"small".into(), Duration::ZERO).unwrap().view().unwrap();
    assert_eq!(&small[..], b"small");
    assert_eq!(one.stats().unwrap().node.adopted, 2);
    assert_balanced(&one.stats().unwrap());
}

#[test]
fn a_device_that_holds_anything_else_is_not_overwritten_without_fresh() {
    let dir = tempfile::Builder::new().prefix("farrow-test-").tempdir_in("/dev/shm").unwrap();
    let (device, socket) = (dir.path().join("device"), dir.path().join("n.sock"));
    let (at, region) = (socket.to_str().unwrap(), format!("device:{},8M", device.display()));
    let node = ["--unsupervised", "--no-prepare", "--socket", at, "--region", &region];
    // A text; and a file system, which leaves its first KiB free.
    for (start, found) in [(0, "SQLite format 3\0"), (1024, "a superblock")] {
        let mut bytes = vec![0; 32 << 20];
        bytes[start..start + found.len()].copy_from_slice(found.as_bytes());
        bytes[20 << 20] = 1;
        std::fs::write(&device, &bytes).unwrap();
        let words = refusal(&node);
        for expected in [device.to_str().unwrap(), &format!("{start} to"), &found[..8], "--fresh"] {
            assert!(words.contains(expected), "{expected}: {words}");
        }
        assert!(std::fs::read(&device).unwrap() == bytes, "not a byte has changed");
        let mut fresh = farrowd().args(node).arg("--fresh").spawn().unwrap();
        let client = client_at(&socket);
        client.put(&Value::Bytes(b"x"), Some("x")).unwrap();
        client.shut_down_node().unwrap();
        assert!(fresh.wait().unwrap().success());
        let mut next = farrowd().args(node).spawn().unwrap();
        let client = client_at(&socket);
        assert!(client.contains(&"x".into()).unwrap(), "its own memory is adopted");
        client.shut_down_node().unwrap();
        assert!(next.wait().unwrap().success());
    }
}
