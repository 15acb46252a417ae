//! The ring as an algorithm: one writer, any number of readers, each with a place of its own.
//!
//! A place of the ring holds event `n` while its first word is `n + 1`; 0 says that it is being
//! written. The writer fills a place before it changes what the event tells of, and publishes it
//! afterwards, so that a kill in between leaves a draft in the ring and no change goes untold. A
//! reader copies a place out between two loads of its first word. It never waits, and the writer
//! never waits for it: who is too slow finds another number there, and knows how many it missed.
//!
//! Written over two small traits, so that a model checker can stand in for mapped memory.

use crate::failpoint;
use crate::seqlock::{self, Copied, RecordReader, RecordWriter};

/// Words of a place: 8, and a name of up to 256 bytes.
pub(crate) const EVENT_WORDS: usize = 40;

/// What a reader loads.
pub(crate) trait RingRead {
    /// How many events were ever published (acquire).
    fn head(&self) -> Option<u64>;
    /// The place that starts at word `first` of the ring.
    fn place(&self, first: usize) -> impl RecordReader;
}

/// What the writer stores.
pub(crate) trait RingWrite {
    type Error;
    /// The place that starts at word `first` of the ring.
    fn place(&self, first: usize) -> impl RecordWriter<Error = Self::Error>;
    /// Store how many events were published, after everything stored before.
    fn store_head(&self, head: u64) -> Result<(), Self::Error>;
}

/// First word of the place of event `number`.
pub(crate) fn first_word<const WORDS: usize>(number: u64, capacity: u32) -> usize {
    // A capacity of at most 2^20 places keeps the product far below 2^63.
    (number % u64::from(capacity.max(1))) as usize * WORDS
}

/// Fill the place of event `number` without publishing it. The first of `words` is not used.
pub(crate) fn draft<W: RingWrite, const WORDS: usize>(
    ring: &W,
    number: u64,
    capacity: u32,
    words: &[u64; WORDS],
) -> Result<(), W::Error> {
    let place = ring.place(first_word::<WORDS>(number, capacity));
    let (_, rest) = words.split_at(1);
    seqlock::fill(&place, 0, rest)?;
    failpoint!("event.drafted");
    Ok(())
}

/// Publish the event that was drafted as `number`.
pub(crate) fn publish<W: RingWrite, const WORDS: usize>(
    ring: &W,
    number: u64,
    capacity: u32,
) -> Result<(), W::Error> {
    let published = number.wrapping_add(1);
    ring.place(first_word::<WORDS>(number, capacity)).store_first(published)?;
    failpoint!("event.closed");
    ring.store_head(published)
}

/// What a reader finds. Not boxed: it lives on the stack of one call.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pulled<const WORDS: usize> {
    /// No event `number` yet.
    Nothing,
    /// The words of event `number`.
    Words([u64; WORDS]),
    /// It is gone; the oldest that may still be there is this one.
    Lapped(u64),
}

/// Read event `number`. `None`: the ring cannot be reached.
pub(crate) fn pull<const WORDS: usize>(
    ring: &impl RingRead,
    number: u64,
    capacity: u32,
) -> Option<Pulled<WORDS>> {
    let head = ring.head()?;
    if number >= head {
        return Some(Pulled::Nothing);
    }
    if head - number <= capacity.into() {
        let place = ring.place(first_word::<WORDS>(number, capacity));
        if let Copied::Words(words) = seqlock::copy(&place, |first| first == number + 1)? {
            return Some(Pulled::Words(words));
        }
    }
    // It was overwritten, or is just now: then the head may not have moved yet.
    let oldest = ring.head()?.saturating_sub(capacity.into());
    Some(Pulled::Lapped(oldest.max(number + 1)))
}
