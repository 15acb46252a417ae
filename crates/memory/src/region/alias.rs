//! A second, writable mapping of a range of data, at an address that is not exposed to users.
//!
//! Small objects share pages. While one of them is written the others are sealed, so their page
//! stays read-only in the window and is written through an alias.

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;

use super::ranges::check_held;
use super::words::{WORD_BYTES, WordsMut};
use super::writable::{TAKE_DOWN_PIECE_BYTES, TAKE_DOWN_PIECE_BYTES_HUGE, take_down};
use super::{Populate, Region, words};
use crate::copy::helpers::Helper;
use crate::copy::parallel::{PART_BYTES, Parts, share};
use crate::copy::{self, CopyPlan, CopyReport};
use crate::error::{AccessError, MapError};
use crate::mapping::{self, Mapping, failure};
use crate::sync::Ordering;
use crate::timing::TimedBuffer;
use crate::units::{Address, HUGE_PAGE_BYTES_USUAL, Length, Offset, Section, Span, page_bytes};

/// [`Region::prepare`] maps this many bytes at a time, and may be stopped in between.
const PREPARE_PIECE_BYTES: u64 = 64 << 20;

/// Bytes of new pages that it populates by one call, unless there are huge pages. A new page costs
/// up to 10 us in a virtual machine.
const PREPARE_STEP_BYTES: u64 = 256 << 10;

impl Region {
    /// Maps whole pages of data a second time, writable, at any address. If the fabric has huge
    /// pages, it maps all huge pages that the span touches: a whole huge page needs one page table
    /// entry, a part of one needs an entry and a fault per small page. The alias gives access to
    /// the span only.
    ///
    /// # Errors
    /// [`MapError::NotPages`], [`MapError::NotData`], [`MapError::NoWriter`], [`MapError::NoRoom`].
    pub fn alias(self: &Arc<Self>, span: Span) -> Result<Alias, MapError> {
        self.check_data_pages(span)?;
        let mapped = self.huge_pages_around(span).unwrap_or(span);
        let mapping = self.map_again(mapped)?;
        self.counters.alias_bytes.fetch_add(mapped.length.0, Ordering::Relaxed);
        Ok(Alias { mapping, mapped, span, region: Arc::clone(self) })
    }

    /// The range of all huge pages of data that a span touches.
    fn huge_pages_around(&self, span: Span) -> Option<Span> {
        // Sections are aligned to the usual huge page size, not to a larger one.
        let huge = self.fabric.huge_page_bytes()?.min(HUGE_PAGE_BYTES_USUAL);
        span.outward(huge.0)?.intersection(self.geometry.span_of(Section::Data))
    }

    /// Prepares the pages of a span of data before their first use: allocates new pages, which are
    /// zero, and leaves existing ones unchanged. For background threads: stops between pieces as
    /// soon as `is_stopped` returns true. Returns the number of bytes prepared.
    ///
    /// # Errors
    /// As [`Region::alias`]; [`MapError::System`] if the system has no memory for the pages.
    pub fn prepare(&self, span: Span, is_stopped: &dyn Fn() -> bool) -> Result<Length, MapError> {
        self.check_data_pages(span)?;
        let step = self
            .fabric
            .huge_page_bytes()
            .map_or(PREPARE_STEP_BYTES, |huge| huge.min(HUGE_PAGE_BYTES_USUAL).0);
        let mut done = 0;
        while done < span.length.0 && !is_stopped() {
            let offset = Offset(span.offset.0 + done);
            let piece = Span::new(offset, Length((span.length.0 - done).min(PREPARE_PIECE_BYTES)));
            let mapping = self.map_again(piece)?;
            match self.try_populate(mapping.pointer(0), piece, Populate::Write, step) {
                Ok(()) => {}
                Err(Errno::INVAL | Errno::NOSYS) => {
                    // SAFETY: the whole mapping is writable.
                    unsafe { mapping::touch_for_writing(mapping.pointer(0), piece.length) };
                }
                Err(errno) => return Err(failure("populate", piece, errno)),
            }
            done += piece.length.0;
        }
        Ok(Length(done))
    }

    fn map_again(&self, span: Span) -> Result<Mapping, MapError> {
        let (fd, file_offset) = self.data_writer(span)?;
        Mapping::of_file(fd, file_offset, span.length, true)
            .map_err(|errno| failure("mmap alias", span, errno))
    }
}

/// Called with each piece of a source right after it was copied.
pub type AfterCopy<'a> = &'a (dyn Fn(&[u8]) + Sync);

/// Such a piece, which a second-level cache still has when its copy is done.
const PIECE_BYTES: usize = 256 << 10;

/// A writable mapping of a range, held by its only writer and unmapped on drop.
#[derive(Debug)]
pub struct Alias {
    mapping: Mapping,
    /// The mapped range: `span` and the rest of its huge pages.
    mapped: Span,
    span: Span,
    region: Arc<Region>,
}

