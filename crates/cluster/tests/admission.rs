//! Waiting requests for memory: their order, overtaking, rejections and deadlines; and the limits
//! of one client. Only the state machine, with a clock of the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::collections::BTreeMap;
use std::sync::Arc;

use farrow_cluster::protocol::{
    Action, AdoptedState, DaemonInfo, NodeState, PeerIdentity, Quotas, SessionId,
};
use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Region};
use farrow_store::{Home, Layout, RegionOptions};
use farrow_wire::{
    Hello, NamespaceSpec, OutOfMemory, PROTOCOL_VERSION, QuotaExceeded, Reply, ReplyBody, Request,
    RequestBody, SealItem, TooLarge, WireError, WireObjectId, WireSpan, WireTarget,
};
use proptest::prelude::*;

const KIB: u64 = 1 << 10;
const CAPACITY: u64 = 1 << 20;

/// A node, and the answers that its clients have not read yet.
struct Node {
    state: NodeState,
    now_ms: u64,
    answers: BTreeMap<(SessionId, u64), Result<ReplyBody, WireError>>,
    next_seq: u64,
}

impl Node {
    fn new(clients: u64) -> Self {
        // Few objects and slots, so that a check of all of them at each turn is fast.
        let mut options = RegionOptions::for_capacity(Length(CAPACITY));
        (options.objects_max, options.clients_max, options.hold_blocks_max) = (16, 20, 20);
        (options.grants_max, options.client_objects_max) = (400, 42);
        let geometry = Layout::new(&options).unwrap().geometry;
        let fabric = Arc::new(ShmFabric::memfd("admission-test", geometry).unwrap());
        let region = Arc::new(Region::map(fabric, Access::Home, None).unwrap());
        let home = Home::create(region, &options, 0).unwrap();
        let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: 1000 };
        let state = NodeState::new(home, daemon, AdoptedState::default(), 0);
        let mut node = Self { state, now_ms: 0, answers: BTreeMap::new(), next_seq: 0 };
        for client in 0..clients {
            node.join(client);
        }
        node
    }

    fn join(&mut self, client: u64) {
        self.join_in(client, "");
    }

    fn join_in(&mut self, client: u64, namespace: &str) {
        let peer = PeerIdentity {
            pid: 100 + client as u32,
            start_time: 5,
            uid: 1000,
            remote_client: None,
        };
        self.state.opened(SessionId(client), peer, self.now_ms);
        let hello = Hello {
            version: PROTOCOL_VERSION,
            resume: None,
            namespace: namespace.to_owned(),
            node: String::new(),
            maps_memory: true,
        };
        let welcome = self.ask(client, RequestBody::Hello(hello));
        assert!(matches!(self.answer(client, welcome), Some(Ok(ReplyBody::Welcome(_)))));
    }

    fn ask(&mut self, client: u64, body: RequestBody) -> u64 {
        self.next_seq += 1;
        let request = Request { seq: self.next_seq, body };
        let mut actions = Vec::new();
        self.state.handle(SessionId(client), request, self.now_ms, 7, &mut actions);
        self.take(actions);
        self.turn();
        self.next_seq
    }

    /// The server's work at the end of each turn of its loop.
    fn turn(&mut self) {
        let mut actions = Vec::new();
        self.state.tick(self.now_ms, &mut actions);
        self.take(actions);
        self.state.home().check().unwrap();
    }

    fn take(&mut self, actions: Vec<Action>) {
        for action in actions {
            if let Action::Send { session, reply: Reply { seq, body }, .. } = action {
                let former = self.answers.insert((session, seq), body);
                assert!(former.is_none(), "answered twice");
            }
        }
    }

    /// Lets time pass as the server would: it sleeps until the state wants to be called.
    fn pass(&mut self, ms: u64) {
        let until_ms = self.now_ms + ms;
        while let Some(at_ms) = self.state.next_deadline_ms().filter(|at_ms| *at_ms <= until_ms) {
            self.now_ms = self.now_ms.max(at_ms);
            self.turn();
        }
        self.now_ms = until_ms;
    }

    fn answer(&mut self, client: u64, seq: u64) -> Option<Result<ReplyBody, WireError>> {
        self.answers.remove(&(SessionId(client), seq))
    }

    fn grant(&mut self, client: u64, bytes: u64, wait_ms: u64) -> u64 {
        self.ask(client, RequestBody::Grant { min: bytes, want: bytes, wait_ms })
    }

    fn granted(&mut self, client: u64, seq: u64) -> WireSpan {
        match self.answer(client, seq) {
            Some(Ok(ReplyBody::Granted(span))) => span,
            other => panic!("client {client}: {other:?}"),
        }
    }

    fn reservation(&mut self, client: u64, objects: u32, wait_ms: u64) -> u64 {
        self.ask(client, RequestBody::ReserveObjects { objects, wait_ms })
    }

    fn expect_reserved(&mut self, client: u64, seq: u64) {
        assert_eq!(self.answer(client, seq), Some(Ok(ReplyBody::Done)));
    }

    fn seal(
        &mut self,
        client: u64,
        span: WireSpan,
        is_reserved_object: bool,
    ) -> Result<WireObjectId, WireError> {
        let item = SealItem { is_reserved_object, ..SealItem::bytes(span, 1) };
        let seq = self.ask(client, RequestBody::Seal { items: vec![item] });
        match self.answer(client, seq) {
            Some(Ok(ReplyBody::Sealed(mut sealed))) => sealed.remove(0),
            other => panic!("{other:?}"),
        }
    }

    fn delete(&mut self, client: u64, id: WireObjectId) {
        self.ask(client, RequestBody::Delete { targets: vec![WireTarget::Id(id)] });
    }

    fn is_waiting(&self, client: u64, seq: u64) -> bool {
        !self.answers.contains_key(&(SessionId(client), seq))
    }

    fn release(&mut self, client: u64, span: WireSpan) {
        self.ask(client, RequestBody::Release { spans: vec![span] });
    }
}

