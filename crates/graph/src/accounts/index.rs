//! Where accounts are found by the caller's number: a table that is one line of memory to a probe.
//!
//! A slot has an account's small number and, in the bits above, a tag of its hash: other accounts'
//! numbers are next to never looked at. Probes go on from slot to slot, so most end in the line
//! where they began. The table is between three and five sixths full; it grows by a
//! sixth, and shrinks by as much.

use super::keys::AccountKeys;
use crate::accounts::hash;
use crate::memory::{OutOfMemory, reserve_exact};

/// A slot that nobody has had,
const EMPTY: u32 = 0;
/// and one whose account has been forgotten: probes go on.
const FORGOTTEN: u32 = 1;
/// Small numbers are kept with so much added.
const FIRST: u32 = 2;
const SLOTS_MIN: usize = 32;
/// Slots that are moved together.
const TOGETHER: usize = 64;

/// Slots for so many accounts, and some more.
fn room_for(accounts: usize) -> usize {
    ((accounts + 1) * 7 / 5).max(SLOTS_MIN)
}

#[derive(Debug, Default)]
pub(crate) struct AccountIndex {
    slots: Vec<u32>,
    /// Bits of a slot that say the account.
    bits: u32,
    len: usize,
    /// Slots that are not empty.
    used: usize,
}

impl AccountIndex {
    /// Accounts that are known.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
    }

    /// A table for so many accounts with the numbers from 0 on.
    pub(crate) fn with_room(accounts: usize) -> Result<AccountIndex, OutOfMemory> {
        AccountIndex::empty(room_for(accounts), accounts)
    }

    /// An empty table of so many slots, while there are so many numbers.
    fn empty(room: usize, numbers: usize) -> Result<AccountIndex, OutOfMemory> {
        // Numbers that are given out until it is full.
        let bits = usize::BITS - (numbers + room + FIRST as usize).leading_zeros();
        if bits >= u32::BITS {
            return Err(OutOfMemory { bytes: room.saturating_mul(size_of::<u64>()) });
        }
        let mut slots = Vec::new();
        reserve_exact(&mut slots, room)?;
        slots.resize(room, EMPTY);
        Ok(AccountIndex { slots, bits, len: 0, used: 0 })
    }

    /// Where probes for a hash begin.
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.slots.len() as u64) >> 32) as usize
    }

    /// What the slot of an account holds.
    fn slot(&self, hash: u64, at: u32) -> u32 {
        (hash as u32) << self.bits | (at + FIRST)
    }

    /// The place behind another.
    fn next(&self, place: usize) -> usize {
        if place + 1 == self.slots.len() { 0 } else { place + 1 }
    }

    /// The account of this hash for which `is_it`.
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

    /// Reads where probes for a hash begin, so that the waits of many overlap.
    pub(crate) fn touch(&self, hash: u64) -> u32 {
        self.slots.get(self.home(hash)).copied().unwrap_or_default()
    }

    /// Sees to it that one more account fits, whose small number is `at`; those that are known have
    /// these numbers.
    pub(crate) fn make_room(&mut self, at: usize, keys: &AccountKeys) -> Result<(), OutOfMemory> {
        let is_full = (self.used + 1) * 6 > self.slots.len() * 5;
        if !is_full && at + (FIRST as usize) < 1 << self.bits {
            return Ok(());
        }
        let room = room_for(self.len);
        // Where many were forgotten and as many came it keeps its size.
        let room = if room * 8 > self.slots.len() * 7 { room } else { self.slots.len() };
        self.resize(room, at.max(keys.len()), keys)
    }

    /// Gives memory back, where much is free.
    pub(crate) fn shrink(&mut self, keys: &AccountKeys) {
        if self.len * 5 < self.slots.len() * 3 && self.slots.len() > SLOTS_MIN {
            // Where there is no memory for it, it stays as it is.
            _ = self.resize(room_for(self.len), keys.len(), keys);
        }
    }

    /// The same accounts in so many slots.
    fn resize(
        &mut self,
        room: usize,
        numbers: usize,
        keys: &AccountKeys,
    ) -> Result<(), OutOfMemory> {
        let empty = AccountIndex::empty(room, numbers)?;
        let old = std::mem::replace(self, empty);
        let mask = (1u32 << old.bits) - 1;
        // Together: the waits for their numbers overlap.
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

    /// Adds an account that is not known; `make_room` has made room.
    pub(crate) fn insert(&mut self, hash: u64, at: u32) {
        let mut place = self.home(hash);
        while self.slots[place] >= FIRST {
            place = self.next(place);
        }
        self.used += usize::from(self.slots[place] == EMPTY);
        self.len += 1;
        self.slots[place] = self.slot(hash, at);
    }

    /// Where the slot of an account is.
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

    /// Says that an account has another small number now.
    pub(crate) fn rename(&mut self, hash: u64, old: u32, new: u32) {
        if let Some(place) = self.place(hash, old) {
            self.slots[place] = self.slot(hash, new);
        }
    }

    /// Forgets an account; false if it is not known.
    pub(crate) fn remove(&mut self, hash: u64, at: u32) -> bool {
        let Some(place) = self.place(hash, at) else { return false };
        self.len -= 1;
        self.slots[place] = FORGOTTEN;
        // No probe goes on from here if the next slot is empty.
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
        /// Accounts come, go and come back under other numbers; the table knows those that are there.
        #[test]
        fn it_equals_a_plain_list(steps in prop::collection::vec((0..300i64, any::<bool>()), 1..3000)) {
            let mut index = AccountIndex::default();
            // The same key may be at many places, but is alive at one.
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
