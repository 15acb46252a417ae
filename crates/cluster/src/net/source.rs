//! Reads of this node's objects by other nodes over the network. An object is held during its read.
//!
//! Threads of the data server look up objects and hold them by loads, as a client of this node
//! does. So no request of another node waits for the event loop.
//!
//! **Interest.** A member that opens an object may keep a replica of it until it receives an
//! invalidation. It is recorded before the object is held. A delete first closes the object, which
//! returns the recorded members. Later opens fail as busy until the delete is done. So the delete
//! knows every member that holds a replica.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use farrow_memory::sync::{AtomicU64, Ordering};
use farrow_memory::{FileMap, Length, Offset, Region, Section, Span};
use farrow_net::frame::{ErrorCode, INLINE_BYTES_MAX, Opened};
use farrow_net::pack::PackedCounts;
use farrow_net::source::{Guard, HoldId, MemberLife, Source, SourceRefusal};
use farrow_store::{
    BlockLocation, Held, HoldTable, NamespaceId, ObjectId, Reader, SpillHead, StoreError, Target,
    Whereabouts, namespace_of, own_name,
};

use super::event_sender::EventSender;
use crate::protocol::net::broadcast::{Broadcasts, ReaderId, ReplicaKey};
use crate::protocol::net::query::{Brought, NetQuery};
use crate::protocol::net::{HOLDS_PER_MEMBER_MAX, NetEvent, ReaderRules, listing};
use crate::protocol::node_key;
use farrow_wire::{Listing, Rights, WireTarget};

/// Time after which the event loop is asked again to restore an object: it may have been at a
/// limit.
const RESTORE_AGAIN: Duration = Duration::from_millis(100);

/// Time for which opens of an object that cannot be restored fail, before it is tried again.
pub(super) const RESTORE_REFUSED: Duration = Duration::from_secs(1);

/// An object that a member reads.
pub(super) struct Reading {
    pub(super) held: Held,
    /// Its blocks in the data section.
    pub(super) blocks: Vec<Span>,
}

#[derive(Default)]
pub(super) struct ServedState {
    pub(super) readings: BTreeMap<ReaderId, Arc<Reading>>,
    /// Members that may have a replica, by the low half of the object's id.
    pub(super) interests: BTreeMap<u64, BTreeSet<MemberLife>>,
    /// Which node sends which large object.
    pub(super) broadcasts: Broadcasts,
    /// Replicas of this node that others may read: the local object, and the key.
    pub(super) replicas: BTreeMap<ObjectId, (ObjectId, ReplicaKey)>,
    /// Objects that are being deleted, with the number of deletes.
    pub(super) closed: BTreeMap<u64, usize>,
    /// The life of each member's daemon, from its last request.
    lives: BTreeMap<MemberLife, u64>,
    /// Spilled objects that are wanted, and when the event loop was asked for them.
    restoring: BTreeMap<ObjectId, Instant>,
    /// Spilled objects that could not be restored: since when, and why.
    pub(super) unrestored: BTreeMap<ObjectId, (Instant, String)>,
}

impl ServedState {
    /// Takes out what a member reads. No reader is sent to it any more.
    fn end_reads_of(&mut self, member: &MemberLife) -> Vec<Arc<Reading>> {
        self.broadcasts.forget(member);
        let all = (member.clone(), HoldId(0))..=(member.clone(), HoldId(u64::MAX));
        let ended: Vec<ReaderId> =
            self.readings.range(all).map(|(reader, _)| reader.clone()).collect();
        ended.iter().filter_map(|reader| self.readings.remove(reader)).collect()
    }
}

