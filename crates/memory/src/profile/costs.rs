//! Measured costs of the methods, and the choice of the methods for a profile.
//!
//! Measurements of several processes are merged by the minimum for each method, so one process that
//! measured on a busy machine does not decide permanently.

use super::methods::{Origin, Profile, ProfileStep};
use super::steps::{STEPS, step_bytes, step_of};
use crate::cache::{self, Method};
use crate::copy::{self, StreamMethod};
use crate::units::Length;
use crate::write_way::WriteWay;

/// Larger ranges are measured only once or twice: each sample is a mean over thousands of lines,
/// and takes as long as all smaller ranges together.
pub(super) const REPEATED_BYTES_MAX: u64 = 256 << 10;

/// A method slower than the best of a size by this factor is not measured at larger sizes. Costs
/// grow with the number of lines, and `clflush` over megabytes would take longer than everything
/// else.
const HOPELESS: f64 = 1.5;

/// Up to this size, publishing is mostly of control words, which their writer soon stores to again.
/// The measurement therefore includes that store: `clflushopt` alone is as fast as `clwb`, but
/// drops the line.
pub(super) const PUBLISH_AGAIN_BYTES_MAX: u64 = 4096;

/// A method replaces the preferred one only if it is faster by a twentieth. That is half of what a
/// chosen method may lose to the best one; the other half is for noise.
const MARGIN: f64 = 1.0 / 1.05;

/// Number of processes that measure, about 30 ms each. After that, disturbances of single runs no
/// longer affect the minimum.
const RUNS: u32 = 8;

/// Candidates for the size at which copies on coherent memory switch to non-temporal stores: the
/// first size at whose step these take at most a tenth longer. Below a megabyte, plain stores leave
/// the data in the caches for readers, which is worth more than the copy itself.
pub(super) const COPY_BYTES: [Length; 2] = [copy::STREAM_BYTES_MIN, Length(2 << 20)];
const COPY_SLACK: f64 = 1.1;

/// Minimum nanoseconds of one method per step; `None` if not measured.
pub(super) type Row = [Option<f64>; STEPS];

/// Minimum nanoseconds of each method.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Costs<T> {
    pub(super) ways: Vec<T>,
    pub(super) least: Vec<Row>,
}

impl<T: Copy + PartialEq> Costs<T> {
    pub(super) fn new(ways: Vec<T>) -> Self {
        let least = vec![[None; STEPS]; ways.len()];
        Self { ways, least }
    }

    /// Methods that are worth a measurement at a step, with their index.
    pub(super) fn candidates(&self, step: usize) -> Vec<(usize, T)> {
        if self.is_settled(step) {
            return Vec::new();
        }
        let all = self.ways.iter().copied().enumerate();
        all.filter(|(index, _)| !self.is_hopeless(*index, step)).collect()
    }

    /// Records a measurement of a method at a step.
    pub(super) fn took(&mut self, index: usize, step: usize, ns: f64) {
        if let Some(cell) = self.least.get_mut(index).and_then(|row| row.get_mut(step)) {
            *cell = Some(cell.map_or(ns, |least: f64| least.min(ns)));
        }
    }

    /// Merges measurements of another process. Both must have the same methods.
    fn merge(&mut self, added: &Self) {
        for (index, row) in added.least.iter().enumerate() {
            for (step, ns) in row.iter().enumerate() {
                if let Some(ns) = ns {
                    self.took(index, step, *ns);
                }
            }
        }
    }

    /// Whether a method was much slower at a smaller size. Considers only sizes at which publishing
    /// is measured without the next store.
    fn is_hopeless(&self, index: usize, step: usize) -> bool {
        (0..step).any(|smaller| {
            let best = self.at(smaller).map(|(_, ns)| ns).fold(f64::INFINITY, f64::min);
            let own = self.least.get(index).and_then(|row| row.get(smaller).copied().flatten());
            let is_measured = best.is_finite() && step_bytes(smaller).0 > PUBLISH_AGAIN_BYTES_MAX;
            is_measured && own.is_none_or(|own| own > HOPELESS * best)
        })
    }

    /// Whether another round at a large size would tell nothing new: only one method is left, or
    /// the best method is the same as at the previous size.
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

    /// All methods with their cost at a step.
    fn at(&self, step: usize) -> impl Iterator<Item = (T, f64)> + '_ {
        let cells = self.least.iter().map(move |row| row.get(step).copied().flatten());
        self.ways.iter().copied().zip(cells).filter_map(|(way, ns)| ns.map(|ns| (way, ns)))
    }
}

/// The first method, unless another one is clearly faster. Methods are listed by their other
/// advantages, such as keeping a line in the cache of its writer.
fn pick<T>(costs: impl Iterator<Item = (T, f64)>) -> Option<(T, f64)> {
    costs.reduce(|best, other| if other.1 < MARGIN * best.1 { other } else { best })
}

/// All measurements of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings {
    /// Number of runs, each by a different process.
    pub(super) runs: u32,
    pub(super) publish: Costs<Method>,
    pub(super) refresh: Costs<Method>,
    pub(super) write: Costs<WriteWay>,
    pub(super) copies: Costs<StreamMethod>,
}

