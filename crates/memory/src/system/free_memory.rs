//! How much memory this process may still use.

use std::path::Path;

use super::cgroup;
use super::kernel::meminfo;
use crate::units::Length;

/// Memory available without evicting other programs, swap included; at most what the control group
/// allows. `None` if the kernel does not report it.
#[must_use]
pub fn memory_available() -> Option<Length> {
    memory_room().map(|(free, _)| free)
}

/// As [`memory_available`], and a description of what limits it: the machine's memory or a control
/// group.
#[must_use]
pub fn memory_room() -> Option<(Length, String)> {
    let free = meminfo("MemAvailable:")?;
    let swap = meminfo("SwapFree:").unwrap_or_default();
    let machine = free.checked_add(swap)?;
    Some(match cgroup::tightest(Path::new("/")) {
        Some(group) if group.free < machine => (group.free, group.to_string()),
        _ => (machine, "memory".to_owned()),
    })
}

/// Available memory without swap; at most what the control group allows.
#[must_use]
pub fn memory_without_swap() -> Option<Length> {
    let machine = meminfo("MemAvailable:")?;
    let group = cgroup::tightest(Path::new("/"));
    Some(group.map_or(machine, |group| group.free.min(machine)))
}
