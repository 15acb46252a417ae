//! Free runs of entries in an arena; adjacent ones are merged.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(crate) struct FreeRuns {
    /// Length by start.
    by_start: BTreeMap<u32, u32>,
    /// Length, then start.
    by_length: BTreeSet<(u32, u32)>,
    /// The sum of all lengths.
    room: usize,
}

impl FreeRuns {
    /// Takes between `least` and `most` entries from the shortest run that is long enough. Returns
    /// start and length.
    pub(crate) fn take(&mut self, least: u32, most: u32) -> Option<(u32, u32)> {
        let &(length, start) = self.by_length.range((least, 0)..).next()?;
        self.remove(start, length);
        let taken = length.min(most);
        if taken < length {
            self.insert(start + taken, length - taken);
        }
        Some((start, taken))
    }

    /// Adds a free run.
    pub(crate) fn give(&mut self, start: u32, length: u32) {
        let (mut from, mut to) = (start, start + length);
        let before = self.by_start.range(..from).next_back().map(|(&at, &length)| (at, length));
        if let Some((at, length)) = before.filter(|(at, length)| at + length == from) {
            self.remove(at, length);
            from = at;
        }
        if let Some(&length) = self.by_start.get(&to) {
            self.remove(to, length);
            to += length;
        }
        self.insert(from, to - from);
    }

    /// The sum of all lengths.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// The length of each run before `end`.
    pub(crate) fn before(&self, end: u32) -> impl Iterator<Item = u32> {
        self.by_start.range(..end).map(move |(&start, &length)| length.min(end - start))
    }

    /// Drops all free runs, and parts of runs, from `end` on.
    pub(crate) fn cut(&mut self, end: u32) {
        while let Some((&start, &length)) = self.by_start.last_key_value()
            && start + length > end
        {
            self.remove(start, length);
            if start < end {
                self.insert(start, end - start);
            }
        }
    }

    fn insert(&mut self, start: u32, length: u32) {
        self.room += length as usize;
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn remove(&mut self, start: u32, length: u32) {
        self.room -= length as usize;
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }

    pub(crate) fn bytes(&self) -> usize {
        // Tree nodes are half empty.
        4 * self.by_start.len() * size_of::<(u32, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::FreeRuns;

    #[test]
    fn neighbours_are_one_and_the_shortest_that_fits_is_cut() {
        let mut runs = FreeRuns::default();
        for (start, length) in [(0, 10), (20, 5), (30, 40), (10, 10)] {
            runs.give(start, length);
        }
        assert_eq!(runs.by_start.iter().collect::<Vec<_>>(), [(&0, &25), (&30, &40)]);
        assert_eq!(runs.take(3, 8), Some((0, 8)));
        assert_eq!(runs.take(26, 26), Some((30, 26)));
        assert_eq!(runs.take(18, 18), None);
        assert_eq!(runs.take(10, 100), Some((56, 14)));
        runs.give(0, 8);
        assert_eq!(runs.take(25, 25), Some((0, 25)));
        assert_eq!((runs.take(1, 1), runs.by_length.len()), (None, 0));
    }
}
