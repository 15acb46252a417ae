//! Answers of other nodes that come late: to an earlier notice, or from an earlier life. Two nodes
//! of one cluster; the test is their network.
//!
//! * `cache`: the limit on replicas.
//! * `costs`: what nodes measure of each other.
//! * `imports`: objects that clients of another node put.
//! * `ends`: what ends when an answer does not come, or this node is excluded.
//! * `lazy`: objects whose pages are brought as clients read them.
//! * `replace`: objects that take the place of others.
//! * `senders`: from which node a large object is fetched.

mod cache;
mod costs;
mod ends;
mod imports;
mod lazy;
mod replace;
mod senders;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Offset, Region, Span};
use farrow_net::frame::Opened;
use farrow_net::source::MemberLife;
use farrow_store::{
    Home, Layout, ObjectId, ObjectKind, Reader, RegionOptions, RemoteClient, SpillHead, Target,
};
use farrow_wire::{
    Extent, Hello, ImportStep, PROTOCOL_VERSION, ReplyBody, Request, RequestBody, SealItem,
    Welcome, WireError, WireObjectId,
};

use super::transfers::{FetchKey, FetchWaiter};
use super::withdrawals::EVERYTHING;
use crate::protocol::cluster::{
    AgreementKind, Answer, ClusterOptions, MappablePeer, Offer, PeerAction, Question,
};
use crate::protocol::core::residency::RemoteReplicas;
use crate::protocol::net::broadcast::ReplicaKey;
use crate::protocol::net::query::{Brought, NetQuery};
use crate::protocol::net::{NetAction, NetEvent, NetFault, NetReaders, ReaderRules};
use crate::protocol::{
    Action, AdoptedState, DaemonInfo, NodeState, PeerIdentity, SessionId, node_key,
};

const NAMES: [&str; 3] = ["a", "b", "c"];
const INCARNATION: u64 = 5;
const ROUND_MS: u64 = 10;
const CLIENT: SessionId = SessionId(1);
const KEY: ReplicaKey = ReplicaKey([7; 32]);

impl NodeState {
    /// Fetches as for a client of this node.
    fn fetch(
        &mut self,
        waiter: FetchWaiter,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let (replicas, mut context) = self.replicas(now_ms, out);
        replicas.fetch(waiter, &mut context)
    }
}

/// No member has opened anything.
struct NoReaders;

impl NetReaders for NoReaders {
    fn publish_rules(&self, _: ReaderRules) {}

    fn take(&self, _: ObjectId) -> BTreeSet<MemberLife> {
        BTreeSet::new()
    }

    fn close(&self, _: ObjectId) -> BTreeSet<MemberLife> {
        BTreeSet::new()
    }

    fn reopen(&self, _: ObjectId) {}

    fn is_any(&self, _: ObjectId) -> bool {
        false
    }

    fn serve_replica(&self, _: ObjectId, _: ObjectId) -> Option<ReplicaKey> {
        Some(KEY)
    }

    fn hide_replica(&self, _: ObjectId) {}

    fn not_restored(&self, _: ObjectId, _: String) {}

    fn packed(&self) -> [[u64; 2]; 2] {
        Default::default()
    }

    fn served(&self) -> [u64; 2] {
        [0; 2]
    }
}

enum NodeMessage {
    ToPeer(Vec<u8>),
    Question(u64, Vec<u8>),
    Answer(u64, Vec<u8>),
}

/// Nodes that read each other's objects by network; two, where a test says nothing else.
struct ReplicaNodes {
    nodes: Vec<NodeState>,
    now_ms: u64,
    /// Messages by receiver and sender.
    messages: VecDeque<(usize, usize, NodeMessage)>,
    /// The asking node of each question, and its number there.
    requested: Vec<(usize, u64)>,
}

