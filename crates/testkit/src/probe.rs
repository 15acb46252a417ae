//! Probes that need unsafe code, which is allowed only in this module of the crate.
#![allow(unsafe_code)]

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use farrow_memory::{Address, Length};
use rustix::io::Errno;
use rustix::mm::{MprotectFlags, mprotect};

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, with this status.
    Exit(i32),
    /// By this signal.
    Signal(i32),
}

/// A child that only loads or stores a byte needs microseconds; more than this is a hang.
const CHILD_WAIT_MAX: Duration = Duration::from_secs(30);

/// Starts a child over this process's memory that stores a byte to the address and exits with 0 if
/// that worked. A forked child is no substitute: it inherits regions read-only, or not at all.
///
/// # Errors
/// If no child can be made, or it hangs.
pub fn store_in_child(address: Address) -> io::Result<End> {
    in_child(|| {
        let target = std::ptr::with_exposed_provenance_mut::<u8>(address.0);
        // SAFETY: a fault affects the child alone, a private process with nothing left to do.
        // Whether the store faults is the purpose of the probe.
        unsafe { target.write_volatile(0xA5) };
    })
}

/// As [`store_in_child`], but the child loads a byte.
///
/// # Errors
/// If no child can be made, or it hangs.
pub fn load_in_child(address: Address) -> io::Result<End> {
    in_child(|| {
        let target = std::ptr::with_exposed_provenance::<u8>(address.0);
        // SAFETY: as in `store_in_child`.
        unsafe { target.read_volatile() };
    })
}

/// Stack of a child that makes two system calls and one access.
const CHILD_STACK_BYTES: usize = 64 << 10;

fn in_child<F: FnMut()>(mut act: F) -> io::Result<End> {
    extern "C" fn run<F: FnMut()>(act: *mut libc::c_void) -> libc::c_int {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: plain system calls on values of this frame; no core file is wanted, and limits
        // and handlers are the child's own. `act` is that of `in_child`, which waits for the child.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            (*act.cast::<F>())();
        }
        0
    }
    let mut stack = vec![0u128; CHILD_STACK_BYTES / size_of::<u128>()];
    let top = stack.as_mut_ptr_range().end.cast();
    // SAFETY: the child shares this memory and has its own stack; this thread waits until the child
    // ends (CLONE_VFORK), so stack and `act` outlive it. It only makes plain system calls and runs
    // `act`.
    let child = unsafe {
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        libc::clone(run::<F>, top, flags, (&raw mut act).cast())
    };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    wait(child)
}

fn wait(child: libc::pid_t) -> io::Result<End> {
    let start = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: our own child and a status of this frame.
        let answer = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        if answer == child {
            return Ok(if libc::WIFSIGNALED(status) {
                End::Signal(libc::WTERMSIG(status))
            } else {
                End::Exit(libc::WEXITSTATUS(status))
            });
        }
        if answer < 0 {
            return Err(io::Error::last_os_error());
        }
        if start.elapsed() > CHILD_WAIT_MAX {
            // SAFETY: our own child, not waited for yet, so the number is still its own.
            unsafe { libc::kill(child, libc::SIGKILL) };
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the child hangs"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Tries to make mapped pages writable by `mprotect`. Puts them back read-only if it worked.
///
/// # Errors
/// The system's error; `EACCES` if the mapping is read-only by construction.
pub fn try_make_writable(address: Address, length: Length) -> io::Result<()> {
    let start = std::ptr::with_exposed_provenance_mut::<std::ffi::c_void>(address.0);
    let both = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the pages stay readable throughout, and no thread writes them in between.
    unsafe {
        mprotect(start, length.as_usize(), both)?;
        mprotect(start, length.as_usize(), MprotectFlags::READ)?;
    }
    Ok(())
}

/// Runs `act` in a thread with private mounts, which vanish with the thread. `None`, and a message,
/// if this process lacks the permission.
pub fn with_private_mounts<T: Send>(act: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if let Err(error) = leave_mounts() {
                eprintln!("skipped: no private mounts ({error}); needs root");
                return None;
            }
            Some(act())
        });
        match thread.join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn leave_mounts() -> io::Result<()> {
    // SAFETY: changes the mounts and working directory of this thread alone; descriptors and
    // memory stay shared.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: constant strings that end with zero; the other arguments are not used.
    let answer = unsafe {
        libc::mount(c"none".as_ptr(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null())
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Mounts an in-memory file system (`tmpfs`, `ramfs`) over a directory. For use inside
/// [`with_private_mounts`].
///
/// # Errors
/// The system's error.
pub fn mount(kind: &str, dir: &Path, options: &str) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let text = |bytes: &[u8]| std::ffi::CString::new(bytes).map_err(|_| Errno::INVAL);
    let (kind, dir) = (text(kind.as_bytes())?, text(dir.as_os_str().as_bytes())?);
    let options = text(options.as_bytes())?;
    // SAFETY: strings that end with zero and outlive the call.
    let answer = unsafe {
        libc::mount(kind.as_ptr(), dir.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast())
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The canary: a probe that never reports a fault would let every contract pass.
    #[test]
    fn a_store_that_may_works_and_one_that_may_not_dies() {
        let mut byte = Box::new(0u8);
        let address = Address::from((&raw mut *byte).cast_const());
        assert_eq!(store_in_child(address).unwrap(), End::Exit(0));
        assert_eq!(load_in_child(address).unwrap(), End::Exit(0));
        assert_eq!(store_in_child(Address(8)).unwrap(), End::Signal(libc::SIGSEGV));
        assert_eq!(load_in_child(Address(8)).unwrap(), End::Signal(libc::SIGSEGV));
    }
}
