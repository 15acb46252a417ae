//! A map keyed by accounts. A search empties it for each trigger at almost no cost.

/// Small maps fit in the innermost cache, even if the table once was large.
const SLOTS_MIN: usize = 64;

#[derive(Clone, Copy, Debug, Default)]
struct AccountSlot<V> {
    account: u32,
    /// The slot is taken if this equals the table's epoch.
    epoch: u32,
    value: V,
}

#[derive(Debug)]
pub(crate) struct AccountTable<V> {
    slots: Vec<AccountSlot<V>>,
    /// The number of slots in use, a power of two, minus one.
    mask: usize,
    len: usize,
    epoch: u32,
}

impl<V: Copy + Default> Default for AccountTable<V> {
    fn default() -> AccountTable<V> {
        AccountTable {
            slots: vec![AccountSlot::default(); SLOTS_MIN],
            mask: SLOTS_MIN - 1,
            len: 0,
            epoch: 1,
        }
    }
}

impl<V: Copy + Default> AccountTable<V> {
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.mask = SLOTS_MIN - 1;
        self.epoch = self.epoch.wrapping_add(1);
        if self.epoch == 0 {
            self.slots.fill(AccountSlot::default());
            self.epoch = 1;
        }
    }

    /// Empties the table and makes room for `most` accounts.
    pub(crate) fn clear_for(&mut self, most: usize) {
        self.clear();
        self.mask = (2 * most + 2).next_power_of_two().max(SLOTS_MIN) - 1;
        if self.slots.len() <= self.mask {
            self.slots.resize(self.mask + 1, AccountSlot::default());
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn slot(&self, account: u32) -> usize {
        // Fibonacci hashing: without it, dense numbers would fill one run of slots.
        let mut at = (account.wrapping_mul(0x9e37_79b9) >> 7) as usize & self.mask;
        loop {
            let slot = &self.slots[at];
            if slot.epoch != self.epoch || slot.account == account {
                return at;
            }
            at = (at + 1) & self.mask;
        }
    }

    pub(crate) fn get(&self, account: u32) -> Option<&V> {
        let slot = &self.slots[self.slot(account)];
        (slot.epoch == self.epoch).then_some(&slot.value)
    }

    pub(crate) fn get_mut(&mut self, account: u32) -> Option<&mut V> {
        let at = self.slot(account);
        let slot = &mut self.slots[at];
        (slot.epoch == self.epoch).then_some(&mut slot.value)
    }

    /// The value of an account, and whether it is new. A new value is `V::default()`.
    pub(crate) fn entry(&mut self, account: u32) -> (&mut V, bool) {
        if self.len * 3 > self.mask * 2 {
            self.grow();
        }
        let at = self.slot(account);
        let epoch = self.epoch;
        let slot = &mut self.slots[at];
        let is_new = slot.epoch != epoch;
        if is_new {
            *slot = AccountSlot { account, epoch, value: V::default() };
            self.len += 1;
        }
        (&mut slot.value, is_new)
    }

    #[cold]
    fn grow(&mut self) {
        let taken: Vec<AccountSlot<V>> = self.slots[..=self.mask]
            .iter()
            .filter(|slot| slot.epoch == self.epoch)
            .copied()
            .collect();
        self.mask = self.mask * 2 + 1;
        if self.slots.len() <= self.mask {
            self.slots.resize(self.mask + 1, AccountSlot::default());
        }
        // A new epoch frees the stale slots, including those of the newly used part.
        self.epoch = self.epoch.wrapping_add(1);
        if self.epoch == 0 {
            self.slots.fill(AccountSlot::default());
            self.epoch = 1;
        }
        for slot in taken {
            let at = self.slot(slot.account);
            self.slots[at] = AccountSlot { epoch: self.epoch, ..slot };
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<AccountSlot<V>>()
    }
}

#[cfg(test)]
mod tests {
    use super::AccountTable;

    #[test]
    fn it_keeps_what_it_is_given_over_growth_and_emptying() {
        let mut table = AccountTable::<u32>::default();
        for round in 0..3u32 {
            for account in 0..1000 {
                let (value, is_new) = table.entry(account * 64);
                assert!(is_new && *value == 0, "round {round}, account {account}");
                *value = account + round;
            }
            for account in 0..1000 {
                assert_eq!(table.get(account * 64), Some(&(account + round)));
                assert_eq!(table.get(account * 64 + 1), None);
            }
            assert_eq!(table.len(), 1000);
            table.clear();
            assert_eq!((table.len(), table.get(64)), (0, None));
            table.clear_for(1000 * round as usize);
        }
    }
}
