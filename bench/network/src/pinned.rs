//! Segments that fit whole: a place for each row that the index names. A hit there needs no map,
//! no lock and no order, since nothing has to go as long as the segment stays.

use arrow_buffer::ScalarBuffer;
use farrow_graph::{List, row_counts, row_of};
use farrow_memory::sync::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

type Place = OnceLock<Arc<[u64]>>;

/// What a row takes beside its entries: its place, and the two counts before them.
const ROW_BYTES: usize = size_of::<Place>() + 2 * size_of::<usize>();

/// The rows of one segment, as far as they came.
#[derive(Debug)]
pub(crate) struct Pinned {
    index: ScalarBuffer<u64>,
    places: [Vec<Place>; 3],
    hits: AtomicU64,
}

impl Pinned {
    /// What all rows take, in bytes, where there are so many edges.
    pub(crate) fn bytes_max(index: &[u64], edges: u64) -> usize {
        let rows: u64 = row_counts(index).iter().sum();
        // Each edge is in two lists.
        rows as usize * ROW_BYTES + edges as usize * 2 * size_of::<u64>()
    }

    pub(crate) fn new(index: ScalarBuffer<u64>) -> Pinned {
        let places = row_counts(&index).map(|rows| (0..rows).map(|_| Place::new()).collect());
        Pinned { index, places, hits: AtomicU64::new(0) }
    }

    fn place(&self, account: u32, list: List) -> Option<&Place> {
        self.places[list as usize].get(row_of(&self.index, account, list)?)
    }

    pub(crate) fn get(&self, account: u32, list: List) -> Option<Arc<[u64]>> {
        let row = self.place(account, list)?.get()?;
        // Not added at once, which would take as long as the rest: one thread searches.
        self.hits.store(self.hits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Some(Arc::clone(row))
    }

    pub(crate) fn knows(&self, account: u32, list: List) -> bool {
        self.place(account, list).is_some_and(|place| place.get().is_some())
    }

    pub(crate) fn put(&self, account: u32, list: List, row: &Arc<[u64]>) {
        if let Some(place) = self.place(account, list) {
            // Whoever came first put the same row there.
            let _ = place.set(Arc::clone(row));
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let places: usize = self.places.iter().map(Vec::len).sum();
        let rows = self.places.iter().flatten().filter_map(Place::get);
        places * ROW_BYTES + rows.map(|row| size_of_val(&**row)).sum::<usize>()
    }

    pub(crate) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    pub(crate) fn reset_hits(&self) {
        self.hits.store(0, Ordering::Relaxed);
    }
}
