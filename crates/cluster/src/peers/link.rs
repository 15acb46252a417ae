//! Connections to one peer: opened when needed, and reopened after a pause if that failed.

use std::fmt;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use farrow_memory::sync::{AtomicBool, Ordering};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Notify, Semaphore};
use tonic::body::Body;
use tower_service::Service;

use super::address::PeerAddress;
use super::calls::PeerClient;
use super::error::{PeerError, shorten};
use super::failures::{Delivery, LinkEnd, cause_of};
use super::generated::pb::node_client::NodeClient;
use super::limits::{AROUND_BYTES_MAX, PeerLimits, PeerTimes, REMOTE_SESSION_FRAME_BYTES_MAX};
use super::retired::{RetiredConnections, next_number};
use super::tls::{OwnCertificate, Secured, Standing, lost};
use super::wire::CutWire;
use crate::certs::NodeName;

/// Concurrent calls on one connection: more than the default limits allow one node.
pub(super) const STREAMS_MAX: u32 = 256;

/// Bytes that a peer may send ahead on one call: those that 10 Gbit/s carry in 0.2 ms. The window
/// of the connection is that of all calls, so that an unread remote session blocks no other call.
pub(super) const STREAM_WINDOW_BYTES: u32 = 256 << 10;

/// Limit on headers. Those of a call have about 300 B.
pub(super) const HEADERS_BYTES_MAX: u32 = 8 << 10;

/// Pause before the next connection after a failure. It doubles with each further one.
pub(super) const REST_MIN: Duration = Duration::from_millis(50);
pub(super) const REST_MAX: Duration = Duration::from_secs(1);

/// Attempts to open a connection with another certificate of this node.
const RENEWALS_MAX: u32 = 60;

/// Time between two looks whether a peer has accepted a new connection.
const ACCEPTED_PAUSE: Duration = Duration::from_millis(5);

/// The kind of traffic on a connection.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lane {
    /// Messages such as heartbeats, which never queue behind bulk data.
    Messages,
    /// Requests and remote sessions.
    Work,
}

/// An open connection.
#[derive(Debug, Clone)]
pub(super) struct LiveConnection {
    pub(super) sender: SendRequest<Body>,
    /// The name in the peer's certificate.
    pub(super) peer: Option<NodeName>,
    /// Why it ended.
    pub(super) ended: Arc<LinkEnd>,
    /// It is used for no new call from then on.
    retire: Arc<Notify>,
    own: Option<OwnCertificate>,
    /// Whether the peer has sent anything since the handshake.
    is_heard: Arc<AtomicBool>,
}

impl LiveConnection {
    fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Whether this node has another certificate by now: later calls use a new connection.
    fn is_outdated(&self) -> bool {
        self.own.as_ref().is_some_and(OwnCertificate::is_outdated)
    }

    /// Whether the peer has accepted this node's certificate, which it shows only after the handshake.
    fn is_accepted(&self) -> bool {
        self.own.is_none() || self.is_heard.load(Ordering::Acquire)
    }
}

#[derive(Debug, Default)]
struct LaneState {
    /// When the last connection was opened.
    made: Option<Instant>,
    failures: u32,
    failed: Option<(Instant, PeerError)>,
}

/// One peer, as this node reaches it.
#[derive(Debug)]
pub(super) struct PeerLink {
    pub(super) address: PeerAddress,
    pub(super) messages: Arc<Semaphore>,
    pub(super) asks: Arc<Semaphore>,
    /// Bytes of requests that wait for a place.
    pub(super) asks_waiting: Arc<Semaphore>,
    pub(super) remote_sessions: Arc<Semaphore>,
    /// Whether messages arrive.
    pub(super) delivery: Delivery,
    lanes: [LaneLink; 2],
    retired: Arc<RetiredConnections>,
}

/// The connection of one lane.
#[derive(Debug, Default)]
struct LaneLink {
    state: Mutex<LaneState>,
    last: std::sync::Mutex<Option<LiveConnection>>,
    /// Whether one with another certificate of this node is being opened.
    is_renewed: AtomicBool,
}