/// See the module documentation.
pub(crate) struct RegionSource {
    map: Arc<FileMap>,
    pub(super) region: Arc<Region>,
    pub(super) reader: Reader,
    holds: Mutex<Option<Arc<HoldTable>>>,
    /// The rules that the event loop published last.
    pub(super) rules: RwLock<ReaderRules>,
    pub(super) state: Mutex<ServedState>,
    event_sender: EventSender,
    /// Bytes that other nodes read of objects of this node, and of replicas.
    pub(super) served: [AtomicU64; 2],
    /// Pieces that were compressed on their way, from and to this node.
    pub(super) packed: Arc<PackedCounts>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RegionSource {
    pub(super) fn new(
        region: &Arc<Region>,
        event_sender: EventSender,
    ) -> Result<Arc<Self>, String> {
        let words = |error: &dyn std::fmt::Display| error.to_string();
        let (file, file_offset) = region.fabric().read_fd(Section::Data);
        let file = file.as_fd().try_clone_to_owned().map_err(|error| words(&error))?;
        let length = region.geometry().data;
        let map = FileMap::new(file, file_offset, length, false).map_err(|error| words(&error))?;
        let reader = Reader::open(Arc::clone(region)).map_err(|error| words(&error))?;
        Ok(Arc::new(Self {
            map: Arc::new(map),
            region: Arc::clone(region),
            reader,
            holds: Mutex::default(),
            rules: RwLock::default(),
            state: Mutex::default(),
            event_sender,
            served: [const { AtomicU64::new(0) }; 2],
            packed: Arc::default(),
        }))
    }

    /// Whether it can hold objects, which requires a client slot of its node.
    pub(super) fn is_ready(&self) -> bool {
        lock(&self.holds).is_some()
    }

    /// Whether the members that read here may hold more objects together than its blocks have places
    /// for.
    pub(super) fn needs_hold_block(&self) -> bool {
        let wanted = lock(&self.state).lives.len().max(1) * HOLDS_PER_MEMBER_MAX;
        lock(&self.holds).as_ref().is_none_or(|table| table.slots() < wanted as u64)
    }

    /// Adds a block with which it holds objects.
    pub(super) fn add_hold_block(&self, block: Span) -> Result<(), String> {
        let mut holds = lock(&self.holds);
        let added = match holds.as_ref() {
            Some(table) => table.add_block(block).map(|_| ()),
            None => HoldTable::new(Arc::clone(&self.region), &[block])
                .map(|table| *holds = Some(Arc::new(table))),
        };
        added.map_err(|error| error.to_string())
    }

    /// The life of a member's daemon, as it was heard of last.
    pub(super) fn life_of(&self, member: &MemberLife) -> Option<u64> {
        lock(&self.state).lives.get(member).copied()
    }

    /// Records a member's daemon, and ends the reads of an earlier one, whose connections are cut.
    pub(super) fn end_reads_before(&self, member: &MemberLife, life: u64) {
        let mut state = lock(&self.state);
        let ended = state.end_reads_of(member);
        state.lives.insert(member.clone(), life);
        drop(state);
        // The end of a hold writes to the region.
        drop(ended);
    }

    /// Ends the reads of a member, whose connections are cut. It may still have replicas.
    pub(super) fn end_reads(&self, member: &MemberLife) {
        let mut state = lock(&self.state);
        let ended = state.end_reads_of(member);
        drop(state);
        drop(ended);
    }

    /// Removes a member whose incarnation has ended. No thread reads for it any more.
    pub(super) fn forget(&self, member: &MemberLife) {
        let mut state = lock(&self.state);
        state.lives.remove(member);
        let ended = state.end_reads_of(member);
        state.interests.retain(|_, members| {
            members.remove(member);
            !members.is_empty()
        });
        drop(state);
        drop(ended);
    }

    /// Records a member's interest. Returns false if the object is being deleted.
    pub(super) fn note(&self, member: &MemberLife, object: u64) -> bool {
        let mut state = lock(&self.state);
        let is_open = !state.closed.contains_key(&object);
        if is_open {
            state.interests.entry(object).or_default().insert(member.clone());
        }
        is_open
    }

    fn check_rights(&self, member: &MemberLife, namespace: &str) -> Result<(), SourceRefusal> {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        if rules.rights.of(namespace, node_key(&member.name)).has(Rights::READ) {
            return Ok(());
        }
        let text = format!("node {} may not read in namespace {namespace:?}", member.name);
        Err(SourceRefusal::new(ErrorCode::Denied, text))
    }

    pub(super) fn namespace(&self, number: NamespaceId) -> Option<String> {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        match number {
            NamespaceId::DEFAULT => Some(String::new()),
            NamespaceId(number) => rules.namespaces.get(&number).cloned(),
        }
    }

    /// Objects of a namespace, as `look` finds them.
    fn list(
        &self,
        member: &MemberLife,
        namespace: &str,
        look: impl FnOnce(&Reader) -> Result<Listing, StoreError>,
    ) -> Result<Opened, SourceRefusal> {
        self.check_rights(member, namespace)?;
        let other = |text: String| SourceRefusal::new(ErrorCode::Other, text);
        let number = match namespace {
            "" => Some(NamespaceId::DEFAULT),
            _ => {
                let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
                let mut all = rules.namespaces.iter();
                all.find(|(_, name)| *name == namespace).map(|(number, _)| NamespaceId(*number))
            }
        };
        let page = match number {
            // A namespace that this node does not have is empty.
            None => Listing::default(),
            Some(number) => {
                let reader = self.reader.clone().in_namespace(number, namespace);
                look(&reader).map_err(|error| other(error.to_string()))?
            }
        };
        let entry = listing::encode(&page).map_err(other)?;
        Ok(Opened { blocks: Vec::new(), entry, inline: Vec::new() })
    }

    /// Those of these objects that exist. Spilled ones are on their way back into memory then.
    fn find(&self, reader: &Reader, targets: &[WireTarget]) -> Result<Listing, StoreError> {
        let mut items = Vec::new();
        for target in targets {
            let target = match target {
                WireTarget::Id(id) => Target::Id((*id).into()),
                WireTarget::Name(name) => Target::Name(name),
            };
            let Some(item) = listing::find(reader, target)? else { continue };
            if item.is_spilled {
                self.event_sender.send(NetEvent::Restore { id: item.id.into() });
            }
            items.push(item);
        }
        Ok(Listing { items, next: None })
    }

    /// The slots by which objects are held for other nodes.
    pub(super) fn hold_table(&self) -> Result<Arc<HoldTable>, SourceRefusal> {
        let holds = lock(&self.holds).clone();
        let none = || SourceRefusal::new(ErrorCode::Busy, "the node has no slot for other nodes");
        holds.ok_or_else(none)
    }

    /// Records the member and holds the requested object.
    fn hold(&self, member: &MemberLife, wish: &NetQuery) -> Result<Held, SourceRefusal> {
        let busy = |text: String| SourceRefusal::new(ErrorCode::Busy, text);
        let holds = self.hold_table()?;
        let missing = || SourceRefusal::new(ErrorCode::NotFound, format!("no {wish}"));
        let other = |error: farrow_store::StoreError| {
            SourceRefusal::new(ErrorCode::Other, format!("{wish}: {error}"))
        };
        let reader = match wish {
            NetQuery::Name(full) => {
                let namespace = namespace_of(full);
                self.check_rights(member, namespace)?;
                // A lookup by name does not use the number.
                let (number, _) = self.reader.namespace();
                self.reader.clone().in_namespace(number, namespace)
            }
            _ => self.reader.clone(),
        };
        let target = match wish {
            NetQuery::Name(full) => Target::Name(own_name(full)),
            NetQuery::Id(hi, lo) => Target::Id(ObjectId { hi: *hi, lo: *lo }),
            _ => return Err(missing()),
        };
        let Some(entry) = reader.lookup(target).map_err(other)? else {
            match reader.whereabouts(target).map_err(other)? {
                Whereabouts::Nowhere => return Err(missing()),
                Whereabouts::InMemory => {}
                Whereabouts::Away(id) => self.ask_for(id)?,
            }
            let text = format!("{wish} is being restored");
            return Err(SourceRefusal::passing(text));
        };
        if entry.is_replica {
            return Err(missing());
        }
        let namespace = self.namespace(entry.namespace).ok_or_else(missing)?;
        self.check_rights(member, &namespace)?;
        // The record stays even if the open fails: another open of this member may rely on it.
        if !self.note(member, entry.id.lo) {
            return Err(busy(format!("{wish} is being deleted")));
        }
        let held = reader.hold(&holds, Target::Id(entry.id));
        if !matches!(held, Ok(Some(_))) {
            self.forget_note(member, entry.id);
        }
        match held {
            Ok(Some(held)) if held.entry().id == entry.id => Ok(held),
            // A different id means that its home has replaced it meanwhile.
            Ok(_) => Err(SourceRefusal::passing(format!("{wish} is being moved"))),
            Err(error) => Err(busy(format!("{wish} cannot be held: {error}"))),
        }
    }

    /// Removes the record of a member if the object has ended: its delete took the records before
    /// this one was made, and no later one takes it.
    pub(super) fn forget_note(&self, member: &MemberLife, id: ObjectId) {
        if !matches!(self.reader.whereabouts(Target::Id(id)), Ok(Whereabouts::Nowhere)) {
            return;
        }
        let mut state = lock(&self.state);
        if let Entry::Occupied(mut members) = state.interests.entry(id.lo) {
            members.get_mut().remove(member);
            if members.get().is_empty() {
                members.remove();
            }
        }
    }

    /// Asks the event loop to restore a spilled object, once in a while.
    ///
    /// # Errors
    ///
    /// The last restore of this object failed less than [`RESTORE_REFUSED`] ago.
    fn ask_for(&self, id: ObjectId) -> Result<(), SourceRefusal> {
        let mut state = lock(&self.state);
        if let Some((since, reason)) = state.unrestored.get(&id)
            && since.elapsed() < RESTORE_REFUSED
        {
            return Err(SourceRefusal::new(ErrorCode::Other, reason.clone()));
        }
        state.restoring.retain(|_, since| since.elapsed() < RESTORE_AGAIN);
        if let Entry::Vacant(vacant) = state.restoring.entry(id) {
            vacant.insert(Instant::now());
            self.event_sender.send(NetEvent::Restore { id });
        }
        Ok(())
    }

    /// A span of the region as a span of its data section.
    pub(super) fn in_section(&self, span: Span) -> Option<Span> {
        let start = span.offset.0.checked_sub(self.region.geometry().control.0)?;
        Some(Span::new(Offset(start), span.length))
    }

    fn copy(&self, span: Span) -> Result<Vec<u8>, SourceRefusal> {
        let mut bytes = vec![0; span.length.as_usize()];
        let copied = self.region.copy_out_by_call(span.offset, &mut bytes);
        copied.map_err(|error| SourceRefusal::new(ErrorCode::Other, error.to_string()))?;
        Ok(bytes)
    }

    /// The description of a held object that the member receives.
    fn describe(&self, held: &Held) -> Result<(Opened, Vec<Span>), SourceRefusal> {
        let other = |text: String| SourceRefusal::new(ErrorCode::Other, text);
        let damaged = |error: farrow_store::StoreError| other(error.to_string());
        let entry = held.entry();
        let places = self.reader.places(entry).map_err(damaged)?;
        // The lengths at seal: padding from a restore is not part of the object.
        let blocks: Vec<Span> =
            places.iter().map(|one| Span::new(one.block.offset, one.origin.length)).collect();
        for block in &blocks {
            self.region.refresh(*block).map_err(|error| other(error.to_string()))?;
        }
        let metadata = entry.metadata().unwrap_or_default();
        let head = SpillHead {
            id: entry.id,
            kind: entry.kind,
            size: entry.size,
            descriptor_bytes: entry.descriptor.length.0,
            metadata_bytes: entry.metadata_bytes,
            origins: places.iter().map(|BlockLocation { origin, .. }| *origin).collect(),
        };
        let brought = Brought {
            head: head.encode(),
            name: self.reader.name_of(entry).map_err(damaged)?,
            descriptor: self.copy(entry.descriptor)?,
            descriptor_crc: entry.descriptor_crc,
            metadata: self.copy(metadata)?,
            metadata_crc: entry.metadata_crc,
            sealed_at_ns: entry.sealed_at_ns,
        };
        let outside = || other("a block leaves the data section".to_owned());
        let in_section: Option<Vec<Span>> =
            blocks.iter().map(|block| self.in_section(*block)).collect();
        let in_section = in_section.ok_or_else(outside)?;
        let total = Length(in_section.iter().map(|block| block.length.0).sum());
        let mut inline = Vec::new();
        if total.0 <= INLINE_BYTES_MAX {
            for block in &blocks {
                inline.extend(self.copy(*block)?);
            }
        }
        let entry = brought.encode().map_err(other)?;
        Ok((Opened { blocks: in_section.clone(), entry, inline }, in_section))
    }
}

impl Source for RegionSource {
    fn map(&self) -> &Arc<FileMap> {
        &self.map
    }

