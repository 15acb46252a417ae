//! Edges on their way into a segment: copied out of the graph, sorted by both ends, written into
//! memory that somebody else provides.

use crate::error::GraphError;
use crate::segment::{About, BLOCK, Buffers, COUNT_MAX, List, Packing, Segment, row_of};
use arrow_buffer::ScalarBuffer;

/// An edge that is to be sealed. One that is not names no account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sealed {
    pub source: u32,
    pub target: u32,
    /// From the segment's base on.
    pub time: u64,
}

pub(crate) const GONE: u32 = u32::MAX;

/// A full span of a graph's edges, copied: whoever sorts it needs the graph no more.
#[derive(Clone, Debug)]
pub struct Frozen {
    about: About,
    records: Vec<Sealed>,
    ids: Vec<i64>,
    values: Vec<Vec<f64>>,
}

/// A frozen span with its lists measured: how much room it needs is known.
#[derive(Debug)]
pub struct Plan {
    frozen: Frozen,
    packing: Packing,
    index: Vec<u64>,
    rows: [usize; 3],
}

/// How long each buffer of a segment is, in values of its type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Words of the index.
    pub index: usize,
    /// Offsets of the lists of edges out, edges in and self-loops.
    pub starts: [usize; 3],
    /// Entries of these lists.
    pub entries: [usize; 3],
    /// Times, where entries have no room for them.
    pub times: usize,
    /// Ids, where they are kept.
    pub ids: usize,
    /// Values of each measured column.
    pub values: Vec<usize>,
}

