//! Many short lists of entries in one allocation.
//!
//! An account of a bank's stream has a handful of edges; a `Vec` for each direction would cost
//! more than they do. Blocks of short lists come in a few sizes; a freed one waits for the next
//! list of its size. Long lists have blocks that fit, cut out of what other long ones left.

mod compaction;
mod free_runs;
use crate::edge::{Entry, NO_ACCOUNT};

use crate::edge::Stamp;
use crate::memory::{OutOfMemory, reserve, reserve_exact};
use free_runs::FreeRuns;

/// Where a list lies: in the arena, in order of time, and of arrival within an instant.
///
/// Four bytes: accounts with one edge are many, and so are those with none on one side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ListHandle {
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
/// Entries of a block of the class before.
const SMALL_MAX: usize = 16;
/// Where a long list is moved, so many times fewer entries than it has may come before it is moved
/// again: each that comes pays for so many.
const SPARE: usize = 16;
/// The lengths of long blocks are multiples.
const GRAIN: usize = 8;
/// Blocks of one class that are cut at once.
const CUT: u32 = 32;

impl ListHandle {
    /// A list in a block; classes that do not tell the length leave it to the arena.
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

/// Entries of a block of each class of short lists.
const CAPACITIES: [usize; 1 + CLASS_LARGE as usize] = [0, 1, 2, 3, 4, 6, 8, 12, SMALL_MAX, 0];

fn capacity(class: u8) -> usize {
    CAPACITIES[usize::from(class)]
}

/// The class of the smallest block for so many entries.
const CLASSES: [u8; SMALL_MAX + 1] = [1, 1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 7, 7, 8, 8, 8, 8];

fn class_for(len: usize) -> u8 {
    CLASSES.get(len).copied().unwrap_or(CLASS_LARGE)
}

/// What a list's header, and where it does not tell the block, say.
#[derive(Clone, Copy, Debug)]
struct ListLocation {
    class: u8,
    /// Where the block begins, and the first live entry.
    at: usize,
    start: usize,
    /// Live entries.
    len: usize,
    /// The end of the block.
    end: usize,
}

/// Entries of the block for a long list, the first one among them.
fn large_capacity(len: usize) -> usize {
    (len + len / SPARE + 2).next_multiple_of(GRAIN)
}

/// Entries of a list that tells its length, at most. They are copied sooner than it takes to call
/// for it.
const FEW: usize = 4;

/// Copies entries to where others were.
fn copy<T: Copy>(entries: &mut [Entry<T>], from: usize, to: usize, len: usize) {
    if len > FEW {
        entries.copy_within(from..from + len, to);
        return;
    }
    for at in 0..len {
        entries[to + at] = entries[from + at];
    }
}

/// Has those behind an entry take its place.
fn shift<T: Copy>(entries: &mut [Entry<T>], at: usize) {
    if entries.len() > FEW {
        entries.copy_within(at + 1.., at);
        return;
    }
    for at in at + 1..entries.len() {
        entries[at - 1] = entries[at];
    }
}

/// Where the entry of one edge is. Most are asked for when they are the oldest.
fn position<T: Stamp>(live: &[Entry<T>], time: T, seq: u32) -> Option<usize> {
    if live.first()?.seq == seq {
        return Some(0);
    }
    let first = live.partition_point(|one| one.time < time);
    let mut same = live[first..].iter().take_while(|one| one.time == time);
    same.position(|one| one.seq == seq).map(|at| first + at)
}

#[derive(Debug, Default)]
pub(crate) struct Arena<T> {
    entries: Vec<Entry<T>>,
    /// Free blocks of the short lists' classes.
    free: [Vec<u32>; CLASS_LARGE as usize],
    /// What long lists left.
    runs: FreeRuns,
    /// With fewer free entries than these it cannot shrink.
    stuck: usize,
}

impl<T: Stamp> Arena<T> {
    pub(crate) fn get(&self, list: ListHandle) -> &[Entry<T>] {
        let ListLocation { start, len, .. } = self.place(list);
        self.entries.get(start..start + len).unwrap_or_default()
    }

    fn get_mut(&mut self, list: ListHandle) -> &mut [Entry<T>] {
        let ListLocation { start, len, .. } = self.place(list);
        self.entries.get_mut(start..start + len).unwrap_or_default()
    }

    /// The entries of a list that has few and tells how many, with others behind them.
    pub(crate) fn few(&self, list: ListHandle) -> Option<(&[Entry<T>; FEW], usize)> {
        let (class, len) = list.form();
        let some = self.entries.get(list.at() as usize..)?.first_chunk()?;
        (class < CLASS_MARKED).then_some((some, usize::from(len)))
    }

    /// Where a list lies.
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

    /// Says how many entries a list has that lies there: not 0.
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

