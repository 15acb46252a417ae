//! For tests: children, and a way to have them forgotten.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::sync::{AtomicBool, Ordering};

/// Whether children count as gone, whatever they read: a deliberate bug that a test must find.
static ARE_FORGOTTEN: AtomicBool = AtomicBool::new(false);

/// Has this process forget its children, or remember them.
pub fn forget_children(is_forgetting: bool) {
    ARE_FORGOTTEN.store(is_forgetting, Ordering::Relaxed);
}

pub(super) fn are_forgotten() -> bool {
    ARE_FORGOTTEN.load(Ordering::Relaxed)
}

/// Forks a child that does `work` and ends, with 0 if that says true; its process id.
///
/// # Errors
/// The system has no room for one more.
pub fn in_child(work: impl FnOnce() -> bool) -> io::Result<u32> {
    // SAFETY: the child runs on in this thread alone, with memory allocation that works after a fork
    // in a process with threads (glibc's), and leaves without running what others have registered.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let is_good = catch_unwind(AssertUnwindSafe(work)).unwrap_or(false);
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(i32::from(!is_good)) }
        }
        pid => Ok(u32::try_from(pid).unwrap_or_default()),
    }
}

/// What became of a child, if it has ended: its exit code, or minus the signal.
///
/// # Errors
/// It is no child of this process.
pub fn ended(pid: u32) -> io::Result<Option<i32>> {
    let mut status = 0;
    // SAFETY: writes to what is ours.
    let answer = unsafe { libc::waitpid(pid.cast_signed(), &raw mut status, libc::WNOHANG) };
    match answer {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        _ if libc::WIFEXITED(status) => Ok(Some(libc::WEXITSTATUS(status))),
        _ => Ok(Some(-libc::WTERMSIG(status))),
    }
}
