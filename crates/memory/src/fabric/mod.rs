//! How a region's bytes reach a process: one trait, one file for each back end.
//!
//! A fabric owns open descriptors and says where each section lies in them. It maps nothing: that
//! is [`crate::Region`]'s work, the same for every back end.

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

/// What the fabric guarantees between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CoherenceClass {
    /// Every load sees the latest store, whichever node made it.
    Coherent,
    /// Coherent inside a node only: stores must be published and loads refreshed.
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

/// The memory of one region, as open files.
pub trait Fabric: Send + Sync + Debug {
    /// Which back end this is.
    fn kind(&self) -> FabricKind;

    /// What it guarantees between nodes.
    fn coherence_class(&self) -> CoherenceClass;

    /// How long the sections are. Never changes while the fabric lives.
    fn geometry(&self) -> Geometry;

    /// The descriptor to read a section by, and where in that file the section starts. It is open
    /// read-only, so that no mapping of it can become writable.
    fn read_fd(&self, section: Section) -> (BorrowedFd<'_>, u64);

    /// The same for writing, or `None` where this process may not write the section.
    fn write_fd(&self, section: Section) -> Option<(BorrowedFd<'_>, u64)>;

    /// For humans: where the memory lies.
    fn describe(&self) -> String;

    /// The huge page the mount or device offers, or `None` if it offers none or says nothing.
    fn huge_page_bytes(&self) -> Option<Length>;

    /// What publishes and refreshes in place of this CPU's cache instructions. For simulated nodes,
    /// whose caches are not those of this machine; memory has none.
    fn maintenance(&self) -> Option<&dyn Maintenance> {
        None
    }
}

/// Publish and refresh of a fabric with caches of its own. Spans lie in the region.
pub trait Maintenance {
    /// Bytes of the lines that it moves: a power of two.
    fn line_bytes(&self) -> u32;

    /// Brings the lines around a span to memory. Returns how many there are.
    fn publish(&self, span: Span) -> u64;

    /// Brings dirty lines around a span to memory, then all of them from there. Returns how many
    /// there are.
    fn refresh(&self, span: Span) -> u64;
}

/// Where a process runs, as seen from the home of a region. Between the two lies what the
/// coherence class speaks of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Proximity {
    /// On the home's node: each sees at once what the other stores, on every fabric.
    #[default]
    Local,
    /// On another node.
    Remote,
}