    fn open(
        &self,
        member: &MemberLife,
        hold: HoldId,
        want: &[u8],
    ) -> Result<Opened, SourceRefusal> {
        let wish =
            NetQuery::decode(want).map_err(|text| SourceRefusal::new(ErrorCode::Other, text))?;
        match &wish {
            NetQuery::List { namespace, prefix, from } => {
                return self.list(member, namespace, |reader| listing::page(reader, *from, prefix));
            }
            NetQuery::Find { namespace, targets } => {
                return self.list(member, namespace, |reader| self.find(reader, targets));
            }
            NetQuery::Sender { hold, failed } => {
                return self.choose_sender((member.clone(), HoldId(*hold)), failed.as_deref());
            }
            NetQuery::Complete { hold, key } => {
                return self.note_complete(&(member.clone(), HoldId(*hold)), *key);
            }
            NetQuery::Name(_) | NetQuery::Id(..) | NetQuery::Replica { .. } => {}
        }
        let of_member = |state: &ServedState| {
            let first = (member.clone(), HoldId(0))..=(member.clone(), HoldId(u64::MAX));
            (
                state.readings.range(first).count(),
                state.readings.contains_key(&(member.clone(), hold)),
            )
        };
        let (count, is_taken) = of_member(&lock(&self.state));
        if is_taken {
            let text = format!("{member} has a hold {} already", hold.0);
            return Err(SourceRefusal::new(ErrorCode::Other, text));
        }
        if count >= HOLDS_PER_MEMBER_MAX {
            let text = format!("{member} reads {count} objects, at most {HOLDS_PER_MEMBER_MAX}");
            return Err(SourceRefusal::new(ErrorCode::Busy, text));
        }
        let (held, opened, blocks) = match &wish {
            NetQuery::Replica { hi, lo, key } => {
                self.open_replica(ObjectId { hi: *hi, lo: *lo }, key)?
            }
            _ => {
                let held = self.hold(member, &wish)?;
                let (opened, blocks) = self.describe(&held)?;
                (held, opened, blocks)
            }
        };
        let reading = Arc::new(Reading { held, blocks });
        lock(&self.state).readings.insert((member.clone(), hold), reading);
        Ok(opened)
    }