/// All memory, granted to client 0 in two halves.
fn full(node: &mut Node) -> [WireSpan; 2] {
    [CAPACITY / 2; 2].map(|bytes| {
        let seq = node.grant(0, bytes, 0);
        node.granted(0, seq)
    })
}

/// The error without free memory, with this many requests waiting.
fn no_memory(asked: u64, waiting: u64, waited_ms: u64) -> WireError {
    WireError::OutOfMemory(OutOfMemory { asked, free: 0, largest: 0, waiting, waited_ms })
}

#[test]
fn more_than_the_region_holds_is_refused_at_once_with_the_numbers() {
    let mut node = Node::new(1);
    for wait_ms in [0, 60_000] {
        let seq = node.grant(0, CAPACITY + 1, wait_ms);
        let expected = WireError::TooLarge(TooLarge { asked: CAPACITY + 1, capacity: CAPACITY });
        assert_eq!(node.answer(0, seq), Some(Err(expected)));
    }
}

#[test]
fn a_request_waits_until_memory_comes_back() {
    let mut node = Node::new(2);
    let [half, _] = full(&mut node);
    let waiting = node.grant(1, 64 * KIB, 1000);
    node.pass(500);
    assert!(node.is_waiting(1, waiting));
    let stats = node.state.stats(node.now_ms).unwrap();
    assert_eq!((stats.waiting, stats.waiting_bytes), (1, 64 * KIB));
    node.release(0, half);
    assert_eq!(node.granted(1, waiting).1, 64 * KIB);
    assert_eq!(node.state.stats(node.now_ms).unwrap().waiting, 0);
}

