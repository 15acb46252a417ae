//! Settings that are changed while the node serves. Only the state machine, with a clock of the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use farrow_cluster::protocol::{
    Action, AdoptedState, DaemonInfo, LogControl, NodeState, PeerIdentity, SessionId,
};
use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Region};
use farrow_store::{Home, Layout, RegionOptions};
use farrow_wire::{
    Hello, NamespaceSpec, NodeSettings, PROTOCOL_VERSION, QuotaExceeded, Reply, ReplyBody, Request,
    RequestBody, SETTINGS_MAX, SealItem, Setting, WireError, WireObjectId, WireSpan,
};

const CAPACITY: u64 = 1 << 20;
const PART: u64 = CAPACITY / 4;
const OWNER: u32 = 1000;
const OTHER: u32 = 1001;

struct ConfiguredNode {
    state: NodeState,
    answers: BTreeMap<u64, Result<ReplyBody, WireError>>,
    sessions: u64,
    next_seq: u64,
    filter: Arc<Mutex<String>>,
}

impl ConfiguredNode {
    fn new() -> Self {
        let options = RegionOptions::for_capacity(Length(CAPACITY));
        let geometry = Layout::new(&options).unwrap().geometry;
        let fabric = Arc::new(ShmFabric::memfd("settings-test", geometry).unwrap());
        let region = Arc::new(Region::map(fabric, Access::Home, None).unwrap());
        let home = Home::create(region, &options, 0).unwrap();
        let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: OWNER };
        let mut state = NodeState::new(home, daemon, AdoptedState::default(), 0);
        state.allow_users(&[OTHER]);
        let filter = Arc::new(Mutex::new(String::new()));
        let set = Arc::clone(&filter);
        let log = LogControl(Arc::new(move |text: &str| match text {
            "no filter" => Err("cannot be parsed".to_owned()),
            text => {
                text.clone_into(&mut set.lock().unwrap());
                Ok(())
            }
        }));
        state.begin_settings(NodeSettings::default(), Some(log), false).unwrap();
        Self { state, answers: BTreeMap::new(), sessions: 0, next_seq: 0, filter }
    }

    fn join(&mut self, uid: u32, namespace: &str) -> SessionId {
        let session = SessionId(self.sessions);
        self.sessions += 1;
        let pid = 100 + session.0 as u32;
        let peer = PeerIdentity { pid, start_time: 5, uid, remote_client: None };
        self.state.opened(session, peer, 0);
        let hello = Hello {
            version: PROTOCOL_VERSION,
            resume: None,
            namespace: namespace.to_owned(),
            node: String::new(),
            maps_memory: true,
        };
        assert!(matches!(self.ask(session, RequestBody::Hello(hello)), Ok(ReplyBody::Welcome(_))));
        session
    }

    fn send(&mut self, session: SessionId, body: RequestBody) -> u64 {
        self.next_seq += 1;
        let request = Request { seq: self.next_seq, body };
        let mut actions = Vec::new();
        self.state.handle(session, request, 0, 7, &mut actions);
        self.state.tick(0, &mut actions);
        for action in actions {
            if let Action::Send { reply: Reply { seq, body }, .. } = action {
                self.answers.insert(seq, body);
            }
        }
        self.state.home().check().unwrap();
        self.next_seq
    }

    fn ask(&mut self, session: SessionId, body: RequestBody) -> Result<ReplyBody, WireError> {
        let seq = self.send(session, body);
        self.answers.remove(&seq).expect("an answer at once")
    }

    fn set(&mut self, session: SessionId, settings: &[Setting]) -> Result<ReplyBody, WireError> {
        self.ask(session, RequestBody::Set(settings.to_vec()))
    }

    fn grant(&mut self, session: SessionId, bytes: u64) -> Result<WireSpan, WireError> {
        let body = RequestBody::Grant { min: bytes, want: bytes, wait_ms: 0 };
        self.ask(session, body).map(|reply| match reply {
            ReplyBody::Granted(span) => span,
            other => panic!("{other:?}"),
        })
    }

    fn seal(&mut self, session: SessionId, span: WireSpan) -> Result<WireObjectId, WireError> {
        let items = vec![SealItem::bytes(span, 1)];
        match self.ask(session, RequestBody::Seal { items }) {
            Ok(ReplyBody::Sealed(mut sealed)) => sealed.remove(0),
            other => panic!("{other:?}"),
        }
    }

    fn settings(&mut self, session: SessionId) -> (NodeSettings, Vec<String>) {
        match self.ask(session, RequestBody::Stats) {
            Ok(ReplyBody::Stats(stats)) => (stats.settings, stats.settings_changed),
            other => panic!("{other:?}"),
        }
    }
}

