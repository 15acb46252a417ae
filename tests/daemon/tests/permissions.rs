//! Each request of a remote client without the right that it needs is denied, with the node, the
//! namespace and the right in the error.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::fmt::Debug;
use std::time::Duration;

use common::nodes::DaemonNodes;
use common::requested::{B, OWNER, RequestedNode, hello};
use farrow::{Client, Error, Rights, Rule, Value};
use farrow_cluster::protocol::SessionId;
use farrow_wire::{
    Extent, NamespaceSpec, NotPermitted, ReplyBody, RequestBody, SealItem, SyncAsk, Watch,
    WireError, WireObjectId, WireTarget,
};

const NOW: Duration = Duration::ZERO;
/// Nothing is killed for long: on a busy machine a live node is not to be thought lost.
const CALM: &[&str] = &["--lease-ms", "20000"];

/// Each request that needs a right, and its word.
fn requests(id: WireObjectId) -> Vec<(&'static str, RequestBody)> {
    let targets = || vec![WireTarget::Id(id)];
    let sync = |ask| RequestBody::Sync { name: "s".into(), ask };
    let watch = Watch { after: 0, prefix: String::new(), kinds: u8::MAX, timeout_ms: 0 };
    vec![
        ("write", RequestBody::Grant { min: 128, want: 128, wait_ms: 0 }),
        ("write", RequestBody::EntryPages { count: 1 }),
        ("write", RequestBody::Reserve { names: vec!["reserved".into()] }),
        ("write", RequestBody::Renew { names: vec!["renewed".into()], are_all: false }),
        ("write", RequestBody::ReserveObjects { objects: 1, wait_ms: 0 }),
        ("write", RequestBody::ReservedObjects { objects: 1 }),
        ("write", RequestBody::Seal { items: vec![SealItem::bytes((0, 128), 1)] }),
        ("write", RequestBody::Pin { targets: targets(), is_pinned: true }),
        ("write", sync(SyncAsk::Arrive { parties: 1, timeout_ms: 0 })),
        ("write", sync(SyncAsk::SetFlags { set: 1, clear: 0 })),
        ("read", sync(SyncAsk::WaitFlags { mask: 0, timeout_ms: 0 })),
        ("read", RequestBody::Wait { targets: targets(), count: 1, timeout_ms: 0 }),
        ("read", RequestBody::Restore { id }),
        ("read", RequestBody::FindLost { name: "x".into() }),
        ("read", RequestBody::Watch(watch)),
        ("delete", RequestBody::Pin { targets: targets(), is_pinned: false }),
        ("delete", RequestBody::Evict { bytes: 1 }),
        ("delete", RequestBody::Delete { targets: targets() }),
    ]
}

fn rule(text: &str) -> Rule {
    text.parse().unwrap()
}

/// What is missing, if that is why not.
fn missing<T: Debug>(answer: &Result<T, WireError>) -> Option<&str> {
    match answer {
        Err(WireError::NotPermitted(NotPermitted { right, .. })) => Some(right),
        _ => None,
    }
}

