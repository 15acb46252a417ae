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

pub mod all_caches;
mod costs;
pub mod file;
mod measure;
mod methods;
mod of_machine;
mod steps;

use crate::units::Length;

pub use crate::write_way::WriteWay;
pub use costs::Findings;
pub use methods::{Origin, Profile, ProfileStep, Upkeep};
pub use steps::STEPS;

/// Up to this size the method to publish is chosen by the time for publishing plus the writer's
/// next store to each line.
pub const PUBLISH_AGAIN_BYTES_MAX: Length = Length(costs::PUBLISH_AGAIN_BYTES_MAX);
