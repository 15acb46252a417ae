//! Two nodes without sockets, that hear each other through this.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use farrow_cluster::protocol::cluster::{
    AgreementKind, Answer, ClusterOptions, MappablePeer, Offer, PeerAction,
};
use farrow_cluster::protocol::{
    Action, AdoptedState, DaemonInfo, NodeState, PeerIdentity, SessionId,
};
use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Region};
use farrow_store::{Home, Layout, Lru, Reader, RegionOptions, RemoteClient};
use farrow_wire::{
    self as wire, Hello, Members, PROTOCOL_VERSION, ReplyBody, Request, RequestBody, SealItem,
    WireError, WireTarget,
};

use super::{StepKind, step};

const NAMES: [&str; 2] = ["a", "b"];
const ADDRESSES: [&str; 2] = ["127.0.0.1:1", "127.0.0.1:2"];
const LEASE_MS: u64 = 1000;
/// Time between two rounds.
const ROUND_MS: u64 = 50;
/// By then both are in the view and have the lease.
const ROUNDS_TO_FOUND: usize = 60;
/// As long as a node may have something to do at one time; each tick does some of it.
const TICKS_MAX: usize = 1000;
/// Requests of a remote session that are served in one step.
const FRAMES_MAX: usize = 64;
const OWNER: u32 = 1000;
/// Sessions of each node: a client of its own, one of the other node.
const LOCAL: SessionId = SessionId(0);
const REMOTE_CLIENT: SessionId = SessionId(1);
const RETAINED: &str = "kept by a local client";

thread_local! {
    /// Mapped once; each run lays them out again.
    static REGIONS: RefCell<Vec<Arc<Region>>> = const { RefCell::new(Vec::new()) };
    /// What the two keep once they are a cluster, so that a run begins with that.
    static FOUNDED: RefCell<Option<[Vec<u8>; 2]>> = const { RefCell::new(None) };
}

/// Few of everything, since each run makes all tables again.
pub(super) fn options() -> RegionOptions {
    let mut options = RegionOptions::for_capacity(Length(256 << 10));
    options.objects_max = 16;
    options.clients_max = 4;
    options.grants_max = 16;
    options.hold_blocks_max = 8;
    options.client_objects_max = 84;
    options.events_max = 32;
    options.namespaces_max = 4;
    options.name_bytes = Length(1 << 12);
    options
}

fn region(number: usize) -> Arc<Region> {
    REGIONS.with_borrow_mut(|retained| {
        while retained.len() <= number {
            let geometry = Layout::new(&options()).unwrap().geometry;
            let fabric = Arc::new(ShmFabric::memfd("fuzzed", geometry).unwrap());
            retained.push(Arc::new(Region::map(fabric, Access::Home, None).unwrap()));
        }
        Arc::clone(&retained[number])
    })
}

fn cluster_options(number: usize) -> ClusterOptions {
    ClusterOptions {
        net: None,
        name: NAMES[number].parse().unwrap(),
        address: ADDRESSES[number].to_owned(),
        agreement: AgreementKind::Embedded,
        seeds: vec![ADDRESSES[1 - number].to_owned()],
        lease_ms: LEASE_MS,
        offer: Offer {
            host: "one machine".to_owned(),
            region_uid: number as u64,
            control_bytes: 1,
            data_bytes: 1,
            capacity: 1,
            base: 0,
            ways: Vec::new(),
        },
        incarnation: 5,
        seed: 7 + number as u64,
    }
}

/// A question that was not answered yet.
struct OpenQuestion {
    by: usize,
    token: u64,
    from: u64,
    body: Vec<u8>,
}

struct FuzzedNode {
    state: NodeState,
    /// Messages and questions to the other one.
    messages: VecDeque<(u64, Vec<u8>)>,
    requested: VecDeque<OpenQuestion>,
    /// What the other one's client wrote and is not a whole frame yet.
    remote_session: Vec<u8>,
}

impl FuzzedNode {
    fn new(number: usize, retained: Option<&[u8]>, out: &mut Vec<Action>) -> Self {
        let mut home = Home::create(region(number), &options(), 0).unwrap();
        if let Some(retained) = retained {
            home.keep_for_cluster(retained).unwrap();
        }
        let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: OWNER };
        let mut state = NodeState::new(home, daemon, AdoptedState::default(), 0);
        state.set_eviction_policy(Box::new(Lru));
        state.join_cluster(cluster_options(number), 0, out).unwrap();
        Self {
            state,
            messages: VecDeque::new(),
            requested: VecDeque::new(),
            remote_session: Vec::new(),
        }
    }
}

