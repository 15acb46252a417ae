//! How daemons reach each other: gRPC, on one thread of its own. Nothing is decided here. The event
//! loop gives messages and takes what came; neither ever waits for the other.
//!
//! Messages have a connection of their own to each peer, so that no table, question or remote session is ahead
//! of a sign of life.

mod address;
mod backlog;
mod calls;
mod error;
mod etcd;
mod failures;
mod limits;
mod link;
mod outbox;
mod remote_session;
mod serve;
mod service;
mod tls;

#[cfg(test)]
mod tests;

/// What `build.rs` makes of `proto/farrow/v1/node.proto`.
#[allow(
    missing_docs,
    unreachable_pub,
    rust_2018_idioms,
    clippy::pedantic,
    clippy::all,
    reason = "generated code; the messages are documented in the .proto file"
)]
mod pb {
    include!(concat!(env!("OUT_DIR"), "/farrow.v1.rs"));
}

/// What `build.rs` makes of `proto/etcd/rpc.proto`.
#[allow(
    missing_docs,
    unreachable_pub,
    rust_2018_idioms,
    clippy::pedantic,
    clippy::all,
    reason = "generated code; the messages are those of etcd"
)]
mod etcd_pb {
    include!(concat!(env!("OUT_DIR"), "/etcdserverpb.rs"));
}

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use farrow_membership::etcd as membership;
use farrow_memory::sync::{AtomicU64, Ordering};
use prost::bytes::Bytes;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Semaphore, oneshot};

pub(crate) use address::{AskedToken, PeerAddress, RemoteSessionId};
pub(crate) use error::{PeerError, StartError};
pub use etcd::{EtcdConfig, EtcdPlace, EtcdTls, EtcdUser};
pub(crate) use limits::{PEER_BYTES_MIN, PeerLimits, PeerTimes};
pub(crate) use remote_session::RemoteSessionBytes;
pub use tls::PeerTls;
pub(crate) use tls::data_credentials;

use crate::certs::NodeName;
use crate::endpoint::listen;
use backlog::{EventQueue, Left};
use calls::PeerClient;
use etcd::Etcd;
use failures::FailureLog;
use limits::{ASK_BYTES_MAX, MESSAGE_BYTES_MAX, Permit};
use link::PeerLink;
use outbox::Outbox;

/// Most addresses that are remembered; those with nothing under way are forgotten beyond.
const LINKS_MAX: usize = 1024;

/// How many threads may wait for the machine's resolver of names, which knows no deadline.
const RESOLVERS_MAX: usize = 4;

/// What peers are started with.
#[derive(Debug, Clone)]
pub(crate) struct PeersOptions {
    /// This node.
    pub(crate) name: NodeName,
    /// Which life of this node it is.
    pub(crate) incarnation: u64,
    /// Where to listen; port 0 lets the kernel choose.
    pub(crate) listen: SocketAddr,
    /// Certificates. Without them only loopback, and only if it is allowed.
    pub(crate) tls: Option<PeerTls>,
    /// Speak plain text on loopback.
    pub(crate) is_plaintext_allowed: bool,
    pub(crate) limits: PeerLimits,
    pub(crate) times: PeerTimes,
}

/// The client that takes a remote session on another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RemoteProcess {
    pub(crate) pid: u32,
    /// In clock ticks since the boot of its machine.
    pub(crate) start_time: u64,
    pub(crate) uid: u32,
}

/// What another node answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerAnswer {
    /// Who, by its certificate; none without TLS.
    pub(crate) from: Option<NodeName>,
    pub(crate) body: Bytes,
}

