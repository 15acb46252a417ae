//! The socket of one client: reads bytes and writes frames, and makes no decisions.

use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use farrow_memory::Fabric;
use farrow_wire::{
    self as wire, FRAME_BYTES_MAX, HELLO_BYTES_MAX, MessageError, Reply, Request, RequestBody,
};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};

use super::forwarded::ForwardedSession;
use crate::protocol::PeerIdentity;

/// Bytes of one read: most requests are short.
const READ_BYTES: usize = 8 << 10;

/// A buffer that grew beyond this is freed.
const RETAINED_BYTES_MAX: usize = 64 << 10;

/// A client with more bytes of unread replies than this is not served.
pub(super) const OUT_BYTES_MAX: usize = 1 << 20;

/// Limit on unread replies of another node: the longest reply, plus the bytes that may be in
/// flight.
const CARRIED_BYTES_MAX: usize = 16 << 20;

/// Bytes of requests of one connection that a turn serves, beyond its first request: they take the
/// event loop about as long as 64 short requests.
pub(super) const SERVED_BYTES_MAX: usize = 64 << 10;

/// Longest frame of a goodbye: its length, a number of at most 10 bytes, and the kind.
const GOODBYE_BYTES_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) stream: UnixStream,
    /// Readable when the process at the other end has ended.
    pub(super) process: Option<OwnedFd>,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    /// Offset in `output` of the frame that carries the region's descriptors.
    descriptors_at: Option<usize>,
    /// The data section, opened for this client alone. Closed once it is sent.
    pub(super) data_read: Option<OwnedFd>,
    /// Descriptors of a file for pages, to send instead of those of the region.
    pub(super) file: Vec<OwnedFd>,
    pub(super) is_closing: bool,
    /// The identity of the client.
    pub(super) identity: PeerIdentity,
    /// Set if its requests are forwarded to another node.
    pub(super) forwarded: Option<ForwardedSession>,
    /// The memory that the descriptors refer to, if not this node's own.
    pub(super) fabric: Option<Arc<dyn Fabric>>,
    /// The current epoll interest: (read, write).
    pub(super) interest: (bool, bool),
    /// Its first message was accepted. Before that its buffer is limited to the size of that
    /// message.
    pub(super) is_introduced: bool,
    /// The other node accepts no more of its requests now.
    pub(super) is_blocked: bool,
    /// Bytes of unread replies beyond which the client is not served.
    pub(super) replies_max: usize,
    /// The time since which there is no room for more of its input.
    pub(super) starved_since_ms: Option<u64>,
    /// Remaining bytes of a refused incomplete request. They are read and dropped.
    dropped_bytes: usize,
}

/// The outcome of a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    /// The connection is open; there may be more frames.
    Open,
    /// The other end has closed the connection.
    Ended,
}

impl ClientConnection {
    pub(super) fn new(
        stream: UnixStream,
        process: Option<OwnedFd>,
        identity: PeerIdentity,
    ) -> Self {
        Self {
            stream,
            process,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            descriptors_at: None,
            data_read: None,
            file: Vec::new(),
            is_closing: false,
            identity,
            forwarded: None,
            fabric: None,
            interest: (true, false),
            is_introduced: false,
            is_blocked: false,
            replies_max: OUT_BYTES_MAX,
            starved_since_ms: None,
            dropped_bytes: 0,
        }
    }

    /// The longest frame that the client may send now.
    fn frame_bytes_max(&self) -> usize {
        if self.is_introduced { FRAME_BYTES_MAX } else { HELLO_BYTES_MAX }
    }

    /// Bytes that the next read may add. Zero while a complete request waits: the input of a client
    /// that sends too fast queues in its own kernel.
    pub(super) fn wanted_bytes(&self) -> usize {
        if self.is_closing || self.is_blocked || self.is_stuffed() || self.has_request() {
            return 0;
        }
        let max = if self.is_introduced { usize::MAX } else { 4 + HELLO_BYTES_MAX };
        max.saturating_sub(self.input.len()).min(READ_BYTES)
    }

    /// Whether the event loop polls for more input.
    pub(super) fn is_listened_to(&self) -> bool {
        let is_waiting = self.is_blocked && self.has_request();
        let has_no_room = self.is_stuffed() || self.starved_since_ms.is_some();
        !(self.is_closing || is_waiting || has_no_room)
    }

    /// Bytes by which the next read may grow the buffer: at most to twice its length, up to the end
    /// of the frame.
    pub(super) fn growth_bytes(&self) -> usize {
        match self.wanted_bytes() {
            0 => 0,
            wanted if self.input.len() + wanted <= self.input.capacity() => 0,
            wanted => self.input.len().max(wanted),
        }
    }

