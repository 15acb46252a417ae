//! The client's end of the socket: many threads send requests, and each receives its own reply.
//!
//! One of the waiting threads reads, and distributes the replies to the others. A call therefore
//! costs one write and one read, and needs no thread of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farrow_memory::{process_number, sync};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg,
};
use rustix::process::{Resource, getrlimit};

use crate::interrupt::{self, Interrupt, Pace};
use crate::{
    Hello, Inheritance, MessageError, Reply, ReplyBody, Request, RequestBody, SPIN, Welcome,
    WireError,
};

mod pending;
mod undo;

pub use pending::{NoReply, PendingReply};
use undo::Undo;

/// A read or write returns after this time at the latest, to check the deadline.
const SLICE: Duration = Duration::from_millis(50);

/// Bytes read at once. Most replies are short, and clearing a larger buffer would cost as much as
/// the read itself (64 KiB: 1.5 us).
const READ_BYTES: usize = 8 << 10;

/// A queue whose capacity exceeds this is freed once it is empty.
const RETAINED_BYTES_MAX: usize = 64 << 10;

/// Time that a cancelled call waits for the reply to its request. It is a hundred round trips; with
/// the slice before it, less than the tenth of a second that a person notices.
const CANCEL_PATIENCE: Duration = Duration::from_millis(40);

/// Interval at which a thread that waits for the reading thread checks for signals, if signals end
/// its wait.
const SIGNAL_PIECE: Duration = Duration::from_millis(10);

/// Most requests with late replies to undo: more than a client can have in flight at a node.
const ABANDONED_MAX: usize = 8192;

