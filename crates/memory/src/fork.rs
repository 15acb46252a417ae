//! Forks of this process: what a child gets of the regions that are mapped here, and whether there
//! are still children that have it.
//!
//! Maps of regions are not inherited (`MADV_DONTFORK`), so that a child made without the C library's
//! knowing, by a bare system call, faults where it reads and never sees other bytes. Handlers of
//! `pthread_atfork` let the children of `fork` inherit the windows of regions, read-only, and never
//! the writable aliases.
//!
//! Every such fork has a number. The handler maps one page whose open file description has a lock on
//! the byte of that number (`crate::locks`), and unmaps it in the parent after the fork: so the lock,
//! the *witness* of the fork, is there exactly as long as a process that inherited the page. A view
//! that was made after fork `since` and is let go after fork `until` may have been inherited by the
//! children of the forks in between and by no others; [`is_inherited`] tells whether any is left.
//!
//! # Why one number, read without a lock, is enough
//!
//! The number is raised before the process is copied. Who makes a view reads it first, so what a fork
//! can copy is at least as old as it says. Who lets a view go reads it last, when no other thread can
//! reach the view any more: if the number is the old one, the fork that raises it copies memory in which
//! nobody can reach the view. The kernel copies no page table before every core has drained its stores.
//!
//! `vfork` and `posix_spawn` share the memory and run no handler, and cost nothing here.

#[cfg(any(test, feature = "failpoints"))]
pub mod trial;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Duration;

use rustix::fs::{MemfdFlags, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use crate::fabric::files;
use crate::locks;
use crate::mapping::{self, Mapping};
use crate::process::process_number;
use crate::sync::{AtomicU64, Ordering};
use crate::units::{Length, page_bytes};

/// How often it is looked whether children are left: a dead one's memory is to be back in a second.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs of forks without a witness that are told apart.
const UNWITNESSED_MAX: usize = 64;

/// Forks so far that copied a window.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The number of the process whose birth the handlers saw.
static HANDLED: AtomicU64 = AtomicU64::new(0);

/// Read-locked over each change of a map of a region, write-locked over each fork.
static STATE: RwLock<ForkState> = RwLock::new(ForkState::new());

thread_local! {
    /// What the handler before a fork leaves to the one after it.
    static FORKING: RefCell<Option<Forking>> = const { RefCell::new(None) };
}

/// Something that children may have inherited, kept until they are gone.
pub trait Deferred: Send + Sync {
    /// Lets go of all that no child has any more. True while something is left.
    fn let_go(&self) -> bool;
}

struct ForkState {
    /// Windows of regions: first address and bytes.
    windows: BTreeMap<usize, usize>,
    /// The file on which witnesses are locked.
    witnesses: Option<OwnedFd>,
    /// Forks that have none, first and last: their children count as alive.
    unwitnessed: Vec<(u64, u64)>,
    deferred: Vec<Weak<dyn Deferred>>,
    is_looking: bool,
}

struct Forking {
    state: RwLockWriteGuard<'static, ForkState>,
    witness: Option<Mapping>,
}

/// The number of the last fork that copied a window of this process.
#[inline]
#[must_use]
pub fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Whether a child is left of the forks after number `since`, up to number `until`.
#[must_use]
pub fn is_inherited(since: u64, until: u64) -> bool {
    until > since && read().is_inherited(since, until)
}

/// Has `one` let go, by a thread of this process, as soon as no child has what it keeps.
pub fn defer(one: Weak<dyn Deferred>) {
    let mut state = write();
    if !state.deferred.iter().any(|known| known.ptr_eq(&one)) {
        state.deferred.push(one);
    }
    if state.is_looking {
        return;
    }
    let started = std::thread::Builder::new()
        .name("farrow-forks".into())
        .stack_size(128 << 10)
        .spawn(look_after_deferred);
    match started {
        Ok(_) => state.is_looking = true,
        // The next one tries again. At the end of the session the node sees to it.
        Err(error) => tracing::warn!(%error, "memory that children inherited is kept for longer"),
    }
}

/// No fork happens while this is held: for a change of maps that is not whole in between.
pub(crate) fn without_fork() -> impl Drop {
    struct Steady(
        #[expect(dead_code, reason = "held, not read")] RwLockReadGuard<'static, ForkState>,
    );
    impl Drop for Steady {
        fn drop(&mut self) {}
    }
    Steady(read())
}

/// Lets children inherit this range of maps, read-only, until [`forget_window`].
pub(crate) fn watch_window(address: usize, bytes: usize) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the three functions live as long as this library, which takes them back if it is
        // unloaded, and neither unwind nor call anything that forks.
        let code = unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
        if code != 0 {
            tracing::error!(code, "no handler at fork: children inherit no memory of the region");
        }
    });
    write().windows.insert(address, bytes);
}

pub(crate) fn forget_window(address: usize) {
    write().windows.remove(&address);
}

/// Whether this process is a child that the handlers have seen, so that it has its parent's windows.
pub(crate) fn has_inherited() -> bool {
    HANDLED.load(Ordering::Relaxed) == process_number()
}

fn read() -> RwLockReadGuard<'static, ForkState> {
    // What is in there is whole after each statement.
    STATE.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, ForkState> {
    STATE.write().unwrap_or_else(PoisonError::into_inner)
}

