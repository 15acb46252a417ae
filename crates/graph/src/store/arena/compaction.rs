//! Compaction: lists at the end of an arena move forward into free blocks, so that memory can be
//! freed.
//!
//! The shortest lists, which are many, move to free blocks of their class, or of a longer one. For
//! all other lists there may be no free block, so they move together to the new end. If the free
//! blocks of some class are too few, all lists at the end move together.

use super::{
    CAPACITIES, CLASS_LARGE, CLASS_MARKED, FIRST_FORMS, FORMS, ListArena, ListHandle, PLACE_BITS,
    capacity, copy,
};
use crate::edge::Stamp;
use crate::memory::{AllocationFailed, reserve};

/// Compaction starts when one entry in this many is free.
const FREE_MOST: usize = 12;
/// One free entry in this many remains after a compaction.
const FREE_RETAINED: usize = 4;
/// With fewer free entries, a scan of all lists is not worth its time.
const SHRUNK_MIN: usize = if cfg!(debug_assertions) { 16 } else { 1024 };
/// The lists of free blocks retain this factor of their length as capacity.
const REMEMBERED: usize = 2;

/// Counts of blocks by class of short lists.
type BlocksByClass = [usize; CLASS_LARGE as usize];

/// The number of entries in a block, by form of the shortest lists; 0 for other forms. A table,
/// because a branch on the class could not be predicted.
const ROOMS: [u32; FORMS.len()] = {
    let (mut rooms, mut form) = ([0; FORMS.len()], 0);
    while form < FORMS.len() && FORMS[form].0 < CLASS_MARKED {
        rooms[form] = CAPACITIES[FORMS[form].0 as usize] as u32;
        form += 1;
    }
    rooms
};

impl ListHandle {
    /// Whether it is one of the shortest lists.
    fn is_short(self) -> bool {
        // The form determines the length.
        self.number_of_form() < usize::from(FIRST_FORMS[usize::from(CLASS_MARKED)])
    }

    fn number_of_form(self) -> usize {
        (self.packed >> PLACE_BITS) as usize
    }

    /// Whether the block ends after a position or, for a longer list, begins after it.
    fn ends_behind(self, place: u32) -> bool {
        self.at() + ROOMS[self.number_of_form()] > place
    }

    /// The same list at another position.
    fn moved(self, at: usize) -> ListHandle {
        ListHandle { packed: self.packed >> PLACE_BITS << PLACE_BITS | at as u32 }
    }
}

impl<T: Stamp> ListArena<T> {
    /// The number of entries in free blocks and runs.
    fn free_room(&self) -> usize {
        let short = self.free.iter().zip(CAPACITIES).map(|(free, room)| free.len() * room);
        short.sum::<usize>() + self.runs.room()
    }

    /// Whether more than a quarter of the arena is free, and enough for a copy to pay off.
    pub(crate) fn is_sparse(&self) -> bool {
        let free = self.free_room();
        free >= SHRUNK_MIN / 4 && free * 4 > self.entries.len()
    }

    /// Frees memory if much of it is unused. `lists` are all lists of the arena.
    pub(crate) fn shrink(&mut self, lists: &mut [ListHandle]) {
        let free = self.free_room();
        if free < SHRUNK_MIN || free * FREE_MOST < self.entries.len() || free < self.stuck {
            return;
        }
        let target = self.entries.len() - (free - free / FREE_RETAINED);
        let is_done = match self.shrink_to(lists, target, |list| !list.is_short()) {
            Ok(false) => self.shrink_to(lists, target, |list| !list.is_empty()),
            done => done,
        };
        // After a failure, the next attempt waits until more entries are free.
        self.stuck = if is_done == Ok(true) { 0 } else { free + free / FREE_MOST };
    }

