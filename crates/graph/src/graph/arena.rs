//! Many short lists of entries in one allocation.
//!
//! An account of a bank's stream has a handful of edges; a `Vec` for each direction would cost
//! more than they do. Blocks come in a few sizes; a freed block waits for the next list of its
//! size.

use super::stamp::Stamp;
use crate::memory::{Full, reserve, reserve_exact};

/// One edge as one of its ends sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry<T> {
    pub time: T,
    /// The account at the other end.
    pub other: u32,
    /// The edge's number of arrival, modulo 2^32.
    pub seq: u32,
}

/// Where a list lies: in the arena, in order of time, and of arrival within an instant.
///
/// Eight bytes: accounts with one edge are many.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct List {
    at: u32,
    /// The size of its block above [`LENGTH_BITS`] bits of length; 0 without a block.
    packed: u32,
}

const LENGTH_BITS: u32 = 27;
/// Entries of one list, at most. The sizes of blocks end beyond it.
pub(crate) const LENGTH_MAX: usize = (1 << LENGTH_BITS) - 1;
/// From this size on the first entry of a block says how many behind it are dead: removing the
/// oldest of a long list moves nothing.
const CLASS_LARGE: u8 = 9;

impl List {
    fn new(at: u32, class: u8, len: usize) -> List {
        debug_assert!(len <= LENGTH_MAX);
        List { at, packed: u32::from(class) << LENGTH_BITS | len as u32 }
    }

    pub(crate) fn len(self) -> usize {
        (self.packed & LENGTH_MAX as u32) as usize
    }

    pub(crate) fn is_empty(self) -> bool {
        self.len() == 0
    }

    fn class(self) -> u8 {
        (self.packed >> LENGTH_BITS) as u8
    }

    fn is_large(self) -> bool {
        self.class() >= CLASS_LARGE
    }
}

/// Sizes of 0, 1, 2, 3, 4, 6, 8, 12, 16 entries, then from 32 on by doubling.
fn capacity(class: u8) -> usize {
    match class {
        0..=3 => usize::from(class),
        4..CLASS_LARGE => (2 + usize::from(class & 1)) << (class / 2 - 1),
        _ => 32 << (class - CLASS_LARGE),
    }
}

#[derive(Debug, Default)]
pub(crate) struct Arena<T> {
    entries: Vec<Entry<T>>,
    free: Vec<Vec<u32>>,
}

impl<T: Stamp> Arena<T> {
    pub(crate) fn get(&self, list: List) -> &[Entry<T>] {
        let at = self.start(list);
        self.entries.get(at..at + list.len()).unwrap_or_default()
    }

    /// Where the first live entry of a list lies.
    fn start(&self, list: List) -> usize {
        let at = list.at as usize;
        match self.entries.get(at) {
            Some(header) if list.is_large() => at + 1 + header.seq as usize,
            _ => at,
        }
    }

    /// Reads what a change of the list will touch, so that the waits of many lists overlap.
    pub(crate) fn touch(&self, list: List) -> u32 {
        self.get(list).last().map_or(0, |one| one.seq)
    }

    /// Adds an entry behind all that are not younger.
    pub(crate) fn insert(&mut self, list: &mut List, entry: Entry<T>) -> Result<(), Full> {
        self.make_room(list)?;
        let (start, len) = (self.start(*list), list.len());
        let live = &mut self.entries[start..=start + len];
        let at = match live[..len].last() {
            Some(last) if last.time > entry.time => {
                live[..len].partition_point(|one| one.time <= entry.time)
            }
            _ => len,
        };
        if at < len {
            live.copy_within(at..len, at + 1);
        }
        live[at] = entry;
        list.packed += 1;
        Ok(())
    }

    /// Removes the entry of one edge; says whether it was there.
    pub(crate) fn remove(&mut self, list: &mut List, time: T, seq: u32) -> bool {
        let live = self.get(*list);
        let first = match live.first() {
            Some(oldest) if oldest.seq == seq => 0,
            _ => live.partition_point(|one| one.time < time),
        };
        let same = live[first..].iter().take_while(|one| one.time == time);
        let Some(at) = same.map(|one| one.seq).position(|one| one == seq) else { return false };
        let (at, start, len) = (first + at, self.start(*list), list.len());
        if list.is_large() {
            self.entries.copy_within(start..start + at, start + 1);
            self.entries[list.at as usize].seq += 1;
        } else {
            self.entries.copy_within(start + at + 1..start + len, start + at);
        }
        list.packed -= 1;
        if len == 1 {
            self.release(*list);
            *list = List::default();
        } else if list.class() > 4 && (len - 1) * 3 <= capacity(list.class()) {
            // Where there is no memory it stays in a block that is too large.
            _ = self.relocate(list);
        }
        true
    }

    /// Sees to it that one more entry fits behind the last.
    fn make_room(&mut self, list: &mut List) -> Result<(), Full> {
        let at = list.at as usize;
        let end = at + capacity(list.class());
        let (start, len) = (self.start(*list), list.len());
        if start + len < end {
            return Ok(());
        }
        // Sliding back costs `len` once in as many insertions as there were dead entries.
        if list.is_large() && (start - at) * 4 >= end - at {
            self.entries.copy_within(start..start + len, at + 1);
            self.entries[at].seq = 0;
            return Ok(());
        }
        self.relocate(list)
    }

