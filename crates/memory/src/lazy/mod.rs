//! Part of a file whose pages another thread brings when they are first read.
//!
//! The file is filled by the node, which has it mapped too; this process has it read-only. A page
//! that is read before it was shown here stops its reader, also inside a system call, until the
//! thread that takes the [`LazyMap::faults`] shows the page or gives it up.
//!
//! Each rule here closes a way to wrong bytes:
//!
//! - The mapping is private, because the kernel refuses faults of shared mappings of read-only
//!   files. Shown pages are those of the file all the same, once for all processes.
//! - It is registered before it can be read: `mlockall` would bring zeros in between.
//! - It is registered for missing pages and for pages that exist in the file only. Those may be in
//!   arrival.
//! - It is not inherited, since a child would read zeros. A child finds its addresses inaccessible.
//! - It is unmapped before the descriptor of the faults is closed, since the kernel brings zeros
//!   afterwards.
//! - The file must be sealed against shrinking.

mod ahead;
mod page_faults;
mod remote;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::MprotectFlags;

use crate::error::{FabricError, MapError};
use crate::mapping::{Mapping, failure};
use crate::units::{Length, Offset, Section, Span, page_bytes};
pub use ahead::ReadAhead;
use page_faults::failed;
pub use page_faults::{DEVICE, PageFaults, PageFaultsError};
pub use remote::{FaultsHandover, RemoteFaults, ShownChunks};

/// What is brought for a fault at the least, and to which ranges are rounded.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// Why a file cannot be mapped with [`LazyMap::new`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LazyMapError {
    /// The file is not one of a node.
    #[error(transparent)]
    File(#[from] FabricError),
    /// It cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Its faults cannot be served.
    #[error(transparent)]
    Faults(#[from] PageFaultsError),
}

/// Whole pages of a file, mapped read-only, that are shown one by one. Spans are offsets in the
/// file.
pub struct LazyMap {
    /// Before the faults: see the module.
    mapping: Mapping,
    span: Span,
    faults: PageFaults,
}

impl fmt::Debug for LazyMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LazyMap({})", self.span)
    }
}

impl LazyMap {
    /// Maps whole pages of a memory file that its sender fills.
    ///
    /// # Errors
    /// [`FabricError::TooShort`] and [`FabricError::CanShrink`] for a file that could end within the
    /// span; [`MapError::NotPages`], [`MapError::NoRoom`]; see [`PageFaultsError`].
    pub fn new(file: BorrowedFd<'_>, span: Span, faults: PageFaults) -> Result<Self, LazyMapError> {
        check_file(file, span)?;
        if span.is_empty() || !span.is_aligned(page_bytes()) {
            let Span { offset, length } = span;
            return Err(MapError::NotPages { offset, length, page: page_bytes() }.into());
        }
        let mapping = Mapping::private_of_file(file, span.offset.0, span.length)
            .map_err(|errno| failure("mmap", span, errno))?;
        let (start, bytes) = (mapping.pointer(0), span.length.as_usize());
        faults.register(start.expose_provenance(), bytes)?;
        // SAFETY: all of the mapping, which nothing else uses yet.
        unsafe { rustix::mm::mprotect(start.cast(), bytes, MprotectFlags::READ) }
            .map_err(|errno| failure("mprotect", span, errno))?;
        Ok(Self { mapping, span, faults })
    }

    /// The mapped part of the file.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// Address of the first mapped byte.
    #[must_use]
    pub fn address(&self) -> usize {
        self.mapping.pointer(0).addr()
    }

    /// What another process needs to serve the faults instead of this one.
    ///
    /// # Errors
    /// The error of the system.
    pub fn handover(&self) -> io::Result<FaultsHandover> {
        let faults = self.faults.as_fd().try_clone_to_owned()?;
        Ok(FaultsHandover { faults, address: self.address() as u64, span: self.span })
    }

    /// Lets all threads that wait for a page fault again: another process may have taken their
    /// faults, and serves them no more.
    ///
    /// # Errors
    /// The error of the system.
    pub fn fault_again(&self) -> Result<(), Errno> {
        self.faults.wake(self.address(), self.span.length.as_usize())
    }

