//! Many short lists of entries in one allocation.
//!
//! An account of a bank's stream has a handful of edges; a `Vec` for each direction would cost
//! more than they do. Blocks of short lists come in a few sizes; a freed one waits for the next
//! list of its size. Long lists have blocks that fit, cut out of what other long ones left.

use super::runs::Runs;
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
/// Four bytes: accounts with one edge are many, and so are those with none on one side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct List {
    /// The place of its block, below four bits that say the block's class and, where that has up to
    /// four entries, how many there are. 0 without a block.
    packed: u32,
}

const PLACE_BITS: u32 = 28;
/// Entries of one list, at most: all edges may be those of one account.
pub(crate) const LENGTH_MAX: usize = (1 << 27) - 1;
/// Blocks of this class and those above tell the length of a list by the entry behind its last.
const CLASS_MARKED: u8 = 5;
/// Blocks of this class begin with an entry that says how long they are, how many entries behind it
/// are dead and how many then live: removing the oldest of a long list moves nothing.
const CLASS_LARGE: u8 = 9;
/// The class and, if it tells, the length of each form of a list.
const FORMS: [(u8, u8); 16] = [
    (0, 0),
    (1, 1),
    (2, 1),
    (2, 2),
    (3, 1),
    (3, 2),
    (3, 3),
    (4, 1),
    (4, 2),
    (4, 3),
    (4, 4),
    (5, 0),
    (6, 0),
    (7, 0),
    (8, 0),
    (9, 0),
];
/// The first form of each class.
const FIRST_FORMS: [u8; 1 + CLASS_LARGE as usize] = [0, 1, 2, 4, 7, 11, 12, 13, 14, 15];
/// At the other end of what is no entry: no account has this number.
const UNUSED: u32 = u32::MAX;
/// Entries of a block of the class before.
const SMALL_MAX: usize = 16;
/// Where a long list is moved, so many times fewer entries than it has may come before it is moved
/// again: each that comes pays for so many.
const SPARE: usize = 16;
/// The lengths of long blocks are multiples.
const GRAIN: usize = 8;
/// Blocks of one class that are cut at once.
const CUT: u32 = 32;

impl List {
    /// A list in a block; classes that do not tell the length leave it to the arena.
    fn new(at: u32, class: u8, len: usize) -> List {
        let first = FIRST_FORMS[usize::from(class)];
        let form = if class < CLASS_MARKED { first + len as u8 - 1 } else { first };
        List { packed: u32::from(form) << PLACE_BITS | at }
    }

    fn at(self) -> u32 {
        self.packed & ((1 << PLACE_BITS) - 1)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.packed == 0
    }

    fn form(self) -> (u8, u8) {
        FORMS[(self.packed >> PLACE_BITS) as usize]
    }

    fn class(self) -> u8 {
        self.form().0
    }

    fn is_large(self) -> bool {
        self.class() >= CLASS_LARGE
    }
}

/// Sizes of 0, 1, 2, 3, 4, 6, 8, 12, 16 entries.
fn capacity(class: u8) -> usize {
    match class {
        0..=3 => usize::from(class),
        _ => (2 + usize::from(class & 1)) << (class / 2 - 1),
    }
}

/// Entries of the block for a long list, the first one among them.
fn large_capacity(len: usize) -> usize {
    (len + len / SPARE + 2).next_multiple_of(GRAIN)
}

#[derive(Debug, Default)]
pub(crate) struct Arena<T> {
    entries: Vec<Entry<T>>,
    /// Free blocks of the short lists' classes.
    free: [Vec<u32>; CLASS_LARGE as usize],
    /// What long lists left.
    runs: Runs,
}

impl<T: Stamp> Arena<T> {
    pub(crate) fn get(&self, list: List) -> &[Entry<T>] {
        let (at, len) = self.live(list);
        self.entries.get(at..at + len).unwrap_or_default()
    }

    /// Entries of a list's block.
    fn capacity(&self, list: List) -> usize {
        match self.entries.get(list.at() as usize) {
            Some(header) if list.is_large() => header.other as usize,
            _ => capacity(list.class()),
        }
    }

    /// Where the first live entry of a list lies, and how many there are.
    fn live(&self, list: List) -> (usize, usize) {
        let (at, (class, len)) = (list.at() as usize, list.form());
        if class < CLASS_MARKED {
            return (at, usize::from(len));
        }
        if class < CLASS_LARGE {
            let block = self.entries.get(at..at + capacity(class)).unwrap_or_default();
            let last = block.iter().rposition(|one| one.other != UNUSED);
            return (at, last.map_or(0, |last| last + 1));
        }
        let header = self.entries.get(at).copied().unwrap_or_default();
        (at + 1 + header.seq as usize, header.time.offset() as usize)
    }

    /// Entries of a list.
    fn len_of(&self, list: List) -> usize {
        self.live(list).1
    }

