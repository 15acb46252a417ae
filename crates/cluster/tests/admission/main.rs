//! Waiting requests for memory: their order, overtaking, rejections and deadlines. Only the state
//! machine, with a clock of the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod quotas;
mod random;

use std::collections::BTreeMap;
use std::sync::Arc;

use farrow_cluster::protocol::{
    Action, AdoptedState, DaemonInfo, NodeState, PeerIdentity, SessionId,
};
use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Region};
use farrow_store::{Home, Layout, RegionOptions};
use farrow_wire::{
    Hello, OutOfMemory, PROTOCOL_VERSION, Reply, ReplyBody, Request, RequestBody, SealItem,
    TooLarge, WireError, WireObjectId, WireSpan, WireTarget,
};

const KIB: u64 = 1 << 10;
const CAPACITY: u64 = 1 << 20;

/// A node, and the answers that its clients have not read yet.
struct AdmissionNode {
    state: NodeState,
    now_ms: u64,
    answers: BTreeMap<(SessionId, u64), Result<ReplyBody, WireError>>,
    next_seq: u64,
}

impl AdmissionNode {
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
fn full(node: &mut AdmissionNode) -> [WireSpan; 2] {
    [CAPACITY / 2; 2].map(|bytes| {
        let seq = node.grant(0, bytes, 0);
        node.granted(0, seq)
    })
}

/// The error without free memory, with this many requests waiting.
fn no_memory(requested: u64, waiting: u64, waited_ms: u64) -> WireError {
    WireError::OutOfMemory(OutOfMemory { requested, free: 0, largest: 0, waiting, waited_ms })
}

#[test]
fn more_than_the_region_holds_is_refused_at_once_with_the_numbers() {
    let mut node = AdmissionNode::new(1);
    for wait_ms in [0, 60_000] {
        let seq = node.grant(0, CAPACITY + 1, wait_ms);
        let expected =
            WireError::TooLarge(TooLarge { requested: CAPACITY + 1, capacity: CAPACITY });
        assert_eq!(node.answer(0, seq), Some(Err(expected)));
    }
}

#[test]
fn a_request_waits_until_memory_comes_back() {
    let mut node = AdmissionNode::new(2);
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
    let mut node = AdmissionNode::new(2);
    full(&mut node);
    let waiting = node.grant(1, 64 * KIB, 1000);
    node.pass(999);
    assert!(node.is_waiting(1, waiting));
    node.pass(1);
    let expected = no_memory(64 * KIB, 0, 1000);
    let reported = expected.to_string();
    assert!(reported.ends_with("longest free run 0 B, after waiting 1000 ms"), "{reported}");
    assert_eq!(node.answer(1, waiting), Some(Err(expected)));
    assert_eq!(node.state.stats(node.now_ms).unwrap().waiting, 0);
}

#[test]
fn who_came_first_is_served_first() {
    let mut node = AdmissionNode::new(4);
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
    let mut node = AdmissionNode::new(3);
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
    let mut node = AdmissionNode::new(4);
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
        requested: 64 * KIB,
        free,
        largest,
        waiting: 2,
        waited_ms: 0,
    });
    let reported = expected.to_string();
    assert!(reported.ends_with("longest free run 524288 B, 2 requests wait before"), "{reported}");
    assert_eq!(node.answer(2, seq), Some(Err(expected)));
    // The request is served once the others have timed out.
    node.pass(60_000);
    assert!(!node.is_waiting(1, great) && !node.is_waiting(3, behind));
    let seq = node.grant(2, 64 * KIB, 0);
    node.granted(2, seq);
}

#[test]
fn the_great_one_gets_its_room_then_those_behind_it() {
    let mut node = AdmissionNode::new(3);
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
    let mut node = AdmissionNode::new(3);
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
    let mut node = AdmissionNode::new(2);
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
    let mut node = AdmissionNode::new(20);
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
fn clients_that_wait_when_the_node_ends_are_notified() {
    let mut node = AdmissionNode::new(2);
    full(&mut node);
    let waiting = node.grant(1, CAPACITY, 60_000);
    let mut actions = Vec::new();
    node.state.stop(&mut actions);
    node.take(actions);
    assert_eq!(node.answer(1, waiting), Some(Err(WireError::Closing)));
}
