//! Events: each change of an object is written to the ring before it is made, and published after.
//!
//! A home that was killed in between leaves a draft. The next one looks whether the change was
//! made, and publishes the draft if it was, so that no event is lost and none is told twice.

use super::Home;
use crate::books::names::own_name;
use crate::error::StoreError;
use crate::events::{Event, EventCursor, EventKind};
use crate::format::entry::{Entry, EntryState};
use crate::format::header::WATCHED;
use crate::format::ids::Slot;

impl Home {
    /// What time it is: nanoseconds since 1970. Events bear the time that was said last.
    pub fn set_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// The time that was said last.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// How many events were ever published.
    #[must_use]
    pub fn events_head(&self) -> u64 {
        self.events.head()
    }

    /// The namespaces in which somebody wants to hear of all objects, as [`crate::watched_bit`]s.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn watched(&self) -> Result<u64, StoreError> {
        self.control.load(WATCHED)
    }

    /// Has clients of these namespaces leave to the home what they could seal by themselves, so
    /// that it is announced.
    ///
    /// # Errors
    /// Memory that cannot be written.
    pub fn set_watched(&mut self, bits: u64) -> Result<(), StoreError> {
        self.control.store(WATCHED, bits)
    }

    /// A place before event `next`, or before the oldest that is there.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn events(&self, next: u64) -> Result<EventCursor, StoreError> {
        EventCursor::new(self.region().clone(), *self.layout(), next)
    }

    /// Before a change of an object that has its name by now: write the event.
    pub(super) fn draft_event_of(&self, kind: EventKind, entry: &Entry) -> Result<(), StoreError> {
        let name = String::from_utf8(self.name_of(entry)?).unwrap_or_default();
        // One that was overwritten is no name of anything.
        let is_right = self.names.hash(&name).0 == entry.name_hash;
        self.draft_event(kind, entry, if is_right { &name } else { "" })
    }

    /// Before a change of an object with this full name: write the event. The one drafted before
    /// is forgotten unless it was published.
    pub(super) fn draft_event(
        &self,
        kind: EventKind,
        entry: &Entry,
        name: &str,
    ) -> Result<(), StoreError> {
        let number = self.events.head();
        self.events.draft(&Event::of(kind, entry, own_name(name).to_owned(), number, self.now_ns))
    }

    /// After the change: tell of it.
    pub(super) fn publish_event(&mut self) -> Result<(), StoreError> {
        self.events.publish()
    }

    /// Publish what a former home drafted, if the change was made.
    pub(super) fn finish_event(&mut self) -> Result<(), StoreError> {
        let Some(event) = self.events.found_draft()? else {
            return Ok(());
        };
        if event.id.region() == self.uid() && self.is_made(&event)? {
            self.events.publish()?;
        }
        Ok(())
    }

    /// The same for an object that a client sealed by itself: only its end is told of.
    fn is_made_local(&self, event: &Event) -> Result<bool, StoreError> {
        let life = self.locals.area.life(self.number_of(event.id.slot())?)?;
        let is_there =
            life.generation() == event.id.generation() && life.state() == EntryState::Free;
        let is_end = matches!(event.kind, EventKind::Deleted | EventKind::Evicted);
        Ok(is_end && !is_there)
    }

    /// Whether the object is what the event says that it became.
    fn is_made(&self, event: &Event) -> Result<bool, StoreError> {
        if self.layout().client_entry(event.id.slot()).is_some() {
            return self.is_made_local(event);
        }
        let Slot(slot) = event.id.slot();
        if slot >= self.directory.used() {
            return Ok(false);
        }
        let sequence = self.directory.sequence(event.id.slot())?;
        let is_there = sequence.generation() == event.id.generation();
        Ok(match event.kind {
            EventKind::Sealed | EventKind::Restored => {
                is_there && sequence.state() == EntryState::Sealed
            }
            EventKind::Spilled => is_there && sequence.state() == EntryState::Spilled,
            EventKind::Deleted | EventKind::Evicted => {
                !is_there || matches!(sequence.state(), EntryState::Retiring | EntryState::Free)
            }
        })
    }
}