impl LaneLink {
    fn last(&self) -> Option<LiveConnection> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn open(&self) -> Option<LiveConnection> {
        self.last().filter(LiveConnection::is_open)
    }

    /// Returns the one before.
    fn replace(&self, live: LiveConnection) -> Option<LiveConnection> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).replace(live)
    }

    /// The open connection, or the reason why no attempt is due yet.
    fn known(
        &self,
        state: &LaneState,
        link: &PeerLink,
    ) -> Option<Result<LiveConnection, PeerError>> {
        let last = self.last();
        if let Some(live) = last.as_ref().filter(|live| live.is_open()) {
            return Some(Ok(live.clone()));
        }
        // A node that refuses a certificate shows it only after the handshake, by closing.
        let is_orderly = last.as_ref().is_some_and(|last| last.ended.is_orderly());
        if !is_orderly && state.made.is_some_and(|made| made.elapsed() < REST_MIN) {
            let why = last.and_then(|last| last.ended.get());
            let why = why.unwrap_or_else(|| "the connection ended as soon as it was made".into());
            return Some(Err(link.unreachable(why)));
        }
        let (at, error) = state.failed.as_ref()?;
        let rest = REST_MIN.saturating_mul(1 << state.failures.min(10)).min(REST_MAX);
        (at.elapsed() < rest).then(|| Err(error.clone()))
    }
}

impl PeerLink {
    pub(super) fn new(address: PeerAddress, limits: &PeerLimits) -> Self {
        Self {
            address,
            messages: Arc::new(Semaphore::new(limits.messages_max)),
            asks: Arc::new(Semaphore::new(limits.asks_max)),
            asks_waiting: Arc::new(Semaphore::new(limits.asks_waiting_bytes_max)),
            remote_sessions: Arc::new(Semaphore::new(limits.remote_sessions_max)),
            delivery: Delivery::default(),
            lanes: Default::default(),
            retired: Arc::default(),
        }
    }

    fn lane(&self, lane: Lane) -> &LaneLink {
        let [messages, work] = &self.lanes;
        match lane {
            Lane::Messages => messages,
            Lane::Work => work,
        }
    }

    /// Returns the open connection or a new one. An attempt continues even if the caller stops
    /// waiting.
    pub(super) async fn connection(
        self: &Arc<Self>,
        client: &Arc<PeerClient>,
        lane: Lane,
    ) -> Result<LiveConnection, PeerError> {
        let of_lane = self.lane(lane);
        if let Some(live) = of_lane.open() {
            self.renew_if_outdated(client, lane, &live);
            return Ok(live);
        }
        if let Ok(state) = of_lane.state.try_lock()
            && let Some(known) = of_lane.known(&state, self)
        {
            return known;
        }
        let (link, client) = (Arc::clone(self), Arc::clone(client));
        let attempt = tokio::spawn(async move {
            let of_lane = link.lane(lane);
            let mut state = of_lane.state.lock().await;
            match of_lane.known(&state, &link) {
                Some(known) => known,
                None => {
                    let connected = link.connect(&client).await;
                    state.note(&connected);
                    if let Ok(live) = &connected {
                        of_lane.replace(live.clone());
                        // The certificate may have changed since the handshake.
                        link.renew_if_outdated(&client, lane, live);
                    }
                    connected
                }
            }
        });
        attempt.await.unwrap_or_else(|error| Err(self.unreachable(error)))
    }

    /// Opens connections in place of those with an earlier certificate of this node, also of ended ones.
    pub(super) fn renew_outdated(self: &Arc<Self>, client: &Arc<PeerClient>) {
        for lane in [Lane::Messages, Lane::Work] {
            if let Some(live) = self.lane(lane).last() {
                self.renew_if_outdated(client, lane, &live);
            }
        }
    }

