//! The daemon's side of a region: the only allocator, and the only writer of the directory.

mod adopt;
mod announce;
mod check;
mod clients;
mod evict;
mod namespaces;
mod objects;
mod overview;
mod room;
mod spill;
mod state;
mod stats;
mod survey;
mod withdraw;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use farrow_memory::{FabricKind, Length, Offset, Region};

pub use adopt::{AdoptReport, Dropped, Unfinished};
pub use clients::{Quarantined, RECLAIMED_MAX};
pub use objects::{
    Deleted, EntryRegistration, LabelledObject, Reclaimed, Replacement, ReplicaSeal, ReplicasFirst,
    SealRequest,
};
pub use overview::{ClientShare, HEAP_CELLS_MAX, HELD_LISTED_MAX, HeapCell, HeldObjects};
pub use room::{Freed, Room};
pub use spill::SpillPlan;
pub use stats::StoreStats;
pub use survey::HoldSurvey;
pub use withdraw::lent_spans;

use crate::alloc::blocks::Blocks;
use crate::alloc::space::{Run, SpaceAllocator};
use crate::alloc::victim_order::VictimOrders;
use crate::error::StoreError;
use crate::events::EventRing;
use crate::failpoint;
use crate::format::entry::Entry;
use crate::format::hash::HashKey;
use crate::format::header::{MAGIC_MAKING, RegionHeader};
use crate::format::ids::{ObjectId, RegionUid, Slot};
use crate::format::layout::Layout;
use crate::format::options::RegionOptions;
use crate::tables::clients::{ClientSlot, ClientTable, random};
use crate::tables::control::Control;
use crate::tables::directory::Directory;
use crate::tables::grants::{Grants, WITHDRAWN};
use crate::tables::holds::HoldArea;
use crate::tables::names::Names;
use crate::tables::namespaces::NamespaceTable;
use crate::tables::pins::Pins;
use crate::tables::slot_set::SlotSet;
#[cfg(test)]
use crate::tests::poison;
use clients::Reserved;
use objects::{BatchLooks, Retained};
use state::{ClientAccounts, Locals, Restoring, Spilled};

/// A region opened by the one process that may change it.
///
/// A home has no thread, socket or clock: the daemon calls it and passes the time. Changes are in
/// the region before a call returns. Private state (which bytes are free, which blocks objects
/// share) is rebuilt from the region by [`Home::adopt`], at whatever point the home was killed.
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
    pub(crate) control: Control,
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
    /// Nanoseconds since 1970, as the daemon set last.
    now_ns: u64,
    /// Blocks of objects besides the primary one. The list in the data section is not read again
    /// after the seal.
    extras: BTreeMap<u32, Box<[Run]>>,
    /// Slots of objects that wait for the release of their last hold.
    retiring: SlotSet,
    /// Slots of objects whose creator still uses their memory and has not published its hold yet.
    retained: Retained,
    /// Objects that clients sealed themselves.
    locals: Locals,
    batch_looks: BatchLooks,
    /// Objects that must not be evicted.
    pins: Pins,
    /// Parts of the orders in which objects are evicted.
    orders: VictimOrders,
    /// Slots of sealed replicas.
    replicas: BTreeSet<u32>,
    /// Slots of objects whose names lead to newer objects, until they retire.
    replaced: BTreeSet<u32>,
    /// Slots of objects that are being spilled to files.
    spilling: BTreeSet<u32>,
    spilled: Spilled,
    /// Memory for objects that are being restored.
    loading: BTreeMap<ObjectId, Restoring>,
    /// Restore times by slot. A restore counts as a use, but leaves no use stamp.
    restored_at: BTreeMap<u32, u64>,
    /// Number of sealed objects.
    objects: u32,
    accounts: ClientAccounts,
    namespaces: NamespaceTable,
    /// Bytes that became free since this home was opened.
    freed_bytes: u64,
    /// Clients that disconnected and whose memory waits for their nodes.
    quarantined: BTreeSet<ClientSlot>,
    /// Reserved names of objects in creation.
    reserved: Reserved,
}

impl Home {
    /// Create a region over any previous content. The region must be as long as [`Layout::new`] of
    /// the same options computes.
    ///
    /// # Errors
    /// [`StoreError::Format`] for options out of range or a mapped region of another length;
    /// [`StoreError::Access`] if the region is not mapped with the access of a home.
    pub fn create(
        region: Arc<Region>,
        options: &RegionOptions,
        now_ns: u64,
    ) -> Result<Self, StoreError> {
        Self::create_lending(region, options, options.capacity, now_ns)
    }

