//! Freezing: edges are copied out of the graph, sorted by both ends, and written into the caller's
//! memory.

use super::index::{BLOCK, numbers_in, row_of};
use super::packing::{COUNT_MAX, Packing, SegmentInfo};
use super::rows::ListKind;
use crate::accounts::AccountKeys;
use crate::edge::NO_ACCOUNT;
use crate::error::GraphError;
use crate::segment::{Segment, SegmentBuffers};
use arrow_buffer::ScalarBuffer;

/// An edge to be sealed. [`NO_ACCOUNT`] marks a sequence number without one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealedEdge {
    pub source: u32,
    pub target: u32,
    /// Time from the segment's base on.
    pub time: u64,
}

/// A copy of a full span of a graph's edges. Sorting it does not need the graph.
#[derive(Clone, Debug)]
pub struct FrozenSpan {
    info: SegmentInfo,
    records: Vec<SealedEdge>,
    ids: Vec<i64>,
    values: Vec<Vec<f64>>,
    /// The callers' numbers of all accounts, if the segment must name its own.
    keys: Option<AccountKeys>,
}

/// A frozen span with measured lists, whose sizes are known.
#[derive(Debug)]
pub struct SegmentPlan {
    frozen: FrozenSpan,
    packing: Packing,
    index: Vec<u64>,
    accounts: Vec<i64>,
    rows: [usize; 3],
}

/// The length of each buffer of a segment, in values of its type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentSizes {
    /// Words of the index.
    pub index: usize,
    /// Accounts that the segment names.
    pub accounts: usize,
    /// Offsets of the lists of outgoing edges, incoming edges and self-loops.
    pub starts: [usize; 3],
    /// Entries of these lists.
    pub entries: [usize; 3],
    /// Times, if entries have no bits for them.
    pub times: usize,
    /// Ids, if the segment has any.
    pub ids: usize,
    /// Values of each measured column.
    pub values: Vec<usize>,
}