/// What came from peers.
#[derive(Debug)]
pub(crate) enum PeerEvent {
    /// A message. Without TLS nobody vouches for `from`; this holds for all events.
    Told { from: NodeName, incarnation: u64, body: Bytes },
    /// A question; [`Peers::answer`] it within the asking node's deadline.
    Asked { token: AskedToken, from: NodeName, incarnation: u64, body: Bytes },
    /// What became of [`Peers::ask`]; exactly one for each.
    Answered { token: u64, result: Result<PeerAnswer, PeerError> },
    /// A client of another node wants to use memory here.
    RemoteSessionOpened { remote_session: RemoteSessionId, from: NodeName, process: RemoteProcess },
    /// Bytes of the client protocol, in order.
    RemoteSessionData { remote_session: RemoteSessionId, bytes: RemoteSessionBytes },
    /// There is room again, after [`Peers::send`] gave bytes back.
    RemoteSessionWritable { remote_session: RemoteSessionId },
    /// The last event of a remote session, unless this side ended it. `is_process_gone` is none when the
    /// stream broke: the client may live and read.
    RemoteSessionEnded {
        remote_session: RemoteSessionId,
        is_process_gone: Option<bool>,
        reason: String,
    },
    /// Whether messages to an address arrive, when that changed: `None`, they do; else why not.
    Delivery { address: String, why_not: Option<String> },
    /// What became of [`Peers::ask_etcd`]; exactly one for each.
    EtcdAnswered { id: u64, reply: membership::EtcdReply },
    /// Something changed in etcd, or may have.
    EtcdChanged,
}

/// What the event loop keeps of questions and remote sessions.
#[derive(Debug, Default)]
struct EventLoopState {
    links: BTreeMap<PeerAddress, Arc<PeerLink>>,
    asked: BTreeMap<AskedToken, oneshot::Sender<Bytes>>,
    remote_sessions: BTreeMap<RemoteSessionId, Arc<Outbox>>,
}

/// The event loop's end of the transport.
#[derive(Debug)]
pub(crate) struct Peers {
    /// Can be read when events wait.
    pub(crate) wake: OwnedFd,
    local_address: SocketAddr,
    client: Arc<PeerClient>,
    events: Arc<EventQueue>,
    retained: Mutex<EventLoopState>,
    etcd: Option<Arc<Etcd>>,
    /// Room for bodies that were read and not taken, and all of it.
    bytes: (Arc<Semaphore>, usize),
    runtime: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Peers {
    /// Listens, then starts the thread.
    ///
    /// # Errors
    ///
    /// Nobody can listen at the address, the certificates do not fit, or there are none and plain
    /// text is not allowed or would leave the machine.
    pub(crate) fn start(options: PeersOptions) -> Result<Self, StartError> {
        let tls = tls::choose(&options)?;
        let address = options.listen;
        let failed = |error| StartError::Listen { address, error };
        let listener = listen(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let local_address = listener.local_addr().map_err(failed)?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(RESOLVERS_MAX)
            .build()
            .map_err(failed)?;
        let events =
            Arc::new(EventQueue::new(options.limits.messages_waiting_max).map_err(failed)?);
        let wake = events.wake().map_err(failed)?;
        let handle = runtime.handle().clone();
        let failures = Arc::new(FailureLog::default());
        let client = Arc::new(PeerClient {
            name: options.name,
            incarnation: AtomicU64::new(options.incarnation),
            limits: options.limits.clone(),
            times: options.times.clone(),
            tls: tls.clone(),
            events: Arc::clone(&events),
            failures: Arc::clone(&failures),
        });
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(failed)?
        };
        let server =
            serve::PeerServer::new(tls, options.limits, options.times, (events.clone(), failures));
        let bytes = (Arc::clone(&server.bytes), client.limits.bytes_max);
        let (stop, stopped) = oneshot::channel();
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = server.accept(listener) => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        };
        let thread =
            std::thread::Builder::new().name("farrow-peers".into()).spawn(work).map_err(failed)?;
        let (retained, stop, thread) = (Mutex::default(), Some(stop), Some(thread));
        let (etcd, runtime) = (None, handle);
        Ok(Self {
            wake,
            local_address,
            client,
            events,
            retained,
            etcd,
            bytes,
            runtime,
            stop,
            thread,
        })
    }

