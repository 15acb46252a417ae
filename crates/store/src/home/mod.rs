//! The daemon's side of a region: it alone allocates, and it alone writes the directory.

mod accounts;
mod adopt;
mod adopt_local;
mod adopt_names;
mod announce;
mod check;
mod delete;
mod evict;
mod inherit;
mod keep;
mod lend;
mod local;
mod namespaces;
mod overview;
mod quarantine;
mod replica;
mod reserved;
mod restore;
mod room;
mod seal;
mod settle;
mod spill;
mod stats;
mod takeover;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use farrow_memory::{FabricKind, Length, Offset, Region};

use accounts::ClientAccounts;
pub use adopt::{AdoptReport, Dropped};
pub use delete::{Deleted, Reclaimed};
pub use inherit::Unfinished;
pub(crate) use overview::HoldsByClient;
pub use overview::{ClientShare, HEAP_CELLS_MAX, HeapCell};
pub use quarantine::Quarantined;
pub use replica::{ReplicaSeal, ReplicasFirst};
pub use room::{Freed, Room};
pub use seal::SealRequest;
pub(crate) use settle::{inside, outside};
pub use spill::SpillPlan;
pub use stats::StoreStats;

use crate::books::blocks::Blocks;
use crate::books::clients::{ClientSlot, ClientTable, random};
use crate::books::control::Control;
use crate::books::directory::Directory;
use crate::books::grants::Grants;
use crate::books::holds::HoldArea;
use crate::books::names::Names;
use crate::books::namespaces::NamespaceTable;
use crate::books::pins::Pins;
use crate::books::space::{Run, SpaceAllocator};
use crate::error::StoreError;
use crate::events::EventRing;
use crate::failpoint;
use crate::format::entry::Entry;
use crate::format::hash::HashKey;
use crate::format::header::{MAGIC_MAKING, RegionHeader};
use crate::format::ids::{ObjectId, RegionUid, Slot};
use crate::format::layout::Layout;
use crate::format::options::RegionOptions;
#[cfg(test)]
use crate::tests::poison;
use keep::Retained;
use local::Locals;
use reserved::Reserved;
use restore::Restoring;

/// A region opened by the one process that may change it.
///
/// It has no thread, no socket and no clock: the daemon calls it, and says what time it is. What
/// it does is in the region before a call returns; what it keeps in private memory (which bytes
/// are free, which blocks objects share) can be rebuilt from there by [`Home::adopt`], whenever
/// it was killed.
///
/// ```
/// use std::sync::Arc;
/// use farrow_memory::{Access, Length, Region, Span, shm::ShmFabric};
/// use farrow_store::{Home, Layout, ObjectKind, RegionOptions, SealRequest, Target};
///
/// let options = RegionOptions::for_capacity(Length(1 << 20));
/// let fabric = ShmFabric::memfd("example", Layout::new(&options)?.geometry)?;
/// let region = Arc::new(Region::map(Arc::new(fabric), Access::Home, None)?);
/// let mut home = Home::create(region, &options, 0)?;
///
/// let client = home.client_join(std::process::id(), 0, 0)?.client;
/// let extent = home.grant(client, Length(4096), Length(1 << 16))?;
/// // ... the client writes its bytes into the extent ...
/// let primary = Span::new(extent.offset, Length(128));
/// let id = home.seal(client, &SealRequest::bytes(primary, Length(5), Some("greeting")), 0)?;
/// assert_eq!(home.find(Target::Name("greeting"))?.id, id);
/// assert!(home.delete(Target::Id(id))?.freed_now);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Home {
    control: Control,
    header: RegionHeader,
    life: u64,
    clients: ClientTable,
    holds: HoldArea,
    grants: Grants,
    space: SpaceAllocator,
    blocks: Blocks,
    directory: Directory,
    names: Names,
    events: EventRing,
    /// Nanoseconds since 1970, as the daemon said last.
    now_ns: u64,
    /// Blocks besides the primary one, of objects that have such. The list in the data section
    /// is not looked at again after the seal.
    extras: BTreeMap<u32, Box<[Run]>>,
    /// Slots of objects that wait for their last hold to go.
    retiring: BTreeSet<u32>,
    /// Slots of objects whose creator goes on using their memory and has not held them yet.
    retained: Retained,
    /// Objects that clients have sealed by themselves.
    locals: Locals,
    /// Objects that may not be evicted.
    pins: Pins,
    /// Slots of objects that are being written to files.
    spilling: BTreeSet<u32>,
    /// Slots of objects that are out of memory, with the bytes that their users see.
    spilled: BTreeMap<u32, u64>,
    /// Memory for objects that are coming back.
    loading: BTreeMap<ObjectId, Restoring>,
    /// When objects came back: a use, of which nobody else has left a stamp yet.
    restored_at: BTreeMap<u32, u64>,
    /// Sealed objects.
    objects: u32,
    accounts: ClientAccounts,
    namespaces: NamespaceTable,
    /// Bytes that became free since this home was opened.
    freed_bytes: u64,
    /// Clients that went, and whose memory waits for their nodes.
    quarantined: BTreeSet<ClientSlot>,
    /// Names of objects in creation.
    reserved: Reserved,
}