    fn renew_if_outdated(
        self: &Arc<Self>,
        client: &Arc<PeerClient>,
        lane: Lane,
        live: &LiveConnection,
    ) {
        if live.is_outdated() && !self.lane(lane).is_renewed.swap(true, Ordering::AcqRel) {
            tokio::spawn(Arc::clone(self).renew(Arc::clone(client), lane));
        }
    }

    /// Opens a connection with this node's present certificate, and retires the one before once the
    /// peer has accepted it. Until then that one is used. After many failures a later call tries again.
    async fn renew(self: Arc<Self>, client: Arc<PeerClient>, lane: Lane) {
        let of_lane = self.lane(lane);
        for _ in 0..RENEWALS_MAX {
            if of_lane.last().is_none_or(|last| !last.is_outdated()) {
                break;
            }
            match self.connect_accepted(&client).await {
                Ok(live) => {
                    if let Some(outdated) = of_lane.replace(live) {
                        outdated.retire.notify_one();
                    }
                }
                Err(error) => {
                    client.failures.unreached(&self.address.to_string(), &error.to_string());
                    tokio::time::sleep(REST_MAX).await;
                }
            }
        }
        of_lane.is_renewed.store(false, Ordering::Release);
    }

    async fn connect_accepted(&self, client: &PeerClient) -> Result<LiveConnection, PeerError> {
        let until = Instant::now() + client.times.connect;
        let live = self.connect(client).await?;
        while !live.is_accepted() {
            if !live.is_open() || Instant::now() >= until {
                let why = live.ended.get();
                let why = why.unwrap_or_else(|| "it does not accept the new certificate".into());
                return Err(self.unreachable(why));
            }
            tokio::time::sleep(ACCEPTED_PAUSE).await;
        }
        Ok(live)
    }

    async fn connect(&self, client: &PeerClient) -> Result<LiveConnection, PeerError> {
        match tokio::time::timeout(client.times.connect, self.try_connect(client)).await {
            Ok(connected) => connected,
            Err(_) => {
                let connect_ms = client.times.connect.as_millis();
                Err(self.unreachable(format_args!("no connection within {connect_ms} ms")))
            }
        }
    }

    async fn try_connect(&self, client: &PeerClient) -> Result<LiveConnection, PeerError> {
        let until = Instant::now() + client.times.connect;
        let found = tokio::net::lookup_host((self.address.host.as_str(), self.address.port));
        let found = found.await.map_err(|error| self.unreachable(error))?;
        self.connect_to_one_of(&found.collect::<Vec<_>>(), client, until).await
    }

    pub(super) async fn connect_to_one_of(
        &self,
        addresses: &[SocketAddr],
        client: &PeerClient,
        until: Instant,
    ) -> Result<LiveConnection, PeerError> {
        let mut last = self.unreachable("the name has no address");
        for (at, to) in addresses.iter().enumerate() {
            if client.tls.is_none() && !to.ip().is_loopback() {
                last = PeerError::NotSecured { address: self.address.to_string() };
                continue;
            }
            let time = share_of(until, addresses.len() - at);
            match tokio::time::timeout(time, self.connect_to(*to, client)).await {
                Ok(Ok(live)) => return Ok(live),
                Ok(Err(error)) => last = error,
                Err(_) => last = self.unreachable(no_connection(to, time)),
            }
        }
        Err(last)
    }

    async fn connect_to(
        &self,
        to: SocketAddr,
        client: &PeerClient,
    ) -> Result<LiveConnection, PeerError> {
        let stream = TcpStream::connect(to).await.map_err(|error| self.unreachable(error))?;
        let _ = stream.set_nodelay(true);
        let secured = match &client.tls {
            Some(tls) => tls.connect(stream, &self.address).await?,
            None => Secured::plain(stream),
        };
        let retired = Arc::clone(&self.retired);
        let live = handshake(secured, &client.times, self.address.to_string(), retired).await;
        live.map_err(|error| self.unreachable(cause_of(&error)))
    }

