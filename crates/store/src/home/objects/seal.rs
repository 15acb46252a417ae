//! Seal: memory that a client has written becomes an object.

use std::collections::BTreeSet;

use farrow_memory::{Length, Span};

use super::delete::Deleted;
use crate::alloc::blocks::BlockRole;
use crate::alloc::space::Run;
use crate::error::StoreError;
use crate::events::EventKind;
use crate::failpoint;
use crate::format::entry::{Entry, encode_extra};
use crate::format::full_name::own_name;
use crate::format::ids::{ObjectId, ObjectKind, Slot, Target};
use crate::home::Home;
use crate::tables::clients::{ClientRecord, ClientSlot};
use crate::tables::directory::Vacancy;
use crate::tables::grants::{Carving, run_of};

/// A client's description of a finished object. All of it is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealRequest<'a> {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its primary block: a part of the client's grants, or a block of another object.
    pub primary: Span,
    /// The descriptor in the primary block, at a multiple of 8; empty for plain bytes.
    pub descriptor: Span,
    /// crc32c of the descriptor. Readers compare it; the home does not.
    pub descriptor_crc: u32,
    /// Blocks besides the primary one: each a part of the client's grants, or exactly a block of
    /// an object that the client holds. Listed behind the descriptor in the same order.
    pub extra: Vec<Span>,
    /// crc32c of that list.
    pub extra_crc: u32,
    /// Size that users see.
    pub size: Length,
    /// Bytes of metadata, which the client has written to the end of the primary block.
    pub metadata_bytes: u32,
    /// crc32c of the metadata. Readers compare it; the home does not.
    pub metadata_crc: u32,
    /// Its full name: see [`crate::full_name`].
    pub name: Option<&'a str>,
    /// Whether the client has reserved the name.
    pub is_reserved: bool,
    /// Whether the object is only to be brought to another node, and goes with its creator.
    pub is_staged: bool,
}

impl<'a> SealRequest<'a> {
    /// Plain bytes: the first `size` of `primary`.
    #[must_use]
    pub fn bytes(primary: Span, size: Length, name: Option<&'a str>) -> Self {
        Self {
            kind: ObjectKind::Bytes,
            primary,
            descriptor: Span::new(primary.offset, Length(0)),
            descriptor_crc: 0,
            extra: Vec::new(),
            extra_crc: 0,
            size,
            metadata_bytes: 0,
            metadata_crc: 0,
            name,
            is_reserved: false,
            is_staged: false,
        }
    }
}

/// What [`Home::seal_replacing`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replacement {
    /// The new object.
    pub id: ObjectId,
    /// The object that had the name before, now deleted.
    pub replaced: Option<Deleted>,
}

/// A fully checked seal: from here on only memory access can fail.
struct SealPlan {
    /// The object that has the name, and leaves it to the new one.
    replaced: Option<ObjectId>,
    vacancy: Vacancy,
    entry: Entry,
    primary: Run,
    extra: Box<[Run]>,
    carving: Carving,
}

impl Home {
    /// Make an object of memory that `client` has written. The client has published the bytes and
    /// no longer maps them writable.
    ///
    /// The object exists from a single store on. If the home is killed after that store and before
    /// it responds, adoption keeps the object: a client that reconnects calls [`Home::find_sealed`]
    /// before it seals again.
    ///
    /// # Errors
    /// [`StoreError::NotYours`] for ranges that are neither granted nor blocks,
    /// [`StoreError::BadSpan`] and [`StoreError::BadRequest`] for an invalid request,
    /// [`StoreError::NameTaken`], [`StoreError::NameInvalid`], [`StoreError::NameSpaceFull`],
    /// [`StoreError::TooManyObjects`], [`StoreError::TooManyGrants`].
    pub fn seal(
        &mut self,
        client: ClientSlot,
        request: &SealRequest<'_>,
        now_ns: u64,
    ) -> Result<ObjectId, StoreError> {
        self.register_shared(client, request)?;
        let plan = self.plan_seal(client, request, now_ns)?;
        self.carry_out(client, request, plan, now_ns)
    }

