//! A node is a supervisor and its daemon. The kill of a daemon alone loses nothing, and a killed
//! node leaves no memory, by the kernel's account.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::shmem::Ledger;
use common::supervised::{SupervisedNode, children, is_there, kill};
use common::{
    Daemon, PATIENCE, SeededDice, assert_balanced, bytes_of, client_at, free_ports,
    this_test_again, wait_for,
};
use farrow::{Client, ConnectOptions, SpawnCommand, Value};
use rustix::process::{Pid, Signal, kill_process};

const MEMORY: &str = "48M";
const MEMORY_BYTES: u64 = 48 << 20;
const LARGE: usize = 5 << 20;

/// Before, a killed daemon lost its objects and had to be restarted by hand, and clients that
/// connected meanwhile were refused.
#[test]
fn a_killed_daemon_is_followed_by_another_one_without_help_and_without_loss() {
    let node = SupervisedNode::start("follow", MEMORY, &[]);
    let client = node.client();
    client.put(&Value::Bytes(&bytes_of(1, LARGE)), Some("large")).unwrap();
    let view = client.get(&"large".into(), Duration::ZERO).unwrap().view().unwrap();
    for round in 0..3_u64 {
        let unnamed = client.put(&Value::Bytes(&bytes_of(round, 3000)), None).unwrap();
        let writer = client.create(5, Some(&format!("w{round}"))).unwrap();
        let before = node.daemon();
        kill(before);
        node.assert_listening();
        let newcomer = Client::connect(&ConnectOptions {
            timeout: PATIENCE,
            ..ConnectOptions::at(&node.node.socket)
        });
        let newcomer = newcomer.expect("it waits in the queue of the socket");
        assert!(newcomer.contains(&"large".into()).unwrap());
        writer.memory().write_at(0, b"hello").unwrap();
        writer.seal().unwrap();
        let there = client.get(&unnamed.into(), Duration::ZERO).unwrap();
        assert_eq!(&there.view().unwrap()[..], &bytes_of(round, 3000)[..]);
        let stats = client.stats().unwrap();
        assert_eq!(stats.node.pid, node.daemon());
        assert_ne!(stats.node.pid, before);
        assert_eq!(stats.node.adopted, 2 + 2 * round);
        assert_balanced(&stats);
    }
    assert_eq!(&view[..], &bytes_of(1, LARGE)[..]);
}

/// Before, 1 GiB stayed in the killed node's tmpfs until it was unmounted by hand.
#[test]
fn of_a_killed_node_nothing_is_left_in_any_order_with_and_without_clients() {
    for order in 0..3 {
        for is_client_there in [false, true] {
            let mut node = SupervisedNode::start(&format!("order{order}"), MEMORY, &[]);
            let client = node.client();
            client.put(&Value::Bytes(&bytes_of(7, LARGE)), Some("large")).unwrap();
            let view = client.get(&"large".into(), Duration::ZERO).unwrap().view().unwrap();
            node.ledger.wait_used(MEMORY_BYTES);
            let reader = is_client_there.then_some((view, client));
            match order {
                0 => node.kill_supervisor(),
                1 => node.kill_all(true),
                _ => node.kill_all(false),
            }
            if let Some((view, client)) = reader {
                assert_eq!(&view[..], &bytes_of(7, LARGE)[..], "a reader keeps its bytes");
                assert!(node.ledger.used() >= MEMORY_BYTES);
                drop(client);
                assert_eq!(&view[..], &bytes_of(7, LARGE)[..]);
            }
            node.wait_empty("the memory of a killed node");
            let socket = &node.node.socket;
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            assert!(!mounts.contains(socket.to_str().unwrap()), "{mounts}");
            // The kernel does not take a socket away, nor its lock: no memory, and no hindrance.
            let left = std::fs::read_dir(node.node.dir.path()).unwrap();
            let left: Vec<_> = left.map(|one| one.unwrap().file_name()).collect();
            assert!(
                left.iter().all(|one| ["n.sock", "n.sock.lock"].contains(&one.to_str().unwrap()))
            );
            node.node.restart();
            assert_eq!(node.client().stats().unwrap().node.adopted, 0);
        }
    }
}

