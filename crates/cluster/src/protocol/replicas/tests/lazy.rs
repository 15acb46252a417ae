//! Objects whose pages are brought as clients read them.

use farrow_wire::{
    LazyObject, Listen, NoRoom, NodeUnreachable, OpenLazy, WireObjectId, WireTarget,
};

use super::*;
use crate::protocol::net::HOLDS_PER_MEMBER_MAX;

const READER: &str = "b";
const BLOCK: u64 = 1 << 20;

/// A client of node b, which reads objects of node a.
struct LazyReader {
    pair: ReplicaNodes,
    client: Listen,
    next: u64,
}

/// An object with two blocks, which have moved since its seal.
fn large(home: &NodeState, lo: u64) -> Opened {
    with_blocks(home, lo, BLOCK)
}

/// As [`large`], with blocks of this length.
fn with_blocks(home: &NodeState, lo: u64, length: u64) -> Opened {
    let origins =
        [8 << 20, 4 << 20].map(|offset| Span::new(Offset(offset), Length(length))).to_vec();
    let head = SpillHead {
        id: ObjectId { hi: home.home().uid().0, lo },
        kind: ObjectKind::Table,
        size: Length(2 * length),
        descriptor_bytes: 3,
        metadata_bytes: 0,
        origins,
    };
    let brought = Brought {
        head: head.encode(),
        name: Some("t".to_owned()),
        descriptor: vec![1, 2, 3],
        descriptor_crc: crc32c::crc32c(&[1, 2, 3]),
        metadata: Vec::new(),
        metadata_crc: 0,
        sealed_at_ns: 1,
    };
    let blocks = [0, 3 * BLOCK].map(|offset| Span::new(Offset(offset), Length(length))).to_vec();
    Opened { blocks, entry: brought.encode().unwrap(), inline: Vec::new() }
}

fn lazy_answer(actions: &[Action], to: u64) -> Option<(u64, LazyObject)> {
    actions.iter().find_map(|action| match action {
        Action::SendFile { session, reply, file } if *session == SessionId(to) => {
            match &reply.body {
                Ok(ReplyBody::Lazy(object)) => Some((*file, (**object).clone())),
                other => panic!("{other:?}"),
            }
        }
        _ => None,
    })
}

fn answer_of(actions: &[Action], to: u64) -> Option<Result<ReplyBody, WireError>> {
    actions.iter().find_map(|action| match action {
        Action::Send { session, reply, .. } if *session == SessionId(to) => {
            Some(reply.body.clone())
        }
        _ => None,
    })
}

fn is_release(action: &Action) -> bool {
    matches!(action, Action::Net(NetAction::Release { .. }))
}

impl LazyReader {
    fn new() -> Self {
        let mut pair = ReplicaNodes::new();
        let (now_ms, node) = (pair.now_ms, &mut pair.nodes[1]);
        assert_eq!(NAMES[1], READER);
        let peer = PeerIdentity { pid: 42, start_time: 1, uid: 0, remote_client: None };
        node.opened(CLIENT, peer, now_ms);
        let (namespace, of_node) = (String::new(), String::new());
        let (version, maps_memory) = (PROTOCOL_VERSION, true);
        let hello = Hello { version, resume: None, namespace, node: of_node, maps_memory };
        let (mut out, body) = (Vec::new(), RequestBody::Hello(hello));
        node.handle(CLIENT, Request { seq: 1, body }, now_ms, 1, &mut out);
        let Some(Ok(ReplyBody::Welcome(welcome))) = answer_of(&out, CLIENT.0) else {
            panic!("{out:?}")
        };
        let Welcome { region_uid, slot, nonce, .. } = welcome;
        let client = Listen { version, region_uid, slot, nonce, node: String::new() };
        Self { pair, client, next: 100 }
    }

    fn node(&mut self) -> &mut NodeState {
        &mut self.pair.nodes[1]
    }

    fn send(&mut self, session: u64, body: RequestBody) -> Vec<Action> {
        let (now_ms, mut out) = (self.pair.now_ms, Vec::new());
        self.node().handle(SessionId(session), Request { seq: 1, body }, now_ms, 1, &mut out);
        out
    }

