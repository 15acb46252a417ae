//! `--memory 16M`, names of 100 bytes, put no. 256: `InvalidArgument: name space is full`,
//! permanently, although all objects were evictable, and with `wait=` too. A full table is now a
//! lack of room like any other: the error has the numbers, objects are evicted, waiting requests
//! are served when there is room, and nothing is evicted for a request that then fails. Only the
//! state machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use common::requested::{Answered, OWNER, RequestedNode, hello};
use farrow_cluster::protocol::{Action, SessionId};
use farrow_memory::Length;
use farrow_store::{Lru, RegionOptions};
use farrow_wire::{
    NamespaceSpec, NoRoom, Purpose, ReplyBody, RequestBody, RoomAsk, SealItem, WireError,
    WireTarget,
};

const PAGE: u64 = 4096;
const HEAP: u64 = 1 << 20;

fn small() -> RegionOptions {
    let mut options = RegionOptions::for_capacity(Length(HEAP));
    (options.objects_max, options.clients_max, options.grants_max) = (16, 3, 8);
    (options.hold_blocks_max, options.client_objects_max, options.namespaces_max) = (5, 84, 2);
    options.name_bytes = Length(16 * 32);
    options
}

fn node() -> (RequestedNode, SessionId) {
    let mut node = RequestedNode::over(&small());
    let (session, _) = node.join_as(1, OWNER, None);
    (node, session)
}

/// Memory of `sizes` for a number of objects, with names of these lengths in bytes.
fn room(sizes: &[u64], objects: u32, names: &[u32], wait_ms: u64) -> RequestBody {
    let purpose = Some(Purpose { objects, names: names.to_vec() });
    RequestBody::Room(RoomAsk { sizes: sizes.to_vec(), want: 0, wait_ms, purpose })
}

fn too_many(answer: Answered, what: &str, max: u64) {
    assert_eq!(answer, Err(WireError::TooMany { what: what.to_owned(), max }));
}

/// An object of a page with this name.
fn put(
    node: &mut RequestedNode,
    session: SessionId,
    name: Option<String>,
) -> Result<(), WireError> {
    let span = match node.ask(session, room(&[PAGE], 0, &[], 0))? {
        ReplyBody::Room(spans) => spans[0],
        other => panic!("{other:?}"),
    };
    let sealed = node.seal(session, SealItem { name, ..SealItem::bytes(span, PAGE) });
    if sealed.is_err() {
        node.ask(session, RequestBody::Release { spans: vec![span] })?;
    }
    sealed.map(drop)
}

fn fill(node: &mut RequestedNode, session: SessionId) {
    for number in 0..16 {
        put(node, session, Some(format!("o{number}"))).unwrap();
    }
}

fn delete(node: &mut RequestedNode, session: SessionId, name: &str) -> Vec<Action> {
    let targets = vec![WireTarget::Name(name.to_owned())];
    node.all(session, RequestBody::Delete { targets }).1
}

/// The answer of a request that waited, among what came of another one.
fn answer_in(actions: Vec<Action>, session: SessionId) -> Answered {
    let mut answers = actions.into_iter().filter_map(|action| match action {
        Action::Send { session: to, reply, .. } if to == session => Some(reply.body),
        _ => None,
    });
    answers.next().expect("an answer to who waited")
}

fn objects(node: &RequestedNode) -> u32 {
    node.state.home().objects()
}

#[test]
fn clients() {
    let (mut node, first) = node();
    for pid in 2..4 {
        node.join_as(pid, OWNER, None);
    }
    let late = node.open(9, OWNER, None);
    too_many(node.ask(late, hello("", None, "")), "clients", 3);
    node.state.closed(first, false, 0);
    node.join_as(10, OWNER, None);
}

#[test]
fn grants() {
    let (mut node, session) = node();
    let (other, _) = node.join_as(2, OWNER, None);
    node.state.set_eviction_policy(Box::new(Lru));
    for number in 0..4 {
        put(&mut node, session, Some(format!("o{number}"))).unwrap();
    }
    let mut held = Vec::new();
    for _ in 0..8 {
        match node.ask(session, room(&[PAGE], 1, &[], 0)).unwrap() {
            ReplyBody::Room(spans) => held.push(spans[0]),
            other => panic!("{other:?}"),
        }
    }
    // There is memory, but no record: nobody leaves for it.
    too_many(node.ask(other, room(&[PAGE], 1, &[], 0)), "grants", 8);
    too_many(node.ask(other, room(&[HEAP - 12 * PAGE], 1, &[], 0)), "grants", 8);
    too_many(node.ask(other, room(&[PAGE; 9], 9, &[], 0)), "grants", 8);
    assert_eq!(objects(&node), 4);
    let (waits, _) = node.all(other, room(&[PAGE], 1, &[], 1000));
    assert_eq!(waits, None);
    let sealed = SealItem { name: Some("last".into()), ..SealItem::bytes(held[0], PAGE) };
    let (_, actions) = node.all(session, RequestBody::Seal { items: vec![sealed] });
    assert!(matches!(answer_in(actions, other), Ok(ReplyBody::Room(_))));
}

