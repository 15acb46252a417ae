//! The first request of a connection, and its reply, which brings file descriptors.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex};
use std::time::Instant;

use farrow_memory::{process_number, sync};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use rustix::process::{Resource, getrlimit};

use super::error::{LinkError, confused};
use super::inbox::is_pause;
use super::notifications::Notification;
use super::{Link, SLICE, lock, millis_since};
use crate::connecting;
use crate::interrupt::{self, Interrupt, Pace};
use crate::{Hello, Inheritance, OpenLazy, Reply, ReplyBody, RequestBody, Welcome, WireError};

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

    /// Connects and opens an object whose pages are brought one by one. The reply may also be one to
    /// `Fetch`. Its descriptors: the file, and perhaps the device for page faults.
    ///
    /// # Errors
    ///
    /// As [`Self::connect`].
    pub fn open_lazy(
        socket: &Path,
        open: OpenLazy,
        deadline: Instant,
    ) -> Result<(Self, ReplyBody, Vec<OwnedFd>), LinkError> {
        Self::introduce(socket, RequestBody::OpenLazy(open), deadline)
    }

    /// A link over an open socket, before its first request.
    pub(super) fn over(socket: PathBuf, stream: UnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(SLICE))?;
        stream.set_write_timeout(Some(SLICE))?;
        Ok(Self {
            socket,
            stream,
            sending: Mutex::default(),
            receiving: Mutex::default(),
            arrived: Condvar::new(),
            next_seq: sync::AtomicU64::new(1),
            is_attended: sync::AtomicBool::new(false),
            process: sync::AtomicU64::new(process_number()),
        })
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
        let stream = connecting::connect(socket, deadline)?;
        // A new slot whose reply is not awaited would belong to this process until it ends.
        let is_first_hello = matches!(&body, RequestBody::Hello(hello) if hello.resume.is_none());
        let link = Self::over(socket.to_owned(), stream).map_err(closed)?;
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
            link.notify(Notification::Goodbye);
        }
        let (reply, descriptors) = received.map_err(unwelcome)?;
        Ok((link, reply.body?, descriptors))
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
}

/// Limit of open files of this process.
fn open_files_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
