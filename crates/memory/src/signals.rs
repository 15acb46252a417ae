//! Signals that a thread holds back for a moment.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use libc::{c_int, sigset_t};

/// Blocks signals for the current thread until it is dropped. A signal that arrives meanwhile stays
/// pending and is delivered then.
///
/// In a process with other threads the kernel may deliver a signal to one of those.
#[derive(Debug)]
pub struct BlockedSignals {
    before: sigset_t,
    /// The mask belongs to one thread, which must restore it.
    thread: PhantomData<*const ()>,
}

impl BlockedSignals {
    /// Blocks these signals.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a number that is no signal.
    pub fn new(signals: &[c_int]) -> io::Result<Self> {
        let mut set = MaybeUninit::<sigset_t>::uninit();
        let mut before = MaybeUninit::<sigset_t>::uninit();
        // SAFETY: `sigemptyset` initializes the set before anything else uses it.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            set.assume_init_mut()
        };
        for signal in signals {
            // SAFETY: the set is initialized; an invalid number is refused.
            if unsafe { libc::sigaddset(set, *signal) } != 0 {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        }
        // SAFETY: both point to a set of this function; only this thread's mask changes.
        let code = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set, before.as_mut_ptr()) };
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        // SAFETY: the successful call above initialized it.
        Ok(Self { before: unsafe { before.assume_init() }, thread: PhantomData })
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the mask that this thread had before; the call does not keep the pointer.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut())
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_blocked_until_the_guard_is_dropped() {
        let is_blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap() & (1 << (libc::SIGWINCH - 1)) != 0
        };
        assert!(!is_blocked());
        let blocked = BlockedSignals::new(&[libc::SIGWINCH]).unwrap();
        assert!(is_blocked());
        drop(blocked);
        assert!(!is_blocked());
        let refused = BlockedSignals::new(&[9999]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }
}
