//! Pages that a mapped file has lost.
//!
//! Every holder of a writable descriptor can truncate a file of a tmpfs, and no seal prevents it. An
//! access beyond the new end raises SIGBUS; so does one to a hole if the file system is full. A daemon
//! must outlive its clients. After [`survive_lost_pages`] a private page of zeros takes the place of a
//! lost one, in the mappings that this crate has made since. The access continues there, and the
//! mapping counts as damaged: code that sends its bytes on looks at [`WatchedMapping::has_lost`] first.
//!
//! Every other SIGBUS has the effect that it had before.

use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use libc::{c_int, c_void, siginfo_t};

use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crate::units::page_bytes;

/// Limit of watched ranges. A daemon maps its region a few times, the region of each peer, and one
/// file for each large value that it receives.
const RANGES_MAX: usize = 1024;

/// Start of a range that is being entered; no page begins there.
const CLAIMED: usize = 1;

/// A range of addresses where a file is mapped. A signal handler reads it, so it has no lock.
struct WatchedRange {
    /// The first address; 0: the place is free.
    start: AtomicUsize,
    end: AtomicUsize,
    has_lost: AtomicBool,
}

static RANGES: [WatchedRange; RANGES_MAX] = [const {
    WatchedRange {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        has_lost: AtomicBool::new(false),
    }
}; RANGES_MAX];

/// Accesses to lost pages so far.
static LOST: AtomicU64 = AtomicU64::new(0);

/// What SIGBUS did before; set once the handler is installed.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Makes this process survive accesses to lost pages of files, in mappings of regions and of
/// [`crate::FileMap`]s that are made from here on. For daemons, before they map memory: a client should
/// fail instead of reading zeros.
///
/// # Errors
/// The handler cannot be installed.
pub fn survive_lost_pages() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a null pointer changes nothing; the action is written to a place of its size.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: written by the successful call. The page size is known from here on.
    let _ = (BEFORE.set(unsafe { before.assume_init() }), page_bytes());
    // SAFETY: all zeros are a valid action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_bus_error as extern "C" fn(_, _, _) as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler uses only what a signal handler may use: atomics, `mmap` and `sigaction`.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How often this process has met a page that its file has lost.
#[must_use]
pub fn lost_pages() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// A watched range of this process, until it is dropped. The owner drops it before the mapping.
#[derive(Debug)]
pub(crate) struct WatchedMapping(usize);

impl WatchedMapping {
    /// `None`: this process does not survive lost pages, or watches too many ranges.
    pub(crate) fn new(start: usize, length: usize) -> Option<Self> {
        BEFORE.get()?;
        let claim = |place: &&WatchedRange| {
            let claimed =
                place.start.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed);
            claimed.is_ok()
        };
        let Some((index, place)) = RANGES.iter().enumerate().find(|(_, place)| claim(place)) else {
            tracing::warn!(limit = RANGES_MAX, "a mapping is not safe from truncated files");
            return None;
        };
        place.has_lost.store(false, Ordering::Relaxed);
        place.end.store(start.saturating_add(length), Ordering::Relaxed);
        place.start.store(start, Ordering::Release);
        Some(Self(index))
    }

    /// Whether zeros were read here in place of a lost page, by any earlier access of this process.
    pub(crate) fn has_lost(&self) -> bool {
        // After the accesses of the caller.
        fence(Ordering::SeqCst);
        RANGES.get(self.0).is_some_and(|place| place.has_lost.load(Ordering::Relaxed))
    }
}

impl Drop for WatchedMapping {
    fn drop(&mut self) {
        if let Some(place) = RANGES.get(self.0) {
            place.start.store(0, Ordering::Release);
        }
    }
}

/// The handler of SIGBUS.
extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid record, with an address for a bus error.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    if code == libc::BUS_ADRERR && replace(address) {
        return;
    }
    if let Some(before) = BEFORE.get() {
        // SAFETY: the action that the process had. An access that failed is repeated after the return,
        // and a signal that was sent is sent again: both then have their usual effect.
        unsafe {
            libc::sigaction(signal, before, std::ptr::null_mut());
            if code <= 0 {
                libc::raise(signal);
            }
        }
    }
}

/// Puts a page of zeros in the place of a lost one. False: it is in no watched range.
fn replace(address: usize) -> bool {
    let holds = |place: &&WatchedRange| {
        let start = place.start.load(Ordering::Acquire);
        let end = place.end.load(Ordering::Acquire);
        let is_same = place.start.load(Ordering::Relaxed) == start;
        start > CLAIMED && is_same && (start..end).contains(&address)
    };
    let Some(place) = RANGES.iter().find(holds) else {
        return false;
    };
    // Before any thread can read zeros.
    place.has_lost.store(true, Ordering::SeqCst);
    LOST.fetch_add(1, Ordering::Relaxed);
    let page = page_bytes() as usize;
    let start = std::ptr::with_exposed_provenance_mut(address - address % page);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: a page of a mapping of ours that exists, since the access to it was ours. It has no
    // memory any more, so nothing is lost with it.
    unsafe { libc::mmap(start, page, protection, flags, -1, 0) == start }
}

