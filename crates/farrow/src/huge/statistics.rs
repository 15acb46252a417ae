//! Statistics of chunks: counted while a chunk is copied, stored in its metadata.
//!
//! There they appear and vanish with the chunk in one step, and a reader finds them by loads. The
//! metadata has room for the first hundred columns or so. `docs/formats/statistics.md` has the
//! bytes.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::thread;
use std::time::Instant;

use farrow_arrow::statistics::{Counting, TableStatistics, reserved_bytes};
use farrow_arrow::{BatchData, SchemaNode};
use farrow_memory::BeforeCopy;
use farrow_store::Metadata;

use super::labels::STATISTICS_BYTES_MAX as BYTES_MAX;
use super::place::{FoundObject, Place};
use super::{HugeTable, Partition, labels};
use crate::clock::deadline_after;
use crate::error::Error;

/// A small chunk has at least this much room for them, and more by its size.
pub(super) const SMALL_BYTES_MAX: usize = 256;
/// Statistics are smaller than the values that they describe by this factor.
const VALUES_PER_BYTE: usize = 2;
/// Tasks from which on a thread pays: below, its start takes as long as the count.
const TASKS_PER_THREAD: usize = 32;
/// More threads only wait for memory, which the copy needs as well.
const THREADS_MAX: usize = 4;

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
    pub(super) fn within<T>(&self, copy: impl FnOnce(Option<BeforeCopy<'_>>) -> T) -> T {
        let Self::Beside { counting, .. } = self else {
            return copy(None);
        };
        let copied = copy(Some(&|piece| counting.work_on(piece)));
        count_while(counting, || copied)
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

/// Does all tasks, in the caller's thread after `work` and in threads of its own beside it.
fn count_while<T>(counting: &Counting<'_>, work: impl FnOnce() -> T) -> T {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let useful = (counting.tasks_left() / TASKS_PER_THREAD).min(THREADS_MAX);
    thread::scope(|scope| {
        for _ in 0..useful.min(cores.div_ceil(2)) {
            // Without a thread, the caller counts all of it.
            let thread = thread::Builder::new().name("farrow-statistics".into());
            drop(thread.spawn_scoped(scope, || counting.work()));
        }
        let done = work();
        counting.work();
        done
    })
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

/// The alphabet of RFC 4648, section 4.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 without padding.
fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | u32::from(*group.get(at).unwrap_or(&0)));
        for at in 0..=group.len() {
            let digit = bits >> (18 - 6 * at) & 63;
            text.push(ALPHABET.get(digit as usize).map_or('A', |digit| char::from(*digit)));
        }
    }
    text
}

/// The bits of each digit of [`ALPHABET`]; [`NO_DIGIT`] for other bytes.
const DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let mut bits = 0;
    while bits < ALPHABET.len() {
        digits[ALPHABET[bits] as usize] = bits as u8;
        bits += 1;
    }
    digits
};

const NO_DIGIT: u8 = u8::MAX;

/// The bytes of a text that [`to_base64`] returned; `None` for other characters.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.as_bytes().chunks(4) {
        let mut bits = 0_u32;
        for digit in group {
            let digit = DIGITS.get(usize::from(*digit)).filter(|digit| **digit != NO_DIGIT)?;
            bits = bits << 6 | u32::from(*digit);
        }
        bits <<= 6 * (4 - group.len()) as u32;
        // A group of one to four digits is none to three bytes of the lower three.
        bytes.extend(bits.to_be_bytes().get(1..group.len())?);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_is_that_of_the_rfc() {
        let pairs = [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg")];
        for (bytes, text) in pairs {
            assert_eq!(to_base64(bytes.as_bytes()), text);
            assert_eq!(from_base64(text).as_deref(), Some(bytes.as_bytes()));
        }
        assert_eq!(from_base64("Zm=v"), None);
        assert_eq!(from_base64("\u{e4}"), None);
    }

    proptest! {
        #[test]
        fn all_bytes_come_back(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(from_base64(&to_base64(&bytes)), Some(bytes));
        }
    }
}
