//! The reader's side of the data path: all requests of this node to one peer.
//!
//! Calls block, each with a limit, so they belong on a daemon's worker threads and not on its event
//! loop. Opens and small reads use one connection (`small`), and never wait behind bulk data. Bulk
//! reads are divided into requests in a queue, which threads with one connection each process
//! (`bulk`). The caller's thread sends a push (`push`).
//!
//! A failed connection is established again, with growing pauses. Incomplete reads are retried a
//! few times, without the bytes that have already arrived. A protocol violation ends the connection
//! with a reason.

mod bulk;
mod connect;
mod destination;
mod fetch;
mod push;
#[cfg(feature = "rdma")]
mod rdma;
mod shared;
mod small;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farrow_memory::sync::AtomicU64;
use farrow_memory::{Length, Span};

use crate::cache::MirrorHold;
use crate::error::{ConnectionError, FrameError, NetError};
use crate::frame::{OPEN_BYTES_MAX, Op};
use crate::records::Credentials;
pub use crate::socket::SocketOptions;
use crate::source::HoldId;
use crate::window::LinkEstimate;
use connect::Dialer;
use destination::Destination;
pub use destination::{Piece, Placement};
use fetch::{Fetch, LOOK};
use shared::PeerShared;
pub use shared::{DaemonControl, OpenedObject, PeerOptions};

/// Maximum size of a fetch on the small connection: two chunks, as for a page fault and the chunk
/// after it. Such a fetch never waits behind bulk data.
pub const SMALL_FETCH_BYTES_MAX: u64 = 128 << 10;

/// Result of a fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchReport {
    /// Bytes transferred by this call.
    pub fetched: Length,
}

/// Outcome of [`Peer::begin_fetch`].
#[derive(Debug)]
pub enum FetchStart {
    /// All bytes are there. Nothing is called.
    Complete,
    /// Another call brings some of the bytes, so [`Peer::fetch`] must wait for it. Nothing is called.
    Contended,
    /// The bytes are on their way.
    Started(StartedFetch),
}

/// A fetch that no thread waits for.
pub struct StartedFetch(Arc<Fetch>);

impl fmt::Debug for StartedFetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartedFetch").field("is_over", &self.is_over()).finish_non_exhaustive()
    }
}

impl StartedFetch {
    /// Whether all bytes have arrived or it has failed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_over()
    }
}

/// One peer. Dropping it ends its threads and connections.
pub struct Peer {
    shared: Arc<PeerShared>,
    small: Arc<small::Small>,
    queue: Arc<bulk::BulkQueue>,
    pushes: push::PushPool,
    #[cfg(feature = "rdma")]
    one_sided: rdma::OneSidedReader,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Peer {
    /// Starts the threads of a peer. Connections are established on demand.
    ///
    /// # Errors
    /// [`ConnectionError`] if a thread cannot be started, or there are no random bytes.
    pub fn start(
        options: PeerOptions,
        credentials: Credentials,
        control: Arc<dyn DaemonControl>,
    ) -> Result<Self, ConnectionError> {
        let count = options.bulk_connections.max(1);
        // Random, since the peer may still know holds of an earlier process of this node by number.
        let first_number = getrandom::u64()
            .map_err(|error| ConnectionError::Cut(format!("no random bytes: {error}")))?
            >> 1;
        let shared = Arc::new(PeerShared {
            dialer: Dialer::default(),
            link: Mutex::default(),
            pack_trial: Mutex::default(),
            numbers: AtomicU64::new(first_number),
            progress: AtomicU64::new(0),
            options,
            credentials,
            control,
        });
        let small = Arc::new(small::Small::new(Arc::clone(&shared)));
        let queue = Arc::new(bulk::BulkQueue::new(Arc::clone(&shared)));
        let pushes = push::PushPool::new(Arc::clone(&shared));
        let mut peer = Self {
            #[cfg(feature = "rdma")]
            one_sided: rdma::OneSidedReader::new(Arc::clone(&shared)),
            shared,
            small,
            queue,
            pushes,
            threads: Vec::new(),
        };
        for number in 0..count {
            let queue = Arc::clone(&peer.queue);
            let thread = std::thread::Builder::new().name(format!("farrow-net-bulk-{number}"));
            peer.threads.push(thread.spawn(move || bulk::run(&queue, count))?);
        }
        let releasing = Arc::clone(&peer.small);
        let thread = std::thread::Builder::new().name("farrow-net-release".into());
        peer.threads.push(thread.spawn(move || small::run_releases(&releasing))?);
        Ok(peer)
    }

    /// Member name of the peer.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.options.name
    }

