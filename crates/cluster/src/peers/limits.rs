//! Limits on the resources of one peer. Calls beyond them are refused, so that other peers are
//! still served.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use farrow_memory::sync::{AtomicBool, Ordering};
use farrow_wire::FRAME_BYTES_MAX;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use super::retired::RetiredConnections;
use crate::certs::NodeName;

/// Version of the protocol between nodes.
pub(crate) const VERSION: u32 = 2;

pub(crate) use farrow_membership::MESSAGE_BYTES_MAX;

/// Limit on the body of a request or an answer: that of a frame of the client protocol.
pub(crate) const ASK_BYTES_MAX: usize = FRAME_BYTES_MAX;

/// Limit on one frame of a remote session: the longest frame of a client with its header, and a
/// margin.
pub(crate) const REMOTE_SESSION_FRAME_BYTES_MAX: usize = FRAME_BYTES_MAX + (64 << 10);

/// Limit on the rest of a message besides its body: a name, numbers and their tags.
pub(super) const AROUND_BYTES_MAX: usize = 1 << 10;

/// Limits on concurrent work. The defaults suit tens of nodes with tens of clients each.
#[derive(Debug, Clone)]
pub(crate) struct PeerLimits {
    /// Connections of all nodes: a quarter of the 1024 descriptors that a process has by default.
    pub(crate) connections_max: usize,
    /// Connections of one node: two are in use, and two old pairs may not have been detected as
    /// dead. While certificates are replaced, some are retired. Each may have 64 MiB of unread data.
    pub(crate) connections_per_node_max: usize,
    /// Unidentified connections from one address: two of each of 16 nodes on one machine that start
    /// at once, twice.
    pub(crate) strangers_per_address_max: usize,
    /// Messages in progress from, and to, one peer: those within a deadline at 60 per second.
    pub(crate) messages_max: usize,
    /// Requests in progress from, and to, one peer. Each may hold two bodies of 4 MiB.
    pub(crate) asks_max: usize,
    /// Bytes of requests to one peer that wait for a place among those in progress, each counted with
    /// 512 B at least.
    pub(crate) asks_waiting_bytes_max: usize,
    /// Remote sessions from, and to, one peer: the clients of one node that use memory of another
    /// one. Each may hold 5 MiB, a frame and the bytes not taken.
    pub(crate) remote_sessions_max: usize,
    /// Calls of one peer per second, which is also the burst after an idle second. At 50 us each
    /// they use a quarter of the transport's thread. Frames of a remote session wait instead of
    /// counting here.
    pub(crate) calls_per_second: u32,
    /// Bytes of a remote session that were read but not taken, and those queued but not sent.
    /// Beyond it the stream is not read, and [`super::Peers::send`] returns the bytes.
    pub(crate) remote_session_bytes_max: usize,
    /// Messages of all peers that wait for the event loop.
    pub(crate) messages_waiting_max: usize,
    /// Bytes of messages, requests and remote sessions of all peers that were read but not taken.
    /// One peer may have a quarter of them.
    pub(crate) bytes_max: usize,
}

/// Smallest `bytes_max`: a quarter fits a request and a frame of a remote session of full length.
pub(crate) const PEER_BYTES_MIN: usize = 4 * (ASK_BYTES_MAX + REMOTE_SESSION_FRAME_BYTES_MAX);

impl Default for PeerLimits {
    fn default() -> Self {
        Self {
            connections_max: 256,
            connections_per_node_max: 12,
            strangers_per_address_max: 64,
            messages_max: 32,
            asks_max: 32,
            asks_waiting_bytes_max: 4 << 20,
            remote_sessions_max: 64,
            calls_per_second: 5_000,
            remote_session_bytes_max: 1 << 20,
            messages_waiting_max: 1024,
            bytes_max: PEER_BYTES_MIN,
        }
    }
}

