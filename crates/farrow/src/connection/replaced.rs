//! Whether the node was replaced: its daemon and its supervisor were killed, and another node serves
//! the socket with other memory.
//!
//! Reads and small puts of a client need no message, so nothing would tell it. The region that it
//! has mapped would never change.

use std::path::Path;
use std::sync::{OnceLock, Weak};
use std::time::Duration;

use farrow_memory::sync::{AtomicBool, AtomicU64, Ordering};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::clock::{coarse_ms, deadline_after};
use crate::connection::session::Session;
use crate::error::Error;
use crate::interrupt::suspend;

/// A client that needs no message looks at its connection this often.
const LOOK_EVERY_MS: u64 = 500;

/// How long the thread waits for the successor of the daemon, at each look.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Replaced {
    looked_at_ms: AtomicU64,
    /// A thread connects to the successor.
    is_looking: AtomicBool,
    /// Uid of the region that is served now.
    by: OnceLock<u64>,
}

impl Session {
    /// Checks that this process opened the session, and that its node was not replaced.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_process()?;
        self.check_replaced()?;
        let now_ms = coarse_ms();
        let looked_at_ms = self.replaced.looked_at_ms.load(Ordering::Relaxed);
        if now_ms.saturating_sub(looked_at_ms) < LOOK_EVERY_MS || self.is_elsewhere() {
            return Ok(());
        }
        self.replaced.looked_at_ms.store(now_ms, Ordering::Relaxed);
        self.look();
        self.check_replaced()
    }

    /// Checks that this process opened the session, and that its node serves the same memory: waits
    /// for the successor of a daemon that has ended. Sends no message while the connection is up.
    pub(crate) fn check_served(&self) -> Result<(), Error> {
        self.check_process()?;
        self.check_replaced()?;
        let connection = self.connection();
        if connection.link.has_ended() {
            self.reconnect(&connection, deadline_after(self.timeout))?;
        }
        Ok(())
    }

    /// If the connection has ended, has a thread connect to the successor of the daemon: the caller
    /// reads memory, and a daemon that is starting or hangs must not delay it. While there is no
    /// successor, what is in memory can be read.
    fn look(&self) {
        let connection = self.connection();
        if !connection.link.has_ended()
            || !is_served(&self.socket)
            || self.replaced.is_looking.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let session = Weak::clone(&self.this);
        let meet = move || {
            let _quiet = suspend();
            if let Some(session) = session.upgrade() {
                let deadline = deadline_after(session.timeout.min(PATIENCE));
                // A replaced node is noted there; any other error is met again by the next call
                // that needs a message.
                let _ = session.reconnect(&connection, deadline);
                session.replaced.is_looking.store(false, Ordering::Release);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("farrow-look".into()).spawn(meet) {
            tracing::debug!(%error, "no thread looks for the next daemon");
            self.replaced.is_looking.store(false, Ordering::Release);
        }
    }

    fn check_replaced(&self) -> Result<(), Error> {
        let Some(new) = self.replaced.by.get().copied() else {
            return Ok(());
        };
        Err(Error::NodeReplaced { socket: self.socket.clone(), old: self.region_uid(), new })
    }

    /// Notes the error of an attempt to connect again, if it says that the node was replaced.
    pub(super) fn note_replaced(&self, error: &Error) {
        if let Error::NodeReplaced { new, .. } = error {
            let _ = self.replaced.by.set(*new);
        }
    }
}

/// Whether a process accepts connections there. Does not wait.
pub(crate) fn is_served(socket: &Path) -> bool {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let made = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    match (made, SocketAddrUnix::new(socket)) {
        (Ok(made), Ok(address)) => {
            // A full queue is of a daemon that only does not accept now.
            matches!(net::connect(&made, &address), Ok(()) | Err(Errno::AGAIN))
        }
        _ => false,
    }
}
