//! A software cache of rows: banks with a lock each, four policies, a queue apart for rows that
//! are empty.

mod bank;
mod front;
mod order;

use crate::wire::Key;
use bank::Bank;
use front::Front;
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};

/// Which row goes when there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The one that came first.
    Fifo,
    /// Any.
    Random,
    /// The one that was not used for the longest time.
    Lru,
    /// The one that was used least often; of several the one not used for the longest time.
    Lfu,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 4] = [Policy::Fifo, Policy::Random, Policy::Lru, Policy::Lfu];
}

/// What is kept of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// How long it is: saves the calls for empty rows.
    Vertices,
    /// All of it.
    Full,
}

/// How a hit is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Design {
    /// Copied, under the lock of its bank; each missing row is a call.
    Thesis,
    /// Shared; missing rows are fetched together, and ahead of the search.
    Ours,
}

/// How a cache is made.
#[derive(Clone, Debug, Serialize)]
pub struct CacheSettings {
    /// Which row goes.
    pub policy: Policy,
    /// What is kept.
    pub content: Content,
    /// Bytes of rows and of what is needed to find them, over all banks.
    pub capacity: usize,
    /// Parts with a lock each.
    pub banks: usize,
    /// Whether hits are copied.
    pub design: Design,
}

/// What was asked and what was there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheCounters {
    /// Rows that were there.
    pub hits: u64,
    /// Rows known to be empty.
    pub negative_hits: u64,
    /// Rows that were not there; with [`Content::Vertices`] all that are not empty.
    pub misses: u64,
    /// Rows that went to make room.
    pub evictions: u64,
    /// Empty rows that went from their queue.
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

/// What a cache says of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// All of it; empty rows too.
    Row(Arc<[u64]>),
    /// It has so many entries, which are not here.
    Length(u32),
    /// It is not known.
    Missing,
}

/// What a row costs beside its entries, in bytes: its slot, its place in the map, its header.
pub const ROW_BYTES: usize = 96;
/// What an empty row costs: its key in the map and in the queue.
pub const EMPTY_BYTES: usize = 24;
/// The share of a bank's bytes for empty rows: a sixteenth holds four of them for each short row.
const EMPTY_SHARE: usize = 16;

/// Rows by their keys.
#[derive(Debug)]
pub struct Cache {
    banks: Vec<Mutex<Bank>>,
    /// None: each hit is one of its bank.
    front: Option<Front>,
    settings: CacheSettings,
    /// Bytes that the banks gave away.
    lent: Mutex<usize>,
}

/// Mixes the bits of a key, so that both ends of the result are as good as random.
pub(crate) fn mix(key: Key) -> u64 {
    let product = u128::from(key.bits() ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
    (product >> 64) as u64 ^ product as u64
}

impl Cache {
    /// An empty cache; at least one bank.
    pub fn new(settings: CacheSettings) -> Cache {
        let count = settings.banks.max(1);
        let has_front = settings.design == Design::Ours && settings.content == Content::Full;
        let front = has_front.then(|| Front::new(settings.capacity));
        let bytes = (settings.capacity - front.as_ref().map_or(0, Front::reserved)) / count;
        let bank = |seed| {
            let empties = bytes / EMPTY_SHARE;
            Mutex::new(Bank::new(settings.policy, bytes - empties, empties, seed))
        };
        Cache {
            banks: (1..=count as u64).map(bank).collect(),
            front,
            settings,
            lent: Mutex::default(),
        }
    }

    /// How it was made.
    pub fn settings(&self) -> &CacheSettings {
        &self.settings
    }

    fn bank<A>(&self, hash: u64, use_it: impl FnOnce(&mut Bank) -> A) -> Option<A> {
        // All lists of an account in all segments may be in different banks: that is fair.
        let at = ((u128::from(hash) * self.banks.len() as u128) >> 64) as usize;
        let mut bank = self.banks.get(at)?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(use_it(&mut bank))
    }

    /// Looks for a row, counts that, and notes its use.
    pub fn get(&self, key: Key) -> Found {
        let hash = mix(key);
        if let Some(row) = self.front.as_ref().and_then(|front| front.get(key, hash)) {
            return Found::Row(row);
        }
        let copies = self.settings.design == Design::Thesis;
        // The thesis' cache copies while it has the lock: what it gives may not change later.
        let found = self.bank(hash, |bank| match bank.get(key, hash) {
            Found::Row(row) if copies && !row.is_empty() => Found::Row(Arc::from(&*row)),
            found => found,
        });
        if let (Some(front), Some(Found::Row(row))) = (&self.front, &found) {
            front.put(key, hash, row);
        }
        found.unwrap_or(Found::Missing)
    }

    /// Whether it knows a row; counts nothing.
    pub fn knows(&self, key: Key) -> bool {
        let hash = mix(key);
        self.bank(hash, |bank| bank.knows(key, hash)).unwrap_or_default()
    }

    /// Keeps a row, or what its content says of it. What is larger than its bank is not kept.
    pub fn put(&self, key: Key, row: &Arc<[u64]>) {
        let length = u32::try_from(row.len()).unwrap_or(u32::MAX);
        let hash = mix(key);
        self.bank(hash, |bank| {
            if length == 0 {
                bank.put_empty(key, hash);
            } else {
                let row = (self.settings.content == Content::Full).then(|| Arc::clone(row));
                bank.put(key, hash, length, row);
            }
        });
    }

    /// Takes bytes from all banks for good, for rows that are kept elsewhere and never go: half of
    /// what is left at most. Gives whether it did.
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

    /// Counts from 0 on again.
    pub fn reset_counters(&self) {
        self.each(|bank| bank.counters = CacheCounters::default());
        if let Some(front) = &self.front {
            front.reset_counters();
        }
    }

    /// Bytes in use, as `capacity` counts them.
    pub fn bytes(&self) -> usize {
        let mut sum = self.front.as_ref().map_or(0, Front::bytes);
        self.each(|bank| sum += bank.bytes());
        sum
    }

    fn each(&self, mut use_it: impl FnMut(&mut Bank)) {
        for bank in &self.banks {
            use_it(&mut bank.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}
