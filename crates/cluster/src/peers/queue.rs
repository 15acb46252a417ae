//! What the transport's thread leaves for the event loop, and the descriptor that tells of it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use prost::bytes::Bytes;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::{Semaphore, oneshot};

use super::PeerEvent;
use super::address::{AskedToken, SeatId};
use super::limits::Place;
use super::outbox::Outbox;

/// An event with what the event loop's end keeps of it.
#[derive(Debug)]
pub(super) enum Left {
    Event(PeerEvent),
    /// A question, and where its answer goes.
    Asked(PeerEvent, AskedToken, oneshot::Sender<Bytes>),
    /// Nobody waits for the answer any more.
    AskGone(AskedToken),
    /// Somebody took a seat here.
    Opened(PeerEvent, SeatId, Arc<Outbox>),
}

pub(super) type Waiting = VecDeque<(Left, Option<Place>)>;

/// Written by tasks, emptied by the event loop. Each kind of event has a limit of its own.
#[derive(Debug)]
pub(super) struct EventQueue {
    waiting: Mutex<Waiting>,
    wake: OwnedFd,
    pub(super) letters: Arc<Semaphore>,
}

impl EventQueue {
    pub(super) fn new(letters_max: usize) -> io::Result<Self> {
        Ok(Self {
            waiting: Mutex::new(Waiting::new()),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            letters: Arc::new(Semaphore::new(letters_max)),
        })
    }

    /// A second descriptor of the wake.
    pub(super) fn wake(&self) -> io::Result<OwnedFd> {
        self.wake.as_fd().try_clone_to_owned()
    }

    pub(super) fn push(&self, left: Left) {
        self.push_with(left, None);
    }

    /// The place is given back when the event is taken.
    pub(super) fn push_with(&self, left: Left, place: Option<Place>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = waiting.is_empty();
        waiting.push_back((left, place));
        drop(waiting);
        if was_empty {
            // Can only fail when it is full, and then it has told already.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// Clears the wake first: what comes meanwhile sets it again.
    pub(super) fn take(&self) -> Waiting {
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *waiting)
    }
}
