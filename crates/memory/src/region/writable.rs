//! Ranges of data that change between writable and read-only in the window.
//!
//! A range becomes writable by a mapping of the writable descriptor at the same addresses, and
//! read-only by a mapping of the read-only descriptor. So a buffer of a pool keeps its address when
//! it is sealed, and `mprotect` cannot make it writable again.

use std::sync::Arc;

use super::Region;
use super::ranges::{Pin, WritableRanges, check_held};
use crate::copy;
use crate::error::{AccessError, MapError};
use crate::mapping::{self, Mapping, failure};
use crate::maps;
use crate::units::{Length, Offset, Span};

impl Region {
    /// Maps whole pages of data writable, at their addresses in the window.
    ///
    /// # Errors
    /// [`MapError::NotPages`], [`MapError::NotData`], [`MapError::NoWriter`], [`MapError::NoRoom`],
    /// [`MapError::TooManyMaps`] for a range that touches no other writable range.
    pub fn make_writable(&self, span: Span) -> Result<(), MapError> {
        self.check_data_pages(span)?;
        let (fd, file_offset) = self.data_writer(span)?;
        if span.is_empty() {
            return Ok(());
        }
        let mut writable = self.writable();
        if writable.is_apart(span) {
            maps::check_maps()?;
        }
        // SAFETY: the span is inside the window. References into it are to sealed bytes, which stay
        // readable.
        unsafe { self.window.put_file(span.offset.0, fd, file_offset, span.length, true) }
            .map_err(|errno| failure("mmap writable", span, errno))?;
        self.advise_huge_over(span);
        writable.insert(span);
        Ok(())
    }

    /// Maps whole pages of data read-only again, so that a later `mprotect` to writable fails.
    /// Parts that are read-only already stay so. The time grows with the number of touched pages,
    /// about 25 us per MiB. [`Region::retire_writable`] defers most of this work.
    ///
    /// # Errors
    /// [`MapError::InUse`] while a [`WritableBytes`] or a write overlaps the span,
    /// [`MapError::TooManyMaps`] if the span is in the middle of a writable range, and the other
    /// errors of [`Region::make_writable`].
    pub fn make_read_only(&self, span: Span) -> Result<(), MapError> {
        self.check_data_pages(span)?;
        let mut writable = self.writable();
        refuse_pinned(&writable, span)?;
        if writable.divides(span) {
            maps::check_maps()?;
        }
        for piece in writable.pieces(span) {
            self.put_reader(piece)?;
            writable.remove(piece);
        }
        Ok(())
    }

    /// As [`Region::make_read_only`], but leaves the slow part, tearing down the old page tables,
    /// to the drop of the result. The addresses in the window are read-only immediately. Until the
    /// drop, the old writable page table entries exist at an address that is not exposed. Does
    /// everything at once if the kernel cannot move the page tables of a shared file (before Linux
    /// 5.13).
    ///
    /// # Errors
    /// As [`Region::make_read_only`].
    pub fn retire_writable(&self, span: Span) -> Result<Retired, MapError> {
        self.check_data_pages(span)?;
        let mut writable = self.writable();
        refuse_pinned(&writable, span)?;
        if writable.divides(span) {
            maps::check_maps()?;
        }
        let mut moved = Vec::new();
        for piece in writable.pieces(span) {
            // SAFETY: a writable piece is inside the window. If it consists of several maps of one
            // file, the kernel returns an error and the page tables are torn down here.
            match unsafe { self.window.move_pages_away(piece.offset.0, piece.length) } {
                Ok(old) => moved.push(old),
                Err(errno) => tracing::debug!(%piece, %errno, "page tables do not move"),
            }
            self.put_reader(piece)?;
            writable.remove(piece);
        }
        Ok(Retired { moved })
    }

    /// A range that was made writable, to be filled. It keeps the region mapped and the range
    /// writable.
    ///
    /// # Errors
    /// [`AccessError::ReadOnly`] if part of it was not made writable; [`AccessError::Bounds`] if it
    /// is outside the region.
    pub fn writable_slice(self: &Arc<Self>, span: Span) -> Result<WritableBytes, AccessError> {
        self.check(span)?;
        let pin = self
            .writable()
            .pin(span)
            .ok_or(AccessError::ReadOnly { offset: span.offset, length: span.length })?;
        Ok(WritableBytes { region: Arc::clone(self), span, pin })
    }

