//! Many short lists of entries in one allocation.
//!
//! An account of a bank's stream has a handful of edges; a `Vec` for each direction would cost
//! more than they do. Blocks come in sizes with a factor of at most 1.5 between them; a freed
//! block waits for the next list of its size.

use super::stamp::Stamp;

/// One edge as one of its ends sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry<T> {
    pub time: T,
    /// The account at the other end.
    pub other: u32,
    /// The edge's number of arrival, modulo 2^32.
    pub seq: u32,
}

/// Where a list lies. Its live entries are `start..start + len` of its block, in order of time,
/// and of arrival within an instant.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct List {
    at: u32,
    start: u32,
    len: u32,
    /// Index of the block's size; no block where `len` and `start` are 0 and this is 0.
    class: u8,
}

impl List {
    pub(crate) fn len(self) -> usize {
        self.len as usize
    }

    pub(crate) fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// Sizes 0, 1, 2, 3, 4, 6, 8, 12, ... entries.
fn capacity(class: u8) -> usize {
    match class {
        0..=3 => usize::from(class),
        _ => (2 + usize::from(class & 1)) << (class / 2 - 1),
    }
}

#[derive(Debug, Default)]
pub(crate) struct Arena<T> {
    entries: Vec<Entry<T>>,
    free: Vec<Vec<u32>>,
}

impl<T: Stamp> Arena<T> {
    pub(crate) fn get(&self, list: List) -> &[Entry<T>] {
        let start = list.at as usize + list.start as usize;
        self.entries.get(start..start + list.len()).unwrap_or_default()
    }

    fn block(&mut self, list: List) -> &mut [Entry<T>] {
        let at = list.at as usize;
        self.entries.get_mut(at..at + capacity(list.class)).unwrap_or_default()
    }

    /// Adds an entry behind all that are not younger.
    pub(crate) fn insert(&mut self, list: &mut List, entry: Entry<T>) {
        self.make_room(list);
        let (start, len) = (list.start as usize, list.len());
        let block = self.block(*list);
        let live = &mut block[start..=start + len];
        let at = match live[..len].last() {
            Some(last) if last.time > entry.time => {
                live[..len].partition_point(|one| one.time <= entry.time)
            }
            _ => len,
        };
        live.copy_within(at..len, at + 1);
        live[at] = entry;
        list.len += 1;
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
        let at = first + at;
        let (start, len) = (list.start as usize, list.len());
        let block = self.block(*list);
        block.copy_within(start..start + at, start + 1);
        list.start += 1;
        list.len -= 1;
        if len == 1 {
            self.release(*list);
            *list = List::default();
        } else if capacity(list.class) >= 6 && len - 1 <= capacity(list.class) / 4 {
            self.relocate(list);
        }
        true
    }

    /// Sees to it that one more entry fits behind the last.
    fn make_room(&mut self, list: &mut List) {
        let (start, len, room) = (list.start as usize, list.len(), capacity(list.class));
        if start + len < room {
            return;
        }
        // Sliding costs `len` once in `start` insertions.
        if start > 0 && start * 4 >= room {
            self.block(*list).copy_within(start..start + len, 0);
            list.start = 0;
        } else {
            self.relocate(list);
        }
    }

    /// Moves a list to the smallest block that holds it and one entry more.
    fn relocate(&mut self, list: &mut List) {
        let old = *list;
        let mut class = 1;
        while capacity(class) <= old.len() {
            class += 1;
        }
        let at = self.allocate(class);
        let from = old.at as usize + old.start as usize;
        self.entries.copy_within(from..from + old.len(), at as usize);
        *list = List { at, start: 0, len: old.len, class };
        self.release(old);
    }

    fn allocate(&mut self, class: u8) -> u32 {
        if let Some(at) = self.free.get_mut(usize::from(class)).and_then(Vec::pop) {
            return at;
        }
        let (at, room) = (self.entries.len(), capacity(class));
        if self.entries.capacity() - at < room {
            // An eighth at a time: doubling would leave half of a large graph empty.
            self.entries.reserve_exact(room.max(at / 8).max(1024));
        }
        self.entries.resize(at + room, Entry::default());
        debug_assert!(u32::try_from(at).is_ok(), "Dynamic limits the number of edges");
        at as u32
    }

    fn release(&mut self, list: List) {
        if list.class == 0 {
            return;
        }
        let class = usize::from(list.class);
        if self.free.len() <= class {
            self.free.resize(class + 1, Vec::new());
        }
        if let Some(free) = self.free.get_mut(class) {
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
    fn sizes_grow_by_half_at_most() {
        let sizes: Vec<_> = (0..12).map(capacity).collect();
        assert_eq!(sizes, [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]);
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
                    arena.insert(list, Entry { time, other: 7, seq });
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
