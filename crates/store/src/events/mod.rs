//! Events of objects: a ring of the latest ones in the control section, open to all readers.

pub(crate) mod ring;
mod writer;

use std::sync::Arc;

use farrow_memory::sync::Ordering;
use farrow_memory::{Length, Offset, Region, Span, Words};

use crate::coherence::TORN_MAX;
use crate::error::StoreError;
use crate::format::entry::Entry;
use crate::format::header::EVENTS_HEAD;
use crate::format::ids::{NamespaceId, ObjectId, ObjectKind};
use crate::format::layout::{EVENT_BYTES, Layout};
use crate::format::options::NAME_BYTES_MAX;
use crate::seqlock::RecordReader;
use ring::{EVENT_WORDS, Pulled, RingRead};
pub(crate) use writer::EventRing;

/// Index of the word with the event number.
const NUMBER_WORD: usize = 6;
/// Index of the word with the checksum.
const CHECKSUM_WORD: usize = 7;
/// Index of the first word of the name.
const NAME_WORD: usize = 8;

/// The change of an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum EventKind {
    /// The object was sealed, and can be found.
    Sealed = 1,
    /// A client deleted the object.
    Deleted = 2,
    /// The object was evicted to make room.
    Evicted = 3,
    /// The object was moved from memory to a file.
    Spilled = 4,
    /// The object was restored to memory.
    Restored = 5,
}

impl EventKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Sealed, Self::Deleted, Self::Evicted, Self::Spilled, Self::Restored];

    /// The number of this kind in a region.
    #[must_use]
    pub const fn as_u8(self) -> u8 {
        self as u8
    }

    /// The kind with this number.
    #[must_use]
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_u8() == number)
    }

    /// The set of only this kind, for [`EventKind::is_in`]; combine sets with `|`.
    #[must_use]
    pub const fn bit(self) -> u8 {
        1 << self.as_u8()
    }

    /// Whether the set contains this kind.
    #[must_use]
    pub const fn is_in(self, kinds: u8) -> bool {
        kinds & self.bit() != 0
    }
}

/// One event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Its sequence number: events of a region are counted from 0.
    pub number: u64,
    /// The change.
    pub kind: EventKind,
    /// The changed object.
    pub id: ObjectId,
    /// The kind of that object.
    pub object_kind: ObjectKind,
    /// Size of the object, as users see it.
    pub size: Length,
    /// The namespace of the object.
    pub namespace: NamespaceId,
    /// Its name there, empty if it has none.
    pub name: String,
    /// The time by the home's clock: nanoseconds since 1970.
    pub at_ns: u64,
}

impl Event {
    pub(crate) fn of(
        kind: EventKind,
        entry: &Entry,
        name: String,
        number: u64,
        at_ns: u64,
    ) -> Self {
        let (id, object_kind, size, namespace) =
            (entry.id, entry.kind, entry.size, entry.namespace);
        Self { number, kind, id, object_kind, size, namespace, name, at_ns }
    }

    fn encode(&self) -> [u64; EVENT_WORDS] {
        let mut words = [0; EVENT_WORDS];
        let name = self.name.as_bytes();
        let first = [
            self.number.wrapping_add(1),
            u64::from(self.kind.as_u8())
                | u64::from(self.object_kind.as_u8()) << 8
                | (name.len() as u64 & 0xff) << 16
                | u64::from(self.namespace.0) << 32,
            self.id.hi,
            self.id.lo,
            self.size.0,
            self.at_ns,
            self.number,
        ];
        for (word, value) in words.iter_mut().zip(first) {
            *word = value;
        }
        for (word, chunk) in words.iter_mut().skip(NAME_WORD).zip(name.chunks(8)) {
            let mut bytes = [0; 8];
            for (byte, value) in bytes.iter_mut().zip(chunk) {
                *byte = *value;
            }
            *word = u64::from_le_bytes(bytes);
        }
        words[CHECKSUM_WORD] = checksum(&words);
        words
    }

    /// Decode words copied from the slot of event `number`. `None`: they belong to another event or
    /// are damaged.
    fn decode(words: &[u64; EVENT_WORDS], number: u64) -> Option<Self> {
        if words[NUMBER_WORD] != number || words[CHECKSUM_WORD] != checksum(words) {
            return None;
        }
        let name_bytes = (words[1] >> 16 & 0xff) as usize;
        let mut name: Vec<u8> =
            words.iter().skip(NAME_WORD).flat_map(|word| word.to_le_bytes()).collect();
        name.truncate(name_bytes.min(NAME_BYTES_MAX as usize));
        Some(Self {
            number,
            kind: EventKind::from_u8((words[1] & 0xff) as u8)?,
            id: ObjectId { hi: words[2], lo: words[3] },
            object_kind: ObjectKind::from_u8((words[1] >> 8 & 0xff) as u8)?,
            size: Length(words[4]),
            namespace: NamespaceId((words[1] >> 32) as u16),
            name: String::from_utf8(name).ok()?,
            at_ns: words[5],
        })
    }
}

