//! Indexes of the batch: by account, and by pair of accounts.

use super::trigger::Trigger;
use crate::accounts::AccountHash;
use crate::edge::{Side, Stamp};
use hashbrown::HashMap;
use std::ops::Range;

/// Triggers or accounts in one piece of work.
pub(crate) const CHUNK: usize = 32;
/// Triggers of one account in one piece of work, for kinds that can divide them.
const PART: usize = if cfg!(debug_assertions) { 2 } else { 64 };

/// The batch's positions grouped by account, within a group in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct TriggerGroups {
    places: Vec<u32>,
    starts: Vec<u32>,
    keyed: Vec<u64>,
}

impl TriggerGroups {
    /// Groups the batch by the account on one side of each edge.
    pub(crate) fn fill<T: Stamp>(&mut self, triggers: &[Trigger<T>], side: Side) {
        let TriggerGroups { places, starts, keyed } = self;
        let keys = (0u64..).zip(triggers);
        keyed.clear();
        keyed.extend(keys.map(|(place, one)| u64::from(one.end(side)) << 32 | place));
        keyed.sort_unstable();
        places.clear();
        starts.clear();
        let mut last = None;
        for &key in keyed.iter() {
            if last != Some(key >> 32) {
                last = Some(key >> 32);
                starts.push(places.len() as u32);
            }
            places.push(key as u32);
        }
        starts.push(places.len() as u32);
    }

    /// Puts the groups in order of their first triggers. Processes that share a batch divide it
    /// alike then: an account may have another small number in each of them.
    pub(crate) fn sort_by_arrival(&mut self) {
        let TriggerGroups { places, starts, keyed } = self;
        let first = |start: u32| places.get(start as usize).copied().unwrap_or_default();
        let groups = starts.windows(2).zip(0u64..);
        keyed.clear();
        keyed.extend(groups.map(|(pair, group)| u64::from(first(pair[0])) << 32 | group));
        keyed.sort_unstable();
        let (mut moved, mut ends) = (Vec::with_capacity(places.len()), vec![0]);
        for &key in keyed.iter() {
            let group = key as u32 as usize;
            let range = starts[group] as usize..starts[group + 1] as usize;
            moved.extend_from_slice(places.get(range).unwrap_or_default());
            ends.push(moved.len() as u32);
        }
        (*places, *starts) = (moved, ends);
    }

    pub(crate) fn bytes(&self) -> usize {
        (self.places.capacity() + self.starts.capacity()) * size_of::<u32>()
            + self.keyed.capacity() * size_of::<u64>()
    }

    /// Pieces of work as ranges for `get`: whole groups or, with `is_divided`, also consecutive
    /// parts of long ones.
    pub(crate) fn pieces(&self, is_divided: bool) -> Vec<Range<usize>> {
        let mut pieces = Vec::new();
        let (mut from, mut groups) = (0, 0);
        for pair in self.starts.windows(2) {
            let (start, end) = (pair[0] as usize, pair[1] as usize);
            if is_divided && end - start > PART {
                pieces.push(from..start);
                let parts = (start..end).step_by(PART);
                pieces.extend(parts.map(|part| part..(part + PART).min(end)));
                (from, groups) = (end, 0);
                continue;
            }
            groups += 1;
            if groups == CHUNK {
                pieces.push(from..end);
                (from, groups) = (end, 0);
            }
        }
        pieces.push(from..self.places.len());
        pieces.retain(|piece| !piece.is_empty());
        pieces
    }

    /// The positions of a piece.
    pub(crate) fn places(&self, piece: Range<usize>) -> &[u32] {
        self.places.get(piece).unwrap_or_default()
    }

    /// The groups of a piece, or a part of one.
    pub(crate) fn get(&self, piece: Range<usize>) -> impl Iterator<Item = &[u32]> + Clone {
        let next = self.starts.partition_point(|&start| start as usize <= piece.start);
        let mut ends = self.starts.get(next..).unwrap_or_default().iter();
        let mut rest = piece;
        std::iter::from_fn(move || {
            let start = rest.start;
            rest.start = (*ends.next()? as usize).min(rest.end);
            self.places.get(start..rest.start).filter(|group| !group.is_empty())
        })
    }
}

/// The logarithm of the filter's bits. A batch of 4096 rows sets few of them.
const FILTER_BITS: u32 = 16;

/// The end of a list of positions.
const NONE: u32 = u32::MAX;

/// The batch's own edges by both ends. Batch mode credits them with the patterns of other triggers.
#[derive(Debug, Default)]
pub(crate) struct TriggerPairs {
    /// The last position of each pair.
    last: HashMap<(u32, u32), u32, AccountHash>,
    /// The previous position of the same pair.
    before: Vec<u32>,
    /// A filter, because most pairs that searches look up have no edge in the batch.
    filter: Vec<u64>,
}

/// The word and the bit of a pair in the filter.
fn bit(source: u32, target: u32) -> (usize, u64) {
    let mixed = source.wrapping_mul(0x9e37_79b9) ^ target.wrapping_mul(0x85eb_ca6b).rotate_left(16);
    let at = mixed.wrapping_mul(0xc2b2_ae35) >> (u32::BITS - FILTER_BITS);
    ((at / u64::BITS) as usize, 1 << (at % u64::BITS))
}

impl TriggerPairs {
    pub(crate) fn fill<T: Stamp>(&mut self, triggers: &[Trigger<T>]) {
        self.last.clear();
        self.before.clear();
        self.filter.clear();
        self.filter.resize(1 << (FILTER_BITS - u64::BITS.ilog2()), 0);
        for (place, one) in (0u32..).zip(triggers) {
            let (word, bit) = bit(one.source, one.target);
            self.filter[word] |= bit;
            let before = self.last.insert((one.source, one.target), place);
            self.before.push(before.unwrap_or(NONE));
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.last.allocation_size()
            + self.before.capacity() * size_of::<u32>()
            + self.filter.capacity() * size_of::<u64>()
    }

    /// The positions of the batch's edges from `source` to `target`.
    pub(crate) fn get(&self, source: u32, target: u32) -> impl Iterator<Item = u32> {
        let (word, bit) = bit(source, target);
        let may_be = self.filter.get(word).is_some_and(|bits| bits & bit != 0);
        let last = if may_be { self.last.get(&(source, target)).copied() } else { None };
        std::iter::successors(last, |&place| {
            self.before.get(place as usize).copied().filter(|&before| before != NONE)
        })
    }
}
