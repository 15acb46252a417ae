//! Objects that clients seal themselves, in their own entry pages.
//!
//! The home registers them when it scans entry pages: before it counts, deletes, or removes a
//! client. It then takes the object's block off the client's grants and records it in private
//! memory, and no longer trusts the entry for it. An entry that claims memory outside of its
//! client's grants is no object, and its life ends.

use std::collections::BTreeMap;

use farrow_memory::{Length, Span};

use super::delete::{Deleted, unknown_block};
use crate::alloc::blocks::{BlockRole, ClientAccount};
use crate::alloc::space::{Run, outside};
use crate::error::StoreError;
use crate::events::EventKind;
use crate::failpoint;
use crate::format::client_entry::{CLIENT_ENTRY_WORDS, decode, is_open};
use crate::format::entry::{Entry, EntryState, Sequence};
use crate::format::ids::{ObjectId, Slot, Target};
use crate::home::Home;
use crate::home::state::KnownEntry;
use crate::tables::clients::ClientSlot;
use crate::tables::grants::{Carving, run_of, span_of};

/// An entry that is sealed in its open life and not registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LocalEntry {
    /// The block. `None`: the entry is not valid.
    pub(super) run: Option<Run>,
    number: u32,
    sealed_at_ns: u64,
}

impl Home {
    /// Assign a client up to `count` more contiguous entry pages, at least one, all zero.
    ///
    /// # Errors
    /// [`StoreError::EntryPagesExhausted`] with the limit, [`StoreError::NoSuchClient`].
    pub fn entry_pages(&mut self, client: ClientSlot, count: u32) -> Result<Span, StoreError> {
        let namespace = self.present(client)?.namespace;
        self.locals.area.assign(client.0, namespace, count)
    }

    /// The entry pages of a client, for a client that reconnects.
    #[must_use]
    pub fn entry_pages_of(&self, client: ClientSlot) -> Vec<Span> {
        self.locals.area.spans_of(client.0)
    }

