//! Processes of clients that lost their connections.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command};

use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Region};
use farrow_store::{Home, Layout, RegionOptions, RemoteClient};
use farrow_wire::{
    self as wire, Hello, PROTOCOL_VERSION, Reply, ReplyBody, Request, RequestBody, Rights, Rule,
    Setting, Welcome, WireError, WireTarget,
};

use super::accept::ACCEPT_AGAIN_MS;
use super::orphans::WATCH_AGAIN_MS;
use super::remote_sessions::RemoteSession;
use super::watched::WATCHED_OF_NODE_MAX;
use super::*;
use crate::audit::AuditLog;
use crate::node::MemorySource;
use crate::peers::{PeerEvent, PeerLimits, PeerTimes, PeersOptions, RemoteSessionId};
use crate::protocol::cluster::PeerAction;
use crate::protocol::{AdoptedState, DaemonInfo};

const OWNER: u32 = 1000;

struct ServerFixture {
    server: Server,
    dir: tempfile::TempDir,
    _stopper: UnixStream,
    sessions: u64,
}

impl ServerFixture {
    fn new() -> Self {
        Self::with(None)
    }

    fn with(peers: Option<(Peers, Devices)>) -> Self {
        let options = RegionOptions::for_capacity(Length(1 << 20));
        let geometry = Layout::new(&options).unwrap().geometry;
        let fabric = Arc::new(ShmFabric::memfd("server-test", geometry).unwrap());
        let region = Arc::new(Region::map(fabric, Access::Home, None).unwrap());
        let home = Home::create(region, &options, 0).unwrap();
        let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: OWNER };
        let state = NodeState::new(home, daemon, AdoptedState::default(), 0);
        let dir = tempfile::tempdir().unwrap();
        let (stopper, wake) = UnixStream::pair().unwrap();
        let socket = dir.path().join("n.sock");
        let parts = ServerParts {
            listener: UnixListener::bind(&socket).unwrap(),
            socket,
            wake,
            started: BootTime::now(),
            linger: None,
            prepared: Arc::default(),
            metrics: None,
            audit: None,
            spill: None,
            peers,
            net: None,
        };
        let server = Server::new(parts, state, Vec::new()).unwrap();
        Self { server, dir, _stopper: stopper, sessions: 1 << 32 }
    }

    fn join(&mut self, peer: PeerIdentity, resume: Option<&Welcome>) -> (SessionId, Welcome) {
        self.sessions += 1;
        let session = SessionId(self.sessions);
        self.server.state.opened(session, peer, 0);
        let resume = resume.map(|place| (place.region_uid, place.slot, place.nonce));
        let (namespace, node) = (String::new(), String::new());
        let maps_memory = true;
        let hello = Hello { version: PROTOCOL_VERSION, resume, namespace, node, maps_memory };
        let mut out = Vec::new();
        let request = Request { seq: 0, body: RequestBody::Hello(hello) };
        self.server.state.handle(session, request, 0, 0, &mut out);
        match out.pop() {
            Some(Action::Send {
                reply: Reply { body: Ok(ReplyBody::Welcome(welcome)), .. },
                ..
            }) => (session, welcome),
            other => panic!("{other:?}"),
        }
    }

    /// A client that lost its connection.
    fn orphan(&mut self, peer: PeerIdentity) -> Welcome {
        let (session, welcome) = self.join(peer, None);
        assert!(self.server.state.closed(session, true, 0).is_some());
        welcome
    }

    fn orphans(&self) -> usize {
        self.server.state.orphans().count()
    }

    /// What the loop does with the events that there are.
    fn take_events(&mut self) {
        let mut events = Vec::with_capacity(8);
        let patience = Timespec { tv_sec: 10, tv_nsec: 0 };
        let space = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&self.server.poll, space, Some(&patience)).unwrap();
        self.server.turn(&mut events, &mut Vec::new());
    }
}

