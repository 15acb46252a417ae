//! Memory for measurements.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use rustix::mm::Advice;

use super::{Job, LabError, work};
use crate::cache;
use crate::mapping::{self, Mapping};
use crate::region::alias::Alias;
use crate::survey;
use crate::units::{Address, HUGE_PAGE_BYTES_USUAL, Length, Offset, Span, page_bytes};

/// Requested page size of private memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pages {
    /// The smallest pages.
    Small,
    /// Huge pages, if the kernel has any: see [`LabBuffer::huge_bytes`].
    Huge,
}

/// Private memory, a part of a region, or memory that its owner keeps mapped. All its pages are
/// allocated, so no sample includes a page fault.
pub struct LabBuffer {
    memory: LabMemory,
    /// The bytes to write: as many as the largest job so far needed.
    source: Vec<u8>,
}

enum LabMemory {
    Private(Mapping),
    Region(Arc<Alias>),
    Borrowed { start: Address, length: Length, _owner: Box<dyn Any + Send + Sync> },
}

impl LabBuffer {
    /// Private memory of this process, as a baseline for the memory of other nodes.
    ///
    /// # Errors
    /// [`LabError::NoRoom`] if there is not enough memory; [`LabError::Map`] if it cannot be
    /// mapped.
    pub fn private(length: Length, pages: Pages) -> Result<Self, LabError> {
        check_room(length)?;
        // Aligned, so that the first byte is the start of a huge page.
        let huge = HUGE_PAGE_BYTES_USUAL;
        let rounded = Length(length.0.next_multiple_of(huge.0));
        let failed = |errno| crate::region::failure("mmap", Span::new(Offset(0), rounded), errno);
        let mapping = Mapping::private_aligned(rounded).map_err(failed)?;
        let advice = match pages {
            Pages::Small => Advice::LinuxNoHugepage,
            Pages::Huge => Advice::LinuxHugepage,
        };
        // SAFETY: our own whole mapping; the advice does not change the contents.
        if let Err(errno) = unsafe { mapping::advise(mapping.pointer(0), rounded, advice) } {
            tracing::debug!(%errno, ?pages, "the kernel has one kind of page only");
        }
        // SAFETY: the whole range is mapped writable, and no other code uses it.
        unsafe { mapping::touch_for_writing(mapping.pointer(0), rounded) };
        Ok(Self { memory: LabMemory::Private(mapping), source: Vec::new() })
    }

    /// Part of a region, mapped like a writer maps it.
    ///
    /// # Errors
    /// [`LabError::Map`] if the system has no memory for the page tables.
    pub fn region(alias: Arc<Alias>) -> Result<Self, LabError> {
        alias.populate()?;
        Ok(Self { memory: LabMemory::Region(alias), source: Vec::new() })
    }

    /// Memory mapped by other code.
    ///
    /// # Safety
    /// `length` bytes from `start` are mapped writable for as long as `owner` lives, and no other
    /// code reads or writes them while a job runs.
    #[must_use]
    pub unsafe fn over(start: Address, length: Length, owner: Box<dyn Any + Send + Sync>) -> Self {
        // SAFETY: by the caller's contract.
        unsafe { mapping::touch_for_writing(pointer(start), length) };
        Self { memory: LabMemory::Borrowed { start, length, _owner: owner }, source: Vec::new() }
    }

    /// Size in bytes.
    #[must_use]
    pub fn length(&self) -> Length {
        match &self.memory {
            LabMemory::Private(mapping) => mapping.length(),
            LabMemory::Region(alias) => alias.span().length,
            LabMemory::Borrowed { length, .. } => *length,
        }
    }

    /// How many of its bytes are in huge pages now; `None` if the kernel does not report it.
    #[must_use]
    pub fn huge_bytes(&self) -> Option<Length> {
        survey::huge_bytes_at(self.start().addr()).map(|bytes| bytes.min(self.length()))
    }

    /// Runs a job. Returns one number per sample: nanoseconds per range, minus the cost of the
    /// clock. With several threads it is the time of the slowest one.
    ///
    /// # Errors
    /// [`LabError`] if the job cannot be run. Then nothing was done.
    pub fn run(&mut self, job: &Job) -> Result<Vec<f64>, LabError> {
        work::check(job, self.length())?;
        let wanted = job.source.min(job.range);
        if wanted.as_usize() > self.source.len() {
            check_room(wanted)?;
            self.source = (0..wanted.as_usize()).map(|index| (index * 31) as u8).collect();
        }
        let source = self.source.get(..wanted.as_usize()).unwrap_or_default();
        // SAFETY: the whole arena is mapped writable while self lives, and `&mut self` makes this
        // its only user. The job was checked against its length.
        Ok(unsafe { work::run(job, self.start(), self.length(), source) })
    }

    /// The bytes, to inspect between jobs.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped and initialised for as long as self lives; jobs need `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start(), self.length().as_usize()) }
    }

    fn start(&self) -> *mut u8 {
        match &self.memory {
            LabMemory::Private(mapping) => mapping.pointer(0),
            LabMemory::Region(alias) => alias.pointer(alias.span().offset).unwrap_or_default(),
            LabMemory::Borrowed { start, .. } => pointer(*start),
        }
    }
}

impl fmt::Debug for LabBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.memory {
            LabMemory::Private(_) => "private",
            LabMemory::Region(_) => "region",
            LabMemory::Borrowed { .. } => "borrowed",
        };
        f.debug_struct("Arena").field("memory", &kind).field("length", &self.length()).finish()
    }
}

fn pointer(address: Address) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address.0)
}

/// Checks the available memory first: touching more memory than the machine has invokes the
/// kernel's OOM killer.
fn check_room(asked: Length) -> Result<(), LabError> {
    match survey::memory_available() {
        Some(available) if asked > available => Err(LabError::NoRoom { asked, available }),
        _ => Ok(()),
    }
}

/// Line size in bytes, by which arenas are divided.
pub(super) fn line_bytes() -> u64 {
    u64::from(cache::line_bytes()).min(page_bytes())
}
