//! Timed loops over memory: what an operation on cache lines costs on this machine.
//!
//! A [`TimedBuffer`] is the memory for a measurement. A [`Job`] defines the operation to time, the size of
//! the ranges, the initial state of their cache lines and the number of threads. The timed code is
//! the code that regions use, not a copy of it. The [profile](crate::profile) is measured with it,
//! and so is `farrow lab coherence` (`crates/lab`).

mod buffer;
mod job;
mod loops;

#[cfg(test)]
mod tests;

pub use buffer::{Pages, TimedBuffer};
pub use job::{
    AccessPattern, Job, LineState, SAMPLES_MAX, SOURCE_BYTES_USUAL, THREADS_MAX, TimingError, Work,
    clock_ns,
};
