//! A blocking TCP socket with bounded waits, which another thread can shut down.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farrow_memory::{AccessError, FileMap, Length, Offset, Span};

use crate::error::ConnectionError;

/// Wakeups of a blocked call within the stall limit, to check its limit and whether it is cut.
const TICKS_PER_STALL: u32 = 4;

/// Maximum time of one frame from first to last byte, and of one write, in stall limits: it bounds
/// the time that a peer with slow progress blocks a thread.
const STALLS_PER_FRAME: u32 = 8;

/// Settings of a connection.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// A blocked read or write without progress for this time ends the connection.
    pub stall: Duration,
    /// `TCP_CONGESTION`, a name in `net.ipv4.tcp_available_congestion_control`; `None` is the
    /// system's default.
    pub congestion: Option<String>,
}

impl Default for SocketOptions {
    /// Two seconds, which is two leases. Cubic, which needs two thirds of the CPU of bbr within one
    /// machine.
    fn default() -> Self {
        Self { stall: Duration::from_secs(2), congestion: Some("cubic".into()) }
    }
}

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    stall: Duration,
    cut: Mutex<Option<String>>,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, options: &SocketOptions) -> io::Result<Arc<Self>> {
        let tick = (options.stall / TICKS_PER_STALL).max(Duration::from_millis(1));
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(tick))?;
        stream.set_write_timeout(Some(tick))?;
        if let Some(algorithm) = &options.congestion
            && let Err(errno) = rustix::net::sockopt::set_tcp_congestion(&stream, algorithm)
        {
            tracing::debug!(%algorithm, %errno, "the system's congestion control stays");
        }
        Ok(Arc::new(Self { stream, stall: options.stall, cut: Mutex::new(None) }))
    }

    /// Time without progress after which a connection ends.
    pub(crate) fn stall(&self) -> Duration {
        self.stall
    }

    /// Maximum time for one frame.
    pub(crate) fn frame_time(&self) -> Duration {
        self.stall * STALLS_PER_FRAME
    }

    /// Shuts the connection down in both directions. Every blocked call returns. The first reason
    /// is retained.
    pub(crate) fn cut(&self, reason: impl Into<String>) {
        self.lock_cut().get_or_insert_with(|| reason.into());
        // It fails if the connection has already ended.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.lock_cut().is_some()
    }

    fn lock_cut(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_cut(&self) -> Result<(), ConnectionError> {
        match &*self.lock_cut() {
            Some(reason) => Err(ConnectionError::Cut(reason.clone())),
            None => Ok(()),
        }
    }

    /// Reads at least one byte, within `patience`.
    pub(crate) fn read(
        &self,
        into: &mut [u8],
        patience: Duration,
    ) -> Result<usize, ConnectionError> {
        self.wait_for(patience, || (&self.stream).read(into).map_err(ConnectionError::Io))
    }

    /// Receives at least one byte into a file.
    pub(crate) fn receive(&self, map: &FileMap, span: Span) -> Result<usize, ConnectionError> {
        self.wait_for(self.stall, || {
            map.receive(self.stream.as_fd(), span).map_err(|error| match error {
                AccessError::System { call: "recv", source, .. } if is_of_socket(&source) => {
                    ConnectionError::Io(source)
                }
                other => ConnectionError::Memory(other),
            })
        })
    }

    /// Like [`Socket::receive`], but through a pipe, into pages that do not exist yet.
    pub(crate) fn receive_by_pipe(
        &self,
        pipe: &Pipe,
        map: &FileMap,
        span: Span,
    ) -> Result<usize, ConnectionError> {
        let length = span.length.as_usize();
        let received = self.wait_for(self.stall, || {
            let flags = rustix::pipe::SpliceFlags::MOVE;
            rustix::pipe::splice(&self.stream, None, &pipe.writing, None, length, flags)
                .map_err(|errno| ConnectionError::Io(errno.into()))
        })?;
        // Drain the pipe: leftover bytes would be written to the next span.
        let (mut at, end) = (span.offset.0, span.offset.0 + received as u64);
        while at < end {
            let rest = Span::new(Offset(at), Length(end - at));
            match map.write_from_pipe(pipe.reading.as_fd(), rest) {
                Ok(0) => return Err(ConnectionError::Closed),
                Ok(count) => at += count as u64,
                Err(AccessError::System { source, .. })
                    if source.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(received)
    }

    /// Writes all bytes.
    pub(crate) fn write_all(&self, bytes: &[u8]) -> Result<(), ConnectionError> {
        let mut rest = bytes;
        let begin = Instant::now();
        while !rest.is_empty() {
            let count =
                self.wait_for(self.stall, || (&self.stream).write(rest).map_err(Into::into))?;
            rest = rest.get(count..).unwrap_or_default();
            self.check_frame_time(begin, bytes.len() as u64)?;
        }
        Ok(())
    }

    /// Writes all bytes of all slices.
    pub(crate) fn write_all_of(
        &self,
        mut slices: &mut [IoSlice<'_>],
    ) -> Result<(), ConnectionError> {
        let bytes: usize = slices.iter().map(|one| one.len()).sum();
        let begin = Instant::now();
        while !slices.is_empty() {
            let count = self.wait_for(self.stall, || {
                (&self.stream).write_vectored(slices).map_err(Into::into)
            })?;
            IoSlice::advance_slices(&mut slices, count);
            self.check_frame_time(begin, bytes as u64)?;
        }
        Ok(())
    }

    /// Sends all of a header and a span.
    pub(crate) fn send_all(
        &self,
        head: &[u8],
        map: &FileMap,
        span: Span,
    ) -> Result<(), ConnectionError> {
        let (mut head, mut rest) = (head, span);
        let begin = Instant::now();
        while !rest.is_empty() {
            let count = self.wait_for(self.stall, || {
                map.send(self.stream.as_fd(), head, rest).map_err(|error| match error {
                    AccessError::System { call: "sendmsg", source, .. }
                        if is_of_socket(&source) =>
                    {
                        ConnectionError::Io(source)
                    }
                    other => ConnectionError::Memory(other),
                })
            })?;
            let of_head = count.min(head.len());
            head = head.get(of_head..).unwrap_or_default();
            let of_span = (count - of_head) as u64;
            rest = Span::new(Offset(rest.offset.0 + of_span), Length(rest.length.0 - of_span));
            self.check_frame_time(begin, span.length.0)?;
        }
        Ok(())
    }

    /// Fails if a frame that began at `begin` takes too long, or the socket is cut.
    pub(crate) fn check_frame_time(
        &self,
        begin: Instant,
        bytes: u64,
    ) -> Result<(), ConnectionError> {
        self.check_cut()?;
        let waited = self.frame_time();
        if begin.elapsed() > waited {
            return Err(ConnectionError::TooSlow { bytes, waited });
        }
        Ok(())
    }

    /// Repeats `call` until it makes progress, fails, or `patience` ends.
    fn wait_for(
        &self,
        patience: Duration,
        mut call: impl FnMut() -> Result<usize, ConnectionError>,
    ) -> Result<usize, ConnectionError> {
        let mut begin = None;
        loop {
            let failed = match call() {
                Ok(0) => ConnectionError::Closed,
                Ok(count) => return Ok(count),
                Err(ConnectionError::Io(error)) if is_again(&error) => {
                    // Starts at the first tick without data, so that a busy socket reads no clock.
                    let begin = *begin.get_or_insert_with(Instant::now);
                    let tick = self.stall / TICKS_PER_STALL;
                    if begin.elapsed() + tick < patience {
                        self.check_cut()?;
                        continue;
                    }
                    ConnectionError::Stalled { waited: patience }
                }
                Err(error) => error,
            };
            // A cut socket reports "closed"; the reason of the cut is more precise.
            self.check_cut()?;
            return Err(failed);
        }
    }
}

/// Capacity of a pipe: more than a piece, so that a few calls move one.
const PIPE_BYTES: usize = 1 << 20;

/// A pipe between a socket and a file. It is empty between two calls.
#[derive(Debug)]
pub(crate) struct Pipe {
    reading: OwnedFd,
    writing: OwnedFd,
}

impl Pipe {
    pub(crate) fn new() -> io::Result<Self> {
        let (reading, writing) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        if let Err(errno) = rustix::pipe::fcntl_setpipe_size(&writing, PIPE_BYTES) {
            tracing::debug!(%errno, "a pipe stays small");
        }
        Ok(Self { reading, writing })
    }
}

fn is_again(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// Whether an error concerns the socket, rather than the memory.
fn is_of_socket(error: &io::Error) -> bool {
    error.raw_os_error() != Some(rustix::io::Errno::FAULT.raw_os_error())
}
