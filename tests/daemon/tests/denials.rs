//! Requests of another node and its clients without the needed right are denied, and the node keeps
//! working.
//!
//! Most tests send requests to the state machine directly; those of certificates use real daemons.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::nodes::wait_for as wait_for_members;
use common::requested::{B, C, OWNER, RequestedNode, hello, is_denied};
use common::{Daemon, wait_for};
use farrow::{Error, Reach, Value};
use farrow_cluster::certs;
use farrow_cluster::protocol::Action;
use farrow_cluster::protocol::cluster::{Answer, PeerAction, Question};
use farrow_wire::{
    Extent, Listen, NamespaceSpec, PROTOCOL_VERSION, ReplyBody, RequestBody, Rule, SealItem,
    Setting, WireError, WireObjectId, WireTarget,
};

/// A user that the node lets in besides its own.
const THIEF: u32 = 65_534;

/// What only the node's own user may ask.
fn for_the_owner() -> Vec<RequestBody> {
    let spec = NamespaceSpec { name: "new".into(), ..NamespaceSpec::default() };
    let rule: Rule = "new:b:all".parse().unwrap();
    vec![
        RequestBody::CreateNamespace(spec),
        RequestBody::DropNamespace { name: "new".into() },
        RequestBody::SetRule(rule.clone()),
        RequestBody::RemoveRule { namespace: rule.namespace, node: rule.node },
        RequestBody::Forget { node: "b".into() },
        RequestBody::Set(vec![Setting::ClientBytes(Some(1 << 20))]),
        RequestBody::Shutdown,
    ]
}

#[test]
fn a_remote_client_may_not_rule_the_node_under_any_name() {
    let mut requested = RequestedNode::new();
    for uid in [OWNER, 0, 7] {
        let (remote_client, _) = requested.join_as(60, uid, Some(B));
        for body in for_the_owner() {
            let (answer, rest) = requested.all(remote_client, body.clone());
            assert!(is_denied(&answer.unwrap()), "{body:?} of user {uid}");
            assert!(!rest.contains(&Action::Stop), "{body:?} of user {uid}");
        }
        // The region is the right one, so that nothing else stands in the way.
        let region_uid = requested.state.home().uid().0;
        let stranger = requested.open(61, uid, Some(B));
        let (answer, rest) = requested.all(stranger, RequestBody::Handover { region_uid });
        assert!(is_denied(&answer.unwrap()) && rest.is_empty(), "handover to user {uid}");
        requested.assert_goes_on();
    }
    // The same words of the owner are obeyed: it is the remote client that was refused, not the
    // words.
    let (owner, _) = requested.join_as(70, OWNER, None);
    for body in for_the_owner() {
        let (answer, rest) = requested.all(owner, body.clone());
        match body {
            RequestBody::Forget { .. } => {
                assert!(matches!(answer, Some(Err(WireError::NoNode { .. }))), "{answer:?}");
            }
            ref body => assert_eq!(answer, Some(Ok(ReplyBody::Done)), "{body:?}"),
        }
        assert_eq!(rest.contains(&Action::Stop), matches!(body, RequestBody::Shutdown));
    }
}