#[test]
fn its_deadline_is_retained_and_the_error_says_how_long_it_was() {
    let mut node = Node::new(2);
    full(&mut node);
    let waiting = node.grant(1, 64 * KIB, 1000);
    node.pass(999);
    assert!(node.is_waiting(1, waiting));
    node.pass(1);
    let expected = no_memory(64 * KIB, 0, 1000);
    let told = expected.to_string();
    assert!(told.ends_with("longest free run 0 B, after waiting 1000 ms"), "{told}");
    assert_eq!(node.answer(1, waiting), Some(Err(expected)));
    assert_eq!(node.state.stats(node.now_ms).unwrap().waiting, 0);
}

#[test]
fn who_came_first_is_served_first() {
    let mut node = Node::new(4);
    let [half, other] = full(&mut node);
    let waiting: Vec<u64> = (1..4).map(|client| node.grant(client, CAPACITY / 4, 10_000)).collect();
    node.release(0, half);
    let places: Vec<u64> =
        (1..3).zip(&waiting).map(|(client, seq)| node.granted(client, *seq).0).collect();
    assert!(places[0] < places[1], "the first gets the first piece");
    assert!(node.is_waiting(3, waiting[2]));
    node.release(0, other);
    node.granted(3, waiting[2]);
}

#[test]
fn small_requests_pass_a_great_one_until_they_took_what_it_asks_for() {
    let mut node = Node::new(3);
    let [half, _] = full(&mut node);
    let great = node.grant(1, CAPACITY * 3 / 4, 60_000);
    node.release(0, half);
    assert!(node.is_waiting(1, great));
    let mut passed = 0;
    loop {
        let seq = node.grant(2, 64 * KIB, 60_000);
        if node.is_waiting(2, seq) {
            break;
        }
        let span = node.granted(2, seq);
        passed += span.1;
        node.release(2, span);
        assert!(node.is_waiting(1, great));
    }
    assert_eq!(passed, CAPACITY * 3 / 4, "as much as the great one asks for");
    assert!(node.state.home().stats().unwrap().largest_free.0 >= 64 * KIB);
}

#[test]
fn who_does_not_wait_may_not_pass_more_often_than_who_does() {
    let mut node = Node::new(4);
    let [half, _] = full(&mut node);
    let great = node.grant(1, CAPACITY * 3 / 4, 60_000);
    let behind = node.grant(3, CAPACITY, 60_000);
    node.release(0, half);
    for _ in 0..12 {
        let seq = node.grant(2, 64 * KIB, 0);
        let span = node.granted(2, seq);
        node.release(2, span);
    }
    // There is room, but not for the last request.
    let seq = node.grant(2, 64 * KIB, 0);
    let (free, largest) = (CAPACITY / 2, CAPACITY / 2);
    let expected = WireError::OutOfMemory(OutOfMemory {
        asked: 64 * KIB,
        free,
        largest,
        waiting: 2,
        waited_ms: 0,
    });
    let told = expected.to_string();
    assert!(told.ends_with("longest free run 524288 B, 2 requests wait before"), "{told}");
    assert_eq!(node.answer(2, seq), Some(Err(expected)));
    // The request is served once the others have timed out.
    node.pass(60_000);
    assert!(!node.is_waiting(1, great) && !node.is_waiting(3, behind));
    let seq = node.grant(2, 64 * KIB, 0);
    node.granted(2, seq);
}

#[test]
fn the_great_one_gets_its_room_then_those_behind_it() {
    let mut node = Node::new(3);
    let [half, other] = full(&mut node);
    let great = node.grant(1, CAPACITY, 60_000);
    let small = node.grant(2, 4 * KIB, 60_000);
    node.release(0, half);
    let passed = node.granted(2, small);
    assert!(node.is_waiting(1, great));
    node.release(0, other);
    assert!(node.is_waiting(1, great));
    let small = node.grant(2, CAPACITY / 2, 60_000);
    let again = node.granted(2, small);
    let blocked = node.grant(2, CAPACITY / 2, 60_000);
    assert!(node.is_waiting(2, blocked), "it would take more than the great one asks for");
    node.release(2, passed);
    node.release(2, again);
    let all = node.granted(1, great);
    assert!(node.is_waiting(2, blocked));
    node.release(1, all);
    node.granted(2, blocked);
}

