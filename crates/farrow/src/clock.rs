//! Deadlines and clocks.

use std::time::{Duration, Instant};

/// The deadline after a timeout. A timeout that does not fit counts as a year.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or_else(|| now + Duration::from_secs(365 * 86_400))
}

pub(crate) fn millis(duration: Duration) -> u64 {
    // Rounded up: a wait of half a millisecond must not become none.
    let millis = duration.as_micros().div_ceil(1000);
    u64::try_from(millis).unwrap_or(u64::MAX)
}

/// Nanoseconds since 1970, read in some 25 ns without a system call. A coarse clock would lag
/// behind that of the seals, and a recently used object would seem older than one sealed before.
pub(crate) fn wall_clock_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec.unsigned_abs())
}

/// Milliseconds of the monotonic clock as of the last tick of the kernel, read in some 5 ns.
pub(crate) fn coarse_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds.saturating_mul(1_000).saturating_add(now.tv_nsec.unsigned_abs() / 1_000_000)
}
