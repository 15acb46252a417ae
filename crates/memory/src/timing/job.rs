//! What a measurement is: the operation, the lines that it meets, and how often.

use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::time::Instant;

use crate::cache::Method;
use crate::copy::StreamMethod;
use crate::error::MapError;
use crate::sync::{Ordering, fence};
use crate::units::Length;
use crate::write_way::WriteWay;

/// Limit on samples, to catch mistakes: half an hour of the shortest ones, and 8 MB of numbers.
pub const SAMPLES_MAX: u32 = 1_000_000;

/// Limit on threads, to catch mistakes: more than any machine has.
pub const THREADS_MAX: usize = 1024;

/// Usual size of the source buffer; the range, if that is less. Like a program's data, it is only
/// partly in the caches.
pub const SOURCE_BYTES_USUAL: Length = Length(4 << 20);

/// The operation that a job times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Publishing with an instruction, fences included.
    Publish(Method),
    /// Publishing, followed by the writer's next store to each line.
    PublishAgain(Method),
    /// Refreshing with an instruction, fences included.
    Refresh(Method),
    /// Copying bytes from a source buffer and publishing them.
    Write(WriteWay),
    /// Copying bytes from a source buffer, for readers on this node.
    Copy(StreamMethod),
    /// Setting all bytes to one value, for readers on this node.
    Fill(StreamMethod),
    /// Loading one element per stride.
    Load(AccessPattern),
    /// Storing one element per stride.
    Store(AccessPattern),
}

/// Access pattern in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessPattern {
    /// Size of an element in bytes: 1, 2, 4 or 8.
    pub width: u8,
    /// Bytes from the start of one element to the start of the next. Equal to the width for
    /// sequential access.
    pub stride: u32,
}

/// State of the cache lines of a range when the clock starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LineState {
    /// Clean and in no cache of this machine.
    Uncached,
    /// Clean and just loaded: in the caches, as far as they are large enough.
    Cached,
    /// Just stored to, one byte in each line.
    Dirty,
}

impl LineState {
    /// `"uncached"`, `"cached"` or `"dirty"`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Uncached => "uncached",
            Self::Cached => "cached",
            Self::Dirty => "dirty",
        }
    }
}

/// One series of measurements.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The operation to time.
    pub work: Work,
    /// State of the cache lines before it.
    pub state: LineState,
    /// Size of a range.
    pub range: Length,
    /// Number of ranges per sample, processed one after the other between two clock readings.
    pub batch: u32,
    /// Number of samples.
    pub samples: u32,
    /// Number of concurrent threads, each with its own ranges.
    pub threads: NonZeroUsize,
    /// Size of the source buffer for [`Work::Write`] and [`Work::Copy`], limited to the size of a
    /// range. It is copied repeatedly to fill a range. A small source stays in the cache.
    pub source: Length,
}

/// A job or its memory was rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimingError {
    /// Not enough memory; nothing was allocated.
    #[error("an arena of {requested} needs memory that is not there: {available} available")]
    NoRoom {
        /// Bytes requested, source included.
        requested: Length,
        /// Bytes available without evicting other programs.
        available: Length,
    },
    /// The ranges of one sample do not fit in the arena.
    #[error("{requested} at a time do not fit in an arena of {arena}")]
    TooLarge {
        /// Range times batch times threads.
        requested: Length,
        /// Size of the arena.
        arena: Length,
    },
    /// A number is zero or above its limit.
    #[error("{what} of {number} refused: 1 to {max}")]
    BadNumber {
        /// The name of the number.
        what: &'static str,
        /// Its value.
        number: u64,
        /// Its maximum.
        max: u64,
    },
    /// This CPU does not support the method, or the method cannot do this operation.
    #[error("{method} cannot be used for this on this CPU")]
    NotAvailable {
        /// Name of the method.
        method: &'static str,
    },
    /// Mapping failed.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Nanoseconds between two clock readings with only a fence in between; subtracted from every
/// sample.
#[must_use]
pub fn clock_ns() -> u64 {
    // Cached, since every job needs it: the measurement takes as long as a thousand short samples.
    static CLOCK_NS: OnceLock<u64> = OnceLock::new();
    *CLOCK_NS.get_or_init(|| {
        let mut least = u64::MAX;
        for _ in 0..1000 {
            let begin = Instant::now();
            fence(Ordering::SeqCst);
            least = least.min(begin.elapsed().as_nanos() as u64);
        }
        least
    })
}
