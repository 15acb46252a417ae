//! Forks of this process: what a child inherits of the mapped regions, and whether such children
//! still exist.
//!
//! Mappings of regions are not inherited by default (`MADV_DONTFORK`). A child made by a bare
//! system call, without the C library, therefore faults when it reads there and never sees wrong
//! bytes. Handlers registered with `pthread_atfork` let the children of `fork` inherit the windows
//! of regions, read-only. The writable aliases are never inherited.
//!
//! Each such fork has a number. The handler maps one page through an open file description that
//! holds a lock on the byte with that number (`crate::locks`). The parent unmaps the page after the
//! fork. The lock is called the *witness* of the fork: it exists exactly as long as some process
//! still has the inherited page. A view created after fork `since` and released after fork `until`
//! can only have been inherited by children of the forks in between. [`is_inherited`] returns whether
//! any of these children is still alive.
//!
//! # Why two numbers, read without a lock, are enough
//!
//! One number counts forks before the process is copied ([`forks`]), the other one after
//! ([`completed_forks`]). The creator of a view reads the second one first: the copies of all forks up
//! to it were complete before the view existed. A thread that releases a view reads the first one
//! last, when no other thread can reach the view any more. If it still reads the old number, the
//! fork that increments it copies memory in which no thread can reach the view. The kernel copies no
//! page table before every core has drained its stores. A view that is created while another thread
//! forks counts as inherited.
//!
//! `vfork` and `posix_spawn` share the memory, run no handler and cost nothing here.

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

/// Interval between checks for remaining children. The memory of a dead child must be free again
/// within a second.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Maximum number of separately recorded runs of consecutive forks without a witness.
const UNWITNESSED_MAX: usize = 64;

/// Number of forks so far that copied a window, one that is under way included.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Number of these forks whose copy of the process is complete.
static COMPLETED: AtomicU64 = AtomicU64::new(0);

/// The [`process_number`] of this process, if the fork handlers have set it up as a child.
static HANDLED: AtomicU64 = AtomicU64::new(0);

/// Read-locked during each change of a region's mapping, write-locked during each fork.
static STATE: RwLock<ForkState> = RwLock::new(ForkState::new());

thread_local! {
    /// State that the handler before a fork passes to the handler after it.
    static FORKING: RefCell<Option<Forking>> = const { RefCell::new(None) };
}

/// A resource that children may have inherited. It is retained until they have exited.
pub trait Deferred: Send + Sync {
    /// Releases everything that no child uses any more. Returns true while something remains.
    fn let_go(&self) -> bool;
}

struct ForkState {
    /// Windows of regions: first address and length in bytes.
    windows: BTreeMap<usize, usize>,
    /// Ranges that children do not inherit and must not use for anything else.
    hidden: BTreeMap<usize, usize>,
    /// The file whose bytes are locked by witnesses.
    witnesses: Option<OwnedFd>,
    /// Ranges (first, last) of forks without a witness. Their children always count as alive.
    unwitnessed: Vec<(u64, u64)>,
    deferred: Vec<Weak<dyn Deferred>>,
    is_looking: bool,
}

struct Forking {
    state: RwLockWriteGuard<'static, ForkState>,
    witness: Option<Mapping>,
}

/// The number of the last fork that copies a window of this process: for the release of a view.
#[inline]
#[must_use]
pub fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// The number of the last fork whose copy of this process is complete: for the creation of a view.
#[inline]
#[must_use]
pub fn completed_forks() -> u64 {
    // Acquire: no store of the new view is visible before this load.
    COMPLETED.load(Ordering::Acquire)
}

/// Whether a child is still alive of the forks after number `since`, up to and including `until`.
#[must_use]
pub fn is_inherited(since: u64, until: u64) -> bool {
    until > since && read().is_inherited(since, until)
}

/// Registers `one` with a background thread of this process, which calls [`Deferred::let_go`] until
/// no child uses the resource any more.
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
        // The next call tries again. At the latest the node frees the memory when the session ends.
        Err(error) => tracing::warn!(%error, "memory that children inherited is kept for longer"),
    }
}

/// Blocks forks while the returned guard lives: for changes of mappings in several steps, and for
/// locks that a child must not inherit locked. A thread with the guard must not fork.
pub fn without_fork() -> impl Drop {
    struct Steady(
        #[expect(dead_code, reason = "held, not read")] RwLockReadGuard<'static, ForkState>,
    );
    impl Drop for Steady {
        fn drop(&mut self) {}
    }
    Steady(read())
}

