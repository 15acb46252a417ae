//! A node that could not join logged nothing at the default level, and `farrow nodes` showed it as
//! the only live node. Now both sides log the cause, once a minute, and the node is listed as not
//! joined with the cause. A second node of a name ends; a node that left in order is not reported
//! as lost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::nodes::{DaemonNodes, wait_for};
use common::{Daemon, PATIENCE, free_ports};
use farrow::Reach;
use farrow_cluster::certs;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType,
};
use time::OffsetDateTime;

const DAY: Duration = Duration::from_secs(86_400);
const LOCAL: &str = "127.0.0.1";

/// A folder with an authority, and a certificate for each of these nodes.
fn authority(nodes: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    certs::init(dir.path(), 30 * DAY).unwrap();
    for node in nodes {
        certs::issue(dir.path(), node, &[LOCAL.to_owned()], DAY).unwrap();
    }
    dir
}

/// Certifies a node for another time than now.
fn issue_for(dir: &Path, node: &str, from: OffsetDateTime, to: OffsetDateTime) {
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    let authority_key = KeyPair::from_pem(&read("ca.key")).unwrap();
    // An issuer is known by its subject and its key.
    let mut authority = CertificateParams::default();
    authority.distinguished_name = DistinguishedName::new();
    let key_end: String =
        authority_key.public_key_raw().iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("Farrow cluster authority {}", &key_end[key_end.len() - 8..]);
    authority.distinguished_name.push(DnType::CommonName, name);
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![format!("{node}.farrow.internal")]).unwrap();
    params.subject_alt_names.push(SanType::IpAddress(LOCAL.parse().unwrap()));
    (params.not_before, params.not_after) = (from, to);
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, &issuer).unwrap();
    fs::write(dir.join(format!("{node}.pem")), certificate.pem()).unwrap();
    let mut options = fs::File::options();
    let file = options.write(true).create_new(true).mode(0o600);
    let mut file = file.open(dir.join(format!("{node}.key"))).unwrap();
    std::io::Write::write_all(&mut file, key.serialize_pem().as_bytes()).unwrap();
}

/// How a node speaks with others.
enum Speech<'a> {
    Plain,
    Certified(&'a Path),
}

fn start(name: &str, port: u16, speech: &Speech<'_>, more: &[&str]) -> Daemon {
    let listen = format!("{LOCAL}:{port}");
    let mut words = vec!["--no-prepare", "--name", name, "--listen", &listen];
    match speech {
        Speech::Plain => words.push("--plaintext"),
        Speech::Certified(dir) => words.extend(["--certs", dir.to_str().unwrap()]),
    }
    words.extend(more);
    Daemon::start("8MiB", &words)
}

