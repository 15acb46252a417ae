//! Identity of nodes: both sides present a certificate of one authority, which names the node.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use farrow_net::records::{PeerChain, TlsConfigs};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, Error};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use webpki::EndEntityCert;

use super::address::PeerAddress;
use super::credentials::{CurrentConfigs, NodeCredentials};
use super::error::{PeerError, StartError};
use super::failures::cause_of;
use super::options::PeersOptions;
use super::wire::{LingeringWire, Wire};
use crate::certs::NodeName;

/// HTTP/2 (RFC 9113, 3.2). Both sides require it.
pub(super) const ALPN: &[u8] = b"h2";

/// The TLS configuration of both sides, as the files of this node have it.
#[derive(Clone)]
pub(super) struct Tls {
    current: watch::Receiver<CurrentConfigs>,
    accepted: Arc<watch::Sender<Accepted>>,
}

/// For each peer, the number of the certificate of this node that it has accepted last.
type Accepted = BTreeMap<NodeName, u64>;

/// The certificate of this node in the handshake of a connection.
#[derive(Clone)]
pub(super) struct OwnCertificate {
    number: u64,
    current: watch::Receiver<CurrentConfigs>,
    accepted: Arc<watch::Sender<Accepted>>,
}

impl fmt::Debug for OwnCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnCertificate").field("number", &self.number).finish_non_exhaustive()
    }
}

impl OwnCertificate {
    /// Whether this node has another certificate by now.
    pub(super) fn is_outdated(&self) -> bool {
        self.current.borrow().number != self.number
    }

    /// Notes that a peer has accepted it.
    pub(super) fn note_accepted(&self, peer: &NodeName) {
        self.accepted.send_modify(|all| {
            let last = all.entry(peer.clone()).or_default();
            *last = (*last).max(self.number);
        });
    }

