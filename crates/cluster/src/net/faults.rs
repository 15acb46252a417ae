//! Serves the page faults of clients that read objects of other nodes.
//!
//! A client passes the queue of its faults on, and a thread here takes them. It sends the request
//! for the bytes, and the thread that receives the last of them shows the page. So between a fault
//! and the next step of its reader no other thread runs on this node, and many faults of one object
//! may be on their way.
//!
//! This is the short way only. Whatever fails ends it: the thread closes the socket, and the client
//! serves its faults itself, by requests ([`crate::protocol::replicas`]), and says what has failed.
//!
//! **Never wrong bytes.** The kernel shows pages at addresses of the client's process, whatever is
//! mapped there by then. So the client unmaps the object only after this end of the socket is closed,
//! and it is closed after the last page was shown ([`Closing`]). A client of another user is
//! not served: who has the queue can show pages to the process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farrow_memory::lazy::{
    CHUNK_BYTES, FaultsHandover, ReadAhead, RemoteFaults, ShownChunks, pages_of,
};
use farrow_memory::sync::{AtomicU64, Ordering};
use farrow_memory::{Length, Offset, Span, page_bytes};
use farrow_net::NetError;
use farrow_net::cache::MirrorHold;
use farrow_net::peer::{FetchStart, Peer, StartedFetch};
use farrow_net::source::HoldId;
use farrow_wire::{FaultDescriptors, ServeFaults};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::Net;
use super::lazy::LazySource;
use super::pool::{WaitGroup, WaitGuard};
use super::source::lock;
use crate::protocol::SessionId;

/// Stack of a thread.
const STACK_BYTES: usize = 256 << 10;

/// Most threads that serve page faults, each of one object and client. Each has four descriptors, of
/// the 1,024 that a process usually may have. Further clients serve theirs.
const FAULT_THREADS_MAX: usize = 64;

/// Bytes that are shown together: a reader runs on while later ones are still on their way.
const PIECE_BYTES: u64 = 1 << 20;

/// Time limit for the message by which a client passes its faults on.
const HANDOVER_MAX: Duration = Duration::from_secs(5);

/// Interval at which fetches are checked for progress while some are on their way.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// The object whose pages are served, and its home.
struct FaultSource {
    object: MirrorHold,
    /// The blocks of the object in its file.
    blocks: Vec<Span>,
    peer: Arc<Peer>,
    hold: HoldId,
    /// Counts the bytes that were brought.
    bytes: Arc<AtomicU64>,
}

impl Net {
    /// Starts to serve the page faults of a client of this file. Returns the socket for
    /// [`farrow_wire::ServeFaults`], or why the client must serve them.
    pub(crate) fn serve_faults(
        &mut self,
        session: SessionId,
        file: u64,
    ) -> Result<OwnedFd, String> {
        let count = self.faults.len();
        if count >= FAULT_THREADS_MAX {
            return Err(format!("{count} threads serve page faults"));
        }
        let (object, LazySource { node, hold, blocks }) = self.files.source(file)?;
        let peer = self.peer(&node).map_err(|fault| format!("{fault:?}"))?;
        let (hold, bytes) = (HoldId(hold), Arc::clone(&self.faulted_bytes));
        let source = FaultSource { object, blocks, peer, hold, bytes };
        let (socket, stop) = start(source, &self.group).map_err(super::words)?;
        if let Some(earlier) = self.faults.insert(session, stop) {
            end(&earlier);
        }
        Ok(socket)
    }

    /// Ends the service of page faults for a client whose connection has ended.
    pub(crate) fn end_faults(&mut self, session: SessionId) {
        if let Some(stop) = self.faults.remove(&session) {
            end(&stop);
        }
    }

    /// Takes the number of bytes that were brought for page faults since the last call.
    pub(crate) fn take_faulted_bytes(&self) -> u64 {
        self.faulted_bytes.swap(0, Ordering::Relaxed)
    }
}

/// Starts a thread that serves the faults of one client. Returns the client's end of its socket, and
/// an event that ends the thread.
fn start(source: FaultSource, group: &Arc<WaitGroup>) -> io::Result<(OwnedFd, Arc<OwnedFd>)> {
    let (ours, theirs) = UnixStream::pair()?;
    let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (guard, of_thread) = (WaitGuard::of(group), Arc::clone(&stop));
    let thread = std::thread::Builder::new().name("farrow-faults".into()).stack_size(STACK_BYTES);
    thread.spawn(move || {
        let _guard = guard;
        let key = source.object.key();
        if let Err(error) = run(source, &ours, &of_thread) {
            tracing::debug!(object = key, %error, "a client serves its page faults itself");
        }
        // Now the client may unmap the object, or serve it.
        drop(ours);
    })?;
    Ok((theirs.into(), stop))
}

