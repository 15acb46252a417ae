//! Invariant checks of a region, for tests and for a daemon on request.

use std::collections::{BTreeMap, BTreeSet};

use super::Home;
use crate::alloc::space::Run;
use crate::format::entry::EntryState;
use crate::format::ids::Slot;
use crate::tables::grants::span_of;

impl Home {
    /// Check every invariant: each byte of the heap has one owner, the sums are right, adjacent
    /// free runs are merged, private state and tables agree, entries, names and index refer to each
    /// other.
    ///
    /// # Errors
    /// A description of the violation.
    pub fn check(&self) -> Result<(), String> {
        self.space.check()?;
        self.names.check()?;
        self.holds.check()?;
        self.clients.check()?;
        self.grants.check()?;
        self.namespaces.check()?;
        self.pins.check()?;
        self.check_heap()?;
        self.check_entries()?;
        self.check_locals()?;
        self.check_sums()?;
        self.check_accounts()
    }

    /// The free runs, the grants and the blocks tile the heap.
    fn check_heap(&self) -> Result<(), String> {
        let free = self.space.runs().map(|run| (run, "free"));
        let granted = self.grants.all().map(|run| (run, "granted"));
        let blocks = self.blocks.iter().map(|(run, _)| (run, "block"));
        let mut all: Vec<(Run, &str)> = free.chain(granted).chain(blocks).collect();
        all.sort_unstable();
        let heap = self.layout().heap;
        let mut at = heap.offset.0;
        for (run, what) in all {
            if run.start != at {
                return Err(format!("heap: {what} {} does not start at {at:#x}", span_of(run)));
            }
            at = run.end;
        }
        if at != heap.offset.0 + heap.length.0 {
            return Err(format!("heap: what is known ends at {at:#x}"));
        }
        Ok(())
    }

    /// Every slot is free, sealed, spilled or retiring, as recorded; blocks have the right counts.
    fn check_entries(&self) -> Result<(), String> {
        let text = |error: crate::StoreError| error.to_string();
        let mut counts: BTreeMap<Run, (u32, u32)> = BTreeMap::new();
        let free: BTreeSet<u32> = self.directory.free_slots().iter().copied().collect();
        if free.len() != self.directory.free_slots().len() {
            return Err("a slot is free twice".to_owned());
        }
        let (mut sealed, mut names) = (0, 0);
        for slot in (0..self.layout().objects_max).map(Slot) {
            let sequence = self.directory.sequence(slot).map_err(text)?;
            let state = sequence.state();
            let is_used = slot.0 < self.directory.used();
            let is_free = state == EntryState::Free && is_used && sequence.next_life().is_some();
            let is_known = match state {
                EntryState::Free => is_used || sequence.0 == 0,
                EntryState::Sealed | EntryState::Retiring | EntryState::Spilled => is_used,
                _ => false,
            };
            if !is_known
                || is_free != free.contains(&slot.0)
                || (state == EntryState::Retiring) != self.retiring.contains(slot.0)
                || (state == EntryState::Spilled) != self.spilled.contains(slot)
            {
                return Err(format!("slot {} is {state:?} and listed as another", slot.0));
            }
            if state == EntryState::Free {
                continue;
            }
            let entry = self.directory.entry(slot).map_err(text)?;
            if state == EntryState::Spilled {
                names += u64::from(!entry.name.is_empty());
                self.check_name_of(slot)?;
                continue;
            }
            for run in self.runs_of(slot, &entry).map_err(text)? {
                let count = counts.entry(run).or_default();
                count.0 += u32::from(state == EntryState::Sealed);
                count.1 += u32::from(state == EntryState::Retiring);
            }
            if state == EntryState::Sealed {
                sealed += 1;
                names += u64::from(!entry.name.is_empty());
                self.check_name_of(slot)?;
            }
        }
        for (slot, known) in &self.locals.known {
            let Some(run) = known.run else { continue };
            let is_retiring = self.retiring.contains(*slot);
            let count = counts.entry(run).or_default();
            count.0 += u32::from(!is_retiring);
            count.1 += u32::from(is_retiring);
            sealed += u32::from(!is_retiring);
        }
        for run in self.loading_runs() {
            counts.entry(run).or_default().0 += 1;
        }
        if (sealed, names) != (self.objects, self.names.count()) {
            let known = (self.objects, self.names.count());
            return Err(format!("{sealed} objects, {names} names; accounts say {known:?}"));
        }
        let shared = self.blocks.iter().any(|(_, block)| block.is_shared());
        if shared != self.blocks.has_shared() {
            return Err(format!("blocks are shared: {shared}; accounts say {}", !shared));
        }
        let known = self.blocks.iter().map(|(run, b)| (run, (b.sealed, b.retiring)));
        if !known.eq(counts) {
            return Err("blocks are not those of the entries".to_owned());
        }
        Ok(())
    }

    /// The name of a sealed or spilled object leads back to it and matches the hash in its entry.
    fn check_name_of(&self, slot: Slot) -> Result<(), String> {
        let text = |error: crate::StoreError| error.to_string();
        let entry = self.directory.entry(slot).map_err(text)?;
        if entry.name.is_empty() {
            return Ok(());
        }
        let name = String::from_utf8(self.name_of(&entry).map_err(text)?)
            .map_err(|_| format!("slot {}: its name is not UTF-8", slot.0))?;
        if self.names.hash(&name).0 != entry.name_hash {
            return Err(format!("slot {}: the hash of {name:?} differs", slot.0));
        }
        if self.slot_of_name(&name).map_err(text)? != Some(slot) {
            return Err(format!("slot {}: {name:?} does not lead to it", slot.0));
        }
        Ok(())
    }

    fn check_sums(&self) -> Result<(), String> {
        let stats = self.stats().map_err(|error| error.to_string())?;
        let parts = [stats.used, stats.granted, stats.retiring, stats.quarantine, stats.free];
        let sum: u64 = parts.iter().map(|part| part.0).sum();
        if sum != stats.capacity.0 {
            return Err(format!("{parts:?} sum to {sum} B, capacity is {}", stats.capacity));
        }
        Ok(())
    }
}
