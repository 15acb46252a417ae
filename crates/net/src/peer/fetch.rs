//! Fetches: the requested ranges of one object, and the call that waits for them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farrow_memory::{Length, Span};

use super::destination::Destination;
use super::shared::PeerShared;
use crate::error::{ConnectionError, FrameError, NetError};
use crate::frame::{ExpectedRanges, FrameHeader, RANGES_MAX, behind};
use crate::pack::{PackedCounts, unpack};
use crate::records::FrameReader;
use crate::source::HoldId;

/// Bytes of one request: large enough that the cost of headers and calls is negligible, small
/// enough that several fit the window.
const REQUEST_BYTES: u64 = 1 << 20;

/// Attempts of a request, failed connections included, before its fetch fails.
const ATTEMPTS_MAX: u32 = 4;

/// Minimum size of a fetch for allocating pages ahead: for less, that takes as long as the fetch.
const COMMIT_AHEAD_BYTES_MIN: u64 = 1 << 20;

/// Checks for remaining writers before the thread sleeps between checks. After a success the last
/// writer ends very soon.
const YIELDS_MAX: u32 = 100;

/// Maximum time between two checks for progress.
pub(super) const LOOK: Duration = Duration::from_millis(250);

/// What a fetch without a waiting caller does at its end: with the bytes it brought, or its error.
pub(super) type OnEnd = Box<dyn FnOnce(Result<Length, NetError>) + Send>;

#[derive(Default)]
struct FetchState {
    requests_left: usize,
    bytes_done: u64,
    error: Option<NetError>,
    on_end: Option<OnEnd>,
}

/// Requested bytes. Every request holds a reference, so the bytes stay claimed while a connection
/// may still write them, even after the caller has returned.
pub(super) struct Fetch {
    destination: Destination,
    state: Mutex<FetchState>,
    changed: Condvar,
}

/// One request of a fetch.
pub(super) struct FetchRequest {
    pub(super) fetch: Arc<Fetch>,
    pub(super) hold: HoldId,
    pub(super) ranges: Vec<Span>,
    attempts: u32,
}

impl FetchRequest {
    /// The request for the bytes that have not arrived. `None` if the fetch has failed; the last
    /// attempt fails it with `error`.
    pub(super) fn again(
        mut self,
        expected: Option<&ExpectedRanges>,
        error: &NetError,
    ) -> Option<Self> {
        self.attempts += 1;
        if let Some(expected) = expected {
            self.ranges = expected.rest();
        }
        if self.attempts >= ATTEMPTS_MAX {
            self.fetch.fail(error.clone());
        }
        (!self.fetch.has_failed()).then_some(self)
    }
}

impl Fetch {
    pub(super) fn new(destination: Destination) -> Arc<Self> {
        Arc::new(Self { destination, state: Mutex::default(), changed: Condvar::new() })
    }

