//! File descriptors that were open when this program started: those of a service manager, and those
//! that another program left open.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::FdFlags;

use crate::sync::{AtomicBool, Ordering};

/// First descriptor that a service manager passes (`SD_LISTEN_FDS_START` of `sd_listen_fds(3)`).
const FIRST: RawFd = 3;

/// Maximum number of descriptors taken over: a node stores two.
const COUNT_MAX: RawFd = 64;

static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes ownership of the descriptors 3 to 3 + `count` - 1. Can be called once per process. The
/// caller has checked with the environment (`LISTEN_FDS`, `LISTEN_PID`) that they were opened for
/// this process. Programs started by this one do not inherit them.
///
/// # Errors
/// The descriptors were taken before, there are too many, or one of them is not open.
pub fn take_inherited(count: u32) -> io::Result<Vec<OwnedFd>> {
    let count = RawFd::try_from(count).unwrap_or(RawFd::MAX);
    if count > COUNT_MAX || IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for number in FIRST..FIRST + count {
        // SAFETY: if the descriptor is not open, the call below fails; it is not used otherwise.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC)?;
    }
    let take = |number| {
        // SAFETY: the loop above has checked that it is open. It was opened before this program
        // started, so nothing else owns it, and `IS_TAKEN` ensures that it is taken only once.
        unsafe { OwnedFd::from_raw_fd(number) }
    };
    Ok((FIRST..FIRST + count).map(take).collect())
}

/// Closes the descriptors beyond standard error that this program inherited, and returns their
/// number. These lack the flag close-on-exec, which all that Rust and Python open have. To be called
/// before other code of this program uses a descriptor without the flag.
///
/// # Errors
/// The list of open descriptors cannot be read.
pub fn close_inherited() -> io::Result<usize> {
    let mut closed = 0;
    let names: Vec<_> = std::fs::read_dir("/proc/self/fd")?.flatten().collect();
    for name in names {
        let number = name.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
        let Some(number) = number.filter(|number| *number >= FIRST) else { continue };
        // SAFETY: if the descriptor is not open any more, as that of the list, the call fails; it is
        // not used otherwise.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        if rustix::io::fcntl_getfd(fd).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC)) {
            // SAFETY: it is open, and lacks the flag that all descriptors of this program have, so
            // it was inherited and nothing owns it.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
            closed += 1;
        }
    }
    Ok(closed)
}
