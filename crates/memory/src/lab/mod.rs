//! Measuring what coherence costs on this machine: the loops behind `farrow lab coherence` and
//! behind the [profile](crate::profile).
//!
//! An [`Arena`] is memory to measure in: private, or another node's region as this process maps it.
//! A [`Job`] says what is timed, over ranges of which size, in which state their lines are before,
//! and by how many threads. What is timed is the code that regions use, not a copy of it. Nothing
//! here decides anything: analysis and report are `python/farrow/lab`.

use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::time::Instant;

use crate::cache::Method;
use crate::copy::StreamMethod;
use crate::error::{AccessError, MapError};
use crate::profile::WriteWay;
use crate::sync::{Ordering, fence};
use crate::units::Length;

mod arena;
mod fit;
mod work;

#[cfg(test)]
mod tests;

pub use arena::{LabBuffer, Pages};
pub use fit::{CostModel, fit};

/// More samples than this are a mistake: half an hour of the shortest ones, and 8 MB of numbers.
pub const SAMPLES_MAX: u32 = 1_000_000;

/// More threads than this are a mistake, not a machine.
pub const THREADS_MAX: usize = 1024;

/// What is written comes from a buffer of this size, or of the range if that is less: caches hold it
/// in part, as they do a program's data.
pub const SOURCE_BYTES_USUAL: Length = Length(4 << 20);

/// What a job times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Publishing by an instruction, fences included.
    Publish(Method),
    /// Publishing, and then the next store of the writer to each line.
    PublishAgain(Method),
    /// Refreshing by an instruction, fences included.
    Refresh(Method),
    /// Writing bytes from elsewhere, and publishing them.
    Write(WriteWay),
    /// Writing bytes from elsewhere, for readers on this node.
    Copy(StreamMethod),
    /// Setting all bytes to one value, for readers on this node.
    Fill(StreamMethod),
    /// Loading one element of each stride.
    Load(AccessPattern),
    /// Storing one element of each stride.
    Store(AccessPattern),
}

/// How a range is walked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessPattern {
    /// Bytes of an element: 1, 2, 4 or 8.
    pub width: u8,
    /// From the start of one element to that of the next; the width itself is sequential.
    pub stride: u32,
}

/// In which state the lines of a range are when the clock starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LineState {
    /// Clean, and in no cache of this machine.
    Uncached,
    /// Clean, and loaded just before: in the caches as far as they are large enough.
    Cached,
    /// Stored to just before, one word in each line.
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
    /// What is timed.
    pub work: Work,
    /// The state before it.
    pub state: LineState,
    /// Bytes of a range.
    pub range: Length,
    /// Ranges worked on, one after the other, between two looks at the clock.
    pub batch: u32,
    /// How often.
    pub samples: u32,
    /// Threads that do this at the same time, each on ranges of its own.
    pub threads: NonZeroUsize,
    /// Bytes that are written over and over to fill a range, for [`Work::Write`] and
    /// [`Work::Copy`]; as many as the range if that is less. What is small stays in the cache.
    pub source: Length,
}

/// A job or an arena was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// Not enough memory; nothing was allocated.
    #[error("an arena of {asked} needs memory that is not there: {available} available")]
    NoRoom {
        /// Bytes asked for, source included.
        asked: Length,
        /// Bytes that can be had without pushing others out.
        available: Length,
    },
    /// The ranges of one sample do not fit in the arena.
    #[error("{asked} at a time do not fit in an arena of {arena}")]
    TooLarge {
        /// Range times batch times threads.
        asked: Length,
        /// What there is.
        arena: Length,
    },
    /// A number is zero or beyond its limit.
    #[error("{what} of {number} refused: 1 to {max}")]
    BadNumber {
        /// Which.
        what: &'static str,
        /// Its value.
        number: u64,
        /// The most it may be.
        max: u64,
    },
    /// This CPU has no such instruction, or it cannot do this.
    #[error("{method} cannot be used for this on this CPU")]
    NotAvailable {
        /// Its name.
        method: &'static str,
    },
    /// Mapping failed.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A part of a region cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// Nanoseconds that looking at the clock twice takes, with the fence between; taken off every
/// sample.
#[must_use]
pub fn clock_ns() -> u64 {
    // Asked by every job: finding it out takes as long as a thousand short samples.
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
