//! One copy of a region's bytes in a file: memory, a node's cached bytes, or the bytes it last saw.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farrow_memory::sync::Ordering;
use farrow_memory::{
    Access, Alias, CoherenceClass, Fabric, FabricKind, Geometry, Length, Region, Section, Span,
    WordsMut,
};
use rustix::fs::FallocateFlags;

/// Words of the longest line.
pub(super) const LINE_WORDS_MAX: usize = 16;

/// Reads of a line under concurrent stores, until two reads agree. Only a thread that does nothing
/// but store could exceed this.
const LOOKS_MAX: usize = 1000;

/// A file with both sections, open to read and to write.
#[derive(Debug)]
pub(super) struct CopyFile {
    reader: File,
    writer: File,
    path: PathBuf,
    geometry: Geometry,
}

impl CopyFile {
    /// Makes the file, zeroed and with all its pages allocated.
    pub(super) fn create(path: &Path, geometry: Geometry) -> io::Result<Self> {
        let file = File::create_new(path)?;
        file.set_len(geometry.total().0)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, geometry.total().0)?;
        Self::open(path, geometry)
    }

    pub(super) fn open(path: &Path, geometry: Geometry) -> io::Result<Self> {
        let writer = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Self { reader: File::open(path)?, writer, path: path.to_owned(), geometry })
    }

    fn start_of(&self, section: Section) -> u64 {
        self.geometry.span_of(section).offset.0
    }
}

impl Fabric for CopyFile {
    fn kind(&self) -> FabricKind {
        FabricKind::Device
    }

    fn coherence_class(&self) -> CoherenceClass {
        CoherenceClass::Coherent
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read_fd(&self, section: Section) -> (BorrowedFd<'_>, u64) {
        (self.reader.as_fd(), self.start_of(section))
    }

    fn write_fd(&self, section: Section) -> Option<(BorrowedFd<'_>, u64)> {
        Some((self.writer.as_fd(), self.start_of(section)))
    }

    fn describe(&self) -> String {
        self.path.display().to_string()
    }

    fn huge_page_bytes(&self) -> Option<Length> {
        None
    }
}

/// A line's words. Those after the end of a short line are 0.
pub(super) type LineWords = [u64; LINE_WORDS_MAX];

/// A copy, mapped readable and writable.
#[derive(Debug)]
pub(super) struct Copy {
    region: Arc<Region>,
    data: Alias,
}

impl Copy {
    pub(super) fn map(file: &Arc<CopyFile>) -> Self {
        let fabric: Arc<dyn Fabric> = Arc::<CopyFile>::clone(file);
        let region = Arc::new(Region::map(fabric, Access::Home, None).expect("map a copy"));
        let data = region.alias(region.geometry().span_of(Section::Data)).expect("map data");
        Self { region, data }
    }

    pub(super) fn bytes(&self) -> Length {
        self.region.length()
    }

    /// The words of a line, or of any part of one section.
    pub(super) fn words(&self, span: Span) -> WordsMut<'_> {
        let words = if self.data.span().contains(span) {
            self.data.words_mut(span)
        } else {
            self.region.words_mut(span)
        };
        words.expect("a line of the region")
    }

    /// A line as it was at one moment: two reads agree, so no store happened between them.
    pub(super) fn look(&self, span: Span) -> LineWords {
        let words = self.words(span);
        let once = || {
            let mut line = LineWords::default();
            for (index, word) in line.iter_mut().enumerate().take(words.len()) {
                *word = words.load(index, Ordering::Acquire).unwrap_or_default();
            }
            line
        };
        let mut line = once();
        for _ in 0..LOOKS_MAX {
            let again = once();
            if again == line {
                break;
            }
            line = again;
        }
        line
    }

    /// Stores a line to which no other thread stores.
    pub(super) fn put(&self, span: Span, line: &LineWords) {
        let words = self.words(span);
        for (index, word) in line.iter().enumerate().take(words.len()) {
            words.store(index, *word, Ordering::Release);
        }
    }
}