    /// Reads where the list's block begins.
    pub(crate) fn touch_block(&self, list: ListHandle) -> u32 {
        self.entries.get(list.at() as usize).map_or(0, |one| one.seq)
    }

    /// Reads where a list's newest entry lies, or near: without a branch, which nobody could guess.
    pub(crate) fn newest(&self, list: ListHandle) -> u32 {
        let at = list.at() as usize;
        let header = self.entries.get(at).copied().unwrap_or_default();
        // Of a short list this is no length.
        let long = (header.seq as usize).wrapping_add(header.time.offset() as usize);
        let room = capacity(list.class()).saturating_sub(1);
        let last = if list.is_large() { long } else { room };
        self.entries.get(at + last).map_or(0, |one| one.seq)
    }

    /// The same for its oldest entry; of a short list, which moves when that goes, for its other end.
    pub(crate) fn oldest(&self, list: ListHandle) -> u32 {
        let at = list.at() as usize;
        let dead = self.entries.get(at).map_or(0, |header| header.seq as usize);
        let room = capacity(list.class()).saturating_sub(1);
        let other = if list.is_large() { dead + 1 } else { room };
        self.entries.get(at + other).map_or(0, |one| one.seq)
    }

    /// The first entry of a list.
    fn first(&self, list: ListHandle) -> Option<&Entry<T>> {
        let at = list.at() as usize;
        if list.is_large() {
            let dead = self.entries.get(at)?.seq as usize;
            return self.entries.get(at + 1 + dead);
        }
        self.entries.get(at).filter(|_| !list.is_empty())
    }

