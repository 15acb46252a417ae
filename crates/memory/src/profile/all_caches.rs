//! Writing back all caches of a machine at once, where that is offered: for a range that is so large
//! that its lines, one by one, would take longer.
//!
//! The instruction (`wbinvd`) is for ring 0, so a kernel module has to do it: `farrow_shmem`
//! (`kernel/` in the sources). It empties the caches of all that runs, so whoever loads the module
//! decides by its parameter `all_caches`, and by who may open its device. After it everything that
//! any CPU stored is in memory and every load comes from there: it publishes and refreshes.

use std::fs::File;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::ioctl::{self, NoArg, Opcode};

use crate::units::Length;

/// Where the module is asked.
pub const DEVICE: &str = "/dev/farrow_shmem";

/// No smaller range asks for it: on no known CPU would it win.
pub const ALL_CACHES_BYTES_MIN: Length = Length(16 << 20);

/// `FARROW_SHMEM_WRITE_BACK_ALL` of the module.
const WRITE_BACK_ALL: Opcode = ioctl::opcode::none(b'F', 2);

/// What is dirty while it is measured: what a writer of a large range leaves in its caches.
const DIRTY_BYTES: usize = 32 << 20;
const SAMPLES: usize = 3;

/// What the caches held is fetched again by whoever needs it, which takes about as long again.
const REFILL: u32 = 2;

/// It cannot be used here.
#[derive(Debug, thiserror::Error)]
#[error("{}: {call}: {source}", path.display())]
pub struct NoAllCaches {
    /// The device.
    pub path: PathBuf,
    /// What failed.
    pub call: &'static str,
    /// The system's answer: not found without the module, `EPERM` where it does not allow it,
    /// `EOPNOTSUPP` where the CPU has no instruction for it.
    pub source: std::io::Error,
}

/// A way to write back all caches of this machine.
#[derive(Debug)]
pub struct AllCaches {
    device: File,
    cost: Duration,
}

impl AllCaches {
    /// That of this machine, looked for and measured once a process, in some milliseconds.
    ///
    /// # Errors
    /// There is none.
    pub fn of_machine() -> Result<&'static Arc<Self>, &'static NoAllCaches> {
        static FOUND: OnceLock<Result<Arc<AllCaches>, NoAllCaches>> = OnceLock::new();
        FOUND.get_or_init(|| Self::open(Path::new(DEVICE)).map(Arc::new)).as_ref()
    }

    /// Opens a device of the module and measures it.
    ///
    /// # Errors
    /// It is not there, not permitted, or cannot do it.
    pub fn open(path: &Path) -> Result<Self, NoAllCaches> {
        let failed = |call, source| NoAllCaches { path: path.to_owned(), call, source };
        let device = File::open(path).map_err(|error| failed("open", error))?;
        let mut found = Self { device, cost: Duration::ZERO };
        // Asked first: where it is refused nothing is spent on measuring.
        let mut dirty = Vec::new();
        let measured = found.write_back().and_then(|()| {
            dirty.try_reserve_exact(DIRTY_BYTES).map_err(|_| Errno::NOMEM)?;
            found.measure(&mut dirty)
        });
        found.cost = measured.map_err(|errno| failed("write back all caches", errno.into()))?;
        Ok(found)
    }

    fn measure(&self, dirty: &mut Vec<u8>) -> Result<Duration, Errno> {
        let mut samples = [Duration::ZERO; SAMPLES];
        for (value, sample) in (1..).zip(&mut samples) {
            dirty.clear();
            dirty.resize(DIRTY_BYTES, value);
            black_box(&dirty);
            let begin = Instant::now();
            self.write_back()?;
            *sample = begin.elapsed();
        }
        samples.sort_unstable();
        Ok(samples[SAMPLES / 2] * REFILL)
    }

    /// All caches of all CPUs: what anybody stored before is in memory, and loads that follow come
    /// from there.
    ///
    /// # Errors
    /// The module refuses it now.
    pub fn write_back(&self) -> Result<(), Errno> {
        // SAFETY: takes no argument, and no device that knows another command by this number would
        // be at that place.
        unsafe { ioctl::ioctl(&self.device, NoArg::<WRITE_BACK_ALL>::new()) }
    }

    /// What one takes, with what it takes to fill the caches again.
    #[must_use]
    pub fn cost(&self) -> Duration {
        self.cost
    }

    /// Is it cheaper than lines that take so long?
    #[must_use]
    pub fn is_cheaper(&self, lines: Duration) -> bool {
        self.cost < lines
    }

    /// One that costs so much and is refused, as by a module whose parameter was changed.
    #[cfg(test)]
    pub(crate) fn refused(cost: Duration) -> Self {
        Self { device: File::open("/dev/null").unwrap(), cost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_that_of_the_module() {
        // _IO('F', 2) of Linux on x86-64 and arm64.
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        assert_eq!(WRITE_BACK_ALL, 0x4602);
    }

    #[test]
    fn what_is_not_there_or_cannot_do_it_is_told() {
        let error = AllCaches::open(Path::new("/dev/farrow-none")).unwrap_err();
        assert_eq!(error.call, "open");
        assert_eq!(error.source.kind(), std::io::ErrorKind::NotFound);
        assert!(error.to_string().starts_with("/dev/farrow-none: open: "), "{error}");
        let error = AllCaches::open(Path::new("/dev/null")).unwrap_err();
        // An emulator of another CPU's system calls knows no such command at all.
        let not_known = [Errno::NOTTY, Errno::NOSYS].map(|errno| Some(errno.raw_os_error()));
        assert!(not_known.contains(&error.source.raw_os_error()), "{error}");
        assert!(error.to_string().contains("write back all caches"), "{error}");
    }

    #[test]
    fn it_is_taken_where_lines_take_longer() {
        let caches = AllCaches::refused(Duration::from_millis(4));
        assert!(!caches.is_cheaper(Duration::from_millis(4)));
        assert!(caches.is_cheaper(Duration::from_millis(5)));
    }
}
