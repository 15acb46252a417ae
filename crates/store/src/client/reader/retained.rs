//! Holds on objects that this client has just sealed.

use std::sync::Arc;

use super::Reader;
use super::look::EntryReader;
use crate::client::hold_table::{Held, HoldTable};
use crate::error::StoreError;
use crate::format::entry::{ENTRY_WORDS, Entry, EntryState, Sequence};
use crate::format::ids::ObjectId;
use crate::seqlock::{self, Copied};

impl Reader {
    /// Hold a deleted object that this client has sealed and that the home retains for it until the
    /// client confirms. Its memory is free as soon as the hold is released. None: it is not deleted,
    /// or already freed.
    ///
    /// # Errors
    /// As [`Reader::hold`].
    pub fn hold_retained(
        &self,
        table: &Arc<HoldTable>,
        id: ObjectId,
    ) -> Result<Option<Held>, StoreError> {
        let Some(entry) = self.retiring(id)? else {
            return Ok(None);
        };
        let held = table.hold_retiring(&entry)?;
        if let Some(held) = &held {
            self.refresh_payload(held)?;
        }
        Ok(held)
    }

    /// The entry of a deleted object that is not freed yet.
    fn retiring(&self, id: ObjectId) -> Result<Option<Entry>, StoreError> {
        let slot = id.slot();
        if id.region() != self.header.uid || slot.0 >= self.layout().objects_max {
            return Ok(None);
        }
        let directory = self.region.words(self.layout().directory)?;
        let first = slot.0 as usize * ENTRY_WORDS;
        let unreachable = || StoreError::unreachable_word("directory", first as u64);
        let words = directory.slice(first, ENTRY_WORDS).ok_or_else(unreachable)?;
        self.region.refresh_if_remote(self.entry_span(slot))?;
        let is_retiring = |word| Sequence(word).state() == EntryState::Retiring;
        let copied = seqlock::copy::<ENTRY_WORDS>(&EntryReader(words), is_retiring);
        match copied.ok_or_else(unreachable)? {
            Copied::Other | Copied::Changed => Ok(None),
            Copied::Words(words) => Entry::decode(&words, self.header.uid, slot, self.layout())
                .map(|entry| Some(entry).filter(|entry| entry.id == id))
                .map_err(|reason| StoreError::Corrupt { slot, reason }),
        }
    }
}
