//! TLS 1.3, with certificates on both sides: rustls performs the handshake and protects each record.
//!
//! After the handshake each direction has the keys of rustls and a buffer of its own. So a record is
//! decrypted where it was received, and its bytes are copied once, to their destination. Two threads
//! of one connection share no lock.
//!
//! Keys are never updated. A connection ends when its keys have protected as many records as their
//! algorithm allows (2^24 with AES-GCM, up to 256 GiB); a new connection has new ones.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::{FileMap, Span};
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks,
    OutboundPlainMessage,
};
use rustls::{
    AlertDescription, Connection, ConnectionTrafficSecrets, ContentType, ProtocolVersion,
    SupportedCipherSuite,
};

use super::identity::{RECORD_HEADER_BYTES, TlsIdentity, rest_of_record, tls_error};
use super::{FrameBody, RecordReceiver, RecordSender, RecordStream};
use crate::error::ConnectionError;
use crate::socket::Socket;

/// Plain bytes of a full record (RFC 8446, section 5.1).
const FRAGMENT_BYTES: usize = 1 << 14;

/// Limit of the rest of a protected record (RFC 8446, section 5.2).
const PROTECTED_BYTES_MAX: usize = FRAGMENT_BYTES + 256;

/// Bytes received at once: eight records, so that their plain bytes are in a CPU cache for the copy.
/// A whole record always fits.
const RECEIVED_BYTES: usize = 128 << 10;

/// Records sent by one call: those of four are still in a CPU cache.
const RECORDS_PER_CALL: usize = 4;

/// Records without a byte that may follow each other. A peer has no reason to send any.
const EMPTY_RECORDS_MAX: u32 = 32;

/// Performs the handshake as the server.
pub(super) fn accept(
    identity: &TlsIdentity,
    socket: &Arc<Socket>,
) -> Result<RecordStream, ConnectionError> {
    let (connection, member) = identity.accept(socket)?;
    stream(socket, connection, member)
}

/// Performs the handshake as the client of the peer named `peer`.
pub(super) fn connect(
    identity: &TlsIdentity,
    socket: &Arc<Socket>,
    peer: &str,
) -> Result<RecordStream, ConnectionError> {
    let (connection, member) = identity.connect(socket, peer)?;
    stream(socket, connection, member)
}

/// Splits a connection. The handshake has read no byte behind its own records.
fn stream(
    socket: &Arc<Socket>,
    connection: Connection,
    member: String,
) -> Result<RecordStream, ConnectionError> {
    let Some(SupportedCipherSuite::Tls13(suite)) = connection.negotiated_cipher_suite() else {
        return Err(tls_error("the connection is not TLS 1.3"));
    };
    let secrets = connection.dangerous_extract_secrets().map_err(tls_error)?;
    let ((sent, sending), (received, receiving)) = (secrets.tx, secrets.rx);
    let ((key, iv), (peer_key, peer_iv)) = (key_of(sending)?, key_of(receiving)?);
    let reader = TlsReader {
        socket: Arc::clone(socket),
        decrypter: suite.aead_alg.decrypter(peer_key, peer_iv),
        sequence: received,
        buffer: vec![0; RECEIVED_BYTES],
        protected: 0..0,
        plain: 0..0,
    };
    let writer = TlsWriter {
        socket: Arc::clone(socket),
        encrypter: suite.aead_alg.encrypter(key, iv),
        sequence: sent,
        sequence_max: suite.common.confidentiality_limit,
    };
    Ok(RecordStream::new(socket, Box::new(reader), Box::new(writer), false, Some(member)))
}

fn key_of(secrets: ConnectionTrafficSecrets) -> Result<(AeadKey, Iv), ConnectionError> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => Ok((key, iv)),
        _ => Err(tls_error("the connection has an unknown algorithm")),
    }
}

struct TlsReader {
    socket: Arc<Socket>,
    decrypter: Box<dyn MessageDecrypter>,
    /// Number of the next record.
    sequence: u64,
    buffer: Vec<u8>,
    /// Part of the buffer that is not yet decrypted.
    protected: Range<usize>,
    /// Decrypted part that is not yet read. It is in front of the protected one.
    plain: Range<usize>,
}

impl TlsReader {
    /// Plain bytes, at least one. The caller says by [`TlsReader::read`] how many it has read.
    fn fill(&mut self, patience: Duration) -> Result<&[u8], ConnectionError> {
        let mut empty = 0;
        while self.plain.is_empty() {
            let record = self.receive_record(patience)?;
            self.plain = self.decrypt(record)?;
            empty += 1;
            if empty > EMPTY_RECORDS_MAX {
                return Err(tls_error(format!("{empty} records without a byte")));
            }
        }
        Ok(self.buffer.get(self.plain.clone()).unwrap_or_default())
    }

