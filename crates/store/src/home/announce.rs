//! Events: each change of an object is drafted in the ring before it, and published after it.
//!
//! A home killed between the two leaves a draft. The next home publishes the draft if the change
//! was made, so no event is lost and none is published twice.

use super::Home;
use crate::error::StoreError;
use crate::events::{Event, EventCursor, EventKind};
use crate::format::entry::{Entry, EntryState};
use crate::format::full_name::own_name;
use crate::format::header::WATCHED;
use crate::format::ids::Slot;

impl Home {
    /// Set the time: nanoseconds since 1970. Events bear the time set last.
    pub fn set_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// The time set last.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The number of events published so far.
    #[must_use]
    pub fn events_head(&self) -> u64 {
        self.events.head()
    }

    /// The namespaces with a watcher of all objects, as [`crate::watched_bit`]s.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn watched(&self) -> Result<u64, StoreError> {
        self.control.load(WATCHED)
    }

    /// Set the watched namespaces. Their clients leave every seal to the home, so that it publishes
    /// an event.
    ///
    /// # Errors
    /// Memory that cannot be written.
    pub fn set_watched(&mut self, bits: u64) -> Result<(), StoreError> {
        self.control.store(WATCHED, bits)
    }

    /// A cursor before event `next`, or before the oldest one that is still in the ring.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn events(&self, next: u64) -> Result<EventCursor, StoreError> {
        EventCursor::new(self.region().clone(), *self.layout(), next)
    }

    /// Draft the event before a change of an object that already has its name.
    pub(super) fn draft_event_of(&self, kind: EventKind, entry: &Entry) -> Result<(), StoreError> {
        let name = String::from_utf8(self.name_of(entry)?).unwrap_or_default();
        // An overwritten name does not match the hash and is left out.
        let is_right = self.names.hash(&name).0 == entry.name_hash;
        self.draft_event(kind, entry, if is_right { &name } else { "" })
    }

    /// Draft the event before a change of an object with this full name. It replaces an earlier
    /// draft that was not published.
    pub(super) fn draft_event(
        &self,
        kind: EventKind,
        entry: &Entry,
        name: &str,
    ) -> Result<(), StoreError> {
        let number = self.events.head();
        self.events.draft(&Event::of(kind, entry, own_name(name).to_owned(), number, self.now_ns))
    }

    /// Publish the drafted event after the change.
    pub(super) fn publish_event(&mut self) -> Result<(), StoreError> {
        self.events.publish()
    }

    /// Publish a former home's draft if the change was made.
    pub(super) fn finish_event(&mut self) -> Result<(), StoreError> {
        let Some(event) = self.events.found_draft()? else {
            return Ok(());
        };
        if event.id.region() == self.uid() && self.is_made(&event)? {
            self.events.publish()?;
        }
        Ok(())
    }

    /// Like [`Home::is_made`] for an object that a client sealed itself: only its end has an event.
    fn is_made_local(&self, event: &Event) -> Result<bool, StoreError> {
        let life = self.locals.area.life(self.number_of(event.id.slot())?)?;
        let is_there =
            life.generation() == event.id.generation() && life.state() == EntryState::Free;
        let is_end = matches!(event.kind, EventKind::Deleted | EventKind::Evicted);
        Ok(is_end && !is_there)
    }

    /// Whether the change that the event describes was made.
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