    /// Returns when a peer has accepted a later certificate of this node.
    async fn replaced(&self, peer: &NodeName) {
        let mut accepted = self.accepted.subscribe();
        let is_later = |all: &Accepted| all.get(peer).is_some_and(|last| *last > self.number);
        if accepted.wait_for(is_later).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

/// A connection after its handshake.
pub(super) struct Secured {
    pub(super) wire: Box<dyn Wire>,
    /// The name in the peer's certificate.
    pub(super) name: Option<NodeName>,
    /// `None`: plain text.
    pub(super) standing: Option<Standing>,
}

impl Secured {
    pub(super) fn plain(stream: TcpStream) -> Self {
        Self { wire: Box::new(stream), name: None, standing: None }
    }
}

/// The certificates of a peer, which later files of this node may no longer accept.
pub(super) struct Standing {
    peer: PeerChain,
    own: OwnCertificate,
}

impl Standing {
    /// Returns when the peer is no longer accepted, with the reason.
    async fn lost(&mut self) -> Error {
        loop {
            if self.own.current.changed().await.is_err() {
                // The transport ends, and its connections with it.
                std::future::pending::<()>().await;
            }
            if let Err(error) = self.own.current.borrow_and_update().configs.check(&self.peer) {
                return error;
            }
        }
    }
}

impl Standing {
    pub(super) fn own(&self) -> OwnCertificate {
        self.own.clone()
    }
}

/// Why a peer is not let in.
pub(super) struct RefusedPeer {
    pub(super) error: io::Error,
    /// Its connection, if the handshake failed: the peer is to receive the alert, which says why.
    pub(super) wire: Option<LingeringWire>,
}

impl From<io::Error> for RefusedPeer {
    fn from(error: io::Error) -> Self {
        Self { error, wire: None }
    }
}

/// Returns when the peer of a connection has accepted a later certificate of this node. In plain text
/// it never does.
pub(super) async fn replaced(own: Option<(OwnCertificate, NodeName)>) {
    match own {
        Some((own, peer)) => own.replaced(&peer).await,
        None => std::future::pending().await,
    }
}

/// Returns when the peer of a connection is no longer accepted, with the reason. In plain text it
/// never does.
pub(super) async fn lost(standing: Option<Standing>) -> String {
    match standing {
        Some(mut standing) => cause_of(&standing.lost().await),
        None => std::future::pending().await,
    }
}

/// Chooses TLS, or plain text if it is allowed and stays on this machine.
pub(super) fn choose(options: &PeersOptions) -> Result<Option<NodeCredentials>, StartError> {
    match (&options.tls, options.is_plaintext_allowed) {
        (Some(_), true) => Err(StartError::Both),
        (Some(files), false) => NodeCredentials::load(files, &options.name).map(Some),
        (None, false) => Err(StartError::NoCertificates),
        (None, true) if options.listen.ip().is_loopback() => Ok(None),
        (None, true) => Err(StartError::PlaintextOffLoopback { address: options.listen }),
    }
}

impl Tls {
    pub(super) fn new(credentials: &NodeCredentials) -> Self {
        Self { current: credentials.control(), accepted: Arc::default() }
    }

    /// Returns when the files have changed; `false` if they are not looked at any more.
    pub(super) async fn changed(&mut self) -> bool {
        self.current.changed().await.is_ok()
    }

    /// The present configurations, and this node's certificate in them, which shows later ones.
    fn configs(&self) -> (TlsConfigs, OwnCertificate) {
        let mut current = self.current.clone();
        let CurrentConfigs { configs, number } = current.borrow_and_update().clone();
        (configs, OwnCertificate { number, current, accepted: Arc::clone(&self.accepted) })
    }

    /// Admits a node with a certificate of the authority.
    pub(super) async fn accept(&self, stream: TcpStream) -> Result<Secured, RefusedPeer> {
        let (configs, own) = self.configs();
        let shaken = TlsAcceptor::from(configs.server).accept(stream).into_fallible().await;
        let stream = shaken.map_err(|(error, stream)| RefusedPeer {
            error,
            wire: Some(LingeringWire::new(Box::new(stream))),
        })?;
        let (_, session) = stream.get_ref();
        let peer = PeerChain::new(session.peer_certificates().unwrap_or_default());
        let name = peer_name(&peer).map_err(io::Error::other)?;
        is_http2(session.alpn_protocol())?;
        let standing = Some(Standing { peer, own });
        Ok(Secured { wire: Box::new(stream), name: Some(name), standing })
    }

    /// Checks that the expected node answers: by its name, else by the host that was called.
    pub(super) async fn connect(
        &self,
        stream: TcpStream,
        address: &PeerAddress,
    ) -> Result<Secured, PeerError> {
        let wrong = |reason: String| PeerError::WrongNode { address: address.to_string(), reason };
        let name = address.name.as_ref().map(NodeName::certificate_name);
        let server = ServerName::try_from(name.unwrap_or_else(|| address.host.clone()))
            .map_err(|error| wrong(error.to_string()))?;
        let (configs, own) = self.configs();
        let connector = TlsConnector::from(configs.client);
        let stream =
            connector.connect(server, stream).await.map_err(|error| {
                match is_other_node(&error) {
                    true => wrong(cause_of(&error)),
                    false => PeerError::Unreachable {
                        address: address.to_string(),
                        reason: cause_of(&error),
                    },
                }
            })?;
        let (_, session) = stream.get_ref();
        let peer = PeerChain::new(session.peer_certificates().unwrap_or_default());
        let name = peer_name(&peer).map_err(wrong)?;
        is_http2(session.alpn_protocol()).map_err(|error| wrong(error.to_string()))?;
        if address.name.as_ref().is_some_and(|expected| *expected != name) {
            return Err(wrong(format!("the certificate is of node {name}")));
        }
        let standing = Some(Standing { peer, own });
        Ok(Secured { wire: Box::new(stream), name: Some(name), standing })
    }
}

pub(super) fn unusable(path: &Path, reason: impl fmt::Display) -> StartError {
    StartError::File { path: path.to_owned(), reason: reason.to_string() }
}

pub(super) fn check_key_is_private(key: &Path) -> Result<(), StartError> {
    let mode = std::fs::metadata(key).map_err(|error| unusable(key, error))?.mode();
    match mode & 0o007 {
        0 => Ok(()),
        _ => Err(unusable(key, format_args!("mode {:o}: all users can use the key", mode & 0o777))),
    }
}

/// The single node that a certificate names.
pub(crate) fn name_of(certificate: &CertificateDer<'_>) -> Result<NodeName, String> {
    let certificate = EndEntityCert::try_from(certificate).map_err(|error| error.to_string())?;
    let mut names = certificate.valid_dns_names().filter_map(NodeName::from_certificate_name);
    match (names.next(), names.next()) {
        (Some(name), None) => Ok(name),
        (None, _) => Err("the certificate names no node".to_owned()),
        (Some(a), Some(b)) => Err(format!("the certificate names the nodes {a} and {b}")),
    }
}

fn peer_name(peer: &PeerChain) -> Result<NodeName, String> {
    name_of(peer.certificate().ok_or("no certificate")?)
}

fn is_http2(protocol: Option<&[u8]>) -> io::Result<()> {
    match protocol {
        Some(ALPN) => Ok(()),
        _ => Err(io::Error::other("the peer does not speak HTTP/2")),
    }
}

/// Whether a certificate is valid, but names another node.
fn is_other_node(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    matches!(
        inner,
        Some(Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        ))
    )
}
