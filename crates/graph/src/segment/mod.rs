//! A part of the graph that no longer changes: the edges of a span of time as Arrow lists, laid out
//! in `docs/formats/segment.md`. Where its memory lies it does not know.

mod account_rows;
mod attached;
mod combined_index;
mod freeze;

pub(crate) use account_rows::{Older, Sealed as SealedRows, Window};
pub(crate) use attached::Part;
pub(crate) use combined_index::Indexes;
pub use freeze::{Frozen, Plan, Room, Sizes};
pub(crate) use freeze::{GONE, Sealed};

use crate::accounts::Side;
use crate::error::GraphError;
use arrow_buffer::ScalarBuffer;
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

/// Words of the index for 64 accounts: who has edges out, who has edges in, who pays himself, then
/// the first row of each of these lists (the first two in one word).
pub(crate) const BLOCK: usize = 5;
/// Numbers of arrival, accounts and entries of one segment, at most: offsets of Arrow lists are
/// 32-bit and signed.
pub(crate) const COUNT_MAX: u64 = 1 << 31;

/// What a segment holds, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Number of arrival of its first edge.
    pub first: u64,
    /// Numbers of arrival that it covers. Some may have no edge in it.
    pub numbers: u64,
    /// Time of its first edge.
    pub base: i64,
    /// Time of its last edge, from there on.
    pub span: u64,
    /// Edges, self-loops among them.
    pub edges: u64,
    /// Self-loops.
    pub loops: u64,
    /// Accounts have numbers below this one.
    pub accounts: u64,
}

/// How an entry of 64 bits is packed: rank of arrival, time, account at the other end, from the
/// highest bit down. So entries of a list, which come in order of arrival, are increasing numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    other_bits: u32,
    /// 0: times lie in a table of their own, by rank.
    time_bits: u32,
    other_mask: u64,
    time_mask: u64,
}

fn bits(largest: u64) -> u32 {
    u64::BITS - largest.leading_zeros()
}

fn mask(bits: u32) -> u64 {
    1u64.checked_shl(bits).map_or(u64::MAX, |bit| bit - 1)
}

impl Packing {
    pub(crate) fn new(about: &About) -> Packing {
        let other_bits = bits(about.accounts.saturating_sub(1)).max(1);
        let rank_bits = bits(about.numbers.saturating_sub(1)).max(1);
        let time_bits = bits(about.span);
        let fits = other_bits + rank_bits + time_bits <= u64::BITS;
        let time_bits = if fits { time_bits } else { 0 };
        let (other_mask, time_mask) = (mask(other_bits), mask(time_bits));
        Packing { other_bits, time_bits, other_mask, time_mask }
    }

    pub(crate) fn pack(self, rank: u64, time: u64, other: u32) -> u64 {
        let time = if self.time_bits == 0 { 0 } else { time << self.other_bits };
        (rank << (self.time_bits + self.other_bits)) | time | u64::from(other)
    }

    #[inline]
    pub(crate) fn other(self, packed: u64) -> u32 {
        (packed & self.other_mask) as u32
    }

    /// Its time, unless there is a table.
    #[inline]
    pub(crate) fn time(self, packed: u64) -> u64 {
        (packed >> self.other_bits) & self.time_mask
    }

    #[inline]
    pub(crate) fn rank(self, packed: u64) -> u64 {
        packed >> (self.time_bits + self.other_bits)
    }

    /// Whether times do not fit into entries.
    pub(crate) fn has_table(self, about: &About) -> bool {
        self.time_bits == 0 && about.span > 0
    }
}

/// Which of an account's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum List {
    /// Edges that it is the source of.
    Out,
    /// Edges that it is the target of.
    In,
    /// Edges that it is both of, which are in no other list.
    Loops,
}

impl List {
    /// All three.
    pub const ALL: [List; 3] = [List::Out, List::In, List::Loops];
}

impl From<Side> for List {
    fn from(side: Side) -> List {
        match side {
            Side::Out => List::Out,
            Side::In => List::In,
        }
    }
}