/// What a refused request says about limits: used, and the most.
fn used_and_max<T: std::fmt::Debug>(answer: Result<T, WireError>) -> (u64, u64) {
    match answer {
        Err(WireError::QuotaExceeded(QuotaExceeded { used, limit, .. })) => (used, limit),
        other => panic!("{other:?}"),
    }
}

fn is_denied(answer: &Result<ReplyBody, WireError>) -> bool {
    matches!(answer, Err(WireError::Denied(_)))
}

#[test]
fn a_limit_below_the_use_removes_nothing_and_refuses_more_until_the_use_is_below() {
    let mut node = ConfiguredNode::new();
    let owner = node.join(OWNER, "");
    let span = node.grant(owner, 2 * PART).unwrap();
    let id = node.seal(owner, span).unwrap();
    node.set(owner, &[Setting::ClientBytes(Some(PART))]).unwrap();
    assert_eq!(used_and_max(node.grant(owner, 4096)), (2 * PART, PART));
    let there = RequestBody::Wait {
        targets: vec![farrow_wire::WireTarget::Id(id)],
        count: 1,
        timeout_ms: 0,
    };
    assert_eq!(node.ask(owner, there), Ok(ReplyBody::Ready(vec![true])));
    node.ask(owner, RequestBody::Delete { targets: vec![farrow_wire::WireTarget::Id(id)] })
        .unwrap();
    node.grant(owner, PART).unwrap();
    assert_eq!(used_and_max(node.grant(owner, 4096)), (PART, PART));
    node.set(owner, &[Setting::ClientBytes(None)]).unwrap();
    node.grant(owner, 4096).unwrap();
    let (settings, changed) = node.settings(owner);
    assert_eq!((settings.client_bytes, changed), (None, Vec::new()));
}

#[test]
fn limits_of_a_namespace_hold_for_clients_that_joined_before() {
    let mut node = ConfiguredNode::new();
    let owner = node.join(OWNER, "");
    let spec = NamespaceSpec { name: "team".into(), ..NamespaceSpec::default() };
    node.ask(owner, RequestBody::CreateNamespace(spec)).unwrap();
    let member = node.join(OTHER, "team");
    let name = || "team".to_owned();
    let span = node.grant(member, PART).unwrap();
    let bytes = Setting::NamespaceBytes { name: name(), max: Some(PART) };
    let objects = Setting::NamespaceObjects { name: name(), max: Some(1) };
    node.set(owner, &[bytes, objects]).unwrap();
    assert_eq!(used_and_max(node.grant(member, 4096)), (PART, PART));
    let (one, other) = ((span.0, 4096), (span.0 + 4096, 4096));
    node.seal(member, one).unwrap();
    assert_eq!(used_and_max(node.seal(member, other)), (1, 1));
    node.set(owner, &[Setting::NamespaceObjects { name: name(), max: None }]).unwrap();
    node.seal(member, other).unwrap();
    // Kept with the namespace.
    let team = node.state.home().namespace("team").unwrap();
    assert_eq!((team.options.bytes_max, team.options.objects_max), (Some(PART), None));
    for name in ["", "nobody"] {
        let setting = Setting::NamespaceBytes { name: name.to_owned(), max: None };
        node.set(owner, &[setting]).unwrap_err();
    }
}

