//! Connections from other nodes: admission, and refusals before a call is read.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use farrow_memory::sync::AtomicU64;
use hyper::body::Incoming;
use hyper::server::conn::http2::{Builder, Connection};
use hyper::service::Service as HyperService;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::body::Body;
use tower_service::Service as _;

use super::backlog::EventQueue;
use super::failures::{FailureLog, cause_of};
use super::generated::pb::node_server::NodeServer;
use super::limits::{
    AROUND_BYTES_MAX, Caller, MESSAGE_BYTES_MAX, PeerAccount, PeerLimits, PeerTimes, Permit,
    REMOTE_SESSION_FRAME_BYTES_MAX,
};
use super::link::{HEADERS_BYTES_MAX, STREAM_WINDOW_BYTES, STREAMS_MAX};
use super::retired::next_number;
use super::service::Service;
use super::tls::{OwnCertificate, RefusedPeer, Secured, Standing, Tls, lost, replaced};
use super::wire::LingeringWire;
use crate::certs::NodeName;

/// Time limit on a connection until its first call is admitted.
const STRANGER_MAX: Duration = Duration::from_secs(2);

/// Pause of the listener when the process has no descriptors left.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// Delay of a refusal: a peer that keeps calling gets only one per stream in this time, instead of
/// using up the thread.
const REFUSAL_REST: Duration = Duration::from_millis(50);

type Response = http::Response<Body>;

/// All connections from other nodes.
pub(super) struct PeerServer {
    tls: Option<Tls>,
    limits: PeerLimits,
    times: PeerTimes,
    /// Messages have a smaller size limit, checked before they are read, and so a service of their
    /// own.
    messages: NodeServer<Service>,
    work: NodeServer<Service>,
    connections: Arc<Semaphore>,
    failures: Arc<FailureLog>,
    strangers: Mutex<BTreeMap<IpAddr, Weak<Semaphore>>>,
    accounts: Mutex<BTreeMap<NodeName, Weak<PeerAccount>>>,
    /// Free bytes for bodies that were read but not taken.
    pub(super) bytes: Arc<Semaphore>,
}

impl PeerServer {
    pub(super) fn new(
        tls: Option<Tls>,
        limits: PeerLimits,
        times: PeerTimes,
        (events, failures): (Arc<EventQueue>, Arc<FailureLog>),
    ) -> Arc<Self> {
        let (requests, remote_sessions) = (AtomicU64::new(0), AtomicU64::new(0));
        let service = {
            let (limits, failures) = (limits.clone(), Arc::clone(&failures));
            Arc::new(Service { events, failures, limits, requests, remote_sessions })
        };
        let messages = NodeServer::from_arc(Arc::clone(&service))
            .max_decoding_message_size(MESSAGE_BYTES_MAX + AROUND_BYTES_MAX);
        let work = NodeServer::from_arc(service)
            .max_decoding_message_size(REMOTE_SESSION_FRAME_BYTES_MAX + AROUND_BYTES_MAX)
            .max_encoding_message_size(REMOTE_SESSION_FRAME_BYTES_MAX + AROUND_BYTES_MAX);
        let connections = Arc::new(Semaphore::new(limits.connections_max));
        let (strangers, accounts) = (Mutex::default(), Mutex::default());
        let bytes = Arc::new(Semaphore::new(limits.bytes_max));
        Arc::new(Self {
            tls,
            limits,
            times,
            messages,
            work,
            connections,
            failures,
            strangers,
            accounts,
            bytes,
        })
    }