#[test]
fn each_request_is_denied_without_its_right_and_served_with_it() {
    for bits in 0..8_u8 {
        let rights = Rights::try_from(bits).unwrap();
        let mut requested = RequestedNode::new();
        let (local, _) = requested.join_as(50, OWNER, None);
        let span = requested.grant(local, 4096);
        let item = SealItem { name: Some("x".into()), ..SealItem::bytes(span, 9) };
        let id = requested.seal(local, item).unwrap();
        // It is let in, and then the rules change.
        let (remote_client, _) = requested.join_as(60, OWNER, Some(B));
        let retained = requested.grant(remote_client, 4096);
        requested.state.set_rules(vec![Rule { rights, ..rule(":*:all") }]).unwrap();
        for (right, body) in requests(id) {
            let what = format!("{body:?} with {rights}");
            let answer = requested.ask(remote_client, body.clone());
            let is_granted = rights.has(right.parse().unwrap());
            assert_eq!(missing(&answer), (!is_granted).then_some(right), "{what}: {answer:?}");
            // The same words of a client of the node itself are heard.
            if !is_granted && !matches!(body, RequestBody::Delete { .. } | RequestBody::Seal { .. })
            {
                let answer = requested.ask(local, body);
                assert!(answer.is_ok(), "{what}: {answer:?}");
            }
        }
        for body in [
            RequestBody::HoldBlock,
            RequestBody::Stats,
            RequestBody::Overview { cells: 1, held_max: 0 },
        ] {
            let answer = requested.ask(remote_client, body);
            assert_eq!(missing(&answer), rights.is_none().then_some("read"), "{answer:?}");
        }
        // A node brings objects of a third one for its own clients only.
        let fetch =
            RequestBody::Fetch { target: WireTarget::Id(id), extent: Extent::Whole, wait_ms: 0 };
        // It lists the ids of held objects for them too: they are of all namespaces.
        for body in [fetch, RequestBody::Overview { cells: 1, held_max: 1 }] {
            let answer = requested.ask(remote_client, body);
            assert!(matches!(answer, Err(WireError::Denied(_))), "{rights}: {answer:?}");
        }
        // What it has it can give back whatever the rules are.
        for body in [
            RequestBody::Release { spans: vec![retained] },
            RequestBody::Renew { names: Vec::new(), are_all: true },
            RequestBody::Unreserve { names: Vec::new() },
            RequestBody::ReservedObjects { objects: 0 },
            RequestBody::UnreserveObjects { objects: 1 },
            RequestBody::Confirm { ids: vec![id] },
            RequestBody::Reclaim,
            RequestBody::Goodbye,
        ] {
            let answer = requested.ask(remote_client, body.clone());
            assert!(answer.is_ok(), "{body:?} with {rights}: {answer:?}");
        }
        // Who comes now is let in with any right.
        let session = requested.open(61, OWNER, Some(B));
        let answer = requested.ask(session, hello("", None, ""));
        assert_eq!(missing(&answer), rights.is_none().then_some("read"), "{answer:?}");
        requested.assert_goes_on();
    }
}

/// Regression test: a client of a node with the right to write, and not to delete, deleted an object
/// of somebody else by a put in its place.
#[test]
fn a_replacement_needs_the_right_to_delete() {
    let mut requested = RequestedNode::new();
    let (local, _) = requested.join_as(50, OWNER, None);
    let span = requested.grant(local, 4096);
    let item = SealItem { name: Some("x".into()), ..SealItem::bytes(span, 9) };
    let old = requested.seal(local, item).unwrap();
    let (remote_client, _) = requested.join_as(60, OWNER, Some(B));
    let (start, _) = requested.grant(remote_client, 4096);
    let replace = |requested: &mut RequestedNode, name: &str, line: u64| {
        let name = Some(name.to_owned());
        let bytes = SealItem::bytes((start + 128 * line, 128), 9);
        requested.seal(remote_client, SealItem { name, is_replacing: true, ..bytes })
    };
    requested.state.set_rules(vec![rule(":*:read,write")]).unwrap();
    assert_eq!(missing(&replace(&mut requested, "x", 0)), Some("delete"));
    assert!(replace(&mut requested, "y", 1).is_ok(), "a name that no object has");
    let targets = vec![WireTarget::Id(old)];
    let there = RequestBody::Wait { targets, count: 1, timeout_ms: 0 };
    assert_eq!(requested.ask(local, there), Ok(ReplyBody::Ready(vec![true])));
    requested.state.set_rules(vec![rule(":*:write,delete")]).unwrap();
    assert!(replace(&mut requested, "x", 0).is_ok());
    requested.assert_goes_on();
}

fn namespace(requested: &mut RequestedNode, owner: SessionId, name: &str) {
    let spec = NamespaceSpec { name: name.into(), ..NamespaceSpec::default() };
    assert_eq!(requested.ask(owner, RequestBody::CreateNamespace(spec)), Ok(ReplyBody::Done));
}

