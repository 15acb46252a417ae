//! Certificates: admission, and the names of admitted nodes.

use std::path::Path;

use time::OffsetDateTime;
use tonic::Code;

use super::*;
use crate::certs;
use crate::peers::generated::pb::Message;
use crate::peers::limits::VERSION;
use crate::peers::tls::{Tls, choose};

pub(super) const DAY: Duration = Duration::from_secs(86_400);

/// TLS of a raw client.
pub(super) fn choose_tls(options: &PeersOptions) -> Option<Tls> {
    choose(options).unwrap().as_ref().map(Tls::new)
}

pub(super) fn authority() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    certs::init(dir.path(), DAY).unwrap();
    dir
}

pub(super) fn files(dir: &Path, name: &str) -> PeerTls {
    let file = |end| dir.join(format!("{name}.{end}"));
    let (ca, revoked) = (dir.join("ca.pem"), dir.join(certs::REVOKED_FILE));
    PeerTls { ca, certificate: file("pem"), key: file("key"), revoked }
}

/// Options of a node that this authority certified for this machine.
pub(super) fn certified(dir: &Path, name: &str) -> PeersOptions {
    if !dir.join(format!("{name}.pem")).exists() {
        certs::issue(dir, name, &["127.0.0.1".into()], DAY).unwrap();
    }
    PeersOptions { tls: Some(files(dir, name)), is_plaintext_allowed: false, ..options(name) }
}

pub(super) fn named(name: &str, node: &DrivenNode) -> PeerAddress {
    PeerAddress { name: Some(name.parse().unwrap()), ..node.address() }
}

/// Asserts that `a` gets no answer from the address, and returns the error.
pub(super) fn refused(a: &mut DrivenNode, address: &PeerAddress) -> PeerError {
    a.peers.ask(99, address, Bytes::new(), LIMIT).unwrap();
    a.answered(99).unwrap_err()
}

#[test]
fn certified_nodes_speak_and_the_answer_says_who() {
    let dir = authority();
    let mut a = DrivenNode::with(certified(dir.path(), "a"));
    let mut b = DrivenNode::with(certified(dir.path(), "b"));
    for (token, address) in [b.address(), named("b", &b)].into_iter().enumerate() {
        let token = token as u64;
        a.peers.ask(token, &address, pattern(0, 1 << 20).into(), LIMIT).unwrap();
        let (requested, from, body) = b.requested();
        assert_eq!((from.as_str(), body == pattern(0, 1 << 20)), ("a", true));
        b.peers.answer(requested, Bytes::new()).unwrap();
        assert_eq!(a.answered(token).unwrap().from.unwrap().as_str(), "b");
    }
    a.peers.send_message(&b.address(), Bytes::from_static(b"alive"));
    assert_eq!(b.reported().0.as_str(), "a");
    let remote_session = RemoteSessionId::outgoing(1);
    a.peers.open_remote_session(remote_session, &b.address(), PROCESS).unwrap();
    a.peers.send(remote_session, pattern(0, 3 << 20).into()).unwrap();
    let (at_b, ..) = b.opened();
    assert!(b.read(at_b, 3 << 20) == pattern(0, 3 << 20));
    a.peers.end_remote_session(remote_session, true);
    assert_eq!(b.ended(at_b).0, Some(true));
}

#[test]
fn another_node_than_the_expected_one_is_not_spoken_to() {
    let dir = authority();
    let mut a = DrivenNode::with(certified(dir.path(), "a"));
    let b = DrivenNode::with(certified(dir.path(), "b"));
    let error = refused(&mut a, &named("c", &b));
    assert!(matches!(error, PeerError::WrongNode { .. }), "{error}");
    // Without a name the host must be certified. That of this node is not.
    certs::issue(dir.path(), "d", &["192.0.2.1".into()], DAY).unwrap();
    let mut d = DrivenNode::with(certified(dir.path(), "d"));
    let error = refused(&mut a, &d.address());
    assert!(matches!(error, PeerError::WrongNode { .. }), "{error}");
    let by_name = named("d", &d);
    a.peers.ask(1, &by_name, Bytes::new(), LIMIT).unwrap();
    let (token, ..) = d.requested();
    d.peers.answer(token, Bytes::new()).unwrap();
    a.answered(1).unwrap();
}