/// A row that a segment has by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Whose row it is.
    pub account: u32,
    /// Which of his.
    pub list: List,
    /// Which of the rows of this list it is, by the index that the segment was given ([`row_of`]).
    pub place: usize,
}

/// Gives rows of a segment whose lists are not in this process' memory.
pub trait Rows: Debug + Send + Sync {
    /// One list of one account.
    ///
    /// What fails is remembered, and told by [`Rows::failure`] after the search.
    fn row(&self, wanted: Wanted) -> Row<'_>;

    /// Reads where these rows of one kind begin, by their places, as far as they are at hand, so that
    /// the waits for their memory overlap: they are asked for next. Unless it is said how, nothing is
    /// read.
    fn touch(&self, _list: List, _places: &[usize]) {}

    /// Whether [`Rows::prefetch`] does anything now.
    fn is_prefetching(&self) -> bool {
        false
    }

    /// Says that these rows will be asked for soon. Gives whether it brought some that were not at
    /// hand: then those of the accounts next to them may be missing, too.
    fn prefetch(&self, _wanted: &mut dyn Iterator<Item = Wanted>) -> bool {
        false
    }

    /// What went wrong since the last question.
    fn failure(&self) -> Option<String>;
}

/// The buffers of a segment in memory that this process maps.
#[derive(Clone, Debug)]
pub struct Buffers {
    /// Which accounts have rows, and where: five words for 64 accounts.
    pub index: ScalarBuffer<u64>,
    /// Where each row of a list begins, one more for its end; by [`List`].
    pub starts: [ScalarBuffer<i32>; 3],
    /// The lists themselves.
    pub entries: [ScalarBuffer<u64>; 3],
    /// Times by rank, from the segment's base on; empty where entries hold them.
    pub times: ScalarBuffer<u64>,
    /// Ids by rank; empty where they are not kept.
    pub ids: ScalarBuffer<i64>,
    /// Measured columns, by rank.
    pub values: Vec<ScalarBuffer<f64>>,
}

#[derive(Debug)]
enum Lists {
    Mapped([(ScalarBuffer<i32>, ScalarBuffer<u64>); 3]),
    Far(Arc<dyn Rows>),
}

/// One immutable part of a graph.
#[derive(Debug)]
pub struct Segment {
    about: About,
    packing: Packing,
    index: ScalarBuffer<u64>,
    lists: Lists,
    times: ScalarBuffer<u64>,
    ids: ScalarBuffer<i64>,
    values: Vec<ScalarBuffer<f64>>,
}

/// A row of a segment, wherever it came from: entries as they are packed there.
#[derive(Debug)]
pub enum Row<'a> {
    /// Lent by whoever has it.
    Near(&'a [u64]),
    /// Shared with whoever may drop it at any time.
    Far(Arc<[u64]>),
}

impl Deref for Row<'_> {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        match self {
            Row::Near(row) => row,
            Row::Far(row) => row,
        }
    }
}

fn wrong(what: &'static str, given: u64, expected: u64) -> GraphError {
    GraphError::Segment { what, given, expected }
}

/// Where the row of an account is, by a segment's index; None: it has no such list.
#[inline]
pub fn row_of(index: &[u64], account: u32, list: List) -> Option<usize> {
    let block = account as usize / 64 * BLOCK;
    let (has, first) = part_of(index.get(block..)?.first_chunk()?, list);
    let bit = 1u64 << (account % 64);
    (has & bit != 0).then(|| first + (has & (bit - 1)).count_ones() as usize)
}

/// Of 64 accounts: who has such a list, and the first row.
#[inline]
pub(crate) fn part_of(block: &[u64; BLOCK], list: List) -> (u64, usize) {
    let &[out, into, loops, ranks, rank] = block;
    match list {
        List::Out => (out, ranks as u32 as usize),
        List::In => (into, (ranks >> 32) as usize),
        List::Loops => (loops, rank as u32 as usize),
    }
}

