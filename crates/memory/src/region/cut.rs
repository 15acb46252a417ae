//! A home outlives clients that cut its data section short.
//!
//! A client has a descriptor with which it may write to the data section. On a memory file it can do
//! no more, for that is sealed; on a file of a tmpfs it can shorten the file too, and then a load of
//! the home behind the new end is a SIGBUS. Its handler here makes the file as long as it was, and
//! the load goes on and reads zeros: what was cut off is lost, as if it had been overwritten.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

use crate::sync::{AtomicU64, Ordering};

/// Homes of one process at a time that are looked after: a daemon has one, tests have more.
const SLOTS: usize = 64;

/// Faults in a file that is long enough, one after the other, before the process may end: those
/// of other threads at the same time are some. What has no memory behind it would fault for ever.
const FAULTS_MAX: u64 = 10_000;

/// One section: its addresses, and the file behind them. Free while `bytes` is 0.
#[derive(Debug)]
struct Slot {
    address: AtomicU64,
    bytes: AtomicU64,
    descriptor: AtomicU64,
    file_bytes: AtomicU64,
}

static SLOT: [Slot; SLOTS] = [const {
    Slot {
        address: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        descriptor: AtomicU64::new(0),
        file_bytes: AtomicU64::new(0),
    }
}; SLOTS];
static FAULTS: AtomicU64 = AtomicU64::new(0);
/// What was done about SIGBUS before; set before the handler is.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// While it lives, a section is made as long again as it was.
#[derive(Debug)]
pub(super) struct LengthGuard {
    slot: &'static Slot,
    /// The handler uses it.
    _file: OwnedFd,
}

impl LengthGuard {
    /// `None`: there is no place left, or the system lets no handler in.
    pub(super) fn new(address: usize, bytes: u64, file: OwnedFd, file_bytes: u64) -> Option<Self> {
        if bytes == 0 || BEFORE.get_or_init(install).is_none() {
            return None;
        }
        let descriptor = u64::try_from(file.as_raw_fd()).ok()?;
        // Taken by an address, used from the length on.
        let is_taken = |slot: &&Slot| {
            let taken = slot.address.compare_exchange(
                0,
                address as u64,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            taken.is_ok()
        };
        let slot = SLOT.iter().find(is_taken)?;
        slot.descriptor.store(descriptor, Ordering::Relaxed);
        slot.file_bytes.store(file_bytes, Ordering::Relaxed);
        slot.bytes.store(bytes, Ordering::Release);
        Some(Self { slot, _file: file })
    }
}

impl Drop for LengthGuard {
    fn drop(&mut self) {
        self.slot.bytes.store(0, Ordering::Release);
        self.slot.address.store(0, Ordering::Release);
    }
}

/// Once a process; says what was there before.
fn install() -> Option<libc::sigaction> {
    // SAFETY: sigaction is plain integers and a pointer, for which all zeros is a value.
    let (mut before, mut action): (libc::sigaction, libc::sigaction) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    action.sa_sigaction = on_bus as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: both point to a sigaction of this frame, and the handler calls nothing but what may
    // be called in one.
    let answer = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) };
    (answer == 0).then_some(before)
}

extern "C" fn on_bus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo of a SIGBUS, which has an address.
    let address = unsafe { (*info).si_addr() } as u64;
    let is_here = |slot: &&Slot| {
        let (start, bytes) =
            (slot.address.load(Ordering::Acquire), slot.bytes.load(Ordering::Acquire));
        address.wrapping_sub(start) < bytes
    };
    if SLOT.iter().find(is_here).is_some_and(lengthen) {
        return;
    }
    // The load faults once more, and then it is as if this handler had never been.
    let before = BEFORE.get().copied().flatten();
    if let Some(before) = before {
        // SAFETY: what the system said before is a valid action.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const before, std::ptr::null_mut()) };
    } else {
        // SAFETY: the default needs nothing.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
}

/// True when the load may be tried again.
fn lengthen(slot: &Slot) -> bool {
    let descriptor = slot.descriptor.load(Ordering::Relaxed) as libc::c_int;
    let wanted = slot.file_bytes.load(Ordering::Relaxed) as libc::off_t;
    // SAFETY: the place of the error number of this thread, which is as it was when this returns; a
    // stat is plain integers; the descriptor is open as long as its slot is taken.
    let (is_repaired, is_long_enough) = unsafe {
        let errno = libc::__errno_location();
        let kept = *errno;
        let mut stat: libc::stat = std::mem::zeroed();
        let is_known = libc::fstat(descriptor, &raw mut stat) == 0;
        let is_short = is_known && stat.st_size < wanted;
        let is_repaired = is_short && libc::ftruncate(descriptor, wanted) == 0;
        *errno = kept;
        (is_repaired, is_known && !is_short)
    };
    if is_repaired {
        FAULTS.store(0, Ordering::Relaxed);
    }
    is_repaired || (is_long_enough && FAULTS.fetch_add(1, Ordering::Relaxed) < FAULTS_MAX)
}