    /// A fetch that no thread waits for. The thread that receives its last byte calls `on_end`.
    pub(super) fn with_end(destination: Destination, on_end: OnEnd) -> Arc<Self> {
        let state = FetchState { on_end: Some(on_end), ..FetchState::default() };
        Arc::new(Self { destination, state: Mutex::new(state), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, FetchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Divides the fetch into requests, and counts them as outstanding.
    pub(super) fn requests(self: &Arc<Self>, hold: HoldId) -> Vec<FetchRequest> {
        let mut requests: Vec<FetchRequest> = Vec::new();
        let mut bytes = 0;
        for span in self.destination.spans() {
            let mut rest = Some(*span);
            while let Some(range) = rest {
                // Ranges end with the span or a chunk: a partial chunk would never become complete.
                let to_boundary = REQUEST_BYTES - range.offset.0 % REQUEST_BYTES;
                let length = Length(range.length.0.min(to_boundary));
                let is_full = requests.last().is_none_or(|last| last.ranges.len() >= RANGES_MAX);
                if is_full || bytes + length.0 > REQUEST_BYTES {
                    let (fetch, ranges) = (Arc::clone(self), Vec::new());
                    requests.push(FetchRequest { fetch, hold, ranges, attempts: 0 });
                    bytes = 0;
                }
                if let Some(last) = requests.last_mut() {
                    last.ranges.push(Span::new(range.offset, length));
                }
                bytes += length.0;
                rest = behind(range, length);
            }
        }
        self.lock().requests_left = requests.len();
        requests
    }

    /// Receives the bytes of a piece into the destination.
    pub(super) fn receive(
        &self,
        reader: &mut FrameReader,
        header: &FrameHeader,
        piece: Span,
    ) -> Result<(), ConnectionError> {
        let place = self.destination.place(piece).ok_or_else(|| {
            let (op, id, place) = (header.op, header.id, "outside of what was asked for");
            FrameError::Unexpected { op, id, place }
        })?;
        reader.body_into(header, self.destination.map(), place)?;
        self.destination.complete(piece);
        self.lock().bytes_done += piece.length.0;
        Ok(())
    }

    /// Receives a packed piece, and writes its bytes to the destination.
    pub(super) fn receive_packed(
        &self,
        reader: &mut FrameReader,
        header: &FrameHeader,
        (piece, counts): (Span, &PackedCounts),
    ) -> Result<(), ConnectionError> {
        let place = self.destination.place(piece).ok_or_else(|| {
            let (op, id, place) = (header.op, header.id, "outside of what was asked for");
            FrameError::Unexpected { op, id, place }
        })?;
        let packed = reader.body(header)?;
        let plain = unpack(&packed, piece.length.0, counts)?;
        self.destination.map().write(place.offset, &plain)?;
        self.destination.complete(piece);
        self.lock().bytes_done += piece.length.0;
        Ok(())
    }

    pub(super) fn on_request_done(&self) {
        let mut state = self.lock();
        state.requests_left = state.requests_left.saturating_sub(1);
        if state.requests_left > 0 {
            return;
        }
        match state.on_end.take() {
            Some(on_end) => {
                let bytes = Length(state.bytes_done);
                drop(state);
                self.destination.end();
                on_end(Ok(bytes));
            }
            None => self.changed.notify_all(),
        }
    }

    /// Fails the fetch. The first error is retained.
    pub(super) fn fail(&self, error: NetError) {
        let mut state = self.lock();
        state.error.get_or_insert_with(|| error.clone());
        let on_end = state.on_end.take();
        drop(state);
        self.changed.notify_all();
        if let Some(on_end) = on_end {
            on_end(Err(error));
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.lock().error.is_some()
    }

    pub(super) fn is_over(&self) -> bool {
        let state = self.lock();
        state.requests_left == 0 || state.error.is_some()
    }

    /// Waits for every request, and meanwhile allocates pages. Fails after `time`, or if no data of
    /// the peer arrives for the length of [`PeerShared::patience`].
    pub(super) fn wait(
        self: &Arc<Self>,
        shared: &PeerShared,
        begin: Instant,
        time: Duration,
    ) -> Result<(), NetError> {
        if self.destination.length().0 >= COMMIT_AHEAD_BYTES_MIN
            && let Err(error) = self.destination.commit_ahead(&|| self.is_over())
        {
            self.fail(NetError::Cache(error.into()));
        }
        let outcome = self.wait_for_requests(shared, begin, time);
        if outcome.is_ok() {
            // Every answer is in place, but the receiving threads may still hold references.
            self.destination.end();
        }
        outcome
    }

    /// Waits until no connection holds a request of a placed fetch. A mirror needs no wait: these
    /// requests keep its bytes claimed. After `patience`, `cut` ends connections that hold one.
    pub(super) fn wait_for_writers(self: &Arc<Self>, patience: Duration, cut: impl Fn()) {
        if matches!(self.destination, Destination::Placed(_)) {
            let begin = Instant::now();
            let mut looks = 0;
            while Arc::strong_count(self) > 1 {
                looks += 1;
                match looks < YIELDS_MAX {
                    true => std::thread::yield_now(),
                    false => std::thread::sleep(Duration::from_micros(200)),
                }
                // A stalled connection ends by itself, and one that answers others does not.
                if looks > YIELDS_MAX && begin.elapsed() > patience {
                    cut();
                }
            }
        }
    }

    fn wait_for_requests(
        &self,
        shared: &PeerShared,
        begin: Instant,
        time: Duration,
    ) -> Result<(), NetError> {
        let (mut seen, mut moved) = (shared.progress(), Instant::now());
        let mut state = self.lock();
        loop {
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            if state.requests_left == 0 {
                return Ok(());
            }
            let left = time.saturating_sub(begin.elapsed());
            if left.is_zero() {
                let (done, requested) = (Length(state.bytes_done), self.destination.length());
                let peer = shared.options.name.clone();
                let error = NetError::Deadline { peer, done, requested, waited: time };
                return Err(state.error.insert(error).clone());
            }
            let progress = shared.progress();
            if progress != seen {
                (seen, moved) = (progress, Instant::now());
            }
            let waited = shared.patience();
            if moved.elapsed() > waited {
                let error = shared.failed(ConnectionError::Stalled { waited });
                return Err(state.error.insert(error).clone());
            }
            let woken = self.changed.wait_timeout(state, left.min(LOOK));
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