fn node(number: usize) -> NodeState {
    let mut options = RegionOptions::for_capacity(Length(32 << 20));
    (options.objects_max, options.clients_max) = (16, 4);
    let geometry = Layout::new(&options).unwrap().geometry;
    let fabric = Arc::new(ShmFabric::memfd("late-answers", geometry).unwrap());
    let region = Region::map(fabric, Access::Home, None).unwrap();
    let home = Home::create(Arc::new(region), &options, 0).unwrap();
    let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: 0 };
    let mut node = NodeState::new(home, daemon, AdoptedState::default(), 0);
    node.set_net(Arc::new(NoReaders), "net", None);
    node.set_rules(vec!["*:*:all".parse().unwrap()]).unwrap();
    let options = ClusterOptions {
        net: Some("127.0.0.1:9".to_owned()),
        name: NAMES[number].parse().unwrap(),
        address: number.to_string(),
        agreement: AgreementKind::Embedded,
        seeds: (number > 0).then(|| "0".to_owned()).into_iter().collect(),
        lease_ms: 1000,
        offer: Offer {
            host: "one machine".to_owned(),
            region_uid: node.home().uid().0,
            control_bytes: 1,
            data_bytes: 1 << 30,
            capacity: 1,
            base: 0,
            ways: Vec::new(),
        },
        incarnation: INCARNATION,
        seed: 7 + number as u64,
    };
    node.join_cluster(options, 0, &mut Vec::new()).unwrap();
    node
}

impl ReplicaNodes {
    fn new() -> Self {
        Self::of(2)
    }

    fn of(count: usize) -> Self {
        let nodes = (0..count).map(node).collect();
        let mut pair = Self { nodes, now_ms: 0, messages: VecDeque::new(), requested: Vec::new() };
        let is_ready =
            |pair: &Self| pair.nodes.iter().all(|one| one.cluster.net_nodes().len() == count - 1);
        while !(is_ready(&pair) && pair.nodes.iter().all(|one| one.members().has_lease)) {
            assert!(pair.now_ms < 60_000, "they are no cluster after a minute");
            pair.round();
        }
        pair
    }

    fn round(&mut self) -> Vec<Action> {
        self.now_ms += ROUND_MS;
        let mut others = Vec::new();
        for number in 0..self.nodes.len() {
            let mut out = Vec::new();
            self.nodes[number].tick(self.now_ms, &mut out);
            others.extend(self.send(number, out));
        }
        while let Some(more) = self.deliver() {
            others.extend(more);
        }
        others
    }

    /// Delivers the next message; the actions that follow from it.
    fn deliver(&mut self) -> Option<Vec<Action>> {
        let (to, from, message) = self.messages.pop_front()?;
        let (now_ms, mut out) = (self.now_ms, Vec::new());
        let (sender, from) = (from, (NAMES[from], INCARNATION));
        match message {
            NodeMessage::ToPeer(body) => {
                self.nodes[to].on_message(from.into(), &body, now_ms, &mut out)
            }
            NodeMessage::Question(token, body) => {
                let number = self.requested.len() as u64;
                self.requested.push((sender, token));
                self.nodes[to].on_request(number, from.into(), &body, now_ms, &mut out);
            }
            NodeMessage::Answer(token, body) => {
                self.nodes[to].on_response(token, Ok(body), now_ms, &mut out);
            }
        }
        Some(self.send(to, out))
    }

    /// Queues messages to other nodes, and returns the other actions.
    fn send(&mut self, by: usize, actions: Vec<Action>) -> Vec<Action> {
        let mut others = Vec::new();
        for action in actions {
            let (to, message) = match action {
                Action::Peer(PeerAction::Message { address, body, .. }) => {
                    (address.parse().unwrap(), NodeMessage::ToPeer(body))
                }
                Action::Peer(PeerAction::Ask { token, address, body, .. }) => {
                    (address.parse().unwrap(), NodeMessage::Question(token, body))
                }
                Action::Peer(PeerAction::Map { node, .. }) => {
                    self.nodes[by].mapped(&node, Err("another machine".to_owned()));
                    continue;
                }
                Action::Peer(PeerAction::Answer { token: number, body }) => {
                    let (asker, token) = self.requested[number as usize];
                    (asker, NodeMessage::Answer(token, body))
                }
                other => {
                    others.push(other);
                    continue;
                }
            };
            self.messages.push_back((to, by, message));
        }
        others
    }
}

