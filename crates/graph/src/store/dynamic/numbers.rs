//! Small numbers in a graph with segments, which contain them too.
//!
//! A number is in use while its account has edges in this store or in a segment. Numbers of accounts
//! that have edges in this store alone are this process's own: they change if a segment that another
//! process made gives the account, or the number, to something else.

use super::super::adjacency_lists::TOUCHED;
use super::DynamicGraph;
use crate::accounts::AccountKeys;
use crate::edge::Stamp;
use crate::memory::{AllocationFailed, or_abort, reserve};
use crate::segment::Segment;

/// Numbers are released when accounts have lost as many lists as one number in this many.
const EMPTIED_MOST: usize = 8;
/// With fewer lost lists, numbers are not released.
const EMPTIED_MIN: usize = if cfg!(debug_assertions) { 4 } else { 256 };
/// The lists end earlier if one number in this many, at the end, is unused.
const UNUSED_MOST: usize = 12;

/// The reason why accounts did not get the small numbers of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberingError {
    /// An earlier segment has another account under this number, or the account under another one.
    Taken(u32),
    OutOfMemory(AllocationFailed),
}

impl From<AllocationFailed> for NumberingError {
    fn from(full: AllocationFailed) -> NumberingError {
        NumberingError::OutOfMemory(full)
    }
}

/// The use of small numbers by segments.
pub(crate) trait NumbersInUse {
    /// Bits of those of 64 numbers that some segment uses.
    fn in_use(&self, block: usize) -> u64;

    fn uses(&self, account: u32) -> bool {
        self.in_use(account as usize / 64) >> (account % 64) & 1 != 0
    }
}

/// Moves of accounts to other small numbers, in order: (old, new).
pub(crate) type NumberMoves = Vec<(u32, u32)>;

impl<T: Stamp> DynamicGraph<T> {
    /// Whether accounts always keep their small numbers, because the order of appearance is
    /// remembered.
    pub(crate) fn is_permanent(&self) -> bool {
        self.remembers
    }

    /// The accounts with small numbers from `from` on if numbers are permanent, else none.
    pub(crate) fn permanent_keys(&self, from: usize) -> Vec<i64> {
        if self.remembers { self.accounts.keys_from(from).collect() } else { Vec::new() }
    }

    /// Adds accounts to an empty graph, in this order, if it remembers the order.
    pub(crate) fn remember(&mut self, accounts: &[i64]) {
        if self.remembers {
            or_abort(self.try_remember(accounts));
        }
    }

    /// The small number of an account, which is added if it is unknown.
    pub(crate) fn remember_one(&mut self, account: i64) -> u32 {
        or_abort(self.accounts.intern(account))
    }

    /// The callers' numbers by small number.
    pub(crate) fn account_keys(&self) -> &AccountKeys {
        self.accounts.keys()
    }

    /// Counts lists that a segment takes with it.
    pub(crate) fn note_emptied(&mut self, lists: usize) {
        self.emptied = self.emptied.saturating_add(lists);
    }

    /// Whether it is time for `release`.
    pub(crate) fn is_release_due(&self) -> bool {
        let due =
            self.emptied >= EMPTIED_MIN && self.emptied >= self.accounts.numbered() / EMPTIED_MOST;
        due && self.late.is_some() && !self.is_permanent()
    }

    /// Forgets the accounts without edges here and in segments; new accounts get their numbers.
    /// Returns the number after the last that is in use.
    pub(crate) fn release(
        &mut self,
        segments: &impl NumbersInUse,
    ) -> Result<usize, AllocationFailed> {
        let (numbered, mut end) = (self.accounts.numbered(), 0);
        let mut unused = Vec::new();
        for block in 0..numbered.div_ceil(64) {
            let held = segments.in_use(block);
            for account in (block * 64) as u32..numbered.min(block * 64 + 64) as u32 {
                if held >> (account % 64) & 1 != 0 || self.has_edges(account) {
                    end = account as usize + 1;
                } else {
                    reserve(&mut unused, 1)?;
                    unused.push(account);
                }
            }
        }
        self.emptied = 0;
        // The index has none of those that are on offer already, under these numbers.
        for some in unused.chunks(TOUCHED) {
            self.accounts.remove(some);
        }
        self.accounts.offer(unused);
        if end + numbered / UNUSED_MOST < numbered {
            self.accounts.cut(end);
            self.out.truncate(end);
            self.into.truncate(end);
        }
        Ok(end)
    }

