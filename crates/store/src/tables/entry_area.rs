//! The home's view of the entry pages: the owner of each page, and the lives of its entries.
//!
//! An entry page is a page of the data section that one client writes. All bytes read from it are
//! untrusted input; the owner table and the life table are in the control section.

use std::collections::{BTreeMap, BTreeSet};

use farrow_memory::sync::Ordering;
use farrow_memory::{Length, Offset, Proximity, Region, Span};

use crate::error::StoreError;
use crate::failpoint;
use crate::format::client_entry::{CLIENT_ENTRY_WORDS, FORWARD_WORD, life_of};
use crate::format::entry::Sequence;
use crate::format::ids::NamespaceId;
use crate::format::layout::{CLIENT_ENTRY_BYTES, ENTRY_OWNER_BYTES, Layout};
use crate::tables::client_pages::ClientPages;
use crate::tables::control::{Control, word_of};

/// Owner word of a page whose client left, and whose objects the home retains. Client slots plus 1
/// are far below it.
const RETAINED_BY_HOME: u32 = u32::MAX;

/// One client gets at most this fraction of the free pages at once.
const SHARE_OF_FREE: usize = 4;

/// The entry-page table, the life table and the pages.
#[derive(Debug)]
pub(crate) struct EntryArea {
    control: Control,
    layout: Layout,
    pages: ClientPages,
    /// Owner word of each page.
    owners: Vec<u32>,
    /// Namespace of each page that has an owner.
    namespaces: Vec<NamespaceId>,
    free: BTreeSet<u32>,
    by_client: BTreeMap<u32, BTreeSet<u32>>,
    /// Entries of each page that the home knows: sealed, retiring or adopted.
    known: Vec<u32>,
}

impl EntryArea {
    /// Take over the table of an existing region. Pages of a client not in `clients` become the
    /// home's.
    pub(crate) fn open(
        control: Control,
        layout: Layout,
        clients: &BTreeSet<u32>,
    ) -> Result<Self, StoreError> {
        let pages = ClientPages::new(control.region(), layout.entry_pages)?;
        let mut area = Self {
            control,
            layout,
            pages,
            owners: vec![0; layout.entry_pages_max as usize],
            namespaces: vec![NamespaceId::DEFAULT; layout.entry_pages_max as usize],
            free: BTreeSet::new(),
            by_client: BTreeMap::new(),
            known: vec![0; layout.entry_pages_max as usize],
        };
        for page in 0..layout.entry_pages_max {
            let (owner, namespace) = split(area.control.load(area.owner_word(page))?);
            let client = owner.checked_sub(1).filter(|client| clients.contains(client));
            if client.is_some() || owner == 0 || owner == RETAINED_BY_HOME {
                area.remember(page, owner, namespace);
            } else {
                area.set_owner(page, RETAINED_BY_HOME, namespace)?;
            }
        }
        Ok(area)
    }

    /// Record whether the process of a client runs on this node.
    pub(crate) fn set_proximity(&mut self, client: u32, proximity: Proximity) {
        self.pages.set_proximity(client, proximity);
    }

    /// Assign at most `count` consecutive pages to a client, zeroed. At least one.
    pub(crate) fn assign(
        &mut self,
        client: u32,
        namespace: NamespaceId,
        count: u32,
    ) -> Result<Span, StoreError> {
        let max = self.layout.entry_pages_max;
        let first = *self.free.first().ok_or(StoreError::EntryPagesExhausted { max })?;
        let most = (self.free.len() / SHARE_OF_FREE).min(count as usize).max(1);
        let row = self.free.iter().zip(first..).take(most);
        let count = row.take_while(|(page, expected)| *page == expected).count() as u32;
        for page in first..first + count {
            self.pages.zero(self.span_of(page))?;
            failpoint!("entry_page.zeroed");
            self.set_owner(page, client + 1, namespace)?;
            failpoint!("entry_page.owned");
        }
        let page = self.layout.page.0;
        Ok(Span::new(self.span_of(first).offset, Length(u64::from(count) * page)))
    }

    /// A client left: its pages with objects become the home's, the others are free.
    pub(crate) fn client_left(&mut self, client: u32) -> Result<(), StoreError> {
        // All at once: a page that changes its owner is looked for in this table.
        let mut pages = self.by_client.remove(&client).unwrap_or_default();
        while let Some(page) = pages.first().copied() {
            let is_empty = self.known.get(page as usize) == Some(&0);
            let owner = if is_empty { 0 } else { RETAINED_BY_HOME };
            if let Err(error) = self.set_owner(page, owner, self.namespace_of_page(page)) {
                self.by_client.insert(client, pages);
                return Err(error);
            }
            pages.pop_first();
            failpoint!("entry_page.left");
        }
        Ok(())
    }

    /// Clients that own a page.
    pub(crate) fn clients(&self) -> Vec<u32> {
        self.by_client.keys().copied().collect()
    }

