//! Rows of segments in another process, behind a cache.

use crate::cache::{CacheCounters, CacheLookup, CachedContent, Design, RowCache};
use crate::client::{CallCounters, NetworkError, RowClient};
use crate::pinned::PinnedRows;
use crate::wire::RowKey;
use arrow_buffer::ScalarBuffer;
use farrow_graph::{
    GraphError, ListKind, RowRequest, RowSource, Segment, SegmentBuffers, SegmentRow, row_of,
};
use farrow_memory::sync::{AtomicU64, Ordering};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Words of an index for 64 accounts (`docs/formats/segment.md`).
pub(crate) const BLOCK: usize = 5;
/// Rows of one call of a prefetch: few enough for several concurrent calls.
const CALL_ROWS: usize = 256;

/// Location of the index, which has the accounts with rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Index {
    /// In this process: empty rows are never requested.
    Local,
    /// With the rows: each empty row needs a request, too.
    Remote,
}

/// How rows are fetched.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FetchSettings {
    /// The thesis' design, or ours.
    pub design: Design,
    /// Location of the index.
    pub index: Index,
    /// Most rows of one prefetch. 0: none.
    pub prefetch_max: usize,
    /// Whether the keys of requested rows are recorded.
    pub is_traced: bool,
}

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RunCounters {
    /// Counters of the cache.
    #[serde(flatten)]
    pub cache: CacheCounters,
    /// Counters of the calls.
    #[serde(flatten)]
    pub wire: CallCounters,
    /// Prefetched rows.
    pub prefetched: u64,
}

#[derive(Debug, Default)]
struct Noted {
    failure: Option<String>,
    prefetched: u64,
}

/// All segments of one server, as used by one graph.
#[derive(Debug)]
pub struct Remote {
    client: RowClient,
    cache: Option<RowCache>,
    settings: FetchSettings,
    /// Segments whose indexes are local, by number.
    known: RwLock<Vec<(u32, Arc<LocalIndex>)>>,
    blinded: Mutex<Blinded>,
    /// Number of fetches.
    fetches: AtomicU64,
    noted: Mutex<Noted>,
    trace: Option<Mutex<Vec<RowKey>>>,
}

/// The local data of one segment.
#[derive(Debug)]
struct LocalIndex {
    index: ScalarBuffer<u64>,
    /// None: it did not fit completely, and its rows are in the cache's banks.
    pinned: Option<Arc<PinnedRows>>,
}

/// The rows of one segment.
#[derive(Debug)]
struct RemoteRows {
    remote: Arc<Remote>,
    number: u32,
    pinned: Option<Arc<PinnedRows>>,
    /// The number of fetches when a prefetch found all rows of this segment cached: until the next
    /// fetch, another prefetch is useless.
    rests_after: AtomicU64,
}

/// An index, and the accounts that it names.
type NamedIndex = (ScalarBuffer<u64>, ScalarBuffer<i64>);

/// Segments whose index is remote.
#[derive(Debug, Default)]
struct Blinded {
    /// The accounts that segments have named, by small number.
    names: BTreeMap<u32, i64>,
    /// Their indexes, by number of the segment: a later graph gets the same ones.
    done: BTreeMap<u32, NamedIndex>,
}

/// An index in which every account has edges in and out, in place of a remote index. Self-loops
/// stay known, because graphs store them outside of segments. Positions of rows in it are
/// meaningless. If the segment names its accounts, the accounts are those that this or an earlier
/// segment has named.
fn blind(beside: &SegmentBuffers, names: &mut BTreeMap<u32, i64>) -> NamedIndex {
    let blocks = beside.index.as_chunks::<BLOCK>().0;
    let are_named = !beside.accounts.is_empty();
    let numbers = (0u32..).zip(blocks).flat_map(|(block, &[out, into, loops, ..])| {
        let has = out | into | loops;
        (0..64).filter(move |bit| has >> bit & 1 == 1).map(move |bit| block * 64 + bit)
    });
    names.extend(numbers.zip(beside.accounts.iter().copied()));
    let mut words = Vec::with_capacity(beside.index.len());
    let mut accounts = Vec::new();
    for (block, &[_, _, loops, ranks, rank]) in (0u32..).zip(blocks) {
        let mut known = u64::MAX;
        if are_named {
            known = 0;
            for (number, name) in names.range(block * 64..=block * 64 + 63) {
                known |= 1 << (number % 64);
                accounts.push(*name);
            }
        }
        words.extend([known, known, loops, ranks, rank]);
    }
    (words.into(), accounts.into())
}

impl Remote {
    /// Rows fetched by this client.
    pub fn new(client: RowClient, cache: Option<RowCache>, settings: FetchSettings) -> Arc<Remote> {
        let (known, fetches, noted) = (RwLock::default(), AtomicU64::default(), Mutex::default());
        let trace = settings.is_traced.then(Mutex::default);
        let blinded = Mutex::default();
        Arc::new(Remote { client, cache, settings, known, blinded, fetches, noted, trace })
    }