    /// As [`Home::seal`]. An object that has the name is replaced: the name leads to it until it leads
    /// to the new object, by one store, and then it is deleted. If the seal fails it stays. A kill
    /// leaves one of both, with the name.
    ///
    /// # Errors
    /// As [`Home::seal`]; [`StoreError::NameTaken`] only for a name that another client has reserved,
    /// or that a replica has.
    pub fn seal_replacing(
        &mut self,
        client: ClientSlot,
        request: &SealRequest<'_>,
        now_ns: u64,
    ) -> Result<Replacement, StoreError> {
        let old = match request.name {
            Some(name) => self.slot_of_name(name)?,
            None => None,
        };
        let Some(old) = old else {
            let id = self.seal(client, request, now_ns)?;
            return Ok(Replacement { id, replaced: None });
        };
        self.register_shared(client, request)?;
        let old = self.directory.entry(old)?;
        if old.is_replica {
            // The name is that of an object of another node.
            let name = request.name.map(own_name).unwrap_or_default().to_owned();
            return Err(StoreError::NameTaken { name });
        }
        // The later one of two objects with one name is the one that has it.
        let now_ns = now_ns.max(old.sealed_at_ns.saturating_add(1));
        let mut plan = self.plan_checked(client, request, now_ns)?;
        plan.replaced = Some(old.id);
        let id = self.carry_out(client, request, plan, now_ns)?;
        let replaced = Some(self.delete(Target::Id(old.id))?);
        Ok(Replacement { id, replaced })
    }

    fn carry_out(
        &mut self,
        client: ClientSlot,
        request: &SealRequest<'_>,
        mut plan: SealPlan,
        now_ns: u64,
    ) -> Result<ObjectId, StoreError> {
        let hash = request.name.map(|name| self.names.hash(name));
        if let (Some(name), Some(hash)) = (request.name, hash) {
            plan.entry.name = self.names.write(name)?;
            plan.entry.name_hash = hash.0;
            failpoint!("seal.name");
        }
        let slot = plan.vacancy.slot;
        self.now_ns = now_ns;
        self.draft_event(EventKind::Sealed, &plan.entry, request.name.unwrap_or_default())?;
        self.directory.publish(plan.vacancy, &plan.entry)?;
        if let (Some(hash), Some(old)) = (hash, plan.replaced) {
            self.names.redirect(hash, old.slot(), slot)?;
            self.replaced.insert(old.slot().0);
            failpoint!("seal.redirected");
        } else if let Some(hash) = hash {
            let directory = &self.directory;
            self.names.insert(hash, slot, || Self::sealed_names(directory, Some(slot)))?;
            failpoint!("seal.indexed");
        }
        self.publish_event()?;
        self.grants.carve(client.0, &plan.carving)?;
        failpoint!("seal.carved");
        let owner = self.accounts.of(client.0, plan.entry.namespace);
        self.blocks.seal(plan.primary, BlockRole::Primary, owner);
        for run in &plan.extra {
            self.blocks.seal(*run, BlockRole::Extra, owner);
        }
        if !plan.extra.is_empty() {
            self.extras.insert(slot.0, plan.extra);
        }
        self.objects += 1;
        if let Some(name) = request.name {
            self.reserved.remove(name);
        }
        Ok(plan.entry.id)
    }

    /// The object that `client` has sealed with this primary block, if any. For a client whose home
    /// was restarted before it responded. Scans every entry.
    ///
    /// # Errors
    /// [`StoreError::NoSuchClient`]; memory that cannot be read.
    pub fn find_sealed(
        &self,
        client: ClientSlot,
        primary: Span,
    ) -> Result<Option<ObjectId>, StoreError> {
        let pid = self.clients.get(client)?.pid;
        for slot in (0..self.directory.used()).map(Slot) {
            if self.directory.sequence(slot)?.state() != crate::format::entry::EntryState::Sealed {
                continue;
            }
            let entry = self.directory.entry(slot)?;
            if (entry.creator, entry.creator_pid, entry.primary) == (client.0, pid, primary) {
                return Ok(Some(entry.id));
            }
        }
        Ok(None)
    }

