//! Clients and heap usage, for monitoring.

use std::collections::BTreeMap;

use farrow_memory::Length;

use super::survey::HoldPicture;
use super::{HoldSurvey, Home};
use crate::alloc::space::Run;
use crate::error::StoreError;
use crate::format::client_entry::is_open;
use crate::format::entry::EntryState;
use crate::format::ids::{ObjectId, Slot};
use crate::tables::clients::{ClientRecord, ClientSlot};
use crate::tables::grants::WITHDRAWN;
use crate::tables::slot_set::SlotSet;

/// Maximum number of cells in a heap picture.
pub const HEAP_CELLS_MAX: u32 = 4096;

/// Maximum number of holds in an overview. A list of this length costs one load for each.
pub const HELD_LISTED_MAX: u32 = 4096;

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

/// Objects that one client holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeldObjects {
    /// Their ids.
    pub ids: Vec<ObjectId>,
    /// False if the client holds more.
    pub are_all: bool,
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
    /// Usage of all clients, and the heap in `cells` parts, at least one and at most
    /// [`HEAP_CELLS_MAX`]. Scans every hold.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn overview(&self, cells: u32) -> Result<(Vec<ClientShare>, Vec<HeapCell>), StoreError> {
        Ok(self.overview_of(self.survey(self.survey_for_overview(cells))?))
    }

    /// As [`Home::overview`], with what a survey found to be held. The time is linear in free ranges
    /// and grants.
    #[must_use]
    pub fn overview_of(&self, survey: HoldSurvey) -> (Vec<ClientShare>, Vec<HeapCell>) {
        let Some(HoldPicture { mut picture, by_client, .. }) = survey.of_holds else {
            return Default::default();
        };
        let shares = self.clients.records().map(|record| ClientShare {
            record: *record,
            granted: Length(self.grants.of(record.client.0).map(|run| run.len()).sum()),
            holds: by_client.get(&record.client.0).map_or(0, |slots| slots.len() as u64),
        });
        self.space.runs().for_each(|run| picture.add(run, |cell| &mut cell.free));
        self.grants.of_clients().for_each(|run| picture.add(run, |cell| &mut cell.granted));
        self.grants.of(WITHDRAWN).for_each(|run| picture.add(run, |cell| &mut cell.withdrawn));
        (shares.collect(), picture.finish())
    }

    /// The objects of a survey for an overview by the client that holds them, at most `listed_max`
    /// and [`HELD_LISTED_MAX`] of all clients together. Clients with few holds are complete first. A
    /// hold of no object in memory is left out.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn held_objects(
        &self,
        survey: &HoldSurvey,
        listed_max: u32,
    ) -> Result<BTreeMap<ClientSlot, HeldObjects>, StoreError> {
        let Some(HoldPicture { by_client, .. }) = &survey.of_holds else {
            return Ok(BTreeMap::new());
        };
        let mut clients: Vec<(u32, &SlotSet)> = by_client.iter().map(|(c, s)| (*c, s)).collect();
        clients.sort_by_key(|(_, slots)| slots.len());
        let mut left = listed_max.min(HELD_LISTED_MAX) as usize;
        let mut held = BTreeMap::new();
        for (number, (client, slots)) in clients.iter().enumerate() {
            let share = left / (clients.len() - number);
            let listed = slots.iter().take(share).map(|slot| self.held_id(slot));
            let ids: Vec<ObjectId> =
                listed.filter_map(Result::transpose).collect::<Result<_, _>>()?;
            left -= share.min(slots.len());
            held.insert(ClientSlot(*client), HeldObjects { ids, are_all: slots.len() <= share });
        }
        Ok(held)
    }

    /// The id of the object that a hold under this slot retains. A hold is input: `None` if there can
    /// be no object.
    fn held_id(&self, slot: u32) -> Result<Option<ObjectId>, StoreError> {
        let slot = Slot(self.locals.moved.get(&slot).copied().unwrap_or(slot));
        let (sequence, is_held) = if let Some(number) = self.layout().client_entry(slot) {
            let life = self.locals.area.life(number)?;
            (life, is_open(life) || life.state() == EntryState::Retiring)
        } else if slot.0 < self.directory.used() {
            let sequence = self.directory.sequence(slot)?;
            (sequence, matches!(sequence.state(), EntryState::Sealed | EntryState::Retiring))
        } else {
            return Ok(None);
        };
        Ok(is_held.then(|| ObjectId::new(self.uid(), sequence.generation(), slot)))
    }

    pub(super) fn empty_picture(&self, cells: u32) -> Picture {
        Picture::new(self.layout().heap, cells.clamp(1, HEAP_CELLS_MAX))
    }
}

/// The heap, as far as it is drawn.
#[derive(Debug)]
pub(super) struct Picture {
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

    pub(super) fn add(&mut self, run: Run, part: impl Fn(&mut HeapCell) -> &mut u64) {
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
