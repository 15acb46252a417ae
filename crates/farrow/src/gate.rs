//! Admits one thread at a time to a request that the others then need not send, each until its own
//! deadline. No lock is held over the request: behind a lock, calls at a node that hangs would wait
//! for the timeouts of all calls before them.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::millis;
use crate::error::Error;
use crate::interrupt::{self, Interrupt, pause};
use crate::lock::lock;

/// Interval between two checks for an interrupt.
const SLICE: Duration = Duration::from_millis(50);

/// The same, where signals end the wait.
const SIGNAL_PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(crate) struct RequestGate {
    is_taken: Mutex<bool>,
    left: Condvar,
}

/// Admits the next thread when dropped.
pub(crate) struct GateGuard<'a>(&'a RequestGate);

impl Drop for GateGuard<'_> {
    fn drop(&mut self) {
        *lock(&self.0.is_taken) = false;
        self.0.left.notify_one();
    }
}

impl RequestGate {
    /// Waits until no other thread is inside. `what` names the reason of the wait in an error.
    pub(crate) fn enter(&self, what: &str, deadline: Instant) -> Result<GateGuard<'_>, Error> {
        let started = Instant::now();
        let interrupt = interrupt::current();
        let ends_on_signal = interrupt.as_ref().is_some_and(Interrupt::ends_on_signal);
        let mut is_taken = lock(&self.is_taken);
        while *is_taken {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let waited_ms = millis(started.elapsed());
                return Err(Error::Timeout { what: what.to_owned(), waited_ms });
            }
            if ends_on_signal {
                drop(is_taken);
                pause(SIGNAL_PAUSE.min(left))?;
                is_taken = lock(&self.is_taken);
                continue;
            }
            let waited = self.left.wait_timeout(is_taken, left.min(SLICE));
            is_taken = waited.unwrap_or_else(PoisonError::into_inner).0;
            if *is_taken && interrupt.is_some() {
                // The check runs user code, so the lock is released.
                drop(is_taken);
                pause(Duration::ZERO)?;
                is_taken = lock(&self.is_taken);
            }
        }
        *is_taken = true;
        Ok(GateGuard(self))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn threads_at_a_closed_gate_wait_for_their_own_deadlines_only() {
        let gate = Arc::new(RequestGate::default());
        let inside = gate.enter("a test", Instant::now()).unwrap();
        let (sender, ended) = channel();
        for _ in 0..8 {
            let (gate, sender) = (Arc::clone(&gate), sender.clone());
            std::thread::spawn(move || {
                let deadline = Instant::now() + Duration::from_millis(20);
                sender.send(gate.enter("a test", deadline).map(drop)).unwrap();
            });
        }
        for _ in 0..8 {
            let ended = ended.recv_timeout(LONG).unwrap();
            assert!(matches!(ended, Err(Error::Timeout { .. })), "{ended:?}");
        }
        drop(inside);
        gate.enter("a test", Instant::now()).map(drop).unwrap();
    }

    #[test]
    fn one_thread_at_a_time_is_inside() {
        let gate = RequestGate::default();
        let count = Mutex::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _inside = gate.enter("a test", Instant::now() + LONG).unwrap();
                        let mut count = count.try_lock().expect("another thread is inside");
                        *count += 1;
                    }
                });
            }
        });
        assert_eq!(*lock(&count), 800);
    }

    #[test]
    fn an_interrupt_ends_the_wait() {
        let gate = RequestGate::default();
        let _inside = gate.enter("a test", Instant::now()).unwrap();
        let token = crate::CancelToken::new();
        token.cancel();
        let ended = token.run(|| gate.enter("a test", Instant::now() + LONG).map(drop));
        assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
    }
}
