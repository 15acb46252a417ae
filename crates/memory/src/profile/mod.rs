//! The fastest methods to publish, refresh and write on this machine, by the size of the range.
//!
//! All methods in a profile are correct; they differ only in cost, and the differences depend on
//! the CPU. On one machine `clflush` takes forty times as long as `clflushopt`; another has no
//! `clflushopt`. A profile is therefore measured ([`Profile::measure`], about 30 ms) when a region
//! is first created or mapped, and stored in a file of the user ([`file`](mod@file)). The next
//! processes add their measurements until there are eight; from then on the profile is only loaded
//! (0.1 ms). Every [`Region`](crate::Region) has a profile; tests can set another one.
//!
//! For the largest ranges, all caches can be written back at once if a kernel module is loaded
//! ([`all_caches`]). This is not part of a profile, since the module can be loaded and unloaded.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::cache::{self, Method};
use crate::copy::{self, CopyPlan, StreamMethod};
use crate::units::Length;

pub mod all_caches;
mod costs;
pub mod file;
mod measure;

pub use costs::Findings;

/// Up to this size the method to publish is chosen by the time for publishing plus the writer's
/// next store to each line.
pub const PUBLISH_AGAIN_BYTES_MAX: Length = Length(costs::PUBLISH_AGAIN_BYTES_MAX);

/// Number of measured sizes: 64 B to 4 MiB, each four times the previous one. A larger range is
/// treated as the largest size.
pub const STEPS: usize = 9;

/// The smallest measured size.
const STEP_BYTES_FIRST: u64 = 64;

/// Cache maintenance in a region that is coherent only inside a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Upkeep {
    /// Write lines back to memory.
    Publish,
    /// Drop lines, so that the next load comes from memory.
    Refresh,
}

/// Method to copy bytes into memory that other nodes read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteWay {
    /// With non-temporal stores; only the lines at the two ends are written back.
    Stream(StreamMethod),
    /// With plain stores; then the lines are written back one by one.
    CopyThenPublish(Method),
}

impl WriteWay {
    /// Whether this CPU supports it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Self::Stream(method) => method.is_streaming(),
            Self::CopyThenPublish(method) => method.is_available(),
        }
    }

    /// Its name in files: that of the instruction, such as `clwb` or `avx512`.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Stream(method) => method.key(),
            Self::CopyThenPublish(method) => method.as_str(),
        }
    }

    /// The method with this [key](Self::key), whether or not this CPU supports it.
    #[must_use]
    pub fn of_key(key: &str) -> Option<Self> {
        match StreamMethod::of_key(key) {
            Some(StreamMethod::Memcpy) => None,
            Some(method) => Some(Self::Stream(method)),
            None => Method::of_name(key).map(Self::CopyThenPublish),
        }
    }

    /// All methods that this CPU supports, those with non-temporal stores first.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let streams = copy::methods_available().into_iter().filter(|method| method.is_streaming());
        let methods = cache::methods_available().into_iter().map(Self::CopyThenPublish);
        streams.map(Self::Stream).chain(methods).collect()
    }
}

impl fmt::Display for WriteWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(method) => f.write_str(method.as_str()),
            Self::CopyThenPublish(method) => write!(f, "copy, {}", method.as_str()),
        }
    }
}

/// The methods for ranges of about one size, each with its cost in nanoseconds if it was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfileStep {
    /// To publish lines that were stored to. Up to [`PUBLISH_AGAIN_BYTES_MAX`] the cost includes
    /// the next store to each line.
    pub publish: (Method, Option<u32>),
    /// To refresh.
    pub refresh: (Method, Option<u32>),
    /// To copy bytes from another buffer and publish them.
    pub write: (WriteWay, Option<u32>),
}

/// Origin of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Not measured: default methods.
    Default,
    /// Measured by this process, within this time.
    Measured(Duration),
    /// Loaded from the user's file.
    File,
    /// Set by a test or a program.
    Given,
}