    /// Keeps the membership in etcd: sees that it can be read, within a deadline, and begins to
    /// listen for changes.
    ///
    /// # Errors
    ///
    /// The options do not fit, or, if `is_probed`, etcd does not answer or refuses this node.
    pub(crate) fn start_etcd(
        &mut self,
        config: &EtcdConfig,
        lease: Duration,
        is_probed: bool,
    ) -> Result<(), StartError> {
        let etcd = Arc::new(Etcd::new(config, lease, Arc::clone(&self.events))?);
        if is_probed {
            etcd.probe(&self.runtime)?;
        }
        self.runtime.spawn(Arc::clone(&etcd).watch());
        self.etcd = Some(etcd);
        Ok(())
    }

    /// Asks etcd; the answer comes as [`PeerEvent::EtcdAnswered`] with the number.
    pub(crate) fn ask_etcd(&self, id: u64, request: membership::EtcdRequest) {
        match &self.etcd {
            Some(etcd) => drop(self.runtime.spawn(Arc::clone(etcd).ask(id, request))),
            None => {
                let reason = "this node was not told of an etcd".to_owned();
                let reply = membership::EtcdReply::Failed { reason };
                self.events.push(Left::Event(PeerEvent::EtcdAnswered { id, reply }));
            }
        }
    }

    /// Bytes of peers that were read and not taken, and the most of them.
    pub(crate) fn buffered_bytes(&self) -> (usize, usize) {
        let (free, all) = &self.bytes;
        (all.saturating_sub(free.available_permits()), *all)
    }

    /// Where this node listens.
    pub(crate) fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Says another incarnation in messages from now on.
    pub(crate) fn set_incarnation(&self, incarnation: u64) {
        self.client.incarnation.store(incarnation, Ordering::Relaxed);
    }

    /// Sends a message. It is lost without a word when the peer does not take it in time, or when as
    /// many as are allowed are under way.
    pub(crate) fn tell(&self, address: &PeerAddress, body: Bytes) {
        if body.len() > MESSAGE_BYTES_MAX {
            tracing::error!(bytes = body.len(), max = MESSAGE_BYTES_MAX, "a letter is too long");
            return;
        }
        let link = self.link(address);
        let Some(place) = Permit::take(&link.messages) else {
            tracing::debug!(%address, "a letter is dropped: too many are under way");
            return;
        };
        self.runtime.spawn(Arc::clone(&self.client).tell(link, body, place));
    }

    /// Asks another node; the answer comes as [`PeerEvent::Answered`] with the token.
    ///
    /// # Errors
    ///
    /// The question is too long, or too many are under way to this peer; then no event comes.
    pub(crate) fn ask(
        &self,
        token: u64,
        address: &PeerAddress,
        body: Bytes,
        deadline: Duration,
    ) -> Result<(), PeerError> {
        if body.len() > ASK_BYTES_MAX {
            return Err(PeerError::TooLarge { bytes: body.len(), max: ASK_BYTES_MAX });
        }
        let link = self.link(address);
        let place = Permit::take(&link.asks)
            .ok_or(PeerError::Busy { what: "questions", max: self.client.limits.asks_max })?;
        self.runtime.spawn(Arc::clone(&self.client).ask(token, link, body, deadline, place));
        Ok(())
    }

    /// Answers a question. One that nobody waits for any more is no error.
    ///
    /// # Errors
    ///
    /// The answer is too long; the question still waits.
    pub(crate) fn answer(&self, token: AskedToken, body: Bytes) -> Result<(), PeerError> {
        if body.len() > ASK_BYTES_MAX {
            return Err(PeerError::TooLarge { bytes: body.len(), max: ASK_BYTES_MAX });
        }
        if let Some(reply) = self.retained().asked.remove(&token) {
            let _ = reply.send(body);
        }
        Ok(())
    }

