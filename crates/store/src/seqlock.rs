//! Publish against lookup: a record of several words with a number in the first.
//!
//! The writer changes the first word, writes the others, and stores the first word again; a
//! reader copies the record out between two loads of the first word. Nobody waits for anybody.
//!
//! Written over two small traits, so that a model checker can stand in for mapped memory.

use farrow_memory::sync::{Ordering, fence};

/// The one writer of a record.
pub(crate) trait RecordWriter {
    type Error;
    /// Store the first word, after everything stored before (release).
    fn store_first(&self, word: u64) -> Result<(), Self::Error>;
    /// Store all words but the first, in no order.
    fn store_rest(&self, words: &[u64]) -> Result<(), Self::Error>;
    /// Stores before are seen before stores after (release).
    fn fence(&self) {
        fence(Ordering::Release);
    }
}

/// Store that the record is being written, and all words of it but the first.
pub(crate) fn fill<W: RecordWriter>(record: &W, opened: u64, rest: &[u64]) -> Result<(), W::Error> {
    record.store_first(opened)?;
    record.fence();
    record.store_rest(rest)
}

/// A reader of a record. `None`: its memory cannot be reached.
pub(crate) trait RecordReader {
    /// Load the first word; acquire, or relaxed where a fence came before.
    fn first(&self, order: Ordering) -> Option<u64>;
    /// Load another word, relaxed.
    fn word(&self, index: usize) -> Option<u64>;
    /// Loads before are done before loads after (acquire).
    fn fence(&self) {
        fence(Ordering::Acquire);
    }
}

/// What a copy is worth.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Copied<const WORDS: usize> {
    /// The first word is not one that is wanted.
    Other,
    /// It changed while it was copied.
    Changed,
    /// All words, as they were at one moment.
    Words([u64; WORDS]),
}

/// Copy a record whose first word is wanted.
pub(crate) fn copy<const WORDS: usize>(
    record: &impl RecordReader,
    is_wanted: impl Fn(u64) -> bool,
) -> Option<Copied<WORDS>> {
    let mut words = [0; WORDS];
    let first = record.first(Ordering::Acquire)?;
    if !is_wanted(first) {
        return Some(Copied::Other);
    }
    for (i, word) in words.iter_mut().enumerate() {
        *word = if i == 0 { first } else { record.word(i)? };
    }
    Some(if is_still(record, first)? { Copied::Words(words) } else { Copied::Changed })
}

/// Copy a record of one life, which somebody else than its writer ends. The life is looked at
/// behind the fence of the copy, as the words of the next one are stored only when it is over.
pub(crate) fn copy_in_life<const WORDS: usize>(
    record: &impl RecordReader,
    first: u64,
    is_open: impl Fn() -> bool,
) -> Option<[u64; WORDS]> {
    match copy(record, |word| word == first)? {
        Copied::Words(words) if is_open() => Some(words),
        _ => None,
    }
}

/// Whether the first word is what it was before everything that was loaded since.
pub(crate) fn is_still(record: &impl RecordReader, first: u64) -> Option<bool> {
    record.fence();
    Some(record.first(Ordering::Relaxed)? == first)
}
