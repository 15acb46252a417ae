//! Many short lists of entries in one allocation.
//!
//! An account in a bank's stream has a handful of edges; a `Vec` for each side would take more
//! memory than the edges. Blocks of short lists have a few sizes, with a free list for each size.
//! Blocks of long lists have any size, and are cut from free runs.

mod compaction;
mod free_runs;
use crate::edge::{EdgeEntry, NO_ACCOUNT};

use crate::edge::Stamp;
use crate::memory::{AllocationFailed, reserve, reserve_exact};
use free_runs::FreeRuns;

/// A reference to a list in the arena. Entries are in order of time, and within an instant in order
/// of arrival.
///
/// It takes four bytes, because many accounts have at most one edge on a side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ListHandle {
    /// The position of the block, below four bits for its form: the class and, for up to four
    /// entries, the length. 0 without a block.
    packed: u32,
}

const PLACE_BITS: u32 = 28;
/// The largest length of a list. All edges may belong to one account.
pub(crate) const LENGTH_MAX: usize = (1 << 27) - 1;
/// In classes from this one to `CLASS_LARGE`, the entry after the last one marks the end.
const CLASS_MARKED: u8 = 5;
/// Blocks of this class begin with a header entry. It holds the length of the block, the number of
/// dead entries after the header, and the number of live entries after those. The removal of a long
/// list's oldest entry therefore moves no others.
const CLASS_LARGE: u8 = 9;
/// The class of each form of a list and, if the form determines it, the length.
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
/// The number of entries in the largest block for a short list.
const SMALL_MAX: usize = 16;
/// A long list that moves gets spare room for one new entry per this many. On average, each
/// insertion then moves this many entries.
const SPARE: usize = 16;
/// Lengths of long blocks are multiples of this.
const GRAIN: usize = 8;
/// How many blocks of one class are cut at once.
const CUT: u32 = 32;

