//! Work on parts of memory, usually one copy, shared by several threads.
//!
//! The caller's thread takes part; the other threads come from [`super::helpers`].

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use super::helpers::{CpuPlacement, Helper};
use super::{StreamMethod, copy_part, fill_part};
use crate::sync::{AtomicUsize, Ordering};

/// Size of a part. Threads take parts one by one, so a core shared with other programs gets fewer
/// of them. A part is large enough to stream for about 300 us in one place.
pub(crate) const PART_BYTES: usize = 2 << 20;

/// Size of the last parts, used when about one large part per thread is left.
const LAST_BYTES: usize = 256 << 10;

/// How long the caller polls for the other threads to finish before it blocks. They have little
/// left to do, and a wake-up takes about as long.
const SPIN_MAX: Duration = Duration::from_micros(100);

/// No supported CPU has longer lines.
const LINE_BYTES_MAX: usize = 128;

/// The target, of which each thread writes its own parts.
#[derive(Clone, Copy)]
struct CopyTarget(*mut u8);

// SAFETY: threads write disjoint parts, each handed out once.
unsafe impl Send for CopyTarget {}
// SAFETY: as above.
unsafe impl Sync for CopyTarget {}

impl CopyTarget {
    fn at(&self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}

/// Copies with up to `threads_max` threads. Returns how many took part.
///
/// # Safety
/// As [`super::copy_into`], and this CPU supports the method.
pub(super) unsafe fn copy(
    into: *mut u8,
    from: &[u8],
    method: StreamMethod,
    threads_max: NonZeroUsize,
) -> usize {
    let target = CopyTarget(into);
    share_bytes(into, from.len(), threads_max, |start, end| {
        if let Some(part) = from.get(start..end) {
            // SAFETY: only this thread got this part, and the caller guarantees the whole range;
            // `share_bytes` returns before this call does.
            unsafe { copy_part(target.at(start), part, method) };
        }
    })
}

/// Fills with up to `threads_max` threads. Returns how many took part.
///
/// # Safety
/// As [`super::fill_into`], and this CPU supports the method.
pub(super) unsafe fn fill(
    into: *mut u8,
    length: usize,
    value: u8,
    method: StreamMethod,
    threads_max: NonZeroUsize,
) -> usize {
    let target = CopyTarget(into);
    share_bytes(into, length, threads_max, |start, end| {
        // SAFETY: as in `copy`.
        unsafe { fill_part(target.at(start), end - start, value, method) };
    })
}

/// Calls `work` once for each part of the `length` bytes at `into`, with the start and end of the
/// part. Parts start at line boundaries, so only the two ends of the whole range are stored through
/// the cache. Returns how many threads took part.
fn share_bytes(
    into: *mut u8,
    length: usize,
    threads_max: NonZeroUsize,
    work: impl Fn(usize, usize) + Sync,
) -> usize {
    let phase = into.align_offset(LINE_BYTES_MAX).min(length);
    let parts = Parts::new(length - phase, threads_max);
    share(parts.count(), threads_max, |index| {
        let (start, end) = parts.bounds(index);
        work(if index == 0 { 0 } else { phase + start }, phase + end);
    })
}

/// A length divided into parts of [`PART_BYTES`] and, towards the end, of [`LAST_BYTES`], so that
/// all threads finish at nearly the same time.
pub(crate) struct Parts {
    length: usize,
    whole: usize,
}

impl Parts {
    pub(crate) fn new(length: usize, threads_max: NonZeroUsize) -> Self {
        let fine = if threads_max.get() > 1 { threads_max.get() } else { 0 };
        Self { length, whole: (length / PART_BYTES).saturating_sub(fine) }
    }

    /// Number of parts. An empty range has one empty part.
    pub(crate) fn count(&self) -> usize {
        (self.whole + (self.length - self.whole * PART_BYTES).div_ceil(LAST_BYTES)).max(1)
    }