/// Before, spill files of killed nodes accumulated on the disk.
#[test]
fn spilled_objects_of_a_killed_node_go_with_the_next_one() {
    let spill = tempfile::tempdir().unwrap();
    let spilled = || -> Vec<String> {
        let names = std::fs::read_dir(spill.path()).unwrap();
        names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect()
    };
    let more = ["--spill", spill.path().to_str().unwrap()];
    let mut node = SupervisedNode::start("spill", MEMORY, &more);
    let fill = |client: &Client| {
        for number in 0..15 {
            client
                .put(&Value::Bytes(&bytes_of(number, LARGE)), Some(&format!("{number}")))
                .unwrap();
        }
    };
    fill(&node.client());
    // A daemon alone is killed without loss.
    node.kill_daemon();
    let first = node.client().get(&"0".into(), PATIENCE).unwrap().view().unwrap();
    assert_eq!(&first[..], &bytes_of(0, LARGE)[..]);
    drop(first);
    let of_first = spilled();
    node.kill_all(true);
    node.wait_empty("the memory of a killed node");
    assert_eq!(spilled(), of_first, "nobody is there to remove them");
    node.node.restart();
    let client = node.client();
    fill(&client);
    let of_next = spilled();
    assert!(of_first.iter().all(|name| !of_next.contains(name)), "{of_first:?}, {of_next:?}");
    drop(client);
    node.kill_all(false);
    let left = farrow_cluster::leftovers::find(&[spill.path().to_owned()]);
    let left: Vec<_> = left.iter().filter(|one| one.path.starts_with(spill.path())).collect();
    assert_eq!(left.len(), 1);
    assert!(left[0].bytes > LARGE as u64, "{left:?}");
    left[0].remove().unwrap();
    assert_eq!(spilled(), <[String; 0]>::default());
}

/// The supervisor removed the lock, by which the next node knows whose they are.
#[test]
fn spill_files_of_a_daemon_that_was_killed_as_it_stopped_go_with_the_next_node() {
    let spill = tempfile::tempdir().unwrap();
    let spilled = || -> Vec<_> {
        std::fs::read_dir(spill.path()).unwrap().map(|name| name.unwrap().file_name()).collect()
    };
    let more = ["--spill", spill.path().to_str().unwrap()];
    let mut node = SupervisedNode::start("stopping", MEMORY, &more);
    let client = node.client();
    for number in 0..15 {
        client.put(&Value::Bytes(&bytes_of(number, LARGE)), Some(&format!("{number}"))).unwrap();
    }
    let daemon = node.daemon();
    let send = |pid: u32, signal| kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
    send(daemon, Signal::STOP);
    send(node.supervisor(), Signal::TERM);
    // The supervisor must have read it: only then the death of the daemon is the end.
    std::thread::sleep(Duration::from_millis(500));
    kill(daemon);
    node.node.wait_end();
    drop(client);
    node.wait_empty("the memory of a node that was stopped");
    let of_first = spilled();
    assert_eq!(of_first.len(), 2, "a folder and its owner: {of_first:?}");
    node.node.restart();
    drop(node.client());
    let of_next = spilled();
    assert!(of_first.iter().all(|name| !of_next.contains(name)), "{of_first:?}, {of_next:?}");
}

