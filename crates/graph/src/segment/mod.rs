//! Segments: immutable parts of a graph, each with the edges of a span of time.
//!
//! A segment is a set of Arrow lists in any memory; `docs/formats/segment.md` describes them.

mod account_rows;
mod attached;
mod combined_index;
mod freeze;
mod index;
mod packing;
mod rows;

pub(crate) use account_rows::SegmentRows;
pub(crate) use account_rows::{SegmentEntries, SegmentWindow};
pub(crate) use attached::AttachedSegment;
pub(crate) use combined_index::CombinedIndex;
pub(crate) use freeze::SealedEdge;
pub use freeze::{FrozenSpan, SegmentBuffersMut, SegmentPlan, SegmentSizes};
use index::{BLOCK, accounts_of, numbers_in, part_of};
pub use index::{row_counts, row_of};
pub use packing::SegmentInfo;
use packing::{COUNT_MAX, Packing};
pub use rows::{ListKind, RowRequest};
pub use rows::{RowSource, SegmentRow};

use crate::error::GraphError;
use arrow_buffer::ScalarBuffer;
use std::fmt::Debug;
use std::sync::Arc;

/// The buffers of a segment in memory that this process maps.
#[derive(Clone, Debug)]
pub struct SegmentBuffers {
    /// The index: for each 64 accounts, five words encode which of them have rows, and where.
    pub index: ScalarBuffer<u64>,
    /// The callers' numbers of the accounts that have rows, by small number; empty if small numbers
    /// are permanent in the graph.
    pub accounts: ScalarBuffer<i64>,
    /// The Arrow offsets of each list: the beginning of each row, and the end of the last one.
    pub starts: [ScalarBuffer<i32>; 3],
    /// The lists themselves.
    pub entries: [ScalarBuffer<u64>; 3],
    /// Times from the segment's base on, in order of arrival; empty if entries hold them.
    pub times: ScalarBuffer<u64>,
    /// Ids in order of arrival; empty if the segment has none.
    pub ids: ScalarBuffer<i64>,
    /// Measured columns, in order of arrival.
    pub values: Vec<ScalarBuffer<f64>>,
}

#[derive(Debug)]
enum Lists {
    Mapped([(ScalarBuffer<i32>, ScalarBuffer<u64>); 3]),
    Far(Arc<dyn RowSource>),
}

/// An immutable part of a graph.
#[derive(Debug)]
pub struct Segment {
    info: SegmentInfo,
    packing: Packing,
    index: ScalarBuffer<u64>,
    accounts: ScalarBuffer<i64>,
    lists: Lists,
    times: ScalarBuffer<u64>,
    ids: ScalarBuffer<i64>,
    values: Vec<ScalarBuffer<f64>>,
}

fn wrong(what: &'static str, given: u64, expected: u64) -> GraphError {
    GraphError::Segment { what, given, expected }
}

