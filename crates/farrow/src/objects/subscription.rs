//! Events of objects, as a stream.
//!
//! Events are read from the region by loads; the node is asked only to announce new ones. For that
//! a subscription has a connection of its own, and it outlives the daemon: it finds the successor
//! and continues at the same event. Events of another node are also read from its memory; only the
//! announcements pass through both daemons.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_store::{EventCursor, EventKind, NAME_BYTES_MAX, Seen};
use farrow_wire::link::LinkError;
use farrow_wire::listener::{Listener, Waited, Waker};
use farrow_wire::{Listen, PROTOCOL_VERSION, WAIT_MS_MAX, Watch, WireError};

use crate::clock::deadline_after;
use crate::connection::session::Session;
use crate::error::Error;

/// Pause between two attempts to find the successor of a daemon.
const RETRY: Duration = Duration::from_millis(10);

/// The events to deliver.
#[derive(Debug, Clone)]
pub struct SubscribeOptions {
    /// Only events of objects whose names begin with this. If empty: of all objects, even without
    /// names.
    pub prefix: String,
    /// Only events of these kinds.
    pub kinds: Vec<EventKind>,
    /// Begin with the oldest retained event instead of the next one.
    pub is_from_oldest: bool,
}

impl Default for SubscribeOptions {
    fn default() -> Self {
        Self { prefix: String::new(), kinds: EventKind::ALL.to_vec(), is_from_oldest: false }
    }
}

/// The result of a wait for an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// An event, or the number of events missed before the next one.
    Seen(Seen),
    /// No event within the timeout.
    TimedOut,
    /// A signal arrived: the caller may handle it and call again.
    Interrupted,
    /// The subscription was closed.
    Closed,
}

/// The condition under which there may be another event.
#[derive(Debug)]
pub enum Registration<'a> {
    /// This socket is readable.
    Socket(BorrowedFd<'a>),
    /// This time has passed: the node is away. Then arm again.
    Pause(Duration),
}

/// Ends a subscription from any thread.
#[derive(Debug, Clone)]
pub struct CloseHandle(Arc<Waker>);

impl CloseHandle {
    /// Ends the subscription. A thread that waits for an event wakes up.
    pub fn close(&self) {
        self.0.wake();
    }
}

/// A stream of events; made by [`Client::subscribe`](crate::Client::subscribe).
#[derive(Debug)]
pub struct Subscription {
    session: Arc<Session>,
    cursor: EventCursor,
    prefix: String,
    kinds: u8,
    listener: Option<Listener>,
    /// Start of the node's absence.
    lost_at: Option<Instant>,
    waker: Arc<Waker>,
}

impl Subscription {
    pub(crate) fn new(session: &Arc<Session>, options: SubscribeOptions) -> Result<Self, Error> {
        session.check()?;
        let SubscribeOptions { prefix, kinds, is_from_oldest } = options;
        if prefix.len() as u64 > NAME_BYTES_MAX {
            let bytes = prefix.len();
            return Err(Error::InvalidArgument(format!(
                "a prefix of {bytes} B: no name has more than {NAME_BYTES_MAX}"
            )));
        }
        let waker = Waker::new();
        let waker = waker.map_err(|error| Error::System {
            what: "wait for events",
            reason: error.to_string(),
        })?;
        let first = if is_from_oldest { session.events_from } else { u64::MAX };
        let mut made = Self {
            cursor: session.reader.events(first)?,
            session: Arc::clone(session),
            prefix,
            kinds: kinds.into_iter().fold(0, |set, kind| set | kind.bit()),
            listener: None,
            lost_at: None,
            waker: Arc::new(waker),
        };
        made.want_all()?;
        Ok(made)
    }

