//! A hash table from the callers' account numbers to small ones; a probe reads one cache line.
//!
//! A slot holds an account's small number and, in the bits above it, a tag of the account's hash.
//! Thanks to the tag, a probe rarely reads another account's number. Probes are linear, so most end
//! in the line where they began. The table is between three fifths and five sixths full. It grows
//! by a sixth, and shrinks by about as much.

use super::keys::AccountKeys;
use crate::accounts::hash;
use crate::memory::{AllocationFailed, reserve_exact};

/// A slot that has never been used.
const EMPTY: u32 = 0;
/// A slot whose account has been forgotten; probes continue after it.
const FORGOTTEN: u32 = 1;
/// A slot holds a small number plus this, which leaves room for the two marks.
const FIRST: u32 = 2;
const SLOTS_MIN: usize = 32;
/// Slots that are moved together, so that the cache misses in their numbers overlap.
const TOGETHER: usize = 64;

/// The number of slots of a table for these accounts and some more.
fn room_for(accounts: usize) -> usize {
    ((accounts + 1) * 7 / 5).max(SLOTS_MIN)
}

#[derive(Debug, Default)]
pub(crate) struct AccountIndex {
    slots: Vec<u32>,
    /// How many low bits of a slot hold the account.
    bits: u32,
    len: usize,
    /// Slots that are not empty.
    used: usize,
}

