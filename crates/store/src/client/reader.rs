//! The client side of the directory: find objects by loads of mapped memory alone.

use std::sync::Arc;

use farrow_memory::sync::Ordering;
use farrow_memory::{Length, Offset, Region, SharedWords, Span, Words};

use crate::client::hold_table::{Held, HoldTable};
use crate::client::refreshed::Refreshed;
use crate::error::{FormatError, StoreError};
use crate::events::EventCursor;
use crate::failpoint;
use crate::format::client_entry::{is_open, life_of};
use crate::format::entry::{Entry, EntryState, Sequence};
use crate::format::hash::NameHash;
use crate::format::header::{
    INDEX_TURN, REPLICAS_UNTIL, REPLICAS_UNTIL_AWAKE, RegionHeader, WATCHED, watched_bit,
};
use crate::format::ids::{NamespaceId, ObjectId, RegionUid, Slot, Target};
use crate::format::layout::{INDEX_BYTES, Layout};
use crate::format::options::NAME_BYTES_MAX;
use crate::tables::cluster;
use crate::tables::names::{full_name, probe};
use look::{LocalLook, Look};

pub use contents::BlockLocation;
pub use listing::DirectoryItem;
pub use whereabouts::Whereabouts;

mod contents;
mod listing;
mod look;
mod retained;
mod together;
mod whereabouts;

/// Rounds of a lookup while the directory changes under it. After the last one the object is
/// reported as not there.
const ROUNDS_MAX: u32 = 64;

/// Finds and holds objects of one region. Sends no message and takes no lock shared between
/// processes.
#[derive(Clone, Debug)]
pub struct Reader {
    region: Arc<Region>,
    header: RegionHeader,
    namespace: NamespaceId,
    /// Name of the namespace.
    namespace_name: Arc<str>,
    /// Objects already refreshed, on a node-local region.
    refreshed: Arc<Refreshed>,
}

impl Reader {
    /// Open a mapped region. Its header is checked against the region's actual length.
    ///
    /// # Errors
    /// [`FormatError`] if the header is invalid.
    pub fn open(region: Arc<Region>) -> Result<Self, FormatError> {
        let header = RegionHeader::read(&region)?;
        let refreshed = Arc::default();
        let namespace_name = "".into();
        Ok(Self { region, header, namespace: NamespaceId::DEFAULT, namespace_name, refreshed })
    }

    /// The same reader, recording refreshed objects in `marks` and relying on those that other
    /// processes recorded there. There must be [`REFRESHED_MARKS`](crate::REFRESHED_MARKS) words,
    /// shared only by processes of this node that trust each other.
    #[must_use]
    pub fn sharing_refreshed(self, marks: SharedWords) -> Self {
        Self { refreshed: Arc::new(Refreshed::OfNode(marks)), ..self }
    }

    /// The same reader in a namespace: names are those of its objects, and lists contain only them.
    /// Ids lead to objects of all namespaces.
    #[must_use]
    pub fn in_namespace(self, namespace: NamespaceId, name: &str) -> Self {
        Self { namespace, namespace_name: name.into(), ..self }
    }

    /// The namespace of names and lists, and its name.
    #[must_use]
    pub fn namespace(&self) -> (NamespaceId, &str) {
        (self.namespace, &self.namespace_name)
    }