    /// Shortens the arena to `target` entries or fewer. False if the free blocks are too few for
    /// the lists that do not move together.
    fn shrink_to(
        &mut self,
        lists: &mut [ListHandle],
        target: usize,
        is_together: impl Fn(ListHandle) -> bool,
    ) -> Result<bool, AllocationFailed> {
        let (start, together) = self.end_of(lists, target, &is_together)?;
        let behind = start as u32;
        let mut forms = [0; FORMS.len()];
        for list in lists.iter() {
            let is_moved = list.ends_behind(behind) & !is_together(*list);
            forms[list.number_of_form()] += usize::from(is_moved);
        }
        let mut wanted = BlocksByClass::default();
        for (count, (class, _)) in forms.into_iter().zip(FORMS) {
            if (1..CLASS_MARKED).contains(&class) {
                wanted[usize::from(class)] += count;
            }
        }
        let Some(mut spare) = self.spare(&wanted, start) else { return Ok(false) };
        self.drop_free(start);
        for list in lists.iter_mut().filter(|list| list.ends_behind(behind)) {
            if list.is_empty() || is_together(*list) {
                continue;
            }
            let (class, at) = (usize::from(list.class()), list.at() as usize);
            let room = CAPACITIES[class];
            // `spare` has counted the blocks, so one is free.
            let Some(to) = self.block_for(class, &mut spare) else {
                return Ok(false);
            };
            copy(&mut self.entries, at, to, room);
            *list = list.moved(to);
            if at < start {
                self.runs.give(at as u32, (start - at) as u32);
            }
        }
        let mut end = start;
        for number in together {
            let list = &mut lists[number as usize];
            let (at, room) = (list.at() as usize, self.room_of(*list));
            self.entries.copy_within(at..at + room, end);
            *list = list.moved(end);
            end += room;
        }
        self.entries.truncate(end);
        self.entries.shrink_to_fit();
        for free in &mut self.free {
            free.shrink_to(REMEMBERED * free.len());
        }
        Ok(true)
    }

    /// The length of a list's block.
    fn room_of(&self, list: ListHandle) -> usize {
        let header = self.entries.get(list.at() as usize).filter(|_| list.is_large());
        header.map_or(capacity(list.class()), |header| header.other as usize)
    }

    /// The position where the lists that move together begin, if they end at `target`, and their
    /// numbers in order of position. All of them end after that position.
    fn end_of(
        &self,
        lists: &[ListHandle],
        target: usize,
        is_together: impl Fn(ListHandle) -> bool,
    ) -> Result<(usize, Vec<u32>), AllocationFailed> {
        let mut together = Vec::new();
        for (number, _) in (0..).zip(lists).filter(|(_, list)| is_together(**list)) {
            reserve(&mut together, 1)?;
            together.push(number);
        }
        together.sort_unstable_by_key(|&number: &u32| lists[number as usize].at());
        let (mut start, mut first) = (target, together.len());
        while let Some(&number) = first.checked_sub(1).and_then(|last| together.get(last)) {
            let list = lists[number as usize];
            let (at, room) = (list.at() as usize, self.room_of(list));
            if at + room <= start {
                break;
            }
            // A list that begins before `target` need not move.
            start = at.min(start.saturating_sub(room));
            first -= 1;
        }
        together.drain(..first);
        Ok((start, together))
    }

    /// The free blocks before `end` that remain if `wanted` blocks of each class are taken; classes
    /// with too few take longer blocks. Class 0 counts blocks cut from free runs. None: too few
    /// blocks are free.
    fn spare(&self, wanted: &BlocksByClass, end: usize) -> Option<BlocksByClass> {
        let mut spare = BlocksByClass::default();
        for (class, free) in self.free.iter().enumerate().skip(1) {
            let is_before = |&&at: &&u32| at as usize + CAPACITIES[class] <= end;
            spare[class] = free.iter().filter(is_before).count();
        }
        let longest = CAPACITIES.iter().copied().max().unwrap_or(1);
        spare[0] = self.runs.before(end as u32).map(|room| room as usize / longest).sum();
        let mut left = spare[0];
        for class in (1..spare.len()).rev() {
            left = (left + spare[class]).checked_sub(wanted[class])?;
            spare[class] = spare[class].saturating_sub(wanted[class]);
        }
        Some(spare)
    }