impl Alias {
    /// The range of the region that it maps.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// The region it belongs to.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Maximum length of an alias that is fast to drop. Dropping a longer one takes the kernel's
    /// lock on the address space several times.
    #[must_use]
    pub fn at_once(&self) -> Length {
        match self.region.fabric().huge_page_bytes() {
            Some(_) => Length(TAKE_DOWN_PIECE_BYTES_HUGE),
            None => Length(TAKE_DOWN_PIECE_BYTES),
        }
    }

    /// Drops the alias in another thread, if one that has just helped to write is still awake.
    /// Unmapping 100 MB takes as long as copying 1 MB.
    pub fn leave(self) {
        Helper::do_beside(move || drop(self));
    }

    /// A pointer to a byte of the region through this alias, or `None` if the byte is outside it.
    #[must_use]
    pub fn pointer(&self, offset: Offset) -> Option<*mut u8> {
        let distance = offset.0.checked_sub(self.span.offset.0)?;
        (distance < self.span.length.0).then(|| self.pointer_to(offset))
    }

    /// Writes `from` at an offset of the region: with relaxed word stores up to 255 bytes, and with
    /// the best copy for its size above.
    ///
    /// # Errors
    /// [`AccessError::OutsideHeld`] if the range is not inside the alias.
    pub fn write(&self, offset: Offset, from: &[u8]) -> Result<(), AccessError> {
        if (from.len() as u64) < super::BULK_WRITE_BYTES_MIN {
            let target = self.target(offset, from)?;
            // SAFETY: inside the alias, which is mapped writable.
            unsafe { words::store_bytes(target, from) };
            return Ok(());
        }
        self.write_large(offset, from).map(drop)
    }

    /// Writes `from` at an offset of the region with the best copy for its size: large copies use
    /// non-temporal stores and several threads.
    ///
    /// # Errors
    /// [`AccessError::OutsideHeld`] if the range is not inside the alias.
    pub fn write_large(&self, offset: Offset, from: &[u8]) -> Result<CopyReport, AccessError> {
        self.write_as(offset, from, self.region.profile().copy_plan())
    }

    /// As [`Alias::write_large`], with a plan chosen by the caller.
    ///
    /// # Errors
    /// [`AccessError::OutsideHeld`] if the range is not inside the alias.
    pub fn write_as(
        &self,
        offset: Offset,
        from: &[u8],
        plan: CopyPlan,
    ) -> Result<CopyReport, AccessError> {
        let target = self.target(offset, from)?;
        // SAFETY: inside the alias, which is mapped writable. Only one client writes and uses a
        // range until it is sealed; `from` is a borrow, so it is not part of that range.
        Ok(unsafe { copy::copy_into(target, from, plan) })
    }

    /// Writes `from` and publishes it, with the method of the region's profile for its size. After
    /// non-temporal stores only the lines at the ends must be written back.
    ///
    /// # Errors
    /// [`AccessError::OutsideHeld`] if the range is not inside the alias.
    pub fn write_published(&self, offset: Offset, from: &[u8]) -> Result<(), AccessError> {
        self.write_part(offset, from, Length::from(from.len()))
    }

    /// As [`Alias::write_published`] for one part of a write of `all` bytes: with the method that
    /// is best for the whole write.
    fn write_part(&self, offset: Offset, from: &[u8], all: Length) -> Result<(), AccessError> {
        let span = Span::new(offset, Length::from(from.len()));
        let profile = self.region.profile();
        if !self.region.is_node_local() {
            self.write_as(offset, from, profile.copy_plan().of_part(all))?;
            return Ok(self.region.publish(span)?);
        }
        let (plan, method) = profile.published_plan(all);
        let report = self.write_as(offset, from, plan)?;
        if let Some(method) = method {
            return Ok(self.region.publish_by(method, span)?);
        }
        // A simulated cache does not distinguish the two kinds of stores.
        if !report.is_nontemporal || self.region.fabric().maintenance().is_some() {
            return Ok(self.region.publish(span)?);
        }
        for part in report.cached_ends(span) {
            self.region.publish(part)?;
        }
        Ok(())
    }

