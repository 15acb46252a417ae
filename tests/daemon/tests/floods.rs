//! A process that floods one of the daemon's event sources starves no other client, and the node
//! stays in its cluster.
//!
//! Before each source had a budget a turn, `while 1: s.connect(); s.close()` of a user that may not
//! even connect stopped the daemon for as long as it ran.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::flood::{FloodKind, flood};
use common::nodes::{DaemonNodes, LEASE_MS};
use common::{Daemon, PATIENCE, this_test_again};
use farrow::{Client, Reach, Value};

/// Rounds of an honest client in a test: each is four calls.
const ROUNDS: u64 = 100;

/// A user that no daemon of a test lets in.
const STRANGER: u32 = 65_534;

/// Not a test by itself: a child process floods.
#[test]
fn flooder() {
    flood();
}

/// A process that floods until this is dropped.
struct Flood(Child);

impl Flood {
    fn start(kind: FloodKind, place: &Path) -> Self {
        Self::start_as(kind, place, None).unwrap()
    }

    /// As another user; `None` where this process may not become one.
    fn start_as(kind: FloodKind, place: &Path, uid: Option<u32>) -> Option<Self> {
        let mut command = this_test_again("flooder");
        command.env(common::flood::PLACE, place).env(common::flood::KIND, kind.name());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let mut flood = Self(child);
        // A line of its own begins when it floods.
        let mut output = flood.0.stdout.take().unwrap();
        let mut said = Vec::new();
        while !said.ends_with(b"flooding\n") {
            let mut byte = [0];
            if output.read(&mut byte).unwrap() == 0 {
                let said = String::from_utf8_lossy(&said);
                assert!(uid.is_some(), "a flood did not begin: {said}");
                return None;
            }
            said.push(byte[0]);
        }
        flood.0.stdout = Some(output);
        Some(flood)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Puts, looks, gets and deletes; the longest of its calls.
fn work(client: &Client, label: &str) -> Duration {
    let until = Instant::now() + PATIENCE;
    let mut longest = Duration::ZERO;
    let mut timed = |what: &str, call: &mut dyn FnMut()| {
        let began = Instant::now();
        call();
        longest = longest.max(began.elapsed());
        assert!(Instant::now() < until, "{what} after {PATIENCE:?}");
    };
    for round in 0..ROUNDS {
        let name = format!("{label} {round}");
        let bytes = round.to_le_bytes();
        timed("put", &mut || {
            client.put(&Value::Bytes(&bytes), Some(&name)).unwrap();
        });
        timed("stats", &mut || drop(client.stats().unwrap()));
        timed("get", &mut || {
            let object = client.get(&name.as_str().into(), Duration::ZERO).unwrap();
            assert_eq!(&object.view().unwrap()[..], &bytes);
        });
        timed("delete", &mut || client.delete(&[name.as_str().into()]).unwrap());
    }
    longest
}

/// A client works without the flood and beside it, and at the same time another does the same at a
/// node that is not flooded; a new client is let in.
///
/// A flood also takes processors: what a call takes longer than that at the other node is what the
/// flooded node lets a flood cost.
fn works_beside(what: &str, more: &[&str], floods: impl Fn(&Daemon) -> Vec<Flood>) {
    let (daemon, other) = (start(more), start(more));
    let (client, beside) = (daemon.client(), other.client());
    let both = |label: &str| {
        std::thread::scope(|scope| {
            let beside = scope.spawn(|| work(&beside, label));
            (work(&client, label), beside.join().unwrap())
        })
    };
    let calm = both("calm");
    let floods = floods(&daemon);
    let flooded = both("flooded");
    let newcomer = daemon.client();
    work(&newcomer, "new");
    let ratio = flooded.0.as_secs_f64() / flooded.1.max(calm.0).as_secs_f64();
    eprintln!(
        "{what}, {} processes: longest call {:?} without, {:?} beside it, {:?} at another node \
         meanwhile ({ratio:.1} times)",
        floods.len(),
        calm.0,
        flooded.0,
        flooded.1,
    );
    drop(floods);
    let node = client.stats().unwrap().node;
    assert_eq!(node.objects, 0);
}

fn metrics_of(daemon: &Daemon) -> PathBuf {
    PathBuf::from(format!("{}.metrics", daemon.socket.display()))
}

fn start(more: &[&str]) -> Daemon {
    let mut words = vec!["--no-prepare"];
    words.extend(more);
    Daemon::start("8M", &words)
}

/// A user that may not connect can reach the socket of a node that lets another user in.
fn open_to_strangers(daemon: &Daemon) {
    let all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(daemon.dir.path(), all).unwrap();
}

/// `None`, with a message, where this process cannot become another user.
fn strangers(kind: FloodKind, daemon: &Daemon, count: usize) -> Option<Vec<Flood>> {
    open_to_strangers(daemon);
    let floods: Option<Vec<Flood>> =
        (0..count).map(|_| Flood::start_as(kind, &daemon.socket, Some(STRANGER))).collect();
    if floods.is_none() {
        eprintln!("skipped: floods of another user need root, and a test program that it may run");
    }
    floods
}

#[test]
fn strangers_that_connect_and_close_starve_no_client() {
    works_beside("strangers that connect and close", &["--allow-uid", "65533"], |daemon| {
        strangers(FloodKind::Connect, daemon, 3).unwrap_or_default()
    });
}

#[test]
fn strangers_that_send_garbage_or_stay_starve_no_client() {
    works_beside("strangers that send garbage", &["--allow-uid", "65533"], |daemon| {
        let mut floods = strangers(FloodKind::Garbage, daemon, 2).unwrap_or_default();
        floods.extend(strangers(FloodKind::Silence, daemon, 1).unwrap_or_default());
        floods
    });
}

#[test]
fn clients_that_connect_and_close_starve_no_client() {
    works_beside("clients that connect and close", &[], |daemon| {
        (0..3).map(|_| Flood::start(FloodKind::Connect, &daemon.socket)).collect()
    });
}

#[test]
fn garbage_starves_no_client() {
    works_beside("garbage", &[], |daemon| {
        (0..2).map(|_| Flood::start(FloodKind::Garbage, &daemon.socket)).collect()
    });
}

#[test]
fn silent_connections_starve_no_client() {
    works_beside("silent connections", &[], |daemon| {
        vec![Flood::start(FloodKind::Silence, &daemon.socket)]
    });
}

#[test]
fn small_requests_without_end_starve_no_client() {
    works_beside("small requests", &[], |daemon| {
        (0..2).map(|_| Flood::start(FloodKind::Requests, &daemon.socket)).collect()
    });
}

#[test]
fn thousands_of_watches_starve_no_client() {
    works_beside("watches", &[], |daemon| vec![Flood::start(FloodKind::Watches, &daemon.socket)]);
}

#[test]
fn thousands_of_waits_for_one_name_starve_no_client() {
    works_beside("waits", &[], |daemon| vec![Flood::start(FloodKind::Waits, &daemon.socket)]);
}

#[test]
fn a_client_that_never_reads_starves_no_client() {
    works_beside("replies that are not read", &[], |daemon| {
        (0..2).map(|_| Flood::start(FloodKind::Unread, &daemon.socket)).collect()
    });
}

#[test]
fn scrapers_without_end_starve_no_client_and_no_scraper() {
    works_beside("scrapers", &["--metrics"], |daemon| {
        let metrics = metrics_of(daemon);
        let floods: Vec<_> = (0..2).map(|_| Flood::start(FloodKind::Scrapes, &metrics)).collect();
        for _ in 0..20 {
            let numbers = common::wait_for("metrics", || scrape(&metrics)).unwrap();
            assert!(numbers.contains("farrow_capacity_bytes"), "{numbers}");
        }
        floods
    });
}

fn scrape(metrics: &Path) -> Option<String> {
    let mut stream = std::os::unix::net::UnixStream::connect(metrics).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.starts_with("HTTP/1.1 200 OK\r\n").then_some(answer)
}

/// The others hear a node that is flooded: it stays what it was, under each flood for several
/// leases in all.
#[test]
fn a_flooded_node_stays_in_its_cluster() {
    let nodes =
        DaemonNodes::start(2, "16MiB", &["--no-prepare", "--metrics", "--allow-uid", "65533"]);
    let (a, b) = (nodes.client(0), nodes.client(1));
    let before = a.members().unwrap();
    let flooded = &nodes.daemons[1];
    open_to_strangers(flooded);
    for kind in FloodKind::ALL {
        let place =
            if kind == FloodKind::Scrapes { metrics_of(flooded) } else { flooded.socket.clone() };
        let mut floods = vec![Flood::start(kind, &place)];
        if kind == FloodKind::Connect {
            floods.extend((0..2).filter_map(|_| Flood::start_as(kind, &place, Some(STRANGER))));
        }
        let until = Instant::now() + Duration::from_millis(LEASE_MS / 2);
        let far = a.at("b").unwrap();
        let mut round = 0;
        while Instant::now() < until {
            for client in [&b, &far] {
                let name = format!("{} {round}", kind.name());
                client.put(&Value::Bytes(name.as_bytes()), Some(&name)).unwrap();
                client.delete(&[name.as_str().into()]).unwrap();
                round += 1;
            }
            let now = a.members().unwrap();
            let node = now.nodes.iter().find(|node| node.name == "b").unwrap();
            assert_eq!(node.reach, Reach::Live, "under {}", kind.name());
            assert_eq!(now.epoch, before.epoch, "under {}: {now:#?}", kind.name());
        }
        drop(floods);
    }
}