impl ReplicaNodes {
    /// A client of node b sends a request to node a; the answer.
    fn ask(&mut self, session: u64, body: RequestBody) -> Result<ReplyBody, WireError> {
        let (seq, mut out) = (self.now_ms + 1, Vec::new());
        let (session, request) = (SessionId(session), Request { seq, body });
        self.nodes[0].handle(session, request, self.now_ms, 1, &mut out);
        let mut others = self.send(0, out);
        let until_ms = self.now_ms + 10_000;
        loop {
            for action in others {
                if let Action::Send { session: to, reply, .. } = action
                    && (to, reply.seq) == (session, seq)
                {
                    return reply.body;
                }
            }
            assert!(self.now_ms < until_ms, "no answer after 10 s");
            others = self.round();
        }
    }

    /// A connection for requests of a process of node b.
    fn connect(&mut self, session: u64, pid: u32, earlier: Option<&Welcome>) -> Welcome {
        let remote_client = Some(RemoteClient { node: node_key("b") });
        let peer = PeerIdentity { pid, start_time: 1, uid: 0, remote_client };
        self.nodes[0].opened(SessionId(session), peer, self.now_ms);
        let resume = earlier.map(|it| (it.region_uid, it.slot, it.nonce));
        let (namespace, node) = (String::new(), String::new());
        let maps_memory = false;
        let hello = Hello { version: PROTOCOL_VERSION, resume, namespace, node, maps_memory };
        match self.ask(session, RequestBody::Hello(hello)) {
            Ok(ReplyBody::Welcome(welcome)) => welcome,
            other => panic!("{other:?}"),
        }
    }

    fn reserve(&mut self, session: u64, name: &str) -> Result<ReplyBody, WireError> {
        self.ask(session, RequestBody::Reserve { names: vec![name.to_owned()] })
    }
}

fn asked_token(actions: &[Action]) -> u64 {
    let [Action::Peer(PeerAction::Ask { token, .. })] = actions else { panic!("{actions:?}") };
    *token
}

/// Regression test: a member drops its replica, answers, and opens the object again. The home then
/// sends a second notice for a delete. The first answer arrived now and counted for the second
/// notice. When that one failed, a replica of the deleted object stayed.
#[test]
fn the_answer_to_an_earlier_notice_does_not_count_for_a_later_one() {
    let mut pair = ReplicaNodes::new();
    let (now_ms, home) = (pair.now_ms, &mut pair.nodes[0]);
    let member = MemberLife { name: "b".to_owned(), incarnation: INCARNATION };
    let id = ObjectId { hi: home.home().uid().0, lo: 77 };
    let notice = |home: &mut NodeState| {
        let mut out = Vec::new();
        let (replicas, mut context) = home.replicas(now_ms, &mut out);
        replicas.invalidate_at_member(&member, id, &mut context);
        asked_token(&out)
    };
    let (first, second) = (notice(home), notice(home));
    let done = postcard::to_allocvec(&Answer::Done).unwrap();
    let out = &mut Vec::new();
    home.on_response(first, Ok(done.clone()), now_ms, out);
    assert!(home.replicas.is_elsewhere(id), "the second notice has no answer");
    home.on_response(second, Err("the link broke".to_owned()), now_ms, out);
    assert!(home.replicas.is_elsewhere(id), "the second notice failed");
    // The failure of an earlier notice changes nothing either.
    let third = notice(home);
    home.on_response(second, Err("late".to_owned()), now_ms, out);
    home.on_response(third, Ok(done), now_ms, out);
    assert!(!home.replicas.is_elsewhere(id));
}