#[test]
fn a_remote_client_seals_and_gives_back_only_what_it_was_granted() {
    let mut requested = RequestedNode::new();
    let (local, _) = requested.join_as(50, OWNER, None);
    let (other, _) = requested.join_as(51, OWNER, Some(C));
    let (remote_client, _) = requested.join_as(60, OWNER, Some(B));
    let own = requested.grant(remote_client, 8192);
    let sealed = requested.grant(local, 8192);
    let id = requested.seal(local, SealItem::bytes(sealed, 8192)).unwrap();
    let capacity = requested.state.stats(0).unwrap().capacity;
    let (of_local, of_other) = (requested.grant(local, 8192), requested.grant(other, 8192));
    let forged = [
        ("of a local client", of_local),
        ("of another node's client", of_other),
        // All of a block may be shared, as buffers of a table are that is put again.
        ("part of a sealed block", (sealed.0, 4096)),
        ("over the end of its own", (own.0, own.1 + 128)),
        ("before its own", (own.0.wrapping_sub(128), 256)),
        ("of nobody", (of_local.0.max(of_other.0) + (1 << 20), 4096)),
        ("the control section", (0, 4096)),
        ("beyond the end", (capacity * 2, 4096)),
        ("that wraps", (u64::MAX - 127, 256)),
        ("off the line", (own.0 + 1, 128)),
        ("empty", (own.0, 0)),
    ];
    for (what, span) in forged {
        let refused = requested.seal(remote_client, SealItem::bytes(span, 1));
        assert!(
            matches!(refused, Err(WireError::Invalid(_) | WireError::Denied(_))),
            "{what}: {refused:?}"
        );
        // As a further block, and as the place of a descriptor.
        let item = SealItem { kind: 3, extra: vec![span], ..SealItem::bytes((own.0, 4096), 1) };
        assert!(requested.seal(remote_client, item).is_err(), "further block {what}");
        let item = SealItem { kind: 3, descriptor: span, ..SealItem::bytes((own.0, 4096), 1) };
        if what != "over the end of its own" && what != "empty" && what != "off the line" {
            assert!(requested.seal(remote_client, item).is_err(), "descriptor {what}");
        }
        let granted = requested.state.stats(0).unwrap().granted;
        if what != "empty" {
            let release = RequestBody::Release { spans: vec![span] };
            let answer = requested.ask(remote_client, release);
            assert!(answer.is_err(), "given back: {what}: {answer:?}");
        }
        assert_eq!(requested.state.stats(0).unwrap().granted, granted, "{what}");
    }
    requested.assert_goes_on();
    // What was forged is still with those who have it, and the remote client can use its own.
    for (session, span) in [(local, of_local), (other, of_other), (remote_client, own)] {
        requested.seal(session, SealItem::bytes(span, 8192)).unwrap();
    }
    let targets = vec![WireTarget::Id(id)];
    assert_eq!(requested.change(local, RequestBody::Delete { targets }), Ok(()));
}

#[test]
fn a_remote_client_changes_nothing_in_another_namespace() {
    let mut requested = RequestedNode::new();
    let (owner, _) = requested.join_as(50, OWNER, None);
    let spec = NamespaceSpec { name: "one".into(), ..NamespaceSpec::default() };
    assert_eq!(requested.ask(owner, RequestBody::CreateNamespace(spec)), Ok(ReplyBody::Done));
    let local = requested.join_in("one", OWNER, None);
    let span = requested.grant(local, 4096);
    let item = SealItem { name: Some("x".into()), ..SealItem::bytes(span, 9) };
    let id = requested.seal(local, item).unwrap();
    for uid in [OWNER, 0] {
        let (remote_client, _) = requested.join_as(60, uid, Some(B));
        let by_id = vec![WireTarget::Id(id)];
        for body in [
            RequestBody::Delete { targets: by_id.clone() },
            RequestBody::Pin { targets: by_id.clone(), is_pinned: true },
        ] {
            let changed = requested.change(remote_client, body);
            assert!(matches!(changed, Err(WireError::Denied(_))), "{changed:?}");
        }
        let own_x = vec![WireTarget::Name("x".into())];
        let changed = requested.change(remote_client, RequestBody::Delete { targets: own_x });
        assert!(matches!(changed, Err(WireError::NotFound { .. })), "{changed:?}");
        let full = vec![WireTarget::Name("one\0x".into())];
        assert!(requested.change(remote_client, RequestBody::Delete { targets: full }).is_err());
        let names = vec!["one\0y".into()];
        assert!(requested.ask(remote_client, RequestBody::Reserve { names }).is_err());
    }
    let targets = vec![WireTarget::Name("x".into())];
    assert_eq!(requested.change(local, RequestBody::Delete { targets }), Ok(()));
    requested.assert_goes_on();
}