impl Origin {
    /// `"default"`, `"measured"`, `"file"` or `"given"`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Measured(_) => "measured",
            Self::File => "file",
            Self::Given => "given",
        }
    }
}

/// The cheapest methods on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    steps: [ProfileStep; STEPS],
    stream: StreamMethod,
    stream_bytes_min: Length,
    origin: Origin,
}

impl Profile {
    /// A profile with these steps, smallest first. `stream` is used for copies on coherent memory
    /// of at least `stream_bytes_min`. `None` if this CPU does not support one of the methods.
    #[must_use]
    pub fn new(
        steps: [ProfileStep; STEPS],
        stream: StreamMethod,
        stream_bytes_min: Length,
    ) -> Option<Self> {
        let is_usable = steps.iter().all(|step| {
            step.publish.0.is_available()
                && step.refresh.0.can_refresh()
                && step.write.0.is_available()
        });
        let can_stream = stream == StreamMethod::Memcpy || stream.is_streaming();
        let origin = Origin::Given;
        (is_usable && can_stream).then_some(Self { steps, stream, stream_bytes_min, origin })
    }

    /// The same methods for every size: for tests, which must check each method.
    #[must_use]
    pub fn uniform(publish: Method, refresh: Method, write: WriteWay) -> Option<Self> {
        let step = ProfileStep {
            publish: (publish, None),
            refresh: (refresh, None),
            write: (write, None),
        };
        Self::new([step; STEPS], copy::stream_method(), copy::STREAM_BYTES_MIN)
    }

    /// The default profile, from the first machine that was measured: non-temporal stores from 4096
    /// B on.
    #[must_use]
    pub fn unmeasured() -> Self {
        let (publish, refresh) = (cache::publish_method(), cache::refresh_method());
        let stream = copy::stream_method();
        let steps = std::array::from_fn(|index| {
            let is_streamed = stream.is_streaming() && step_bytes(index).0 >= 4096;
            let write = match is_streamed {
                true => WriteWay::Stream(stream),
                false => WriteWay::CopyThenPublish(publish),
            };
            ProfileStep { publish: (publish, None), refresh: (refresh, None), write: (write, None) }
        });
        let stream_bytes_min = copy::STREAM_BYTES_MIN;
        Self { steps, stream, stream_bytes_min, origin: Origin::Default }
    }

    /// Measures this machine. Makes two to nine rounds over all methods and sizes, as many as fit
    /// in `budget`, and one or two for large sizes. The minimum of the rounds is used. Returns
    /// [`Profile::unmeasured`] if there is no memory for the measurement. With a path, the result
    /// replaces the file there. The second value tells whether it was stored.
    #[must_use]
    pub fn measure(budget: Duration, keep: Option<&Path>) -> (Self, bool) {
        measured(budget, None, keep)
    }

    /// The profile of this machine: loaded if there are enough measurements, or else measured,
    /// merged with earlier measurements and stored in the user's file. Measures at most once per
    /// process.
    #[must_use]
    pub fn of_machine() -> Arc<Self> {
        static MEASURED: OnceLock<Arc<Profile>> = OnceLock::new();
        let loaded = loaded();
        if let Some((found, profile)) = loaded
            && found.is_settled()
        {
            return Arc::clone(profile);
        }
        Arc::clone(MEASURED.get_or_init(|| {
            let before = loaded.map(|(found, _)| found);
            Arc::new(measured(measure::BUDGET, before, file::path().as_deref()).0)
        }))
    }

    /// The profile of this machine if a process of this user has measured it before; else
    /// [`Profile::unmeasured`]. Measures nothing.
    #[must_use]
    pub fn known() -> Arc<Self> {
        static UNMEASURED: OnceLock<Arc<Profile>> = OnceLock::new();
        match loaded() {
            Some((_, profile)) => Arc::clone(profile),
            None => Arc::clone(UNMEASURED.get_or_init(|| Arc::new(Self::unmeasured()))),
        }
    }

