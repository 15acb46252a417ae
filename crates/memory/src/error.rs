//! What can go wrong, with the numbers.

use std::io;
use std::path::PathBuf;

use crate::units::{Address, Length, Offset, Section};

/// Making, opening or accepting the memory of a region failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The file system, or the memory behind it, holds less than was asked for.
    #[error("no space for a region on {path}: asked {asked}, {free} free")]
    NoSpace {
        /// Bytes asked for.
        asked: Length,
        /// Bytes free when the error was found.
        free: Length,
        /// The directory or file; `memory` where the machine itself is full.
        path: PathBuf,
    },
    /// A region of this name is there already.
    #[error("a region already exists at {path}")]
    AlreadyExists {
        /// The file in the way.
        path: PathBuf,
    },
    /// There is no such region.
    #[error("no region at {path}")]
    NotFound {
        /// The file that is missing.
        path: PathBuf,
    },
    /// Whoever was to make the region was killed meanwhile, or whoever removed it: nothing was ever
    /// in it, or nothing is left.
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
        /// What is wrong with it.
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
    /// A file is shorter than the section it should hold, so that loads could end in SIGBUS.
    #[error("{section} section needs {needed} in its file, which has {found}")]
    TooShort {
        /// The section.
        section: Section,
        /// Bytes the file must have.
        needed: Length,
        /// Bytes it has.
        found: Length,
    },
    /// The memory file could still be made shorter by who sent it.
    #[error("{section} section lies in a memory file that can shrink (seals {seals:#x})")]
    CanShrink {
        /// The section.
        section: Section,
        /// The seals found.
        seals: u32,
    },
    /// A descriptor that must be read-only can write, or the reverse.
    #[error("descriptor for {section} section has access mode {mode}, expected {expected}")]
    WrongMode {
        /// The section.
        section: Section,
        /// `O_ACCMODE` bits found.
        mode: u32,
        /// What it should be.
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
    /// The file belongs to another user, or others may open it.
    #[error("{path} is not private: owner {owner}, mode {mode:o}")]
    NotPrivate {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// The system refused for another reason.
    #[error("{call} of {path}: {source}")]
    System {
        /// The call that failed.
        call: &'static str,
        /// What it was about.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// A span does not lie in the region.
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
    /// Not in the region.
    #[error(transparent)]
    Bounds(#[from] BoundsError),
    /// Address space, number of maps or memory for page tables is used up.
    #[error(
        "no room to map {asked}: {source} (RLIMIT_AS {limit_as:?}, vm.max_map_count {maps_max:?})"
    )]
    NoRoom {
        /// Bytes to be mapped.
        asked: Length,
        /// `RLIMIT_AS`, if there is one.
        limit_as: Option<u64>,
        /// `vm.max_map_count`, if readable.
        maps_max: Option<u64>,
        /// The system's answer.
        source: io::Error,
    },
    /// What is left of `vm.max_map_count` is for the rest of the process.
    #[error("this process has {used} maps of {limit} (vm.max_map_count)")]
    TooManyMaps {
        /// Maps of this process.
        used: u64,
        /// `vm.max_map_count`.
        limit: u64,
    },
    /// Whole pages only.
    #[error("{length} at {offset} are not whole pages of {page} B")]
    NotPages {
        /// Where the span starts.
        offset: Offset,
        /// How long it is.
        length: Length,
        /// The page size.
        page: u64,
    },
    /// The wished address is not a multiple of the page, or leaves the address space.
    #[error("address {address} refused for a region of {length}")]
    BadAddress {
        /// The wish.
        address: Address,
        /// Bytes of the region.
        length: Length,
    },
    /// Only ranges of the data section change between writable and read-only.
    #[error("{length} at {offset} do not lie in the data section")]
    NotData {
        /// Where the span starts.
        offset: Offset,
        /// How long it is.
        length: Length,
    },
    /// This process has no descriptor that may write the section.
    #[error("no writable descriptor for the {section} section")]
    NoWriter {
        /// The section.
        section: Section,
    },
    /// A [`crate::WritableBytes`] or a running write still uses part of the range.
    #[error("{length} at {offset} are being written by {writers} writer(s)")]
    InUse {
        /// Where the span starts.
        offset: Offset,
        /// How long it is.
        length: Length,
        /// How many writers overlap it.
        writers: usize,
    },
    /// The system refused for another reason.
    #[error("{call} of {length} at {offset}: {source}")]
    System {
        /// The call that failed.
        call: &'static str,
        /// Where the span starts.
        offset: Offset,
        /// How long it is.
        length: Length,
        /// The system's answer.
        source: io::Error,
    },
}

/// Reading or writing words or bytes was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// Not in the region.
    #[error(transparent)]
    Bounds(#[from] BoundsError),
    /// Words start and end at multiples of 8.
    #[error("{length} at {offset} are not whole words of {alignment} B")]
    NotAligned {
        /// Where the span starts.
        offset: Offset,
        /// How long it is.
        length: Length,
        /// What both must be multiples of.
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
    /// Outside of the alias or slice it went through.
    #[error("{length} at {offset} do not lie in the {held_length} at {held_offset} held")]
    OutsideHeld {
        /// Where the span starts.
        offset: Offset,
        /// How long it is.
        length: Length,
        /// Where what is held starts.
        held_offset: Offset,
        /// How long that is.
        held_length: Length,
    },
    /// The file ended early, or a read or write call failed.
    #[error("{call} of {length} at {offset}: {source}")]
    System {
        /// The call that failed.
        call: &'static str,
        /// Where the span starts.
        offset: Offset,
        /// How long it is.
        length: Length,
        /// The system's answer.
        source: io::Error,
    },
}
