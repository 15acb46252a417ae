//! Fabrics: how a process reaches the bytes of a region. One trait, and one file per back end.
//!
//! A fabric owns open descriptors and knows where each section starts in them. It maps nothing:
//! [`crate::Region`] does that in the same way for every back end.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use crate::units::{Geometry, Length, Section, Span};

pub(crate) mod files;
pub(crate) mod held;

pub mod device;
pub(crate) mod fd_passing;
pub mod mount;
mod nameless;
pub mod shm;

/// The kind of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FabricKind {
    /// Files on tmpfs, or memory files: shared by the processes of one host.
    Shm,
    /// Any file that can be mapped: a devdax or famfs file, a PCI BAR, a disk file.
    Device,
}

impl FabricKind {
    /// `"shm"` or `"device"`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Device => "device",
        }
    }
}

/// Cache coherence that the fabric guarantees between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CoherenceClass {
    /// Every load sees the latest store of any node.
    Coherent,
    /// Coherent only inside a node: stores must be published, and memory refreshed before loads.
    NodeLocal,
}

impl CoherenceClass {
    /// `"coherent"` or `"node-local"`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Coherent => "coherent",
            Self::NodeLocal => "node-local",
        }
    }
}

/// The size of a region that is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSize {
    /// Lengths of the sections.
    pub geometry: Geometry,
    /// Bytes at the start of the data section whose pages are allocated at creation. The others
    /// must be allocated by [`crate::Region::commit`] before they are used.
    pub committed: Length,
}

impl From<Geometry> for RegionSize {
    /// All pages are allocated at creation.
    fn from(geometry: Geometry) -> Self {
        Self { geometry, committed: geometry.data }
    }
}

impl RegionSize {
    /// Bytes allocated at creation, of both sections.
    pub(crate) fn allocated(self) -> Length {
        Length(self.geometry.control.0.saturating_add(self.committed_data().0))
    }

    pub(crate) fn committed_data(self) -> Length {
        self.committed.min(self.geometry.data)
    }
}

/// The memory of one region, as open files.
pub trait Fabric: Send + Sync + Debug {
    /// The kind of back end.
    fn kind(&self) -> FabricKind;

    /// Cache coherence between nodes.
    fn coherence_class(&self) -> CoherenceClass;

    /// Lengths of the sections. They never change while the fabric exists.
    fn geometry(&self) -> Geometry;

    /// The descriptor for reading a section, and the offset of the section in that file. The
    /// descriptor is open read-only, so that no mapping of it can become writable.
    fn read_fd(&self, section: Section) -> (BorrowedFd<'_>, u64);

    /// The same for writing, or `None` if this process may not write the section.
    fn write_fd(&self, section: Section) -> Option<(BorrowedFd<'_>, u64)>;

    /// Describes for humans where the memory is.
    fn describe(&self) -> String;

    /// The huge page size of the mount or device, or `None` if it has no huge pages or does not
    /// report them.
    fn huge_page_bytes(&self) -> Option<Length>;

    /// Replaces this CPU's cache instructions for publish and refresh. Used by simulated nodes,
    /// whose caches are not those of this machine. `None` for real memory.
    fn maintenance(&self) -> Option<&dyn Maintenance> {
        None
    }
}

/// Publish and refresh of a fabric with its own (simulated) caches. All spans are inside the
/// region.
pub trait Maintenance {
    /// Line size in bytes: a power of two.
    fn line_bytes(&self) -> u32;

    /// Writes back all lines that a span touches. Returns the number of lines.
    fn publish(&self, span: Span) -> u64;

    /// Writes back the dirty lines that a span touches, then reloads all its lines from memory.
    /// Returns the number of lines.
    fn refresh(&self, span: Span) -> u64;
}

/// Where a process runs relative to the home of a region. The [`CoherenceClass`] applies between
/// the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Proximity {
    /// On the home's node: coherent with the home on every fabric.
    #[default]
    Local,
    /// On another node.
    Remote,
}
