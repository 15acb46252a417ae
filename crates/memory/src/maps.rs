//! Checks that this process can have more maps (virtual memory areas).
//!
//! The kernel limits a process to `vm.max_map_count` maps, 65,530 by default. Beyond the limit
//! allocations fail in every library, and most libraries then abort the process. Ranges of a region
//! therefore change between writable and read-only only while several hundred maps are left.
//!
//! Our own maps are counted as they change, at the cost of one addition. All maps are counted in
//! `/proc/self/maps`, and only when ours have grown enough to matter.

use std::io::Read;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::MapError;
use crate::fork;
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::system::kernel;

/// Maps reserved for the rest of the process: stacks and arenas of some threads, libraries that are
/// loaded late, and our own short-lived maps.
const MARGIN: u64 = 768;

/// Number of ranges at the first count: 128 maps, far below the margin.
const FIRST_LOOK: u64 = 64;

/// Minimum number of new ranges between two counts: 64 maps, a part of the margin.
const LOOK_MIN: u64 = 32;

/// How long the result "no room" is reused: counting 65,000 maps takes about 30 ms.
const VERDICT_HOLDS: Duration = Duration::from_millis(200);

/// Writable ranges in all windows of this process. Each one splits a map and so adds two.
static RANGES: AtomicU64 = AtomicU64::new(0);

/// Number of ranges at which the maps are counted again.
static LOOK_AT: AtomicU64 = AtomicU64::new(FIRST_LOOK);

/// Whether more than half of all maps were in use at the last count.
static ARE_SCARCE: AtomicBool = AtomicBool::new(false);

/// The last count that found no room: its time, the number of ranges and the number of maps.
static FULL: Mutex<Option<(Instant, u64, u64)>> = Mutex::new(None);

/// Records that the number of ranges of one region has changed.
pub(crate) fn changed(before: usize, after: usize) {
    // Relaxed: a pure counter, it orders no other memory.
    if after > before {
        RANGES.fetch_add((after - before) as u64, Ordering::Relaxed);
    } else if before > after {
        RANGES.fetch_sub((before - after) as u64, Ordering::Relaxed);
    }
}

/// Whether small buffers should be copied rather than protected in place.
#[must_use]
pub fn are_maps_scarce() -> bool {
    // With few ranges the maps are not counted again, and a few more protected ranges cost little.
    ARE_SCARCE.load(Ordering::Relaxed) && RANGES.load(Ordering::Relaxed) >= FIRST_LOOK
}

/// Checks that this process may have more maps.
///
/// # Errors
/// [`MapError::TooManyMaps`] if only the maps reserved for the rest of the process are left.
pub fn check_maps() -> Result<(), MapError> {
    #[cfg(any(test, feature = "failpoints"))]
    trial::check()?;
    if RANGES.load(Ordering::Relaxed) < LOOK_AT.load(Ordering::Relaxed) {
        return Ok(());
    }
    look()
}

#[cold]
fn look() -> Result<(), MapError> {
    // A child must not inherit the lock locked.
    let _steady = fork::without_fork();
    let mut full = FULL.lock().unwrap_or_else(PoisonError::into_inner);
    let ranges = RANGES.load(Ordering::Relaxed);
    // Without a readable limit there is nothing to check against.
    let Some(limit) = kernel::maps_max() else {
        LOOK_AT.store(u64::MAX, Ordering::Relaxed);
        return Ok(());
    };
    if let Some((at, with, used)) = *full
        && ranges >= with
        && at.elapsed() < VERDICT_HOLDS
    {
        return Err(MapError::TooManyMaps { used, limit });
    }
    #[cfg(any(test, feature = "failpoints"))]
    fork::trial::pass(fork::trial::ForkSection::Maps);
    let Some(used) = count() else {
        LOOK_AT.store(ranges + LOOK_MIN, Ordering::Relaxed);
        return Ok(());
    };
    ARE_SCARCE.store(used > limit / 2, Ordering::Relaxed);
    let left = limit.saturating_sub(used + MARGIN);
    if left == 0 {
        *full = Some((Instant::now(), ranges, used));
        // The next call counts again.
        LOOK_AT.store(ranges.min(LOOK_AT.load(Ordering::Relaxed)), Ordering::Relaxed);
        return Err(MapError::TooManyMaps { used, limit });
    }
    *full = None;
    // Half of the remaining maps, at two maps per range; the other half is for the rest of the
    // process.
    LOOK_AT.store(ranges + (left / 4).max(LOOK_MIN), Ordering::Relaxed);
    Ok(())
}

/// Number of maps of this process.
fn count() -> Option<u64> {
    let mut file = std::fs::File::open("/proc/self/maps").ok()?;
    let mut piece = vec![0; 64 << 10];
    let mut lines = 0;
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Some(lines),
            Ok(read) => {
                let read = piece.get(..read).unwrap_or(&[]);
                lines += read.iter().filter(|byte| **byte == b'\n').count() as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// For tests: a process without room for more maps.
#[cfg(any(test, feature = "failpoints"))]
pub mod trial {
    use super::{AtomicU64, MapError, Ordering};

    /// How many more checks succeed.
    static CHECKS: AtomicU64 = AtomicU64::new(u64::MAX);

    /// Lets this many checks of this process succeed, and all later ones fail. `u64::MAX`: all
    /// succeed again.
    pub fn refuse_after(checks: u64) {
        CHECKS.store(checks, Ordering::Relaxed);
    }

    pub(super) fn check() -> Result<(), MapError> {
        match CHECKS.load(Ordering::Relaxed) {
            u64::MAX => {}
            0 => return Err(MapError::TooManyMaps { used: 0, limit: 0 }),
            left => CHECKS.store(left - 1, Ordering::Relaxed),
        }
        Ok(())
    }

    /// Counts the maps now.
    #[cfg(test)]
    pub(crate) fn look() -> Result<(), MapError> {
        super::look()
    }
}
