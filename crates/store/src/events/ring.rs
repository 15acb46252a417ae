//! The event ring: one writer, any number of readers, each with its own cursor.
//!
//! A slot of the ring holds event `n` while its first word is `n + 1`; 0 marks it as being written.
//! The writer fills a slot before the change that the event describes, and publishes it afterwards.
//! A kill in between leaves a draft, so no change lacks its event. A reader copies a slot between
//! two loads of its first word. Neither side waits: a slow reader finds another number in the slot
//! and computes how many events it missed.
//!
//! Generic over two small traits, so that a model checker can replace mapped memory.

use crate::failpoint;
use crate::seqlock::{self, Copied, RecordReader, RecordWriter};

/// Words of a slot: 8, and a name of up to 256 bytes.
pub(crate) const EVENT_WORDS: usize = 40;

/// A reader's view of the ring.
pub(crate) trait RingRead {
    /// The number of events published so far (acquire).
    fn head(&self) -> Option<u64>;
    /// The slot that starts at word `first` of the ring.
    fn place(&self, first: usize) -> impl RecordReader;
}

/// The writer's view of the ring.
pub(crate) trait RingWrite {
    type Error;
    /// The slot that starts at word `first` of the ring.
    fn place(&self, first: usize) -> impl RecordWriter<Error = Self::Error>;
    /// Store the number of published events, after all earlier stores.
    fn store_head(&self, head: u64) -> Result<(), Self::Error>;
}

/// First word of the slot of event `number`.
pub(crate) fn first_word<const WORDS: usize>(number: u64, capacity: u32) -> usize {
    // A capacity of at most 2^20 slots keeps the product far below 2^63.
    (number % u64::from(capacity.max(1))) as usize * WORDS
}

/// Fill the slot of event `number` without publishing it. The first of `words` is not used.
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

/// The result of a read. Not boxed: it exists only on the stack of one call.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pulled<const WORDS: usize> {
    /// Event `number` is not published yet.
    Nothing,
    /// The words of event `number`.
    Words([u64; WORDS]),
    /// The event was overwritten; this is the oldest one that may still exist.
    Lapped(u64),
}

/// Read event `number`. `None`: the ring is not accessible.
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
    // The event was overwritten, or is being overwritten and the head has not advanced yet.
    let oldest = ring.head()?.saturating_sub(capacity.into());
    Some(Pulled::Lapped(oldest.max(number + 1)))
}