    /// As [`Home::create`], but lends only this many bytes of the heap at first. The pages of the
    /// others are never touched and need not be allocated.
    ///
    /// # Errors
    /// As [`Home::create`].
    pub fn create_lending(
        region: Arc<Region>,
        options: &RegionOptions,
        lent: Length,
        now_ns: u64,
    ) -> Result<Self, StoreError> {
        let layout = Layout::new(options)?;
        let header = RegionHeader {
            uid: RegionUid(random()?),
            key: HashKey([random()?, random()?]),
            created_at_ns: now_ns,
            layout,
        };
        Self::create_as(region, header, lent)
    }

    pub(crate) fn create_as(
        region: Arc<Region>,
        header: RegionHeader,
        lent: Length,
    ) -> Result<Self, StoreError> {
        header.compare(region.geometry())?;
        let control = Control::new(region);
        let first_word = control.load(Offset(0))?;
        control.store(Offset(0), MAGIC_MAKING)?;
        failpoint!("create.making");
        // A fresh tmpfs file is all zeros. Any other or reused memory is zeroed here.
        let is_fresh = first_word == 0 && control.region().fabric().kind() == FabricKind::Shm;
        if !is_fresh {
            for table in header.layout.tables().iter().filter(|table| table.is_control()) {
                control.zero(table.span)?;
                failpoint!("create.tables");
            }
        }
        let heap = header.layout.heap;
        let start = lent.0.checked_next_multiple_of(header.layout.page.0).unwrap_or(u64::MAX);
        if start < heap.length.0 {
            let end = heap.offset.0 + heap.length.0;
            let run = Run { start: heap.offset.0 + start, end };
            Grants::write_first(&control, &header.layout, WITHDRAWN, run)?;
        }
        failpoint!("create.withdrawn");
        header.write(&control)?;
        let (home, _) = Self::open(control, true, None)?;
        Ok(home)
    }

    /// The mapped region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        self.control.region()
    }

    /// Offsets and sizes of all tables.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.header.layout
    }

    /// The unique id of this region.
    #[must_use]
    pub fn uid(&self) -> RegionUid {
        self.header.uid
    }

    /// The number of times a home has opened this region: 1 in the home that created it.
    #[must_use]
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Creation time: nanoseconds since 1970, by the clock of the home that created the region.
    #[must_use]
    pub fn created_at_ns(&self) -> u64 {
        self.header.created_at_ns
    }

    /// All blocks of the object in `slot`.
    fn runs_of(&self, slot: Slot, entry: &Entry) -> Result<Vec<Run>, StoreError> {
        let primary = crate::tables::grants::run_of(entry.primary)
            .ok_or(StoreError::Corrupt { slot, reason: "primary block leaves 64 bits" })?;
        let extra = self.extras.get(&slot.0).map(AsRef::as_ref).unwrap_or_default();
        Ok(std::iter::once(primary).chain(extra.iter().copied()).collect())
    }

    /// The bytes of an entry's name.
    fn name_of(&self, entry: &Entry) -> Result<Vec<u8>, StoreError> {
        let mut name = vec![0; entry.name.length.0 as usize];
        self.region().copy_out(entry.name.offset, &mut name)?;
        Ok(name)
    }

    fn out_of_memory(&self, requested: Length) -> StoreError {
        StoreError::OutOfMemory {
            requested,
            free: Length(self.space.free_bytes()),
            largest: Length(self.space.largest()),
        }
    }

    /// Number of sealed objects, including registered ones that clients sealed themselves.
    #[must_use]
    pub fn objects(&self) -> u32 {
        self.objects
    }

    /// Number of objects, in memory and spilled.
    #[must_use]
    pub fn objects_with_spilled(&self) -> u32 {
        self.objects.saturating_add(self.spilled.len() as u32)
    }

    /// Bytes of the blocks of sealed objects.
    #[must_use]
    pub fn object_bytes(&self) -> Length {
        Length(self.blocks.sealed_bytes())
    }

    /// Number of names, including reserved ones.
    #[must_use]
    pub fn names(&self) -> u64 {
        self.names.count()
    }

    /// The free bytes, and the longest range that can be granted.
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

    /// Overwrite freed memory, so that a test detects a late reader.
    #[cfg(test)]
    fn poison(&self, run: Run) -> Result<(), StoreError> {
        if poison::is_on() {
            let bytes = vec![poison::BYTE; run.len() as usize];
            self.region().write_by_call(farrow_memory::Offset(run.start), &bytes)?;
        }
        Ok(())
    }
}
