//! The location of rows: the chunks of a table by version and by row. No memory, no messages.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use farrow_store::ObjectId;

/// Maximum number of rows of a table: Arrow counts in `i64`.
pub(super) const ROWS_MAX: u64 = i64::MAX as u64;

/// Rows of a huge table that are together in the memory of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// The version that added them, from 1 on.
    pub version: u64,
    /// The first row.
    pub position: u64,
    /// Number of rows.
    pub rows: u64,
    /// The node in whose memory they are; empty without a cluster.
    pub node: Arc<str>,
    /// Bytes of their buffers.
    pub bytes: u64,
    /// The object that contains them.
    pub id: ObjectId,
}

impl Partition {
    /// The row behind the last one.
    pub fn end(&self) -> u64 {
        self.position.saturating_add(self.rows)
    }
}

/// Why rows cannot be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Clash {
    /// There are no rows.
    Empty,
    /// The rows would end beyond the last possible one.
    TooFar,
    /// Some of the rows exist.
    Taken(Partition),
    /// Another version is the next one.
    Version { next: u64 },
}

/// All chunks up to a version; each version adds one, and none ever changes but its place.
#[derive(Debug, Clone, Default)]
pub(super) struct ChunkList {
    by_version: Vec<Partition>,
    /// Indices into `by_version`, by the first row.
    by_row: BTreeMap<u64, usize>,
}

impl ChunkList {
    /// The last version; 0 for an empty table.
    pub(super) fn version(&self) -> u64 {
        self.by_version.len() as u64
    }

    /// The chunk of the last version.
    pub(super) fn last(&self) -> Option<&Partition> {
        self.by_version.last()
    }

    /// The row behind the last existing one.
    pub(super) fn end(&self) -> u64 {
        // Chunks do not overlap: the last to begin is the last to end.
        self.by_row.last_key_value().and_then(|(_, at)| self.by_version.get(*at)).map_or(0, end)
    }

    /// Whether these rows could become the next version.
    pub(super) fn check(&self, position: u64, rows: u64) -> Result<(), Clash> {
        if rows == 0 {
            return Err(Clash::Empty);
        }
        let until = position.checked_add(rows).filter(|until| *until <= ROWS_MAX);
        let until = until.ok_or(Clash::TooFar)?;
        // Of the chunks that begin before the end, the last one reaches farthest.
        let before = self.by_row.range(..until).next_back();
        let before = before.and_then(|(_, at)| self.by_version.get(*at));
        match before.filter(|one| one.end() > position) {
            Some(taken) => Err(Clash::Taken(taken.clone())),
            None => Ok(()),
        }
    }

    /// Adds the next version.
    pub(super) fn add(&mut self, chunk: Partition) -> Result<(), Clash> {
        let next = self.version() + 1;
        if chunk.version != next {
            return Err(Clash::Version { next });
        }
        self.check(chunk.position, chunk.rows)?;
        self.by_row.insert(chunk.position, self.by_version.len());
        self.by_version.push(chunk);
        Ok(())
    }

    /// Notes that a chunk has moved to another node, where it has another id.
    pub(super) fn relocate(&mut self, version: u64, node: Arc<str>, id: ObjectId) {
        let number = version.checked_sub(1).and_then(|number| usize::try_from(number).ok());
        if let Some(chunk) = number.and_then(|number| self.by_version.get_mut(number)) {
            (chunk.node, chunk.id) = (node, id);
        }
    }

    /// Some of the chunks, by version.
    pub(super) fn chunks_where(&self, is_it: impl Fn(&Partition) -> bool) -> Vec<Partition> {
        self.by_version.iter().filter(|one| is_it(one)).cloned().collect()
    }

    /// The chunks of a version, by row.
    pub(super) fn chunks(&self, version: u64) -> Vec<Partition> {
        let all = self.by_row.values().filter_map(|at| self.by_version.get(*at));
        all.filter(|one| one.version <= version).cloned().collect()
    }
}

fn end(chunk: &Partition) -> u64 {
    chunk.end()
}

