//! What proves who this node is, and what it accepts of peers. Both can be replaced while
//! connections exist.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, Connection, Error, RootCertStore, ServerConfig,
    ServerConnection,
};

use crate::error::ConnectionError;
use crate::socket::Socket;

/// Protocol name that both sides require, so that control and data connections cannot be confused.
const ALPN: &[u8] = b"farrow-data/1";

/// Bytes of a record's header: its type, a version and the length of the rest.
pub(super) const RECORD_HEADER_BYTES: usize = 5;

/// Reads the one member that a certificate names.
pub type MemberOf = fn(&CertificateDer<'_>) -> Result<String, String>;

/// A node's certificate, and what it accepts of peers.
#[derive(Clone, Debug)]
pub struct TlsMaterial {
    /// The accepted authorities, at least one.
    pub roots: Arc<RootCertStore>,
    /// Revocation lists of those authorities. A certificate whose authority has no list counts as
    /// not revoked. The time of the next list is not enforced.
    pub revocations: Vec<CertificateRevocationListDer<'static>>,
    /// The chain and key of this node.
    pub certificate: Arc<CertifiedKey>,
}

/// The configurations of both sides of a connection, from one [`TlsMaterial`].
#[derive(Clone, Debug)]
pub struct TlsConfigs {
    /// For connections that this node opens.
    pub client: Arc<ClientConfig>,
    /// For connections that this node accepts.
    pub server: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// The certificates that a peer presented, and when they were accepted.
#[derive(Clone, Debug)]
pub struct PeerChain {
    chain: Vec<CertificateDer<'static>>,
    accepted: UnixTime,
}

impl PeerChain {
    /// The chain that a peer presented just now.
    #[must_use]
    pub fn new(chain: &[CertificateDer<'_>]) -> Self {
        let chain = chain.iter().map(|one| one.clone().into_owned()).collect();
        Self { chain, accepted: UnixTime::now() }
    }

    /// The certificate of the peer itself.
    #[must_use]
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.chain.first()
    }
}

impl TlsMaterial {
    /// Material without revocations.
    ///
    /// # Errors
    /// The key is unusable, or not that of the first certificate of the chain.
    pub fn new(
        roots: RootCertStore,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, Error> {
        let certificate = CertifiedKey::from_der(chain, key, &default_provider())?;
        let (roots, certificate) = (Arc::new(roots), Arc::new(certificate));
        Ok(Self { roots, revocations: Vec::new(), certificate })
    }

    /// Builds the configurations for a protocol. Session resumption is disabled, so each connection
    /// checks certificates.
    ///
    /// # Errors
    /// There are no roots, or a revocation list cannot be parsed.
    pub fn configs(&self, alpn: &[u8]) -> Result<TlsConfigs, Error> {
        let provider = Arc::new(provider());
        let wrong = |error: VerifierBuilderError| Error::General(error.to_string());
        let roots = || Arc::clone(&self.roots);
        let of_servers =
            WebPkiServerVerifier::builder_with_provider(roots(), Arc::clone(&provider))
                .with_crls(self.revocations.iter().cloned())
                .allow_unknown_revocation_status()
                .build()
                .map_err(wrong)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots(), Arc::clone(&provider))
            .with_crls(self.revocations.iter().cloned())
            .allow_unknown_revocation_status()
            .build()
            .map_err(wrong)?;
        let own = Arc::new(SingleCertAndKey::from(Arc::clone(&self.certificate)));
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .with_webpki_verifier(of_servers)
            .with_client_cert_resolver(Arc::clone(&own) as _);
        client.alpn_protocols = vec![alpn.to_vec()];
        client.resumption = Resumption::disabled();
        // The data path has a record layer of its own.
        client.enable_secret_extraction = true;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Arc::clone(&verifier))
            .with_cert_resolver(own);
        server.alpn_protocols = vec![alpn.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.enable_secret_extraction = true;
        Ok(TlsConfigs { client: Arc::new(client), server: Arc::new(server), verifier })
    }
}

/// The algorithms, AES-128 first: it takes ten rounds where AES-256 takes fourteen. A key protects the
/// bytes of one direction of one connection.
fn provider() -> CryptoProvider {
    let mut all = default_provider();
    all.cipher_suites.sort_by_key(|one| one.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    all
}

impl TlsConfigs {
    /// Checks a chain at the time when it was accepted, so that an expiry since then is no error.
    ///
    /// # Errors
    /// A certificate is revoked, or its authority is not accepted.
    pub fn check(&self, peer: &PeerChain) -> Result<(), Error> {
        let (first, rest) = peer.chain.split_first().ok_or(Error::NoCertificatesPresented)?;
        self.verifier.verify_client_cert(first, rest, peer.accepted).map(|_| ())
    }
}

/// An open connection with the certificates of its peer.
struct OpenConnection {
    socket: Weak<Socket>,
    member: String,
    peer: PeerChain,
}

struct IdentityState {
    configs: TlsConfigs,
    open: Vec<OpenConnection>,
}

/// This node's certificate, and the checks of peer certificates.
pub struct TlsIdentity {
    state: Mutex<IdentityState>,
    member_of: MemberOf,
    server_name_of: fn(&str) -> String,
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsIdentity")
    }
}

impl TlsIdentity {
    /// Creates an identity. `member_of` returns the member that a certificate names, and
    /// `server_name_of` the DNS name of a member.
    ///
    /// # Errors
    /// The material is unusable.
    pub fn new(
        material: &TlsMaterial,
        member_of: MemberOf,
        server_name_of: fn(&str) -> String,
    ) -> Result<Self, ConnectionError> {
        let configs = material.configs(ALPN).map_err(tls_error)?;
        let state = Mutex::new(IdentityState { configs, open: Vec::new() });
        Ok(Self { state, member_of, server_name_of })
    }

    /// Uses this material for new connections. Ends the open ones, in both directions, whose peers
    /// it does not accept, and returns their number.
    ///
    /// # Errors
    /// The material is unusable. The former one stays.
    pub fn replace(&self, material: &TlsMaterial) -> Result<usize, ConnectionError> {
        let configs = material.configs(ALPN).map_err(tls_error)?;
        let mut state = self.lock();
        let (left, ended) = std::mem::take(&mut state.open)
            .into_iter()
            .filter(|one| one.socket.strong_count() > 0)
            .partition::<Vec<_>, _>(|one| configs.check(&one.peer).is_ok());
        (state.configs, state.open) = (configs, left);
        for one in &ended {
            if let Some(socket) = one.socket.upgrade() {
                socket.cut(format!("the certificate of {} is no longer accepted", one.member));
            }
        }
        Ok(ended.len())
    }

    fn lock(&self) -> MutexGuard<'_, IdentityState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn configs(&self) -> TlsConfigs {
        self.lock().configs.clone()
    }

    /// Performs the handshake as the server. Returns the member that the certificate names.
    pub(super) fn accept(
        &self,
        socket: &Arc<Socket>,
    ) -> Result<(Connection, String), ConnectionError> {
        let configs = self.configs();
        let connection = ServerConnection::new(Arc::clone(&configs.server)).map_err(tls_error)?;
        self.finish(socket, connection.into(), &configs)
    }

    /// Performs the handshake as the client of the peer named `peer`.
    pub(super) fn connect(
        &self,
        socket: &Arc<Socket>,
        peer: &str,
    ) -> Result<(Connection, String), ConnectionError> {
        let configs = self.configs();
        let name = ServerName::try_from((self.server_name_of)(peer)).map_err(tls_error)?;
        let connection =
            ClientConnection::new(Arc::clone(&configs.client), name).map_err(tls_error)?;
        let (connection, found) = self.finish(socket, connection.into(), &configs)?;
        if found != peer {
            let text = format!("the certificate is of {found}, {peer} was called");
            return Err(ConnectionError::NotAdmitted(text));
        }
        Ok((connection, found))
    }

    fn finish(
        &self,
        socket: &Arc<Socket>,
        mut connection: Connection,
        used: &TlsConfigs,
    ) -> Result<(Connection, String), ConnectionError> {
        handshake(socket, &mut connection)?;
        if connection.alpn_protocol() != Some(ALPN) {
            return Err(ConnectionError::Tls("the peer does not speak the data path".into()));
        }
        let peer = PeerChain::new(connection.peer_certificates().unwrap_or_default());
        let certificate = peer.certificate().ok_or_else(|| tls_error("no certificate"))?;
        let member = (self.member_of)(certificate).map_err(ConnectionError::NotAdmitted)?;
        let mut state = self.lock();
        // The material may have been replaced during the handshake.
        if !Arc::ptr_eq(&state.configs.server, &used.server) {
            state.configs.check(&peer).map_err(tls_error)?;
        }
        state.open.retain(|one| one.socket.strong_count() > 0);
        let open = OpenConnection { socket: Arc::downgrade(socket), member: member.clone(), peer };
        state.open.push(open);
        Ok((connection, member))
    }
}

pub(super) fn tls_error(error: impl fmt::Display) -> ConnectionError {
    ConnectionError::Tls(error.to_string())
}

/// The length of the rest of a record, from its header.
pub(super) fn rest_of_record(header: [u8; RECORD_HEADER_BYTES]) -> usize {
    let [_, _, _, high, low] = header;
    u16::from_be_bytes([high, low]).into()
}

/// Performs the handshake, within the time of one frame. Reads one record at a time: what follows the
/// last one is not rustls's any more.
fn handshake(socket: &Socket, connection: &mut Connection) -> Result<(), ConnectionError> {
    let begin = Instant::now();
    let mut to_send = Vec::new();
    loop {
        while connection.wants_write() {
            connection.write_tls(&mut to_send)?;
        }
        socket.write_all(&to_send)?;
        to_send.clear();
        if !connection.is_handshaking() {
            return Ok(());
        }
        let mut header = [0; RECORD_HEADER_BYTES];
        read_exact(socket, &mut header, begin)?;
        let mut record = header.to_vec();
        record.resize(RECORD_HEADER_BYTES + rest_of_record(header), 0);
        read_exact(socket, record.get_mut(RECORD_HEADER_BYTES..).unwrap_or_default(), begin)?;
        let mut rest = record.as_slice();
        while !rest.is_empty() {
            connection.read_tls(&mut rest)?;
            if let Err(error) = connection.process_new_packets() {
                // Send the alert, with the reason for the peer.
                let _ = connection.write_tls(&mut to_send);
                let _ = socket.write_all(&to_send);
                return Err(tls_error(error));
            }
        }
    }
}

fn read_exact(socket: &Socket, mut into: &mut [u8], begin: Instant) -> Result<(), ConnectionError> {
    while !into.is_empty() {
        let count = socket.read(into, socket.stall())?;
        into = into.get_mut(count..).unwrap_or_default();
        socket.check_frame_time(begin, count as u64)?;
    }
    Ok(())
}