#[test]
fn a_client_that_goes_leaves_the_queue_and_its_memory_comes_back() {
    let mut node = Node::new(3);
    full(&mut node);
    let first = node.grant(1, CAPACITY, 60_000);
    let second = node.grant(2, CAPACITY, 60_000);
    node.state.closed(SessionId(1), false, node.now_ms);
    node.turn();
    assert_eq!(node.state.stats(node.now_ms).unwrap().waiting, 1);
    node.state.closed(SessionId(0), false, node.now_ms);
    assert_eq!(node.state.next_deadline_ms(), Some(0), "the queue is looked at at once");
    node.turn();
    assert!(node.is_waiting(1, first));
    assert_eq!(node.granted(2, second).1, CAPACITY);
}

#[test]
fn deleting_makes_room_for_who_waits() {
    let mut node = Node::new(2);
    let [half, _] = full(&mut node);
    let item = SealItem::bytes(half, half.1);
    let seal = node.ask(0, RequestBody::Seal { items: vec![item] });
    let Some(Ok(ReplyBody::Sealed(sealed))) = node.answer(0, seal) else { panic!() };
    let id = sealed[0].clone().unwrap();
    let waiting = node.grant(1, 4 * KIB, 60_000);
    assert!(node.is_waiting(1, waiting));
    node.ask(0, RequestBody::Delete { targets: vec![WireTarget::Id(id)] });
    node.granted(1, waiting);
}

