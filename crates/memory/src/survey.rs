//! Properties of this machine as plain values, for `farrow doctor` and for error messages.
//!
//! The values come from `/proc`, `/sys` and a few system calls. A value that cannot be read is
//! `None`: nothing here fails, and nothing is printed.

use std::fs;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use crate::cache;
use crate::cgroup;
use crate::copy;
use crate::fabric::mount::MOUNT_SOURCE;
use crate::mapping::Mapping;
use crate::units::{Address, Length, page_bytes};

/// All properties.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The instruction set, as Rust names it.
    pub architecture: &'static str,
    /// The running kernel's release.
    pub kernel: Option<String>,
    /// Cores this process may use.
    pub cores: usize,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// CPU caches and copy methods.
    pub cpu: CpuSurvey,
    /// Main memory.
    pub memory: MemorySurvey,
    /// Huge pages.
    pub huge: HugeSurvey,
    /// Mounted tmpfs directories this process can write, largest free space first.
    pub tmpfs: Vec<TmpfsSurvey>,
    /// Limits of this process and the kernel.
    pub limits: LimitSurvey,
    /// The window of fixed addresses.
    pub window: WindowSurvey,
}

/// CPU caches and copy methods.
#[derive(Clone, Debug)]
pub struct CpuSurvey {
    /// Bytes of a cache line.
    pub line_bytes: u32,
    /// The instruction used to publish.
    pub publish: cache::Method,
    /// The instruction used to refresh.
    pub refresh: cache::Method,
    /// All instructions that could be used for either.
    pub maintenance_available: Vec<cache::Method>,
    /// The method used for non-temporal stores.
    pub stream: copy::StreamMethod,
    /// All methods that could be used for them, best first.
    pub stream_available: Vec<copy::StreamMethod>,
}

/// Main memory.
#[derive(Clone, Copy, Debug)]
pub struct MemorySurvey {
    /// Total memory of the machine.
    pub total: Option<Length>,
    /// Memory available without evicting other programs, swap included; at most what the control
    /// group allows.
    pub available: Option<Length>,
}

/// Huge pages.
#[derive(Clone, Debug)]
pub struct HugeSurvey {
    /// Bytes of a transparent huge page, if the kernel has them.
    pub page: Option<Length>,
    /// The selected value of `transparent_hugepage/enabled`, for anonymous memory.
    pub enabled: Option<String>,
    /// The selected value of `transparent_hugepage/shmem_enabled`, for memory files.
    pub shmem_enabled: Option<String>,
}

/// One mounted tmpfs.
#[derive(Clone, Debug)]
pub struct TmpfsSurvey {
    /// The mount point.
    pub dir: PathBuf,
    /// Its size; `None` without a limit.
    pub size: Option<Length>,
    /// Its free space; `None` without a limit.
    pub free: Option<Length>,
    /// The `huge=` mount option: `always`, `within_size`, `advise` or `never`; `None` if not set.
    pub huge: Option<String>,
    /// Whether it is the private mount of a node, see [`crate::mount`]. Then it is not for other
    /// uses.
    pub is_of_node: bool,
}

/// Limits of this process and the kernel.
#[derive(Clone, Copy, Debug)]
pub struct LimitSurvey {
    /// `RLIMIT_AS`; `None` if unlimited.
    pub address_space: Option<u64>,
    /// `RLIMIT_NOFILE`; `None` if unlimited.
    pub open_files: Option<u64>,
    /// `RLIMIT_MEMLOCK`; `None` if unlimited.
    pub locked_memory: Option<u64>,
    /// `vm.max_map_count`.
    pub maps_max: Option<u64>,
    /// Current number of maps of this process.
    pub maps: Option<u64>,
}

/// The window of fixed addresses.
#[derive(Clone, Copy, Debug)]
pub struct WindowSurvey {
    /// The address that was checked.
    pub base: Address,
    /// The length that was checked.
    pub length: Length,
    /// Whether a region of that length can be mapped there in this process now.
    pub is_free: bool,
}

