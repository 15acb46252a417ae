//! The connection to one of etcd's endpoints: opened when needed, to the next one after a failure.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use http::Uri;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Request, Status};

use super::config::{EtcdConfig, EtcdTls, EtcdUser};
use crate::peers::address::PeerAddress;
use crate::peers::error::{StartError, shorten};
use crate::peers::generated::etcd_pb::AuthenticateRequest;
use crate::peers::generated::etcd_pb::auth_client::AuthClient;
use crate::peers::limits::PeerTimes;
use crate::peers::link::{LiveConnection, REST_MAX, REST_MIN, handshake, no_connection, share_of};
use crate::peers::tls::{ALPN, Secured, check_key_is_private, unusable};
use crate::peers::wire::Wire;

/// Limit on the length of a password in a file.
const PASSWORD_BYTES_MAX: usize = 4096;

/// A call without a usable answer.
#[derive(Debug, Clone)]
pub(super) struct EtcdFailure {
    /// Whether etcd answered, with a refusal.
    pub(super) is_answer: bool,
    pub(super) reason: String,
}

/// An open connection.
#[derive(Debug, Clone)]
pub(super) struct OpenChannel {
    pub(super) live: LiveConnection,
    pub(super) origin: Uri,
    token: Option<MetadataValue<Ascii>>,
}

impl OpenChannel {
    /// A request with the token of this node's user.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }
}

#[derive(Debug, Default)]
struct ChannelState {
    connected: Option<OpenChannel>,
    /// Number of connections so far.
    generation: u64,
    /// Index of the endpoint to try first.
    at: usize,
    failures: u32,
    failed: Option<(Instant, EtcdFailure)>,
}

/// See the module documentation.
pub(super) struct EtcdChannel {
    endpoints: Vec<PeerAddress>,
    tls: Option<TlsConnector>,
    user: Option<(String, String)>,
    is_plaintext_allowed: bool,
    times: PeerTimes,
    state: Mutex<ChannelState>,
}

impl fmt::Debug for EtcdChannel {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

impl EtcdChannel {
    pub(super) fn new(config: &EtcdConfig, times: PeerTimes) -> Result<Self, StartError> {
        let EtcdConfig { place, tls, user, is_plaintext_allowed } = config;
        let tls = match (place.is_tls, tls) {
            (true, Some(files)) => Some(connector(files)?),
            (true, None) => {
                return Err(StartError::EtcdOptions("etcds:// needs the option `etcd_ca`"));
            }
            (false, Some(_)) => {
                return Err(StartError::EtcdOptions("certificates are for etcds://"));
            }
            (false, None) => None,
        };
        let user = user.as_ref().map(read_user).transpose()?;
        let is_plaintext_allowed = *is_plaintext_allowed;
        let endpoints = place.endpoints.clone();
        let state = Mutex::default();
        Ok(Self { endpoints, tls, user, is_plaintext_allowed, times, state })
    }

    /// Returns the open connection or a new one. An attempt continues even if the caller stops
    /// waiting.
    pub(super) async fn connection(self: &Arc<Self>) -> Result<(OpenChannel, u64), EtcdFailure> {
        let channel = Arc::clone(self);
        let attempt = tokio::spawn(async move {
            let mut state = channel.state.lock().await;
            if let Some(connected) = &state.connected
                && !connected.live.sender.is_closed()
            {
                return Ok((connected.clone(), state.generation));
            }
            let rest = REST_MIN.saturating_mul(1 << state.failures.min(10)).min(REST_MAX);
            if let Some((at, failure)) = &state.failed
                && at.elapsed() < rest
            {
                return Err(failure.clone());
            }
            channel.connect_to_any(&mut state).await
        });
        attempt.await.unwrap_or_else(|error| Err(unreachable(error)))
    }

