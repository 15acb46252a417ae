//! Measures a profile within about thirty milliseconds.
//!
//! Each round measures all sizes and methods in turn, so that another process on the machine
//! disturbs all methods alike. The minimum over the rounds is used, since time lost to another
//! process is not a property of the machine. Within a round the lower quartile of the samples is
//! used: methods that wait for memory vary more, and their best sample is not typical. A method
//! that is only slightly faster is not chosen: see `costs::pick`.
//!
//! Nearly all of the time is spent on the largest sizes. There, methods that are already clearly
//! slower are skipped, and so is a method without alternatives. A second round is made only if the
//! first one would choose a different method than at the previous size.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use super::costs::{COPY_BYTES, Costs, Findings, PUBLISH_AGAIN_BYTES_MAX, REPEATED_BYTES_MAX};
use super::steps::{STEPS, step_bytes, step_of};
use crate::cache::Method;
use crate::timing::{Job, LineState, Pages, SOURCE_BYTES_USUAL, TimedBuffer, TimingError, Work};
use crate::units::Length;

/// Time after which no further round starts. Each size gets its first rounds in any case.
pub(super) const BUDGET: Duration = Duration::from_millis(8);

/// The minimum of two rounds is stable on a quiet machine; a busy machine needs more.
const ROUNDS_MIN: u32 = 2;
const ROUNDS_MAX: u32 = 9;

/// Small ranges take several samples per job, since starting a job costs as much as the samples.
const SAMPLES_BYTES: u64 = 32 << 10;
const SAMPLES_MAX: u64 = 32;

/// Measures this machine.
pub(super) fn measure(budget: Duration) -> Result<Findings, TimingError> {
    let begin = Instant::now();
    let largest = step_bytes(STEPS - 1);
    let mut arena = TimedBuffer::private(largest, Pages::Huge)?;
    let mut found = Findings::none();
    for round in 0..ROUNDS_MAX {
        if round >= ROUNDS_MIN && begin.elapsed() >= budget {
            break;
        }
        for step in 0..STEPS {
            if round >= ROUNDS_MIN && step_bytes(step).0 > REPEATED_BYTES_MAX {
                break;
            }
            let publish_as: fn(Method) -> Work = match step_bytes(step).0 {
                0..=PUBLISH_AGAIN_BYTES_MAX => Work::PublishAgain,
                _ => Work::Publish,
            };
            turn(&mut found.publish, &mut arena, step, LineState::Dirty, publish_as)?;
            turn(&mut found.refresh, &mut arena, step, LineState::Cached, Work::Refresh)?;
            turn(&mut found.write, &mut arena, step, LineState::Uncached, Work::Write)?;
            if COPY_BYTES.iter().any(|bytes| step_of(*bytes) == step) {
                turn(&mut found.copies, &mut arena, step, LineState::Uncached, Work::Copy)?;
            }
        }
    }
    found.runs = 1;
    Ok(found)
}

/// Measures all methods once at one size.
fn turn<T: Copy + PartialEq>(
    costs: &mut Costs<T>,
    arena: &mut TimedBuffer,
    step: usize,
    state: LineState,
    work: impl Fn(T) -> Work,
) -> Result<(), TimingError> {
    for (index, way) in costs.candidates(step) {
        let ns = once(arena, step_bytes(step), state, work(way))?;
        costs.took(index, step, ns);
    }
    Ok(())
}

fn once(
    arena: &mut TimedBuffer,
    range: Length,
    state: LineState,
    work: Work,
) -> Result<f64, TimingError> {
    // With one sample, the first method at a large size would also pay for loading the source into
    // the caches.
    let samples_min = if matches!(work, Work::Write(_) | Work::Copy(_)) { 2 } else { 1 };
    let samples = (SAMPLES_BYTES / range.0).clamp(samples_min, SAMPLES_MAX) as u32;
    let (threads, source) = (NonZeroUsize::MIN, range.min(SOURCE_BYTES_USUAL));
    let job = Job { work, state, range, batch: 1, samples, threads, source };
    let mut samples = arena.run(&job)?;
    samples.sort_unstable_by(f64::total_cmp);
    Ok(samples.get(samples.len() / 4).copied().unwrap_or(f64::INFINITY))
}

#[cfg(test)]
mod tests {
    use super::super::{Origin, Profile};
    use super::*;
    use crate::copy;

    #[test]
    fn this_machine_can_be_measured() {
        let (profile, is_retained) = Profile::measure(Duration::ZERO, None);
        assert!(!is_retained);
        assert!(matches!(profile.origin(), Origin::Measured(_)), "{profile:?}");
        for (bytes, step) in profile.steps() {
            assert!(step.publish.0.is_available(), "{bytes} {step:?}");
            assert!(step.refresh.0.can_refresh(), "{bytes} {step:?}");
            assert!(step.write.0.is_available(), "{bytes} {step:?}");
            let costs = [step.publish.1, step.refresh.1, step.write.1];
            let is_large = bytes.0 > REPEATED_BYTES_MAX;
            let is_notified = |ns: &Option<u32>| ns.map_or(is_large, |ns| ns > 0);
            assert!(costs.iter().all(is_notified), "{bytes} {step:?}");
        }
        assert!(profile.copy_plan().stream_bytes_min >= copy::STREAM_BYTES_MIN);
    }
}