    /// Receives until a whole record is in the buffer. Returns where its rest is. The first byte must
    /// arrive within `patience`, all of it within the time of a frame.
    fn receive_record(&mut self, patience: Duration) -> Result<Range<usize>, ConnectionError> {
        let mut begin = None;
        loop {
            let received = self.buffer.get(self.protected.clone()).unwrap_or_default();
            if let Some((header, rest)) = received.split_first_chunk() {
                let length = rest_of_record(*header);
                let kind = ContentType::from(header[0]);
                if kind != ContentType::ApplicationData || length > PROTECTED_BYTES_MAX {
                    return Err(tls_error(format!("a record of {length} B and type {kind:?}")));
                }
                if rest.len() >= length {
                    let start = self.protected.start + RECORD_HEADER_BYTES;
                    self.protected.start = start + length;
                    return Ok(start..start + length);
                }
            }
            let patience = match received.len() {
                0 => patience,
                count => {
                    let begin = *begin.get_or_insert_with(Instant::now);
                    self.socket.check_frame_time(begin, count as u64)?;
                    self.socket.stall()
                }
            };
            // The begin of a record moves to the front, where the record has room.
            self.buffer.copy_within(self.protected.clone(), 0);
            self.protected = 0..self.protected.len();
            let free = self.buffer.get_mut(self.protected.end..).unwrap_or_default();
            self.protected.end += self.socket.read(free, patience)?;
        }
    }

    /// Decrypts a record in place. Returns where its plain bytes are.
    fn decrypt(&mut self, record: Range<usize>) -> Result<Range<usize>, ConnectionError> {
        let start = record.start;
        let bytes = self.buffer.get_mut(record).unwrap_or_default();
        let (kind, version) = (ContentType::ApplicationData, ProtocolVersion::TLSv1_2);
        let message = InboundOpaqueMessage::new(kind, version, bytes);
        let message = self.decrypter.decrypt(message, self.sequence).map_err(tls_error)?;
        self.sequence =
            self.sequence.checked_add(1).ok_or_else(|| tls_error("too many records"))?;
        match (message.typ, message.payload) {
            // The plain bytes are at the front of the record.
            (ContentType::ApplicationData, plain) => Ok(start..start + plain.len()),
            (ContentType::Alert, [_, description]) => match AlertDescription::from(*description) {
                AlertDescription::CloseNotify => Err(ConnectionError::Closed),
                alert => Err(tls_error(rustls::Error::AlertReceived(alert))),
            },
            (kind, bytes) => {
                let length = bytes.len();
                Err(tls_error(format!("a message of {length} B and type {kind:?}")))
            }
        }
    }
}

impl RecordReceiver for TlsReader {
    fn read(&mut self, into: &mut [u8], patience: Duration) -> Result<usize, ConnectionError> {
        let plain = self.fill(patience)?;
        let count = plain.len().min(into.len());
        if let (Some(into), Some(plain)) = (into.get_mut(..count), plain.get(..count)) {
            into.copy_from_slice(plain);
        }
        self.plain.start += count;
        Ok(count)
    }

    fn read_into(&mut self, map: &FileMap, span: Span) -> Result<usize, ConnectionError> {
        let plain = self.fill(self.socket.stall())?;
        let plain = plain.get(..span.length.as_usize()).unwrap_or(plain);
        map.write(span.offset, plain)?;
        let count = plain.len();
        self.plain.start += count;
        Ok(count)
    }
}

struct TlsWriter {
    socket: Arc<Socket>,
    encrypter: Box<dyn MessageEncrypter>,
    /// Number of the next record.
    sequence: u64,
    sequence_max: u64,
}

impl RecordSender for TlsWriter {
    fn write(&mut self, head: &[u8], body: FrameBody<'_>) -> Result<(), ConnectionError> {
        let body = body.load()?;
        let parts = [head, &*body];
        let mut rest = OutboundChunks::new(&parts);
        let records = rest.len().div_ceil(FRAGMENT_BYTES) as u64;
        if self.sequence.saturating_add(records) > self.sequence_max {
            let (sent, max) = (self.sequence, self.sequence_max);
            let text = format!("its keys have protected {sent} records of at most {max}");
            return Err(ConnectionError::Tls(text));
        }
        while !rest.is_empty() {
            let mut to_send: Vec<Vec<u8>> = Vec::with_capacity(RECORDS_PER_CALL);
            while to_send.len() < RECORDS_PER_CALL && !rest.is_empty() {
                let (payload, later) = rest.split_at(FRAGMENT_BYTES);
                to_send.push(self.encrypt(payload)?);
                rest = later;
            }
            body.check()?;
            // A small frame is one record and one packet.
            let mut slices: Vec<IoSlice<'_>> =
                to_send.iter().map(|one| IoSlice::new(one)).collect();
            self.socket.write_all_of(&mut slices)?;
        }
        Ok(())
    }
}

impl TlsWriter {
    /// A protected record of these bytes, with its header.
    fn encrypt(&mut self, payload: OutboundChunks<'_>) -> Result<Vec<u8>, ConnectionError> {
        let (typ, version) = (ContentType::ApplicationData, ProtocolVersion::TLSv1_2);
        let message = OutboundPlainMessage { typ, version, payload };
        let record = self.encrypter.encrypt(message, self.sequence).map_err(tls_error)?;
        self.sequence += 1;
        Ok(record.encode())
    }
}
