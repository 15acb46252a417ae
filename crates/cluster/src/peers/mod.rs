//! The transport between daemons: gRPC, on a thread of its own. It makes no decisions. The event
//! loop passes messages to it and takes events from it, and neither waits for the other.
//!
//! Messages have a connection of their own to each peer, so that no table, request or remote
//! session delays a heartbeat.

mod address;
mod backlog;
mod calls;
mod credentials;
mod error;
mod etcd;
mod event;
mod failures;
mod generated;
mod limits;
mod link;
mod options;
mod outbox;
mod remote_session;
mod retired;
mod serve;
mod service;
mod tls;
mod wire;

#[cfg(test)]
mod tests;

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

pub(crate) use address::{PeerAddress, RemoteSessionId, RequestToken};
pub(crate) use credentials::{CredentialStatus, NodeCredentials};
pub(crate) use error::{PeerError, StartError};
pub use etcd::{EtcdConfig, EtcdPlace, EtcdTls, EtcdUser};
pub(crate) use event::{PeerEvent, RemoteProcess, RemoteSessionBytes};
pub(crate) use limits::{PEER_BYTES_MIN, PeerLimits, PeerTimes};
pub use options::PeerTls;
pub(crate) use options::PeersOptions;

use crate::endpoint::listen;
use backlog::{EventQueue, QueuedEvent};
use calls::PeerClient;
use etcd::Etcd;
use failures::FailureLog;
use limits::{ASK_BYTES_MAX, AskPlace, MESSAGE_BYTES_MAX, Permit};
use link::PeerLink;
use outbox::RemoteSessionOutbox;
use tls::Tls;

/// Limit on stored addresses. Beyond it, addresses without calls in progress are dropped.
const LINKS_MAX: usize = 1024;

/// Limit on threads that wait for the machine's name resolver, which has no deadline.
const RESOLVERS_MAX: usize = 4;

/// Cost of a request that waits beside its body: a task, the deadline and the place.
const WAITING_ASK_BYTES_MIN: usize = 512;

/// State of requests and remote sessions on the event loop's side.
#[derive(Debug, Default)]
struct EventLoopState {
    links: BTreeMap<PeerAddress, Arc<PeerLink>>,
    requests: BTreeMap<RequestToken, oneshot::Sender<Bytes>>,
    remote_sessions: BTreeMap<RemoteSessionId, Arc<RemoteSessionOutbox>>,
}

/// The event loop's handle on the transport.
#[derive(Debug)]
pub(crate) struct Peers {
    /// Readable when events wait.
    pub(crate) wake: OwnedFd,
    local_address: SocketAddr,
    client: Arc<PeerClient>,
    events: Arc<EventQueue>,
    retained: Arc<Mutex<EventLoopState>>,
    etcd: Option<Arc<Etcd>>,
    /// `None`: plain text.
    credentials: Option<NodeCredentials>,
    /// Free room for bodies that were read but not taken, and the total.
    bytes: (Arc<Semaphore>, usize),
    runtime: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Opens connections with the certificate of this node when it is another one, also to peers that it
/// calls seldom: they can retire those that they opened only when they have accepted it.
async fn renew_outdated(
    mut tls: Tls,
    client: Arc<PeerClient>,
    retained: Arc<Mutex<EventLoopState>>,
) {
    while tls.changed().await {
        let links: Vec<Arc<PeerLink>> = {
            let retained = retained.lock().unwrap_or_else(PoisonError::into_inner);
            retained.links.values().cloned().collect()
        };
        for link in links {
            link.renew_outdated(&client);
        }
    }
}

impl Peers {
    /// Listens, then starts the thread.
    ///
    /// # Errors
    ///
    /// Listening at the address fails, the certificates do not match, or there are none and plain
    /// text is not allowed or would leave the machine.
    pub(crate) fn start(options: PeersOptions) -> Result<Self, StartError> {
        let credentials = tls::choose(&options)?;
        let tls = credentials.as_ref().map(Tls::new);
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
        let retained: Arc<Mutex<EventLoopState>> = Arc::default();
        if let Some(tls) = client.tls.clone() {
            handle.spawn(renew_outdated(tls, Arc::clone(&client), Arc::clone(&retained)));
        }
        let (stop, thread) = (Some(stop), Some(thread));
        let (etcd, runtime) = (None, handle);
        Ok(Self {
            wake,
            local_address,
            client,
            events,
            retained,
            etcd,
            credentials,
            bytes,
            runtime,
            stop,
            thread,
        })
    }

    /// Uses etcd for the membership: probes it within a deadline if `is_probed`, and watches it for
    /// changes.
    ///
    /// # Errors
    ///
    /// The options are invalid, or, if `is_probed`, etcd does not answer or refuses this node.
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

    /// Sends a request to etcd. The answer arrives as [`PeerEvent::EtcdResponse`] with the same id.
    pub(crate) fn ask_etcd(&self, id: u64, request: membership::EtcdRequest) {
        match &self.etcd {
            Some(etcd) => drop(self.runtime.spawn(Arc::clone(etcd).ask(id, request))),
            None => {
                let reason = "this node has no etcd configured".to_owned();
                let reply = membership::EtcdReply::Failed { reason };
                self.events.push(QueuedEvent::Event(PeerEvent::EtcdResponse { id, reply }));
            }
        }
    }

