//! One thread at a time, for a piece of work that may wait long and run code of the user meanwhile.

use std::path::Path;
use std::sync::{Mutex, PoisonError, TryLockError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::interrupt;
use crate::session::lock;

/// Pause between two looks whether it is one's turn: as between two tries to connect, at least.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(crate) struct Turn {
    work: Mutex<()>,
    thread: Mutex<Option<ThreadId>>,
}

/// Its end is that of the turn.
pub(crate) struct TurnGuard<'a> {
    turn: &'a Turn,
    _work: std::sync::MutexGuard<'a, ()>,
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        *lock(&self.turn.thread) = None;
    }
}

impl Turn {
    /// Waits for the turn of this thread to find the node at `socket` again.
    pub(crate) fn enter(&self, socket: &Path, deadline: Instant) -> Result<TurnGuard<'_>, Error> {
        let me = thread::current().id();
        let started = Instant::now();
        loop {
            let work = match self.work.try_lock() {
                Ok(work) => Some(work),
                Err(TryLockError::Poisoned(work)) => Some(PoisonError::into_inner(work)),
                Err(TryLockError::WouldBlock) => None,
            };
            if let Some(work) = work {
                *lock(&self.thread) = Some(me);
                return Ok(TurnGuard { turn: self, _work: work });
            }
            let socket = || socket.to_owned();
            if *lock(&self.thread) == Some(me) {
                // A signal handler runs in the middle of this thread's own turn.
                let reason = "this thread is connecting to it just now".to_owned();
                return Err(Error::Disconnected { socket: socket(), reason });
            }
            if Instant::now() >= deadline {
                let waited_ms = started.elapsed().as_millis();
                let reason = format!("another thread is connecting (for {waited_ms} ms)");
                return Err(Error::Disconnected { socket: socket(), reason });
            }
            interrupt::pause(PAUSE)?;
        }
    }
}