/// How many rows the lists of a segment have, by its index's last block.
pub fn row_counts(index: &[u64]) -> [u64; 3] {
    let Some(&[out, into, loops, ranks, rank]) = index.last_chunk::<BLOCK>() else {
        return [0; 3];
    };
    let count = |first: u64, has: u64| u64::from(first as u32) + u64::from(has.count_ones());
    [count(ranks, out), count(ranks >> 32, into), count(rank, loops)]
}

impl Segment {
    /// A segment over buffers, which may come from anybody: what they hold is checked here as far
    /// as their lengths tell, and at every access.
    ///
    /// # Errors
    /// [`GraphError::Segment`] where lengths do not fit each other.
    pub fn new(about: About, buffers: Buffers) -> Result<Segment, GraphError> {
        let Buffers { index, starts, entries, times, ids, values } = buffers;
        let segment = Segment {
            packing: Packing::new(&about),
            about,
            index,
            lists: Lists::Mapped(std::array::from_fn(|_| empty())),
            times,
            ids,
            values,
        };
        segment.check()?;
        let mut lists = starts.into_iter().zip(entries);
        let wanted = row_counts(&segment.index);
        for ((starts, entries), rows) in lists.clone().zip(wanted) {
            if starts.len() as u64 != rows + 1 {
                return Err(wrong("offsets of a list", starts.len() as u64, rows + 1));
            }
            let end = starts.last().copied().unwrap_or_default();
            if u64::try_from(end).ok() != Some(entries.len() as u64) {
                return Err(wrong("entries of a list", entries.len() as u64, end as u64));
            }
        }
        let lists = std::array::from_fn(|_| lists.next().unwrap_or_else(empty));
        Ok(Segment { lists: Lists::Mapped(lists), ..segment })
    }

    /// A segment whose lists are somewhere else: of the buffers only those beside the lists are
    /// used.
    ///
    /// # Errors
    /// As [`Segment::new`].
    pub fn far(about: About, beside: Buffers, rows: Arc<dyn Rows>) -> Result<Segment, GraphError> {
        let packing = Packing::new(&about);
        let Buffers { index, times, ids, values, .. } = beside;
        let lists = Lists::Far(rows);
        let segment = Segment { about, packing, index, lists, times, ids, values };
        segment.check()?;
        Ok(segment)
    }

    fn check(&self) -> Result<(), GraphError> {
        let About { numbers, edges, loops, accounts, .. } = self.about;
        for (what, given) in [("numbers", numbers), ("edges", edges), ("accounts", accounts)] {
            if given > COUNT_MAX {
                return Err(wrong(what, given, COUNT_MAX));
            }
        }
        if loops > edges || edges > numbers {
            return Err(wrong("edges", edges, numbers));
        }
        let words = accounts.div_ceil(64) * BLOCK as u64;
        if self.index.len() as u64 != words {
            return Err(wrong("words of the index", self.index.len() as u64, words));
        }
        let wanted = if self.packing.has_table(&self.about) { numbers } else { 0 };
        if self.times.len() as u64 != wanted {
            return Err(wrong("times", self.times.len() as u64, wanted));
        }
        let columns = self.values.iter().map(|column| column.len());
        for length in columns.chain((!self.ids.is_empty()).then_some(self.ids.len())) {
            if length as u64 != numbers {
                return Err(wrong("values of a column", length as u64, numbers));
            }
        }
        Ok(())
    }

    /// What it holds, in numbers.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Memory of its buffers, in bytes.
    pub fn bytes(&self) -> usize {
        let lists = match &self.lists {
            Lists::Mapped(lists) => {
                lists.iter().map(|(starts, all)| starts.len() * 4 + all.len() * 8).sum()
            }
            Lists::Far(_) => 0,
        };
        let wide = self.index.len() + self.times.len() + self.ids.len();
        let values: usize = self.values.iter().map(|column| column.len()).sum();
        lists + (wide + values) * 8
    }

