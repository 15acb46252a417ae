//! Accounts: the callers' 64-bit numbers, and the small dense numbers that the graph uses instead.

mod hash;
mod index;
mod keys;
mod numbers;
mod renumbering;
mod table;

use crate::edge::{EdgeRecord, NO_ACCOUNT};
pub(crate) use hash::AccountHash;
pub(crate) use renumbering::Renumbering;
pub(crate) use table::AccountTable;

use crate::memory::{AllocationFailed, reserve};
use hash::hash;
use index::AccountIndex;
pub(crate) use keys::AccountKeys;

#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// The callers' numbers, by small number.
    keys: AccountKeys,
    index: AccountIndex,
    free: Vec<u32>,
    /// The position of each account in the order of first appearance, if it is remembered.
    orders: Option<Vec<u64>>,
    appeared: u64,
    /// The accounts added since the last checkpoint, where a rollback removes them one by one.
    added: Option<Vec<u32>>,
}

/// The state of the accounts before rows that may be rolled back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccountsCheckpoint {
    numbered: usize,
    appeared: u64,
    added: usize,
}

/// Account numbers that are looked up together.
const GUESSED: usize = 128;

impl Accounts {
    /// `remembers`: whether the order of first appearance is needed.
    pub(crate) fn new(remembers: bool) -> Accounts {
        Accounts { orders: remembers.then(Vec::new), ..Accounts::default() }
    }

    /// The accounts of a graph with segments. Unless the order is remembered, they leave when their
    /// owner says so, and a rollback removes those that it added.
    pub(crate) fn with_segments(remembers: bool) -> Accounts {
        Accounts { added: (!remembers).then(Vec::new), ..Accounts::new(remembers) }
    }

    /// Fills in the known accounts of these edges; `edge` returns source, target and time. Works in
    /// groups: the cache misses in the index overlap, then those in the numbers that it guesses.
    pub(crate) fn guess<T>(
        &self,
        records: &mut [EdgeRecord<T>],
        edge: impl Fn(usize) -> (i64, i64, T),
    ) {
        let mut keys = [0; GUESSED];
        for (part, some) in records.chunks_mut(GUESSED / 2).enumerate() {
            for (at, pair) in (part * GUESSED / 2..).zip(keys.chunks_exact_mut(2)).take(some.len())
            {
                let (source, target, _) = edge(at);
                pair.copy_from_slice(&[source, target]);
            }
            let hashes = keys.map(hash);
            let slots = hashes.iter().map(|&hash| self.index.touch(hash));
            std::hint::black_box(slots.fold(0, |all, one| all ^ one));
            let guesses = hashes.map(|hash| self.index.find(hash, |_| true).unwrap_or(NO_ACCOUNT));
            let is_it = |(&at, key): (&u32, &i64)| self.keys.get(at) == Some(*key);
            for ((record, guess), keys) in
                some.iter_mut().zip(guesses.chunks(2)).zip(keys.chunks(2))
            {
                let ends = [0, 1].map(|end| {
                    if is_it((&guess[end], &keys[end])) { guess[end] } else { NO_ACCOUNT }
                });
                [record.source, record.target] = ends;
            }
        }
    }

    /// The small number of an account, a new one if the account is unknown.
    pub(crate) fn intern(&mut self, key: i64) -> Result<u32, AllocationFailed> {
        let hash = hash(key);
        let Accounts { keys, index, free, orders, appeared, added } = self;
        if let Some(at) = index.find(hash, |at| keys.get(at) == Some(key)) {
            return Ok(at);
        }
        keys.make_room(key, free.is_empty())?;
        if let Some(orders) = orders {
            reserve(orders, 1)?;
        }
        if let Some(added) = added {
            reserve(added, 1)?;
        }
        let at = free.last().map_or(keys.len(), |&at| at as usize);
        index.make_room(at, keys)?;
        free.pop();
        keys.put(at, key);
        if let Some(orders) = orders {
            orders.resize(keys.len(), 0);
            orders[at] = *appeared;
        }
        *appeared += 1;
        index.insert(hash, at as u32);
        if let Some(added) = added {
            added.push(at as u32);
        }
        Ok(at as u32)
    }

    pub(crate) fn find(&self, key: i64) -> Option<u32> {
        self.index.find(hash(key), |at| self.keys.get(at) == Some(key))
    }

    /// A checkpoint for `rewind`.
    pub(crate) fn checkpoint(&self) -> AccountsCheckpoint {
        let added = self.added.as_ref().map_or(0, Vec::len);
        AccountsCheckpoint { numbered: self.numbered(), appeared: self.appeared, added }
    }

    /// Commits all accounts: earlier checkpoints are no longer valid.
    pub(crate) fn commit(&mut self) {
        if let Some(added) = &mut self.added {
            added.clear();
            added.shrink_to(GUESSED);
        }
    }

    /// Removes the accounts that appeared since a checkpoint. They have no edges. Other graphs than
    /// those with segments, and those that remember the order, have forgotten them already.
    pub(crate) fn rewind(&mut self, checkpoint: AccountsCheckpoint) {
        let AccountsCheckpoint { numbered, appeared, added: committed } = checkpoint;
        let Accounts { keys, index, free, orders, added, .. } = self;
        if let Some(added) = added {
            // In reverse, so that the same numbers are next again.
            for at in added.drain(committed..).rev() {
                let is_known = keys.get(at).is_some_and(|key| index.remove(hash(key), at));
                if is_known && reserve(free, 1).is_ok() {
                    free.push(at);
                }
            }
        }
        let Some(orders) = orders else { return };
        for (at, key) in (0u32..).zip(keys.iter()).skip(numbered) {
            index.remove(hash(key), at);
        }
        keys.truncate(numbered);
        orders.truncate(numbered);
        self.appeared = appeared;
    }

