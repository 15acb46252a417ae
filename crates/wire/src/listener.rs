//! A client's further connection, on which it only waits for events.
//!
//! Apart from the [`Link`](crate::link::Link), so that a thread that waits for an event never
//! stands between another one and its answer, and so that an event loop can wait for the socket.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use farrow_memory::process_number;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::link::{LinkError, confused};
use crate::{Listen, Reply, ReplyBody, Request, RequestBody, Watch};

/// Bytes read at once; an answer has some twenty.
const READ_BYTES: usize = 512;

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// There is something to read, or the waker was used.
    Ready,
    /// The time is over.
    TimedOut,
    /// By a signal.
    Interrupted,
}

/// Ends a wait of another thread, once and for all.
#[derive(Debug)]
pub struct Waker {
    event: OwnedFd,
    process: u64,
}

impl Waker {
    /// A waker that was not used.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, process: process_number() })
    }

    /// Ends every wait from here on. In a forked child nothing: the waits are its parent's.
    pub fn wake(&self) {
        if self.process == process_number() {
            // It can only fail when it is full, and then it was used.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Waits until it is used.
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
    /// The question that was not answered yet.
    asked: Option<u64>,
    process: u64,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Forked children have the socket, too.
        self.hang_up();
    }
}

impl Listener {
    /// Connects and says whose connection it is.
    ///
    /// # Errors
    ///
    /// Nobody there, no answer by `deadline`, or a refusal.
    pub fn connect(socket: &Path, listen: Listen, deadline: Instant) -> Result<Self, LinkError> {
        let started = Instant::now();
        let stream = UnixStream::connect(socket).map_err(|error| closed(socket, &error))?;
        stream.set_nonblocking(true).map_err(|error| closed(socket, &error))?;
        let socket = socket.to_owned();
        let (input, process) = (Vec::new(), process_number());
        let mut listener = Self { socket, stream, input, next_seq: 0, asked: None, process };
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

    /// Ends the connection for the daemon; the socket stays open for whoever waits on it. In a forked
    /// child nothing: the connection is its parent's.
    pub fn hang_up(&self) {
        if self.process == process_number() {
            // One that is gone already needs no end.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
    }

    /// True while a question was not answered.
    pub fn is_watching(&self) -> bool {
        self.asked.is_some()
    }

    /// Asks to be told; the answer comes by [`Self::answer`]. One question at a time.
    ///
    /// # Errors
    ///
    /// The daemon has gone.
    pub fn watch(&mut self, watch: Watch) -> Result<(), LinkError> {
        if self.asked.is_none() {
            self.send(RequestBody::Watch(watch))?;
        }
        Ok(())
    }

    /// The number of the next event to look at, if the answer is there. Does not wait.
    ///
    /// # Errors
    ///
    /// The daemon has gone, or it said no.
    pub fn answer(&mut self) -> Result<Option<u64>, LinkError> {
        match self.receive()? {
            Some(ReplyBody::Watched { next }) => Ok(Some(next)),
            Some(other) => Err(confused(&other)),
            None => Ok(None),
        }
    }

    /// Waits until an answer may be there.
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

    /// A request is far smaller than what an empty socket takes, and there is never a second one
    /// under way, so one that does not fit means a daemon that is gone.
    fn send(&mut self, body: RequestBody) -> Result<(), LinkError> {
        let seq = self.next_seq;
        let mut bytes = Vec::new();
        crate::encode(&Request { seq, body }, &mut bytes)?;
        self.stream.write_all(&bytes).map_err(|error| closed(&self.socket, &error))?;
        self.next_seq += 1;
        self.asked = Some(seq);
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<ReplyBody>, LinkError> {
        loop {
            if let Some((reply, used)) = crate::decode::<Reply>(&self.input)? {
                self.input.drain(..used);
                if self.asked == Some(reply.seq) {
                    self.asked = None;
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
    // A timeout that does not fit is one without end.
    let timeout = Timespec::try_from(timeout).ok();
    match poll(what, timeout.as_ref()) {
        Ok(0) => Ok(Waited::TimedOut),
        Ok(_) => Ok(Waited::Ready),
        Err(Errno::INTR) => Ok(Waited::Interrupted),
        Err(error) => Err(error.into()),
    }
}