    /// Accepts connections until the transport stops.
    pub(super) async fn accept(self: Arc<Self>, listener: TcpListener) {
        loop {
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_REST).await;
                    continue;
                }
            };
            let places =
                Permit::take(&self.connections).zip(Permit::take(&self.strangers_of(from.ip())));
            match places {
                Some((place, stranger)) => {
                    tokio::spawn(Arc::clone(&self).serve(stream, from, place, stranger));
                }
                None => tracing::debug!(%from, "a connection is rejected: the node has too many"),
            }
        }
    }

    fn strangers_of(&self, from: IpAddr) -> Arc<Semaphore> {
        let places = || Semaphore::new(self.limits.strangers_per_address_max);
        shared(&self.strangers, from, places, self.limits.connections_max)
    }

    /// The account of a connection. A certified node has one for all its connections.
    fn account_of(&self, name: Option<&NodeName>) -> Arc<PeerAccount> {
        match name {
            Some(name) => {
                let account = || PeerAccount::new(&self.limits, &self.bytes);
                shared(&self.accounts, name.clone(), account, self.limits.connections_max)
            }
            None => Arc::new(PeerAccount::new(&self.limits, &self.bytes)),
        }
    }

    async fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        from: SocketAddr,
        place: Permit,
        stranger: Permit,
    ) {
        let until = tokio::time::Instant::now() + STRANGER_MAX;
        let _ = stream.set_nodelay(true);
        let secured = match tokio::time::timeout_at(until, self.shake(stream)).await {
            Ok(Ok(secured)) => secured,
            Ok(Err(RefusedPeer { error, wire })) => {
                self.failures.refused(&from.ip().to_string(), &cause_of(&error));
                if let Some(mut wire) = wire {
                    let _ = wire.shutdown().await;
                }
                return;
            }
            Err(_) => return tracing::debug!(%from, "a connection sent nothing and is closed"),
        };
        let Secured { wire, name, standing } = secured;
        let account = self.account_of(name.as_ref());
        let Some(_of_node) = Permit::take(&account.connections) else {
            return tracing::debug!(%from, ?name, "a connection is rejected: its node has too many");
        };
        let of_peer = name.as_ref().map_or_else(|| from.ip().to_string(), NodeName::to_string);
        let own = standing.as_ref().map(Standing::own).zip(name.clone());
        // A node with a certificate is no stranger. It opens connections before it needs them.
        let is_certified = name.is_some();
        let caller = Arc::new(Caller::new(account, name));
        let gate = Gate { server: Arc::clone(&self), caller: Arc::clone(&caller) };
        let connection = self.http().serve_connection(TokioIo::new(LingeringWire::new(wire)), gate);
        let mut connection = pin!(until_retired(connection, own, Arc::clone(&caller)));
        let mut lost = pin!(lost(standing));
        let ended = tokio::select! {
            ended = tokio::time::timeout_at(until, connection.as_mut()) => ended,
            cause = lost.as_mut() => return self.failures.refused(&of_peer, &cause),
        };
        drop(stranger);
        let ended = match ended {
            Ok(ended) => ended,
            Err(_) if is_certified || caller.is_known() => tokio::select! {
                ended = connection => ended,
                cause = lost => return self.failures.refused(&of_peer, &cause),
            },
            Err(_) => return tracing::debug!(%from, "a connection sent no request and is closed"),
        };
        if let Err(error) = ended {
            if !caller.is_known() && self.tls.is_none() {
                let cause = cause_of(&error);
                let cause = format!("it does not speak plain text, so it may use --certs: {cause}");
                self.failures.refused(&from.ip().to_string(), &cause);
            }
            tracing::debug!(%from, cause = cause_of(&error), "a connection ended");
        }
        drop(place);
    }

    async fn shake(&self, stream: TcpStream) -> Result<Secured, RefusedPeer> {
        match &self.tls {
            Some(tls) => tls.accept(stream).await,
            None => Ok(Secured::plain(stream)),
        }
    }

    fn http(&self) -> Builder<TokioExecutor> {
        let mut http = Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(STREAM_WINDOW_BYTES * STREAMS_MAX)
            .max_header_list_size(HEADERS_BYTES_MAX)
            .keep_alive_interval(self.times.keep_alive_interval)
            .keep_alive_timeout(self.times.keep_alive_timeout);
        http
    }
}

/// Serves a connection. When this node has another certificate, and the peer has accepted it, the peer
/// opens another connection for its next call. This one ends with its last call, or as the oldest of
/// several.
async fn until_retired(
    connection: Connection<TokioIo<LingeringWire>, Gate, TokioExecutor>,
    own: Option<(OwnCertificate, NodeName)>,
    caller: Arc<Caller>,
) -> Result<(), hyper::Error> {
    let number = next_number();
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = replaced(own) => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        ended = connection => ended,
        () = caller.account.retired.overdue(number) => Ok(()),
    }
}

/// Returns one value for each key while it is in use. Beyond `keys_max`, unused entries are
/// dropped.
fn shared<K: Ord, V>(
    map: &Mutex<BTreeMap<K, Weak<V>>>,
    key: K,
    make: impl FnOnce() -> V,
    keys_max: usize,
) -> Arc<V> {
    let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(value) = map.get(&key).and_then(Weak::upgrade) {
        return value;
    }
    if map.len() >= keys_max {
        map.retain(|_, value| value.strong_count() > 0);
    }
    let value = Arc::new(make());
    map.insert(key, Arc::downgrade(&value));
    value
}

/// Precedes the service on one connection: counts calls before they are read.
struct Gate {
    server: Arc<PeerServer>,
    caller: Arc<Caller>,
}

impl Gate {
    /// The service for a request, with its permit.
    fn admit(&self, path: &str) -> Result<(NodeServer<Service>, Permit), Status> {
        let account = &self.caller.account;
        let (service, places, what) = match path {
            "/farrow.v1.Node/Tell" => (&self.server.messages, &account.messages, "messages"),
            "/farrow.v1.Node/Ask" => (&self.server.work, &account.asks, "questions"),
            "/farrow.v1.Node/RemoteSession" => {
                (&self.server.work, &account.remote_sessions, "remote sessions")
            }
            _ => return Err(Status::unimplemented("no such call")),
        };
        if !account.take_call(Instant::now()) {
            let text = format!("more than {} calls a second", self.server.limits.calls_per_second);
            return Err(Status::resource_exhausted(text));
        }
        let place = Permit::take(places)
            .ok_or_else(|| Status::resource_exhausted(format!("too many {what} of this node")))?;
        Ok((service.clone(), place))
    }
}

impl HyperService<http::Request<Incoming>> for Gate {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, mut request: http::Request<Incoming>) -> Self::Future {
        match self.admit(request.uri().path()) {
            Ok((mut service, place)) => {
                request.extensions_mut().insert(Arc::clone(&self.caller));
                request.extensions_mut().insert(place);
                service.call(request)
            }
            Err(status) => Box::pin(async move {
                tokio::time::sleep(REFUSAL_REST).await;
                Ok(status.into_http())
            }),
        }
    }
}