#[test]
fn who_has_no_certificate_of_this_authority_is_let_in_nowhere() {
    let (dir, other) = (authority(), authority());
    let mut a = DrivenNode::with(certified(dir.path(), "a"));
    let mut stranger = DrivenNode::with(certified(other.path(), "b"));
    refused(&mut stranger, &a.address());
    let error = refused(&mut a, &stranger.address()).to_string();
    assert!(error.contains("UnknownIssuer") || error.contains("BadSignature"), "{error}");
    // Trusts the authority, but has a certificate of another one.
    let mut mixed = certified(other.path(), "c");
    mixed.tls.as_mut().unwrap().ca = dir.path().join("ca.pem");
    let mut mixed = DrivenNode::with(mixed);
    refused(&mut mixed, &a.address());
    // Plain text to a node with TLS.
    let mut plain = DrivenNode::new("p");
    refused(&mut plain, &a.address());
    // TLS to a node with plain text.
    refused(&mut a, &plain.address());
    let mut b = DrivenNode::with(certified(dir.path(), "b"));
    b.ask_through(&mut a, 1);
    assert!(a.waiting.is_empty(), "{:?}", a.waiting);
}

#[test]
fn tls_without_a_certificate_of_the_client_gets_no_answer() {
    // In TLS 1.3 the client's handshake completes before the server refuses it.
    let dir = authority();
    let mut b = DrivenNode::with(certified(dir.path(), "b"));
    let root = rustls::pki_types::pem::PemObject::from_pem_file(dir.path().join("ca.pem")).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(root).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let to = b.peers.local_address();
    let server = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    let mut session = rustls::ClientConnection::new(Arc::new(config), server).unwrap();
    let mut socket = std::net::TcpStream::connect(to).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let mut stream = rustls::Stream::new(&mut session, &mut socket);
    let _ =
        io::Write::write_all(&mut stream, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    let got = io::Read::read(&mut stream, &mut [0; 100]);
    assert!(!matches!(got, Ok(1..)), "served {got:?}");
    assert!(!matches!(&got, Err(error) if error.kind() == io::ErrorKind::WouldBlock), "hangs");
    DrivenNode::with(certified(dir.path(), "a")).ask_through(&mut b, 1);
}

/// Certifies a node for this period.
pub(super) fn certify(dir: &Path, name: &str, begin: OffsetDateTime, end: OffsetDateTime) {
    let hosts = ["127.0.0.1".to_owned()];
    let (certificate, key) = certs::sign(dir, &name.parse().unwrap(), &hosts, begin, end).unwrap();
    let to = files(dir, name);
    std::fs::write(&to.certificate, certificate.pem()).unwrap();
    std::fs::write(&to.key, key.serialize_pem()).unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&to.key, private).unwrap();
}

#[test]
fn a_certificate_that_ran_out_or_is_not_yet_good_opens_nothing() {
    let dir = authority();
    let mut a = DrivenNode::with(certified(dir.path(), "a"));
    let now = OffsetDateTime::now_utc();
    let hour = time::Duration::hours(1);
    for (name, begin, end) in
        [("old", now - 2 * hour, now - hour), ("new", now + hour, now + 2 * hour)]
    {
        certify(dir.path(), name, begin, end);
        let mut bad = DrivenNode::with(certified(dir.path(), name));
        refused(&mut bad, &a.address());
        let error = refused(&mut a, &bad.address()).to_string();
        assert!(error.contains("expired") || error.contains("not valid yet"), "{error}");
        assert!(bad.waiting.is_empty() && a.waiting.is_empty());
    }
}

