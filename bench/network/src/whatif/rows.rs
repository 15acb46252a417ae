//! Rows with known addresses in a remote memory: the lines that a search touches, and its waits for
//! them.

use super::model::{LINE_BYTES, LineCache, LineCacheShape};
use super::wait::LineWait;
use crate::rows::BLOCK;
use farrow_graph::{GraphError, RowRequest, RowSource, Segment, SegmentBuffers, SegmentRow};
use std::sync::{Arc, Mutex, PoisonError};

/// Common state of all segments of one graph: their cache, or its recorded misses.
#[derive(Debug, Default)]
struct RemoteMemoryState {
    /// The cache, while misses are counted.
    model: Option<LineCache>,
    /// Requests so far.
    requested: u64,
    /// Requests that missed lines, and the numbers of lines.
    missed: Vec<(u64, u32)>,
    /// Lines that were touched.
    touched: u64,
    /// The next of `missed`, while they are waited for.
    next: usize,
    wait: LineWait,
    /// Lines that were waited for.
    waited: u64,
    /// Address of the next segment.
    address: u64,
}

/// Rows and lines that a search touched.
#[derive(Clone, Copy, Debug, Default)]
pub struct Touched {
    /// Requested rows.
    pub rows: u64,
    /// Lines of them, each time.
    pub lines: u64,
    /// Lines that were not in the cache.
    pub misses: u64,
}

/// A memory with segments, behind a cache. For one thread: the n-th request of one run must equal
/// that of the next run.
#[derive(Clone, Debug, Default)]
pub struct RemoteMemory(Arc<Mutex<RemoteMemoryState>>);

impl RemoteMemory {
    fn shared(&self) -> std::sync::MutexGuard<'_, RemoteMemoryState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to count misses, with an empty cache.
    pub fn count(&self, shape: LineCacheShape) {
        let mut shared = self.shared();
        let address = shared.address;
        *shared = RemoteMemoryState {
            model: Some(LineCache::new(shape)),
            address,
            ..RemoteMemoryState::default()
        };
    }

    /// Starts to wait for each counted miss.
    pub fn delay(&self, wait: LineWait) {
        let mut shared = self.shared();
        (shared.model, shared.requested, shared.next) = (None, 0, 0);
        (shared.wait, shared.waited) = (wait, 0);
    }

    /// Lines that were waited for since [`RemoteMemory::delay`]: all counted ones, if the
    /// same rows were requested in the same order.
    pub fn waited(&self) -> u64 {
        self.shared().waited
    }

    /// Rows and lines touched since [`RemoteMemory::count`].
    pub fn touched(&self) -> Touched {
        let shared = self.shared();
        let misses = shared.missed.iter().map(|(_, lines)| u64::from(*lines)).sum();
        Touched { rows: shared.requested, lines: shared.touched, misses }
    }

    /// A segment in this memory, which lends the rows of `near`.
    ///
    /// # Errors
    /// Those of [`Segment::far`], or the segment is in another process.
    pub fn segment(&self, near: Arc<Segment>) -> Result<Segment, GraphError> {
        let what = "buffers of a segment here";
        let buffers = near.buffers().ok_or(GraphError::Segment { what, given: 0, expected: 1 })?;
        let about = near.info().clone();
        let beside = SegmentBuffers {
            entries: std::array::from_fn(|_| Vec::new().into()),
            starts: std::array::from_fn(|_| Vec::new().into()),
            ..buffers.clone()
        };
        let addresses = Addresses::new(&buffers, &mut self.shared().address);
        let memory = self.clone();
        Segment::far(about, beside, Arc::new(PlacedSegment { memory, near, buffers, addresses }))
    }
}

/// Addresses of a segment's buffers.
#[derive(Debug)]
struct Addresses {
    index: u64,
    starts: [u64; 3],
    entries: [u64; 3],
}

impl Addresses {
    fn new(buffers: &SegmentBuffers, next: &mut u64) -> Addresses {
        let mut take = |values: usize, width: u64| {
            let at = *next;
            *next += (values as u64 * width).next_multiple_of(LINE_BYTES);
            at
        };
        Addresses {
            index: take(buffers.index.len(), 8),
            starts: buffers.starts.each_ref().map(|starts| take(starts.len(), 4)),
            entries: buffers.entries.each_ref().map(|entries| take(entries.len(), 8)),
        }
    }
}

/// A segment with its addresses.
#[derive(Debug)]
struct PlacedSegment {
    memory: RemoteMemory,
    near: Arc<Segment>,
    buffers: SegmentBuffers,
    addresses: Addresses,
}

impl PlacedSegment {
    /// The lines of a row: its block of the index, its offsets, its entries.
    fn lines(&self, wanted: RowRequest, mut touch: impl FnMut(u64)) {
        let RowRequest { account, list, place: row } = wanted;
        let mut range = |from: u64, bytes: u64| {
            let last = from + bytes.max(1) - 1;
            (from / LINE_BYTES..=last / LINE_BYTES).for_each(&mut touch);
        };
        let block = u64::from(account) / 64 * BLOCK as u64 * 8;
        range(self.addresses.index + block, BLOCK as u64 * 8);
        range(self.addresses.starts[list as usize] + row as u64 * 4, 8);
        let starts = &self.buffers.starts[list as usize];
        let end = |at: usize| starts.get(at).map(|&end| end.max(0) as u64);
        if let Some((from, to)) = end(row).zip(end(row + 1)) {
            range(self.addresses.entries[list as usize] + from * 8, to.saturating_sub(from) * 8);
        }
    }
}

impl RowSource for PlacedSegment {
    fn row(&self, wanted: RowRequest) -> SegmentRow<'_> {
        let mut shared = self.memory.shared();
        let shared = &mut *shared;
        let number = shared.requested;
        shared.requested += 1;
        if let Some(model) = &mut shared.model {
            let (mut touched, mut missed) = (0, 0);
            self.lines(wanted, |line| {
                touched += 1;
                missed += u32::from(model.touch(line));
            });
            shared.touched += touched;
            if missed > 0 {
                shared.missed.push((number, missed));
            }
        } else if let Some(&(at, lines)) = shared.missed.get(shared.next)
            && at == number
        {
            shared.next += 1;
            shared.waited += u64::from(lines);
            shared.wait.lines(lines);
        }
        self.near.row(wanted.account, wanted.list)
    }

    fn failure(&self) -> Option<String> {
        None
    }
}