    /// Gives accounts the small numbers that the next segment has for them, and moves others out of
    /// the way.
    ///
    /// # Errors
    /// [`NumberingError`]. Some accounts have been moved then; `moves` has all moves.
    pub(crate) fn conform(
        &mut self,
        next: &Segment,
        segments: &impl NumbersInUse,
        moves: &mut NumberMoves,
    ) -> Result<(), NumberingError> {
        let is_named = |at: u32| next.in_use(at as usize / 64) >> (at % 64) & 1 != 0;
        let named = next.accounts();
        let (mut block, mut in_use) = (usize::MAX, 0);
        let unplaced = named.filter(|&(at, key)| {
            if block != at as usize / 64 {
                block = at as usize / 64;
                in_use = segments.in_use(block);
            }
            // Nearly all accounts of a segment have edges here, so their number is in use.
            let is_used = in_use >> (at % 64) & 1 != 0 || self.has_edges(at);
            !(is_used && self.accounts.key(at) == key) && self.find(key) != Some(at)
        });
        let unplaced: Vec<(u32, i64)> = unplaced.collect();
        if unplaced.is_empty() {
            return Ok(());
        }
        let mut unused = self.accounts.offered().to_vec();
        let mut spare = unused.clone();
        spare.retain(|&at| !is_named(at));
        let placed = unplaced.into_iter().try_for_each(|(at, key)| {
            let found = self.find(key);
            if found == Some(at) {
                return Ok(());
            }
            let taken = [Some(at), found].into_iter().flatten().find(|&one| segments.uses(one));
            if let Some(taken) = taken {
                return Err(NumberingError::Taken(taken));
            }
            unused.extend(self.extend_accounts(at as usize + 1, key)?);
            if self.accounts.has(at) {
                let other = match spare.pop() {
                    Some(other) => other,
                    None => {
                        let next = self.accounts.numbered();
                        unused.extend(self.extend_accounts(next + 1, key)?);
                        next as u32
                    }
                };
                self.relocate(at, other)?;
                moves.push((at, other));
            }
            match found {
                None => self.accounts.assign(at, key)?,
                Some(old) => {
                    self.relocate(old, at)?;
                    moves.push((old, at));
                    unused.push(old);
                    if !is_named(old) {
                        spare.push(old);
                    }
                }
            }
            Ok(())
        });
        unused.retain(|&at| !self.accounts.has(at) && !is_named(at));
        self.accounts.offer(unused);
        placed
    }

    /// Ensures that the small numbers below `end` exist, and returns the new ones.
    fn extend_accounts(
        &mut self,
        end: usize,
        key: i64,
    ) -> Result<std::ops::Range<u32>, AllocationFailed> {
        let numbered = self.accounts.numbered();
        self.accounts.extend(end, key)?;
        self.out.make_room(self.accounts.numbered())?;
        self.into.make_room(self.accounts.numbered())?;
        Ok(numbered as u32..end.max(numbered) as u32)
    }

    fn relocate(&mut self, old: u32, new: u32) -> Result<(), AllocationFailed> {
        // Accounts may have come since the lists last grew.
        self.out.make_room(self.accounts.numbered())?;
        self.into.make_room(self.accounts.numbered())?;
        self.accounts.relocate(old, new)?;
        self.move_edges(old, new);
        Ok(())
    }
}
