//! Clients and heap usage, for monitoring.

use farrow_memory::Length;

use super::survey::HoldPicture;
use super::{HoldSurvey, Home};
use crate::alloc::space::Run;
use crate::error::StoreError;
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
