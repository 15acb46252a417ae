//! One of the two searches for simple cycles: accounts by their number of hops.
//!
//! An account's place is its position in the order of discovery, which is also the order of
//! expansion. So the search needs no queue and, after the first lookup, no map.

use crate::accounts::AccountTable;

/// The end of a list of hops.
pub(crate) const NONE: u32 = u32::MAX;

/// A hop that a path may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    /// The place of the account nearer to the origin.
    pub to: u32,
    pub next: u32,
    /// Whether the hop may have an edge of the batch.
    pub is_new: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenAccount {
    pub account: u32,
    /// The number of hops to the origin.
    pub hops: u32,
    /// The first hop towards the origin.
    pub head: u32,
    pub is_on_path: bool,
    /// The place of the account whose expansion last noted this one.
    noted_from: u32,
}

#[derive(Debug, Default)]
pub(crate) struct BreadthFirst {
    places: AccountTable<u32>,
    pub seen: Vec<SeenAccount>,
    pub hops: Vec<Hop>,
    /// The place to expand next.
    next: u32,
    /// `ahead` has returned all accounts before this place.
    given: u32,
    pub work: u64,
}

impl BreadthFirst {
    /// Empties the search and places the origin at 0.
    pub(crate) fn start(&mut self, origin: u32) {
        self.places.clear();
        self.seen.clear();
        self.hops.clear();
        (self.next, self.given) = (0, 0);
        self.work = 0;
        self.see(origin, 0);
    }

    /// The place of an account; `hops` applies if it is new.
    fn see(&mut self, account: u32, hops: u32) -> u32 {
        let (place, is_new) = self.places.entry(account);
        if is_new {
            *place = self.seen.len() as u32;
            let (head, is_on_path, noted_from) = (NONE, false, NONE);
            self.seen.push(SeenAccount { account, hops, head, is_on_path, noted_from });
        }
        *place
    }

    pub(crate) fn place(&self, account: u32) -> Option<u32> {
        self.places.get(account).copied()
    }

    pub(crate) fn get(&self, place: u32) -> Option<&SeenAccount> {
        self.seen.get(place as usize)
    }

    /// Place, account and hops of the next account to expand. Skips `goal`, because a path ends
    /// there.
    pub(crate) fn peek(&mut self, goal: u32) -> Option<(u32, u32, u32)> {
        let mut next = self.seen.get(self.next as usize)?;
        if next.account == goal {
            self.next += 1;
            next = self.seen.get(self.next as usize)?;
        }
        Some((self.next, next.account, next.hops))
    }

    /// The next accounts to expand, each returned once, so that the caller can prefetch their lists
    /// together.
    pub(crate) fn ahead(&mut self, most: usize) -> &[SeenAccount] {
        if self.next < self.given {
            return &[];
        }
        let from = self.next as usize;
        let to = self.seen.len().min(from + most);
        self.given = to as u32;
        self.seen.get(from..to).unwrap_or_default()
    }

    /// Moves to the next account.
    pub(crate) fn take(&mut self) {
        self.next += 1;
        self.work += 1;
    }

    /// Notes a hop between `account` and the one at place `to`, once for all edges between them.
    pub(crate) fn note(&mut self, to: u32, account: u32, hops: u32, is_new: bool) {
        let place = self.see(account, hops);
        let at = self.hops.len() as u32;
        let Some(seen) = self.seen.get_mut(place as usize).filter(|one| one.noted_from != to)
        else {
            return;
        };
        seen.noted_from = to;
        let next = std::mem::replace(&mut seen.head, at);
        self.hops.push(Hop { to, next, is_new });
    }

    pub(crate) fn bytes(&self) -> usize {
        self.places.bytes()
            + self.seen.capacity() * size_of::<SeenAccount>()
            + self.hops.capacity() * size_of::<Hop>()
    }
}
