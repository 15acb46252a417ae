//! The client side of client entries: make an object by stores, without a message.
//!
//! # Why an entry is read whole or not at all
//!
//! The client uses an entry for an open life that it has not used yet. It
//!   1. stores the sequence with state writing, and passes a release fence,
//!   2. stores the other words,
//!   3. stores the sequence with state sealed, by a release store: the object exists.
//!
//! A reader loads life and sequence before the other words, and again afterwards. The home ends a
//! life by storing the life, and only then opens the next one, which the client loads before
//! step 1. So a reader that sees a word of the next life sees, at its second load, that its own is over.
//! A client that is killed before step 3 leaves an entry that no reader accepts.
//!
//! On a node-local region the entry is published before step 3, and its first line after it. A
//! reader on another node may see lines of different age: the checksum differs, and it looks again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farrow_memory::sync::Ordering;
use farrow_memory::{Alias, Length, Offset, Region, Span, WordsMut};

use crate::client::hold_table::{Held, HoldTable};
use crate::error::StoreError;
use crate::failpoint;
use crate::format::client_entry::{encode, is_open, life_of};
use crate::format::entry::{Entry, EntryState};
use crate::format::header::RegionHeader;
use crate::format::ids::{Generation, NamespaceId, ObjectId};
use crate::home::SealRequest;
use crate::seqlock::{self, RecordWriter};
use crate::tables::clients::ClientSlot;
use crate::tables::entry_area::namespace_of_page;

/// Entries that one search finds, and lives that it looks at in any case: about 4 KiB of them.
const SEARCH_MIN: usize = 512;

/// Lives that may be looked at for each new object. If one entry in this many can be reused, no
/// page is requested: a client's pages are proportional to its live objects.
const LOOKS_PER_OBJECT: usize = 4;

/// Consecutive entry pages.
#[derive(Debug)]
struct PageRow {
    alias: Alias,
    /// Number of its first entry.
    first: u32,
    /// Namespace of the pages.
    namespace: NamespaceId,
    /// The last life of each entry that this client used; 0: none.
    used: Vec<u32>,
}

/// The place of an entry in the table.
#[derive(Debug, Clone, Copy, Default)]
struct EntryPlace {
    /// Index of its row.
    row: usize,
    /// Index in the row.
    index: usize,
}

/// An entry in a life that an object can use.
#[derive(Debug, Clone, Copy)]
struct OpenEntry {
    /// The entry.
    place: EntryPlace,
    /// Its life.
    life: Generation,
}

/// The entries of a client, and those of them that it can use.
#[derive(Debug, Default)]
struct EntryPool {
    rows: Vec<PageRow>,
    /// Entries whose life is open and unused.
    free: Vec<EntryPlace>,
    /// The place where the next search starts.
    next: EntryPlace,
    /// Entries in all rows.
    entries: usize,
    /// Lives that the next search may look at.
    looks: usize,
}

/// The words of one entry.
struct EntryWriter<'a>(WordsMut<'a>);

impl RecordWriter for EntryWriter<'_> {
    type Error = StoreError;

    fn store_first(&self, word: u64) -> Result<(), StoreError> {
        stored(self.0.store(0, word, Ordering::Release))
    }

    fn store_rest(&self, words: &[u64]) -> Result<(), StoreError> {
        let store = |(i, word): (usize, &u64)| self.0.store(i + 1, *word, Ordering::Relaxed);
        stored(words.iter().enumerate().map(store).fold(true, |all, one| all & one))
    }
}

fn stored(is_stored: bool) -> Result<(), StoreError> {
    if is_stored { Ok(()) } else { Err(StoreError::unreachable_word("entry page", 0)) }
}

/// The entry pages of one client. Shared by its threads.
#[derive(Debug)]
pub struct EntryTable {
    region: Arc<Region>,
    header: RegionHeader,
    client: ClientSlot,
    pid: u32,
    state: Mutex<EntryPool>,
}

impl EntryTable {
    /// A table without pages, of the client in slot `client`.
    ///
    /// # Errors
    /// [`StoreError::Format`] if `region` is not a store region.
    pub fn new(region: Arc<Region>, client: ClientSlot, pid: u32) -> Result<Self, StoreError> {
        let header = RegionHeader::read(&region)?;
        Ok(Self { region, header, client, pid, state: Mutex::default() })
    }