/// The first gap before the last of these chunks, which are in order.
pub(super) fn first_gap(chunks: &[Partition]) -> Option<Range<u64>> {
    let mut next = 0;
    for chunk in chunks {
        if chunk.position > next {
            return Some(next..chunk.position);
        }
        next = chunk.end();
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn chunk(version: u64, position: u64, rows: u64) -> Partition {
        let id = ObjectId { hi: 1, lo: version };
        Partition { version, position, rows, node: "a".into(), bytes: 8 * rows, id }
    }

    /// The check under test: whether rows are taken, and by which chunk.
    type RowsCheck = fn(&ChunkList, u64, u64) -> Result<(), Clash>;

    /// Adds the rows that `check` admits, and compares each step with a model: a set of single
    /// rows.
    fn compare(check: RowsCheck, requested: &[(u64, u64)]) -> Result<(), String> {
        let mut layout = ChunkList::default();
        let mut owners: BTreeMap<u64, u64> = BTreeMap::new();
        let mut ends = vec![0];
        for &(position, rows) in requested {
            let wanted: BTreeSet<u64> = (position..position + rows).collect();
            let taken: BTreeSet<u64> =
                wanted.iter().filter_map(|row| owners.get(row).copied()).collect();
            match check(&layout, position, rows) {
                Err(Clash::Empty) if rows == 0 => continue,
                Err(Clash::Taken(by)) if taken.contains(&by.version) => continue,
                Ok(()) if taken.is_empty() && rows > 0 => {}
                other => return Err(format!("{position}+{rows}: {other:?}, taken {taken:?}")),
            }
            let version = layout.version() + 1;
            let added = layout.add(chunk(version, position, rows));
            added.map_err(|clash| format!("{position}+{rows}: {clash:?}"))?;
            owners.extend(wanted.iter().map(|row| (*row, version)));
            ends.push(owners.last_key_value().map_or(0, |(row, _)| row + 1));
            if Some(&layout.end()) != ends.last() {
                return Err(format!("ends at {}, not {ends:?}", layout.end()));
            }
        }
        for version in 0..=layout.version() {
            let chunks = layout.chunks(version);
            let rows: Vec<u64> = chunks.iter().flat_map(|one| one.position..one.end()).collect();
            let known = owners.iter().filter(|(_, by)| **by <= version).map(|(row, _)| *row);
            let known: Vec<u64> = known.collect();
            if rows != known {
                return Err(format!("version {version} has rows {rows:?}, not {known:?}"));
            }
            let end = known.last().map_or(0, |row| row + 1);
            let missing = (0..end).find(|row| !known.contains(row)).map(|first| {
                let after = (first..).find(|row| known.contains(row));
                first..after.unwrap_or(first)
            });
            if first_gap(&chunks) != missing {
                return Err(format!("gap {:?}, not {missing:?}", first_gap(&chunks)));
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn it_says_what_a_set_of_rows_says(
            requested in proptest::collection::vec((0_u64..60, 0_u64..12), 0..24),
        ) {
            prop_assert_eq!(compare(ChunkList::check, &requested), Ok(()));
        }
    }

    #[test]
    fn canary_a_check_that_forgets_a_row_is_caught() {
        let forgets_the_first: RowsCheck =
            |layout, position, rows| match layout.check(position, rows) {
                Err(Clash::Taken(by)) if by.end() == position + 1 => Ok(()),
                other => other,
            };
        assert!(compare(forgets_the_first, &[(0, 5), (4, 5)]).is_err());
        let forgets_the_last: RowsCheck =
            |layout, position, rows| match layout.check(position, rows) {
                Err(Clash::Taken(by)) if by.position + 1 == position + rows => Ok(()),
                other => other,
            };
        assert!(compare(forgets_the_last, &[(4, 5), (0, 5)]).is_err());
        let refuses_neighbours: RowsCheck = |layout, position, rows| {
            layout.check(position, rows).and_then(|()| layout.check(position, rows + 1))
        };
        assert!(compare(refuses_neighbours, &[(4, 5), (0, 4)]).is_err());
    }

    #[test]
    fn rows_end_where_arrow_stops_counting() {
        let layout = ChunkList::default();
        assert_eq!(layout.check(ROWS_MAX - 1, 1), Ok(()));
        assert_eq!(layout.check(ROWS_MAX - 1, 2), Err(Clash::TooFar));
        assert_eq!(layout.check(u64::MAX, 1), Err(Clash::TooFar));
        assert_eq!(layout.check(1, u64::MAX), Err(Clash::TooFar));
        assert_eq!(layout.check(0, 0), Err(Clash::Empty));
    }

    #[test]
    fn versions_come_one_after_the_other() {
        let mut layout = ChunkList::default();
        assert_eq!(layout.add(chunk(2, 0, 1)), Err(Clash::Version { next: 1 }));
        layout.add(chunk(1, 0, 1)).unwrap();
        assert_eq!(layout.add(chunk(1, 1, 1)), Err(Clash::Version { next: 2 }));
        assert_eq!((layout.version(), layout.end()), (1, 1));
        layout.relocate(1, "b".into(), ObjectId { hi: 2, lo: 7 });
        layout.relocate(2, "c".into(), ObjectId { hi: 3, lo: 7 });
        let moved = Partition { node: "b".into(), id: ObjectId { hi: 2, lo: 7 }, ..chunk(1, 0, 1) };
        assert_eq!(layout.chunks(1), std::slice::from_ref(&moved));
        assert_eq!(layout.chunks_where(|one| one.id.hi == 2), [moved]);
        assert_eq!(layout.chunks_where(|one| one.id.hi == 1), []);
    }
}