    /// Takes a remote session on another node, with a number that was not used before. Bytes can be sent at
    /// once; if there is no remote session [`PeerEvent::RemoteSessionEnded`] comes.
    ///
    /// # Errors
    ///
    /// The number is in use, or too many remote sessions are; then no event comes.
    pub(crate) fn open_remote_session(
        &self,
        remote_session: RemoteSessionId,
        address: &PeerAddress,
        process: RemoteProcess,
    ) -> Result<(), PeerError> {
        let link = self.link(address);
        let mut retained = self.retained();
        if remote_session.is_incoming() || retained.remote_sessions.contains_key(&remote_session) {
            return Err(PeerError::RemoteSessionTaken);
        }
        let place = Permit::take(&link.remote_sessions).ok_or(PeerError::Busy {
            what: "seats",
            max: self.client.limits.remote_sessions_max,
        })?;
        let outbox = Outbox::new(remote_session, self.client.limits.remote_session_bytes_max);
        retained.remote_sessions.insert(remote_session, Arc::clone(&outbox));
        self.runtime.spawn(Arc::clone(&self.client).take_remote_session(
            link,
            remote_session,
            process,
            outbox,
            place,
        ));
        Ok(())
    }

    /// Sends bytes of the client protocol, from either side. Those of a remote session that ended are dropped.
    ///
    /// # Errors
    ///
    /// The bytes, when as much waits already: [`PeerEvent::RemoteSessionWritable`] says when there is room.
    pub(crate) fn send(&self, remote_session: RemoteSessionId, bytes: Bytes) -> Result<(), Bytes> {
        match self.retained().remote_sessions.get(&remote_session) {
            Some(outbox) => outbox.push(bytes),
            None => Ok(()),
        }
    }

    /// Gives a remote session back, from either side, behind what was sent; no event of it comes any more. The
    /// peer has a second to read the rest.
    pub(crate) fn end_remote_session(
        &self,
        remote_session: RemoteSessionId,
        is_process_gone: bool,
    ) {
        if let Some(outbox) = self.retained().remote_sessions.remove(&remote_session) {
            outbox.end(is_process_gone);
        }
    }

    /// Forgets a peer that is no member any more: its connections end when nothing is under way.
    pub(crate) fn forget(&self, address: &PeerAddress) {
        self.retained().links.remove(address);
    }

    /// What came since. Clears the wake.
    pub(crate) fn events(&self) -> impl Iterator<Item = PeerEvent> + use<> {
        let waiting = self.events.take();
        let mut retained = self.retained();
        let mut events = Vec::with_capacity(waiting.len());
        for (left, _place) in waiting {
            events.extend(retained.take(left));
        }
        events.into_iter()
    }

    fn retained(&self) -> MutexGuard<'_, EventLoopState> {
        self.retained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link(&self, address: &PeerAddress) -> Arc<PeerLink> {
        let mut retained = self.retained();
        if let Some(link) = retained.links.get(address) {
            return Arc::clone(link);
        }
        if retained.links.len() >= LINKS_MAX {
            retained.links.retain(|_, link| Arc::strong_count(link) > 1);
        }
        let link = Arc::new(PeerLink::new(address.clone(), &self.client.limits));
        retained.links.insert(address.clone(), Arc::clone(&link));
        link
    }
}

impl EventLoopState {
    /// What of it the event loop is told.
    fn take(&mut self, left: Left) -> Option<PeerEvent> {
        match left {
            Left::Asked(event, token, reply) => {
                self.asked.insert(token, reply);
                Some(event)
            }
            Left::AskGone(token) => {
                self.asked.remove(&token);
                None
            }
            Left::Opened(event, remote_session, outbox) => {
                self.remote_sessions.insert(remote_session, outbox);
                Some(event)
            }
            Left::Event(event) => match &event {
                PeerEvent::RemoteSessionData { remote_session, .. }
                | PeerEvent::RemoteSessionWritable { remote_session } => {
                    self.remote_sessions.contains_key(remote_session).then_some(event)
                }
                PeerEvent::RemoteSessionEnded { remote_session, .. } => {
                    self.remote_sessions.remove(remote_session).map(|_| event)
                }
                _ => Some(event),
            },
        }
    }
}

impl Drop for Peers {
    /// Cuts all connections. Ends within the current step of the thread: no task there blocks.
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
