//! Measuring a profile within some thirty milliseconds.
//!
//! Rounds go over all sizes and ways in turn, so that a neighbour on the machine disturbs all ways
//! alike, and the least of the rounds counts: what another process took away is not a property of
//! the machine. Of the samples of one round it is the lower quartile: ways that wait for memory vary
//! more than others, and their best moment says little about what they take. That a way is a little
//! quicker is no reason to take it: see `costs::pick`.
//!
//! Nearly all of the time goes to the largest sizes. There a way is left out that is clearly behind
//! already, a way without a rival is not measured, and a second round is made only if the first one
//! would pick another way than at the size before.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use super::costs::{COPY_BYTES, Costs, Findings, PUBLISH_AGAIN_BYTES_MAX, REPEATED_BYTES_MAX};
use super::{STEPS, step_bytes, step_of};
use crate::cache::Method;
use crate::lab::{Job, LabBuffer, LabError, LineState, Pages, SOURCE_BYTES_USUAL, Work};
use crate::units::Length;

/// When no further round is begun, once each size has had its first ones.
pub(super) const BUDGET: Duration = Duration::from_millis(8);

/// The least of so many is stable where the machine is quiet, and of more where it is not.
const ROUNDS_MIN: u32 = 2;
const ROUNDS_MAX: u32 = 9;

/// Several samples of small ranges are taken at a time: starting a job costs as much as they.
const SAMPLES_BYTES: u64 = 32 << 10;
const SAMPLES_MAX: u64 = 32;

/// Measures.
pub(super) fn measure(budget: Duration) -> Result<Findings, LabError> {
    let begin = Instant::now();
    let largest = step_bytes(STEPS - 1);
    let mut arena = LabBuffer::private(largest, Pages::Huge)?;
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

/// All ways once, at one size.
fn turn<T: Copy + PartialEq>(
    costs: &mut Costs<T>,
    arena: &mut LabBuffer,
    step: usize,
    state: LineState,
    work: impl Fn(T) -> Work,
) -> Result<(), LabError> {
    for (index, way) in costs.candidates(step) {
        let ns = once(arena, step_bytes(step), state, work(way))?;
        costs.took(index, step, ns);
    }
    Ok(())
}

fn once(
    arena: &mut LabBuffer,
    range: Length,
    state: LineState,
    work: Work,
) -> Result<f64, LabError> {
    // The first way to write a large range would pay for bringing the source into the caches.
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
        let (profile, is_kept) = Profile::measure(Duration::ZERO, None);
        assert!(!is_kept);
        assert!(matches!(profile.origin(), Origin::Measured(_)), "{profile:?}");
        for (bytes, step) in profile.steps() {
            assert!(step.publish.0.is_available(), "{bytes} {step:?}");
            assert!(step.refresh.0.can_refresh(), "{bytes} {step:?}");
            assert!(step.write.0.is_available(), "{bytes} {step:?}");
            let costs = [step.publish.1, step.refresh.1, step.write.1];
            let is_large = bytes.0 > REPEATED_BYTES_MAX;
            let is_told = |ns: &Option<u32>| ns.map_or(is_large, |ns| ns > 0);
            assert!(costs.iter().all(is_told), "{bytes} {step:?}");
        }
        assert!(profile.copy_plan().stream_bytes_min >= copy::STREAM_BYTES_MIN);
    }
}
