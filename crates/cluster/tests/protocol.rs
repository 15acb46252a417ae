//! The node's state machine without sockets or a clock: random requests from several clients,
//! valid, partly valid and invalid. After each, the accounting must balance.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::collections::BTreeMap;
use std::sync::Arc;

use farrow_cluster::protocol::{
    Action, AdoptedState, DaemonInfo, NodeState, PeerIdentity, SessionId, SpillDone, SpillJob,
    WriteFault,
};
use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Region};
use farrow_store::{Home, Layout, RegionOptions};
use farrow_wire::{
    Hello, Listen, NamespaceSpec, PROTOCOL_VERSION, ReplyBody, Request, RequestBody, SealItem,
    Watch, WireError, WireObjectId, WireTarget,
};

/// Steps of one run; each is checked against the whole region.
const STEPS: u64 = 9000;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { from.get(self.roll(from.len() as u64) as usize) }
    }
}

/// What the test knows a client by.
#[derive(Default)]
struct Known {
    is_joined: bool,
    grants: Vec<(u64, u64)>,
}

struct Run {
    state: NodeState,
    dice: Dice,
    sessions: BTreeMap<SessionId, Known>,
    objects: Vec<WireObjectId>,
    next_session: u64,
    now_ms: u64,
}

fn region(options: &RegionOptions) -> Home {
    let geometry = Layout::new(options).unwrap().geometry;
    let fabric = Arc::new(ShmFabric::memfd("protocol-test", geometry).unwrap());
    let region = Arc::new(Region::map(fabric, Access::Home, None).unwrap());
    Home::create(region, options, 0).unwrap()
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut options = RegionOptions::for_capacity(Length(1 << 20));
        options.objects_max = 40;
        options.clients_max = 4;
        let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: 1000 };
        let state = NodeState::new(region(&options), daemon, AdoptedState::default(), 0);
        Self {
            state,
            dice: Dice(seed | 1),
            sessions: BTreeMap::new(),
            objects: Vec::new(),
            next_session: 0,
            now_ms: 0,
        }
    }

    fn step(&mut self) {
        self.now_ms += self.dice.roll(20);
        let session = match self.dice.roll(12) {
            0 => self.open(),
            1 => return self.close(),
            _ => {
                let all: Vec<SessionId> = self.sessions.keys().copied().collect();
                match self.dice.pick(&all) {
                    Some(session) => *session,
                    None => self.open(),
                }
            }
        };
        let body = self.body(session);
        let request = Request { seq: self.dice.roll(1000), body };
        let asked = request.clone();
        let mut actions = Vec::new();
        self.state.handle(session, request, self.now_ms, 7, &mut actions);
        self.state.tick(self.now_ms, &mut actions);
        let is_answered = actions.iter().any(|action| {
            matches!(action, Action::Send { session: to, reply, .. }
                if *to == session && reply.seq == asked.seq)
        });
        let is_waiting = matches!(
            asked.body,
            RequestBody::Wait { .. }
                | RequestBody::Watch(_)
                | RequestBody::ReserveObjects { wait_ms: 1.., .. }
        );
        assert!(is_answered || is_waiting, "no answer to {asked:?}");
        for action in actions {
            self.learn(&asked, action);
        }
    }

    fn open(&mut self) -> SessionId {
        let session = SessionId(self.next_session);
        self.next_session += 1;
        let uid = if self.dice.roll(20) == 0 { 7 } else { 1000 };
        let peer =
            PeerIdentity { pid: 100 + session.0 as u32, start_time: 5, uid, remote_client: None };
        self.state.opened(session, peer, self.now_ms);
        self.sessions.insert(session, Known::default());
        session
    }

    fn close(&mut self) {
        let all: Vec<SessionId> = self.sessions.keys().copied().collect();
        if let Some(session) = self.dice.pick(&all).copied() {
            self.sessions.remove(&session);
            let is_alive = self.dice.roll(2) == 0;
            if let Some(slot) = self.state.closed(session, is_alive, self.now_ms) {
                assert!(is_alive);
                self.state.orphan_died(slot, self.now_ms);
            }
        }
    }

    fn learn(&mut self, asked: &Request, action: Action) {
        match action {
            Action::Send { session, reply, .. } => {
                let Some(known) = self.sessions.get_mut(&session) else { return };
                match reply.body {
                    Ok(ReplyBody::Welcome(_)) => known.is_joined = true,
                    Ok(ReplyBody::Granted(span)) => known.grants.push(span),
                    Ok(ReplyBody::Sealed(results)) => {
                        self.objects.extend(results.into_iter().filter_map(Result::ok));
                    }
                    Err(WireError::Damaged(reason)) => panic!("{asked:?} damaged it: {reason}"),
                    _ => {}
                }
            }
            Action::Close { session } => {
                self.sessions.remove(&session);
                self.state.closed(session, false, self.now_ms);
            }
            Action::SendFile { .. }
            | Action::Spill(_)
            | Action::Peer(_)
            | Action::Net(_)
            | Action::Scraped(_)
            | Action::Stop
            | Action::HandOver { .. } => {}
        }
    }

    fn body(&mut self, session: SessionId) -> RequestBody {
        let is_joined = self.sessions.get(&session).is_some_and(|known| known.is_joined);
        if !is_joined && self.dice.roll(10) > 0 {
            let version = if self.dice.roll(10) == 0 { 999 } else { PROTOCOL_VERSION };
            let resume = (self.dice.roll(8) == 0).then_some((1, 2, 3));
            if self.dice.roll(4) == 0 {
                let home = self.state.home();
                let record = home.clients().next().map(|record| (record.client.0, record.nonce));
                let (region_uid, (slot, nonce)) = (home.uid().0, record.unwrap_or_default());
                return RequestBody::Listen(Listen {
                    version,
                    region_uid,
                    slot,
                    nonce,
                    node: String::new(),
                });
            }
            let namespace = self.namespace();
            return RequestBody::Hello(Hello {
                version,
                resume,
                namespace,
                node: String::new(),
                maps_memory: true,
            });
        }
        let objects = 1 << self.dice.roll(14) as u32;
        match self.dice.roll(22) {
            19 => RequestBody::ReserveObjects { objects, wait_ms: self.dice.roll(30) },
            20 => RequestBody::UnreserveObjects { objects },
            21 => RequestBody::ReservedObjects { objects },
            15 => RequestBody::Renew { names: vec![self.name()], are_all: self.dice.roll(2) == 0 },
            0 | 1 => {
                let min = [0, 1, 4096, 100_000, 1 << 19, 1 << 30][self.dice.roll(6) as usize];
                RequestBody::Grant { min, want: min + self.dice.roll(1 << 16), wait_ms: 0 }
            }
            2 => {
                let count = self.dice.roll(3);
                RequestBody::Release { spans: (0..count).map(|_| self.span(session)).collect() }
            }
            3 => RequestBody::Reserve { names: vec![self.name(), self.name()] },
            4 => RequestBody::Unreserve { names: vec![self.name()] },
            5..=8 => {
                // Of several none is sealed where one has a taken name.
                let count = if self.dice.roll(4) == 0 { 3 } else { 1 };
                RequestBody::Seal { items: (0..count).map(|_| self.item(session)).collect() }
            }
            9 | 10 => {
                let count = self.dice.roll(4);
                RequestBody::Delete { targets: (0..count).map(|_| self.target()).collect() }
            }
            11 => RequestBody::Wait {
                targets: (0..self.dice.roll(3)).map(|_| self.target()).collect(),
                count: self.dice.roll(3) as u32,
                timeout_ms: self.dice.roll(30),
            },
            12 | 13 => RequestBody::Watch(Watch {
                after: self.dice.roll(self.state.home().events_head() + 2),
                prefix: [String::new(), "na".into(), self.name()][self.dice.roll(3) as usize]
                    .clone(),
                kinds: self.dice.roll(256) as u8,
                timeout_ms: self.dice.roll(30),
            }),
            14 => {
                let ids = self.dice.pick(&self.objects).copied().into_iter().collect();
                RequestBody::Confirm { ids }
            }
            16 => {
                let (name, bytes_max) = (self.namespace(), Some(1 << 18));
                let (objects_max, writers) = (Some(self.dice.roll(9)), None);
                let spec = NamespaceSpec { name, bytes_max, objects_max, writers };
                RequestBody::CreateNamespace(spec)
            }
            17 => match self.dice.roll(3) {
                0 => RequestBody::Namespaces,
                1 => RequestBody::EntryPages { count: self.dice.roll(3) as u32 },
                _ => RequestBody::DropNamespace { name: self.namespace() },
            },
            _ => [
                RequestBody::HoldBlock,
                RequestBody::Reclaim,
                RequestBody::Stats,
                RequestBody::Goodbye,
            ][self.dice.roll(4) as usize]
                .clone(),
        }
    }

    /// Part of a grant of this client's mostly; now and then of another's, or anything.
    fn span(&mut self, session: SessionId) -> (u64, u64) {
        let of = match self.dice.roll(10) {
            0 => self.sessions.values().flat_map(|known| known.grants.clone()).collect(),
            1 => vec![(self.dice.roll(1 << 21), self.dice.roll(1 << 21))],
            2 => vec![(u64::MAX - self.dice.roll(300), self.dice.roll(300))],
            _ => self.sessions.get(&session).map(|known| known.grants.clone()).unwrap_or_default(),
        };
        let Some((start, length)) = self.dice.pick(&of).copied() else { return (0, 128) };
        let lines = (length / 128).max(1);
        let first = self.dice.roll(lines);
        let count = 1 + self.dice.roll((lines - first).min(64));
        let skew = if self.dice.roll(30) == 0 { 1 } else { 0 };
        (start.wrapping_add(first * 128), count * 128 + skew)
    }

    fn item(&mut self, session: SessionId) -> SealItem {
        let primary = self.span(session);
        let kind = 1 + self.dice.roll(6) as u8;
        let extra_count = if self.dice.roll(3) == 0 { self.dice.roll(3) } else { 0 };
        let descriptor = if kind == 1 { (primary.0, 0) } else { (primary.0, 64) };
        SealItem {
            kind,
            primary,
            descriptor,
            descriptor_crc: 1,
            extra: (0..extra_count).map(|_| self.span(session)).collect(),
            extra_crc: 2,
            size: self.dice.roll(primary.1.saturating_add(2)),
            metadata_bytes: 0,
            metadata_crc: 0,
            name: (self.dice.roll(3) == 0).then(|| self.name()),
            is_reserved: self.dice.roll(4) == 0,
            is_reserved_object: self.dice.roll(4) == 0,
            is_held_by_creator: self.dice.roll(4) == 0,
            is_staged: self.dice.roll(8) == 0,
            lease_ms: self.dice.roll(4) * 5,
            is_replacing: self.dice.roll(4) == 0,
        }
    }

    fn name(&mut self) -> String {
        match self.dice.roll(12) {
            0 => String::new(),
            1 => "x".repeat(256),
            2 => "one\0name 5".to_owned(),
            number => format!("name {number}"),
        }
    }

    fn namespace(&mut self) -> String {
        ["", "", "", "one", "one", "\0"][self.dice.roll(6) as usize].to_owned()
    }

    fn target(&mut self) -> WireTarget {
        match (self.dice.roll(3), self.dice.pick(&self.objects).copied()) {
            (0, Some(id)) => WireTarget::Id(id),
            (1, Some(WireObjectId { hi, lo })) => {
                WireTarget::Id(WireObjectId { hi, lo: lo.wrapping_add(1 << 32) })
            }
            _ => WireTarget::Name(self.name()),
        }
    }

    fn assert_balanced(&self) {
        self.state.home().check().unwrap();
        let stats = self.state.stats(self.now_ms).unwrap();
        assert_eq!(
            stats.capacity,
            stats.used + stats.free + stats.granted + stats.retiring,
            "{stats:?}"
        );
    }
}

