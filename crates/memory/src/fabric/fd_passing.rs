//! The fabric that a client builds from the descriptors sent by its daemon (fd passing).
//!
//! The client trusts the daemon with the region. Still, a bug in the daemon, or a file truncated by
//! another process of the same user, must be an error here and not a SIGBUS later.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::SealFlags;

use super::files::{self, FileShape};
use super::{CoherenceClass, Fabric, FabricKind};
use crate::error::FabricError;
use crate::system::huge_pages;
use crate::units::{Geometry, Length, Section};

/// The descriptors and the information sent with them.
#[derive(Debug)]
pub struct PassedParts {
    /// The back end of the sender.
    pub kind: FabricKind,
    /// Its coherence guarantee.
    pub coherence: CoherenceClass,
    /// Lengths of the sections.
    pub geometry: Geometry,
    /// Control, open read-only.
    pub control_read: OwnedFd,
    /// Where control starts in its file.
    pub control_file_offset: u64,
    /// Data, open read-only.
    pub data_read: OwnedFd,
    /// Data, open for reading and writing, if this client may write.
    pub data_write: Option<OwnedFd>,
    /// Where data starts in its file.
    pub data_file_offset: u64,
}

/// A fabric made of descriptors that another process opened.
#[derive(Debug)]
pub struct PassedFabric {
    parts: PassedParts,
    huge_page: Option<Length>,
}

impl PassedFabric {
    /// Checks the descriptors and takes ownership of them.
    ///
    /// # Errors
    /// [`FabricError::TooShort`] if a regular file is shorter than its section,
    /// [`FabricError::WrongMode`] if a reader is writable or the writer is not,
    /// [`FabricError::CanShrink`] for a memory file without a seal against shrinking,
    /// [`FabricError::BadGeometry`].
    pub fn new(parts: PassedParts) -> Result<Self, FabricError> {
        // Data may follow control in the same file, so each start is checked separately.
        files::check_geometry(parts.geometry, parts.control_file_offset)?;
        files::check_geometry(parts.geometry, parts.data_file_offset)?;
        let geometry = parts.geometry;
        let control = (parts.control_read.as_fd(), parts.control_file_offset, geometry.control);
        check_one(control, Section::Control, false)?;
        let data = (parts.data_read.as_fd(), parts.data_file_offset, geometry.data);
        let rdev = check_one(data, Section::Data, false)?;
        if let Some(writer) = &parts.data_write {
            check_one(
                (writer.as_fd(), parts.data_file_offset, geometry.data),
                Section::Data,
                true,
            )?;
        }
        let huge_page = match rdev {
            Some(rdev) => huge_pages::device_huge_page_bytes(rdev),
            None => huge_pages::huge_page_bytes_of(parts.data_read.as_fd()),
        };
        Ok(Self { parts, huge_page })
    }
}

/// Checks one descriptor. Returns the device number if it is a device.
fn check_one(
    (fd, file_offset, length): (BorrowedFd<'_>, u64, Length),
    section: Section,
    is_writer: bool,
) -> Result<Option<u64>, FabricError> {
    files::check_mode(fd, section, is_writer)?;
    let shape = files::shape_of(fd, Path::new("passed descriptor"))?;
    files::check_length(&shape, section, file_offset, length)?;
    // A file on a mounted tmpfs always reports F_SEAL_SEAL only, which shows nothing. A memory file
    // that still accepts seals but has none against shrinking could be truncated by its sender.
    if let Ok(seals) = rustix::fs::fcntl_get_seals(fd)
        && !seals.intersects(SealFlags::SEAL | SealFlags::SHRINK)
    {
        return Err(FabricError::CanShrink { section, seals: seals.bits() });
    }
    Ok(match shape {
        FileShape::Regular(_) => None,
        FileShape::Device { rdev } => Some(rdev),
    })
}

impl Fabric for PassedFabric {
    fn kind(&self) -> FabricKind {
        self.parts.kind
    }

    fn coherence_class(&self) -> CoherenceClass {
        self.parts.coherence
    }

    fn geometry(&self) -> Geometry {
        self.parts.geometry
    }

    fn read_fd(&self, section: Section) -> (BorrowedFd<'_>, u64) {
        match section {
            Section::Control => (self.parts.control_read.as_fd(), self.parts.control_file_offset),
            Section::Data => (self.parts.data_read.as_fd(), self.parts.data_file_offset),
        }
    }

    fn write_fd(&self, section: Section) -> Option<(BorrowedFd<'_>, u64)> {
        match section {
            Section::Control => None,
            Section::Data => {
                Some((self.parts.data_write.as_ref()?.as_fd(), self.parts.data_file_offset))
            }
        }
    }

    fn describe(&self) -> String {
        format!("{} region passed by its daemon", self.parts.kind.as_str())
    }

    fn huge_page_bytes(&self) -> Option<Length> {
        self.huge_page
    }
}