    /// Announces a subscription to all objects to the node: from here on it reports even objects
    /// that clients could seal without a message. A node that is away learns of it with the first
    /// request for an event.
    fn want_all(&mut self) -> Result<(), Error> {
        let is_of_all = self.prefix.is_empty() && EventKind::Sealed.is_in(self.kinds);
        if !is_of_all {
            return Ok(());
        }
        let deadline = deadline_after(self.session.timeout);
        match self.ask(0) {
            Ok(()) => {}
            Err(LinkError::Closed { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        while let Some(listener) = self.listener.as_ref().filter(|one| one.is_watching()) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let waited_ms = crate::clock::millis(self.session.timeout);
                let what = "the node to take a subscription".to_owned();
                return Err(Error::Timeout { what, waited_ms });
            }
            listener.wait(None, left)?;
            self.take_answer()?;
        }
        Ok(())
    }

    /// A handle to end this subscription from another thread.
    pub fn close_handle(&self) -> CloseHandle {
        CloseHandle(Arc::clone(&self.waker))
    }

    /// Call after [`CloseHandle::close`], when no thread waits: the node then stops watching for
    /// events before this value is dropped.
    pub fn hang_up(&self) {
        self.listener.iter().for_each(Listener::hang_up);
    }

    /// The next event that is already available. Sends no message and does not wait.
    ///
    /// # Errors
    ///
    /// The region cannot be read.
    pub fn try_next(&mut self) -> Result<Option<Seen>, Error> {
        self.take_answer()?;
        while let Some(seen) = self.cursor.advance()? {
            let is_meant = match &seen {
                Seen::Event(event) => {
                    event.namespace == self.session.reader.namespace().0
                        && event.kind.is_in(self.kinds)
                        && event.name.starts_with(&self.prefix)
                }
                Seen::Gap { .. } => true,
            };
            if is_meant {
                return Ok(Some(seen));
            }
        }
        Ok(None)
    }

    /// The next event; waits up to `timeout` for it.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the node has ended and no successor with the same region appears
    /// within the connection timeout. [`Error::NodeLost`] when the subscription is to another node,
    /// and that node is lost.
    pub fn next(&mut self, timeout: Duration) -> Result<Next, Error> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(seen) = self.try_next()? {
                return Ok(Next::Seen(seen));
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(Next::TimedOut);
            }
            let left = left.unwrap_or(Duration::MAX);
            let pause = match self.arm()? {
                Registration::Pause(pause) => Some(pause.min(left)),
                Registration::Socket(_) => None,
            };
            let waited = match (&self.listener, pause) {
                (Some(listener), None) => listener.wait(Some(&self.waker), left)?,
                (_, pause) => self.wait_for_waker(pause.unwrap_or_default())?,
            };
            if waited == Waited::Interrupted {
                return Ok(Next::Interrupted);
            }
            if self.is_closed()? {
                self.hang_up();
                return Ok(Next::Closed);
            }
        }
    }

    /// Whether [`Self::arm`] only sends a message: otherwise it connects to the node.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.listener.is_some()
    }

    /// Asks the node to announce the next event, and returns the condition to wait for. Then call
    /// [`Self::try_next`]. For event loops: does not wait for an event.
    ///
    /// # Errors
    ///
    /// As [`Self::next`].
    pub fn arm(&mut self) -> Result<Registration<'_>, Error> {
        match self.ask(WAIT_MS_MAX) {
            Ok(()) => self.lost_at = None,
            Err(error) => {
                self.listener = None;
                let since = *self.lost_at.get_or_insert_with(Instant::now);
                let is_passing = matches!(
                    error,
                    LinkError::Closed { .. }
                        // The other node does not answer: its daemon may have a successor soon, or
                        // it is lost.
                        | LinkError::Refused(WireError::Closing | WireError::NoRemoteSession { .. })
                );
                if !is_passing || since.elapsed() >= self.session.timeout {
                    return Err(error.into());
                }
                if let (LinkError::Closed { socket, reason }, Some(why)) =
                    (&error, self.session.excluded())
                {
                    let reason = format!("{reason}; {why}");
                    return Err(Error::Disconnected { socket: socket.clone(), reason });
                }
            }
        }
        Ok(match &self.listener {
            Some(listener) => Registration::Socket(listener.as_fd()),
            None => Registration::Pause(RETRY),
        })
    }

    fn ask(&mut self, timeout_ms: u64) -> Result<(), LinkError> {
        let watch = Watch {
            after: self.cursor.position(),
            prefix: self.prefix.clone(),
            kinds: self.kinds,
            timeout_ms,
        };
        if let Some(listener) = &mut self.listener {
            return listener.watch(watch);
        }
        let (region_uid, slot, nonce) = self.session.place();
        let node = self.session.node().to_owned();
        let listen = Listen { version: PROTOCOL_VERSION, region_uid, slot, nonce, node };
        let deadline = deadline_after(self.session.timeout);
        let mut listener = Listener::connect(&self.session.socket, listen, deadline)?;
        listener.watch(watch)?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Skips events that the node has filtered out. A lost connection is replaced at the next
    /// request.
    fn take_answer(&mut self) -> Result<(), Error> {
        self.session.check()?;
        let Some(listener) = &mut self.listener else {
            return Ok(());
        };
        match listener.answer() {
            Ok(None) => {}
            Ok(Some(next)) => self.cursor.skip_to(next)?,
            // The next request reports the state of another node.
            Err(LinkError::Closed { .. } | LinkError::Refused(WireError::Closing)) => {
                self.listener = None;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn is_closed(&self) -> Result<bool, Error> {
        Ok(self.wait_for_waker(Duration::ZERO)? == Waited::Ready)
    }

    fn wait_for_waker(&self, timeout: Duration) -> Result<Waited, Error> {
        let waited = self.waker.wait(timeout);
        waited.map_err(|error| Error::System { what: "wait for events", reason: error.to_string() })
    }
}