#[test]
fn whatever_clients_say_the_books_balance() {
    for seed in 1..=4 {
        let mut run = Run::new(seed * 0x9e37_79b9);
        for step in 0..STEPS {
            run.step();
            if step % 8 == 0 {
                run.assert_balanced();
            }
        }
        let stats = run.state.stats(run.now_ms).unwrap();
        assert!(stats.sealed_total > 100 && stats.deleted_total > 20, "too tame: {stats:?}");
        for session in run.sessions.keys() {
            run.state.closed(*session, false, run.now_ms);
        }
        run.assert_balanced();
        let stats = run.state.stats(run.now_ms).unwrap();
        assert_eq!((stats.granted, stats.clients, stats.retiring), (0, 0, 0));
    }
}

#[test]
fn a_wait_ends_by_its_seal_by_its_time_or_with_the_node() {
    let mut options = RegionOptions::for_capacity(Length(1 << 20));
    options.clients_max = 4;
    let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: 1000 };
    let mut state = NodeState::new(region(&options), daemon, AdoptedState::default(), 0);
    let session = SessionId(0);
    let peer = PeerIdentity { pid: 9, start_time: 1, uid: 1000, remote_client: None };
    let mut out = Vec::new();
    state.opened(session, peer, 0);
    let hello = RequestBody::Hello(Hello {
        version: PROTOCOL_VERSION,
        resume: None,
        namespace: String::new(),
        node: String::new(),
        maps_memory: true,
    });
    state.handle(session, Request { seq: 1, body: hello }, 0, 0, &mut out);
    let wait = |seq, timeout_ms| Request {
        seq,
        body: RequestBody::Wait {
            targets: vec![WireTarget::Name("n".into())],
            count: 1,
            timeout_ms,
        },
    };
    out.clear();
    state.handle(session, wait(2, 50), 100, 0, &mut out);
    state.handle(session, wait(3, 5000), 100, 0, &mut out);
    assert_eq!(out, []);
    assert!(state.next_deadline_ms().is_some_and(|at| at <= 150));
    state.tick(149, &mut out);
    assert_eq!(out, [], "too early");
    state.tick(150, &mut out);
    let ready = |action: &Action| match action {
        Action::Send { reply, .. } => match &reply.body {
            Ok(ReplyBody::Ready(ready)) => Some((reply.seq, ready.clone())),
            _ => None,
        },
        _ => None,
    };
    assert_eq!(out.iter().filter_map(ready).collect::<Vec<_>>(), [(2, vec![false])]);
    out.clear();
    let grant = RequestBody::Grant { min: 4096, want: 4096, wait_ms: 0 };
    state.handle(session, Request { seq: 4, body: grant }, 200, 0, &mut out);
    let Some(Action::Send { reply, .. }) = out.pop() else { panic!("no answer") };
    let Ok(ReplyBody::Granted(primary)) = reply.body else { panic!("no grant") };
    let item = SealItem { name: Some("n".into()), ..SealItem::bytes(primary, 5) };
    let seal = RequestBody::Seal { items: vec![item] };
    state.handle(session, Request { seq: 5, body: seal }, 200, 0, &mut out);
    assert_eq!(out.iter().filter_map(ready).collect::<Vec<_>>(), [(3, vec![true])]);
    out.clear();
    let never = RequestBody::Wait {
        targets: vec![WireTarget::Name("never".into())],
        count: 1,
        timeout_ms: 5000,
    };
    state.handle(session, Request { seq: 6, body: never }, 300, 0, &mut out);
    state.stop(&mut out);
    assert!(matches!(&out[..], [Action::Send { reply, .. }]
        if reply.seq == 6 && reply.body == Err(WireError::Closing)));
}

