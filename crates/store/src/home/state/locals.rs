//! The objects that clients sealed themselves, as far as the home knows them.

use std::collections::BTreeMap;

use crate::alloc::space::Run;
use crate::format::ids::Slot;
use crate::tables::entry_area::EntryArea;

/// The home's private state of client entries.
#[derive(Debug)]
pub(in crate::home) struct Locals {
    pub(in crate::home) area: EntryArea,
    /// The sealed and retiring objects, by slot.
    pub(in crate::home) known: BTreeMap<u32, KnownEntry>,
    /// The directory slot of each object that the home took over, by its former slot.
    pub(in crate::home) moved: BTreeMap<u32, u32>,
    /// The inverse of `moved`.
    pub(in crate::home) taken: BTreeMap<u32, u32>,
}

/// What the home records of an entry when it registers it. It does not read the entry again for
/// this, since the client can overwrite it.
#[derive(Debug, Clone, Copy)]
pub(in crate::home) struct KnownEntry {
    /// The block. `None`: the entry was invalid, and retires until its holds are released.
    pub(in crate::home) run: Option<Run>,
    /// When it was sealed, as its client says.
    pub(in crate::home) sealed_at_ns: u64,
}

impl Locals {
    /// The block of a sealed or retiring object.
    pub(in crate::home) fn run_of(&self, slot: Slot) -> Option<Run> {
        self.known.get(&slot.0)?.run
    }

    pub(in crate::home) fn new(area: EntryArea) -> Self {
        let (known, moved, taken) = Default::default();
        Self { area, known, moved, taken }
    }

    pub(in crate::home) fn is_known(&self, slot: Slot) -> bool {
        self.known.contains_key(&slot.0) || self.moved.contains_key(&slot.0)
    }
}