impl Home {
    /// Make a region, over whatever lay there. The region is as long as
    /// [`Layout::new`] of the same options says.
    ///
    /// # Errors
    /// [`StoreError::Format`] for options out of range or a mapped region of another length;
    /// [`StoreError::Access`] if the region is not mapped with the access of a home.
    pub fn create(
        region: Arc<Region>,
        options: &RegionOptions,
        now_ns: u64,
    ) -> Result<Self, StoreError> {
        let layout = Layout::new(options)?;
        let header = RegionHeader {
            uid: RegionUid(random()?),
            key: HashKey([random()?, random()?]),
            created_at_ns: now_ns,
            layout,
        };
        Self::create_as(region, header)
    }

    pub(crate) fn create_as(region: Arc<Region>, header: RegionHeader) -> Result<Self, StoreError> {
        header.compare(region.geometry())?;
        let control = Control::new(region);
        let first_word = control.load(Offset(0))?;
        control.store(Offset(0), MAGIC_MAKING)?;
        failpoint!("create.making");
        // A file of tmpfs starts as zeros; anything else, or anything used, is made so.
        let is_fresh = first_word == 0 && control.region().fabric().kind() == FabricKind::Shm;
        if !is_fresh {
            for table in header.layout.tables().iter().filter(|table| table.is_control()) {
                control.zero(table.span)?;
                failpoint!("create.tables");
            }
        }
        header.write(&control)?;
        let (home, _) = Self::open(control, true, None)?;
        Ok(home)
    }

    /// Open a region that a former home left, by whatever end: keep what is sealed, go on with
    /// what is retiring, keep what is granted to clients that may still live, free the rest.
    ///
    /// The region must have no other home; the daemon sees to that with a lock on its file.
    ///
    /// # Errors
    /// [`StoreError::Format`] if this is not a region, or not one for this program;
    /// [`StoreError::Inconsistent`] if the tables contradict each other in a way that no kill of
    /// a home can bring about.
    pub fn adopt(region: Arc<Region>) -> Result<(Self, AdoptReport), StoreError> {
        Self::open(Control::new(region), false, None)
    }

    /// As [`Home::adopt`], told by the former home what is not in the region.
    ///
    /// # Errors
    /// As [`Home::adopt`].
    pub fn adopt_from(
        region: Arc<Region>,
        unfinished: &Unfinished,
    ) -> Result<(Self, AdoptReport), StoreError> {
        Self::open(Control::new(region), false, Some(unfinished))
    }

    /// The mapped region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        self.control.region()
    }

    /// Where everything lies.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.header.layout
    }

    /// Which region this is.
    #[must_use]
    pub fn uid(&self) -> RegionUid {
        self.header.uid
    }

    /// How often a home has opened this region: 1 in the home that made it.
    #[must_use]
    pub fn life(&self) -> u64 {
        self.life
    }

    /// When the region was made: nanoseconds since 1970, by the clock of the home that made it.
    #[must_use]
    pub fn created_at_ns(&self) -> u64 {
        self.header.created_at_ns
    }

    /// All blocks of the object in `slot`.
    fn runs_of(&self, slot: Slot, entry: &Entry) -> Result<Vec<Run>, StoreError> {
        let primary = crate::books::grants::run_of(entry.primary)
            .ok_or(StoreError::Corrupt { slot, reason: "primary block leaves 64 bits" })?;
        let extra = self.extras.get(&slot.0).map(AsRef::as_ref).unwrap_or_default();
        Ok(std::iter::once(primary).chain(extra.iter().copied()).collect())
    }

    /// Bytes of a name.
    fn name_of(&self, entry: &Entry) -> Result<Vec<u8>, StoreError> {
        let mut name = vec![0; entry.name.length.0 as usize];
        self.region().copy_out(entry.name.offset, &mut name)?;
        Ok(name)
    }

    fn out_of_memory(&self, asked: Length) -> StoreError {
        StoreError::OutOfMemory {
            asked,
            free: Length(self.space.free_bytes()),
            largest: Length(self.space.largest()),
        }
    }

    /// Sealed objects, those that clients sealed by themselves once they are registered.
    #[must_use]
    pub fn objects(&self) -> u32 {
        self.objects
    }

    /// What became free since this home was opened: when any of it has grown, a request that did
    /// not fit may fit.
    #[must_use]
    pub fn freed(&self) -> Freed {
        Freed {
            bytes: self.freed_bytes,
            slots: self.directory.vacated(),
            names: self.names.erased(),
            records: self.grants.freed_records(),
        }
    }

    /// Bytes that are free, and of them the longest range that can be granted.
    #[must_use]
    pub fn free_bytes(&self) -> (Length, Length) {
        (Length(self.space.free_bytes()), Length(self.space.largest()))
    }

    fn free_run(&mut self, run: Run) -> Result<(), StoreError> {
        #[cfg(test)]
        self.poison(run)?;
        self.freed_bytes = self.freed_bytes.saturating_add(run.len());
        self.space.free(run).map_err(|error| StoreError::Inconsistent(format!("heap: {error}")))
    }

    /// Overwrite what becomes free, so that a test sees whoever still reads it.
    #[cfg(test)]
    fn poison(&self, run: Run) -> Result<(), StoreError> {
        if poison::is_on() {
            let bytes = vec![poison::BYTE; run.len() as usize];
            self.region().write_by_call(farrow_memory::Offset(run.start), &bytes)?;
        }
        Ok(())
    }
}
