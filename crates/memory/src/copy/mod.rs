//! Copies and fills in a region: through the cache if small, with non-temporal stores if large, and
//! by several threads if very large.
//!
//! A non-temporal (streaming) store bypasses the cache. It does not fetch the line it overwrites,
//! which saves a third of the memory traffic of a plain copy, and leaves nothing to write back. It
//! pays off only for data larger than what the cache could keep.

use std::num::NonZeroUsize;
use std::sync::OnceLock;

use crate::units::{Length, Offset, Span};

pub(crate) mod helpers;
pub(crate) mod parallel;
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "portable.rs")]
mod stream;

/// Which instructions make non-temporal stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamMethod {
    /// x86-64: 64 bytes per store.
    Avx512,
    /// x86-64: 32 bytes per store.
    Avx2,
    /// x86-64: 16 bytes per store.
    Sse2,
    /// No non-temporal stores: the C library's copy.
    Memcpy,
}

impl StreamMethod {
    /// A name for humans.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Avx512 => "AVX-512 streaming stores",
            Self::Avx2 => "AVX2 streaming stores",
            Self::Sse2 => "SSE2 streaming stores",
            Self::Memcpy => "memcpy",
        }
    }

    /// Its name in files and options: `avx512`, `avx2`, `sse2`, `memcpy`.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Sse2 => "sse2",
            Self::Memcpy => "memcpy",
        }
    }

    /// The method with this [key](Self::key), whether or not this CPU supports it.
    #[must_use]
    pub fn of_key(key: &str) -> Option<Self> {
        [Self::Avx512, Self::Avx2, Self::Sse2, Self::Memcpy]
            .into_iter()
            .find(|method| method.key() == key)
    }

    /// Whether this CPU can make non-temporal stores with it.
    #[must_use]
    pub fn is_streaming(self) -> bool {
        stream::is_available(self)
    }
}

/// The best method for non-temporal stores on this CPU.
#[must_use]
pub fn stream_method() -> StreamMethod {
    static METHOD: OnceLock<StreamMethod> = OnceLock::new();
    *METHOD.get_or_init(|| methods_available().first().copied().unwrap_or(StreamMethod::Memcpy))
}

/// All methods that this CPU supports, best first.
#[must_use]
pub fn methods_available() -> Vec<StreamMethod> {
    stream::methods_available()
}

/// Minimum length of a copy with non-temporal stores. Measured on a Sapphire-Rapids-class guest: up
/// to 1 MiB a plain copy is as fast and leaves the bytes in the cache for the next reader. At 2 MiB
/// it reaches 11 GiB/s, non-temporal stores 18.
pub(crate) const STREAM_BYTES_MIN: Length = Length(1 << 20);

/// Minimum length of a copy by several threads, even if they must be started for it. Measured on
/// two cores: 17.9 GiB/s with two threads and 15.7 with one at 4 MiB; 22 and 17 at 8 MiB.
const PARALLEL_BYTES_MIN: Length = Length(4 << 20);

/// Thresholds and methods for copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPlan {
    /// Copies of at least this length use non-temporal stores.
    pub stream_bytes_min: Length,
    /// Copies of at least this length are shared by several threads.
    pub parallel_bytes_min: Length,
    /// Maximum number of threads, including the caller's.
    pub threads_max: NonZeroUsize,
    /// Method for non-temporal stores. If this CPU does not support it, copies are plain.
    pub method: StreamMethod,
}

impl CopyPlan {
    /// The thresholds measured on one machine, the widest stores, and all cores this process may
    /// use. A region uses its [profile](crate::profile) instead.
    #[must_use]
    pub fn automatic() -> Self {
        Self {
            stream_bytes_min: STREAM_BYTES_MIN,
            parallel_bytes_min: PARALLEL_BYTES_MIN,
            threads_max: cores(),
            method: stream_method(),
        }
    }

    /// The same plan, in the caller's thread only.
    #[must_use]
    pub fn in_one_thread(self) -> Self {
        Self { threads_max: NonZeroUsize::MIN, ..self }
    }

    /// The plan for one part of a copy of `all` bytes: with non-temporal stores if the whole copy
    /// would use them.
    pub(crate) fn of_part(self, all: Length) -> Self {
        let is_streamed = all >= self.stream_bytes_min;
        Self { stream_bytes_min: Length(if is_streamed { 0 } else { u64::MAX }), ..self }
    }

    /// The method for a copy of this length.
    fn method_for(&self, length: Length) -> StreamMethod {
        let is_streamed = length >= self.stream_bytes_min && stream::is_available(self.method);
        if is_streamed { self.method } else { StreamMethod::Memcpy }
    }