    fn read(
        &self,
        member: &MemberLife,
        hold: HoldId,
        ranges: &[Span],
    ) -> Result<Guard, SourceRefusal> {
        let reading = lock(&self.state).readings.get(&(member.clone(), hold)).cloned();
        let Some(reading) = reading else {
            let text = format!("{member} has no hold {}", hold.0);
            return Err(SourceRefusal::new(ErrorCode::NotHeld, text));
        };
        let outside = |range: &&Span| !reading.blocks.iter().any(|block| block.contains(**range));
        if let Some(range) = ranges.iter().find(outside) {
            let text = format!("{range} does not lie in a block of the object of hold {}", hold.0);
            return Err(SourceRefusal::new(ErrorCode::NotHeld, text));
        }
        let bytes = ranges.iter().map(|range| range.length.0).sum();
        let [own, replicas] = &self.served;
        let served = if reading.held.entry().is_replica { replicas } else { own };
        served.fetch_add(bytes, Ordering::Relaxed);
        Ok(Box::new(reading))
    }

    fn release(&self, member: &MemberLife, hold: HoldId) {
        let reader = (member.clone(), hold);
        let mut state = lock(&self.state);
        let reading = state.readings.remove(&reader);
        if let Some(reading) = &reading {
            state.broadcasts.ended(reading.held.entry().id.lo, &reader);
        }
        // The end of a hold writes to the region.
        drop(state);
        drop(reading);
    }

    fn on_invalidated(&self, member: &MemberLife, object: u64) {
        tracing::debug!(%member, object, "a reply to no notice is ignored");
    }
}
