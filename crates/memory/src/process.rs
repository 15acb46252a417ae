//! The identity of this process without a system call, correct also after a fork.
//!
//! glibc no longer caches `getpid`, so each call is a system call, and a hold needs the process id
//! twice. The id is cached in a page that the kernel zeroes in a forked child (`MADV_WIPEONFORK`).

use std::sync::OnceLock;

use rustix::mm::Advice;

use crate::mapping::{self, Mapping};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::{Length, page_bytes};

/// Number of processes so far in this chain of forks: a child continues its parent's count.
static PROCESSES: AtomicU64 = AtomicU64::new(0);

/// The process id. Makes one system call per process, or one per call before Linux 4.14.
pub fn process_id() -> u32 {
    let Some(retained) = retained() else {
        return std::process::id();
    };
    let word = retained.id();
    match word.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            word.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

/// A number that differs from that of every ancestor of this process. A process id can be reused.
/// Before Linux 4.14 it is the process id.
#[inline]
pub fn process_number() -> u64 {
    let Some(retained) = retained() else {
        return u64::from(std::process::id());
    };
    match retained.number().load(Ordering::Relaxed) {
        0 => first_number(retained),
        number => number,
    }
}

#[cold]
fn first_number(retained: &WipedPage) -> u64 {
    let fresh = PROCESSES.fetch_add(1, Ordering::Relaxed) + 1;
    match retained.number().compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => fresh,
        // Another thread of this process was faster.
        Err(number) => number,
    }
}

#[inline]
fn retained() -> Option<&'static WipedPage> {
    static RETAINED: OnceLock<Option<WipedPage>> = OnceLock::new();
    RETAINED.get_or_init(WipedPage::new).as_ref()
}

/// A page that is all zeros in a forked child.
struct WipedPage(Mapping);

impl WipedPage {
    fn new() -> Option<Self> {
        let length = Length(page_bytes());
        let page = Mapping::private(length).ok()?;
        // SAFETY: the page belongs to this mapping, and no reference into it exists yet.
        let advised = unsafe { mapping::advise(page.pointer(0), length, Advice::LinuxWipeOnFork) };
        advised.ok().map(|()| Self(page))
    }

    fn number(&self) -> &AtomicU64 {
        // SAFETY: mapped readable and writable as long as this lives, and aligned. Zero is a valid
        // value. It is only ever accessed as this atomic, which is transparent over its integer.
        unsafe { &*self.0.pointer(0).cast::<AtomicU64>() }
    }

    fn id(&self) -> &AtomicU32 {
        // SAFETY: as above; the id follows the number.
        unsafe { &*self.0.pointer(size_of::<u64>() as u64).cast::<AtomicU32>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_the_system_says() {
        assert_eq!(process_id(), std::process::id());
        assert_eq!(process_id(), std::process::id());
    }

    #[test]
    fn a_process_keeps_its_number() {
        let number = process_number();
        assert_ne!(number, 0);
        assert!(std::thread::spawn(process_number).join().is_ok_and(|other| other == number));
    }
}
