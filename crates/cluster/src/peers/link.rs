//! Connections to one peer: opened when needed, and reopened after a pause if that failed.

use std::fmt;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use farrow_net::records::TlsConfigs;
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Notify, Semaphore, watch};
use tonic::body::Body;
use tower_service::Service;

use super::address::PeerAddress;
use super::calls::PeerClient;
use super::error::{PeerError, shorten};
use super::failures::{Delivery, LinkEnd, cause_of};
use super::generated::pb::node_client::NodeClient;
use super::limits::{AROUND_BYTES_MAX, PeerLimits, PeerTimes, REMOTE_SESSION_FRAME_BYTES_MAX};
use super::retired::{RetiredConnections, overdue};
use super::tls::{Secured, Standing, lost};
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
    /// Ends it. Its task has the other end.
    end: Weak<Notify>,
    /// Files of this node that are used since then.
    changes: Option<watch::Receiver<TlsConfigs>>,
}

impl LiveConnection {
    fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Whether this node has other certificate files by now: later calls use a new connection.
    fn is_outdated(&self) -> bool {
        self.changes.as_ref().is_some_and(|changes| changes.has_changed().unwrap_or(false))
    }
}

#[derive(Debug, Default)]
struct LaneState {
    live: Option<LiveConnection>,
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
    lanes: [Mutex<LaneState>; 2],
    retired: RetiredConnections,
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
            retired: RetiredConnections::default(),
        }
    }

    /// Returns the open connection or a new one. An attempt continues even if the caller stops
    /// waiting.
    pub(super) async fn connection(
        self: &Arc<Self>,
        client: &Arc<PeerClient>,
        lane: Lane,
    ) -> Result<LiveConnection, PeerError> {
        let [messages, work] = &self.lanes;
        let state = match lane {
            Lane::Messages => messages,
            Lane::Work => work,
        };
        if let Ok(state) = state.try_lock()
            && let Some(known) = state.known(self)
        {
            return known;
        }
        let (link, client) = (Arc::clone(self), Arc::clone(client));
        let attempt = tokio::spawn(async move {
            let [messages, work] = &link.lanes;
            let mut state = match lane {
                Lane::Messages => messages.lock().await,
                Lane::Work => work.lock().await,
            };
            match state.known(&link) {
                Some(known) => known,
                None => {
                    let connected = link.connect(&client).await;
                    state.note(connected, &link.retired)
                }
            }
        });
        attempt.await.unwrap_or_else(|error| Err(self.unreachable(error)))
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
        let found = tokio::net::lookup_host((self.address.host.as_str(), self.address.port));
        let mut last = self.unreachable("the name has no address");
        for to in found.await.map_err(|error| self.unreachable(error))? {
            if client.tls.is_none() && !to.ip().is_loopback() {
                last = PeerError::NotSecured { address: self.address.to_string() };
                continue;
            }
            match self.connect_to(to, client).await {
                Ok(live) => return Ok(live),
                Err(error) => last = error,
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
        let live = handshake(secured, &client.times, self.address.to_string()).await;
        live.map_err(|error| self.unreachable(cause_of(&error)))
    }

    pub(super) fn unreachable(&self, reason: impl fmt::Display) -> PeerError {
        let reason = shorten(&reason.to_string());
        PeerError::Unreachable { address: self.address.to_string(), reason }
    }
}

/// Starts HTTP/2 on a task that ends with the connection, or ends it when the peer's certificate is
/// no longer accepted.
pub(super) async fn handshake(
    secured: Secured,
    times: &PeerTimes,
    address: String,
) -> Result<LiveConnection, hyper::Error> {
    let Secured { wire, name: peer, standing } = secured;
    let changes = standing.as_ref().map(Standing::changes);
    let (wire, mut cut) = CutWire::new(wire);
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
    let (ended, end) = (Arc::new(LinkEnd::default()), Arc::new(Notify::new()));
    let live = LiveConnection {
        sender,
        peer,
        ended: Arc::clone(&ended),
        end: Arc::downgrade(&end),
        changes,
    };
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
        let cause = tokio::select! {
            () = cut.closed() => return,
            cause = lost(standing) => {
                tracing::warn!(address, cause, "a connection is ended");
                cause
            }
            () = overdue(&end) => {
                tracing::debug!(address, "a connection with an earlier certificate is ended");
                "it was made with an earlier certificate".to_owned()
            }
        };
        ended.set(cause);
        let _ = cut.send(());
    });
    Ok(live)
}

impl LaneState {
    /// An open connection, or the reason why no attempt is due yet.
    fn known(&self, link: &PeerLink) -> Option<Result<LiveConnection, PeerError>> {
        let open = self.live.as_ref().filter(|live| live.is_open());
        if let Some(live) = open.filter(|live| !live.is_outdated()) {
            return Some(Ok(live.clone()));
        }
        // A node that refuses a certificate shows it only after the handshake, by closing.
        let is_orderly = self.live.as_ref().is_some_and(|live| live.ended.is_orderly());
        let is_new = self.made.is_some_and(|made| made.elapsed() < REST_MIN);
        if open.is_none() && is_new && !is_orderly {
            let why = self.live.as_ref().and_then(|live| live.ended.get());
            let why = why.unwrap_or_else(|| "the connection ended as soon as it was made".into());
            return Some(Err(link.unreachable(why)));
        }
        let (at, error) = self.failed.as_ref()?;
        let rest = REST_MIN.saturating_mul(1 << self.failures.min(10)).min(REST_MAX);
        (at.elapsed() < rest).then(|| open.cloned().ok_or_else(|| error.clone()))
    }

    /// Notes a new connection, in place of the present one, or that there is none: then an outdated
    /// one is used further.
    fn note(
        &mut self,
        result: Result<LiveConnection, PeerError>,
        retired: &RetiredConnections,
    ) -> Result<LiveConnection, PeerError> {
        let open = self.live.take().filter(LiveConnection::is_open);
        match &result {
            Ok(live) => {
                if let Some(outdated) = open {
                    retired.add_known(outdated.end);
                }
                let (live, made) = (Some(live.clone()), Some(Instant::now()));
                *self = Self { live, made, failures: 0, failed: None };
            }
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                self.failed = Some((Instant::now(), error.clone()));
                self.live.clone_from(&open);
                return open.map_or(result, Ok);
            }
        }
        result
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
