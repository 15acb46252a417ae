//! The reader's side of the data path: everything that this node asks of one peer.
//!
//! Calls block, each with a limit, so they belong on a daemon's worker threads and not on its event
//! loop. Opens and small reads go by one connection (`small`) and never wait behind bulk. Bulk
//! reads are divided into requests that threads of the peer take from a queue, one thread and
//! connection each (`bulk`). The caller's thread sends a push (`push`).
//!
//! A connection that fails is made again, with growing pauses. Reads that were on their way are
//! asked for again, a few times; bytes that had arrived are not. A frame that no honest peer sends
//! ends the connection with a reason.

mod bulk;
mod connect;
mod destination;
mod fetch;
mod push;
mod small;

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farrow_memory::sync::{AtomicU64, Ordering};
use farrow_memory::{Length, Span};

use crate::cache::MirrorHold;
use crate::error::{ConnectionError, FrameError, NetError};
use crate::frame::{OPEN_BYTES_MAX, Op, Opened};
use crate::records::Credentials;
pub use crate::socket::SocketOptions;
use crate::source::HoldId;
use crate::ticket::Ticket;
use crate::window::LinkEstimate;
use connect::Dialer;
use destination::Destination;
pub use destination::{Piece, Placement};
use fetch::Fetch;

/// Fetches up to this size go by the small connection: two chunks, as a fault and its neighbour.
const SMALL_FETCH_BYTES_MAX: u64 = 128 << 10;

/// Address and settings of a peer.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    /// Its name as a member.
    pub name: String,
    /// Its data listener.
    pub address: SocketAddr,
    /// Length of its data section.
    pub section: Length,
    /// Of each connection.
    pub socket: SocketOptions,
    /// Connections, and threads, for bulk reads.
    pub bulk_connections: usize,
    /// Connections for pushes.
    pub push_connections: usize,
    /// Longest time until a connection is made.
    pub connect: Duration,
}

impl PeerOptions {
    /// Two bulk connections, two for pushes; a second to connect.
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
        }
    }
}

/// Requests of a peer object to its daemon, from threads of its own.
pub trait DaemonControl: Send + Sync {
    /// A ticket for one connection, asked of the peer over the control channel. Returns within a
    /// limit of its own.
    ///
    /// # Errors
    /// Why there is none.
    fn ticket(&self) -> Result<Ticket, String>;

    /// The peer says that an object was deleted. Returns soon; the answer is
    /// [`Peer::acknowledge_gone`], from any thread.
    fn gone(&self, notice: u64, object: u64);
}

/// Result of a fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchReport {
    /// Bytes that this call brought.
    pub fetched: Length,
}

/// An object that is held at its home.
#[derive(Debug)]
pub struct OpenedObject {
    /// The hold: [`Peer::release`] ends it.
    pub hold: HoldId,
    /// Blocks, entry, and the bytes of a small object.
    pub opened: Opened,
}

struct PeerShared {
    options: PeerOptions,
    credentials: Credentials,
    control: Arc<dyn DaemonControl>,
    dialer: Dialer,
    small: small::Small,
    queue: bulk::Queue,
    pushes: push::PushPool,
    link: Mutex<LinkEstimate>,
    numbers: AtomicU64,
    /// Grows with everything that arrives: what waits for bytes behind others sees that they move.
    progress: AtomicU64,
}

impl PeerShared {
    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn link(&self) -> MutexGuard<'_, LinkEstimate> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on_progress(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Longest time in which nothing at all arrives while something is asked for: a stalled
    /// connection, and another attempt.
    fn patience(&self) -> Duration {
        2 * (self.options.socket.stall + self.options.connect)
    }

    fn failed(&self, reason: impl Into<Arc<ConnectionError>>) -> NetError {
        NetError::Connection { peer: self.options.name.clone(), reason: reason.into() }
    }
}

/// One peer. Dropping it ends its threads and connections.
pub struct Peer {
    shared: Arc<PeerShared>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Peer {
    /// Starts its threads. Connections are made when they are needed.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(
        options: PeerOptions,
        credentials: Credentials,
        control: Arc<dyn DaemonControl>,
    ) -> Result<Self, ConnectionError> {
        let count = options.bulk_connections.max(1);
        // Holds of an earlier process of this node may still be known at the peer, by their numbers.
        let first_number = getrandom::u64()
            .map_err(|error| ConnectionError::Cut(format!("no random bytes: {error}")))?
            >> 1;
        let shared = Arc::new(PeerShared {
            dialer: Dialer::default(),
            small: small::Small::default(),
            queue: bulk::Queue::default(),
            pushes: push::PushPool::new(options.push_connections.max(1)),
            link: Mutex::default(),
            numbers: AtomicU64::new(first_number),
            progress: AtomicU64::new(0),
            options,
            credentials,
            control,
        });
        let mut peer = Self { shared, threads: Vec::new() };
        for number in 0..count {
            let shared = Arc::clone(&peer.shared);
            let thread = std::thread::Builder::new().name(format!("farrow-net-bulk-{number}"));
            peer.threads.push(thread.spawn(move || bulk::run(&shared, count))?);
        }
        Ok(peer)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.options.name
    }

