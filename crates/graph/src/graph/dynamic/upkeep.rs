//! Memory that follows the window: what a graph no longer needs goes back while it lives on.

use super::{Boundary, Dynamic, Entry, Full, Numbering, Stamp, TOUCHED};
use crate::memory::reserve;

/// Accounts get other small numbers when this part of the numbers is nobody's,
const IDLE_MOST: usize = 12;
/// and more than so many; all but this part of them are given up.
const IDLE_MIN: usize = if cfg!(debug_assertions) { 4 } else { 256 };
const IDLE_KEPT: usize = 4;
/// A call of few rows does not look through the accounts of more edges than these: it takes a
/// nanosecond or two for each.
const LOOKED_AT_MAX: usize = 1 << 21;

/// When a graph was made anew: at which number of arrival, and what it took then, as [`ROOM`].
pub(super) type Tidied = (u64, usize);
pub(super) const NEVER: Tidied = (0, ROOM);

/// A graph is made anew when it has room for so many times its edges,
const SPARSE: usize = 8;
/// and for more than these.
const SPARSE_MIN: usize = if cfg!(debug_assertions) { 64 } else { 1 << 16 };
/// It is also made anew, in a call of so many rows, when it is an eighth larger, for what it holds,
/// than it was the last time (after a busy day, say), or, if all its edges have come since, a
/// sixteenth.
const TIDIED_IN: usize = if cfg!(debug_assertions) { 2 } else { 1024 };
/// Of so many edges at most: it takes some 0.25 us for each, in one call.
const TIDIED_MAX: usize = 1 << 19;
/// Each edge that comes pays for so many that are moved.
const MOVED: u64 = 4;
/// What a graph that was filled once takes, at most, in thousandths of what its edges and accounts
/// take alone.
const ROOM: usize = 1120;

impl<T: Stamp> Dynamic<T> {
    /// Whether much of its memory lies idle: a stream that was busier once. Behind segments it
    /// empties span by span and fills again, while accounts, who are most of it then, stay.
    pub(crate) fn is_sparse(&self, rows: usize) -> bool {
        if self.late.is_some() {
            return false;
        }
        let room = self.records.capacity().max((self.out.room() + self.into.room()) / 2);
        room > SPARSE_MIN.max(SPARSE * self.records.len()) || self.is_untidy(rows)
    }

    /// Gives memory back that the edges of now do not need, a little at a time; whether accounts
    /// have other small numbers now. `rows`: how many came.
    pub(crate) fn shrink(&mut self, rows: usize) -> bool {
        if self.late.is_some() || (rows < TIDIED_IN && self.alive > LOOKED_AT_MAX) {
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

    /// Gives the accounts with the largest small numbers those that nobody has; false if they are
    /// too few for it.
    fn close_up(&mut self) -> bool {
        let (idle, numbered) = (self.accounts.idle(), self.accounts.numbered());
        if self.remembers || idle < IDLE_MIN || idle * IDLE_MOST < numbered {
            return false;
        }
        let mut end = numbered - (idle - idle / IDLE_KEPT);
        self.accounts.forget_idle_from(end);
        let mut others = Vec::new();
        let mut moved = end;
        while moved < numbered {
            let some = moved as u32..numbered.min(moved + TOUCHED) as u32;
            self.touch_around(some.clone(), &mut others);
            for old in some {
                // There is a number for each, or there was no memory to remember some.
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

    /// Reads what `renumber` asks of these accounts, so that the waits overlap.
    fn touch_around(&self, accounts: std::ops::Range<u32>, others: &mut Vec<u32>) {
        for (half, other) in [(&self.out, &self.into), (&self.into, &self.out)] {
            half.touch(accounts.clone());
            others.clear();
            for account in accounts.clone() {
                let some = half.get(account).iter().take(TOUCHED);
                // Where there is no memory to remember them they are read later.
                if reserve(others, some.len()).is_ok() {
                    others.extend(some.map(|one| one.other));
                }
            }
            other.touch(others.iter().copied());
        }
    }

    /// Gives an account a small number that nobody has; false if there is none.
    fn renumber(&mut self, old: u32) -> bool {
        let Some(new) = self.accounts.renumber(old) else { return false };
        let next = self.next();
        let Dynamic { out, into, loops, records, head, .. } = self;
        let place = |seq: u32| {
            let number = next.saturating_sub(u64::from((next as u32).wrapping_sub(seq)));
            number.saturating_sub(*head) as usize
        };
        for &one in out.get(old) {
            into.rename(one, new);
            records.rename(place(one.seq), new);
        }
        for &one in into.get(old) {
            out.rename(one, new);
        }
        out.renumber(old, new);
        into.renumber(old, new);
        for one in loops.renumber(old, new) {
            records.rename(place(one.seq), new);
        }
        true
    }

    fn is_untidy(&self, rows: usize) -> bool {
        let (since, room) = self.tidied;
        let (arrivals, alive) = (self.next().saturating_sub(since), self.alive as u64);
        let is_large = 2 * self.alive >= SPARSE_MIN && self.alive <= TIDIED_MAX;
        let is_worth_it = self.accounts.numbered() <= 4 * self.alive;
        if rows < TIDIED_IN || arrivals * MOVED < alive || !is_large || !is_worth_it {
            return false;
        }
        let much = if arrivals < alive { room * 9 / 8 } else { room * 17 / 16 };
        self.room() > much
    }

    /// As [`ROOM`].
    fn room(&self) -> usize {
        let edge = 2 * size_of::<Entry<T>>() + size_of::<u32>();
        // Its number and slot in the index, and both its lists.
        let account = 5 * size_of::<u32>();
        let least = self.alive * edge + self.accounts.len() * account;
        self.bytes() * 1000 / least.max(1)
    }

    /// The same graph in memory of its size, if there is that much. Accounts have other small
    /// numbers then: those whose edges follow each other are neighbours.
    pub(crate) fn rebuilt(&self) -> Result<Dynamic<T>, Full> {
        let numbering = self.numbering()?;
        let (out, into) =
            (self.out.rebuilt(&numbering, self.alive)?, self.into.rebuilt(&numbering, self.alive)?);
        let mut graph = Dynamic {
            base: self.base,
            accounts: self.accounts.rebuilt(&numbering)?,
            out,
            into,
            loops: self.loops.rebuilt(&numbering)?,
            records: self.records.rebuilt(&numbering)?,
            head: self.head,
            alive: self.alive,
            newest: self.newest,
            disorder: self.disorder,
            remembers: self.remembers,
            late: None,
            sealed: Boundary::default(),
            tidied: (self.next(), ROOM),
        };
        graph.tidied.1 = graph.room().max(ROOM);
        Ok(graph)
    }

    /// Accounts in the order in which edges name them, or, where it is remembered, of appearance.
    fn numbering(&self) -> Result<Numbering, Full> {
        let mut numbering = Numbering::new(self.accounts.numbered(), self.accounts.len())?;
        self.accounts.by_appearance().into_iter().for_each(|account| numbering.name(account));
        for (_, record) in self.records() {
            numbering.name(record.source);
            numbering.name(record.target);
        }
        Ok(numbering)
    }
}
