//! Objects in a region: space, directory, names, holds.
//!
//! A *region* is memory that one process, its *home*, lends to many. [`Home`] is the home's side:
//! it grants ranges to clients, seals what they wrote into objects, deletes, and reclaims.
//! [`Reader`] and [`HoldTable`] are a client's side: find an object, hold it, read it in place,
//! all by loads and stores of mapped memory. The bytes are laid out in `docs/formats/region.md`.
//!
//! This crate has no socket, no thread, no clock, and knows nothing of Arrow. The daemon
//! (`farrow-cluster`) owns a [`Home`]; the client (`farrow`) owns a [`Reader`].
#![forbid(unsafe_code)]

mod blocks;
mod client_entry;
mod client_pages;
mod clients;
mod control;
mod directory;
mod entry;
mod entry_area;
mod entry_table;
mod error;
mod events;
mod eviction;
#[cfg(any(test, feature = "failpoints"))]
pub mod failpoints;
mod grants;
mod hash;
mod hazard;
mod header;
mod hold_table;
mod holds;
mod home;
mod ids;
mod layout;
mod metadata;
#[cfg(test)]
mod models;
mod names;
mod namespaces;
mod options;
mod pins;
mod reader;
mod seqlock;
mod space;
mod spill_file;
#[cfg(test)]
mod tests;
mod uses;

pub use blocks::Usage;
pub use clients::{ClientRecord, ClientSlot, Joined};
pub use entry::{Entry, encode_extra};
pub use entry_table::EntryTable;
pub use error::{FormatError, StoreError};
pub use events::{Event, EventCursor, EventKind, Seen};
pub use eviction::{ByHand, Candidate, Evicted, EvictionPolicy, Lru, Need, Within};
pub use header::FORMAT_VERSION;
pub use hold_table::{Held, HoldTable};
pub use home::{
    AdoptReport, ClientShare, Deleted, Dropped, HEAP_CELLS_MAX, HeapCell, Home, Reclaimed,
    SealRequest, SpillPlan, StoreStats, Unfinished,
};
pub use ids::{
    Generation, InvalidObjectId, NamespaceId, ObjectId, ObjectKind, RegionUid, Slot, Target,
};
pub use layout::Layout;
pub use metadata::{METADATA_BYTES_MAX, METADATA_KEY_BYTES_MAX, Metadata, MetadataError};
pub use names::{check_name, full_name, own_name};
pub use namespaces::{Namespace, NamespaceOptions};
pub use options::{
    BLOCK_BYTES, CAPACITY_MAX, HUGE_GRANT_BYTES, NAME_BYTES_MAX, NAMESPACE_NAME_BYTES_MAX,
    NAMESPACES_MAX, OBJECTS_MAX, RECORDS_MAX, RegionOptions, WRITERS_MAX,
};
pub use reader::{Listed, Place, Reader, Whereabouts};
pub use space::{Run, SpaceAllocator, SpaceError};
pub use spill_file::{SPILL_HEAD_BYTES_MIN, SPILL_VERSION, SpillFault, SpillHead};
pub use uses::UseStamps;

/// Pass a named place where a test may kill. Nothing outside of tests.
macro_rules! failpoint {
    ($name:literal) => {
        #[cfg(any(test, feature = "failpoints"))]
        $crate::failpoints::hit($name);
    };
}
pub(crate) use failpoint;
