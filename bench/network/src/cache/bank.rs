//! One bank: a map of slots, their order, and the queue of empty rows.

use super::order::SlotOrder;
use super::{CacheCounters, CacheLookup, EMPTY_BYTES, Policy, ROW_BYTES};
use crate::wire::RowKey;
use hashbrown::HashTable;
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Debug)]
struct BankSlot {
    key: RowKey,
    length: u32,
    row: Option<Arc<[u64]>>,
}

impl BankSlot {
    fn bytes(&self) -> usize {
        ROW_BYTES + self.row.as_ref().map_or(0, |row| row.len() * size_of::<u64>())
    }
}

/// The slot number of an empty row.
const EMPTY: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Bank {
    /// Keys with their slots.
    map: HashTable<(RowKey, u32)>,
    slots: Vec<Option<BankSlot>>,
    free: Vec<u32>,
    order: SlotOrder,
    used: usize,
    capacity: usize,
    empties: VecDeque<RowKey>,
    empties_max: usize,
    nothing: Arc<[u64]>,
    pub(super) counters: CacheCounters,
}

impl Bank {
    pub(super) fn new(policy: Policy, capacity: usize, empty_bytes: usize, seed: u64) -> Bank {
        Bank {
            map: HashTable::new(),
            slots: Vec::new(),
            free: Vec::new(),
            order: SlotOrder::new(policy, seed),
            used: 0,
            capacity,
            empties: VecDeque::new(),
            empties_max: empty_bytes / EMPTY_BYTES,
            nothing: Arc::new([]),
            counters: CacheCounters::default(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.used + self.empties.len() * EMPTY_BYTES
    }

    pub(super) fn knows(&self, key: RowKey, hash: u64) -> bool {
        self.find(key, hash).is_some()
    }

    fn find(&self, key: RowKey, hash: u64) -> Option<u32> {
        self.map.find(hash, |(known, _)| *known == key).map(|(_, slot)| *slot)
    }

    pub(super) fn get(&mut self, key: RowKey, hash: u64) -> CacheLookup {
        let Some(at) = self.find(key, hash) else {
            self.counters.misses += 1;
            return CacheLookup::Missing;
        };
        if at == EMPTY {
            self.counters.negative_hits += 1;
            return CacheLookup::Row(Arc::clone(&self.nothing));
        }
        self.order.touch(at);
        let Some(slot) = self.slots.get(at as usize).and_then(Option::as_ref) else {
            return CacheLookup::Missing;
        };
        match &slot.row {
            Some(row) => {
                self.counters.hits += 1;
                CacheLookup::Row(Arc::clone(row))
            }
            None => {
                self.counters.misses += 1;
                CacheLookup::Length(slot.length)
            }
        }
    }

    pub(super) fn put_empty(&mut self, key: RowKey, hash: u64) {
        if self.empties_max == 0 || self.knows(key, hash) {
            return;
        }
        while self.empties.len() >= self.empties_max {
            let Some(oldest) = self.empties.pop_front() else { break };
            self.forget(oldest);
            self.counters.negative_evictions += 1;
        }
        self.empties.push_back(key);
        self.note(key, hash, EMPTY);
    }

    pub(super) fn put(&mut self, key: RowKey, hash: u64, length: u32, row: Option<Arc<[u64]>>) {
        let slot = BankSlot { key, length, row };
        let bytes = slot.bytes();
        if bytes > self.capacity || self.knows(key, hash) {
            return;
        }
        self.make_room(bytes);
        let at = self.free.pop().unwrap_or(self.slots.len() as u32);
        if at as usize == self.slots.len() {
            self.slots.push(None);
        }
        if let Some(place) = self.slots.get_mut(at as usize) {
            *place = Some(slot);
        }
        self.used += bytes;
        self.order.add(at);
        self.note(key, hash, at);
    }

    /// Reduces the capacity permanently.
    pub(super) fn shrink(&mut self, bytes: usize) {
        self.capacity = self.capacity.saturating_sub(bytes);
        self.make_room(0);
    }

    fn make_room(&mut self, bytes: usize) {
        while self.used + bytes > self.capacity {
            let Some(at) = self.order.evict() else { break };
            let Some(gone) = self.slots.get_mut(at as usize).and_then(Option::take) else { break };
            self.used -= gone.bytes();
            self.free.push(at);
            self.forget(gone.key);
            self.counters.evictions += 1;
        }
    }

    fn note(&mut self, key: RowKey, hash: u64, slot: u32) {
        self.map.insert_unique(hash, (key, slot), |(key, _)| super::mix(*key));
    }

    fn forget(&mut self, key: RowKey) {
        let found = self.map.find_entry(super::mix(key), |(known, _)| *known == key);
        if let Ok(entry) = found {
            entry.remove();
        }
    }
}