/// Timeouts of the transport.
#[derive(Debug, Clone)]
pub(crate) struct PeerTimes {
    /// From sending a message to its receipt.
    pub(crate) message: Duration,
    /// For a connection with TLS. Half a lease of one second, so that a dead address costs less
    /// than a lease.
    pub(crate) connect: Duration,
    /// Idle time after which a connection is probed.
    pub(crate) keep_alive_interval: Duration,
    /// Time after which a probed connection without an answer is dead.
    pub(crate) keep_alive_timeout: Duration,
}

impl PeerTimes {
    /// Timeouts for nodes with this lease. A node that pauses for less than its lease is not lost,
    /// so its connections must survive the pause. Waits for an answer and for a dead address are
    /// also bounded by the 10 s for the start of a client.
    pub(crate) fn for_lease(lease: Duration) -> Self {
        let least = Self::default();
        let most = Duration::from_millis(2500);
        Self {
            message: (lease / 2).clamp(least.message, most),
            connect: (lease / 2).clamp(least.connect, most),
            keep_alive_interval: (lease * 3 / 10).max(least.keep_alive_interval),
            keep_alive_timeout: (lease * 3 / 10).max(least.keep_alive_timeout),
        }
    }
}

/// For a lease of one second.
impl Default for PeerTimes {
    fn default() -> Self {
        Self {
            message: Duration::from_millis(500),
            connect: Duration::from_millis(500),
            keep_alive_interval: Duration::from_millis(300),
            keep_alive_timeout: Duration::from_millis(300),
        }
    }
}

/// Bytes that one peer may have in progress here, within the total of all peers.
#[derive(Debug, Clone)]
pub(super) struct BytesRoom {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
    own_max: usize,
}

impl BytesRoom {
    fn new(all: &Arc<Semaphore>, limits: &PeerLimits) -> Self {
        let own_max = limits.bytes_max / 4;
        Self { own: Arc::new(Semaphore::new(own_max)), all: Arc::clone(all), own_max }
    }

    /// Reserves room for a body that was read.
    pub(super) fn try_take(&self, bytes: usize) -> Result<[Permit; 2], Status> {
        let count = u32::try_from(bytes).unwrap_or(u32::MAX);
        let take = |of: &Arc<Semaphore>| Permit::take_many(of, count);
        take(&self.own).and_then(|own| Some([own, take(&self.all)?])).ok_or_else(|| {
            let (own, all) = (self.own.available_permits(), self.all.available_permits());
            let max = self.own_max;
            let text =
                format!("{bytes} B asked, {own} B of {max} B free for this node, {all} B for all");
            Status::resource_exhausted(text)
        })
    }

    /// Waits for room for a piece of a remote session.
    pub(super) async fn take(&self, bytes: u32) -> Option<[Permit; 2]> {
        let own = Arc::clone(&self.own).acquire_many_owned(bytes).await.ok()?;
        let all = Arc::clone(&self.all).acquire_many_owned(bytes).await.ok()?;
        Some([own, all].map(|permit| Permit(Arc::new(permit))))
    }
}

/// A token bucket: refilled over time, and emptied by calls.
#[derive(Debug)]
struct Bucket {
    calls: f64,
    at: Instant,
}

/// Resources of one peer in use here. A certified node has one account for all its connections.
/// Otherwise each connection has its own.
#[derive(Debug)]
pub(super) struct PeerAccount {
    bucket: Mutex<Bucket>,
    calls_per_second: f64,
    pub(super) messages: Arc<Semaphore>,
    pub(super) asks: Arc<Semaphore>,
    pub(super) remote_sessions: Arc<Semaphore>,
    pub(super) connections: Arc<Semaphore>,
    pub(super) retired: RetiredConnections,
    pub(super) bytes: BytesRoom,
}

