//! Measuring a profile within some ten milliseconds.
//!
//! Rounds go over all sizes and ways in turn, so that a neighbour on the machine disturbs all ways
//! alike, and the least of the rounds counts: what another process took away is not a property of
//! the machine. That a way is a little quicker is no reason to take it: see [`pick`].
//!
//! Nearly all of the time goes to the largest sizes. There a way is left out that is clearly behind
//! already, a way without a rival is not measured, and a second round is made only if the first one
//! would pick another way than at the size before.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use super::{Origin, Profile, STEPS, Step, WriteWay, step_bytes};
use crate::cache::{self, Method};
use crate::copy::{self, StreamMethod};
use crate::lab::{Arena, Job, LabError, Pages, State, Work};
use crate::units::Length;

/// When no further round is begun, once each size has had its first ones.
pub(super) const BUDGET: Duration = Duration::from_millis(8);

/// The least of so many is stable where the machine is quiet, and of more where it is not.
const ROUNDS_MIN: u32 = 2;
const ROUNDS_MAX: u32 = 9;

/// Larger ranges are measured once or twice: each sample is a mean over thousands of lines, and
/// takes as long as all smaller ones together.
const REPEATED_BYTES_MAX: u64 = 256 << 10;

/// What is written comes from a buffer of this size: half of a second-level cache at most.
const SOURCE_BYTES: Length = Length(256 << 10);

/// Small ranges are timed together, so that the clock's steps do not decide.
const BATCH_BYTES: u64 = 8 << 10;
const BATCH_MAX: u64 = 16;
/// And several of these are taken at a time: starting a job costs as much.
const SAMPLES_BYTES: u64 = 8 << 10;
const SAMPLES_MAX: u64 = 4;

/// A way this much slower than the best of its size is not measured at larger sizes: all ways cost
/// more with each line, and `clflush` over megabytes would take longer than all the rest.
const HOPELESS: f64 = 1.5;

/// Up to this size what is published is mostly control words, to which their writer will store again.
/// So that store counts too: `clflushopt` alone is as quick as `clwb`, but takes the line away.
pub(super) const PUBLISH_AGAIN_BYTES_MAX: u64 = 4096;

/// A way is only left for one that takes a twentieth less: half of what a picked way may lose to the
/// best one, so that the other half is there for noise.
const MARGIN: f64 = 1.0 / 1.05;

/// Where plain copies end on coherent memory: at the first of these sizes in whose step stores past
/// the cache do not take a tenth more. Below a megabyte readers find plain stores in their caches,
/// which is worth more than the copy itself.
const COPY_BYTES: [Length; 2] = [copy::STREAM_BYTES_MIN, Length(2 << 20)];
const COPY_SLACK: f64 = 1.1;

/// The least nanoseconds of each way, by step.
struct Costs<T> {
    ways: Vec<T>,
    least: Vec<[Option<f64>; STEPS]>,
}

impl<T: Copy + PartialEq> Costs<T> {
    fn new(ways: Vec<T>) -> Self {
        let least = vec![[None; STEPS]; ways.len()];
        Self { ways, least }
    }

    /// One round at one size.
    fn round(
        &mut self,
        arena: &mut Arena,
        step: usize,
        state: State,
        work: impl Fn(T) -> Work,
    ) -> Result<(), LabError> {
        if self.is_settled(step) {
            return Ok(());
        }
        for (index, way) in self.ways.iter().enumerate() {
            if self.is_hopeless(index, step) {
                continue;
            }
            let ns = once(arena, step_bytes(step), state, work(*way))?;
            if let Some(cell) = self.least.get_mut(index).and_then(|row| row.get_mut(step)) {
                *cell = Some(cell.map_or(ns, |least: f64| least.min(ns)));
            }
        }
        Ok(())
    }

    /// Was it far behind at a smaller size? Only where publishing is measured by itself.
    fn is_hopeless(&self, index: usize, step: usize) -> bool {
        (0..step).any(|smaller| {
            let best = self.at(smaller).map(|(_, ns)| ns).fold(f64::INFINITY, f64::min);
            let own = self.least.get(index).and_then(|row| row.get(smaller).copied().flatten());
            let is_measured = best.is_finite() && step_bytes(smaller).0 > PUBLISH_AGAIN_BYTES_MAX;
            is_measured && own.is_none_or(|own| own > HOPELESS * best)
        })
    }