    /// As [`Alias::write_published`], for pages not yet touched through this alias. Each thread
    /// populates the page table entries of its next part before it copies that part: single page
    /// faults would halve the speed. While one thread populates entries, another can use the full
    /// memory bandwidth.
    ///
    /// `after` is called with each piece of `from` right after it was copied, by several threads and
    /// in any order. The copy has read it into a cache, and overlapped that with its own stores:
    /// called before, it would wait for memory, and then the copy for its stores.
    ///
    /// # Errors
    /// [`AccessError::OutsideHeld`] if the range is not inside the alias.
    pub fn write_fresh(
        &self,
        offset: Offset,
        from: &[u8],
        after: Option<AfterCopy<'_>>,
    ) -> Result<(), AccessError> {
        self.target(offset, from)?;
        let plan = self.region.profile().copy_plan();
        let is_parallel = Length::from(from.len()) >= plan.parallel_bytes_min;
        let threads_max = if is_parallel { plan.threads_max } else { NonZeroUsize::MIN };
        let is_small_paged = self.region.fabric().huge_page_bytes().is_none();
        // Parts end at huge page boundaries, so that no two threads populate the same huge page.
        let phase = (offset.0 % PART_BYTES as u64) as usize;
        let failed = OnceLock::new();
        let parts = Parts::new(phase + from.len(), threads_max);
        share(parts.count(), threads_max, |index| {
            let (start, end) = parts.bounds(index);
            let (start, end) = (start.saturating_sub(phase), end.saturating_sub(phase));
            let Some(part) = from.get(start..end).filter(|part| !part.is_empty()) else {
                return;
            };
            let at = Offset(offset.0 + start as u64);
            // Parts at the end are shorter than a huge page; the first access populates it.
            if is_small_paged || part.len() == PART_BYTES {
                // An error is ignored: without the entries the copy is only slower.
                let _ = self.populate_part(Span::new(at, Length::from(part.len())));
            }
            if let Err(error) = self.write_pieces(at, part, Length::from(from.len()), after) {
                let _ = failed.set(error);
            }
        });
        failed.into_inner().map_or(Ok(()), Err)
    }

    /// As [`Alias::write_part`]; see [`Alias::write_fresh`] for `after`.
    fn write_pieces(
        &self,
        offset: Offset,
        part: &[u8],
        all: Length,
        after: Option<AfterCopy<'_>>,
    ) -> Result<(), AccessError> {
        let Some(after) = after else { return self.write_part(offset, part, all) };
        let mut at = offset;
        for piece in part.chunks(PIECE_BYTES) {
            self.write_part(at, piece, all)?;
            after(piece);
            at = Offset(at.0 + piece.len() as u64);
        }
        Ok(())
    }

    /// Words for reading and writing, by region offset.
    ///
    /// # Errors
    /// [`AccessError::OutsideHeld`], or [`AccessError::NotAligned`] if they are not whole words.
    pub fn words_mut(&self, span: Span) -> Result<WordsMut<'_>, AccessError> {
        check_held(self.span, span)?;
        if !words::is_words(span) {
            let (offset, length) = (span.offset, span.length);
            return Err(AccessError::NotAligned { offset, length, alignment: WORD_BYTES });
        }
        let start = self.pointer_to(span.offset);
        // SAFETY: inside the alias, which stays mapped writable while the borrow lives.
        Ok(unsafe { WordsMut::new(start, (span.length.0 / WORD_BYTES) as usize, None) })
    }

    /// Populates its page table entries for writing. Does nothing before Linux 5.14.
    ///
    /// # Errors
    /// The error of the system, if it has no memory for them.
    pub fn populate(&self) -> Result<(), MapError> {
        self.populate_part(self.span)
    }

    /// The whole alias as memory for measurements, populated.
    ///
    /// # Errors
    /// As [`Alias::populate`].
    pub fn into_timed(self) -> Result<TimedBuffer, MapError> {
        self.populate()?;
        let start = Address(self.pointer_to(self.span.offset).expose_provenance());
        // SAFETY: mapped writable while the alias lives, which the buffer owns. Only one client
        // writes and uses a range until it is sealed, and the alias was its way to do so.
        Ok(unsafe { TimedBuffer::over(start, self.span.length, Box::new(self)) })
    }

    /// As [`Alias::populate`], for the pages of a part. Anything outside the alias is ignored.
    ///
    /// # Errors
    /// [`MapError::Bounds`] if the part is not inside the region, and the errors of
    /// [`Alias::populate`].
    pub fn populate_part(&self, part: Span) -> Result<(), MapError> {
        self.region.check(part)?;
        let Some(part) = part.outward(page_bytes()).and_then(|pages| pages.intersection(self.span))
        else {
            return Ok(());
        };
        let start = self.pointer_to(part.offset);
        self.region.populate_range(start, part, Populate::Write)
    }

    fn target(&self, offset: Offset, from: &[u8]) -> Result<*mut u8, AccessError> {
        check_held(self.span, Span::new(offset, Length::from(from.len())))?;
        Ok(self.pointer_to(offset))
    }

    /// The caller ensures that the offset is inside the mapping.
    fn pointer_to(&self, offset: Offset) -> *mut u8 {
        self.mapping.pointer(offset.0 - self.mapped.offset.0)
    }
}

impl Drop for Alias {
    fn drop(&mut self) {
        take_down(&self.mapping, self.at_once().0);
        self.region.counters.alias_bytes.fetch_sub(self.mapped.length.0, Ordering::Relaxed);
    }
}