    /// Add consecutive pages that the home has assigned. Pages that are already in the table are
    /// left as they are.
    ///
    /// # Errors
    /// [`StoreError::BadSpan`] if they are not entry pages, [`StoreError::Map`].
    pub fn add_pages(&self, span: Span) -> Result<(), StoreError> {
        let layout = &self.header.layout;
        let page = layout.page.0;
        let is_good =
            layout.entry_pages.contains(span) && !span.is_empty() && span.is_aligned(page);
        if !is_good {
            return Err(StoreError::BadSpan { span, reason: "it is no entry page" });
        }
        let mut pool = self.pool();
        let page_of = |n: u64| Span::new(Offset(span.offset.0 + n * page), Length(page));
        let is_known = |span: &Span| pool.rows.iter().any(|row| row.alias.span().contains(*span));
        let fresh: Vec<Span> =
            (0..span.length.0 / page).map(page_of).filter(|span| !is_known(span)).collect();
        let rows = fresh.chunk_by(|one, next| one.end() == Some(next.offset));
        for row in rows {
            let (Some(first), Some(last)) = (row.first(), row.last()) else { continue };
            let length = Length(last.offset.0 + page - first.offset.0);
            self.add_row(&mut pool, Span::new(first.offset, length))?;
        }
        Ok(())
    }

    fn add_row(&self, pool: &mut EntryPool, span: Span) -> Result<(), StoreError> {
        let layout = &self.header.layout;
        let in_page = layout.client_entries_in_page();
        let before = (span.offset.0 - layout.entry_pages.offset.0) / layout.page.0;
        let pages = span.length.0 / layout.page.0;
        let alias = self.region.alias(span)?;
        // The home has zeroed the pages. This node's caches may have older bytes, and would write
        // them back with the first entry.
        self.region.refresh_if_remote(span)?;
        let used = vec![0; pages as usize * in_page as usize];
        let (row, count) = (pool.rows.len(), used.len());
        let namespace = namespace_of_page(&self.region, layout, before as u32)?;
        pool.entries += count;
        pool.rows.push(PageRow { alias, first: before as u32 * in_page, namespace, used });
        // The last one in is the first one out: low entries are used first.
        for index in (0..count).rev() {
            let place = EntryPlace { row, index };
            if self.usable(pool, place)?.is_some() {
                pool.free.push(place);
            }
        }
        Ok(())
    }

    /// Make an object of bytes that this client has written and published: no name, and one block,
    /// which is part of its grants. None: no entry is free; ask the home for pages.
    ///
    /// With `holds` the object is held from the beginning.
    ///
    /// # Errors
    /// [`StoreError::BadRequest`] for a request that is invalid, or has a name or extra blocks;
    /// [`StoreError::HoldsExhausted`]. No object exists then.
    pub fn seal(
        &self,
        request: &SealRequest<'_>,
        now_ns: u64,
        holds: Option<&Arc<HoldTable>>,
    ) -> Result<Option<(ObjectId, Option<Held>)>, StoreError> {
        if request.name.is_some() || !request.extra.is_empty() {
            let reason = "a client seals objects without name and of one block";
            return Err(StoreError::BadRequest { reason });
        }
        let mut pool = self.pool();
        if pool.free.is_empty() {
            self.search(&mut pool)?;
        }
        let open = loop {
            let Some(place) = pool.free.pop() else {
                return Ok(None);
            };
            if let Some(life) = self.usable(&pool, place)? {
                break OpenEntry { place, life };
            }
        };
        let OpenEntry { place, life } = open;
        let sealed = self.seal_at(&pool, open, request, now_ns, holds);
        match &sealed {
            Ok(_) => {
                let row = pool.rows.get_mut(place.row);
                let used = row.and_then(|row| row.used.get_mut(place.index));
                if let Some(used) = used {
                    *used = life.0;
                }
                pool.looks = (pool.looks + LOOKS_PER_OBJECT).min(pool.entries);
            }
            Err(_) => pool.free.push(place),
        }
        sealed.map(Some)
    }

