//! The message by which the next daemon takes over.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use farrow_wire::{Inheritance, Reply, ReplyBody};

use super::connection::ClientConnection;

/// Time limit for the reply to the next daemon, which reads it at once.
const SEND_MAX: Duration = Duration::from_secs(2);

/// The connection of the next daemon, and the state that it receives.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(super) connection: ClientConnection,
    pub(super) seq: u64,
    pub(super) inheritance: Inheritance,
}

impl Handover {
    /// The state of this daemon that is not in the region.
    pub(crate) fn inheritance(&self) -> &Inheritance {
        &self.inheritance
    }

    /// Passes all descriptors and the state to the next daemon, once nothing in this daemon
    /// accesses the region. The returned connection delivers a byte when the next daemon serves, or
    /// its end if that fails.
    pub(crate) fn pass_on(
        self,
        listener: BorrowedFd<'_>,
        lock: BorrowedFd<'_>,
    ) -> io::Result<UnixStream> {
        let Self { mut connection, seq, inheritance } = self;
        let reply = Reply { seq, body: Ok(ReplyBody::HandedOver(inheritance)) };
        connection.queue(&reply, true).map_err(io::Error::other)?;
        connection.stream.set_nonblocking(false)?;
        connection.stream.set_write_timeout(Some(SEND_MAX))?;
        let until = Instant::now() + SEND_MAX;
        while connection.has_output() {
            if Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            connection.flush(&[listener, lock])?;
        }
        Ok(connection.stream)
    }
}
