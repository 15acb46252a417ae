//! Requests on their way to the daemon.

use std::io;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::SendFlags;

use super::notifications::{Notification, NotificationQueue};
use crate::{MessageError, Request};

/// A queue whose capacity exceeds this is freed once it is empty.
const RETAINED_BYTES_MAX: usize = 64 << 10;

/// Most bytes of requests queued for a daemon that does not read.
const UNSENT_BYTES_MAX: usize = 8 << 20;

/// The number of requests whose replies are dropped.
const NO_REPLY: u64 = 0;

/// What is not written yet.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Encoded requests; the beginning of the first may be written already.
    bytes: Vec<u8>,
    /// Bytes written to the connection so far.
    written: u64,
    /// These follow `bytes`.
    notifications: NotificationQueue,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.notifications.is_empty()
    }

    /// Appends a request to everything that is unsent. Returns the position of its end; `None`
    /// while too much is unsent, and then the request is not appended.
    pub(super) fn push(&mut self, request: &Request) -> Result<Option<u64>, MessageError> {
        while self.bytes.len() <= UNSENT_BYTES_MAX {
            if !self.encode_notification()? {
                crate::encode(request, &mut self.bytes)?;
                return Ok(Some(self.written + self.bytes.len() as u64));
            }
        }
        Ok(None)
    }

    pub(super) fn notify(&mut self, notification: Notification) {
        self.notifications.add(notification);
    }

    /// Whether everything before this position is written.
    pub(super) fn has_written(&self, position: u64) -> bool {
        self.written >= position
    }

    /// Writes what the connection takes without a wait. True: nothing is left.
    pub(super) fn write(&mut self, stream: &UnixStream) -> io::Result<bool> {
        let mut sent = 0;
        let result = loop {
            if sent == self.bytes.len() {
                self.bytes.clear();
                sent = 0;
                match self.encode_notification() {
                    Ok(true) => {}
                    Ok(false) => break Ok(true),
                    Err(error) => break Err(io::Error::other(error)),
                }
            }
            let rest = self.bytes.get(sent..).unwrap_or(&[]);
            match rustix::net::send(stream, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => {
                    sent += count;
                    self.written += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break Ok(false),
                Err(error) => break Err(io::Error::from(error)),
            }
        };
        self.bytes.drain(..sent);
        if self.bytes.is_empty() && self.bytes.capacity() > RETAINED_BYTES_MAX {
            self.bytes = Vec::new();
        }
        result
    }

    /// Moves one request of the notifications to the bytes. False: there is none.
    fn encode_notification(&mut self) -> Result<bool, MessageError> {
        let Some(body) = self.notifications.pop() else {
            return Ok(false);
        };
        crate::encode(&Request { seq: NO_REPLY, body }, &mut self.bytes)?;
        Ok(true)
    }
}
