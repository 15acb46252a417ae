//! Segments that fit completely: a slot for each row in the index. A hit needs no map, no lock and
//! no order, because no row is evicted while the segment exists.

use farrow_graph::{ListKind, RowRequest, row_counts};
use farrow_memory::sync::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// Most entries of an inline row: half a cache line, minus its length and state.
const SHORT_MAX: usize = 2;
/// Rows whose starts are read together: as many as a graph touches at once.
const TOUCHED: usize = 64;

/// A row. Most rows are too short for separate memory.
#[derive(Debug)]
enum RowContents {
    Short(u8, [u64; SHORT_MAX]),
    Long(Box<[u64]>),
}

impl RowContents {
    fn new(row: &[u64]) -> RowContents {
        let mut short = [0; SHORT_MAX];
        match short.get_mut(..row.len()) {
            Some(entries) => {
                entries.copy_from_slice(row);
                RowContents::Short(row.len() as u8, short)
            }
            None => RowContents::Long(row.into()),
        }
    }

    fn entries(&self) -> &[u64] {
        match self {
            RowContents::Short(length, row) => row.get(..usize::from(*length)).unwrap_or_default(),
            RowContents::Long(row) => row,
        }
    }
}

/// Two of them are one line of the processor's cache.
#[derive(Debug, Default)]
#[repr(align(32))]
struct PinnedRow(OnceLock<RowContents>);

impl PinnedRow {
    fn row(&self) -> Option<&[u64]> {
        self.0.get().map(RowContents::entries)
    }
}

/// The fetched rows of one segment.
#[derive(Debug)]
pub(crate) struct PinnedRows {
    places: [Vec<PinnedRow>; 3],
    hits: AtomicU64,
}

impl PinnedRows {
    /// Bytes of all rows, for this number of edges.
    pub(crate) fn bytes_max(index: &[u64], edges: u64) -> usize {
        let rows: u64 = row_counts(index).iter().sum();
        // Each edge is in two lists.
        rows as usize * size_of::<PinnedRow>() + edges as usize * 2 * size_of::<u64>()
    }

    pub(crate) fn new(index: &[u64]) -> PinnedRows {
        let places =
            row_counts(index).map(|rows| (0..rows).map(|_| PinnedRow::default()).collect());
        PinnedRows { places, hits: AtomicU64::new(0) }
    }

    fn place(&self, list: ListKind, place: usize) -> Option<&PinnedRow> {
        self.places[list as usize].get(place)
    }

    pub(crate) fn get(&self, wanted: RowRequest) -> Option<&[u64]> {
        let row = self.place(wanted.list, wanted.place)?.row()?;
        // No atomic addition, which would take as long as the rest: one thread searches.
        self.hits.store(self.hits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Some(row)
    }

    /// Reads the starts of these rows. Reads all slots first, so that the reads overlap.
    pub(crate) fn touch(&self, list: ListKind, wanted: &[usize]) {
        let mut places = [None; TOUCHED];
        for some in wanted.chunks(TOUCHED) {
            let mut here = 0;
            for (place, &at) in places.iter_mut().zip(some) {
                *place = self.place(list, at);
                // The second round branches on it: a misprediction here would wait.
                here += place.map_or(0, |place| usize::from(place.0.get().is_some()));
            }
            std::hint::black_box(here);
            let places = places.iter().take(some.len()).flatten();
            let rows = places.filter_map(|place| place.row()?.first());
            std::hint::black_box(rows.fold(0, |all, one| all ^ one));
        }
    }

    pub(crate) fn knows(&self, list: ListKind, place: usize) -> bool {
        self.place(list, place).is_some_and(|place| place.row().is_some())
    }

    pub(crate) fn put(&self, list: ListKind, place: usize, row: &[u64]) {
        if let Some(place) = self.place(list, place) {
            // An earlier caller stored the same row.
            place.0.get_or_init(|| RowContents::new(row));
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let places: usize = self.places.iter().map(Vec::len).sum();
        let rows = self.places.iter().flatten().filter_map(|place| match place.0.get()? {
            RowContents::Short(..) => None,
            RowContents::Long(row) => Some(size_of_val(&**row)),
        });
        places * size_of::<PinnedRow>() + rows.sum::<usize>()
    }

    pub(crate) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    pub(crate) fn reset_hits(&self) {
        self.hits.store(0, Ordering::Relaxed);
    }
}