/// Memory for a segment, of the [`SegmentSizes`] of its plan.
#[derive(Debug)]
pub struct SegmentBuffersMut<'a> {
    /// The index: the accounts with rows.
    pub index: &'a mut [u64],
    /// The callers' numbers of these accounts.
    pub accounts: &'a mut [i64],
    /// Offsets of each list.
    pub starts: [&'a mut [i32]; 3],
    /// Entries of each list.
    pub entries: [&'a mut [u64]; 3],
    /// Times, in order of arrival.
    pub times: &'a mut [u64],
    /// Ids, in order of arrival.
    pub ids: &'a mut [i64],
    /// Measured columns, in order of arrival.
    pub values: Vec<&'a mut [f64]>,
}

impl FrozenSpan {
    /// `records` begin with sequence number `info.first`. The counts in `info` are computed here.
    /// With `keys`, the callers' numbers by small number, the segment names its accounts.
    pub(crate) fn new(
        info: SegmentInfo,
        records: Vec<SealedEdge>,
        ids: Vec<i64>,
        values: Vec<Vec<f64>>,
        keys: Option<AccountKeys>,
    ) -> FrozenSpan {
        let edges = records.iter().filter(|one| one.source != NO_ACCOUNT);
        let loops = edges.clone().filter(|one| one.source == one.target).count() as u64;
        let edges = edges.count() as u64;
        let numbers = records.len() as u64;
        let info = SegmentInfo { numbers, edges, loops, ..info };
        FrozenSpan { info, records, ids, values, keys }
    }

    /// The segment's description.
    pub fn info(&self) -> &SegmentInfo {
        &self.info
    }

    fn edges(&self) -> impl Iterator<Item = (u64, SealedEdge)> {
        (0u64..).zip(self.records.iter().copied()).filter(|(_, one)| one.source != NO_ACCOUNT)
    }

    /// Finds the accounts that have rows. The time grows with edges and accounts.
    ///
    /// # Errors
    /// [`GraphError::Segment`] if the numbers or accounts exceed the limit of a segment.
    pub fn plan(self) -> Result<SegmentPlan, GraphError> {
        let SegmentInfo { numbers, accounts, .. } = self.info;
        for (what, given) in [("numbers", numbers), ("accounts", accounts)] {
            if given > COUNT_MAX {
                return Err(GraphError::Segment { what, given, expected: COUNT_MAX });
            }
        }
        let mut index = vec![0u64; (accounts as usize).div_ceil(64) * BLOCK];
        for (_, edge) in self.edges() {
            for (list, account) in ends(edge).into_iter().flatten() {
                if let Some(word) = index.get_mut(account as usize / 64 * BLOCK + list as usize) {
                    *word |= 1 << (account % 64);
                }
            }
        }
        let mut rows = [0u64; 3];
        for block in index.chunks_exact_mut(BLOCK) {
            let [out, into, loops] = rows;
            (block[3], block[4]) = (out | into << 32, loops);
            for (count, word) in rows.iter_mut().zip(&block[..3]) {
                *count += u64::from(word.count_ones());
            }
        }
        let packing = Packing::new(&self.info);
        let rows = rows.map(|count| count as usize);
        let key = |keys: &AccountKeys, at| keys.get(at).unwrap_or_default();
        let named = |keys| numbers_in(index.as_chunks().0).map(|at| key(keys, at)).collect();
        let accounts = self.keys.as_ref().map(named).unwrap_or_default();
        Ok(SegmentPlan { packing, index, accounts, rows, frozen: self })
    }
}

/// The lists that hold an edge, with their accounts.
fn ends(edge: SealedEdge) -> [Option<(ListKind, u32)>; 2] {
    if edge.source == edge.target {
        [Some((ListKind::Loops, edge.source)), None]
    } else {
        [Some((ListKind::Out, edge.source)), Some((ListKind::In, edge.target))]
    }
}

impl SegmentPlan {
    /// The segment's description.
    pub fn info(&self) -> &SegmentInfo {
        &self.frozen.info
    }

    /// The sizes of the buffers that the segment needs.
    pub fn sizes(&self) -> SegmentSizes {
        let SegmentInfo { numbers, edges, loops, .. } = self.frozen.info;
        let (numbers, edges, loops) = (numbers as usize, edges as usize, loops as usize);
        let has_table = self.packing.has_table(&self.frozen.info);
        SegmentSizes {
            index: self.index.len(),
            accounts: self.accounts.len(),
            starts: self.rows.map(|rows| rows + 1),
            entries: [edges - loops, edges - loops, loops],
            times: if has_table { numbers } else { 0 },
            ids: self.frozen.ids.len(),
            values: self.frozen.values.iter().map(Vec::len).collect(),
        }
    }

    /// Writes the segment.
    ///
    /// # Errors
    /// [`GraphError::Room`] for buffers of other sizes; nothing is written then.
    pub fn fill(&self, room: &mut SegmentBuffersMut<'_>) -> Result<(), GraphError> {
        self.check(room)?;
        room.index.copy_from_slice(&self.index);
        room.accounts.copy_from_slice(&self.accounts);
        room.ids.copy_from_slice(&self.frozen.ids);
        for (to, from) in room.values.iter_mut().zip(&self.frozen.values) {
            to.copy_from_slice(from);
        }
        for (to, from) in room.times.iter_mut().zip(&self.frozen.records) {
            *to = from.time;
        }
        for list in ListKind::ALL {
            self.sort(list, room.starts[list as usize], room.entries[list as usize]);
        }
        Ok(())
    }

    /// Sorts one list. A counting sort preserves the order of arrival within a row.
    fn sort(&self, list: ListKind, starts: &mut [i32], entries: &mut [u64]) {
        let rows = |edge: SealedEdge| {
            let found = ends(edge).into_iter().flatten().find(|(of, _)| *of == list);
            found.and_then(|(_, account)| row_of(&self.index, account, list))
        };
        starts.fill(0);
        for (_, edge) in self.frozen.edges() {
            if let Some(count) = rows(edge).and_then(|row| starts.get_mut(row + 1)) {
                *count += 1;
            }
        }
        let mut sum = 0;
        for count in starts.iter_mut() {
            sum += *count;
            *count = sum;
        }
        let mut next = starts.to_vec();
        for (position, edge) in self.frozen.edges() {
            let other = if list == ListKind::In { edge.source } else { edge.target };
            let Some(at) = rows(edge).and_then(|row| next.get_mut(row)) else { continue };
            if let Some(entry) = entries.get_mut(*at as usize) {
                *entry = self.packing.pack(position, edge.time, other);
            }
            *at += 1;
        }
    }

    fn check(&self, room: &SegmentBuffersMut<'_>) -> Result<(), GraphError> {
        let given = SegmentSizes {
            index: room.index.len(),
            accounts: room.accounts.len(),
            starts: room.starts.each_ref().map(|one| one.len()),
            entries: room.entries.each_ref().map(|one| one.len()),
            times: room.times.len(),
            ids: room.ids.len(),
            values: room.values.iter().map(|one| one.len()).collect(),
        };
        let total = |sizes: &SegmentSizes| {
            let lists = sizes.starts.iter().chain(&sizes.entries).chain(&sizes.values);
            let plain = sizes.index + sizes.accounts + sizes.times + sizes.ids;
            plain + lists.sum::<usize>()
        };
        let wanted = self.sizes();
        if given == wanted {
            return Ok(());
        }
        Err(GraphError::Room { given: total(&given), expected: total(&wanted) })
    }

    /// Builds the segment in memory of this process.
    ///
    /// # Errors
    /// Those of [`Segment::new`].
    pub fn build(self) -> Result<Segment, GraphError> {
        let sizes = self.sizes();
        let mut index = vec![0; sizes.index];
        let mut accounts = vec![0; sizes.accounts];
        let mut starts = sizes.starts.map(|length| vec![0; length]);
        let mut entries = sizes.entries.map(|length| vec![0; length]);
        let (mut times, mut ids) = (vec![0; sizes.times], vec![0; sizes.ids]);
        let mut values: Vec<_> = sizes.values.iter().map(|&length| vec![0.0; length]).collect();
        self.fill(&mut SegmentBuffersMut {
            index: &mut index,
            accounts: &mut accounts,
            starts: starts.each_mut().map(Vec::as_mut_slice),
            entries: entries.each_mut().map(Vec::as_mut_slice),
            times: &mut times,
            ids: &mut ids,
            values: values.iter_mut().map(Vec::as_mut_slice).collect(),
        })?;
        let buffers = SegmentBuffers {
            index: ScalarBuffer::from(index),
            accounts: ScalarBuffer::from(accounts),
            starts: starts.map(ScalarBuffer::from),
            entries: entries.map(ScalarBuffer::from),
            times: ScalarBuffer::from(times),
            ids: ScalarBuffer::from(ids),
            values: values.into_iter().map(ScalarBuffer::from).collect(),
        };
        Segment::new(self.frozen.info, buffers)
    }
}