impl Segment {
    /// A segment over untrusted buffers. Their lengths are checked here, and every access is
    /// bounds-checked.
    ///
    /// # Errors
    /// [`GraphError::Segment`] for inconsistent lengths.
    pub fn new(info: SegmentInfo, buffers: SegmentBuffers) -> Result<Segment, GraphError> {
        let SegmentBuffers { index, accounts, starts, entries, times, ids, values } = buffers;
        let segment = Segment {
            packing: Packing::new(&info),
            info,
            index,
            accounts,
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

    /// A segment whose lists are not in this process's memory. Only the other buffers of `beside`
    /// are used.
    ///
    /// # Errors
    /// Those of [`Segment::new`].
    pub fn far(
        info: SegmentInfo,
        beside: SegmentBuffers,
        rows: Arc<dyn RowSource>,
    ) -> Result<Segment, GraphError> {
        let packing = Packing::new(&info);
        let SegmentBuffers { index, accounts, times, ids, values, .. } = beside;
        let lists = Lists::Far(rows);
        let segment = Segment { info, packing, index, accounts, lists, times, ids, values };
        segment.check()?;
        Ok(segment)
    }

    fn check(&self) -> Result<(), GraphError> {
        let SegmentInfo { first, numbers, edges, loops, accounts, .. } = self.info;
        if first.checked_add(numbers).is_none() {
            return Err(wrong("first", first, u64::MAX - numbers));
        }
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
        let (named, used) = (self.accounts.len() as u64, self.used());
        if named != 0 && named != used {
            return Err(wrong("accounts that a segment names", named, used));
        }
        let wanted = if self.packing.has_table(&self.info) { numbers } else { 0 };
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

    /// The segment's description.
    pub fn info(&self) -> &SegmentInfo {
        &self.info
    }

    /// The size of its buffers in bytes, without lists outside this process's memory.
    pub fn bytes(&self) -> usize {
        let lists = match &self.lists {
            Lists::Mapped(lists) => {
                lists.iter().map(|(starts, all)| starts.len() * 4 + all.len() * 8).sum()
            }
            Lists::Far(_) => 0,
        };
        let wide = self.index.len() + self.accounts.len() + self.times.len() + self.ids.len();
        let values: usize = self.values.iter().map(|column| column.len()).sum();
        lists + (wide + values) * 8
    }

    /// The buffers; None if the lists are not in this process's memory.
    pub fn buffers(&self) -> Option<SegmentBuffers> {
        let Lists::Mapped(lists) = &self.lists else { return None };
        Some(SegmentBuffers {
            index: self.index.clone(),
            accounts: self.accounts.clone(),
            starts: lists.each_ref().map(|(starts, _)| starts.clone()),
            entries: lists.each_ref().map(|(_, entries)| entries.clone()),
            times: self.times.clone(),
            ids: self.ids.clone(),
            values: self.values.clone(),
        })
    }

    /// The number of measured columns.
    pub fn columns(&self) -> usize {
        self.values.len()
    }

    /// Whether it has ids.
    pub fn has_ids(&self) -> bool {
        !self.ids.is_empty() || self.info.numbers == 0
    }

    fn wanted(&self, account: u32, list: ListKind) -> Option<RowRequest> {
        let place = row_of(&self.index, account, list)?;
        Some(RowRequest { account, list, place })
    }

    /// One list of an account; empty if the account has none.
    pub fn row(&self, account: u32, list: ListKind) -> SegmentRow<'_> {
        self.wanted(account, list).map_or(SegmentRow::Near(&[]), |wanted| self.row_at(wanted))
    }

    /// The row of a request.
    #[inline]
    pub(crate) fn row_at(&self, wanted: RowRequest) -> SegmentRow<'_> {
        match &self.lists {
            Lists::Mapped(lists) => {
                let (starts, all) = &lists[wanted.list as usize];
                let end = |at: usize| starts.get(at).map(|&end| end as usize);
                let range = end(wanted.place).zip(end(wanted.place + 1));
                SegmentRow::Near(range.and_then(|(from, to)| all.get(from..to)).unwrap_or_default())
            }
            Lists::Far(rows) => rows.row(wanted),
        }
    }

    /// Prefetches the offsets of these rows of one list, then one entry of each row; `entry` maps
    /// the row's length to the position. The reads of a round are independent.
    pub(crate) fn touch(&self, list: ListKind, places: &[usize], entry: impl Fn(usize) -> usize) {
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

    /// Announces requests for these accounts' outgoing and incoming edges. Returns whether some
    /// rows were not local and have been fetched.
    pub(crate) fn prefetch(&self, accounts: &[u32]) -> bool {
        let Lists::Far(rows) = &self.lists else { return false };
        let lists = |&account: &u32| [ListKind::Out, ListKind::In].map(|list| (account, list));
        let wanted = accounts.iter().flat_map(lists);
        rows.prefetch(&mut wanted.filter_map(|(account, list)| self.wanted(account, list)))
    }

    pub(crate) fn packing(&self) -> Packing {
        self.packing
    }

    /// Whether times are in a table, because entries have no bits for them.
    pub(crate) fn has_table(&self) -> bool {
        self.packing.has_table(&self.info)
    }

    /// The time of an entry from the segment's base on.
    pub(crate) fn time(&self, packed: u64) -> u64 {
        if !self.has_table() {
            return self.packing.time(packed);
        }
        let position = usize::try_from(self.packing.position(packed)).unwrap_or(usize::MAX);
        self.times.get(position).copied().unwrap_or_default().min(self.info.span)
    }

    /// The id of an edge by its sequence number.
    pub(crate) fn id(&self, number: u64) -> Option<i64> {
        self.ids.get(self.position_of(number)?).copied()
    }

    /// The value of an edge in a measured column, by sequence number.
    pub(crate) fn value(&self, column: usize, number: u64) -> Option<f64> {
        self.values.get(column)?.get(self.position_of(number)?).copied()
    }

    fn position_of(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.info.first)?).ok()
    }