impl Survey {
    /// Collects all properties. `base` and `length` are those of the region to be mapped.
    #[must_use]
    pub fn take(base: Address, length: Length) -> Self {
        Self {
            architecture: std::env::consts::ARCH,
            kernel: kernel_release(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            page_bytes: page_bytes(),
            cpu: CpuSurvey {
                line_bytes: cache::line_bytes(),
                publish: cache::publish_method(),
                refresh: cache::refresh_method(),
                maintenance_available: cache::methods_available(),
                stream: copy::stream_method(),
                stream_available: copy::methods_available(),
            },
            memory: MemorySurvey { total: meminfo("MemTotal:"), available: memory_available() },
            huge: HugeSurvey {
                page: huge_page_of_kernel(),
                enabled: bracketed("/sys/kernel/mm/transparent_hugepage/enabled"),
                shmem_enabled: bracketed("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
            },
            tmpfs: tmpfs_dirs(),
            limits: LimitSurvey {
                address_space: address_space_limit(),
                open_files: limit(rustix::process::Resource::Nofile),
                locked_memory: limit(rustix::process::Resource::Memlock),
                maps_max: maps_max(),
                maps: fs::read("/proc/self/maps")
                    .ok()
                    .map(|maps| maps.iter().filter(|byte| **byte == b'\n').count() as u64),
            },
            window: WindowSurvey { base, length, is_free: is_window_free(base, length) },
        }
    }
}

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

/// Bytes in huge pages of the map that contains an address; `None` if the kernel does not report
/// it.
pub(crate) fn huge_bytes_at(address: usize) -> Option<Length> {
    let text = fs::read_to_string("/proc/self/smaps").ok()?;
    let mut is_inside = false;
    let mut kib = 0u64;
    for line in text.lines() {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        if let Some((start, end)) = first.split_once('-') {
            let hex = |text| usize::from_str_radix(text, 16).ok();
            is_inside = hex(start)? <= address && address < hex(end)?;
        } else if is_inside
            && matches!(first, "AnonHugePages:" | "ShmemPmdMapped:" | "FilePmdMapped:")
        {
            kib += rest.split_whitespace().next()?.parse::<u64>().ok()?;
        }
    }
    kib.checked_mul(1024).map(Length)
}

/// Whether `length` bytes can be mapped at `base` in this process now.
#[must_use]
pub fn is_window_free(base: Address, length: Length) -> bool {
    if length.is_zero() {
        return false;
    }
    Mapping::reserve(length, Some(base)).is_ok_and(|mapping| mapping.address() == base)
}

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

/// Mounted tmpfs directories that this process can write: those without a limit first, then by free
/// space, largest first.
#[must_use]
pub fn tmpfs_dirs() -> Vec<TmpfsSurvey> {
    let mut found: Vec<TmpfsSurvey> = mounts()
        .into_iter()
        .filter(|mount| mount.kind == "tmpfs")
        .filter_map(|mount| {
            use rustix::fs::Access;
            rustix::fs::access(&mount.dir, Access::WRITE_OK | Access::EXEC_OK).ok()?;
            let stat = rustix::fs::statvfs(&mount.dir).ok()?;
            // A tmpfs without a limit reports no blocks at all.
            let of = |blocks: u64| {
                (stat.f_blocks > 0).then(|| Length(blocks.saturating_mul(stat.f_frsize)))
            };
            let (size, free) = (of(stat.f_blocks), of(stat.f_bavail));
            let (huge, is_of_node) = (mount.option("huge"), mount.is_of_node());
            Some(TmpfsSurvey { huge, is_of_node, dir: mount.dir, size, free })
        })
        .collect();
    found.sort_by_key(|tmpfs| std::cmp::Reverse(tmpfs.free.map_or(u64::MAX, |free| free.0)));
    found.dedup_by(|a, b| a.dir == b.dir);
    found
}

/// The huge page size of the tmpfs of a path, if it is a tmpfs with huge pages.
pub(crate) fn tmpfs_huge_page_bytes(path: &Path) -> Option<Length> {
    huge_page_of_device(rustix::fs::stat(path).ok()?.st_dev)
}

/// The same for an open file, which may also be a memory file (memfd).
pub(crate) fn huge_page_bytes_of(fd: BorrowedFd<'_>) -> Option<Length> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    if mounts().iter().any(|mount| mount.device == device) {
        return huge_page_of_device(stat.st_dev);
    }
    // Not mounted: the detached tmpfs of a node, or the kernel's internal tmpfs of memory files.
    // Both report the page size that they try to use as their block size.
    let block = u64::try_from(stat.st_blksize).unwrap_or(0);
    if block > page_bytes() { Some(Length(block)) } else { memfd_huge_page_bytes() }
}

/// Whether a tmpfs can be mounted with huge pages.
pub(crate) fn tmpfs_can_have_huge_pages() -> bool {
    let word = bracketed("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    huge_page_of_kernel().is_some() && word.is_some_and(|word| word != "deny")
}

/// Whether a device number (from `stat`) is that of a tmpfs created by [`crate::mount`].
pub(crate) fn is_mount_of_ours(device: u64) -> bool {
    let device = (rustix::fs::major(device), rustix::fs::minor(device));
    mounts().iter().any(|mount| mount.device == device && mount.is_of_node())
}

/// The huge page size of memory files.
pub(crate) fn memfd_huge_page_bytes() -> Option<Length> {
    let word = bracketed("/sys/kernel/mm/transparent_hugepage/shmem_enabled")?;
    is_huge_granted(&word).then(huge_page_of_kernel).flatten()
}

/// Alignment of a devdax device, from sysfs.
pub(crate) fn device_huge_page_bytes(rdev: u64) -> Option<Length> {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let said = read_word(&format!("/sys/dev/char/{major}:{minor}/align"))?.parse().ok()?;
    (said > page_bytes()).then_some(Length(said))
}

fn huge_page_of_device(device: u64) -> Option<Length> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let Some(mount) = mounts().into_iter().find(|mount| mount.device == (major, minor)) else {
        // Not mounted: the kernel's internal tmpfs, which contains the memory files.
        return memfd_huge_page_bytes();
    };
    if mount.kind != "tmpfs" {
        return None;
    }
    let word = mount.option("huge")?;
    is_huge_granted(&word).then(huge_page_of_kernel).flatten()
}

fn is_huge_granted(word: &str) -> bool {
    matches!(word, "always" | "within_size" | "advise" | "force")
}

fn huge_page_of_kernel() -> Option<Length> {
    let path = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
    Some(Length(read_word(path)?.parse().ok()?))
}

/// One line of `/proc/self/mountinfo`.
#[derive(Debug)]
pub(crate) struct Mount {
    device: (u32, u32),
    /// The directory of its file system that is mounted.
    pub(crate) root: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) kind: String,
    source: String,
    options: String,
}

