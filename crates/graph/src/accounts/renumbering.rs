//! New small numbers for the accounts of a graph that is rebuilt.

use crate::edge::NO_ACCOUNT;
use crate::memory::{AllocationFailed, reserve_exact};

#[derive(Debug)]
pub(crate) struct Renumbering {
    /// New numbers by old ones.
    new: Vec<u32>,
    /// Old numbers by new ones.
    old: Vec<u32>,
}

impl Renumbering {
    /// Room for `numbered` old numbers, of which at most `named` will get a new one.
    pub(crate) fn new(numbered: usize, named: usize) -> Result<Renumbering, AllocationFailed> {
        let (mut new, mut old) = (Vec::new(), Vec::new());
        reserve_exact(&mut new, numbered)?;
        reserve_exact(&mut old, named)?;
        new.resize(numbered, NO_ACCOUNT);
        Ok(Renumbering { new, old })
    }

    /// Gives an account the next number, unless it has one.
    pub(crate) fn name(&mut self, account: u32) {
        if let Some(new) = self.new.get_mut(account as usize).filter(|new| **new == NO_ACCOUNT) {
            *new = self.old.len() as u32;
            self.old.push(account);
        }
    }

    /// The new number of an account.
    pub(crate) fn of(&self, account: u32) -> u32 {
        self.new.get(account as usize).copied().unwrap_or(NO_ACCOUNT)
    }

    /// The accounts in the order of their new numbers.
    pub(crate) fn named(&self) -> &[u32] {
        &self.old
    }
}
