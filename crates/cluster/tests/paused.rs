//! A daemon that was stopped for longer than its lease resumes with a request in its socket. It
//! used to serve that before it checked the time: an excluded node could create a name.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::collections::BTreeMap;
use std::sync::Arc;

use farrow_cluster::protocol::cluster::{AgreementKind, ClusterOptions, Offer, PeerAction};
use farrow_cluster::protocol::{
    Action, AdoptedState, DaemonInfo, NodeState, PeerIdentity, SessionId,
};
use farrow_membership::etcd::{
    Change, EtcdReply, EtcdRequest, EtcdSnapshot, FoundKey, Key, LeaseId, Revision,
};
use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Region};
use farrow_store::{Home, Layout, RegionOptions};
use farrow_wire::{Hello, PROTOCOL_VERSION, ReplyBody, Request, RequestBody, WireError};

const LEASE_MS: u64 = 1000;
const OWNER: u32 = 1000;
const SESSION: SessionId = SessionId(1);

/// An etcd for one node.
#[derive(Default)]
struct ScriptedEtcd {
    revision: i64,
    found: BTreeMap<Key, FoundKey>,
    is_away: bool,
}

impl ScriptedEtcd {
    fn answer(&mut self, request: EtcdRequest) -> EtcdReply {
        if self.is_away {
            return EtcdReply::Failed { reason: "away".to_owned() };
        }
        match request {
            EtcdRequest::Look { .. } => EtcdReply::Looked(EtcdSnapshot {
                revision: Revision(self.revision),
                keys: self.found.values().map(|one| (one.key.clone(), one.revision)).collect(),
                changed: self.found.values().cloned().collect(),
            }),
            EtcdRequest::Grant { .. } => EtcdReply::Granted { lease: LeaseId(1) },
            EtcdRequest::KeepAlive { .. } => EtcdReply::RetainedAlive { is_there: true },
            EtcdRequest::Change(Change { puts, .. }) => {
                self.revision += 1;
                for put in puts {
                    let revision = Revision(self.revision);
                    let (key, lease, value) = (put.key, put.lease, put.value);
                    self.found.insert(key.clone(), FoundKey { key, revision, lease, value });
                }
                EtcdReply::Changed { is_done: true }
            }
        }
    }
}

struct PausedNode {
    state: NodeState,
    etcd: ScriptedEtcd,
    now_ms: u64,
}

impl PausedNode {
    fn new() -> Self {
        let options = RegionOptions::for_capacity(Length(4 << 20));
        let geometry = Layout::new(&options).unwrap().geometry;
        let fabric = Arc::new(ShmFabric::memfd("paused-test", geometry).unwrap());
        let region = Arc::new(Region::map(fabric, Access::Home, None).unwrap());
        let home = Home::create(region, &options, 0).unwrap();
        let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: OWNER };
        let state = NodeState::new(home, daemon, AdoptedState::default(), 0);
        let mut node = Self { state, etcd: ScriptedEtcd::default(), now_ms: 0 };
        let offer = Offer {
            host: "h".into(),
            region_uid: 1,
            control_bytes: 1,
            data_bytes: 1,
            capacity: 1,
            base: 0,
            ways: Vec::new(),
        };
        let options = ClusterOptions {
            net: None,
            name: "a".parse().unwrap(),
            address: "127.0.0.1:1".into(),
            agreement: AgreementKind::Etcd,
            seeds: Vec::new(),
            lease_ms: LEASE_MS,
            offer,
            incarnation: 5,
            seed: 1,
        };
        let mut out = Vec::new();
        node.state.join_cluster(options, 0, &mut out).unwrap();
        node.perform(out);
        node
    }

    /// Lets etcd answer; gives back what clients are sent.
    fn perform(&mut self, actions: Vec<Action>) -> Vec<Result<ReplyBody, WireError>> {
        let mut replies = Vec::new();
        let mut actions = std::collections::VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Peer(PeerAction::AskEtcd { id, request }) => {
                    let reply = self.etcd.answer(request);
                    let mut out = Vec::new();
                    self.state.on_etcd_response(id, reply, self.now_ms, &mut out);
                    actions.extend(out);
                }
                Action::Send { reply, .. } => replies.push(reply.body),
                _ => {}
            }
        }
        replies
    }

    fn tick(&mut self) -> Vec<Result<ReplyBody, WireError>> {
        let mut out = Vec::new();
        self.state.tick(self.now_ms, &mut out);
        self.perform(out)
    }

    /// Only serves, as the event loop does before it looks at the time.
    fn serve(&mut self, body: RequestBody) -> Vec<Result<ReplyBody, WireError>> {
        let mut out = Vec::new();
        self.state.handle(SESSION, Request { seq: 1, body }, self.now_ms, 1, &mut out);
        self.perform(out)
    }

    fn reserve(&mut self, name: &str) -> Vec<Result<ReplyBody, WireError>> {
        self.serve(RequestBody::Reserve { names: vec![name.to_owned()] })
    }
}

#[test]
fn a_request_that_came_while_a_daemon_slept_finds_no_lease() {
    let mut node = PausedNode::new();
    for _ in 0..30 {
        node.now_ms += LEASE_MS / 8;
        node.tick();
    }
    let peer = PeerIdentity { pid: 1, start_time: 1, uid: OWNER, remote_client: None };
    node.state.opened(SESSION, peer, node.now_ms);
    let hello = Hello {
        version: PROTOCOL_VERSION,
        resume: None,
        namespace: String::new(),
        node: String::new(),
        maps_memory: true,
    };
    let welcome = node.serve(RequestBody::Hello(hello));
    assert!(matches!(welcome.as_slice(), [Ok(ReplyBody::Welcome(_))]), "{welcome:?}");
    let answer = node.reserve("with a lease");
    assert!(matches!(answer.as_slice(), [Ok(_)]), "{answer:?}");

    node.etcd.is_away = true;
    node.now_ms += 10 * LEASE_MS;
    let answer = node.reserve("without one");
    assert!(answer.is_empty(), "a name was made without a lease: {answer:?}");
    node.now_ms += 4 * LEASE_MS;
    let answer = node.tick();
    assert!(matches!(answer.as_slice(), [Err(_)]), "{answer:?}");

    // It goes on when etcd does.
    node.etcd.is_away = false;
    for _ in 0..8 {
        node.now_ms += LEASE_MS / 8;
        node.tick();
    }
    let answer = node.reserve("again");
    assert!(matches!(answer.as_slice(), [Ok(_)]), "{answer:?}");
}
