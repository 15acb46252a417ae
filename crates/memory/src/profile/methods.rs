//! A profile: the cheapest methods for each size.

use std::time::Duration;

use super::steps::{STEPS, step_bytes, step_of};
use crate::cache::{self, Method};
use crate::copy::{self, CopyPlan, StreamMethod};
use crate::units::Length;
use crate::write_way::WriteWay;

/// Cache maintenance in a region that is coherent only inside a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Upkeep {
    /// Write lines back to memory.
    Publish,
    /// Drop lines, so that the next load comes from memory.
    Refresh,
}

/// The methods for ranges of about one size, each with its cost in nanoseconds if it was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfileStep {
    /// To publish lines that were stored to. Up to [`PUBLISH_AGAIN_BYTES_MAX`](super::PUBLISH_AGAIN_BYTES_MAX) the cost includes
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
    pub(super) steps: [ProfileStep; STEPS],
    pub(super) stream: StreamMethod,
    pub(super) stream_bytes_min: Length,
    pub(super) origin: Origin,
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

#[cfg(test)]
mod tests {
    use super::*;

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