/// A node with one client, and with a second connection of it that listens.
struct Listening {
    state: NodeState,
    out: Vec<Action>,
}

const CLIENT: SessionId = SessionId(0);
const LISTENER: SessionId = SessionId(1);

impl Listening {
    fn new() -> Self {
        let mut options = RegionOptions::for_capacity(Length(1 << 20));
        options.events_max = 8;
        let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: 1000 };
        let mut state = NodeState::new(region(&options), daemon, AdoptedState::default(), 0);
        let peer = PeerIdentity { pid: 9, start_time: 1, uid: 1000, remote_client: None };
        state.opened(CLIENT, peer, 0);
        state.opened(LISTENER, peer, 0);
        let mut this = Self { state, out: Vec::new() };
        let hello = RequestBody::Hello(Hello {
            version: PROTOCOL_VERSION,
            resume: None,
            namespace: String::new(),
            node: String::new(),
            maps_memory: true,
        });
        let welcome = this.ask(CLIENT, 0, hello);
        let [(_, Ok(ReplyBody::Welcome(welcome)))] = &welcome[..] else { panic!("{welcome:?}") };
        let listen = Listen {
            version: PROTOCOL_VERSION,
            region_uid: welcome.region_uid,
            slot: welcome.slot,
            nonce: welcome.nonce,
            node: String::new(),
        };
        let early = this.ask(LISTENER, 0, Self::watch(0, "", 1));
        assert!(matches!(early[..], [(_, Err(WireError::Invalid(_)))]), "{early:?}");
        let listen = RequestBody::Listen(listen);
        assert_eq!(this.ask(LISTENER, 0, listen.clone()), [(0, Ok(ReplyBody::Done))]);
        let twice = this.ask(LISTENER, 0, listen);
        assert!(matches!(twice[..], [(_, Err(WireError::Invalid(_)))]), "{twice:?}");
        let stats = this.ask(LISTENER, 0, RequestBody::Stats);
        assert!(matches!(stats[..], [(_, Err(WireError::Invalid(_)))]), "{stats:?}");
        this
    }

    fn watch(after: u64, prefix: &str, timeout_ms: u64) -> RequestBody {
        RequestBody::Watch(Watch { after, prefix: prefix.into(), kinds: u8::MAX, timeout_ms })
    }

    /// All that is answered to anybody at time 100, by sequence number.
    fn ask(
        &mut self,
        session: SessionId,
        seq: u64,
        body: RequestBody,
    ) -> Vec<(u64, Result<ReplyBody, WireError>)> {
        self.state.handle(session, Request { seq, body }, 100, 7, &mut self.out);
        self.answers()
    }

    fn answers(&mut self) -> Vec<(u64, Result<ReplyBody, WireError>)> {
        let answer = |action| match action {
            Action::Send { reply, .. } => Some((reply.seq, reply.body)),
            _ => None,
        };
        self.out.drain(..).filter_map(answer).collect()
    }

    /// Seals objects, and returns what others were answered.
    fn seal(&mut self, names: &[&str]) -> Vec<(u64, Result<ReplyBody, WireError>)> {
        let mut items = Vec::new();
        for name in names {
            let grant = RequestBody::Grant { min: 128, want: 128, wait_ms: 0 };
            let granted = self.ask(CLIENT, 900, grant);
            let [(900, Ok(ReplyBody::Granted(primary)))] = granted[..] else {
                panic!("{granted:?}")
            };
            let primary = (primary.0, 128);
            items.push(SealItem { name: Some((*name).into()), ..SealItem::bytes(primary, 5) });
        }
        let mut answers = self.ask(CLIENT, 901, RequestBody::Seal { items });
        answers.retain(|(seq, _)| *seq != 901);
        answers
    }
}

