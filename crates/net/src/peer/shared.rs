//! What all connections to one peer share.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farrow_memory::Length;
use farrow_memory::sync::{AtomicU64, Ordering};

use super::connect::Dialer;
use crate::error::{ConnectionError, NetError};
use crate::frame::Opened;
use crate::pack::{PackTrial, PackWish, PackingOptions, Stretch};
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
    /// Addresses of its data listener. Each is tried until one works.
    pub addresses: Vec<SocketAddr>,
    /// Length of its data section.
    pub section: Length,
    /// Options of each connection.
    pub socket: SocketOptions,
    /// Number of connections, and of threads, for bulk reads.
    pub bulk_connections: usize,
    /// Number of connections for pushes.
    pub push_connections: usize,
    /// Time limit for establishing a connection to one address.
    pub connect: Duration,
    /// Whether bulk reads ask for packed pieces.
    pub packing: PackingOptions,
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
            addresses: vec![address],
            section,
            socket: SocketOptions::default(),
            bulk_connections: 2,
            push_connections: 2,
            connect: Duration::from_secs(1),
            packing: PackingOptions::default(),
            #[cfg(feature = "rdma")]
            rdma: None,
        }
    }
}

/// Requests of a [`Peer`](super::Peer) to its daemon, from threads of the peer.
pub trait DaemonControl: Send + Sync {
    /// Requests a ticket for one connection from the peer over the control channel. Must return
    /// within its own limit.
    ///
    /// # Errors
    /// The reason of the failure.
    fn ticket(&self) -> Result<Ticket, String>;

    /// Receives the peer's notice that an object was deleted. Must return soon. The daemon answers
    /// with [`Peer::acknowledge_invalidation`](super::Peer::acknowledge_invalidation), from any thread.
    fn on_invalidate(&self, notice: u64, object: u64);
}

/// An object that is held at its home.
#[derive(Debug)]
pub struct OpenedObject {
    /// The hold, which [`Peer::release`](super::Peer::release) ends.
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
    pub(super) pack_trial: Mutex<PackTrial>,
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

    /// What each of this number of connections requests, if it asks for packed pieces.
    pub(super) fn pack_wish(&self, connections: usize) -> Option<PackWish> {
        let rate = self.link().bytes_per_second() / connections.max(1) as u64;
        let wish = self.options.packing.wish(rate)?;
        (wish.rate == 0 || self.pack_trial().is_open(Instant::now())).then_some(wish)
    }

    /// Records what each of this number of connections has received.
    pub(super) fn on_stretch(&self, stretch: &Stretch, elapsed: Duration, connections: usize) {
        // Assume that the other connections receive at the same rate.
        let count = connections as u64;
        let mut link = self.link();
        if stretch.packed == 0 {
            return link.on_bytes(stretch.wire.saturating_mul(count), elapsed);
        }
        let plain_rate = link.bytes_per_second() / count.max(1);
        // The compressor may have been slower than the link.
        link.on_bytes_at_least(stretch.wire.saturating_mul(count), elapsed);
        drop(link);
        self.pack_trial().on_stretch(stretch, (elapsed, Instant::now()), plain_rate);
    }

    fn pack_trial(&self) -> MutexGuard<'_, PackTrial> {
        self.pack_trial.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn on_progress(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Maximum time without arriving frames while requests are outstanding: a stalled connection,
    /// and another attempt at each address.
    pub(super) fn patience(&self) -> Duration {
        let addresses = u32::try_from(self.options.addresses.len()).unwrap_or(u32::MAX).max(1);
        2 * (self.options.socket.stall + self.options.connect.saturating_mul(addresses))
    }

    pub(super) fn failed(&self, reason: impl Into<Arc<ConnectionError>>) -> NetError {
        NetError::Connection { peer: self.options.name.clone(), reason: reason.into() }
    }
}