    /// The measured properties of the link.
    #[must_use]
    pub fn link(&self) -> LinkEstimate {
        self.shared.link().clone()
    }

    /// Whether the last large fetch was read by the network card.
    #[cfg(feature = "rdma")]
    #[must_use]
    pub fn is_by_rdma(&self) -> bool {
        self.one_sided.is_used()
    }

    /// Finds an object at the peer and holds it there. The peer's daemon interprets `want`.
    ///
    /// # Errors
    /// [`NetError::Refused`] if the object does not exist or this node may not read it;
    /// [`NetError::Connection`], [`NetError::Lost`]; [`NetError::Request`] if `want` is empty or
    /// longer than [`OPEN_BYTES_MAX`].
    pub fn open(&self, want: &[u8]) -> Result<OpenedObject, NetError> {
        let (length, max) = (want.len() as u64, OPEN_BYTES_MAX);
        if length == 0 || length > max {
            return Err(FrameError::BodyLength { op: Op::Open, length, min: 1, max }.into());
        }
        small::open(&self.small, want)
    }

    /// Length of the peer's data section, as its connections expect it.
    #[must_use]
    pub fn section(&self) -> Length {
        self.shared.options.section
    }

    /// Ends a hold at the peer. Waits for nothing, so an event loop may call it: a thread sends the
    /// release. Without an answer, the next connection repeats it.
    pub fn release(&self, hold: HoldId) {
        small::release(&self.small, hold);
    }

    /// Acknowledges a notice: no reader of this node can find the object.
    ///
    /// # Errors
    /// [`NetError::Connection`], [`NetError::Lost`]. The peer repeats its notice on the next
    /// connection.
    pub fn acknowledge_invalidation(&self, notice: u64, object: u64) -> Result<(), NetError> {
        small::acknowledge_invalidation(&self.small, notice, object)
    }

    /// Fetches ranges of a held object into the mirror, except parts that are complete or arriving
    /// by another call, and returns when all ranges are complete. Each range must be within one
    /// block of the object, which `hold` holds at the peer. `time` includes the wait for room.
    ///
    /// # Errors
    /// [`NetError::Cache`] if there is no room; [`NetError::Connection`], [`NetError::Refused`],
    /// [`NetError::Lost`], [`NetError::Busy`], [`NetError::Deadline`]. Complete parts are retained.
    pub fn fetch(
        &self,
        object: &MirrorHold,
        hold: HoldId,
        ranges: &[Span],
        time: Duration,
    ) -> Result<FetchReport, NetError> {
        let begin = Instant::now();
        let left = || time.saturating_sub(begin.elapsed());
        let mut fetched = 0;
        let mut seen = (self.progress(), begin);
        loop {
            if object.is_complete(ranges)? {
                return Ok(FetchReport { fetched: Length(fetched) });
            }
            let claim = object.claim(ranges, left())?;
            let bytes = claim.length().0;
            self.bring(Destination::Mirror(claim), hold, begin, time)?;
            fetched += bytes;
            // Another call fetches the rest. If it fails, this call fetches its parts.
            if object.wait_for_fetches(ranges, left().min(LOOK))? {
                continue;
            }
            if self.shared.dialer.is_lost() {
                return Err(self.shared.dialer.lost_error(self.name()));
            }
            if bytes > 0 || self.progress() != seen.0 {
                seen = (self.progress(), Instant::now());
            } else if seen.1.elapsed() > self.patience() {
                return Err(self.stalled());
            }
            if left().is_zero() {
                return Err(NetError::Deadline {
                    peer: self.shared.options.name.clone(),
                    done: Length(fetched),
                    requested: Length(ranges.iter().map(|range| range.length.0).sum()),
                    waited: time,
                });
            }
        }
    }

