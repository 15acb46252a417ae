//! Memory to measure in.

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

/// Which pages private memory is asked to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pages {
    /// The smallest.
    Small,
    /// Huge ones, where the kernel has them to give: look at [`Arena::huge_bytes`].
    Huge,
}

/// Memory of this process alone, a part of a region, or memory that somebody else keeps mapped.
/// All its pages are there: no sample pays for a fault.
pub struct LabBuffer {
    memory: LabMemory,
    /// What is written: as many bytes as the largest job asks for.
    source: Vec<u8>,
}

enum LabMemory {
    Private(Mapping),
    Region(Arc<Alias>),
    Borrowed { start: Address, length: Length, _owner: Box<dyn Any + Send + Sync> },
}

impl LabBuffer {
    /// Private memory of this process: what another node's is compared with.
    ///
    /// # Errors
    /// [`LabError::NoRoom`] if so much is not available; the system's answer.
    pub fn private(length: Length, pages: Pages) -> Result<Self, LabError> {
        check_room(length)?;
        // With room to align, so that the first byte begins a huge page.
        let huge = HUGE_PAGE_BYTES_USUAL;
        let rounded = Length(length.0.next_multiple_of(huge.0));
        let failed = |errno| crate::region::failure("mmap", Span::new(Offset(0), rounded), errno);
        let mapping = Mapping::private_aligned(rounded).map_err(failed)?;
        let advice = match pages {
            Pages::Small => Advice::LinuxNoHugepage,
            Pages::Huge => Advice::LinuxHugepage,
        };
        // SAFETY: our own mapping, whole; the advice changes no contents.
        if let Err(errno) = unsafe { mapping::advise(mapping.pointer(0), rounded, advice) } {
            tracing::debug!(%errno, ?pages, "the kernel has one kind of page only");
        }
        // SAFETY: mapped writable, whole, and nobody else knows it.
        unsafe { mapping::touch_for_writing(mapping.pointer(0), rounded) };
        Ok(Self { memory: LabMemory::Private(mapping), source: Vec::new() })
    }

    /// Part of a region, as its writer maps it.
    ///
    /// # Errors
    /// [`LabError::Map`] if the system has no memory for its page tables.
    pub fn region(alias: Arc<Alias>) -> Result<Self, LabError> {
        alias.populate()?;
        Ok(Self { memory: LabMemory::Region(alias), source: Vec::new() })
    }

    /// Memory of somebody else.
    ///
    /// # Safety
    /// `length` bytes from `start` are mapped writable for as long as `owner` lives, and nobody
    /// reads or writes them while a job runs.
    #[must_use]
    pub unsafe fn over(start: Address, length: Length, owner: Box<dyn Any + Send + Sync>) -> Self {
        // SAFETY: by the caller's contract.
        unsafe { mapping::touch_for_writing(pointer(start), length) };
        Self { memory: LabMemory::Borrowed { start, length, _owner: owner }, source: Vec::new() }
    }

    /// Bytes of it.
    #[must_use]
    pub fn length(&self) -> Length {
        match &self.memory {
            LabMemory::Private(mapping) => mapping.length(),
            LabMemory::Region(alias) => alias.span().length,
            LabMemory::Borrowed { length, .. } => *length,
        }
    }

    /// How many of its bytes lie in huge pages now, as the kernel says; `None` if it does not say.
    #[must_use]
    pub fn huge_bytes(&self) -> Option<Length> {
        survey::huge_bytes_at(self.start().addr()).map(|bytes| bytes.min(self.length()))
    }

    /// Runs a job: nanoseconds of each range, one number a sample, the clock's own cost taken off.
    /// With several threads the slowest counts.
    ///
    /// # Errors
    /// [`LabError`] if the job cannot be run as it is; nothing was done then.
    pub fn run(&mut self, job: &Job) -> Result<Vec<f64>, LabError> {
        work::check(job, self.length())?;
        let wanted = job.source.min(job.range);
        if wanted.as_usize() > self.source.len() {
            check_room(wanted)?;
            self.source = (0..wanted.as_usize()).map(|index| (index * 31) as u8).collect();
        }
        let source = self.source.get(..wanted.as_usize()).unwrap_or_default();
        // SAFETY: all of the arena is mapped writable while self lives, and `&mut self` makes this
        // its only user; the job was checked against its length.
        Ok(unsafe { work::run(job, self.start(), self.length(), source) })
    }

    /// The bytes, to look at between jobs.
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

/// Memory is committed by touching it, and touching more than there is ends in the kernel's killer.
fn check_room(asked: Length) -> Result<(), LabError> {
    match survey::memory_available() {
        Some(available) if asked > available => Err(LabError::NoRoom { asked, available }),
        _ => Ok(()),
    }
}

/// Bytes of the lines that arenas are divided by.
pub(super) fn line_bytes() -> u64 {
    u64::from(cache::line_bytes()).min(page_bytes())
}