/// Regression test: a home that started again over its memory evicted objects before it was a member
/// again. Readers had replicas of them, and were told to drop these only afterwards.
#[test]
fn a_home_that_started_again_takes_all_objects_for_replicated() {
    let mut pair = ReplicaNodes::new();
    let (now_ms, home) = (pair.now_ms, &mut pair.nodes[0]);
    let id = ObjectId { hi: home.home().uid().0, lo: 77 };
    assert!(!home.replicas.is_elsewhere(id));
    home.replicas.is_new_life = true;
    assert!(home.replicas.is_elsewhere(id), "no member was told yet");
    let out = &mut Vec::new();
    let (replicas, mut context) = home.replicas(now_ms, out);
    assert!(replicas.announce_new_life([("b".to_owned(), INCARNATION)], &mut context));
    home.settle_leaving(now_ms, out);
    assert!(home.replicas.is_elsewhere(id), "it has not answered");
    let done = postcard::to_allocvec(&Answer::Done).unwrap();
    let token = asked_token(out);
    home.on_response(token, Ok(done), now_ms, &mut Vec::new());
    assert!(!home.replicas.is_elsewhere(id));
}

/// The description of an object of a home, as its data server sends it.
fn described(home: &NodeState) -> Opened {
    described_as(home, 1 << 32)
}

fn described_as(home: &NodeState, lo: u64) -> Opened {
    let head = SpillHead {
        id: ObjectId { hi: home.home().uid().0, lo },
        kind: ObjectKind::Bytes,
        size: Length(100),
        descriptor_bytes: 0,
        metadata_bytes: 0,
        origins: vec![Span::new(Offset(4096), Length(128))],
    };
    let brought = Brought {
        head: head.encode(),
        name: Some("t".to_owned()),
        descriptor: Vec::new(),
        descriptor_crc: 0,
        metadata: Vec::new(),
        metadata_crc: 0,
        sealed_at_ns: 1,
    };
    let blocks = vec![Span::new(Offset(0), Length(128))];
    Opened { blocks, entry: brought.encode().unwrap(), inline: vec![7; 128] }
}

fn opened_at(home: &str, actions: &[Action]) -> Option<u64> {
    actions.iter().find_map(|action| match action {
        Action::Net(NetAction::Open { token, node, .. }) if node == home => Some(*token),
        _ => None,
    })
}

/// Regression test: a home is killed after it described an object, and its next daemon says that
/// all earlier replicas are gone. The description was still in the queue of the reader's node and
/// became a replica, which the home does not know and never recalls.
#[test]
fn a_description_from_an_earlier_life_becomes_no_replica() {
    let mut pair = ReplicaNodes::new();
    let opened = described(&pair.nodes[0]);
    let (now_ms, reader) = (pair.now_ms, &mut pair.nodes[1]);
    let key = FetchKey::new(NetQuery::Name("t".to_owned()), Extent::Whole).unwrap();
    let waiter = FetchWaiter { key, session: CLIENT, seq: 1, until_ms: u64::MAX };
    let mut out = Vec::new();
    assert_eq!(reader.fetch(waiter, now_ms, &mut out), Ok(None));
    let token = opened_at("a", &out).unwrap();

    let invalidated = Question::Invalidate { objects: vec![EVERYTHING.lo] };
    let invalidated = postcard::to_allocvec(&invalidated).unwrap();
    reader.on_request(0, ("a", INCARNATION).into(), &invalidated, now_ms, &mut Vec::new());
    let answer = |hold| {
        let result = Ok((hold, opened.clone()));
        NetEvent::Opened { token, node: "a".to_owned(), result }
    };
    let mut out = Vec::new();
    reader.net_event(answer(9), now_ms, &mut out);
    let released = Action::Net(NetAction::Release { node: "a".to_owned(), hold: 9 });
    assert_eq!(out, [released], "neither an answer to the client nor a transfer");

    let until_ms = now_ms + 1_000;
    let mut again = None;
    while again.is_none() && pair.now_ms < until_ms {
        again = opened_at("a", &pair.round());
    }
    assert_eq!(again, Some(token), "the home is asked again");
    let (now_ms, reader, mut out) = (pair.now_ms, &mut pair.nodes[1], Vec::new());
    reader.net_event(answer(10), now_ms, &mut out);
    let is_answer = |action: &Action| {
        matches!(action, Action::Send { session: CLIENT, reply, .. }
            if matches!(reply.body, Ok(ReplyBody::Fetched(Some(_)))))
    };
    assert!(out.iter().any(is_answer), "{out:?}");
}

