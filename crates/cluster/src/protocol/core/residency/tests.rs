//! Restores that wait for room. The test performs the jobs.

use std::sync::Arc;

use farrow_memory::shm::ShmFabric;
use farrow_memory::sync::{AtomicU64, Ordering};
use farrow_memory::{Access, Length, Region};
use farrow_store::{EvictionCandidate, EvictionPolicy, Home, Layout, RegionOptions, SpillHead};
use farrow_wire::{
    Hello, NotSpilled, PROTOCOL_VERSION, QuotaExceeded, Request, RequestBody, SealItem,
};

use farrow_wire::{ReplyBody, WireError, WireTarget};

use super::restoring::RESTORES_MAX;
use super::spills::{LOOK_MS, SPILL_MS_MAX};
use crate::protocol::{
    Action, AdoptedState, DaemonInfo, NodeState, PeerIdentity, Quotas, SessionId, SpillDone,
    SpillJob, WriteFault,
};

const CLIENT: SessionId = SessionId(1);
/// More than half of the memory.
const BYTES: u64 = 160 << 10;

/// Least recently used first; counts the objects that it looks at.
#[derive(Debug)]
struct CountingPolicy(Arc<AtomicU64>);

impl EvictionPolicy for CountingPolicy {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn is_automatic(&self) -> bool {
        true
    }

    fn rank(&self, candidate: &EvictionCandidate) -> Option<u64> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Some(candidate.last_use_ns)
    }
}

struct SpillingNode {
    node: NodeState,
    looked: Arc<AtomicU64>,
    now_ms: u64,
    seq: u64,
    jobs: Vec<SpillJob>,
    replies: Vec<(u64, Result<ReplyBody, WireError>)>,
}

impl SpillingNode {
    fn new() -> Self {
        let options = RegionOptions::for_capacity(Length(256 << 10));
        let geometry = Layout::new(&options).unwrap().geometry;
        let fabric = Arc::new(ShmFabric::memfd("restore-test", geometry).unwrap());
        let region = Region::map(fabric, Access::Home, None).unwrap();
        let home = Home::create(Arc::new(region), &options, 0).unwrap();
        let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: 0 };
        let mut node = NodeState::new(home, daemon, AdoptedState::default(), 0);
        let looked = Arc::new(AtomicU64::new(0));
        node.set_eviction_policy(Box::new(CountingPolicy(Arc::clone(&looked))));
        node.set_spill("folder".to_owned());
        let peer = PeerIdentity { pid: 10, start_time: 1, uid: 0, remote_client: None };
        node.opened(CLIENT, peer, 0);
        let (jobs, replies) = (Vec::new(), Vec::new());
        let mut world = Self { node, looked, now_ms: 0, seq: 0, jobs, replies };
        let (namespace, other) = (String::new(), String::new());
        let hello = Hello {
            version: PROTOCOL_VERSION,
            resume: None,
            namespace,
            node: other,
            maps_memory: true,
        };
        world.ask(RequestBody::Hello(hello));
        world
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Spill(job) => self.jobs.push(job),
                Action::Send { reply, .. } => self.replies.push((reply.seq, reply.body)),
                _ => {}
            }
        }
    }

    fn tick(&mut self) {
        let mut out = Vec::new();
        self.node.tick(self.now_ms, &mut out);
        self.perform(out);
    }

    fn ask(&mut self, body: RequestBody) -> u64 {
        self.seq += 1;
        let (request, mut out) = (Request { seq: self.seq, body }, Vec::new());
        self.node.handle(CLIENT, request, self.now_ms, self.seq, &mut out);
        self.perform(out);
        self.tick();
        self.seq
    }

    fn answer(&self, seq: u64) -> Option<&Result<ReplyBody, WireError>> {
        self.replies.iter().find(|(of, _)| *of == seq).map(|(_, body)| body)
    }

    fn done(&mut self, done: SpillDone) {
        let mut out = Vec::new();
        self.node.spill_done(done, self.now_ms, &mut out);
        self.perform(out);
        self.tick();
    }

    /// An object that is in a file, with the head of that.
    fn spilled(&mut self) -> SpillHead {
        self.spilled_of(BYTES)
    }

    fn spilled_of(&mut self, bytes: u64) -> SpillHead {
        let grant = self.ask(RequestBody::Grant { min: bytes, want: bytes, wait_ms: 0 });
        let Some(Ok(ReplyBody::Granted(span))) = self.answer(grant) else { panic!() };
        let items = vec![SealItem::bytes(*span, bytes)];
        self.ask(RequestBody::Seal { items });
        self.ask(RequestBody::Evict { bytes: 1 });
        let Some(SpillJob::Write { head, .. }) = self.jobs.pop() else { panic!("{:?}", self.jobs) };
        self.done(SpillDone::Written { id: head.id, result: Ok(()) });
        head
    }

    /// A request for an object whose head the worker has read.
    fn restore(&mut self, head: &SpillHead) -> u64 {
        let seq = self.ask(RequestBody::Restore { id: head.id.into() });
        let job = self.jobs.pop();
        assert!(matches!(job, Some(SpillJob::Look { id }) if id == head.id), "{job:?}");
        self.done(SpillDone::Looked { id: head.id, result: Ok(head.clone()) });
        seq
    }

    /// Short objects that the searches for room would look at.
    fn put_short_objects(&mut self) {
        for _ in 0..4 {
            let grant = self.ask(RequestBody::Grant { min: 4096, want: 4096, wait_ms: 0 });
            let Some(Ok(ReplyBody::Granted(span))) = self.answer(grant) else { panic!() };
            let items = vec![SealItem::bytes(*span, 4096)];
            self.ask(RequestBody::Seal { items });
        }
    }

    fn looked(&self) -> u64 {
        self.looked.load(Ordering::Relaxed)
    }
}

