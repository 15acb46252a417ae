//! Which process this is, without a system call, and right after a fork.
//!
//! `getpid` is a system call in its own right since glibc keeps no copy, and a hold asks twice. The
//! answer is kept in a page that the kernel empties in a forked child (`MADV_WIPEONFORK`).

use std::sync::OnceLock;

use rustix::mm::Advice;

use crate::mapping::{self, Mapping};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::{Length, page_bytes};

/// Processes counted so far along this line of forks: a child goes on with its parent's number.
static PROCESSES: AtomicU64 = AtomicU64::new(0);

/// Its id. Asks the system once a process, or each time where the kernel is before Linux 4.14.
pub fn process_id() -> u32 {
    let Some(kept) = kept() else {
        return std::process::id();
    };
    let word = kept.id();
    match word.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            word.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

/// A number that this process shares with none that it was forked from: a process id may come again.
/// Before Linux 4.14 it is the process id.
#[inline]
pub fn process_number() -> u64 {
    let Some(kept) = kept() else {
        return u64::from(std::process::id());
    };
    match kept.number().load(Ordering::Relaxed) {
        0 => first_number(kept),
        number => number,
    }
}

#[cold]
fn first_number(kept: &WipedPage) -> u64 {
    let fresh = PROCESSES.fetch_add(1, Ordering::Relaxed) + 1;
    match kept.number().compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => fresh,
        // Another thread of this process was quicker.
        Err(number) => number,
    }
}

#[inline]
fn kept() -> Option<&'static WipedPage> {
    static KEPT: OnceLock<Option<WipedPage>> = OnceLock::new();
    KEPT.get_or_init(WipedPage::new).as_ref()
}

/// A page that a forked child finds empty.
struct WipedPage(Mapping);

impl WipedPage {
    fn new() -> Option<Self> {
        let length = Length(page_bytes());
        let page = Mapping::private(length).ok()?;
        // SAFETY: the page is this mapping's, and no reference into it exists yet.
        let advised = unsafe { mapping::advise(page.pointer(0), length, Advice::LinuxWipeOnFork) };
        advised.ok().map(|()| Self(page))
    }

    fn number(&self) -> &AtomicU64 {
        // SAFETY: mapped readable and writable as long as this lives, aligned, zeros are a value of
        // it, and it is only ever reached as this atomic, which is transparent over its integer.
        unsafe { &*self.0.pointer(0).cast::<AtomicU64>() }
    }

    fn id(&self) -> &AtomicU32 {
        // SAFETY: as above; it lies behind the number.
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
