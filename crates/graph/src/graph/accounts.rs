//! Accounts: the caller's 64-bit numbers on one side, small dense ones on the other.

use super::arena::List;
use crate::memory::{Full, reserve, reserve_exact};
use hashbrown::{HashTable, TryReserveError};

/// The two ends of an edge. [`Side::Out`] of an account are the edges it is the source of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Out,
    In,
}

impl Side {
    pub(crate) fn other(self) -> Side {
        match self {
            Side::Out => Side::In,
            Side::In => Side::Out,
        }
    }
}

#[derive(Debug)]
struct Account {
    /// The caller's number.
    key: i64,
    out: List,
    into: List,
}

#[derive(Debug, Default)]
pub(crate) struct Accounts {
    all: Vec<Account>,
    index: HashTable<u32>,
    free: Vec<u32>,
    /// Place of each account in the order of first appearance, where somebody asks for it.
    orders: Option<Vec<u64>>,
    appeared: u64,
}

/// Spreads consecutive numbers over a table (the finalizer of SplitMix64).
pub(crate) fn hash(key: i64) -> u64 {
    let mut hash = key.cast_unsigned().wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// Hashes account numbers: they are dense and nobody's to choose.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spreader(u64);

impl std::hash::BuildHasher for Spread {
    type Hasher = Spreader;

    fn build_hasher(&self) -> Spreader {
        Spreader(0)
    }
}

impl std::hash::Hasher for Spreader {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = hash((self.0 << 32 ^ u64::from(number)).cast_signed());
    }

    fn write_i64(&mut self, key: i64) {
        self.0 = hash(key ^ self.0.cast_signed());
    }
}

/// What a table asked for in vain.
fn asked(error: &TryReserveError) -> usize {
    match error {
        TryReserveError::AllocError { layout } => layout.size(),
        TryReserveError::CapacityOverflow => usize::MAX,
    }
}

impl Accounts {
    /// With `remembers`, the order of first appearance is kept.
    pub(crate) fn new(remembers: bool) -> Accounts {
        Accounts { orders: remembers.then(Vec::new), ..Accounts::default() }
    }

    /// The dense number of an account, a new one if it is not known.
    pub(crate) fn intern(&mut self, key: i64) -> Result<u32, Full> {
        let Accounts { all, index, free, orders, appeared } = self;
        let is_it = |&at: &u32| all[at as usize].key == key;
        if let Some(&at) = index.find(hash(key), is_it) {
            return Ok(at);
        }
        if free.is_empty() && all.len() == all.capacity() {
            reserve_exact(all, (all.len() / 32).max(64))?;
        }
        if let Some(orders) = orders {
            reserve(orders, 1)?;
        }
        let rehash = |&at: &u32| hash(all[at as usize].key);
        index.try_reserve(1, rehash).map_err(|error| Full { bytes: asked(&error) })?;
        let account = Account { key, out: List::default(), into: List::default() };
        let at = match free.pop() {
            Some(at) => {
                all[at as usize] = account;
                at
            }
            None => {
                all.push(account);
                (all.len() - 1) as u32
            }
        };
        if let Some(orders) = orders {
            orders.resize(all.len(), 0);
            orders[at as usize] = *appeared;
        }
        *appeared += 1;
        index.insert_unique(hash(key), at, |&at| hash(all[at as usize].key));
        Ok(at)
    }

    pub(crate) fn find(&self, key: i64) -> Option<u32> {
        self.index.find(hash(key), |&at| self.all[at as usize].key == key).copied()
    }

    /// How many have appeared so far.
    pub(crate) fn appeared(&self) -> u64 {
        self.appeared
    }

    /// Where the order of first appearance is kept: forgets those that appeared since there were
    /// so many. They have no edges.
    pub(crate) fn rewind(&mut self, numbered: usize, appeared: u64) {
        let Accounts { all, index, orders, .. } = self;
        let Some(orders) = orders else { return };
        for (at, account) in (0u32..).zip(all.iter()).skip(numbered) {
            if let Ok(found) = index.find_entry(hash(account.key), |&one| one == at) {
                found.remove();
            }
        }
        all.truncate(numbered);
        orders.truncate(numbered);
        self.appeared = appeared;
    }

    /// Forgets an account without edges.
    pub(crate) fn forget(&mut self, at: u32) {
        let Accounts { all, index, free, .. } = self;
        let key = all[at as usize].key;
        if let Ok(found) = index.find_entry(hash(key), |&one| one == at) {
            found.remove();
            // Where there is no memory to remember it, the number is not used again.
            if reserve(free, 1).is_ok() {
                free.push(at);
            }
        }
    }

    pub(crate) fn key(&self, at: u32) -> i64 {
        self.all[at as usize].key
    }

    pub(crate) fn order(&self, at: u32) -> u64 {
        self.orders.as_ref().and_then(|orders| orders.get(at as usize)).copied().unwrap_or_default()
    }

    /// All accounts in the order of their first appearance; none where it is not kept.
    pub(crate) fn in_order(&self) -> Vec<i64> {
        let Some(orders) = &self.orders else { return Vec::new() };
        let mut all: Vec<(u64, i64)> =
            orders.iter().zip(&self.all).map(|(&order, account)| (order, account.key)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, key)| key).collect()
    }

    /// The callers' numbers of the accounts whose small numbers are `from` and above.
    pub(crate) fn keys(&self, from: usize) -> impl Iterator<Item = i64> {
        self.all.iter().skip(from).map(|account| account.key)
    }

    pub(crate) fn list(&self, at: u32, side: Side) -> List {
        let account = &self.all[at as usize];
        match side {
            Side::Out => account.out,
            Side::In => account.into,
        }
    }

    pub(crate) fn list_mut(&mut self, at: u32, side: Side) -> &mut List {
        let account = &mut self.all[at as usize];
        match side {
            Side::Out => &mut account.out,
            Side::In => &mut account.into,
        }
    }

    /// Whether it has edges with others.
    pub(crate) fn has_edges(&self, at: u32) -> bool {
        let Account { out, into, .. } = &self.all[at as usize];
        !out.is_empty() || !into.is_empty()
    }

    /// Small numbers are below this one.
    pub(crate) fn numbered(&self) -> usize {
        self.all.len()
    }

    /// Accounts that are known now.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<Account>()
            + self.index.allocation_size()
            + self.free.capacity() * size_of::<u32>()
            + self.orders.as_ref().map_or(0, Vec::capacity) * size_of::<u64>()
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
        accounts.forget(first);
        assert_eq!((accounts.len(), accounts.find(i64::MIN)), (1, None));
        let again = accounts.intern(i64::MIN).unwrap();
        assert_eq!((accounts.key(again), accounts.len()), (i64::MIN, 2));
        assert!(accounts.order(again) > accounts.order(second));
    }
}