    pub(super) fn unreachable(&self, reason: impl fmt::Display) -> PeerError {
        let reason = shorten(&reason.to_string());
        PeerError::Unreachable { address: self.address.to_string(), reason }
    }
}

/// The time for the next of several addresses. One that stays silent leaves time for the rest.
pub(super) fn share_of(until: Instant, addresses: usize) -> Duration {
    let count = u32::try_from(addresses).unwrap_or(u32::MAX).max(1);
    until.saturating_duration_since(Instant::now()) / count
}

pub(super) fn no_connection(to: &SocketAddr, time: Duration) -> String {
    format!("no connection to {to} within {} ms", time.as_millis())
}

/// Starts HTTP/2 on a task that ends with the connection, or ends it when the peer's certificate is
/// no longer accepted.
pub(super) async fn handshake(
    secured: Secured,
    times: &PeerTimes,
    address: String,
    retired: Arc<RetiredConnections>,
) -> Result<LiveConnection, hyper::Error> {
    let Secured { wire, name: peer, standing } = secured;
    let own = standing.as_ref().map(Standing::own);
    let (wire, mut cut, heard) = CutWire::new(wire);
    let (sender, connection) = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(STREAM_WINDOW_BYTES * STREAMS_MAX)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .keep_alive_interval(times.keep_alive_interval)
        .keep_alive_timeout(times.keep_alive_timeout)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(wire))
        .await?;
    let (ended, retire) = (Arc::new(LinkEnd::default()), Arc::new(Notify::new()));
    let live = LiveConnection {
        sender,
        peer: peer.clone(),
        ended: Arc::clone(&ended),
        retire: Arc::clone(&retire),
        own: own.clone(),
        is_heard: Arc::default(),
    };
    let is_heard = Arc::clone(&live.is_heard);
    let (of_task, at) = (Arc::clone(&ended), address.clone());
    tokio::spawn(async move {
        // Noted before the sender sees that it is closed.
        let mut connection = pin!(connection);
        match connection.as_mut().await {
            Ok(()) => of_task.set_orderly(),
            Err(error) => {
                let cause = cause_of(&error);
                tracing::debug!(address = at, cause, "a connection ended");
                of_task.set(cause);
            }
        }
    });
    // The connection of a remote session may outlive the task above, which is for new calls.
    tokio::spawn(async move {
        let accepted = async {
            if heard.await.is_ok() {
                is_heard.store(true, Ordering::Release);
                if let Some((own, peer)) = own.zip(peer) {
                    own.note_accepted(&peer);
                }
            }
            std::future::pending::<()>().await;
        };
        let overdue = async {
            retire.notified().await;
            retired.overdue(next_number()).await;
        };
        let cause = tokio::select! {
            () = cut.closed() => return,
            () = accepted => return,
            cause = lost(standing) => {
                tracing::warn!(address, cause, "a connection is closed");
                cause
            }
            () = overdue => {
                tracing::debug!(address, "a connection with an earlier certificate is closed");
                "it was made with an earlier certificate".to_owned()
            }
        };
        ended.set(cause);
        let _ = cut.send(());
    });
    Ok(live)
}

impl LaneState {
    fn note(&mut self, connected: &Result<LiveConnection, PeerError>) {
        match connected {
            Ok(_) => *self = Self { made: Some(Instant::now()), failures: 0, failed: None },
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                self.failed = Some((Instant::now(), error.clone()));
            }
        }
    }
}

impl LiveConnection {
    pub(super) fn client(&self) -> NodeClient<Self> {
        // The name in it is not resolved, since the connection is already open.
        let origin = http::Uri::from_static("http://node.farrow.internal");
        NodeClient::with_origin(self.clone(), origin)
            .max_decoding_message_size(REMOTE_SESSION_FRAME_BYTES_MAX + AROUND_BYTES_MAX)
            .max_encoding_message_size(REMOTE_SESSION_FRAME_BYTES_MAX + AROUND_BYTES_MAX)
    }
}

impl Service<http::Request<Body>> for LiveConnection {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.sender.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.sender.send_request(request))
    }
}
