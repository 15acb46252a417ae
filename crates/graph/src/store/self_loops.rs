//! Edges from an account to itself.

use super::arena::{ListArena, ListHandle};
use crate::accounts::AccountHash;
use crate::edge::{EdgeEntry, EdgeRecord, Stamp};
use crate::memory::AllocationFailed;
use hashbrown::HashMap;

/// A table with more capacity than this factor of its length is copied to a smaller one.
const SPARSE: usize = 2;
/// Tables with fewer accounts are not copied.
const SPARSE_MIN: usize = 16;

/// The self-loops of all accounts.
#[derive(Debug, Default)]
pub(crate) struct SelfLoops<T> {
    lists: HashMap<u32, ListHandle, AccountHash>,
    arena: ListArena<T>,
}

impl<T: Stamp> SelfLoops<T> {
    pub(crate) fn get(&self, account: u32) -> &[EdgeEntry<T>] {
        if self.lists.is_empty() {
            return &[];
        }
        self.lists.get(&account).map_or(&[], |list| self.arena.get(*list))
    }

    pub(crate) fn has_any(&self, account: u32) -> bool {
        !self.lists.is_empty() && self.lists.contains_key(&account)
    }

    pub(crate) fn find(&self, account: u32, seq: u32, head: Option<u32>) -> Option<EdgeEntry<T>> {
        self.arena.find(self.lists.get(&account).copied()?, seq, head)
    }

    /// Adds the self-loops among these edges. Without memory, nothing changes.
    pub(crate) fn insert(
        &mut self,
        records: &[EdgeRecord<T>],
        first: u32,
    ) -> Result<(), AllocationFailed> {
        for (at, record) in records.iter().enumerate().filter(|(_, one)| one.is_loop()) {
            let seq = first.wrapping_add(at as u32);
            if let Err(full) = self.insert_one(*record, seq) {
                self.take_back(&records[..at], first);
                return Err(full);
            }
        }
        Ok(())
    }

    fn insert_one(&mut self, record: EdgeRecord<T>, seq: u32) -> Result<(), AllocationFailed> {
        let bytes = (self.lists.len() + 1) * size_of::<(u32, ListHandle)>();
        self.lists.try_reserve(1).map_err(|_| AllocationFailed { bytes })?;
        let mut list = self.lists.get(&record.source).copied().unwrap_or_default();
        let entry = EdgeEntry { time: record.time, other: record.target, seq };
        self.arena.insert(&mut list, entry)?;
        self.lists.insert(record.source, list);
        Ok(())
    }

    /// Removes edges that were just inserted.
    pub(crate) fn take_back(&mut self, records: &[EdgeRecord<T>], first: u32) {
        for (at, &record) in records.iter().enumerate().rev() {
            self.remove(record, first.wrapping_add(at as u32));
        }
    }

    /// Removes an edge if it is a self-loop. Returns whether it was the account's last.
    pub(crate) fn remove(&mut self, record: EdgeRecord<T>, seq: u32) -> bool {
        if !record.is_loop() {
            return false;
        }
        let Some(list) = self.lists.get_mut(&record.source) else { return false };
        self.arena.remove(list, record.time, seq);
        let is_empty = list.is_empty();
        if is_empty {
            self.lists.remove(&record.source);
        }
        is_empty
    }

    /// Gives an account another small number, and returns its self-loops.
    pub(crate) fn renumber(&mut self, old: u32, new: u32) -> &[EdgeEntry<T>] {
        let Some(list) = self.lists.remove(&old) else { return &[] };
        self.arena.rename_all(list, new);
        self.lists.insert(new, list);
        self.arena.get(list)
    }

    /// Frees memory if much of it is unused.
    pub(crate) fn shrink(&mut self) {
        let mut smaller = HashMap::default();
        let is_sparse = (self.lists.len() + SPARSE_MIN) * SPARSE < self.lists.capacity();
        if is_sparse && smaller.try_reserve(self.lists.len()).is_ok() {
            smaller.extend(self.lists.drain());
            self.lists = smaller;
        }
        if self.arena.is_sparse() {
            // Without memory for a copy, nothing changes.
            if let Ok(loops) = self.rebuilt(|account| account) {
                *self = loops;
            }
        }
    }

    /// The same self-loops with new small numbers, without unused memory.
    pub(crate) fn rebuilt(
        &self,
        number: impl Fn(u32) -> u32,
    ) -> Result<SelfLoops<T>, AllocationFailed> {
        let mut loops = SelfLoops::default();
        let bytes = self.lists.allocation_size();
        loops.lists.try_reserve(self.lists.len()).map_err(|_| AllocationFailed { bytes })?;
        for (&account, &list) in &self.lists {
            let entries = self.arena.get(list);
            let list = loops.arena.append(entries, &number)?;
            loops.lists.insert(number(account), list);
        }
        Ok(loops)
    }

    pub(crate) fn restamp<S: Stamp>(self, change: impl Fn(T) -> S) -> SelfLoops<S> {
        let lists: Vec<ListHandle> = self.lists.values().copied().collect();
        SelfLoops { lists: self.lists, arena: self.arena.restamp(&lists, change) }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lists.allocation_size() + self.arena.bytes()
    }
}
