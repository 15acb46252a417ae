//! Lists of objects, and their names.

use farrow_memory::Words;
use farrow_memory::sync::{Ordering, fence};

use super::look::{LocalLook, Look};
use super::{ROUNDS_MAX, Reader};
use crate::client::uses::stamp;
use crate::error::StoreError;
use crate::format::entry::{Entry, EntryState};
use crate::format::full_name::own_name;
use crate::format::hash::NameHash;
use crate::format::header::SLOTS_USED;
use crate::format::ids::Slot;
use crate::format::layout::PINS_IN_WORD;
use crate::tables::control::word_of;
use crate::tables::entry_area::split;

/// One object in a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryItem {
    /// The object.
    pub entry: Entry,
    /// Its name.
    pub name: Option<String>,
    /// Whether eviction skips it.
    pub is_pinned: bool,
    /// When it was last used: the later of its seal and its last get, nanoseconds since 1970. Only
    /// a hint.
    pub last_use_ns: u64,
    /// Whether its bytes are outside the region, so that it has to be restored before it can be
    /// held.
    pub is_spilled: bool,
    /// Whether its name was overwritten: then `name` is none. The object can be found by its id.
    pub is_name_damaged: bool,
}

/// A name as stored in the region.
enum StoredName {
    Name(String),
    /// Its hash differs from that in the entry, or it is not UTF-8.
    Damaged,
}

impl Reader {
    /// All objects of the namespace whose name starts with `prefix`; an empty prefix includes those
    /// without a name. In the order of slots. Objects sealed or deleted meanwhile may be in it or
    /// not.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if an entry cannot be right.
    pub fn list(&self, prefix: &str) -> Result<Vec<DirectoryItem>, StoreError> {
        let mut all = Vec::new();
        let mut take = |listed| {
            all.push(listed);
            true
        };
        let mut from = Some(0);
        while let Some(start) = from {
            from = self.list_from(start, u64::MAX, prefix, &mut take)?;
        }
        Ok(all)
    }

    /// A page of the list: objects from position `from` on, until `take` returns false or `steps`
    /// positions were visited. Position 0 is the first. Returns the position of the next page, if
    /// there is one. An object that stays sealed while all pages are read is in one of them.
    ///
    /// # Errors
    /// As [`Reader::list`].
    pub fn list_from(
        &self,
        from: u64,
        steps: u64,
        prefix: &str,
        take: &mut dyn FnMut(DirectoryItem) -> bool,
    ) -> Result<Option<u64>, StoreError> {
        let directory = self.region.words(self.layout().directory)?;
        let objects_max = u64::from(self.layout().objects_max);
        let used = self.word(SLOTS_USED)?.min(objects_max);
        let end = from.saturating_add(steps);
        let mut position = from;
        while position < used {
            if position >= end {
                return Ok(Some(position));
            }
            let listed = self.list_slot(&directory, Slot(position as u32), prefix)?;
            position += 1;
            if listed.is_some_and(|listed| !take(listed)) {
                return Ok(Some(position));
            }
        }
        self.list_local(position.max(objects_max), end, prefix, take)
    }

    /// The object of a slot, if it is of this namespace and its name begins with the prefix.
    fn list_slot(
        &self,
        directory: &Words<'_>,
        slot: Slot,
        prefix: &str,
    ) -> Result<Option<DirectoryItem>, StoreError> {
        for _ in 0..ROUNDS_MAX {
            let look = match self.look(directory, slot) {
                // A corrupt entry is unusable, but no reason not to list the others.
                Err(StoreError::Corrupt { slot, reason }) => {
                    tracing::warn!(slot = slot.0, reason, "an entry is not listed");
                    return Ok(None);
                }
                look => look?,
            };
            match look {
                Look::None => return Ok(None),
                Look::Changed => {}
                // A replica is listed in the region of its original, and what is staged is
                // listed in the region that brings it.
                Look::Sealed(entry) | Look::Away(entry, _)
                    if entry.namespace != self.namespace || entry.is_replica || entry.is_staged =>
                {
                    return Ok(None);
                }
                look @ (Look::Sealed(entry) | Look::Away(entry, _)) => {
                    let is_spilled = matches!(look, Look::Away(_, true));
                    let Some(named) = self.stable_name(directory, &entry)? else {
                        continue;
                    };
                    let (name, is_damaged) = match named {
                        StoredName::Name(name) => (own_name(&name).to_owned(), false),
                        StoredName::Damaged => (String::new(), true),
                    };
                    if !name.starts_with(prefix) {
                        return Ok(None);
                    }
                    let name = Some(name).filter(|name| !name.is_empty());
                    let listed = self.listed(entry, name, is_spilled)?;
                    return Ok(Some(DirectoryItem { is_name_damaged: is_damaged, ..listed }));
                }
            }
        }
        Ok(None)
    }