    /// Its buffers; None if its lists are not in this process' memory.
    pub fn buffers(&self) -> Option<Buffers> {
        let Lists::Mapped(lists) = &self.lists else { return None };
        Some(Buffers {
            index: self.index.clone(),
            starts: lists.each_ref().map(|(starts, _)| starts.clone()),
            entries: lists.each_ref().map(|(_, entries)| entries.clone()),
            times: self.times.clone(),
            ids: self.ids.clone(),
            values: self.values.clone(),
        })
    }

    /// Columns that it keeps of each edge.
    pub fn columns(&self) -> usize {
        self.values.len()
    }

    /// Whether it keeps ids.
    pub fn has_ids(&self) -> bool {
        !self.ids.is_empty() || self.about.numbers == 0
    }

    fn wanted(&self, account: u32, list: List) -> Option<Wanted> {
        let place = row_of(&self.index, account, list)?;
        Some(Wanted { account, list, place })
    }

    /// One list of an account, packed; empty if it has none.
    pub fn row(&self, account: u32, list: List) -> Row<'_> {
        self.wanted(account, list).map_or(Row::Near(&[]), |wanted| self.row_at(wanted))
    }

    /// The same where it is known which row of all such lists it is.
    #[inline]
    pub(crate) fn row_at(&self, wanted: Wanted) -> Row<'_> {
        match &self.lists {
            Lists::Mapped(lists) => {
                let (starts, all) = &lists[wanted.list as usize];
                let end = |at: usize| starts.get(at).map(|&end| end as usize);
                let range = end(wanted.place).zip(end(wanted.place + 1));
                Row::Near(range.and_then(|(from, to)| all.get(from..to)).unwrap_or_default())
            }
            Lists::Far(rows) => rows.row(wanted),
        }
    }

    /// Reads where these rows of one kind lie, then an entry of each: the one that `entry` chooses by
    /// their lengths. No read waits for one before, but for those that said where it is.
    pub(crate) fn touch(&self, list: List, places: &[usize], entry: impl Fn(usize) -> usize) {
        let lists = match &self.lists {
            Lists::Mapped(lists) => lists,
            Lists::Far(rows) => return rows.touch(list, places),
        };
        let (starts, all) = &lists[list as usize];
        let begin = |at: usize| starts.get(at).copied().unwrap_or_default();
        let touched = places.iter().map(|&place| begin(place));
        std::hint::black_box(touched.fold(0, |all, one| all ^ one));
        let touched = places.iter().map(|&place| {
            let (from, to) = (begin(place) as usize, begin(place + 1) as usize);
            all.get(from + entry(to.saturating_sub(from))).copied().unwrap_or_default()
        });
        std::hint::black_box(touched.fold(0, |all, one| all ^ one));
    }

    /// Whether `prefetch` does anything now.
    pub(crate) fn is_prefetching(&self) -> bool {
        matches!(&self.lists, Lists::Far(rows) if rows.is_prefetching())
    }

    /// Says that these accounts' edges in and out will be asked for. Gives whether some were not at
    /// hand and have been brought.
    pub(crate) fn prefetch(&self, accounts: &[u32]) -> bool {
        let Lists::Far(rows) = &self.lists else { return false };
        let lists = |&account: &u32| [List::Out, List::In].map(|list| (account, list));
        let wanted = accounts.iter().flat_map(lists);
        rows.prefetch(&mut wanted.filter_map(|(account, list)| self.wanted(account, list)))
    }

    pub(crate) fn packing(&self) -> Packing {
        self.packing
    }

    /// Whether times do not fit into entries.
    pub(crate) fn has_table(&self) -> bool {
        self.packing.has_table(&self.about)
    }

    /// Time of an entry, from the segment's base on.
    pub(crate) fn time(&self, packed: u64) -> u64 {
        if !self.has_table() {
            return self.packing.time(packed);
        }
        let rank = usize::try_from(self.packing.rank(packed)).unwrap_or(usize::MAX);
        self.times.get(rank).copied().unwrap_or_default().min(self.about.span)
    }

    /// The id of an edge by its number of arrival.
    pub(crate) fn id(&self, number: u64) -> Option<i64> {
        self.ids.get(self.rank_of(number)?).copied()
    }

    /// The value of an edge in a measured column, by its number of arrival.
    pub(crate) fn value(&self, column: usize, number: u64) -> Option<f64> {
        self.values.get(column)?.get(self.rank_of(number)?).copied()
    }

    fn rank_of(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.about.first)?).ok()
    }

    /// Blocks of its index, of 64 accounts each.
    pub(crate) fn blocks(&self) -> &[[u64; BLOCK]] {
        self.index.as_chunks().0
    }

    /// How long each row of this kind is, with its account; None where the lists are elsewhere.
    pub(crate) fn lengths(&self, list: List) -> Option<impl Iterator<Item = (u32, u32)>> {
        let Lists::Mapped(lists) = &self.lists else { return None };
        let (starts, all) = &lists[list as usize];
        let length = |at: usize| {
            let (&from, &to) = starts.get(at).zip(starts.get(at + 1))?;
            // As a read of the row has it.
            Some(all.get(from as usize..to as usize)?.len() as u32)
        };
        Some((0u32..).zip(self.blocks()).flat_map(move |(block, words)| {
            let (mut has, mut at) = part_of(words, list);
            std::iter::from_fn(move || {
                let bit = (has != 0).then(|| has.trailing_zeros())?;
                has &= has - 1;
                at += 1;
                Some((block * 64 + bit, length(at - 1).unwrap_or_default()))
            })
        }))
    }

    /// Whether any account pays itself.
    pub(crate) fn looped(&self) -> impl Iterator<Item = u64> {
        self.index.chunks_exact(BLOCK).map(|block| block[List::Loops as usize])
    }

    /// What went wrong with lists that are not at hand.
    pub(crate) fn failure(&self) -> Option<String> {
        match &self.lists {
            Lists::Mapped(_) => None,
            Lists::Far(rows) => rows.failure(),
        }
    }

    /// All edges: number of arrival, source, target, time from the base on; source by source.
    pub(crate) fn edges(&self) -> impl Iterator<Item = (u64, u32, u32, u64)> {
        let accounts = 0..u32::try_from(self.about.accounts).unwrap_or(u32::MAX);
        accounts.flat_map(move |account| {
            [List::Out, List::Loops].into_iter().flat_map(move |list| {
                let row = self.row(account, list);
                (0..row.len()).filter_map(move |at| {
                    let &packed = row.get(at)?;
                    let number = self.about.first + self.packing.rank(packed);
                    Some((number, account, self.packing.other(packed), self.time(packed)))
                })
            })
        })
    }
}

