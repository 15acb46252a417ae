//! Statistics, overviews and ends of clients that have many objects: in parts, between which others
//! are served. Only the state machine, with a clock of the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::collections::BTreeMap;
use std::sync::Arc;

use farrow_cluster::protocol::{
    Action, AdoptedState, DaemonInfo, NodeState, PeerIdentity, SessionId,
};
use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Fabric, Length, Offset, Region, Span};
use farrow_store::{
    ClientSlot, EntryTable, Home, Layout, ObjectId, RegionOptions, SealRequest, Target,
};
use farrow_wire::{
    Hello, PROTOCOL_VERSION, Reply, ReplyBody, Request, RequestBody, WireError, WireSpan,
};

const OBJECTS: u64 = 4_000;
/// A block of each object.
const BLOCK: u64 = 128;
const OWNER: u32 = 1000;
const PID: u32 = 100;

struct CountingNode {
    fabric: Arc<dyn Fabric>,
    state: NodeState,
    answers: BTreeMap<u64, Result<ReplyBody, WireError>>,
    /// Answers to scrapers, by their number of objects.
    scraped: Vec<u64>,
    next_seq: u64,
}

impl CountingNode {
    fn new() -> Self {
        let mut options = RegionOptions::for_capacity(Length(4 << 20));
        options.client_objects_max = 8 * OBJECTS as u32;
        let geometry = Layout::new(&options).unwrap().geometry;
        let fabric: Arc<dyn Fabric> = Arc::new(ShmFabric::memfd("counts", geometry).unwrap());
        let region = Arc::new(Region::map(Arc::clone(&fabric), Access::Home, None).unwrap());
        let home = Home::create(region, &options, 0).unwrap();
        let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: OWNER };
        let state = NodeState::new(home, daemon, AdoptedState::default(), 0);
        Self { fabric, state, answers: BTreeMap::new(), scraped: Vec::new(), next_seq: 0 }
    }

    fn join(&mut self, session: SessionId) -> ClientSlot {
        let peer = PeerIdentity { pid: PID, start_time: 5, uid: OWNER, remote_client: None };
        self.state.opened(session, peer, 0);
        let (namespace, node) = Default::default();
        let version = PROTOCOL_VERSION;
        let hello = Hello { version, resume: None, namespace, node, maps_memory: true };
        match self.ask(session, RequestBody::Hello(hello)) {
            Ok(ReplyBody::Welcome(welcome)) => ClientSlot(welcome.slot),
            other => panic!("{other:?}"),
        }
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { reply: Reply { seq, body }, .. } => {
                    assert!(self.answers.insert(seq, body).is_none(), "two answers to {seq}");
                }
                Action::Scraped(stats) => self.scraped.push(stats.unwrap().objects),
                other => panic!("{other:?}"),
            }
        }
    }

    fn send(&mut self, session: SessionId, body: RequestBody) -> u64 {
        self.next_seq += 1;
        let request = Request { seq: self.next_seq, body };
        let mut actions = Vec::new();
        self.state.handle(session, request, 0, 7, &mut actions);
        self.perform(actions);
        self.next_seq
    }

    fn turn(&mut self) {
        let mut actions = Vec::new();
        self.state.tick(0, &mut actions);
        self.perform(actions);
        self.state.home().check().unwrap();
    }

    /// Turns of the event loop until the state has no more to do now.
    fn turns(&mut self) -> usize {
        let mut turns = 0;
        while self.state.next_deadline_ms() == Some(0) {
            self.turn();
            turns += 1;
            assert!(turns < 10_000, "it never ends");
        }
        turns
    }

    fn answer(&mut self, seq: u64) -> Result<ReplyBody, WireError> {
        self.answers.remove(&seq).expect("an answer")
    }

    fn ask(&mut self, session: SessionId, body: RequestBody) -> Result<ReplyBody, WireError> {
        let seq = self.send(session, body);
        self.answer(seq)
    }

    fn objects(&mut self, seq: u64) -> u64 {
        match self.answer(seq) {
            Ok(ReplyBody::Stats(stats)) => stats.objects,
            other => panic!("{other:?}"),
        }
    }

    /// Objects that a client seals itself.
    fn seal(&mut self, session: SessionId, slot: ClientSlot, count: u64) -> Vec<ObjectId> {
        let region = Region::map(Arc::clone(&self.fabric), Access::Client, None).unwrap();
        let entries = EntryTable::new(Arc::new(region), slot, PID).unwrap();
        let bytes = count * BLOCK;
        let grant = RequestBody::Grant { min: bytes, want: bytes, wait_ms: 0 };
        let extent = match self.ask(session, grant) {
            Ok(ReplyBody::Granted(extent)) => span(extent),
            other => panic!("{other:?}"),
        };
        let seal = |n: u64| {
            let primary = Span::new(Offset(extent.offset.0 + n * BLOCK), Length(BLOCK));
            let request = SealRequest::bytes(primary, Length(1), None);
            loop {
                if let Some((id, _)) = entries.seal(&request, 7, None).unwrap() {
                    return id;
                }
                match self.ask(session, RequestBody::EntryPages { count: 32 }) {
                    Ok(ReplyBody::EntryPages(pages)) => entries.add_pages(span(pages)).unwrap(),
                    other => panic!("{other:?}"),
                }
            }
        };
        (0..count).map(seal).collect()
    }
}

fn span(span: WireSpan) -> Span {
    Span::new(Offset(span.0), Length(span.1))
}

const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);