    /// Register all objects that clients sealed themselves. Returns false if some stay unregistered
    /// for lack of grant records; the next call retries them.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn register_all(&mut self) -> Result<bool, StoreError> {
        let mut is_complete = true;
        for client in self.locals.area.clients() {
            match self.register(ClientSlot(client)) {
                Err(error @ StoreError::TooManyGrants { .. }) => {
                    is_complete = false;
                    tracing::debug!(client, %error, "objects are not registered");
                }
                result => result?,
            }
        }
        Ok(is_complete)
    }

    /// Register the objects that one client sealed itself. Call it before comparing the client's
    /// grants with the client's own view.
    ///
    /// # Errors
    /// [`StoreError::TooManyGrants`] if the rest of its grants would be in too many pieces; memory
    /// that cannot be read.
    pub fn register(&mut self, client: ClientSlot) -> Result<(), StoreError> {
        let found = self.found(client.0)?;
        let carving = self.plan_off(client.0, &found)?;
        self.enter_all(client.0, &carving, found)
    }

    /// How the blocks of valid claims are taken off the grants of their client.
    pub(super) fn plan_off(
        &self,
        client: u32,
        found: &[LocalEntry],
    ) -> Result<Carving, StoreError> {
        let runs: Vec<Run> = found.iter().filter_map(|entry| entry.run).collect();
        self.grants.plan(client, &runs)
    }

    /// Take the blocks of valid claims off the grants of their client, and register them.
    pub(super) fn enter_all(
        &mut self,
        client: u32,
        carving: &Carving,
        found: Vec<LocalEntry>,
    ) -> Result<(), StoreError> {
        self.grants.carve(client, carving)?;
        failpoint!("local.carved");
        found.into_iter().for_each(|entry| self.enter(entry));
        Ok(())
    }

    /// The memory granted to a client that it has neither given back nor sealed, in order. Objects
    /// that it sealed itself are excluded even if they cannot be registered for lack of grant
    /// records.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn unsealed_of(&mut self, client: ClientSlot) -> Result<Vec<Span>, StoreError> {
        let found = self.found(client.0)?;
        let blocks: Vec<Run> = found.into_iter().filter_map(|entry| entry.run).collect();
        let grants = self.grants.of(client.0);
        Ok(grants.flat_map(|run| outside(&blocks, run)).map(span_of).collect())
    }

    /// On disconnect of a client, the home keeps its objects and frees the rest of its grants.
    /// Returns the bytes that became free.
    pub(in crate::home) fn locals_leave(&mut self, client: ClientSlot) -> Result<u64, StoreError> {
        let found = self.found(client.0)?;
        let blocks: Vec<Run> = found.iter().filter_map(|entry| entry.run).collect();
        let mut granted = 0;
        for run in self.grants.take_all(client.0)? {
            for unsealed in outside(&blocks, run) {
                self.free_run(unsealed)?;
                granted += unsealed.len();
            }
        }
        found.into_iter().for_each(|entry| self.enter(entry));
        // Last, because the objects that the home keeps must not overlap any grant.
        self.locals.area.client_left(client.0)?;
        Ok(granted)
    }

    /// The entry of an object that a client sealed itself.
    pub(super) fn find_local(&self, id: ObjectId) -> Result<Entry, StoreError> {
        let not_found = || StoreError::NotFound { what: Target::Id(id).to_string() };
        let (layout, slot) = (self.layout(), id.slot());
        let number = layout.client_entry(slot).ok_or_else(not_found)?;
        let life = self.locals.area.life(number)?;
        if !is_open(life) || life.generation() != id.generation() || id.region() != self.uid() {
            return Err(not_found());
        }
        let words = self.locals.area.read_entry(number)?;
        let entry = decode(&words, self.uid(), slot, layout).ok();
        let entry = entry.filter(|entry| entry.id == id).ok_or_else(not_found)?;
        let entry = self.with_owner(number, entry);
        match self.locals.known.get(&slot.0) {
            // Overwritten since the seal.
            Some(known) if known.run != run_of(entry.primary) => Err(not_found()),
            _ => Ok(entry),
        }
    }

    /// An entry with what the home knows of its page, whatever the client wrote: the namespace, and
    /// the creator.
    fn with_owner(&self, number: u32, entry: Entry) -> Entry {
        let entry = Entry { namespace: self.locals.area.namespace_of(number), ..entry };
        let owner = self.locals.area.client_of(number).map(ClientSlot);
        match owner.and_then(|owner| self.clients.get(owner).ok()) {
            Some(owner) => Entry { creator: owner.client.0, creator_pid: owner.pid, ..entry },
            // Its client has ended, so it is none of those that there are.
            None if self.accounts.of_creator(&entry).is_of_client() => {
                Entry { creator_pid: 0, ..entry }
            }
            None => entry,
        }
    }

    /// Retire an object that a client sealed itself.
    pub(super) fn retire_local(&mut self, id: ObjectId) -> Result<Deleted, StoreError> {
        let not_found = || StoreError::NotFound { what: Target::Id(id).to_string() };
        let slot = id.slot();
        let number = self.layout().client_entry(slot).ok_or_else(not_found)?;
        let life = self.locals.area.life(number)?;
        if !is_open(life) || life.generation() != id.generation() || id.region() != self.uid() {
            return Err(not_found());
        }
        if !self.locals.is_known(slot) {
            self.register_one(number)?;
        }
        let run = self.locals.run_of(slot).ok_or_else(not_found)?;
        // The entry may have been overwritten; the deletion is published nevertheless.
        let namespace = self.locals.area.namespace_of(number);
        let unknown = Entry { namespace, ..Entry::bytes(id, span_of(run)) };
        let entry = self.find_local(id).unwrap_or(unknown);
        self.draft_event(EventKind::Deleted, &entry, "")?;
        self.locals.area.set_life(number, life.with(EntryState::Retiring))?;
        failpoint!("local.retiring");
        self.publish_event()?;
        self.blocks.retire(run, BlockRole::Primary).map_err(unknown_block)?;
        self.objects = self.objects.saturating_sub(1);
        self.retiring.insert(slot.0);
        Ok(Deleted { id, freed_now: false, was_spilled: false, bytes: Length(run.len()) })
    }

    /// Free a retiring client object that has no hold. Returns the bytes that became free.
    pub(super) fn free_local(&mut self, slot: Slot) -> Result<u64, StoreError> {
        let number = self.number_of(slot)?;
        self.locals.area.end_life(number)?;
        failpoint!("local.freed");
        self.retiring.remove(slot.0);
        let known = self.locals.known.remove(&slot.0);
        self.locals.area.leave(number)?;
        match known.and_then(|known| known.run) {
            Some(run) => self.release_block(run),
            None => Ok(0),
        }
    }

    /// The client entry number of a slot.
    pub(in crate::home) fn number_of(&self, slot: Slot) -> Result<u32, StoreError> {
        let number = self.layout().client_entry(slot);
        number.ok_or(StoreError::Corrupt { slot, reason: "not a client entry" })
    }

    /// Register one object, or end the life of an entry that is not a valid object.
    pub(super) fn register_one(&mut self, number: u32) -> Result<(), StoreError> {
        let words = self.locals.area.read_entry(number)?;
        let Some(entry) = self.claim(number, &words)? else {
            return Ok(());
        };
        let client = self.locals.area.client_of(number);
        match (entry.run, client) {
            (Some(run), Some(client)) if self.grants.covers(client, run) => {
                let carving = self.grants.plan(client, &[run])?;
                self.enter_all(client, &carving, vec![entry])
            }
            _ => self.refuse(number),
        }
    }

    /// The unregistered objects of a client, by offset: disjoint, and within its grants. Entries
    /// that claim other memory are refused.
    fn found(&mut self, client: u32) -> Result<Vec<LocalEntry>, StoreError> {
        let mut claims = Vec::new();
        for page in self.locals.area.unknown_pages_of(client) {
            self.claims_in(page, &mut claims)?;
        }
        self.valid_claims(client, claims)
    }

    /// Add the claims of the entries in a page.
    pub(super) fn claims_in(
        &self,
        page: u32,
        claims: &mut Vec<LocalEntry>,
    ) -> Result<(), StoreError> {
        let words = self.locals.area.read_page(page)?;
        for (number, words) in self.locals.area.entries(page, &words) {
            claims.extend(self.claim(number, words)?);
        }
        Ok(())
    }

    /// Those of the claims that hold, as [`Self::found`] returns them. The entries of the others are
    /// refused.
    pub(super) fn valid_claims(
        &mut self,
        client: u32,
        mut found: Vec<LocalEntry>,
    ) -> Result<Vec<LocalEntry>, StoreError> {
        let mut refused = Vec::new();
        found.sort_unstable();
        let mut end = 0;
        found.retain(|entry| {
            let run = entry.run.filter(|run| run.start >= end && self.grants.covers(client, *run));
            match run {
                Some(run) => end = run.end,
                None => refused.push(entry.number),
            }
            run.is_some()
        });
        for number in refused {
            self.refuse(number)?;
        }
        Ok(found)
    }

    /// The claim of an entry that is sealed in its open life and not registered.
    fn claim(
        &self,
        number: u32,
        words: &[u64; CLIENT_ENTRY_WORDS],
    ) -> Result<Option<LocalEntry>, StoreError> {
        let life = self.locals.area.life(number)?;
        let slot = self.layout().client_slot(number);
        let is_sealed = Sequence(words[0]) == life.with(EntryState::Sealed);
        if !is_sealed || !is_open(life) || self.locals.is_known(slot) {
            return Ok(None);
        }
        let mut entry = decode(words, self.uid(), slot, self.layout());
        if entry.is_err() {
            // The entry may have been half written when its page was copied; read it again.
            entry = decode(&self.locals.area.read_entry(number)?, self.uid(), slot, self.layout());
        }
        let is_same_life = |entry: &Entry| entry.id.generation() == life.generation();
        let entry = entry.ok().filter(is_same_life);
        let sealed_at_ns = entry.as_ref().map_or(0, |entry| entry.sealed_at_ns);
        let run = entry.and_then(|entry| run_of(entry.primary));
        Ok(Some(LocalEntry { run, number, sealed_at_ns }))
    }

    /// Register an object.
    pub(super) fn enter(&mut self, entry: LocalEntry) {
        let LocalEntry { run, number, sealed_at_ns } = entry;
        let Some(block) = run else { return };
        let client = self.locals.area.client_of(number);
        let namespace = self.locals.area.namespace_of(number);
        let of_client = client.map(|client| self.accounts.of(client, namespace));
        let owner = of_client.unwrap_or(ClientAccount::ended(namespace));
        self.blocks.seal(block, BlockRole::Primary, owner);
        let slot = self.layout().client_slot(number);
        self.locals.known.insert(slot.0, KnownEntry { run, sealed_at_ns });
        self.locals.area.enter(number);
        self.objects += 1;
    }

    /// End the life of an entry that claims to be an object and is not valid. It may be held, so it
    /// retires, without a block.
    fn refuse(&mut self, number: u32) -> Result<(), StoreError> {
        let life = self.locals.area.life(number)?;
        let slot = self.layout().client_slot(number);
        let client = self.locals.area.client_of(number);
        tracing::warn!(slot = slot.0, ?client, "an entry names memory of another client");
        self.locals.area.set_life(number, life.with(EntryState::Retiring))?;
        failpoint!("local.refused");
        self.locals.known.insert(slot.0, KnownEntry { run: None, sealed_at_ns: 0 });
        self.locals.area.enter(number);
        self.retiring.insert(slot.0);
        Ok(())
    }

    /// The id that an object had before the home took it over from its creator.
    #[must_use]
    pub fn former_id(&self, id: ObjectId) -> Option<ObjectId> {
        let to = self.forwarded(id).ok()?;
        let before = Slot(*self.locals.taken.get(&to.slot().0)?);
        let life = self.locals.area.life(self.number_of(before).ok()?).ok()?;
        Some(ObjectId::new(self.uid(), life.generation(), before))
    }

    /// Check the invariants of client entries.
    pub(in crate::home) fn check_locals(&self) -> Result<(), String> {
        let text = |error: StoreError| error.to_string();
        let layout = self.layout();
        let in_page = layout.client_entries_in_page();
        let (locals, mut known) = (&self.locals, BTreeMap::<u32, u32>::new());
        for slot in locals.known.keys().chain(locals.moved.keys()).copied() {
            let number = self.number_of(Slot(slot)).map_err(text)?;
            *known.entry(number / in_page).or_default() += 1;
            let life = locals.area.life(number).map_err(text)?;
            let is_retiring = self.retiring.contains(slot);
            let known = locals.known.get(&slot).map(|known| known.run);
            let is_right = match (known, life.state()) {
                (Some(Some(_)), EntryState::Free) => !is_retiring && is_open(life),
                (Some(_), EntryState::Retiring) => is_retiring,
                (None, EntryState::Leaving) => !is_retiring,
                _ => false,
            };
            if !is_right {
                return Err(format!("client slot {slot} is {:?} and listed as another", life));
            }
        }
        for (before, slot) in &locals.moved {
            let number = self.number_of(Slot(*before)).map_err(text)?;
            let to = locals.area.forward(number).map_err(text)?;
            let sequence = self.directory.sequence(Slot(*slot)).map_err(text)?;
            let expected = ObjectId::new(self.uid(), sequence.generation(), Slot(*slot)).lo;
            if to != expected || locals.taken.get(slot) != Some(before) {
                return Err(format!("client slot {before} leads to {to:#x}, not {expected:#x}"));
            }
        }
        if locals.moved.len() != locals.taken.len() {
            return Err("objects were taken over that never were".to_owned());
        }
        locals.area.check(|page| known.get(&page).copied().unwrap_or_default())
    }
}
