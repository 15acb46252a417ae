//! Admission of users, names by namespace, and rights to write. Only the state machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::sync::Arc;

use farrow_cluster::protocol::{
    Action, AdoptedState, DaemonInfo, NodeState, PeerIdentity, Quotas, SessionId,
};
use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Region};
use farrow_store::{Home, Layout, RegionOptions};
use farrow_wire::{
    Hello, NamespaceSpec, NoNamespace, PROTOCOL_VERSION, ReplyBody, Request, RequestBody, SealItem,
    Watch, WireError, WireObjectId, WireTarget,
};

const OWNER: u32 = 1000;
const REMOTE_CLIENT: u32 = 1001;
const STRANGER: u32 = 1002;

struct NamespacesNode {
    state: NodeState,
    sessions: u64,
    others: Vec<(SessionId, ReplyBody)>,
}

impl NamespacesNode {
    fn new() -> Self {
        let options = RegionOptions::for_capacity(Length(1 << 20));
        let geometry = Layout::new(&options).unwrap().geometry;
        let fabric = Arc::new(ShmFabric::memfd("namespaces-test", geometry).unwrap());
        let region = Arc::new(Region::map(fabric, Access::Home, None).unwrap());
        let home = Home::create(region, &options, 0).unwrap();
        let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: OWNER };
        let mut state = NodeState::new(home, daemon, AdoptedState::default(), 0);
        state.allow_users(&[REMOTE_CLIENT]);
        Self { state, sessions: 0, others: Vec::new() }
    }

    fn connect(&mut self, uid: u32, namespace: &str) -> Result<SessionId, WireError> {
        let session = SessionId(self.sessions);
        self.sessions += 1;
        let peer =
            PeerIdentity { pid: 100 + session.0 as u32, start_time: 5, uid, remote_client: None };
        self.state.opened(session, peer, 0);
        let namespace = namespace.to_owned();
        let hello = Hello {
            version: PROTOCOL_VERSION,
            resume: None,
            namespace,
            node: String::new(),
            maps_memory: true,
        };
        self.ask(session, RequestBody::Hello(hello)).map(|_| session)
    }

    fn ask(&mut self, session: SessionId, body: RequestBody) -> Result<ReplyBody, WireError> {
        let mut actions = Vec::new();
        self.state.handle(session, Request { seq: 1, body }, 0, 7, &mut actions);
        self.state.home().check().unwrap();
        let mut own = None;
        for action in actions {
            match action {
                Action::Send { session: to, reply, .. } if to == session => own = Some(reply.body),
                Action::Send { session: to, reply, .. } => {
                    self.others.push((to, reply.body.unwrap()));
                }
                _ => {}
            }
        }
        own.unwrap_or(Ok(ReplyBody::Done))
    }

    fn put(&mut self, session: SessionId, name: Option<&str>) -> Result<WireObjectId, WireError> {
        let grant = RequestBody::Grant { min: 128, want: 128, wait_ms: 0 };
        let Ok(ReplyBody::Granted(span)) = self.ask(session, grant.clone()) else {
            return Err(self.ask(session, grant).unwrap_err());
        };
        let name = name.map(str::to_owned);
        let item = SealItem { name, ..SealItem::bytes((span.0, 128), 3) };
        match self.ask(session, RequestBody::Seal { items: vec![item] })? {
            ReplyBody::Sealed(mut results) => results.remove(0),
            other => panic!("{other:?}"),
        }
    }

    fn create(&mut self, session: SessionId, spec: NamespaceSpec) -> Result<ReplyBody, WireError> {
        self.ask(session, RequestBody::CreateNamespace(spec))
    }
}

fn spec(name: &str) -> NamespaceSpec {
    NamespaceSpec { name: name.to_owned(), ..NamespaceSpec::default() }
}

fn is_denied<T: std::fmt::Debug>(answer: &Result<T, WireError>, uid: u32) -> bool {
    matches!(answer, Err(WireError::Denied(why)) if why.contains(&format!("user {uid} ")))
}

#[test]
fn remote_clients_may_connect_and_not_look_after_the_node() {
    let mut node = NamespacesNode::new();
    let owner = node.connect(OWNER, "").unwrap();
    node.connect(0, "").unwrap();
    assert!(is_denied(&node.connect(STRANGER, ""), STRANGER));
    let remote_client = node.connect(REMOTE_CLIENT, "").unwrap();
    node.put(remote_client, Some("x")).unwrap();
    for body in [
        RequestBody::Shutdown,
        RequestBody::CreateNamespace(spec("mine")),
        RequestBody::DropNamespace { name: "mine".to_owned() },
    ] {
        assert!(is_denied(&node.ask(remote_client, body), REMOTE_CLIENT));
    }
    node.create(owner, spec("mine")).unwrap();
    node.ask(remote_client, RequestBody::Namespaces).unwrap();
}

#[test]
fn strangers_do_not_use_up_the_connections() {
    let mut node = NamespacesNode::new();
    let peer = |uid| PeerIdentity { pid: 7, start_time: 5, uid, remote_client: None };
    let mut taken = 0;
    while node.state.has_room_for(&peer(STRANGER)) {
        node.state.opened(SessionId(taken), peer(STRANGER), 0);
        taken += 1;
        assert!(taken < 100, "strangers are taken without end");
    }
    assert!(node.state.has_room_for(&peer(OWNER)) && node.state.has_room_for(&peer(REMOTE_CLIENT)));
    node.state.closed(SessionId(0), false, 0);
    assert!(node.state.has_room_for(&peer(STRANGER)));
}

