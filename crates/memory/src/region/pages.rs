//! Pages of a region: populated before their first access, huge where that is possible; those of the
//! data section can be given back to the kernel while the region is in use, and taken again.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::Advice;

use super::Region;
use crate::error::{FabricError, MapError};
use crate::fabric::FabricKind;
use crate::fabric::files::{self, Contents, PageSource, system};
use crate::mapping::{self, failure};
use crate::sync::Ordering;
use crate::units::{Length, Section, Span, page_bytes};

/// Bytes that are populated by one call, mostly of pages that exist.
const POPULATE_STEP_BYTES: u64 = 4 << 20;

/// What [`Region::populate`] prepares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Populate {
    /// Page table entries for reading.
    Read,
    /// Pages and page table entries for writing; only if the span is mapped writable.
    Write,
}

impl Region {
    /// Populates page table entries, so that the first accesses do not fault page by page. Does
    /// nothing if the kernel does not support it (before Linux 5.14).
    ///
    /// # Errors
    /// The span is outside the region, there is no memory, or a part is mapped read-only and `what`
    /// is [`Populate::Write`].
    pub fn populate(&self, span: Span, what: Populate) -> Result<(), MapError> {
        self.check(span)?;
        let Some(pages) = span.outward(page_bytes()).filter(|pages| !pages.is_empty()) else {
            return Ok(());
        };
        if what == Populate::Write && !self.is_writable(span) {
            let (offset, length) = (span.offset, span.length);
            let source = std::io::Error::from(Errno::ACCESS);
            return Err(MapError::System { call: "populate", offset, length, source });
        }
        self.populate_range(self.window.pointer(pages.offset.0), pages, what)
    }

    /// Requests huge pages for the data section. Has an effect only if the fabric provides them on
    /// request (a tmpfs mounted with `huge=advise`).
    pub fn advise_huge(&self) {
        self.is_huge_advised.store(true, Ordering::Relaxed);
        self.advise_huge_over(self.geometry.span_of(Section::Data));
    }

    /// Gives new maps in the window the same advice as the rest. Otherwise they would never merge
    /// with it again, and the number of maps is limited.
    pub(super) fn advise_huge_over(&self, span: Span) {
        if !self.is_huge_advised.load(Ordering::Relaxed) || span.is_empty() {
            return;
        }
        let start = self.window.pointer(span.offset.0);
        // SAFETY: the span is inside our mapping, and the advice does not change the contents.
        let answer = unsafe { mapping::advise(start, span.length, Advice::LinuxHugepage) };
        if let Err(errno) = answer {
            tracing::debug!(%span, %errno, "no huge pages");
        }
    }

    /// Populates a mapped, page-aligned range; `span` is its position in the region.
    pub(super) fn populate_range(
        &self,
        start: *mut u8,
        span: Span,
        what: Populate,
    ) -> Result<(), MapError> {
        match self.try_populate(start, span, what, POPULATE_STEP_BYTES) {
            Ok(()) => Ok(()),
            // The kernel does not support the advice. Page faults do the same later.
            Err(Errno::INVAL | Errno::NOSYS) => Ok(()),
            Err(errno) => Err(failure("populate", span, errno)),
        }
    }