    /// As [`Reader::list_from`] for objects that clients sealed without the home; none has a name.
    /// Their positions follow those of the directory.
    fn list_local(
        &self,
        from: u64,
        end: u64,
        prefix: &str,
        take: &mut dyn FnMut(DirectoryItem) -> bool,
    ) -> Result<Option<u64>, StoreError> {
        if !prefix.is_empty() {
            return Ok(None);
        }
        self.region.refresh_if_remote(self.layout().entry_owners)?;
        let owners = self.region.words(self.layout().entry_owners)?;
        let in_page = self.layout().client_entries_in_page();
        let first = u64::from(self.layout().objects_max);
        let number_of = |page: u32| u64::from(page) * u64::from(in_page);
        let mut number = from - first;
        let last = number_of(self.layout().entry_pages_max);
        while number < last {
            if first + number >= end {
                return Ok(Some(first + number));
            }
            let page = (number / u64::from(in_page)) as u32;
            let word = owners.load(page as usize, Ordering::Relaxed).unwrap_or_default();
            if word == 0 || split(word).1 != self.namespace {
                number = number_of(page + 1);
                continue;
            }
            // An invalid entry harms only the client that wrote it.
            let look = self.look_local(number as u32);
            number += 1;
            if let Ok(LocalLook::Sealed(entry)) = look
                && !take(self.listed(entry, None, false)?)
            {
                return Ok(Some(first + number));
            }
        }
        Ok(None)
    }

    fn listed(
        &self,
        entry: Entry,
        name: Option<String>,
        is_spilled: bool,
    ) -> Result<DirectoryItem, StoreError> {
        let slot = entry.id.slot();
        // An object sealed by a client is pinned only once the home has adopted it.
        let is_pinned = slot.0 < self.layout().objects_max && {
            let pins = word_of(self.layout().pins, 8, slot.0 / PINS_IN_WORD, 0);
            self.word(pins)? >> (slot.0 % PINS_IN_WORD) & 1 == 1
        };
        let last_use_ns = stamp(&self.region, self.layout(), slot).max(entry.sealed_at_ns);
        let is_name_damaged = false;
        Ok(DirectoryItem { entry, name, is_pinned, last_use_ns, is_spilled, is_name_damaged })
    }

    /// The name of an object in its namespace; none if it has none, or is no longer there.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn name_of(&self, entry: &Entry) -> Result<Option<String>, StoreError> {
        if entry.name.is_empty() {
            return Ok(None);
        }
        let directory = self.region.words(self.layout().directory)?;
        Ok(match self.stable_name(&directory, entry)? {
            Some(StoredName::Name(name)) if !name.is_empty() => Some(own_name(&name).to_owned()),
            _ => None,
        })
    }

    /// The name, empty if there is none; none if the object was removed while it was read.
    fn stable_name(
        &self,
        directory: &Words<'_>,
        entry: &Entry,
    ) -> Result<Option<StoredName>, StoreError> {
        if entry.name.is_empty() {
            return Ok(Some(StoredName::Name(String::new())));
        }
        let mut bytes = vec![0; entry.name.length.0 as usize];
        self.region.refresh_if_remote(entry.name)?;
        self.region.copy_out(entry.name.offset, &mut bytes)?;
        fence(Ordering::Acquire);
        let now = self.sequence(directory, entry.id.slot(), Ordering::Relaxed)?;
        let is_there =
            !matches!(now.state(), EntryState::Free | EntryState::Writing | EntryState::Retiring);
        if !is_there || now.generation() != entry.id.generation() {
            return Ok(None);
        }
        if NameHash::of(self.header.key, &bytes).0 != entry.name_hash {
            return Ok(Some(StoredName::Damaged));
        }
        Ok(Some(String::from_utf8(bytes).map_or(StoredName::Damaged, StoredName::Name)))
    }
}