    /// Begins to fetch ranges as [`Peer::fetch`] does, and waits for nothing but a connection. `on_end`
    /// is called once, when all ranges are complete or the fetch has failed, by a thread of this
    /// peer or, before the return, by the caller's. It must return soon, and must not drop the peer.
    /// The fetch has no limit of time: see [`Peer::progress`] and [`Peer::cancel`].
    ///
    /// # Errors
    /// [`NetError::Cache`], [`NetError::Busy`], [`NetError::Lost`]; nothing is called then.
    pub fn begin_fetch(
        &self,
        object: &MirrorHold,
        hold: HoldId,
        ranges: &[Span],
        on_end: impl FnOnce(Result<Length, NetError>) + Send + 'static,
    ) -> Result<FetchStart, NetError> {
        if object.is_complete(ranges)? {
            return Ok(FetchStart::Complete);
        }
        let claim = object.claim(ranges, Duration::ZERO)?;
        let (claimed, requested) =
            (claim.length().0, ranges.iter().map(|range| range.length.0).sum());
        if claimed != requested {
            return Ok(FetchStart::Contended);
        }
        let fetch = Fetch::with_end(Destination::Mirror(claim), Box::new(on_end));
        match claimed <= SMALL_FETCH_BYTES_MAX {
            true => small::fetch(&self.small, &fetch, hold)?,
            false => bulk::fetch(&self.queue, &fetch, hold)?,
        }
        Ok(FetchStart::Started(StartedFetch(fetch)))
    }

    /// Fails a fetch that was begun, unless it is over.
    pub fn cancel(&self, fetch: &StartedFetch, error: NetError) {
        if !fetch.is_over() {
            fetch.0.fail(error);
            self.queue.remove(&fetch.0);
        }
    }

    /// A number that grows with each frame of the peer that arrives. If it does not for
    /// [`Peer::patience`], what is on its way has stalled.
    #[must_use]
    pub fn progress(&self) -> u64 {
        self.shared.progress()
    }

    /// The longest time without progress while requests are outstanding.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.shared.patience()
    }

    /// The error of requests that have stalled.
    #[must_use]
    pub fn stalled(&self) -> NetError {
        self.shared.failed(ConnectionError::Stalled { waited: self.shared.patience() })
    }

    /// Fetches ranges of an object that `hold` holds at the peer to other offsets of a map. Each
    /// range must be within one block of the object. After return, no thread writes to these
    /// offsets, even on error. The call may therefore exceed `time`, until connections that owe
    /// bytes have stalled or are ended.
    ///
    /// # Errors
    /// [`NetError::Connection`], [`NetError::Refused`], [`NetError::Lost`], [`NetError::Busy`],
    /// [`NetError::Deadline`].
    pub fn read(&self, placement: Placement, hold: HoldId, time: Duration) -> Result<(), NetError> {
        self.bring(Destination::Placed(placement), hold, Instant::now(), time)
    }

    fn bring(
        &self,
        destination: Destination,
        hold: HoldId,
        begin: Instant,
        time: Duration,
    ) -> Result<(), NetError> {
        let bytes = destination.length().0;
        if bytes == 0 {
            return Ok(());
        }
        #[cfg(feature = "rdma")]
        if bytes > SMALL_FETCH_BYTES_MAX && self.one_sided.fetch(&destination, hold) {
            return Ok(());
        }
        let fetch = Fetch::new(destination);
        let sent = match bytes <= SMALL_FETCH_BYTES_MAX {
            true => small::fetch(&self.small, &fetch, hold),
            false => bulk::fetch(&self.queue, &fetch, hold),
        };
        let outcome = sent.and_then(|()| {
            fetch.wait(&self.shared, begin, time).inspect_err(|_| self.queue.remove(&fetch))
        });
        fetch.wait_for_writers(self.shared.patience(), || small::cut_reads_of(&self.small, &fetch));
        outcome
    }

    /// Writes ranges of a map to the same offsets at the peer, within a grant of this node. Returns
    /// when every byte is in the peer's memory. A push commits nothing: a later message seals the
    /// object.
    ///
    /// # Errors
    /// [`NetError::Refused`] if the grant is not this node's; [`NetError::Connection`],
    /// [`NetError::Lost`], [`NetError::Busy`], [`NetError::Deadline`].
    pub fn push(
        &self,
        grant: crate::source::GrantId,
        map: &Arc<farrow_memory::FileMap>,
        ranges: &[Span],
        time: Duration,
    ) -> Result<(), NetError> {
        push::push(&self.pushes, grant, map, ranges, time)
    }

    /// Ends all connections to a peer that is no longer a member. All waiting and later calls fail
    /// with [`NetError::Lost`]. Complete parts of the mirror stay readable.
    pub fn lose(&self, reason: &str) {
        self.shared.dialer.lose(reason);
        let error = self.shared.dialer.lost_error(&self.shared.options.name);
        self.queue.close(&error);
        self.small.close();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.lose("this node has ended its connections");
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