    /// Transfers a segment to the server, under a unique number.
    ///
    /// # Errors
    /// Those of [`RowClient::bring`].
    pub fn bring(&self, number: u32, segment: &Segment) -> Result<(), NetworkError> {
        self.client.bring(number, segment)
    }

    /// A segment whose rows are fetched; it uses all data of `near` except its rows.
    ///
    /// # Errors
    /// Those of [`Segment::far`], or `near` is remote already.
    pub fn segment(self: &Arc<Remote>, number: u32, near: &Segment) -> Result<Segment, GraphError> {
        let about = near.info().clone();
        let what = "buffers of a segment here";
        let mut beside =
            near.buffers().ok_or(GraphError::Segment { what, given: 0, expected: 1 })?;
        match self.settings.index {
            Index::Remote => {
                let mut blinded = self.blinded.lock().unwrap_or_else(PoisonError::into_inner);
                let Blinded { names, done } = &mut *blinded;
                let same = done.entry(number).or_insert_with(|| blind(&beside, names)).clone();
                (beside.index, beside.accounts) = same;
            }
            Index::Local => self.learn(number, &beside.index, about.edges),
        }
        let empty = || Vec::new().into();
        let beside = SegmentBuffers { entries: std::array::from_fn(|_| empty()), ..beside };
        Segment::far(about, beside, self.rows(number))
    }

    /// Records the index of a new segment, and pins its rows if they fit.
    fn learn(&self, number: u32, index: &ScalarBuffer<u64>, edges: u64) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.iter().any(|(other, _)| *other == number) {
            return;
        }
        let is_pinned = self.cache.as_ref().is_some_and(|cache| {
            let is_ours = self.settings.design == Design::Ours;
            is_ours
                && cache.settings().content == CachedContent::Full
                && cache.lend(PinnedRows::bytes_max(index, edges))
        });
        let pinned = is_pinned.then(|| Arc::new(PinnedRows::new(index)));
        known.push((number, Arc::new(LocalIndex { index: index.clone(), pinned })));
    }

    /// The rows of a segment, in the interface of a graph.
    pub fn rows(self: &Arc<Remote>, number: u32) -> Arc<dyn RowSource> {
        let pinned = self.known(number).and_then(|known| known.pinned.clone());
        let rests_after = AtomicU64::new(u64::MAX);
        Arc::new(RemoteRows { remote: Arc::clone(self), number, pinned, rests_after })
    }

    fn known(&self, number: u32) -> Option<Arc<LocalIndex>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|(other, _)| *other == number).map(|(_, known)| Arc::clone(known))
    }

    /// A row by the index of its segment and its position there, if the segment's index is local
    /// and has it.
    pub(crate) fn wanted(&self, key: RowKey) -> Option<(usize, RowRequest)> {
        let (segment, account, list) = key.parts()?;
        let place = row_of(&self.known(segment)?.index, account, list)?;
        Some((segment as usize, RowRequest { account, list, place }))
    }

    fn each_pinned(&self, use_it: impl FnMut(&PinnedRows)) {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().filter_map(|(_, known)| known.pinned.as_deref()).for_each(use_it);
    }

    /// Bytes of cached rows and of their index structures; None: there is no cache.
    pub fn bytes(&self) -> Option<usize> {
        let mut bytes = self.cache.as_ref()?.bytes();
        self.each_pinned(|pinned| bytes += pinned.bytes());
        Some(bytes)
    }

    /// The counters so far.
    pub fn counters(&self) -> RunCounters {
        let mut cache = self.cache.as_ref().map(RowCache::counters).unwrap_or_default();
        self.each_pinned(|pinned| cache.hits += pinned.hits());
        RunCounters { cache, wire: self.client.counters(), prefetched: self.noted().prefetched }
    }

    /// Resets the counters, but not the cache.
    pub fn reset_counters(&self) {
        if let Some(cache) = &self.cache {
            cache.reset_counters();
        }
        self.each_pinned(PinnedRows::reset_hits);
        self.client.reset_counters();
        self.noted().prefetched = 0;
    }

    /// The requested rows so far, in order, if they are recorded.
    pub fn traced(&self) -> Vec<RowKey> {
        let take = |trace: &Mutex<Vec<RowKey>>| {
            std::mem::take(&mut *trace.lock().unwrap_or_else(PoisonError::into_inner))
        };
        self.trace.as_ref().map(take).unwrap_or_default()
    }

    fn noted(&self) -> std::sync::MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn row(&self, key: RowKey) -> Arc<[u64]> {
        let found = self.cache.as_ref().map_or(CacheLookup::Missing, |cache| cache.get(key));
        match found {
            CacheLookup::Row(row) => row,
            CacheLookup::Length(_) => self.fetch(&[key]),
            CacheLookup::Missing => match self.settings.design {
                Design::Thesis => self.fetch(&[key]),
                Design::Ours => self.fetch(&self.beside(key)),
            },
        }
    }

    /// A row and the same list of its account in the other segments: a search that needs one needs
    /// all of them.
    fn beside(&self, key: RowKey) -> Vec<RowKey> {
        let mut keys = vec![key];
        let Some(cache) = &self.cache else { return keys };
        let Some((segment, account, list)) = key.parts() else { return keys };
        if cache.settings().content == CachedContent::Vertices {
            return keys;
        }
        let all = self.known.read().unwrap_or_else(PoisonError::into_inner);
        for (number, known) in all.iter().filter(|(number, _)| *number != segment) {
            let other = RowKey::new(*number, account, list);
            let Some(place) = row_of(&known.index, account, list) else { continue };
            let is_here = match &known.pinned {
                Some(pinned) => pinned.knows(list, place),
                None => cache.knows(other),
            };
            if !is_here {
                keys.push(other);
            }
        }
        keys
    }

    /// Caches a row, if there is a cache.
    pub fn keep(&self, key: RowKey, row: &Arc<[u64]>) {
        let pinned = key.parts().and_then(|(segment, account, list)| {
            let known = self.known(segment)?;
            Some((known.pinned.clone()?, list, row_of(&known.index, account, list)?))
        });
        match (pinned, &self.cache) {
            (Some((pinned, list, place)), _) => pinned.put(list, place, row),
            (None, Some(cache)) => cache.put(key, row),
            (None, None) => {}
        }
    }

    /// Fetches and caches rows; returns the first.
    fn fetch(&self, keys: &[RowKey]) -> Arc<[u64]> {
        // The search has failed already: its other rows need not wait for the deadline.
        if self.noted().failure.is_some() {
            return Arc::new([]);
        }
        self.fetches.fetch_add(1, Ordering::Relaxed);
        match self.client.fetch(keys, CALL_ROWS) {
            Ok(rows) => {
                // The requested row last, so that no other row evicts it.
                for (key, row) in keys.iter().zip(&rows).rev() {
                    self.keep(*key, row);
                }
                rows.into_iter().next().unwrap_or_default()
            }
            Err(error) => {
                self.noted().failure.get_or_insert_with(|| error.to_string());
                Arc::new([])
            }
        }
    }
}

