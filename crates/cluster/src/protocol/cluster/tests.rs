//! Two nodes without a common kernel; the test controls their clock and network. Clients of node b
//! use memory of node a.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use farrow_memory::device::DeviceFabric;
use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, CoherenceClass, Fabric, Length, Region};
use farrow_store::{
    Held, HoldTable, Home, Layout, ObjectId, Reader, RegionOptions, RemoteClient, StoreError,
    Target,
};
use farrow_wire::{
    Hello, Members, NodeStats, PROTOCOL_VERSION, Reach, ReplyBody, Request, RequestBody, SealItem,
    Welcome, WireError, WireSpan, WireTarget, span,
};

use super::clients::watched::AGAIN_MS;
use super::*;
use crate::protocol::{
    Action, AdoptedState, DaemonInfo, NodeState, PeerIdentity, SessionId, answer_peer, node_key,
};

mod cut_off;
mod joined;
mod names;
mod numbers;
mod remote_clients;
mod waits;

const NAMES: [&str; 2] = ["a", "b"];
const ADDRESSES: [&str; 2] = ["127.0.0.1:1", "127.0.0.1:2"];
const LEASE_MS: u64 = 1000;
/// Time between two rounds.
const ROUND_MS: u64 = 50;
/// By then both nodes are in the view and all consequences have happened.
const LONG_MS: u64 = 5 * LEASE_MS;
/// Enough for a question, its answer and their consequences.
const SOON_MS: u64 = AGAIN_MS + 4 * ROUND_MS;
/// Time between two checks of the whole region.
const CHECK_MS: u64 = 500;
const OWNER: u32 = 1000;
const HELD: u64 = 8 << 10;
const GRANTED: u64 = 16 << 10;

fn options() -> RegionOptions {
    let mut options = RegionOptions::for_capacity(Length(256 << 10));
    options.objects_max = 16;
    options.clients_max = 6;
    options
}

fn fabric(dir: &tempfile::TempDir, number: usize, is_node_local: bool) -> Arc<dyn Fabric> {
    let geometry = Layout::new(&options()).unwrap().geometry;
    if !is_node_local {
        return Arc::new(ShmFabric::memfd("remote-clients-test", geometry).unwrap());
    }
    let path = dir.path().join(number.to_string());
    std::fs::File::create(&path).unwrap().set_len(geometry.total().0).unwrap();
    Arc::new(DeviceFabric::open(&path, 0, geometry, CoherenceClass::NodeLocal).unwrap())
}

/// A client of node b that uses memory of node a.
struct Far {
    session: SessionId,
    pid: u32,
    welcome: Welcome,
    holds: Arc<HoldTable>,
    held: Vec<Held>,
    granted: WireSpan,
}

/// How node b handles questions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Questions {
    Answered,
    /// Questions fail at once. Messages are delivered.
    Refused,
    /// As [`Self::Refused`], only for notifications of sealed names.
    SealedRefused,
    /// A version that does not know the question about the names of a joining node.
    JoinedUnknown,
}

struct MappedCluster {
    _dir: tempfile::TempDir,
    fabrics: [Arc<dyn Fabric>; 2],
    nodes: Vec<NodeState>,
    now_ms: u64,
    sessions: u64,
    /// Local client of node a.
    local: SessionId,
    /// Sessions at node a of clients of node b.
    remote_clients: BTreeSet<SessionId>,
    /// No message is delivered.
    is_cut: bool,
    /// The daemon of b is stopped.
    is_stopped: bool,
    questions: Questions,
    /// Whether answers of b about processes are delayed.
    is_slow: bool,
    late: Vec<(u64, u32)>,
    /// Whether b can clean its caches.
    is_cleaning: bool,
    /// Running processes on b.
    running: BTreeSet<u32>,
    messages: VecDeque<(usize, u64, Vec<u8>)>,
    /// Questions with their asking nodes.
    requested: VecDeque<(u64, usize, u64, Vec<u8>)>,
    waiting: BTreeMap<u64, (usize, u64)>,
    answers: VecDeque<(usize, u64, Result<Vec<u8>, String>)>,
    /// Questions that get no answer, and when that is known.
    lost: Vec<(u64, usize, u64)>,
    next_request: u64,
    /// Questions of a to b about its clients, with their times.
    log: Vec<(u64, Question)>,
    /// Replies of b to its clients.
    replies: Vec<(SessionId, u64, Result<ReplyBody, WireError>)>,
}

