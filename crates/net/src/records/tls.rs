//! TLS 1.3 by rustls, with certificates on both sides.

use std::fmt;
use std::io::{BufRead, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farrow_memory::{FileMap, Span};
use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};

use super::{FrameBody, RecordReceiver, RecordSender, RecordStream};
use crate::error::ConnectionError;
use crate::socket::Socket;

/// Protocol name that both sides require, so that control and data connections cannot be confused.
const ALPN: &[u8] = b"farrow-data/1";

/// Bytes encrypted, or received for decryption, in one step: four records, so that the output of
/// one step is still in a CPU cache for the next.
const STEP_BYTES: usize = 64 << 10;

/// Reads the one member that a certificate names.
pub type MemberOf = fn(&CertificateDer<'_>) -> Result<String, String>;

/// This node's certificate, and the checks of peer certificates.
pub struct TlsIdentity {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    member_of: MemberOf,
    server_name_of: fn(&str) -> String,
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsIdentity")
    }
}

impl TlsIdentity {
    /// Creates an identity from the cluster's root certificates, this node's certificate chain and
    /// its key. `member_of` returns the member that a certificate names, and `server_name_of` the
    /// DNS name of a member. Session resumption is disabled, so each connection checks
    /// certificates.
    ///
    /// # Errors
    /// The roots, chain or key are unusable.
    pub fn new(
        roots: RootCertStore,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        member_of: MemberOf,
        server_name_of: fn(&str) -> String,
    ) -> Result<Self, ConnectionError> {
        let (roots, provider) = (Arc::new(roots), Arc::new(default_provider()));
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(tls)?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(tls)?;
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = Resumption::disabled();
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(tls)?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(tls)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(tls)?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self { client: Arc::new(client), server: Arc::new(server), member_of, server_name_of })
    }

    pub(super) fn accept(&self, socket: &Arc<Socket>) -> Result<RecordStream, ConnectionError> {
        let connection = ServerConnection::new(Arc::clone(&self.server)).map_err(tls)?;
        self.finish(socket, connection.into())
    }

    pub(super) fn connect(
        &self,
        socket: &Arc<Socket>,
        peer: &str,
    ) -> Result<RecordStream, ConnectionError> {
        let name = ServerName::try_from((self.server_name_of)(peer)).map_err(tls)?;
        let connection = ClientConnection::new(Arc::clone(&self.client), name).map_err(tls)?;
        let wire = self.finish(socket, connection.into())?;
        match &wire.certificate {
            Some(found) if found == peer => Ok(wire),
            found => Err(ConnectionError::NotAdmitted(format!(
                "the certificate is of {}, {peer} was called",
                found.as_deref().unwrap_or("no member")
            ))),
        }
    }

    fn finish(
        &self,
        socket: &Arc<Socket>,
        mut connection: Connection,
    ) -> Result<RecordStream, ConnectionError> {
        // The buffer must hold a whole step.
        connection.set_buffer_limit(None);
        handshake(socket, &mut connection)?;
        if connection.alpn_protocol() != Some(ALPN) {
            return Err(ConnectionError::Tls("the peer does not speak the data path".into()));
        }
        let certificate = connection.peer_certificates().and_then(<[_]>::first);
        let certificate = certificate.ok_or_else(|| tls("no certificate"))?;
        let member = (self.member_of)(certificate).map_err(ConnectionError::NotAdmitted)?;
        let connection = Arc::new(Mutex::new(connection));
        let reader = TlsReader {
            socket: Arc::clone(socket),
            connection: Arc::clone(&connection),
            received: vec![0; STEP_BYTES],
            unread: 0..0,
        };
        let writer = TlsWriter { socket: Arc::clone(socket), connection, to_send: Vec::new() };
        Ok(RecordStream::new(socket, Box::new(reader), Box::new(writer), false, Some(member)))
    }
}