impl RowSource for RemoteRows {
    fn row(&self, wanted: RowRequest) -> SegmentRow<'_> {
        let key = RowKey::new(self.number, wanted.account, wanted.list);
        if let Some(trace) = &self.remote.trace {
            trace.lock().unwrap_or_else(PoisonError::into_inner).push(key);
        }
        match self.pinned.as_ref().and_then(|pinned| pinned.get(wanted)) {
            Some(row) => SegmentRow::Near(row),
            None => SegmentRow::Far(self.remote.row(key)),
        }
    }

    fn touch(&self, list: ListKind, places: &[usize]) {
        if let Some(pinned) = &self.pinned {
            pinned.touch(list, places);
        }
    }

    fn is_prefetching(&self) -> bool {
        let FetchSettings { design, prefetch_max, .. } = self.remote.settings;
        let Some(cache) = self.remote.cache.as_ref() else { return false };
        let keeps_rows = cache.settings().content == CachedContent::Full;
        let is_resting =
            self.rests_after.load(Ordering::Relaxed) == self.remote.fetches.load(Ordering::Relaxed);
        design == Design::Ours && keeps_rows && prefetch_max > 0 && !is_resting
    }

    fn prefetch(&self, wanted: &mut dyn Iterator<Item = RowRequest>) -> bool {
        let Some(cache) = self.remote.cache.as_ref().filter(|_| self.is_prefetching()) else {
            return false;
        };
        let key = |one: RowRequest| RowKey::new(self.number, one.account, one.list);
        let is_missing = |one: &RowRequest| match &self.pinned {
            Some(pinned) => !pinned.knows(one.list, one.place),
            None => !cache.knows(key(*one)),
        };
        let most = self.remote.settings.prefetch_max;
        let keys: Vec<RowKey> = wanted.filter(is_missing).map(key).take(most).collect();
        if keys.is_empty() {
            let fetches = self.remote.fetches.load(Ordering::Relaxed);
            self.rests_after.store(fetches, Ordering::Relaxed);
            return false;
        }
        self.remote.noted().prefetched += keys.len() as u64;
        self.remote.fetch(&keys);
        true
    }

    fn failure(&self) -> Option<String> {
        self.remote.noted().failure.take()
    }
}