impl PeerAccount {
    /// An account with its part of the bytes of all peers.
    pub(super) fn new(limits: &PeerLimits, bytes_of_all: &Arc<Semaphore>) -> Self {
        let calls = f64::from(limits.calls_per_second);
        Self {
            // Not full, so that a new connection gains nothing over waiting.
            bucket: Mutex::new(Bucket { calls: calls / 10.0, at: Instant::now() }),
            calls_per_second: calls,
            messages: Arc::new(Semaphore::new(limits.messages_max)),
            asks: Arc::new(Semaphore::new(limits.asks_max)),
            remote_sessions: Arc::new(Semaphore::new(limits.remote_sessions_max)),
            connections: Arc::new(Semaphore::new(limits.connections_per_node_max)),
            retired: RetiredConnections::default(),
            bytes: BytesRoom::new(bytes_of_all, limits),
        }
    }

    /// Counts a call. Returns false if it exceeds the rate.
    pub(super) fn take_call(&self, now: Instant) -> bool {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(bucket.at).as_secs_f64();
        bucket.at = now;
        bucket.calls =
            (bucket.calls + passed * self.calls_per_second).min(self.calls_per_second.max(1.0));
        if bucket.calls < 1.0 {
            return false;
        }
        bucket.calls -= 1.0;
        true
    }
}

/// One connection from a peer.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) account: Arc<PeerAccount>,
    /// The name in the certificate. Without TLS, the unverified name in the first call.
    name: OnceLock<NodeName>,
    /// A call of this connection was admitted.
    is_known: AtomicBool,
}

impl Caller {
    pub(super) fn new(account: Arc<PeerAccount>, name: Option<NodeName>) -> Self {
        let caller = Self { account, name: OnceLock::new(), is_known: AtomicBool::new(false) };
        if let Some(name) = name {
            let _ = caller.name.set(name);
        }
        caller
    }

    pub(super) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    /// Checks the start of a message: its version and its sender.
    pub(super) fn check(&self, version: u32, from: &str) -> Result<NodeName, Status> {
        if version != VERSION {
            let text = format!("version {version} of the protocol, this node speaks {VERSION}");
            return Err(Status::failed_precondition(text));
        }
        let from: NodeName =
            from.parse().map_err(|error| Status::invalid_argument(format!("{error}")))?;
        let name = self.name.get_or_init(|| from.clone());
        if *name != from {
            let text = format!("this connection is of node {name}, the message of node {from}");
            return Err(Status::permission_denied(text));
        }
        self.is_known.store(true, Ordering::Relaxed);
        Ok(from)
    }
}

/// A permit within a limit, held for the duration of the call.
#[derive(Debug, Clone)]
pub(super) struct Permit(
    #[expect(dead_code, reason = "given back on drop")] Arc<OwnedSemaphorePermit>,
);

impl Permit {
    pub(super) fn take(of: &Arc<Semaphore>) -> Option<Self> {
        Self::take_many(of, 1)
    }

    /// Waits for a permit; `None`: there will be none.
    pub(super) async fn wait(of: &Arc<Semaphore>) -> Option<Self> {
        let permit = Arc::clone(of).acquire_owned().await.ok();
        permit.map(|permit| Self(Arc::new(permit)))
    }

    pub(super) fn take_many(of: &Arc<Semaphore>, count: u32) -> Option<Self> {
        let permits = Arc::clone(of).try_acquire_many_owned(count).ok();
        permits.map(|permits| Self(Arc::new(permits)))
    }
}

/// Place of a question to a peer.
#[derive(Debug)]
pub(super) enum AskPlace {
    /// Among those in progress.
    Taken(Permit),
    /// Its bytes in the queue for one.
    Waiting(Permit),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test, from two virtual machines on a busy host: with leases of 5 s, a pause of
    /// 0.6 s ended the connections. Clients got `NodeLost` for a node that was live.
    #[test]
    fn connections_live_as_long_as_leases() {
        for lease_ms in [100, 1000, 5000, 60_000] {
            let times = PeerTimes::for_lease(Duration::from_millis(lease_ms));
            let alive = times.keep_alive_interval + times.keep_alive_timeout;
            assert!(alive >= Duration::from_millis(lease_ms / 2), "{lease_ms}: {times:?}");
            assert!(alive <= Duration::from_millis(lease_ms.max(1000)), "{lease_ms}: {times:?}");
        }
    }
}
