//! One client's socket: bytes in, frames out, nothing decided here.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use farrow_memory::Fabric;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::others::Carried;
use crate::protocol::PeerIdentity;
use crate::wire::{self, FRAME_BYTES_MAX, FrameError, Reply, Request, RequestBody};

/// Bytes read at once: most requests are short, and clearing more for each would cost as much as
/// the read itself (64 KiB: 1.5 us).
const READ_BYTES: usize = 8 << 10;

/// A queue that grew beyond this is not kept.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// A client that does not read its replies is not served beyond this many bytes.
const OUT_BYTES_MAX: usize = 1 << 20;

/// Replies of another node that a client does not read are kept up to this many bytes: the longest
/// one, and as much as may be under way.
const CARRIED_BYTES_MAX: usize = 16 << 20;

/// Frames served in one turn, so that a flood from one client leaves room for others.
const FRAMES_PER_TURN: usize = 64;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: UnixStream,
    /// Readable when the process at the other end is gone.
    pub(super) process: Option<OwnedFd>,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    /// Where in `output` a frame begins that takes the region's descriptors along.
    descriptors_at: Option<usize>,
    /// The data section, opened for this client alone: closed when it was sent.
    pub(super) data_read: Option<OwnedFd>,
    pub(super) is_closing: bool,
    /// Who it is.
    pub(super) identity: PeerIdentity,
    /// Its requests go to another node.
    pub(super) carried: Option<Carried>,
    /// The memory that its descriptors are of, if not this node's own.
    pub(super) fabric: Option<Arc<dyn Fabric>>,
    /// The epoll interest that is set now: (read, write).
    pub(super) interest: (bool, bool),
}

/// What reading brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// Perhaps more frames, the other end is there.
    Open,
    /// The other end has gone.
    Ended,
}

impl Connection {
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
            is_closing: false,
            identity,
            carried: None,
            fabric: None,
            interest: (true, false),
        }
    }

    /// Reads what is there, at most one buffer full.
    pub(super) fn fill(&mut self) -> io::Result<Input> {
        let mut bytes = [0; READ_BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => Ok(Input::Ended),
            Ok(count) => {
                self.input.extend_from_slice(bytes.get(..count).unwrap_or(&[]));
                Ok(Input::Open)
            }
            Err(error) if is_transient(&error) => Ok(Input::Open),
            Err(error) => Err(error),
        }
    }

    /// The next requests that are whole, a limited number of them.
    pub(super) fn requests(&mut self) -> Result<Vec<Request>, FrameError> {
        let mut requests = Vec::new();
        let mut used = 0;
        while requests.len() < FRAMES_PER_TURN && !self.is_stuffed() {
            let Some((request, bytes)) = wire::decode(self.input.get(used..).unwrap_or(&[]))?
            else {
                break;
            };
            used += bytes;
            requests.push(request);
        }
        self.input.drain(..used);
        if self.input.is_empty() && self.input.capacity() > KEPT_BYTES_MAX {
            self.input = Vec::new();
        }
        Ok(requests)
    }

    /// The next frames that are whole, as they are, a limited number of them.
    pub(super) fn take_frames(&mut self) -> Result<Vec<u8>, FrameError> {
        let mut used = 0;
        for _ in 0..FRAMES_PER_TURN {
            let rest = self.input.get(used..).unwrap_or(&[]);
            let Some((head, body)) = rest.split_first_chunk::<4>() else {
                break;
            };
            let bytes = u32::from_le_bytes(*head) as usize;
            if bytes > FRAME_BYTES_MAX {
                return Err(FrameError::TooLong { bytes, max: FRAME_BYTES_MAX });
            }
            if body.len() < bytes {
                break;
            }
            used += 4 + bytes;
        }
        Ok(self.input.drain(..used).collect())
    }

    /// Takes frames back that could not be passed on.
    pub(super) fn put_back(&mut self, bytes: &[u8]) {
        self.input.splice(..0, bytes.iter().copied());
    }

    /// Queues bytes that are frames already.
    pub(super) fn queue_bytes(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    /// True when the client takes none of what another node sends it.
    pub(super) fn is_overfull(&self) -> bool {
        self.output.len() - self.sent > CARRIED_BYTES_MAX
    }

    /// Whether the client said goodbye in what it sent before the connection broke, and was not
    /// heard: a reply to somebody who has closed fails before all that he sent is read.
    pub(super) fn has_unheard_goodbye(&mut self) -> bool {
        let mut length = None;
        while length != Some(self.input.len()) && self.input.len() <= FRAME_BYTES_MAX {
            length = Some(self.input.len());
            if !matches!(self.fill(), Ok(Input::Open)) {
                break;
            }
        }
        let mut used = 0;
        while let Ok(Some((request, bytes))) =
            wire::decode::<Request>(self.input.get(used..).unwrap_or(&[]))
        {
            if request.body == RequestBody::Goodbye {
                return true;
            }
            used += bytes;
        }
        false
    }

    /// True when a whole request is left from an earlier turn.
    pub(super) fn has_request(&self) -> bool {
        match self.input.split_first_chunk::<4>() {
            Some((head, rest)) => rest.len() >= u32::from_le_bytes(*head) as usize,
            None => false,
        }
    }

    /// True when the client has too many replies to read.
    pub(super) fn is_stuffed(&self) -> bool {
        self.output.len() - self.sent > OUT_BYTES_MAX
    }

    /// True when a welcome, with descriptors, was not sent yet.
    pub(super) fn has_descriptors(&self) -> bool {
        self.descriptors_at.is_some()
    }

    pub(super) fn has_output(&self) -> bool {
        self.sent < self.output.len()
    }

    pub(super) fn queue(&mut self, reply: &Reply, has_descriptors: bool) -> Result<(), FrameError> {
        if has_descriptors {
            self.descriptors_at = Some(self.output.len());
        }
        wire::encode(reply, &mut self.output)
    }

    /// Writes as much as the socket takes.
    pub(super) fn flush(&mut self, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        while self.has_output() {
            let written = self.write_some(descriptors);
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
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

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