/// Regression test: while one large object was read from its file, each turn of the event loop
/// looked at all objects for every restore that waited for room.
#[test]
fn restores_that_wait_for_room_look_for_it_when_something_changes() {
    let mut world = SpillingNode::new();
    let heads = [world.spilled(), world.spilled()];
    let first = world.restore(&heads[0]);
    let load = world.jobs.pop();
    assert!(matches!(load, Some(SpillJob::Load { .. })), "{load:?}");
    let second = world.restore(&heads[1]);
    assert!(world.jobs.is_empty() && world.answer(second).is_none(), "it waits for room");
    world.put_short_objects();
    world.tick();
    let before = world.looked();
    for _ in 0..100 {
        world.tick();
    }
    assert_eq!(world.looked(), before, "nothing has changed");
    // A reader may have released a hold without a message.
    let at_ms = world.node.next_deadline_ms().unwrap();
    assert!(at_ms <= world.now_ms + LOOK_MS, "{at_ms}");
    world.now_ms += LOOK_MS;
    world.tick();
    assert!(world.looked() > before);

    let loaded = Ok((Vec::new(), Vec::new()));
    world.done(SpillDone::Loaded { id: heads[0].id, result: loaded });
    assert!(matches!(world.answer(first), Some(Ok(ReplyBody::Done))), "{:?}", world.answer(first));
    // The first one leaves memory again, for which it has its file.
    let is_load = |job: &SpillJob| matches!(job, SpillJob::Load { head, .. } if *head == heads[1]);
    for _ in 0..10 {
        world.now_ms += LOOK_MS;
        world.tick();
        while let Some(at) = world.jobs.iter().position(|job| matches!(job, SpillJob::Write { .. }))
        {
            let SpillJob::Write { head, .. } = world.jobs.remove(at) else { continue };
            world.done(SpillDone::Written { id: head.id, result: Ok(()) });
        }
    }
    assert!(world.jobs.iter().any(is_load), "{:?}", world.jobs);
}