    /// Register client-sealed objects if the request has extra blocks that the home does not know:
    /// those of the client, and of each client whose grants have such a block.
    fn register_shared(
        &mut self,
        client: ClientSlot,
        request: &SealRequest<'_>,
    ) -> Result<(), StoreError> {
        let mut unknown: Vec<Run> = request.extra.iter().filter_map(|span| run_of(*span)).collect();
        unknown.retain(|run| !self.blocks.is_block(*run));
        if unknown.is_empty() {
            return Ok(());
        }
        self.register_in_batch(client)?;
        let is_anothers = |home: &Self, run: &Run| {
            !home.blocks.is_block(*run) && !home.grants.covers(client.0, *run)
        };
        unknown.retain(|run| is_anothers(self, run));
        let of = |run: &Run| self.grants.client_at(run.start);
        let owners: BTreeSet<u32> = unknown.iter().filter_map(of).collect();
        let mut is_complete = true;
        for owner in owners {
            match self.register_in_batch(ClientSlot(owner)) {
                // The client is not at fault.
                Err(StoreError::TooManyGrants { .. }) => is_complete = false,
                registered => registered?,
            }
        }
        if !is_complete && unknown.iter().any(|run| is_anothers(self, run)) {
            return Err(StoreError::TooManyGrants { max: self.layout().grants_max });
        }
        Ok(())
    }

    /// Check all of a request without changing anything.
    fn plan_seal(
        &self,
        client: ClientSlot,
        request: &SealRequest<'_>,
        now_ns: u64,
    ) -> Result<SealPlan, StoreError> {
        self.present(client)?;
        if let Some(name) = request.name {
            self.check_name_for(client, name, request.is_reserved)?;
        }
        self.plan_checked(client, request, now_ns)
    }

    /// As [`Self::plan_seal`], also for a name that an object has.
    fn plan_checked(
        &self,
        client: ClientSlot,
        request: &SealRequest<'_>,
        now_ns: u64,
    ) -> Result<SealPlan, StoreError> {
        let ClientRecord { pid: creator_pid, namespace, .. } = *self.present(client)?;
        if let Some(name) = request.name {
            self.check_reservation(client, name, request.is_reserved)?;
        }
        let too_many = StoreError::BadRequest { reason: "more extra blocks than 32 bits count" };
        let mut entry = Entry {
            id: ObjectId { hi: self.uid().0, lo: 0 },
            kind: request.kind,
            primary: request.primary,
            descriptor: request.descriptor,
            size: request.size,
            extra_count: u32::try_from(request.extra.len()).map_err(|_| too_many)?,
            name: Span::default(),
            name_hash: 0,
            descriptor_crc: request.descriptor_crc,
            extra_crc: request.extra_crc,
            sealed_at_ns: now_ns,
            creator_pid,
            creator: client.0,
            metadata_bytes: request.metadata_bytes,
            metadata_crc: request.metadata_crc,
            residency: 0,
            is_relocated: false,
            is_replica: false,
            is_staged: request.is_staged,
            namespace,
        };
        entry.validate(self.layout()).map_err(|reason| StoreError::BadRequest { reason })?;
        self.check_extra_list(&entry, &request.extra)?;
        let (primary, extra, carving) = self.plan_blocks(client, request)?;
        // Free room is checked last: if only that fails, the caller may evict objects and retry.
        let vacancy = self.directory.vacancy()?;
        if let Some(name) = request.name {
            self.names.check_room(Length(name.len() as u64))?;
        }
        entry.id = ObjectId::new(self.uid(), vacancy.sequence.generation(), vacancy.slot);
        Ok(SealPlan { replaced: None, vacancy, entry, primary, extra, carving })
    }

