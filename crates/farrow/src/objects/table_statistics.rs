//! Statistics of a put table: counted while it is copied, stored in its metadata.
//!
//! There they appear and vanish with the object in one step, and spills, moves and replicas take
//! them along. They describe one value: a put never takes them from the metadata of another one.
//! `docs/formats/statistics.md` has the bytes.

use farrow_arrow::statistics::{Counting, PartsLayout, TableStatistics, decode_parts};
use farrow_arrow::{BatchData, SchemaNode};
use farrow_store::{METADATA_BYTES_MAX, Metadata};

use crate::error::Error;
use crate::options::ObjectOptions;
use crate::statistics::{from_base64, to_base64};
use crate::value::Value;

/// The key of the statistics of a put table in its metadata.
pub const STATISTICS_KEY: &str = "farrow.statistics";

/// The longest statistics of a table, as of a chunk of a huge table.
const BYTES_MAX: usize = 3000;

/// Bytes of a pair of metadata besides its key and value, rounded up.
const PAIR_BYTES: usize = 8;

/// The statistics of a table that is being put.
pub(crate) struct TableCount<'a> {
    schema: &'a SchemaNode,
    batches: &'a [BatchData],
    layout: PartsLayout,
    /// The other pairs of its metadata.
    pairs: Metadata,
}

impl<'a> TableCount<'a> {
    /// `None` if none are wanted, or nothing can be stored: the value is no table, or its metadata
    /// has no room.
    pub(crate) fn new(value: &Value<'a>, options: &ObjectOptions<'_>) -> Option<Self> {
        let (schema, batches) = value.batches().filter(|_| options.statistics)?;
        let pairs = without_statistics(options.metadata);
        let taken = pairs.encode().len() + STATISTICS_KEY.len() + PAIR_BYTES;
        // Four characters of base64 have three bytes.
        let room = (METADATA_BYTES_MAX as usize).saturating_sub(taken) / 4 * 3;
        let layout = PartsLayout::new(schema, batches, room.min(BYTES_MAX))?;
        Some(Self { schema, batches, layout, pairs })
    }

    /// Metadata of the length that [`Self::finish`] returns.
    pub(crate) fn placeholder(&self) -> Result<Metadata, Error> {
        self.metadata(&vec![0; self.layout.bytes()])
    }

    /// Plans the count.
    pub(crate) fn counting(&self) -> Counting<'a> {
        self.layout.counting(self.schema, self.batches)
    }

    /// The metadata of the object, once everything is counted.
    pub(crate) fn finish(&self, counting: &Counting<'_>) -> Result<Metadata, Error> {
        match self.layout.encode(&counting.finish_parts(), self.schema) {
            Some(bytes) => self.metadata(&bytes),
            None => self.placeholder(),
        }
    }

    fn metadata(&self, statistics: &[u8]) -> Result<Metadata, Error> {
        let text = to_base64(statistics);
        let pairs = self.pairs.iter().chain([(STATISTICS_KEY, text.as_str())]);
        Metadata::new(pairs).map_err(|error| Error::InvalidArgument(error.to_string()))
    }
}

/// The metadata without statistics of another value: a program may give a new table the metadata of
/// an old one.
pub(crate) fn without_statistics(metadata: Option<&Metadata>) -> Metadata {
    let Some(metadata) = metadata else { return Metadata::default() };
    let pairs = metadata.iter().filter(|(key, _)| *key != STATISTICS_KEY);
    // Fewer pairs than are valid metadata are valid.
    Metadata::new(pairs).unwrap_or_default()
}

/// Reads the statistics of the parts of a table, in the order of their rows, as they are under
/// [`STATISTICS_KEY`] of its metadata. `None` for another version, another schema or number of rows,
/// and for text that is damaged: then all rows are read.
#[must_use]
pub fn parts_statistics(
    text: &str,
    schema: &SchemaNode,
    rows: u64,
) -> Option<Vec<TableStatistics>> {
    decode_parts(&from_base64(text)?, schema, rows)
}
