//! Stops a node from another thread or a signal handler.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Both ends of the socket that stops a node. It exists before the node, so a signal during the
/// start is not lost.
#[derive(Debug)]
pub struct StopSwitch {
    stopper: UnixStream,
    wake: UnixStream,
}

impl StopSwitch {
    /// Creates a switch.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        let (stopper, wake) = UnixStream::pair()?;
        Ok(Self { stopper, wake })
    }

    /// A handle that uses this switch.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub fn stopper(&self) -> io::Result<Stopper> {
        Stopper::of(&self.stopper)
    }

    /// The end that stops, and the end that wakes the node.
    pub(super) fn into_parts(self) -> (UnixStream, UnixStream) {
        (self.stopper, self.wake)
    }

    /// The opposite of [`Self::into_parts`].
    pub(super) fn from_parts(stopper: UnixStream, wake: UnixStream) -> Self {
        Self { stopper, wake }
    }

    pub(super) fn wake(&self) -> &UnixStream {
        &self.wake
    }
}

/// Whether the end that wakes a node says that it is to stop.
pub(super) fn is_requested(wake: &UnixStream) -> bool {
    let mut wakes = [PollFd::new(wake, PollFlags::IN)];
    matches!(poll(&mut wakes, Some(&Timespec::default())), Ok(1..))
}

/// Stops a node from another thread.
#[derive(Debug)]
pub struct Stopper(UnixStream);

impl Stopper {
    pub(super) fn of(stopper: &UnixStream) -> io::Result<Self> {
        stopper.try_clone().map(Self)
    }

    /// Requests that the node ends.
    pub fn stop(&self) {
        // A full pipe contains an earlier request.
        let _ = (&self.0).write(&[1]);
    }

    /// A socket that stops the node when a byte is written to it, for signal handlers.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub fn wake_handle(&self) -> io::Result<UnixStream> {
        self.0.try_clone()
    }
}