    /// The pages of a client, adjacent ones merged.
    pub(crate) fn spans_of(&self, client: u32) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        for page in self.by_client.get(&client).into_iter().flatten() {
            let span = self.span_of(*page);
            match spans.last_mut() {
                Some(last) if last.end() == Some(span.offset) => last.length.0 += span.length.0,
                _ => spans.push(span),
            }
        }
        spans
    }

    /// Pages of a client with an entry that the home does not know.
    pub(crate) fn unknown_pages_of(&self, client: u32) -> Vec<u32> {
        let full = self.layout.client_entries_in_page();
        let pages = self.by_client.get(&client).into_iter().flatten();
        pages.copied().filter(|page| self.known.get(*page as usize) != Some(&full)).collect()
    }

    /// The first client from `client` on that owns a page.
    pub(crate) fn clients_from(&self, client: u32) -> Option<u32> {
        self.by_client.range(client..).next().map(|(client, _)| *client)
    }

    /// The pages of a client from page `first` on, and whether they have an entry that the home
    /// does not know.
    pub(crate) fn pages_from(
        &self,
        client: u32,
        first: u32,
    ) -> impl Iterator<Item = (u32, bool)> + '_ {
        let full = self.layout.client_entries_in_page();
        let pages = self.by_client.get(&client).into_iter().flat_map(move |all| all.range(first..));
        pages.map(move |page| (*page, self.known.get(*page as usize) != Some(&full)))
    }

    /// Pages that have an owner, including the home.
    pub(crate) fn used_pages(&self) -> Vec<u32> {
        (0..).zip(&self.owners).filter(|(_, owner)| **owner != 0).map(|(page, _)| page).collect()
    }

    /// How many pages have an owner.
    pub(crate) fn used(&self) -> u32 {
        (self.owners.len() - self.free.len()) as u32
    }

    /// The client that owns the page of an entry.
    pub(crate) fn client_of(&self, number: u32) -> Option<u32> {
        let page = number / self.layout.client_entries_in_page().max(1);
        self.client_of_page(page)
    }

    /// The client that owns a page.
    pub(crate) fn client_of_page(&self, page: u32) -> Option<u32> {
        let owner = self.owners.get(page as usize).copied().filter(|o| *o != RETAINED_BY_HOME)?;
        owner.checked_sub(1)
    }

    /// The namespace of an entry: that of its page.
    pub(crate) fn namespace_of(&self, number: u32) -> NamespaceId {
        self.namespace_of_page(self.page_of(number) as u32)
    }

    /// The namespace of a page.
    pub(crate) fn namespace_of_page(&self, page: u32) -> NamespaceId {
        self.namespaces.get(page as usize).copied().unwrap_or_default()
    }

    /// Count one more known entry in its page.
    pub(crate) fn enter(&mut self, number: u32) {
        let page = self.page_of(number);
        if let Some(known) = self.known.get_mut(page) {
            *known += 1;
        }
    }

    /// The life of a known entry is over. A page of the home becomes free with its last entry.
    pub(crate) fn leave(&mut self, number: u32) -> Result<(), StoreError> {
        let page = self.page_of(number);
        let Some(known) = self.known.get_mut(page) else {
            return Ok(());
        };
        *known = known.saturating_sub(1);
        if *known == 0 && self.owners.get(page) == Some(&RETAINED_BY_HOME) {
            self.set_owner(page as u32, 0, NamespaceId::DEFAULT)?;
            failpoint!("entry_page.freed");
        }
        Ok(())
    }

    /// Free the home's pages without known entries: a former home was killed before it did.
    pub(crate) fn free_empty(&mut self) -> Result<(), StoreError> {
        for page in self.used_pages() {
            let is_empty = self.known.get(page as usize) == Some(&0);
            if is_empty && self.owners.get(page as usize) == Some(&RETAINED_BY_HOME) {
                self.set_owner(page, 0, NamespaceId::DEFAULT)?;
            }
        }
        Ok(())
    }

    /// The life of an entry.
    pub(crate) fn life(&self, number: u32) -> Result<Sequence, StoreError> {
        Ok(life_of(self.control.load(self.layout.life(number, 0))?))
    }

    pub(crate) fn set_life(&self, number: u32, to: Sequence) -> Result<(), StoreError> {
        self.control.store(self.layout.life(number, 0), to.0)
    }

    /// The new location of an adopted object: the low half of an object id, or 0.
    pub(crate) fn forward(&self, number: u32) -> Result<u64, StoreError> {
        self.control.load(self.layout.life(number, FORWARD_WORD))
    }

    pub(crate) fn set_forward(&self, number: u32, to: u64) -> Result<(), StoreError> {
        self.control.store(self.layout.life(number, FORWARD_WORD), to)
    }

    /// End the life of an entry: the next one is open, and is not forwarded. The last life has no
    /// next one and stays closed.
    pub(crate) fn end_life(&self, number: u32) -> Result<(), StoreError> {
        let life = self.life(number)?;
        // In the last life, state free means closed.
        self.set_life(
            number,
            life.next_life().unwrap_or(life.with(crate::format::entry::EntryState::Free)),
        )?;
        if self.forward(number)? != 0 {
            failpoint!("life.ended");
            self.set_forward(number, 0)?;
        }
        Ok(())
    }

    /// Copy a page out.
    pub(crate) fn read_page(&self, page: u32) -> Result<Vec<u64>, StoreError> {
        self.pages.read(self.span_of(page), self.client_of_page(page))
    }

    /// Copy one entry out.
    pub(crate) fn read_entry(&self, number: u32) -> Result<[u64; CLIENT_ENTRY_WORDS], StoreError> {
        let words =
            self.pages.read(self.layout.client_entry_span(number), self.client_of(number))?;
        Ok(words.first_chunk().copied().unwrap_or_default())
    }

    /// The entries of a page that was read, with their numbers.
    pub(crate) fn entries<'a>(
        &self,
        page: u32,
        words: &'a [u64],
    ) -> impl Iterator<Item = (u32, &'a [u64; CLIENT_ENTRY_WORDS])> + use<'a> {
        let in_page = self.layout.client_entries_in_page();
        let entries = words.as_chunks::<CLIENT_ENTRY_WORDS>().0;
        (page * in_page..).zip(entries.iter().take(in_page as usize))
    }

    /// Whether private state and table agree. `known` returns the number of known entries of a
    /// page.
    pub(crate) fn check(&self, known: impl Fn(u32) -> u32) -> Result<(), String> {
        for (page, owner) in (0..).zip(&self.owners) {
            let found =
                self.control.load(self.owner_word(page)).map_err(|error| error.to_string())?;
            let is_clients = self
                .client_of_page(page)
                .is_some_and(|c| self.by_client.get(&c).is_some_and(|p| p.contains(&page)));
            let count = self.known.get(page as usize).copied().unwrap_or_default();
            let is_right = split(found) == (*owner, self.namespace_of_page(page))
                && (*owner == 0) == self.free.contains(&page)
                && is_clients == self.client_of_page(page).is_some()
                && count == known(page)
                && (count > 0 || *owner != RETAINED_BY_HOME)
                && (count == 0 || *owner != 0);
            if !is_right {
                return Err(format!(
                    "entry page {page}: owner {owner}, {count} entries; the region says {found}"
                ));
            }
        }
        Ok(())
    }

    fn page_of(&self, number: u32) -> usize {
        (number / self.layout.client_entries_in_page().max(1)) as usize
    }

    fn set_owner(
        &mut self,
        page: u32,
        owner: u32,
        namespace: NamespaceId,
    ) -> Result<(), StoreError> {
        let namespace = if owner == 0 { NamespaceId::DEFAULT } else { namespace };
        let word = u64::from(owner) | u64::from(namespace.0) << 32;
        self.control.store(self.owner_word(page), word)?;
        self.remember(page, owner, namespace);
        Ok(())
    }

    fn remember(&mut self, page: u32, owner: u32, namespace: NamespaceId) {
        if let Some(known) = self.namespaces.get_mut(page as usize) {
            *known = namespace;
        }
        if let Some(client) = self.client_of_page(page)
            && let Some(pages) = self.by_client.get_mut(&client)
        {
            pages.remove(&page);
            if pages.is_empty() {
                self.by_client.remove(&client);
            }
        }
        if let Some(known) = self.owners.get_mut(page as usize) {
            *known = owner;
        }
        if owner == 0 {
            self.free.insert(page);
        } else {
            self.free.remove(&page);
        }
        if let Some(client) = self.client_of_page(page) {
            self.by_client.entry(client).or_default().insert(page);
        }
    }

    fn owner_word(&self, page: u32) -> Offset {
        word_of(self.layout.entry_owners, ENTRY_OWNER_BYTES, page, 0)
    }

    fn span_of(&self, page: u32) -> Span {
        let bytes = self.layout.page.0;
        let at = self.layout.entry_pages.offset.0 + u64::from(page) * bytes;
        Span::new(Offset(at), Length(bytes))
    }
}

/// The namespace of a page, as any process reads it from the region.
pub(crate) fn namespace_of_page(
    region: &Region,
    layout: &Layout,
    page: u32,
) -> Result<NamespaceId, StoreError> {
    let at = word_of(layout.entry_owners, ENTRY_OWNER_BYTES, page, 0);
    let span = Span::new(at, Length(8));
    region.refresh_if_remote(span)?;
    let words = region.words(span)?;
    let unreachable = || StoreError::unreachable_word("entry-page table", page.into());
    words.load(0, Ordering::Acquire).map(|word| split(word).1).ok_or_else(unreachable)
}

/// Owner and namespace from the word of a page.
pub(crate) fn split(word: u64) -> (u32, NamespaceId) {
    (word as u32, NamespaceId((word >> 32) as u16))
}

const _: () = assert!(CLIENT_ENTRY_BYTES == CLIENT_ENTRY_WORDS as u64 * 8);
