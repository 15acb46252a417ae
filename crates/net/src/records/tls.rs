//! TLS 1.3 by rustls, with certificates on both sides.

use std::io::{BufRead, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farrow_memory::{FileMap, Span};
use rustls::Connection;

use super::identity::{TlsIdentity, tls_error};
use super::{FrameBody, RecordReceiver, RecordSender, RecordStream};
use crate::error::ConnectionError;
use crate::socket::Socket;

/// Bytes encrypted, or received for decryption, in one step: four records, so that the output of
/// one step is still in a CPU cache for the next.
const STEP_BYTES: usize = 64 << 10;

/// Performs the handshake as the server.
pub(super) fn accept(
    identity: &TlsIdentity,
    socket: &Arc<Socket>,
) -> Result<RecordStream, ConnectionError> {
    let (connection, member) = identity.accept(socket)?;
    Ok(stream(socket, connection, member))
}

/// Performs the handshake as the client of the peer named `peer`.
pub(super) fn connect(
    identity: &TlsIdentity,
    socket: &Arc<Socket>,
    peer: &str,
) -> Result<RecordStream, ConnectionError> {
    let (connection, member) = identity.connect(socket, peer)?;
    Ok(stream(socket, connection, member))
}

fn stream(socket: &Arc<Socket>, mut connection: Connection, member: String) -> RecordStream {
    // The buffer must hold a whole step.
    connection.set_buffer_limit(None);
    let connection = Arc::new(Mutex::new(connection));
    let reader = TlsReader {
        socket: Arc::clone(socket),
        connection: Arc::clone(&connection),
        received: vec![0; STEP_BYTES],
        unread: 0..0,
    };
    let writer = TlsWriter { socket: Arc::clone(socket), connection, to_send: Vec::new() };
    RecordStream::new(socket, Box::new(reader), Box::new(writer), false, Some(member))
}

fn lock(connection: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
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
            connection.process_new_packets().map_err(tls_error)?;
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
