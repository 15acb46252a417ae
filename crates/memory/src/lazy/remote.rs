//! Page faults of a map of another process, served here.
//!
//! The process that has the map passes its queue of faults on. The process that fills the file then
//! shows a page as soon as its bytes are there, and no thread of the reader runs in between.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use super::page_faults::{PageFaults, PageFaultsError};
use super::{CHUNK_BYTES, address_of};
use crate::error::MapError;
use crate::fabric::files::is_tmpfs;
use crate::mapping::failure;
use crate::units::{Offset, Span, page_bytes};

/// The faults of a map, to pass on to another process.
#[derive(Debug)]
pub struct FaultsHandover {
    /// The queue of the faults.
    pub faults: OwnedFd,
    /// Address of the map in its process.
    pub address: u64,
    /// The mapped part of the file.
    pub span: Span,
}

/// The faults of a map of another process. Spans are offsets in the mapped file.
#[derive(Debug)]
pub struct RemoteFaults {
    faults: PageFaults,
    address: usize,
    span: Span,
}

impl RemoteFaults {
    /// Takes over the faults of a map. The process that passes them on lets this process show pages anywhere
    /// in its ranges that are registered.
    ///
    /// # Errors
    /// [`PageFaultsError::System`] for another descriptor, and for a range that is not one of pages.
    pub fn new(handover: FaultsHandover) -> Result<Self, PageFaultsError> {
        let FaultsHandover { faults, address, span } = handover;
        let invalid = |call| PageFaultsError::System { call, source: Errno::INVAL.into() };
        let end = address.checked_add(span.length.0);
        let is_valid = address % page_bytes() == 0
            && span.is_aligned(page_bytes())
            && span.offset.0.checked_add(span.length.0).is_some()
            && end.is_some_and(|end| usize::try_from(end).is_ok());
        if !is_valid {
            return Err(invalid("the faults of a range that is not one of pages"));
        }
        Ok(Self { faults: PageFaults::passed(faults)?, address: address as usize, span })
    }

    /// The mapped part of the file.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// The pages that threads wait for, without waiting for one.
    ///
    /// # Errors
    /// The error of the system.
    pub fn take(&self) -> Result<Vec<Offset>, Errno> {
        self.faults.take_in(self.address, self.span)
    }

    /// Shows pages of the file whose bytes are all in place, and wakes the threads that wait for
    /// them.
    ///
    /// # Errors
    /// As [`LazyMap::show`](super::LazyMap::show); also if the process has ended.
    pub fn show(&self, span: Span) -> Result<(), MapError> {
        let start = address_of(span, self.span, self.address)?;
        let shown = self.faults.resume(start, span.length.as_usize());
        shown.map_err(|errno| failure("UFFDIO_CONTINUE", span, errno))
    }
}

impl AsFd for RemoteFaults {
    /// Readable while a fault waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.faults.as_fd()
    }
}

/// Which chunks of a map were shown whole by another process: a byte for each, in a file of memory
/// that both have. It outlives the process that shows them.
#[derive(Debug)]
pub struct ShownChunks {
    file: File,
    first: u64,
}

impl ShownChunks {
    /// None yet, of a map of this span.
    ///
    /// # Errors
    /// The error of the system.
    pub fn new(span: Span) -> io::Result<Self> {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("farrow-shown", flags)?;
        Self::passed(file, span)
    }

    /// That of another process.
    ///
    /// # Errors
    /// The file is not in memory: a write to it might block.
    pub fn passed(file: OwnedFd, span: Span) -> io::Result<Self> {
        if !is_tmpfs(file.as_fd()) {
            let reason = "the notes of shown pages are in no tmpfs";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        Ok(Self { file: File::from(file), first: span.offset.0 / CHUNK_BYTES })
    }

    /// Its file, to pass on.
    #[must_use]
    pub fn as_file(&self) -> &File {
        &self.file
    }

    /// Notes the chunks that lie in a shown span of the map as a whole. `map`: the span of the map.
    ///
    /// # Errors
    /// The error of the system.
    pub fn note(&self, shown: Span, map: Span) -> io::Result<()> {
        let end = |span: Span| span.offset.0.saturating_add(span.length.0);
        // The first and the last chunk of the map may be cut.
        let first = match shown.offset.0 <= map.offset.0 {
            true => map.offset.0 / CHUNK_BYTES,
            false => shown.offset.0.div_ceil(CHUNK_BYTES),
        };
        let last = match end(shown) >= end(map) {
            true => end(map).div_ceil(CHUNK_BYTES),
            false => end(shown) / CHUNK_BYTES,
        };
        let count = last.saturating_sub(first) as usize;
        self.file.write_all_at(&vec![1; count], first.saturating_sub(self.first))
    }

    /// Whether the chunk of an offset was noted.
    #[must_use]
    pub fn has(&self, at: Offset) -> bool {
        let mut byte = [0];
        let Some(chunk) = (at.0 / CHUNK_BYTES).checked_sub(self.first) else { return false };
        matches!(self.file.read_at(&mut byte, chunk), Ok(1)) && byte == [1]
    }
}
