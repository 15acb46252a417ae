//! Memory for measurements.

use std::any::Any;
use std::fmt;
use std::time::{Duration, Instant};

use rustix::mm::Advice;

use super::job::{Job, TimingError};
use super::loops;
use crate::copy::{CopyPlan, copy_slice};
use crate::mapping::{self, Mapping, failure};
use crate::system::{free_memory, huge_pages};
use crate::units::{Address, HUGE_PAGE_BYTES_USUAL, Length, Offset, Span};

/// Requested page size of private memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pages {
    /// The smallest pages.
    Small,
    /// Huge pages, if the kernel has any: see [`TimedBuffer::huge_bytes`].
    Huge,
}

/// Private memory, or memory that its owner keeps mapped. All its pages are
/// allocated, so no sample includes a page fault.
pub struct TimedBuffer {
    memory: TimedMemory,
    /// The bytes to write: as many as the largest job so far needed.
    source: Vec<u8>,
}

enum TimedMemory {
    Private(Mapping),
    Borrowed { start: Address, length: Length, _owner: Box<dyn Any + Send + Sync> },
}

impl TimedBuffer {
    /// Private memory of this process, as a baseline for the memory of other nodes.
    ///
    /// # Errors
    /// [`TimingError::NoRoom`] if there is not enough memory; [`TimingError::Map`] if it cannot be
    /// mapped.
    pub fn private(length: Length, pages: Pages) -> Result<Self, TimingError> {
        check_room(length)?;
        // Aligned, so that the first byte is the start of a huge page.
        let huge = HUGE_PAGE_BYTES_USUAL;
        let rounded = Length(length.0.next_multiple_of(huge.0));
        let failed = |errno| failure("mmap", Span::new(Offset(0), rounded), errno);
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
        Ok(Self { memory: TimedMemory::Private(mapping), source: Vec::new() })
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
        Self { memory: TimedMemory::Borrowed { start, length, _owner: owner }, source: Vec::new() }
    }

    /// Size in bytes.
    #[must_use]
    pub fn length(&self) -> Length {
        match &self.memory {
            TimedMemory::Private(mapping) => mapping.length(),
            TimedMemory::Borrowed { length, .. } => *length,
        }
    }

    /// How many of its bytes are in huge pages now; `None` if the kernel does not report it.
    #[must_use]
    pub fn huge_bytes(&self) -> Option<Length> {
        huge_pages::huge_bytes_at(self.start().addr()).map(|bytes| bytes.min(self.length()))
    }

    /// Runs a job. Returns one number per sample: nanoseconds per range, minus the cost of the
    /// clock. With several threads it is the time of the slowest one.
    ///
    /// # Errors
    /// [`TimingError`] if the job cannot be run. Then nothing was done.
    pub fn run(&mut self, job: &Job) -> Result<Vec<f64>, TimingError> {
        loops::check(job, self.length())?;
        let wanted = job.source.min(job.range);
        if wanted.as_usize() > self.source.len() {
            check_room(wanted)?;
            self.source = (0..wanted.as_usize()).map(|index| (index * 31) as u8).collect();
        }
        let source = self.source.get(..wanted.as_usize()).unwrap_or_default();
        // SAFETY: the whole buffer is mapped writable while self lives, and `&mut self` makes this
        // its only user. The job was checked against its length.
        Ok(unsafe { loops::run(job, self.start(), self.length(), source) })
    }

    /// Copies the first `length` bytes of another buffer, or all that both have; the time that
    /// this took.
    pub fn copy_from(&mut self, from: &Self, length: Length, plan: CopyPlan) -> Duration {
        let length = length.min(self.length()).min(from.length()).as_usize();
        // SAFETY: mapped and initialised for as long as self lives; `&mut self` makes this its only
        // user.
        let into = unsafe { std::slice::from_raw_parts_mut(self.start(), length) };
        let start = Instant::now();
        copy_slice(into, from.as_slice().get(..length).unwrap_or_default(), plan);
        std::hint::black_box(&into);
        start.elapsed()
    }

    /// The bytes, to inspect between jobs.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped and initialised for as long as self lives; jobs need `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start(), self.length().as_usize()) }
    }

    fn start(&self) -> *mut u8 {
        match &self.memory {
            TimedMemory::Private(mapping) => mapping.pointer(0),
            TimedMemory::Borrowed { start, .. } => pointer(*start),
        }
    }
}

impl fmt::Debug for TimedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.memory {
            TimedMemory::Private(_) => "private",
            TimedMemory::Borrowed { .. } => "borrowed",
        };
        f.debug_struct("TimedBuffer")
            .field("memory", &kind)
            .field("length", &self.length())
            .finish()
    }
}

fn pointer(address: Address) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address.0)
}

/// Checks the available memory first: touching more memory than the machine has invokes the
/// kernel's OOM killer.
fn check_room(requested: Length) -> Result<(), TimingError> {
    match free_memory::memory_available() {
        Some(available) if requested > available => {
            Err(TimingError::NoRoom { requested, available })
        }
        _ => Ok(()),
    }
}