    /// A further connection, which asks for an object.
    fn open(&mut self, is_again: bool) -> (u64, Vec<Action>) {
        self.open_target(WireTarget::Name("t".to_owned()), is_again)
    }

    fn open_target(&mut self, target: WireTarget, is_again: bool) -> (u64, Vec<Action>) {
        self.next += 1;
        let (session, now_ms) = (self.next, self.pair.now_ms);
        let peer = PeerIdentity { pid: 42, start_time: 1, uid: 0, remote_client: None };
        self.node().opened(SessionId(session), peer, now_ms);
        let client = self.client.clone();
        let open = OpenLazy { client, target, is_again, wait_ms: 60_000 };
        (session, self.send(session, RequestBody::OpenLazy(open)))
    }

    /// A further connection, which asks for a small object by its id; the answer.
    fn open_small(&mut self, lo: u64) -> (u64, Vec<Action>) {
        let hi = self.pair.nodes[0].home().uid().0;
        let (session, requested) = self.open_target(WireTarget::Id(WireObjectId { hi, lo }), false);
        let token = opened_at("a", &requested).unwrap();
        let result = Ok((lo, with_blocks(&self.pair.nodes[0], lo, 64 << 10)));
        (session, self.event(NetEvent::Opened { token, node: "a".to_owned(), result }))
    }

    fn event(&mut self, event: NetEvent) -> Vec<Action> {
        let (now_ms, mut out) = (self.pair.now_ms, Vec::new());
        self.node().net_event(event, now_ms, &mut out);
        out
    }

    /// The home describes the object.
    fn opened(&mut self, requested: &[Action], hold: u64, lo: u64) -> Vec<Action> {
        let token = opened_at("a", requested).unwrap();
        let result = Ok((hold, large(&self.pair.nodes[0], lo)));
        self.event(NetEvent::Opened { token, node: "a".to_owned(), result })
    }

    fn close(&mut self, session: u64) {
        let now_ms = self.pair.now_ms;
        self.node().closed(SessionId(session), true, now_ms);
    }

    /// What the node does within this time.
    fn wait(&mut self, ms: u64) -> Vec<Action> {
        let until_ms = self.pair.now_ms + ms;
        let mut all = Vec::new();
        while self.pair.now_ms < until_ms {
            all.extend(self.pair.round());
        }
        all
    }
}

#[test]
fn connections_share_a_file_and_its_pages_until_the_last_ends() {
    let mut reader = LazyReader::new();
    let (first, requested) = reader.open(false);
    let out = reader.opened(&requested, 9, 1 << 32);
    let (file, object) = lazy_answer(&out, first).unwrap();
    let created = |action: &Action| {
        matches!(action, Action::Net(NetAction::OpenFile { file: of, blocks, .. })
            if *of == file && blocks.len() == 2)
    };
    assert!(created(&out[0]), "before its descriptors are sent: {out:?}");
    let places: Vec<_> = object.blocks.iter().map(|one| (one.origin, one.offset)).collect();
    assert_eq!(places, [(8 << 20, 0), (4 << 20, 3 * BLOCK)]);

    let (second, out) = reader.open(false);
    assert_eq!(lazy_answer(&out, second).unwrap(), (file, object), "no other node is asked");

    // A range has the bytes of all blocks in it, and of nothing else.
    let out = reader.send(second, RequestBody::Pages { start: BLOCK - 4096, end: 3 * BLOCK + 1 });
    let [Action::Net(NetAction::Pages { token, hold: 9, ranges, .. })] = &out[..] else {
        panic!("{out:?}")
    };
    let expected = [(BLOCK - 4096, 4096), (3 * BLOCK, 1)];
    assert_eq!(*ranges, expected.map(|(at, length)| Span::new(Offset(at), Length(length))));
    let out = reader.event(NetEvent::Pages { token: *token, result: Ok(4097) });
    assert_eq!(answer_of(&out, second), Some(Ok(ReplyBody::Done)));
    let out = reader.send(second, RequestBody::Pages { start: BLOCK, end: 2 * BLOCK });
    assert_eq!(answer_of(&out, second), Some(Ok(ReplyBody::Done)), "there is nothing");
    let huge = reader.send(second, RequestBody::Pages { start: u64::MAX, end: 0 });
    assert_eq!(answer_of(&huge, second), Some(Ok(ReplyBody::Done)));

    reader.close(first);
    assert!(!reader.wait(5_000).iter().any(is_release), "one still reads");
    reader.close(second);
    let out = reader.wait(5_000);
    assert!(out.contains(&Action::Net(NetAction::CloseFile { file })), "{out:?}");
    assert!(out.contains(&Action::Net(NetAction::Release { node: "a".to_owned(), hold: 9 })));
}

