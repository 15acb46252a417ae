//! Properties of this machine as plain values, for `farrow doctor` and for error messages.
//!
//! The values come from `/proc`, `/sys` and a few system calls. A value that cannot be read is
//! `None`: nothing here fails, and nothing is printed.

use std::fs;
use std::path::PathBuf;

use rustix::process::{Resource, getrlimit};

use crate::cache;
use crate::copy;
use crate::mapping::Mapping;
use crate::system::huge_pages::huge_page_of_kernel;
use crate::system::kernel::{bracketed, kernel_release, limit, meminfo};
use crate::system::mounts::mounts;
use crate::units::{Address, Length, page_bytes};

pub use crate::system::free_memory::{memory_available, memory_room, memory_without_swap};
pub use crate::system::kernel::{address_space_limit, maps_max};

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
    /// The hard limit of `RLIMIT_NOFILE`, to which a node raises its own; `None` if unlimited.
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
                open_files: getrlimit(Resource::Nofile).maximum,
                locked_memory: limit(Resource::Memlock),
                maps_max: maps_max(),
                maps: fs::read("/proc/self/maps")
                    .ok()
                    .map(|maps| maps.iter().filter(|byte| **byte == b'\n').count() as u64),
            },
            window: WindowSurvey { base, length, is_free: is_window_free(base, length) },
        }
    }
}

/// Whether `length` bytes can be mapped at `base` in this process now.
#[must_use]
pub fn is_window_free(base: Address, length: Length) -> bool {
    if length.is_zero() {
        return false;
    }
    Mapping::reserve(length, Some(base)).is_ok_and(|mapping| mapping.address() == base)
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
}
