//! The home's side of the directory: slots, their lives, and their entries.

use farrow_memory::{Offset, Span};

use crate::error::StoreError;
use crate::failpoint;
use crate::format::entry::{CHECKSUM_THEN_NAME, ENTRY_WORDS, Entry, EntryState, Sequence};
use crate::format::header::SLOTS_USED;
use crate::format::ids::{RegionUid, Slot};
use crate::format::layout::{ENTRY_BYTES, Layout};
use crate::seqlock::{self, RecordWriter};
use crate::tables::control::{Control, word_of};

#[derive(Debug)]
pub(crate) struct Directory {
    control: Control,
    layout: Layout,
    uid: RegionUid,
    /// Slots that were used and are free again.
    free: Vec<u32>,
    /// Slots from this one on were never used.
    used: u32,
    /// Slots that became free since this directory was opened.
    vacated: u64,
}

/// A free slot, and the sequence word it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vacancy {
    pub(crate) slot: Slot,
    pub(crate) sequence: Sequence,
}

impl Directory {
    pub(crate) fn new(control: Control, layout: Layout, uid: RegionUid, used: u32) -> Self {
        Self { control, layout, uid, free: Vec::new(), used, vacated: 0 }
    }

    /// Slots that were ever used: those below this one.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// The slot of the next object. It stays free until the object is published.
    pub(crate) fn vacancy(&self) -> Result<Vacancy, StoreError> {
        let slot = match self.free.last() {
            Some(slot) => *slot,
            None if self.used < self.layout.objects_max => self.used,
            None => {
                return Err(StoreError::TooManyObjects { max: self.layout.objects_max });
            }
        };
        let slot = Slot(slot);
        let sequence = self.sequence(slot)?;
        let sequence = if sequence.0 == 0 { Sequence::FIRST } else { sequence };
        Ok(Vacancy { slot, sequence })
    }

    /// Fill a vacant slot. The last store makes the object exist.
    pub(crate) fn publish(&mut self, vacancy: Vacancy, entry: &Entry) -> Result<(), StoreError> {
        let Vacancy { slot, sequence } = vacancy;
        if slot.0 >= self.used {
            self.control.store(SLOTS_USED, u64::from(slot.0) + 1)?;
            failpoint!("seal.slots_used");
        }
        let words = entry.encode();
        let (first, rest) = words.split_at(1);
        let record = EntryRecord { directory: self, slot };
        seqlock::fill(&record, sequence.with(EntryState::Writing).0, rest)?;
        failpoint!("seal.words");
        record.store_first(first[0])?;
        failpoint!("seal.published");
        if slot.0 >= self.used {
            self.used = slot.0 + 1;
        } else {
            self.free.pop();
        }
        Ok(())
    }

    /// Rewrite the entry of an object that no client holds, in the same life. Its state is
    /// restoring until the last store, which sets `state`.
    pub(crate) fn replace(&self, entry: &Entry, state: EntryState) -> Result<(), StoreError> {
        let slot = entry.id.slot();
        let opened = self.sequence(slot)?.with(EntryState::Restoring);
        let words = entry.encode();
        let (_, rest) = words.split_at(1);
        let record = EntryRecord { directory: self, slot };
        seqlock::fill(&record, opened.0, rest)?;
        failpoint!("restore.words");
        record.store_first(entry.sequence().with(state).0)?;
        failpoint!("restore.published");
        Ok(())
    }

    /// Clears the name in the entry of a sealed object, which clients may hold. The checksum is the
    /// first word: after a kill in between, the entry is whole once its name is cleared.
    pub(crate) fn unname(&self, entry: &Entry) -> Result<(), StoreError> {
        let slot = entry.id.slot();
        let sealed = self.sequence(slot)?;
        self.set_sequence(slot, sealed.with(EntryState::Leaving))?;
        let words = entry.unnamed().encode();
        for word in CHECKSUM_THEN_NAME {
            self.control.store(self.word(slot, word), words[word as usize])?;
            failpoint!("unname.word");
        }
        self.set_sequence(slot, sealed)
    }

    pub(crate) fn sequence(&self, slot: Slot) -> Result<Sequence, StoreError> {
        if slot.0 >= self.layout.objects_max {
            return Err(StoreError::Corrupt { slot, reason: "no such slot" });
        }
        Ok(Sequence(self.control.load(self.word(slot, 0))?))
    }

    pub(crate) fn set_sequence(&self, slot: Slot, to: Sequence) -> Result<(), StoreError> {
        self.control.store(self.word(slot, 0), to.0)
    }

    /// Free a slot into its next life. A slot without a next life is never used again.
    pub(crate) fn vacate(&mut self, slot: Slot) -> Result<(), StoreError> {
        let sequence = self.sequence(slot)?;
        self.vacated += 1;
        match sequence.next_life() {
            Some(next) => {
                self.set_sequence(slot, next)?;
                self.found_free(slot, next);
            }
            None => self.set_sequence(slot, sequence.with(EntryState::Free))?,
        }
        Ok(())
    }

    /// Remember a slot that was found free. The last life of a slot is not used: the slot could not
    /// be freed into a next one.
    pub(crate) fn found_free(&mut self, slot: Slot, sequence: Sequence) {
        if sequence.next_life().is_some() {
            self.free.push(slot.0);
        }
    }

    /// The words of a slot.
    pub(crate) fn words(&self, slot: Slot) -> Result<[u64; ENTRY_WORDS], StoreError> {
        self.sequence(slot)?;
        self.control.load_record(self.word(slot, 0))
    }

    /// The entry of a slot that is sealed or retiring.
    pub(crate) fn entry(&self, slot: Slot) -> Result<Entry, StoreError> {
        let words = self.words(slot)?;
        Entry::decode(&words, self.uid, slot, &self.layout)
            .map_err(|reason| StoreError::Corrupt { slot, reason })
    }

    /// How many slots became free since this directory was opened.
    pub(crate) fn vacated(&self) -> u64 {
        self.vacated
    }

    /// Slots that are available for new objects.
    pub(crate) fn vacant(&self) -> u32 {
        self.layout.objects_max.saturating_sub(self.used) + self.free.len() as u32
    }

    pub(crate) fn free_slots(&self) -> &[u32] {
        &self.free
    }

    /// The span of all entries, for reading in bulk.
    pub(crate) fn span(&self) -> Span {
        self.layout.directory
    }

    fn word(&self, slot: Slot, word: u64) -> Offset {
        word_of(self.layout.directory, ENTRY_BYTES, slot.0, word)
    }
}

/// The words of one slot.
struct EntryRecord<'a> {
    directory: &'a Directory,
    slot: Slot,
}

impl RecordWriter for EntryRecord<'_> {
    type Error = StoreError;

    fn store_first(&self, word: u64) -> Result<(), StoreError> {
        self.directory.set_sequence(self.slot, Sequence(word))
    }

    fn store_rest(&self, words: &[u64]) -> Result<(), StoreError> {
        failpoint!("seal.writing");
        self.directory.control.store_record(self.directory.word(self.slot, 1), words)
    }
}