    /// Removes accounts without edges. Works on all at once, so that cache misses overlap.
    pub(crate) fn forget(&mut self, accounts: &[u32]) {
        let hashes = accounts.iter().map(|&at| hash(self.key(at)));
        let slots = hashes.map(|hash| self.index.touch(hash));
        std::hint::black_box(slots.fold(0, |all, one| all ^ one));
        for &at in accounts {
            let is_known = self.index.remove(hash(self.key(at)), at);
            // A small number that cannot be remembered, for lack of memory, is not used again.
            if is_known && reserve(&mut self.free, 1).is_ok() {
                self.free.push(at);
            }
        }
    }

    /// The number of small numbers without an account.
    pub(crate) fn idle(&self) -> usize {
        self.free.len()
    }

    /// Retires the idle small numbers from `end` on.
    pub(crate) fn forget_idle_from(&mut self, end: usize) {
        self.free.retain(|&at| (at as usize) < end);
    }

    /// Moves an account to an idle small number, if there is one.
    pub(crate) fn renumber(&mut self, old: u32) -> Option<u32> {
        let (key, new) = (self.key(old), self.free.pop()?);
        self.keys.put(new as usize, key);
        self.index.rename(hash(key), old, new);
        Some(new)
    }

    /// Drops the small numbers from `end` on, which belong to no account.
    pub(crate) fn truncate(&mut self, end: usize) {
        self.keys.truncate(end);
        self.keys.shrink();
    }

    /// Frees memory if much of it is unused.
    pub(crate) fn shrink(&mut self) {
        if self.free.capacity() > 2 * self.free.len() + GUESSED {
            self.free.shrink_to(self.free.len() + GUESSED);
        }
        self.index.shrink(&self.keys);
    }

    pub(crate) fn key(&self, at: u32) -> i64 {
        self.keys.get(at).unwrap_or_default()
    }

    pub(crate) fn order(&self, at: u32) -> u64 {
        self.orders.as_ref().and_then(|orders| orders.get(at as usize)).copied().unwrap_or_default()
    }

    /// All accounts in the order of first appearance; none if the order is not remembered.
    pub(crate) fn by_appearance(&self) -> Vec<u32> {
        let Some(orders) = &self.orders else { return Vec::new() };
        let mut all: Vec<(u64, u32)> = orders.iter().copied().zip(0..).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, account)| account).collect()
    }

    /// The callers' numbers of all accounts in the order of first appearance.
    pub(crate) fn in_order(&self) -> Vec<i64> {
        self.by_appearance().into_iter().map(|account| self.key(account)).collect()
    }

    /// The same accounts with new small numbers, which follow the remembered order, if any.
    pub(crate) fn rebuilt(&self, numbering: &Renumbering) -> Result<Accounts, AllocationFailed> {
        let named = numbering.named();
        let mut accounts = Accounts::new(self.orders.is_some());
        accounts.index = AccountIndex::with_room(named.len())?;
        if let Some(&first) = named.first() {
            accounts.keys.make_room(self.key(first), true)?;
            accounts.keys.reserve(named.len())?;
        }
        for (part, some) in named.chunks(GUESSED).enumerate() {
            let mut found = [0; GUESSED];
            found.iter_mut().zip(some).for_each(|(key, &old)| *key = self.key(old));
            for (at, &key) in (part * GUESSED..).zip(&found).take(some.len()) {
                accounts.keys.make_room(key, true)?;
                accounts.keys.put(at, key);
                accounts.index.insert(hash(key), at as u32);
            }
        }
        accounts.appeared = named.len() as u64;
        if let Some(orders) = &mut accounts.orders {
            reserve(orders, named.len())?;
            orders.extend(0..named.len() as u64);
        }
        Ok(accounts)
    }

    /// The callers' numbers of the accounts with small numbers from `from` on.
    pub(crate) fn keys_from(&self, from: usize) -> impl Iterator<Item = i64> {
        self.keys.iter().skip(from)
    }

    /// All small numbers are below this one.
    pub(crate) fn numbered(&self) -> usize {
        self.keys.len()
    }

    /// The number of known accounts.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.keys.bytes()
            + self.index.bytes()
            + self.free.capacity() * size_of::<u32>()
            + self.orders.as_ref().map_or(0, Vec::capacity) * size_of::<u64>()
            + self.added.as_ref().map_or(0, Vec::capacity) * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::Accounts;

    #[test]
    fn a_forgotten_account_comes_back_as_a_new_one() {
        let mut accounts = Accounts::new(true);
        let (first, second) = (accounts.intern(i64::MIN).unwrap(), accounts.intern(42).unwrap());
        assert_ne!(first, second);
        assert_eq!(accounts.intern(42), Ok(second));
        accounts.forget(&[first]);
        assert_eq!((accounts.len(), accounts.find(i64::MIN)), (1, None));
        let again = accounts.intern(i64::MIN).unwrap();
        assert_eq!((accounts.key(again), accounts.len()), (i64::MIN, 2));
        assert!(accounts.order(again) > accounts.order(second));
    }
}