    /// Says how many entries a list has: one more or less than before, and not 0.
    fn set_len(&mut self, list: &mut List, len: usize) {
        debug_assert!(len > 0 && len <= LENGTH_MAX);
        let (at, class) = (list.at(), list.class());
        *list = List::new(at, class, len);
        if class >= CLASS_LARGE {
            self.entries[at as usize].time = T::from_offset(len as u64);
        } else if class >= CLASS_MARKED && len < capacity(class) {
            self.entries[at as usize + len].other = UNUSED;
        }
    }

    /// Reads where the list's block begins.
    pub(crate) fn touch_block(&self, list: List) -> u32 {
        self.entries.get(list.at() as usize).map_or(0, |one| one.seq)
    }

    /// The entry of one edge. With `head`, entries are in order of arrival, none older than that.
    pub(crate) fn find(&self, list: List, seq: u32, head: Option<u32>) -> Option<Entry<T>> {
        let all = self.get(list);
        let is_it = |one: &&Entry<T>| one.seq == seq;
        // Edges leave at the old end, or, if they are taken back, at the new one.
        let at_end = all.first().filter(is_it).or_else(|| all.last().filter(is_it));
        let found = match (at_end, head) {
            (Some(one), _) => Some(one),
            (None, Some(head)) => {
                let is_older = |one: &Entry<T>| one.seq.wrapping_sub(head) < seq.wrapping_sub(head);
                all.get(all.partition_point(is_older)).filter(is_it)
            }
            (None, None) => all.iter().find(is_it),
        };
        found.copied()
    }

    /// Adds an entry behind all that are not younger.
    pub(crate) fn insert(&mut self, list: &mut List, entry: Entry<T>) -> Result<(), Full> {
        let (start, len) = self.make_room(list)?;
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
        let (at, (start, len)) = (first + at, self.live(*list));
        if list.is_large() {
            self.entries.copy_within(start..start + at, start + 1);
            self.entries[list.at() as usize].seq += 1;
        } else {
            self.entries.copy_within(start + at + 1..start + len, start + at);
        }
        if len == 1 {
            self.release(*list);
            *list = List::default();
            return true;
        }
        self.set_len(list, len - 1);
        if self.is_wide(*list, len - 1) {
            // Where there is no memory it stays in a block that is too large.
            _ = self.relocate(list, self.live(*list), len - 1);
        }
        true
    }

    /// Whether a list's block is far too large for so many entries.
    fn is_wide(&self, list: List, len: usize) -> bool {
        let room = self.capacity(list);
        if list.is_large() { len * 2 <= room } else { len * 3 <= room }
    }

    /// Makes a list longer by an entry that is yet to be written behind the last; where it begins,
    /// and how many there were.
    fn make_room(&mut self, list: &mut List) -> Result<(usize, usize), Full> {
        let at = list.at() as usize;
        let end = at + self.capacity(*list);
        let (start, len) = self.live(*list);
        if start + len < end {
            self.set_len(list, len + 1);
            return Ok((start, len));
        }
        // Sliding back costs `len` once in as many insertions as there were dead entries. A list that
        // keeps its length comes here with one in `SPARE` dead.
        if list.is_large() && (start - at - 1) * (SPARE + SPARE / 2) >= end - at {
            self.entries.copy_within(start..start + len, at + 1);
            self.entries[at].seq = 0;
            self.set_len(list, len + 1);
            return Ok((at + 1, len));
        }
        Ok((self.relocate(list, (start, len), len + 1)?, len))
    }

    /// Moves a list to the smallest block that holds it and one entry more; a long one, some more.
    /// It then has so many entries, of which the last may be yet to be written; where they begin.
    fn relocate(
        &mut self,
        list: &mut List,
        (from, len): (usize, usize),
        new_len: usize,
    ) -> Result<usize, Full> {
        let old = *list;
        let (at, class) = if len < SMALL_MAX {
            let fits = |class: &u8| capacity(*class) > len;
            let class = (1..CLASS_LARGE).find(fits).unwrap_or(CLASS_LARGE - 1);
            (self.allocate_small(class)?, class)
        } else {
            let room = large_capacity(len);
            let at = self.allocate(room)?;
            self.entries[at as usize] = Entry { other: room as u32, ..Entry::default() };
            (at, CLASS_LARGE)
        };
        *list = List::new(at, class, new_len);
        let to = if class < CLASS_LARGE { at as usize } else { at as usize + 1 };
        self.entries.copy_within(from..from + len, to);
        if (CLASS_MARKED..CLASS_LARGE).contains(&class) {
            let unused = Entry { other: UNUSED, ..Entry::default() };
            self.entries[to + len..to + capacity(class)].fill(unused);
        }
        self.set_len(list, new_len);
        self.release(old);
        Ok(to)
    }