pub struct FuzzedNodes {
    nodes: [FuzzedNode; 2],
    now_ms: u64,
    next_request: u64,
    /// Steps that `b` takes, as it takes them.
    pub recorded: Option<Vec<Vec<u8>>>,
    /// So many of the next questions of `a` do not come to `b`,
    pub lost_questions: u32,
    /// and this number of the next answers of `b` not to `a`.
    pub lost_answers: u32,
    /// Nothing that one of them says comes to the other.
    pub is_cut: bool,
    /// What `b` said, and in which life, if somebody wants to know.
    pub said_by_b: Option<Vec<(StepKind, u64, Vec<u8>)>>,
    /// What clients of each node were answered, the remote clients of the nodes left out.
    pub replies: Vec<(usize, Result<ReplyBody, WireError>)>,
}

impl FuzzedNodes {
    /// Two nodes that have not heard of each other.
    pub fn new(retained: Option<&[Vec<u8>; 2]>, is_recorded: bool) -> Self {
        let mut first = [Vec::new(), Vec::new()];
        let nodes = [0, 1].map(|number| {
            FuzzedNode::new(
                number,
                retained.map(|retained| &retained[number][..]),
                &mut first[number],
            )
        });
        let recorded = is_recorded.then(Vec::new);
        let mut world = Self {
            nodes,
            now_ms: 0,
            next_request: 0,
            recorded,
            lost_questions: 0,
            lost_answers: 0,
            is_cut: false,
            said_by_b: None,
            replies: Vec::new(),
        };
        for (number, actions) in first.into_iter().enumerate() {
            world.perform(number, actions);
        }
        world
    }

    /// Two nodes of a cluster, each with a client of its own and one of the other.
    pub fn founded() -> Self {
        let known = FOUNDED.with_borrow(Clone::clone);
        let retained = known.unwrap_or_else(|| {
            let mut world = Self::new(None, false);
            (0..ROUNDS_TO_FOUND).for_each(|_| world.round());
            let retained = [0, 1].map(|number| {
                world.nodes[number].state.home().retained_for_cluster().unwrap().unwrap()
            });
            FOUNDED.set(Some(retained.clone()));
            retained
        });
        let mut world = Self::new(Some(&retained), false);
        (0..20).for_each(|_| world.round());
        assert!(world.nodes[0].state.is_peer("b") && world.nodes[1].state.is_peer("a"));
        world.connect();
        world
    }

    /// What `b` says from now on is recorded, as steps.
    pub fn record_from_now(&mut self) {
        self.recorded = Some(Vec::new());
    }

    /// The steps that were recorded, in runs of as many as one run takes.
    pub fn runs(self) -> Vec<Vec<u8>> {
        let steps = self.recorded.unwrap_or_default();
        steps.chunks(super::STEPS_MAX).map(<[Vec<u8>]>::concat).collect()
    }

    /// Clients at both nodes, and an object with a name in the memory of `a`.
    pub fn connect(&mut self) {
        for number in [0, 1] {
            for (session, remote_client) in
                [(LOCAL, None), (REMOTE_CLIENT, Some(RemoteClient { node: 0xb }))]
            {
                let pid = 10 + session.0 as u32;
                let peer = PeerIdentity { pid, start_time: 1, uid: OWNER, remote_client };
                self.nodes[number].state.opened(session, peer, self.now_ms);
                let hello = Hello {
                    version: PROTOCOL_VERSION,
                    resume: None,
                    namespace: String::new(),
                    node: String::new(),
                    maps_memory: true,
                };
                self.request(number, session, RequestBody::Hello(hello));
            }
        }
        let ask = RequestBody::Grant { min: 4096, want: 4096, wait_ms: 0 };
        let Some(ReplyBody::Granted(span)) = self.request(0, LOCAL, ask) else {
            panic!("no memory")
        };
        let item = SealItem { name: Some(RETAINED.into()), ..SealItem::bytes(span, 5) };
        self.request(0, LOCAL, RequestBody::Seal { items: vec![item] });
        self.round();
        self.round();
        let targets = vec![WireTarget::Name(RETAINED.into())];
        self.request(0, LOCAL, RequestBody::Pin { targets, is_pinned: true });
        // Whatever else the other node is let do, it takes nothing away.
        let rules = vec!["*:*:read,write".parse().unwrap()];
        self.nodes[0].state.set_rules(rules).unwrap();
        assert!(self.has_retained());
    }

