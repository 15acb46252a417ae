//! The small connection of a peer: opens, releases, notices and reads of some chunks.
//!
//! Callers write their own requests, and one thread receives for all. Requests overlap, and numbers
//! match answers to requests.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::connect::{PeerConnection, dial};
use super::fetch::{Fetch, FetchRequest};
use super::shared::{OpenedObject, PeerShared};
use crate::error::{ConnectionError, FrameError, NetError};
use crate::frame::{
    ConnectionClass, ErrorCode, ExpectedRanges, FrameHeader, Op, Opened, encode_ranges,
};
use crate::records::{FrameReader, FrameWriter};
use crate::socket::Socket;
use crate::source::HoldId;

/// Maximum unanswered requests.
const PENDING_MAX: usize = 4096;

/// Maximum attempts of an open, each on a new connection.
const OPEN_ATTEMPTS: usize = 3;

/// Pause after a connection for releases: they are not urgent.
const RELEASE_PAUSE: Duration = Duration::from_millis(100);

enum Pending {
    Open,
    Read(Box<(FetchRequest, ExpectedRanges)>),
}

#[derive(Debug)]
enum SmallAnswer {
    Opened(HoldId, Opened),
    Refused(ErrorCode, String),
}

#[derive(Default)]
struct PendingTable {
    pending: HashMap<u64, Pending>,
    /// Unanswered releases. The number of holds limits them.
    releases: HashSet<u64>,
    answers: HashMap<u64, SmallAnswer>,
    ended: Option<Arc<ConnectionError>>,
}

/// One connection and its outstanding requests.
struct SmallConnection {
    socket: Arc<Socket>,
    writer: Mutex<FrameWriter>,
    table: Mutex<PendingTable>,
    changed: Condvar,
}

impl SmallConnection {
    fn table(&self) -> MutexGuard<'_, PendingTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, op: Op, id: u64, offset: u64, body: &[u8]) -> Result<(), ConnectionError> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.write_bytes(op, id, offset, body)
    }
}

#[derive(Default)]
struct Releases {
    /// Released holds that the peer has not yet acknowledged.
    all: BTreeSet<u64>,
    /// Those of them that the releasing thread has not seen.
    fresh: Vec<u64>,
    is_closed: bool,
}

/// The current small connection and unacknowledged releases.
pub(super) struct Small {
    peer: Arc<PeerShared>,
    live: Mutex<Option<Arc<SmallConnection>>>,
    /// Held during a connect. Other callers wait for it: at most a pause and an attempt.
    dialing: Mutex<()>,
    releases: Mutex<Releases>,
    has_fresh: Condvar,
}

impl Small {
    pub(super) fn new(peer: Arc<PeerShared>) -> Self {
        Self {
            peer,
            live: Mutex::default(),
            dialing: Mutex::default(),
            releases: Mutex::default(),
            has_fresh: Condvar::new(),
        }
    }

    fn live(&self) -> MutexGuard<'_, Option<Arc<SmallConnection>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current connection, unless it has ended.
    fn usable(&self) -> Option<Arc<SmallConnection>> {
        self.live().clone().filter(|live| !live.socket.is_cut())
    }

