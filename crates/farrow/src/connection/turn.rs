//! Admits one thread at a time to work that may wait long and run user code meanwhile.

use std::path::Path;
use std::sync::{Mutex, PoisonError, TryLockError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::interrupt;
use crate::lock::lock;

/// Pause between two attempts to enter: the shortest pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(crate) struct Turn {
    work: Mutex<()>,
    thread: Mutex<Option<ThreadId>>,
}

/// Ends the turn when dropped.
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
    /// Waits until this thread may reconnect to the node at `socket`.
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
                // A signal handler interrupted this thread's own turn.
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