#[test]
fn rules_are_for_a_namespace_and_a_place_is_not_come_back_to_without_one() {
    let mut requested = RequestedNode::new();
    let (owner, _) = requested.join_as(50, OWNER, None);
    namespace(&mut requested, owner, "open");
    namespace(&mut requested, owner, "shut");
    requested.state.set_rules(vec![rule("*:*:none"), rule("open:*:read,write")]).unwrap();
    for name in ["", "shut"] {
        let session = requested.open(60, OWNER, Some(B));
        let answer = requested.ask(session, hello(name, None, ""));
        let Err(WireError::NotPermitted(NotPermitted { namespace, right, .. })) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!((&*namespace, &*right), (name, "read"));
    }
    let session = requested.open(60, OWNER, Some(B));
    let Ok(ReplyBody::Welcome(place)) = requested.ask(session, hello("open", None, "")) else {
        panic!("not let in")
    };
    // An id leads into other namespaces: not to have their objects read back.
    let theirs = requested.join_in("shut", OWNER, None);
    let span = requested.grant(theirs, 4096);
    let id = requested.seal(theirs, SealItem::bytes(span, 9)).unwrap();
    let answer = requested.ask(session, RequestBody::Restore { id });
    let Err(WireError::NotPermitted(NotPermitted { namespace, .. })) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(namespace, "shut");
    // Its connection ends, and while it is away the rules change.
    assert!(requested.state.closed(session, true, requested.now_ms).is_some());
    requested.state.set_rules(vec![rule("open:*:none")]).unwrap();
    let resume = Some((place.region_uid, place.slot, place.nonce));
    let session = requested.open(60, OWNER, Some(B));
    let answer = requested.ask(session, hello("", resume, ""));
    assert_eq!(missing(&answer), Some("read"), "{answer:?}");
    requested.state.set_rules(vec![rule("open:*:read")]).unwrap();
    let session = requested.open(60, OWNER, Some(B));
    let answer = requested.ask(session, hello("", resume, ""));
    assert!(matches!(answer, Ok(ReplyBody::Welcome(_))), "{answer:?}");
    let answer = requested.ask(session, RequestBody::Grant { min: 1, want: 1, wait_ms: 0 });
    assert_eq!(missing(&answer), Some("write"));
    requested.assert_goes_on();
}

fn denied<T: Debug>(result: Result<T, Error>, what: &str, wanted: &str) {
    match result {
        Err(Error::NotPermitted(NotPermitted { node, namespace, right })) => {
            assert_eq!((&*node, &*namespace, &*right), ("b", "", wanted), "{what}");
        }
        other => panic!("{what}: {other:?}"),
    }
}

/// Names of which some are retained, or registered, by each node.
fn names(of: &str) -> Vec<String> {
    (0..64).map(|number| format!("{of}{number}")).collect()
}

/// How many were denied for want of this right; nothing else was wrong.
fn count_denied(results: impl Iterator<Item = Result<(), Error>>, wanted: &str) -> usize {
    let is_denied = |result| match result {
        Ok(()) => false,
        Err(Error::NotPermitted(NotPermitted { right, .. })) if right == wanted => true,
        Err(error) => panic!("{error}"),
    };
    results.map(is_denied).filter(|is_denied| *is_denied).count()
}

fn flags_denied(on_b: &Client, of: &str) -> usize {
    let set = names(of);
    count_denied(set.iter().map(|name| on_b.set_flags(name, 1, 0).map(drop)), "write")
}