    /// A plain copy in one thread.
    #[must_use]
    pub fn plain() -> Self {
        Self {
            stream_bytes_min: Length(u64::MAX),
            parallel_bytes_min: Length(u64::MAX),
            threads_max: NonZeroUsize::MIN,
            method: StreamMethod::Memcpy,
        }
    }
}

impl Default for CopyPlan {
    fn default() -> Self {
        Self::automatic()
    }
}

/// How a copy was performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyReport {
    /// Whether it used non-temporal stores. Then only the lines at its ends may be dirty.
    pub is_nontemporal: bool,
    /// Number of threads that took part.
    pub threads: usize,
}

impl CopyReport {
    /// The ends of a copy to `span` whose lines may still be in a cache. The first and the last two
    /// lines' worth of bytes cover them, whatever the store width.
    #[must_use]
    pub fn cached_ends(&self, span: Span) -> [Span; 2] {
        let edge = Length(span.length.0.min(2 * u64::from(crate::cache::line_bytes())));
        let last = Offset(span.offset.0 + (span.length.0 - edge.0));
        [Span::new(span.offset, edge), Span::new(last, edge)]
    }
}

/// Copies `from` to `into`. Each thread that made non-temporal stores ends with a fence, so that
/// these stores are ordered before everything after the return.
///
/// # Safety
/// `into` is writable for `from.len()` bytes, which do not overlap `from`. No other code reads or
/// writes them until the return.
pub unsafe fn copy_into(into: *mut u8, from: &[u8], plan: CopyPlan) -> CopyReport {
    let length = Length::from(from.len());
    let method = plan.method_for(length);
    let threads = if length >= plan.parallel_bytes_min {
        // SAFETY: by the caller's contract.
        unsafe { parallel::copy(into, from, method, plan.threads_max) }
    } else {
        // SAFETY: by the caller's contract; the method was checked.
        unsafe { copy_part(into, from, method) };
        1
    };
    CopyReport { is_nontemporal: method != StreamMethod::Memcpy, threads }
}

/// Sets `length` bytes to `value`, with the same plan and the same fences as [`copy_into`].
///
/// # Safety
/// `into` is writable for `length` bytes, and no other code reads or writes them until the return.
pub unsafe fn fill_into(into: *mut u8, length: Length, value: u8, plan: CopyPlan) -> CopyReport {
    let method = plan.method_for(length);
    let threads = if length >= plan.parallel_bytes_min {
        // SAFETY: by the caller's contract.
        unsafe { parallel::fill(into, length.as_usize(), value, method, plan.threads_max) }
    } else {
        // SAFETY: by the caller's contract; the method was checked.
        unsafe { fill_part(into, length.as_usize(), value, method) };
        1
    };
    CopyReport { is_nontemporal: method != StreamMethod::Memcpy, threads }
}

/// Copies between slices.
///
/// # Panics
/// If the lengths differ, like `copy_from_slice`.
pub fn copy_slice(into: &mut [u8], from: &[u8], plan: CopyPlan) -> CopyReport {
    assert_eq!(into.len(), from.len(), "copy between slices of different length");
    // SAFETY: a unique borrow of the same length.
    unsafe { copy_into(into.as_mut_ptr(), from, plan) }
}

/// Copies in this thread.
///
/// # Safety
/// As [`copy_into`], and this CPU supports the method.
unsafe fn copy_part(into: *mut u8, from: &[u8], method: StreamMethod) {
    // SAFETY: by the caller's contract.
    unsafe { copy_unfenced(into, from, method) };
    end_part(method);
}

/// Copies one of several pieces in this thread. After the last piece the caller must call
/// [`end_part`].
///
/// # Safety
/// As [`copy_into`], and this CPU supports the method.
pub(crate) unsafe fn copy_unfenced(into: *mut u8, from: &[u8], method: StreamMethod) {
    // SAFETY: by the caller's contract.
    unsafe {
        match method {
            StreamMethod::Memcpy => {
                std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len());
            }
            _ => stream::copy(into, from, method),
        }
    }
}

/// Fills in this thread.
///
/// # Safety
/// As [`fill_into`], and this CPU supports the method.
unsafe fn fill_part(into: *mut u8, length: usize, value: u8, method: StreamMethod) {
    // SAFETY: by the caller's contract.
    unsafe {
        match method {
            StreamMethod::Memcpy => into.write_bytes(value, length),
            _ => stream::fill(into, length, value, method),
        }
    }
    end_part(method);
}

/// Orders non-temporal stores before all later stores.
pub(crate) fn end_part(method: StreamMethod) {
    if method != StreamMethod::Memcpy {
        crate::cache::publish_fence();
    }
}