    /// The blocks of its index, for 64 accounts each.
    pub(crate) fn blocks(&self) -> &[[u64; BLOCK]] {
        self.index.as_chunks().0
    }

    /// The account and the length of each row of a list; None if the lists are not in this
    /// process's memory.
    pub(crate) fn lengths(&self, list: ListKind) -> Option<impl Iterator<Item = (u32, u32)>> {
        let Lists::Mapped(lists) = &self.lists else { return None };
        let (starts, all) = &lists[list as usize];
        let length = |at: usize| {
            let (&from, &to) = starts.get(at).zip(starts.get(at + 1))?;
            // The same length as from `row_at`, even if the offsets are malformed.
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

    /// A bit for each account with a self-loop.
    pub(crate) fn looped(&self) -> impl Iterator<Item = u64> {
        self.index.chunks_exact(BLOCK).map(|block| block[ListKind::Loops as usize])
    }

    /// The bits of `looped` for 64 accounts.
    pub(crate) fn looped_block(&self, block: usize) -> u64 {
        self.blocks().get(block).map_or(0, |block| block[ListKind::Loops as usize])
    }

    /// A bit for each of 64 small numbers that it uses.
    pub(crate) fn in_use(&self, block: usize) -> u64 {
        self.blocks().get(block).map_or(0, accounts_of)
    }

    /// How many small numbers it uses.
    pub(crate) fn used(&self) -> u64 {
        self.blocks().iter().map(|block| u64::from(accounts_of(block).count_ones())).sum()
    }

    /// How many accounts it names.
    pub(crate) fn named(&self) -> usize {
        self.accounts.len()
    }

    /// The small numbers that it uses, with the callers' numbers, if it names them.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = (u32, i64)> {
        numbers_in(self.blocks()).zip(self.accounts.iter().copied())
    }

    /// The number of rows in its lists of edges.
    pub(crate) fn rows(&self) -> usize {
        let [out, into, _] = row_counts(&self.index);
        usize::try_from(out.saturating_add(into)).unwrap_or(usize::MAX)
    }

    /// The failure of a row source.
    pub(crate) fn failure(&self) -> Option<String> {
        match &self.lists {
            Lists::Mapped(_) => None,
            Lists::Far(rows) => rows.failure(),
        }
    }

    /// All edges, source by source: sequence number, source, target, time from the base on.
    pub(crate) fn edges(&self) -> impl Iterator<Item = (u64, u32, u32, u64)> {
        let accounts = 0..u32::try_from(self.info.accounts).unwrap_or(u32::MAX);
        accounts.flat_map(move |account| {
            [ListKind::Out, ListKind::Loops].into_iter().flat_map(move |list| {
                let row = self.row(account, list);
                (0..row.len()).filter_map(move |at| {
                    let &packed = row.get(at)?;
                    let number = self.info.first + self.packing.position(packed);
                    Some((number, account, self.packing.other(packed), self.time(packed)))
                })
            })
        })
    }
}

fn empty() -> (ScalarBuffer<i32>, ScalarBuffer<u64>) {
    (ScalarBuffer::from(Vec::new()), ScalarBuffer::from(Vec::new()))
}
