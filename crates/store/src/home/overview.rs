//! Clients and heap usage, for monitoring.

use std::collections::BTreeSet;

use farrow_memory::Length;

use super::Home;
use crate::alloc::space::Run;
use crate::error::StoreError;
use crate::format::entry::EntryState;
use crate::format::ids::Slot;
use crate::tables::clients::ClientRecord;
use crate::tables::grants::WITHDRAWN;

/// Maximum number of cells in a heap picture.
pub const HEAP_CELLS_MAX: u32 = 4096;

/// Usage of one client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientShare {
    /// Its record.
    pub record: ClientRecord,
    /// Bytes granted to it and not sealed.
    pub granted: Length,
    /// Objects that it holds.
    pub holds: u64,
}

/// Bytes by use in one of the equal parts of the heap; they add up to the part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeapCell {
    /// Free.
    pub free: u64,
    /// Granted and not sealed.
    pub granted: u64,
    /// Not lent.
    pub withdrawn: u64,
    /// Of objects that are held under a directory slot.
    pub held: u64,
    /// All other objects. Includes those that clients sealed themselves, held or not.
    pub used: u64,
}

impl Home {
    /// Usage of all clients. Scans every hold.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn client_shares(&self) -> Result<Vec<ClientShare>, StoreError> {
        let holds = self.holds.by_client()?;
        Ok(self
            .clients
            .records()
            .map(|record| ClientShare {
                record: *record,
                granted: Length(self.grants.of(record.client.0).map(|run| run.len()).sum()),
                holds: holds.get(&record.client.0).map_or(0, |slots| slots.len() as u64),
            })
            .collect())
    }

    /// The heap in `cells` parts, at least one and at most [`HEAP_CELLS_MAX`]. The time is linear
    /// in free ranges, grants and holds; objects without a hold take none.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn heap_cells(&self, cells: u32) -> Result<Vec<HeapCell>, StoreError> {
        let mut picture = Picture::new(self.layout().heap, cells.clamp(1, HEAP_CELLS_MAX));
        self.space.runs().for_each(|run| picture.add(run, |cell| &mut cell.free));
        self.grants.of_clients().for_each(|run| picture.add(run, |cell| &mut cell.granted));
        self.grants.of(WITHDRAWN).for_each(|run| picture.add(run, |cell| &mut cell.withdrawn));
        let holds = self.holds.by_client()?;
        let held: BTreeSet<u64> = holds.into_values().flatten().collect();
        let mut blocks = BTreeSet::new();
        for slot in held.into_iter().filter_map(|slot| u32::try_from(slot).ok()) {
            let runs = self.held_runs(Slot(slot)).into_iter();
            blocks.extend(runs.filter(|run| self.blocks.is_block(*run)));
        }
        blocks.into_iter().for_each(|run| picture.add(run, |cell| &mut cell.held));
        Ok(picture.finish())
    }

    /// The blocks that a hold on this slot keeps. A hold is input: the slot may have no object in
    /// memory.
    fn held_runs(&self, slot: Slot) -> Vec<Run> {
        if let Some(known) = self.locals.known.get(&slot.0) {
            return known.run.into_iter().collect();
        }
        let slot = self.locals.moved.get(&slot.0).map_or(slot, |moved| Slot(*moved));
        let is_in_memory = self.directory.sequence(slot).is_ok_and(|sequence| {
            use EntryState::{Leaving, Retiring, Sealed};
            matches!(sequence.state(), Sealed | Leaving | Retiring)
        });
        let entry = self.directory.entry(slot).ok().filter(|_| is_in_memory);
        entry.and_then(|entry| self.runs_of(slot, &entry).ok()).unwrap_or_default()
    }
}

struct Picture {
    heap: Run,
    cell_bytes: u64,
    cells: Vec<HeapCell>,
}

impl Picture {
    fn new(heap: farrow_memory::Span, cells: u32) -> Self {
        let start = heap.offset.0;
        let cell_bytes = heap.length.0.div_ceil(cells.into()).max(1);
        let count = heap.length.0.div_ceil(cell_bytes) as usize;
        let heap = Run { start, end: start + heap.length.0 };
        Self { heap, cell_bytes, cells: vec![HeapCell::default(); count] }
    }

    fn add(&mut self, run: Run, part: impl Fn(&mut HeapCell) -> &mut u64) {
        let mut at = run.start.max(self.heap.start);
        let end = run.end.min(self.heap.end);
        while at < end {
            let number = (at - self.heap.start) / self.cell_bytes;
            let next = (self.heap.start + (number + 1) * self.cell_bytes).min(end);
            if let Some(cell) = self.cells.get_mut(number as usize) {
                *part(cell) += next - at;
            }
            at = next;
        }
    }

    /// All bytes without another use are used.
    fn finish(mut self) -> Vec<HeapCell> {
        let total = self.heap.end - self.heap.start;
        for (number, cell) in (0..).zip(&mut self.cells) {
            let bytes = self.cell_bytes.min(total - number * self.cell_bytes);
            cell.used = bytes.saturating_sub(cell.free + cell.granted + cell.withdrawn + cell.held);
        }
        self.cells
    }
}
