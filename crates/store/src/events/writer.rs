//! The home's side of the ring.

use super::ring::{self, EVENT_WORDS, RingWrite};
use super::{Event, NUMBER_WORD, word_at};
use crate::error::StoreError;
use crate::failpoint;
use crate::format::header::EVENTS_HEAD;
use crate::format::layout::Layout;
use crate::seqlock::RecordWriter;
use crate::tables::control::Control;

/// Drafts an event before a change, and publishes it afterwards. There is one draft at a time.
#[derive(Debug)]
pub(crate) struct EventRing {
    control: Control,
    layout: Layout,
    head: u64,
}

/// The words of one slot.
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

    /// The number of the next event, which is also the number of published events.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Write an event for a change that is about to be made.
    pub(crate) fn draft(&self, event: &Event) -> Result<(), StoreError> {
        ring::draft(self, self.head, self.layout.events_max, &event.encode())
    }

    /// Publish the draft after the change was made.
    pub(crate) fn publish(&mut self) -> Result<(), StoreError> {
        ring::publish::<_, EVENT_WORDS>(self, self.head, self.layout.events_max)?;
        failpoint!("event.published");
        self.head = self.head.wrapping_add(1);
        Ok(())
    }

    /// Invalidate an unpublished draft before a change without an event, so that adoption does not
    /// take that change for the drafted one.
    pub(crate) fn forget_draft(&self) -> Result<(), StoreError> {
        let at = ring::first_word::<EVENT_WORDS>(self.head, self.layout.events_max) + NUMBER_WORD;
        self.control.store(word_at(&self.layout, at), u64::MAX)
    }

    /// The draft of a former home that was killed before it published it.
    pub(crate) fn found_draft(&self) -> Result<Option<Event>, StoreError> {
        let at = ring::first_word::<EVENT_WORDS>(self.head, self.layout.events_max);
        let words: [u64; EVENT_WORDS] = self.control.load_record(word_at(&self.layout, at))?;
        Ok(Event::decode(&words, self.head))
    }
}