    async fn connect_to_any(
        &self,
        state: &mut ChannelState,
    ) -> Result<(OpenChannel, u64), EtcdFailure> {
        let count = self.endpoints.len();
        let mut failures = Vec::with_capacity(count);
        for step in 0..count {
            let at = (state.at + step) % count;
            let Some(endpoint) = self.endpoints.get(at) else { continue };
            let attempt = tokio::time::timeout(self.times.connect, self.connect(endpoint)).await;
            let connected = attempt.unwrap_or_else(|_| {
                let connect_ms = self.times.connect.as_millis();
                Err(unreachable(format_args!("no connection within {connect_ms} ms")))
            });
            match connected {
                Ok(connected) => {
                    let generation = state.generation + 1;
                    let connected = Some(connected);
                    *state = ChannelState { connected, generation, at, failures: 0, failed: None };
                    break;
                }
                Err(failure) => failures.push((endpoint, failure)),
            }
        }
        if let Some(connected) = state.connected.clone().filter(|_| failures.len() < count) {
            return Ok((connected, state.generation));
        }
        let reasons: Vec<String> = failures
            .iter()
            .map(|(endpoint, failure)| format!("{endpoint}: {}", failure.reason))
            .collect();
        let is_answer = !failures.is_empty() && failures.iter().all(|(_, one)| one.is_answer);
        let failure = EtcdFailure { is_answer, reason: reasons.join("; ") };
        state.connected = None;
        state.failures = state.failures.saturating_add(1);
        state.failed = Some((Instant::now(), failure.clone()));
        Err(failure)
    }

    /// Drops a failed connection if it is still the current one, or with `None` any current one.
    /// The next call uses the next endpoint.
    pub(super) async fn discard(&self, generation: Option<u64>) {
        // If the lock is taken, a connection is being opened, so there is none to drop.
        let Ok(mut state) = self.state.try_lock() else { return };
        if generation.is_none_or(|failed| failed == state.generation)
            && state.connected.take().is_some()
        {
            state.at = (state.at + 1) % self.endpoints.len().max(1);
        }
    }

    async fn connect(&self, endpoint: &PeerAddress) -> Result<OpenChannel, EtcdFailure> {
        let until = Instant::now() + self.times.connect;
        let found = tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port));
        let found: Vec<SocketAddr> = found.await.map_err(unreachable)?.collect();
        self.connect_to_one_of(&found, endpoint, until).await
    }

    async fn connect_to_one_of(
        &self,
        addresses: &[SocketAddr],
        endpoint: &PeerAddress,
        until: Instant,
    ) -> Result<OpenChannel, EtcdFailure> {
        let mut last = unreachable("the name has no address");
        for (at, to) in addresses.iter().enumerate() {
            if self.tls.is_none() && !to.ip().is_loopback() && !self.is_plaintext_allowed {
                let reason = StartError::EtcdPlaintext { address: endpoint.to_string() };
                last = EtcdFailure { is_answer: true, reason: reason.to_string() };
                continue;
            }
            let time = share_of(until, addresses.len() - at);
            let attempt = async {
                let stream = TcpStream::connect(to).await.map_err(unreachable)?;
                self.speak(stream, endpoint).await
            };
            match tokio::time::timeout(time, attempt).await {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(failure)) => last = failure,
                Err(_) => last = unreachable(no_connection(to, time)),
            }
        }
        Err(last)
    }

    async fn speak(&self, stream: TcpStream, to: &PeerAddress) -> Result<OpenChannel, EtcdFailure> {
        let _ = stream.set_nodelay(true);
        let wire: Box<dyn Wire> = match &self.tls {
            Some(tls) => {
                let name = ServerName::try_from(to.host.clone()).map_err(unreachable)?;
                Box::new(tls.connect(name, stream).await.map_err(unreachable)?)
            }
            None => Box::new(stream),
        };
        let secured = Secured { wire, name: None, standing: None };
        let live = handshake(secured, &self.times, to.to_string(), Arc::default());
        let live = live.await.map_err(unreachable)?;
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let authority = PeerAddress { name: None, ..to.clone() };
        let origin: Uri = format!("{scheme}://{authority}").parse().map_err(unreachable)?;
        let mut connected = OpenChannel { live, origin, token: None };
        if let Some((name, password)) = &self.user {
            connected.token = Some(authenticate(&connected, name, password).await?);
        }
        Ok(connected)
    }
}

async fn authenticate(
    to: &OpenChannel,
    name: &str,
    password: &str,
) -> Result<MetadataValue<Ascii>, EtcdFailure> {
    let (name, password) = (name.to_owned(), password.to_owned());
    let mut client = AuthClient::with_origin(to.live.clone(), to.origin.clone());
    let request = AuthenticateRequest { name: name.clone(), password };
    let answer =
        client.authenticate(Request::new(request)).await.map_err(|status| EtcdFailure {
            is_answer: is_answer(&status),
            reason: format!("user {name}: {}", shorten(status.message())),
        })?;
    MetadataValue::try_from(answer.into_inner().token).map_err(unreachable)
}

/// What etcd says to a token from before the last change of its users and roles.
const OUTDATED_TOKEN: &str = "revision of auth store is old";

