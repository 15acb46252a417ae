//! Errors of this crate, with the numbers that caused them.

use std::io;
use std::path::PathBuf;

use crate::units::{Address, Length, Offset, Section};

/// Creating, opening or accepting the memory of a region failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The file system, or the memory of the machine, has less free space than requested.
    #[error("no space for a region on {path}: asked {requested}, {free} free")]
    NoSpace {
        /// Bytes requested.
        requested: Length,
        /// Bytes free when the error was detected.
        free: Length,
        /// The directory or file; `memory` if the machine itself is out of memory.
        path: PathBuf,
    },
    /// A region with this name already exists.
    #[error("a region already exists at {path}")]
    AlreadyExists {
        /// The existing file.
        path: PathBuf,
    },
    /// No such region exists.
    #[error("no region at {path}")]
    NotFound {
        /// The file that is missing.
        path: PathBuf,
    },
    /// The process that created or removed the region was killed midway. The region is incomplete
    /// and has no contents.
    #[error("the region at {path} was never finished")]
    Unfinished {
        /// The control file.
        path: PathBuf,
    },
    /// Another home has the region open.
    #[error("the region at {path} is in use by another home")]
    Locked {
        /// The control file.
        path: PathBuf,
    },
    /// The name cannot be a file name.
    #[error("region name of {bytes} bytes refused: {reason}")]
    NameInvalid {
        /// Length of the name.
        bytes: usize,
        /// Why the name is invalid.
        reason: &'static str,
    },
    /// A length or file offset is not a multiple of the page, is zero, or is over the limit.
    #[error("{what} of {bytes} B refused: must be a multiple of {page} B, above 0 and below 2^63")]
    BadGeometry {
        /// Which number.
        what: &'static str,
        /// Its value.
        bytes: u64,
        /// The page size.
        page: u64,
    },
    /// A file is shorter than the section it should hold, so loads could raise SIGBUS.
    #[error("{section} section needs {needed} in its file, which has {found}")]
    TooShort {
        /// The section.
        section: Section,
        /// Bytes the file must have.
        needed: Length,
        /// Bytes it has.
        found: Length,
    },
    /// The sender of the memory file could still truncate it.
    #[error("{section} section lies in a memory file that can shrink (seals {seals:#x})")]
    CanShrink {
        /// The section.
        section: Section,
        /// The seals found.
        seals: u32,
    },
    /// A descriptor that must be read-only is writable, or the reverse.
    #[error("descriptor for {section} section has access mode {mode}, expected {expected}")]
    WrongMode {
        /// The section.
        section: Section,
        /// `O_ACCMODE` bits found.
        mode: u32,
        /// The expected access mode.
        expected: &'static str,
    },
    /// The file is of a kind that cannot hold a region (a directory, a pipe, ...).
    #[error("{path} cannot hold a region: {reason}")]
    NotMappable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The file belongs to another user, or other users may open it.
    #[error("{path} is not private: owner {owner}, mode {mode:o}")]
    NotPrivate {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// A system call failed for another reason.
    #[error("{call} of {path}: {source}")]
    System {
        /// The call that failed.
        call: &'static str,
        /// The file or directory it was called on.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// A span is not inside the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} at {offset} does not lie in a region of {region}")]
pub struct BoundsError {
    /// Where the span starts.
    pub offset: Offset,
    /// How long it is.
    pub length: Length,
    /// How long the region is.
    pub region: Length,
}

/// Mapping, or changing a mapping, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The span is not inside the region.
    #[error(transparent)]
    Bounds(#[from] BoundsError),
    /// The address space, the number of maps or the memory for page tables is exhausted.
    #[error(
        "no room to map {requested}: {source} (RLIMIT_AS {limit_as:?}, vm.max_map_count {maps_max:?})"
    )]
    NoRoom {
        /// Bytes to be mapped.
        requested: Length,
        /// `RLIMIT_AS`, if there is one.
        limit_as: Option<u64>,
        /// `vm.max_map_count`, if readable.
        maps_max: Option<u64>,
        /// The error of the system.
        source: io::Error,
    },
    /// The remaining maps below `vm.max_map_count` are reserved for the rest of the process.
    #[error("this process has {used} maps of {limit} (vm.max_map_count)")]
    TooManyMaps {
        /// Maps of this process.
        used: u64,
        /// `vm.max_map_count`.
        limit: u64,
    },
    /// The span does not consist of whole pages.
    #[error("{length} at {offset} are not whole pages of {page} B")]
    NotPages {
        /// Where the span starts.
        offset: Offset,
        /// How long it is.
        length: Length,
        /// The page size.
        page: u64,
    },
    /// The requested address is not a multiple of the page size, or the region would not fit in the
    /// address space.
    #[error("address {address} refused for a region of {length}")]
    BadAddress {
        /// The requested address.
        address: Address,
        /// Bytes of the region.
        length: Length,
    },
    /// Only ranges of the data section can change between writable and read-only.
    #[error("{length} at {offset} do not lie in the data section")]
    NotData {
        /// Where the span starts.
        offset: Offset,
        /// How long it is.
        length: Length,
    },
    /// This process has no writable descriptor of the section.
    #[error("no writable descriptor for the {section} section")]
    NoWriter {
        /// The section.
        section: Section,
    },
    /// A [`crate::WritableBytes`] or a write in progress still uses part of the range.
    #[error("{length} at {offset} are being written by {writers} writer(s)")]
    InUse {
        /// Where the span starts.
        offset: Offset,
        /// How long it is.
        length: Length,
        /// Number of writers that overlap it.
        writers: usize,
    },
    /// A system call failed for another reason.
    #[error("{call} of {length} at {offset}: {source}")]
    System {
        /// The call that failed.
        call: &'static str,
        /// Where the span starts.
        offset: Offset,
        /// How long it is.
        length: Length,
        /// The error of the system.
        source: io::Error,
    },
}

/// Reading or writing words or bytes failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The span is not inside the region.
    #[error(transparent)]
    Bounds(#[from] BoundsError),
    /// The span does not consist of whole words: offset and length must be multiples of 8.
    #[error("{length} at {offset} are not whole words of {alignment} B")]
    NotAligned {
        /// Where the span starts.
        offset: Offset,
        /// How long it is.
        length: Length,
        /// Required alignment of offset and length.
        alignment: u64,
    },
    /// Part of the span is mapped read-only here.
    #[error("{length} at {offset} are not mapped writable")]
    ReadOnly {
        /// Where the span starts.
        offset: Offset,
        /// How long it is.
        length: Length,
    },
    /// The span is outside the alias or slice used for the access.
    #[error("{length} at {offset} do not lie in the {held_length} at {held_offset} held")]
    OutsideHeld {
        /// Where the span starts.
        offset: Offset,
        /// How long it is.
        length: Length,
        /// Where the alias or slice starts.
        held_offset: Offset,
        /// How long the alias or slice is.
        held_length: Length,
    },
    /// The file is too short, or a read or write call failed.
    #[error("{call} of {length} at {offset}: {source}")]
    System {
        /// The call that failed.
        call: &'static str,
        /// Where the span starts.
        offset: Offset,
        /// How long it is.
        length: Length,
        /// The error of the system.
        source: io::Error,
    },
}
