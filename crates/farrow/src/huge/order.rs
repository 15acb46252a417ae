//! The order of a table: fixed at its creation, checked at each append by the statistics of the
//! chunks.

use std::collections::HashMap;

use farrow_arrow::statistics::TableStatistics;

use super::keys::{ChunkKeys, name_of};
use super::{HugeTable, Partition};
use crate::error::Error;
use crate::lock::lock;

/// Chunks beside new rows whose statistics are read at a time.
const CHUNKS_AT_A_TIME: usize = 32;

/// A chunk beside new rows, and the first and the last value of its sorted column.
struct AdjacentChunk {
    chunk: Partition,
    first: i128,
    last: i128,
}

impl HugeTable {
    /// The column by which the rows of each partition ascend.
    pub fn sort_by(&self) -> Option<&str> {
        self.order.sort_by.map(|number| name_of(&self.schema, number))
    }

    /// The columns that have one value in each chunk.
    pub fn partition_by(&self) -> Vec<&str> {
        self.order.partition_by.iter().map(|number| name_of(&self.schema, *number)).collect()
    }

    /// The keys of new rows with these statistics.
    pub(super) fn new_keys(&self, found: Option<&TableStatistics>) -> Result<ChunkKeys, Error> {
        let refused = |why: String| {
            Error::InvalidArgument(format!("rows for huge table {:?}: {why}", self.name))
        };
        let found = found.ok_or_else(|| refused("their statistics cannot be read".into()))?;
        self.order.keys(&self.schema, found).map_err(refused)
    }

    /// Fails unless rows with these keys fit between the chunks before and behind them, as of the
    /// version before.
    pub(super) fn check_order(
        &self,
        keys: &ChunkKeys,
        version: u64,
        position: u64,
    ) -> Result<(), Error> {
        let Some((first, last)) = keys.range else { return Ok(()) };
        let chunks = self.snapshot(Some(version.saturating_sub(1)))?.partitions;
        let at = chunks.partition_point(|chunk| chunk.position < position);
        let (before, behind) = chunks.split_at_checked(at).unwrap_or((&chunks, &[]));
        let name = self.sort_by().unwrap_or_default();
        let table = &self.name;
        if let Some(AdjacentChunk { chunk, last: end, .. }) =
            self.nearest(keys, before.iter().rev())?
            && first < end
        {
            let row = chunk.end().saturating_sub(1);
            return Err(Error::InvalidArgument(format!(
                "huge table {table:?} ascends by {name:?}: new rows at {position} begin with \
                 {first}, and row {row} before them has {end}"
            )));
        }
        if let Some(AdjacentChunk { chunk, first: start, .. }) =
            self.nearest(keys, behind.iter())?
            && last > start
        {
            return Err(Error::InvalidArgument(format!(
                "huge table {table:?} ascends by {name:?}: new rows at {position} end with \
                 {last}, and row {} behind them has {start}",
                chunk.position
            )));
        }
        Ok(())
    }

    /// The first of these chunks in the same partition.
    fn nearest<'a>(
        &self,
        keys: &ChunkKeys,
        chunks: impl Iterator<Item = &'a Partition>,
    ) -> Result<Option<AdjacentChunk>, Error> {
        let chunks: Vec<Partition> = chunks.cloned().collect();
        // Most appends follow a chunk of their partition.
        let mut left = chunks.as_slice();
        let mut many = 1;
        while !left.is_empty() {
            let (some, rest) = left.split_at_checked(many).unwrap_or((left, &[]));
            for (chunk, found) in some.iter().zip(self.known_keys(some)?) {
                if let Some((first, last)) = found.range
                    && found.partition == keys.partition
                {
                    return Ok(Some(AdjacentChunk { chunk: chunk.clone(), first, last }));
                }
            }
            (left, many) = (rest, CHUNKS_AT_A_TIME);
        }
        Ok(None)
    }

    /// The keys of chunks of this table, which never change.
    fn known_keys(&self, chunks: &[Partition]) -> Result<Vec<ChunkKeys>, Error> {
        let mut known: HashMap<u64, ChunkKeys> = HashMap::new();
        {
            let state = lock(&self.state);
            for chunk in chunks {
                if let Some(keys) = state.keys.get(&chunk.version) {
                    known.insert(chunk.version, keys.clone());
                }
            }
        }
        let unknown = chunks.iter().filter(|chunk| !known.contains_key(&chunk.version));
        let unknown: Vec<Partition> = unknown.cloned().collect();
        for (chunk, found) in unknown.iter().zip(self.statistics(&unknown)?) {
            let damaged = |why: String| {
                let (version, table) = (chunk.version, &self.name);
                Error::InvalidDescriptor(format!("version {version} of {table:?}: {why}"))
            };
            let found = found.ok_or_else(|| damaged("it has no statistics".into()))?;
            let keys = self.order.keys(&self.schema, &found).map_err(damaged)?;
            known.insert(chunk.version, keys);
        }
        let mut state = lock(&self.state);
        state.keys.extend(known.iter().map(|(version, keys)| (*version, keys.clone())));
        Ok(chunks.iter().filter_map(|chunk| known.get(&chunk.version).cloned()).collect())
    }
}