    /// Lets the other node do everything: for the canary, which takes the object away.
    pub fn allow_all(&mut self) {
        self.nodes[0].state.set_rules(vec!["*:*:all".parse().unwrap()]).unwrap();
    }

    fn has_retained(&self) -> bool {
        self.nodes[0].state.home().has_name(RETAINED).unwrap()
    }

    /// A client of a node asks; the answer, if it comes at once.
    pub fn request(
        &mut self,
        number: usize,
        session: SessionId,
        body: RequestBody,
    ) -> Option<ReplyBody> {
        let mut out = Vec::new();
        let request = Request { seq: 9, body };
        self.nodes[number].state.handle(session, request, self.now_ms, 1, &mut out);
        let answer = out.iter().find_map(|action| match action {
            Action::Send { session: to, reply, .. } if *to == session => reply.body.clone().ok(),
            _ => None,
        });
        self.perform(number, out);
        answer
    }

    /// A client of `b` asks in its own node, or in the memory of `a`.
    pub fn request_of_b(&mut self, is_remote_session: bool, body: RequestBody) {
        if !is_remote_session {
            self.request(1, LOCAL, body);
            return;
        }
        let mut frame = Vec::new();
        wire::encode(&Request { seq: 9, body }, &mut frame).unwrap();
        self.record(StepKind::RemoteSession, &frame);
        self.take(StepKind::RemoteSession, &frame);
    }

    /// A client of `a` asks.
    pub fn request_of_a(&mut self, body: RequestBody) {
        let bytes = postcard::to_allocvec(&body).unwrap();
        self.record(StepKind::Local, &bytes);
        self.request(0, LOCAL, body);
    }

    /// An object with a name in the memory of `b`.
    pub fn seal_at_b(&mut self, name: &str) {
        let ask = RequestBody::Grant { min: 4096, want: 4096, wait_ms: 0 };
        let Some(ReplyBody::Granted(span)) = self.request(1, LOCAL, ask) else {
            panic!("no memory")
        };
        let item = SealItem { name: Some(name.into()), ..SealItem::bytes(span, 5) };
        self.request(1, LOCAL, RequestBody::Seal { items: vec![item] });
    }

    fn record(&mut self, kind: StepKind, body: &[u8]) {
        if let Some(recorded) = &mut self.recorded {
            recorded.push(step(kind, body));
        }
    }

    fn remember(&mut self, kind: StepKind, life: u64, body: &[u8]) {
        if let Some(said) = &mut self.said_by_b {
            said.push((kind, life, body.to_vec()));
        }
    }

    /// One step of a made-up `b`.
    pub fn take(&mut self, kind: StepKind, body: &[u8]) {
        let mut out = Vec::new();
        let now_ms = self.now_ms;
        let node = &mut self.nodes[0];
        match kind {
            StepKind::Message => node.state.on_message(("b", 5).into(), body, now_ms, &mut out),
            StepKind::Stranger => node.state.on_message(("c", 1).into(), body, now_ms, &mut out),
            StepKind::Question => {
                node.state.on_request(
                    u64::MAX - self.next_request,
                    ("b", 5).into(),
                    body,
                    now_ms,
                    &mut out,
                );
            }
            StepKind::Answer => {
                if let Some(requested) = node.requested.pop_front() {
                    node.state.on_response(requested.token, Ok(body.to_vec()), now_ms, &mut out);
                }
            }
            StepKind::RemoteSession => self.take_remote_session(body, &mut out),
            StepKind::Local => {
                if let Ok(body) = postcard::from_bytes::<RequestBody>(body)
                    && !takes_away(&body)
                {
                    self.request(0, LOCAL, body);
                }
            }
            StepKind::Time => self.now_ms += u64::from(body.first().copied().unwrap_or(1)),
            StepKind::Round => self.round(),
        }
        self.perform(0, out);
        self.tick(0);
    }