/// A file that was edited badly while the node served made five daemons end: its objects were lost.
#[test]
fn a_restart_reads_no_options_again_and_waits_for_valid_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let certs = dir.path().join("certs");
    let day = Duration::from_secs(86_400);
    farrow_cluster::certs::init(&certs, day).unwrap();
    farrow_cluster::certs::issue(&certs, "a", &["127.0.0.1".to_owned()], day).unwrap();
    let config = dir.path().join("node.toml");
    let listen = format!("127.0.0.1:{}", free_ports(1)[0]);
    let text = format!("name = 'a'\nlisten = '{listen}'\ncerts = '{}'", certs.display());
    std::fs::write(&config, text).unwrap();
    let node = SupervisedNode::start("edited", "8M", &["--config", config.to_str().unwrap()]);
    let client = node.client();
    client.put(&Value::Bytes(b"x"), Some("x")).unwrap();
    std::fs::write(&config, "half of a fi").unwrap();
    let (certificate, hidden) = (certs.join("a.pem"), dir.path().join("hidden"));
    std::fs::rename(&certificate, &hidden).unwrap();
    node.kill_daemon();
    let said = || (node.node.said("the cluster cannot start yet") > 0).then_some(());
    wait_for("a start without the certificate", said).unwrap();
    std::fs::rename(&hidden, &certificate).unwrap();
    assert_eq!(client.stats().unwrap().node.adopted, 1);
    assert!(client.contains(&"x".into()).unwrap());
}

/// The daemon ends in order when its supervisor is killed; named memory is kept for the next start.
#[test]
fn a_daemon_ends_with_its_supervisor_and_leaves_a_named_place_to_the_next_one() {
    let dir = tempfile::Builder::new().prefix("farrow-test-").tempdir_in("/dev/shm").unwrap();
    let place = dir.path().to_str().unwrap();
    let mut node = SupervisedNode::start("named", MEMORY, &["--memory-dir", place]);
    let client = node.client();
    client.put(&Value::Bytes(b"kept"), Some("kept")).unwrap();
    node.kill_daemon();
    assert!(client.contains(&"kept".into()).unwrap());
    assert_eq!(client.stats().unwrap().node.adopted, 1);
    node.kill_supervisor();
    assert!(!node.node.socket.exists(), "it ended in order");
    node.node.restart();
    assert_eq!(node.client().stats().unwrap().node.adopted, 1);
    assert!(client.contains(&"kept".into()).unwrap(), "clients come back to it");
    node.kill_all(true);
    node.node.restart();
    assert_eq!(node.client().stats().unwrap().node.adopted, 1);
    drop(client);
    stop(&node);
    assert!(node.node.wait_end().success());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    node.wait_empty("the memory of a stopped node");
}

