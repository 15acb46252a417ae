//! Which way of publishing, refreshing and writing is the cheapest on this machine, by the size of
//! the range.
//!
//! All ways in a profile are correct everywhere; they differ in what they cost, and by how much
//! depends on the CPU: on one machine `clflush` takes forty times as long as `clflushopt`, on another
//! there is no `clflushopt`. So a profile is measured ([`Profile::measure`], some 30 ms) when a
//! region is first made or mapped, and kept in a file of the user ([`file`](mod@file)). The next processes add
//! what they find, until eight have; from then on it is loaded from there (0.1 ms). Every [`Region`](crate::Region) has one; tests give it another.
//!
//! Besides there is writing back all caches at once, for the largest ranges and where a kernel module
//! offers it ([`all_caches`]); that is no way of a profile, since it comes and goes with the module.

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

/// Up to this size a way to publish is chosen by what publishing and the writer's next store to each
/// line take together.
pub const PUBLISH_AGAIN_BYTES_MAX: Length = Length(costs::PUBLISH_AGAIN_BYTES_MAX);

/// Sizes at which is measured: 64 B to 4 MiB, each four times the one before. A larger range is
/// treated as the largest.
pub const STEPS: usize = 9;

/// The smallest of them.
const STEP_BYTES_FIRST: u64 = 64;

/// What is done with lines of a region that is coherent only inside a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Upkeep {
    /// Written back to memory.
    Publish,
    /// Forgotten, so that the next load comes from memory.
    Refresh,
}

/// How bytes from elsewhere get into memory that other nodes read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteWay {
    /// Past the cache; only the lines at the two ends are written back.
    Stream(StreamMethod),
    /// By plain stores, then written back line by line.
    CopyThenPublish(Method),
}

impl WriteWay {
    /// Can this CPU do it?
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Self::Stream(method) => method.is_streaming(),
            Self::CopyThenPublish(method) => method.is_available(),
        }
    }

    /// Its name in files: that of the instruction, `clwb` or `avx512`.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Stream(method) => method.key(),
            Self::CopyThenPublish(method) => method.as_str(),
        }
    }

    /// The way of a [key](Self::key), whether this CPU can do it or not.
    #[must_use]
    pub fn of_key(key: &str) -> Option<Self> {
        match StreamMethod::of_key(key) {
            Some(StreamMethod::Memcpy) => None,
            Some(method) => Some(Self::Stream(method)),
            None => Method::of_name(key).map(Self::CopyThenPublish),
        }
    }

    /// All that this CPU can do, past the cache first.
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

/// What is used for ranges of about one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfileStep {
    /// To publish lines that were stored to. What it costs, in nanoseconds, where it was measured: up
    /// to a page with the next store to each line.
    pub publish: (Method, Option<u32>),
    /// To refresh.
    pub refresh: (Method, Option<u32>),
    /// To write bytes from elsewhere and publish them.
    pub write: (WriteWay, Option<u32>),
}

/// Where a profile comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Not measured: what is good on the machines known so far.
    Default,
    /// Measured by this process, in this time.
    Measured(Duration),
    /// Loaded from the user's file.
    File,
    /// Given by a test or a program.
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

/// What is the cheapest on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    steps: [ProfileStep; STEPS],
    stream: StreamMethod,
    stream_bytes_min: Length,
    origin: Origin,
}

impl Profile {
    /// A profile of these steps, smallest first; `stream` is used for copies on coherent memory of
    /// `stream_bytes_min` on. `None` if one of the ways cannot be used on this CPU.
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

    /// One way for every size: for tests, which must see each of them keep the rules.
    #[must_use]
    pub fn uniform(publish: Method, refresh: Method, write: WriteWay) -> Option<Self> {
        let step = ProfileStep {
            publish: (publish, None),
            refresh: (refresh, None),
            write: (write, None),
        };
        Self::new([step; STEPS], copy::stream_method(), copy::STREAM_BYTES_MIN)
    }

    /// What was good on the machine it was first measured on: stores past the cache from a page on.
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

    /// Measures this machine: two to nine rounds over all ways and sizes, as many as fit in
    /// `budget`, the least of each counting; of large sizes one or two. Without memory to measure in,
    /// [`Profile::unmeasured`]. With a path it is kept there, in place of what was found before; says
    /// whether it was.
    #[must_use]
    pub fn measure(budget: Duration, keep: Option<&Path>) -> (Self, bool) {
        measured(budget, None, keep)
    }

    /// That of this machine: loaded, or else measured, and kept in the user's file with what was
    /// found before. At most once a process.
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

    /// That of this machine if it was measured before, by whatever process of this user; else
    /// [`Profile::unmeasured`]. Measures nothing.
    #[must_use]
    pub fn known() -> Arc<Self> {
        static UNMEASURED: OnceLock<Arc<Profile>> = OnceLock::new();
        match loaded() {
            Some((_, profile)) => Arc::clone(profile),
            None => Arc::clone(UNMEASURED.get_or_init(|| Arc::new(Self::unmeasured()))),
        }
    }

    /// What is used for ranges of this length.
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

    /// How long it takes to publish, or to refresh, as many lines as a range of this length has, by
    /// what the largest measured range took. `None` if nothing was measured.
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

    /// When to copy how, where nothing has to be published.
    #[must_use]
    pub fn copy_plan(&self) -> CopyPlan {
        CopyPlan {
            stream_bytes_min: self.stream_bytes_min,
            method: self.stream,
            ..CopyPlan::automatic()
        }
    }

    /// How to store bytes of this length that are then published, and by which instruction, if any.
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

    /// Where it comes from.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }
}

/// Measures; what others found before counts too. Says whether it was kept.
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
    let is_kept = keep.is_some_and(|path| file::store(path, &found));
    (found.profile(Origin::Measured(begin.elapsed())), is_kept)
}

/// The file's, looked for once.
fn loaded() -> Option<&'static (Findings, Arc<Profile>)> {
    static LOADED: OnceLock<Option<(Findings, Arc<Profile>)>> = OnceLock::new();
    let load = || {
        let found = file::load(&file::path()?)?;
        let profile = found.profile(Origin::File);
        Some((found, Arc::new(profile)))
    };
    LOADED.get_or_init(load).as_ref()
}

/// At which size a step is measured.
fn step_bytes(index: usize) -> Length {
    Length(STEP_BYTES_FIRST << (2 * index))
}

/// The step that a length belongs to: that of the nearest size, by ratio.
#[inline]
fn step_of(length: Length) -> usize {
    // 64 << (2 * step) is the nearest up to twice that.
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
        // The largest size had no rival, and was not measured.
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
        // A refresh that keeps lines would be wrong, not slow.
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