    fn seal_at(
        &self,
        pool: &EntryPool,
        OpenEntry { place, life }: OpenEntry,
        request: &SealRequest<'_>,
        now_ns: u64,
        holds: Option<&Arc<HoldTable>>,
    ) -> Result<(ObjectId, Option<Held>), StoreError> {
        let layout = &self.header.layout;
        let row = pool.rows.get(place.row);
        let row = row.ok_or(StoreError::BadRequest { reason: "no such page" })?;
        let number = row.first + place.index as u32;
        let id = ObjectId::new(self.header.uid, life, layout.client_slot(number));
        let entry = Entry {
            kind: request.kind,
            descriptor: request.descriptor,
            size: request.size,
            descriptor_crc: request.descriptor_crc,
            sealed_at_ns: now_ns,
            creator_pid: self.pid,
            creator: self.client.0,
            metadata_bytes: request.metadata_bytes,
            metadata_crc: request.metadata_crc,
            namespace: row.namespace,
            ..Entry::bytes(id, request.primary)
        };
        entry.validate(layout).map_err(|reason| StoreError::BadRequest { reason })?;
        if entry.descriptor.length.0 > u32::MAX.into() {
            return Err(StoreError::BadRequest { reason: "a descriptor of more than 32 bits" });
        }
        // The claim is first, so that the object cannot be deleted before it is held.
        let held = match holds {
            Some(holds) => {
                let closed = || StoreError::Inconsistent("an open life was closed".to_owned());
                Some(holds.hold(&entry)?.ok_or_else(closed)?)
            }
            None => None,
        };
        self.write(&row.alias, layout.client_entry_span(number), &entry)?;
        Ok((id, held))
    }

    /// Steps 1 to 3.
    fn write(&self, alias: &Alias, span: Span, entry: &Entry) -> Result<(), StoreError> {
        let sealed = encode(entry);
        let (first, rest) = sealed.split_at(1);
        let record = EntryWriter(alias.words_mut(span)?);
        seqlock::fill(&record, entry.sequence().with(EntryState::Writing).0, rest)?;
        self.region.publish_if_node_local(span)?;
        failpoint!(client "own.filled");
        record.store_first(first[0])?;
        failpoint!(client "own.sealed");
        self.region.publish_if_node_local(Span::new(span.offset, Length(8)))?;
        Ok(())
    }

    /// Look for entries whose life has advanced since they were used.
    fn search(&self, pool: &mut EntryPool) -> Result<(), StoreError> {
        let most = pool.looks.max(SEARCH_MIN).min(pool.entries);
        for _ in 0..most {
            if pool.free.len() >= SEARCH_MIN {
                break;
            }
            pool.looks = pool.looks.saturating_sub(1);
            let EntryPlace { row, index } = pool.next;
            if pool.rows.get(row).is_none_or(|row| index >= row.used.len()) {
                let row = if row + 1 < pool.rows.len() { row + 1 } else { 0 };
                pool.next = EntryPlace { row, index: 0 };
            }
            let place = pool.next;
            pool.next.index += 1;
            if self.usable(pool, place)?.is_some() {
                pool.free.push(place);
            }
        }
        Ok(())
    }

    /// The life in which an entry can be used, if it is open and this client has not used it.
    fn usable(
        &self,
        pool: &EntryPool,
        place: EntryPlace,
    ) -> Result<Option<Generation>, StoreError> {
        let Some(row) = pool.rows.get(place.row) else {
            return Ok(None);
        };
        let at = self.header.layout.life(row.first + place.index as u32, 0);
        let span = Span::new(at, Length(8));
        self.region.refresh_if_remote(span)?;
        let words = self.region.words(span)?;
        // Acquire: stores into the entry follow the end of its last life.
        let word = words.load(0, Ordering::Acquire);
        let life = life_of(word.ok_or_else(|| StoreError::unreachable_word("life table", at.0))?);
        let is_unused = row.used.get(place.index).is_some_and(|used| *used < life.generation().0);
        Ok((is_open(life) && is_unused).then_some(life.generation()))
    }

    /// The state under the lock is consistent after each statement.
    fn pool(&self) -> MutexGuard<'_, EntryPool> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
