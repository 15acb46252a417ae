//! Reads of many chunks: a queue of requests, and threads with one connection each.
//!
//! A thread sends requests ahead of their answers, up to the window, and receives the answers in
//! order, directly into the destination.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::connect::{PeerConnection, dial};
use super::fetch::{Fetch, FetchRequest};
use super::shared::PeerShared;
use crate::error::{ConnectionError, FrameError, NetError};
use crate::frame::{
    ConnectionClass, ErrorCode, ExpectedRanges, Op, encode_packed_read, encode_ranges,
};
use crate::pack::Stretch;
use crate::source::HoldId;

/// Maximum bytes of unanswered Read requests on one connection. They fit the socket buffers, so a
/// send never blocks on the peer, which may itself wait for this node to receive.
const REQUESTS_AHEAD_BYTES: usize = 32 << 10;

/// Queued requests above which a further fetch is refused: 64 GiB of data. A single fetch may
/// exceed this; the cache limits it.
const WAITING_MAX: usize = 1 << 16;

/// Time without work after which a thread closes its connection.
const IDLE: Duration = Duration::from_secs(60);

/// Bytes between two computations of the bandwidth: half a window of a fast link.
const MEASURE_BYTES: u64 = 16 << 20;

/// On a slow link the bandwidth is computed after this time, and these bytes.
const MEASURE_TIME: Duration = Duration::from_millis(100);
const MEASURE_BYTES_MIN: u64 = 1 << 20;

#[derive(Default)]
struct BulkState {
    requests: VecDeque<FetchRequest>,
    closed: Option<NetError>,
}

/// Requests that wait for a connection.
pub(super) struct BulkQueue {
    peer: Arc<PeerShared>,
    state: Mutex<BulkState>,
    changed: Condvar,
}

enum NextWork {
    Request(FetchRequest),
    Nothing,
    Closed,
}