/// Lets children inherit this address range, read-only, until [`forget_window`].
pub(crate) fn watch_window(address: usize, bytes: usize) {
    register_handlers();
    write().windows.insert(address, bytes);
}

pub(crate) fn forget_window(address: usize) {
    write().windows.remove(&address);
}

/// Makes this address range inaccessible in children, until [`forget_hidden`]. Otherwise a child
/// might map other memory there and read wrong bytes through an old pointer.
pub(crate) fn hide(address: usize, bytes: usize) {
    register_handlers();
    write().hidden.insert(address, bytes);
}

pub(crate) fn forget_hidden(address: usize) {
    write().hidden.remove(&address);
}

fn register_handlers() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the three functions live as long as this library; they are unregistered when it
        // is unloaded. They neither unwind nor call anything that forks.
        let code = unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
        if code != 0 {
            tracing::error!(code, "no handler at fork: children inherit no memory of the region");
        }
    });
}

/// Whether this process is a child set up by the fork handlers and so has its parent's windows.
pub(crate) fn has_inherited() -> bool {
    HANDLED.load(Ordering::Relaxed) == process_number()
}

fn read() -> RwLockReadGuard<'static, ForkState> {
    // A poisoned lock is no problem: the state is consistent after each statement.
    STATE.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, ForkState> {
    STATE.write().unwrap_or_else(PoisonError::into_inner)
}

impl ForkState {
    const fn new() -> Self {
        Self {
            windows: BTreeMap::new(),
            hidden: BTreeMap::new(),
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
        // If the lock cannot be queried, assume that a child exists.
        locked.unwrap_or(true)
    }

    /// Maps a page that the children of fork `number` inherit.
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
            // SAFETY: the window is mapped, and the advice does not change its contents.
            let advised = unsafe { mapping::advise(start, Length::from(*bytes), advice) };
            if let Err(errno) = advised {
                // Expected for device memory, which children never inherit.
                tracing::debug!(%errno, ?advice, "a window at a fork");
            }
        }
    }
}

/// Runs before a fork, in the thread that forks.
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

/// Runs in the parent after a fork, also if the fork failed.
unsafe extern "C" fn in_parent() {
    let Ok(Some(forking)) = FORKING.try_with(RefCell::take) else {
        return;
    };
    COMPLETED.store(FORKS.load(Ordering::Relaxed), Ordering::Release);
    forking.state.advise_windows(Advice::LinuxDontFork);
    drop(forking.witness);
}

/// Runs in the child after a fork.
unsafe extern "C" fn in_child() {
    let Ok(Some(forking)) = FORKING.try_with(RefCell::take) else {
        return;
    };
    COMPLETED.store(FORKS.load(Ordering::Relaxed), Ordering::Release);
    let Forking { mut state, witness } = forking;
    for (address, bytes) in std::mem::take(&mut state.windows) {
        protect(address, bytes);
    }
    for (address, bytes) in std::mem::take(&mut state.hidden) {
        let start = std::ptr::with_exposed_provenance_mut(address);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: replaces no mapping. If there is one already, another handler made it.
        let _ = unsafe { rustix::mm::mmap_anonymous(start, bytes, ProtFlags::empty(), flags) };
    }
    // The witness must exist as long as this process. Its own forks use a new file.
    std::mem::forget(witness);
    state.witnesses = None;
    state.unwitnessed.clear();
    state.deferred.clear();
    state.is_looking = false;
    HANDLED.store(process_number(), Ordering::Relaxed);
}

/// Makes an inherited window read-only. A window that was not inherited, or that cannot be made
/// read-only, is replaced by an inaccessible mapping. Otherwise the child might map other memory
/// there and read wrong bytes through an old pointer.
fn protect(address: usize, bytes: usize) {
    let start = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the window is this process's copy of its parent's, and nothing writes through it:
    // writing needs a session, and the parent's session cannot be used here.
    let protected = unsafe { rustix::mm::mprotect(start, bytes, MprotectFlags::READ) };
    if protected.is_ok() {
        return;
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: as above; reads of this range fault.
    let replaced = unsafe { rustix::mm::mmap_anonymous(start, bytes, ProtFlags::empty(), flags) };
    if replaced.is_err() {
        // SAFETY: as above.
        let _: Result<(), Errno> = unsafe { rustix::mm::munmap(start, bytes) };
    }
}

/// Releases deferred resources as their children exit. Returns when none is left.
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
