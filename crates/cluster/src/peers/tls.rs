//! Identity of nodes: both sides present a certificate of one authority, which names the node.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use farrow_net::records::{Credentials, TlsIdentity};
use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use webpki::EndEntityCert;

use super::address::PeerAddress;
use super::error::{PeerError, StartError};
use super::failures::cause_of;
use super::options::{PeerTls, PeersOptions};
use crate::certs::NodeName;

/// HTTP/2 (RFC 9113, 3.2). Both sides require it.
pub(super) const ALPN: &[u8] = b"h2";

/// The credentials of this node on data connections, the same as on all others.
pub(crate) fn data_credentials(files: Option<&PeerTls>) -> Result<Credentials, String> {
    let Some(files) = files else { return Ok(Credentials::Plain) };
    let (roots, chain, key) = read(files).map_err(|error| error.to_string())?;
    let member_of =
        |certificate: &CertificateDer<'_>| name_of(certificate).map(|name| name.to_string());
    let server_name_of = |member: &str| match member.parse::<NodeName>() {
        Ok(name) => name.certificate_name(),
        Err(_) => member.to_owned(),
    };
    let identity = TlsIdentity::new(roots, chain, key, member_of, server_name_of);
    Ok(Credentials::Tls(Arc::new(identity.map_err(|error| error.to_string())?)))
}

/// The usable content of the files.
type OwnIdentity = (RootCertStore, Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn read(PeerTls { ca, certificate, key }: &PeerTls) -> Result<OwnIdentity, StartError> {
    let chain: Vec<_> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(certificate, error))?;
    check_key_is_private(key)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, error))?;
    let mut roots = RootCertStore::empty();
    CertificateDer::from_pem_file(ca)
        .map_err(|error| unusable(ca, error))
        .and_then(|root| roots.add(root).map_err(|error| unusable(ca, error)))?;
    Ok((roots, chain, key))
}

/// A connection with or without TLS.
pub(super) trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// The TLS configuration of both sides.
#[derive(Clone)]
pub(super) struct Tls {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

/// Chooses TLS, or plain text if it is allowed and stays on this machine.
pub(super) fn choose(options: &PeersOptions) -> Result<Option<Tls>, StartError> {
    match (&options.tls, options.is_plaintext_allowed) {
        (Some(_), true) => Err(StartError::Both),
        (Some(files), false) => Tls::load(files, &options.name).map(Some),
        (None, false) => Err(StartError::NoCertificates),
        (None, true) if options.listen.ip().is_loopback() => Ok(None),
        (None, true) => Err(StartError::PlaintextOffLoopback { address: options.listen }),
    }
}

impl Tls {
    fn load(files: &PeerTls, own: &NodeName) -> Result<Self, StartError> {
        let certificate = &files.certificate;
        let (roots, chain, key) = read(files)?;
        let first = chain.first().ok_or_else(|| unusable(certificate, "no certificate"))?;
        let found = name_of(first).map_err(|reason| unusable(certificate, reason))?;
        if found != *own {
            let path = certificate.clone();
            return Err(StartError::NotOwn { path, own: own.clone(), found });
        }
        let (client, server) = configs(Arc::new(roots), chain, key)
            .map_err(|error| StartError::Tls(error.to_string()))?;
        let (acceptor, connector) = (Arc::new(server).into(), Arc::new(client).into());
        Ok(Self { acceptor, connector })
    }

    /// Admits a node with a certificate of the authority.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
    ) -> Result<(Box<dyn Wire>, NodeName), io::Error> {
        let stream = self.acceptor.accept(stream).await?;
        let (_, session) = stream.get_ref();
        let name = peer_name(session.peer_certificates()).map_err(io::Error::other)?;
        is_http2(session.alpn_protocol())?;
        Ok((Box::new(stream), name))
    }

    /// Checks that the expected node answers: by its name, else by the host that was called.
    pub(super) async fn connect(
        &self,
        stream: TcpStream,
        address: &PeerAddress,
    ) -> Result<(Box<dyn Wire>, NodeName), PeerError> {
        let wrong = |reason: String| PeerError::WrongNode { address: address.to_string(), reason };
        let name = address.name.as_ref().map(NodeName::certificate_name);
        let server = ServerName::try_from(name.unwrap_or_else(|| address.host.clone()))
            .map_err(|error| wrong(error.to_string()))?;
        let stream = self.connector.connect(server, stream).await.map_err(|error| {
            match is_other_node(&error) {
                true => wrong(cause_of(&error)),
                false => PeerError::Unreachable {
                    address: address.to_string(),
                    reason: cause_of(&error),
                },
            }
        })?;
        let (_, session) = stream.get_ref();
        let name = peer_name(session.peer_certificates()).map_err(wrong)?;
        is_http2(session.alpn_protocol()).map_err(|error| wrong(error.to_string()))?;
        if address.name.as_ref().is_some_and(|expected| *expected != name) {
            return Err(wrong(format!("the certificate is of node {name}")));
        }
        Ok((Box::new(stream), name))
    }
}

/// Sessions are not resumed: each connection presents its certificates again, so an expired one
/// opens no more connections.
fn configs(
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<(ClientConfig, ServerConfig), Box<dyn std::error::Error>> {
    let provider = Arc::new(default_provider());
    let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(Arc::clone(&roots))
        .with_client_auth_cert(chain.clone(), key.clone_key())?;
    client.alpn_protocols = vec![ALPN.to_vec()];
    client.resumption = Resumption::disabled();
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build()?;
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    server.alpn_protocols = vec![ALPN.to_vec()];
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    Ok((client, server))
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

fn peer_name(certificates: Option<&[CertificateDer<'_>]>) -> Result<NodeName, String> {
    let first = certificates.and_then(<[_]>::first).ok_or("no certificate")?;
    name_of(first)
}

fn is_http2(protocol: Option<&[u8]>) -> io::Result<()> {
    match protocol {
        Some(ALPN) => Ok(()),
        _ => Err(io::Error::other("the peer does not speak HTTP/2")),
    }
}

/// Whether a certificate is valid, but names another node.
fn is_other_node(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(
        inner,
        Some(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        ))
    )
}
