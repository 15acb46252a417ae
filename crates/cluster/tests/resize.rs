//! The memory of a node grows and shrinks. Only the state machine, with a clock of the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use farrow_cluster::protocol::{
    Action, AdoptedState, DaemonInfo, NodeState, PeerIdentity, SessionId,
};
use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Fabric, Length, Region, RegionSize, Section};
use farrow_store::{Home, Layout, Lru, RegionOptions};
use farrow_wire::{
    Hello, NodeSettings, NodeStats, PROTOCOL_VERSION, Reply, ReplyBody, Request, RequestBody,
    Rights, Rule, SealItem, Setting, TooLarge, WireError, WireObjectId, WireTarget,
};

const MIB: u64 = 1 << 20;
const MAX: u64 = 64 * MIB;
const OWNER: u32 = 1000;
const CLIENT: SessionId = SessionId(1);

struct ResizedNode {
    fabric: Arc<dyn Fabric>,
    node: NodeState,
    now_ms: u64,
    seq: u64,
    answers: BTreeMap<u64, Result<ReplyBody, WireError>>,
}

fn lent(bytes: u64) -> (Home, Arc<dyn Fabric>) {
    let options = RegionOptions::for_capacity(Length(MAX));
    let Layout { geometry, heap, .. } = Layout::new(&options).unwrap();
    let committed = Length(heap.offset.0 + bytes - geometry.control.0);
    let size = RegionSize { geometry, committed };
    let fabric: Arc<dyn Fabric> = Arc::new(ShmFabric::memfd("resize-test", size).unwrap());
    let region = Region::map(Arc::clone(&fabric), Access::Home, None).unwrap();
    let home = Home::create_lending(Arc::new(region), &options, Length(bytes), 0).unwrap();
    (home, fabric)
}

impl ResizedNode {
    fn new(bytes: u64) -> Self {
        let (home, fabric) = lent(bytes);
        Self::over(home, fabric, NodeSettings::default(), false)
    }

