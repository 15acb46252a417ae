//! The transport over real sockets on this machine.

mod calls;
mod hostile;
mod links;
mod reload;
mod remote_sessions;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::sync::AtomicU64;
use prost::bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::backlog::EventQueue;
use super::calls::PeerClient;
use super::event::PeerAnswer;
use super::generated::pb::node_client::NodeClient;
use super::link::{Lane, LiveConnection, PeerLink};
use super::*;
use crate::certs::NodeName;

/// Time limit of a test's wait.
const LIMIT: Duration = Duration::from_secs(30);

/// A node whose event loop is driven by the test.
struct DrivenNode {
    peers: Peers,
    waiting: Vec<PeerEvent>,
}

fn options(name: &str) -> PeersOptions {
    // A slow machine must not look like a dead one.
    let times = PeerTimes {
        message: Duration::from_secs(5),
        connect: Duration::from_secs(5),
        keep_alive_interval: Duration::from_secs(5),
        keep_alive_timeout: Duration::from_secs(5),
    };
    PeersOptions {
        name: name.parse().unwrap(),
        incarnation: 7,
        listen: "127.0.0.1:0".parse().unwrap(),
        tls: None,
        is_plaintext_allowed: true,
        limits: PeerLimits::default(),
        times,
    }
}

impl DrivenNode {
    fn new(name: &str) -> Self {
        Self::with(options(name))
    }

    fn with(options: PeersOptions) -> Self {
        Self { peers: Peers::start(options).unwrap(), waiting: Vec::new() }
    }

    fn address(&self) -> PeerAddress {
        self.peers.local_address().to_string().parse().unwrap()
    }

    /// Returns the first matching event. Others are retained.
    fn next<T>(&mut self, wanted: impl Fn(&PeerEvent) -> Option<T>) -> (PeerEvent, T) {
        let until = Instant::now() + LIMIT;
        loop {
            let found =
                self.waiting.iter().enumerate().find_map(|(at, event)| Some((at, wanted(event)?)));
            if let Some((at, found)) = found {
                return (self.waiting.remove(at), found);
            }
            assert!(Instant::now() < until, "only {:?}", self.waiting);
            self.wait(until);
        }
    }

    fn wait(&mut self, until: Instant) {
        let rest = until.saturating_duration_since(Instant::now());
        let rest = Timespec::try_from(rest).unwrap();
        let mut fds = [PollFd::new(&self.peers.wake, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&rest)).unwrap();
        self.waiting.extend(self.peers.events());
    }

    fn reported(&mut self) -> (NodeName, u64, Bytes) {
        self.next(|event| match event {
            PeerEvent::Message { from, incarnation, body } => {
                Some((from.clone(), *incarnation, body.clone()))
            }
            _ => None,
        })
        .1
    }

    fn requested(&mut self) -> (RequestToken, NodeName, Bytes) {
        self.next(|event| match event {
            PeerEvent::Request { token, from, incarnation, body } => {
                assert_eq!(*incarnation, 7);
                Some((*token, from.clone(), body.clone()))
            }
            _ => None,
        })
        .1
    }

    fn answered(&mut self, token: u64) -> Result<PeerAnswer, PeerError> {
        self.next(|event| match event {
            PeerEvent::Response { token: of, result } if *of == token => Some(result.clone()),
            _ => None,
        })
        .1
    }

    fn opened(&mut self) -> (RemoteSessionId, NodeName, RemoteProcess) {
        self.next(|event| match event {
            PeerEvent::RemoteSessionOpened { remote_session, from, process } => {
                Some((*remote_session, from.clone(), *process))
            }
            _ => None,
        })
        .1
    }

    fn ended(&mut self, remote_session: RemoteSessionId) -> (Option<bool>, String) {
        self.next(|event| match event {
            PeerEvent::RemoteSessionEnded { remote_session: of, has_process_ended, reason }
                if *of == remote_session =>
            {
                Some((*has_process_ended, reason.clone()))
            }
            _ => None,
        })
        .1
    }

    fn data(&mut self, remote_session: RemoteSessionId) -> RemoteSessionBytes {
        let is_data = |event: &PeerEvent| matches!(event, PeerEvent::RemoteSessionData { remote_session: of, .. } if *of == remote_session);
        match self.next(|event| is_data(event).then_some(())).0 {
            PeerEvent::RemoteSessionData { bytes, .. } => bytes,
            other => unreachable!("{other:?}"),
        }
    }

    /// Reads this many bytes of a remote session.
    fn read(&mut self, remote_session: RemoteSessionId, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < count {
            bytes.extend_from_slice(&self.data(remote_session).bytes);
        }
        bytes
    }

    /// Exchanges a request and an answer, which shows that the two nodes still communicate.
    fn ask_through(&mut self, other: &mut Self, token: u64) {
        self.peers.ask(token, &other.address(), Bytes::from_static(b"?"), LIMIT).unwrap();
        let (requested, _, body) = other.requested();
        other.peers.answer(requested, body).unwrap();
        assert_eq!(self.answered(token).unwrap().body, &b"?"[..]);
    }
}

const PROCESS: RemoteProcess = RemoteProcess { pid: 42, start_time: 4242, uid: 1000 };

/// Bytes that reveal a lost, duplicated or moved piece.
fn pattern(from: usize, count: usize) -> Vec<u8> {
    let byte = |at: usize| (at ^ (at >> 8) ^ (at >> 16)).wrapping_mul(31) as u8;
    (from..from + count).map(byte).collect()
}

fn runtime() -> tokio::runtime::Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A raw client: it makes any call with any content.
struct RawPeer {
    client: Arc<PeerClient>,
    link: Arc<PeerLink>,
}

impl RawPeer {
    fn new(to: SocketAddr) -> Self {
        Self::with(options("raw"), &to.to_string())
    }

    fn with(options: PeersOptions, to: &str) -> Self {
        let tls = tls::choose_tls(&options);
        let events = Arc::new(EventQueue::new(1).unwrap());
        let link = Arc::new(PeerLink::new(to.parse().unwrap(), &options.limits));
        let PeersOptions { name, limits, times, .. } = options;
        let incarnation = AtomicU64::new(0);
        let failures = Arc::default();
        let client = PeerClient { name, incarnation, limits, times, tls, events, failures };
        Self { client: Arc::new(client), link }
    }

    async fn calls(&self) -> Result<NodeClient<LiveConnection>, PeerError> {
        Ok(self.link.connection(&self.client, Lane::Work).await?.client())
    }
}

/// Reads until the other side closes, with a limit.
fn is_closed(mut stream: std::net::TcpStream) -> bool {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    loop {
        match io::Read::read(&mut stream, &mut [0; 4096]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}