impl BulkQueue {
    pub(super) fn new(peer: Arc<PeerShared>) -> Self {
        Self { peer, state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, BulkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends requests.
    fn push(&self, requests: Vec<FetchRequest>) -> Result<(), NetError> {
        let mut state = self.lock();
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        let waiting = state.requests.len();
        if waiting >= WAITING_MAX {
            let peer = self.peer.options.name.clone();
            return Err(NetError::Busy { peer, waiting, max: WAITING_MAX });
        }
        state.requests.extend(requests);
        self.changed.notify_all();
        Ok(())
    }

    /// Prepends requests that were already sent.
    fn put_back(&self, requests: impl DoubleEndedIterator<Item = FetchRequest>) {
        let mut state = self.lock();
        for request in requests.rev() {
            match &state.closed {
                Some(error) => request.fetch.fail(error.clone()),
                None => state.requests.push_front(request),
            }
        }
        self.changed.notify_all();
    }

    fn take(&self, wait: Option<Duration>) -> NextWork {
        let mut state = self.lock();
        let begin = Instant::now();
        loop {
            if state.closed.is_some() {
                return NextWork::Closed;
            }
            while let Some(request) = state.requests.pop_front() {
                if !request.fetch.has_failed() {
                    return NextWork::Request(request);
                }
            }
            let left = wait.and_then(|wait| wait.checked_sub(begin.elapsed()));
            let Some(left) = left.filter(|left| !left.is_zero()) else {
                return NextWork::Nothing;
            };
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Removes the requests of a failed fetch.
    pub(super) fn remove(&self, fetch: &Arc<Fetch>) {
        let mut state = self.lock();
        let (of_it, rest) =
            state.requests.drain(..).partition(|request| Arc::ptr_eq(&request.fetch, fetch));
        state.requests = rest;
        drop(state);
        // Dropped without the lock: the end of a claim takes locks of the cache.
        drop::<VecDeque<_>>(of_it);
    }

    /// Closes the queue: all queued and later requests fail with this error.
    pub(super) fn close(&self, error: &NetError) {
        let mut state = self.lock();
        state.closed.get_or_insert_with(|| error.clone());
        let requests = std::mem::take(&mut state.requests);
        drop(state);
        requests.iter().for_each(|request| request.fetch.fail(error.clone()));
        self.changed.notify_all();
    }
}

/// Queues all requests of a fetch.
pub(super) fn fetch(queue: &BulkQueue, fetch: &Arc<Fetch>, hold: HoldId) -> Result<(), NetError> {
    queue.push(fetch.requests(hold))
}

/// Runs one of a peer's `threads`, until the queue is closed.
pub(super) fn run(queue: &BulkQueue, threads: usize) {
    let shared = &*queue.peer;
    let mut connection = None;
    loop {
        let request = match queue.take(Some(IDLE)) {
            NextWork::Request(request) => request,
            NextWork::Nothing => {
                // The peer closes idle connections, so close this one. The next request dials
                // again.
                connection = None;
                continue;
            }
            NextWork::Closed => return,
        };
        if connection.as_ref().is_none_or(|one: &PeerConnection| one.socket.is_cut()) {
            connection = match dial(shared, ConnectionClass::Bulk) {
                Ok(connection) => Some(connection),
                Err(error) => {
                    let error = shared.dialer.error(shared, error);
                    queue.put_back(request.again(None, &error).into_iter());
                    continue;
                }
            };
        }
        if let Some(of_stream) = &mut connection {
            let mut stream =
                BulkStream { shared, queue, threads, connection: of_stream, sent: VecDeque::new() };
            if let Err(error) = stream.run(request) {
                let sent = std::mem::take(&mut stream.sent);
                of_stream.socket.cut(error.to_string());
                tracing::debug!(peer = %shared.options.name, %error, "bulk connection ended");
                connection = None;
                let error = shared.dialer.error(shared, error);
                let again = sent
                    .into_iter()
                    .filter_map(|sent| sent.request.again(Some(&sent.expected), &error));
                queue.put_back(again.collect::<Vec<_>>().into_iter());
            }
        }
    }
}

struct SentRequest {
    request: FetchRequest,
    expected: ExpectedRanges,
    frame_bytes: usize,
    /// The request asked for packed pieces.
    may_be_packed: bool,
}

/// A connection with outstanding requests.
struct BulkStream<'a> {
    queue: &'a BulkQueue,
    shared: &'a PeerShared,
    threads: usize,
    connection: &'a mut PeerConnection,
    /// In the order of the expected answers.
    sent: VecDeque<SentRequest>,
}

impl BulkStream<'_> {
    /// Runs until every sent request is answered and the queue is empty.
    fn run(&mut self, first: FetchRequest) -> Result<(), ConnectionError> {
        self.send(first)?;
        let (mut begin, mut stretch) = (Instant::now(), Stretch::default());
        while !self.sent.is_empty() {
            self.fill_window()?;
            self.receive(&mut stretch)?;
            let is_slow = stretch.wire >= MEASURE_BYTES_MIN && begin.elapsed() >= MEASURE_TIME;
            if stretch.wire >= MEASURE_BYTES || is_slow {
                self.shared.on_stretch(&stretch, begin.elapsed(), self.threads);
                (begin, stretch) = (Instant::now(), Stretch::default());
            }
        }
        Ok(())
    }

    fn fill_window(&mut self) -> Result<(), ConnectionError> {
        let window = self.shared.link().window_bytes() / self.threads as u64;
        loop {
            let bytes: u64 = self.sent.iter().map(|sent| sent.expected.bytes()).sum();
            let frames: usize = self.sent.iter().map(|sent| sent.frame_bytes).sum();
            if bytes >= window || frames >= REQUESTS_AHEAD_BYTES {
                return Ok(());
            }
            match self.queue.take(None) {
                NextWork::Request(request) => self.send(request)?,
                NextWork::Nothing | NextWork::Closed => return Ok(()),
            }
        }
    }

    fn send(&mut self, request: FetchRequest) -> Result<(), ConnectionError> {
        let (id, hold) = (self.shared.number(), request.hold.0);
        let wish = self.shared.pack_wish(self.threads).filter(|_| self.connection.can_pack);
        let (op, body) = match wish {
            Some(wish) => (Op::ReadPacked, encode_packed_read(wish, &request.ranges)),
            None => (Op::Read, encode_ranges(&request.ranges)),
        };
        let (expected, frame_bytes) = (ExpectedRanges::new(id, &request.ranges), body.len());
        // Record before sending, so that a failed request is sent again.
        let may_be_packed = wish.is_some();
        self.sent.push_back(SentRequest { request, expected, frame_bytes, may_be_packed });
        self.connection.writer.write_bytes(op, id, hold, &body)
    }

    /// Receives one frame.
    fn receive(&mut self, stretch: &mut Stretch) -> Result<(), ConnectionError> {
        let reader = &mut self.connection.reader;
        let header = reader.header(reader.stall())?;
        let Some(sent) = self.sent.front_mut() else {
            let (op, id, place) = (header.op, header.id, "where no request waits");
            return Err(FrameError::Unexpected { op, id, place }.into());
        };
        match header.op {
            Op::Data | Op::Packed if header.op == Op::Data || sent.may_be_packed => {
                let fetch = &sent.request.fetch;
                let piece = match header.op {
                    Op::Packed => {
                        let piece = sent.expected.check_packed(&header)?;
                        let counts = &*self.shared.options.packing.counts;
                        fetch.receive_packed(reader, &header, (piece, counts))?;
                        stretch.packed += piece.length.0;
                        piece
                    }
                    _ => {
                        let piece = sent.expected.check(&header)?;
                        fetch.receive(reader, &header, piece)?;
                        piece
                    }
                };
                stretch.wire += header.length;
                stretch.bytes += piece.length.0;
                sent.expected.advance();
                if sent.expected.is_done() {
                    fetch.on_request_done();
                    self.sent.pop_front();
                }
            }
            Op::Error if header.id == sent.expected.id() => {
                let body = reader.body(&header)?;
                sent.request.fetch.fail(NetError::Refused {
                    peer: self.shared.options.name.clone(),
                    code: ErrorCode::from_word(header.offset),
                    text: String::from_utf8_lossy(&body).into_owned(),
                });
                self.sent.pop_front();
            }
            op => {
                let place = "where data is due";
                return Err(FrameError::Unexpected { op, id: header.id, place }.into());
            }
        }
        self.shared.on_progress();
        Ok(())
    }
}
