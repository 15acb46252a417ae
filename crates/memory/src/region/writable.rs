//! Ranges of data that change between writable and read-only over the window.
//!
//! A writable range is mapped from the writable descriptor over the same addresses, and put back
//! from the read-only one, so that a pool's buffer keeps its address when it is sealed and cannot
//! be made writable again by `mprotect`.

use std::sync::Arc;

use super::{Region, alias, failure};
use crate::copy;
use crate::error::{AccessError, MapError};
use crate::mapping::{self, Mapping};
use crate::maps;
use crate::units::{Length, Offset, Span};

impl Region {
    /// Maps whole pages of data writable, over the addresses they have.
    ///
    /// # Errors
    /// [`MapError::NotPages`], [`MapError::NotData`], [`MapError::NoWriter`], [`MapError::NoRoom`],
    /// [`MapError::TooManyMaps`] for a range that touches no other one.
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
        // SAFETY: the span lies in the window. References that exist there are to sealed bytes,
        // and stay as readable as they were.
        unsafe { self.window.put_file(span.offset.0, fd, file_offset, span.length, true) }
            .map_err(|errno| failure("mmap writable", span, errno))?;
        self.advise_huge_over(span);
        writable.insert(span);
        Ok(())
    }

    /// Maps whole pages of data read-only again, by construction: a later `mprotect` to writable
    /// fails. Parts that were read-only stay so. Takes time for each page that was touched, some
    /// 25 us for a MiB; [`Region::retire_writable`] moves most of it off the caller's path.
    ///
    /// # Errors
    /// [`MapError::InUse`] while a [`WritableBytes`] or a write overlaps it; as
    /// [`Region::make_writable`], with [`MapError::TooManyMaps`] for the middle of a range.
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
    /// to the drop of what it returns. The addresses in the window are read-only at once; until
    /// the drop the old writable entries live on at an address that nobody is told. Falls back to
    /// the slow way where the kernel cannot move page tables of a shared file (before Linux 5.13).
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
            // SAFETY: a writable piece lies in the window. It may consist of several maps of one
            // file; the kernel then refuses, and the slow way is taken.
            match unsafe { self.window.move_pages_away(piece.offset.0, piece.length) } {
                Ok(old) => moved.push(old),
                Err(errno) => tracing::debug!(%piece, %errno, "page tables do not move"),
            }
            self.put_reader(piece)?;
            writable.remove(piece);
        }
        Ok(Retired { moved })
    }

    /// A range made writable, to fill. Keeps the region, and the range writable, while it lives.
    ///
    /// # Errors
    /// [`AccessError::ReadOnly`] if part of it was not made writable; outside of the region.
    pub fn writable_slice(self: &Arc<Self>, span: Span) -> Result<WritableBytes, AccessError> {
        self.check(span)?;
        let pin = self
            .writable()
            .pin(span)
            .ok_or(AccessError::ReadOnly { offset: span.offset, length: span.length })?;
        Ok(WritableBytes { region: Arc::clone(self), span, pin })
    }

    /// Pins a span for a write, unless it is writable for good.
    pub(super) fn pin_if_needed(&self, span: Span) -> Result<Option<Pin<'_>>, AccessError> {
        if self.is_always_writable(span) {
            return Ok(None);
        }
        let (offset, length) = (span.offset, span.length);
        let pin = self.writable().pin(span).ok_or(AccessError::ReadOnly { offset, length })?;
        Ok(Some(Pin { region: self, pin }))
    }

    fn put_reader(&self, piece: Span) -> Result<(), MapError> {
        let (fd, file_offset) = self.data_reader(piece);
        // SAFETY: the piece lies in the window, and no pin says that somebody writes there.
        unsafe { self.window.put_file(piece.offset.0, fd, file_offset, piece.length, false) }
            .map_err(|errno| failure("mmap read-only", piece, errno))?;
        self.advise_huge_over(piece);
        Ok(())
    }
}

fn refuse_pinned(writable: &super::ranges::WritableRanges, span: Span) -> Result<(), MapError> {
    match writable.pins_over(span) {
        0 => Ok(()),
        writers => Err(MapError::InUse { offset: span.offset, length: span.length, writers }),
    }
}

