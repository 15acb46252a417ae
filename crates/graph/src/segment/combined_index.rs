//! The indexes of a graph's segments side by side, in this process's memory. One lookup finds the
//! segments in which an account has rows, and the rows.
//!
//! Each segment has a place in every block of 64 accounts. The places form a ring, so the addition
//! or removal of a segment moves no others. The index also holds the total number of entries of
//! each account, with which a count begins.

use super::index::part_of;
use super::rows::ListKind;
use crate::edge::Side;
use crate::segment::Segment;

/// Segments that one lookup covers at once: one for each bit.
pub(crate) const TOGETHER: usize = 64;

/// The index grows by one place for this many existing ones.
const GROWTH: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct CombinedIndex {
    /// By side, for each 64 accounts: one word for each place, whose bits mark accounts with a row.
    /// Then the first of these rows, two places to a word.
    sides: [Vec<u64>; 2],
    /// The number of places.
    room: usize,
    /// The place of the first segment.
    head: usize,
    /// The number of segments.
    count: usize,
    /// The entries of each account by side, in segments whose lists are in mapped memory.
    totals: Vec<[u32; 2]>,
    /// The number of segments whose lists are not in mapped memory.
    far: usize,
}

/// The words for 64 accounts.
fn stride(room: usize) -> usize {
    room + room.div_ceil(2)
}

/// The place of a segment.
#[inline]
fn place(at: usize, head: usize, room: usize) -> usize {
    let place = head + at;
    if place >= room { place - room } else { place }
}

impl CombinedIndex {
    /// Adds a segment after the others.
    pub(crate) fn push(&mut self, segment: &Segment) {
        if self.count == self.room {
            self.grow();
        }
        let (stride, place) = (stride(self.room), place(self.count, self.head, self.room));
        let blocks = segment.blocks();
        for words in &mut self.sides {
            let length = blocks.len() * stride;
            if words.len() < length {
                // Growth is small, because accounts arrive gradually.
                words.reserve_exact((length - words.len()).max(words.len() / 32));
                words.resize(length, 0);
            }
        }
        let (half, shift) = (self.room + place / 2, place % 2 * 32);
        let keeps = !(u64::from(u32::MAX) << shift);
        for (side, words) in [Side::Out, Side::In].into_iter().zip(&mut self.sides) {
            let mut blocks = blocks.iter();
            for own in words.chunks_exact_mut(stride) {
                // Accounts after the segment's last have no rows in it.
                let block = blocks.next();
                let (has, first) = block.map_or((0, 0), |block| part_of(block, side.into()));
                own[place] = has;
                own[half] = (own[half] & keeps) | ((first as u64) << shift);
            }
        }
        self.count += 1;
        if self.totals.len() < blocks.len() * 64 {
            let more = blocks.len() * 64 - self.totals.len();
            self.totals.reserve_exact(more.max(self.totals.len() / 32));
            self.totals.resize(blocks.len() * 64, [0; 2]);
        }
        let is_far = !self.change(segment, u32::wrapping_add);
        self.far += usize::from(is_far);
    }

    /// Adjusts the totals by the lengths of a segment's rows; false if they are not known.
    fn change(&mut self, segment: &Segment, change: impl Fn(u32, u32) -> u32) -> bool {
        for list in [ListKind::Out, ListKind::In] {
            let Some(lengths) = segment.lengths(list) else { return false };
            for (account, length) in lengths {
                if let Some(total) = self.totals.get_mut(account as usize) {
                    total[list as usize] = change(total[list as usize], length);
                }
            }
        }
        true
    }

    fn grow(&mut self) {
        let room = self.room + (self.room / GROWTH).max(1);
        let (old, new) = (stride(self.room).max(1), stride(room));
        for words in &mut self.sides {
            let mut moved = vec![0; words.len() / old * new];
            for (from, to) in words.chunks_exact(old).zip(moved.chunks_exact_mut(new)) {
                for at in 0..self.count {
                    let place = place(at, self.head, self.room);
                    let first = from[self.room + place / 2] >> (place % 2 * 32);
                    to[at] = from[place];
                    to[room + at / 2] |= u64::from(first as u32) << (at % 2 * 32);
                }
            }
            *words = moved;
        }
        (self.room, self.head) = (room, 0);
    }