impl MappedCluster {
    /// Both are in the view; a local client of a is connected.
    fn new(is_node_local: bool) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let fabrics = [0, 1].map(|number| fabric(&dir, number, is_node_local));
        let mut world = Self {
            _dir: dir,
            fabrics,
            nodes: Vec::new(),
            now_ms: 0,
            sessions: 0,
            local: SessionId(0),
            remote_clients: BTreeSet::new(),
            is_cut: false,
            is_stopped: false,
            questions: Questions::Answered,
            is_slow: false,
            late: Vec::new(),
            is_cleaning: true,
            running: BTreeSet::new(),
            messages: VecDeque::new(),
            requested: VecDeque::new(),
            waiting: BTreeMap::new(),
            answers: VecDeque::new(),
            lost: Vec::new(),
            next_request: 0,
            log: Vec::new(),
            replies: Vec::new(),
        };
        let mut first = Vec::new();
        for number in [0, 1] {
            let region = Region::map(Arc::clone(&world.fabrics[number]), Access::Home, None);
            let home = Home::create(Arc::new(region.unwrap()), &options(), 0).unwrap();
            let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: OWNER };
            world.nodes.push(NodeState::new(home, daemon, AdoptedState::default(), 0));
            first.push(world.join_cluster(number));
        }
        (0..).zip(first).for_each(|(number, out)| world.perform(number, out));
        world.go_on(LONG_MS);
        assert_eq!(world.reach_of_b(), Reach::Live);
        world.local = world.connect(10, None, None).unwrap().0;
        world
    }

    fn join_cluster(&mut self, number: usize) -> Vec<Action> {
        let options = ClusterOptions {
            net: None,
            name: NAMES[number].parse().unwrap(),
            address: ADDRESSES[number].to_owned(),
            agreement: AgreementKind::Embedded,
            seeds: vec![ADDRESSES[1 - number].to_owned()],
            lease_ms: LEASE_MS,
            offer: Offer {
                host: format!("machine {number}"),
                region_uid: self.nodes[number].home().uid().0,
                control_bytes: 1,
                data_bytes: 1,
                capacity: 1,
                base: 0,
                ways: Vec::new(),
            },
            // Later daemons of a life number their requests from a later time.
            incarnation: 4 + self.nodes[number].home().life(),
            seed: 7 + number as u64,
        };
        let mut out = Vec::new();
        self.nodes[number].join_cluster(options, self.now_ms, &mut out).unwrap();
        out
    }

    /// The daemon of a is killed; its successor adopts the region.
    fn restart_a(&mut self) {
        let region = Arc::clone(self.nodes[0].home().region());
        self.nodes.remove(0);
        let (home, report) = Home::adopt(region).unwrap();
        let orphans = report.clients.iter().map(|one| (one.client, PeerIdentity::from(one)));
        let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: OWNER };
        let adopted = AdoptedState {
            orphans: orphans.collect(),
            staged: report.staged,
            objects: report.objects,
        };
        let state = NodeState::new(home, daemon, adopted, self.now_ms);
        self.nodes.insert(0, state);
        self.remote_clients.clear();
        // Questions of the old daemon get no answer.
        self.lost.retain(|(_, by, _)| *by != 0);
        self.requested.retain(|(_, by, ..)| *by != 0);
        self.waiting.retain(|_, (by, _)| *by != 0);
        self.answers.retain(|(to, ..)| *to != 0);
        let out = self.join_cluster(0);
        self.perform(0, out);
        // The process of its local client has ended too.
        let local = self.nodes[0].orphans().find(|(_, peer)| peer.remote_client.is_none());
        self.nodes[0].orphan_died(local.unwrap().0, self.now_ms);
        self.local = self.connect(11, None, None).unwrap().0;
    }

    fn connect(
        &mut self,
        pid: u32,
        remote_client: Option<RemoteClient>,
        resume: Option<&Welcome>,
    ) -> Result<(SessionId, Welcome), WireError> {
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let peer = PeerIdentity { pid, start_time: 1, uid: OWNER, remote_client };
        self.nodes[0].opened(session, peer, self.now_ms);
        let resume = resume.map(|place| (place.region_uid, place.slot, place.nonce));
        let (namespace, node) = (String::new(), String::new());
        let hello = Hello { version: PROTOCOL_VERSION, resume, namespace, node, maps_memory: true };
        match self.ask(session, RequestBody::Hello(hello))? {
            ReplyBody::Welcome(welcome) => Ok((session, welcome)),
            other => panic!("{other:?}"),
        }
    }

    /// Answer of node a to a client.
    fn ask(&mut self, session: SessionId, body: RequestBody) -> Result<ReplyBody, WireError> {
        let mut out = Vec::new();
        self.nodes[0].handle(session, Request { seq: 7, body }, self.now_ms, 1, &mut out);
        let reply = out.iter().find_map(|action| match action {
            Action::Send { session: to, reply, .. } if *to == session => Some(reply.body.clone()),
            _ => None,
        });
        self.perform(0, out);
        // A goodbye has no answer.
        reply.unwrap_or(Ok(ReplyBody::Done))
    }

    fn grant(&mut self, session: SessionId, bytes: u64) -> Result<WireSpan, WireError> {
        let body = RequestBody::Grant { min: bytes, want: bytes, wait_ms: 0 };
        match self.ask(session, body)? {
            ReplyBody::Granted(span) => Ok(span),
            other => panic!("{other:?}"),
        }
    }

    /// Grants all free memory to the local client.
    fn grant_all(&mut self) -> Vec<WireSpan> {
        let mut granted = Vec::new();
        while self.stats().free > 0 {
            let longest = self.stats().largest_free;
            granted.push(self.grant(self.local, longest).unwrap());
        }
        granted
    }

    /// An object of the local client.
    fn put(&mut self) -> ObjectId {
        let span = self.grant(self.local, HELD).unwrap();
        let items = vec![SealItem::bytes(span, HELD)];
        match self.ask(self.local, RequestBody::Seal { items }).unwrap() {
            ReplyBody::Sealed(sealed) => (*sealed[0].as_ref().unwrap()).into(),
            other => panic!("{other:?}"),
        }
    }

    fn delete(&mut self, id: ObjectId) {
        let targets = vec![WireTarget::Id(id.into())];
        self.ask(self.local, RequestBody::Delete { targets }).unwrap();
    }

    /// A client of b with unsealed memory, and a hold of an object of a that is then deleted.
    fn far_reader(&mut self, pid: u32) -> Far {
        let id = self.put();
        let mut far = self.far(pid);
        let region = Region::map(Arc::clone(&self.fabrics[0]), Access::Client, None).unwrap();
        let reader = Reader::open(Arc::new(region)).unwrap();
        far.held.push(reader.hold(&far.holds, Target::Id(id)).unwrap().unwrap());
        let retiring = self.stats().retiring;
        self.delete(id);
        assert_eq!(self.stats().retiring, retiring + HELD, "it is held");
        far
    }

    fn far(&mut self, pid: u32) -> Far {
        self.running.insert(pid);
        let (session, welcome) = self.connect(pid, Some(of_b()), None).unwrap();
        self.remote_clients.insert(session);
        let granted = self.grant(session, GRANTED).unwrap();
        let region = Region::map(Arc::clone(&self.fabrics[0]), Access::Client, None).unwrap();
        let blocks: Vec<_> = welcome.hold_blocks.iter().copied().map(span).collect();
        let holds = Arc::new(HoldTable::new(Arc::new(region), &blocks).unwrap());
        Far { session, pid, welcome, holds, held: Vec::new(), granted }
    }

    /// Kills the process: no message is sent, and its hold block stays as it is.
    fn kill(&mut self, far: &mut Far) {
        self.running.remove(&far.pid);
        far.holds.abandon();
        far.held.clear();
    }

    /// Ends the connection; the state of the process is unknown.
    fn disconnect(&mut self, far: &Far) {
        if self.remote_clients.remove(&far.session) {
            self.nodes[0].closed(far.session, true, self.now_ms);
        }
    }

    fn resume(&mut self, far: &mut Far) -> Result<(), WireError> {
        let (session, welcome) = self.connect(far.pid, Some(of_b()), Some(&far.welcome))?;
        assert_eq!((welcome.slot, welcome.nonce), (far.welcome.slot, far.welcome.nonce));
        assert_eq!(welcome.grants, [far.granted]);
        self.remote_clients.insert(session);
        far.session = session;
        Ok(())
    }

    /// Its slot is free, or of another client.
    fn assert_unknown(&mut self, far: &mut Far) {
        let unknown = StoreError::NoSuchClient { slot: far.welcome.slot };
        assert_eq!(self.resume(far), Err(WireError::Denied(unknown.to_string())));
    }

    fn forget(&mut self, node: &str) -> Result<ReplyBody, WireError> {
        self.ask(self.local, RequestBody::Forget { node: node.to_owned() })
    }

    fn stats(&self) -> NodeStats {
        self.nodes[0].stats(self.now_ms).unwrap()
    }

    fn reach_of_b(&self) -> Reach {
        self.nodes[0].members().find("b").unwrap().reach
    }

    /// Bytes that are retiring, granted and in quarantine.
    fn retained(&self) -> (u64, u64, u64) {
        let stats = self.stats();
        (stats.retiring, stats.granted, stats.quarantine)
    }

    /// Lets time pass while a condition holds.
    fn go_on_with(&mut self, ms: u64, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..ms.div_ceil(ROUND_MS) {
            self.round();
            assert!(is_so(self), "at {} ms: {:?}", self.now_ms, self.stats());
        }
    }

    fn go_on(&mut self, ms: u64) {
        self.go_on_with(ms, |_| true);
    }

    /// Times since `since_ms` at which a asked b such a question.
    fn asked_since(&self, since_ms: u64, is_meant: impl Fn(&Question) -> bool) -> Vec<u64> {
        let meant = self.log.iter().filter(|(at, one)| *at >= since_ms && is_meant(one));
        meant.map(|(at, _)| *at).collect()
    }

    fn round(&mut self) {
        self.now_ms += ROUND_MS;
        for number in [0, 1] {
            self.tick(number);
        }
        for (to, incarnation, body) in std::mem::take(&mut self.messages) {
            if !self.is_deaf(to) {
                let (mut out, from) = (Vec::new(), (NAMES[1 - to], incarnation));
                self.nodes[to].on_message(from.into(), &body, self.now_ms, &mut out);
                self.perform(to, out);
            }
        }
        for (number, by, incarnation, body) in std::mem::take(&mut self.requested) {
            let to = 1 - by;
            let (mut out, from) = (Vec::new(), (NAMES[by], incarnation));
            self.nodes[to].on_request(number, from.into(), &body, self.now_ms, &mut out);
            self.perform(to, out);
        }
        if !self.is_slow {
            for (token, pid) in std::mem::take(&mut self.late) {
                let answer = Answer::IsThere(self.running.contains(&pid));
                self.perform(1, vec![answer_peer(token, &answer)]);
            }
        }
        let now_ms = self.now_ms;
        let late = self.lost.extract_if(.., |(at_ms, ..)| *at_ms <= now_ms);
        let late = late.map(|(_, by, token)| (by, token, Err("no answer".to_owned())));
        self.answers.extend(late);
        for (to, token, answer) in std::mem::take(&mut self.answers) {
            let mut out = Vec::new();
            self.nodes[to].on_response(token, answer, self.now_ms, &mut out);
            self.perform(to, out);
        }
        self.tick(0);
        if self.now_ms.is_multiple_of(CHECK_MS) {
            self.nodes[0].home().check().unwrap();
        }
        let NodeStats { capacity, used, free, granted, retiring, quarantine, .. } = self.stats();
        assert_eq!(capacity, used + free + granted + retiring + quarantine);
    }

    fn tick(&mut self, number: usize) {
        if number == 0 || !self.is_stopped {
            let mut out = Vec::new();
            self.nodes[number].tick(self.now_ms, &mut out);
            self.perform(number, out);
        }
    }

    fn mapped(&self, number: usize) -> (Arc<dyn Fabric>, Reader) {
        let fabric = Arc::clone(&self.fabrics[number]);
        let region = Region::map(Arc::clone(&fabric), Access::Client, None).unwrap();
        (fabric, Reader::open(Arc::new(region)).unwrap())
    }

    /// Clients see no member whose memory a node has not yet tried to map.
    fn assert_published_with_reasons(&self, number: usize) {
        let (_, reader) = self.mapped(number);
        let Some((_, bytes)) = reader.published_members().unwrap() else { return };
        let members = Members::decode(&bytes).unwrap();
        let early = members.nodes.iter().find(|node| node.why_not.contains("being mapped"));
        assert_eq!(early, None);
    }

    fn is_deaf(&self, to: usize) -> bool {
        self.is_cut || (to == 1 && self.is_stopped)
    }

    fn perform(&mut self, number: usize, actions: Vec<Action>) {
        for action in actions {
            let action = match action {
                Action::Peer(action) => action,
                Action::Send { session, reply, .. } if number == 1 => {
                    self.replies.push((session, reply.seq, reply.body));
                    continue;
                }
                _ => continue,
            };
            match action {
                PeerAction::Message { incarnation, body, .. } if !self.is_deaf(1 - number) => {
                    self.messages.push_back((1 - number, incarnation, body));
                }
                PeerAction::Ask { token, incarnation, body, timeout_ms, .. } => {
                    let question: Question = postcard::from_bytes(&body).unwrap();
                    let is_refused = match self.questions {
                        Questions::Answered => false,
                        Questions::Refused => true,
                        Questions::SealedRefused => matches!(question, Question::Sealed { .. }),
                        Questions::JoinedUnknown => false,
                    };
                    let is_unknown = self.questions == Questions::JoinedUnknown
                        && matches!(question, Question::Joined { .. });
                    if number == 0
                        && matches!(question, Question::Watch { .. } | Question::Clean { .. })
                    {
                        self.log.push((self.now_ms, question));
                    }
                    self.next_request += 1;
                    if self.is_deaf(1 - number) {
                        self.lost.push((self.now_ms + timeout_ms, number, token));
                    } else if is_refused && number == 0 {
                        self.answers.push_back((number, token, Err("refused".to_owned())));
                    } else if is_unknown {
                        let why = Answer::No("no such question".to_owned());
                        let answer = postcard::to_allocvec(&why).unwrap();
                        self.answers.push_back((number, token, Ok(answer)));
                    } else {
                        self.waiting.insert(self.next_request, (number, token));
                        self.requested.push_back((self.next_request, number, incarnation, body));
                    }
                }
                PeerAction::Answer { token, body } => {
                    if let Some((by, token)) = self.waiting.remove(&token) {
                        self.answers.push_back((by, token, Ok(body)));
                    }
                }
                PeerAction::Map { node, .. } => {
                    self.assert_published_with_reasons(number);
                    let of = NAMES.iter().position(|name| *name == node).unwrap();
                    let (fabric, reader) = self.mapped(of);
                    let memory = MappablePeer { fabric, reader };
                    self.nodes[number].mapped(&node, Ok(memory));
                }
                PeerAction::WatchProcess { token, pid, .. } if self.is_slow => {
                    self.late.push((token, pid));
                }
                PeerAction::WatchProcess { token, pid, .. } => {
                    let answer = Answer::IsThere(self.running.contains(&pid));
                    self.perform(number, vec![answer_peer(token, &answer)]);
                }
                PeerAction::Clean { token, .. } => {
                    let answer = match self.is_cleaning {
                        true => Answer::Done,
                        false => Answer::No("it is not mapped".to_owned()),
                    };
                    self.perform(number, vec![answer_peer(token, &answer)]);
                }
                PeerAction::CutOff { .. } if number == 0 => {
                    for session in std::mem::take(&mut self.remote_clients) {
                        self.nodes[0].closed(session, true, self.now_ms);
                    }
                }
                PeerAction::WatchRemoteClient { .. } => panic!("it cannot be seen from here"),
                _ => {}
            }
        }
    }
}

fn of_b() -> RemoteClient {
    RemoteClient { node: node_key("b") }
}

fn is_watch(question: &Question) -> bool {
    matches!(question, Question::Watch { .. })
}

fn is_clean(question: &Question) -> bool {
    matches!(question, Question::Clean { .. })
}

/// Nothing is left of any client of b.
fn assert_all_is_back(world: &MappedCluster) {
    assert_eq!(world.retained(), (0, 0, 0));
    assert_eq!((world.stats().clients, world.stats().holds), (1, 0));
}