    /// Check that the list behind the descriptor equals that of the request, because the next home
    /// reads it.
    fn check_extra_list(&self, entry: &Entry, extra: &[Span]) -> Result<(), StoreError> {
        if extra.is_empty() {
            return Ok(());
        }
        let list = entry.extra_list().unwrap_or_default();
        let mut found = vec![0; list.length.0 as usize];
        self.region().refresh(list)?;
        self.region().copy_out_by_call(list.offset, &mut found)?;
        if found != encode_extra(extra) || crc32c::crc32c(&found) != entry.extra_crc {
            let reason = "the list of extra blocks in memory is not the one in the request";
            return Err(StoreError::BadRequest { reason });
        }
        Ok(())
    }

    /// Separate new blocks, which are taken out of grants, from shared ones.
    fn plan_blocks(
        &self,
        client: ClientSlot,
        request: &SealRequest<'_>,
    ) -> Result<(Run, Box<[Run]>, Carving), StoreError> {
        let mut spans = Vec::with_capacity(request.extra.len() + 1);
        spans.push(request.primary);
        spans.extend_from_slice(&request.extra);
        let mut fresh = self.disjoint_runs(&spans)?;
        fresh.retain(|run| !self.blocks.is_block(*run));
        let carving = self.grants.plan(client.0, &fresh)?;
        let mut runs = spans.into_iter().filter_map(run_of);
        let primary = runs.next().ok_or(StoreError::BadRequest { reason: "no primary block" })?;
        Ok((primary, runs.collect(), carving))
    }

    pub(super) fn check_name_for(
        &self,
        client: ClientSlot,
        name: &str,
        is_reserved: bool,
    ) -> Result<(), StoreError> {
        self.check_reservation(client, name, is_reserved)?;
        if self.slot_of_name(name)?.is_some() {
            return Err(StoreError::NameTaken { name: own_name(name).to_owned() });
        }
        Ok(())
    }

    /// Check that a client may use a name, and that no reservation is in the way.
    fn check_reservation(
        &self,
        client: ClientSlot,
        name: &str,
        is_reserved: bool,
    ) -> Result<(), StoreError> {
        self.check_name_for_client(client, name)?;
        match self.reserved.get(name) {
            Some(owner) if owner != client || !is_reserved => {
                Err(StoreError::NameTaken { name: own_name(name).to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// The slot of the sealed or spilled object with this name.
    pub(in crate::home) fn slot_of_name(&self, name: &str) -> Result<Option<Slot>, StoreError> {
        let found = self.names.find(self.names.hash(name), |slot| {
            let entry = self.directory.entry(slot)?;
            Ok(entry.name.length.0 == name.len() as u64 && self.name_of(&entry)? == name.as_bytes())
        })?;
        Ok(found.map(|(_, slot)| slot))
    }

    /// The entry of a sealed object.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub fn find(&self, target: Target<'_>) -> Result<Entry, StoreError> {
        let not_found = || StoreError::NotFound { what: target.to_string() };
        let (slot, wanted) = match target {
            Target::Name(name) => (self.slot_of_name(name)?.ok_or_else(not_found)?, None),
            Target::Id(id) => {
                let id = self.forwarded(id)?;
                if self.layout().client_entry(id.slot()).is_some() {
                    return self.find_local(id);
                }
                if id.region() != self.uid() || id.slot().0 >= self.directory.used() {
                    return Err(not_found());
                }
                (id.slot(), Some(id))
            }
        };
        if self.directory.sequence(slot)?.state() != crate::format::entry::EntryState::Sealed {
            return Err(not_found());
        }
        let entry = self.directory.entry(slot)?;
        match wanted {
            Some(id) if entry.id != id => Err(not_found()),
            _ => Ok(entry),
        }
    }
}
