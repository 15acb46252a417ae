//! The adjacency lists of one side of all accounts.
//!
//! The lists of the two sides share no memory, so two threads can change them at once.

use super::arena::{ListArena, ListHandle};
use crate::accounts::Renumbering;
use crate::edge::Stamp;
use crate::edge::{EdgeEntry, EdgeRecord, EdgeRemoval, Side};
use crate::memory::{AllocationFailed, reserve_exact};

/// Edges whose lists are prefetched together before they are changed.
pub(crate) const TOUCHED: usize = 64;
/// Edges that are removed together.
pub(crate) const REMOVED_TOGETHER: usize = 4096;

/// One bit for each of the edges that are removed together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EdgeBits([u64; REMOVED_TOGETHER / 64]);

impl EdgeBits {
    pub(crate) const NONE: EdgeBits = EdgeBits([0; REMOVED_TOGETHER / 64]);

    pub(crate) fn set(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    pub(crate) fn has(&self, at: usize) -> bool {
        self.0[at / 64] & 1 << (at % 64) != 0
    }
}

#[derive(Debug)]
pub(crate) struct AdjacencyLists<T> {
    side: Side,
    /// The list of each account, by small number.
    lists: Vec<ListHandle>,
    arena: ListArena<T>,
}

impl<T: Stamp> AdjacencyLists<T> {
    pub(crate) fn new(side: Side) -> AdjacencyLists<T> {
        AdjacencyLists { side, lists: Vec::new(), arena: ListArena::default() }
    }

    fn list(&self, account: u32) -> ListHandle {
        self.lists.get(account as usize).copied().unwrap_or_default()
    }

    pub(crate) fn has_any(&self, account: u32) -> bool {
        !self.list(account).is_empty()
    }

    /// The edges of an account between the old ones at the start of its list, and the new ones at
    /// the end.
    #[inline]
    pub(crate) fn span(
        &self,
        account: u32,
        is_old: impl Fn(EdgeEntry<T>) -> bool,
        is_new: impl Fn(EdgeEntry<T>) -> bool,
    ) -> &[EdgeEntry<T>] {
        let list = self.list(account);
        if let Some((some, live)) = self.arena.few(list) {
            // The loop visits every entry, because an early exit could not be predicted.
            let (mut first, mut end) = (0, 0);
            for (at, &one) in some.iter().enumerate() {
                first += usize::from((at < live) & is_old(one));
                end += usize::from((at < live) & !is_new(one));
            }
            return some.get(first..end).unwrap_or_default();
        }
        let all = self.arena.get(list);
        // Most windows contain a whole list, or its new end.
        let first = match all.first() {
            Some(&oldest) if is_old(oldest) => all.partition_point(|&one| is_old(one)),
            _ => 0,
        };
        let end = match all.last() {
            Some(&newest) if is_new(newest) => all.partition_point(|&one| !is_new(one)),
            _ => all.len(),
        };
        all.get(first..end).unwrap_or_default()
    }

    /// The entry of one edge, as [`ListArena::find`] defines it.
    pub(crate) fn find(&self, account: u32, seq: u32, head: Option<u32>) -> Option<EdgeEntry<T>> {
        self.arena.find(self.list(account), seq, head)
    }

    /// Prefetches the newest entries of these accounts' lists, so that cache misses overlap.
    pub(crate) fn touch(&self, accounts: impl Iterator<Item = u32> + Clone) {
        self.touch_end(accounts, ListArena::newest);
    }

    /// Prefetches the oldest entries of these accounts' lists, so that cache misses overlap.
    pub(crate) fn touch_oldest(&self, accounts: impl Iterator<Item = u32> + Clone) {
        self.touch_end(accounts, ListArena::oldest);
    }

    fn touch_end(
        &self,
        accounts: impl Iterator<Item = u32> + Clone,
        end: impl Fn(&ListArena<T>, ListHandle) -> u32,
    ) {
        // Two rounds: within each, no read depends on another.
        let lists = accounts.map(|account| self.list(account));
        let touched = lists.clone().map(|list| self.arena.touch_block(list));
        std::hint::black_box(touched.fold(0, |all, one| all ^ one));
        let touched = lists.map(|list| end(&self.arena, list));
        std::hint::black_box(touched.fold(0, |all, one| all ^ one));
    }

    /// Prefetches the data of `has_any` for these accounts.
    pub(crate) fn touch_lists(&self, accounts: impl Iterator<Item = u32>) {
        let touched = accounts.map(|account| self.touch_list(account));
        std::hint::black_box(touched.fold(false, |all, one| all ^ one));
    }

    /// Prefetches the data of `has_any` for an account.
    pub(crate) fn touch_list(&self, account: u32) -> bool {
        self.list(account).is_empty()
    }

