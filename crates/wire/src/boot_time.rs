//! The clock of leases.

use std::time::Duration;

/// A time of the machine's boot clock, which includes the time that the machine was suspended. The
/// other nodes' clocks go on meanwhile, so a lease that is measured by a clock that stands still
/// ends too late. All processes of a machine compare it with the ends of leases in its regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootTime(Duration);

impl BootTime {
    /// The present time.
    #[must_use]
    pub fn now() -> Self {
        Self(read(rustix::time::ClockId::Boottime))
    }

    /// Milliseconds since an earlier time; 0 if that one is later.
    #[must_use]
    pub fn ms_since(self, earlier: Self) -> u64 {
        let elapsed = self.0.saturating_sub(earlier.0);
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }

    /// Nanoseconds since the machine started.
    #[must_use]
    pub fn as_nanos(self) -> u64 {
        nanos(self.0)
    }

    /// For tests: the time that much earlier.
    #[must_use]
    pub fn earlier_by(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(by))
    }
}

/// Nanoseconds of the clock that stands still while the machine is suspended. Clients of earlier
/// builds measure a lease with it.
#[must_use]
pub fn awake_ns() -> u64 {
    nanos(read(rustix::time::ClockId::Monotonic))
}

fn read(clock: rustix::time::ClockId) -> Duration {
    let now = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
