//! Whether the node was replaced: its daemon and its supervisor were killed, and another node serves
//! the socket with other memory.
//!
//! Reads and small puts of a client need no message, so nothing would tell it. The region that it
//! has mapped would stay as it was for ever.

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use farrow_memory::sync::{AtomicU64, Ordering};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::clock::coarse_ms;
use crate::connection::session::Session;
use crate::error::Error;

/// A client that needs no message looks at its connection this often.
const LOOK_EVERY_MS: u64 = 500;

/// How long such a client waits for the successor of its daemon.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Replaced {
    looked_at_ms: AtomicU64,
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
        self.look()
    }

    /// If the connection has ended, connects to the successor of the daemon. While there is none,
    /// what is in memory can be read.
    fn look(&self) -> Result<(), Error> {
        let connection = self.connection();
        if !connection.link.has_ended() || !is_served(&self.socket) {
            return Ok(());
        }
        let deadline = Instant::now() + self.timeout.min(PATIENCE);
        match self.reconnect(&connection, deadline) {
            Err(Error::Interrupted) => Err(Error::Interrupted),
            _ => self.check_replaced(),
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
pub(super) fn is_served(socket: &Path) -> bool {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let made = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    match (made, SocketAddrUnix::new(socket)) {
        (Ok(made), Ok(address)) => net::connect(&made, &address).is_ok(),
        _ => false,
    }
}
