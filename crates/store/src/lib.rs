//! Objects in a region: allocation, directory, names and holds.
//!
//! A *region* is memory that one process, its *home*, shares with clients. [`Home`] is the home's
//! side: it grants ranges to clients, seals written ranges into objects, deletes and reclaims.
//! [`Reader`] and [`HoldTable`] are a client's side: they find an object, hold it and read it in
//! place, all by loads and stores of mapped memory. `docs/formats/region.md` specifies the byte
//! layout.
//!
//! This crate has no socket, no thread, no clock, and knows nothing of Arrow. The daemon
//! (`farrow-cluster`) owns a [`Home`]; the client (`farrow`) owns a [`Reader`].
#![forbid(unsafe_code)]

mod alloc;
mod client;
pub mod coherence;
mod error;
mod events;
#[cfg(any(test, feature = "failpoints"))]
pub mod failpoints;
mod format;
mod hazard;
mod home;
#[cfg(test)]
mod models;
mod seqlock;
mod tables;
#[cfg(test)]
mod tests;

pub use alloc::blocks::Usage;
pub use alloc::eviction::{ByHand, Evicted, EvictionCandidate, EvictionPolicy, Lru, Need, Within};
pub use alloc::space::{Run, SpaceAllocator, SpaceError};
pub use client::entry_table::EntryTable;
pub use client::hold_table::{Held, HeldBytes, HoldTable};
pub use client::reader::{BlockLocation, DirectoryItem, Reader, Whereabouts};
pub use client::refreshed::REFRESHED_MARKS;
pub use client::uses::UseStamps;
pub use coherence::clean;
pub use error::{FormatError, StoreError};
pub use events::{Event, EventCursor, EventKind, Seen};
pub use format::entry::{Entry, encode_extra};
pub use format::full_name::{namespace_of, own_name};
pub use format::header::{FORMAT_VERSION, watched_bit};
pub use format::ids::{
    Generation, InvalidObjectId, NamespaceId, ObjectId, ObjectKind, RegionUid, Slot, Target,
};
pub use format::layout::{HEADER_BYTES, Layout};
pub use format::metadata::{METADATA_BYTES_MAX, METADATA_KEY_BYTES_MAX, Metadata, MetadataError};
pub use format::options::{
    BLOCK_BYTES, CAPACITY_MAX, HUGE_GRANT_BYTES, NAME_BYTES_MAX, NAMESPACE_NAME_BYTES_MAX,
    NAMESPACES_MAX, OBJECTS_MAX, RECORDS_MAX, RegionOptions, WRITERS_MAX,
};
pub use format::spill_file::{SPILL_HEAD_BYTES_MIN, SPILL_VERSION, SpillFault, SpillHead};
pub use home::{
    AdoptReport, ClientShare, Deleted, Dropped, EntryRegistration, Freed, HEAP_CELLS_MAX,
    HELD_LISTED_MAX, HeapCell, HeldObjects, HoldSurvey, Home, LabelledObject, Quarantined,
    RECLAIMED_MAX, Reclaimed, Replacement, ReplicaSeal, ReplicasFirst, Room, SealRequest,
    SpillPlan, StoreStats, Unfinished, lent_spans,
};
pub use tables::clients::{ClientRecord, ClientSlot, Joined, Newcomer, RemoteClient};
pub use tables::cluster::CLUSTER_BYTES_MAX;
pub use tables::names::{check_name, full_name};
pub use tables::namespaces::{Namespace, NamespaceOptions};

/// Call the test hook of a named point where a test may kill. Expands to nothing outside of tests.
macro_rules! failpoint {
    ($name:literal) => {
        #[cfg(any(test, feature = "failpoints"))]
        $crate::failpoints::hit($name);
    };
    (client $name:literal) => {
        #[cfg(any(test, feature = "failpoints"))]
        $crate::failpoints::hit_by_client($name);
    };
    (reader $name:literal) => {
        #[cfg(any(test, feature = "failpoints"))]
        $crate::failpoints::hit_by_reader($name);
    };
}
pub(crate) use failpoint;
