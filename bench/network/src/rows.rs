//! Rows of segments that another process holds, behind a cache.

use crate::cache::{Cache, CacheCounters, Content, Design, Found};
use crate::client::{CallCounters, Client, NetworkError};
use crate::wire::Key;
use arrow_buffer::ScalarBuffer;
use farrow_graph::{Buffers, GraphError, List, Rows, Segment};
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Words of an index for 64 accounts (`docs/formats/segment.md`).
pub(crate) const BLOCK: usize = 5;
/// Rows of one call of a prefetch: few enough that several are under way.
const CALL_ROWS: usize = 256;

/// Where it is known which accounts have rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Index {
    /// In this process: empty rows are never asked for.
    Local,
    /// With the rows: each empty row is a question, too.
    Remote,
}

/// How rows are fetched.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FetchSettings {
    /// The thesis' way, or ours.
    pub design: Design,
    /// Where the index is.
    pub index: Index,
    /// Rows that one prefetch brings, at most. 0: none.
    pub prefetch_max: usize,
    /// Whether it is noted which rows are asked for.
    pub is_traced: bool,
}

/// What a run cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Of the cache.
    #[serde(flatten)]
    pub cache: CacheCounters,
    /// Of the wire.
    #[serde(flatten)]
    pub wire: CallCounters,
    /// Rows that were fetched ahead.
    pub prefetched: u64,
}

#[derive(Debug, Default)]
struct Noted {
    failure: Option<String>,
    prefetched: u64,
}

/// All segments that one server holds, as one graph sees them.
#[derive(Debug)]
pub struct Remote {
    client: Client,
    cache: Option<Cache>,
    settings: FetchSettings,
    /// Indexes by segment, where they are local.
    indexes: RwLock<Vec<(u32, ScalarBuffer<u64>)>>,
    noted: Mutex<Noted>,
    trace: Option<Mutex<Vec<Key>>>,
}

/// The rows of one segment.
#[derive(Debug)]
struct Part {
    remote: Arc<Remote>,
    number: u32,
}

/// Whether an account has a list, by an index.
pub(crate) fn has(index: &[u64], account: u32, list: List) -> bool {
    let word = index.get(account as usize / 64 * BLOCK + list as usize);
    word.is_some_and(|word| word >> (account % 64) & 1 == 1)
}

/// An index by which every account has edges in and out: where the true one is far away. Who pays
/// himself stays known, since graphs keep that beside segments.
fn blind(index: &[u64]) -> ScalarBuffer<u64> {
    let blocks = index.as_chunks::<BLOCK>().0.iter();
    let words: Vec<u64> = blocks
        .flat_map(|&[_, _, loops, ranks, rank]| [u64::MAX, u64::MAX, loops, ranks, rank])
        .collect();
    words.into()
}

impl Remote {
    /// Rows by way of this client.
    pub fn new(client: Client, cache: Option<Cache>, settings: FetchSettings) -> Arc<Remote> {
        let (indexes, noted) = (RwLock::default(), Mutex::default());
        let trace = settings.is_traced.then(Mutex::default);
        Arc::new(Remote { client, cache, settings, indexes, noted, trace })
    }

    /// Brings a segment to the server, under a number of its own.
    ///
    /// # Errors
    /// Those of [`Client::bring`].
    pub fn bring(&self, number: u32, segment: &Segment) -> Result<(), NetworkError> {
        self.client.bring(number, segment)
    }

    /// A segment whose rows are fetched; of `near` only what lies beside its rows is used.
    ///
    /// # Errors
    /// Those of [`Segment::far`], and one that is far already.
    pub fn segment(self: &Arc<Remote>, number: u32, near: &Segment) -> Result<Segment, GraphError> {
        let about = near.about().clone();
        let what = "buffers of a segment here";
        let mut beside =
            near.buffers().ok_or(GraphError::Segment { what, given: 0, expected: 1 })?;
        match self.settings.index {
            Index::Remote => beside.index = blind(&beside.index),
            Index::Local => {
                let index = beside.index.clone();
                let mut indexes = self.indexes.write().unwrap_or_else(PoisonError::into_inner);
                indexes.retain(|(known, _)| *known != number);
                indexes.push((number, index));
            }
        }
        let empty = || Vec::new().into();
        let beside = Buffers { entries: std::array::from_fn(|_| empty()), ..beside };
        let rows = Part { remote: Arc::clone(self), number };
        Segment::far(about, beside, Arc::new(rows))
    }

