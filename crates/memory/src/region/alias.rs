//! A second, writable view of a range of data, at an address no user sees.
//!
//! Small objects share pages: while one is written the others are sealed, so their page stays
//! read-only in the window and is written through an alias.

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;

use super::words::{WORD_BYTES, WordsMut};
use super::writable::{TAKE_DOWN_PIECE_BYTES, TAKE_DOWN_PIECE_BYTES_HUGE, take_down};
use super::{Populate, Region, failure, words};
use crate::copy::helpers::Helper;
use crate::copy::parallel::{PART_BYTES, Parts, share};
use crate::copy::{self, CopyPlan, CopyReport};
use crate::error::{AccessError, MapError};
use crate::mapping::{self, Mapping};
use crate::sync::Ordering;
use crate::units::{HUGE_PAGE_BYTES_USUAL, Length, Offset, Section, Span, page_bytes};

/// [`Region::prepare`] maps and fills this much at a time, so that it holds the kernel's lock on
/// the address space for some 200 ms at most where each page is new.
const PREPARE_PIECE_BYTES: u64 = 64 << 20;

impl Region {
    /// Maps whole pages of data a second time, writable, anywhere. Where there are huge pages, all
    /// of those that the span touches: only a whole one has one entry, a part of one has as many as
    /// it has small pages, each with a fault of its own. The alias shows the span alone.
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

    /// The huge pages of data that a span touches.
    fn huge_pages_around(&self, span: Span) -> Option<Span> {
        // Sections begin where usual huge pages do, and no further apart.
        let huge = self.fabric.huge_page_bytes()?.min(HUGE_PAGE_BYTES_USUAL);
        span.outward(huge.0)?.intersection(self.geometry.span_of(Section::Data))
    }

