//! Looks at single entries: those of the home's directory, and those that clients wrote.

use farrow_memory::sync::{Ordering, fence};
use farrow_memory::{Length, Span, Words};

use super::Reader;
use crate::coherence::TORN_MAX;
use crate::error::StoreError;
use crate::failpoint;
use crate::format::client_entry::{FORWARD_WORD, decode, is_open, life_of};
use crate::format::entry::{ENTRY_WORDS, Entry, EntryState, Sequence};
use crate::format::ids::{Generation, ObjectId, Slot};
use crate::format::layout::{ENTRY_BYTES, LIFE_BYTES};
use crate::seqlock::{self, Copied, RecordReader};
use crate::tables::control::word_of;
use crate::tables::entry_area::namespace_of_page;

/// Looks at a life that changes meanwhile. After more changes the life that a caller asks for is over.
const LIFE_LOOKS_MAX: u32 = 4;

/// Result of a look at one entry. Not boxed: it lives on the stack of a lookup.
#[allow(clippy::large_enum_variant)]
pub(super) enum Look {
    /// No sealed object there.
    None,
    /// It changed while it was read.
    Changed,
    Sealed(Entry),
    /// An object that cannot be held at the moment, and whether it is out of memory.
    Away(Entry, bool),
}

/// Result of a look at an entry that a client wrote.
#[allow(clippy::large_enum_variant)]
pub(super) enum LocalLook {
    None,
    Sealed(Entry),
    /// The object of this life is in the directory now.
    Moved(Generation, ObjectId),
}

impl Reader {
    /// Copy an entry out, and check that it was the same before and after.
    pub(super) fn look(&self, directory: &Words<'_>, slot: Slot) -> Result<Look, StoreError> {
        if slot.0 >= self.layout().objects_max {
            return Ok(Look::None);
        }
        let first = slot.0 as usize * ENTRY_WORDS;
        let Some(entry) = directory.slice(first, ENTRY_WORDS) else {
            return Ok(Look::None);
        };
        if self.region.is_remote() {
            return whole(|| {
                self.region.refresh(self.entry_span(slot))?;
                self.look_once(entry, slot)
            });
        }
        match self.look_once(entry, slot) {
            // The home takes a name from an object without a change of its sequence.
            Err(StoreError::Corrupt { .. }) => whole(|| self.look_once(entry, slot)),
            seen => seen,
        }
    }

    #[inline]
    pub(super) fn look_once(&self, entry: Words<'_>, slot: Slot) -> Result<Look, StoreError> {
        let is_object = |word| {
            let state = Sequence(word).state();
            matches!(
                state,
                EntryState::Sealed
                    | EntryState::Leaving
                    | EntryState::Spilled
                    | EntryState::Restoring
            )
        };
        let copied = seqlock::copy::<ENTRY_WORDS>(&EntryReader(entry), is_object);
        match copied.ok_or_else(|| StoreError::unreachable_word("directory", slot.0.into()))? {
            Copied::Other => Ok(Look::None),
            Copied::Changed => Ok(Look::Changed),
            // Its other words are being written.
            Copied::Words(words) if Sequence(words[0]).state() == EntryState::Restoring => {
                Ok(Look::Changed)
            }
            Copied::Words(words) => Entry::decode(&words, self.header.uid, slot, self.layout())
                .map(|entry| match Sequence(words[0]).state() {
                    EntryState::Sealed => Look::Sealed(entry),
                    state => Look::Away(entry, state == EntryState::Spilled),
                })
                .map_err(|reason| StoreError::Corrupt { slot, reason }),
        }
    }

    /// Copy an entry that a client wrote out, and check that it and its life were the same before
    /// and after.
    pub(super) fn look_local(&self, number: u32) -> Result<LocalLook, StoreError> {
        if self.region.is_node_local() {
            return whole(|| self.look_local_once(number));
        }
        self.look_local_once(number)
    }