/// Regression test: a client's connection for requests broke, and the other node did not notice.
/// The client's next put of the same name failed, since its own earlier connection had reserved it.
#[test]
fn a_new_connection_for_requests_ends_the_broken_one() {
    let mut pair = ReplicaNodes::new();
    let first = pair.connect(10, 42, None);
    assert_eq!(pair.reserve(10, "t"), Ok(ReplyBody::Done));
    // Another process, and one that has seen the place, end nothing.
    pair.connect(11, 43, Some(&first));
    assert!(matches!(pair.reserve(11, "t"), Err(WireError::NameTaken { .. })));
    let second = pair.connect(12, 42, Some(&first));
    assert_eq!(pair.reserve(12, "t"), Ok(ReplyBody::Done));
    assert!(matches!(pair.reserve(11, "t"), Err(WireError::NameTaken { .. })));
    // The slot of the first may be another client's by now.
    pair.connect(13, 42, Some(&first));
    assert!(matches!(pair.reserve(13, "t"), Err(WireError::NameTaken { .. })));
    pair.connect(14, 42, Some(&second));
    assert_eq!(pair.reserve(14, "t"), Ok(ReplyBody::Done));
}

/// Regression test: node a maps the memory of node b, and b does not map that of a. A client of b
/// put an object at a: it wrote the value, and then a refused to bring it.
#[test]
fn an_object_of_a_mapped_node_is_imported_by_network() {
    let mut pair = ReplicaNodes::new();
    let of_b = Arc::clone(pair.nodes[1].home().region());
    let fabric = Arc::clone(of_b.fabric());
    let reader = Reader::open(of_b).unwrap();
    pair.nodes[0].mapped("b", Ok(MappablePeer { fabric, reader }));
    pair.connect(10, 42, None);
    assert_eq!(pair.reserve(10, "t"), Ok(ReplyBody::Done));
    let opened = described(&pair.nodes[1]);
    let origin = WireObjectId { hi: pair.nodes[1].home().uid().0, lo: 1 << 32 };
    let step = ImportStep::Seal { name: Some("t".to_owned()), metadata: None, is_pinned: false };
    let import = RequestBody::Import { origin, step, wait_ms: 60_000 };
    let (request, mut out) = (Request { seq: 7, body: import }, Vec::new());
    let now_ms = pair.now_ms;
    pair.nodes[0].handle(SessionId(10), request, now_ms, 1, &mut out);
    let token = opened_at("b", &out).unwrap();

    // Nothing was fetched from b before, so there is no connection to its data server.
    let lost = Err(NetFault::Lost("no connection".to_owned()));
    let event = NetEvent::Opened { token, node: "b".to_owned(), result: lost };
    let mut out = Vec::new();
    pair.nodes[0].net_event(event, now_ms, &mut out);
    let mut later = pair.send(0, out);
    let is_connected = |action: &Action| matches!(action, Action::Net(NetAction::Connect { node, .. }) if node == "b");
    let until_ms = now_ms + 1_000;
    while pair.now_ms < until_ms
        && !(later.iter().any(is_connected) && opened_at("b", &later).is_some())
    {
        later.extend(pair.round());
    }
    assert!(later.iter().any(is_connected), "{later:?}");
    assert_eq!(opened_at("b", &later), Some(token), "it is tried again");
    let (event, mut out) =
        (NetEvent::Opened { token, node: "b".to_owned(), result: Ok((9, opened)) }, Vec::new());
    let now_ms = pair.now_ms;
    pair.nodes[0].net_event(event, now_ms, &mut out);
    let is_done = |action: &Action| {
        matches!(action, Action::Send { session: SessionId(10), reply, .. }
            if matches!(reply.body, Ok(ReplyBody::Fetched(Some(_)))))
    };
    assert!(out.iter().any(is_done), "{out:?}");
    assert!(pair.nodes[0].home().has_name("t").unwrap());
}