/// Most bytes of requests queued for a daemon that does not read.
const UNSENT_BYTES_MAX: usize = 8 << 20;

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// No daemon listens, or the connection is closed.
    #[error("no node at {}: {reason}", socket.display())]
    Closed {
        /// Path of the socket.
        socket: PathBuf,
        /// Cause.
        reason: String,
    },
    /// The connection is closed, and the request was not sent completely: it may be sent to the
    /// next daemon.
    #[error("no node at {}: {reason}", socket.display())]
    Unsent {
        /// Path of the socket.
        socket: PathBuf,
        /// Cause.
        reason: String,
        /// The request.
        body: Box<RequestBody>,
    },
    /// The connection ended before the reply to `Hello`: the daemon that accepted it has ended or
    /// handed over. Another attempt shows which.
    #[error("the node at {} ended the connection: {reason}", socket.display())]
    Unwelcome {
        /// Path of the socket.
        socket: PathBuf,
        /// Cause.
        reason: String,
    },
    /// The deadline passed.
    #[error("the node at {} did not answer within {waited_ms} ms", socket.display())]
    Timeout {
        /// Path of the socket.
        socket: PathBuf,
        /// Milliseconds until the deadline.
        waited_ms: u64,
    },
    /// An interrupt ended the wait, and the request was withdrawn.
    #[error("interrupted after {waited_ms} ms")]
    Interrupted {
        /// Milliseconds waited.
        waited_ms: u64,
    },
    /// The daemon refused the request.
    #[error(transparent)]
    Refused(#[from] WireError),
    /// A message cannot be encoded or decoded.
    #[error(transparent)]
    Frame(#[from] MessageError),
    /// The reply does not fit the request.
    #[error("the node answered {what} out of turn")]
    Confused {
        /// The start of the reply.
        what: String,
    },
}

/// An open connection.
#[derive(Debug)]
pub struct Link {
    socket: PathBuf,
    stream: UnixStream,
    sending: Mutex<Vec<u8>>,
    receiving: Mutex<Receiving>,
    arrived: Condvar,
    next_seq: sync::AtomicU64,
    /// The process whose handle ends the connection; 0: no process.
    process: sync::AtomicU64,
}

impl Drop for Link {
    /// Shuts the socket down. Forked children share it, so closing it alone would not end the
    /// connection for the daemon.
    fn drop(&mut self) {
        if self.process.load(sync::Ordering::Relaxed) == process_number() {
            // A closed connection needs no shutdown.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
    }
}

#[derive(Debug, Default)]
struct Receiving {
    waiting: BTreeSet<u64>,
    replies: BTreeMap<u64, Result<ReplyBody, WireError>>,
    has_reader: bool,
    input: Vec<u8>,
    dead: Option<String>,
    /// Requests whose callers have stopped waiting, and how to undo their late replies.
    abandoned: BTreeMap<u64, Undo>,
    /// Requests that undo late replies.
    undoing: Vec<RequestBody>,
}

/// One call.
struct Call<'a> {
    seq: u64,
    undo: Undo,
    started: Instant,
    deadline: Instant,
    interrupt: Option<&'a Interrupt>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// Connects and says hello. Returns the client's slot and the file descriptors of the region,
    /// in the order control (read), data (read), data (write).
    ///
    /// # Errors
    ///
    /// No daemon listens, no reply arrives by `deadline`, or the daemon refuses.
    pub fn connect(
        socket: &Path,
        hello: Hello,
        deadline: Instant,
    ) -> Result<(Self, Welcome, Vec<OwnedFd>), LinkError> {
        let (link, reply, descriptors) =
            Self::introduce(socket, RequestBody::Hello(hello), deadline)?;
        match reply {
            ReplyBody::Welcome(welcome) => Ok((link, welcome, descriptors)),
            other => Err(confused(&other)),
        }
    }

    /// Connects and asks the daemon to hand over the region. Returns the connection, the daemon's
    /// state outside the region, and its descriptors: listening socket, lock.
    ///
    /// # Errors
    ///
    /// As [`Self::connect`].
    pub fn take_over(
        socket: &Path,
        region_uid: u64,
        deadline: Instant,
    ) -> Result<(UnixStream, Inheritance, Vec<OwnedFd>), LinkError> {
        let body = RequestBody::Handover { region_uid };
        let (link, reply, descriptors) = Self::introduce(socket, body, deadline)?;
        match reply {
            ReplyBody::HandedOver(inheritance) => {
                let stream = link.stream.try_clone();
                let stream = stream.map_err(|error| link.die(&error.to_string()))?;
                // The connection continues in the clone.
                link.process.store(0, sync::Ordering::Relaxed);
                Ok((stream, inheritance, descriptors))
            }
            other => Err(confused(&other)),
        }
    }

    /// Sends the first request of a connection and receives its reply.
    fn introduce(
        socket: &Path,
        body: RequestBody,
        deadline: Instant,
    ) -> Result<(Self, ReplyBody, Vec<OwnedFd>), LinkError> {
        let closed = |error: io::Error| LinkError::Closed {
            socket: socket.to_owned(),
            reason: error.to_string(),
        };
        let stream = UnixStream::connect(socket).map_err(closed)?;
        stream.set_read_timeout(Some(SLICE)).map_err(closed)?;
        stream.set_write_timeout(Some(SLICE)).map_err(closed)?;
        // A new slot whose reply is not awaited would belong to this process until it ends.
        let is_first_hello = matches!(&body, RequestBody::Hello(hello) if hello.resume.is_none());
        let link = Self {
            socket: socket.to_owned(),
            stream,
            sending: Mutex::default(),
            receiving: Mutex::default(),
            arrived: Condvar::new(),
            next_seq: sync::AtomicU64::new(1),
            process: sync::AtomicU64::new(process_number()),
        };
        let unwelcome = |error: LinkError| match error {
            LinkError::Unsent { socket, reason, .. } | LinkError::Closed { socket, reason } => {
                LinkError::Unwelcome { socket, reason }
            }
            error => error,
        };
        let started = Instant::now();
        let is_sent = link.send(0, body, deadline).map_err(unwelcome)?;
        if !is_sent {
            return Err(link.timeout(started));
        }
        let received = link.receive_first(deadline);
        if is_first_hello
            && matches!(received, Err(LinkError::Timeout { .. } | LinkError::Interrupted { .. }))
        {
            link.tell(RequestBody::Goodbye);
        }
        let (reply, descriptors) = received.map_err(unwelcome)?;
        Ok((link, reply.body?, descriptors))
    }

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    ///
    /// See [`LinkError`]. After `Closed` every further call fails the same way.
    pub fn call(&self, body: RequestBody, deadline: Instant) -> Result<ReplyBody, LinkError> {
        self.call_unless(None, body, deadline)
    }

    /// Like [`Self::call`], but an interrupt ends the wait. The request is then withdrawn, and the
    /// resources of a reply that was already on its way are given back.
    ///
    /// # Errors
    ///
    /// As [`Self::call`], and [`LinkError::Interrupted`].
    pub fn call_unless(
        &self,
        interrupt: Option<&Interrupt>,
        body: RequestBody,
        deadline: Instant,
    ) -> Result<ReplyBody, LinkError> {
        let started = Instant::now();
        let seq = self.next_seq();
        let undo = Undo::of(&body);
        lock(&self.receiving).waiting.insert(seq);
        match self.send(seq, body, deadline) {
            Ok(true) => self.receive(Call { seq, undo, started, deadline, interrupt }),
            Ok(false) => {
                lock(&self.receiving).abandon(seq, undo);
                Err(self.timeout(started))
            }
            Err(error) => {
                lock(&self.receiving).waiting.remove(&seq);
                Err(error)
            }
        }
    }

    fn next_seq(&self) -> u64 {
        self.next_seq.fetch_add(1, sync::Ordering::Relaxed)
    }

    /// Sends a request without waiting; its reply is dropped. Returns false if the connection is
    /// closed and the request was not sent.
    pub fn tell(&self, body: RequestBody) -> bool {
        !matches!(self.send(0, body, Instant::now() + SLICE), Err(LinkError::Unsent { .. }))
    }

    /// True once the connection is closed.
    pub fn is_dead(&self) -> bool {
        lock(&self.receiving).dead.is_some()
    }

    /// Appends the request to the unsent bytes and writes as much as the deadline allows. False: the
    /// rest stays queued, so that the stream keeps its frame boundaries, and follows with the next
    /// request. After a `Timeout` nothing of it is queued.
    fn send(&self, seq: u64, body: RequestBody, deadline: Instant) -> Result<bool, LinkError> {
        let started = Instant::now();
        let mut bytes = lock(&self.sending);
        if bytes.len() > UNSENT_BYTES_MAX {
            return Err(self.timeout(started));
        }
        let request = Request { seq, body };
        crate::encode(&request, &mut bytes)?;
        self.write_queued(&mut bytes, deadline).map_err(|error| {
            let socket = self.socket.clone();
            let reason = self.mark_dead(&error.to_string());
            // A partial frame is never served.
            LinkError::Unsent { socket, reason, body: Box::new(request.body) }
        })
    }

    /// Writes queued bytes until the deadline, at least once. True: all are written.
    fn write_queued(&self, bytes: &mut Vec<u8>, deadline: Instant) -> io::Result<bool> {
        let mut sent = 0;
        let result = loop {
            let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) else {
                break Ok(true);
            };
            match rustix::net::send(&self.stream, rest, SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {}
                Err(Errno::AGAIN | Errno::INTR) => break Ok(false),
                Err(error) => break Err(io::Error::from(error)),
            }
        };
        bytes.drain(..sent);
        if bytes.is_empty() && bytes.capacity() > RETAINED_BYTES_MAX {
            *bytes = Vec::new();
        }
        result
    }

    /// Writes what is queued of earlier requests, if the daemon reads it at once.
    fn write_rest(&self) {
        let written = self.write_queued(&mut lock(&self.sending), Instant::now());
        if let Err(error) = written {
            self.mark_dead(&error.to_string());
        }
    }

    fn receive(&self, call: Call<'_>) -> Result<ReplyBody, LinkError> {
        let Call { seq, started, deadline, interrupt, .. } = call;
        let ends_on_signal = interrupt.is_some_and(Interrupt::ends_on_signal);
        let mut pace = Pace::new();
        let mut state = lock(&self.receiving);
        loop {
            if let Some(reply) = state.replies.remove(&seq) {
                return Ok(reply?);
            }
            if let Some(reason) = &state.dead {
                return Err(LinkError::Closed {
                    socket: self.socket.clone(),
                    reason: reason.clone(),
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.abandon(seq, call.undo);
                return Err(self.timeout(started));
            }
            let mut had_signal = false;
            if state.has_reader && ends_on_signal {
                drop(state);
                had_signal = !interrupt::sleep_until_signal(left.min(SIGNAL_PIECE));
                state = lock(&self.receiving);
            } else if state.has_reader {
                let waited = self.arrived.wait_timeout(state, left.min(SLICE));
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            } else {
                (state, had_signal) = self.read_for_all(state);
            }
            let Some(interrupt) = interrupt.filter(|_| had_signal || pace.is_due()) else {
                continue;
            };
            // The check runs user code, so the lock is released.
            drop(state);
            if (had_signal && ends_on_signal) || interrupt.is_up() {
                interrupt.end();
                return Err(self.cancel(call));
            }
            state = lock(&self.receiving);
        }
    }

    /// Reads once on behalf of all waiting threads. Returns true if a signal ended the read.
    fn read_for_all<'a>(
        &'a self,
        mut state: MutexGuard<'a, Receiving>,
    ) -> (MutexGuard<'a, Receiving>, bool) {
        state.has_reader = true;
        let mut input = std::mem::take(&mut state.input);
        drop(state);
        let read = self.read_some(&mut input);
        let mut state = lock(&self.receiving);
        state.has_reader = false;
        let had_signal = matches!(read, Ok(true));
        if let Err(reason) = read.and_then(|_| hand_out(&mut state, &mut input)) {
            state.dead.get_or_insert(reason);
        }
        state.input = input;
        self.arrived.notify_all();
        if !state.undoing.is_empty() {
            let undoing = std::mem::take(&mut state.undoing);
            drop(state);
            for body in undoing {
                self.tell(body);
            }
            state = lock(&self.receiving);
        }
        (state, had_signal)
    }

    /// Withdraws a request, and waits briefly for its reply.
    fn cancel(&self, call: Call<'_>) -> LinkError {
        let Call { seq, started, ref undo, .. } = call;
        self.tell(RequestBody::Cancel { seq });
        let undo = undo.clone();
        let deadline = Instant::now() + CANCEL_PATIENCE;
        // Without a reply in this time the request is abandoned, and its reply is undone on
        // arrival.
        if let Ok(reply) = self.receive(Call { deadline, interrupt: None, ..call })
            && let Some(body) = undo.after(reply)
        {
            self.tell(body);
        }
        LinkError::Interrupted { waited_ms: millis_since(started) }
    }

    /// Reads once, for at most [`SLICE`]. Returns true if a signal ended the read. An error is the
    /// reason why the link is dead.
    fn read_some(&self, input: &mut Vec<u8>) -> Result<bool, String> {
        let mut bytes = [0; READ_BYTES];
        let read = match self.read_at_once(&mut bytes) {
            None => (&self.stream).read(&mut bytes),
            Some(read) => read,
        };
        match read {
            Ok(0) => Err("the node went away".to_owned()),
            Ok(count) => {
                input.extend_from_slice(bytes.get(..count).unwrap_or(&[]));
                Ok(false)
            }
            Err(error) if is_pause(&error) => Ok(error.kind() == io::ErrorKind::Interrupted),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Reads input that arrives within [`SPIN`], without sleeping: most replies do.
    fn read_at_once(&self, bytes: &mut [u8]) -> Option<io::Result<usize>> {
        let until = Instant::now() + SPIN;
        loop {
            match rustix::net::recv(&self.stream, &mut *bytes, RecvFlags::DONTWAIT) {
                Ok((count, _)) => return Some(Ok(count)),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => return Some(Err(error.into())),
            }
            if Instant::now() >= until {
                return None;
            }
            // The daemon may need this very core.
            std::thread::yield_now();
        }
    }

    /// Receives the first reply, together with the descriptors.
    fn receive_first(&self, deadline: Instant) -> Result<(Reply, Vec<OwnedFd>), LinkError> {
        let started = Instant::now();
        let interrupt = interrupt::current();
        let mut pace = Pace::new();
        let mut input = Vec::new();
        let mut descriptors = Vec::new();
        loop {
            if let Some(interrupt) = interrupt.as_ref().filter(|_| pace.is_due())
                && interrupt.is_up()
            {
                return Err(LinkError::Interrupted { waited_ms: millis_since(started) });
            }
            if let Some((reply, used)) = crate::decode::<Reply>(&input)? {
                input.drain(..used);
                lock(&self.receiving).input = input;
                return Ok((reply, descriptors));
            }
            let mut bytes = [0; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = recvmsg(
                &self.stream,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            );
            match received.map_err(io::Error::from) {
                Ok(message) if message.bytes == 0 => {
                    return Err(self.die("the node went away before it answered"));
                }
                // The kernel drops descriptors that exceed the limit of this process.
                Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => {
                    let what = "open files of this process".to_owned();
                    return Err(WireError::TooMany { what, max: open_files_max() }.into());
                }
                Ok(message) => {
                    input.extend_from_slice(bytes.get(..message.bytes).unwrap_or(&[]));
                    for message in control.drain() {
                        if let RecvAncillaryMessage::ScmRights(rights) = message {
                            descriptors.extend(rights);
                        }
                    }
                }
                Err(error) if is_pause(&error) && Instant::now() < deadline => {
                    let ends = |one: &&Interrupt| one.ends_on_signal();
                    if error.kind() == io::ErrorKind::Interrupted
                        && let Some(interrupt) = interrupt.as_ref().filter(ends)
                    {
                        interrupt.end();
                        return Err(LinkError::Interrupted { waited_ms: millis_since(started) });
                    }
                }
                Err(error) if is_pause(&error) => return Err(self.timeout(started)),
                Err(error) => return Err(self.die(&error.to_string())),
            }
        }
    }

    fn die(&self, reason: &str) -> LinkError {
        LinkError::Closed { socket: self.socket.clone(), reason: self.mark_dead(reason) }
    }

    /// Marks the link as dead. Returns the first reason.
    fn mark_dead(&self, reason: &str) -> String {
        let mut state = lock(&self.receiving);
        let reason = state.dead.get_or_insert_with(|| reason.to_owned()).clone();
        self.arrived.notify_all();
        reason
    }

    fn timeout(&self, started: Instant) -> LinkError {
        LinkError::Timeout { socket: self.socket.clone(), waited_ms: millis_since(started) }
    }
}

impl Receiving {
    /// Registers that no caller waits for this reply any more, unless it is kept for one.
    fn abandon(&mut self, seq: u64, undo: Undo) {
        if matches!(undo, Undo::Keep) {
            return;
        }
        self.waiting.remove(&seq);
        if undo.is_needed() && self.abandoned.len() < ABANDONED_MAX {
            self.abandoned.insert(seq, undo);
        }
    }
}

/// Limit of open files of this process.
fn open_files_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn millis_since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Stores each complete reply for its caller.
fn hand_out(state: &mut Receiving, input: &mut Vec<u8>) -> Result<(), String> {
    let mut used = 0;
    let result = loop {
        match crate::decode::<Reply>(input.get(used..).unwrap_or(&[])) {
            Ok(Some((reply, bytes))) => {
                used += bytes;
                if state.waiting.remove(&reply.seq) {
                    state.replies.insert(reply.seq, reply.body);
                } else if let Some(undo) = state.abandoned.remove(&reply.seq)
                    && let Ok(body) = reply.body
                {
                    state.undoing.extend(undo.after(body));
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error.to_string()),
        }
    };
    input.drain(..used);
    result
}

/// The error for a reply that does not fit the request.
pub fn confused(reply: &ReplyBody) -> LinkError {
    let mut what = format!("{reply:?}");
    if let Some((cut, _)) = what.char_indices().nth(80) {
        what.truncate(cut);
    }
    LinkError::Confused { what }
}

fn is_pause(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}
