//! Measuring a profile within milliseconds.
//!
//! Rounds go over all sizes and ways in turn, so that a neighbour on the machine disturbs all ways
//! alike, and the least of the rounds counts: what another process took away is not a property of
//! the machine. That a way is a little quicker is no reason to take it: see [`pick`].

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use super::{Origin, Profile, STEPS, Step, WriteWay, step_bytes};
use crate::cache::{self, Method};
use crate::copy::{self, StreamMethod};
use crate::lab::{Arena, Job, LabError, Pages, State, Work};
use crate::units::Length;

/// What measuring may take, unless a round takes longer.
pub(super) const BUDGET: Duration = Duration::from_millis(20);

/// The least of so many is stable where the machine is quiet. Large ranges take nearly all of the
/// time, and vary less.
const ROUNDS_MIN: u32 = 2;
const ROUNDS_MAX: u32 = 9;

/// Bytes of all ranges of a way that a round at one size may take beyond the first rounds.
const ROUND_BYTES_MAX: u64 = 128 << 10;

/// What is written comes from a buffer of this size: half of a second-level cache at most.
const SOURCE_BYTES: Length = Length(256 << 10);

/// Small ranges are timed together, so that the clock's steps do not decide.
const BATCH_BYTES: u64 = 8 << 10;
const BATCH_MAX: u64 = 16;

/// A way this much slower than the best of its size is not measured at larger sizes: all ways cost
/// more with each line, and `clflush` over megabytes would take longer than all the rest.
const HOPELESS: f64 = 2.0;

/// Up to this size what is published is mostly control words, to which their writer will store again.
/// So that store counts too: `clflushopt` alone is as quick as `clwb`, but takes the line away.
const PUBLISH_AGAIN_BYTES_MAX: u64 = 4096;

/// A way is only left for one that takes a tenth less.
const MARGIN: f64 = 1.0 / 1.1;

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

impl<T: Copy> Costs<T> {
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

    /// Was it far behind at a smaller size, of a page at least?
    fn is_hopeless(&self, index: usize, step: usize) -> bool {
        (0..step).any(|smaller| {
            let best = self.at(smaller).map(|(_, ns)| ns).fold(f64::INFINITY, f64::min);
            let own = self.least.get(index).and_then(|row| row.get(smaller).copied().flatten());
            let is_measured = best.is_finite() && step_bytes(smaller).0 >= 4096;
            is_measured && own.is_none_or(|own| own > HOPELESS * best)
        })
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
            if round >= ROUNDS_MIN && step_bytes(step).0 > ROUND_BYTES_MAX {
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
            publish: picked(publish.at(index), known.publish),
            refresh: picked(refresh.at(index), known.refresh),
            write: picked(write.at(index), known.write),
        }
    });
    let stream = pick_stream(&write);
    let stream_bytes_min = stream_from(&copies, &write, stream);
    let origin = Origin::Measured(begin.elapsed());
    Ok(Profile { steps, stream, stream_bytes_min, origin })
}

fn picked<T>(
    costs: impl Iterator<Item = (T, f64)>,
    fallback: (T, Option<u32>),
) -> (T, Option<u32>) {
    pick(costs).map_or(fallback, |(way, ns)| (way, Some(ns.round().max(1.0) as u32)))
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
    let batch = (BATCH_BYTES / range.0).clamp(1, BATCH_MAX) as u32;
    let threads = NonZeroUsize::MIN;
    let job =
        Job { work, state, range, batch, samples: 1, threads, source: range.min(SOURCE_BYTES) };
    let samples = arena.run(&job)?;
    Ok(samples.into_iter().fold(f64::INFINITY, f64::min))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_quicker_is_no_reason() {
        let ways = |costs: &[(&'static str, f64)]| pick(costs.iter().copied());
        assert_eq!(ways(&[("keeps", 100.0), ("drops", 91.5)]), Some(("keeps", 100.0)));
        assert_eq!(ways(&[("keeps", 100.0), ("drops", 90.0)]), Some(("drops", 90.0)));
        assert_eq!(ways(&[("a", 100.0), ("b", 50.0), ("c", 49.0)]), Some(("b", 50.0)));
        assert_eq!(ways(&[]), None);
    }

    #[test]
    fn this_machine_can_be_measured() {
        let profile = Profile::measure(Duration::ZERO);
        assert!(matches!(profile.origin(), Origin::Measured(_)), "{profile:?}");
        for (bytes, step) in profile.steps() {
            assert!(step.publish.0.is_available() && step.publish.1 > Some(0), "{bytes} {step:?}");
            assert!(step.refresh.0.can_refresh() && step.refresh.1 > Some(0), "{bytes} {step:?}");
            assert!(step.write.0.is_available() && step.write.1 > Some(0), "{bytes} {step:?}");
        }
        assert!(profile.copy_plan().stream_bytes_min >= copy::STREAM_BYTES_MIN);
    }

    #[test]
    fn a_hopeless_way_is_left_out_of_larger_sizes() {
        let mut costs = Costs::new(vec!["quick", "slow"]);
        costs.least[0][3] = Some(10.0);
        costs.least[1][3] = Some(19.0);
        assert!(!costs.is_hopeless(1, 4));
        costs.least[1][3] = Some(21.0);
        assert!(costs.is_hopeless(1, 4) && !costs.is_hopeless(1, 3));
        assert!(!costs.is_hopeless(0, 8));
    }

    #[test]
    fn copies_take_the_stores_that_are_quickest_at_the_largest_size() {
        let ways = [StreamMethod::Avx512, StreamMethod::Avx2].map(WriteWay::Stream);
        let plain = WriteWay::CopyThenPublish(cache::publish_method());
        let mut write = Costs::new(vec![ways[0], ways[1], plain]);
        assert_eq!(pick_stream(&write), copy::stream_method(), "nothing is known");
        write.least = vec![[Some(100.0); STEPS], [Some(95.0); STEPS], [Some(10.0); STEPS]];
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
