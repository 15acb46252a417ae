//! Writes back all caches of a machine at once, if that is available. For very large ranges this is
//! faster than acting on each line.
//!
//! The instruction (`wbinvd`) needs ring 0, so a kernel module executes it: `farrow_shmem`
//! (`kernel/` in the sources). It empties the caches for all programs. The administrator therefore
//! controls it with the module parameter `all_caches` and the permissions of its device. Afterwards
//! all earlier stores of all CPUs are in memory and all loads come from there: it both publishes
//! and refreshes.

use std::fs::File;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::ioctl::{self, NoArg, Opcode};

use crate::fork;
use crate::units::Length;

/// Device of the module.
pub const DEVICE: &str = "/dev/farrow_shmem";

/// Minimum length of a range for it. For smaller ranges it is slower on all known CPUs.
pub const ALL_CACHES_BYTES_MIN: Length = Length(16 << 20);

/// `FARROW_SHMEM_WRITE_BACK_ALL` of the module.
const WRITE_BACK_ALL: Opcode = ioctl::opcode::none(b'F', 2);

/// Dirty bytes during the measurement: about what a writer of a large range leaves in its caches.
const DIRTY_BYTES: usize = 32 << 20;
const SAMPLES: usize = 3;

/// Factor for the cost of refilling the caches, which takes about as long again.
const REFILL: u32 = 2;

/// All caches cannot be written back at once on this machine.
#[derive(Debug, thiserror::Error)]
#[error("{}: {call}: {source}", path.display())]
pub struct NoAllCaches {
    /// The device.
    pub path: PathBuf,
    /// The operation that failed.
    pub call: &'static str,
    /// The error of the system: not found without the module, `EPERM` if the module does not allow
    /// it, `EOPNOTSUPP` if the CPU has no instruction for it.
    pub source: std::io::Error,
}

/// The module's operation that writes back all caches of this machine.
#[derive(Debug)]
pub struct AllCaches {
    device: File,
    cost: Duration,
}

impl AllCaches {
    /// The operation of this machine. Opened and measured once per process, within a few
    /// milliseconds.
    ///
    /// # Errors
    /// It is not available, see [`AllCaches::open`].
    pub fn of_machine() -> Result<&'static Arc<Self>, &'static NoAllCaches> {
        static FOUND: OnceLock<Result<Arc<AllCaches>, NoAllCaches>> = OnceLock::new();
        // A child must not wait for a thread that it does not have.
        let _steady = FOUND.get().is_none().then(fork::without_fork);
        FOUND.get_or_init(|| Self::open(Path::new(DEVICE)).map(Arc::new)).as_ref()
    }

    /// Opens a device of the module and measures it.
    ///
    /// # Errors
    /// The device does not exist, the operation is not permitted, or the CPU does not support it.
    pub fn open(path: &Path) -> Result<Self, NoAllCaches> {
        let failed = |call, source| NoAllCaches { path: path.to_owned(), call, source };
        let device = File::open(path).map_err(|error| failed("open", error))?;
        let mut found = Self { device, cost: Duration::ZERO };
        // A first call without dirty data: if it fails, the measurement is skipped.
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

    /// Writes back and empties all caches of all CPUs. Afterwards all earlier stores are in memory,
    /// and later loads come from there.
    ///
    /// # Errors
    /// The module no longer allows it.
    pub fn write_back(&self) -> Result<(), Errno> {
        // SAFETY: the command takes no argument, and no other device at this path would have a
        // different command with this number.
        unsafe { ioctl::ioctl(&self.device, NoArg::<WRITE_BACK_ALL>::new()) }
    }

    /// Time of one write-back, including the time to refill the caches.
    #[must_use]
    pub fn cost(&self) -> Duration {
        self.cost
    }

    /// Whether it is cheaper than acting on single lines, which would take `lines`.
    #[must_use]
    pub fn is_cheaper(&self, lines: Duration) -> bool {
        self.cost < lines
    }

    /// For tests: has this cost, and every call fails, as with a module whose parameter was
    /// changed.
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
    fn what_is_not_there_or_cannot_do_it_is_reported() {
        let error = AllCaches::open(Path::new("/dev/farrow-none")).unwrap_err();
        assert_eq!(error.call, "open");
        assert_eq!(error.source.kind(), std::io::ErrorKind::NotFound);
        assert!(error.to_string().starts_with("/dev/farrow-none: open: "), "{error}");
        let error = AllCaches::open(Path::new("/dev/null")).unwrap_err();
        // An emulator of another CPU's system calls does not support the command at all.
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
