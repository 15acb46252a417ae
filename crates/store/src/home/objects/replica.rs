//! Replicas: copies of objects whose regions cannot be mapped here.
//!
//! A replica has an id and an optional name in this region, and is found, held, evicted and deleted
//! like any other object. Its primary block also records the id of the original. Its blocks are at
//! other positions than the original's, so it is relocated, like a restored object.
//!
//! The region does not show a replica until all its bytes are there. Only the daemon knows whether
//! the original still exists, so an adopted region has no replicas: those that are held retire.

use farrow_memory::{Length, Offset, Span};

use super::delete::unknown_block;
use crate::alloc::blocks::{BlockRole, ClientAccount};
use crate::alloc::eviction::{EvictionCandidate, EvictionPolicy};
use crate::error::StoreError;
use crate::events::EventKind;
use crate::format::entry::{Entry, encode_extra, encode_origin};
use crate::format::full_name::own_name;
use crate::format::header::{REPLICAS_UNTIL, REPLICAS_UNTIL_AWAKE};
use crate::format::ids::{NamespaceId, ObjectId, ObjectKind, Target};
use crate::format::spill_file::SpillHead;
use crate::home::Home;
use crate::home::state::Restoring;
use crate::tables::clients::ClientSlot;
use crate::tables::grants::span_of;
use crate::tables::names::check_full_name;

/// The parts of a replica besides the bytes of its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSeal<'a> {
    /// Its full name in this region.
    pub name: Option<&'a str>,
    /// The namespace of the replica in this region.
    pub namespace: NamespaceId,
    /// Its descriptor.
    pub descriptor: &'a [u8],
    /// crc32c of the descriptor.
    pub descriptor_crc: u32,
    /// Its metadata.
    pub metadata: &'a [u8],
    /// crc32c of the metadata.
    pub metadata_crc: u32,
    /// When the original was sealed.
    pub sealed_at_ns: u64,
    /// The client whose object this is from here on; `None`: it is a replica.
    pub importer: Option<ClientSlot>,
}

/// An eviction policy for replicas only: the least recently used one is evicted first.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplicasFirst;

impl EvictionPolicy for ReplicasFirst {
    fn name(&self) -> &'static str {
        "replicas"
    }

    fn is_automatic(&self) -> bool {
        true
    }

    fn rank(&self, candidate: &EvictionCandidate) -> Option<u64> {
        candidate.is_replica.then_some(candidate.last_use_ns)
    }

    fn order(&self) -> Option<&'static str> {
        Some("replicas by last use")
    }

    fn is_of_replicas(&self) -> bool {
        true
    }
}

impl Home {
    /// Number of replicas that can be found.
    #[must_use]
    pub fn replica_count(&self) -> usize {
        self.replicas.len()
    }

    /// Allocate memory for a replica of the object in `head`. Returns its blocks, each as long as
    /// in the head.
    ///
    /// # Errors
    /// [`StoreError::BadRequest`] if it is being fetched already or is of this region,
    /// [`StoreError::OutOfMemory`].
    pub fn begin_replica(
        &mut self,
        head: &SpillHead,
        namespace: NamespaceId,
    ) -> Result<Vec<Span>, StoreError> {
        if head.id.region() == self.uid() {
            return Err(StoreError::BadRequest { reason: "the object is of this region" });
        }
        if self.is_loading(head.id) {
            return Err(StoreError::BadRequest { reason: "the replica is being brought already" });
        }
        self.take_blocks(head, true, ClientAccount::ended(namespace))
    }

    /// Take memory for an object that `client` wrote in another region, and that becomes one of this
    /// region. Otherwise as [`Self::begin_replica`].
    ///
    /// # Errors
    /// As there; [`StoreError::NoSuchClient`].
    pub fn begin_import(
        &mut self,
        head: &SpillHead,
        client: ClientSlot,
    ) -> Result<Vec<Span>, StoreError> {
        if head.id.region() == self.uid() {
            return Err(StoreError::BadRequest { reason: "the object is of this region" });
        }
        if self.is_loading(head.id) {
            return Err(StoreError::BadRequest { reason: "the object is being brought already" });
        }
        let namespace = self.present(client)?.namespace;
        self.take_blocks(head, false, self.accounts.of(client.0, namespace))
    }

