//! The spilled objects, by slot, with what is asked of all of them at each spill.

use std::collections::BTreeMap;

use crate::format::ids::Slot;

/// The spilled objects and their sizes, as their users see them.
#[derive(Debug, Default)]
pub(in crate::home) struct Spilled {
    of_slot: BTreeMap<u32, u64>,
    /// How many have each size.
    counts: BTreeMap<u64, u32>,
    bytes: u64,
}

impl Spilled {
    pub(in crate::home) fn insert(&mut self, slot: Slot, size: u64) {
        self.remove(slot);
        self.of_slot.insert(slot.0, size);
        *self.counts.entry(size).or_default() += 1;
        self.bytes = self.bytes.saturating_add(size);
    }

    pub(in crate::home) fn remove(&mut self, slot: Slot) {
        let Some(size) = self.of_slot.remove(&slot.0) else {
            return;
        };
        self.bytes = self.bytes.saturating_sub(size);
        if let Some(count) = self.counts.get_mut(&size) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&size);
            }
        }
    }

    pub(in crate::home) fn contains(&self, slot: Slot) -> bool {
        self.of_slot.contains_key(&slot.0)
    }

    pub(in crate::home) fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.of_slot.keys().copied().map(Slot)
    }

    pub(in crate::home) fn len(&self) -> usize {
        self.of_slot.len()
    }

    /// Their sizes together.
    pub(in crate::home) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The largest size; 0: there is none.
    pub(in crate::home) fn largest(&self) -> u64 {
        self.counts.last_key_value().map_or(0, |(size, _)| *size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_and_the_sum_follow_what_comes_and_goes() {
        let mut spilled = Spilled::default();
        assert_eq!((spilled.largest(), spilled.bytes(), spilled.len()), (0, 0, 0));
        for (slot, size) in [(1, 5), (2, 9), (3, 9), (4, 2)] {
            spilled.insert(Slot(slot), size);
        }
        assert_eq!((spilled.largest(), spilled.bytes(), spilled.len()), (9, 25, 4));
        spilled.remove(Slot(2));
        spilled.remove(Slot(2));
        assert_eq!((spilled.largest(), spilled.bytes()), (9, 16));
        spilled.insert(Slot(3), 1);
        assert_eq!((spilled.largest(), spilled.bytes()), (5, 8));
        assert_eq!(spilled.slots().map(|slot| slot.0).collect::<Vec<_>>(), [1, 3, 4]);
        assert!(!spilled.contains(Slot(2)) && spilled.contains(Slot(4)));
    }
}