/// Regression test: a client put one object by one thread at a node that it does not map, and another
/// thread cancelled a call that was just answered. Between two steps of the import no request waited
/// for it, so the node gave it up, and the put failed with `NodeLost`.
#[test]
fn a_cancelled_call_ends_no_import_of_another_thread() {
    let mut pair = ReplicaNodes::new();
    pair.connect(10, 42, None);
    assert_eq!(pair.reserve(10, "t"), Ok(ReplyBody::Done));
    let id = ObjectId { hi: pair.nodes[1].home().uid().0, lo: 1 << 32 };
    let import = |name: &str, wait_ms| {
        let step =
            ImportStep::Seal { name: Some(name.to_owned()), metadata: None, is_pinned: false };
        RequestBody::Import { origin: id.into(), step, wait_ms }
    };
    let answer_to = |wanted: u64, actions: &[Action]| {
        actions.iter().find_map(|action| match action {
            Action::Send { session: SessionId(10), reply, .. } if reply.seq == wanted => {
                Some(reply.body.clone())
            }
            _ => None,
        })
    };
    let (now_ms, mut out) = (pair.now_ms, Vec::new());
    let request = Request { seq: 7, body: import("t", ROUND_MS) };
    pair.nodes[0].handle(SessionId(10), request, now_ms, 1, &mut out);
    let token = opened_at("b", &out).unwrap();
    let opened = Opened { inline: Vec::new(), ..described(&pair.nodes[1]) };
    let event = NetEvent::Opened { token, node: "b".to_owned(), result: Ok((9, opened)) };
    let mut out = Vec::new();
    pair.nodes[0].net_event(event, now_ms, &mut out);
    let is_load = |action: &Action| matches!(action, Action::Net(NetAction::Load { .. }));
    assert!(out.iter().any(is_load), "{out:?}");
    let (until_ms, mut answer) = (now_ms + 1_000, None);
    while answer.is_none() && pair.now_ms < until_ms {
        answer = answer_to(7, &pair.round());
    }
    assert_eq!(answer, Some(Ok(ReplyBody::Fetching)));

    assert_eq!(pair.ask(10, RequestBody::Cancel { seq: 5 }), Ok(ReplyBody::Done));
    let (now_ms, mut out) = (pair.now_ms, Vec::new());
    let request = Request { seq: 8, body: import("t", 60_000) };
    pair.nodes[0].handle(SessionId(10), request, now_ms, 1, &mut out);
    assert_eq!(answer_to(8, &out), None);
    let event = NetEvent::Loaded { origin: id, result: Ok(()) };
    pair.nodes[0].net_event(event, now_ms, &mut out);
    let answer = answer_to(8, &out);
    assert!(matches!(answer, Some(Ok(ReplyBody::Fetched(Some(_))))), "{answer:?}");

    // The cancelled request itself ends its import, here of another object.
    assert_eq!(pair.reserve(10, "u"), Ok(ReplyBody::Done));
    let mut body = import("u", 60_000);
    if let RequestBody::Import { origin, .. } = &mut body {
        origin.lo += 1 << 32;
    }
    let request = Request { seq: 9, body };
    let mut out = Vec::new();
    pair.nodes[0].handle(SessionId(10), request, now_ms, 1, &mut out);
    assert!(opened_at("b", &out).is_some(), "{out:?}");
    pair.nodes[0].handle(
        SessionId(10),
        Request { seq: 10, body: RequestBody::Cancel { seq: 9 } },
        now_ms,
        1,
        &mut out,
    );
    assert_eq!(answer_to(9, &out), Some(Err(WireError::Cancelled)));
    assert!(pair.nodes[0].replicas.openings.is_empty());
}