fn watched(next: u64) -> Result<ReplyBody, WireError> {
    Ok(ReplyBody::Watched { next })
}

#[test]
fn a_subscriber_is_told_of_what_it_asked_for_and_of_nothing_else() {
    let mut node = Listening::new();
    assert_eq!(node.ask(LISTENER, 1, Listening::watch(0, "b", 500)), []);
    assert_eq!(node.ask(LISTENER, 2, Listening::watch(0, "", 5000)), []);
    assert_eq!(node.seal(&["a"]), [(2, watched(0))]);
    // The others go on waiting, and are told how far they need not look.
    assert_eq!(node.seal(&["c", "bb", "b"]), [(1, watched(2))]);
    assert_eq!(node.ask(LISTENER, 3, Listening::watch(3, "b", 500)), [(3, watched(3))]);
    assert_eq!(node.ask(LISTENER, 4, Listening::watch(0, "a", 0)), [(4, watched(0))]);
    assert_eq!(node.ask(LISTENER, 5, Listening::watch(1, "a", 0)), [(5, watched(4))]);
    // One kind alone.
    let deleted = farrow_store::EventKind::Deleted.bit();
    let watch = Watch { after: 0, prefix: "b".into(), kinds: deleted, timeout_ms: 500 };
    assert_eq!(node.ask(LISTENER, 6, RequestBody::Watch(watch)), []);
    let targets = vec![WireTarget::Name("a".into()), WireTarget::Name("b".into())];
    let answers = node.ask(CLIENT, 7, RequestBody::Delete { targets });
    assert!(answers.contains(&(6, watched(5))), "{answers:?}");

    // Time, the end of a connection, the end of the node.
    assert_eq!(node.ask(LISTENER, 8, Listening::watch(6, "", 50)), []);
    assert_eq!(node.ask(CLIENT, 9, Listening::watch(6, "", 5000)), []);
    assert!(node.state.next_deadline_ms().is_some_and(|at| at <= 150));
    let mut out = Vec::new();
    node.state.tick(149, &mut out);
    assert_eq!(out, []);
    node.state.tick(150, &mut out);
    node.out = out;
    assert_eq!(node.answers(), [(8, watched(6))]);
    assert_eq!(node.ask(LISTENER, 10, Listening::watch(6, "", 5000)), []);
    node.state.closed(LISTENER, true, 200);
    let mut out = Vec::new();
    node.state.stop(&mut out);
    node.out = out;
    assert_eq!(node.answers(), [(9, Err(WireError::Closing))]);
}

