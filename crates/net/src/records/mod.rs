//! The layer between frames and a socket, with a trait for each direction.
//!
//! A connection is split into a reader and a writer, so that two threads can use it. The plain
//! layer moves bytes between socket and map without a copy in this process, and its frames have
//! checksums. With TLS, the tag of each record protects its bytes, so frames have no checksums.

mod identity;
mod plain;
mod tls;

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::{FileBytes, FileMap, Length, Offset, Span};

use crate::error::{ConnectionError, FrameError};
use crate::frame::{FrameHeader, HEADER_BYTES};
use crate::socket::Socket;
pub use identity::{MemberOf, PeerChain, TlsConfigs, TlsIdentity, TlsMaterial};

/// The identity of this node, and the identity that it requires of a peer.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// No encryption: within one machine, or if the user allows it. Only tickets identify the peer.
    Plain,
    /// TLS 1.3 with certificates on both sides.
    Tls(Arc<TlsIdentity>),
}

impl Credentials {
    /// `"net"` or `"net+TLS"`.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Plain => "net",
            Self::Tls(_) => "net+TLS",
        }
    }
}

/// The body of a frame to send.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FrameBody<'a> {
    Bytes(&'a [u8]),
    /// Sealed bytes of a map.
    Map(&'a FileMap, Span),
}

/// The bytes of a body. Those of a map are checked after their use, and before it leaves the process.
enum BodyBytes<'a> {
    Bytes(&'a [u8]),
    Map(FileBytes<'a>),
}

impl<'a> FrameBody<'a> {
    fn load(self) -> Result<BodyBytes<'a>, ConnectionError> {
        match self {
            Self::Bytes(bytes) => Ok(BodyBytes::Bytes(bytes)),
            Self::Map(map, span) => Ok(BodyBytes::Map(map.read(span)?)),
        }
    }
}

impl BodyBytes<'_> {
    /// Fails if zeros were loaded in place of a page that the file has lost.
    fn check(&self) -> Result<(), ConnectionError> {
        match self {
            Self::Bytes(_) => Ok(()),
            Self::Map(bytes) => Ok(bytes.check()?),
        }
    }
}

impl Deref for BodyBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Map(bytes) => bytes,
        }
    }
}

/// The receiving half of a record layer.
pub(crate) trait RecordReceiver: Send {
    /// Reads at least one byte, within `patience`.
    fn read(&mut self, into: &mut [u8], patience: Duration) -> Result<usize, ConnectionError>;

    /// Reads at least one byte of a span into a file.
    fn read_into(&mut self, map: &FileMap, span: Span) -> Result<usize, ConnectionError>;
}

/// The sending half of a record layer.
pub(crate) trait RecordSender: Send {
    /// Writes all of a header and a body.
    fn write(&mut self, head: &[u8], body: FrameBody<'_>) -> Result<(), ConnectionError>;
}

/// Reads frames from a record layer.
pub(crate) struct FrameReader {
    records: Box<dyn RecordReceiver>,
    socket: Arc<Socket>,
    is_checked: bool,
    last: [u8; HEADER_BYTES],
}

/// Writes frames to a record layer.
pub(crate) struct FrameWriter {
    records: Box<dyn RecordSender>,
    is_checked: bool,
}

/// A connection that is ready for frames, and the member that the peer's certificate names, if any.
pub(crate) struct RecordStream {
    pub(crate) reader: FrameReader,
    pub(crate) writer: FrameWriter,
    pub(crate) certificate: Option<String>,
}

impl RecordStream {
    /// Performs the handshake as the server.
    pub(crate) fn accept(
        socket: &Arc<Socket>,
        credentials: &Credentials,
    ) -> Result<Self, ConnectionError> {
        match credentials {
            Credentials::Plain => Ok(Self::plain(socket)),
            Credentials::Tls(identity) => tls::accept(identity, socket),
        }
    }

    /// Performs the handshake as the client of the peer named `peer`.
    pub(crate) fn connect(
        socket: &Arc<Socket>,
        credentials: &Credentials,
        peer: &str,
    ) -> Result<Self, ConnectionError> {
        match credentials {
            Credentials::Plain => Ok(Self::plain(socket)),
            Credentials::Tls(identity) => tls::connect(identity, socket, peer),
        }
    }