fn empty() -> (ScalarBuffer<i32>, ScalarBuffer<u64>) {
    (ScalarBuffer::from(Vec::new()), ScalarBuffer::from(Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::{About, Packing};

    #[test]
    fn entries_hold_what_fits_and_leave_times_to_a_table_where_they_do_not() {
        let span = (1 << 17) - 1;
        let about = About { numbers: 1 << 23, span, accounts: 1 << 24, ..About::default() };
        let packing = Packing::new(&about);
        let packed = packing.pack((1 << 23) - 1, span, (1 << 24) - 1);
        assert_eq!(u64::MAX, packed, "23 + 17 + 24 bits, all of them used");
        assert_eq!((packing.rank(packed), packing.other(packed)), ((1 << 23) - 1, (1 << 24) - 1));
        let about = About { span: u64::MAX, ..about };
        let packing = Packing::new(&about);
        assert!(packing.has_table(&about));
        let packed = packing.pack(5, span, 7);
        assert_eq!((packing.rank(packed), packing.other(packed)), (5, 7));
        // Nothing to tell apart: one edge, of one account, at one time.
        let about = About { numbers: 1, accounts: 1, ..About::default() };
        let packing = Packing::new(&about);
        assert!(!packing.has_table(&about));
        assert_eq!(packing.pack(0, 0, 0), 0);
    }
}
