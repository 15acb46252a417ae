//! The `device` back end: any file that can be mapped, starting at a given offset.
//!
//! Both sections are in one file, control first. The caller passes the length, because `stat` of a
//! character device (devdax, a PCI BAR, an emulated far memory) does not report one.
//!
//! Since there is only one file, a descriptor that may write data may also write control. Only the
//! client library, not the system, keeps a client from writing to control.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::fd_passing::{PassedFabric, PassedParts};
use super::files::{self, Contents, FileShape, PageSource, system};
use super::{CoherenceClass, Fabric, FabricKind};
use crate::error::FabricError;
use crate::mapping::Mapping;
use crate::system::huge_pages;
use crate::units::{Geometry, Length, Section};

/// A region in a file or device.
#[derive(Debug)]
pub struct DeviceFabric {
    writer: OwnedFd,
    reader: OwnedFd,
    /// A separate open file description. `writer` is passed to clients, which may outlive the home
    /// and would keep its lock.
    _lock: OwnedFd,
    path: PathBuf,
    file_offset: u64,
    geometry: Geometry,
    coherence: CoherenceClass,
    huge_page: Option<Length>,
}

impl DeviceFabric {
    /// Opens `path` and uses `geometry` bytes of it, starting at `file_offset`. A regular file must
    /// be long enough. All its pages in the range are committed; its contents do not change.
    ///
    /// # Errors
    /// [`FabricError::TooShort`] with the numbers, [`FabricError::NotMappable`] if the range cannot
    /// be mapped, [`FabricError::Locked`] if another home uses the range.
    pub fn open(
        path: &Path,
        file_offset: u64,
        geometry: Geometry,
        coherence: CoherenceClass,
    ) -> Result<Self, FabricError> {
        files::check_geometry(geometry, file_offset)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let writer = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => {
                return Err(FabricError::NotFound { path: path.to_owned() });
            }
            Err(errno) => return Err(system("open", path, errno)),
        };
        let shape = files::shape_of(writer.as_fd(), path)?;
        files::check_length(&shape, Section::Data, file_offset, geometry.total())?;
        let lock = files::reopen(writer.as_fd(), path, OFlags::RDWR)?;
        files::lock_range(lock.as_fd(), file_offset, geometry.total(), path)?;
        let huge_page = match shape {
            FileShape::Regular(_) => {
                let room = PageSource::of(path, writer.as_fd());
                let total = geometry.total();
                files::commit_pages(writer.as_fd(), file_offset, total, &room, Contents::Retained)?;
                huge_pages::tmpfs_huge_page_bytes(path)
            }
            FileShape::Device { rdev } => huge_pages::device_huge_page_bytes(rdev),
        };
        let reader = files::reopen_read_only(writer.as_fd(), path)?;
        let fabric = Self {
            writer,
            reader,
            _lock: lock,
            path: path.to_owned(),
            file_offset,
            geometry,
            coherence,
            huge_page,
        };
        fabric.prove_mappable()?;
        Ok(fabric)
    }

    /// Opens a region read-only, whether or not it has a home. Takes no lock.
    ///
    /// # Errors
    /// As [`DeviceFabric::open`], but never [`FabricError::Locked`].
    pub fn inspect(
        path: &Path,
        file_offset: u64,
        geometry: Geometry,
        coherence: CoherenceClass,
    ) -> Result<PassedFabric, FabricError> {
        Self::of_another(path, file_offset, geometry, coherence, false)
    }

    /// Opens a region that another node lends, to pass it to clients. The clients write only to
    /// memory that the lending node grants them. Takes no lock.
    ///
    /// # Errors
    /// As [`DeviceFabric::inspect`].
    pub fn join(
        path: &Path,
        file_offset: u64,
        geometry: Geometry,
        coherence: CoherenceClass,
    ) -> Result<PassedFabric, FabricError> {
        Self::of_another(path, file_offset, geometry, coherence, true)
    }

    fn of_another(
        path: &Path,
        file_offset: u64,
        geometry: Geometry,
        coherence: CoherenceClass,
        is_writing: bool,
    ) -> Result<PassedFabric, FabricError> {
        files::check_geometry(geometry, file_offset)?;
        let open = |mode| match rustix::fs::open(path, mode | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::NOENT) => Err(FabricError::NotFound { path: path.to_owned() }),
            opened => opened.map_err(|errno| system("open", path, errno)),
        };
        PassedFabric::new(PassedParts {
            kind: FabricKind::Device,
            coherence,
            geometry,
            control_read: open(OFlags::RDONLY)?,
            control_file_offset: file_offset,
            data_read: open(OFlags::RDONLY)?,
            data_write: is_writing.then(|| open(OFlags::RDWR)).transpose()?,
            data_file_offset: file_offset + geometry.control.0,
        })
    }

    /// Maps the whole region for reading and unmaps it, so that a device that cannot map all of it
    /// fails here and not later.
    fn prove_mappable(&self) -> Result<(), FabricError> {
        let length = self.geometry.total();
        Mapping::of_file(self.reader.as_fd(), self.file_offset, length, false).map(drop).map_err(
            |errno| FabricError::NotMappable {
                path: self.path.clone(),
                reason: format!("mapping {length} from {} on: {errno}", self.file_offset),
            },
        )
    }

    fn start_of(&self, section: Section) -> u64 {
        match section {
            Section::Control => self.file_offset,
            Section::Data => self.file_offset + self.geometry.control.0,
        }
    }
}

impl Fabric for DeviceFabric {
    fn kind(&self) -> FabricKind {
        FabricKind::Device
    }

    fn coherence_class(&self) -> CoherenceClass {
        self.coherence
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
        format!("{} from {:#x}", self.path.display(), self.file_offset)
    }

    fn huge_page_bytes(&self) -> Option<Length> {
        self.huge_page
    }
}