impl Mount {
    /// Parses `36 35 98:0 /root /dir rw,... shared:1 - tmpfs source rw,size=1k,huge=always`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (first, second) = line.split_once(" - ")?;
        let mut first = first.split(' ').skip(2);
        let (major, minor) = first.next()?.split_once(':')?;
        let (root, dir) = (unescape(first.next()?), unescape(first.next()?));
        let mut second = second.split(' ');
        let kind = second.next()?.to_owned();
        let source = second.next().unwrap_or("").to_owned();
        let options = second.next().unwrap_or("").to_owned();
        Some(Self {
            device: (major.parse().ok()?, minor.parse().ok()?),
            root: PathBuf::from(root),
            dir: PathBuf::from(dir),
            kind,
            source,
            options,
        })
    }

    fn is_of_node(&self) -> bool {
        self.kind == "tmpfs" && self.source == MOUNT_SOURCE
    }

    /// Whether the file system has this option, an option without a value.
    pub(crate) fn has_option(&self, name: &str) -> bool {
        self.options.split(',').any(|option| option == name)
    }

    fn option(&self, name: &str) -> Option<String> {
        self.options
            .split(',')
            .filter_map(|option| option.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.to_owned())
    }
}

/// Decodes a path: the kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let code = after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                out.push(char::from(code));
                rest = after.get(3..).unwrap_or("");
            }
            None => {
                out.push('\\');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

fn mounts() -> Vec<Mount> {
    // Of the thread, since a thread can have its own mount namespace.
    let text = fs::read("/proc/thread-self/mountinfo")
        .or_else(|_| fs::read("/proc/self/mountinfo"))
        .unwrap_or_default();
    String::from_utf8_lossy(&text).lines().filter_map(Mount::parse).collect()
}

/// A value of `/proc/meminfo`, converted from KiB.
fn meminfo(key: &str) -> Option<Length> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = value.split_whitespace().next()?.parse().ok()?;
    Some(Length(kib.checked_mul(1024)?))
}

fn limit(resource: rustix::process::Resource) -> Option<u64> {
    rustix::process::getrlimit(resource).current
}

fn read_word(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The word in brackets: `madvise` for `always [madvise] never`.
fn bracketed(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::WINDOW_BASE;

    #[test]
    fn the_survey_is_sane() {
        let survey = Survey::take(WINDOW_BASE, Length(16 << 20));
        assert!(survey.cores >= 1);
        assert!(survey.page_bytes >= 4096);
        assert!(survey.cpu.maintenance_available.contains(&survey.cpu.publish));
        assert!(survey.cpu.stream_available.contains(&survey.cpu.stream));
        if let (Some(total), Some(size)) = (survey.memory.total, survey.huge.page) {
            assert!(size < total);
        }
        for tmpfs in &survey.tmpfs {
            assert!(tmpfs.free <= tmpfs.size, "{tmpfs:?}");
        }
    }

    #[test]
    fn a_taken_window_is_not_free() {
        let length = Length(page_bytes() * 2);
        let taken = Mapping::reserve(length, None).unwrap();
        assert!(!is_window_free(taken.address(), length));
        assert!(!is_window_free(taken.address(), Length(0)));
    }

    #[test]
    fn a_mount_line_is_read() {
        let line = "36 35 0:98 / /mnt/a\\040b rw,noatime shared:1 master:2 - tmpfs none rw,size=1k,huge=always";
        let mount = Mount::parse(line).unwrap();
        assert_eq!(mount.device, (0, 98));
        assert_eq!(mount.dir, Path::new("/mnt/a b"));
        assert_eq!((&*mount.kind, &*mount.source), ("tmpfs", "none"));
        assert!(!mount.is_of_node());
        assert!(Mount::parse(&line.replace(" none ", " farrow ")).unwrap().is_of_node());
        assert_eq!(mount.option("huge").as_deref(), Some("always"));
        assert_eq!(mount.option("size").as_deref(), Some("1k"));
        assert_eq!(mount.option("siz"), None);
        for broken in ["", " - ", "36 35", "36 35 0 / /a rw - tmpfs", "36 35 x:y / /a rw - t n o"] {
            assert!(Mount::parse(broken).is_none(), "{broken:?}");
        }
        assert_eq!(unescape("a\\b\\"), "a\\b\\");
    }
}
