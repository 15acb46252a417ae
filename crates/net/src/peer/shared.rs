//! What all connections to one peer share.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farrow_memory::Length;
use farrow_memory::sync::{AtomicU64, Ordering};

use super::connect::Dialer;
use crate::error::{ConnectionError, NetError};
use crate::frame::Opened;
use crate::records::Credentials;
use crate::socket::SocketOptions;
use crate::source::HoldId;
use crate::ticket::Ticket;
use crate::window::LinkEstimate;

/// Address and settings of a peer.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    /// Member name of the peer.
    pub name: String,
    /// Address of its data listener.
    pub address: SocketAddr,
    /// Length of its data section.
    pub section: Length,
    /// Options of each connection.
    pub socket: SocketOptions,
    /// Number of connections, and of threads, for bulk reads.
    pub bulk_connections: usize,
    /// Number of connections for pushes.
    pub push_connections: usize,
    /// Time limit for establishing a connection.
    pub connect: Duration,
    /// The network card by which large objects are read one-sidedly, where the peer has one too.
    #[cfg(feature = "rdma")]
    pub rdma: Option<String>,
}

impl PeerOptions {
    /// Defaults: two bulk connections, two for pushes, one second to connect.
    #[must_use]
    pub fn new(name: impl Into<String>, address: SocketAddr, section: Length) -> Self {
        Self {
            name: name.into(),
            address,
            section,
            socket: SocketOptions::default(),
            bulk_connections: 2,
            push_connections: 2,
            connect: Duration::from_secs(1),
            #[cfg(feature = "rdma")]
            rdma: None,
        }
    }
}

/// Requests of a [`Peer`] to its daemon, from threads of the peer.
pub trait DaemonControl: Send + Sync {
    /// Requests a ticket for one connection from the peer over the control channel. Must return
    /// within its own limit.
    ///
    /// # Errors
    /// The reason of the failure.
    fn ticket(&self) -> Result<Ticket, String>;

    /// Receives the peer's notice that an object was deleted. Must return soon. The daemon answers
    /// with [`Peer::acknowledge_gone`], from any thread.
    fn gone(&self, notice: u64, object: u64);
}

/// An object that is held at its home.
#[derive(Debug)]
pub struct OpenedObject {
    /// The hold, which [`Peer::release`] ends.
    pub hold: HoldId,
    /// Blocks, entry, and the bytes of a small object.
    pub opened: Opened,
}

pub(super) struct PeerShared {
    pub(super) options: PeerOptions,
    pub(super) credentials: Credentials,
    pub(super) control: Arc<dyn DaemonControl>,
    pub(super) dialer: Dialer,
    pub(super) link: Mutex<LinkEstimate>,
    pub(super) numbers: AtomicU64,
    /// Grows with each arriving frame, so that waiting calls can detect progress of other requests.
    pub(super) progress: AtomicU64,
}

impl PeerShared {
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn link(&self) -> MutexGuard<'_, LinkEstimate> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn on_progress(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Maximum time without arriving frames while requests are outstanding: a stalled connection,
    /// and another attempt.
    pub(super) fn patience(&self) -> Duration {
        2 * (self.options.socket.stall + self.options.connect)
    }

    pub(super) fn failed(&self, reason: impl Into<Arc<ConnectionError>>) -> NetError {
        NetError::Connection { peer: self.options.name.clone(), reason: reason.into() }
    }
}