    /// Would another round at a large size be spent on what is known? It is, where one way is left,
    /// or where the ways rank as at the size before.
    fn is_settled(&self, step: usize) -> bool {
        if step_bytes(step).0 <= REPEATED_BYTES_MAX {
            return false;
        }
        let has_rivals =
            (0..self.ways.len()).filter(|way| !self.is_hopeless(*way, step)).count() > 1;
        let way_at = |step| pick(self.at(step)).map(|(way, _)| way);
        let known = way_at(step);
        (self.ways.len() > 1 && !has_rivals) || (known.is_some() && known == way_at(step - 1))
    }

    /// All ways with what they take at a step.
    fn at(&self, step: usize) -> impl Iterator<Item = (T, f64)> + '_ {
        let cells = self.least.iter().map(move |row| row.get(step).copied().flatten());
        self.ways.iter().copied().zip(cells).filter_map(|(way, ns)| ns.map(|ns| (way, ns)))
    }
}

/// The first way, unless another one is clearly quicker: ways are listed by what else speaks for
/// them, such as that a line stays in the cache of who wrote it.
fn pick<T>(costs: impl Iterator<Item = (T, f64)>) -> Option<(T, f64)> {
    costs.reduce(|best, other| if other.1 < MARGIN * best.1 { other } else { best })
}

/// Measures.
pub(super) fn measure(budget: Duration) -> Result<Profile, LabError> {
    let begin = Instant::now();
    let largest = step_bytes(STEPS - 1);
    let mut arena = Arena::private(largest, Pages::Huge)?;
    let methods = cache::methods_available();
    let mut publish = Costs::new(methods.clone());
    let mut refresh =
        Costs::new(refresh_first(methods.iter().copied().filter(|m| m.can_refresh()).collect()));
    let mut write = Costs::new(WriteWay::all());
    let mut copies = Costs::new(vec![StreamMethod::Memcpy]);
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
            publish.round(&mut arena, step, State::Dirty, publish_as)?;
            refresh.round(&mut arena, step, State::Cached, Work::Refresh)?;
            write.round(&mut arena, step, State::Uncached, Work::Write)?;
            if COPY_BYTES.iter().any(|bytes| super::step_of(*bytes) == step) {
                copies.round(&mut arena, step, State::Uncached, Work::Copy)?;
            }
        }
    }
    let fallback = Profile::unmeasured();
    let steps = std::array::from_fn(|index| {
        let known = fallback.step(step_bytes(index));
        Step {
            publish: picked(&publish, index, known.publish),
            refresh: picked(&refresh, index, known.refresh),
            write: picked(&write, index, known.write),
        }
    });
    let stream = pick_stream(&write);
    let stream_bytes_min = stream_from(&copies, &write, stream);
    let origin = Origin::Measured(begin.elapsed());
    Ok(Profile { steps, stream, stream_bytes_min, origin })
}

/// The way at a step; where it had no rival and was not measured, that of the step before.
fn picked<T: Copy + PartialEq>(
    costs: &Costs<T>,
    step: usize,
    fallback: (T, Option<u32>),
) -> (T, Option<u32>) {
    match pick(costs.at(step)) {
        Some((way, ns)) => (way, Some(ns.round().max(1.0) as u32)),
        None => (0..step)
            .rev()
            .find_map(|smaller| pick(costs.at(smaller)))
            .map_or(fallback, |(way, _)| (way, None)),
    }
}

/// The usual instruction before those that are mostly slower.
fn refresh_first(mut methods: Vec<Method>) -> Vec<Method> {
    methods.sort_by_key(|method| *method != cache::refresh_method());
    methods
}

/// The stores past the cache that are quickest at the largest size, the widest first: on one machine
/// AVX-512 wins up to a megabyte and loses to AVX2 beyond.
fn pick_stream(write: &Costs<WriteWay>) -> StreamMethod {
    let streams = write.at(STEPS - 1).filter_map(|(way, ns)| match way {
        WriteWay::Stream(method) => Some((method, ns)),
        WriteWay::CopyThenPublish(_) => None,
    });
    pick(streams).map_or_else(copy::stream_method, |(method, _)| method)
}