impl ListHandle {
    /// A list in a block. If the class does not determine the length, the block contains it.
    fn new(at: u32, class: u8, len: usize) -> ListHandle {
        let first = FIRST_FORMS[usize::from(class)];
        let form = if class < CLASS_MARKED { first + len as u8 - 1 } else { first };
        ListHandle { packed: u32::from(form) << PLACE_BITS | at }
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

/// The number of entries in a block, by class of short lists.
const CAPACITIES: [usize; 1 + CLASS_LARGE as usize] = [0, 1, 2, 3, 4, 6, 8, 12, SMALL_MAX, 0];

fn capacity(class: u8) -> usize {
    CAPACITIES[usize::from(class)]
}

/// The class of the smallest block that fits, by number of entries.
const CLASSES: [u8; SMALL_MAX + 1] = [1, 1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 7, 7, 8, 8, 8, 8];

fn class_for(len: usize) -> u8 {
    CLASSES.get(len).copied().unwrap_or(CLASS_LARGE)
}

/// A list's location, from its handle and its block.
#[derive(Clone, Copy, Debug)]
struct ListLocation {
    class: u8,
    /// The beginning of the block.
    at: usize,
    /// The first live entry.
    start: usize,
    /// Live entries.
    len: usize,
    /// The end of the block.
    end: usize,
}

/// The number of entries in the block for a long list, its header included.
fn large_capacity(len: usize) -> usize {
    (len + len / SPARE + 2).next_multiple_of(GRAIN)
}

/// The largest length of a list whose form determines it. Copying its entries takes less time than
/// a call of `copy_within`.
const FEW: usize = 4;

/// Copies entries to another position.
fn copy<T: Copy>(entries: &mut [EdgeEntry<T>], from: usize, to: usize, len: usize) {
    if len > FEW {
        entries.copy_within(from..from + len, to);
        return;
    }
    for at in 0..len {
        entries[to + at] = entries[from + at];
    }
}

/// Overwrites the entry at `at`: moves the later ones forward by one.
fn shift<T: Copy>(entries: &mut [EdgeEntry<T>], at: usize) {
    if entries.len() > FEW {
        entries.copy_within(at + 1.., at);
        return;
    }
    for at in at + 1..entries.len() {
        entries[at - 1] = entries[at];
    }
}

/// The position of one edge's entry. Most edges are looked up when they are the oldest.
fn position<T: Stamp>(live: &[EdgeEntry<T>], time: T, seq: u32) -> Option<usize> {
    if live.first()?.seq == seq {
        return Some(0);
    }
    let first = live.partition_point(|one| one.time < time);
    let mut same = live[first..].iter().take_while(|one| one.time == time);
    same.position(|one| one.seq == seq).map(|at| first + at)
}

#[derive(Debug, Default)]
pub(crate) struct ListArena<T> {
    entries: Vec<EdgeEntry<T>>,
    /// Free blocks by class of short lists.
    free: [Vec<u32>; CLASS_LARGE as usize],
    /// Free runs, from the blocks of long lists.
    runs: FreeRuns,
    /// Compaction failed, and is not retried with fewer free entries than this.
    stuck: usize,
}

impl<T: Stamp> ListArena<T> {
    pub(crate) fn get(&self, list: ListHandle) -> &[EdgeEntry<T>] {
        let ListLocation { start, len, .. } = self.place(list);
        self.entries.get(start..start + len).unwrap_or_default()
    }

    fn get_mut(&mut self, list: ListHandle) -> &mut [EdgeEntry<T>] {
        let ListLocation { start, len, .. } = self.place(list);
        self.entries.get_mut(start..start + len).unwrap_or_default()
    }

    /// The first entries of a short list's block and the length, if its form determines the length.
    pub(crate) fn few(&self, list: ListHandle) -> Option<(&[EdgeEntry<T>; FEW], usize)> {
        let (class, len) = list.form();
        let some = self.entries.get(list.at() as usize..)?.first_chunk()?;
        (class < CLASS_MARKED).then_some((some, usize::from(len)))
    }

    /// The location of a list.
    fn place(&self, list: ListHandle) -> ListLocation {
        let (at, (class, len)) = (list.at() as usize, list.form());
        let end = at + capacity(class);
        if class < CLASS_MARKED {
            return ListLocation { class, at, start: at, len: usize::from(len), end };
        }
        if class < CLASS_LARGE {
            let block = self.entries.get(at..end).unwrap_or_default();
            let len = block.partition_point(|one| one.other != NO_ACCOUNT);
            return ListLocation { class, at, start: at, len, end };
        }
        let header = self.entries.get(at).copied().unwrap_or_default();
        let (start, len) = (at + 1 + header.seq as usize, header.time.offset() as usize);
        ListLocation { class, at, start, len, end: at + header.other as usize }
    }

    /// Sets the length of a list, which is not 0.
    fn set_len(&mut self, list: &mut ListHandle, place: ListLocation, len: usize) {
        debug_assert!(len > 0 && len <= LENGTH_MAX);
        let ListLocation { class, at, end, .. } = place;
        *list = ListHandle::new(at as u32, class, len);
        if class >= CLASS_LARGE {
            self.entries[at].time = T::from_offset(len as u64);
        } else if class >= CLASS_MARKED && at + len < end {
            self.entries[at + len].other = NO_ACCOUNT;
        }
    }

    /// Prefetches the beginning of the list's block.
    pub(crate) fn touch_block(&self, list: ListHandle) -> u32 {
        self.entries.get(list.at() as usize).map_or(0, |one| one.seq)
    }

    /// Prefetches the newest entry of a list, or one near it, without a branch: it could not be
    /// predicted.
    pub(crate) fn newest(&self, list: ListHandle) -> u32 {
        let at = list.at() as usize;
        let header = self.entries.get(at).copied().unwrap_or_default();
        // Meaningless for a short list, whose block has no header.
        let long = (header.seq as usize).wrapping_add(header.time.offset() as usize);
        let room = capacity(list.class()).saturating_sub(1);
        let last = if list.is_large() { long } else { room };
        self.entries.get(at + last).map_or(0, |one| one.seq)
    }

    /// Prefetches the oldest entry of a list. Its removal moves the others of a short list, so for
    /// those it prefetches the end of the block.
    pub(crate) fn oldest(&self, list: ListHandle) -> u32 {
        let at = list.at() as usize;
        let dead = self.entries.get(at).map_or(0, |header| header.seq as usize);
        let room = capacity(list.class()).saturating_sub(1);
        let other = if list.is_large() { dead + 1 } else { room };
        self.entries.get(at + other).map_or(0, |one| one.seq)
    }

    /// The first entry of a list.
    fn first(&self, list: ListHandle) -> Option<&EdgeEntry<T>> {
        let at = list.at() as usize;
        if list.is_large() {
            let dead = self.entries.get(at)?.seq as usize;
            return self.entries.get(at + 1 + dead);
        }
        self.entries.get(at).filter(|_| !list.is_empty())
    }

    /// The entry of one edge. With `head`, entries are in order of arrival, and none arrived before
    /// `head`.
    pub(crate) fn find(
        &self,
        list: ListHandle,
        seq: u32,
        head: Option<u32>,
    ) -> Option<EdgeEntry<T>> {
        let is_it = |one: &&EdgeEntry<T>| one.seq == seq;
        // Edges are removed at the old end or, if they are rolled back, at the new one.
        if let Some(oldest) = self.first(list).filter(is_it) {
            return Some(*oldest);
        }
        let all = self.get(list);
        let at_end = all.last().filter(is_it);
        let found = match (at_end, head) {
            (Some(one), _) => Some(one),
            (None, Some(head)) => {
                let is_older =
                    |one: &EdgeEntry<T>| one.seq.wrapping_sub(head) < seq.wrapping_sub(head);
                all.get(all.partition_point(is_older)).filter(is_it)
            }
            (None, None) => all.iter().find(is_it),
        };
        found.copied()
    }

    /// Adds an entry after all entries that are not younger.
    pub(crate) fn insert(
        &mut self,
        list: &mut ListHandle,
        entry: EdgeEntry<T>,
    ) -> Result<(), AllocationFailed> {
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

    /// Removes the entry of one edge; returns whether it was present.
    pub(crate) fn remove(&mut self, list: &mut ListHandle, time: T, seq: u32) -> bool {
        let place = self.place(*list);
        let ListLocation { class, at: block, start, len, end } = place;
        let live = self.entries.get_mut(start..start + len).unwrap_or_default();
        let Some(at) = position(live, time, seq) else { return false };
        if len == 1 {
            self.release(place);
            *list = ListHandle::default();
            return true;
        }
        let left = len - 1;
        let is_large = class >= CLASS_LARGE;
        // The shortest lists move at once: their blocks are as many as all others.
        let is_wide = end - block <= FEW || left * 2 <= end - block;
        if is_large {
            live.copy_within(..at, 1);
            self.entries[block].seq += 1;
        } else {
            shift(live, at);
        }
        self.set_len(list, place, left);
        if is_wide {
            // Without memory the list remains in a block that is too large.
            let start = start + usize::from(is_large);
            _ = self.relocate(list, ListLocation { start, len: left, ..place }, left);
        }
        true
    }

    /// Changes the account at the other end of one edge.
    pub(crate) fn rename(&mut self, list: ListHandle, time: T, seq: u32, other: u32) {
        let live = self.get_mut(list);
        if let Some(at) = position(live, time, seq) {
            live[at].other = other;
        }
    }

    /// Changes the account at the other end of all edges of a list.
    pub(crate) fn rename_all(&mut self, list: ListHandle, other: u32) {
        self.get_mut(list).iter_mut().for_each(|one| one.other = other);
    }

    /// Extends a list by one entry, which the caller writes after the last. Returns the position of
    /// the first entry, and the former length.
    fn make_room(&mut self, list: &mut ListHandle) -> Result<(usize, usize), AllocationFailed> {
        let place = self.place(*list);
        let ListLocation { class, at, start, len, end } = place;
        if start + len < end {
            self.set_len(list, place, len + 1);
            return Ok((start, len));
        }
        // Sliding moves `len` entries once per as many insertions as there were dead entries. In a
        // list of constant length, one in `SPARE` is dead when the block is full.
        if class >= CLASS_LARGE && (start - at - 1) * (SPARE + SPARE / 2) >= end - at {
            self.entries.copy_within(start..start + len, at + 1);
            self.entries[at].seq = 0;
            self.set_len(list, place, len + 1);
            return Ok((at + 1, len));
        }
        Ok((self.relocate(list, place, len + 1)?, len))
    }

    /// Moves a list to the smallest block for `new_len` entries; the caller may write the last one.
    /// A long list gets spare room. Returns the position of the first entry.
    fn relocate(
        &mut self,
        list: &mut ListHandle,
        from: ListLocation,
        new_len: usize,
    ) -> Result<usize, AllocationFailed> {
        let ListLocation { start, len, .. } = from;
        let class = class_for(new_len);
        let is_small = class < CLASS_LARGE;
        let room = if is_small { capacity(class) } else { large_capacity(len) };
        let at = if is_small { self.allocate_small(class)? } else { self.allocate(room)? };
        let place = self.prepare(at, class, room, len);
        copy(&mut self.entries, start, place.start, len);
        self.set_len(list, place, new_len);
        self.release(from);
        Ok(place.start)
    }

    /// Prepares a block for `len` entries, which the caller writes.
    fn prepare(&mut self, at: u32, class: u8, room: usize, len: usize) -> ListLocation {
        let at = at as usize;
        let (start, end) = (at + usize::from(class >= CLASS_LARGE), at + room);
        if class >= CLASS_LARGE {
            let time = T::from_offset(len as u64);
            self.entries[at] = EdgeEntry { time, other: room as u32, seq: 0 };
        } else if class >= CLASS_MARKED {
            let unused = EdgeEntry { other: NO_ACCOUNT, ..EdgeEntry::default() };
            self.entries[start + len..end].fill(unused);
        }
        ListLocation { class, at, start, len, end }
    }

    fn allocate_small(&mut self, class: u8) -> Result<u32, AllocationFailed> {
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

    /// Reserves room for lists with `entries` entries in all, and for the spare room of blocks.
    pub(crate) fn reserve(&mut self, entries: usize) -> Result<(), AllocationFailed> {
        reserve_exact(&mut self.entries, entries + entries / 16)
    }

    /// A new list of these entries in the smallest block that fits. `other` maps the accounts at
    /// their other ends.
    pub(crate) fn append(
        &mut self,
        entries: &[EdgeEntry<T>],
        other: impl Fn(u32) -> u32,
    ) -> Result<ListHandle, AllocationFailed> {
        let len = entries.len();
        if len == 0 {
            return Ok(ListHandle::default());
        }
        let class = class_for(len);
        let room = if class < CLASS_LARGE { capacity(class) } else { large_capacity(len) };
        let at = self.allocate(room)?;
        let start = self.prepare(at, class, room, len).start;
        for (to, one) in self.entries[start..start + len].iter_mut().zip(entries) {
            *to = EdgeEntry { other: other(one.other), ..*one };
        }
        Ok(ListHandle::new(at, class, len))
    }

    /// Allocates a block from a free run, or at the end.
    fn allocate(&mut self, room: usize) -> Result<u32, AllocationFailed> {
        if let Some((at, _)) = self.runs.take(room as u32, room as u32) {
            return Ok(at);
        }
        let at = self.entries.len();
        if at + room > 1 << PLACE_BITS {
            return Err(AllocationFailed { bytes: (at + room) * size_of::<EdgeEntry<T>>() });
        }
        if self.entries.capacity() - at < room {
            // Growth is small: doubling would leave half of a large graph empty.
            reserve_exact(&mut self.entries, room.max(at / 32).max(1024))?;
        }
        self.entries.resize(at + room, EdgeEntry::default());
        Ok(at as u32)
    }

    /// Frees a block.
    fn release(&mut self, ListLocation { class, at, end, .. }: ListLocation) {
        if class >= CLASS_LARGE {
            self.runs.give(at as u32, (end - at) as u32);
        } else if class > 0
            // A block that cannot be remembered, for lack of memory, is not used again.
            && let Some(free) = self.free.get_mut(usize::from(class))
            && reserve(free, 1).is_ok()
        {
            free.push(at as u32);
        }
    }

    /// The same arena with other times. `lists` are all lists in it.
    pub(crate) fn restamp<S: Stamp>(
        self,
        lists: &[ListHandle],
        change: impl Fn(T) -> S,
    ) -> ListArena<S> {
        // The header's length is not a time.
        let long = lists.iter().copied().filter(|list| list.is_large());
        let long: Vec<(ListHandle, ListLocation)> =
            long.map(|list| (list, self.place(list))).collect();
        let entries = self.entries.into_iter().map(|EdgeEntry { time, other, seq }| EdgeEntry {
            time: change(time),
            other,
            seq,
        });
        let mut arena =
            ListArena { entries: entries.collect(), free: self.free, runs: self.runs, stuck: 0 };
        for (mut list, place) in long {
            arena.set_len(&mut list, place, place.len);
        }
        arena
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<EdgeEntry<T>>()
            + self.free.iter().map(|free| free.capacity() * size_of::<u32>()).sum::<usize>()
            + self.runs.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        CLASS_LARGE, EdgeEntry, ListArena, ListHandle, SMALL_MAX, capacity, large_capacity,
    };
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
            let mut arena = ListArena::<u32>::default();
            let mut list = ListHandle::default();
            let entry = |seq| EdgeEntry { time: seq, other: 7, seq };
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
        let mut arena = ListArena::<u32>::default();
        let mut lists = [ListHandle::default(); 200];
        let mut oldest = [0; 200];
        let (mut seq, mut live_max) = (0, 0);
        for round in 0..12 {
            for (at, list) in lists.iter_mut().enumerate() {
                // Each list has busy and quiet days of its own, with up to some thousands of edges.
                let wanted = (at * 37 + round * 911) % (10 + at * 20);
                while arena.get(*list).len() < wanted {
                    arena.insert(list, EdgeEntry { time: seq, other: 7, seq }).unwrap();
                    seq += 1;
                }
                while arena.get(*list).len() > wanted {
                    let EdgeEntry { time, seq, .. } = arena.get(*list)[0];
                    assert!(arena.remove(list, time, seq) && seq >= oldest[at]);
                    oldest[at] = seq;
                }
            }
            live_max = lists.iter().map(|list| arena.get(*list).len()).sum::<usize>().max(live_max);
        }
        assert!(
            arena.entries.len() * 2 < live_max * 3,
            "{} entries for {live_max}",
            arena.entries.len()
        );
    }

    proptest! {
        /// Adjacent lists retain their entries, sorted, through any changes.
        #[test]
        fn lists_equal_sorted_vectors(steps in prop::collection::vec((0..4usize, 0..50u32, any::<bool>()), 1..400)) {
            let mut arena = ListArena::<u32>::default();
            let mut lists = [ListHandle::default(); 4];
            let mut models: [Vec<(u32, u32)>; 4] = Default::default();
            for (seq, (which, time, is_removal)) in (0u32..).zip(steps) {
                let (list, model) = (&mut lists[which], &mut models[which]);
                if is_removal && !model.is_empty() {
                    let (time, seq) = model.remove(time as usize % model.len());
                    prop_assert!(arena.remove(list, time, seq));
                    prop_assert!(!arena.remove(list, time, seq));
                } else {
                    arena.insert(list, EdgeEntry { time, other: 7, seq }).unwrap();
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
