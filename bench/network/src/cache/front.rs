//! Recently hit short rows, one for each slot: a hit here needs no map and does not change the
//! order of its bank.

use super::{CacheCounters, ROW_BYTES};
use crate::wire::RowKey;
use std::sync::{Arc, Mutex, PoisonError};

/// The share of the capacity for these rows.
const SHARE: usize = 8;
/// Most entries of a row in it: most rows of a day are shorter.
const ENTRIES_MAX: usize = 32;
/// Bytes of a slot.
const PLACE_BYTES: usize = ROW_BYTES + ENTRIES_MAX * size_of::<u64>();
/// More slots would exceed the processor's cache, and be slower than the banks.
const PLACES_MAX: usize = 1 << 15;
/// One of this many hits is reported to the bank, for its order.
const TOLD: u64 = 16;

#[derive(Debug, Default)]
struct FrontPlace {
    kept: Option<(RowKey, Arc<[u64]>)>,
    since: u64,
    hits: u64,
    negative_hits: u64,
}

/// A table of rows by their hashes.
#[derive(Debug)]
pub(super) struct RowTable(Vec<Mutex<FrontPlace>>);

impl RowTable {
    /// The table of a cache of `capacity` bytes.
    pub(super) fn new(capacity: usize) -> RowTable {
        let places = (capacity / SHARE / PLACE_BYTES).min(PLACES_MAX);
        RowTable((0..places).map(|_| Mutex::default()).collect())
    }

    /// Bytes that it may use.
    pub(super) fn reserved(&self) -> usize {
        self.0.len() * PLACE_BYTES
    }

    fn at<A>(&self, hash: u64, use_it: impl FnOnce(&mut FrontPlace) -> A) -> Option<A> {
        // Banks use the upper bits of the hash.
        let at = ((u128::from(hash.rotate_left(32)) * self.0.len() as u128) >> 64) as usize;
        let mut place = self.0.get(at)?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(use_it(&mut place))
    }

    pub(super) fn get(&self, key: RowKey, hash: u64) -> Option<Arc<[u64]>> {
        let found = self.at(hash, |place| {
            let (_, row) = place.kept.as_ref().filter(|(known, _)| *known == key)?;
            place.since += 1;
            if place.since.is_multiple_of(TOLD) {
                return None;
            }
            if row.is_empty() {
                place.negative_hits += 1;
            } else {
                place.hits += 1;
            }
            Some(Arc::clone(row))
        });
        found.flatten()
    }

    pub(super) fn put(&self, key: RowKey, hash: u64, row: &Arc<[u64]>) {
        if row.len() <= ENTRIES_MAX {
            self.at(hash, |place| {
                if place.kept.as_ref().is_none_or(|(known, _)| *known != key) {
                    (place.kept, place.since) = (Some((key, Arc::clone(row))), 0);
                }
            });
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let mut sum = 0;
        self.each(|place| {
            sum += place.kept.as_ref().map_or(0, |(_, row)| ROW_BYTES + size_of_val(&**row));
        });
        sum
    }

    pub(super) fn count(&self, counters: &mut CacheCounters) {
        self.each(|place| {
            counters.hits += place.hits;
            counters.negative_hits += place.negative_hits;
        });
    }

    pub(super) fn reset_counters(&self) {
        self.each(|place| (place.hits, place.negative_hits) = (0, 0));
    }

    fn each(&self, mut use_it: impl FnMut(&mut FrontPlace)) {
        for place in &self.0 {
            use_it(&mut place.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}
