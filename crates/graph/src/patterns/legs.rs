//! The newest leg between an account and each of its middle accounts.

use crate::edge::{EdgeEntry, Stamp};

/// Slots of the smallest index, which is cheap to clear.
const SLOTS_MIN: usize = 64;

/// The newest leg between the near account and a middle one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leg<T> {
    pub middle: u32,
    pub newest: T,
    /// The leg's sequence number, modulo 2^32.
    pub seq: u32,
}

/// The legs of one account. Hubs retain them between calls, so they are dense: 12 bytes for each
/// middle account with 32-bit timestamps, and an index between a third and half full.
#[derive(Debug)]
pub(crate) struct Legs<T> {
    /// The caller's number of the near account, because small numbers are reused.
    key: i64,
    all: Vec<Leg<T>>,
    /// A hash table of positions in `all`, counted from 1; 0 is an empty slot.
    index: Vec<u32>,
    /// The number of slots in use.
    slots: usize,
    /// The time of the newest leg.
    newest: T,
    /// The last edge that was added, by sequence number.
    last: Option<u32>,
}

impl<T: Stamp> Default for Legs<T> {
    fn default() -> Legs<T> {
        Legs::new(0)
    }
}

impl<T: Stamp> Legs<T> {
    pub(crate) fn new(key: i64) -> Legs<T> {
        Legs {
            key,
            all: Vec::new(),
            index: vec![0; SLOTS_MIN],
            slots: SLOTS_MIN,
            newest: T::default(),
            last: None,
        }
    }

    pub(crate) fn clear(&mut self, key: i64) {
        self.key = key;
        self.all.clear();
        // Small tables fit in the innermost cache, even if the index once was large.
        self.slots = SLOTS_MIN;
        self.index[..SLOTS_MIN].fill(0);
        self.newest = T::default();
        self.last = None;
    }

    pub(crate) fn key(&self) -> i64 {
        self.key
    }

    pub(crate) fn all(&self) -> &[Leg<T>] {
        &self.all
    }

    /// The slot of a middle account, or the empty one where it belongs.
    fn slot(&self, middle: u32) -> usize {
        // Fibonacci hashing: without it, dense numbers would fill one run of slots.
        let hash = u64::from(middle.wrapping_mul(0x9e37_79b9));
        let mut slot = ((hash * self.slots as u64) >> u32::BITS) as usize;
        while let Some(at) = self.index[slot].checked_sub(1)
            && self.all[at as usize].middle != middle
        {
            slot = if slot + 1 == self.slots { 0 } else { slot + 1 };
        }
        slot
    }

    /// The position of a middle account in `all`.
    pub(crate) fn find(&self, middle: u32) -> Option<usize> {
        self.index[self.slot(middle)].checked_sub(1).map(|at| at as usize)
    }

    pub(crate) fn get(&self, middle: u32) -> Option<&Leg<T>> {
        self.find(middle).map(|at| &self.all[at])
    }

    pub(crate) fn see(&mut self, EdgeEntry { time, other, seq }: EdgeEntry<T>) {
        let slot = self.slot(other);
        match self.index[slot].checked_sub(1) {
            Some(at) => {
                let leg = &mut self.all[at as usize];
                if time >= leg.newest {
                    (leg.newest, leg.seq) = (time, seq);
                }
            }
            None => {
                self.add(Leg { middle: other, newest: time, seq });
                self.index[slot] = self.all.len() as u32;
                if self.all.len() * 2 > self.slots {
                    self.grow();
                }
            }
        }
        self.newest = self.newest.max(time);
        self.last = Some(seq);
    }

    fn add(&mut self, leg: Leg<T>) {
        if self.all.len() == self.all.capacity() {
            // Growth is small: doubling would leave half of a hub's memory empty.
            self.all.reserve_exact((self.all.len() / 8).max(SLOTS_MIN));
        }
        self.all.push(leg);
    }

    #[cold]
    fn grow(&mut self) {
        self.slots = self.slots / 2 * 3;
        self.index.clear();
        self.index.reserve_exact(self.slots);
        self.index.resize(self.slots, 0);
        for at in 0..self.all.len() {
            let slot = self.slot(self.all[at].middle);
            self.index[slot] = at as u32 + 1;
        }
    }

    /// The sequence number of the last edge that was added, modulo 2^32.
    pub(crate) fn last(&self) -> Option<u32> {
        self.last
    }

    pub(crate) fn newest(&self) -> T {
        self.newest
    }

    pub(crate) fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<Leg<T>>() + self.index.capacity() * size_of::<u32>()
    }
}
