//! Which objects were refreshed on this node. A sealed object does not change, so one refresh is
//! enough.
//!
//! A refresh drops the lines from all caches of the node, so one process can rely on a refresh by
//! another, if it trusts that process. Processes of one user do: they share the marks
//! ([`SharedWords`]). Without shared marks each process has its own.

use std::sync::OnceLock;

use farrow_memory::SharedWords;
use farrow_memory::sync::{AtomicU64, Ordering};

use crate::format::entry::Sequence;
use crate::format::ids::Slot;

/// Number of marks, each shared by the slots with the same remainder. If two objects share a mark,
/// the later one owns it, and the other is refreshed again.
pub const REFRESHED_MARKS: usize = 1 << 16;

/// The upper bits of a mark are the slot, the others the sequence. No other object in the slot has
/// this sequence, and it changes when the bytes move.
const SEQUENCE_BITS: u32 = 48;

/// The marks, private or shared.
#[derive(Debug)]
pub(crate) enum Refreshed {
    /// Allocated at the first access, which never happens on a coherent region.
    OfProcess(OnceLock<Box<[AtomicU64]>>),
    OfNode(SharedWords),
}

impl Default for Refreshed {
    fn default() -> Self {
        Self::OfProcess(OnceLock::new())
    }
}

impl Refreshed {
    pub(crate) fn contains(&self, slot: Slot, sequence: Sequence) -> bool {
        // Acquire: loads of the refreshed bytes follow this load.
        let found = self.place(slot).map(|place| place.load(Ordering::Acquire));
        found.is_some() && found == mark(slot, sequence)
    }

    pub(crate) fn insert(&self, slot: Slot, sequence: Sequence) {
        if let (Some(place), Some(mark)) = (self.place(slot), mark(slot, sequence)) {
            place.store(mark, Ordering::Release);
        }
    }

    fn place(&self, slot: Slot) -> Option<&AtomicU64> {
        let index = slot.0 as usize % REFRESHED_MARKS;
        match self {
            Self::OfProcess(marks) => {
                let none = || (0..REFRESHED_MARKS).map(|_| AtomicU64::new(0)).collect();
                marks.get_or_init(none).get(index)
            }
            Self::OfNode(marks) => marks.get(index),
        }
    }
}

/// None if the sequence does not fit, after many trillions of objects: such an object is refreshed
/// each time.
fn mark(slot: Slot, sequence: Sequence) -> Option<u64> {
    let upper = u64::from(slot.0) / REFRESHED_MARKS as u64;
    let fits = sequence.0 != 0 && sequence.0 >> SEQUENCE_BITS == 0;
    fits.then_some(upper << SEQUENCE_BITS | sequence.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_of_one_life_of_one_slot() {
        let refreshed = Refreshed::default();
        let (slot, other) = (Slot(5), Slot(5 + REFRESHED_MARKS as u32));
        assert!(!refreshed.contains(slot, Sequence(9)));
        refreshed.insert(slot, Sequence(9));
        assert!(refreshed.contains(slot, Sequence(9)));
        assert!(!refreshed.contains(slot, Sequence(17)));
        assert!(!refreshed.contains(Slot(6), Sequence(9)));
        assert!(!refreshed.contains(other, Sequence(9)), "another slot of the same place");
        refreshed.insert(other, Sequence(9));
        assert!(refreshed.contains(other, Sequence(9)) && !refreshed.contains(slot, Sequence(9)));
        for odd in [0, 1 << SEQUENCE_BITS, u64::MAX] {
            refreshed.insert(Slot(7), Sequence(odd));
            assert!(!refreshed.contains(Slot(7), Sequence(odd)), "{odd}");
        }
        refreshed.insert(Slot(u32::MAX), Sequence(9));
        assert!(refreshed.contains(Slot(u32::MAX), Sequence(9)));
    }
}
