//! Compaction: accounts are renumbered to idle small numbers, and the graph is sometimes rebuilt.

use super::super::adjacency_lists::TOUCHED;
use super::{DynamicGraph, SealedBoundary, number_before};
use crate::accounts::Renumbering;
use crate::edge::Stamp;
use crate::memory::{AllocationFailed, reserve};
use crate::threads::both;

/// Accounts are renumbered when one small number in this many is idle.
const IDLE_MOST: usize = 12;
/// Below this many idle numbers, accounts are not renumbered.
const IDLE_MIN: usize = if cfg!(debug_assertions) { 4 } else { 256 };
const IDLE_RETAINED: usize = 4;
/// Calls with few rows do not scan all accounts of a graph with more edges than this; each account
/// takes some nanoseconds.
const LOOKED_AT_MAX: usize = 1 << 20;

/// A graph is rebuilt after arrivals of this many times its edges. Entries that are used together
/// are then close together again.
const REBUILT_AFTER: u64 = 2;
/// Only a call with at least this many rows rebuilds the graph.
const REBUILT_IN: usize = if cfg!(debug_assertions) { 2 } else { 1024 };
/// Graphs with fewer edges fit in the caches anyway.
const REBUILT_MIN: usize = if cfg!(debug_assertions) { 32 } else { 1 << 15 };
/// Larger graphs take too long for one call, at some 0.2 us for each edge.
const REBUILT_MAX: usize = 1 << 19;

impl<T: Stamp> DynamicGraph<T> {
    /// Frees memory that the current edges do not need, a little at a time. Returns whether
    /// accounts were renumbered. `rows` is the number of rows in the call.
    pub(crate) fn shrink(&mut self, rows: usize) -> bool {
        if self.late.is_some() || (rows < REBUILT_IN && self.alive > LOOKED_AT_MAX) {
            return false;
        }
        self.records.shrink();
        self.loops.shrink();
        self.out.shrink();
        self.into.shrink();
        let is_closed = self.close_up();
        self.accounts.shrink();
        is_closed
    }

    /// Moves the accounts with the largest small numbers to idle ones. False if too few are idle.
    fn close_up(&mut self) -> bool {
        let (idle, numbered) = (self.accounts.idle(), self.accounts.numbered());
        if self.remembers || idle < IDLE_MIN || idle * IDLE_MOST < numbered {
            return false;
        }
        let mut end = numbered - (idle - idle / IDLE_RETAINED);
        self.accounts.forget_idle_from(end);
        let mut touched = Vec::new();
        let mut moved = end;
        while moved < numbered {
            let some = moved as u32..numbered.min(moved + TOUCHED) as u32;
            self.touch_around(some.clone(), &mut touched);
            for old in some {
                // Idle numbers suffice, unless memory was too short to remember them all.
                if self.has_edges(old) && !self.renumber(old) {
                    end = old as usize + 1;
                }
            }
            moved += TOUCHED;
        }
        self.accounts.truncate(end);
        self.out.truncate(end);
        self.into.truncate(end);
        true
    }

    /// Prefetches the data of `renumber` for these accounts, so that cache misses overlap.
    fn touch_around(&self, accounts: std::ops::Range<u32>, touched: &mut Vec<u32>) {
        for (half, other) in [(&self.out, &self.into), (&self.into, &self.out)] {
            half.touch(accounts.clone());
            touched.clear();
            for account in accounts.clone() {
                let some = half.get(account).iter().take(TOUCHED);
                // Without memory for the list, the prefetch is left out.
                if reserve(touched, some.len()).is_ok() {
                    touched.extend(some.map(|one| one.other));
                }
            }
            other.touch(touched.iter().copied());
        }
    }

    /// Moves an account to an idle small number; false if there is none.
    fn renumber(&mut self, old: u32) -> bool {
        let Some(new) = self.accounts.renumber(old) else { return false };
        self.move_edges(old, new);
        true
    }

    /// Gives the edges of an account to another small number, which has none.
    pub(super) fn move_edges(&mut self, old: u32, new: u32) {
        let next = self.next();
        let DynamicGraph { out, into, loops, records, late, head, .. } = self;
        let mut rename = |seq, ends: [bool; 2]| {
            let number = number_before(next, seq);
            if let Some(place) = number.checked_sub(*head) {
                records.rename(place as usize, new, ends);
            }
            if let Some(late) = late.as_mut().and_then(|late| late.get_mut(&number)) {
                late.record.rename(new, ends);
            }
        };
        for &one in out.get(old) {
            into.rename(one, new);
            rename(one.seq, [true, false]);
        }
        for &one in into.get(old) {
            out.rename(one, new);
            rename(one.seq, [false, true]);
        }
        out.renumber(old, new);
        into.renumber(old, new);
        for one in loops.renumber(old, new) {
            rename(one.seq, [true, true]);
        }
    }

    /// Whether to rebuild the graph in a call of `rows` rows. A graph with segments is never
    /// rebuilt: it empties span by span, and accounts, which remain, take most of its memory.
    pub(crate) fn is_aged(&self, rows: usize) -> bool {
        let arrivals = self.next().saturating_sub(self.rebuilt_at);
        let is_due = rows >= REBUILT_IN && arrivals >= REBUILT_AFTER * self.alive as u64;
        let is_of_size = (REBUILT_MIN..=REBUILT_MAX).contains(&self.alive);
        // Accounts that are never forgotten may be most of the work.
        let are_accounts_few = self.accounts.numbered() <= 4 * self.alive;
        self.late.is_none() && is_due && is_of_size && are_accounts_few
    }

    /// The same graph without unused memory. Accounts whose edges follow each other get adjacent
    /// small numbers.
    pub(crate) fn rebuilt(
        &self,
        pool: Option<&rayon::ThreadPool>,
    ) -> Result<DynamicGraph<T>, AllocationFailed> {
        let numbering = self.numbering()?;
        let (mut first, mut second) = (None, None);
        both(
            pool,
            self.alive,
            || first = Some(self.out.rebuilt(&numbering, self.alive)),
            || second = Some(self.into.rebuilt(&numbering, self.alive)),
        );
        let none = || Err(AllocationFailed { bytes: 0 });
        let (out, into) = (first.unwrap_or_else(none)?, second.unwrap_or_else(none)?);
        Ok(DynamicGraph {
            base: self.base,
            accounts: self.accounts.rebuilt(&numbering)?,
            out,
            into,
            loops: self.loops.rebuilt(|account| numbering.of(account))?,
            records: self.records.rebuilt(&numbering)?,
            head: self.head,
            alive: self.alive,
            newest: self.newest,
            disorder: self.disorder,
            remembers: self.remembers,
            late: None,
            sealed: SealedBoundary::default(),
            rebuilt_at: self.next(),
            emptied: 0,
        })
    }

    /// Numbers accounts in order of appearance if it is remembered, otherwise in the order of their
    /// edges.
    fn numbering(&self) -> Result<Renumbering, AllocationFailed> {
        let mut numbering = Renumbering::new(self.accounts.numbered(), self.accounts.len())?;
        self.accounts.by_appearance().into_iter().for_each(|account| numbering.name(account));
        for (_, record) in self.records() {
            numbering.name(record.source);
            numbering.name(record.target);
        }
        Ok(numbering)
    }
}