#[test]
fn after_a_delete_or_a_fault_the_home_is_asked_again() {
    for is_deleted in [true, false] {
        let mut reader = LazyReader::new();
        let (first, requested) = reader.open(false);
        let out = reader.opened(&requested, 9, 1 << 32);
        let (file, _) = lazy_answer(&out, first).unwrap();
        if is_deleted {
            let invalidated = Question::Invalidate { objects: vec![1 << 32] };
            let invalidated = postcard::to_allocvec(&invalidated).unwrap();
            let now_ms = reader.pair.now_ms;
            reader.node().on_request(
                0,
                ("a", INCARNATION).into(),
                &invalidated,
                now_ms,
                &mut Vec::new(),
            );
        } else {
            let out = reader.send(first, RequestBody::Pages { start: 0, end: 1 });
            let Some(Action::Net(NetAction::Pages { token, .. })) = out.first() else {
                panic!("{out:?}")
            };
            let result = Err(NetFault::NotFound);
            let out = reader.event(NetEvent::Pages { token: *token, result });
            assert!(matches!(answer_of(&out, first), Some(Err(WireError::NotFound { .. }))));
        }
        let (second, requested) = reader.open(true);
        assert!(lazy_answer(&requested, second).is_none());
        let out = reader.opened(&requested, 10, 2 << 32);
        let (other, _) = lazy_answer(&out, second).unwrap();
        assert_ne!(other, file);
        // The first one reads on from what it has.
        let out = reader.send(first, RequestBody::Pages { start: 0, end: 1 });
        assert!(matches!(&out[..], [Action::Net(NetAction::Pages { hold: 9, .. })]), "{out:?}");
    }
}

#[test]
fn small_objects_are_brought_whole() {
    let mut reader = LazyReader::new();
    let (session, requested) = reader.open(false);
    let token = opened_at("a", &requested).unwrap();
    let result = Ok((9, described(&reader.pair.nodes[0])));
    let out = reader.event(NetEvent::Opened { token, node: "a".to_owned(), result });
    assert!(matches!(answer_of(&out, session), Some(Ok(ReplyBody::Fetched(Some(_))))), "{out:?}");
}

#[test]
fn room_for_all_pages_is_reserved() {
    let mut reader = LazyReader::new();
    reader.node().replicas.bytes_max = Some(3 * BLOCK);
    let (first, requested) = reader.open(false);
    let out = reader.opened(&requested, 9, 1 << 32);
    assert!(lazy_answer(&out, first).is_some());
    let now_ms = reader.pair.now_ms;
    let mut out = Vec::new();
    let (replicas, mut context) = reader.node().replicas(now_ms, &mut out);
    replicas.drop_all(&mut context);
    let (second, requested) = reader.open(false);
    let out = reader.opened(&requested, 10, 2 << 32);
    let answer = answer_of(&out, second);
    assert!(
        matches!(answer, Some(Err(WireError::NoRoom(NoRoom { requested, .. }))) if requested == 2 * BLOCK)
    );
    assert!(out.iter().any(is_release));
    // What nobody reads any more makes room.
    reader.close(first);
    let (third, requested) = reader.open(false);
    let out = reader.opened(&requested, 11, 2 << 32);
    assert!(lazy_answer(&out, third).is_some(), "{out:?}");
    assert!(out.iter().any(is_release));
}