fn tls(error: impl fmt::Display) -> ConnectionError {
    ConnectionError::Tls(error.to_string())
}

fn lock(connection: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Performs the handshake, within the time of one frame.
fn handshake(socket: &Socket, connection: &mut Connection) -> Result<(), ConnectionError> {
    let begin = Instant::now();
    let mut received = [0; 4096];
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
        let count = socket.read(&mut received, socket.stall())?;
        let mut rest = received.get(..count).unwrap_or_default();
        while !rest.is_empty() {
            connection.read_tls(&mut rest)?;
            if let Err(error) = connection.process_new_packets() {
                // Send the alert, which tells the peer the reason.
                let _ = connection.write_tls(&mut to_send);
                let _ = socket.write_all(&to_send);
                return Err(tls(error));
            }
        }
        socket.check_frame_time(begin, count as u64)?;
    }
}

struct TlsReader {
    socket: Arc<Socket>,
    connection: Arc<Mutex<Connection>>,
    received: Vec<u8>,
    /// Part of `received` that is not yet decrypted.
    unread: std::ops::Range<usize>,
}

impl TlsReader {
    /// Passes decrypted bytes to `take`, which returns the number of bytes consumed.
    fn read_with(
        &mut self,
        patience: Duration,
        take: &mut dyn FnMut(&[u8]) -> Result<usize, ConnectionError>,
    ) -> Result<usize, ConnectionError> {
        loop {
            {
                let mut connection = lock(&self.connection);
                let mut reader = connection.reader();
                match reader.fill_buf() {
                    Ok([]) => return Err(ConnectionError::Closed),
                    Ok(bytes) => {
                        let count = take(bytes)?;
                        reader.consume(count);
                        return Ok(count);
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if self.unread.is_empty() {
                let count = self.socket.read(&mut self.received, patience)?;
                self.unread = 0..count;
            }
            let mut rest = self.received.get(self.unread.clone()).unwrap_or_default();
            let mut connection = lock(&self.connection);
            let taken = connection.read_tls(&mut rest)?;
            self.unread.start += taken;
            connection.process_new_packets().map_err(tls)?;
        }
    }
}

impl RecordReceiver for TlsReader {
    fn read(&mut self, into: &mut [u8], patience: Duration) -> Result<usize, ConnectionError> {
        self.read_with(patience, &mut |mut bytes| Ok(bytes.read(into)?))
    }

    fn read_into(&mut self, map: &FileMap, span: Span) -> Result<usize, ConnectionError> {
        let patience = self.socket.stall();
        self.read_with(patience, &mut |bytes| {
            let bytes = bytes.get(..span.length.as_usize().min(bytes.len())).unwrap_or_default();
            map.write(span.offset, bytes)?;
            Ok(bytes.len())
        })
    }
}

struct TlsWriter {
    socket: Arc<Socket>,
    connection: Arc<Mutex<Connection>>,
    to_send: Vec<u8>,
}

impl RecordSender for TlsWriter {
    fn write(&mut self, head: &[u8], body: FrameBody<'_>) -> Result<(), ConnectionError> {
        let body = body.as_slice()?;
        // A small frame is one record and one packet.
        let (first, rest) = body.split_at(body.len().min(STEP_BYTES));
        self.send(head, first)?;
        rest.chunks(STEP_BYTES).try_for_each(|step| self.send(&[], step))
    }
}

impl TlsWriter {
    fn send(&mut self, head: &[u8], body: &[u8]) -> Result<(), ConnectionError> {
        self.to_send.clear();
        {
            // The lock is not held during the write to the socket: it would block the reader, and
            // two peers in this state would deadlock.
            let mut connection = lock(&self.connection);
            connection.writer().write_all(head)?;
            connection.writer().write_all(body)?;
            while connection.wants_write() {
                connection.write_tls(&mut self.to_send)?;
            }
        }
        self.socket.write_all(&self.to_send)
    }
}
