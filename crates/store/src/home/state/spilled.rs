//! The spilled objects, by slot, with what is asked of all of them at each spill.

use std::collections::BTreeMap;

use crate::alloc::blocks::ClientAccount;
use crate::format::ids::{NamespaceId, Slot};

/// The spilled objects, with their sizes as their users see them, and their accounts.
#[derive(Debug, Default)]
pub(in crate::home) struct Spilled {
    of_slot: BTreeMap<u32, (u64, ClientAccount)>,
    /// How many have each size.
    counts: BTreeMap<u64, u32>,
    /// How many count for each account.
    accounts: BTreeMap<ClientAccount, u32>,
    bytes: u64,
}

/// Takes one from a count.
fn decrease<K: Ord>(counts: &mut BTreeMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Spilled {
    pub(in crate::home) fn insert(&mut self, slot: Slot, size: u64, account: ClientAccount) {
        self.remove(slot);
        self.of_slot.insert(slot.0, (size, account));
        *self.counts.entry(size).or_default() += 1;
        *self.accounts.entry(account).or_default() += 1;
        self.bytes = self.bytes.saturating_add(size);
    }

    pub(in crate::home) fn remove(&mut self, slot: Slot) {
        let Some((size, account)) = self.of_slot.remove(&slot.0) else {
            return;
        };
        self.bytes = self.bytes.saturating_sub(size);
        decrease(&mut self.counts, &size);
        decrease(&mut self.accounts, &account);
    }

    /// Counts the objects of a client that has ended for the departed ones of its namespace.
    pub(in crate::home) fn disown(&mut self, account: ClientAccount) {
        let Some(count) = self.accounts.remove(&account) else {
            return;
        };
        let ended = ClientAccount::ended(account.namespace);
        *self.accounts.entry(ended).or_default() += count;
        for (_, of) in self.of_slot.values_mut().filter(|(_, of)| *of == account) {
            *of = ended;
        }
    }

    /// How many count for an account.
    pub(in crate::home) fn of(&self, account: ClientAccount) -> u32 {
        self.accounts.get(&account).copied().unwrap_or_default()
    }

    /// How many are in a namespace.
    pub(in crate::home) fn of_namespace(&self, namespace: NamespaceId) -> u32 {
        let last = ClientAccount { namespace, client: u32::MAX };
        self.accounts.range(ClientAccount::ended(namespace)..=last).map(|(_, count)| count).sum()
    }

    pub(in crate::home) fn contains(&self, slot: Slot) -> bool {
        self.of_slot.contains_key(&slot.0)
    }

    pub(in crate::home) fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.of_slot.keys().copied().map(Slot)
    }

    pub(in crate::home) fn len(&self) -> usize {
        self.of_slot.len()
    }

    /// Their sizes together.
    pub(in crate::home) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The largest size; 0: there is none.
    pub(in crate::home) fn largest(&self) -> u64 {
        self.counts.last_key_value().map_or(0, |(size, _)| *size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_and_the_sum_follow_what_comes_and_goes() {
        let mut spilled = Spilled::default();
        assert_eq!((spilled.largest(), spilled.bytes(), spilled.len()), (0, 0, 0));
        let account = |client| ClientAccount { namespace: NamespaceId(7), client };
        for (slot, size) in [(1, 5), (2, 9), (3, 9), (4, 2)] {
            spilled.insert(Slot(slot), size, account(slot % 2));
        }
        let counts = |all: &Spilled| [0, 1].map(|client| all.of(account(client)));
        assert_eq!((counts(&spilled), spilled.of_namespace(NamespaceId(7))), ([2, 2], 4));
        assert_eq!((spilled.largest(), spilled.bytes(), spilled.len()), (9, 25, 4));
        spilled.remove(Slot(2));
        spilled.remove(Slot(2));
        assert_eq!((spilled.largest(), spilled.bytes()), (9, 16));
        spilled.insert(Slot(3), 1, account(1));
        assert_eq!((spilled.largest(), spilled.bytes()), (5, 8));
        assert_eq!(counts(&spilled), [1, 2]);
        spilled.disown(account(1));
        assert_eq!(counts(&spilled), [3, 0]);
        assert_eq!(spilled.slots().map(|slot| slot.0).collect::<Vec<_>>(), [1, 3, 4]);
        assert!(!spilled.contains(Slot(2)) && spilled.contains(Slot(4)));
        spilled.remove(Slot(3));
        assert_eq!(counts(&spilled), [2, 0]);
        assert_eq!([6, 7].map(|id| spilled.of_namespace(NamespaceId(id))), [0, 2]);
    }
}