/// Whether an error is etcd's answer to the request, which another endpoint would repeat. An
/// expired or outdated token is not: a new connection gets a new one.
pub(super) fn is_answer(status: &Status) -> bool {
    let is_refusal = matches!(
        status.code(),
        Code::InvalidArgument
            | Code::NotFound
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
    );
    is_refusal && !status.message().contains(OUTDATED_TOKEN)
}

/// The reason that etcd gave, or why the connection broke.
pub(super) fn reason_of(status: &Status) -> String {
    let mut source = std::error::Error::source(status);
    let Some(first) = source else {
        return format!("{:?}: {}", status.code(), shorten(status.message()));
    };
    let mut last = first;
    while let Some(error) = source {
        last = error;
        source = error.source();
    }
    format!("no answer, the connection ended: {}", shorten(&last.to_string()))
}

fn unreachable(reason: impl fmt::Display) -> EtcdFailure {
    EtcdFailure { is_answer: false, reason: shorten(&reason.to_string()) }
}

fn read_user(user: &EtcdUser) -> Result<(String, String), StartError> {
    let path = &user.password;
    check_key_is_private(path)?;
    let text = std::fs::read_to_string(path).map_err(|error| unusable(path, error))?;
    let password = text.trim_end_matches(['\r', '\n']);
    if password.is_empty() || password.len() > PASSWORD_BYTES_MAX {
        let bytes = password.len();
        let reason = format!("a password has 1 to {PASSWORD_BYTES_MAX} B, not {bytes} B");
        return Err(unusable(path, reason));
    }
    Ok((user.name.clone(), password.to_owned()))
}

fn connector(files: &EtcdTls) -> Result<TlsConnector, StartError> {
    let mut roots = RootCertStore::empty();
    let all = CertificateDer::pem_file_iter(&files.ca).and_then(Iterator::collect);
    let all: Vec<CertificateDer<'static>> = all.map_err(|error| unusable(&files.ca, error))?;
    if all.is_empty() {
        return Err(unusable(&files.ca, "no certificate"));
    }
    for root in all {
        roots.add(root).map_err(|error| unusable(&files.ca, error))?;
    }
    let bad = |error: rustls::Error| StartError::Tls(error.to_string());
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(bad)?
        .with_root_certificates(roots);
    let mut config = match &files.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
            let chain = chain.map_err(|error| unusable(certificate, error))?;
            check_key_is_private(key)?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, error))?;
            builder.with_client_auth_cert(chain, key).map_err(bad)?
        }
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::*;

    /// Regression test: after each change of a user or role no call succeeded until the token expired.
    #[test]
    fn an_outdated_token_is_no_answer() {
        let old = Status::invalid_argument("etcdserver: revision of auth store is old");
        assert!(!is_answer(&old));
        assert!(is_answer(&Status::invalid_argument("etcdserver: key is not provided")));
    }

    #[test]
    fn an_address_that_accepts_and_does_not_speak_leaves_the_next_to_be_tried() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let password = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(password.path(), "secret").unwrap();
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(password.path(), private).unwrap();
        let user = EtcdUser { name: "farrow".to_owned(), password: password.path().to_owned() };
        let config = EtcdConfig {
            place: "etcd://localhost:2379".parse().unwrap(),
            tls: None,
            user: Some(user),
            is_plaintext_allowed: false,
        };
        let times = PeerTimes {
            message: Duration::from_secs(5),
            connect: Duration::from_secs(5),
            keep_alive_interval: Duration::from_secs(5),
            keep_alive_timeout: Duration::from_secs(5),
        };
        let channel = EtcdChannel::new(&config, times).unwrap();
        runtime.block_on(async {
            let bind = || TcpListener::bind("127.0.0.1:0");
            // Its connection stays open.
            let silent = bind().await.unwrap();
            let (first, next) = (bind().await.unwrap(), bind().await.unwrap());
            let addresses = [&silent, &first, &next].map(|one| one.local_addr().unwrap());
            let until = Instant::now() + channel.times.connect;
            let attempt = channel.connect_to_one_of(&addresses, &channel.endpoints[0], until);
            let servers = async {
                // The connection ends without a word.
                drop(first.accept().await.unwrap());
                drop(next.accept().await.unwrap());
            };
            let both = async { tokio::join!(attempt, servers) };
            let (connected, ()) = tokio::time::timeout(Duration::from_secs(30), both)
                .await
                .expect("the second address is tried");
            assert!(connected.is_err());
        });
    }
}