// x86-64 only: under an emulator of another instruction set a test cannot start its own program.
#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::sync::Arc;

    use rustix::fs::MemfdFlags;

    use super::*;
    use crate::mapping::Mapping;
    use crate::shm::ShmFabric;
    use crate::units::{Geometry, Length, Offset, Section, Span};
    use crate::{Access, Fabric, FileMap, Region};

    const CHILD: &str = "FARROW_LOST_PAGES_CHILD";

    /// Runs a test of this module again in a process of its own, which the handler changes. `None`: this
    /// is that process.
    fn in_child(name: &str) -> Option<std::process::Output> {
        if std::env::var_os(CHILD).is_some() {
            return None;
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        let name = format!("lost_pages::tests::{name}");
        let child = child.args([&name, "--exact", "--nocapture", "--test-threads=1"]);
        Some(child.env(CHILD, "1").output().unwrap())
    }

    fn check(output: &std::process::Output) {
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
    }

    fn file(pages: u64) -> OwnedFd {
        let file = rustix::fs::memfd_create("lost-pages", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, pages * page_bytes()).unwrap();
        rustix::io::pwrite(&file, &[7; 64], 0).unwrap();
        file
    }

    /// A client truncates a file that a daemon sends from.
    #[test]
    fn a_truncated_file_is_an_error_and_no_signal() {
        if let Some(output) = in_child("a_truncated_file_is_an_error_and_no_signal") {
            return check(&output);
        }
        survive_lost_pages().unwrap();
        survive_lost_pages().unwrap();
        let (page, file) = (page_bytes(), file(4));
        let of_client = file.try_clone().unwrap();
        let map = FileMap::new(file, 0, Length(4 * page), true).unwrap();
        let (first, last) =
            (Span::new(Offset(0), Length(64)), Span::new(Offset(3 * page), Length(64)));
        let bytes = map.read(last).unwrap();
        assert_eq!(&*bytes, [0; 64]);
        bytes.check().unwrap();
        rustix::fs::ftruncate(&of_client, page).unwrap();
        let bytes = map.read(last).unwrap();
        assert_eq!(&*bytes, [0; 64]);
        assert_eq!(lost_pages(), 1);
        assert!(bytes.check().is_err(), "zeros that the file does not have");
        // From here on by system calls.
        assert!(map.read(last).is_err());
        let bytes = map.read(first).unwrap();
        assert_eq!(&*bytes, [7; 64]);
        bytes.check().unwrap();
        rustix::io::pwrite(&of_client, &[9; 64], 3 * page).unwrap();
        assert_eq!(&*map.read(last).unwrap(), [9; 64]);
        assert_eq!(lost_pages(), 1);
        // Nothing is received into the private page.
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(map.is_for_pipe(last) && map.receive(socket.as_fd(), last).is_err());
        assert!(map.start_of(last, false).is_err());
    }

    /// Holds, entries and use stamps are words in pages that a client can truncate too.
    #[test]
    fn loads_and_stores_of_a_region_go_on() {
        if let Some(output) = in_child("loads_and_stores_of_a_region_go_on") {
            return check(&output);
        }
        survive_lost_pages().unwrap();
        let page = page_bytes();
        let geometry = Geometry { control: Length(page), data: Length(4 * page) };
        let fabric = ShmFabric::nameless_in(std::path::Path::new("/dev/shm"), geometry).unwrap();
        let fabric: Arc<dyn Fabric> = Arc::new(fabric);
        let region = Arc::new(Region::map(Arc::clone(&fabric), Access::Home, None).unwrap());
        let last = Span::new(Offset(4 * page), Length(page));
        let alias = region.alias(last).unwrap();
        rustix::fs::ftruncate(fabric.write_fd(Section::Data).unwrap().0, page).unwrap();
        let word = |words: crate::Words<'_>| words.load(0, Ordering::Acquire);
        assert_eq!(word(region.words(last).unwrap()), Some(0));
        assert!(alias.words_mut(last).unwrap().store(0, 5, Ordering::Release));
        let mut bytes = [1; 8];
        assert!(region.copy_out_by_call(last.offset, &mut bytes).is_err());
        region.copy_out_by_call(Offset(page), &mut bytes).unwrap();
        assert_eq!((bytes, lost_pages()), ([0; 8], 2));
        drop((alias, region));
        let in_use = |place: &&WatchedRange| place.start.load(Ordering::Relaxed) != 0;
        assert_eq!(RANGES.iter().filter(in_use).count(), 0);
    }

    /// The canary: a mapping that is not watched ends the process, as before.
    #[test]
    fn any_other_bus_error_ends_the_process() {
        if let Some(output) = in_child("any_other_bus_error_ends_the_process") {
            return assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
        }
        let file = file(1);
        let mapping = Mapping::of_file(file.as_fd(), 0, Length(page_bytes()), false).unwrap();
        survive_lost_pages().unwrap();
        rustix::fs::ftruncate(&file, 0).unwrap();
        // SAFETY: mapped above; the load raises SIGBUS, which is what this test is for.
        println!("{}", unsafe { mapping.pointer(0).read_volatile() });
    }
}