    /// The blocks of a replica have their bytes: it is an object from here on.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if no memory was allocated for it; [`StoreError::NameTaken`],
    /// [`StoreError::NameInvalid`], [`StoreError::NameSpaceFull`], [`StoreError::TooManyObjects`],
    /// [`StoreError::BadRequest`] for lengths that contradict the head. On error its memory is
    /// freed.
    pub fn finish_replica(
        &mut self,
        origin: ObjectId,
        seal: &ReplicaSeal<'_>,
        now_ns: u64,
    ) -> Result<ObjectId, StoreError> {
        let published = self.publish_replica(origin, seal);
        if published.is_err() {
            self.abort_restore(origin)?;
        }
        let id = published?;
        self.now_ns = now_ns;
        let Some(Restoring { runs, .. }) = self.take_loading(origin) else {
            return Ok(id);
        };
        let owner = match seal.importer {
            Some(client) => self.accounts.of(client.0, seal.namespace),
            None => ClientAccount::ended(seal.namespace),
        };
        if let Some(primary) = runs.first().copied() {
            self.blocks.seal(primary, BlockRole::Primary, owner);
            self.blocks.retire(primary, BlockRole::Extra).map_err(unknown_block)?;
            self.blocks.release(primary).map_err(unknown_block)?;
        }
        if runs.len() > 1 {
            self.extras.insert(id.slot().0, runs.into_iter().skip(1).collect());
        }
        self.restored_at.insert(id.slot().0, now_ns);
        self.objects += 1;
        if seal.importer.is_none() {
            self.replicas.insert(id.slot().0);
        }
        if let (Some(name), Some(_)) = (seal.name, seal.importer) {
            self.reserved.remove(name);
        }
        Ok(id)
    }

    /// Abort the fetch of a replica and free its memory. Does nothing if there is none.
    ///
    /// # Errors
    /// The home's private state is inconsistent.
    pub fn abort_replica(&mut self, origin: ObjectId) -> Result<(), StoreError> {
        self.abort_restore(origin)
    }

    /// Set the time until which clients may read replicas without asking: nanoseconds of the
    /// machine's boot clock, and of its monotonic clock for clients of earlier builds. The homes of
    /// the originals wait no longer than that for this node to drop them.
    ///
    /// # Errors
    /// Memory that cannot be written.
    pub fn set_replicas_until(&mut self, until_ns: u64, awake_ns: u64) -> Result<(), StoreError> {
        self.control.store(REPLICAS_UNTIL_AWAKE, awake_ns)?;
        self.control.store(REPLICAS_UNTIL, until_ns)
    }

    /// Whether an object is a replica.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; memory that cannot be read.
    pub fn is_replica(&self, target: Target<'_>) -> Result<bool, StoreError> {
        self.find(target).map(|entry| entry.is_replica)
    }

    /// Write the lists and the entry of a replica. Only the last store makes it an object.
    fn publish_replica(
        &mut self,
        origin: ObjectId,
        seal: &ReplicaSeal<'_>,
    ) -> Result<ObjectId, StoreError> {
        let missing = || StoreError::NotFound { what: Target::Id(origin).to_string() };
        let loading = self.loading(origin).ok_or_else(missing)?;
        let (head, runs) = (loading.head.clone(), loading.runs.clone());
        if head.descriptor_bytes != seal.descriptor.len() as u64
            || u64::from(head.metadata_bytes) != seal.metadata.len() as u64
        {
            return Err(wrong("descriptor or metadata have another length than the head says"));
        }
        if let Some(name) = seal.name {
            self.check_name_of_copy(name, seal)?;
            self.names.check_room(Length(name.len() as u64))?;
        }
        let vacancy = self.directory.vacancy()?;
        let spans: Vec<Span> = runs.into_iter().map(span_of).collect();
        let (primary, extra) = spans.split_first().ok_or_else(missing)?;
        let id = ObjectId::new(self.uid(), vacancy.sequence.generation(), vacancy.slot);
        let (mut entry, list) =
            self.entry_of_copy(Entry::bytes(id, *primary), extra, &head, seal)?;
        self.write_parts(origin, &entry, &list, seal)?;
        let hash = seal.name.map(|name| self.names.hash(name));
        if let (Some(name), Some(hash)) = (seal.name, hash) {
            entry.name = self.names.write(name)?;
            entry.name_hash = hash.0;
        }
        let slot = vacancy.slot;
        if !entry.is_replica {
            self.draft_event(EventKind::Sealed, &entry, seal.name.unwrap_or_default())?;
        }
        self.directory.publish(vacancy, &entry)?;
        if let Some(hash) = hash {
            let directory = &self.directory;
            self.names.insert(hash, slot, || Self::sealed_names(directory, Some(slot)))?;
        }
        if !entry.is_replica {
            self.publish_event()?;
        }
        Ok(id)
    }

