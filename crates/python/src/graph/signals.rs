//! The end of a long call of a graph by a signal, such as Ctrl-C.

use crate::waiting::{has_raised, is_waiting};
use farrow_graph::CallInterrupt;
use farrow_memory::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time between two looks for signals, each of which needs the GIL. Shorter calls have none.
const PAUSE: Duration = Duration::from_millis(50);
/// A search looks at its interrupt far more often than the clock is worth.
const LOOKS: u32 = 8;

/// Whether a signal handler has raised during the call that holds the engine's lock.
#[derive(Debug)]
pub(super) struct Signals {
    start: Instant,
    has_raised: AtomicBool,
    looks: AtomicU32,
    /// The time of the next look for signals, in nanoseconds from `start`.
    next_ns: AtomicU64,
}

impl Signals {
    pub(super) fn new() -> Signals {
        Signals {
            start: Instant::now(),
            has_raised: AtomicBool::new(false),
            looks: AtomicU32::new(0),
            next_ns: AtomicU64::new(0),
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A call begins.
    pub(super) fn begin(&self) {
        self.has_raised.store(false, Ordering::Relaxed);
        self.pause(self.now_ns());
    }

    fn pause(&self, now_ns: u64) {
        let pause = PAUSE.as_nanos() as u64;
        self.next_ns.store(now_ns.saturating_add(pause), Ordering::Relaxed);
    }
}

impl CallInterrupt for Signals {
    fn is_set(&self) -> bool {
        if self.has_raised.load(Ordering::Relaxed) {
            return true;
        }
        // The search's other threads leave signals to that of the call.
        if !is_waiting() {
            return false;
        }
        let looks = self.looks.load(Ordering::Relaxed).wrapping_add(1);
        self.looks.store(looks, Ordering::Relaxed);
        if !looks.is_multiple_of(LOOKS) {
            return false;
        }
        let now_ns = self.now_ns();
        if now_ns < self.next_ns.load(Ordering::Relaxed) {
            return false;
        }
        let is_raised = has_raised();
        self.has_raised.store(is_raised, Ordering::Relaxed);
        self.pause(self.now_ns());
        is_raised
    }
}