    fn plain(socket: &Arc<Socket>) -> Self {
        let (reader, writer) = plain::halves(socket);
        Self::new(socket, Box::new(reader), Box::new(writer), true, None)
    }

    fn new(
        socket: &Arc<Socket>,
        reader: Box<dyn RecordReceiver>,
        writer: Box<dyn RecordSender>,
        is_checked: bool,
        certificate: Option<String>,
    ) -> Self {
        let last = [0; HEADER_BYTES];
        Self {
            reader: FrameReader { records: reader, socket: Arc::clone(socket), is_checked, last },
            writer: FrameWriter { records: writer, is_checked },
            certificate,
        }
    }
}

impl FrameReader {
    /// Time without progress after which a connection ends.
    pub(crate) fn stall(&self) -> Duration {
        self.socket.stall()
    }

    /// Reads the next header; its first byte must arrive within `patience`.
    pub(crate) fn header(&mut self, patience: Duration) -> Result<FrameHeader, ConnectionError> {
        let mut bytes = [0; HEADER_BYTES];
        let mut done = self.records.read(&mut bytes, patience)?;
        let begin = Instant::now();
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            done += self.records.read(rest, self.socket.stall())?;
            self.socket.check_frame_time(begin, HEADER_BYTES as u64)?;
        }
        self.last = bytes;
        let header = FrameHeader::decode(&bytes, self.is_checked)?;
        if header.length == 0 {
            self.verify(&header, &[])?;
        }
        Ok(header)
    }

    /// Reads the body of the last header into a new vector.
    pub(crate) fn body(&mut self, header: &FrameHeader) -> Result<Vec<u8>, ConnectionError> {
        // Bounded: the decoder checked the length against the limit of the op.
        let mut body = vec![0; Length(header.length).as_usize()];
        let (mut done, begin) = (0, Instant::now());
        while let Some(rest) = body.get_mut(done..).filter(|rest| !rest.is_empty()) {
            done += self.records.read(rest, self.socket.stall())?;
            self.socket.check_frame_time(begin, header.length)?;
        }
        self.verify(header, &body)?;
        Ok(body)
    }

    /// Reads the body of the last header directly into a map. The bytes there are undefined until
    /// this returns.
    pub(crate) fn body_into(
        &mut self,
        header: &FrameHeader,
        map: &FileMap,
        span: Span,
    ) -> Result<(), ConnectionError> {
        let (mut done, begin) = (0, Instant::now());
        while done < span.length.0 {
            let rest = Span::new(Offset(span.offset.0 + done), Length(span.length.0 - done));
            done += self.records.read_into(map, rest)? as u64;
            self.socket.check_frame_time(begin, header.length)?;
        }
        if self.is_checked {
            // The bytes are still in the CPU cache.
            self.verify(header, &map.read(span)?)?;
        }
        Ok(())
    }

    fn verify(&self, header: &FrameHeader, body: &[u8]) -> Result<(), FrameError> {
        if self.is_checked { header.verify(&self.last, body) } else { Ok(()) }
    }
}

impl FrameWriter {
    /// Sends a frame.
    pub(crate) fn write(
        &mut self,
        header: FrameHeader,
        body: FrameBody<'_>,
    ) -> Result<(), ConnectionError> {
        if !self.is_checked {
            return self.records.write(&header.encode(&[], false), body);
        }
        let bytes = body.load()?;
        let head = header.encode(&bytes, true);
        bytes.check()?;
        match &bytes {
            // Not from the map, which has lost pages.
            BodyBytes::Map(read) if !read.is_borrowed() => {
                self.records.write(&head, FrameBody::Bytes(read))
            }
            _ => self.records.write(&head, body),
        }
    }

    /// Sends a frame with bytes as its body.
    pub(crate) fn write_bytes(
        &mut self,
        op: crate::frame::Op,
        id: u64,
        offset: u64,
        body: &[u8],
    ) -> Result<(), ConnectionError> {
        self.write(FrameHeader::new(op, id, offset, body.len() as u64), FrameBody::Bytes(body))
    }
}
