//! Small numbers that other processes share, because segments contain them.
//!
//! The owner of such a graph knows which numbers its segments use. It says which accounts leave, and
//! which number an account must have.

use super::keys::AccountKeys;
use super::{Accounts, hash::hash};
use crate::memory::AllocationFailed;
use std::cmp::Reverse;

impl Accounts {
    /// The callers' numbers by small number. Those of numbers without an account are of no meaning.
    pub(crate) fn keys(&self) -> &AccountKeys {
        &self.keys
    }

    /// Whether a small number belongs to an account.
    pub(crate) fn has(&self, at: u32) -> bool {
        self.keys.get(at).is_some_and(|key| self.find(key) == Some(at))
    }

    /// Ensures that the small numbers below `end` exist. New ones have no account, and are not given
    /// to any until `offer`. In the list of callers' numbers, `key` takes their places.
    pub(crate) fn extend(&mut self, end: usize, key: i64) -> Result<(), AllocationFailed> {
        for at in self.keys.len()..end {
            self.keys.make_room(key, true)?;
            self.keys.put(at, key);
        }
        Ok(())
    }

    /// Gives an unknown account an existing small number that has none.
    pub(crate) fn assign(&mut self, at: u32, key: i64) -> Result<(), AllocationFailed> {
        self.keys.make_room(key, false)?;
        self.index.make_room(at as usize, &self.keys)?;
        self.keys.put(at as usize, key);
        self.index.insert(hash(key), at);
        self.appeared += 1;
        Ok(())
    }

    /// Moves an account to an existing small number that has none.
    pub(crate) fn relocate(&mut self, old: u32, new: u32) -> Result<(), AllocationFailed> {
        let key = self.key(old);
        self.index.make_room(new as usize, &self.keys)?;
        self.keys.put(new as usize, key);
        self.index.rename(hash(key), old, new);
        Ok(())
    }

    /// The small numbers that the next new accounts may get.
    pub(crate) fn offered(&self) -> &[u32] {
        &self.free
    }

    /// Sets the small numbers for the next new accounts, the smallest first. None of them has an
    /// account.
    pub(crate) fn offer(&mut self, mut numbers: Vec<u32>) {
        numbers.sort_unstable_by_key(|&at| Reverse(at));
        numbers.dedup();
        self.free = numbers;
    }

    /// Removes an account without edges, and does not offer its small number.
    pub(crate) fn remove(&mut self, accounts: &[u32]) {
        let hashes = accounts.iter().map(|&at| hash(self.key(at)));
        let slots = hashes.map(|hash| self.index.touch(hash));
        std::hint::black_box(slots.fold(0, |all, one| all ^ one));
        for &at in accounts {
            self.index.remove(hash(self.key(at)), at);
        }
    }

    /// Drops the small numbers from `end` on, which have no account.
    pub(crate) fn cut(&mut self, end: usize) {
        self.free.retain(|&at| (at as usize) < end);
        self.truncate(end);
        self.index.shrink(&self.keys);
    }
}

#[cfg(test)]
mod tests {
    use super::Accounts;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn numbers_that_are_offered_go_to_new_accounts_smallest_first() {
        let mut accounts = Accounts::with_segments(false);
        (0..10).for_each(|key| assert_eq!(accounts.intern(key), Ok(key as u32)));
        accounts.remove(&[7, 2, 5]);
        accounts.offer(vec![7, 2, 5, 2]);
        assert!(!accounts.has(2) && accounts.has(3));
        assert_eq!([20, 21, 22, 23].map(|key| accounts.intern(key).unwrap()), [2, 5, 7, 10]);
        assert_eq!(accounts.len(), 11);
    }

    #[test]
    fn a_rollback_gives_back_the_numbers_of_accounts_that_it_removes() {
        let mut accounts = Accounts::with_segments(false);
        (0..4).for_each(|key| _ = accounts.intern(key).unwrap());
        accounts.remove(&[1]);
        accounts.offer(vec![1]);
        accounts.commit();
        let checkpoint = accounts.checkpoint();
        for _ in 0..3 {
            assert_eq!([50, 51, 52].map(|key| accounts.intern(key).unwrap()), [1, 4, 5]);
            accounts.rewind(checkpoint);
            assert_eq!((accounts.len(), accounts.find(50), accounts.find(2)), (3, None, Some(2)));
        }
    }

    proptest! {
        /// Accounts that are moved, removed and added are where the last step put them.
        #[test]
        fn accounts_are_where_they_were_put(
            steps in prop::collection::vec((0..4u8, 0..40i64, 0..60u32), 1..300),
        ) {
            let mut accounts = Accounts::with_segments(false);
            let mut wanted = BTreeMap::new();
            for (kind, key, at) in steps {
                let key = key << 40;
                let is_taken = wanted.values().any(|one| *one == at);
                let known = wanted.get(&key).copied();
                match (kind, known) {
                    (0, None) => {
                        // Nothing is offered, so the number is a new one.
                        wanted.insert(key, accounts.intern(key).unwrap());
                    }
                    (1, None) if !is_taken => {
                        accounts.extend(at as usize + 1, key).unwrap();
                        accounts.assign(at, key).unwrap();
                        wanted.insert(key, at);
                    }
                    (2, Some(old)) if !is_taken => {
                        accounts.extend(at as usize + 1, key).unwrap();
                        accounts.relocate(old, at).unwrap();
                        wanted.insert(key, at);
                    }
                    (3, Some(old)) => {
                        accounts.remove(&[old]);
                        wanted.remove(&key);
                    }
                    _ => {}
                }
                prop_assert_eq!(accounts.len(), wanted.len());
                for key in (0..40).map(|key: i64| key << 40) {
                    prop_assert_eq!(accounts.find(key), wanted.get(&key).copied());
                }
                for at in 0..61 {
                    prop_assert_eq!(accounts.has(at), wanted.values().any(|one| *one == at));
                }
            }
        }
    }
}