/// From which length on copies on coherent memory go past the cache.
fn stream_from(
    copies: &Costs<StreamMethod>,
    write: &Costs<WriteWay>,
    stream: StreamMethod,
) -> Length {
    let is_good = |bytes: &Length| {
        let step = super::step_of(*bytes);
        // Nothing but the ends is published after stores past the cache: it is the same copy.
        let streamed = write.at(step).find(|(way, _)| *way == WriteWay::Stream(stream));
        match (copies.at(step).next(), streamed) {
            (Some((_, plain)), Some((_, streamed))) => streamed <= COPY_SLACK * plain,
            _ => true,
        }
    };
    COPY_BYTES.into_iter().find(is_good).unwrap_or(Length(u64::MAX))
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
    use super::*;

    #[test]
    fn a_little_quicker_is_no_reason() {
        let ways = |costs: &[(&'static str, f64)]| pick(costs.iter().copied());
        assert_eq!(ways(&[("keeps", 100.0), ("drops", 96.0)]), Some(("keeps", 100.0)));
        assert_eq!(ways(&[("keeps", 100.0), ("drops", 94.0)]), Some(("drops", 94.0)));
        assert_eq!(ways(&[("a", 100.0), ("b", 50.0), ("c", 49.0)]), Some(("b", 50.0)));
        assert_eq!(ways(&[]), None);
    }

    #[test]
    fn this_machine_can_be_measured() {
        let profile = Profile::measure(Duration::ZERO);
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

    #[test]
    fn a_hopeless_way_is_left_out_of_larger_sizes() {
        let mut costs = Costs::new(vec!["quick", "slow"]);
        costs.least[0][4] = Some(10.0);
        costs.least[1][4] = Some(14.0);
        assert!(!costs.is_hopeless(1, 5));
        costs.least[1][4] = Some(16.0);
        assert!(costs.is_hopeless(1, 5) && !costs.is_hopeless(1, 4));
        assert!(!costs.is_hopeless(0, 8));
    }

    #[test]
    fn a_large_size_is_measured_again_only_if_it_says_something_new() {
        let mut costs = Costs::new(vec!["first", "second"]);
        costs.least[0][6] = Some(10.0);
        costs.least[1][6] = Some(12.0);
        assert!(!costs.is_settled(7), "not measured yet");
        costs.least[0][7] = Some(40.0);
        costs.least[1][7] = Some(48.0);
        assert!(costs.is_settled(7), "ranked as before");
        costs.least[1][7] = Some(20.0);
        assert!(!costs.is_settled(7), "ranked anew");
        assert!(!costs.is_settled(6), "small sizes are measured in each round");
        costs.least[1][6] = Some(16.0);
        costs.least[0][8] = None;
        assert!(costs.is_settled(8), "no rival is left");
        assert_eq!(picked(&costs, 8, ("other", None)), ("second", None), "as at the size before");
        assert_eq!(picked(&Costs::new(vec!["none"]), 8, ("other", None)), ("other", None));
    }

    #[test]
    fn copies_take_the_stores_that_are_quickest_at_the_largest_size() {
        let ways = [StreamMethod::Avx512, StreamMethod::Avx2].map(WriteWay::Stream);
        let plain = WriteWay::CopyThenPublish(cache::publish_method());
        let mut write = Costs::new(vec![ways[0], ways[1], plain]);
        assert_eq!(pick_stream(&write), copy::stream_method(), "nothing is known");
        write.least = vec![[Some(100.0); STEPS], [Some(96.0); STEPS], [Some(10.0); STEPS]];
        assert_eq!(pick_stream(&write), StreamMethod::Avx512);
        write.least[1][STEPS - 1] = Some(85.0);
        assert_eq!(pick_stream(&write), StreamMethod::Avx2);
    }

    #[test]
    fn plain_copies_end_where_streams_hold_up() {
        let way = WriteWay::Stream(StreamMethod::Sse2);
        let mut copies = Costs::new(vec![StreamMethod::Memcpy]);
        let mut write = Costs::new(vec![way]);
        let found = stream_from(&copies, &write, StreamMethod::Sse2);
        assert_eq!(found, copy::STREAM_BYTES_MIN, "nothing is known");
        copies.least[0] = [Some(100.0); STEPS];
        for (at_first, at_second, expected) in
            [(105.0, 50.0, 1 << 20), (120.0, 50.0, 2 << 20), (120.0, 120.0, u64::MAX)]
        {
            write.least[0][7] = Some(at_first);
            write.least[0][8] = Some(at_second);
            let found = stream_from(&copies, &write, StreamMethod::Sse2);
            assert_eq!(found, Length(expected), "{at_first} {at_second}");
        }
    }
}