/// Memory that a segment is written to, of the [`Sizes`] that its plan gives.
#[derive(Debug)]
pub struct Room<'a> {
    /// Which accounts have rows.
    pub index: &'a mut [u64],
    /// Offsets of the lists.
    pub starts: [&'a mut [i32]; 3],
    /// Entries of the lists.
    pub entries: [&'a mut [u64]; 3],
    /// Times by rank.
    pub times: &'a mut [u64],
    /// Ids by rank.
    pub ids: &'a mut [i64],
    /// Measured columns by rank.
    pub values: Vec<&'a mut [f64]>,
}

impl Frozen {
    /// `records` from number `about.first` on; `about` lacks what is counted here.
    pub(crate) fn new(
        about: About,
        records: Vec<Sealed>,
        ids: Vec<i64>,
        values: Vec<Vec<f64>>,
    ) -> Frozen {
        let edges = records.iter().filter(|one| one.source != GONE);
        let loops = edges.clone().filter(|one| one.source == one.target).count() as u64;
        let edges = edges.count() as u64;
        let numbers = records.len() as u64;
        Frozen { about: About { numbers, edges, loops, ..about }, records, ids, values }
    }

    /// What it holds, in numbers.
    pub fn about(&self) -> &About {
        &self.about
    }

    fn edges(&self) -> impl Iterator<Item = (u64, Sealed)> {
        (0u64..).zip(self.records.iter().copied()).filter(|(_, one)| one.source != GONE)
    }

    /// Finds which accounts have rows: time grows with edges and accounts.
    ///
    /// # Errors
    /// [`GraphError::Segment`] for more than a segment can hold.
    pub fn plan(self) -> Result<Plan, GraphError> {
        let About { numbers, accounts, .. } = self.about;
        for (what, given) in [("numbers", numbers), ("accounts", accounts)] {
            if given >= COUNT_MAX {
                return Err(GraphError::Segment { what, given, expected: COUNT_MAX - 1 });
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
        let packing = Packing::new(&self.about);
        Ok(Plan { packing, index, rows: rows.map(|count| count as usize), frozen: self })
    }
}

/// The lists that an edge is in, and whose.
fn ends(edge: Sealed) -> [Option<(List, u32)>; 2] {
    if edge.source == edge.target {
        [Some((List::Loops, edge.source)), None]
    } else {
        [Some((List::Out, edge.source)), Some((List::In, edge.target))]
    }
}

impl Plan {
    /// What the segment holds, in numbers.
    pub fn about(&self) -> &About {
        &self.frozen.about
    }

    /// How much room it needs.
    pub fn sizes(&self) -> Sizes {
        let About { numbers, edges, loops, .. } = self.frozen.about;
        let (numbers, edges, loops) = (numbers as usize, edges as usize, loops as usize);
        let has_table = self.packing.has_table(&self.frozen.about);
        Sizes {
            index: self.index.len(),
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
    /// Room of the wrong size; nothing of use has been written then.
    pub fn fill(&self, room: &mut Room<'_>) -> Result<(), GraphError> {
        self.check(room)?;
        room.index.copy_from_slice(&self.index);
        room.ids.copy_from_slice(&self.frozen.ids);
        for (to, from) in room.values.iter_mut().zip(&self.frozen.values) {
            to.copy_from_slice(from);
        }
        for (to, from) in room.times.iter_mut().zip(&self.frozen.records) {
            *to = from.time;
        }
        for list in List::ALL {
            self.sort(list, room.starts[list as usize], room.entries[list as usize]);
        }
        Ok(())
    }

    /// One list by a counting sort, which keeps the order of arrival within a row.
    fn sort(&self, list: List, starts: &mut [i32], entries: &mut [u64]) {
        let rows = |edge: Sealed| {
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
        for (rank, edge) in self.frozen.edges() {
            let other = if list == List::In { edge.source } else { edge.target };
            let Some(at) = rows(edge).and_then(|row| next.get_mut(row)) else { continue };
            if let Some(entry) = entries.get_mut(*at as usize) {
                *entry = self.packing.pack(rank, edge.time, other);
            }
            *at += 1;
        }
    }

    fn check(&self, room: &Room<'_>) -> Result<(), GraphError> {
        let given = Sizes {
            index: room.index.len(),
            starts: room.starts.each_ref().map(|one| one.len()),
            entries: room.entries.each_ref().map(|one| one.len()),
            times: room.times.len(),
            ids: room.ids.len(),
            values: room.values.iter().map(|one| one.len()).collect(),
        };
        let total = |sizes: &Sizes| {
            let lists = sizes.starts.iter().chain(&sizes.entries).chain(&sizes.values);
            sizes.index + sizes.times + sizes.ids + lists.sum::<usize>()
        };
        let wanted = self.sizes();
        if given == wanted {
            return Ok(());
        }
        Err(GraphError::Room { given: total(&given), expected: total(&wanted) })
    }

    /// The segment in memory of this process.
    ///
    /// # Errors
    /// As [`Segment::new`].
    pub fn build(self) -> Result<Segment, GraphError> {
        let sizes = self.sizes();
        let mut index = vec![0; sizes.index];
        let mut starts = sizes.starts.map(|length| vec![0; length]);
        let mut entries = sizes.entries.map(|length| vec![0; length]);
        let (mut times, mut ids) = (vec![0; sizes.times], vec![0; sizes.ids]);
        let mut values: Vec<_> = sizes.values.iter().map(|&length| vec![0.0; length]).collect();
        self.fill(&mut Room {
            index: &mut index,
            starts: starts.each_mut().map(Vec::as_mut_slice),
            entries: entries.each_mut().map(Vec::as_mut_slice),
            times: &mut times,
            ids: &mut ids,
            values: values.iter_mut().map(Vec::as_mut_slice).collect(),
        })?;
        let buffers = Buffers {
            index: ScalarBuffer::from(index),
            starts: starts.map(ScalarBuffer::from),
            entries: entries.map(ScalarBuffer::from),
            times: ScalarBuffer::from(times),
            ids: ScalarBuffer::from(ids),
            values: values.into_iter().map(ScalarBuffer::from).collect(),
        };
        Segment::new(self.frozen.about, buffers)
    }
}