#[test]
fn hold_blocks() {
    let (mut node, session) = node();
    let mut blocks = 0;
    let refused = loop {
        match node.ask(session, RequestBody::HoldBlock) {
            Ok(_) => blocks += 1,
            refused => break refused,
        }
    };
    // One came with the welcome, and two stay for the clients that may still join.
    assert_eq!(blocks, 2);
    too_many(refused, "hold blocks", 5);
    for pid in [2, 3] {
        node.join_as(pid, OWNER, None);
    }
}

#[test]
fn entry_pages() {
    let (mut node, session) = node();
    let pages = std::iter::repeat_with(|| node.ask(session, RequestBody::EntryPages { count: 1 }));
    let refused = pages.take(100).find(Result::is_err).unwrap();
    assert!(matches!(&refused, Err(WireError::TooMany { what, .. }) if what == "entry pages"));
    // Then the node seals.
    put(&mut node, session, None).unwrap();
}

#[test]
fn namespaces() {
    let (mut node, session) = node();
    let create = |name: &str| {
        RequestBody::CreateNamespace(NamespaceSpec { name: name.into(), ..Default::default() })
    };
    node.ask(session, create("a")).unwrap();
    node.ask(session, create("b")).unwrap();
    too_many(node.ask(session, create("c")), "namespaces", 2);
    node.ask(session, RequestBody::DropNamespace { name: "a".into() }).unwrap();
    node.ask(session, create("c")).unwrap();
}

#[test]
fn slots_of_objects() {
    let (mut node, session) = node();
    fill(&mut node, session);
    let refused = put(&mut node, session, None).unwrap_err();
    too_many(Err(refused), "objects", 16);
    too_many(node.ask(session, room(&[PAGE], 1, &[], 0)), "objects", 16);
    let (other, _) = node.join_as(2, OWNER, None);
    let (waits, _) = node.all(other, room(&[], 1, &[], 1000));
    assert_eq!(waits, None);
    let actions = delete(&mut node, session, "o3");
    assert_eq!(answer_in(actions, other), Ok(ReplyBody::Room(Vec::new())));
    put(&mut node, other, None).unwrap();
    node.state.set_eviction_policy(Box::new(Lru));
    put(&mut node, session, None).unwrap();
    assert_eq!(objects(&node), 16, "one left for it");
}

#[test]
fn bytes_for_names() {
    let (mut node, session) = node();
    let long = |number: usize| Some(format!("{number:0100}"));
    for number in 0..4 {
        put(&mut node, session, long(number)).unwrap();
    }
    let full = |waited_ms| {
        WireError::NoRoom(NoRoom {
            what: "names".into(),
            requested: 100,
            free: 0,
            largest: 0,
            used: 512,
            waiting: 0,
            waited_ms,
        })
    };
    assert_eq!(put(&mut node, session, long(4)), Err(full(0)));
    put(&mut node, session, None).unwrap();
    let (other, _) = node.join_as(2, OWNER, None);
    // In vain, and then not.
    assert_eq!(node.all(other, room(&[PAGE], 1, &[100], 50)).0, None);
    node.now_ms += 50;
    let mut late = Vec::new();
    node.state.tick(node.now_ms, &mut late);
    assert_eq!(answer_in(late, other), Err(full(50)));
    assert_eq!(node.all(other, room(&[PAGE], 1, &[100], 50)).0, None);
    let actions = delete(&mut node, session, &long(2).unwrap());
    assert!(matches!(answer_in(actions, other), Ok(ReplyBody::Room(_))));
    put(&mut node, other, long(4)).unwrap();
    node.state.set_eviction_policy(Box::new(Lru));
    put(&mut node, session, long(5)).unwrap();
}

/// Where one thing cannot be had, nobody leaves for the others.
#[test]
fn no_object_leaves_for_half_of_what_is_needed() {
    let (mut node, session) = node();
    fill(&mut node, session);
    node.state.set_eviction_policy(Box::new(Lru));
    let targets = vec![WireTarget::Name("o7".into())];
    node.ask(session, RequestBody::Pin { targets, is_pinned: true }).unwrap();
    let all_but_one = HEAP - PAGE;
    for body in [
        // The one in the middle stays, so does what lies on both sides of it.
        room(&[all_but_one], 1, &[1], 0),
        room(&[HEAP / 2, HEAP / 2], 1, &[1], 0),
        // Memory is free; slots and names are not, were all of the others gone.
        room(&[PAGE], 16, &[], 0),
        room(&[PAGE], 1, &[255, 255], 0),
        // Nobody knows what it is for.
        RequestBody::Room(RoomAsk { sizes: vec![HEAP - 10 * PAGE], ..RoomAsk::default() }),
    ] {
        let answer = node.ask(session, body.clone());
        assert!(answer.is_err(), "{body:?}: {answer:?}");
        assert_eq!(objects(&node), 16, "{body:?}");
    }
    node.ask(session, room(&[HEAP / 2], 1, &[1], 0)).unwrap();
    assert!(objects(&node) < 16);
}

/// What makes no sense is refused as such.
#[test]
fn requests_without_sense() {
    let (mut node, session) = node();
    for body in [
        RequestBody::Room(RoomAsk::default()),
        room(&[0], 1, &[], 0),
        room(&[PAGE; 65], 1, &[], 0),
        room(&[PAGE], 1 << 30, &[], 0),
        room(&[u64::MAX, u64::MAX], 1, &[], 0),
    ] {
        assert!(node.ask(session, body.clone()).is_err(), "{body:?}");
    }
    assert_eq!(node.state.home().stats().unwrap().granted.0, 0);
}