#[test]
fn who_may_not_write_in_a_namespace_gets_nothing_of_it() {
    let mut requested = RequestedNode::new();
    let (owner, _) = requested.join_as(50, OWNER, None);
    let writers = Some(vec![7]);
    let spec = NamespaceSpec { name: "one".into(), writers, ..NamespaceSpec::default() };
    assert_eq!(requested.ask(owner, RequestBody::CreateNamespace(spec)), Ok(ReplyBody::Done));
    let writer = requested.join_in("one", 7, Some(B));
    let span = requested.grant(writer, 4096);
    let id = requested.seal(writer, SealItem::bytes(span, 9)).unwrap();
    let targets = vec![WireTarget::Id(id)];
    let wants = [
        RequestBody::Grant { min: 128, want: 128, wait_ms: 0 },
        RequestBody::Reserve { names: vec!["n".into()] },
        RequestBody::Renew { names: vec!["n".into()], are_all: false },
        RequestBody::Seal { items: vec![SealItem::bytes(span, 9)] },
        RequestBody::EntryPages { count: 1 },
        RequestBody::Delete { targets: targets.clone() },
        RequestBody::Pin { targets: targets.clone(), is_pinned: true },
        RequestBody::Evict { bytes: 1 },
    ];
    // Root and the node's own user are other people on another machine.
    for uid in [0, OWNER, 8] {
        let remote_client = requested.join_in("one", uid, Some(B));
        for body in wants.clone() {
            let answer = requested.ask(remote_client, body.clone());
            assert!(is_denied(&answer), "{body:?} of user {uid}: {answer:?}");
        }
    }
    assert_eq!(requested.change(writer, RequestBody::Delete { targets }), Ok(()));
    requested.assert_goes_on();
}

#[test]
fn forged_ids_lead_nowhere() {
    let mut requested = RequestedNode::new();
    let (local, _) = requested.join_as(50, OWNER, None);
    let (remote_client, _) = requested.join_as(60, OWNER, Some(B));
    let span = requested.grant(local, 4096);
    let item = SealItem { is_held_by_creator: true, ..SealItem::bytes(span, 9) };
    let WireObjectId { hi, lo } = requested.seal(local, item).unwrap();
    let forged = [(hi, lo ^ (1 << 32)), (hi, lo + 1), (hi ^ 1, lo), (0, 0), (u64::MAX, u64::MAX)];
    for (hi, lo) in forged {
        let targets = vec![WireTarget::Id(WireObjectId { hi, lo })];
        for body in [
            RequestBody::Delete { targets: targets.clone() },
            RequestBody::Pin { targets: targets.clone(), is_pinned: true },
        ] {
            let changed = requested.change(remote_client, body);
            assert!(matches!(changed, Err(WireError::NotFound { .. })), "{hi:x} {lo:x}");
        }
        let answer =
            requested.ask(remote_client, RequestBody::Restore { id: WireObjectId { hi, lo } });
        assert!(matches!(answer, Err(WireError::NotFound { .. })), "{hi:x} {lo:x}: {answer:?}");
    }
    // To say for another that it holds an object takes nothing from it.
    let ids =
        [(hi, lo), (hi, lo + 1), (u64::MAX, 1)].map(|(hi, lo)| WireObjectId { hi, lo }).to_vec();
    assert_eq!(requested.ask(remote_client, RequestBody::Confirm { ids }), Ok(ReplyBody::Done));
    assert_eq!(requested.ask(remote_client, RequestBody::ConfirmEarlier), Ok(ReplyBody::Done));
    let targets = vec![WireTarget::Id(WireObjectId { hi, lo })];
    assert_eq!(requested.change(local, RequestBody::Delete { targets }), Ok(()));
    assert!(requested.state.stats(0).unwrap().retiring > 0, "its creator has not let go of it");
    let ids = vec![WireObjectId { hi, lo }];
    assert_eq!(requested.ask(local, RequestBody::Confirm { ids }), Ok(ReplyBody::Done));
    requested.state.tick(requested.now_ms, &mut Vec::new());
    assert_eq!(requested.state.stats(0).unwrap().retiring, 0);
    requested.assert_goes_on();
}

