//! A further connection of a client, which only waits for events.
//!
//! It is separate from the [`Link`](crate::link::Link): a thread that waits for an event never
//! delays the reply to another thread, and an event loop can wait for the socket.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use farrow_memory::process_number;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::connecting;
use crate::link::{LinkError, confused};
use crate::{Listen, Reply, ReplyBody, Request, RequestBody, Watch};

/// Bytes read at once; a reply takes about twenty.
const READ_BYTES: usize = 512;

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// Input is available, or the waker was used.
    Ready,
    /// The timeout elapsed.
    TimedOut,
    /// A signal interrupted the wait.
    Interrupted,
}

/// Ends the waits of other threads. It cannot be reset.
#[derive(Debug)]
pub struct Waker {
    event: OwnedFd,
    process: u64,
}

impl Waker {
    /// Creates an unused waker.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, process: process_number() })
    }

    /// Ends every wait from here on. It does nothing in a forked child: the waits belong to the
    /// parent.
    pub fn wake(&self) {
        if self.process == process_number() {
            // The write fails only when the counter is full, and then the waker was already used.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Waits until the waker is used.
    ///
    /// # Errors
    /// The system refuses to wait.
    pub fn wait(&self, timeout: Duration) -> io::Result<Waited> {
        wait_for(&mut [PollFd::new(&self.event, PollFlags::IN)], timeout)
    }
}

/// An open connection for events.
#[derive(Debug)]
pub struct Listener {
    socket: PathBuf,
    stream: UnixStream,
    input: Vec<u8>,
    next_seq: u64,
    /// The request that has no reply yet.
    pending_seq: Option<u64>,
    process: u64,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Forked children share the socket.
        self.hang_up();
    }
}

impl Listener {
    /// Connects and identifies the client of the connection.
    ///
    /// # Errors
    ///
    /// No daemon listens, no reply arrives by `deadline`, or the daemon refuses.
    pub fn connect(socket: &Path, listen: Listen, deadline: Instant) -> Result<Self, LinkError> {
        let started = Instant::now();
        let stream = connecting::connect(socket, deadline)?;
        stream.set_nonblocking(true).map_err(|error| closed(socket, &error))?;
        let socket = socket.to_owned();
        let (input, process) = (Vec::new(), process_number());
        let mut listener = Self { socket, stream, input, next_seq: 0, pending_seq: None, process };
        listener.send(RequestBody::Listen(listen))?;
        loop {
            match listener.receive()? {
                Some(ReplyBody::Done) => return Ok(listener),
                Some(other) => return Err(confused(&other)),
                None => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let waited_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
                return Err(LinkError::Timeout { socket: listener.socket.clone(), waited_ms });
            }
            listener.wait(None, left)?;
        }
    }

    /// Ends the connection for the daemon; the socket stays open for threads that wait on it. It
    /// does nothing in a forked child: the connection belongs to the parent.
    pub fn hang_up(&self) {
        if self.process == process_number() {
            // A closed connection needs no shutdown.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
    }

    /// True while a request has no reply.
    pub fn is_watching(&self) -> bool {
        self.pending_seq.is_some()
    }

    /// Requests a notification; [`Self::answer`] returns the reply. Only one request at a time.
    ///
    /// # Errors
    ///
    /// The connection to the daemon is closed.
    pub fn watch(&mut self, watch: Watch) -> Result<(), LinkError> {
        if self.pending_seq.is_none() {
            self.send(RequestBody::Watch(watch))?;
        }
        Ok(())
    }

    /// The number of the next event to look at, if the reply has arrived. It does not wait.
    ///
    /// # Errors
    ///
    /// The connection to the daemon is closed, or the daemon refused the request.
    pub fn answer(&mut self) -> Result<Option<u64>, LinkError> {
        match self.receive()? {
            Some(ReplyBody::Watched { next }) => Ok(Some(next)),
            Some(other) => Err(confused(&other)),
            None => Ok(None),
        }
    }

    /// Waits until a reply may be available.
    ///
    /// # Errors
    ///
    /// The system refuses to wait.
    pub fn wait(&self, waker: Option<&Waker>, timeout: Duration) -> Result<Waited, LinkError> {
        let stream = PollFd::new(&self.stream, PollFlags::IN);
        let waited = match waker {
            Some(waker) => {
                wait_for(&mut [stream, PollFd::new(&waker.event, PollFlags::IN)], timeout)
            }
            None => wait_for(&mut [stream], timeout),
        };
        waited.map_err(|error| closed(&self.socket, &error))
    }

    /// Sends one request. An empty socket takes far more than one request, and there is never a
    /// second one in flight. A request that does not fit therefore means that the daemon is dead.
    fn send(&mut self, body: RequestBody) -> Result<(), LinkError> {
        let seq = self.next_seq;
        let mut bytes = Vec::new();
        crate::encode(&Request { seq, body }, &mut bytes)?;
        self.stream.write_all(&bytes).map_err(|error| closed(&self.socket, &error))?;
        self.next_seq += 1;
        self.pending_seq = Some(seq);
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<ReplyBody>, LinkError> {
        loop {
            if let Some((reply, used)) = crate::decode::<Reply>(&self.input)? {
                self.input.drain(..used);
                if self.pending_seq == Some(reply.seq) {
                    self.pending_seq = None;
                    return Ok(Some(reply.body?));
                }
                continue;
            }
            let mut bytes = [0; READ_BYTES];
            match self.stream.read(&mut bytes) {
                Ok(0) => {
                    let reason = io::Error::other("the node went away");
                    return Err(closed(&self.socket, &reason));
                }
                Ok(count) => self.input.extend_from_slice(bytes.get(..count).unwrap_or(&[])),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(closed(&self.socket, &error)),
            }
        }
    }
}

fn closed(socket: &Path, error: &io::Error) -> LinkError {
    LinkError::Closed { socket: socket.to_owned(), reason: error.to_string() }
}

fn wait_for(what: &mut [PollFd<'_>], timeout: Duration) -> io::Result<Waited> {
    // A timeout that does not fit is unlimited.
    let timeout = Timespec::try_from(timeout).ok();
    match poll(what, timeout.as_ref()) {
        Ok(0) => Ok(Waited::TimedOut),
        Ok(_) => Ok(Waited::Ready),
        Err(Errno::INTR) => Ok(Waited::Interrupted),
        Err(error) => Err(error.into()),
    }
}
