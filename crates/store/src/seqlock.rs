//! Publish against lookup: a record of several words with a sequence number in the first.
//!
//! The writer changes the first word, writes the others, and stores the first word again. A reader
//! copies the record out between two loads of the first word. Neither waits for the other.
//!
//! Generic over two small traits, so that a model checker can replace mapped memory.

use farrow_memory::sync::{Ordering, fence};

/// The one writer of a record.
pub(crate) trait RecordWriter {
    type Error;
    /// Store the first word, after everything stored before (release).
    fn store_first(&self, word: u64) -> Result<(), Self::Error>;
    /// Store all words but the first, in any order.
    fn store_rest(&self, words: &[u64]) -> Result<(), Self::Error>;
    /// Orders earlier stores before later ones (release).
    fn fence(&self) {
        fence(Ordering::Release);
    }
}

/// Mark the record as being written, and store all its words but the first.
pub(crate) fn fill<W: RecordWriter>(record: &W, opened: u64, rest: &[u64]) -> Result<(), W::Error> {
    record.store_first(opened)?;
    record.fence();
    record.store_rest(rest)
}

/// A reader of a record. `None`: its memory is not accessible.
pub(crate) trait RecordReader {
    /// Load the first word: with acquire, or relaxed after a fence.
    fn first(&self, order: Ordering) -> Option<u64>;
    /// Load another word, relaxed.
    fn word(&self, index: usize) -> Option<u64>;
    /// Orders earlier loads before later ones (acquire).
    fn fence(&self) {
        fence(Ordering::Acquire);
    }
}

/// The result of a copy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Copied<const WORDS: usize> {
    /// The first word is not a wanted one.
    Other,
    /// The record changed during the copy.
    Changed,
    /// All words, as of one moment.
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

/// Copy a record of one life that another process than its writer ends. `is_open` is checked after
/// the fence of the copy, because the words of the next life are stored only after this one ends.
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

/// Load a life and the forward that the home stored in it; 0: none. `None`: the life has changed, so
/// the forward may be of the next one. Both loads are with acquire. The home stores the forward of a
/// life after that life, so a reader that sees it sees at its second look that its own is over.
pub(crate) fn forward_in_life<L: PartialEq>(
    life: impl Fn() -> L,
    forward: impl Fn() -> u64,
) -> Option<(L, u64)> {
    let before = life();
    let to = forward();
    (to == 0 || life() == before).then_some((before, to))
}

/// Whether the first word is unchanged since before all loads up to here.
pub(crate) fn is_still(record: &impl RecordReader, first: u64) -> Option<bool> {
    record.fence();
    Some(record.first(Ordering::Relaxed)? == first)
}
