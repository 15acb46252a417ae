//! Numbers of a region, for people and for tests.

use farrow_memory::Length;

use super::Home;
use crate::error::StoreError;

/// How full a region is. `capacity = used + granted + retiring + free`, to the byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StoreStats {
    /// Bytes of the heap.
    pub capacity: Length,
    /// Bytes of blocks of sealed objects.
    pub used: Length,
    /// Bytes granted to clients and not yet sealed.
    pub granted: Length,
    /// Bytes of deleted objects that somebody still holds.
    pub retiring: Length,
    /// Bytes free.
    pub free: Length,
    /// Of the free bytes, those in parts of pages that cannot be granted.
    pub fragmented: Length,
    /// The longest range that can be granted.
    pub largest_free: Length,
    /// Sealed objects; of those that clients sealed by themselves, the ones the home knows: see
    /// [`Home::register_all`].
    pub objects: u32,
    /// Of those, the ones that clients sealed by themselves, those retiring included.
    pub client_objects: u32,
    /// Most objects that clients seal by themselves.
    pub client_objects_max: u32,
    /// Deleted objects that somebody still holds.
    pub objects_retiring: u32,
    /// Most objects that are sealed through the home, retiring ones included.
    pub objects_max: u32,
    /// Sealed objects with a name.
    pub names: u64,
    /// Bytes for names that are free.
    pub name_bytes_free: Length,
    /// Clients that have joined.
    pub clients: u32,
    /// Most clients.
    pub clients_max: u32,
    /// Grants.
    pub grants: u32,
    /// Most grants.
    pub grants_max: u32,
    /// Holds: one for each object and client that holds it.
    pub holds: u64,
    /// Hold blocks assigned.
    pub hold_blocks: u32,
    /// Most hold blocks.
    pub hold_blocks_max: u32,
    /// Entry pages assigned, or kept for objects of clients that went.
    pub entry_pages: u32,
    /// Most entry pages.
    pub entry_pages_max: u32,
    /// Names reserved for objects in creation.
    pub reserved: u32,
    /// How often a home has opened the region.
    pub life: u64,
}

impl Home {
    /// How full the region is. Looks at every hold.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn stats(&self) -> Result<StoreStats, StoreError> {
        let layout = self.layout();
        let free = self.space.free_bytes();
        Ok(StoreStats {
            capacity: layout.heap.length,
            used: Length(self.blocks.sealed_bytes()),
            granted: Length(self.grants.bytes()),
            retiring: Length(self.blocks.retiring_bytes()),
            free: Length(free),
            fragmented: Length(free - self.space.interior_bytes()),
            largest_free: Length(self.space.largest()),
            objects: self.objects,
            client_objects: self.locals.blocks.len() as u32,
            client_objects_max: layout.client_entries(),
            objects_retiring: self.retiring.len() as u32,
            objects_max: layout.objects_max,
            names: self.names.count(),
            name_bytes_free: Length(self.names.free_bytes()),
            clients: self.clients.records().count() as u32,
            clients_max: layout.clients_max,
            grants: self.grants.count(),
            grants_max: layout.grants_max,
            holds: self.holds.count()?,
            hold_blocks: self.holds.assigned(),
            hold_blocks_max: layout.hold_blocks_max,
            entry_pages: self.locals.area.used(),
            entry_pages_max: layout.entry_pages_max,
            reserved: self.reserved.len() as u32,
            life: self.life,
        })
    }
}