/// The nonce of a place lies in memory that all clients can read, and a node says of its clients
/// what process they are: so a place of this node's own client, with the rights of its user, could
/// be taken over from another node.
#[test]
fn a_place_is_given_back_only_to_a_client_of_the_same_node() {
    let mut requested = RequestedNode::new();
    for (whose, thieves) in
        [(None, vec![Some(B), Some(C)]), (Some(B), vec![Some(C), None]), (Some(C), vec![Some(B)])]
    {
        let (session, welcome) = requested.join_as(50, OWNER, whose);
        let retained = requested.grant(session, 4096);
        // Nor are the events of its namespace told to others.
        for listener in thieves.iter().copied().chain([whose]) {
            let session = requested.open(50, OWNER, listener);
            let listen = Listen {
                version: PROTOCOL_VERSION,
                region_uid: welcome.region_uid,
                slot: welcome.slot,
                nonce: welcome.nonce,
                node: String::new(),
            };
            let answer = requested.ask(session, RequestBody::Listen(listen));
            assert_eq!(is_denied(&answer), listener != whose, "{listener:?}: {answer:?}");
            requested.state.closed(session, true, requested.now_ms);
        }
        assert!(requested.state.closed(session, true, requested.now_ms).is_some());
        let resume = Some((welcome.region_uid, welcome.slot, welcome.nonce));
        for thief in thieves {
            let session = requested.open(50, OWNER, thief);
            let answer = requested.ask(session, hello("", resume, ""));
            assert!(is_denied(&answer), "{thief:?} as {whose:?}: {answer:?}");
            let answer = requested.ask(session, RequestBody::Shutdown);
            assert!(matches!(answer, Err(WireError::Invalid(_))), "{answer:?}");
            requested.state.closed(session, true, requested.now_ms);
        }
        let session = requested.open(50, OWNER, whose);
        let answer = requested.ask(session, hello("", resume, ""));
        let Ok(ReplyBody::Welcome(again)) = answer else { panic!("{answer:?}") };
        assert_eq!((again.slot, again.grants), (welcome.slot, vec![retained]));
        requested.state.closed(session, false, requested.now_ms);
    }
    requested.assert_goes_on();
}

/// A daemon in a container sees no process of its clients: all have the number 0. With the nonce of
/// another user's place, which lies in memory that all clients can read, a user had that user's rights
/// and was the node's owner.
#[test]
fn a_place_is_given_back_only_to_its_user() {
    let mut requested = RequestedNode::new();
    requested.state.allow_users(&[THIEF]);
    for node in [None, Some(B)] {
        let (session, welcome) = requested.join_as(0, OWNER, node);
        let retained = requested.grant(session, 4096);
        let listen = Listen {
            version: PROTOCOL_VERSION,
            region_uid: welcome.region_uid,
            slot: welcome.slot,
            nonce: welcome.nonce,
            node: String::new(),
        };
        for (uid, is_let_in) in [(THIEF, false), (OWNER, true)] {
            let listener = requested.open(0, uid, node);
            let answer = requested.ask(listener, RequestBody::Listen(listen.clone()));
            assert_eq!(answer.is_ok(), is_let_in, "user {uid}: {answer:?}");
            requested.state.closed(listener, true, requested.now_ms);
        }
        assert!(requested.state.closed(session, true, requested.now_ms).is_some());
        let resume = Some((welcome.region_uid, welcome.slot, welcome.nonce));
        let thief = requested.open(0, THIEF, node);
        let answer = requested.ask(thief, hello("", resume, ""));
        assert!(is_denied(&answer), "{answer:?}");
        requested.state.closed(thief, true, requested.now_ms);
        let session = requested.open(0, OWNER, node);
        let answer = requested.ask(session, hello("", resume, ""));
        let Ok(ReplyBody::Welcome(again)) = answer else { panic!("{answer:?}") };
        assert_eq!((again.slot, again.grants), (welcome.slot, vec![retained]));
        requested.state.closed(session, false, requested.now_ms);
    }
    requested.assert_goes_on();
}