    /// The methods for ranges of this length.
    #[inline]
    #[must_use]
    pub fn step(&self, length: Length) -> &ProfileStep {
        let [first, ..] = &self.steps;
        self.steps.get(step_of(length)).unwrap_or(first)
    }

    /// All steps with the size at which each was measured, smallest first.
    pub fn steps(&self) -> impl Iterator<Item = (Length, &ProfileStep)> {
        self.steps.iter().enumerate().map(|(index, step)| (step_bytes(index), step))
    }

    /// Estimated time to publish or to refresh a range of this length line by line, extrapolated
    /// from the largest measured range. `None` if nothing was measured.
    #[must_use]
    pub fn estimate(&self, upkeep: Upkeep, length: Length) -> Option<Duration> {
        let (bytes, ns) = self
            .steps()
            .filter_map(|(bytes, step)| {
                let (_, ns) = match upkeep {
                    Upkeep::Publish => step.publish,
                    Upkeep::Refresh => step.refresh,
                };
                Some((bytes, ns?))
            })
            .last()?;
        Some(Duration::from_nanos((f64::from(ns) * (length.0 as f64 / bytes.0 as f64)) as u64))
    }

    /// The plan for copies that need not be published.
    #[must_use]
    pub fn copy_plan(&self) -> CopyPlan {
        CopyPlan {
            stream_bytes_min: self.stream_bytes_min,
            method: self.stream,
            ..CopyPlan::automatic()
        }
    }

    /// The plan for a copy of this length that is then published, and the instruction to publish
    /// it, if it needs one.
    #[must_use]
    pub(crate) fn published_plan(&self, length: Length) -> (CopyPlan, Option<Method>) {
        let plan = CopyPlan::automatic();
        match self.step(length).write.0 {
            WriteWay::Stream(method) => {
                (CopyPlan { stream_bytes_min: Length(0), method, ..plan }, None)
            }
            WriteWay::CopyThenPublish(method) => {
                let never = Length(u64::MAX);
                (CopyPlan { stream_bytes_min: never, ..plan }, Some(method))
            }
        }
    }

    /// Origin of the profile.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }
}

/// Measures this machine and merges earlier measurements. Returns whether the result was stored.
fn measured(budget: Duration, before: Option<&Findings>, keep: Option<&Path>) -> (Profile, bool) {
    let begin = Instant::now();
    let mut found = match measure::measure(budget) {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!(%error, "profile not measured");
            let known = before.map(|found| found.profile(Origin::File));
            return (known.unwrap_or_else(Profile::unmeasured), false);
        }
    };
    if let Some(before) = before {
        found.merge(before);
    }
    let is_retained = keep.is_some_and(|path| file::store(path, &found));
    (found.profile(Origin::Measured(begin.elapsed())), is_retained)
}

/// The contents of the user's file, loaded once.
fn loaded() -> Option<&'static (Findings, Arc<Profile>)> {
    static LOADED: OnceLock<Option<(Findings, Arc<Profile>)>> = OnceLock::new();
    let load = || {
        let found = file::load(&file::path()?)?;
        let profile = found.profile(Origin::File);
        Some((found, Arc::new(profile)))
    };
    LOADED.get_or_init(load).as_ref()
}

/// The size at which a step is measured.
fn step_bytes(index: usize) -> Length {
    Length(STEP_BYTES_FIRST << (2 * index))
}