/// Waits until a daemon has said all of these words in one line.
fn assert_said(daemon: &Daemon, words: &[&str]) {
    let until = Instant::now() + PATIENCE;
    loop {
        let log = daemon.log();
        if log.lines().any(|line| words.iter().all(|word| line.contains(word))) {
            return;
        }
        assert!(Instant::now() < until, "no {words:?} in\n{log}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a node lists the one at an address as not joined, and says why.
fn assert_not_joined(daemon: &Daemon, address: &str, words: &[&str]) {
    wait_for(&daemon.client(), |members| {
        members.nodes.iter().any(|node| {
            node.address == address
                && node.reach == Reach::NotJoined
                && words.iter().all(|word| node.why_not.contains(word))
        })
    });
}

/// Starts node a, and a node b that is to join it and cannot; what b and a say of it. Causes are
/// said once, however often b tries.
fn fails(host: &str, a: &Speech<'_>, b: &Speech<'_>, (at_b, at_a): (&[&str], &[&str])) {
    let ports = free_ports(2);
    let address = format!("{host}:{}", ports[0]);
    let a = start("a", ports[0], a, &[]);
    let b = start("b", ports[1], b, &["--join", &address]);
    assert_said(&b, &[&["WARN", address.as_str()], at_b].concat());
    if !at_a.is_empty() {
        assert_said(&a, &[&["WARN", LOCAL], at_a].concat());
    }
    assert_not_joined(&b, &address, at_b);
    // It asks four times in a lease of a second.
    std::thread::sleep(Duration::from_secs(1));
    let lines = |daemon: &Daemon| daemon.log().lines().filter(|l| l.contains("WARN")).count();
    assert!(lines(&a) <= 2 && lines(&b) <= 2, "a:\n{}\nb:\n{}", a.log(), b.log());
}

#[test]
fn a_certificate_of_another_authority() {
    let (one, other) = (authority(&["a"]), authority(&["b"]));
    let words: (&[&str], &[&str]) = (&["certificate", "authority"], &["certificate"]);
    fails(LOCAL, &Speech::Certified(one.path()), &Speech::Certified(other.path()), words);
}

#[test]
fn an_authority_that_the_other_side_does_not_have() {
    // b takes a's certificate, and a does not take b's: b hears of it only after the handshake.
    let (one, other) = (authority(&["a"]), authority(&["b"]));
    fs::copy(one.path().join("ca.pem"), other.path().join("ca.pem")).unwrap();
    let words: (&[&str], &[&str]) = (&["does not accept this node's certificate"], &["authority"]);
    fails(LOCAL, &Speech::Certified(one.path()), &Speech::Certified(other.path()), words);
}

#[test]
fn a_certificate_that_has_expired() {
    let dir = authority(&["a"]);
    let now = OffsetDateTime::now_utc();
    issue_for(dir.path(), "b", now - 2 * DAY, now - DAY);
    let words: (&[&str], &[&str]) = (&["this node's certificate has expired"], &["expired"]);
    let certified = Speech::Certified(dir.path());
    fails(LOCAL, &certified, &certified, words);
}

#[test]
fn a_clock_that_is_behind() {
    let dir = authority(&["b"]);
    let now = OffsetDateTime::now_utc();
    issue_for(dir.path(), "a", now + DAY, now + 2 * DAY);
    let words: (&[&str], &[&str]) = (&["not valid yet", "clocks"], &["certificate"]);
    let certified = Speech::Certified(dir.path());
    fails(LOCAL, &certified, &certified, words);
}

#[test]
fn plain_text_to_tls_and_tls_to_plain_text() {
    let dir = authority(&["a", "b"]);
    let certified = Speech::Certified(dir.path());
    let plain: (&[&str], &[&str]) = (&["may speak TLS", "--certs"], &["not speak TLS"]);
    fails(LOCAL, &certified, &Speech::Plain, plain);
    let tls: (&[&str], &[&str]) = (&["not speak TLS", "--plaintext"], &["not speak plain text"]);
    fails(LOCAL, &Speech::Plain, &certified, tls);
}

#[test]
fn a_host_that_the_certificate_does_not_name() {
    let dir = authority(&["a", "b"]);
    let certified = Speech::Certified(dir.path());
    fails("localhost", &certified, &certified, (&["not for the host", "localhost"], &[]));
}

#[test]
fn an_address_where_no_process_listens() {
    let ports = free_ports(2);
    let dead = format!("{LOCAL}:{}", ports[0]);
    let b = start("b", ports[1], &Speech::Plain, &["--join", &dead]);
    assert_said(&b, &["WARN", &dead, "refused"]);
    assert_not_joined(&b, &dead, &["refused"]);
}

/// Two leases in one cluster: a node would count on one that the others do not keep.
#[test]
fn another_lease() {
    let ports = free_ports(2);
    let address = |n: usize| format!("{LOCAL}:{}", ports[n]);
    let a = start("a", ports[0], &Speech::Plain, &["--lease-ms", "1000"]);
    wait_for(&a.client(), |members| members.has_lease);
    let b = start("b", ports[1], &Speech::Plain, &["--join", &address(0), "--lease-ms", "3000"]);
    assert_said(&b, &["ERROR", &address(0), "3000 ms", "1000 ms", "--lease-ms"]);
    assert_said(&a, &["ERROR", &address(1), "3000 ms", "1000 ms", "--lease-ms"]);
    assert_not_joined(&b, &address(0), &["--lease-ms"]);
    assert_eq!(a.client().members().unwrap().nodes.len(), 1);
}

#[test]
fn a_second_node_of_a_name_ends_with_an_error() {
    let nodes = DaemonNodes::start(2, "8MiB", &["--lease-ms", "500", "--no-prepare"]);
    let port = free_ports(1)[0];
    let known = nodes.client(0).members().unwrap();
    let (first, second) = (known.find("a").unwrap(), known.find("b").unwrap());
    let more = ["--lease-ms", "500", "--join", first.address.as_str()];
    let mut twin = start("b", port, &Speech::Plain, &more);
    assert!(!twin.wait_end().success());
    let own = format!("{LOCAL}:{port}");
    assert_said(&twin, &["farrow node:", "name b", &second.address, &own, "--name"]);
    assert_said(&nodes.daemons[0], &["name b", &own]);
    nodes.settle(2);
}

/// The options of a node were copied, and only `--join` was changed: it asked none but its namesake,
/// which ignored it. It ran outside of the cluster, and its log said nothing.
#[test]
fn a_second_node_of_a_name_that_knows_only_the_first_ends_too() {
    let nodes = DaemonNodes::start(2, "8MiB", &["--lease-ms", "500", "--no-prepare"]);
    let port = free_ports(1)[0];
    let known = nodes.client(0).members().unwrap();
    let namesake = known.find("b").unwrap().address.clone();
    let more = ["--lease-ms", "500", "--join", namesake.as_str()];
    let mut twin = start("b", port, &Speech::Plain, &more);
    assert!(!twin.wait_end().success());
    assert_said(&twin, &["farrow node:", "name b", &namesake, "--name"]);
    assert_said(&nodes.daemons[1], &["name b", &format!("{LOCAL}:{port}")]);
    nodes.settle(2);
}

/// A node was killed, and started with the name of another one by mistake. It ended with an error, and
/// removed the objects that it had adopted.
#[test]
fn an_error_at_the_start_removes_no_adopted_objects() {
    let mut nodes = DaemonNodes::start(3, "8MiB", &["--lease-ms", "500", "--no-prepare"]);
    nodes.client(2).put(&farrow::Value::Bytes(b"bytes"), Some("x")).unwrap();
    for is_supervised in [false, true] {
        nodes.daemons[2].kill9();
        nodes.daemons[2].set_option("--name", "b");
        nodes.daemons[2].set_supervised(is_supervised);
        nodes.daemons[2].restart();
        assert_eq!(nodes.daemons[2].wait_end().code(), Some(1));
        assert_said(&nodes.daemons[2], &["farrow node:", "name b", "1 objects", "not removed"]);
        nodes.daemons[2].set_option("--name", "c");
        nodes.daemons[2].set_supervised(false);
        nodes.daemons[2].restart();
        nodes.settle(3);
        let there = nodes.client(2).get(&"x".into(), Duration::ZERO).unwrap();
        assert_eq!(&there.view().unwrap()[..], b"bytes");
    }
}

/// The supervisor started it again for ever, without a socket. Each time it ended, it removed what was
/// at that path: also the socket of its corrected replacement.
#[test]
fn a_supervisor_does_not_repeat_a_name_that_is_taken() {
    let nodes = DaemonNodes::start(2, "8MiB", &["--lease-ms", "500", "--no-prepare"]);
    let known = nodes.client(0).members().unwrap();
    let listen = format!("{LOCAL}:{}", free_ports(1)[0]);
    let join = known.find("a").unwrap().address.clone();
    let more = ["--name", "b", "--listen", &listen, "--plaintext", "--join", &join];
    let more = [&more[..], &["--lease-ms", "500", "--no-prepare"]].concat();
    let mut twin = Daemon::start_supervised(&[], "8MiB", &more);
    assert_eq!(twin.wait_end().code(), Some(1));
    assert_said(&twin, &["farrow node:", "name b", "--name"]);
    assert_eq!(twin.said("starting it again"), 0);
    nodes.settle(2);
}

#[test]
fn a_node_that_left_in_order_is_not_lost() {
    let mut nodes = DaemonNodes::start(3, "8MiB", &["--lease-ms", "500", "--no-prepare"]);
    nodes.client(2).shut_down_node().unwrap();
    assert!(nodes.daemons[2].wait_end().success());
    nodes.daemons[1].kill9();
    nodes.daemons[1].restart();
    for number in 0..2 {
        wait_for(&nodes.client(number), |members| {
            members.find("c").is_none_or(|node| node.reach == Reach::Left)
        });
    }
    let members = nodes.client(0).members().unwrap();
    assert_eq!(members.find("c").map(|node| node.reach), Some(Reach::Left));
    let removed = nodes.client(0).at("c").unwrap_err();
    assert!(matches!(removed, farrow::Error::NodeLost { .. }), "{removed}");
    nodes.daemons.pop();
    nodes.settle(2);
}
