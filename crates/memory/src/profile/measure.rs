//! Measuring a profile within some ten milliseconds.
//!
//! Rounds go over all sizes and ways in turn, so that a neighbour on the machine disturbs all ways
//! alike, and the least of the rounds counts: what another process took away is not a property of
//! the machine. That a way is a little quicker is no reason to take it: see `costs::pick`.
//!
//! Nearly all of the time goes to the largest sizes. There a way is left out that is clearly behind
//! already, a way without a rival is not measured, and a second round is made only if the first one
//! would pick another way than at the size before.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use super::costs::{COPY_BYTES, Costs, Findings, PUBLISH_AGAIN_BYTES_MAX, REPEATED_BYTES_MAX};
use super::{STEPS, step_bytes, step_of};
use crate::cache::Method;
use crate::lab::{Arena, Job, LabError, Pages, State, Work};
use crate::units::Length;

/// When no further round is begun, once each size has had its first ones.
pub(super) const BUDGET: Duration = Duration::from_millis(8);

/// The least of so many is stable where the machine is quiet, and of more where it is not.
const ROUNDS_MIN: u32 = 2;
const ROUNDS_MAX: u32 = 9;

/// What is written comes from a buffer of this size: half of a second-level cache at most.
const SOURCE_BYTES: Length = Length(256 << 10);

/// Small ranges are timed together, so that the clock's steps do not decide.
const BATCH_BYTES: u64 = 8 << 10;
const BATCH_MAX: u64 = 16;
/// And several of these are taken at a time: starting a job costs as much.
const SAMPLES_BYTES: u64 = 8 << 10;
const SAMPLES_MAX: u64 = 4;

/// Measures.
pub(super) fn measure(budget: Duration) -> Result<Findings, LabError> {
    let begin = Instant::now();
    let largest = step_bytes(STEPS - 1);
    let mut arena = Arena::private(largest, Pages::Huge)?;
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
            turn(&mut found.publish, &mut arena, step, State::Dirty, publish_as)?;
            turn(&mut found.refresh, &mut arena, step, State::Cached, Work::Refresh)?;
            turn(&mut found.write, &mut arena, step, State::Uncached, Work::Write)?;
            if COPY_BYTES.iter().any(|bytes| step_of(*bytes) == step) {
                turn(&mut found.copies, &mut arena, step, State::Uncached, Work::Copy)?;
            }
        }
    }
    found.runs = 1;
    Ok(found)
}

/// All ways once, at one size.
fn turn<T: Copy + PartialEq>(
    costs: &mut Costs<T>,
    arena: &mut Arena,
    step: usize,
    state: State,
    work: impl Fn(T) -> Work,
) -> Result<(), LabError> {
    for (index, way) in costs.candidates(step) {
        let ns = once(arena, step_bytes(step), state, work(way))?;
        costs.took(index, step, ns);
    }
    Ok(())
}

fn once(arena: &mut Arena, range: Length, state: State, work: Work) -> Result<f64, LabError> {
    let batch = (BATCH_BYTES / range.0).clamp(1, BATCH_MAX);
    let samples = (SAMPLES_BYTES / (range.0 * batch)).clamp(1, SAMPLES_MAX) as u32;
    let (batch, threads) = (batch as u32, NonZeroUsize::MIN);
    let job = Job { work, state, range, batch, samples, threads, source: range.min(SOURCE_BYTES) };
    let samples = arena.run(&job)?;
    Ok(samples.into_iter().fold(f64::INFINITY, f64::min))
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