#[test]
fn real_nodes_let_others_do_what_was_granted_and_remember_it() {
    let mut nodes = DaemonNodes::start(2, "64MiB", CALM);
    let (on_a, on_b) = (nodes.client(0), nodes.client(1));
    on_a.put(&Value::Bytes(b"of a"), Some("old")).unwrap();
    let at_a = on_b.at("a").unwrap();
    let put = |name: &str| at_a.put(&Value::Bytes(b"x"), Some(name)).map(drop);
    put("mine").unwrap();
    // What was granted ahead of need is used up first, so that each put has to ask.
    let big = vec![7_u8; 4 << 20];

    on_a.permit(&rule(":b:read,delete")).unwrap();
    denied(put("new"), "put with a name", "write");
    denied(at_a.put(&Value::Bytes(&big), None), "put of much", "write");
    denied(at_a.create(8 << 20, None).map(drop), "create", "write");
    denied(at_a.create(8, Some("made")).map(drop), "create with a name", "write");
    denied(on_b.pin(&["old".into()]), "pin", "write");
    on_b.unpin(&["old".into()]).unwrap();
    // Names and flags are with both nodes: those of a are denied, those of b are not.
    let flags = flags_denied(&on_b, "f");
    assert!((1..64).contains(&flags), "{flags} of 64");
    let own = names("n");
    let own_put = |name: &String| on_b.put(&Value::Bytes(b"x"), Some(name)).map(drop);
    let count = count_denied(own.iter().map(own_put), "write");
    assert!((1..64).contains(&count), "{count} of 64");

    on_a.permit(&rule(":b:read,write")).unwrap();
    put("new").unwrap();
    assert_eq!(flags_denied(&on_b, "f"), 0);
    assert_eq!(count_denied(names("m").iter().map(own_put), "write"), 0);
    on_b.pin(&["old".into()]).unwrap();
    denied(on_b.unpin(&["old".into()]), "unpin", "delete");
    denied(on_b.delete(&["old".into()]), "delete", "delete");
    denied(at_a.evict(1), "evict", "delete");

    // Without read: no word of what is sealed, and no answer for flags.
    on_a.permit(&rule(":b:write,delete")).unwrap();
    let flags = names("f");
    let waits = flags.iter().map(|name| on_b.wait_flags(name, 1, NOW).map(drop));
    let count = count_denied(waits, "read");
    assert!((1..64).contains(&count), "{count} of 64");

    // Nothing at all: who has no place yet gets none.
    on_a.permit(&rule(":b:none")).unwrap();
    denied(at_a.stats().map(drop), "stats", "read");
    let fresh = nodes.client(1);
    denied(fresh.at("a").map(drop), "a place", "read");
    denied(fresh.get(&"old".into(), NOW).map(drop), "get", "read");
    assert!(matches!(fresh.get(&"none".into(), NOW), Err(Error::NotFound { .. })));
    assert!(fresh.list_all("", &Default::default()).is_ok());
    assert!(on_a.get(&"old".into(), NOW).is_ok());

    // The next daemon knows it too.
    nodes.daemons[0].kill9();
    nodes.daemons[0].restart();
    nodes.settle(2);
    let (on_a, on_b) = (nodes.client(0), nodes.client(1));
    assert_eq!(on_a.permissions().unwrap(), [rule(":b:none")]);
    denied(on_b.at("a").map(drop), "a place", "read");
    on_a.drop_permission("", "b").unwrap();
    on_b.delete(&["old".into()]).unwrap();
    assert!(matches!(on_a.drop_permission("", "b"), Err(Error::NotFound { .. })));
    assert!(matches!(
        on_b.at("a").unwrap().permit(&rule(":b:all")),
        Err(Error::PermissionDenied(_))
    ));
}

#[test]
fn rules_of_the_command_line_hold_from_the_start() {
    let rules = ["--permit", "*:*:none", "--permit", "team:a:read", "--permit", "team:b:all"];
    let nodes = DaemonNodes::start(2, "64MiB", &[CALM, &rules].concat());
    let on_a = nodes.client(0);
    let rules: Vec<Rule> = vec![rule("*:*:none"), rule("team:a:read"), rule("team:b:all")];
    assert_eq!(on_a.permissions().unwrap(), rules);
    denied_at(&on_a, "b");
    denied_at(&nodes.client(1), "a");
}

fn denied_at(client: &Client, node: &str) {
    assert!(matches!(client.at(node), Err(Error::NotPermitted(_))), "{node}");
}