    /// As [`Self::populate_range`], in steps. A call holds the kernel's lock on the address space:
    /// meanwhile no other thread of the process can map, unmap or grow its heap.
    pub(super) fn try_populate(
        &self,
        start: *mut u8,
        span: Span,
        what: Populate,
        step: u64,
    ) -> Result<(), Errno> {
        let advice = match (what, self.fabric.kind()) {
            (Populate::Read, _) => Advice::LinuxPopulateRead,
            // tmpfs does not track first stores, so in a writable map a read fault creates writable
            // entries, sixteen pages at a time: 50 ms for 1.5 GiB instead of 120.
            (Populate::Write, FabricKind::Shm) => Advice::LinuxPopulateRead,
            (Populate::Write, FabricKind::Device) => Advice::LinuxPopulateWrite,
        };
        let mut done = 0;
        while done < span.length.0 {
            let length = step.min(span.length.0 - done);
            let part = start.wrapping_add(done as usize);
            // SAFETY: the caller maps the range; populating does not change the contents.
            match unsafe { mapping::advise(part, Length(length), advice) } {
                Ok(()) => done += length,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Whether the kernel can have pages of this region back while it is in use.
    #[must_use]
    pub fn can_give_back(&self) -> bool {
        self.fabric.kind() == FabricKind::Shm
    }

    /// Allocates all pages of a span of data, so that no later access fails. Existing contents do
    /// not change.
    ///
    /// # Errors
    /// [`FabricError::NoSpace`] with the numbers; [`FabricError::BadGeometry`] if the span is not
    /// of whole pages of data.
    pub fn commit(&self, span: Span) -> Result<(), FabricError> {
        let place = PathBuf::from(self.fabric.describe());
        let (fd, at) = self.pages_of(span)?;
        let source = PageSource::of(&place, fd);
        files::commit_pages(fd, at, span.length, &source, Contents::Retained)
    }

    /// Gives all pages of a span of data back to the kernel. The span then reads as zeros; it must
    /// not be used until [`Region::commit`], since each access would allocate pages again.
    ///
    /// # Errors
    /// The file system cannot free a part of a file; [`FabricError::BadGeometry`] if the span is
    /// not of whole pages of data.
    pub fn give_back(&self, span: Span) -> Result<(), FabricError> {
        let place = PathBuf::from(self.fabric.describe());
        let (fd, at) = self.pages_of(span)?;
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        loop {
            match rustix::fs::fallocate(fd, how, at, span.length.0) {
                Err(Errno::INTR) => {}
                done => return done.map_err(|errno| system("free pages of", &place, errno)),
            }
        }
    }

    /// Checks that the file system and the machine have memory for this number of further bytes of data.
    ///
    /// # Errors
    /// [`FabricError::NoSpace`] with the numbers.
    pub fn check_memory(&self, bytes: Length) -> Result<(), FabricError> {
        let place = PathBuf::from(self.fabric.describe());
        let (fd, _) = self.pages_of(self.geometry.span_of(Section::Data))?;
        files::check_room(bytes, &PageSource::of(&place, fd))
    }

    /// The writable file of whole pages of data, and the offset of the span in it.
    fn pages_of(&self, span: Span) -> Result<(BorrowedFd<'_>, u64), FabricError> {
        let refused = |what| {
            let (bytes, page) = (span.length.0, page_bytes());
            FabricError::BadGeometry { what, bytes, page }
        };
        self.check_data_pages(span).map_err(|_| refused("range of pages"))?;
        self.data_writer(span).map_err(|_| refused("range without a writable file"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fabric::Fabric;
    use crate::shm::ShmFabric;
    use crate::units::{Geometry, Offset};
    use crate::{Access, RegionSize};

    const MIB: u64 = 1 << 20;

    fn blocks(region: &Region) -> u64 {
        let (fd, _) = region.fabric.read_fd(Section::Data);
        // A block of `stat` is 512 bytes.
        rustix::fs::fstat(fd).unwrap().st_blocks as u64 * 512
    }

    #[test]
    fn pages_come_back_to_the_kernel_and_again_to_the_region() {
        let geometry = Geometry { control: Length(MIB), data: Length(8 * MIB) };
        let size = RegionSize { geometry, committed: Length(2 * MIB) };
        let fabrics: [ShmFabric; 2] = [
            ShmFabric::memfd("pages", size).unwrap(),
            ShmFabric::nameless_in(std::path::Path::new("/dev/shm"), size).unwrap(),
        ];
        for fabric in fabrics {
            assert!(fabric.geometry() == geometry);
            let region = Arc::new(Region::map(Arc::new(fabric), Access::Home, None).unwrap());
            assert!(region.can_give_back());
            assert_eq!(blocks(&region), 2 * MIB);
            let span = |at: u64, bytes: u64| Span::new(Offset(MIB + at), Length(bytes));
            region.write_by_call(Offset(MIB), b"stays").unwrap();
            region.commit(span(4 * MIB, 2 * MIB)).unwrap();
            assert_eq!(blocks(&region), 4 * MIB);
            region.write_by_call(Offset(5 * MIB), b"goes").unwrap();
            region.give_back(span(4 * MIB, 2 * MIB)).unwrap();
            assert_eq!(blocks(&region), 2 * MIB);
            region.commit(span(0, 8 * MIB)).unwrap();
            assert_eq!(blocks(&region), 8 * MIB);
            let read = |at: u64| {
                let mut bytes = [1; 5];
                region.read_by_call(Offset(at), &mut bytes).unwrap();
                bytes
            };
            assert_eq!((&read(MIB), read(5 * MIB)), (b"stays", [0; 5]));
        }
    }

    #[test]
    fn what_is_not_there_is_refused_with_the_numbers() {
        let geometry = Geometry { control: Length(MIB), data: Length(8 * MIB) };
        let fabric = Arc::new(ShmFabric::memfd("pages", geometry).unwrap());
        let region = Region::map(fabric, Access::Home, None).unwrap();
        let requested = Length(1 << 60);
        match region.check_memory(requested) {
            Err(FabricError::NoSpace { requested: reported, free, .. }) => {
                assert!(reported == requested && free < requested);
            }
            other => panic!("{other:?}"),
        }
        for span in [
            Span::new(Offset(MIB + 1), Length(MIB)),
            Span::new(Offset(0), Length(MIB)),
            Span::new(Offset(8 * MIB), Length(2 * MIB)),
        ] {
            assert!(region.commit(span).is_err() && region.give_back(span).is_err(), "{span}");
        }
    }
}