/// The node reads objects of a third one with its own rights, so a client of another node could read
/// what its own node may not.
#[test]
fn objects_of_a_third_node_are_not_brought_for_a_remote_client() {
    let mut requested = RequestedNode::founded();
    let target = WireTarget::Name("x".into());
    let wants = [
        RequestBody::Fetch { target: target.clone(), extent: Extent::Whole, wait_ms: 0 },
        RequestBody::Fetch { target: target.clone(), extent: Extent::Metadata, wait_ms: 0 },
        RequestBody::ListAt { node: "c".into(), prefix: String::new(), from: 0 },
        RequestBody::FindAt { node: "c".into(), targets: vec![target] },
    ];
    let (local, _) = requested.join_as(50, OWNER, None);
    let (remote_client, _) = requested.join_as(60, OWNER, Some(B));
    for body in wants {
        let (answer, _) = requested.all(local, body.clone());
        assert!(!answer.is_some_and(|answer| is_denied(&answer)), "{body:?}");
        let answer = requested.ask(remote_client, body.clone());
        assert!(is_denied(&answer), "{body:?}: {answer:?}");
    }
    requested.assert_goes_on();
}

/// The ids are those of objects of all namespaces, and its node may have no right in most.
#[test]
fn a_remote_client_gets_no_ids_of_held_objects() {
    let mut requested = RequestedNode::founded();
    let (local, _) = requested.join_as(50, OWNER, None);
    let (remote_client, _) = requested.join_as(60, OWNER, Some(B));
    for (session, held_max, is_denied_here) in
        [(local, 1, false), (remote_client, 0, false), (remote_client, 1, true)]
    {
        let answer = requested.ask(session, RequestBody::Overview { cells: 1, held_max });
        assert_eq!(is_denied(&answer), is_denied_here, "{held_max}: {answer:?}");
    }
    requested.assert_goes_on();
}

/// A remote client has come through its node to this one; a hello for a third was carried by
/// nobody, was never answered and retained its session.
#[test]
fn a_remote_client_is_not_carried_on_to_a_third_node() {
    let mut requested = RequestedNode::founded();
    for node in ["b", "nowhere"] {
        let session = requested.open(60, OWNER, Some(B));
        let (answer, rest) = requested.all(session, hello("", None, node));
        assert!(is_denied(&answer.expect("an answer")), "{node}");
        assert!(rest.contains(&Action::Close { session }), "{rest:?}");
    }
    requested.assert_goes_on();
}

#[test]
fn a_node_that_is_no_member_learns_it_and_its_messages_change_nothing() {
    let mut requested = RequestedNode::founded();
    for stranger in ["b", "a", ""] {
        assert!(!requested.state.is_peer(stranger), "{stranger}");
    }
    let questions = [
        Question::Watch { pid: 1, start_time: 1 },
        Question::Clean { region_uid: requested.state.home().uid().0, spans: vec![(0, 4096)] },
        Question::Await { names: vec!["n".into()] },
        Question::Sealed { names: vec!["n".into()] },
    ];
    for from in [("b", 0), ("b", 5), ("a", 5)] {
        for question in &questions {
            let body = question_bytes(question);
            let mut out = Vec::new();
            requested.state.on_request(9, from.into(), &body, requested.now_ms, &mut out);
            let [Action::Peer(PeerAction::Answer { token: 9, body })] = &out[..] else {
                panic!("{from:?} {question:?}: {out:?}")
            };
            let answer: Answer = postcard::from_bytes(body).unwrap();
            assert!(matches!(answer, Answer::No(_)), "{from:?} {question:?}: {answer:?}");
        }
        for noise in [&b""[..], b"\xff\xff\xff\xff", &[7; 300]] {
            let mut out = Vec::new();
            requested.state.on_request(9, from.into(), noise, requested.now_ms, &mut out);
            assert_eq!(out.len(), 1, "{out:?}");
            out.clear();
            requested.state.on_message(from.into(), noise, requested.now_ms, &mut out);
            assert_eq!(out, [], "{from:?}");
        }
        // An answer to what was never asked.
        let mut out = Vec::new();
        requested.state.on_response(77, Ok(vec![1]), requested.now_ms, &mut out);
        assert_eq!(out, []);
    }
    requested.assert_goes_on();
}