    /// Start and end of one part.
    pub(crate) fn bounds(&self, index: usize) -> (usize, usize) {
        let at = |index: usize| {
            let last = index.saturating_sub(self.whole);
            ((index - last) * PART_BYTES + last * LAST_BYTES).min(self.length)
        };
        (at(index), at(index + 1))
    }
}

/// Calls `work` once for each number below `parts`, with up to `threads_max` threads. Returns how
/// many took part.
pub(crate) fn share(parts: usize, threads_max: NonZeroUsize, work: impl Fn(usize) + Sync) -> usize {
    let wanted = threads_max.get().min(parts).saturating_sub(1);
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
    let (done, ended) = mpsc::channel();
    // On every exit, unwinding included, locals drop in reverse order: first `done`, which is bound
    // again below, then `helpers`, which waits for all threads.
    let helpers = Helpers(ended);
    let done = done;
    let place = if wanted > 0 { CpuPlacement::of_caller() } else { None };
    let mut hired = Vec::new();
    for _ in 0..wanted {
        let done = done.clone();
        let help = move || {
            // After this message the thread uses none of its borrows.
            let _ = done.send(catch_unwind(AssertUnwindSafe(take_parts)));
        };
        match Helper::hire() {
            Ok(mut helper) => {
                if let Some(place) = &place {
                    helper.keep_away(place);
                }
                // SAFETY: `helpers` waits for its message before the borrows end.
                if unsafe { helper.run(Box::new(help)) } {
                    hired.push(helper);
                }
            }
            // The other threads do the work of a missing thread.
            Err(error) => tracing::debug!(%error, "copying with fewer threads"),
        }
    }
    drop(done);
    take_parts();
    drop(helpers);
    let threads = 1 + hired.len();
    hired.into_iter().for_each(Helper::leave);
    threads
}

/// Receives the result of each thread that borrows from a call. The drop waits for all of them and
/// passes on a panic.
struct Helpers(mpsc::Receiver<thread::Result<()>>);

impl Drop for Helpers {
    fn drop(&mut self) {
        let mut panic = None;
        let patience = Instant::now() + SPIN_MAX;
        loop {
            match self.0.try_recv() {
                Ok(ended) => panic = ended.err().or(panic),
                Err(TryRecvError::Empty) if Instant::now() < patience => thread::yield_now(),
                Err(TryRecvError::Empty) => {
                    panic = self.0.iter().filter_map(Result::err).last().or(panic);
                    break;
                }
                Err(TryRecvError::Disconnected) => break,
            }
        }
        if let Some(panic) = panic.filter(|_| !thread::panicking()) {
            resume_unwind(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_to_the_end() {
        for threads in [1, 2, 7] {
            let threads = NonZeroUsize::new(threads).unwrap();
            for length in [0, 1, LAST_BYTES, PART_BYTES, PART_BYTES + 1, 23 * PART_BYTES + 77] {
                let parts = Parts::new(length, threads);
                let mut end = 0;
                for index in 0..parts.count() {
                    let bounds = parts.bounds(index);
                    assert_eq!(bounds.0, end, "{length} B, {threads} threads");
                    assert!(bounds.1 > bounds.0 || length == 0);
                    end = bounds.1;
                }
                assert_eq!(end, length);
            }
        }
    }

    #[test]
    fn every_part_is_done_once_and_a_panic_comes_out() {
        let threads = NonZeroUsize::new(3).unwrap();
        let done: Vec<AtomicUsize> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
        let count = share(done.len(), threads, |index| {
            done[index].fetch_add(1, Ordering::Relaxed);
        });
        assert!((1..=3).contains(&count));
        assert!(done.iter().all(|times| times.load(Ordering::Relaxed) == 1));
        let failed = std::panic::catch_unwind(|| {
            share(100, threads, |index| assert!(index != 50, "part {index}"));
        });
        assert!(failed.is_err());
    }
}