    /// Drops free blocks after `end`.
    fn drop_free(&mut self, end: usize) {
        self.runs.cut(end as u32);
        for class in 1..self.free.len() {
            let room = CAPACITIES[class];
            let ListArena { free, runs, .. } = self;
            free[class].retain(|&at| {
                let at = at as usize;
                if at < end && end < at + room {
                    runs.give(at as u32, (end - at) as u32);
                }
                at + room <= end
            });
        }
    }

    /// A free block of a class, else of the next longer class with a spare one, else cut from a
    /// free run.
    fn block_for(&mut self, class: usize, spare: &mut BlocksByClass) -> Option<usize> {
        if let Some(at) = self.free[class].pop() {
            return Some(at as usize);
        }
        let room = CAPACITIES[class] as u32;
        let longer = (class + 1..self.free.len()).find(|&longer| spare[longer] > 0);
        let Some(longer) = longer else {
            return self.runs.take(room, room).map(|(at, _)| at as usize);
        };
        let at = self.free[longer].pop()?;
        spare[longer] -= 1;
        self.runs.give(at + room, CAPACITIES[longer] as u32 - room);
        Some(at as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{EdgeEntry, ListArena, ListHandle};
    use super::FREE_RETAINED;
    use proptest::prelude::*;

    proptest! {
        /// Lists of all lengths retain their entries through many compactions.
        #[test]
        fn lists_are_what_they_were(
            steps in prop::collection::vec((0..60usize, 0..7u8, any::<bool>()), 1..1500),
        ) {
            let mut arena = ListArena::<u32>::default();
            let mut lists = [ListHandle::default(); 60];
            let mut models: Vec<Vec<(u32, u32)>> = vec![Vec::new(); 60];
            for (seq, (which, kind, is_even)) in (0u32..).zip(steps) {
                // Some lists are long.
                let which = if which % 3 == 0 && is_even { which % 6 } else { which };
                let (list, model) = (&mut lists[which], &mut models[which]);
                match kind {
                    0 => while let Some((time, seq)) = model.pop() {
                        prop_assert!(arena.remove(list, time, seq));
                    },
                    1 | 2 if !model.is_empty() => {
                        let (time, seq) = model.remove(0);
                        prop_assert!(arena.remove(list, time, seq));
                    }
                    _ => {
                        arena.insert(list, EdgeEntry { time: seq, other: 7, seq }).unwrap();
                        model.push((seq, seq));
                    }
                }
                if seq % 8 == 0 {
                    arena.shrink(&mut lists);
                }
                for (list, model) in lists.iter().zip(&models) {
                    let seen = arena.get(*list).iter().map(|one| (one.time, one.seq));
                    prop_assert!(seen.eq(model.iter().copied()));
                }
            }
        }
    }

    #[test]
    fn what_many_lists_leave_goes_back() {
        for length in [1, 2, 4, 7, 40, 300] {
            let mut arena = ListArena::<u32>::default();
            let mut lists = vec![ListHandle::default(); 4000];
            for seq in 0..length {
                for list in &mut lists {
                    arena.insert(list, EdgeEntry { time: seq, other: 7, seq }).unwrap();
                }
            }
            let full = arena.bytes();
            for list in lists.iter_mut().enumerate().filter(|(at, _)| at % 4 != 1).map(|one| one.1)
            {
                (0..length).for_each(|seq| assert!(arena.remove(list, seq, seq)));
            }
            let before = arena.free_room();
            arena.shrink(&mut lists);
            let free = arena.free_room();
            assert!(
                free * FREE_RETAINED < before + 64,
                "lists of {length}: {free} free, {before} before"
            );
            assert!(arena.bytes() * 9 < full * 5, "lists of {length}: {} of {full}", arena.bytes());
            let whole = lists.iter().filter(|list| arena.get(**list).len() == length as usize);
            assert_eq!(whole.count(), 1000);
        }
    }
}