    /// Makes the pages of a span of data ready ahead of their first use: allocated, zeroed if they
    /// are new, unchanged if not. For a thread in the background; stops between pieces once
    /// `is_stopped` says so. Returns the bytes made ready.
    ///
    /// # Errors
    /// As [`Region::alias`]; [`MapError::System`] if the system has no memory for the pages.
    pub fn prepare(&self, span: Span, is_stopped: &dyn Fn() -> bool) -> Result<Length, MapError> {
        self.check_data_pages(span)?;
        let mut done = 0;
        while done < span.length.0 && !is_stopped() {
            let offset = Offset(span.offset.0 + done);
            let piece = Span::new(offset, Length((span.length.0 - done).min(PREPARE_PIECE_BYTES)));
            let mapping = self.map_again(piece)?;
            match self.try_populate(mapping.pointer(0), piece, Populate::Write) {
                Ok(()) => {}
                Err(Errno::INVAL | Errno::NOSYS) => {
                    // SAFETY: mapped writable, whole.
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

/// A writable view of a range. Its one writer holds it; it goes with its holder.
#[derive(Debug)]
pub struct Alias {
    mapping: Mapping,
    /// What is mapped: `span`, and the rest of its huge pages.
    mapped: Span,
    span: Span,
    region: Arc<Region>,
}

impl Alias {
    /// The range of the region it shows.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// The region it belongs to.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// A view of so much or less is quick to drop. What is longer holds the kernel's lock on the
    /// address space again and again meanwhile.
    #[must_use]
    pub fn at_once(&self) -> Length {
        match self.region.fabric().huge_page_bytes() {
            Some(_) => Length(TAKE_DOWN_PIECE_BYTES_HUGE),
            None => Length(TAKE_DOWN_PIECE_BYTES),
        }
    }

    /// Drops it, by a thread that has just helped to write through it where there is one: to unmap
    /// 100 MB takes as long as to copy 1 MB.
    pub fn leave(self) {
        Helper::do_beside(move || drop(self));
    }

    /// A pointer to a byte of the region through this view, or `None` outside of it.
    #[must_use]
    pub fn pointer(&self, offset: Offset) -> Option<*mut u8> {
        let distance = offset.0.checked_sub(self.span.offset.0)?;
        (distance < self.span.length.0).then(|| self.pointer_to(offset))
    }

    /// Writes `from` at an offset of the region, by relaxed word stores up to 255 bytes and by the
    /// copy that is best for its size from there on.
    ///
    /// # Errors
    /// [`AccessError::OutsideHeld`] if it does not all lie in the alias.
    pub fn write(&self, offset: Offset, from: &[u8]) -> Result<(), AccessError> {
        if (from.len() as u64) < super::BULK_WRITE_BYTES_MIN {
            let target = self.target(offset, from)?;
            // SAFETY: inside the alias, which is mapped writable.
            unsafe { words::store_bytes(target, from) };
            return Ok(());
        }
        self.write_large(offset, from).map(drop)
    }

    /// Writes `from` at an offset of the region by the copy that is best for its size: from some
    /// size on by non-temporal stores, and by all cores.
    ///
    /// # Errors
    /// [`AccessError::OutsideHeld`] if it does not all lie in the alias.
    pub fn write_large(&self, offset: Offset, from: &[u8]) -> Result<CopyReport, AccessError> {
        self.write_as(offset, from, self.region.profile().copy_plan())
    }

    /// As [`Alias::write_large`], by a plan of the caller's.
    ///
    /// # Errors
    /// [`AccessError::OutsideHeld`] if it does not all lie in the alias.
    pub fn write_as(
        &self,
        offset: Offset,
        from: &[u8],
        plan: CopyPlan,
    ) -> Result<CopyReport, AccessError> {
        let target = self.target(offset, from)?;
        // SAFETY: inside the alias, which is mapped writable. One client alone writes and uses a
        // range until it is sealed; `from` is a borrow, so it is not part of that range.
        Ok(unsafe { copy::copy_into(target, from, plan) })
    }

    /// Writes `from` and publishes it, in the way that the region's profile has for its size. Where
    /// the copy went past the caches there is nothing to write back but the lines at its ends.
    ///
    /// # Errors
    /// [`AccessError::OutsideHeld`] if it does not all lie in the alias.
    pub fn write_published(&self, offset: Offset, from: &[u8]) -> Result<(), AccessError> {
        self.write_part(offset, from, Length::from(from.len()))
    }

    /// As [`Alias::write_published`], in the way that is best for so many bytes in `all`.
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
        // A simulated cache sees no difference between the two kinds of stores.
        if !report.is_nontemporal || self.region.fabric().maintenance().is_some() {
            return Ok(self.region.publish(span)?);
        }
        for part in report.cached_ends(span) {
            self.region.publish(part)?;
        }
        Ok(())
    }

    /// As [`Alias::write_published`] to pages that were not touched through this alias before.
    /// Page table entries are made ready part by part, by each thread for what it copies next:
    /// faulting them in one by one would halve the speed, and while one thread makes entries
    /// another has the memory to itself.
    ///
    /// # Errors
    /// [`AccessError::OutsideHeld`] if it does not all lie in the alias.
    pub fn write_fresh(&self, offset: Offset, from: &[u8]) -> Result<(), AccessError> {
        self.target(offset, from)?;
        let plan = self.region.profile().copy_plan();
        let is_parallel = Length::from(from.len()) >= plan.parallel_bytes_min;
        let threads_max = if is_parallel { plan.threads_max } else { NonZeroUsize::MIN };
        let is_small_paged = self.region.fabric().huge_page_bytes().is_none();
        // Parts end where huge pages do, so that no two threads make the same one ready.
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
            // Parts at the end are shorter than a huge page: the first to touch one makes it ready.
            if is_small_paged || part.len() == PART_BYTES {
                // Without the entries the copy is slower, not wrong.
                let _ = self.populate_part(Span::new(at, Length::from(part.len())));
            }
            if let Err(error) = self.write_part(at, part, Length::from(from.len())) {
                let _ = failed.set(error);
            }
        });
        failed.into_inner().map_or(Ok(()), Err)
    }

    /// Words to read and write, by region offset.
    ///
    /// # Errors
    /// [`AccessError::OutsideHeld`], or not whole words.
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

    /// Makes its page table entries ready for writing. Does nothing before Linux 5.14.
    ///
    /// # Errors
    /// The system's answer, if it has no memory for them.
    pub fn populate(&self) -> Result<(), MapError> {
        self.populate_part(self.span)
    }

    /// The same for the pages of a part of it.
    ///
    /// # Errors
    /// [`MapError::Bounds`] outside of the region; the part outside of the alias is left alone.
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

    /// The caller keeps the offset inside.
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

/// Does `span` lie in what is held?
pub(super) fn check_held(held: Span, span: Span) -> Result<(), AccessError> {
    if held.contains(span) {
        return Ok(());
    }
    Err(AccessError::OutsideHeld {
        offset: span.offset,
        length: span.length,
        held_offset: held.offset,
        held_length: held.length,
    })
}