    /// What the run cost so far.
    pub fn counters(&self) -> Counters {
        let cache = self.cache.as_ref().map(Cache::counters).unwrap_or_default();
        Counters { cache, wire: self.client.counters(), prefetched: self.noted().prefetched }
    }

    /// Counts from 0 on again; what is in the cache stays.
    pub fn reset_counters(&self) {
        if let Some(cache) = &self.cache {
            cache.reset_counters();
        }
        self.client.reset_counters();
        self.noted().prefetched = 0;
    }

    /// The cache, if there is one.
    pub fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }

    /// The rows that were asked for so far, in order, if they are noted.
    pub fn traced(&self) -> Vec<Key> {
        let take = |trace: &Mutex<Vec<Key>>| {
            std::mem::take(&mut *trace.lock().unwrap_or_else(PoisonError::into_inner))
        };
        self.trace.as_ref().map(take).unwrap_or_default()
    }

    fn noted(&self) -> std::sync::MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn row(&self, key: Key) -> Arc<[u64]> {
        let found = self.cache.as_ref().map_or(Found::Missing, |cache| cache.get(key));
        match found {
            Found::Row(row) => row,
            Found::Length(_) => self.fetch(&[key]),
            Found::Missing => match self.settings.design {
                Design::Thesis => self.fetch(&[key]),
                Design::Ours => self.fetch(&self.beside(key)),
            },
        }
    }

    /// A row and the same list of its account in the other segments: a search that wants one wants
    /// them all.
    fn beside(&self, key: Key) -> Vec<Key> {
        let mut keys = vec![key];
        let Some(cache) = &self.cache else { return keys };
        let Some((segment, account, list)) = key.parts() else { return keys };
        if cache.settings().content == Content::Vertices {
            return keys;
        }
        let indexes = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        for (number, index) in indexes.iter().filter(|(number, _)| *number != segment) {
            let other = Key::new(*number, account, list);
            if has(index, account, list) && !cache.knows(other) {
                keys.push(other);
            }
        }
        keys
    }

    /// Fetches rows and keeps them; gives the first.
    fn fetch(&self, keys: &[Key]) -> Arc<[u64]> {
        // The search is void already: its other rows need not wait for the deadline, too.
        if self.noted().failure.is_some() {
            return Arc::new([]);
        }
        match self.client.fetch(keys, CALL_ROWS) {
            Ok(rows) => {
                if let Some(cache) = &self.cache {
                    // What was asked for last, so that nothing else pushes it out.
                    for (key, row) in keys.iter().zip(&rows).rev() {
                        cache.put(*key, row);
                    }
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

impl Rows for Part {
    fn row(&self, account: u32, list: List) -> Arc<[u64]> {
        let key = Key::new(self.number, account, list);
        if let Some(trace) = &self.remote.trace {
            trace.lock().unwrap_or_else(PoisonError::into_inner).push(key);
        }
        self.remote.row(key)
    }

    fn prefetch(&self, wanted: &[(u32, List)]) -> bool {
        let FetchSettings { design, prefetch_max, .. } = self.remote.settings;
        let Some(cache) = self.remote.cache.as_ref() else { return false };
        let keeps_rows = cache.settings().content == Content::Full;
        if design != Design::Ours || !keeps_rows || prefetch_max == 0 {
            return false;
        }
        let keys = wanted.iter().map(|&(account, list)| Key::new(self.number, account, list));
        let keys: Vec<Key> = keys.filter(|key| !cache.knows(*key)).take(prefetch_max).collect();
        if !keys.is_empty() {
            self.remote.noted().prefetched += keys.len() as u64;
            self.remote.fetch(&keys);
        }
        true
    }

    fn failure(&self) -> Option<String> {
        self.remote.noted().failure.take()
    }
}