/// Ends a thread soon.
pub(super) fn end(stop: &OwnedFd) {
    // A full counter ends it as well.
    let _ = rustix::io::write(stop, &1u64.to_ne_bytes());
}

fn run(source: FaultSource, socket: &UnixStream, stop: &Arc<OwnedFd>) -> io::Result<()> {
    // Until the client has mapped the object.
    loop {
        let watched = [stop.as_fd(), socket.as_fd()];
        match wait(watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)), None)? {
            [true, _] => return Ok(()),
            [_, true] => break,
            _ => {}
        }
    }
    let (message, descriptors) = match ServeFaults::receive(socket, HANDOVER_MAX) {
        // The client could not map the object.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
        received => received?,
    };
    let FaultDescriptors { faults, shown } = descriptors;
    let ServeFaults { address, start, length, ends } = message;
    let span = Span::new(Offset(start), Length(length));
    let faults = RemoteFaults::new(FaultsHandover { faults, address, span });
    let faults = faults.map_err(|error| io::Error::other(error.to_string()))?;
    let pages = pages_of(source.blocks.iter().copied());
    let map = Arc::new(ServedMap {
        faults,
        pages: pages.unwrap_or_default(),
        shown: ShownChunks::passed(shown, span)?,
        arriving: Mutex::default(),
        is_closed: Mutex::new(false),
        bytes: Arc::clone(&source.bytes),
        stop: Arc::clone(stop),
    });
    let _closing = Closing(Arc::clone(&map));
    FaultServer { map, source, ahead: ReadAhead::new(ends) }.run(socket)
}