    /// The entry of a replica without its name, from that of its primary block alone; and the list
    /// of its other blocks.
    fn entry_of_copy(
        &self,
        bytes: Entry,
        extra: &[Span],
        head: &SpillHead,
        seal: &ReplicaSeal<'_>,
    ) -> Result<(Entry, Vec<u8>), StoreError> {
        let mut entry = Entry {
            kind: head.kind,
            size: head.size,
            extra_count: u32::try_from(extra.len()).map_err(|_| wrong("too many blocks"))?,
            descriptor_crc: seal.descriptor_crc,
            sealed_at_ns: seal.sealed_at_ns,
            metadata_bytes: head.metadata_bytes,
            metadata_crc: seal.metadata_crc,
            is_replica: seal.importer.is_none(),
            namespace: seal.namespace,
            ..bytes
        };
        if let Some(client) = seal.importer {
            entry.creator = client.0;
            entry.creator_pid = self.present(client)?.pid;
        }
        let mut list = Vec::new();
        if head.kind != ObjectKind::Bytes {
            let at_seal = head.origins.first().map_or(0, |origin| origin.length.0);
            let start = Offset(entry.primary.offset.0.saturating_add(at_seal));
            entry.descriptor = Span::new(start, Length(head.descriptor_bytes));
            entry.is_relocated = true;
            list = encode_extra(extra);
            let origins = head.origins.iter().map(|origin| origin.offset.0);
            list.extend(origins.flat_map(u64::to_le_bytes));
            entry.extra_crc = crc32c::crc32c(&list);
        }
        entry.validate(self.layout()).map_err(wrong)?;
        Ok((entry, list))
    }

    /// Write what a replica has in its primary block besides the bytes of the original.
    fn write_parts(
        &self,
        origin: ObjectId,
        entry: &Entry,
        list: &[u8],
        seal: &ReplicaSeal<'_>,
    ) -> Result<(), StoreError> {
        let of_origin = encode_origin(origin);
        let at_list = entry.extra_list().unwrap_or_default();
        let at_origin = entry.origin().unwrap_or_default();
        let at_end = entry.metadata().unwrap_or_default();
        for (at, bytes) in [
            (entry.descriptor.offset, seal.descriptor),
            (at_list.offset, list),
            (at_origin.offset, if entry.is_replica { &of_origin[..] } else { &[] }),
            (at_end.offset, seal.metadata),
        ] {
            if !bytes.is_empty() {
                self.region().write_by_call(at, bytes)?;
                self.region().publish(Span::new(at, Length(bytes.len() as u64)))?;
            }
        }
        Ok(())
    }

    /// A replica gets a name that no other object has or is to have; an import one that its client has
    /// reserved.
    fn check_name_of_copy(&self, name: &str, seal: &ReplicaSeal<'_>) -> Result<(), StoreError> {
        if let Some(client) = seal.importer {
            return self.check_name_for(client, name, true);
        }
        let none = StoreError::BadRequest { reason: "there is no such namespace" };
        let namespace = self.namespaces.get(seal.namespace).ok_or(none)?;
        check_full_name(&namespace.options.name, name)?;
        if self.slot_of_name(name)?.is_some() || self.reserved.get(name).is_some() {
            return Err(StoreError::NameTaken { name: own_name(name).to_owned() });
        }
        Ok(())
    }
}

fn wrong(reason: &'static str) -> StoreError {
    StoreError::BadRequest { reason }
}