/// Regression test: each such object keeps a hold at its home. A client that opened as many as a home
/// lends took all of them, and each other get of its node from there failed after a minute.
#[test]
fn objects_with_pages_on_demand_leave_holds_for_other_gets() {
    let mut reader = LazyReader::new();
    let max = HOLDS_PER_MEMBER_MAX as u64 / 2;
    let mut first = None;
    for number in 1..=max {
        let (session, out) = reader.open_small(number << 32);
        assert!(lazy_answer(&out, session).is_some(), "{number}: {out:?}");
        first.get_or_insert(session);
    }
    let (session, out) = reader.open_small((max + 1) << 32);
    let refused = answer_of(&out, session);
    let Some(Err(WireError::TooMany { what, max: of_answer })) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((what.as_str(), of_answer), ("objects of node \"a\" with pages on demand", max));
    assert!(out.iter().any(is_release));
    // What nobody reads any more makes room.
    reader.close(first.unwrap());
    let (session, out) = reader.open_small((max + 2) << 32);
    assert!(lazy_answer(&out, session).is_some(), "{out:?}");
}

/// Regression test: a home that lent no more holds was reported as lost.
#[test]
fn a_home_that_stays_busy_is_not_reported_as_lost() {
    let mut reader = LazyReader::new();
    let (session, requested) = reader.open(false);
    let token = opened_at("a", &requested).unwrap();
    let result = Err(NetFault::Busy("b reads 256 objects, at most 256".to_owned()));
    let out = reader.event(NetEvent::Opened { token, node: "a".to_owned(), result });
    assert_eq!(answer_of(&out, session), None);
    let now_ms = reader.pair.now_ms;
    reader.node().replicas.openings.get_mut(&token).unwrap().deadline_ms = now_ms;
    let out = reader.wait(1_000);
    let answer = answer_of(&out, session);
    let Some(Err(WireError::NodeUnreachable(NodeUnreachable { node, reason, .. }))) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(node, "a");
    let expected = "it was busy for 60000 ms: b reads 256 objects, at most 256";
    assert!(reason.ends_with(expected), "{reason}");
}

#[test]
fn other_connections_bring_no_pages() {
    let mut reader = LazyReader::new();
    let out = reader.send(CLIENT.0, RequestBody::Pages { start: 0, end: 1 });
    assert!(matches!(answer_of(&out, CLIENT.0), Some(Err(WireError::Invalid(_)))));
    let (target, extent) = (WireTarget::Name("t".to_owned()), Extent::Lazy { is_again: false });
    let out = reader.send(CLIENT.0, RequestBody::Fetch { target, extent, wait_ms: 1 });
    assert!(matches!(answer_of(&out, CLIENT.0), Some(Err(WireError::Invalid(_)))));
    // Neither a stranger's slot nor a client of another node.
    reader.client.nonce ^= 1;
    let (session, out) = reader.open(false);
    assert!(matches!(answer_of(&out, session), Some(Err(WireError::Denied(_)))));
    assert!(out.contains(&Action::Close { session: SessionId(session) }));
    reader.client.nonce ^= 1;
    let remote_client = Some(RemoteClient { node: node_key("a") });
    let peer = PeerIdentity { pid: 42, start_time: 1, uid: 0, remote_client };
    let now_ms = reader.pair.now_ms;
    reader.node().opened(SessionId(7), peer, now_ms);
    let (client, target) = (reader.client.clone(), WireTarget::Name("t".to_owned()));
    let open = OpenLazy { client, target, is_again: false, wait_ms: 1 };
    let out = reader.send(7, RequestBody::OpenLazy(open));
    assert!(matches!(answer_of(&out, 7), Some(Err(WireError::Invalid(_)))), "{out:?}");
    // The end of a connection that waits.
    let (session, requested) = reader.open(false);
    reader.close(session);
    let out = reader.opened(&requested, 9, 1 << 32);
    assert!(lazy_answer(&out, session).is_none());
    assert!(reader.wait(5_000).iter().any(is_release));
}