/// crc32c of all words but the first, which changes, and the checksum itself.
fn checksum(words: &[u64; EVENT_WORDS]) -> u64 {
    let mut bytes = [0u8; EVENT_WORDS * 8];
    let payload = words.iter().enumerate().filter(|(i, _)| *i != 0 && *i != CHECKSUM_WORD);
    for (chunk, (_, word)) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(payload) {
        *chunk = word.to_le_bytes();
    }
    u64::from(crc32c::crc32c(&bytes))
}

/// An item that a cursor returns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// An event.
    Event(Event),
    /// Events were overwritten before the cursor read them.
    Gap {
        /// Number of missed events.
        missed: u64,
    },
}

/// A reader's position in the events of a region. It never slows the writer.
#[derive(Clone, Debug)]
pub struct EventCursor {
    region: Arc<Region>,
    layout: Layout,
    next: u64,
}

/// The ring in a mapped region.
struct Mapped<'a> {
    region: &'a Region,
    events: Span,
    head: Words<'a>,
    ring: Words<'a>,
}

impl<'a> Mapped<'a> {
    fn new(region: &'a Region, layout: &Layout) -> Result<Self, StoreError> {
        let head = region.words(Span::new(EVENTS_HEAD, Length(8)))?;
        Ok(Self { region, events: layout.events, head, ring: region.words(layout.events)? })
    }
}

impl RingRead for Mapped<'_> {
    fn head(&self) -> Option<u64> {
        self.region.refresh_if_remote(Span::new(EVENTS_HEAD, Length(8))).ok()?;
        self.head.load(0, Ordering::Acquire)
    }

    fn place(&self, first: usize) -> impl RecordReader {
        let at = Offset(self.events.offset.0.saturating_add(first as u64 * 8));
        // The loads detect a slot outside of the region.
        let _ = self.region.refresh_if_remote(Span::new(at, Length(EVENT_BYTES)));
        ReadSlot { ring: &self.ring, first }
    }
}

/// The words of one slot.
struct ReadSlot<'a> {
    ring: &'a Words<'a>,
    first: usize,
}

impl RecordReader for ReadSlot<'_> {
    fn first(&self, order: Ordering) -> Option<u64> {
        self.ring.load(self.first, order)
    }

    fn word(&self, index: usize) -> Option<u64> {
        self.ring.load(self.first + index, Ordering::Relaxed)
    }
}

fn unreachable_ring() -> StoreError {
    StoreError::unreachable_word("event ring", 0)
}

impl EventCursor {
    /// A cursor before event `next`, or before the oldest one that is still in the ring.
    pub(crate) fn new(region: Arc<Region>, layout: Layout, next: u64) -> Result<Self, StoreError> {
        let mut cursor = Self { region, layout, next: 0 };
        let head = cursor.head()?;
        let oldest = head.saturating_sub(layout.events_max.into());
        cursor.next = next.clamp(oldest, head);
        Ok(cursor)
    }

    /// The next event, or the number of events missed before it. `None`: there is no new event.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn advance(&mut self) -> Result<Option<Seen>, StoreError> {
        let mapped = Mapped::new(&self.region, &self.layout)?;
        let number = self.next;
        let pull =
            || ring::pull(&mapped, number, self.layout.events_max).ok_or_else(unreachable_ring);
        let mut pulled = pull()?;
        for _ in 0..if self.region.is_remote() { TORN_MAX } else { 0 } {
            match &pulled {
                Pulled::Words(words) if Event::decode(words, number).is_none() => pulled = pull()?,
                _ => break,
            }
        }
        match pulled {
            Pulled::Nothing => Ok(None),
            Pulled::Lapped(oldest) => {
                self.next = oldest;
                Ok(Some(Seen::Gap { missed: oldest - number }))
            }
            Pulled::Words(words) => {
                self.next = number + 1;
                // A damaged event counts as missed.
                let event = Event::decode(&words, number).map(Seen::Event);
                Ok(Some(event.unwrap_or(Seen::Gap { missed: 1 })))
            }
        }
    }

    /// The number of the next event.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Skip the events before `number`.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn skip_to(&mut self, number: u64) -> Result<(), StoreError> {
        self.next = number.min(self.head()?).max(self.next);
        Ok(())
    }

    /// The number of events published so far.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn head(&self) -> Result<u64, StoreError> {
        Mapped::new(&self.region, &self.layout)?.head().ok_or_else(unreachable_ring)
    }
}

/// Offset of a word of the ring.
fn word_at(layout: &Layout, index: usize) -> Offset {
    // An index outside of the ring is rejected by the store.
    Offset(layout.events.offset.0.saturating_add((index as u64).saturating_mul(8)))
}