/// Each restore that waits once looked at all objects by itself, four times.
#[test]
fn restores_for_which_nothing_can_leave_look_for_room_once() {
    let looks_of = |waiting: usize| {
        let mut world = SpillingNode::new();
        let heads: Vec<SpillHead> = (0..=waiting).map(|_| world.spilled()).collect();
        world.restore(&heads[0]);
        assert!(matches!(world.jobs.pop(), Some(SpillJob::Load { .. })));
        for head in &heads[1..] {
            let seq = world.restore(head);
            assert!(world.jobs.is_empty() && world.answer(seq).is_none(), "it waits for room");
        }
        world.put_short_objects();
        world.tick();
        let before = world.looked();
        world.now_ms += LOOK_MS;
        world.tick();
        world.looked() - before
    };
    let one = looks_of(1);
    assert!(one > 0);
    assert_eq!(looks_of(10), one);
}

/// The 257th object once failed at once, whoever asked for it.
#[test]
fn restores_beyond_the_limit_wait_for_others() {
    const MORE: usize = 40;
    let mut world = SpillingNode::new();
    let heads: Vec<SpillHead> = (0..RESTORES_MAX + MORE).map(|_| world.spilled_of(4096)).collect();
    let requested: Vec<u64> =
        heads.iter().map(|head| world.ask(RequestBody::Restore { id: head.id.into() })).collect();
    assert!(requested.iter().all(|seq| world.answer(*seq).is_none()), "all wait");
    let looks = |world: &SpillingNode| {
        world.jobs.iter().filter(|job| matches!(job, SpillJob::Look { .. })).count()
    };
    assert_eq!(looks(&world), RESTORES_MAX);
    for head in &heads[..MORE] {
        let reason = "not there".to_owned();
        world.done(SpillDone::Looked { id: head.id, result: Err(reason) });
    }
    world.tick();
    assert_eq!(looks(&world), RESTORES_MAX + MORE);
    let answered = requested.iter().filter(|seq| world.answer(**seq).is_some()).count();
    assert_eq!(answered, MORE);
}

/// Regression test: while an object was written to its file for a restore, the time of the next look
/// stayed in the past, and the event loop ran without a pause.
#[test]
fn a_restore_that_waits_for_a_write_waits_for_the_next_look() {
    let mut world = SpillingNode::new();
    let head = world.spilled();
    let grant = world.ask(RequestBody::Grant { min: BYTES, want: BYTES, wait_ms: 0 });
    let Some(Ok(ReplyBody::Granted(span))) = world.answer(grant) else { panic!() };
    let items = vec![SealItem::bytes(*span, BYTES)];
    world.ask(RequestBody::Seal { items });
    let restore = world.restore(&head);
    let Some(SpillJob::Write { head: written, .. }) = world.jobs.pop() else {
        panic!("{:?}", world.jobs)
    };
    for _ in 0..10 {
        world.now_ms += LOOK_MS;
        world.tick();
        let at_ms = world.node.next_deadline_ms().unwrap();
        assert!(at_ms > world.now_ms, "due at {at_ms}, it is {}", world.now_ms);
    }
    world.done(SpillDone::Written { id: written.id, result: Ok(()) });
    assert!(world.answer(restore).is_none());
    assert!(matches!(world.jobs.pop(), Some(SpillJob::Load { .. })), "there is room now");
}

/// Regression test: an object whose file had been removed left memory for it. The test performs the
/// job as the worker, which looks at the file first.
#[test]
fn an_object_with_a_copy_leaves_memory_once_the_copy_was_looked_at() {
    let mut world = SpillingNode::new();
    let head = world.spilled();
    let restore = world.restore(&head);
    let loaded = Ok((Vec::new(), Vec::new()));
    assert!(matches!(world.jobs.pop(), Some(SpillJob::Load { .. })));
    world.done(SpillDone::Loaded { id: head.id, result: loaded });
    assert!(matches!(world.answer(restore), Some(Ok(ReplyBody::Done))));
    let evict = world.ask(RequestBody::Evict { bytes: 1 });
    let Some(SpillJob::Write { head: looked, is_copied: true, .. }) = world.jobs.pop() else {
        panic!("{:?}", world.jobs)
    };
    assert_eq!(looked, head);
    assert!(world.answer(evict).is_none());
    // It is not there, and cannot be written.
    let fault = WriteFault { is_full: false, reason: "no such folder".to_owned() };
    world.done(SpillDone::Written { id: head.id, result: Err(fault) });
    assert!(matches!(world.answer(evict), Some(Err(WireError::NotSpilled(_)))));
    assert_eq!(world.node.home().stats().unwrap().objects, 1);
    assert!(matches!(world.jobs.pop(), Some(SpillJob::Forget { .. })));
    // So it is written like any other one.
    world.now_ms += 10 * LOOK_MS + 1000;
    world.ask(RequestBody::Evict { bytes: 1 });
    let again = world.jobs.pop();
    assert!(matches!(again, Some(SpillJob::Write { is_copied: false, .. })), "{again:?}");
    world.done(SpillDone::Written { id: head.id, result: Ok(()) });
    assert_eq!(world.node.home().stats().unwrap().objects_spilled, 1);
}

