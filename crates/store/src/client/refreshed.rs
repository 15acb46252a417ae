//! Which objects this process has refreshed: what is sealed does not change, so once is enough.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::format::entry::Sequence;
use crate::format::ids::Slot;

/// Objects remembered, some 16 B each. When there are more all are forgotten, and refreshed once
/// more.
const OBJECTS_MAX: usize = 1 << 16;

/// By slot: the sequence, which no other object has and which changes when the bytes move.
#[derive(Debug, Default)]
pub(crate) struct Refreshed {
    sequences: Mutex<HashMap<u32, u64>>,
}

impl Refreshed {
    pub(crate) fn contains(&self, slot: Slot, sequence: Sequence) -> bool {
        self.sequences().get(&slot.0) == Some(&sequence.0)
    }

    pub(crate) fn insert(&self, slot: Slot, sequence: Sequence) {
        let mut sequences = self.sequences();
        if sequences.len() >= OBJECTS_MAX {
            sequences.clear();
        }
        sequences.insert(slot.0, sequence.0);
    }

    /// Right after each statement.
    fn sequences(&self) -> MutexGuard<'_, HashMap<u32, u64>> {
        self.sequences.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
