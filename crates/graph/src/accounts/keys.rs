//! The callers' account numbers by small number: four bytes each while all are near the first, else
//! eight.

use crate::memory::{AllocationFailed, reserve_exact};

#[derive(Clone, Debug)]
pub(crate) enum AccountKeys {
    /// Distances from a base.
    Narrow(i64, Vec<u32>),
    Wide(Vec<i64>),
}

impl Default for AccountKeys {
    fn default() -> AccountKeys {
        AccountKeys::Narrow(0, Vec::new())
    }
}

/// The distance of a number from a base, if it fits.
fn distance(base: i64, key: i64) -> Option<u32> {
    u32::try_from(i128::from(key) - i128::from(base)).ok()
}

/// Reserves room for one more. Growth is small: doubling would leave half of a large graph empty.
fn grow<V>(all: &mut Vec<V>) -> Result<(), AllocationFailed> {
    if all.len() == all.capacity() {
        reserve_exact(all, (all.len() / 32).max(64))?;
    }
    Ok(())
}

impl AccountKeys {
    pub(crate) fn len(&self) -> usize {
        match self {
            AccountKeys::Narrow(_, all) => all.len(),
            AccountKeys::Wide(all) => all.len(),
        }
    }

    pub(crate) fn get(&self, at: u32) -> Option<i64> {
        match self {
            AccountKeys::Narrow(base, all) => {
                all.get(at as usize).map(|&one| base.wrapping_add_unsigned(u64::from(one)))
            }
            AccountKeys::Wide(all) => all.get(at as usize).copied(),
        }
    }

    /// Ensures that a `put` of this number allocates nothing; `is_new`: whether it is appended.
    pub(crate) fn make_room(&mut self, key: i64, is_new: bool) -> Result<(), AllocationFailed> {
        if let AccountKeys::Narrow(base, all) = self {
            if all.is_empty() {
                // The base is below the first number, so that distances extend equally far to
                // either side.
                *base = key.saturating_sub(1 << (u32::BITS - 1));
            }
            if distance(*base, key).is_none() {
                let mut wide = Vec::new();
                reserve_exact(&mut wide, all.capacity())?;
                wide.extend(all.iter().map(|&one| base.wrapping_add_unsigned(u64::from(one))));
                *self = AccountKeys::Wide(wide);
            }
        }
        match self {
            AccountKeys::Narrow(_, all) if is_new => grow(all),
            AccountKeys::Wide(all) if is_new => grow(all),
            _ => Ok(()),
        }
    }

    /// Reserves room for `more` numbers.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), AllocationFailed> {
        match self {
            AccountKeys::Narrow(_, all) => reserve_exact(all, more),
            AccountKeys::Wide(all) => reserve_exact(all, more),
        }
    }

    /// Sets the number of an existing account, or of the next one.
    pub(crate) fn put(&mut self, at: usize, key: i64) {
        fn put<V>(all: &mut Vec<V>, at: usize, value: V) {
            match all.get_mut(at) {
                Some(place) => *place = value,
                None => all.push(value),
            }
        }
        match self {
            AccountKeys::Narrow(base, all) => {
                put(all, at, distance(*base, key).unwrap_or_default())
            }
            AccountKeys::Wide(all) => put(all, at, key),
        }
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        match self {
            AccountKeys::Narrow(_, all) => all.truncate(len),
            AccountKeys::Wide(all) => all.truncate(len),
        }
    }

    /// Frees unused capacity.
    pub(crate) fn shrink(&mut self) {
        match self {
            AccountKeys::Narrow(_, all) => all.shrink_to_fit(),
            AccountKeys::Wide(all) => all.shrink_to_fit(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = i64> {
        (0..self.len() as u32).filter_map(|at| self.get(at))
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            AccountKeys::Narrow(_, all) => all.capacity() * size_of::<u32>(),
            AccountKeys::Wide(all) => all.capacity() * size_of::<i64>(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AccountKeys;

    #[test]
    fn numbers_stay_what_they_are_when_one_comes_from_afar() {
        for first in [i64::MIN, -5, 0, 1 << 40, i64::MAX] {
            let mut keys = AccountKeys::default();
            let mut all = vec![first, first.saturating_add(7), first.saturating_sub(7)];
            let put = |keys: &mut AccountKeys, at: usize, key| {
                keys.make_room(key, at == keys.len()).unwrap();
                keys.put(at, key);
            };
            all.iter().enumerate().for_each(|(at, &key)| put(&mut keys, at, key));
            assert!(matches!(keys, AccountKeys::Narrow(..)) && keys.iter().eq(all.iter().copied()));
            for far in [i64::MAX, i64::MIN, 0] {
                all[1] = far;
                put(&mut keys, 1, far);
                all.push(far);
                put(&mut keys, all.len() - 1, far);
                assert!(keys.iter().eq(all.iter().copied()));
            }
            assert!(matches!(keys, AccountKeys::Wide(_)));
            keys.truncate(1);
            assert_eq!((keys.len(), keys.get(0), keys.get(1)), (1, Some(first), None));
        }
    }
}