    /// Drops an incomplete request, including the part that arrives later. Returns its sequence
    /// number, or 0 if that is not readable; `None` if there is no such request.
    pub(super) fn drop_begun(&mut self) -> Option<u64> {
        if !matches!(self.next_frame(0), Ok(None)) {
            return None;
        }
        let (head, body) = self.input.split_first_chunk::<4>()?;
        let rest = (u32::from_le_bytes(*head) as usize).saturating_sub(body.len());
        // A request starts with its sequence number.
        let seq = postcard::take_from_bytes::<u64>(body).map_or(0, |(seq, _)| seq);
        self.dropped_bytes = rest;
        self.input = Vec::new();
        Some(seq)
    }

    /// Reads the available bytes, up to [`Self::wanted_bytes`].
    pub(super) fn fill(&mut self) -> io::Result<ReadOutcome> {
        match self.wanted_bytes() {
            0 => Ok(ReadOutcome::Open),
            wanted => self.read(wanted),
        }
    }

    fn read(&mut self, wanted: usize) -> io::Result<ReadOutcome> {
        let mut bytes = [MaybeUninit::uninit(); READ_BYTES];
        let room = bytes.get_mut(..wanted).unwrap_or(&mut []);
        match recv(&self.stream, room, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Ok(ReadOutcome::Ended),
            Ok(((read, _), count)) => {
                let dropped = count.min(self.dropped_bytes);
                self.dropped_bytes -= dropped;
                let read = read.get(dropped..).unwrap_or(&[]);
                self.reserve(read.len());
                self.input.extend_from_slice(read);
                Ok(ReadOutcome::Open)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(ReadOutcome::Open),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes room for more input: twice its length, up to the end of the current frame.
    fn reserve(&mut self, more: usize) {
        let length = self.input.len() + more;
        if length <= self.input.capacity() {
            return;
        }
        let head = self.input.first_chunk::<4>();
        let frame = head.map_or(READ_BYTES, |head| 4 + u32::from_le_bytes(*head) as usize);
        let capacity = (2 * self.input.len()).min(frame.min(4 + FRAME_BYTES_MAX)).max(length);
        self.input.reserve_exact(capacity - self.input.len());
    }

    /// Removes consumed bytes from the input, and shrinks a large buffer.
    fn used(&mut self, bytes: usize) {
        self.input.drain(..bytes);
        if self.input.capacity() > RETAINED_BYTES_MAX && self.input.len() < RETAINED_BYTES_MAX / 2 {
            self.input.shrink_to(READ_BYTES);
        }
    }

    /// Bytes of the next frame including its header, if it is complete.
    fn next_frame(&self, at: usize) -> Result<Option<usize>, MessageError> {
        let rest = self.input.get(at..).unwrap_or(&[]);
        let Some((head, body)) = rest.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let (bytes, max) = (u32::from_le_bytes(*head) as usize, self.frame_bytes_max());
        if bytes > max {
            return Err(MessageError::TooLong { bytes, max });
        }
        Ok((body.len() >= bytes).then_some(4 + bytes))
    }

    /// Bytes of the next request, if it is complete; otherwise 0.
    pub(super) fn next_request_bytes(&self) -> usize {
        self.next_frame(0).ok().flatten().unwrap_or(0)
    }

    /// The next complete requests, at most `requests_max`, and their bytes.
    pub(super) fn requests(
        &mut self,
        requests_max: usize,
    ) -> Result<(Vec<Request>, usize), MessageError> {
        let mut requests = Vec::new();
        let mut used = 0;
        // The first message decides which messages may follow, so those wait for a later turn.
        let requests_max = if self.is_introduced { requests_max } else { 1 };
        while requests.len() < requests_max && used < SERVED_BYTES_MAX && !self.is_stuffed() {
            if self.next_frame(used)?.is_none() {
                break;
            }
            let rest = self.input.get(used..).unwrap_or(&[]);
            let Some((request, bytes)) = wire::decode::<Request>(rest)? else {
                break;
            };
            used += bytes;
            let is_last = has_long_reply(&request.body);
            requests.push(request);
            if is_last {
                break;
            }
        }
        self.used(used);
        Ok((requests, used))
    }

    /// The next complete frames, undecoded, at most `frames_max`.
    pub(super) fn take_frames(&mut self, frames_max: usize) -> Result<Vec<u8>, MessageError> {
        let mut used = 0;
        for _ in 0..frames_max {
            match self.next_frame(used)? {
                Some(bytes) if used < SERVED_BYTES_MAX => used += bytes,
                _ => break,
            }
        }
        let frames = self.input.get(..used).unwrap_or(&[]).to_vec();
        self.used(used);
        Ok(frames)
    }

    /// Bytes that the daemon buffers for this client: requests that are incomplete or not served,
    /// and unread replies.
    pub(super) fn retained_bytes(&self) -> usize {
        let forwarded = self.forwarded.as_ref().map_or(0, ForwardedSession::retained_bytes);
        self.input.capacity() + self.output.capacity() + forwarded
    }

    /// Puts back frames that could not be forwarded.
    pub(super) fn put_back(&mut self, bytes: &[u8]) {
        self.input.splice(..0, bytes.iter().copied());
    }

    /// Queues bytes that are already frames.
    pub(super) fn queue_bytes(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    /// Whether too many bytes of another node's replies are unread.
    pub(super) fn is_overfull(&self) -> bool {
        self.output.len() - self.sent > CARRIED_BYTES_MAX
    }

    /// Whether the client sent a goodbye that was not processed. A reply to a client that has
    /// closed the connection fails before all of its input is read.
    pub(super) fn has_unheard_goodbye(&mut self) -> bool {
        let mut length = None;
        if !self.is_introduced {
            return false;
        }
        while length != Some(self.input.len()) && self.input.len() <= FRAME_BYTES_MAX {
            length = Some(self.input.len());
            if !matches!(self.read(READ_BYTES), Ok(ReadOutcome::Open)) {
                break;
            }
        }
        let mut used = 0;
        while let Ok(Some(bytes)) = self.next_frame(used) {
            let frame = self.input.get(used..used + bytes).unwrap_or(&[]);
            // Only a short message is decoded: the client may have left many long ones.
            let is_short = bytes <= GOODBYE_BYTES_MAX;
            let goodbye = is_short.then(|| wire::decode::<Request>(frame));
            if let Some(Ok(Some((Request { body: RequestBody::Goodbye, .. }, _)))) = goodbye {
                return true;
            }
            used += bytes;
        }
        false
    }

    /// Whether a complete or overlong request is left from an earlier turn.
    pub(super) fn has_request(&self) -> bool {
        !matches!(self.next_frame(0), Ok(None))
    }

    /// Whether the client has too many unread replies.
    pub(super) fn is_stuffed(&self) -> bool {
        self.output.len() - self.sent > self.replies_max
    }

    /// Whether a welcome with descriptors is still unsent.
    pub(super) fn has_descriptors(&self) -> bool {
        self.descriptors_at.is_some()
    }

    pub(super) fn has_output(&self) -> bool {
        self.sent < self.output.len()
    }

    pub(super) fn queue(
        &mut self,
        reply: &Reply,
        has_descriptors: bool,
    ) -> Result<(), MessageError> {
        if has_descriptors {
            self.descriptors_at = Some(self.output.len());
        }
        wire::encode(reply, &mut self.output)
    }

    /// Writes as many bytes as the socket accepts.
    pub(super) fn flush(&mut self, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        while self.has_output() {
            let written = self.write_some(descriptors);
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.drop_sent();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        if self.output.capacity() > RETAINED_BYTES_MAX {
            self.output = Vec::new();
        }
        self.sent = 0;
        Ok(())
    }

    /// Frees the room of sent replies, for a client that never reads all of its replies.
    fn drop_sent(&mut self) {
        if self.sent < RETAINED_BYTES_MAX.max(self.output.len() / 2) {
            return;
        }
        self.output.drain(..self.sent);
        self.output.shrink_to(RETAINED_BYTES_MAX);
        self.descriptors_at = self.descriptors_at.map(|at| at.saturating_sub(self.sent));
        self.sent = 0;
    }

    fn write_some(&mut self, descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let Some(at) = self.descriptors_at else {
            return self.stream.write(self.output.get(self.sent..).unwrap_or(&[]));
        };
        if self.sent < at {
            return self.stream.write(self.output.get(self.sent..at).unwrap_or(&[]));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("no room for the region's descriptors"));
        }
        let bytes = self.output.get(self.sent..).unwrap_or(&[]);
        let sent =
            sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
        self.descriptors_at = None;
        Ok(sent)
    }
}

/// Such a reply may be as long as a thousand others, so one a turn is enough.
fn has_long_reply(body: &RequestBody) -> bool {
    use RequestBody::{Namespaces, Nodes, Overview, Rules};
    matches!(body, Overview { .. } | Namespaces | Nodes | Rules)
}
