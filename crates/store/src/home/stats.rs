//! Numbers of a region, for people and for tests.

use std::collections::BTreeSet;

use farrow_memory::Length;

use super::Home;
use crate::books::space::Run;
use crate::error::StoreError;
use crate::format::entry::EntryState;
use crate::format::ids::Slot;
use crate::format::layout::{ENTRY_BYTES, INDEX_BYTES, LIFE_BYTES, USE_BYTES};

/// How full a region is. `capacity = used + granted + retiring + quarantine + free`, to the byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StoreStats {
    /// Bytes of the heap.
    pub capacity: Length,
    /// Bytes of blocks of sealed objects.
    pub used: Length,
    /// Bytes granted to clients and not yet sealed.
    pub granted: Length,
    /// Bytes that were granted to clients of other nodes which went without having cleaned them.
    pub quarantine: Length,
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
    /// Entry pages assigned, or retained for objects of clients that went.
    pub entry_pages: u32,
    /// Most entry pages.
    pub entry_pages_max: u32,
    /// Names reserved for objects in creation.
    pub reserved: u32,
    /// How often a home has opened the region.
    pub life: u64,
    /// Bytes of sealed objects that somebody holds, and that so cannot be evicted.
    pub held: Length,
    /// Pinned objects.
    pub objects_pinned: u32,
    /// Bytes of pinned objects, held or not.
    pub pinned: Length,
    /// Bytes that would be free if all were evicted that may be: `used` less what is part of an
    /// object that is held, pinned, or still being taken over by its creator.
    pub evictable: Length,
    /// Objects that are out of memory.
    pub objects_spilled: u32,
    /// Bytes that their users see.
    pub spilled: Length,
    /// Bytes of tables that objects take: entries, whole entry pages, lives, uses, names, index.
    pub records: Length,
}

impl Home {
    /// How full the region is. Looks at every hold.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn stats(&self) -> Result<StoreStats, StoreError> {
        let layout = self.layout();
        let free = self.space.free_bytes();
        let quarantine = self.quarantined_bytes();
        let held = self.holds.held()?;
        let held = self.blocks_of_slots(held.into_iter().map(Slot))?;
        let pinned = self.blocks_of_slots(self.pins.iter())?;
        let mut staying = self.blocks_of_slots(self.retained.iter().map(|(slot, _)| slot))?;
        // A deleted object that is held keeps what it shares with others.
        staying.extend(self.blocks_of_slots(self.retiring.iter().copied().map(Slot))?);
        staying.extend(self.loading_runs());
        staying.extend(self.blocks_of_slots(self.spilling.iter().copied().map(Slot))?);
        staying.extend(held.iter().chain(&pinned));
        let sum = |runs: &BTreeSet<Run>| Length(runs.iter().map(|run| run.len()).sum());
        let evictable = self.blocks.sealed_bytes().saturating_sub(sum(&staying).0);
        Ok(StoreStats {
            capacity: layout.heap.length,
            used: Length(self.blocks.sealed_bytes()),
            granted: Length(self.grants.bytes().saturating_sub(quarantine)),
            quarantine: Length(quarantine),
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
            held: sum(&held),
            objects_pinned: self.pins.count(),
            pinned: sum(&pinned),
            evictable: Length(evictable),
            objects_spilled: self.spilled.len() as u32,
            spilled: Length(self.spilled.values().sum()),
            records: Length(self.record_bytes()),
        })
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

    /// Blocks of sealed objects that are also blocks of the objects in `slots`; each once.
    fn blocks_of_slots(
        &self,
        slots: impl Iterator<Item = Slot>,
    ) -> Result<BTreeSet<Run>, StoreError> {
        let mut runs = BTreeSet::new();
        let is_sealed = |run: &Run| self.blocks.get(*run).is_some_and(|block| block.sealed > 0);
        for slot in slots {
            let slot = Slot(self.locals.moved.get(&slot.0).copied().unwrap_or(slot.0));
            if let Some(run) = self.locals.blocks.get(&slot.0) {
                runs.extend(run.filter(is_sealed));
            } else if slot.0 < self.directory.used()
                && matches!(
                    self.directory.sequence(slot)?.state(),
                    EntryState::Sealed | EntryState::Retiring
                )
            {
                let entry = self.directory.entry(slot)?;
                runs.extend(self.runs_of(slot, &entry)?.into_iter().filter(is_sealed));
            }
        }
        Ok(runs)
    }
}