    fn releases(&self) -> MutexGuard<'_, Releases> {
        self.releases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for new releases, or for the end of a connection that has not acknowledged all; `None`:
    /// the peer is lost.
    fn next_releases(&self) -> Option<Vec<u64>> {
        let mut releases = self.releases();
        while !releases.is_closed {
            let is_due = !releases.all.is_empty() && self.usable().is_none();
            if is_due || !releases.fresh.is_empty() {
                return Some(std::mem::take(&mut releases.fresh));
            }
            releases = self.has_fresh.wait(releases).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Pauses, unless the peer is lost.
    fn pause_releases(&self) {
        let is_open = |releases: &mut Releases| !releases.is_closed;
        drop(self.has_fresh.wait_timeout_while(self.releases(), RELEASE_PAUSE, is_open));
    }

    /// Forgets the releases: a lost peer retains no hold for this node.
    pub(super) fn close(&self) {
        *self.releases() = Releases { is_closed: true, ..Releases::default() };
        self.has_fresh.notify_all();
    }
}

/// The current connection, or a new one.
fn connection(small: &Arc<Small>) -> Result<Arc<SmallConnection>, ConnectionError> {
    if let Some(live) = small.usable() {
        return Ok(live);
    }
    let _dialing = small.dialing.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(live) = small.usable() {
        return Ok(live);
    }
    let PeerConnection { socket, reader, writer, .. } = dial(&small.peer, ConnectionClass::Small)?;
    let fresh = Arc::new(SmallConnection {
        socket,
        writer: Mutex::new(writer),
        table: Mutex::default(),
        changed: Condvar::new(),
    });
    let (of_thread, shared_with) = (Arc::clone(&fresh), Arc::clone(small));
    std::thread::Builder::new()
        .name("farrow-net-small".into())
        .spawn(move || receive_all(&shared_with, &of_thread, reader))?;
    // Before the releases are copied: one that comes later is sent by the releasing thread.
    *small.live() = Some(Arc::clone(&fresh));
    let releases: Vec<_> = small.releases().all.iter().copied().collect();
    for hold in releases {
        if let Err(error) = send_release(small, &fresh, hold) {
            fresh.socket.cut(error.to_string());
            return Err(error);
        }
    }
    Ok(fresh)
}

/// Records a request before it is sent. Returns it if the connection has ended or is full.
fn begin(
    live: &SmallConnection,
    id: u64,
    pending: Pending,
) -> Result<(), (Pending, ConnectionError)> {
    let mut table = live.table();
    let count = table.pending.len();
    let reason = match &table.ended {
        Some(ended) => ended.to_string(),
        None if count >= PENDING_MAX => format!("{count} requests wait, at most {PENDING_MAX}"),
        None => {
            table.pending.insert(id, pending);
            return Ok(());
        }
    };
    Err((pending, ConnectionError::Cut(reason)))
}

pub(super) fn open(small: &Arc<Small>, want: &[u8]) -> Result<OpenedObject, NetError> {
    let mut attempt = 1;
    loop {
        match open_once(small, want) {
            Ok(SmallAnswer::Opened(hold, opened)) => return Ok(OpenedObject { hold, opened }),
            Ok(SmallAnswer::Refused(code, text)) => {
                let peer = small.peer.options.name.clone();
                return Err(NetError::Refused { peer, code, text });
            }
            Err(error) if attempt >= OPEN_ATTEMPTS || small.peer.dialer.is_lost() => {
                return Err(small.peer.dialer.error(&small.peer, error));
            }
            Err(_) => attempt += 1,
        }
    }
}

fn open_once(small: &Arc<Small>, want: &[u8]) -> Result<SmallAnswer, ConnectionError> {
    let live = connection(small)?;
    let id = small.peer.number();
    // A new hold for each attempt: the peer may or may not have created the previous one.
    let hold = HoldId(id);
    begin(&live, id, Pending::Open).map_err(|(_, error)| error)?;
    let begin = Instant::now();
    let answer = live.write(Op::Open, id, hold.0, want).and_then(|()| wait_for(&live, id));
    match &answer {
        Ok(SmallAnswer::Opened(..)) => small.peer.link().on_round_trip(begin.elapsed()),
        Ok(SmallAnswer::Refused(..)) => {}
        Err(error) => {
            live.socket.cut(error.to_string());
            live.table().pending.remove(&id);
            release(small, hold);
        }
    }
    answer
}

/// Waits for an answer. The receiving thread ends the connection of a silent peer much sooner: see
/// [`check_wait`]. While other answers arrive, this one may need longer.
fn wait_for(live: &SmallConnection, id: u64) -> Result<SmallAnswer, ConnectionError> {
    let (begin, time) = (Instant::now(), live.socket.frame_time());
    let mut table = live.table();
    loop {
        if let Some(answer) = table.answers.remove(&id) {
            return Ok(answer);
        }
        if let Some(ended) = &table.ended {
            return Err(ConnectionError::Cut(ended.to_string()));
        }
        let left = time.checked_sub(begin.elapsed()).filter(|left| !left.is_zero());
        let left = left.ok_or(ConnectionError::Stalled { waited: time })?;
        let waited = live.changed.wait_timeout(table, left);
        table = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

pub(super) fn release(small: &Arc<Small>, hold: HoldId) {
    if small.peer.dialer.is_lost() {
        return;
    }
    let mut releases = small.releases();
    if !releases.is_closed && releases.all.insert(hold.0) {
        releases.fresh.push(hold.0);
        // The thread that wakes takes the lock at once.
        drop(releases);
        small.has_fresh.notify_one();
    }
}

/// Sends releases until the peer is lost. The callers of [`release`] never wait for the network.
pub(super) fn run_releases(small: &Arc<Small>) {
    while let Some(holds) = small.next_releases() {
        let Some(live) = small.usable() else {
            // A new connection sends all of them. Nothing else may need one for a long time, and the
            // peer holds the objects until then. An attempt begins with a pause after a failure.
            match connection(small) {
                // A peer that welcomes and ends connections is not asked again at once.
                Ok(_) => small.pause_releases(),
                Err(error) => {
                    tracing::debug!(peer = %small.peer.options.name, %error, "releases wait");
                }
            }
            continue;
        };
        for hold in holds {
            if let Err(error) = send_release(small, &live, hold) {
                live.socket.cut(error.to_string());
                break;
            }
        }
    }
}

fn send_release(small: &Small, live: &SmallConnection, hold: u64) -> Result<(), ConnectionError> {
    let id = small.peer.number();
    live.table().releases.insert(id);
    live.write(Op::Release, id, hold, &[])
}

pub(super) fn acknowledge_invalidation(
    small: &Arc<Small>,
    notice: u64,
    object: u64,
) -> Result<(), NetError> {
    let sent = connection(small).and_then(|live| live.write(Op::Invalidated, notice, object, &[]));
    sent.map_err(|error| small.peer.dialer.error(&small.peer, error))
}

/// Sends all requests of a small fetch.
pub(super) fn fetch(small: &Arc<Small>, fetch: &Arc<Fetch>, hold: HoldId) -> Result<(), NetError> {
    for request in fetch.requests(hold) {
        send(small, request);
    }
    Ok(())
}

/// Ends the connection if a request of a fetch waits there for its answer.
pub(super) fn cut_reads_of(small: &Small, fetch: &Arc<Fetch>) {
    let Some(live) = small.usable() else { return };
    let is_its = |pending: &Pending| match pending {
        Pending::Read(read) => Arc::ptr_eq(&read.0.fetch, fetch),
        Pending::Open => false,
    };
    let is_waiting = live.table().pending.values().any(is_its);
    if is_waiting {
        live.socket.cut("a read of a failed fetch has no answer".to_owned());
    }
}

/// Sends a request, with retries. The last failure fails its fetch.
fn send(small: &Arc<Small>, request: FetchRequest) {
    let mut next = Some(request);
    while let Some(request) = next.take() {
        let failed = match connection(small) {
            Ok(live) => match send_once(small, &live, request) {
                None => return,
                Some(failed) => failed,
            },
            Err(error) => (request, error),
        };
        let error = small.peer.dialer.error(&small.peer, failed.1);
        next = failed.0.again(None, &error);
    }
}

/// Sends a request once. Returns it if that failed and no other thread retries it.
fn send_once(
    small: &Small,
    live: &SmallConnection,
    request: FetchRequest,
) -> Option<(FetchRequest, ConnectionError)> {
    let (id, hold) = (small.peer.number(), request.hold.0);
    let body = encode_ranges(&request.ranges);
    let expected = ExpectedRanges::new(id, &request.ranges);
    let (pending, error) = match begin(live, id, Pending::Read(Box::new((request, expected)))) {
        Ok(()) => {
            let error = live.write(Op::Read, id, hold, &body).err()?;
            live.socket.cut(error.to_string());
            // Otherwise the receiving thread, which is ending, retries it.
            (live.table().pending.remove(&id)?, error)
        }
        Err(refused) => refused,
    };
    match pending {
        Pending::Read(pending) => Some((pending.0, error)),
        Pending::Open => None,
    }
}

/// Receives all frames of a connection. At its end, pending reads are sent again on the next
/// connection. Callers of pending opens retry these themselves.
fn receive_all(small: &Arc<Small>, live: &SmallConnection, mut reader: FrameReader) {
    let mut waits_since = None;
    let error = loop {
        let received = receive(small, live, &mut reader, &mut waits_since);
        if let Err(error) = received {
            break error;
        }
    };
    live.socket.cut(error.to_string());
    tracing::debug!(peer = %small.peer.options.name, %error, "small connection ended");
    let pending = {
        let mut table = live.table();
        table.ended = Some(Arc::new(ConnectionError::Cut(error.to_string())));
        std::mem::take(&mut table.pending)
    };
    live.changed.notify_all();
    // Under the lock, or the releasing thread could miss the end between its look and its wait.
    let releases = small.releases();
    small.has_fresh.notify_all();
    drop(releases);
    let error = small.peer.dialer.error(&small.peer, error);
    for pending in pending.into_values() {
        if let Pending::Read(pending) = pending {
            let (request, expected) = *pending;
            if let Some(request) = request.again(Some(&expected), &error) {
                send(small, request);
            }
        }
    }
}

fn receive(
    small: &Arc<Small>,
    live: &SmallConnection,
    reader: &mut FrameReader,
    waits_since: &mut Option<Instant>,
) -> Result<(), ConnectionError> {
    // In ticks, since other threads send requests during the wait.
    let tick = reader.stall() / 2;
    let header = match reader.header(tick) {
        Ok(header) => header,
        Err(ConnectionError::Stalled { .. }) => {
            return check_wait(live, reader.stall() + tick, waits_since);
        }
        Err(error) => return Err(error),
    };
    if header.op == Op::Invalidate {
        // It answers nothing: who waits for an answer waits on.
        small.peer.control.on_invalidate(header.id, header.offset);
        return check_wait(live, reader.stall() + tick, waits_since);
    }
    *waits_since = None;
    small.peer.on_progress();
    match header.op {
        Op::Data => on_data(live, reader, &header),
        Op::Released => {
            if !live.table().releases.remove(&header.id) {
                return Err(unrequested(&header));
            }
            small.releases().all.remove(&header.offset);
            Ok(())
        }
        Op::Opened => {
            let opened = Opened::decode(&reader.body(&header)?)?;
            let section = small.peer.options.section;
            let whole = farrow_memory::Span::new(farrow_memory::Offset(0), section);
            if let Some(block) = opened.blocks.iter().find(|block| !whole.contains(**block)) {
                let (offset, length) = (block.offset, block.length);
                let bounds = farrow_memory::BoundsError { offset, length, region: section };
                return Err(bounds.into());
            }
            on_answer(live, &header, SmallAnswer::Opened(HoldId(header.offset), opened))
        }
        Op::Error => {
            let text = String::from_utf8_lossy(&reader.body(&header)?).into_owned();
            let code = ErrorCode::from_word(header.offset);
            let pending = live.table().pending.remove(&header.id);
            match pending {
                Some(Pending::Read(pending)) => {
                    let peer = small.peer.options.name.clone();
                    pending.0.fetch.fail(NetError::Refused { peer, code, text });
                    Ok(())
                }
                Some(open) => {
                    live.table().pending.insert(header.id, open);
                    on_answer(live, &header, SmallAnswer::Refused(code, text))
                }
                None => Err(unrequested(&header)),
            }
        }
        _ => Err(unrequested(&header)),
    }
}

/// Ends a connection on which requests have waited too long for any answer.
fn check_wait(
    live: &SmallConnection,
    limit: Duration,
    waits_since: &mut Option<Instant>,
) -> Result<(), ConnectionError> {
    let begin = waits_since.get_or_insert_with(Instant::now);
    let is_queried = {
        let table = live.table();
        !table.pending.is_empty() || !table.releases.is_empty()
    };
    if !is_queried {
        *begin = Instant::now();
        return Ok(());
    }
    // One tick more than the stall limit: a request may have been sent during the first.
    let waited = begin.elapsed();
    if waited > limit { Err(ConnectionError::Stalled { waited }) } else { Ok(()) }
}

fn unrequested(header: &FrameHeader) -> ConnectionError {
    let place = "where no such answer is due";
    FrameError::Unexpected { op: header.op, id: header.id, place }.into()
}

fn on_answer(
    live: &SmallConnection,
    header: &FrameHeader,
    answer: SmallAnswer,
) -> Result<(), ConnectionError> {
    let mut table = live.table();
    match table.pending.remove(&header.id) {
        // The hold must have the number of its request.
        Some(Pending::Open) if !matches!(&answer, SmallAnswer::Opened(hold, _) if hold.0 != header.id) =>
        {
            table.answers.insert(header.id, answer);
            drop(table);
            live.changed.notify_all();
            Ok(())
        }
        _ => Err(unrequested(header)),
    }
}

fn on_data(
    live: &SmallConnection,
    reader: &mut FrameReader,
    header: &FrameHeader,
) -> Result<(), ConnectionError> {
    // Removed during the receive, so that the lock is not held for a body.
    let Some(Pending::Read(mut pending)) = live.table().pending.remove(&header.id) else {
        return Err(unrequested(header));
    };
    let (request, expected) = &mut *pending;
    let received = expected.check(header).map_err(ConnectionError::from).and_then(|piece| {
        request.fetch.receive(reader, header, piece)?;
        expected.advance();
        Ok(())
    });
    if received.is_ok() && expected.is_done() {
        request.fetch.on_request_done();
    } else {
        live.table().pending.insert(header.id, Pending::Read(pending));
    }
    received
}