    /// Pins a span for a write, unless it is always writable.
    pub(super) fn pin_if_needed(&self, span: Span) -> Result<Option<Pin<'_>>, AccessError> {
        if self.is_always_writable(span) {
            return Ok(None);
        }
        let (offset, length) = (span.offset, span.length);
        let pin = self.writable().pin(span).ok_or(AccessError::ReadOnly { offset, length })?;
        Ok(Some(Pin { ranges: &self.writable, pin }))
    }

    fn put_reader(&self, piece: Span) -> Result<(), MapError> {
        let (fd, file_offset) = self.data_reader(piece);
        // SAFETY: the piece is inside the window, and it has no pin, so there is no active writer.
        unsafe { self.window.put_file(piece.offset.0, fd, file_offset, piece.length, false) }
            .map_err(|errno| failure("mmap read-only", piece, errno))?;
        self.advise_huge_over(piece);
        Ok(())
    }
}

fn refuse_pinned(writable: &WritableRanges, span: Span) -> Result<(), MapError> {
    match writable.pins_over(span) {
        0 => Ok(()),
        writers => Err(MapError::InUse { offset: span.offset, length: span.length, writers }),
    }
}

/// Bytes whose page tables are torn down by one call: about 300 us without huge pages, 60 us with
/// them.
pub(super) const TAKE_DOWN_PIECE_BYTES: u64 = 16 << 20;
pub(super) const TAKE_DOWN_PIECE_BYTES_HUGE: u64 = 512 << 20;

/// Old page tables of a range that is already read-only in the window. Drop it soon, where time
/// does not matter: until then the pages count as mapped twice.
#[derive(Debug, Default)]
#[must_use = "dropping it here does the slow work here"]
pub struct Retired {
    moved: Vec<Mapping>,
}

impl Retired {
    /// Whether there is nothing left to tear down.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.moved.is_empty()
    }

    /// Moves the page tables of `other` into this value.
    pub fn append(&mut self, mut other: Self) {
        self.moved.append(&mut other.moved);
    }
}

impl Drop for Retired {
    fn drop(&mut self) {
        self.moved.iter().for_each(|mapping| take_down(mapping, TAKE_DOWN_PIECE_BYTES));
    }
}

/// Tears down the page tables of a mapping of a shared file before it is unmapped. Works in pieces:
/// tearing down a large mapping at once would hold the kernel's lock on the address space and block
/// mapping calls of other threads.
pub(super) fn take_down(mapping: &Mapping, piece: u64) {
    let whole = mapping.length().0;
    if whole <= piece || !mapping.is_ours() {
        return;
    }
    for start in (0..whole).step_by(piece as usize) {
        let length = Length(piece.min(whole - start));
        let advice = rustix::mm::Advice::LinuxDontNeed;
        // SAFETY: part of our own mapping of a shared file, whose bytes stay in the file. Remaining
        // entries are removed when the mapping is unmapped.
        let _ = unsafe { mapping::advise(mapping.pointer(start), length, advice) };
    }
}

/// Bytes that were made writable in the window, held by their only writer.
#[derive(Debug)]
pub struct WritableBytes {
    region: Arc<Region>,
    span: Span,
    pin: u64,
}

impl WritableBytes {
    /// The span in the region.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.span.length.as_usize()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.span.is_empty()
    }

    /// A pointer to the first byte.
    #[must_use]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.region.window.pointer(self.span.offset.0)
    }

    /// The bytes as a slice.
    ///
    /// # Safety
    /// No other code, in this process or another, reads or writes them while the slice lives.
    #[must_use]
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: pinned writable and mapped while self lives; the caller guarantees that it is the
        // only user. Bytes of shared memory are always initialised.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len()) }
    }

    /// Writes `from` at an offset of the region with the best copy for its size.
    ///
    /// # Errors
    /// [`AccessError::OutsideHeld`] if the bytes are not all inside this range.
    pub fn write_at(&self, offset: Offset, from: &[u8]) -> Result<(), AccessError> {
        let length = Length::from(from.len());
        check_held(self.span, Span::new(offset, length))?;
        // SAFETY: inside the pinned range. Only one client writes a range before it is sealed.
        unsafe {
            let plan = self.region.profile().copy_plan();
            copy::copy_into(self.region.window.pointer(offset.0), from, plan);
        }
        Ok(())
    }

    /// Sets every byte to `value`, with the best stores for the length. Memory that was used by
    /// another object before is not zero.
    pub fn fill(&self, value: u8) {
        let plan = self.region.profile().copy_plan();
        // SAFETY: the pinned range. Only one client writes a range before it is sealed.
        unsafe { copy::fill_into(self.as_mut_ptr(), self.span.length, value, plan) };
    }
}

impl Drop for WritableBytes {
    fn drop(&mut self) {
        // In a forked child the lock may be held forever, by a thread of the parent.
        if self.region.is_of_this_process() {
            self.region.writable().unpin(self.pin);
        }
    }
}
