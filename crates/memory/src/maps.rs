//! Room in this process for more maps.
//!
//! The kernel gives a process `vm.max_map_count` maps, 65,530 unless said otherwise. At the last one
//! every allocation of every library fails, and most end the process. So ranges of a region change
//! between writable and read-only only while some hundreds of maps are left.
//!
//! What we add ourselves is counted, which costs an addition. The maps of others are counted in
//! `/proc/self/maps`, only when ours have become so many more that it could matter.

use std::io::Read;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::MapError;
use crate::survey;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Maps that are left to others: those of a few threads with their stacks and arenas, of libraries
/// that are loaded late, and of our own short-lived ones.
const MARGIN: u64 = 768;

/// Ranges before the first look: 128 maps, far below the margin.
const FIRST_LOOK: u64 = 64;

/// Ranges between two looks at least: 64 maps, a part of the margin.
const LOOK_MIN: u64 = 32;

/// A look at 65,000 maps takes some 30 ms: where there is no room it holds for so long.
const VERDICT_HOLDS: Duration = Duration::from_millis(200);

/// Writable ranges in all windows of this process: each divides a map and so adds two.
static RANGES: AtomicU64 = AtomicU64::new(0);

/// So many ranges ask for a look.
static LOOK_AT: AtomicU64 = AtomicU64::new(FIRST_LOOK);

/// At the last look more than half of all maps were in use.
static ARE_SCARCE: AtomicBool = AtomicBool::new(false);

/// The last look that found no room: when, with how many ranges, and how many maps.
static FULL: Mutex<Option<(Instant, u64, u64)>> = Mutex::new(None);

/// The ranges of one region changed in number.
pub(crate) fn changed(before: usize, after: usize) {
    // A count of its own: it orders no other memory.
    if after > before {
        RANGES.fetch_add((after - before) as u64, Ordering::Relaxed);
    } else if before > after {
        RANGES.fetch_sub((before - after) as u64, Ordering::Relaxed);
    }
}

/// Whether small buffers should be copied rather than protected where they lie.
#[must_use]
pub fn are_maps_scarce() -> bool {
    // With few ranges of ours nobody looks again, and protecting some more costs little.
    ARE_SCARCE.load(Ordering::Relaxed) && RANGES.load(Ordering::Relaxed) >= FIRST_LOOK
}

/// Whether this process may have more maps.
///
/// # Errors
/// [`MapError::TooManyMaps`] when only those are left that others need.
pub fn check_maps() -> Result<(), MapError> {
    if RANGES.load(Ordering::Relaxed) < LOOK_AT.load(Ordering::Relaxed) {
        return Ok(());
    }
    look()
}

#[cold]
fn look() -> Result<(), MapError> {
    let mut full = FULL.lock().unwrap_or_else(PoisonError::into_inner);
    let ranges = RANGES.load(Ordering::Relaxed);
    // Where it cannot be read there is nothing to go by.
    let Some(limit) = survey::maps_max() else {
        LOOK_AT.store(u64::MAX, Ordering::Relaxed);
        return Ok(());
    };
    if let Some((at, with, used)) = *full
        && ranges >= with
        && at.elapsed() < VERDICT_HOLDS
    {
        return Err(MapError::TooManyMaps { used, limit });
    }
    let Some(used) = count() else {
        LOOK_AT.store(ranges + LOOK_MIN, Ordering::Relaxed);
        return Ok(());
    };
    ARE_SCARCE.store(used > limit / 2, Ordering::Relaxed);
    let left = limit.saturating_sub(used + MARGIN);
    if left == 0 {
        *full = Some((Instant::now(), ranges, used));
        // The next one looks again.
        LOOK_AT.store(ranges.min(LOOK_AT.load(Ordering::Relaxed)), Ordering::Relaxed);
        return Err(MapError::TooManyMaps { used, limit });
    }
    *full = None;
    // Half of what is left, at two maps a range: the other half is for others.
    LOOK_AT.store(ranges + (left / 4).max(LOOK_MIN), Ordering::Relaxed);
    Ok(())
}

/// Maps of this process.
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