/// Regression test: while a bucket did not answer, writers were told that memory is full, without the
/// bucket.
#[test]
fn a_write_that_does_not_end_is_the_reason_of_a_lack_of_memory() {
    let mut world = SpillingNode::new();
    let grant = world.ask(RequestBody::Grant { min: BYTES, want: BYTES, wait_ms: 0 });
    let Some(Ok(ReplyBody::Granted(span))) = world.answer(grant) else { panic!() };
    let items = vec![SealItem::bytes(*span, BYTES)];
    world.ask(RequestBody::Seal { items });
    let starve = |world: &mut SpillingNode, wait_ms: u64| {
        let full = world.ask(RequestBody::Grant { min: BYTES, want: BYTES, wait_ms });
        assert!(world.answer(full).is_none(), "{:?}", world.answer(full));
        world.now_ms += SPILL_MS_MAX.max(wait_ms);
        world.tick();
        match world.answer(full) {
            Some(Err(WireError::NotSpilled(NotSpilled { folder, reason, .. })))
                if folder == "folder" =>
            {
                reason.clone()
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(starve(&mut world, 0), "no answer for 8 s");
    let Some(SpillJob::Write { head, .. }) = world.jobs.pop() else { panic!("{:?}", world.jobs) };
    // The worker gives up, and the next write hangs too: the cause is known from its begin.
    let fault = WriteFault { is_full: false, reason: "timed out".to_owned() };
    world.done(SpillDone::Written { id: head.id, result: Err(fault) });
    world.now_ms += 2000;
    assert_eq!(starve(&mut world, 10), "timed out");
    let write = world.jobs.pop();
    assert!(matches!(write, Some(SpillJob::Write { .. })), "{write:?}");
    world.done(SpillDone::Written { id: head.id, result: Ok(()) });
    let grant = world.ask(RequestBody::Grant { min: BYTES, want: BYTES, wait_ms: 0 });
    assert!(matches!(world.answer(grant), Some(Ok(ReplyBody::Granted(_)))));
}

/// Regression test: spilled objects counted for no client. One with a limit of a few objects took all
/// places of the node.
#[test]
fn spilled_objects_count_for_the_quota_of_their_client() {
    let mut world = SpillingNode::new();
    world.node.set_quotas(Quotas { client_bytes_max: None, client_objects_max: Some(2) });
    let heads = [world.spilled(), world.spilled()];
    let reserve = |world: &mut SpillingNode, wait_ms| {
        world.ask(RequestBody::ReserveObjects { objects: 1, wait_ms })
    };
    let refused = reserve(&mut world, 0);
    assert!(
        matches!(
            world.answer(refused),
            Some(Err(WireError::QuotaExceeded(QuotaExceeded { used: 2, .. })))
        ),
        "{:?}",
        world.answer(refused)
    );
    let waiting = reserve(&mut world, 1000);
    assert!(world.answer(waiting).is_none());
    let target = WireTarget::Id(heads[0].id.into());
    world.ask(RequestBody::Delete { targets: vec![target] });
    assert!(matches!(world.answer(waiting), Some(Ok(ReplyBody::Done))), "there is room");
}