    fn allocate_small(&mut self, class: u8) -> Result<u32, Full> {
        let (room, class) = (capacity(class), usize::from(class));
        if let Some(at) = self.free.get_mut(class).and_then(Vec::pop) {
            return Ok(at);
        }
        let Some(free) = self.free.get_mut(class) else { return self.allocate(room) };
        reserve(free, CUT as usize)?;
        let size = room as u32;
        let Some((at, length)) = self.runs.take(size, CUT * size) else {
            return self.allocate(room);
        };
        let blocks = length / size;
        free.extend((1..blocks).rev().map(|block| at + block * size));
        if length > blocks * size {
            self.runs.give(at + blocks * size, length - blocks * size);
        }
        Ok(at)
    }

    /// Room for so many entries.
    fn allocate(&mut self, room: usize) -> Result<u32, Full> {
        if let Some((at, _)) = self.runs.take(room as u32, room as u32) {
            return Ok(at);
        }
        let at = self.entries.len();
        if at + room > 1 << PLACE_BITS {
            return Err(Full { bytes: (at + room) * size_of::<Entry<T>>() });
        }
        if self.entries.capacity() - at < room {
            // A little at a time: doubling would leave half of a large graph empty.
            reserve_exact(&mut self.entries, room.max(at / 32).max(1024))?;
        }
        self.entries.resize(at + room, Entry::default());
        Ok(at as u32)
    }

    fn release(&mut self, list: List) {
        if list.class() == 0 {
            return;
        }
        if list.is_large() {
            self.runs.give(list.at(), self.capacity(list) as u32);
            return;
        }
        // Where there is no memory to remember it, the block is not used again.
        if let Some(free) = self.free.get_mut(usize::from(list.class()))
            && reserve(free, 1).is_ok()
        {
            free.push(list.at());
        }
    }

    /// Every list's entries with `change` made to their times.
    pub(crate) fn restamp<S: Stamp>(self, lists: &[List], change: impl Fn(T) -> S) -> Arena<S> {
        // A long list's length is no time.
        let long = lists.iter().copied().filter(|list| list.is_large());
        let long: Vec<(List, usize)> = long.map(|list| (list, self.len_of(list))).collect();
        let entries = self.entries.into_iter().map(|Entry { time, other, seq }| Entry {
            time: change(time),
            other,
            seq,
        });
        let mut arena = Arena { entries: entries.collect(), free: self.free, runs: self.runs };
        for (mut list, len) in long {
            arena.set_len(&mut list, len);
        }
        arena
    }

    /// Entries that there is room for, in lists or free.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry<T>>()
            + self.free.iter().map(|free| free.capacity() * size_of::<u32>()).sum::<usize>()
            + self.runs.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::{Arena, CLASS_LARGE, Entry, List, SMALL_MAX, capacity, large_capacity};
    use proptest::prelude::*;

    #[test]
    fn short_lists_have_sizes_that_fit() {
        let sizes: Vec<_> = (0..CLASS_LARGE).map(capacity).collect();
        assert_eq!(sizes, [0, 1, 2, 3, 4, 6, 8, 12, SMALL_MAX]);
        assert_eq!([16, 24, 100, 1000].map(large_capacity), [24, 32, 112, 1064]);
    }

    #[test]
    fn a_long_list_that_keeps_its_length_stays_where_it_is() {
        for length in [17, 40, 63, 200, 511, 1000, 20_000] {
            let mut arena = Arena::<u32>::default();
            let mut list = List::default();
            let entry = |seq| Entry { time: seq, other: 7, seq };
            (0..length).for_each(|seq| arena.insert(&mut list, entry(seq)).unwrap());
            let mut moves = 0;
            for seq in length..5 * length {
                let before = list.at();
                arena.insert(&mut list, entry(seq)).unwrap();
                moves += u32::from(list.at() != before);
                assert!(arena.remove(&mut list, seq - length, seq - length));
            }
            assert!(moves <= 1, "{length} entries: {moves} moves");
            assert_eq!(arena.get(list).len(), length as usize);
        }
    }

    #[test]
    fn long_lists_that_grow_and_shrink_leave_little_room_unused() {
        let mut arena = Arena::<u32>::default();
        let mut lists = [List::default(); 200];
        let mut oldest = [0; 200];
        let (mut seq, mut live_max) = (0, 0);
        for round in 0..12 {
            for (at, list) in lists.iter_mut().enumerate() {
                // Each has its own busy and quiet days, up to some thousands of edges.
                let wanted = (at * 37 + round * 911) % (10 + at * 20);
                while arena.len_of(*list) < wanted {
                    arena.insert(list, Entry { time: seq, other: 7, seq }).unwrap();
                    seq += 1;
                }
                while arena.len_of(*list) > wanted {
                    let Entry { time, seq, .. } = arena.get(*list)[0];
                    assert!(arena.remove(list, time, seq) && seq >= oldest[at]);
                    oldest[at] = seq;
                }
            }
            live_max = lists.iter().map(|list| arena.len_of(*list)).sum::<usize>().max(live_max);
        }
        assert!(arena.len() * 2 < live_max * 3, "{} entries for {live_max}", arena.len());
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