#[test]
fn a_small_count_is_answered_at_once() {
    let mut node = CountingNode::new();
    let slot = node.join(A);
    node.seal(A, slot, 100);
    let seq = node.send(A, RequestBody::Stats);
    assert_eq!(node.objects(seq), 100);
    assert!(matches!(node.ask(A, RequestBody::Namespaces), Ok(ReplyBody::Namespaces(_))));
    assert!(matches!(
        node.ask(A, RequestBody::Overview { cells: 4, held_max: 0 }),
        Ok(ReplyBody::Overview(_))
    ));
    let mut actions = Vec::new();
    node.state.count_for_scrapers(0, &mut actions);
    node.perform(actions);
    assert_eq!(node.scraped, [100]);
}

/// A count of many objects once kept the daemon busy until its end.
#[test]
fn others_are_served_during_a_long_count_which_counts_what_was_there_before_it() {
    let mut node = CountingNode::new();
    let slot = node.join(A);
    node.join(B);
    let ids = node.seal(A, slot, OBJECTS);
    let first = node.send(A, RequestBody::Stats);
    node.turn();
    // The one that came later is counted for anew: its client has deleted an object before it.
    let targets = vec![farrow_wire::WireTarget::Id(ids[0].into())];
    assert!(matches!(node.ask(B, RequestBody::Delete { targets }), Ok(ReplyBody::Deleted(_))));
    let second = node.send(B, RequestBody::Stats);
    let namespaces = node.send(B, RequestBody::Namespaces);
    let overview = node.send(A, RequestBody::Overview { cells: 1, held_max: 0 });
    // Scrapers that hang up while they wait cause no count of their own.
    for _ in 0..1_000 {
        let mut actions = Vec::new();
        node.state.count_for_scrapers(0, &mut actions);
        node.perform(actions);
    }
    assert!(node.answers.is_empty() && node.scraped.is_empty());
    assert!(node.turns() > 4);
    // The object is deleted in the middle of the first count.
    assert!([OBJECTS, OBJECTS - 1].contains(&node.objects(first)));
    assert_eq!(node.objects(second), OBJECTS - 1);
    assert_eq!(node.scraped, [OBJECTS - 1]);
    match node.answer(namespaces) {
        Ok(ReplyBody::Namespaces(all)) => assert_eq!(all[0].objects, OBJECTS - 1),
        other => panic!("{other:?}"),
    }
    assert!(matches!(node.answer(overview), Ok(ReplyBody::Overview(_))));
}

#[test]
fn a_request_that_waits_for_a_count_is_cancelled_forgotten_or_ended_with_the_node() {
    let mut node = CountingNode::new();
    let slot = node.join(A);
    node.join(B);
    node.seal(A, slot, OBJECTS);
    let cancelled = node.send(A, RequestBody::Stats);
    node.send(A, RequestBody::Cancel { seq: cancelled });
    assert!(matches!(node.answer(cancelled), Err(WireError::Cancelled)));
    let left = node.send(A, RequestBody::Stats);
    let removed = node.send(B, RequestBody::Stats);
    node.state.closed(B, false, 0);
    node.turns();
    assert_eq!(node.objects(left), OBJECTS);
    assert!(!node.answers.contains_key(&removed));

    let slot = node.join(SessionId(3));
    node.seal(SessionId(3), slot, OBJECTS);
    let many: Vec<u64> = (0..80).map(|_| node.send(A, RequestBody::Stats)).collect();
    let refused = many.iter().filter(|seq| node.answers.contains_key(seq)).count();
    assert_eq!(refused, 80 - 64);
    assert!(matches!(node.answer(many[79]), Err(WireError::TooMany { max: 64, .. })));
    let mut actions = Vec::new();
    node.state.stop(&mut actions);
    node.perform(actions);
    assert!(matches!(node.answer(many[0]), Err(WireError::Closing)));
}

#[test]
fn counts_are_finished_before_another_daemon_takes_over() {
    let mut node = CountingNode::new();
    let slot = node.join(A);
    node.seal(A, slot, OBJECTS);
    let (first, second) = (node.send(A, RequestBody::Stats), node.send(A, RequestBody::Stats));
    let mut actions = Vec::new();
    node.state.finish_counts(0, &mut actions);
    node.perform(actions);
    assert_eq!((node.objects(first), node.objects(second)), (OBJECTS, OBJECTS));
}

/// The end of a client with many objects of its own once kept the daemon busy until its end.
#[test]
fn a_client_with_many_objects_leaves_in_parts_and_its_objects_stay() {
    let mut node = CountingNode::new();
    let slot = node.join(A);
    node.join(B);
    let ids = node.seal(A, slot, OBJECTS);
    let names = vec!["reserved".to_owned()];
    node.ask(A, RequestBody::Reserve { names: names.clone() }).unwrap();
    node.state.closed(A, false, 0);
    // Its slot is not free yet; names that it reserved are.
    assert_eq!((node.state.clients(), node.state.home().clients().count()), (2, 2));
    node.ask(B, RequestBody::Reserve { names }).unwrap();
    assert!(node.turns() > 4);
    assert_eq!((node.state.clients(), node.state.home().clients().count()), (1, 1));
    let home = node.state.home();
    assert_eq!(u64::from(home.objects()), OBJECTS);
    assert!(ids.iter().all(|id| home.find(Target::Id(*id)).is_ok()));
    let stats = home.stats().unwrap();
    assert_eq!((stats.used.0, stats.granted.0), (OBJECTS * BLOCK, 0));
}

#[test]
fn a_client_with_few_objects_leaves_at_once() {
    let mut node = CountingNode::new();
    let slot = node.join(A);
    node.seal(A, slot, 100);
    node.state.closed(A, false, 0);
    assert_eq!((node.state.clients(), node.state.home().clients().count()), (0, 0));
}