/// The step of a length: that of the nearest size, by ratio.
#[inline]
fn step_of(length: Length) -> usize {
    // 64 << (2 * step) is the nearest size for lengths below twice that value.
    let doublings = (length.0 / STEP_BYTES_FIRST).max(1).ilog2() as usize;
    doublings.div_ceil(2).min(STEPS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_belongs_to_the_nearest_step() {
        for (length, step) in [
            (0, 0),
            (1, 0),
            (64, 0),
            (127, 0),
            (128, 1),
            (256, 1),
            (511, 1),
            (512, 2),
            (1024, 2),
            (4096, 3),
            (8191, 3),
            (8192, 4),
            (4 << 20, 8),
            (2 << 20, 8),
            ((2 << 20) - 1, 7),
            (1 << 40, 8),
            (u64::MAX, 8),
        ] {
            assert_eq!(step_of(Length(length)), step, "{length}");
        }
        assert_eq!(step_bytes(STEPS - 1), Length(4 << 20));
    }

    #[test]
    fn large_ranges_take_as_long_as_their_lines() {
        let (publish, refresh) = (cache::publish_method(), cache::refresh_method());
        let write = WriteWay::CopyThenPublish(publish);
        let step = |ns| ProfileStep {
            publish: (publish, ns),
            refresh: (refresh, None),
            write: (write, None),
        };
        let mut steps = [step(Some(1)); STEPS];
        steps[STEPS - 1] = step(Some(400_000));
        let of = |steps| Profile::new(steps, StreamMethod::Memcpy, Length(0)).unwrap();
        let gib = Length(1 << 30);
        let found = of(steps).estimate(Upkeep::Publish, gib).unwrap();
        assert_eq!(found, Duration::from_micros(256 * 400));
        assert_eq!(of(steps).estimate(Upkeep::Refresh, gib), None);
        // The largest size had no alternative and was not measured.
        steps[STEPS - 1] = step(None);
        steps[STEPS - 2] = step(Some(90_000));
        let found = of(steps).estimate(Upkeep::Publish, gib).unwrap();
        assert_eq!(found, Duration::from_micros(1024 * 90));
    }

    #[test]
    fn ways_have_names_of_their_own() {
        let all = WriteWay::all();
        for way in &all {
            assert!(way.is_available());
            assert_eq!(WriteWay::of_key(way.key()), Some(*way));
            assert!(!way.to_string().is_empty());
        }
        assert!(all.contains(&WriteWay::CopyThenPublish(cache::publish_method())));
        assert_eq!(WriteWay::of_key("memcpy"), None);
        assert_eq!(WriteWay::of_key(""), None);
    }

    #[test]
    fn what_this_cpu_lacks_is_in_no_profile() {
        let foreign = [Method::Clwb, Method::DcCvac, Method::Dcbst]
            .into_iter()
            .find(|method| !method.is_available())
            .unwrap();
        let (publish, refresh) = (cache::publish_method(), cache::refresh_method());
        let way = WriteWay::CopyThenPublish(publish);
        assert!(Profile::uniform(publish, refresh, way).is_some());
        assert_eq!(Profile::uniform(foreign, refresh, way), None);
        assert_eq!(Profile::uniform(publish, foreign, way), None);
        assert_eq!(Profile::uniform(publish, refresh, WriteWay::CopyThenPublish(foreign)), None);
        // A refresh that keeps lines would be incorrect, not slow.
        for keeps in cache::methods_available().into_iter().filter(|method| !method.drops_line()) {
            let is_only = keeps == refresh;
            assert_eq!(Profile::uniform(publish, keeps, way).is_some(), is_only);
        }
    }

    #[test]
    fn the_plans_follow_the_steps() {
        let (publish, refresh) = (cache::publish_method(), cache::refresh_method());
        for way in WriteWay::all() {
            let profile = Profile::uniform(publish, refresh, way).unwrap();
            let (plan, method) = profile.published_plan(Length(5000));
            match way {
                WriteWay::Stream(stream) => {
                    assert_eq!((plan.method, method), (stream, None));
                    assert_eq!(plan.stream_bytes_min, Length(0));
                }
                WriteWay::CopyThenPublish(expected) => {
                    assert_eq!(method, Some(expected));
                    assert_eq!(plan.stream_bytes_min, Length(u64::MAX));
                }
            }
        }
        let profile = Profile::unmeasured();
        assert_eq!(profile.copy_plan(), CopyPlan::automatic());
        assert_eq!(profile.steps().count(), STEPS);
        assert_eq!(profile.origin().as_str(), "default");
    }
}
