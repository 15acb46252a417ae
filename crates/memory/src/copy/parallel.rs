//! Work on many parts of memory, mostly one copy, shared by several threads.
//!
//! Threads live for the one copy: a pool would not survive `fork`, which Python programs do, and
//! what a large copy takes makes starting a thread not worth saving.

use std::num::NonZeroUsize;
use std::thread;

use super::{StreamMethod, copy_part, fill_part};
use crate::sync::{AtomicUsize, Ordering};

/// Parts are handed out one by one, so that a core that others also use gets fewer of them; large
/// enough that a thread streams for a while (some 300 us) in one place.
pub(crate) const PART_BYTES: usize = 2 << 20;

/// No CPU this crate knows has longer lines.
const LINE_BYTES_MAX: usize = 128;

/// The target, which each thread writes in parts of its own.
#[derive(Clone, Copy)]
struct Target(*mut u8);

// SAFETY: threads write disjoint parts, each handed out once.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Target {
    fn at(&self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}

/// Copies by up to `threads_max` threads; how many took part.
///
/// # Safety
/// As [`super::copy_into`], and this CPU has the method.
pub(super) unsafe fn copy(
    into: *mut u8,
    from: &[u8],
    method: StreamMethod,
    threads_max: NonZeroUsize,
) -> usize {
    let target = Target(into);
    share_bytes(into, from.len(), threads_max, |start, end| {
        if let Some(part) = from.get(start..end) {
            // SAFETY: this part was handed to this thread alone, and the caller vouches for the
            // whole; `share_bytes` ends before the call returns.
            unsafe { copy_part(target.at(start), part, method) };
        }
    })
}

/// Fills by up to `threads_max` threads; how many took part.
///
/// # Safety
/// As [`super::fill_into`], and this CPU has the method.
pub(super) unsafe fn fill(
    into: *mut u8,
    length: usize,
    value: u8,
    method: StreamMethod,
    threads_max: NonZeroUsize,
) -> usize {
    let target = Target(into);
    share_bytes(into, length, threads_max, |start, end| {
        // SAFETY: as in `copy`.
        unsafe { fill_part(target.at(start), end - start, value, method) };
    })
}

/// Has `work` done once for each part, from its first byte to its end, of `length` bytes at `into`.
/// Parts begin at whole lines, so that only the two ends of all are stored by the cache.
fn share_bytes(
    into: *mut u8,
    length: usize,
    threads_max: NonZeroUsize,
    work: impl Fn(usize, usize) + Sync,
) -> usize {
    let phase = into.align_offset(LINE_BYTES_MAX).min(length);
    let parts = (length - phase).div_ceil(PART_BYTES).max(1);
    share(parts, threads_max, |index| {
        let start = if index == 0 { 0 } else { phase + index * PART_BYTES };
        work(start, (phase + (index + 1) * PART_BYTES).min(length));
    })
}

/// Has `work` done once for each number below `parts`, by up to `threads_max` threads; how many
/// took part.
pub(crate) fn share(parts: usize, threads_max: NonZeroUsize, work: impl Fn(usize) + Sync) -> usize {
    let helpers = threads_max.get().min(parts).saturating_sub(1);
    let next = AtomicUsize::new(0);
    let take_parts = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= parts {
                break;
            }
            work(index);
        }
    };
    thread::scope(|scope| {
        let mut threads = 1;
        for _ in 0..helpers {
            // Without a thread to help, the others do its part.
            let helper = thread::Builder::new().name("farrow-copy".to_owned());
            match helper.spawn_scoped(scope, take_parts) {
                Ok(_) => threads += 1,
                Err(error) => tracing::debug!(%error, "copying with fewer threads"),
            }
        }
        take_parts();
        threads
    })
}
