//! The Prometheus metrics: correct, served for valid requests, and harmless to a node.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::nodes::DaemonNodes;
use common::{Daemon, PATIENCE, wait_for};
use farrow::Value;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

/// As in the server: connections of scrapers at a time.
const SCRAPERS_MAX: usize = 16;

fn place(daemon: &Daemon) -> PathBuf {
    PathBuf::from(format!("{}.metrics", daemon.socket.display()))
}

fn connect(daemon: &Daemon) -> UnixStream {
    let stream = UnixStream::connect(place(daemon)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn ask(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn numbers(daemon: &Daemon) -> String {
    let answer = ask(connect(daemon), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    body.to_owned()
}

fn value(text: &str, sample: &str) -> f64 {
    let line = text.lines().find(|line| line.strip_prefix(sample).is_some_and(is_value));
    line.unwrap_or_else(|| panic!("no {sample} in {text}"))[sample.len()..].trim().parse().unwrap()
}

fn is_value(rest: &str) -> bool {
    rest.starts_with(' ')
}

/// Regression test: a node without a free descriptor could not accept a scraper that waited, and
/// its event loop tried again without a pause for as long as it waited.
#[test]
fn a_scraper_that_waits_without_a_free_descriptor_makes_no_loop_spin() {
    let daemon = Daemon::start("8M", &["--no-prepare", "--metrics"]);
    let client = daemon.client();
    let turns = || client.stats().unwrap().node.turns_total;
    let pid = Pid::from_raw(daemon.pid() as i32);
    let limit = |current| {
        let limit = Rlimit { current, maximum: getrlimit(Resource::Nofile).maximum };
        prlimit(pid, Resource::Nofile, limit).unwrap().current
    };
    // Less than it has open.
    let before = limit(Some(4));
    let waiting = connect(&daemon);
    // Turns that each took one request, and a few for the pauses between attempts.
    let (begin, requested) = (turns(), 50);
    for _ in 0..requested {
        std::thread::sleep(Duration::from_millis(10));
        turns();
    }
    let count = turns() - begin;
    limit(before);
    assert!(count < 10 * requested, "{count} turns for {requested} requests");
    let answer = ask(waiting, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[test]
fn numbers_follow_what_happens() {
    let mut daemon = Daemon::start("8M", &["--no-prepare", "--metrics"]);
    let client = daemon.client();
    client.put(&Value::Bytes(&[1; 5000]), Some("x")).unwrap();
    client.put(&Value::Bytes(b"y"), Some("y")).unwrap();
    client.delete(&["y".into()]).unwrap();
    // They may be a tenth of a second old.
    let text = wait_for("fresh numbers", || {
        Some(numbers(&daemon)).filter(|text| value(text, "farrow_objects_deleted_total") > 0.0)
    })
    .unwrap();
    assert_eq!(value(&text, "farrow_capacity_bytes"), f64::from(8 << 20));
    assert_eq!(value(&text, "farrow_objects"), 1.0);
    assert_eq!(value(&text, "farrow_objects_sealed_total"), 2.0);
    assert_eq!(value(&text, "farrow_request_seconds_count{kind=\"seal\"}"), 2.0);
    let all = "farrow_request_seconds_bucket{kind=\"seal\",le=\"+Inf\"}";
    assert_eq!(value(&text, all), 2.0);
    assert!(value(&text, "farrow_request_seconds_sum{kind=\"seal\"}") > 0.0);

    daemon.upgrade();
    let text = numbers(&daemon);
    assert_eq!(value(&text, "farrow_adopted_objects"), 1.0);
    client.shut_down_node().unwrap();
    daemon.wait_end();
    assert!(!place(&daemon).exists(), "the socket goes with the node");
}

fn signal(daemon: &Daemon, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

fn health(daemon: &Daemon, path: &str) -> (String, String) {
    let answer = ask(connect(daemon), &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

/// Of two nodes the second loses the lease when the first is stopped: it is alive, but not ready.
#[test]
fn a_node_without_its_lease_lives_and_is_not_ready() {
    let alone = Daemon::start("4M", &["--no-prepare", "--metrics"]);
    drop(alone.client());
    let ok = || ("HTTP/1.1 200 OK".to_owned(), "ok\n".to_owned());
    assert_eq!(health(&alone, "/livez"), ok());
    assert_eq!(health(&alone, "/readyz"), ok());

    let nodes =
        DaemonNodes::start(2, "16MiB", &["--no-prepare", "--metrics", "--lease-ms", "1000"]);
    let both = &nodes.daemons;
    assert!(both.iter().all(|daemon| health(daemon, "/readyz") == ok()));
    signal(&both[0], Signal::STOP);
    let lost = wait_for("a node without its lease", || {
        let (status, cause) = health(&both[1], "/readyz");
        (status == "HTTP/1.1 503 Service Unavailable").then_some(cause)
    });
    assert!(lost.as_ref().is_some_and(|cause| cause.contains("lease")), "{lost:?}");
    assert_eq!(health(&both[1], "/livez"), ok());
    signal(&both[0], Signal::CONT);
    wait_for("both nodes", || (health(&both[1], "/readyz") == ok()).then_some(())).unwrap();
}

/// Regression test: such a node answered that it was ready, and a service manager sent it clients.
#[test]
fn a_node_that_no_client_can_connect_to_is_not_ready() {
    let daemon = Daemon::start("4M", &["--no-prepare", "--metrics", "--clients-max", "2"]);
    let ok = || ("HTTP/1.1 200 OK".to_owned(), "ok\n".to_owned());
    let is_ready = || health(&daemon, "/readyz") == ok();
    let (first, second) = (daemon.client(), daemon.client());
    let (status, cause) = health(&daemon, "/readyz");
    assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
    assert!(cause.contains("all 2 places are taken (--clients-max)"), "{cause}");
    let fresh = wait_for("fresh numbers", || {
        Some(numbers(&daemon)).filter(|text| value(text, "farrow_ready") == 0.0)
    });
    assert!(fresh.is_some());
    drop(second);
    wait_for("a free place", || is_ready().then_some(())).unwrap();
    let aside = daemon.socket.with_extension("aside");
    std::fs::rename(&daemon.socket, &aside).unwrap();
    let (status, cause) = health(&daemon, "/readyz");
    assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
    let socket = daemon.socket.display().to_string();
    assert!(cause.contains(&socket) && cause.contains("No such file"), "{cause}");
    assert_eq!(health(&daemon, "/livez"), ok());
    std::fs::rename(&aside, &daemon.socket).unwrap();
    assert!(is_ready());
    drop(first);
}

#[test]
fn a_node_of_several_reports_its_peers_and_the_traffic_between_them() {
    let mut nodes =
        DaemonNodes::start(2, "16MiB", &["--no-prepare", "--metrics", "--lease-ms", "2000"]);
    let alone = Daemon::start("4M", &["--no-prepare", "--metrics"]);
    drop(alone.client());
    assert!(!numbers(&alone).contains("cluster"));
    let far = nodes.client(0).at("b").unwrap();
    far.put(&Value::Bytes(&[1; 100_000]), Some("far")).unwrap();
    let remote_session = "farrow_peer_bytes_total{node=\"b\",kind=\"session\",way=\"out\"}";
    let text = wait_for("fresh numbers", || {
        Some(numbers(&nodes.daemons[0])).filter(|text| text.contains(remote_session))
    })
    .unwrap();
    assert_eq!(value(&text, "farrow_cluster_has_lease"), 1.0);
    assert!(value(&text, "farrow_cluster_view") >= 1.0);
    let left = value(&text, "farrow_cluster_lease_left_seconds");
    assert!(left > 0.0 && left <= 2.0, "{left}");
    assert_eq!(value(&text, "farrow_cluster_nodes{reach=\"live\"}"), 1.0);
    assert!(text.contains("reach=\"live\",fabric=\"shm\",coherence=\"coherent\"} 1"), "{text}");
    assert!(value(&text, remote_session) > 0.0);
    for way in ["in", "out"] {
        let messages =
            format!("farrow_peer_messages_total{{node=\"b\",kind=\"message\",way=\"{way}\"}}");
        assert!(value(&text, &messages) > 0.0);
    }
    let lines = "farrow_region_refreshed_lines_total{node=\"b\"}";
    assert_eq!(value(&text, lines), 0.0, "it is coherent");
    // Of two the first goes on without the other one, the second does not.
    nodes.daemons[1].kill9();
    let live = "farrow_cluster_nodes{reach=\"live\"}";
    wait_for("a node that is not heard of", || {
        Some(numbers(&nodes.daemons[0])).filter(|text| value(text, live) == 0.0)
    })
    .unwrap();
}

/// Objects that travel compressed arrive whole, where both nodes allow it, and are counted at both.
#[test]
fn compressed_bytes_are_counted_before_and_after() {
    let bytes: Vec<u8> = (0..3_000_000_u32).flat_map(|number| (number / 9).to_le_bytes()).collect();
    for (of_home, of_reader, is_compressed) in
        [("auto", "lz4", true), ("off", "lz4", false), ("lz4", "off", false)]
    {
        let nodes =
            DaemonNodes::start_each(2, &["--net", "only", "--no-prepare"], |number, words| {
                let mode = if number == 0 { of_home } else { of_reader };
                Daemon::start("64MiB", &[words, &["--metrics", "--net-compress", mode]].concat())
            });
        nodes.client(0).put(&Value::Bytes(&bytes), Some("numbers")).unwrap();
        let found = nodes.client(1).get(&"numbers".into(), PATIENCE).unwrap();
        assert!(found.view().unwrap()[..] == bytes[..]);
        let counted = |number: usize, way: &str| {
            let text = numbers(&nodes.daemons[number]);
            ["plain", "compressed"].map(|form| {
                let labels = format!("{{way=\"{way}\",form=\"{form}\"}}");
                value(&text, &format!("farrow_net_compressed_bytes_total{labels}")) as usize
            })
        };
        let sent = counted(0, "out");
        assert_eq!(counted(1, "in"), sent, "{of_home}, {of_reader}");
        assert_eq!((counted(0, "in"), counted(1, "out")), ([0, 0], [0, 0]));
        match is_compressed {
            // With the rest of its last page.
            true => assert!(sent[0] >= bytes.len() && sent[1] < bytes.len() / 2, "{sent:?}"),
            false => assert_eq!(sent, [0, 0], "{of_home}, {of_reader}"),
        }
    }
}

#[test]
fn what_is_no_scrape_gets_an_error() {
    let daemon = Daemon::start("4M", &["--no-prepare", "--metrics"]);
    drop(daemon.client());
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404"),
        ("DELETE /metrics HTTP/1.1\r\n\r\n", "405"),
        ("what is this\r\n\r\n", "400"),
        (&format!("GET /metrics HTTP/1.1\r\nX: {}", "y".repeat(8170)), "431"),
    ] {
        let answer = ask(connect(&daemon), request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:.40}: {answer}");
    }
    for address in ["0.0.0.0:0", "unix:", "nowhere"] {
        let output = Command::new(common::FARROWD).args(["--metrics", address]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{address}: {output:?}");
    }
}

#[test]
fn a_port_of_this_machine_serves_too() {
    let dir = tempfile::Builder::new().prefix("farrow-test-").tempdir_in("/dev/shm").unwrap();
    let mut child = Command::new(common::FARROWD)
        .args(["--metrics", "0", "--memory", "4M", "--no-prepare", "--memory-dir"])
        .arg(dir.path())
        .arg("--socket")
        .arg(dir.path().join("n.sock"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut said = lines.filter_map(|line| {
        Some(line.split_once("metrics at http://")?.1.strip_suffix("/metrics")?.to_owned())
    });
    let answer = said.next().map(|address| {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        ask(stream, "GET /metrics HTTP/1.0\r\n\r\n")
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let answer = answer.expect("an address");
    assert_eq!(value(&answer, "farrow_objects"), 0.0);
}

#[test]
fn slow_silent_and_hostile_scrapers_hurt_no_client() {
    let mut daemon = Daemon::start("4M", &["--no-prepare", "--metrics"]);
    let client = daemon.client();
    let fds = || std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    let before = fds();
    let mut crowd = Vec::new();
    for number in 0..200 {
        let mut stream = connect(&daemon);
        // Those that were there longest are sent away: their sockets may be gone already.
        let _ = match number % 5 {
            0 => Ok(()),
            1 => stream.write_all(b"GET /met"),
            2 => stream.write_all(&[0xff; 4000]),
            3 => stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n"),
            _ => stream.write_all("GET /metrics HTTP/1.1\r\n\r\n".repeat(400).as_bytes()),
        };
        crowd.push(stream);
        if number % 20 == 0 {
            client.put(&Value::Bytes(b"x"), None).unwrap();
            // One more is accepted before another is sent away.
            let is_bounded = || (fds() <= before + SCRAPERS_MAX).then_some(());
            wait_for("few enough descriptors", is_bounded)
                .unwrap_or_else(|| panic!("{number}: {} from {before}", fds()));
        }
    }
    // A well-behaved scraper is served while all of them stay.
    assert_eq!(value(&numbers(&daemon), "farrow_clients"), 1.0);
    drop(crowd);
    wait_for("their connections to go", || (fds() <= before).then_some(())).unwrap();
    assert!(daemon.is_running());
}

#[test]
fn a_node_with_nothing_to_do_does_not_wake() {
    let daemon = Daemon::start("4M", &["--no-prepare", "--metrics"]);
    let client = daemon.client();
    let held = client.put(&Value::Bytes(b"x"), Some("x")).unwrap();
    let object = client.get(&held.into(), Duration::ZERO).unwrap();
    drop(numbers(&daemon));
    // What was started by the lines above comes to its end.
    let mut last = client.stats().unwrap().node.turns_total;
    wait_for("rest", || {
        std::thread::sleep(Duration::from_millis(20));
        let now = client.stats().unwrap().node.turns_total;
        let is_at_rest = now == last + 1;
        last = now;
        is_at_rest.then_some(())
    })
    .expect("a turn for each question and no other");
    std::thread::sleep(Duration::from_millis(500));
    let turns = client.stats().unwrap().node.turns_total - last;
    assert_eq!(turns, 1, "the question itself is the only turn");
    drop(object);
}