    /// Creates lists for all small numbers below `accounts`.
    pub(crate) fn make_room(&mut self, accounts: usize) -> Result<(), AllocationFailed> {
        let known = self.lists.len();
        if accounts <= known {
            return Ok(());
        }
        if self.lists.capacity() < accounts {
            // Growth is small: doubling would leave half of a large graph empty.
            reserve_exact(&mut self.lists, (accounts - known).max(known / 32))?;
        }
        self.lists.resize(accounts, ListHandle::default());
        Ok(())
    }

    /// The account whose list has an edge on this side, and the entry.
    fn entry(&self, record: EdgeRecord<T>, seq: u32) -> (usize, EdgeEntry<T>) {
        let EdgeRecord { source, target, time } = record;
        let (own, other) = if self.side == Side::Out { (source, target) } else { (target, source) };
        (own as usize, EdgeEntry { time, other, seq })
    }

    fn owner(&self, record: &EdgeRecord<T>) -> u32 {
        if self.side == Side::Out { record.source } else { record.target }
    }

    /// Adds edges with consecutive sequence numbers from `first` on, except for self-loops. Without
    /// memory, nothing changes.
    pub(crate) fn insert(
        &mut self,
        records: &[EdgeRecord<T>],
        first: u32,
    ) -> Result<(), AllocationFailed> {
        for (part, some) in records.chunks(TOUCHED).enumerate() {
            if records.len() > 1 {
                self.touch(some.iter().map(|one| self.owner(one)));
            }
            for (at, &record) in (part * TOUCHED..).zip(some) {
                if record.is_loop() {
                    continue;
                }
                let (own, entry) = self.entry(record, first.wrapping_add(at as u32));
                if let Err(full) = self.arena.insert(&mut self.lists[own], entry) {
                    self.take_back(&records[..at], first);
                    return Err(full);
                }
            }
        }
        Ok(())
    }

    /// Removes edges that were just inserted.
    pub(crate) fn take_back(&mut self, records: &[EdgeRecord<T>], first: u32) {
        for (at, &record) in records.iter().enumerate().rev() {
            self.remove(record, first.wrapping_add(at as u32));
        }
    }

    /// Removes an edge, unless it is a self-loop. Returns whether the account has no more edges on
    /// this side.
    pub(crate) fn remove(&mut self, record: EdgeRecord<T>, seq: u32) -> bool {
        if record.is_loop() {
            return false;
        }
        let (own, entry) = self.entry(record, seq);
        self.arena.remove(&mut self.lists[own], entry.time, seq);
        self.lists[own].is_empty()
    }

    /// Removes the chosen edges. Returns which of them were the last of their account.
    pub(crate) fn remove_all(&mut self, piece: &[EdgeRemoval<T>], chosen: &EdgeBits) -> EdgeBits {
        let mut emptied = EdgeBits::NONE;
        for (part, some) in piece.chunks(TOUCHED).enumerate() {
            self.touch_oldest(some.iter().map(|one| self.owner(&one.record)));
            for (at, one) in (part * TOUCHED..).zip(some) {
                if chosen.has(at) && self.remove(one.record, one.seq) {
                    emptied.set(at);
                }
            }
        }
        emptied
    }

    /// The same lists with new small numbers, without unused memory.
    pub(crate) fn rebuilt(
        &self,
        numbering: &Renumbering,
        edges: usize,
    ) -> Result<AdjacencyLists<T>, AllocationFailed> {
        let named = numbering.named();
        let mut half = AdjacencyLists::new(self.side);
        reserve_exact(&mut half.lists, named.len())?;
        half.arena.reserve(edges)?;
        for some in named.chunks(TOUCHED) {
            self.touch(some.iter().copied());
            for &account in some {
                let entries = self.arena.get(self.list(account));
                half.lists.push(half.arena.append(entries, |other| numbering.of(other))?);
            }
        }
        Ok(half)
    }

    /// All edges of an account.
    pub(crate) fn get(&self, account: u32) -> &[EdgeEntry<T>] {
        self.arena.get(self.list(account))
    }

    /// Replaces the account at the other end of an edge; that account's own entry is `entry`.
    pub(crate) fn rename(&mut self, entry: EdgeEntry<T>, new: u32) {
        self.arena.rename(self.list(entry.other), entry.time, entry.seq, new);
    }

    /// Moves the list of an account to another small number, which has no list.
    pub(crate) fn renumber(&mut self, old: u32, new: u32) {
        let list = std::mem::take(&mut self.lists[old as usize]);
        self.lists[new as usize] = list;
    }

    /// Drops the accounts from number `end` on, which have no edges.
    pub(crate) fn truncate(&mut self, end: usize) {
        self.lists.truncate(end);
        self.lists.shrink_to_fit();
    }

    /// Frees memory if much of it is unused.
    pub(crate) fn shrink(&mut self) {
        self.arena.shrink(&mut self.lists);
    }

    pub(crate) fn restamp<S: Stamp>(self, change: impl Fn(T) -> S) -> AdjacencyLists<S> {
        let arena = self.arena.restamp(&self.lists, change);
        AdjacencyLists { side: self.side, lists: self.lists, arena }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lists.capacity() * size_of::<ListHandle>() + self.arena.bytes()
    }
}
