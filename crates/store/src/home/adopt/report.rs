//! What an adoption sees and says.

use crate::format::header::RegionHeader;
use crate::format::ids::ObjectId;
use crate::tables::clients::{ClientRecord, ClientSlot};
use crate::tables::directory::Directory;

use crate::home::state::ClientAccounts;

/// An object or record that was dropped, with the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dropped {
    /// The object, if its id is known.
    pub id: Option<ObjectId>,
    /// The slot or record, and the fault.
    pub reason: String,
}

/// The result of adopting a region.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AdoptReport {
    /// The number of times a home has opened the region, including this one.
    pub life: u64,
    /// Sealed objects.
    pub objects: u32,
    /// Spilled objects.
    pub spilled: u32,
    /// Deleted objects that are still held.
    pub retiring: u32,
    /// Entries that a kill left half written: their seal was never confirmed.
    pub unfinished: u32,
    /// Damaged objects and records. Empty unless a process wrote to memory it does not own.
    pub dropped: Vec<Dropped>,
    /// Objects that stay, but without their names, which were damaged.
    pub unnamed: Vec<Dropped>,
    /// Objects that exist only to be brought to other nodes, each with its creator. The daemon
    /// deletes those of a client that ends.
    pub staged: Vec<(ClientSlot, ObjectId)>,
    /// Clients that have joined. The daemon watches them, and removes the dead ones.
    pub clients: Vec<ClientRecord>,
}

/// The state that decides which entries are valid.
#[derive(Clone, Copy)]
pub(super) struct SurveyContext<'a> {
    /// The header of the region.
    pub(super) header: &'a RegionHeader,
    /// The directory.
    pub(super) directory: &'a Directory,
    /// The accounts of the clients that have joined.
    pub(super) accounts: &'a ClientAccounts,
}
