//! Single values that the kernel reports in `/proc` and `/sys`, and limits of this process. `None` if
//! it does not report one.

use std::fs;

use crate::units::Length;

/// The processor as named by the kernel, in enough detail to distinguish models.
#[must_use]
pub(crate) fn cpu_model() -> String {
    use std::io::Read;
    // The first page contains the entry of the first CPU. Reading the entries of many CPUs takes
    // milliseconds.
    let mut page = [0; 4096];
    let read = fs::File::open("/proc/cpuinfo").and_then(|mut file| file.read(&mut page));
    let text = String::from_utf8_lossy(page.get(..read.unwrap_or(0)).unwrap_or_default());
    const KEYS: [&str; 9] = [
        "model name",
        "cpu family",
        "model",
        "stepping",
        "CPU implementer",
        "CPU variant",
        "CPU part",
        "cpu",
        "revision",
    ];
    let mut parts = Vec::new();
    for key in KEYS {
        let value = text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim().to_owned())
        });
        parts.extend(value);
    }
    parts.join(" ")
}

/// The running kernel's release.
#[must_use]
pub(crate) fn kernel_release() -> Option<String> {
    read_word("/proc/sys/kernel/osrelease")
}

/// `RLIMIT_AS`, or `None` if unlimited.
#[must_use]
pub fn address_space_limit() -> Option<u64> {
    limit(rustix::process::Resource::As)
}

/// `vm.max_map_count`.
#[must_use]
pub fn maps_max() -> Option<u64> {
    read_word("/proc/sys/vm/max_map_count")?.parse().ok()
}

pub(crate) fn limit(resource: rustix::process::Resource) -> Option<u64> {
    rustix::process::getrlimit(resource).current
}

/// A value of `/proc/meminfo`, converted from KiB.
pub(crate) fn meminfo(key: &str) -> Option<Length> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = value.split_whitespace().next()?.parse().ok()?;
    Some(Length(kib.checked_mul(1024)?))
}

pub(crate) fn read_word(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The word in brackets: `madvise` for `always [madvise] never`.
pub(crate) fn bracketed(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}
