//! The objects that clients sealed themselves, as far as the home knows them.

use std::collections::BTreeMap;

use crate::alloc::space::Run;
use crate::format::ids::Slot;
use crate::tables::entry_area::EntryArea;

/// The home's private state of client entries.
#[derive(Debug)]
pub(in crate::home) struct Locals {
    pub(in crate::home) area: EntryArea,
    /// The block of each sealed or retiring object, by slot. None: the entry was invalid, and
    /// retires until its holds are released.
    pub(in crate::home) blocks: BTreeMap<u32, Option<Run>>,
    /// The directory slot of each object that the home took over, by its former slot.
    pub(in crate::home) moved: BTreeMap<u32, u32>,
    /// The inverse of `moved`.
    pub(in crate::home) taken: BTreeMap<u32, u32>,
}

impl Locals {
    pub(in crate::home) fn new(area: EntryArea) -> Self {
        let (blocks, moved, taken) = Default::default();
        Self { area, blocks, moved, taken }
    }

    pub(in crate::home) fn is_known(&self, slot: Slot) -> bool {
        self.blocks.contains_key(&slot.0) || self.moved.contains_key(&slot.0)
    }
}