/// Page tables taken down at once: some 300 us without huge pages, 60 us with them.
pub(super) const TAKE_DOWN_PIECE_BYTES: u64 = 16 << 20;
pub(super) const TAKE_DOWN_PIECE_BYTES_HUGE: u64 = 512 << 20;

/// A claim that a range stays writable.
#[derive(Debug)]
pub(crate) struct Pin<'a> {
    region: &'a Region,
    pin: u64,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.region.writable().unpin(self.pin);
    }
}

/// Page tables of a range that is read-only in the window already. Drop it where time does not
/// matter, and soon: until then the pages count as mapped twice.
#[derive(Debug, Default)]
#[must_use = "dropping it here does the slow work here"]
pub struct Retired {
    moved: Vec<Mapping>,
}

impl Retired {
    /// Is there nothing left to do?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.moved.is_empty()
    }

    /// The two as one.
    pub fn append(&mut self, mut other: Self) {
        self.moved.append(&mut other.moved);
    }
}

impl Drop for Retired {
    fn drop(&mut self) {
        self.moved.iter().for_each(|mapping| take_down(mapping, TAKE_DOWN_PIECE_BYTES));
    }
}

/// Takes the page tables of a mapping of a shared file down, before it goes. In pieces: all of a
/// large one at once would hold the kernel's lock on the address space, for which every other
/// thread's next map waits.
pub(super) fn take_down(mapping: &Mapping, piece: u64) {
    let whole = mapping.length().0;
    if whole <= piece || !mapping.is_ours() {
        return;
    }
    for start in (0..whole).step_by(piece as usize) {
        let length = Length(piece.min(whole - start));
        let advice = rustix::mm::Advice::LinuxDontNeed;
        // SAFETY: all of our own mapping of a shared file, whose bytes stay in the file. What is
        // left over goes with the mapping itself.
        let _ = unsafe { mapping::advise(mapping.pointer(start), length, advice) };
    }
}

/// Bytes made writable over the window, held by their one writer.
#[derive(Debug)]
pub struct WritableBytes {
    region: Arc<Region>,
    span: Span,
    pin: u64,
}

impl WritableBytes {
    /// Where it lies in the region.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// Bytes in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.span.length.as_usize()
    }

    /// Does it hold no byte?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.span.is_empty()
    }

    /// Its first byte.
    #[must_use]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.region.window.pointer(self.span.offset.0)
    }

    /// The bytes themselves.
    ///
    /// # Safety
    /// Nobody else, in this process or another, reads or writes them while the slice lives.
    #[must_use]
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: pinned writable and mapped while self lives; the caller vouches that it is the
        // only user. Bytes of shared memory are always initialised.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len()) }
    }

    /// Writes `from` at an offset of the region, by the copy that is best for its size.
    ///
    /// # Errors
    /// [`AccessError::OutsideHeld`] if it does not all lie in this range.
    pub fn write_at(&self, offset: Offset, from: &[u8]) -> Result<(), AccessError> {
        let length = Length::from(from.len());
        alias::check_held(self.span, Span::new(offset, length))?;
        // SAFETY: inside the pinned range. One client alone writes a range before its seal.
        unsafe {
            let plan = self.region.profile().copy_plan();
            copy::copy_into(self.region.window.pointer(offset.0), from, plan);
        }
        Ok(())
    }

    /// Sets every byte to `value`, by the stores that are best for its size: memory that held
    /// another object before is not zero.
    pub fn fill(&self, value: u8) {
        let plan = self.region.profile().copy_plan();
        // SAFETY: the pinned range. One client alone writes a range before its seal.
        unsafe { copy::fill_into(self.as_mut_ptr(), self.span.length, value, plan) };
    }
}

impl Drop for WritableBytes {
    fn drop(&mut self) {
        // Another thread of the parent may have had the lock when this process was forked off.
        if self.region.is_of_this_process() {
            self.region.writable().unpin(self.pin);
        }
    }
}