    /// The measured link.
    #[must_use]
    pub fn link(&self) -> LinkEstimate {
        self.shared.link().clone()
    }

    /// Finds an object at the peer and holds it there. `want` is for the peer's daemon to interpret.
    ///
    /// # Errors
    /// [`NetError::Refused`] if there is none or this node may not read it; [`NetError::Connection`],
    /// [`NetError::Lost`]; [`NetError::Request`] for a `want` above [`OPEN_BYTES_MAX`].
    pub fn open(&self, want: &[u8]) -> Result<OpenedObject, NetError> {
        let (length, max) = (want.len() as u64, OPEN_BYTES_MAX);
        if length == 0 || length > max {
            return Err(FrameError::BodyLength { op: Op::Open, length, min: 1, max }.into());
        }
        small::open(&self.shared, want)
    }

    /// Ends a hold at the peer. Does not wait for the answer; it is repeated by the next connection
    /// until there is one.
    pub fn release(&self, hold: HoldId) {
        small::release(&self.shared, hold);
    }

    /// No reader of this node finds the object any more.
    ///
    /// # Errors
    /// There is no connection: the peer repeats its notice by the next one.
    pub fn acknowledge_gone(&self, notice: u64, object: u64) -> Result<(), NetError> {
        small::acknowledge_gone(&self.shared, notice, object)
    }

    /// Brings ranges of a held object into the mirror, except what is there or on its way by another
    /// call, and returns when all of them are complete. Each range lies in one block of the object,
    /// which `hold` holds at the peer. Takes `time` at most, of which waiting for room is part.
    ///
    /// # Errors
    /// [`NetError::Cache`] if there is no room; [`NetError::Connection`], [`NetError::Refused`],
    /// [`NetError::Lost`], [`NetError::Deadline`]. Parts that had arrived stay.
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
        loop {
            if object.is_complete(ranges)? {
                return Ok(FetchReport { fetched: Length(fetched) });
            }
            let claim = object.claim(ranges, left())?;
            let bytes = claim.length().0;
            self.bring(Destination::Mirror(claim), hold, begin, time)?;
            fetched += bytes;
            // Another call brings the rest. If it fails, its parts are this call's to bring.
            let is_complete = object.wait_for_others(ranges, left())?;
            if !is_complete && left().is_zero() {
                return Err(NetError::Deadline {
                    peer: self.shared.options.name.clone(),
                    done: Length(fetched),
                    asked: Length(ranges.iter().map(|range| range.length.0).sum()),
                    waited: time,
                });
            }
        }
    }

    /// Brings ranges of an object that `hold` holds at the peer to other offsets of a map, and returns
    /// when all of them are there. Each range lies in one block of the object. Takes `time` at most.
    /// When it returns no thread writes to these places any more, also after an error: that takes
    /// no longer than its connection can stall.
    ///
    /// # Errors
    /// [`NetError::Connection`], [`NetError::Refused`], [`NetError::Lost`], [`NetError::Deadline`].
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
        let fetch = Fetch::new(destination);
        let sent = match bytes <= SMALL_FETCH_BYTES_MAX {
            true => small::fetch(&self.shared, &fetch, hold),
            false => bulk::fetch(&self.shared, &fetch, hold),
        };
        let outcome = sent.and_then(|()| fetch.wait(&self.shared, begin, time));
        fetch.wait_for_writers();
        outcome
    }

    /// Writes ranges of a map to the same offsets at the peer, where they lie in a grant of this
    /// node. Returns when the peer has every byte in its memory. Nothing is committed by it: the
    /// seal is a later message.
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
        push::push(&self.shared, grant, map, ranges, time)
    }

    /// The peer is no member any more. All waiting and later calls end with [`NetError::Lost`].
    /// Complete parts of the mirror stay readable.
    pub fn lose(&self, reason: &str) {
        self.shared.dialer.lose(reason);
        let error = self.shared.dialer.lost_error(&self.shared.options.name);
        self.shared.queue.close(&error);
        self.shared.small.close();
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