impl AccountIndex {
    /// The number of known accounts.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
    }

    /// An empty table for accounts with the small numbers from 0 on.
    pub(crate) fn with_room(accounts: usize) -> Result<AccountIndex, AllocationFailed> {
        AccountIndex::empty(room_for(accounts), accounts)
    }

    /// An empty table with `room` slots; existing small numbers are below `numbers`.
    fn empty(room: usize, numbers: usize) -> Result<AccountIndex, AllocationFailed> {
        // More numbers are assigned until the table is full.
        let bits = usize::BITS - (numbers + room + FIRST as usize).leading_zeros();
        if bits >= u32::BITS {
            return Err(AllocationFailed { bytes: room.saturating_mul(size_of::<u64>()) });
        }
        let mut slots = Vec::new();
        reserve_exact(&mut slots, room)?;
        slots.resize(room, EMPTY);
        Ok(AccountIndex { slots, bits, len: 0, used: 0 })
    }

    /// The slot where probes for a hash begin.
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.slots.len() as u64) >> 32) as usize
    }

    /// The content of an account's slot.
    fn slot(&self, hash: u64, at: u32) -> u32 {
        (hash as u32) << self.bits | (at + FIRST)
    }

    /// The slot after another.
    fn next(&self, place: usize) -> usize {
        if place + 1 == self.slots.len() { 0 } else { place + 1 }
    }

    /// The account with this hash for which `is_it` holds.
    pub(crate) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let tag = (hash as u32) << self.bits;
        let mut place = self.home(hash);
        loop {
            let slot = *self.slots.get(place)?;
            if slot == EMPTY {
                return None;
            }
            if (slot ^ tag) >> self.bits == 0
                && let Some(at) = (slot & ((1 << self.bits) - 1)).checked_sub(FIRST)
                && is_it(at)
            {
                return Some(at);
            }
            place = self.next(place);
        }
    }

    /// Prefetches the slot where probes for a hash begin, so that many cache misses overlap.
    pub(crate) fn touch(&self, hash: u64) -> u32 {
        self.slots.get(self.home(hash)).copied().unwrap_or_default()
    }

    /// Makes room for one more account with small number `at`. `keys` are those of the known
    /// accounts.
    pub(crate) fn make_room(
        &mut self,
        at: usize,
        keys: &AccountKeys,
    ) -> Result<(), AllocationFailed> {
        let is_full = (self.used + 1) * 6 > self.slots.len() * 5;
        if !is_full && at + (FIRST as usize) < 1 << self.bits {
            return Ok(());
        }
        let room = room_for(self.len);
        // A table in which accounts only replace each other keeps its size.
        let room = if room * 8 > self.slots.len() * 7 { room } else { self.slots.len() };
        self.resize(room, at.max(keys.len()), keys)
    }

    /// Frees memory if much of it is unused.
    pub(crate) fn shrink(&mut self, keys: &AccountKeys) {
        if self.len * 5 < self.slots.len() * 3 && self.slots.len() > SLOTS_MIN {
            // Without memory for a copy the table is unchanged.
            _ = self.resize(room_for(self.len), keys.len(), keys);
        }
    }

    /// Moves the accounts to a table with `room` slots.
    fn resize(
        &mut self,
        room: usize,
        numbers: usize,
        keys: &AccountKeys,
    ) -> Result<(), AllocationFailed> {
        let empty = AccountIndex::empty(room, numbers)?;
        let old = std::mem::replace(self, empty);
        let mask = (1u32 << old.bits) - 1;
        // In groups, so that the cache misses in their numbers overlap.
        for some in old.slots.chunks(TOGETHER) {
            let mut hashes = [0; TOGETHER];
            for (hash_of, slot) in hashes.iter_mut().zip(some) {
                let at = (slot & mask).wrapping_sub(FIRST);
                *hash_of = keys.get(at).map_or(0, hash);
            }
            for (hash, slot) in hashes.into_iter().zip(some) {
                if let Some(at) = (slot & mask).checked_sub(FIRST) {
                    self.insert(hash, at);
                }
            }
        }
        Ok(())
    }

    /// Adds an unknown account; `make_room` precedes.
    pub(crate) fn insert(&mut self, hash: u64, at: u32) {
        let mut place = self.home(hash);
        while self.slots[place] >= FIRST {
            place = self.next(place);
        }
        self.used += usize::from(self.slots[place] == EMPTY);
        self.len += 1;
        self.slots[place] = self.slot(hash, at);
    }

    /// The position of an account's slot.
    fn place(&self, hash: u64, at: u32) -> Option<usize> {
        let slot = self.slot(hash, at);
        let mut place = self.home(hash);
        loop {
            match *self.slots.get(place)? {
                EMPTY => return None,
                one if one == slot => return Some(place),
                _ => place = self.next(place),
            }
        }
    }

    /// Changes the small number of an account.
    pub(crate) fn rename(&mut self, hash: u64, old: u32, new: u32) {
        if let Some(place) = self.place(hash, old) {
            self.slots[place] = self.slot(hash, new);
        }
    }

    /// Removes an account; false if it is unknown.
    pub(crate) fn remove(&mut self, hash: u64, at: u32) -> bool {
        let Some(place) = self.place(hash, at) else { return false };
        self.len -= 1;
        self.slots[place] = FORGOTTEN;
        // A probe never passes here if the next slot is empty.
        let mut last = Some(place).filter(|_| self.slots[self.next(place)] == EMPTY);
        while let Some(place) = last.filter(|&place| self.slots[place] == FORGOTTEN) {
            self.slots[place] = EMPTY;
            self.used -= 1;
            last = place.checked_sub(1);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::AccountKeys;
    use super::AccountIndex;
    use crate::accounts::hash;
    use proptest::prelude::*;

    proptest! {
        /// The table has the live accounts, while accounts are removed and reappear elsewhere.
        #[test]
        fn it_equals_a_plain_list(steps in prop::collection::vec((0..300i64, any::<bool>()), 1..3000)) {
            let mut index = AccountIndex::default();
            // A key may be stored at several positions, but is alive at one at most.
            let (mut keys, mut alive): (AccountKeys, Vec<bool>) = Default::default();
            for (key, is_removal) in steps {
                let known = (0..keys.len()).find(|&at| alive[at] && keys.get(at as u32) == Some(key));
                let found = index.find(hash(key), |at| keys.get(at) == Some(key) && alive[at as usize]);
                prop_assert_eq!(found.map(|at| at as usize), known);
                match known {
                    Some(at) if is_removal => {
                        prop_assert!(index.remove(hash(key), at as u32));
                        prop_assert!(!index.remove(hash(key), at as u32));
                        alive[at] = false;
                    }
                    Some(_) => {}
                    None => {
                        let free = alive.iter().position(|alive| !alive);
                        let at = free.unwrap_or(keys.len());
                        index.make_room(at, &keys).unwrap();
                        keys.put(at, key);
                        alive.resize(keys.len(), true);
                        alive[at] = true;
                        index.insert(hash(key), at as u32);
                    }
                }
                prop_assert_eq!(index.len(), alive.iter().filter(|alive| **alive).count());
            }
        }
    }

    #[test]
    fn a_table_that_keeps_its_length_keeps_its_size() {
        let mut index = AccountIndex::default();
        let mut keys = AccountKeys::default();
        for key in 0..100_000 {
            let at = key as usize % 1000;
            if key >= 1000 {
                assert!(index.remove(hash(key - 1000), at as u32));
            }
            index.make_room(at, &keys).unwrap();
            keys.put(at, key);
            index.insert(hash(key), at as u32);
        }
        assert!(index.slots.len() <= 1600, "{} slots for 1000", index.slots.len());
        assert!(index.slots.len() >= 1200);
    }
}