#[test]
fn only_writers_write() {
    let mut node = NamespacesNode::new();
    let owner = node.connect(OWNER, "").unwrap();
    node.create(owner, NamespaceSpec { writers: Some(vec![]), ..spec("closed") }).unwrap();
    node.create(owner, NamespaceSpec { writers: Some(vec![REMOTE_CLIENT]), ..spec("open") })
        .unwrap();
    let ours = node.connect(OWNER, "closed").unwrap();
    let id = node.put(ours, Some("x")).unwrap();
    let remote_client = node.connect(REMOTE_CLIENT, "closed").unwrap();
    let x = || vec![WireTarget::Name("x".to_owned())];
    for body in [
        RequestBody::Grant { min: 1, want: 1, wait_ms: 9 },
        RequestBody::EntryPages { count: 1 },
        RequestBody::Reserve { names: vec!["y".to_owned()] },
        RequestBody::Renew { names: vec!["y".to_owned()], are_all: false },
        RequestBody::Seal { items: vec![SealItem::bytes((0, 128), 1)] },
        RequestBody::Delete { targets: x() },
        RequestBody::Pin { targets: x(), is_pinned: true },
        RequestBody::Evict { bytes: 1 },
    ] {
        assert!(is_denied(&node.ask(remote_client, body.clone()), REMOTE_CLIENT), "{body:?}");
    }
    let wait = RequestBody::Wait { targets: x(), count: 1, timeout_ms: 0 };
    assert_eq!(node.ask(remote_client, wait), Ok(ReplyBody::Ready(vec![true])));
    node.ask(remote_client, RequestBody::HoldBlock).unwrap();
    // A client that reconnects says that it reserved nothing.
    node.ask(remote_client, RequestBody::Renew { names: Vec::new(), are_all: true }).unwrap();
    // Nothing of it is reserved for the owner.
    let names = vec!["y".to_owned()];
    node.ask(ours, RequestBody::Reserve { names }).unwrap();
    let writer = node.connect(REMOTE_CLIENT, "open").unwrap();
    node.put(writer, Some("x")).unwrap();
    let by_id = RequestBody::Delete { targets: vec![WireTarget::Id(id)] };
    match node.ask(writer, by_id).unwrap() {
        ReplyBody::Deleted(results) => assert!(matches!(results[..], [Err(WireError::Denied(_))])),
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_waits_hears_of_its_namespace_alone() {
    let mut node = NamespacesNode::new();
    let owner = node.connect(OWNER, "").unwrap();
    node.create(owner, spec("team")).unwrap();
    let [team, waits, watches] = [(); 3].map(|()| node.connect(OWNER, "team").unwrap());
    let targets = vec![WireTarget::Name("x".to_owned())];
    node.ask(waits, RequestBody::Wait { targets, count: 1, timeout_ms: 1000 }).unwrap();
    let watch = Watch { after: 0, prefix: String::new(), kinds: u8::MAX, timeout_ms: 1000 };
    node.ask(watches, RequestBody::Watch(watch)).unwrap();
    node.put(owner, Some("x")).unwrap();
    assert_eq!(node.others, []);
    node.put(team, Some("x")).unwrap();
    node.others.sort_by_key(|(session, _)| *session);
    let reported =
        [(waits, ReplyBody::Ready(vec![true])), (watches, ReplyBody::Watched { next: 1 })];
    assert_eq!(node.others, reported);
}

#[test]
fn errors_report_the_names_that_the_client_knows() {
    let mut node = NamespacesNode::new();
    let owner = node.connect(OWNER, "").unwrap();
    node.create(owner, spec("team")).unwrap();
    let team = node.connect(OWNER, "team").unwrap();
    node.put(team, Some("x")).unwrap();
    let taken = WireError::NameTaken { name: "x".to_owned() };
    assert_eq!(node.put(team, Some("x")), Err(taken.clone()));
    assert_eq!(node.ask(team, RequestBody::Reserve { names: vec!["x".to_owned()] }), Err(taken));
    let targets = vec![WireTarget::Name("y".to_owned())];
    match node.ask(team, RequestBody::Delete { targets }).unwrap() {
        ReplyBody::Deleted(results) => {
            assert_eq!(results[0].as_ref().unwrap_err().to_string(), "no object named \"y\"");
        }
        other => panic!("{other:?}"),
    }
    let known = vec!["team".to_owned()];
    let unknown = WireError::NoNamespace(NoNamespace { name: "tea".to_owned(), known });
    assert_eq!(node.connect(OWNER, "tea").unwrap_err(), unknown);
}

#[test]
fn where_objects_are_counted_none_is_sealed_unseen() {
    let mut node = NamespacesNode::new();
    let owner = node.connect(OWNER, "").unwrap();
    node.create(owner, NamespaceSpec { objects_max: Some(2), ..spec("few") }).unwrap();
    let pages = || RequestBody::EntryPages { count: 1 };
    node.ask(owner, pages()).unwrap();
    let few = node.connect(OWNER, "few").unwrap();
    assert!(matches!(node.ask(few, pages()), Err(WireError::TooMany { .. })));
    node.state.set_quotas(Quotas { client_bytes_max: None, client_objects_max: Some(1) });
    assert!(matches!(node.ask(owner, pages()), Err(WireError::TooMany { .. })));
}
