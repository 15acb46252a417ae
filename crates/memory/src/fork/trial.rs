//! For tests: starts child processes, can make this process ignore them, and stops a thread in the
//! midst of a section that no fork may divide.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use std::time::Duration;

use crate::sync::{AtomicBool, Ordering};

/// Whether living children count as exited: a deliberate bug that a test must find.
static ARE_FORGOTTEN: AtomicBool = AtomicBool::new(false);

/// How long a thread stops: time for another one to fork meanwhile.
const STOP: Duration = Duration::from_millis(300);

/// For each section, whether the next thread in it is to stop.
static STOP_IN: [AtomicBool; 4] = [const { AtomicBool::new(false) }; 4];

/// For each section, whether a thread has stopped in it.
static STOPPED_IN: [AtomicBool; 4] = [const { AtomicBool::new(false) }; 4];

/// Work under a lock that a child must not inherit locked.
#[derive(Clone, Copy, Debug)]
pub enum ForkSection {
    /// The maps of this process are counted.
    Maps,
    /// The profile of this machine is loaded.
    Profile,
    /// The thread for page tables is started.
    Worker,
    /// The buffers over an object's blocks are made.
    Buffers,
}

/// Has the next thread in each of these sections stop there for a short time.
pub fn stop_in(sections: &[ForkSection]) {
    sections.iter().for_each(|section| STOP_IN[*section as usize].store(true, Ordering::SeqCst));
}

/// Whether a thread has stopped in this section.
pub fn has_stopped_in(section: ForkSection) -> bool {
    STOPPED_IN[section as usize].load(Ordering::SeqCst)
}

/// Called inside of the section.
pub fn pass(section: ForkSection) {
    if STOP_IN[section as usize].swap(false, Ordering::SeqCst) {
        STOPPED_IN[section as usize].store(true, Ordering::SeqCst);
        std::thread::sleep(STOP);
    }
}

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