    /// The mapped region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The positions of all tables.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.header.layout
    }

    /// The uid of this region.
    #[must_use]
    pub fn uid(&self) -> RegionUid {
        self.header.uid
    }

    /// The sealed object with this name.
    ///
    /// # Errors
    /// [`StoreError::NameInvalid`]; [`StoreError::Corrupt`] if an entry is invalid.
    pub fn find(&self, name: &str) -> Result<Option<Entry>, StoreError> {
        let name = &*full_name(&self.namespace_name, name)?;
        let hash = NameHash::of(self.header.key, name.as_bytes());
        let directory = self.region.words(self.layout().directory)?;
        let mut was_away = false;
        for _ in 0..ROUNDS_MAX {
            let turn = self.word(INDEX_TURN)?;
            let table = self.layout().index[(turn & 1) as usize];
            let index = self.region.words(table)?;
            let mut has_changed = false;
            let fresh = |place| self.fresh_place(table, place);
            let found = probe(&index, hash, fresh, |place, slot| {
                failpoint!(reader "find.place");
                match self.look(&directory, slot)? {
                    Look::Sealed(entry) if self.is_named(&directory, &entry, name)? => {
                        return Ok::<_, StoreError>(Some(entry));
                    }
                    Look::Changed => has_changed = true,
                    // Another name, unless its slot has another object by now, or had it before.
                    Look::Sealed(entry) => {
                        has_changed |= !self.is_still(&directory, &entry)?
                            || !self.leads_to(&index, (table, place), slot)?;
                    }
                    Look::None => {
                        has_changed |= self.has_moved(&index, &directory, (table, place), slot)?;
                    }
                    Look::Away(..) => {}
                }
                Ok(None)
            })?;
            if let Some(entry) = found {
                return Ok(Some(entry));
            }
            let is_same_index = self.word(INDEX_TURN)? == turn;
            if !has_changed && is_same_index {
                return Ok(None);
            }
            was_away |= is_same_index;
        }
        if was_away { Ok(None) } else { Err(StoreError::IndexBusy { rounds: ROUNDS_MAX }) }
    }

    /// The sealed object with this id. An object that the home has adopted has a new id: that of
    /// the returned entry.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if an entry is invalid.
    pub fn by_id(&self, id: ObjectId) -> Result<Option<Entry>, StoreError> {
        if id.region() != self.header.uid {
            return Ok(None);
        }
        let mut id = id;
        if let Some(number) = self.layout().client_entry(id.slot()) {
            match self.look_local(number)? {
                LocalLook::Sealed(entry) => return Ok(Some(entry).filter(|e| e.id == id)),
                // The object of this life is in the directory now.
                LocalLook::Moved(life, to) if life == id.generation() => id = to,
                _ => return Ok(None),
            }
        }
        let directory = self.region.words(self.layout().directory)?;
        match self.look(&directory, id.slot())? {
            Look::Sealed(entry) if entry.id == id => Ok(Some(entry)),
            // After a change this life is over, or the object cannot be held at the moment.
            _ => Ok(None),
        }
    }

    /// The sealed object that `target` names.
    ///
    /// # Errors
    /// As [`Reader::find`] and [`Reader::by_id`].
    pub fn lookup(&self, target: Target<'_>) -> Result<Option<Entry>, StoreError> {
        match target {
            Target::Id(id) => self.by_id(id),
            Target::Name(name) => self.find(name),
        }
    }

    /// Find an object and hold it, so that it stays until [`Held`] is dropped. On a node-local
    /// region its bytes are refreshed, since any node may have written them: once for each node, or
    /// once for each process if processes share no [marks](Self::sharing_refreshed).
    ///
    /// # Errors
    /// As [`Reader::lookup`], and [`StoreError::HoldsExhausted`].
    pub fn hold(
        &self,
        table: &Arc<HoldTable>,
        target: Target<'_>,
    ) -> Result<Option<Held>, StoreError> {
        for _ in 0..ROUNDS_MAX {
            let Some(entry) = self.lookup(target)? else {
                return Ok(None);
            };
            if let Some(held) = table.hold(&entry)? {
                if self.region.is_node_local() {
                    self.refresh_payload(&held)?;
                }
                return Ok(Some(held));
            }
        }
        Ok(None)
    }

    /// Refresh all bytes of a held object, if it is necessary and not done yet. [`Reader::hold`]
    /// does this, [`HoldTable::hold`] does not. Returns whether they were refreshed now.
    ///
    /// # Errors
    /// As [`Reader::blocks`].
    pub fn refresh_payload(&self, held: &Held) -> Result<bool, StoreError> {
        if !self.region.is_node_local() {
            return Ok(false);
        }
        let entry = held.entry();
        if self.has_refreshed(entry.id.slot(), entry.sequence()) {
            return Ok(false);
        }
        // The list of the other blocks is in the primary block.
        self.region.refresh(entry.primary)?;
        for block in self.blocks(entry)?.into_iter().skip(1) {
            self.region.refresh(block)?;
        }
        self.note_refreshed(entry.id.slot(), entry.sequence());
        Ok(true)
    }

    pub(crate) fn has_refreshed(&self, slot: Slot, sequence: Sequence) -> bool {
        self.refreshed.contains(slot, sequence)
    }

    pub(crate) fn note_refreshed(&self, slot: Slot, sequence: Sequence) {
        self.refreshed.insert(slot, sequence);
    }

    /// Records that this process wrote and published every byte of an object: its node's caches are
    /// correct, and a hold need not refresh them.
    pub fn note_written(&self, entry: &Entry) {
        if self.region.is_node_local() {
            self.note_refreshed(entry.id.slot(), entry.sequence());
        }
    }

    /// Until when replicas may be used without asking the home, in nanoseconds of the machine's
    /// boot clock. A daemon of an earlier build publishes a time of the monotonic clock, which is
    /// never ahead of the boot clock: that end is early.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn replicas_until(&self) -> Result<u64, StoreError> {
        Ok(self.word(REPLICAS_UNTIL)?.max(self.word(REPLICAS_UNTIL_AWAKE)?))
    }

    /// Whether a client watches all objects of the namespace: then the home has to seal them, which
    /// announces them. One load.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn is_watched(&self) -> Result<bool, StoreError> {
        Ok(self.word(WATCHED)? & watched_bit(self.namespace) != 0)
    }

    /// The version of the bytes that the home publishes for its clients. 0: none yet. One load.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn members_version(&self) -> Result<u64, StoreError> {
        cluster::number(&self.region, self.layout())
    }

    /// The bytes that the home publishes for its clients, and their version; `None`: none yet.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn published_members(&self) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
        cluster::read(&self.region, self.layout())
    }

    /// A cursor before event `next`, clamped to the events that are there: 0 is the oldest,
    /// `u64::MAX` waits for new events only.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn events(&self, next: u64) -> Result<EventCursor, StoreError> {
        EventCursor::new(Arc::clone(&self.region), *self.layout(), next)
    }

    /// Whether an object found before can still be found. Cheaper than finding it.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn is_there(&self, id: ObjectId) -> Result<bool, StoreError> {
        let Some(number) = self.layout().client_entry(id.slot()) else {
            return self.is_sealed(id);
        };
        let life = life_of(self.word(self.layout().life(number, 0))?);
        if life.generation() == id.generation() && is_open(life) {
            return Ok(true);
        }
        // The home may have adopted it.
        Ok(self.by_id(id)?.is_some())
    }

    fn is_sealed(&self, id: ObjectId) -> Result<bool, StoreError> {
        if id.slot().0 >= self.layout().objects_max {
            return Ok(false);
        }
        let directory = self.region.words(self.layout().directory)?;
        let sequence = self.sequence(&directory, id.slot(), Ordering::Acquire)?;
        Ok(sequence.state() == EntryState::Sealed && sequence.generation() == id.generation())
    }

    /// Whether an object has this name. Its bytes may be another's by now, so the entry is checked
    /// again after they were read.
    fn is_named(
        &self,
        directory: &Words<'_>,
        entry: &Entry,
        name: &str,
    ) -> Result<bool, StoreError> {
        if entry.name.length.0 != name.len() as u64 {
            return Ok(false);
        }
        let mut buffer = [0; NAME_BYTES_MAX as usize];
        let Some(found) = buffer.get_mut(..name.len()) else {
            return Ok(false);
        };
        self.region.refresh_if_remote(entry.name)?;
        self.region.copy_out(entry.name.offset, found)?;
        Ok(found == name.as_bytes() && self.is_still(directory, entry)?)
    }

    /// Refresh the line of a place of a name index.
    #[inline]
    fn fresh_place(&self, table: Span, place: usize) -> Result<(), StoreError> {
        if self.region.is_remote() {
            let at = Offset(table.offset.0 + place as u64 * INDEX_BYTES);
            self.region.refresh(Span::new(at, Length(INDEX_BYTES)))?;
        }
        Ok(())
    }

    /// Whether the name of a place of an index may have a newer object than that of `slot`, which was
    /// not there. Where a name gets a newer object, its place changes before the older one retires.
    /// So a slot that stays in one life while its place leads to it has lost its object for good.
    fn has_moved(
        &self,
        index: &Words<'_>,
        directory: &Words<'_>,
        (table, place): (Span, usize),
        slot: Slot,
    ) -> Result<bool, StoreError> {
        if slot.0 >= self.layout().objects_max {
            return Ok(false);
        }
        let before = self.sequence(directory, slot, Ordering::Acquire)?;
        let state = before.state();
        if !matches!(state, EntryState::Free | EntryState::Retiring | EntryState::Unknown) {
            return Ok(true);
        }
        Ok(!self.leads_to(index, (table, place), slot)?
            || self.sequence(directory, slot, Ordering::Acquire)? != before)
    }

    /// Whether a place of an index still leads to `slot`. The slot of a replaced object can have an
    /// object of another name since.
    fn leads_to(
        &self,
        index: &Words<'_>,
        (table, place): (Span, usize),
        slot: Slot,
    ) -> Result<bool, StoreError> {
        self.fresh_place(table, place)?;
        let word = index.load(place, Ordering::Acquire).unwrap_or_default();
        Ok((word as u32).checked_sub(1) == Some(slot.0))
    }

    #[inline]
    pub(crate) fn word(&self, at: Offset) -> Result<u64, StoreError> {
        let span = Span::new(at, Length(8));
        self.region.refresh_if_remote(span)?;
        let words = self.region.words(span)?;
        words.load(0, Ordering::Acquire).ok_or_else(|| StoreError::unreachable_word("header", at.0))
    }
}
