//! The lock of an engine, which a child does not wait for if a thread of its parent held it at the fork.
//!
//! That thread does not exist in the child, so nothing would ever release the lock, and the engine may be
//! half changed.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use farrow_graph::GraphFeatures;
use farrow_memory::sync::{AtomicU32, AtomicU64, Ordering};
use pyo3::PyResult;
use pyo3::exceptions::PyRuntimeError;

/// A holder notes itself right after it takes the lock: nanoseconds, unless it is preempted there. A lock
/// that is held for this long without a holder was copied by a fork in between.
const UNNOTED_MAX: Duration = Duration::from_secs(2);

/// Pause between two looks at a lock without a holder.
const UNNOTED_PAUSE: Duration = Duration::from_micros(50);

pub(super) struct EngineLock {
    engine: Mutex<GraphFeatures>,
    /// Process of the thread that holds the lock; 0: none.
    holder: AtomicU32,
    /// That thread.
    thread: AtomicU64,
}

thread_local! {
    static MARK: u8 = const { 0 };
}

/// A number that no other live thread of this process has.
fn this_thread() -> u64 {
    MARK.with(|mark| std::ptr::from_ref(mark).addr() as u64)
}

/// The engine; it is released at the end.
pub(super) struct EngineGuard<'a> {
    // The field is released after `drop` has run.
    engine: MutexGuard<'a, GraphFeatures>,
    lock: &'a EngineLock,
}

impl EngineLock {
    pub(super) fn new(engine: GraphFeatures) -> EngineLock {
        let (holder, thread) = (AtomicU32::new(0), AtomicU64::new(0));
        EngineLock { engine: Mutex::new(engine), holder, thread }
    }

    /// The engine, once all other threads have released it. Not for threads with the GIL.
    ///
    /// # Errors
    ///
    /// `RuntimeError` if the lock was held when this process was forked, or is held by this thread:
    /// then this is a signal handler during a call.
    pub(super) fn lock(&self) -> PyResult<EngineGuard<'_>> {
        let own = std::process::id();
        let mut unnoted_since = None;
        loop {
            if let Some(engine) = self.try_lock() {
                return Ok(engine);
            }
            match self.holder.load(Ordering::Acquire) {
                holder if holder == own && self.thread.load(Ordering::Acquire) == this_thread() => {
                    return Err(PyRuntimeError::new_err(
                        "a call of this graph runs in this thread: a signal handler cannot use the \
                         graph during it",
                    ));
                }
                // A thread of this process: it releases the lock.
                holder if holder == own => {
                    let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
                    return Ok(self.held(engine));
                }
                0 if unnoted_since.get_or_insert_with(Instant::now).elapsed() < UNNOTED_MAX => {
                    std::thread::sleep(UNNOTED_PAUSE);
                }
                _ => {
                    return Err(PyRuntimeError::new_err(
                        "this process was forked while another thread of its parent used this \
                         graph, which cannot be used here: make a new graph, or fork while no call \
                         of the graph runs",
                    ));
                }
            }
        }
    }

    /// The engine; `None` if it is not free.
    pub(super) fn try_lock(&self) -> Option<EngineGuard<'_>> {
        match self.engine.try_lock() {
            Ok(engine) => Some(self.held(engine)),
            Err(TryLockError::Poisoned(engine)) => Some(self.held(engine.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn held<'a>(&'a self, engine: MutexGuard<'a, GraphFeatures>) -> EngineGuard<'a> {
        self.thread.store(this_thread(), Ordering::Release);
        self.holder.store(std::process::id(), Ordering::Release);
        EngineGuard { engine, lock: self }
    }
}

impl Deref for EngineGuard<'_> {
    type Target = GraphFeatures;

    fn deref(&self) -> &GraphFeatures {
        &self.engine
    }
}

impl DerefMut for EngineGuard<'_> {
    fn deref_mut(&mut self) -> &mut GraphFeatures {
        &mut self.engine
    }
}

impl Drop for EngineGuard<'_> {
    fn drop(&mut self) {
        self.lock.holder.store(0, Ordering::Release);
        self.lock.thread.store(0, Ordering::Release);
    }
}