    fn over(
        home: Home,
        fabric: Arc<dyn Fabric>,
        started: NodeSettings,
        is_following: bool,
    ) -> Self {
        let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: OWNER };
        let mut node = NodeState::new(home, daemon, AdoptedState::default(), 0);
        node.set_eviction_policy(Box::new(Lru));
        // Written before the settings of the earlier daemon are read.
        let (namespace, node_name, rights) = (String::new(), "b".to_owned(), Rights::READ);
        node.set_rules(vec![Rule { namespace, node: node_name, rights }]).unwrap();
        node.begin_settings(started, None, is_following).unwrap();
        let peer = PeerIdentity { pid: 10, start_time: 1, uid: OWNER, remote_client: None };
        node.opened(CLIENT, peer, 0);
        let mut world = Self { fabric, node, now_ms: 0, seq: 0, answers: BTreeMap::new() };
        let hello = Hello {
            version: PROTOCOL_VERSION,
            resume: None,
            namespace: String::new(),
            node: String::new(),
            maps_memory: true,
        };
        let welcome = world.send(RequestBody::Hello(hello));
        assert!(matches!(world.answers.remove(&welcome), Some(Ok(ReplyBody::Welcome(_)))));
        world
    }

    /// The region as the next daemon finds it.
    fn reopened(self, started: NodeSettings, is_following: bool) -> Self {
        drop(self.node);
        let region = Region::map(Arc::clone(&self.fabric), Access::Home, None).unwrap();
        let (home, report) = Home::adopt(Arc::new(region)).unwrap();
        assert!(report.dropped.is_empty(), "{report:?}");
        Self::over(home, self.fabric, started, is_following)
    }

    fn take(&mut self, actions: Vec<Action>) {
        for action in actions {
            if let Action::Send { reply: Reply { seq, body }, .. } = action {
                self.answers.insert(seq, body);
            }
        }
        self.node.home().check().unwrap();
    }

    fn send(&mut self, body: RequestBody) -> u64 {
        self.seq += 1;
        let (request, mut out) = (Request { seq: self.seq, body }, Vec::new());
        self.node.handle(CLIENT, request, self.now_ms, self.seq, &mut out);
        self.take(out);
        self.seq
    }

    fn tick(&mut self) {
        let mut out = Vec::new();
        self.node.tick(self.now_ms, &mut out);
        self.take(out);
        self.now_ms += 1;
    }

    /// Sends a request, and lets the node work until it answers.
    fn ask(&mut self, body: RequestBody) -> Result<ReplyBody, WireError> {
        let seq = self.send(body);
        for _ in 0..20_000 {
            if let Some(answer) = self.answers.remove(&seq) {
                return answer;
            }
            self.tick();
        }
        panic!("no answer within 20 s of its clock");
    }

    fn resize(&mut self, bytes: u64) -> Result<ReplyBody, WireError> {
        self.ask(RequestBody::Set(vec![Setting::Memory(bytes)]))
    }

    fn refused(&mut self, bytes: u64) -> String {
        match self.resize(bytes) {
            Err(WireError::Invalid(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    fn stats(&mut self) -> NodeStats {
        match self.ask(RequestBody::Stats) {
            Ok(ReplyBody::Stats(stats)) => *stats,
            other => panic!("{other:?}"),
        }
    }

    fn put(&mut self, bytes: u64) -> Result<WireObjectId, WireError> {
        let span = match self.ask(RequestBody::Grant { min: bytes, want: bytes, wait_ms: 0 })? {
            ReplyBody::Granted(span) => span,
            other => panic!("{other:?}"),
        };
        match self.ask(RequestBody::Seal { items: vec![SealItem::bytes(span, bytes)] })? {
            ReplyBody::Sealed(mut sealed) => sealed.remove(0),
            other => panic!("{other:?}"),
        }
    }

    fn pin(&mut self, id: WireObjectId) {
        let targets = vec![WireTarget::Id(id)];
        self.ask(RequestBody::Pin { targets, is_pinned: true }).unwrap();
    }

    fn has(&mut self, id: WireObjectId) -> bool {
        let targets = vec![WireTarget::Id(id)];
        let there = self.ask(RequestBody::Wait { targets, count: 1, timeout_ms: 0 });
        there == Ok(ReplyBody::Ready(vec![true]))
    }

    /// Bytes of the data section that the kernel has allocated.
    fn allocated(&self) -> u64 {
        let stat = rustix::fs::fstat(self.fabric.read_fd(Section::Data).0.as_fd()).unwrap();
        u64::try_from(stat.st_blocks).unwrap() * 512
    }
}

#[test]
fn memory_grows_and_shrinks_and_the_kernel_has_it_back() {
    let mut world = ResizedNode::new(8 * MIB);
    let before = world.allocated();
    assert_eq!(world.stats().capacity, 8 * MIB);
    assert!(matches!(world.put(9 * MIB), Err(WireError::TooLarge(TooLarge { capacity, .. }))
        if capacity == 8 * MIB));
    assert_eq!(world.resize(48 * MIB), Ok(ReplyBody::Done));
    let stats = world.stats();
    assert_eq!((stats.capacity, stats.capacity_max), (48 * MIB, MAX));
    assert_eq!(stats.settings.memory, 48 * MIB);
    assert_eq!(stats.settings_changed, ["memory"]);
    assert_eq!(world.allocated(), before + 40 * MIB);
    let id = world.put(20 * MIB).unwrap();
    assert_eq!(world.resize(24 * MIB), Ok(ReplyBody::Done));
    assert_eq!(world.allocated(), before + 16 * MIB);
    assert!(world.has(id), "it fits");
    assert_eq!(world.resize(24 * MIB), Ok(ReplyBody::Done), "nothing to do");
    assert_eq!(world.resize(8 * MIB), Ok(ReplyBody::Done));
    assert!(!world.has(id), "it was evicted");
    assert_eq!(world.allocated(), before);
    assert!(world.stats().settings_changed.is_empty());
}

#[test]
fn what_cannot_be_is_refused_with_the_numbers_and_costs_no_object() {
    let mut world = ResizedNode::new(16 * MIB);
    let ids = [world.put(4 * MIB).unwrap(), world.put(4 * MIB).unwrap()];
    world.pin(ids[1]);
    for bytes in [MAX + 1, 4096, 0, u64::MAX] {
        assert!(world.refused(bytes).contains(&MAX.to_string()), "{bytes}");
    }
    let reason = world.refused(2 * MIB);
    for number in [2 * MIB, 16 * MIB, 14 * MIB, 8 * MIB, 4 * MIB] {
        assert!(reason.contains(&format!("{number} B")), "{number} in {reason}");
    }
    assert!(ids.into_iter().all(|id| world.has(id)));
    assert_eq!(world.stats().capacity, 16 * MIB);
    world.ask(RequestBody::Set(vec![Setting::IsEvicting(false)])).unwrap();
    let reason = world.refused(6 * MIB);
    assert!(reason.contains("eviction is none"), "{reason}");
    assert!(ids.into_iter().all(|id| world.has(id)));
    assert_eq!(world.resize(8 * MIB), Ok(ReplyBody::Done));
}

#[test]
fn a_change_is_made_in_pieces_and_others_are_served_between() {
    let mut world = ResizedNode::new(MIB);
    let grow = world.send(RequestBody::Set(vec![Setting::Memory(MAX)]));
    world.tick();
    let other = world.send(RequestBody::Set(vec![Setting::Memory(2 * MIB)]));
    assert!(matches!(world.answers.remove(&other), Some(Err(WireError::Invalid(reason)))
        if reason.contains("under way")));
    let again = world.send(RequestBody::Set(vec![Setting::Memory(MAX)]));
    let stats = world.stats();
    assert!(stats.capacity > MIB && stats.capacity < MAX, "{}", stats.capacity);
    world.put(2 * MIB).unwrap();
    while world.stats().capacity < MAX {
        world.tick();
    }
    world.tick();
    for seq in [grow, again] {
        assert_eq!(world.answers.remove(&seq), Some(Ok(ReplyBody::Done)));
    }
    // The client that asked may give up or end: the change goes on.
    let shrink = world.send(RequestBody::Set(vec![Setting::Memory(2 * MIB)]));
    world.ask(RequestBody::Cancel { seq: shrink }).unwrap();
    assert_eq!(world.answers.remove(&shrink), Some(Err(WireError::Cancelled)));
    while world.stats().capacity > 2 * MIB {
        world.tick();
    }
}

/// Granted memory cannot be taken away, whatever eviction could do when the change began.
#[test]
fn a_change_that_gets_stuck_ends_with_what_it_reached() {
    let mut world = ResizedNode::new(48 * MIB);
    let shrink = world.send(RequestBody::Set(vec![Setting::Memory(MIB)]));
    world.tick();
    let reached = world.stats().capacity;
    assert!(reached < 48 * MIB && reached > 8 * MIB, "{reached}");
    world.ask(RequestBody::Grant { min: 8 * MIB, want: 8 * MIB, wait_ms: 0 }).unwrap();
    let answer = loop {
        world.tick();
        world.now_ms += 100;
        match world.answers.remove(&shrink) {
            Some(answer) => break answer,
            None => assert!(world.now_ms < 60_000),
        }
    };
    let stats = world.stats();
    assert!((8 * MIB..reached).contains(&stats.capacity), "{}", stats.capacity);
    assert_eq!(stats.settings.memory, stats.capacity);
    match answer {
        Err(WireError::Invalid(reason)) => {
            assert!(reason.contains(&format!("{} B granted", 8 * MIB)), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_next_daemon_lends_what_the_one_before_lent() {
    let started = NodeSettings { memory: 16 * MIB, ..NodeSettings::default() };
    let (home, fabric) = lent(16 * MIB);
    let mut world = ResizedNode::over(home, fabric, started.clone(), false);
    let id = world.put(MIB).unwrap();
    world.resize(8 * MIB).unwrap();
    let mut world = world.reopened(started.clone(), true);
    let stats = world.stats();
    assert_eq!((stats.capacity, stats.settings.memory), (8 * MIB, 8 * MIB));
    assert_eq!(stats.settings_changed, ["memory"]);
    assert!(world.has(id));
    // Killed in the middle of a change: its goal is the one of the record, as before the change.
    world.send(RequestBody::Set(vec![Setting::Memory(MAX)]));
    world.tick();
    assert!(world.node.home().capacity().0 > 8 * MIB);
    let mut world = world.reopened(started, true);
    while world.stats().capacity != 8 * MIB {
        world.tick();
    }
    // Started with another value.
    let other = NodeSettings { memory: 32 * MIB, ..NodeSettings::default() };
    let mut world = world.reopened(other, true);
    while world.stats().capacity != 32 * MIB {
        world.tick();
    }
    world.tick();
    assert!(world.stats().settings_changed.is_empty());
    // And with one that its region has no tables for.
    let other = NodeSettings { memory: 2 * MAX, ..NodeSettings::default() };
    let mut world = world.reopened(other, false);
    world.tick();
    assert_eq!(world.stats().capacity, 32 * MIB);
    assert!(world.has(id));
}
