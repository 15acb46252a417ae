//! Descriptors that a service manager opened before this program began.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::sync::{AtomicBool, Ordering};

/// First descriptor that a service manager passes on (`SD_LISTEN_FDS_START` of `sd_listen_fds(3)`).
const FIRST: RawFd = 3;

/// Most descriptors that are taken: a node stores two.
const COUNT_MAX: RawFd = 64;

static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the descriptors 3 to 3 + `count` - 1 over, once in the life of a process: the environment
/// (`LISTEN_FDS`, `LISTEN_PID`) says that they were opened for this process. A program that this
/// one starts does not inherit them.
///
/// # Errors
/// They were taken before, there are too many, or one of them is not open.
pub fn take_inherited(count: u32) -> io::Result<Vec<OwnedFd>> {
    let count = RawFd::try_from(count).unwrap_or(RawFd::MAX);
    if count > COUNT_MAX || IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for number in FIRST..FIRST + count {
        // SAFETY: the number may be that of no open file, which the call then says; nothing else is
        // done with it before.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)?;
    }
    let take = |number| {
        // SAFETY: it is open, as was just seen; it was opened for this process before its program
        // began, so nothing in here owns it, and it is taken this once.
        unsafe { OwnedFd::from_raw_fd(number) }
    };
    Ok((FIRST..FIRST + count).map(take).collect())
}