#[test]
fn a_raised_limit_serves_the_requests_that_wait() {
    let mut node = ConfiguredNode::new();
    let owner = node.join(OWNER, "");
    node.set(owner, &[Setting::ClientObjects(Some(1))]).unwrap();
    let reserve = |wait_ms| RequestBody::ReserveObjects { objects: 1, wait_ms };
    node.ask(owner, reserve(0)).unwrap();
    let waiting = node.send(owner, reserve(60_000));
    assert!(!node.answers.contains_key(&waiting));
    node.set(owner, &[Setting::ClientObjects(Some(2))]).unwrap();
    assert_eq!(node.answers.remove(&waiting), Some(Ok(ReplyBody::Done)));
    // Memory: the node evicts from here on.
    node.set(owner, &[Setting::ClientObjects(None)]).unwrap();
    let span = node.grant(owner, CAPACITY).unwrap();
    node.seal(owner, span).unwrap();
    let grant = RequestBody::Grant { min: PART, want: PART, wait_ms: 60_000 };
    let waiting = node.send(owner, grant);
    assert!(!node.answers.contains_key(&waiting));
    node.set(owner, &[Setting::IsEvicting(true)]).unwrap();
    assert!(matches!(node.answers.remove(&waiting), Some(Ok(ReplyBody::Granted(_)))));
}

#[test]
fn all_settings_of_a_message_are_changed_or_none() {
    let mut node = ConfiguredNode::new();
    let owner = node.join(OWNER, "");
    let good = || vec![Setting::ClientBytes(Some(PART)), Setting::Log("info".into())];
    for bad in [
        Setting::Cache(Some(PART)),
        Setting::Log("no filter".into()),
        Setting::Log("x".repeat(2000)),
        Setting::NamespaceObjects { name: "nobody".into(), max: None },
    ] {
        let mut settings = good();
        settings.push(bad.clone());
        let error = node.set(owner, &settings).unwrap_err().to_string();
        assert!(!error.is_empty(), "{bad:?}");
        assert_eq!(node.settings(owner).1, Vec::<String>::new(), "{bad:?}: {error}");
    }
    let many = vec![Setting::ClientBytes(None); SETTINGS_MAX + 1];
    assert!(matches!(node.set(owner, &many), Err(WireError::TooMany { .. })));
    node.set(owner, &good()).unwrap();
    let (settings, changed) = node.settings(owner);
    assert_eq!(changed, ["client_bytes", "log"]);
    assert_eq!((settings.client_bytes, settings.log.as_str()), (Some(PART), "info"));
    assert_eq!(*node.filter.lock().unwrap(), "info");
}

/// One that could not be resumed discarded all of them.
#[test]
fn settings_of_an_earlier_daemon_are_resumed_one_by_one() {
    let mut node = ConfiguredNode::new();
    let owner = node.join(OWNER, "");
    let both = [Setting::ClientBytes(Some(PART)), Setting::Log("info".to_owned())];
    node.set(owner, &both).unwrap();
    // The log of the next process is not its own.
    node.state.begin_settings(NodeSettings::default(), None, true).unwrap();
    let (settings, changed) = node.settings(owner);
    assert_eq!(settings.client_bytes, Some(PART));
    assert_eq!(changed, ["client_bytes"]);
}

#[test]
fn only_the_owner_and_root_change_settings() {
    let mut node = ConfiguredNode::new();
    let (owner, root, other) = (node.join(OWNER, ""), node.join(0, ""), node.join(OTHER, ""));
    let change = [Setting::ClientBytes(Some(PART))];
    assert!(is_denied(&node.set(other, &change)));
    node.grant(other, 2 * PART).unwrap();
    for session in [owner, root] {
        node.set(session, &change).unwrap();
    }
}