    /// Waits until a thread of this process waits for a page, or `stop` is readable. Returns the
    /// pages' offsets in the file, some of them perhaps more than once; none after `stop`.
    ///
    /// # Errors
    /// The error of the system.
    pub fn faults(&self, stop: BorrowedFd<'_>) -> Result<Option<Vec<Offset>>, Errno> {
        let stop = PollFd::from_borrowed_fd(stop, PollFlags::IN);
        let mut watched = [PollFd::new(&self.faults, PollFlags::IN), stop];
        match poll(&mut watched, None) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Some(Vec::new())),
            Err(errno) => return Err(errno),
        }
        if !watched[1].revents().is_empty() {
            return Ok(None);
        }
        Ok(Some(self.faults.take_in(self.address(), self.span)?))
    }

    /// Shows pages of the file whose bytes are all in place. Waits for nothing.
    ///
    /// # Errors
    /// [`MapError::Bounds`]-like numbers as [`MapError::NotPages`] for other spans than whole pages
    /// of the map. [`MapError::System`] if a page is not in the file.
    pub fn show(&self, span: Span) -> Result<(), MapError> {
        let start = self.start_of(span)?;
        let shown = self.faults.resume(start, span.length.as_usize());
        shown.map_err(|errno| failure("UFFDIO_CONTINUE", span, errno))
    }

    /// Shows copies of bytes instead of the pages of the file: for bytes that another file has.
    ///
    /// # Errors
    /// As [`LazyMap::show`].
    pub fn show_copy(&self, offset: Offset, bytes: &[u8]) -> Result<(), MapError> {
        let span = Span::new(offset, Length::from(bytes.len()));
        let start = self.start_of(span)?;
        let shown = self.faults.copy(start, bytes);
        shown.map_err(|errno| failure("UFFDIO_COPY", span, errno))
    }

    /// Gives up pages that were not shown: each access to them raises SIGBUS from now on, or fails
    /// with `EFAULT` inside a system call.
    ///
    /// # Errors
    /// As [`LazyMap::show`].
    pub fn give_up(&self, span: Span) -> Result<(), MapError> {
        let start = self.start_of(span)?;
        let poisoned = self.faults.poison(start, span.length.as_usize());
        poisoned.map_err(|errno| failure("UFFDIO_POISON", span, errno))
    }

    /// Bytes of the map, which keep it. They may be of pages that were not shown yet.
    #[must_use]
    pub fn bytes(self: &Arc<Self>, span: Span) -> Option<LazyBytes> {
        self.span.contains(span).then(|| LazyBytes { map: Arc::clone(self), span })
    }

    fn start_of(&self, span: Span) -> Result<usize, MapError> {
        address_of(span, self.span, self.address())
    }
}

/// Immutable bytes of a [`LazyMap`].
#[derive(Clone, Debug)]
pub struct LazyBytes {
    map: Arc<LazyMap>,
    span: Span,
}

impl AsRef<[u8]> for LazyBytes {
    fn as_ref(&self) -> &[u8] {
        let start = self.map.mapping.pointer(self.span.offset.0 - self.map.span.offset.0);
        // SAFETY: checked to be inside the mapping, which lives as long as self. A page can be read
        // once its bytes are in place, and nothing changes them afterwards.
        unsafe { std::slice::from_raw_parts(start, self.span.length.as_usize()) }
    }
}

/// The address of pages of a map.
fn address_of(pages: Span, of_map: Span, address: usize) -> Result<usize, MapError> {
    if !of_map.contains(pages) || !pages.is_aligned(page_bytes()) {
        let Span { offset, length } = pages;
        return Err(MapError::NotPages { offset, length, page: page_bytes() });
    }
    Ok(address + (pages.offset.0 - of_map.offset.0) as usize)
}

/// The pages that these blocks occupy, in order and disjoint; `None` beyond the address space.
pub fn pages_of(blocks: impl IntoIterator<Item = Span>) -> Option<Vec<Span>> {
    let blocks = blocks.into_iter().filter(|block| !block.is_empty());
    let mut all = blocks.map(|block| block.outward(page_bytes())).collect::<Option<Vec<_>>>()?;
    all.sort_unstable();
    let mut joined: Vec<Span> = Vec::new();
    for span in all {
        let end = span.offset.0 + span.length.0;
        match joined.last_mut() {
            Some(last) if span.offset.0 <= last.offset.0 + last.length.0 => {
                last.length = Length(end.max(last.offset.0 + last.length.0) - last.offset.0);
            }
            _ => joined.push(span),
        }
    }
    Some(joined)
}

/// Checks that a file cannot end within a span.
fn check_file(file: BorrowedFd<'_>, span: Span) -> Result<(), LazyMapError> {
    let system = |call: &'static str| move |errno| failure(call, span, errno);
    let needed = span.offset.0.saturating_add(span.length.0);
    let found = rustix::fs::fstat(file).map_err(system("fstat"))?.st_size as u64;
    let section = Section::Data;
    if found < needed {
        let (found, needed) = (Length(found), Length(needed));
        return Err(FabricError::TooShort { section, found, needed }.into());
    }
    let seals = rustix::fs::fcntl_get_seals(file).map_err(system("F_GET_SEALS"))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(FabricError::CanShrink { section, seals: seals.bits() }.into());
    }
    Ok(())
}

/// A sparse memory file for [`LazyMap`], and the same file opened read-only: for the process that
/// fills it and for those that read it.
///
/// # Errors
/// The error of the system.
pub fn lazy_file(name: &str, length: Length) -> Result<(OwnedFd, OwnedFd), LazyMapError> {
    let span = Span::new(Offset(0), length);
    let system = |call: &'static str| move |errno| failure(call, span, errno);
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags).map_err(system("memfd_create"))?;
    rustix::fs::ftruncate(&file, length.0).map_err(system("ftruncate"))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(system("F_ADD_SEALS"))?;
    let path = std::path::Path::new(name);
    let readable = crate::fabric::files::reopen(file.as_fd(), path, rustix::fs::OFlags::RDONLY)?;
    Ok((file, readable))
}

/// Opens the device that gives the right to serve page faults inside system calls, to pass it on.
///
/// # Errors
/// The error of the system.
pub fn open_device() -> Result<OwnedFd, PageFaultsError> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(DEVICE, flags, rustix::fs::Mode::empty())
        .map_err(|errno| failed("open /dev/userfaultfd", errno))
}