impl Findings {
    /// No measurements.
    pub(super) fn none() -> Self {
        let methods = cache::methods_available();
        let refresh = methods.iter().copied().filter(|method| method.can_refresh()).collect();
        Self {
            runs: 0,
            publish: Costs::new(methods),
            refresh: Costs::new(refresh_first(refresh)),
            write: Costs::new(WriteWay::all()),
            copies: Costs::new(vec![StreamMethod::Memcpy]),
        }
    }

    /// The costs of each method, in a stable order.
    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        let (publish, refresh) = (&self.publish.least, &self.refresh.least);
        publish.iter().chain(refresh).chain(&self.write.least).chain(&self.copies.least)
    }

    /// The same, mutable.
    pub(super) fn rows_mut(&mut self) -> impl Iterator<Item = &mut Row> {
        let (publish, refresh) = (&mut self.publish.least, &mut self.refresh.least);
        let (write, copies) = (&mut self.write.least, &mut self.copies.least);
        publish.iter_mut().chain(refresh).chain(write).chain(copies)
    }

    /// Whether there are enough runs.
    pub(super) fn is_settled(&self) -> bool {
        self.runs >= RUNS
    }

    /// Merges measurements of other processes on the same machine.
    pub(super) fn merge(&mut self, added: &Self) {
        self.runs = self.runs.saturating_add(added.runs);
        self.publish.merge(&added.publish);
        self.refresh.merge(&added.refresh);
        self.write.merge(&added.write);
        self.copies.merge(&added.copies);
    }

    /// The profile of the cheapest methods.
    #[must_use]
    pub(super) fn profile(&self, origin: Origin) -> Profile {
        let fallback = Profile::unmeasured();
        let steps = std::array::from_fn(|index| {
            let known = fallback.step(step_bytes(index));
            ProfileStep {
                publish: picked(&self.publish, index, known.publish),
                refresh: picked(&self.refresh, index, known.refresh),
                write: picked(&self.write, index, known.write),
            }
        });
        let stream = pick_stream(&self.write);
        let stream_bytes_min = stream_from(&self.copies, &self.write, stream);
        Profile { steps, stream, stream_bytes_min, origin }
    }
}

/// The method at a step. If none was measured there, for lack of alternatives, that of the nearest
/// smaller step.
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

/// Puts the default instruction before the others, which are mostly slower.
fn refresh_first(mut methods: Vec<Method>) -> Vec<Method> {
    methods.sort_by_key(|method| *method != cache::refresh_method());
    methods
}

/// The non-temporal stores that are fastest at the largest size; the widest ones are preferred. On
/// one machine AVX-512 is faster up to a megabyte, and AVX2 beyond.
fn pick_stream(write: &Costs<WriteWay>) -> StreamMethod {
    let streams = write.at(STEPS - 1).filter_map(|(way, ns)| match way {
        WriteWay::Stream(method) => Some((method, ns)),
        WriteWay::CopyThenPublish(_) => None,
    });
    pick(streams).map_or_else(copy::stream_method, |(method, _)| method)
}

/// Minimum length of copies with non-temporal stores on coherent memory.
fn stream_from(
    copies: &Costs<StreamMethod>,
    write: &Costs<WriteWay>,
    stream: StreamMethod,
) -> Length {
    let is_good = |bytes: &Length| {
        let step = step_of(*bytes);
        // After non-temporal stores only the ends are published, so the cost is that of the copy.
        let streamed = write.at(step).find(|(way, _)| *way == WriteWay::Stream(stream));
        match (copies.at(step).next(), streamed) {
            (Some((_, plain)), Some((_, streamed))) => streamed <= COPY_SLACK * plain,
            _ => true,
        }
    };
    COPY_BYTES.into_iter().find(is_good).unwrap_or(Length(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_busy_moment_took_is_given_back_by_another() {
        let mut busy = Findings::none();
        let mut quiet = Findings::none();
        for (findings, ns) in [(&mut busy, 900.0), (&mut quiet, 90.0)] {
            findings.runs = 1;
            for index in 0..findings.write.ways.len() {
                // Only the first method was disturbed.
                findings.write.took(index, 2, if index == 0 { ns } else { 100.0 });
            }
        }
        let way = |findings: &Findings| findings.profile(Origin::File).step(Length(1024)).write;
        assert_ne!(way(&busy).0, busy.write.ways[0]);
        assert_eq!(way(&quiet), (quiet.write.ways[0], Some(90)));
        busy.merge(&quiet);
        assert_eq!(way(&busy), way(&quiet));
        assert_eq!(busy.runs, 2);
        assert!(!busy.is_settled());
        (0..RUNS).for_each(|_| busy.merge(&quiet));
        assert!(busy.is_settled());
    }

    #[test]
    fn a_little_quicker_is_no_reason() {
        let ways = |costs: &[(&'static str, f64)]| pick(costs.iter().copied());
        assert_eq!(ways(&[("keeps", 100.0), ("drops", 96.0)]), Some(("keeps", 100.0)));
        assert_eq!(ways(&[("keeps", 100.0), ("drops", 94.0)]), Some(("drops", 94.0)));
        assert_eq!(ways(&[("a", 100.0), ("b", 50.0), ("c", 49.0)]), Some(("b", 50.0)));
        assert_eq!(ways(&[]), None);
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
        assert!(!costs.is_settled(7), "measured again");
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