#[test]
fn a_subscriber_that_is_far_behind_is_told_to_look_by_itself() {
    let mut node = Listening::new();
    assert_eq!(node.ask(LISTENER, 1, Listening::watch(0, "never", 5000)), []);
    // More than the ring holds, in one message.
    let names: Vec<String> = (0..20).map(|n| format!("n{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(node.seal(&names), [(1, watched(0))]);
    assert_eq!(node.ask(LISTENER, 2, Listening::watch(3, "never", 5000)), [(2, watched(3))]);
    let long = "x".repeat(256);
    let answers = node.ask(LISTENER, 3, Listening::watch(20, &long, 5000));
    assert!(matches!(answers[..], [(3, Err(WireError::TooMany { max: 255, .. }))]), "{answers:?}");
    for seq in 0..16 {
        assert_eq!(node.ask(LISTENER, seq, Listening::watch(u64::MAX, "", 5000)), []);
    }
    let answers = node.ask(LISTENER, 16, Listening::watch(20, "", 5000));
    assert!(matches!(answers[..], [(16, Err(WireError::TooMany { max: 16, .. }))]), "{answers:?}");
    assert_eq!(node.seal(&["one"]).len(), 16);
}

#[test]
fn an_eviction_whose_objects_were_not_even_begun_says_that_files_cannot_be_written() {
    let mut node = Listening::new();
    node.state.set_spill("a folder".to_owned());
    // Two more than are written at a time.
    let names: Vec<String> = (0..18).map(|n| format!("n{n}")).collect();
    node.seal(&names.iter().map(String::as_str).collect::<Vec<_>>());
    node.state.handle(
        CLIENT,
        Request { seq: 1, body: RequestBody::Evict { bytes: u64::MAX } },
        100,
        7,
        &mut node.out,
    );
    let written = node.out.iter().filter_map(|action| match action {
        Action::Spill(SpillJob::Write { head, .. }) => Some(head.id),
        _ => None,
    });
    let written: Vec<_> = written.collect();
    assert_eq!(written.len(), 16);
    assert_eq!(node.answers(), []);
    assert_eq!(node.ask(CLIENT, 2, RequestBody::Evict { bytes: 1 }), []);
    let mut under_way = 1;
    let refused = loop {
        let answers = node.ask(CLIENT, 100 + under_way, RequestBody::Evict { bytes: u64::MAX });
        match &answers[..] {
            [] => under_way += 1,
            [(_, refused)] => break refused.clone(),
            _ => panic!("{answers:?}"),
        }
        assert!(under_way < 100, "no limit");
    };
    assert!(matches!(refused, Err(WireError::TooMany { max: 8, .. })), "{refused:?}");
    for seq in 101..100 + under_way {
        node.ask(CLIENT, 200 + seq, RequestBody::Cancel { seq });
    }
    let fault = WriteFault { is_full: true, reason: "No space left on device".to_owned() };
    let done = SpillDone::Written { id: written[0], result: Err(fault) };
    let mut out = Vec::new();
    node.state.spill_done(done, 100, &mut out);
    node.state.tick(100, &mut out);
    node.out = out;
    let answers = node.answers();
    assert!(matches!(answers[..], [(2, Err(WireError::NotSpilled(_)))]), "{answers:?}");
}
