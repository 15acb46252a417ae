//! Where an object is that was not found in memory.

use farrow_memory::sync::{Ordering, fence};
use farrow_memory::{Length, Offset, Span, Words};

use super::look::{LocalLook, load};
use super::{ROUNDS_MAX, Reader};
use crate::error::StoreError;
use crate::failpoint;
use crate::format::entry::{EntryState, NAME_LENGTH_WORD, NAME_WORD, Sequence};
use crate::format::hash::NameHash;
use crate::format::header::INDEX_TURN;
use crate::format::ids::{ObjectId, Slot, Target};
use crate::format::options::NAME_BYTES_MAX;
use crate::tables::names::{full_name, probe};

/// Location of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whereabouts {
    /// There is no such object.
    Nowhere,
    /// In memory, where it can be held.
    InMemory,
    /// Out of memory, or being evicted or restored: the home restores it, or reports that it was
    /// removed.
    Away(ObjectId),
}

impl Reader {
    /// Where an object is, for a caller that did not find it. An object chosen for eviction cannot
    /// be held for a moment, even if it stays in the end.
    ///
    /// # Errors
    /// [`StoreError::NameInvalid`]; [`StoreError::IndexBusy`]; memory that cannot be read.
    pub fn whereabouts(&self, target: Target<'_>) -> Result<Whereabouts, StoreError> {
        let directory = self.region.words(self.layout().directory)?;
        match target {
            Target::Id(id) => {
                if id.region() != self.header.uid {
                    return Ok(Whereabouts::Nowhere);
                }
                let mut id = id;
                if let Some(number) = self.layout().client_entry(id.slot()) {
                    match self.look_local(number)? {
                        LocalLook::Sealed(entry) if entry.id == id => {
                            return Ok(Whereabouts::InMemory);
                        }
                        LocalLook::Moved(life, to) if life == id.generation() => id = to,
                        _ => return Ok(Whereabouts::Nowhere),
                    }
                }
                if id.slot().0 >= self.layout().objects_max {
                    return Ok(Whereabouts::Nowhere);
                }
                let sequence = self.sequence(&directory, id.slot(), Ordering::Acquire)?;
                let is_it = sequence.generation() == id.generation();
                Ok(if is_it { self.place_of(sequence, id.slot()) } else { Whereabouts::Nowhere })
            }
            Target::Name(name) => self.whereabouts_of_name(&directory, name),
        }
    }

    fn whereabouts_of_name(
        &self,
        directory: &Words<'_>,
        name: &str,
    ) -> Result<Whereabouts, StoreError> {
        let name = &*full_name(&self.namespace_name, name)?;
        let hash = NameHash::of(self.header.key, name.as_bytes());
        for _ in 0..ROUNDS_MAX {
            let turn = self.word(INDEX_TURN)?;
            let table = self.layout().index[(turn & 1) as usize];
            let index = self.region.words(table)?;
            let fresh = |place| self.fresh_place(table, place);
            let mut has_moved = false;
            let found = probe(&index, hash, fresh, |at, slot| {
                if slot.0 >= self.layout().objects_max {
                    return Ok(None);
                }
                failpoint!(reader "find.place");
                let sequence = self.sequence(directory, slot, Ordering::Acquire)?;
                let place = self.place_of(sequence, slot);
                let is_it = place != Whereabouts::Nowhere
                    && self.has_name(directory, slot, sequence, name)?;
                has_moved |= !is_it
                    && match place {
                        Whereabouts::Nowhere => {
                            self.has_moved(&index, directory, (table, at), slot)?
                        }
                        _ => {
                            self.sequence(directory, slot, Ordering::Acquire)? != sequence
                                || !self.leads_to(&index, (table, at), slot)?
                        }
                    };
                Ok::<_, StoreError>(is_it.then_some(place))
            })?;
            if let Some(place) = found {
                return Ok(place);
            }
            if !has_moved && self.word(INDEX_TURN)? == turn {
                return Ok(Whereabouts::Nowhere);
            }
        }
        Err(StoreError::IndexBusy { rounds: ROUNDS_MAX })
    }

    fn place_of(&self, sequence: Sequence, slot: Slot) -> Whereabouts {
        match sequence.state() {
            EntryState::Sealed => Whereabouts::InMemory,
            EntryState::Leaving | EntryState::Spilled | EntryState::Restoring => {
                Whereabouts::Away(ObjectId::new(self.header.uid, sequence.generation(), slot))
            }
            _ => Whereabouts::Nowhere,
        }
    }

    /// Whether the object in `slot`, in this life, has this name. The name is the same in every
    /// state, even while other words of the entry are written.
    fn has_name(
        &self,
        directory: &Words<'_>,
        slot: Slot,
        sequence: Sequence,
        name: &str,
    ) -> Result<bool, StoreError> {
        self.region.refresh_if_remote(self.entry_span(slot))?;
        let length = load(directory, slot, NAME_LENGTH_WORD, Ordering::Relaxed)? >> 8 & 0xff;
        let at = Offset(load(directory, slot, NAME_WORD, Ordering::Relaxed)?);
        let span = Span::new(at, Length(length));
        if length != name.len() as u64 || !self.layout().names.contains(span) {
            return Ok(false);
        }
        let mut buffer = [0; NAME_BYTES_MAX as usize];
        let Some(found) = buffer.get_mut(..name.len()) else {
            return Ok(false);
        };
        self.region.refresh_if_remote(span)?;
        self.region.copy_out(at, found)?;
        fence(Ordering::Acquire);
        let now = self.sequence(directory, slot, Ordering::Relaxed)?;
        Ok(found == name.as_bytes() && now.generation() == sequence.generation())
    }
}
