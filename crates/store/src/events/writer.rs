//! The home's hand on the ring.

use super::ring::{self, EVENT_WORDS, RingWrite};
use super::{Event, NUMBER_WORD, word_at};
use crate::books::control::Control;
use crate::error::StoreError;
use crate::failpoint;
use crate::format::header::EVENTS_HEAD;
use crate::format::layout::Layout;
use crate::seqlock::RecordWriter;

/// Drafts an event before a change, and publishes it afterwards. One draft at a time.
#[derive(Debug)]
pub(crate) struct EventRing {
    control: Control,
    layout: Layout,
    head: u64,
}

/// The words of one place.
struct WriteSlot<'a> {
    ring: &'a EventRing,
    first: usize,
}

impl RecordWriter for WriteSlot<'_> {
    type Error = StoreError;

    fn store_first(&self, word: u64) -> Result<(), StoreError> {
        self.ring.control.store(word_at(&self.ring.layout, self.first), word)
    }

    fn store_rest(&self, words: &[u64]) -> Result<(), StoreError> {
        failpoint!("event.opened");
        self.ring.control.store_record(word_at(&self.ring.layout, self.first + 1), words)
    }
}

impl RingWrite for EventRing {
    type Error = StoreError;

    fn place(&self, first: usize) -> impl RecordWriter<Error = StoreError> {
        WriteSlot { ring: self, first }
    }

    fn store_head(&self, head: u64) -> Result<(), StoreError> {
        self.control.store(EVENTS_HEAD, head)
    }
}

impl EventRing {
    pub(crate) fn open(control: Control, layout: Layout) -> Result<Self, StoreError> {
        let head = control.load(EVENTS_HEAD)?;
        Ok(Self { control, layout, head })
    }

    /// The number of the event that is drafted next, and how many were published.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Write an event that tells of a change which is about to be made.
    pub(crate) fn draft(&self, event: &Event) -> Result<(), StoreError> {
        ring::draft(self, self.head, self.layout.events_max, &event.encode())
    }

    /// The change was made: publish the draft.
    pub(crate) fn publish(&mut self) -> Result<(), StoreError> {
        ring::publish::<_, EVENT_WORDS>(self, self.head, self.layout.events_max)?;
        failpoint!("event.published");
        self.head = self.head.wrapping_add(1);
        Ok(())
    }

    /// Nobody may take a draft that was not published for the event of a change that is about to be
    /// made without one.
    pub(crate) fn forget_draft(&self) -> Result<(), StoreError> {
        let at = ring::first_word::<EVENT_WORDS>(self.head, self.layout.events_max) + NUMBER_WORD;
        self.control.store(word_at(&self.layout, at), u64::MAX)
    }

    /// The draft that a home left which was killed before it published it.
    pub(crate) fn found_draft(&self) -> Result<Option<Event>, StoreError> {
        let at = ring::first_word::<EVENT_WORDS>(self.head, self.layout.events_max);
        let words: [u64; EVENT_WORDS] = self.control.load_record(word_at(&self.layout, at))?;
        Ok(Event::decode(&words, self.head))
    }
}