    /// Moves a list to the smallest block that holds it and one entry more; a long one, an eighth
    /// more: else one that loses an entry for each that it gets would move at every one.
    fn relocate(&mut self, list: &mut List) -> Result<(), Full> {
        let (old, from, len) = (*list, self.start(*list), list.len());
        let spare = if len < capacity(CLASS_LARGE) { 0 } else { len / 8 };
        // Beyond this there is no larger block.
        let room = (len + spare).min(LENGTH_MAX - 1);
        let mut class = 1;
        while capacity(class) <= room + usize::from(class >= CLASS_LARGE) {
            class += 1;
        }
        let at = self.allocate(class)?;
        *list = List::new(at, class, len);
        if list.is_large() {
            self.entries[at as usize].seq = 0;
        }
        let to = self.start(*list);
        self.entries.copy_within(from..from + len, to);
        self.release(old);
        Ok(())
    }

    fn allocate(&mut self, class: u8) -> Result<u32, Full> {
        if let Some(at) = self.free.get_mut(usize::from(class)).and_then(Vec::pop) {
            return Ok(at);
        }
        let (at, room) = (self.entries.len(), capacity(class));
        if self.entries.capacity() - at < room {
            // A little at a time: doubling would leave half of a large graph empty.
            reserve_exact(&mut self.entries, room.max(at / 32).max(1024))?;
        }
        self.entries.resize(at + room, Entry::default());
        debug_assert!(u32::try_from(at).is_ok(), "Dynamic limits the number of edges");
        Ok(at as u32)
    }

    fn release(&mut self, list: List) {
        if list.class() == 0 {
            return;
        }
        let class = usize::from(list.class());
        if self.free.len() <= class {
            self.free.resize(class + 1, Vec::new());
        }
        // Where there is no memory to remember it, the block is not used again.
        if let Some(free) = self.free.get_mut(class)
            && reserve(free, 1).is_ok()
        {
            free.push(list.at);
        }
    }

    /// Every list's entries with `change` made to their times.
    pub(crate) fn restamp<S: Stamp>(self, change: impl Fn(T) -> S) -> Arena<S> {
        let entries = self.entries.into_iter().map(|Entry { time, other, seq }| Entry {
            time: change(time),
            other,
            seq,
        });
        Arena { entries: entries.collect(), free: self.free }
    }

    /// Entries that there is room for, in lists or free.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry<T>>()
            + self.free.iter().map(|free| free.capacity() * size_of::<u32>()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::{Arena, Entry, List, capacity};
    use proptest::prelude::*;

    #[test]
    fn short_lists_have_sizes_that_fit() {
        let sizes: Vec<_> = (0..12).map(capacity).collect();
        assert_eq!(sizes, [0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128]);
    }

    #[test]
    fn a_long_list_that_keeps_its_length_moves_rarely() {
        for length in [40, 62, 63, 200, 510, 511, 1000, 1022] {
            let mut arena = Arena::<u32>::default();
            let mut list = List::default();
            let entry = |seq| Entry { time: seq, other: 7, seq };
            (0..length).for_each(|seq| arena.insert(&mut list, entry(seq)).unwrap());
            let (mut moves, mut copied, rounds) = (0, 0, 20 * length);
            for seq in length..length + rounds {
                let before = (list.at, arena.start(list));
                arena.insert(&mut list, entry(seq)).unwrap();
                let has_moved = (list.at, arena.start(list)) != before;
                moves += u32::from(has_moved);
                copied += if has_moved { length } else { 0 };
                assert!(arena.remove(&mut list, seq - length, seq - length));
            }
            // Each entry that comes pays for eight others to be moved, at most.
            assert!(copied <= 9 * rounds, "{length} entries: {moves} moves in {rounds} rounds");
            assert_eq!(list.len(), length as usize);
        }
    }

    proptest! {
        /// Lists beside each other keep their entries, sorted, whatever comes and goes.
        #[test]
        fn lists_equal_sorted_vectors(steps in prop::collection::vec((0..4usize, 0..50u32, any::<bool>()), 1..400)) {
            let mut arena = Arena::<u32>::default();
            let mut lists = [List::default(); 4];
            let mut models: [Vec<(u32, u32)>; 4] = Default::default();
            for (seq, (which, time, is_removal)) in (0u32..).zip(steps) {
                let (list, model) = (&mut lists[which], &mut models[which]);
                if is_removal && !model.is_empty() {
                    let (time, seq) = model.remove(time as usize % model.len());
                    prop_assert!(arena.remove(list, time, seq));
                    prop_assert!(!arena.remove(list, time, seq));
                } else {
                    arena.insert(list, Entry { time, other: 7, seq }).unwrap();
                    model.push((time, seq));
                    model.sort_unstable();
                }
                for (list, model) in lists.iter().zip(&models) {
                    let seen: Vec<_> =
                        arena.get(*list).iter().map(|one| (one.time, one.seq)).collect();
                    prop_assert_eq!(&seen, model);
                }
            }
        }
    }
}