    /// Bytes of peers that were read but not taken, and their limit.
    pub(crate) fn buffered_bytes(&self) -> (usize, usize) {
        let (free, all) = &self.bytes;
        (all.saturating_sub(free.available_permits()), *all)
    }

    /// The certificate of this node. `None`: plain text.
    pub(crate) fn credentials(&self) -> Option<&NodeCredentials> {
        self.credentials.as_ref()
    }

    /// Where this node listens.
    pub(crate) fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Sets the incarnation in further messages.
    pub(crate) fn set_incarnation(&self, incarnation: u64) {
        self.client.incarnation.store(incarnation, Ordering::Relaxed);
    }

    /// Sends a message. It is lost without an error if the peer does not receive it in time, or if
    /// too many are in progress.
    pub(crate) fn send_message(&self, address: &PeerAddress, body: Bytes) {
        if body.len() > MESSAGE_BYTES_MAX {
            tracing::error!(bytes = body.len(), max = MESSAGE_BYTES_MAX, "a message is too long");
            return;
        }
        let link = self.link(address);
        let Some(place) = Permit::take(&link.messages) else {
            tracing::debug!(%address, "a message is dropped: too many are under way");
            return;
        };
        self.runtime.spawn(Arc::clone(&self.client).send_message(link, body, place));
    }

    /// Sends a request to another node. The answer arrives as [`PeerEvent::Response`] with the
    /// token. While too many are in progress to this peer it waits, for its deadline at most.
    ///
    /// # Errors
    ///
    /// The request is too long, or too many wait already. Then there is no event.
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
        let wait = || {
            let bytes = u32::try_from(body.len().max(WAITING_ASK_BYTES_MIN)).unwrap_or(u32::MAX);
            Permit::take_many(&link.asks_waiting, bytes).map(AskPlace::Waiting)
        };
        let place = Permit::take(&link.asks).map(AskPlace::Taken).or_else(wait);
        let busy = PeerError::Busy { what: "questions", max: self.client.limits.asks_max };
        let place = place.ok_or(busy)?;
        self.runtime.spawn(Arc::clone(&self.client).ask(token, link, body, deadline, place));
        Ok(())
    }

    /// Answers a request. Succeeds even if the caller no longer waits.
    ///
    /// # Errors
    ///
    /// The answer is too long. The request remains open.
    pub(crate) fn answer(&self, token: RequestToken, body: Bytes) -> Result<(), PeerError> {
        if body.len() > ASK_BYTES_MAX {
            return Err(PeerError::TooLarge { bytes: body.len(), max: ASK_BYTES_MAX });
        }
        if let Some(reply) = self.retained().requests.remove(&token) {
            let _ = reply.send(body);
        }
        Ok(())
    }

    /// Opens a remote session at another node, with an unused number. Bytes can be sent at once. If
    /// opening fails, [`PeerEvent::RemoteSessionEnded`] follows.
    ///
    /// # Errors
    ///
    /// The number is in use, or there are too many remote sessions. Then there is no event.
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
            what: "remote sessions",
            max: self.client.limits.remote_sessions_max,
        })?;
        let outbox =
            RemoteSessionOutbox::new(remote_session, self.client.limits.remote_session_bytes_max);
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

    /// Sends bytes of the client protocol, from either side. For a remote session that has ended
    /// they are dropped.
    ///
    /// # Errors
    ///
    /// Returns the bytes if the queue is full. [`PeerEvent::RemoteSessionWritable`] follows once
    /// there is room.
    pub(crate) fn send(&self, remote_session: RemoteSessionId, bytes: Bytes) -> Result<(), Bytes> {
        match self.retained().remote_sessions.get(&remote_session) {
            Some(outbox) => outbox.push(bytes),
            None => Ok(()),
        }
    }

    /// Ends a remote session from either side, after its queued bytes. It has no further events.
    /// The peer has a second to read the rest.
    pub(crate) fn end_remote_session(
        &self,
        remote_session: RemoteSessionId,
        has_process_ended: bool,
    ) {
        if let Some(outbox) = self.retained().remote_sessions.remove(&remote_session) {
            outbox.end(has_process_ended);
        }
    }

    /// Drops a peer that is no longer a member. Its connections end once no call is in progress.
    pub(crate) fn forget(&self, address: &PeerAddress) {
        self.retained().links.remove(address);
    }

    /// Takes events, at most as many as one turn handles. Clears the wake.
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
    /// Updates the state and returns the event for the event loop, if any.
    fn take(&mut self, left: QueuedEvent) -> Option<PeerEvent> {
        match left {
            QueuedEvent::Request(event, token, reply) => {
                self.requests.insert(token, reply);
                Some(event)
            }
            QueuedEvent::RequestCancelled(token) => {
                self.requests.remove(&token);
                None
            }
            QueuedEvent::Opened(event, remote_session, outbox) => {
                self.remote_sessions.insert(remote_session, outbox);
                Some(event)
            }
            QueuedEvent::Event(event) => match &event {
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
    /// Closes all connections. Returns after the current step of the thread, since no task there
    /// blocks.
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