fn start() -> (Child, PeerIdentity) {
    let child = Command::new("sleep").arg("60").spawn().unwrap();
    let start_time = process::start_time_of(child.id()).unwrap().unwrap();
    let peer = PeerIdentity { pid: child.id(), start_time, uid: OWNER, remote_client: None };
    (child, peer)
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_live_client_that_cannot_be_watched_keeps_what_it_holds_until_its_process_ends() {
    let mut world = ServerFixture::new();
    let (child, peer) = start();
    world.orphan(peer);
    // As if this user had as many watches as the system allows.
    let full = OwnedFd::from(File::open("/dev/null").unwrap());
    let poll = std::mem::replace(&mut world.server.poll, full);
    world.server.watch_orphans();
    assert_eq!(world.orphans(), 1, "it lives");
    world.server.poll = poll;
    world.server.started = world.server.started.earlier_by(Duration::from_millis(WATCH_AGAIN_MS));
    world.server.watch_again();
    kill(child);
    world.take_events();
    assert_eq!(world.orphans(), 0, "it was watched after all");
    assert_eq!(world.server.watch_again_at_ms, None);
}

#[test]
fn the_end_of_a_process_takes_nothing_from_the_next_client_in_its_place() {
    let mut world = ServerFixture::new();
    let (child, peer) = start();
    let first = world.orphan(peer);
    world.server.watch_orphans();
    // It comes back, lets go of its place and runs on.
    let (session, _) = world.join(peer, Some(&first));
    world.server.state.closed(session, false, 0);
    // A client of another machine, of which only its node knows whether it lives.
    let far = PeerIdentity { pid: 7, remote_client: Some(RemoteClient { node: 0xb }), ..peer };
    assert_eq!(world.orphan(far).slot, first.slot);
    kill(child);
    world.take_events();
    assert_eq!(world.orphans(), 1, "it may still read what it holds");
}

/// One of two nodes that talk to each other.
fn peers(name: &str) -> Peers {
    let options = PeersOptions {
        name: name.parse().unwrap(),
        incarnation: 7,
        listen: "127.0.0.1:0".parse().unwrap(),
        tls: None,
        is_plaintext_allowed: true,
        limits: PeerLimits::default(),
        times: PeerTimes::for_lease(Duration::from_secs(10)),
    };
    Peers::start(options).unwrap()
}

fn wait_for_event<T>(peers: &Peers, wanted: impl Fn(PeerEvent) -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = peers.events().find_map(&wanted) {
            return found;
        }
        assert!(Instant::now() < until, "no such event");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Regression test: a node answered the first message of a client with bytes that are no message.
/// The client's node gave the client an error and kept the remote session, for which the other node
/// could send more.
#[test]
fn a_remote_session_whose_first_answer_cannot_be_read_is_ended() {
    let liar = peers("a");
    let address = liar.local_address().to_string();
    let mut world =
        ServerFixture::with(Some((peers("b"), Devices::new(&MemorySource::Automatic, &[]))));
    let (child, peer) = start();
    let (client, stream) = UnixStream::pair().unwrap();
    let session = SessionId(1);
    world.server.connections.insert(session, ClientConnection::new(stream, None, peer));
    let hello = Hello {
        version: PROTOCOL_VERSION,
        resume: None,
        namespace: String::new(),
        node: String::new(),
        maps_memory: false,
    };
    world.server.perform_with_remote_sessions(PeerAction::Bridge {
        session,
        seq: 1,
        node: "a".to_owned(),
        address,
        incarnation: 7,
        first: RequestBody::Hello(hello),
        maps_memory: false,
    });
    let opened = wait_for_event(&liar, |event| match event {
        PeerEvent::RemoteSessionOpened { remote_session, .. } => Some(remote_session),
        _ => None,
    });
    liar.send(opened, vec![0xff; 64].into()).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !world.server.connections[&session].is_closing {
        assert!(Instant::now() < until, "the answer does not arrive");
        world.server.take_from_remote_sessions(&mut BTreeSet::new(), &mut Vec::new());
        std::thread::sleep(Duration::from_millis(1));
    }
    let has_process_ended = wait_for_event(&liar, |event| match event {
        PeerEvent::RemoteSessionEnded { remote_session, has_process_ended, .. } => {
            (remote_session == opened).then_some(has_process_ended)
        }
        _ => None,
    });
    assert_eq!(has_process_ended, Some(false), "its client lives");
    drop(client);
    kill(child);
}

/// Regression test: a node whose lease ended while it wrote a name disconnects the client that sealed
/// the object. The client of another node lost its place too, and with it all that it held.
#[test]
fn a_client_of_another_node_that_is_disconnected_may_reconnect() {
    let devices = Devices::new(&MemorySource::Automatic, &[]);
    let mut world = ServerFixture::with(Some((peers("a"), devices)));
    let remote_client = Some(RemoteClient { node: 0xb });
    let far = PeerIdentity { pid: 7, start_time: 9, uid: OWNER, remote_client };
    let (session, welcome) = world.join(far, None);
    let remote_session = RemoteSessionId::outgoing(1);
    let connection = RemoteSession {
        remote_session,
        node: "b".to_owned(),
        input: Vec::new(),
        output: VecDeque::new(),
        output_bytes: 0,
        is_stuffed: VecDeque::new(),
    };
    let remote_sessions = world.server.remote_sessions.as_mut().unwrap();
    remote_sessions.remote_sessions.insert(remote_session, session);
    remote_sessions.remote_clients.insert(session, connection);
    world.server.perform(vec![Action::Close { session }]);
    assert!(!world.server.is_remote_client(session));
    assert_eq!(world.orphans(), 1);
    let (_, again) = world.join(far, Some(&welcome));
    assert_eq!((again.slot, again.nonce), (welcome.slot, welcome.nonce));
    assert_eq!(world.orphans(), 0);
}

/// Regression test: questions whether processes run are answered late, and more than 32 of them took
/// all places of a node for questions.
#[test]
fn questions_about_processes_leave_places_for_other_questions() {
    let devices = Devices::new(&MemorySource::Automatic, &[]);
    let mut world = ServerFixture::with(Some((peers("a"), devices)));
    let (child, peer) = start();
    let of = (peer.pid, peer.start_time);
    let places = PeerLimits::default().asks_max;
    for token in 0..2 * places as u64 {
        world.server.watch_for_other(token, "b".to_owned(), of);
    }
    world.server.watch_for_other(1000, "c".to_owned(), of);
    let watched_for = |world: &ServerFixture, node: &str| {
        world.server.remote_sessions.as_ref().unwrap().watched_for(node)
    };
    assert_eq!(watched_for(&world, "b"), WATCHED_OF_NODE_MAX);
    assert!(WATCHED_OF_NODE_MAX < places, "of {places} places");
    assert_eq!(watched_for(&world, "c"), 1, "another node has its own");
    kill(child);
    while watched_for(&world, "b") + watched_for(&world, "c") > 0 {
        world.take_events();
    }
}

/// Regression test: a node that ran out of descriptors accepted no client before a client's
/// connection was closed. Without any connection it never did, though other descriptors had become
/// free.
#[test]
fn a_node_without_descriptors_accepts_clients_again_after_a_while() {
    let mut world = ServerFixture::new();
    let full = io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error());
    world.server.cannot_accept(&full);
    world.server.accept_again();
    assert!(!world.server.is_accepting);
    let wait = world.server.timeout().unwrap();
    assert!(wait.tv_sec == 0 && wait.tv_nsec <= 250_000_000, "{wait:?}");
    world.server.started = world.server.started.earlier_by(Duration::from_millis(ACCEPT_AGAIN_MS));
    world.server.accept_again();
    assert!(world.server.is_accepting);
    let address = world.dir.path().join("n.sock");
    let _client = UnixStream::connect(address).unwrap();
    world.take_events();
    assert_eq!(world.server.connections.len(), 1);
}

/// Deletes of objects without a long name that there is.
fn deletes(name: &str, count: usize) -> RequestBody {
    RequestBody::Delete { targets: vec![WireTarget::Name(name.to_owned()); count] }
}

impl ServerFixture {
    /// A client with a connection to which it has written one request.
    fn with_request(&mut self, peer: PeerIdentity, body: RequestBody) -> (SessionId, UnixStream) {
        let (session, _) = self.join(peer, None);
        let (mut client, stream) = UnixStream::pair().unwrap();
        let mut connection = ClientConnection::new(stream, None, peer);
        connection.is_introduced = true;
        let mut frame = Vec::new();
        wire::encode(&Request { seq: 1, body }, &mut frame).unwrap();
        client.write_all(&frame).unwrap();
        while !connection.has_request() {
            connection.fill().unwrap();
        }
        self.server.connections.insert(session, connection);
        self.server.pending.insert(session);
        (session, client)
    }

    /// Those of these connections whose requests one turn serves.
    fn served(&mut self, all: &[(SessionId, UnixStream)]) -> Vec<usize> {
        let has_request = |world: &Self, at: usize| {
            let (session, _) = &all[at];
            world.server.connections.get(session).is_some_and(ClientConnection::has_request)
        };
        let before: Vec<usize> = (0..all.len()).filter(|at| has_request(self, *at)).collect();
        self.server.turn(&mut Vec::new(), &mut Vec::new());
        before.into_iter().filter(|at| !has_request(self, *at)).collect()
    }
}

/// Regression test: a turn served the requests of all connections, however long. 24 clients with a
/// request of 4 MiB each stopped the daemon for seven seconds.
#[test]
fn a_turn_serves_some_requests_and_short_ones_first() {
    let mut world = ServerFixture::new();
    let peer = PeerIdentity { pid: 7, start_time: 1, uid: OWNER, remote_client: None };
    let name = "x".repeat(255);
    let mut all = Vec::new();
    for count in [400, 400, 230, 230, 230, 230, 230, 230, 400, 1] {
        all.push(world.with_request(peer, deletes(&name, count)));
    }
    // 400 names are 103 KB, 230 are 59 KB, and a turn serves 256 KiB.
    assert_eq!(world.served(&all), [0, 1, 2, 9]);
    // The others come first now, also before what arrives meanwhile.
    for count in [1, 400] {
        all.push(world.with_request(peer, deletes(&name, count)));
    }
    assert_eq!(world.served(&all), [3, 4, 5, 6, 7, 10]);
    assert_eq!(world.served(&all), [8, 11]);
    assert!(world.server.is_idle());
}

fn audited(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Regression test: a client chose the number of a request that was under way, and the reply to
/// another one took the place of the result in the audit log, or the request was not in it at all.
#[test]
fn a_client_hides_no_delete_from_the_audit_log_by_its_number() {
    let mut world = ServerFixture::new();
    let path = world.dir.path().join("audit");
    world.server.audit = Some(Audit::new(AuditLog::open(&path, false).unwrap()));
    let peer = PeerIdentity { pid: 7, start_time: 1, uid: OWNER, remote_client: None };
    let (session, _) = world.join(peer, None);
    let server = &mut world.server;
    let not_found = || WireError::NotFound { what: "object".to_owned() };
    for name in ["payroll", "harmless", "more"] {
        server.audit_request(session, &Request { seq: 7, body: deletes(name, 1) });
    }
    server.audit_request(session, &Request { seq: 8, body: deletes("other", 1) });
    for seq in [7, 7, 7, 8] {
        let body = Ok(ReplyBody::Deleted(vec![Err(not_found())]));
        server.audit_reply(session, &Reply { seq, body });
    }
    // The reply to a request that is not recorded is no result of one that is.
    server.audit_request(session, &Request { seq: 9, body: RequestBody::Stats });
    server.audit_request(session, &Request { seq: 9, body: deletes("hidden", 1) });
    server.audit_reply(session, &Reply { seq: 9, body: Err(WireError::Cancelled) });
    server.audit_reply(session, &Reply { seq: 9, body: Ok(ReplyBody::Deleted(vec![Ok(())])) });
    // The numbers are free again.
    server.audit_request(session, &Request { seq: 9, body: deletes("again", 1) });
    server.audit_reply(session, &Reply { seq: 9, body: Ok(ReplyBody::Deleted(vec![Ok(())])) });
    // A client that ends before the reply hides nothing either.
    for (seq, name) in [(10, "late"), (11, "last")] {
        server.audit_request(session, &Request { seq, body: deletes(name, 1) });
    }
    server.audit_closed(session);
    server.audit_reply(session, &Reply { seq: 10, body: Err(not_found()) });
    server.audit_turn();
    server.audit = None;
    let lines = audited(&path);
    let results: Vec<_> = lines
        .iter()
        .map(|line| (line["name"].as_str().unwrap(), line["result"].as_str().unwrap()))
        .collect();
    let unknown = ["payroll", "harmless", "more"].map(|name| (name, "unknown"));
    let rest = [
        ("other", "not_found"),
        ("hidden", "unknown"),
        ("again", "ok"),
        ("late", "not_found"),
        ("last", "unknown"),
    ];
    assert_eq!(results, [&unknown[..], &rest[..]].concat());
}

/// Regression test: names of a request were copied to the audit log before its checks, however long
/// they were. A client made the memory of the daemon grow without bound.
#[test]
fn long_names_are_cut_in_the_audit_log() {
    let mut world = ServerFixture::new();
    let path = world.dir.path().join("audit");
    world.server.audit = Some(Audit::new(AuditLog::open(&path, false).unwrap()));
    let peer = PeerIdentity { pid: 7, start_time: 1, uid: OWNER, remote_client: None };
    let (session, _) = world.join(peer, None);
    let long = || "\u{1}".repeat(1 << 20);
    let rule = || Rule { namespace: long(), node: long(), rights: Rights::ALL };
    let settings = |count| vec![Setting::Log(long()); count];
    let bodies = [
        deletes(&long(), 1),
        RequestBody::DropNamespace { name: long() },
        RequestBody::SetRule(rule()),
        RequestBody::RemoveRule { namespace: long(), node: long() },
        RequestBody::Forget { node: long() },
        RequestBody::Set(settings(2)),
        RequestBody::Set(settings(100)),
    ];
    let requests = bodies.len();
    for (seq, body) in (1..).zip(bodies) {
        world.server.audit_request(session, &Request { seq, body });
        let error = Err(WireError::Invalid(long()));
        world.server.audit_reply(session, &Reply { seq, body: error });
    }
    world.server.audit = None;
    let lines = audited(&path);
    assert_eq!(lines.len(), requests + 1);
    for line in &lines {
        let bytes = |field: &str| line[field].as_str().map_or(0, str::len);
        assert!(bytes("name") <= 255 && bytes("reason") <= 512, "{line}");
    }
    assert_eq!(lines.last().unwrap()["count"], 100);
}