    fn take_remote_session(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        let now_ms = self.now_ms;
        let node = &mut self.nodes[0];
        node.remote_session.extend_from_slice(bytes);
        for _ in 0..FRAMES_MAX {
            match wire::decode::<Request>(&node.remote_session) {
                Ok(Some((request, used))) => {
                    node.remote_session.drain(..used);
                    node.state.handle(REMOTE_CLIENT, request, now_ms, 1, out);
                }
                Ok(None) => break,
                Err(_) => {
                    node.remote_session.clear();
                    node.state.closed(REMOTE_CLIENT, true, now_ms);
                    break;
                }
            }
        }
    }

    fn tick(&mut self, number: usize) {
        let mut out = Vec::new();
        self.nodes[number].state.tick(self.now_ms, &mut out);
        self.perform(number, out);
    }

    /// Time goes by, and each hears what the other one had to say.
    pub fn round(&mut self) {
        self.now_ms += ROUND_MS;
        for number in [0, 1] {
            self.tick(number);
        }
        for to in [0, 1] {
            let from = 1 - to;
            let messages = std::mem::take(&mut self.nodes[from].messages);
            for (incarnation, body) in messages {
                if to == 0 {
                    self.record(StepKind::Message, &body);
                    self.remember(StepKind::Message, incarnation, &body);
                }
                if self.is_cut {
                    continue;
                }
                let (mut out, name) = (Vec::new(), (NAMES[from], incarnation));
                self.nodes[to].state.on_message(name.into(), &body, self.now_ms, &mut out);
                self.perform(to, out);
            }
            let requested = std::mem::take(&mut self.nodes[from].requested);
            for OpenQuestion { by, token, from: incarnation, body } in requested {
                if self.is_cut {
                    self.fail(by, token);
                    continue;
                }
                if by == 0 && self.lost_questions > 0 {
                    self.lost_questions -= 1;
                    self.fail(by, token);
                    continue;
                }
                if to == 0 {
                    self.record(StepKind::Question, &body);
                    self.remember(StepKind::Question, incarnation, &body);
                }
                let number = self.next_request;
                self.next_request += 1;
                let (mut out, name) = (Vec::new(), (NAMES[by], incarnation));
                self.nodes[to].state.on_request(number, name.into(), &body, self.now_ms, &mut out);
                let at = out.iter().position(|action| {
                    matches!(action, Action::Peer(PeerAction::Answer { token, .. }) if *token == number)
                });
                let answer = at.map(|at| out.remove(at));
                self.perform(to, out);
                if by == 0 && self.lost_answers > 0 {
                    self.lost_answers -= 1;
                    self.fail(by, token);
                    continue;
                }
                let body = match answer {
                    Some(Action::Peer(PeerAction::Answer { body, .. })) => body,
                    // It watches a process, or cleans its caches.
                    _ => postcard::to_allocvec(&Answer::IsThere(true)).unwrap(),
                };
                if by == 0 {
                    self.record(StepKind::Answer, &body);
                }
                let mut out = Vec::new();
                self.nodes[by].state.on_response(token, Ok(body), self.now_ms, &mut out);
                self.perform(by, out);
            }
        }
    }

    /// `a` gets something that `b` said in some life; what it answers to a question, at once.
    pub fn again(&mut self, kind: StepKind, life: u64, body: &[u8]) -> Option<Answer> {
        let (mut out, now_ms) = (Vec::new(), self.now_ms);
        let token = u64::MAX / 2;
        let state = &mut self.nodes[0].state;
        match kind {
            StepKind::Message => state.on_message(("b", life).into(), body, now_ms, &mut out),
            _ => state.on_request(token, ("b", life).into(), body, now_ms, &mut out),
        }
        let answer = out.iter().find_map(|action| match action {
            Action::Peer(PeerAction::Answer { token: of, body }) if *of == token => {
                Some(postcard::from_bytes(body).unwrap())
            }
            _ => None,
        });
        self.perform(0, out);
        answer
    }

