//! The client side of the directory: find objects by loads of mapped memory alone.

use std::sync::Arc;

use farrow_memory::sync::{Ordering, fence};
use farrow_memory::{Length, Offset, Region, SharedWords, Span, Words};

use crate::client::hold_table::{Held, HoldTable};
use crate::client::refreshed::Refreshed;
use crate::client::uses::stamp;
use crate::coherence::TORN_MAX;
use crate::error::{FormatError, StoreError};
use crate::events::EventCursor;
use crate::format::client_entry::{FORWARD_WORD, decode, is_open, life_of};
use crate::format::entry::{
    ENTRY_WORDS, Entry, EntryState, NAME_LENGTH_WORD, NAME_WORD, REPLICA_ORIGIN_BYTES, Sequence,
    decode_list, decode_origin,
};
use crate::format::full_name::own_name;
use crate::format::hash::NameHash;
use crate::format::header::{
    INDEX_TURN, REPLICAS_UNTIL, RegionHeader, SLOTS_USED, WATCHED, watched_bit,
};
use crate::format::ids::{Generation, NamespaceId, ObjectId, RegionUid, Slot, Target};
use crate::format::layout::{ENTRY_BYTES, INDEX_BYTES, LIFE_BYTES, Layout, PINS_IN_WORD};
use crate::format::metadata::{METADATA_BYTES_MAX, Metadata};
use crate::format::options::NAME_BYTES_MAX;
use crate::seqlock::{self, Copied, RecordReader};
use crate::tables::cluster;
use crate::tables::control::word_of;
use crate::tables::entry_area::{namespace_of_page, split};
use crate::tables::names::{full_name, probe};

mod retained;
mod together;

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

/// A block of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockLocation {
    /// Its span.
    pub block: Span,
    /// Its span at seal: offsets in the descriptor are relative to it.
    pub origin: Span,
}

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

