//! Statistics of a region.

use farrow_memory::Length;

use super::{HoldSurvey, Home};
use crate::error::StoreError;
use crate::format::layout::{ENTRY_BYTES, INDEX_BYTES, LIFE_BYTES, USE_BYTES};
use crate::tables::grants::WITHDRAWN;

/// Fill level of a region. `capacity = used + granted + retiring + quarantine + free`, to the byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StoreStats {
    /// Bytes of the heap that are lent.
    pub capacity: Length,
    /// Bytes of the whole heap.
    pub capacity_max: Length,
    /// Bytes of blocks of sealed objects.
    pub used: Length,
    /// Bytes granted to clients and not yet sealed.
    pub granted: Length,
    /// Bytes granted to clients of other nodes that disconnected without cleaning them.
    pub quarantine: Length,
    /// Bytes of deleted objects that are still held.
    pub retiring: Length,
    /// Free bytes.
    pub free: Length,
    /// Free bytes in parts of pages, which cannot be granted.
    pub fragmented: Length,
    /// The longest range that can be granted.
    pub largest_free: Length,
    /// Sealed objects. Objects that clients sealed themselves count once they are registered: see
    /// [`Home::register_all`].
    pub objects: u32,
    /// Registered objects that clients sealed themselves, including retiring ones.
    pub client_objects: u32,
    /// Maximum number of objects that clients seal themselves.
    pub client_objects_max: u32,
    /// Deleted objects that are still held.
    pub objects_retiring: u32,
    /// Maximum number of objects sealed through the home, including retiring ones.
    pub objects_max: u32,
    /// Sealed objects with a name.
    pub names: u64,
    /// Free bytes in the name heap.
    pub name_bytes_free: Length,
    /// Clients that have joined.
    pub clients: u32,
    /// Maximum number of clients.
    pub clients_max: u32,
    /// Grants.
    pub grants: u32,
    /// Maximum number of grants.
    pub grants_max: u32,
    /// Holds: one for each object and client that holds it.
    pub holds: u64,
    /// Hold blocks assigned.
    pub hold_blocks: u32,
    /// Maximum number of hold blocks.
    pub hold_blocks_max: u32,
    /// Entry pages assigned, or retained for objects of disconnected clients.
    pub entry_pages: u32,
    /// Maximum number of entry pages.
    pub entry_pages_max: u32,
    /// Names reserved for objects in creation.
    pub reserved: u32,
    /// The number of times a home has opened the region.
    pub life: u64,
    /// Bytes of sealed objects that are held and thus cannot be evicted.
    pub held: Length,
    /// Pinned objects.
    pub objects_pinned: u32,
    /// Bytes of pinned objects, held or not.
    pub pinned: Length,
    /// Bytes that evicting every eligible object would free: `used` without blocks of objects that
    /// are held, pinned, retained for their creator, retiring, being restored or being spilled.
    pub evictable: Length,
    /// The part of `evictable` in replicas.
    pub evictable_replicas: Length,
    /// Spilled objects.
    pub objects_spilled: u32,
    /// Size of the spilled objects, as users see it.
    pub spilled: Length,
    /// Bytes of table records that objects use: entries, whole entry pages, lives, uses, names,
    /// index.
    pub records: Length,
}

impl Home {
    /// Statistics of the region. Scans every hold.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn stats(&self) -> Result<StoreStats, StoreError> {
        Ok(self.stats_of(&self.survey(HoldSurvey::default())?))
    }

    /// Statistics of the region, with what a survey found to be in use.
    #[must_use]
    pub fn stats_of(&self, survey: &HoldSurvey) -> StoreStats {
        let layout = self.layout();
        let free = self.space.free_bytes();
        let quarantine = self.quarantined_bytes();
        let evictable = self.blocks.sealed_bytes().saturating_sub(survey.staying.bytes());
        StoreStats {
            capacity: self.capacity(),
            capacity_max: self.capacity_max(),
            used: Length(self.blocks.sealed_bytes()),
            granted: Length(self.granted_bytes().saturating_sub(quarantine)),
            quarantine: Length(quarantine),
            retiring: Length(self.blocks.retiring_bytes()),
            free: Length(free),
            fragmented: Length(free - self.space.interior_bytes()),
            largest_free: Length(self.space.largest()),
            objects: self.objects,
            client_objects: self.locals.known.len() as u32,
            client_objects_max: layout.client_entries(),
            objects_retiring: self.retiring.len() as u32,
            objects_max: layout.objects_max,
            names: self.names.count(),
            name_bytes_free: Length(self.names.free_bytes()),
            clients: self.clients.records().count() as u32,
            clients_max: layout.clients_max,
            grants: self.grants.count(),
            grants_max: layout.grants_max,
            holds: survey.holds,
            hold_blocks: self.holds.assigned(),
            hold_blocks_max: layout.hold_blocks_max,
            entry_pages: self.locals.area.used(),
            entry_pages_max: layout.entry_pages_max,
            reserved: self.reserved.len() as u32,
            life: self.life,
            held: Length(survey.held.bytes()),
            objects_pinned: self.pins.count(),
            pinned: Length(survey.pinned.bytes()),
            evictable: Length(evictable),
            evictable_replicas: Length(survey.replicas.bytes().min(evictable)),
            objects_spilled: self.spilled.len() as u32,
            spilled: Length(self.spilled.bytes()),
            records: Length(self.record_bytes()),
        }
    }

    /// Bytes granted to clients.
    pub(super) fn granted_bytes(&self) -> u64 {
        self.grants.bytes().saturating_sub(self.grants.bytes_of(WITHDRAWN))
    }

    fn record_bytes(&self) -> u64 {
        let layout = self.layout();
        let in_page = u64::from(layout.client_entries_in_page());
        let page = layout.page.0 + in_page * (LIFE_BYTES + USE_BYTES);
        let entries = u64::from(self.directory.used()) - self.directory.free_slots().len() as u64;
        let names = layout.names.length.0 - self.names.free_bytes();
        u64::from(self.locals.area.used()) * page
            + entries * (ENTRY_BYTES + USE_BYTES)
            + self.names.count() * INDEX_BYTES * layout.index.len() as u64
            + names
    }
}
