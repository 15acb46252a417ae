//! The eviction order of rows: lists through the slots of a bank, or no order.

use super::Policy;
use std::collections::BTreeMap;

/// No slot.
const NONE: u32 = u32::MAX;

/// The position of a slot.
#[derive(Clone, Copy, Debug)]
struct SlotLink {
    before: u32,
    after: u32,
    /// Number of uses, or its index among all ([`Policy::Random`]).
    count: u64,
}

/// First and last slot of a list.
#[derive(Clone, Copy, Debug)]
struct SlotListEnds {
    first: u32,
    last: u32,
}

impl Default for SlotListEnds {
    fn default() -> SlotListEnds {
        SlotListEnds { first: NONE, last: NONE }
    }
}

/// The order of the slots of one bank. Slots are small numbers that the bank assigns.
#[derive(Debug)]
pub(super) struct SlotOrder {
    policy: Policy,
    links: Vec<SlotLink>,
    /// Slots by the count of their uses; one list for policies that do not count.
    lists: BTreeMap<u64, SlotListEnds>,
    /// All slots, for random eviction.
    all: Vec<u32>,
    random: u64,
}

impl SlotOrder {
    pub(super) fn new(policy: Policy, seed: u64) -> SlotOrder {
        let random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        SlotOrder { policy, links: Vec::new(), lists: BTreeMap::new(), all: Vec::new(), random }
    }

    pub(super) fn add(&mut self, slot: u32) {
        let at = slot as usize;
        if self.links.len() <= at {
            self.links.resize(at + 1, SlotLink { before: NONE, after: NONE, count: 0 });
        }
        if self.policy == Policy::Random {
            self.links[at].count = self.all.len() as u64;
            self.all.push(slot);
        } else {
            self.append(slot, 1);
        }
    }

    pub(super) fn touch(&mut self, slot: u32) {
        let Some(link) = self.links.get(slot as usize) else { return };
        match self.policy {
            Policy::Fifo | Policy::Random => {}
            Policy::Lru if link.after == NONE => {}
            Policy::Lru => {
                self.unlink(slot);
                self.append(slot, 1);
            }
            Policy::Lfu => {
                let count = link.count.saturating_add(1);
                self.unlink(slot);
                self.append(slot, count);
            }
        }
    }

    /// Removes the first slot to evict.
    pub(super) fn evict(&mut self) -> Option<u32> {
        if self.policy == Policy::Random {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let at = ((u128::from(self.random) * self.all.len() as u128) >> 64) as usize;
            let slot = *self.all.get(at)?;
            self.all.swap_remove(at);
            if let Some(&moved) = self.all.get(at) {
                self.links[moved as usize].count = at as u64;
            }
            return Some(slot);
        }
        let slot = self.lists.first_key_value()?.1.first;
        self.unlink(slot);
        Some(slot)
    }

    fn append(&mut self, slot: u32, count: u64) {
        let ends = self.lists.entry(count).or_default();
        let before = std::mem::replace(&mut ends.last, slot);
        if before == NONE {
            ends.first = slot;
        } else {
            self.links[before as usize].after = slot;
        }
        self.links[slot as usize] = SlotLink { before, after: NONE, count };
    }

    fn unlink(&mut self, slot: u32) {
        let SlotLink { before, after, count } = self.links[slot as usize];
        let Some(ends) = self.lists.get_mut(&count) else { return };
        match before {
            NONE => ends.first = after,
            _ => self.links[before as usize].after = after,
        }
        match after {
            NONE => ends.last = before,
            _ => self.links[after as usize].before = before,
        }
        if ends.first == NONE {
            self.lists.remove(&count);
        }
    }
}