fn question_bytes(question: &Question) -> Vec<u8> {
    postcard::to_allocvec(question).unwrap()
}

const DAY: Duration = Duration::from_secs(86_400);

fn authority(names: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    certs::init(dir.path(), 30 * DAY).unwrap();
    for name in names {
        certs::issue(dir.path(), name, &["127.0.0.1".into()], DAY).unwrap();
    }
    dir
}

fn address() -> String {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().to_string()
}

fn certified(name: &str, certs: &Path, listen: &str, join: &str) -> Daemon {
    let certs = certs.to_str().unwrap();
    let words = ["--name", name, "--listen", listen, "--join", join, "--certs", certs];
    Daemon::start("16MiB", &[&words[..], &["--lease-ms", "1000", "--no-prepare"]].concat())
}

#[test]
fn who_has_a_certificate_of_another_authority_does_not_join_and_the_others_go_on() {
    let (ours, theirs) = (authority(&["a", "b"]), authority(&["c", "b"]));
    let (at_a, at_b, at_c) = (address(), address(), address());
    let a = certified("a", ours.path(), &at_a, &at_b);
    let b = certified("b", ours.path(), &at_b, &at_a);
    let (on_a, on_b) = (a.client(), b.client());
    for client in [&on_a, &on_b] {
        wait_for_members(client, |members| {
            let live = members.nodes.iter().filter(|node| node.reach == Reach::Live);
            live.filter(|node| !node.fabric.is_empty()).count() == 2 && members.has_lease
        });
    }
    let epoch = on_a.members().unwrap().epoch;
    // It knows where they are, and one of them by a name that its authority gave to another.
    let c = certified("c", theirs.path(), &at_c, &at_a);
    let on_c = c.client();
    // While it tries the others are one store; a lease is 1 s, so it tries several times.
    for round in 0..30_u8 {
        let name = format!("n{round}");
        on_b.at("a").unwrap().put(&Value::Bytes(&[round; 99]), Some(&name)).unwrap();
        let object = on_a.get(&name.as_str().into(), Duration::ZERO).unwrap();
        assert_eq!(&object.view().unwrap()[..], &[round; 99]);
        assert!(on_c.get(&name.as_str().into(), Duration::ZERO).is_err());
        std::thread::sleep(Duration::from_millis(100));
    }
    let members = on_a.members().unwrap();
    assert_eq!(
        (members.epoch, members.nodes.len(), members.has_lease),
        (epoch, 2, true),
        "{members:?}"
    );
    let alone = on_c.members().unwrap();
    assert!(alone.find("a").is_none() && alone.find("b").is_none(), "{alone:?}");
    assert!(matches!(on_c.at("a"), Err(Error::InvalidArgument(_))));
    assert!(!alone.has_lease, "it is no cluster by itself: {alone:?}");
}

#[test]
fn a_daemon_does_not_start_with_the_certificate_of_another_node() {
    let dir = authority(&["a", "b"]);
    let mixed = tempfile::tempdir().unwrap();
    for (from, to) in [("ca.pem", "ca.pem"), ("a.pem", "b.pem"), ("a.key", "b.key")] {
        std::fs::copy(dir.path().join(from), mixed.path().join(to)).unwrap();
    }
    let sockets = tempfile::tempdir_in("/dev/shm").unwrap();
    let start = |certs: &Path| {
        Command::new(common::FARROWD)
            .arg("--socket")
            .arg(sockets.path().join("n.sock"))
            .arg("--memory-dir")
            .arg(sockets.path())
            .args(["--memory", "8MiB", "--name", "b", "--listen", "127.0.0.1:0", "--certs"])
            .arg(certs)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let output = start(mixed.path()).wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && words.contains("b.pem"), "{words}");
    // With its own it does.
    let mut good = start(dir.path());
    let socket = sockets.path().join("n.sock");
    let served = wait_for("the node", || common::client_at(&socket).stats().ok());
    good.kill().unwrap();
    good.wait().unwrap();
    assert!(served.is_some());
}
