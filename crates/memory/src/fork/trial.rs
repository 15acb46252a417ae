//! For tests: starts child processes, and can make this process ignore them.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::sync::{AtomicBool, Ordering};

/// Whether living children count as exited: a deliberate bug that a test must find.
static ARE_FORGOTTEN: AtomicBool = AtomicBool::new(false);

/// Makes this process ignore its children, or take them into account again.
pub fn forget_children(is_forgetting: bool) {
    ARE_FORGOTTEN.store(is_forgetting, Ordering::Relaxed);
}

pub(super) fn are_forgotten() -> bool {
    ARE_FORGOTTEN.load(Ordering::Relaxed)
}

/// Forks a child that runs `work` and exits, with code 0 if `work` returns true. Returns the
/// process id of the child.
///
/// # Errors
/// `fork` failed.
pub fn in_child(work: impl FnOnce() -> bool) -> io::Result<u32> {
    // SAFETY: the child has this thread only. Its allocator (glibc's) works after a fork in a
    // process with threads, and it exits without running exit handlers.
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

/// The exit code of a child, or the negated signal number, if it has exited; else `None`.
///
/// # Errors
/// The process is not a child of this one.
pub fn ended(pid: u32) -> io::Result<Option<i32>> {
    let mut status = 0;
    // SAFETY: writes to a local variable.
    let answer = unsafe { libc::waitpid(pid.cast_signed(), &raw mut status, libc::WNOHANG) };
    match answer {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        _ if libc::WIFEXITED(status) => Ok(Some(libc::WEXITSTATUS(status))),
        _ => Ok(Some(-libc::WTERMSIG(status))),
    }
}
