//! A software cache of rows: banks with a lock each, four policies, and a separate queue for empty
//! rows.

mod bank;
mod front;
mod order;

use crate::wire::RowKey;
use bank::Bank;
use front::RowTable;
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};

/// The eviction policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The oldest row.
    Fifo,
    /// Any row.
    Random,
    /// The least recently used row.
    Lru,
    /// The least frequently used row; of several the least recently used.
    Lfu,
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 4] = [Policy::Fifo, Policy::Random, Policy::Lru, Policy::Lfu];
}

/// The cached part of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum CachedContent {
    /// Its length: saves the calls for empty rows.
    Vertices,
    /// The whole row.
    Full,
}

/// How a hit is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Design {
    /// Copied, under the lock of its bank; each missing row is a call.
    Thesis,
    /// Shared; missing rows are fetched together, and ahead of the search.
    Ours,
}

/// Settings of a cache.
#[derive(Clone, Debug, Serialize)]
pub struct RowCacheSettings {
    /// The eviction policy.
    pub policy: Policy,
    /// The cached part of rows.
    pub content: CachedContent,
    /// Bytes of rows and of their index structures, over all banks.
    pub capacity: usize,
    /// Parts with a lock each.
    pub banks: usize,
    /// Whether hits are copied.
    pub design: Design,
}

/// Hits and misses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheCounters {
    /// Rows in the cache.
    pub hits: u64,
    /// Rows known to be empty.
    pub negative_hits: u64,
    /// Rows not in the cache; with [`CachedContent::Vertices`] all non-empty rows.
    pub misses: u64,
    /// Rows evicted to make room.
    pub evictions: u64,
    /// Empty rows evicted from their queue.
    pub negative_evictions: u64,
}

impl CacheCounters {
    fn add(&mut self, other: &CacheCounters) {
        self.hits += other.hits;
        self.negative_hits += other.negative_hits;
        self.misses += other.misses;
        self.evictions += other.evictions;
        self.negative_evictions += other.negative_evictions;
    }
}

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheLookup {
    /// The whole row; empty rows too.
    Row(Arc<[u64]>),
    /// The number of its entries, which are not cached.
    Length(u32),
    /// The row is unknown.
    Missing,
}

/// Bytes of a row in addition to its entries: its slot, its map entry, its header.
pub const ROW_BYTES: usize = 96;
/// Bytes of an empty row: its key in the map and in the queue.
pub const EMPTY_BYTES: usize = 24;
/// The share of a bank's bytes for empty rows: a sixteenth holds four of them for each short row.
const EMPTY_SHARE: usize = 16;

/// Rows by their keys.
#[derive(Debug)]
pub struct RowCache {
    banks: Vec<Mutex<Bank>>,
    /// None: each hit goes to its bank.
    front: Option<RowTable>,
    settings: RowCacheSettings,
    /// Bytes lent by the banks.
    lent: Mutex<usize>,
}

/// Mixes the bits of a key, so that both ends of the result are as good as random.
pub(crate) fn mix(key: RowKey) -> u64 {
    let product = u128::from(key.bits() ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
    (product >> 64) as u64 ^ product as u64
}

impl RowCache {
    /// An empty cache; at least one bank.
    pub fn new(settings: RowCacheSettings) -> RowCache {
        let count = settings.banks.max(1);
        let has_front = settings.design == Design::Ours && settings.content == CachedContent::Full;
        let front = has_front.then(|| RowTable::new(settings.capacity));
        let bytes = (settings.capacity - front.as_ref().map_or(0, RowTable::reserved)) / count;
        let bank = |seed| {
            let empties = bytes / EMPTY_SHARE;
            Mutex::new(Bank::new(settings.policy, bytes - empties, empties, seed))
        };
        RowCache {
            banks: (1..=count as u64).map(bank).collect(),
            front,
            settings,
            lent: Mutex::default(),
        }
    }

    /// Its settings.
    pub fn settings(&self) -> &RowCacheSettings {
        &self.settings
    }

    fn bank<A>(&self, hash: u64, use_it: impl FnOnce(&mut Bank) -> A) -> Option<A> {
        // The lists of an account are spread over different banks.
        let at = ((u128::from(hash) * self.banks.len() as u128) >> 64) as usize;
        let mut bank = self.banks.get(at)?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(use_it(&mut bank))
    }

    /// Looks up a row, counts that, and records its use.
    pub fn get(&self, key: RowKey) -> CacheLookup {
        let hash = mix(key);
        if let Some(row) = self.front.as_ref().and_then(|front| front.get(key, hash)) {
            return CacheLookup::Row(row);
        }
        let copies = self.settings.design == Design::Thesis;
        // The thesis' cache copies under the lock: the result must not change later.
        let found = self.bank(hash, |bank| match bank.get(key, hash) {
            CacheLookup::Row(row) if copies && !row.is_empty() => {
                CacheLookup::Row(Arc::from(&*row))
            }
            found => found,
        });
        if let (Some(front), Some(CacheLookup::Row(row))) = (&self.front, &found) {
            front.put(key, hash, row);
        }
        found.unwrap_or(CacheLookup::Missing)
    }

    /// Whether a row is known; counts nothing.
    pub fn knows(&self, key: RowKey) -> bool {
        let hash = mix(key);
        self.bank(hash, |bank| bank.knows(key, hash)).unwrap_or_default()
    }

    /// Caches a row, or the part selected by the settings, unless it is larger than its bank.
    pub fn put(&self, key: RowKey, row: &Arc<[u64]>) {
        let length = u32::try_from(row.len()).unwrap_or(u32::MAX);
        let hash = mix(key);
        self.bank(hash, |bank| {
            if length == 0 {
                bank.put_empty(key, hash);
            } else {
                let row = (self.settings.content == CachedContent::Full).then(|| Arc::clone(row));
                bank.put(key, hash, length, row);
            }
        });
    }

    /// Takes bytes from all banks permanently, for pinned rows: at most half of the rest. Returns
    /// whether it did.
    pub(crate) fn lend(&self, bytes: usize) -> bool {
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = bytes <= self.settings.capacity.saturating_sub(*lent) / 2;
        if fits {
            *lent += bytes;
            self.each(|bank| bank.shrink(bytes.div_ceil(self.banks.len())));
        }
        fits
    }

    /// All counters so far.
    pub fn counters(&self) -> CacheCounters {
        let mut sum = CacheCounters::default();
        self.each(|bank| sum.add(&bank.counters));
        if let Some(front) = &self.front {
            front.count(&mut sum);
        }
        sum
    }

    /// Resets the counters.
    pub fn reset_counters(&self) {
        self.each(|bank| bank.counters = CacheCounters::default());
        if let Some(front) = &self.front {
            front.reset_counters();
        }
    }

    /// Bytes in use, as `capacity` counts them.
    pub fn bytes(&self) -> usize {
        let mut sum = self.front.as_ref().map_or(0, RowTable::bytes);
        self.each(|bank| sum += bank.bytes());
        sum
    }

    fn each(&self, mut use_it: impl FnMut(&mut Bank)) {
        for bank in &self.banks {
            use_it(&mut bank.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}