#[test]
fn the_queue_has_limits() {
    let mut node = Node::new(20);
    full(&mut node);
    let mut refused = 0;
    for client in 1..20 {
        for count in 1..=65 {
            let seq = node.grant(client, CAPACITY, 60_000);
            match node.answer(client, seq) {
                None => assert!(count <= 64),
                Some(Err(WireError::TooMany { max: 64 | 1024, .. })) => refused += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(node.state.stats(0).unwrap().waiting, 1024);
    assert_eq!(refused, 19 * 65 - 1024);
}

#[test]
fn whoever_waits_when_the_node_ends_is_told() {
    let mut node = Node::new(2);
    full(&mut node);
    let waiting = node.grant(1, CAPACITY, 60_000);
    let mut actions = Vec::new();
    node.state.stop(&mut actions);
    node.take(actions);
    assert_eq!(node.answer(1, waiting), Some(Err(WireError::Closing)));
}

fn limited(clients: u64, bytes: Option<u64>, objects: Option<u32>) -> Node {
    let mut node = Node::new(clients);
    node.state.set_quotas(Quotas { client_bytes_max: bytes, client_objects_max: objects });
    node
}

/// Clients of one namespace with a limit of `objects_max` objects.
fn limited_namespace(clients: u64, objects_max: u32) -> Node {
    let mut node = Node::new(0);
    let maker = 99;
    node.join(maker);
    let spec = NamespaceSpec {
        name: "few".to_owned(),
        objects_max: Some(objects_max.into()),
        ..NamespaceSpec::default()
    };
    let seq = node.ask(maker, RequestBody::CreateNamespace(spec));
    assert_eq!(node.answer(maker, seq), Some(Ok(ReplyBody::Done)));
    node.state.closed(SessionId(maker), false, node.now_ms);
    (0..clients).for_each(|client| node.join_in(client, "few"));
    node
}

fn refused(node: &mut Node, client: u64, seq: u64) -> (String, u64, u64, u64) {
    match node.answer(client, seq) {
        Some(Err(WireError::QuotaExceeded(QuotaExceeded {
            whose,
            what,
            asked,
            used,
            limit,
            ..
        }))) => {
            assert_eq!(whose, format!("client {client} (process {})", 100 + client));
            (what, asked, used, limit)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_gets_no_more_bytes_than_its_quota_says() {
    let mut node = limited(2, Some(100 * KIB), None);
    // An optional larger grant is cut to the limit; a required one is rejected, waiting or not.
    let ask = RequestBody::Grant { min: 4 * KIB, want: 512 * KIB, wait_ms: 0 };
    let seq = node.ask(0, ask);
    let span = node.granted(0, seq);
    assert_eq!(span.1, 100 * KIB);
    for wait_ms in [0, 60_000] {
        let seq = node.grant(0, 4 * KIB, wait_ms);
        let expected = ("bytes".to_owned(), 4 * KIB, 100 * KIB, 100 * KIB);
        assert_eq!(refused(&mut node, 0, seq), expected);
    }
    // The other has its own.
    let seq = node.grant(1, 100 * KIB, 0);
    node.granted(1, seq);
    // An object counts for its creator until its memory is free again.
    let seal = node.ask(0, RequestBody::Seal { items: vec![SealItem::bytes(span, span.1)] });
    let Some(Ok(ReplyBody::Sealed(sealed))) = node.answer(0, seal) else { panic!() };
    let id = sealed[0].clone().unwrap();
    let seq = node.grant(0, 1, 0);
    assert_eq!(refused(&mut node, 0, seq).2, 100 * KIB);
    node.ask(1, RequestBody::Delete { targets: vec![WireTarget::Id(id)] });
    let seq = node.grant(0, 100 * KIB, 0);
    node.granted(0, seq);
}

#[test]
fn a_client_makes_no_more_objects_than_its_quota_says() {
    let mut node = limited(2, None, Some(3));
    let seq = node.grant(0, 4 * KIB, 0);
    let (start, _) = node.granted(0, seq);
    let items = (0..4).map(|n| SealItem::bytes((start + n * 128, 128), 1)).collect();
    let seal = node.ask(0, RequestBody::Seal { items });
    let Some(Ok(ReplyBody::Sealed(sealed))) = node.answer(0, seal) else { panic!() };
    assert_eq!(sealed.iter().filter(|result| result.is_ok()).count(), 3);
    let beyond = sealed[3].clone().unwrap_err();
    assert!(matches!(
        beyond,
        WireError::QuotaExceeded(QuotaExceeded { asked: 1, used: 3, limit: 3, .. })
    ));
    // A client that could not seal the object gets the error before it writes.
    let seq = node.grant(0, 4 * KIB, 60_000);
    assert_eq!(refused(&mut node, 0, seq), ("objects".to_owned(), 1, 3, 3));
    let id = sealed[0].clone().unwrap();
    node.ask(0, RequestBody::Delete { targets: vec![WireTarget::Id(id)] });
    let seq = node.grant(0, 4 * KIB, 0);
    node.granted(0, seq);
}

#[test]
fn a_quota_that_was_used_up_while_a_request_waited_is_told_when_its_turn_comes() {
    let mut node = Node::new(2);
    let [half, _] = full(&mut node);
    node.state.set_quotas(Quotas { client_bytes_max: Some(64 * KIB), client_objects_max: None });
    let first = node.grant(1, 64 * KIB, 60_000);
    let second = node.grant(1, 64 * KIB, 60_000);
    assert!(node.is_waiting(1, first) && node.is_waiting(1, second));
    node.release(0, half);
    node.granted(1, first);
    assert_eq!(refused(&mut node, 1, second), ("bytes".to_owned(), 64 * KIB, 64 * KIB, 64 * KIB));
    assert_eq!(node.state.stats(0).unwrap().waiting, 0);
}

#[test]
fn more_objects_than_the_quota_says_are_refused_before_they_are_written() {
    let mut node = limited(2, None, Some(3));
    let seq = node.grant(0, 4 * KIB, 0);
    let (start, _) = node.granted(0, seq);
    let sealed = node.seal(0, (start, 128), false).unwrap();
    let seq = node.reservation(0, 2, 0);
    node.expect_reserved(0, seq);
    // One sealed and two reserved objects are three; impossible requests do not wait.
    for (objects, wait_ms) in [(1, 0), (4, 60_000)] {
        let seq = node.reservation(0, objects, wait_ms);
        let expected = ("objects".to_owned(), u64::from(objects), 3, 3);
        assert_eq!(refused(&mut node, 0, seq), expected);
    }
    // Reserved objects are only for requests with a reservation, even of the same client.
    assert!(matches!(
        node.seal(0, (start + 128, 128), false),
        Err(WireError::QuotaExceeded(QuotaExceeded { asked: 1, used: 3, limit: 3, .. }))
    ));
    // Memory for a reserved object is granted, and the seal uses up the reservation.
    let seq = node.grant(0, 4 * KIB, 0);
    node.granted(0, seq);
    node.seal(0, (start + 128, 128), true).unwrap();
    // A released reservation becomes free; a release without a reservation has no effect.
    node.ask(0, RequestBody::UnreserveObjects { objects: 1 });
    node.ask(0, RequestBody::UnreserveObjects { objects: 7 });
    node.seal(0, (start + 256, 128), false).unwrap();
    assert!(node.seal(0, (start + 384, 128), true).is_err(), "there is no reservation left");
    node.delete(0, sealed);
    node.seal(0, (start + 384, 128), true).unwrap();
    // The other client has its own.
    let seq = node.reservation(1, 3, 0);
    node.expect_reserved(1, seq);
}

#[test]
fn a_failed_seal_leaves_its_reservation() {
    let mut node = limited(1, None, Some(1));
    let seq = node.grant(0, 4 * KIB, 0);
    let (start, _) = node.granted(0, seq);
    let seq = node.reservation(0, 1, 0);
    node.expect_reserved(0, seq);
    assert!(node.seal(0, (start + 64, 128), true).is_err());
    assert!(node.seal(0, (start, 128), false).is_err());
    node.seal(0, (start, 128), true).unwrap();
}

#[test]
fn who_waits_for_objects_gets_room_in_order_when_there_is_some() {
    let mut node = limited_namespace(4, 3);
    let seq = node.grant(0, 4 * KIB, 0);
    let (start, _) = node.granted(0, seq);
    let sealed: Vec<WireObjectId> =
        (0..3).map(|n| node.seal(0, (start + n * 128, 128), false).unwrap()).collect();
    let two = node.reservation(1, 2, 1_000);
    let late = node.reservation(2, 1, 500);
    let last = node.reservation(3, 1, 1_000);
    node.delete(0, sealed[0]);
    // It is reserved for the first, which needs two: not for later or non-waiting requests.
    assert!([(1, two), (2, late), (3, last)].iter().all(|(who, seq)| node.is_waiting(*who, *seq)));
    let exceeded = |asked, waiting, waited_ms| {
        WireError::QuotaExceeded(QuotaExceeded {
            whose: "namespace \"few\"".to_owned(),
            what: "objects".to_owned(),
            asked,
            used: 2,
            limit: 3,
            waiting,
            waited_ms,
        })
    };
    assert_eq!(node.seal(0, (start, 128), false), Err(exceeded(1, 3, 0)));
    let seq = node.reservation(0, 1, 0);
    assert_eq!(node.answer(0, seq), Some(Err(exceeded(1, 3, 0))));
    node.pass(499);
    assert!(node.is_waiting(2, late));
    node.pass(1);
    let told = exceeded(1, 1, 500);
    assert!(told.to_string().ends_with("in use, 1 request waits before, after waiting 500 ms"));
    assert_eq!(node.answer(2, late), Some(Err(told)));
    node.delete(0, sealed[1]);
    node.expect_reserved(1, two);
    assert!(node.is_waiting(3, last));
    // When a client ends, its reservations and its position in the queue are freed.
    let gone = node.reservation(1, 3, 60_000);
    node.state.closed(SessionId(1), false, node.now_ms);
    assert_eq!(node.state.next_deadline_ms(), Some(0), "the queue is looked at at once");
    node.turn();
    node.expect_reserved(3, last);
    assert!(node.is_waiting(1, gone));
    let seq = node.reservation(0, 1, 0);
    node.expect_reserved(0, seq);
}

#[test]
fn who_is_at_its_own_limit_keeps_nobody_else_waiting() {
    let mut node = limited_namespace(3, 10);
    node.state.set_quotas(Quotas { client_bytes_max: None, client_objects_max: Some(2) });
    let seq = node.reservation(0, 2, 0);
    node.expect_reserved(0, seq);
    let waiting = node.reservation(0, 1, 60_000);
    assert!(node.is_waiting(0, waiting));
    let seq = node.reservation(1, 2, 0);
    node.expect_reserved(1, seq);
    node.ask(0, RequestBody::UnreserveObjects { objects: 1 });
    node.expect_reserved(0, waiting);
}

#[test]
fn objects_that_can_never_be_had_are_refused_at_once_and_keep_nobody_waiting() {
    let mut node = limited_namespace(2, 10);
    node.state.set_quotas(Quotas { client_bytes_max: None, client_objects_max: Some(50) });
    let seq = node.reservation(0, 8, 0);
    node.expect_reserved(0, seq);
    // The client's own limit has no room now, that of its namespace never has.
    let seq = node.reservation(0, 50, 60_000);
    let refused = node.answer(0, seq);
    assert!(
        matches!(refused, Some(Err(WireError::QuotaExceeded(QuotaExceeded { limit: 10, .. })))),
        "{refused:?}"
    );
    let seq = node.reservation(1, 2, 0);
    node.expect_reserved(1, seq);
}

#[test]
fn whoever_waits_for_objects_no_more_keeps_nobody_else_waiting() {
    for is_cancelled in [true, false] {
        let mut node = limited_namespace(3, 10);
        node.state.set_quotas(Quotas { client_bytes_max: None, client_objects_max: Some(8) });
        // One waits for its own limit, the other for that of the namespace.
        let seq = node.reservation(0, 8, 0);
        node.expect_reserved(0, seq);
        let own = node.reservation(0, 1, 60_000);
        let common = node.reservation(1, 3, 60_000);
        assert!(node.is_waiting(0, own) && node.is_waiting(1, common));
        let mut actions = Vec::new();
        if is_cancelled {
            let cancel = Request { seq: 900, body: RequestBody::Cancel { seq: common } };
            node.state.handle(SessionId(1), cancel, node.now_ms, 7, &mut actions);
        } else {
            node.state.closed(SessionId(1), false, node.now_ms);
        }
        // In the same turn of the loop: two objects are left.
        let grant = RequestBody::Grant { min: 4 * KIB, want: 4 * KIB, wait_ms: 0 };
        let grant = Request { seq: 901, body: grant };
        node.state.handle(SessionId(2), grant, node.now_ms, 7, &mut actions);
        node.take(actions);
        node.granted(2, 901);
        assert!(node.is_waiting(0, own));
    }
}

#[test]
fn reservations_outlive_a_daemon_that_is_followed_in_good_order() {
    let mut node = limited_namespace(2, 4);
    let seq = node.reservation(0, 3, 0);
    node.expect_reserved(0, seq);
    assert_eq!(node.state.inheritance().unwrap().reserved_objects, [(0, 3)]);
    // The client reports its reservations after it reconnects.
    node.ask(0, RequestBody::ReservedObjects { objects: 1 });
    let seq = node.reservation(1, 3, 0);
    node.expect_reserved(1, seq);
    // Reservations that others took meanwhile are lost.
    node.ask(0, RequestBody::ReservedObjects { objects: 3 });
    assert_eq!(node.state.inheritance().unwrap().reserved_objects, [(0, 1), (1, 3)]);
}

#[test]
fn the_queue_for_objects_has_limits_and_an_end() {
    let mut node = limited_namespace(20, 1);
    let seq = node.reservation(0, 1, 0);
    node.expect_reserved(0, seq);
    let mut refused = 0;
    for client in 1..20 {
        for count in 1..=65 {
            let seq = node.reservation(client, 1, 60_000);
            match node.answer(client, seq) {
                None => assert!(count <= 64),
                Some(Err(WireError::TooMany { max: 64 | 1024, .. })) => refused += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(refused, 19 * 65 - 1024);
    let mut actions = Vec::new();
    node.state.stop(&mut actions);
    assert_eq!(actions.len(), 1024);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// For any requests and releases: each request is answered once, by its deadline at the latest,
    /// nothing is lost, and others overtake the first waiter by at most the bytes that it asks for.
    #[test]
    fn every_request_is_answered_in_time(
        steps in prop::collection::vec((0u64..5, 1u64..200, 0u64..50, 0u64..4), 1..80),
    ) {
        let mut node = Node::new(5);
        let mut held: Vec<(u64, WireSpan)> = Vec::new();
        let mut open: Vec<(u64, u64, u64)> = Vec::new();
        for (client, pages, wait_ms, what) in steps {
            if what == 0 && !held.is_empty() {
                let (owner, span) = held.swap_remove(pages as usize % held.len());
                node.release(owner, span);
            } else if what == 1 {
                node.pass(wait_ms);
            } else {
                let seq = node.grant(client, pages * 4 * KIB, wait_ms);
                open.push((client, seq, node.now_ms + wait_ms));
            }
            let now_ms = node.now_ms;
            open.retain(|(client, seq, deadline_ms)| match node.answer(*client, *seq) {
                None => {
                    assert!(*deadline_ms > now_ms, "a request is answered by its deadline");
                    true
                }
                Some(Ok(ReplyBody::Granted(span))) => {
                    held.push((*client, span));
                    false
                }
                Some(Err(WireError::OutOfMemory(_))) => false,
                Some(other) => panic!("{other:?}"),
            });
            let stats = node.state.stats(now_ms).unwrap();
            prop_assert_eq!(stats.waiting, open.len() as u64);
            let bytes: u64 = held.iter().map(|(_, span)| span.1).sum();
            prop_assert_eq!(stats.granted, bytes);
        }
    }

    /// Clients that never wait allocate and free small pieces at random. Their memory and the large
    /// request together exceed the capacity; the request is served all the same, before they took
    /// more than it asks for.
    #[test]
    fn a_great_request_is_served_in_a_stream_of_small_ones(
        great_pages in 130u64..=256,
        steps in prop::collection::vec((2u64..6, 1u64..16, 0usize..32), 1..50),
    ) {
        let mut node = Node::new(6);
        let mut held: Vec<(u64, WireSpan)> = Vec::new();
        let take = |node: &mut Node, client, pages| {
            let seq = node.grant(client, pages * 4 * KIB, 0);
            match node.answer(client, seq) {
                Some(Ok(ReplyBody::Granted(span))) => Some((client, span)),
                Some(Err(WireError::OutOfMemory(_))) => None,
                other => panic!("{other:?}"),
            }
        };
        let mut stream = steps.iter().cycle();
        while let Some(one) = stream.next().and_then(|(client, pages, _)| take(&mut node, *client, *pages)) {
            held.push(one);
        }
        let great = node.grant(1, great_pages * 4 * KIB, 60_000);
        prop_assert!(node.is_waiting(1, great));
        let mut passed = 0;
        for (client, pages, which) in stream {
            // Each freed piece is replaced by a new one.
            let (owner, span) = held.swap_remove(which % held.len());
            node.release(owner, span);
            if !node.is_waiting(1, great) {
                break;
            }
            if let Some(one) = take(&mut node, *client, *pages) {
                passed += one.1.1;
                held.push(one);
            }
            prop_assert!(passed <= great_pages * 4 * KIB);
            prop_assert!(!held.is_empty(), "all memory is free, and it still waits");
        }
        prop_assert_eq!(node.granted(1, great).1, great_pages * 4 * KIB);
    }
}