    /// Removes the first segment.
    pub(crate) fn drop_first(&mut self, segment: &Segment) {
        self.head = place(1, self.head, self.room);
        self.count -= 1;
        let is_far = !self.change(segment, u32::wrapping_sub);
        self.far -= usize::from(is_far);
    }

    /// The rows of an account.
    #[inline]
    pub(crate) fn look(&self, account: u32, side: Side) -> RowLookup<'_> {
        let stride = stride(self.room);
        let from = account as usize / 64 * stride;
        let words = self.sides[side as usize].get(from..from + stride).unwrap_or_default();
        let (bit, total) = (account % 64, self.total(account, side));
        RowLookup { words, room: self.room, head: self.head, bit, total }
    }

    /// The entries of an account in all segments with known lengths.
    #[inline]
    pub(crate) fn total(&self, account: u32, side: Side) -> u32 {
        self.totals.get(account as usize).copied().unwrap_or_default()[side as usize]
    }

    /// Whether an account may have entries in some segment.
    #[inline]
    pub(crate) fn may_have(&self, account: u32, side: Side) -> bool {
        !self.has_totals() || self.total(account, side) > 0
    }

    /// Whether the lengths of all segments are known.
    pub(crate) fn has_totals(&self) -> bool {
        self.far == 0
    }

    /// A bit for each of 64 accounts that has a row in some segment.
    pub(crate) fn in_use(&self, block: usize) -> u64 {
        let from = block * stride(self.room);
        let rows = self.sides.iter().filter_map(|words| words.get(from..from + self.room));
        let places = |row: &[u64]| {
            let one = |at| row.get(place(at, self.head, self.room)).copied().unwrap_or_default();
            (0..self.count).map(one).fold(0, |all, one| all | one)
        };
        rows.map(places).fold(0, |all, one| all | one)
    }

    /// Drops accounts from block `blocks` on, which have no rows, where they take much memory.
    pub(crate) fn truncate(&mut self, blocks: usize) {
        let length = blocks * stride(self.room);
        for words in &mut self.sides {
            if words.len() > length + length / GROWTH {
                words.truncate(length);
                words.shrink_to_fit();
            }
        }
        if self.totals.len() > (blocks + blocks / GROWTH) * 64 {
            self.totals.truncate(blocks * 64);
            self.totals.shrink_to_fit();
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.sides.iter().map(|words| words.capacity() * size_of::<u64>()).sum::<usize>()
            + self.totals.capacity() * size_of::<[u32; 2]>()
    }
}

/// The rows of one side of one account.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowLookup<'a> {
    words: &'a [u64],
    room: usize,
    head: usize,
    bit: u32,
    total: u32,
}