    /// The entry of one edge. With `head`, entries are in order of arrival, none older than that.
    pub(crate) fn find(&self, list: ListHandle, seq: u32, head: Option<u32>) -> Option<Entry<T>> {
        let is_it = |one: &&Entry<T>| one.seq == seq;
        // Edges leave at the old end, or, if they are taken back, at the new one.
        if let Some(oldest) = self.first(list).filter(is_it) {
            return Some(*oldest);
        }
        let all = self.get(list);
        let at_end = all.last().filter(is_it);
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
    pub(crate) fn insert(
        &mut self,
        list: &mut ListHandle,
        entry: Entry<T>,
    ) -> Result<(), OutOfMemory> {
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
        // Too large for what is left: there are as many of the shortest as of all others.
        let is_wide = end - block <= FEW || left * 2 <= end - block;
        if is_large {
            live.copy_within(..at, 1);
            self.entries[block].seq += 1;
        } else {
            shift(live, at);
        }
        self.set_len(list, place, left);
        if is_wide {
            // Where there is no memory it stays in a block that is too large.
            let start = start + usize::from(is_large);
            _ = self.relocate(list, ListLocation { start, len: left, ..place }, left);
        }
        true
    }

    /// Says who is at the other end of one edge now.
    pub(crate) fn rename(&mut self, list: ListHandle, time: T, seq: u32, other: u32) {
        let live = self.get_mut(list);
        if let Some(at) = position(live, time, seq) {
            live[at].other = other;
        }
    }

    /// The same of all edges of a list.
    pub(crate) fn rename_all(&mut self, list: ListHandle, other: u32) {
        self.get_mut(list).iter_mut().for_each(|one| one.other = other);
    }

    /// Makes a list longer by an entry that is yet to be written behind the last; where it begins,
    /// and how many there were.
    fn make_room(&mut self, list: &mut ListHandle) -> Result<(usize, usize), OutOfMemory> {
        let place = self.place(*list);
        let ListLocation { class, at, start, len, end } = place;
        if start + len < end {
            self.set_len(list, place, len + 1);
            return Ok((start, len));
        }
        // Sliding back costs `len` once in as many insertions as there were dead entries. A list that
        // keeps its length comes here with one in `SPARE` dead.
        if class >= CLASS_LARGE && (start - at - 1) * (SPARE + SPARE / 2) >= end - at {
            self.entries.copy_within(start..start + len, at + 1);
            self.entries[at].seq = 0;
            self.set_len(list, place, len + 1);
            return Ok((at + 1, len));
        }
        Ok((self.relocate(list, place, len + 1)?, len))
    }

    /// Moves a list to the smallest block for so many entries, of which the last may be yet to be
    /// written; a long one has room for some more. Where they begin.
    fn relocate(
        &mut self,
        list: &mut ListHandle,
        from: ListLocation,
        new_len: usize,
    ) -> Result<usize, OutOfMemory> {
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

    /// Makes a block ready for so many entries, which are yet to be written.
    fn prepare(&mut self, at: u32, class: u8, room: usize, len: usize) -> ListLocation {
        let at = at as usize;
        let (start, end) = (at + usize::from(class >= CLASS_LARGE), at + room);
        if class >= CLASS_LARGE {
            let time = T::from_offset(len as u64);
            self.entries[at] = Entry { time, other: room as u32, seq: 0 };
        } else if class >= CLASS_MARKED {
            let unused = Entry { other: NO_ACCOUNT, ..Entry::default() };
            self.entries[start + len..end].fill(unused);
        }
        ListLocation { class, at, start, len, end }
    }

    fn allocate_small(&mut self, class: u8) -> Result<u32, OutOfMemory> {
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

    /// Makes room for lists of so many entries, and for what their blocks are larger.
    pub(crate) fn reserve(&mut self, entries: usize) -> Result<(), OutOfMemory> {
        reserve_exact(&mut self.entries, entries + entries / 16)
    }

    /// A list of these entries, with others at the other ends, in the smallest block that holds them.
    pub(crate) fn append(
        &mut self,
        entries: &[Entry<T>],
        other: impl Fn(u32) -> u32,
    ) -> Result<ListHandle, OutOfMemory> {
        let len = entries.len();
        if len == 0 {
            return Ok(ListHandle::default());
        }
        let class = class_for(len);
        let room = if class < CLASS_LARGE { capacity(class) } else { large_capacity(len) };
        let at = self.allocate(room)?;
        let start = self.prepare(at, class, room, len).start;
        for (to, one) in self.entries[start..start + len].iter_mut().zip(entries) {
            *to = Entry { other: other(one.other), ..*one };
        }
        Ok(ListHandle::new(at, class, len))
    }

    /// Room for so many entries.
    fn allocate(&mut self, room: usize) -> Result<u32, OutOfMemory> {
        if let Some((at, _)) = self.runs.take(room as u32, room as u32) {
            return Ok(at);
        }
        let at = self.entries.len();
        if at + room > 1 << PLACE_BITS {
            return Err(OutOfMemory { bytes: (at + room) * size_of::<Entry<T>>() });
        }
        if self.entries.capacity() - at < room {
            // A little at a time: doubling would leave half of a large graph empty.
            reserve_exact(&mut self.entries, room.max(at / 32).max(1024))?;
        }
        self.entries.resize(at + room, Entry::default());
        Ok(at as u32)
    }

    /// Has the block be used again.
    fn release(&mut self, ListLocation { class, at, end, .. }: ListLocation) {
        if class >= CLASS_LARGE {
            self.runs.give(at as u32, (end - at) as u32);
        } else if class > 0
            // Where there is no memory to remember it, the block is not used again.
            && let Some(free) = self.free.get_mut(usize::from(class))
            && reserve(free, 1).is_ok()
        {
            free.push(at as u32);
        }
    }

    /// Every list's entries with `change` made to their times.
    pub(crate) fn restamp<S: Stamp>(
        self,
        lists: &[ListHandle],
        change: impl Fn(T) -> S,
    ) -> Arena<S> {
        // A long list's length is no time.
        let long = lists.iter().copied().filter(|list| list.is_large());
        let long: Vec<(ListHandle, ListLocation)> =
            long.map(|list| (list, self.place(list))).collect();
        let entries = self.entries.into_iter().map(|Entry { time, other, seq }| Entry {
            time: change(time),
            other,
            seq,
        });
        let mut arena =
            Arena { entries: entries.collect(), free: self.free, runs: self.runs, stuck: 0 };
        for (mut list, place) in long {
            arena.set_len(&mut list, place, place.len);
        }
        arena
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry<T>>()
            + self.free.iter().map(|free| free.capacity() * size_of::<u32>()).sum::<usize>()
            + self.runs.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::{Arena, CLASS_LARGE, Entry, ListHandle, SMALL_MAX, capacity, large_capacity};
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
            let mut list = ListHandle::default();
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
        let mut lists = [ListHandle::default(); 200];
        let mut oldest = [0; 200];
        let (mut seq, mut live_max) = (0, 0);
        for round in 0..12 {
            for (at, list) in lists.iter_mut().enumerate() {
                // Each has its own busy and quiet days, up to some thousands of edges.
                let wanted = (at * 37 + round * 911) % (10 + at * 20);
                while arena.get(*list).len() < wanted {
                    arena.insert(list, Entry { time: seq, other: 7, seq }).unwrap();
                    seq += 1;
                }
                while arena.get(*list).len() > wanted {
                    let Entry { time, seq, .. } = arena.get(*list)[0];
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
        /// Lists beside each other keep their entries, sorted, whatever comes and goes.
        #[test]
        fn lists_equal_sorted_vectors(steps in prop::collection::vec((0..4usize, 0..50u32, any::<bool>()), 1..400)) {
            let mut arena = Arena::<u32>::default();
            let mut lists = [ListHandle::default(); 4];
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