/// A certificate is checked when a connection starts. One that expires ends no connection, and a
/// node restarted with a new certificate is reached again.
#[test]
fn a_certificate_that_expires_during_a_run_ends_no_connection() {
    let dir = authority();
    let mut a = DrivenNode::with(certified(dir.path(), "a"));
    let now = OffsetDateTime::now_utc();
    let expires = now + time::Duration::seconds(3);
    certify(dir.path(), "b", now - time::Duration::hours(1), expires);
    let mut b = DrivenNode::with(certified(dir.path(), "b"));
    a.ask_through(&mut b, 1);
    // The times of certificates are whole seconds.
    while OffsetDateTime::now_utc() < expires + time::Duration::seconds(1) {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    a.ask_through(&mut b, 2);

    let mut c = DrivenNode::with(certified(dir.path(), "c"));
    let error = refused(&mut c, &b.address()).to_string();
    assert!(error.contains("expired"), "{error}");
    a.ask_through(&mut b, 3);

    drop(b);
    let now = OffsetDateTime::now_utc();
    certify(dir.path(), "b", now - time::Duration::hours(1), now + time::Duration::hours(1));
    let mut again = DrivenNode::with(certified(dir.path(), "b"));
    c.ask_through(&mut again, 4);
    a.ask_through(&mut again, 5);
}

#[test]
fn a_node_speaks_for_no_other_node() {
    let dir = authority();
    let mut b = DrivenNode::with(certified(dir.path(), "b"));
    let to = b.peers.local_address().to_string();
    runtime().block_on(async {
        let raw = RawPeer::with(certified(dir.path(), "raw"), &to);
        let mut calls = raw.calls().await.unwrap();
        let message = |from: &str| Message {
            version: VERSION,
            from: from.into(),
            incarnation: 1,
            body: Bytes::new(),
        };
        let refused = calls.tell(message("a")).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        calls.tell(message("raw")).await.unwrap();
    });
    assert_eq!(b.reported().0.as_str(), "raw");
}

#[test]
fn connections_of_one_node_share_its_limits() {
    let dir = authority();
    let mut few = certified(dir.path(), "b");
    few.limits.connections_per_node_max = 2;
    let mut b = DrivenNode::with(few);
    let to = b.peers.local_address().to_string();
    runtime().block_on(async {
        let message =
            || Message { version: VERSION, from: "raw".into(), incarnation: 1, body: Bytes::new() };
        let raws: Vec<_> =
            (0..3).map(|_| RawPeer::with(certified(dir.path(), "raw"), &to)).collect();
        for raw in &raws[..2] {
            raw.calls().await.unwrap().tell(message()).await.unwrap();
        }
        let third = match raws[2].calls().await {
            Ok(mut calls) => calls.tell(message()).await.map(|_| ()).map_err(PeerError::from),
            Err(error) => Err(error),
        };
        assert!(third.is_err());
        raws[0].calls().await.unwrap().tell(message()).await.unwrap();
    });
    let mut a = DrivenNode::with(certified(dir.path(), "a"));
    a.ask_through(&mut b, 1);
}

#[test]
fn a_node_does_not_start_with_files_that_are_not_its_own() {
    let (dir, other) = (authority(), authority());
    let start = |options| Peers::start(options).map(|_| ()).unwrap_err();
    let good = certified(dir.path(), "a");
    let mut both = good.clone();
    both.is_plaintext_allowed = true;
    assert!(matches!(start(both), StartError::Both));
    let mut renamed = good.clone();
    renamed.name = "b".parse().unwrap();
    let error = start(renamed);
    assert!(matches!(error, StartError::NotOwn { .. }), "{error}");
    let mut mixed = good.clone();
    mixed.tls.as_mut().unwrap().key = certified(other.path(), "a").tls.unwrap().key;
    let error = start(mixed);
    assert!(matches!(error, StartError::Tls(_)), "{error}");
    let mut missing = good.clone();
    missing.tls.as_mut().unwrap().ca = dir.path().join("no.pem");
    let error = start(missing);
    assert!(matches!(error, StartError::File { .. }), "{error}");
    let public = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&good.tls.as_ref().unwrap().key, public).unwrap();
    let error = start(good);
    assert!(matches!(error, StartError::File { .. }), "{error}");
    assert!(error.to_string().contains("644"), "{error}");
}
