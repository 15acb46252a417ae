//! The index of a segment: the accounts with rows, and the positions of the rows.

use super::rows::ListKind;

/// Words of the index for 64 accounts. The bits of three words mark accounts with outgoing edges,
/// incoming edges and self-loops. Two words hold the first rows of these lists, the first word two.
pub(crate) const BLOCK: usize = 5;

/// The row of an account in a segment's index; None if it has no such list.
#[inline]
pub fn row_of(index: &[u64], account: u32, list: ListKind) -> Option<usize> {
    let block = account as usize / 64 * BLOCK;
    let (has, first) = part_of(index.get(block..)?.first_chunk()?, list);
    let bit = 1u64 << (account % 64);
    (has & bit != 0).then(|| first + (has & (bit - 1)).count_ones() as usize)
}

/// A bit for each of 64 accounts that has such a list, and the first of their rows.
#[inline]
pub(crate) fn part_of(block: &[u64; BLOCK], list: ListKind) -> (u64, usize) {
    let &[out, into, loops, first_pairs, first_loop] = block;
    match list {
        ListKind::Out => (out, first_pairs as u32 as usize),
        ListKind::In => (into, (first_pairs >> 32) as usize),
        ListKind::Loops => (loops, first_loop as u32 as usize),
    }
}

/// A bit for each of 64 accounts that has any list.
pub(crate) fn accounts_of(block: &[u64; BLOCK]) -> u64 {
    let [out, into, loops, ..] = block;
    out | into | loops
}

/// The accounts that have any list, by increasing number.
pub(crate) fn numbers_in(blocks: &[[u64; BLOCK]]) -> impl Iterator<Item = u32> {
    (0u32..).zip(blocks).flat_map(|(block, words)| {
        let mut rest = accounts_of(words);
        std::iter::from_fn(move || {
            let bit = (rest != 0).then(|| rest.trailing_zeros())?;
            rest &= rest - 1;
            Some(block * 64 + bit)
        })
    })
}

/// The number of rows in each list of a segment, from the last block of its index.
pub fn row_counts(index: &[u64]) -> [u64; 3] {
    let Some(&[out, into, loops, first_pairs, first_loop]) = index.last_chunk::<BLOCK>() else {
        return [0; 3];
    };
    let count = |first: u64, has: u64| u64::from(first as u32) + u64::from(has.count_ones());
    [count(first_pairs, out), count(first_pairs >> 32, into), count(first_loop, loops)]
}
