//! Certificate files that change while a node runs.

use std::fs;
use std::path::Path;

use time::OffsetDateTime;

use super::tls::{DAY, authority, certified, certify, files, refused};
use super::*;
use crate::certs;

/// New connections are opened beside the calls, within milliseconds.
const RENEWED: Duration = Duration::from_millis(500);

const HOUR: time::Duration = time::Duration::HOUR;

/// Waits until a node has used changed files this often, or refuses the present ones.
fn wait_for(node: &DrivenNode, is_so: impl Fn(&CredentialStatus) -> bool) -> CredentialStatus {
    let until = Instant::now() + LIMIT;
    loop {
        let status = node.peers.credentials().unwrap().status();
        if is_so(&status) {
            return status;
        }
        assert!(Instant::now() < until, "{status:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Moves the files of one folder to another, as a tool that renews certificates does.
fn move_files(from: &Path, to: &Path, name: &str) {
    for end in ["pem", "key"] {
        let file = format!("{name}.{end}");
        fs::rename(from.join(&file), to.join(&file)).unwrap();
    }
}

/// A folder with the same authority.
fn same_authority(dir: &Path) -> tempfile::TempDir {
    let other = tempfile::tempdir().unwrap();
    for file in ["ca.pem", "ca.key"] {
        fs::copy(dir.join(file), other.path().join(file)).unwrap();
    }
    other
}

/// A renewed certificate once needed a restart: new connections failed until then.
#[test]
fn a_renewed_certificate_is_used_without_a_restart() {
    let dir = authority();
    let now = OffsetDateTime::now_utc();
    certify(dir.path(), "b", now - 2 * HOUR, now - HOUR);
    let mut b = DrivenNode::with(certified(dir.path(), "b"));
    let mut a = DrivenNode::with(certified(dir.path(), "a"));
    let error = refused(&mut a, &b.address()).to_string();
    assert!(error.contains("expired"), "{error}");

    let renewed = same_authority(dir.path());
    certs::issue(renewed.path(), "b", &["127.0.0.1".into()], DAY).unwrap();
    move_files(renewed.path(), dir.path(), "b");
    let status = wait_for(&b, |status| status.reloads > 0);
    assert!(status.expires_s > now.unix_timestamp(), "{status:?}");
    // As a server and as a client.
    a.ask_through(&mut b, 1);
    let mut c = DrivenNode::with(certified(dir.path(), "c"));
    b.ask_through(&mut c, 2);
}

#[test]
fn files_that_cannot_be_used_change_nothing_and_are_reported() {
    let dir = authority();
    let mut b = DrivenNode::with(certified(dir.path(), "b"));
    let mut a = DrivenNode::with(certified(dir.path(), "a"));
    let own = files(dir.path(), "b");
    let good = [&own.certificate, &own.key].map(|path| fs::read(path).unwrap());
    let now = OffsetDateTime::now_utc();
    let half = good[0][..good[0].len() / 2].to_vec();
    let (other, strange) = (same_authority(dir.path()), authority());
    let certificate = |dir: &Path, name: &str, begin, end| {
        certify(dir, name, begin, end);
        let made = files(dir, name);
        [fs::read(&made.certificate).unwrap(), fs::read(&made.key).unwrap()]
    };
    let expired = certificate(other.path(), "b", now - 2 * HOUR, now - HOUR);
    let cases = [
        ("consistent", [good[0].clone(), expired[1].clone()]),
        ("b.pem", [half, good[1].clone()]),
        ("b.pem", [Vec::new(), good[1].clone()]),
        ("expired", expired),
        ("not valid yet", certificate(other.path(), "b", now + HOUR, now + 2 * HOUR)),
        ("for node x", certificate(other.path(), "x", now - HOUR, now + HOUR)),
        ("UnknownIssuer", certificate(strange.path(), "b", now - HOUR, now + HOUR)),
    ];
    for (at, (word, [certificate, key])) in cases.iter().enumerate() {
        fs::write(&own.certificate, certificate).unwrap();
        fs::write(&own.key, key).unwrap();
        let reason = wait_for(&b, |status| status.refused.is_some()).refused.unwrap();
        assert!(reason.contains(word), "{word}: {reason}");
        let mut c = DrivenNode::with(certified(other.path(), &format!("c{at}")));
        c.ask_through(&mut b, 1);
        b.ask_through(&mut a, at as u64);
        fs::write(&own.certificate, &good[0]).unwrap();
        fs::write(&own.key, &good[1]).unwrap();
        wait_for(&b, |status| status.refused.is_none());
    }
}

#[test]
fn a_revoked_node_is_cut_off_by_all_that_have_the_list_and_returns_with_a_new_certificate() {
    let dir = authority();
    let far = same_authority(dir.path());
    let mut a = DrivenNode::with(certified(dir.path(), "a"));
    let mut b = DrivenNode::with(certified(dir.path(), "b"));
    // The revoked node does not get the list.
    let mut c = DrivenNode::with(certified(far.path(), "c"));
    a.ask_through(&mut b, 1);
    a.ask_through(&mut c, 2);
    c.ask_through(&mut b, 3);
    let open = RemoteSessionId::outgoing(1);
    c.peers.open_remote_session(open, &a.address(), PROCESS).unwrap();
    let (at_a, ..) = a.opened();
    let to_c = RemoteSessionId::outgoing(2);
    a.peers.open_remote_session(to_c, &c.address(), PROCESS).unwrap();
    let (at_c, ..) = c.opened();

    fs::copy(far.path().join("c.pem"), dir.path().join("c.pem")).unwrap();
    certs::revoke(dir.path(), "c").unwrap();
    for node in [&a, &b] {
        wait_for(node, |status| status.reloads > 0);
    }
    // What was open ends on both sides, and nothing is opened in either direction.
    assert_eq!(a.ended(at_a).0, None);
    assert_eq!(c.ended(open).0, None);
    assert_eq!(a.ended(to_c).0, None);
    assert_eq!(c.ended(at_c).0, None);
    let error = refused(&mut a, &c.address()).to_string();
    assert!(error.contains("revoked"), "{error}");
    for to in [a.address(), b.address()] {
        refused(&mut c, &to);
    }
    a.ask_through(&mut b, 4);
    assert!(a.waiting.iter().all(|event| !matches!(event, PeerEvent::Request { .. })));

    let renewed = same_authority(far.path());
    certs::issue(renewed.path(), "c", &["127.0.0.1".into()], DAY).unwrap();
    move_files(renewed.path(), far.path(), "c");
    wait_for(&c, |status| status.reloads > 0);
    std::thread::sleep(2 * link::REST_MAX);
    c.ask_through(&mut a, 5);
    b.ask_through(&mut c, 6);
}

#[test]
fn a_list_of_another_authority_or_one_that_is_lost_changes_nothing() {
    let (dir, strange) = (authority(), authority());
    let mut a = DrivenNode::with(certified(dir.path(), "a"));
    let far = same_authority(dir.path());
    let mut b = DrivenNode::with(certified(far.path(), "b"));
    certs::issue(strange.path(), "b", &[], DAY).unwrap();
    certs::revoke(strange.path(), "b").unwrap();
    let list = dir.path().join(certs::REVOKED_FILE);
    fs::write(&list, "half of a list").unwrap();
    wait_for(&a, |status| status.refused.is_some());
    fs::remove_file(&list).unwrap();
    wait_for(&a, |status| status.refused.is_none());
    a.ask_through(&mut b, 1);

    fs::copy(far.path().join("b.pem"), dir.path().join("b.pem")).unwrap();
    certs::revoke(dir.path(), "b").unwrap();
    wait_for(&a, |status| status.reloads > 0);
    refused(&mut a, &b.address());
    fs::remove_file(&list).unwrap();
    let status = wait_for(&a, |status| status.refused.is_some());
    assert!(status.refused.unwrap().contains("is missing"));
    refused(&mut b, &a.address());
}

#[test]
fn one_authority_replaces_another_while_nodes_run() {
    let (old, new) = (authority(), authority());
    let dirs = ["a", "b"].map(|_| same_authority(old.path()));
    let [mut a, mut b] = [("a", &dirs[0]), ("b", &dirs[1])]
        .map(|(name, dir)| DrivenNode::with(certified(dir.path(), name)));
    a.ask_through(&mut b, 1);
    // As with heartbeats.
    b.ask_through(&mut a, 1);
    let roots = [&old, &new].map(|dir| fs::read(dir.path().join("ca.pem")).unwrap());
    for (dir, node) in dirs.iter().zip([&a, &b]) {
        fs::write(dir.path().join("ca.pem"), roots.concat()).unwrap();
        wait_for(node, |status| status.reloads > 0);
    }
    // A list of the old authority does not concern certificates of the new one.
    certs::issue(old.path(), "x", &[], DAY).unwrap();
    let list = certs::revoke(old.path(), "x").unwrap();
    for (name, dir, node) in [("a", &dirs[0], &a), ("b", &dirs[1], &b)] {
        let before = node.peers.credentials().unwrap().status().reloads;
        certs::issue(new.path(), name, &["127.0.0.1".into()], DAY).unwrap();
        move_files(new.path(), dir.path(), name);
        fs::copy(&list, dir.path().join(certs::REVOKED_FILE)).unwrap();
        wait_for(node, |status| status.reloads > before);
    }
    a.ask_through(&mut b, 2);
    let mut c = DrivenNode::with(certified(new.path(), "c"));
    a.ask_through(&mut c, 3);

    // Regression test: nodes still used the connections from before, which end now, with their calls.
    std::thread::sleep(RENEWED);
    let open = RemoteSessionId::outgoing(1);
    a.peers.open_remote_session(open, &b.address(), PROCESS).unwrap();
    let (at_b, ..) = b.opened();
    a.peers.ask(4, &b.address(), Bytes::from_static(b"?"), LIMIT).unwrap();
    b.peers.ask(5, &a.address(), Bytes::from_static(b"?"), LIMIT).unwrap();
    let (at_b_token, at_a_token) = (b.requested().0, a.requested().0);
    for (dir, node) in dirs.iter().zip([&a, &b]) {
        let before = node.peers.credentials().unwrap().status().reloads;
        fs::write(dir.path().join("ca.pem"), &roots[1]).unwrap();
        wait_for(node, |status| status.reloads > before);
    }
    b.peers.answer(at_b_token, Bytes::from_static(b"!")).unwrap();
    a.peers.answer(at_a_token, Bytes::from_static(b"!")).unwrap();
    assert_eq!(a.answered(4).unwrap().body, &b"!"[..]);
    assert_eq!(b.answered(5).unwrap().body, &b"!"[..]);
    b.peers.send(at_b, Bytes::from_static(b"~")).unwrap();
    assert_eq!(a.read(open, 1), b"~");
}

/// A client outlives several renewals, and a node has few connections to another one.
#[test]
fn remote_sessions_outlive_a_renewal_and_not_all_of_many() {
    let dir = authority();
    let mut a = DrivenNode::with(certified(dir.path(), "a"));
    let mut b = DrivenNode::with(certified(dir.path(), "b"));
    let mut sessions = Vec::new();
    for round in 1..=6 {
        let open = RemoteSessionId::outgoing(round);
        a.peers.open_remote_session(open, &b.address(), PROCESS).unwrap();
        let (at_b, ..) = b.opened();
        for earlier in sessions.iter().rev().take(1).chain([&(open, at_b)]) {
            b.peers.send(earlier.1, Bytes::from_static(b"~")).unwrap();
            assert_eq!(a.read(earlier.0, 1), b"~", "round {round}");
        }
        sessions.push((open, at_b));
        a.ask_through(&mut b, round);
        let renewed = same_authority(dir.path());
        certs::issue(renewed.path(), "a", &["127.0.0.1".into()], DAY).unwrap();
        let before = a.peers.credentials().unwrap().status().reloads;
        move_files(renewed.path(), dir.path(), "a");
        wait_for(&a, |status| status.reloads > before);
        std::thread::sleep(RENEWED);
    }
    let (first, _) = sessions[0];
    assert_eq!(a.ended(first).0, None);
}

/// Lists of revoked certificates may be renewed each hour, and files be written again as they are.
#[test]
fn other_files_than_the_certificate_retire_no_connection() {
    let dir = authority();
    let mut a = DrivenNode::with(certified(dir.path(), "a"));
    let mut b = DrivenNode::with(certified(dir.path(), "b"));
    let open = RemoteSessionId::outgoing(1);
    a.peers.open_remote_session(open, &b.address(), PROCESS).unwrap();
    let (at_b, ..) = b.opened();
    for round in 1..=4 {
        let before = a.peers.credentials().unwrap().status().reloads;
        let name = format!("x{round}");
        certs::issue(dir.path(), &name, &[], DAY).unwrap();
        certs::revoke(dir.path(), &name).unwrap();
        let own = files(dir.path(), "a").certificate;
        let same = fs::read(&own).unwrap();
        fs::write(&own, same).unwrap();
        for node in [&a, &b] {
            wait_for(node, |status| status.reloads > before);
        }
        a.ask_through(&mut b, round);
    }
    std::thread::sleep(2 * retired::CALLS_MAX + RENEWED);
    b.peers.send(at_b, Bytes::from_static(b"~")).unwrap();
    assert_eq!(a.read(open, 1), b"~");
}

/// The new authority is not everywhere yet, or the clock of a peer is behind.
#[test]
fn a_new_certificate_that_a_peer_refuses_ends_no_connection() {
    let (old, new) = (authority(), authority());
    let far = same_authority(old.path());
    let mut a = DrivenNode::with(certified(old.path(), "a"));
    let mut b = DrivenNode::with(certified(far.path(), "b"));
    a.ask_through(&mut b, 1);
    b.ask_through(&mut a, 2);
    let roots = [&old, &new].map(|dir| fs::read(dir.path().join("ca.pem")).unwrap());
    fs::write(old.path().join("ca.pem"), roots.concat()).unwrap();
    wait_for(&a, |status| status.reloads > 0);
    let before = a.peers.credentials().unwrap().status().reloads;
    certs::issue(new.path(), "a", &["127.0.0.1".into()], DAY).unwrap();
    move_files(new.path(), old.path(), "a");
    wait_for(&a, |status| status.reloads > before);
    let until = Instant::now() + 3 * link::REST_MAX;
    for token in (10..).step_by(2).take_while(|_| Instant::now() < until) {
        a.ask_through(&mut b, token);
        b.ask_through(&mut a, token + 1);
        std::thread::sleep(Duration::from_millis(50));
    }
    // As soon as the peer accepts it, it is used.
    fs::write(far.path().join("ca.pem"), roots.concat()).unwrap();
    wait_for(&b, |status| status.reloads > 0);
    a.ask_through(&mut b, 4);
    std::thread::sleep(link::REST_MAX + RENEWED);
    a.ask_through(&mut b, 6);
    std::thread::sleep(RENEWED);
    fs::write(far.path().join("ca.pem"), &roots[0]).unwrap();
    wait_for(&b, |status| status.reloads > 1);
    refused(&mut a, &b.address());
}
