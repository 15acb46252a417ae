//! Which process this is, without a system call, and right after a fork.
//!
//! `getpid` is a system call in its own right since glibc keeps no copy, and a hold asks twice. The
//! answer is kept in a page that the kernel empties in a forked child (`MADV_WIPEONFORK`).

use std::sync::OnceLock;

use rustix::mm::Advice;

use crate::mapping::{self, Mapping};
use crate::sync::{AtomicU32, Ordering};
use crate::units::{Length, page_bytes};

/// Its id. Asks the system once a process, or each time where the kernel is before Linux 4.14.
pub fn process_id() -> u32 {
    static KEPT: OnceLock<Option<Kept>> = OnceLock::new();
    let Some(kept) = KEPT.get_or_init(Kept::new) else {
        return std::process::id();
    };
    let word = kept.word();
    match word.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            word.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

/// A page that a forked child finds empty.
struct Kept(Mapping);

impl Kept {
    fn new() -> Option<Self> {
        let length = Length(page_bytes());
        let page = Mapping::private(length).ok()?;
        // SAFETY: the page is this mapping's, and no reference into it exists yet.
        let advised = unsafe { mapping::advise(page.pointer(0), length, Advice::LinuxWipeOnFork) };
        advised.ok().map(|()| Self(page))
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: mapped readable and writable as long as this lives, aligned, zeros are a value of
        // it, and it is only ever reached as this atomic, which is transparent over its integer.
        unsafe { &*self.0.pointer(0).cast::<AtomicU32>() }
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
}