/// Which of these are readable or have ended.
fn wait<const N: usize>(
    mut watched: [PollFd<'_>; N],
    time: Option<&Timespec>,
) -> io::Result<[bool; N]> {
    match poll(&mut watched, time) {
        Ok(_) => Ok(watched.map(|one| !one.revents().is_empty())),
        Err(Errno::INTR) => Ok([false; N]),
        Err(errno) => Err(errno.into()),
    }
}

/// A range that is on its way.
struct Arriving {
    span: Span,
    /// Pages in it for which a thread waits, whose fault was taken after the request.
    late: Vec<Offset>,
}

/// The map of a client. Offsets are those of the file.
struct ServedMap {
    faults: RemoteFaults,
    /// The pages that the file has.
    pages: Vec<Span>,
    shown: ShownChunks,
    arriving: Mutex<Vec<Arriving>>,
    /// Locked while a page is shown.
    is_closed: Mutex<bool>,
    bytes: Arc<AtomicU64>,
    stop: Arc<OwnedFd>,
}

impl ServedMap {
    /// Whether a page is on its way. Its reader is woken when it arrives.
    fn is_arriving(&self, page: Span) -> bool {
        let mut arriving = lock(&self.arriving);
        let Some(one) = arriving.iter_mut().find(|one| one.span.contains(page)) else {
            return false;
        };
        if !one.late.contains(&page.offset) {
            one.late.push(page.offset);
        }
        true
    }

    /// Notes a range that is asked for. False if a part of it is on its way.
    fn begin(&self, span: Span) -> bool {
        let mut arriving = lock(&self.arriving);
        let is_new = !arriving.iter().any(|one| one.span.overlaps(span));
        if is_new {
            arriving.push(Arriving { span, late: Vec::new() });
        }
        is_new
    }

    /// The end of [`ServedMap::begin`]. Returns the pages that are waited for.
    fn forget(&self, span: Span) -> Vec<Offset> {
        let mut arriving = lock(&self.arriving);
        let found = arriving.iter().position(|one| one.span == span);
        found.map(|index| arriving.swap_remove(index).late).unwrap_or_default()
    }

    /// Shows a range whose bytes have arrived. Called by the thread that has received them.
    fn on_end(&self, span: Span, result: Result<Length, NetError>) {
        let shown = match result {
            Ok(bytes) => {
                self.bytes.fetch_add(bytes.0, Ordering::Relaxed);
                self.show(span)
            }
            Err(error) => Err(error.to_string()),
        };
        let late = self.forget(span);
        let shown = shown.and_then(|()| {
            // The kernel may have taken a page out of the page table since.
            late.into_iter().try_for_each(|at| self.show(Span::new(at, Length(page_bytes()))))
        });
        if let Err(error) = shown {
            tracing::debug!(%span, %error, "pages cannot be mapped for a client");
            end(&self.stop);
        }
    }

    fn show(&self, span: Span) -> Result<(), String> {
        let is_closed = lock(&self.is_closed);
        if *is_closed {
            return Ok(());
        }
        for part in self.pages.iter().filter_map(|pages| pages.intersection(span)) {
            self.faults.show(part).map_err(|error| error.to_string())?;
        }
        self.shown.note(span, self.faults.span()).map_err(|error| error.to_string())
    }
}

/// When it is dropped, no page is shown after it.
struct Closing(Arc<ServedMap>);

impl Drop for Closing {
    fn drop(&mut self) {
        *lock(&self.0.is_closed) = true;
    }
}

/// The thread of a map.
struct FaultServer {
    map: Arc<ServedMap>,
    source: FaultSource,
    ahead: ReadAhead,
}

impl FaultServer {
    /// Serves faults until the client, the node or a fault ends it.
    fn run(mut self, socket: &UnixStream) -> io::Result<()> {
        let mut seen = (self.source.peer.progress(), Instant::now());
        let mut started: Vec<StartedFetch> = Vec::new();
        let map = Arc::clone(&self.map);
        loop {
            let watched = [map.stop.as_fd(), socket.as_fd(), map.faults.as_fd()];
            let watched = watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let time = (!started.is_empty()).then_some(&LOOK);
            let [is_stopped, is_ended, has_faults] = wait(watched, time)?;
            if is_stopped || is_ended {
                return Ok(());
            }
            started.retain(|fetch| !fetch.is_over());
            if started.is_empty() || self.source.peer.progress() != seen.0 {
                seen = (self.source.peer.progress(), Instant::now());
            } else if seen.1.elapsed() > self.source.peer.patience() {
                let error = self.source.peer.stalled();
                started.iter().for_each(|fetch| self.source.peer.cancel(fetch, error.clone()));
                return Err(io::Error::other(error.to_string()));
            }
            if has_faults {
                for fault in map.faults.take()? {
                    self.serve(fault, &mut started);
                }
            }
        }
    }

    fn serve(&mut self, fault: Offset, started: &mut Vec<StartedFetch>) {
        let page = Span::new(fault, Length(page_bytes()));
        if self.map.is_arriving(page) {
            return;
        }
        let wanted = self.ahead.span_for(fault);
        let Some(wanted) = wanted.intersection(self.map.faults.span()) else { return };
        let end = wanted.offset.0 + wanted.length.0;
        let mut at = wanted.offset.0;
        while at < end {
            let next = (at - at % PIECE_BYTES).saturating_add(PIECE_BYTES).min(end);
            let piece = Span::new(Offset(at), Length(next - at));
            started.extend(self.bring(piece, piece.contains(page).then_some(page)));
            at = next;
        }
    }

    /// Brings and shows a range, which is `needed` for a page or read ahead. Waits only for what
    /// another client has asked for, and not for what is read ahead.
    fn bring(&self, piece: Span, needed: Option<Span>) -> Option<StartedFetch> {
        let is_new = self.map.begin(piece);
        let piece = match needed {
            _ if is_new => piece,
            // All ranges consist of chunks, so this one is not on its way.
            Some(page) => {
                let start = page.offset.0 - page.offset.0 % CHUNK_BYTES;
                let chunk = Span::new(Offset(start), Length(CHUNK_BYTES));
                let chunk = chunk.intersection(self.map.faults.span())?;
                self.map.begin(chunk).then_some(chunk)?
            }
            None => return None,
        };
        let FaultSource { object, blocks, peer, hold, .. } = &self.source;
        let ranges = blocks.iter().filter_map(|block| block.intersection(piece));
        let ranges: Vec<Span> = ranges.filter(|range| !range.is_empty()).collect();
        if ranges.is_empty() {
            self.map.forget(piece);
            return None;
        }
        let map = Arc::clone(&self.map);
        match peer.begin_fetch(object, *hold, &ranges, move |result| map.on_end(piece, result)) {
            Ok(FetchStart::Started(fetch)) => return Some(fetch),
            Ok(FetchStart::Complete) => self.map.on_end(piece, Ok(Length::ZERO)),
            Ok(FetchStart::Contended) if needed.is_none() => drop(self.map.forget(piece)),
            Ok(FetchStart::Contended) => {
                let fetched = peer.fetch(object, *hold, &ranges, peer.patience());
                self.map.on_end(piece, fetched.map(|report| report.fetched));
            }
            Err(error) => self.map.on_end(piece, Err(error)),
        }
        None
    }
}