impl ForkState {
    const fn new() -> Self {
        Self {
            windows: BTreeMap::new(),
            witnesses: None,
            unwitnessed: Vec::new(),
            deferred: Vec::new(),
            is_looking: false,
        }
    }

    fn is_inherited(&self, since: u64, until: u64) -> bool {
        #[cfg(any(test, feature = "failpoints"))]
        if trial::are_forgotten() {
            return false;
        }
        if self.unwitnessed.iter().any(|(first, last)| *first <= until && *last > since) {
            return true;
        }
        let Some(file) = &self.witnesses else {
            return false;
        };
        let locked = locks::is_locked(file.as_fd(), since.saturating_add(1), until - since);
        // Nobody knows: then there may be one.
        locked.unwrap_or(true)
    }

    /// A page that the children of fork `number` inherit.
    fn witness(&mut self, number: u64) -> io::Result<Mapping> {
        let length = Length(page_bytes());
        let file = match &self.witnesses {
            Some(file) => file,
            None => {
                let file = rustix::fs::memfd_create("farrow-forks", MemfdFlags::CLOEXEC)?;
                rustix::fs::ftruncate(&file, length.0)?;
                self.witnesses.insert(file)
            }
        };
        let opened = files::reopen(file.as_fd(), Path::new("farrow-forks"), OFlags::RDONLY);
        let opened = opened.map_err(io::Error::other)?;
        locks::lock_byte(opened.as_fd(), number)?;
        Ok(Mapping::of_file_for_children(opened.as_fd(), length)?)
    }

    fn note_unwitnessed(&mut self, number: u64) {
        let is_full = self.unwitnessed.len() == UNWITNESSED_MAX;
        match self.unwitnessed.last_mut() {
            Some((_, last)) if is_full || *last + 1 == number => *last = number,
            _ => self.unwitnessed.push((number, number)),
        }
    }

    fn advise_windows(&self, advice: Advice) {
        for (address, bytes) in &self.windows {
            let start = std::ptr::with_exposed_provenance_mut(*address);
            // SAFETY: a window that is mapped, and advice that changes no contents.
            let advised = unsafe { mapping::advise(start, Length::from(*bytes), advice) };
            if let Err(errno) = advised {
                // Device memory stays as it was: it is not inherited.
                tracing::debug!(%errno, ?advice, "a window at a fork");
            }
        }
    }
}

/// Before a fork, in the thread that forks.
unsafe extern "C" fn prepare() {
    let mut state = write();
    let mut witness = None;
    if !state.windows.is_empty() {
        let number = FORKS.load(Ordering::Relaxed) + 1;
        match state.witness(number) {
            Ok(made) => witness = Some(made),
            Err(error) => {
                tracing::debug!(%error, number, "a fork without a witness");
                state.note_unwitnessed(number);
            }
        }
        FORKS.store(number, Ordering::SeqCst);
        state.advise_windows(Advice::LinuxDoFork);
    }
    let _ = FORKING.try_with(|forking| forking.replace(Some(Forking { state, witness })));
}

/// After a fork, or one that failed, in the parent.
unsafe extern "C" fn in_parent() {
    let Ok(Some(forking)) = FORKING.try_with(RefCell::take) else {
        return;
    };
    forking.state.advise_windows(Advice::LinuxDontFork);
    drop(forking.witness);
}

/// After a fork, in the child.
unsafe extern "C" fn in_child() {
    let Ok(Some(forking)) = FORKING.try_with(RefCell::take) else {
        return;
    };
    let Forking { mut state, witness } = forking;
    for (address, bytes) in std::mem::take(&mut state.windows) {
        protect(address, bytes);
    }
    // For as long as this process lives; its own forks have a file of their own.
    std::mem::forget(witness);
    state.witnesses = None;
    state.unwitnessed.clear();
    state.deferred.clear();
    state.is_looking = false;
    HANDLED.store(process_number(), Ordering::Relaxed);
}

/// Makes an inherited window read-only. What was not inherited, or stays writable, is replaced by
/// addresses with nothing behind them: another map of the child's there would be other bytes.
fn protect(address: usize, bytes: usize) {
    let start = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the window is this process's copy of its parent's, and nobody writes through it: all
    // writing needs a session, which is of no use here.
    let protected = unsafe { rustix::mm::mprotect(start, bytes, MprotectFlags::READ) };
    if protected.is_ok() {
        return;
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: as above; who reads there faults.
    let replaced = unsafe { rustix::mm::mmap_anonymous(start, bytes, ProtFlags::empty(), flags) };
    if replaced.is_err() {
        // SAFETY: as above.
        let _: Result<(), Errno> = unsafe { rustix::mm::munmap(start, bytes) };
    }
}

/// Looks after what is deferred until nothing is left.
fn look_after_deferred() {
    let process = process_number();
    loop {
        std::thread::sleep(LOOK_EVERY);
        let all = std::mem::take(&mut write().deferred);
        let left: Vec<_> = all.into_iter().filter(is_left).collect();
        let mut state = write();
        debug_assert_eq!(process, process_number());
        for one in left {
            if !state.deferred.iter().any(|known| known.ptr_eq(&one)) {
                state.deferred.push(one);
            }
        }
        if state.deferred.is_empty() {
            state.is_looking = false;
            return;
        }
    }
}

fn is_left(one: &Weak<dyn Deferred>) -> bool {
    one.upgrade().is_some_and(|one| one.let_go())
}

#[cfg(test)]
mod tests;