/// Cores this process may use. Cached, because the query reads files on Linux.
fn cores() -> NonZeroUsize {
    static CORES: OnceLock<NonZeroUsize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|index| (index * 7 + index / 251) as u8).collect()
    }

    #[test]
    fn every_method_copies_every_phase() {
        for method in methods_available() {
            let plan = CopyPlan { stream_bytes_min: Length(0), method, ..CopyPlan::plain() };
            for length in [0, 1, 15, 16, 63, 64, 65, 127, 128, 255, 256, 257, 511, 1000, 4096, 5003]
            {
                for phase in [0, 1, 7, 8, 15, 16, 31, 33, 63] {
                    let source = pattern(length + 3);
                    let mut target = vec![0xEE; length + 128];
                    copy_slice(&mut target[phase..phase + length], &source[3..], plan);
                    assert_eq!(target[phase..phase + length], source[3..], "{method:?} {length}");
                    assert!(target[..phase].iter().all(|byte| *byte == 0xEE));
                    assert!(target[phase + length..].iter().all(|byte| *byte == 0xEE));
                }
            }
        }
    }

    #[test]
    fn every_method_fills_every_phase() {
        for method in methods_available() {
            let plan = CopyPlan { stream_bytes_min: Length(0), method, ..CopyPlan::plain() };
            for length in [0_usize, 1, 15, 63, 64, 65, 127, 128, 129, 1000, 4096, 5003] {
                for phase in [0, 1, 8, 31, 33, 63] {
                    let mut target = vec![0xEE; length + 128];
                    // SAFETY: inside the vector, which the test owns.
                    let report = unsafe {
                        let start = target.as_mut_ptr().add(phase);
                        fill_into(start, Length::from(length), 0x5A, plan)
                    };
                    assert_eq!(report.is_nontemporal, method.is_streaming());
                    let (before, rest) = target.split_at(phase);
                    let (filled, after) = rest.split_at(length);
                    assert!(filled.iter().all(|byte| *byte == 0x5A), "{method:?} {length}");
                    assert!(before.iter().chain(after).all(|byte| *byte == 0xEE), "{method:?}");
                }
            }
        }
    }

    #[test]
    fn threads_share_a_large_fill() {
        let mut target = vec![0; (9 << 20) + 177];
        let plan = CopyPlan {
            parallel_bytes_min: Length(1 << 20),
            threads_max: NonZeroUsize::new(3).unwrap(),
            ..CopyPlan::automatic()
        };
        let length = Length::from(target.len() - 100);
        // SAFETY: inside the vector, which the test owns.
        let report = unsafe { fill_into(target.as_mut_ptr().add(77), length, 0x5A, plan) };
        assert!(report.threads >= 1 && report.threads <= 3);
        let ends =
            target.iter().position(|byte| *byte != 0).zip(target.iter().rposition(|b| *b != 0));
        assert_eq!(ends, Some((77, target.len() - 24)));
        assert!(target[77..target.len() - 23].iter().all(|byte| *byte == 0x5A));
    }

    #[test]
    fn threads_share_a_large_copy() {
        let source = pattern((9 << 20) + 77);
        let mut target = vec![0; source.len()];
        let plan = CopyPlan {
            parallel_bytes_min: Length(1 << 20),
            threads_max: NonZeroUsize::new(3).unwrap(),
            ..CopyPlan::automatic()
        };
        let report = copy_slice(&mut target, &source, plan);
        assert!(target == source);
        assert!(report.threads >= 1 && report.threads <= 3);
    }

    #[test]
    fn a_method_of_another_cpu_is_not_used() {
        let missing = [StreamMethod::Avx512, StreamMethod::Avx2, StreamMethod::Sse2]
            .into_iter()
            .find(|method| !methods_available().contains(method));
        let Some(method) = missing else { return };
        let source = pattern(4096);
        let mut target = vec![0; 4096];
        let plan = CopyPlan { stream_bytes_min: Length(0), method, ..CopyPlan::automatic() };
        assert!(!copy_slice(&mut target, &source, plan).is_nontemporal);
        assert_eq!(target, source);
    }

    #[test]
    fn the_ends_of_a_copy_cover_its_partial_lines() {
        let report = CopyReport { is_nontemporal: true, threads: 1 };
        let span = Span::new(Offset(100), Length(10_000));
        let [first, last] = report.cached_ends(span);
        assert_eq!(first.offset, span.offset);
        assert_eq!(last.end(), span.end());
        let tiny = Span::new(Offset(100), Length(3));
        assert_eq!(report.cached_ends(tiny), [tiny, tiny]);
    }
}