fn stop(node: &SupervisedNode) {
    let pid = Pid::from_raw(node.supervisor() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
}

#[test]
fn a_signal_to_the_supervisor_ends_both_in_order_whenever_it_comes() {
    for delay_us in (0..12).map(|step| step * 3000) {
        let mut node = SupervisedNode::start("signal", "8M", &[]);
        std::thread::sleep(Duration::from_micros(delay_us));
        if delay_us % 2000 == 0 {
            drop(node.client());
            kill(node.daemon());
        }
        stop(&node);
        let ended = node.node.wait_end();
        node.wait_empty("the memory of a stopped node");
        let left: Vec<_> = std::fs::read_dir(node.node.dir.path()).unwrap().collect();
        assert!(left.is_empty(), "after {delay_us} us, {ended:?}: {left:?}");
    }
}

/// The first handler is there before it knows what to do: a signal at that moment was lost once,
/// and the node never ended.
#[test]
fn a_signal_at_the_moment_of_the_first_handler_ends_the_node() {
    let term = 1_u64 << (Signal::TERM.as_raw() - 1);
    for turn in 0..40 {
        let mut node = Daemon::start_supervised(&[], "8M", &[]);
        let status = format!("/proc/{}/status", node.pid());
        let has_handler = || {
            let status = std::fs::read_to_string(&status).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap() & term != 0
        };
        let start = Instant::now();
        while !has_handler() {
            assert!(start.elapsed() < PATIENCE, "no handler in turn {turn}");
        }
        kill_process(Pid::from_raw(node.pid() as i32).unwrap(), Signal::TERM).unwrap();
        node.wait_end();
        let left: Vec<_> = std::fs::read_dir(node.dir.path()).unwrap().collect();
        assert!(left.is_empty(), "turn {turn}: {left:?}");
    }
}

/// A daemon that always dies at start must not be restarted endlessly.
#[test]
fn a_daemon_that_dies_again_and_again_ends_the_node_with_a_word() {
    let mut node = SupervisedNode::start("again", "8M", &[]);
    drop(node.client());
    let mut killed = 0;
    wait_for("the node to give up", || {
        if !node.node.is_running() {
            return Some(());
        }
        for daemon in children(node.supervisor()) {
            kill(daemon);
            killed += 1;
        }
        None
    })
    .unwrap();
    assert_eq!(node.node.wait_end().code(), Some(1));
    assert_eq!(node.node.said("giving up"), 1);
    assert!(killed >= 5, "{killed} kills");
    node.wait_empty("the memory of a node that gave up");
    let left: Vec<_> = std::fs::read_dir(node.node.dir.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn fresh_is_for_the_first_start_alone() {
    let node = SupervisedNode::start("fresh", "8M", &["--fresh"]);
    let client = node.client();
    client.put(&Value::Bytes(b"x"), Some("x")).unwrap();
    node.kill_daemon();
    assert_eq!(client.stats().unwrap().node.adopted, 1);
}

/// What the kernel says of one who lends memory that others map too: nodes of one machine let go of
/// the memory of a node that was killed, and map one that was only started again.
#[test]
fn nodes_of_a_cluster_map_each_other_and_let_go_of_a_node_that_was_killed() {
    let ports = common::free_ports(3);
    let address = |at: usize| format!("127.0.0.1:{}", ports[at]);
    let start = |at: usize| {
        let own = address(at);
        let name = ["a", "b", "c"][at];
        let others: Vec<String> = (0..3).filter(|one| *one != at).map(address).collect();
        let mut words = vec!["--name", name, "--listen", &own, "--plaintext", "--lease-ms", "1000"];
        others.iter().for_each(|other| words.extend(["--join", other]));
        SupervisedNode::start(&format!("cluster-{name}"), "24M", &words)
    };
    let mut nodes: Vec<SupervisedNode> = (0..3).map(start).collect();
    let mapped = |client: &Client| {
        let members = client.members().unwrap();
        members.nodes.iter().filter(|one| one.is_usable()).count()
    };
    let settle = |client: &Client, count: usize| {
        wait_for("the nodes to map each other", || (mapped(client) == count).then_some(()))
            .unwrap_or_else(|| panic!("{:?}", client.members().unwrap()));
    };
    let clients: Vec<Client> = nodes.iter().map(SupervisedNode::client).collect();
    clients.iter().for_each(|client| settle(client, 3));
    clients[0].put(&Value::Bytes(&bytes_of(1, LARGE)), Some("of a")).unwrap();
    let read = |client: &Client| {
        let there = client.get(&"of a".into(), PATIENCE).unwrap().view().unwrap();
        assert_eq!(&there[..], &bytes_of(1, LARGE)[..]);
        there
    };
    let view = read(&clients[1]);
    // The home is started again; then one that maps it, which finds it by its lock.
    nodes[0].kill_daemon();
    read(&clients[2]);
    nodes[1].kill_daemon();
    settle(&clients[1], 3);
    read(&clients[1]);
    // All of the home is killed. A client of another node reads on; then nobody does.
    nodes[0].kill_all(false);
    assert_eq!(&view[..], &bytes_of(1, LARGE)[..]);
    settle(&clients[1], 2);
    assert_eq!(&view[..], &bytes_of(1, LARGE)[..]);
    assert!(nodes[0].ledger.used() >= 24 << 20, "a client maps it");
    drop(view);
    drop(clients);
    nodes[0].wait_empty("the memory of a killed node of a cluster");
    nodes[1..].iter().for_each(|node| assert!(node.ledger.used() >= 24 << 20));
}

/// Set in the environment of a child that plays a program with a private node.
const PRIVATE: &str = "FARROW_TEST_SUPERVISED_PRIVATE";

/// Not a test by itself: connects, which starts a private node, puts, and says where; then does so
/// again, until its standard input ends.
#[test]
fn private_child() {
    if std::env::var_os(PRIVATE).is_none() {
        return;
    }
    let daemon = SpawnCommand::daemon(common::FARROWD);
    let spawn = Some(SpawnCommand { linger: Some(Duration::ZERO), ..daemon });
    let options = ConnectOptions { timeout: PATIENCE, spawn, ..ConnectOptions::default() };
    let client = Client::connect(&options).unwrap();
    client.put(&Value::Bytes(&bytes_of(3, 70_000)), Some("x")).unwrap();
    println!("\nnode {}", client.stats().unwrap().node.pid);
    let _ = std::io::stdin().read(&mut [0; 1]);
    let there = client.get(&"x".into(), Duration::ZERO).unwrap().view().unwrap();
    assert_eq!(&there[..], &bytes_of(3, 70_000)[..]);
    println!("\nnode {}", client.stats().unwrap().node.pid);
    let _ = std::io::stdin().read(&mut [0; 1]);
}

fn said(child: &mut Child) -> u32 {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let line = lines.map_while(Result::ok).find(|line| line.starts_with("node "));
    line.unwrap()[5..].parse().unwrap()
}

#[test]
fn a_private_node_outlives_its_daemon_and_ends_with_its_last_client() {
    let dir = tempfile::Builder::new().prefix("farrow-test-").tempdir_in("/dev/shm").unwrap();
    for is_client_killed in [false, true] {
        let ledger = Ledger::new("private");
        let prefix = ledger.prefix();
        let itself = this_test_again("private_child");
        let mut command = match prefix.split_first() {
            None => itself,
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(itself.get_program()).args(itself.get_args());
                command
            }
        };
        let mut child = command
            .env(PRIVATE, "1")
            .env("XDG_RUNTIME_DIR", dir.path())
            .env("FARROW_MEMORY", "40M")
            .env_remove("FARROW_SOCKET")
            .env_remove("FARROW_MEMORY_DIR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let first = said(&mut child);
        ledger.wait_used(40 << 20);
        kill(first);
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"x").unwrap();
        let next = said(&mut child);
        assert_ne!(first, next);
        if is_client_killed {
            child.kill().unwrap();
        }
        drop(child.stdin.take());
        child.wait().unwrap();
        wait_for("the end of the node", || (!is_there(next)).then_some(())).unwrap();
        ledger.wait_empty(dir.path(), "the memory of a private node");
    }
}

/// A random story: of nodes, their daemons and their clients that are killed, alone and together.
/// `FARROW_KILLS=500` is the long one.
#[test]
fn after_random_kills_all_memory_is_back() {
    let kills: u64 = std::env::var("FARROW_KILLS").map_or(24, |text| text.parse().unwrap());
    let seed = std::env::var("FARROW_KILLS_SEED").map_or(0x5eed, |text| text.parse().unwrap());
    eprintln!("{kills} kills, FARROW_KILLS_SEED={seed}");
    let mut dice = SeededDice(seed);
    let mut killed = 0;
    let mut counts = [0; 4];
    while killed < kills {
        let mut node = SupervisedNode::start("random", "32M", &[]);
        let client = node.client();
        client.put(&Value::Bytes(&bytes_of(1, LARGE)), Some("large")).unwrap();
        let mut readers: Vec<Child> = (0..2).map(|_| start_reader(&node.node.socket)).collect();
        // Fewer quick deaths than end a node.
        for _ in 0..dice.roll(4) {
            match dice.roll(2) {
                0 => {
                    node.kill_daemon();
                    assert!(client.contains(&"large".into()).unwrap());
                    counts[0] += 1;
                }
                _ => {
                    let reader = readers.pop();
                    reader.into_iter().for_each(end);
                    readers.push(start_reader(&node.node.socket));
                    counts[1] += 1;
                }
            }
            killed += 1;
            std::thread::sleep(Duration::from_millis(dice.roll(20)));
        }
        let are_readers_first = dice.roll(2) == 0;
        if are_readers_first {
            readers.drain(..).for_each(end);
        }
        match dice.roll(3) {
            0 => node.kill_supervisor(),
            1 => node.kill_all(true),
            _ => node.kill_all(false),
        }
        counts[2] += 1;
        killed += 2;
        readers.drain(..).for_each(end);
        let view = client.get(&"large".into(), Duration::ZERO).unwrap().view().unwrap();
        assert_eq!(&view[..], &bytes_of(1, LARGE)[..]);
        drop((view, client));
        node.wait_empty("the memory after kills");
        counts[3] += 1;
    }
    eprintln!(
        "{} kills of daemons, {} of clients, {} of whole nodes: memory back {} times",
        counts[0], counts[1], counts[2], counts[3]
    );
}

/// Set in the environment of a child that holds an object.
const READER: &str = "FARROW_TEST_SUPERVISED_READER";

/// Not a test by itself: holds and reads an object until its standard input ends.
#[test]
fn reader_child() {
    let Some(socket) = std::env::var_os(READER) else {
        return;
    };
    let client = client_at(Path::new(&socket));
    let view = client.get(&"large".into(), PATIENCE).unwrap().view().unwrap();
    println!("\nnode 0");
    let _ = std::io::stdin().read(&mut [0; 1]);
    assert_eq!(&view[..], &bytes_of(1, LARGE)[..]);
}

fn start_reader(socket: &Path) -> Child {
    let mut child = this_test_again("reader_child")
        .env(READER, socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    said(&mut child);
    child
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A node in a group of 64 MiB that was asked for 128 MiB was ended by the kernel without a word,
/// where version 1 of control groups is used.
#[test]
fn more_memory_than_the_control_group_allows_is_refused_with_both_numbers() {
    let ledger = Ledger::new("limit");
    if !ledger.limit(64 << 20) {
        eprintln!("skipped: no control group can be made here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let prefix = ledger.prefix();
    let run = |more: &[&str]| {
        Command::new(&prefix[0])
            .args(&prefix[1..])
            .arg(common::FARROWD)
            .arg("--socket")
            .arg(dir.path().join("n.sock"))
            .args(more)
            .env_remove("FARROW_MEMORY_DIR")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    for more in [&["--memory", "128M"][..], &["--memory", "128M", "--keep"]] {
        let output = run(more).wait_with_output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words}");
        assert!(words.contains("limited to 67108864 B") && words.contains("asked"), "{words}");
        assert_eq!(ledger.used(), 0, "nothing was committed");
    }
    // Without a size it takes a part of what the group has.
    let mut node = run(&[]);
    let client = client_at(&dir.path().join("n.sock"));
    let capacity = client.stats().unwrap().node.capacity;
    assert!((1 << 20..=16 << 20).contains(&capacity), "{capacity}");
    client.shut_down_node().unwrap();
    assert!(node.wait().unwrap().success());
}

/// A daemon without Farrow's supervisor: its memory ends with it, unless a service manager retains
/// it.
#[test]
fn memory_without_a_name_ends_with_a_daemon_without_supervisor() {
    let mut node = Daemon::start_anywhere("8M", &[]);
    let client = node.client();
    client.put(&Value::Bytes(b"x"), Some("x")).unwrap();
    node.kill9();
    node.restart();
    let other = node.client();
    assert_eq!(other.stats().unwrap().node.adopted, 0);
    // The old client is told so, at its next call.
    assert!(client.stats().is_err());
}
