//! Misses of the last-level cache by the processor's counters, if available.

use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Event};
use perf_event::{Builder, Counter};
use std::io;

/// A counter of events of the creating thread.
#[derive(Debug)]
pub struct EventCounter(Counter);

impl EventCounter {
    /// Counts loads that missed the last-level cache, outside of the kernel.
    ///
    /// # Errors
    /// The system's, if the processor has no such counter or the user may not read it: most virtual
    /// machines have no counters.
    pub fn of_misses() -> io::Result<EventCounter> {
        let (operation, result) = (CacheOp::READ, CacheResult::MISS);
        EventCounter::of(Cache { which: CacheId::LL, operation, result })
    }

    fn of(event: impl Event) -> io::Result<EventCounter> {
        Builder::new(event).build().map(EventCounter)
    }

    /// The result of `work`, and the number of events during it.
    ///
    /// # Errors
    /// The system's.
    pub fn during<R>(&mut self, work: impl FnOnce() -> R) -> io::Result<(R, u64)> {
        self.0.reset()?;
        self.0.enable()?;
        let result = work();
        self.0.disable()?;
        Ok((result, self.0.read()?))
    }
}

#[cfg(test)]
mod tests {
    use super::EventCounter;
    use perf_event::events::Software;

    // The kernel counts these on every machine.
    #[test]
    fn counts_what_happens_meanwhile_and_nothing_else() {
        let mut counter = match EventCounter::of(Software::PAGE_FAULTS) {
            Ok(counter) => counter,
            Err(error) => return eprintln!("skipped: no counters for this user: {error}"),
        };
        let touch = || std::hint::black_box(vec![1u8; 64 << 20]).len();
        let (bytes, faults) = counter.during(touch).unwrap();
        // With huge pages there are fewer.
        assert!(faults >= 32, "{faults} of {bytes} B");
        let (_, none) = counter.during(|| ()).unwrap();
        assert!(none < faults / 8, "{none}");
    }
}
