//! Processes of clients that lost their connections.

use std::collections::VecDeque;
use std::fs::File;
use std::process::{Child, Command};

use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Region};
use farrow_store::{Home, Layout, RegionOptions, RemoteClient};
use farrow_wire::{Hello, PROTOCOL_VERSION, Reply, ReplyBody, Request, RequestBody, Welcome};

use super::accept::ACCEPT_AGAIN_MS;
use super::orphans::WATCH_AGAIN_MS;
use super::remote_sessions::RemoteSession;
use super::*;
use crate::node::MemorySource;
use crate::peers::{PeerEvent, PeerLimits, PeerTimes, PeersOptions, RemoteSessionId};
use crate::protocol::cluster::PeerAction;
use crate::protocol::{AdoptedState, DaemonInfo};

const OWNER: u32 = 1000;

struct World {
    server: Server,
    dir: tempfile::TempDir,
    _stopper: UnixStream,
    sessions: u64,
}

impl World {
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
        let parts = ServerParts {
            listener: UnixListener::bind(dir.path().join("n.sock")).unwrap(),
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
    let mut world = World::new();
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
    let mut world = World::new();
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
    let mut world = World::with(Some((peers("b"), Devices::new(&MemorySource::Automatic, &[]))));
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
    let mut world = World::with(Some((peers("a"), devices)));
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

/// Regression test: a node that ran out of descriptors accepted no client before a client's
/// connection was closed. Without any connection it never did, though other descriptors had become
/// free.
#[test]
fn a_node_without_descriptors_accepts_clients_again_after_a_while() {
    let mut world = World::new();
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
