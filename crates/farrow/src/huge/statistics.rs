//! Statistics of chunks: counted while a chunk is copied, stored in its metadata.
//!
//! There they appear and vanish with the chunk in one step, and a reader finds them by loads. The
//! metadata has room for the first hundred columns or so. `docs/formats/statistics.md` has the
//! bytes.

use std::collections::BTreeMap;
use std::time::Instant;

use farrow_arrow::statistics::{Counting, TableStatistics, reserved_bytes};
use farrow_arrow::{BatchData, SchemaNode};
use farrow_memory::AfterCopy;
use farrow_store::Metadata;

use super::labels::STATISTICS_BYTES_MAX as BYTES_MAX;
use super::place::{FoundObject, Place};
use super::{HugeTable, Partition, labels};
use crate::clock::deadline_after;
use crate::error::Error;
use crate::statistics::{TASKS_PER_THREAD, count_while, count_within, from_base64, to_base64};

/// A small chunk has at least this much room for them, and more by its size.
pub(super) const SMALL_BYTES_MAX: usize = 256;
/// Statistics are smaller than the values that they describe by this factor.
const VALUES_PER_BYTE: usize = 2;

/// Chunks of a node whose metadata is read at a time; if a message is needed, it costs as much as
/// one.
const CHUNKS_AT_A_TIME: usize = 32;

/// The statistics of a chunk that is being appended.
pub(super) enum ChunkCount<'a> {
    Nothing,
    /// Counted at once, since the chunk is small.
    Done(String),
    /// To be counted while the chunk is copied.
    Beside {
        schema: &'a SchemaNode,
        counting: Counting<'a>,
        /// Bytes reserved for the result.
        bytes: usize,
    },
}

impl<'a> ChunkCount<'a> {
    /// `wanted` is the room that a small chunk has for them at least; `None`: none are wanted.
    pub(super) fn new(
        schema: &'a SchemaNode,
        batches: &'a [BatchData],
        wanted: Option<usize>,
    ) -> Self {
        let (fields, bytes) = reserved_bytes(schema, BYTES_MAX);
        let Some(least) = wanted.filter(|_| fields > 0) else {
            return Self::Nothing;
        };
        let counting = Counting::new(schema, batches, fields);
        if counting.tasks_left() >= TASKS_PER_THREAD {
            return Self::Beside { schema, counting, bytes };
        }
        let columns = schema.children().len();
        let values = batches.iter().map(|batch| batch.rows.saturating_mul(columns));
        let values = values.fold(0, usize::saturating_add);
        let room = (values / VALUES_PER_BYTE).clamp(least, BYTES_MAX);
        let encoded = counting.finish().encode(schema, room);
        encoded.map_or(Self::Nothing, |bytes| Self::Done(to_base64(&bytes)))
    }

    /// A text of the length that [`Self::finish`] returns.
    pub(super) fn placeholder(&self) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::Done(text) => Some(text.clone()),
            Self::Beside { bytes, .. } => Some(to_base64(&vec![0; *bytes])),
        }
    }

    /// Counts what `copy` copies, piece by piece, so that memory is read once for both; then, in
    /// several threads, what it has not copied.
    pub(super) fn within<T, E>(
        &self,
        copy: impl FnOnce(Option<AfterCopy<'_>>) -> Result<T, E>,
    ) -> Result<T, E> {
        let Self::Beside { counting, .. } = self else {
            return copy(None);
        };
        count_within(counting, copy)
    }

    /// Counts in threads of its own while `copy` waits for another node.
    pub(super) fn beside<T>(&self, copy: impl FnOnce() -> T) -> T {
        match self {
            Self::Beside { counting, .. } => count_while(counting, copy),
            _ => copy(),
        }
    }

    /// The statistics as text, after [`Self::within`] or [`Self::beside`].
    pub(super) fn finish(self) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::Done(text) => Some(text),
            Self::Beside { schema, counting, bytes } => {
                let mut encoded = counting.finish().encode(schema, bytes)?;
                encoded.resize(bytes, 0);
                Some(to_base64(&encoded))
            }
        }
    }
}

impl HugeTable {
    /// The statistics of some partitions of this table, each `None` if it has none that can be
    /// read. Sends no message to nodes whose memory is mapped.
    ///
    /// # Errors
    ///
    /// [`Error::NodeLost`] names a node that has chunks of the table, [`Error::NotFound`] when the
    /// table was dropped or a chunk deleted.
    pub fn statistics(
        &self,
        partitions: &[Partition],
    ) -> Result<Vec<Option<TableStatistics>>, Error> {
        let mut by_node: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (number, chunk) in partitions.iter().enumerate() {
            by_node.entry(chunk.id.region().0).or_default().push(number);
        }
        let mut all = vec![None; partitions.len()];
        for (region, numbers) in by_node {
            for some in numbers.chunks(CHUNKS_AT_A_TIME) {
                let chunks = some.iter().filter_map(|number| partitions.get(*number));
                let name =
                    |chunk: &Partition| labels::chunk_name(&self.name, self.id, chunk.version);
                let names: Vec<String> = chunks.clone().map(name).collect();
                let node = chunks.clone().next().map_or("", |chunk| &chunk.node);
                let found = match Place::new(&self.client, region, node) {
                    Ok(place) => place.find(&names)?,
                    // Its chunks may have moved before it left.
                    Err(Error::NodeLost { .. }) => vec![None; names.len()],
                    Err(error) => return Err(error),
                };
                for ((number, chunk), found) in some.iter().zip(chunks).zip(found) {
                    let found = match found {
                        Some(found) => found,
                        None => self.find_again(chunk)?,
                    };
                    if let Some(place) = all.get_mut(*number) {
                        *place = self.read_statistics(&found.metadata, chunk.rows);
                    }
                }
            }
        }
        Ok(all)
    }

    /// A chunk that is not where it was seen.
    fn find_again(&self, chunk: &Partition) -> Result<FoundObject, Error> {
        let name = labels::chunk_name(&self.name, self.id, chunk.version);
        let deadline = deadline_after(self.client.session().timeout);
        loop {
            let now = self.relocate(chunk)?;
            let place = Place::new(&self.client, now.id.region().0, &now.node)?;
            match place.find_one(&name)? {
                Some(found) => return Ok(found),
                None if Instant::now() >= deadline => {
                    return Err(self.removed_version(chunk.version));
                }
                // It has moved on.
                None => {}
            }
        }
    }

    fn read_statistics(&self, metadata: &Metadata, rows: u64) -> Option<TableStatistics> {
        self.decode_statistics(metadata.get(labels::STATISTICS_KEY)?, rows)
    }

    /// The statistics that [`ChunkCount::finish`] returned for this number of rows.
    pub(super) fn decode_statistics(&self, text: &str, rows: u64) -> Option<TableStatistics> {
        TableStatistics::decode(&from_base64(text)?, &self.schema, rows)
    }
}