    #[inline]
    pub(super) fn look_local_once(&self, number: u32) -> Result<LocalLook, StoreError> {
        let layout = self.layout();
        let life_span = self.life_span_of(number);
        let lives = self.region.words(life_span)?;
        let life_word = || {
            // It is in the region, as `words` has checked.
            let _ = self.region.refresh_if_remote(life_span);
            lives.load(0, Ordering::Acquire).unwrap_or_default()
        };
        let forward = || {
            failpoint!(reader "look.forward");
            lives.load(FORWARD_WORD as usize, Ordering::Acquire).unwrap_or_default()
        };
        let see = || seqlock::forward_in_life(|| life_of(life_word()), forward);
        // A life moves to the directory and ends: a third look is of another one.
        let Some((life, to)) = (0..LIFE_LOOKS_MAX).find_map(|_| see()) else {
            return Ok(LocalLook::None);
        };
        if to != 0 && matches!(life.state(), EntryState::Free | EntryState::Leaving) {
            let to = ObjectId { hi: self.header.uid.0, lo: to };
            // Until the new entry is sealed the old one is valid.
            if life.state() == EntryState::Leaving || self.is_sealed(to)? {
                return Ok(LocalLook::Moved(life.generation(), to));
            }
        }
        if !is_open(life) {
            return Ok(LocalLook::None);
        }
        let span = layout.client_entry_span(number);
        self.region.refresh_if_node_local(span)?;
        let entry = self.region.words(span)?;
        let sequence = life.with(EntryState::Sealed).0;
        let is_still = || life_of(life_word()) == life;
        let Some(words) = seqlock::copy_in_life(&EntryReader(entry), sequence, is_still) else {
            return Ok(LocalLook::None);
        };
        let slot = layout.client_slot(number);
        let entry = decode(&words, self.header.uid, slot, layout)
            .map_err(|reason| StoreError::Corrupt { slot, reason })?;
        let page = number / layout.client_entries_in_page().max(1);
        let namespace = namespace_of_page(&self.region, layout, page)?;
        Ok(LocalLook::Sealed(Entry { namespace, ..entry }))
    }

    pub(super) fn is_still(
        &self,
        directory: &Words<'_>,
        entry: &Entry,
    ) -> Result<bool, StoreError> {
        if let Some(number) = self.layout().client_entry(entry.id.slot()) {
            fence(Ordering::Acquire);
            let life = life_of(self.word(self.layout().life(number, 0))?);
            return Ok(is_open(life) && life.generation() == entry.id.generation());
        }
        let first = entry.id.slot().0 as usize * ENTRY_WORDS;
        let words = directory.slice(first, ENTRY_WORDS);
        self.region
            .refresh_if_remote(Span::new(self.entry_span(entry.id.slot()).offset, Length(8)))?;
        let is_still =
            words.and_then(|words| seqlock::is_still(&EntryReader(words), entry.sequence().0));
        is_still.ok_or_else(|| StoreError::unreachable_word("directory", first as u64))
    }

    /// The current sequence of an existing slot.
    pub(super) fn sequence(
        &self,
        directory: &Words<'_>,
        slot: Slot,
        order: Ordering,
    ) -> Result<Sequence, StoreError> {
        self.region.refresh_if_remote(Span::new(self.entry_span(slot).offset, Length(8)))?;
        load(directory, slot, 0, order).map(Sequence)
    }

    /// The span of the words in which the home records the life of a client's entry.
    pub(super) fn life_span_of(&self, number: u32) -> Span {
        Span::new(self.layout().life(number, 0), Length(LIFE_BYTES))
    }

    pub(super) fn entry_span(&self, slot: Slot) -> Span {
        let at = word_of(self.layout().directory, ENTRY_BYTES, slot.0, 0);
        Span::new(at, Length(ENTRY_BYTES))
    }
}

/// Result of a look that fetches all lines of an entry. If they were of different age, it looks
/// again.
#[cold]
fn whole<T>(look: impl Fn() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let mut seen = look();
    for _ in 0..TORN_MAX {
        match seen {
            Err(StoreError::Corrupt { .. }) => seen = look(),
            _ => break,
        }
    }
    seen
}

pub(super) fn load(
    directory: &Words<'_>,
    slot: Slot,
    word: u64,
    order: Ordering,
) -> Result<u64, StoreError> {
    let at = word_of(Span::default(), ENTRY_BYTES / 8, slot.0, 0).0 + word;
    directory.load(at as usize, order).ok_or_else(|| StoreError::unreachable_word("directory", at))
}

/// The words of one entry, in the directory or in an entry page.
pub(super) struct EntryReader<'a>(pub(super) Words<'a>);

impl RecordReader for EntryReader<'_> {
    fn first(&self, order: Ordering) -> Option<u64> {
        self.0.load(0, order)
    }

    fn word(&self, index: usize) -> Option<u64> {
        self.0.load(index, Ordering::Relaxed)
    }
}