    /// A client of `b`, that has a place at `a` already, asks for it by another connection.
    pub fn remote_client_returns(&mut self, pid: u32) -> Result<ReplyBody, WireError> {
        let session = SessionId(100 + self.next_request);
        self.next_request += 1;
        let remote_client = RemoteClient { node: 0xb };
        let home = self.nodes[0].state.home();
        let record =
            home.clients().find(|record| record.remote_client == Some(remote_client)).unwrap();
        let resume = Some((home.uid().0, record.client.0, record.nonce));
        let peer =
            PeerIdentity { pid, start_time: 1, uid: OWNER, remote_client: Some(remote_client) };
        let hello = Hello {
            version: PROTOCOL_VERSION,
            resume,
            namespace: String::new(),
            node: String::new(),
            maps_memory: true,
        };
        let mut out = Vec::new();
        let state = &mut self.nodes[0].state;
        state.opened(session, peer, self.now_ms);
        let request = Request { seq: 9, body: RequestBody::Hello(hello) };
        state.handle(session, request, self.now_ms, 1, &mut out);
        out.into_iter()
            .find_map(|action| match action {
                Action::Send { session: to, reply, .. } if to == session => Some(reply.body),
                _ => None,
            })
            .unwrap()
    }

    /// The first connection of that client is known to have ended; its process lives.
    pub fn remote_client_lost(&mut self) {
        self.nodes[0].state.closed(REMOTE_CLIENT, true, self.now_ms).unwrap();
    }

    /// The process of that client.
    pub const REMOTE_CLIENT_PID: u32 = 10 + REMOTE_CLIENT.0 as u32;

    /// Whom `a` sees, with lives, and whether it has the lease.
    pub fn members_of_a(&mut self) -> Members {
        match self.request(0, LOCAL, RequestBody::Nodes) {
            Some(ReplyBody::Nodes(members)) => members,
            other => panic!("{other:?}"),
        }
    }

    /// A question brought no answer.
    fn fail(&mut self, by: usize, token: u64) {
        let mut out = Vec::new();
        let none = Err("no answer".to_owned());
        self.nodes[by].state.on_response(token, none, self.now_ms, &mut out);
        self.perform(by, out);
    }

    fn perform(&mut self, number: usize, actions: Vec<Action>) {
        for action in actions {
            let node = &mut self.nodes[number];
            match action {
                Action::Peer(PeerAction::Message { address, incarnation, body })
                    if address == ADDRESSES[1 - number] =>
                {
                    node.messages.push_back((incarnation, body));
                }
                Action::Peer(PeerAction::Ask { token, node: to, incarnation, body, .. }) => {
                    if to == NAMES[1 - number] {
                        let requested = OpenQuestion { by: number, token, from: incarnation, body };
                        node.requested.push_back(requested);
                    } else {
                        let mut out = Vec::new();
                        let none = Err("nobody there".to_owned());
                        node.state.on_response(token, none, self.now_ms, &mut out);
                        assert!(out.len() < 10_000);
                    }
                }
                Action::Peer(PeerAction::Map { node: of, .. }) => {
                    let memory = match NAMES.iter().position(|name| *name == of) {
                        Some(of) if of != number => Ok(memory(of)),
                        _ => Err("there is none".to_owned()),
                    };
                    node.state.mapped(&of, memory);
                }
                Action::Peer(PeerAction::Bridge { session, .. }) | Action::Close { session } => {
                    node.state.closed(session, false, self.now_ms);
                }
                Action::Send { session: LOCAL, reply, .. } => {
                    self.replies.push((number, reply.body));
                }
                _ => {}
            }
        }
    }

    /// What has to hold whatever came.
    pub fn assert_sound(&mut self) {
        let mut ticks = 0;
        while self.nodes[0].state.next_deadline_ms().is_some_and(|at| at <= self.now_ms) {
            self.tick(0);
            ticks += 1;
            assert!(ticks < TICKS_MAX, "the node spins");
        }
        let state = &mut self.nodes[0].state;
        state.home().check().unwrap();
        let stats = state.stats(self.now_ms).unwrap();
        let sum = stats.used + stats.free + stats.granted + stats.retiring + stats.quarantine;
        assert_eq!(stats.capacity, sum, "{stats:?}");
        assert!(self.has_retained(), "{stats:?}");
    }

    /// The object that has to stay.
    pub fn retained_target() -> WireTarget {
        WireTarget::Name(RETAINED.into())
    }
}

/// What the node's own user may do to the object that has to stay, or let others do.
fn takes_away(body: &RequestBody) -> bool {
    matches!(
        body,
        RequestBody::Delete { .. }
            | RequestBody::Pin { .. }
            | RequestBody::SetRule(_)
            | RequestBody::RemoveRule { .. }
    )
}

fn memory(number: usize) -> MappablePeer {
    let region = region(number);
    let fabric = Arc::clone(region.fabric());
    MappablePeer { fabric, reader: Reader::open(region).unwrap() }
}