/// Result of a look at one entry. Not boxed: it lives on the stack of a lookup.
#[allow(clippy::large_enum_variant)]
enum Look {
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
enum LocalLook {
    None,
    Sealed(Entry),
    /// The object of this life is in the directory now.
    Moved(Generation, ObjectId),
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
            let found =
                probe(&index, hash, fresh, |place, slot| match self.look(&directory, slot)? {
                    Look::Sealed(entry) if self.is_named(&directory, &entry, name)? => {
                        Ok::<_, StoreError>(Some(entry))
                    }
                    Look::Changed => {
                        has_changed = true;
                        Ok(None)
                    }
                    // Another name, unless its slot has another object by now.
                    Look::Sealed(entry) => {
                        has_changed |= !self.is_still(&directory, &entry)?;
                        Ok(None)
                    }
                    Look::None => {
                        has_changed |= self.has_moved(&index, &directory, (table, place), slot)?;
                        Ok(None)
                    }
                    Look::Away(..) => Ok(None),
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
                let sequence = self.sequence(directory, slot, Ordering::Acquire)?;
                let place = self.place_of(sequence, slot);
                let is_it = place != Whereabouts::Nowhere
                    && self.has_name(directory, slot, sequence, name)?;
                has_moved |= !is_it
                    && match place {
                        Whereabouts::Nowhere => {
                            self.has_moved(&index, directory, (table, at), slot)?
                        }
                        _ => self.sequence(directory, slot, Ordering::Acquire)? != sequence,
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

    /// Until when replicas may be used without asking the home, in nanoseconds of the machine's
    /// monotonic clock. One load.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn replicas_until(&self) -> Result<u64, StoreError> {
        self.word(REPLICAS_UNTIL)
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
    pub fn told_number(&self) -> Result<u64, StoreError> {
        cluster::told_number(&self.region, self.layout())
    }

    /// The bytes that the home publishes for its clients, and their version; `None`: none yet.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn told(&self) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
        cluster::told(&self.region, self.layout())
    }

    /// All blocks of an object, the primary one first. The caller holds the object.
    ///
    /// # Errors
    /// [`StoreError::BlockListDamaged`] or [`StoreError::Corrupt`] if the list in the data section
    /// differs from the sealed one.
    pub fn blocks(&self, entry: &Entry) -> Result<Vec<Span>, StoreError> {
        if entry.extra_count == 0 {
            return Ok(vec![entry.primary]);
        }
        Ok(self.places(entry)?.into_iter().map(|place| place.block).collect())
    }

    /// All blocks of an object and their spans at seal, the primary one first. The caller holds the
    /// object.
    ///
    /// # Errors
    /// As [`Reader::blocks`].
    pub fn places(&self, entry: &Entry) -> Result<Vec<BlockLocation>, StoreError> {
        let mut places = vec![BlockLocation { block: entry.primary, origin: entry.primary }];
        if entry.extra_count == 0 && !entry.is_relocated {
            return Ok(places);
        }
        let slot = entry.id.slot();
        let corrupt = |reason| StoreError::Corrupt { slot, reason };
        entry.validate(self.layout()).map_err(corrupt)?;
        let list = entry.extra_list().ok_or_else(|| corrupt("its block list leaves 64 bits"))?;
        let mut bytes = vec![0; list.length.0 as usize];
        self.region.refresh_if_node_local(list)?;
        self.region.copy_out(list.offset, &mut bytes)?;
        let (stored, computed) = (entry.extra_crc, crc32c::crc32c(&bytes));
        if stored != computed {
            return Err(StoreError::BlockListDamaged { id: entry.id, stored, computed });
        }
        let (extra, origins) = decode_list(&bytes, entry, self.layout()).map_err(corrupt)?;
        places.extend(extra.into_iter().map(|block| BlockLocation { block, origin: block }));
        for (place, offset) in places.iter_mut().zip(origins) {
            place.origin.offset = offset;
        }
        if let Some(primary) = places.first_mut() {
            primary.origin.length = entry.primary_bytes_at_seal();
        }
        Ok(places)
    }

    /// The object of which a held replica is a copy; none if it is not a replica.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the origin in its block was changed.
    pub fn origin(&self, entry: &Entry) -> Result<Option<ObjectId>, StoreError> {
        if !entry.is_replica {
            return Ok(None);
        }
        let corrupt = |reason| StoreError::Corrupt { slot: entry.id.slot(), reason };
        let span = entry.origin().ok_or_else(|| corrupt("its origin leaves its block"))?;
        let mut bytes = [0; REPLICA_ORIGIN_BYTES as usize];
        self.region.refresh_if_node_local(span)?;
        self.region.copy_out(span.offset, &mut bytes)?;
        decode_origin(&bytes).map(Some).map_err(corrupt)
    }

    /// The metadata of an object; none if the object is no longer there.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if it is not the metadata that the creator sealed.
    pub fn metadata(&self, entry: &Entry) -> Result<Option<Metadata>, StoreError> {
        if entry.metadata_bytes == 0 {
            return Ok(Some(Metadata::default()));
        }
        let corrupt = |reason| StoreError::Corrupt { slot: entry.id.slot(), reason };
        if entry.metadata_bytes > METADATA_BYTES_MAX {
            return Err(corrupt("its metadata is too long"));
        }
        let span = entry.metadata().ok_or_else(|| corrupt("its metadata leaves its block"))?;
        let mut bytes = vec![0; span.length.0 as usize];
        self.region.refresh_if_node_local(span)?;
        self.region.copy_out(span.offset, &mut bytes)?;
        // Without a hold the memory may be another object's by now.
        let directory = self.region.words(self.layout().directory)?;
        fence(Ordering::Acquire);
        let is_there = match self.layout().client_entry(entry.id.slot()) {
            Some(_) => self.is_still(&directory, entry)?,
            None => {
                let now = self.sequence(&directory, entry.id.slot(), Ordering::Relaxed)?;
                now == entry.sequence() || now == entry.sequence().with(EntryState::Leaving)
            }
        };
        if !is_there {
            return Ok(None);
        }
        if crc32c::crc32c(&bytes) != entry.metadata_crc {
            return Err(corrupt("the checksum of its metadata differs"));
        }
        Metadata::decode(&bytes).map(Some).map_err(|_| corrupt("its metadata does not decode"))
    }

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
                // A replica is listed in the region of its original.
                Look::Sealed(entry) | Look::Away(entry, _)
                    if entry.namespace != self.namespace || entry.is_replica =>
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

    /// A cursor before event `next`, clamped to the events that are there: 0 is the oldest,
    /// `u64::MAX` waits for new events only.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn events(&self, next: u64) -> Result<EventCursor, StoreError> {
        EventCursor::new(Arc::clone(&self.region), *self.layout(), next)
    }

    /// Copy an entry out, and check that it was the same before and after.
    fn look(&self, directory: &Words<'_>, slot: Slot) -> Result<Look, StoreError> {
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
        self.look_once(entry, slot)
    }

    #[inline]
    fn look_once(&self, entry: Words<'_>, slot: Slot) -> Result<Look, StoreError> {
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
    fn look_local(&self, number: u32) -> Result<LocalLook, StoreError> {
        if self.region.is_node_local() {
            return whole(|| self.look_local_once(number));
        }
        self.look_local_once(number)
    }

    #[inline]
    fn look_local_once(&self, number: u32) -> Result<LocalLook, StoreError> {
        let layout = self.layout();
        let life_span = self.life_span_of(number);
        let lives = self.region.words(life_span)?;
        let life_word = || {
            // It is in the region, as `words` has checked.
            let _ = self.region.refresh_if_remote(life_span);
            lives.load(0, Ordering::Acquire).unwrap_or_default()
        };
        let life = life_of(life_word());
        let to = lives.load(FORWARD_WORD as usize, Ordering::Acquire).unwrap_or_default();
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

    fn is_still(&self, directory: &Words<'_>, entry: &Entry) -> Result<bool, StoreError> {
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
    fn sequence(
        &self,
        directory: &Words<'_>,
        slot: Slot,
        order: Ordering,
    ) -> Result<Sequence, StoreError> {
        self.region.refresh_if_remote(Span::new(self.entry_span(slot).offset, Length(8)))?;
        load(directory, slot, 0, order).map(Sequence)
    }

    /// The span of the words in which the home records the life of a client's entry.
    fn life_span_of(&self, number: u32) -> Span {
        Span::new(self.layout().life(number, 0), Length(LIFE_BYTES))
    }

    fn entry_span(&self, slot: Slot) -> Span {
        let at = word_of(self.layout().directory, ENTRY_BYTES, slot.0, 0);
        Span::new(at, Length(ENTRY_BYTES))
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
        self.fresh_place(table, place)?;
        let word = index.load(place, Ordering::Acquire).unwrap_or_default();
        if (word as u32).checked_sub(1) != Some(slot.0) {
            return Ok(true);
        }
        Ok(self.sequence(directory, slot, Ordering::Acquire)? != before)
    }

    #[inline]
    fn word(&self, at: Offset) -> Result<u64, StoreError> {
        let span = Span::new(at, Length(8));
        self.region.refresh_if_remote(span)?;
        let words = self.region.words(span)?;
        words.load(0, Ordering::Acquire).ok_or_else(|| StoreError::unreachable_word("header", at.0))
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

fn load(directory: &Words<'_>, slot: Slot, word: u64, order: Ordering) -> Result<u64, StoreError> {
    let at = word_of(Span::default(), ENTRY_BYTES / 8, slot.0, 0).0 + word;
    directory.load(at as usize, order).ok_or_else(|| StoreError::unreachable_word("directory", at))
}

/// The words of one entry, in the directory or in an entry page.
struct EntryReader<'a>(Words<'a>);

impl RecordReader for EntryReader<'_> {
    fn first(&self, order: Ordering) -> Option<u64> {
        self.0.load(0, order)
    }

    fn word(&self, index: usize) -> Option<u64> {
        self.0.load(index, Ordering::Relaxed)
    }
}