impl RowLookup<'_> {
    /// The entries in all segments with known lengths.
    #[inline]
    pub(crate) fn total(&self) -> usize {
        self.total as usize
    }

    #[inline]
    fn has(&self, at: usize) -> u64 {
        self.words.get(place(at, self.head, self.room)).copied().unwrap_or_default()
    }

    /// Prefetches the words that a lookup needs first.
    #[inline]
    pub(crate) fn touch(&self, at: usize) -> u64 {
        let place = place(at, self.head, self.room);
        let first = self.words.get(self.room + place / 2).copied().unwrap_or_default();
        self.has(at) ^ first ^ u64::from(self.total)
    }

    /// The segments with a row, among `count` from number `from` on; at most [`TOGETHER`].
    #[inline]
    pub(crate) fn present(&self, from: usize, count: usize) -> u64 {
        (0..count).fold(0, |all, at| all | (((self.has(from + at) >> self.bit) & 1) << at))
    }

    /// Whether a segment has a row.
    #[inline]
    pub(crate) fn is_present(&self, at: usize) -> bool {
        (self.has(at) >> self.bit) & 1 != 0
    }

    /// The row in a segment, which must have one.
    #[inline]
    pub(crate) fn row(&self, at: usize) -> usize {
        let place = place(at, self.head, self.room);
        let has = self.words.get(place).copied().unwrap_or_default();
        let pair = self.words.get(self.room + place / 2).copied().unwrap_or_default();
        let first = (pair >> (place % 2 * 32)) as u32;
        first as usize + (has & ((1 << self.bit) - 1)).count_ones() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::super::freeze::{FrozenSpan, SealedEdge};
    use super::{CombinedIndex, TOGETHER};
    use crate::edge::Side;
    use crate::segment::rows::ListKind;
    use crate::segment::{Segment, SegmentInfo, row_of};
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn segment(accounts: u32, edges: &[(u32, u32)]) -> Segment {
        let records = edges.iter().zip(0u64..).map(|(&(source, target), time)| SealedEdge {
            source: source % accounts,
            target: target % accounts,
            time,
        });
        let span = edges.len().saturating_sub(1) as u64;
        let info = SegmentInfo { span, accounts: u64::from(accounts), ..SegmentInfo::default() };
        let frozen = FrozenSpan::new(info, records.collect(), Vec::new(), Vec::new(), None);
        frozen.plan().unwrap().build().unwrap()
    }

    /// Compares a lookup of each account with each segment's own index.
    fn agree(indexes: &CombinedIndex, segments: &VecDeque<Segment>, accounts: u32) {
        for (account, side) in
            (0..accounts + 70).flat_map(|one| [(one, Side::Out), (one, Side::In)])
        {
            let look = indexes.look(account, side);
            let mut total = 0;
            for (at, segment) in segments.iter().enumerate() {
                let list = ListKind::from(side);
                let row = row_of(&segment.buffers().unwrap().index, account, list);
                assert_eq!(look.is_present(at), row.is_some());
                assert!(row.is_none_or(|row| row == look.row(at)));
                let (from, place) = (at / TOGETHER * TOGETHER, at % TOGETHER);
                let count = (segments.len() - from).min(TOGETHER);
                assert_eq!(look.present(from, count) >> place & 1 != 0, row.is_some());
                total += segment.row(account, list).len();
                assert!(
                    row.is_none()
                        || indexes.in_use(account as usize / 64) >> (account % 64) & 1 != 0
                );
            }
            assert!(indexes.has_totals());
            assert_eq!((look.total(), indexes.total(account, side) as usize), (total, total));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Segments are added, with more and more accounts, and removed.
        #[test]
        fn a_look_says_what_each_index_says(
            steps in prop::collection::vec(
                (0..4u32, prop::collection::vec((any::<u32>(), any::<u32>()), 1..40)),
                1..24,
            ),
        ) {
            let (mut indexes, mut segments) = (CombinedIndex::default(), VecDeque::new());
            let mut accounts = 3;
            for (kind, edges) in &steps {
                if *kind == 0 && let Some(oldest) = segments.pop_front() {
                    indexes.drop_first(&oldest);
                } else {
                    accounts += 29 * kind;
                    let made = segment(accounts, edges);
                    indexes.push(&made);
                    segments.push_back(made);
                }
                agree(&indexes, &segments, accounts);
            }
        }
    }

    #[test]
    fn there_may_be_more_segments_than_are_looked_at_together() {
        let (mut indexes, mut segments) = (CombinedIndex::default(), VecDeque::new());
        for number in 0..3 * TOGETHER as u32 {
            let made = segment(100, &[(number % 100, (number * 7 + 1) % 100)]);
            indexes.push(&made);
            segments.push_back(made);
            if number % 3 == 0
                && let Some(oldest) = segments.pop_front()
            {
                indexes.drop_first(&oldest);
            }
        }
        assert!(segments.len() > TOGETHER);
        agree(&indexes, &segments, 100);
    }
}
