//! The node's state machine without sockets or a clock: random requests from several clients,
//! valid, partly valid and invalid. After each, the accounting must balance.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod waits;

use std::collections::BTreeMap;
use std::sync::Arc;

use farrow_cluster::protocol::{
    Action, AdoptedState, DaemonInfo, NodeState, PeerIdentity, SessionId,
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

struct ProtocolDice(u64);

impl ProtocolDice {
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
struct KnownClient {
    is_joined: bool,
    grants: Vec<(u64, u64)>,
}

struct ProtocolRun {
    state: NodeState,
    dice: ProtocolDice,
    sessions: BTreeMap<SessionId, KnownClient>,
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

impl ProtocolRun {
    fn new(seed: u64) -> Self {
        let mut options = RegionOptions::for_capacity(Length(1 << 20));
        options.objects_max = 40;
        options.clients_max = 4;
        let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: 1000 };
        let state = NodeState::new(region(&options), daemon, AdoptedState::default(), 0);
        Self {
            state,
            dice: ProtocolDice(seed | 1),
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
        let requested = request.clone();
        let mut actions = Vec::new();
        self.state.handle(session, request, self.now_ms, 7, &mut actions);
        self.state.tick(self.now_ms, &mut actions);
        let is_answered = actions.iter().any(|action| {
            matches!(action, Action::Send { session: to, reply, .. }
                if *to == session && reply.seq == requested.seq)
        });
        let is_waiting = matches!(
            requested.body,
            RequestBody::Wait { .. }
                | RequestBody::Watch(_)
                | RequestBody::ReserveObjects { wait_ms: 1.., .. }
        );
        assert!(is_answered || is_waiting, "no answer to {requested:?}");
        for action in actions {
            self.learn(&requested, action);
        }
    }

    fn open(&mut self) -> SessionId {
        let session = SessionId(self.next_session);
        self.next_session += 1;
        let uid = if self.dice.roll(20) == 0 { 7 } else { 1000 };
        let peer =
            PeerIdentity { pid: 100 + session.0 as u32, start_time: 5, uid, remote_client: None };
        self.state.opened(session, peer, self.now_ms);
        self.sessions.insert(session, KnownClient::default());
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

    fn learn(&mut self, requested: &Request, action: Action) {
        match action {
            Action::Send { session, reply, .. } => {
                let Some(known) = self.sessions.get_mut(&session) else { return };
                match reply.body {
                    Ok(ReplyBody::Welcome(_)) => known.is_joined = true,
                    Ok(ReplyBody::Granted(span)) => known.grants.push(span),
                    Ok(ReplyBody::Sealed(results)) => {
                        self.objects.extend(results.into_iter().filter_map(Result::ok));
                    }
                    Err(WireError::Damaged(reason)) => panic!("{requested:?} damaged it: {reason}"),
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
        let mut run = ProtocolRun::new(seed * 0x9e37_79b9);
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
