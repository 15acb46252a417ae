//! Adoption: read the state that a former home left, settle interrupted changes, rebuild private
//! state.
//!
//! Every store made here leaves a region that can be adopted again, so a home may be killed during
//! adoption. Linear in objects except for one sort: a million objects take well under a second.

mod inherit;
mod local;
mod names;
mod report;
mod settle;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use farrow_memory::sync::Ordering;
use farrow_memory::{Length, Populate, Region, Span};

use super::Home;
use super::clients::Reserved;
use super::objects::{BatchLooks, Retained, sealed_in_place};
use super::state::{ClientAccounts, Locals, Spilled};
use crate::alloc::blocks::Blocks;
use crate::alloc::space::{Run, SpaceAllocator};
use crate::alloc::victim_order::VictimOrders;
use crate::error::StoreError;
use crate::events::EventRing;
use crate::failpoint;
use crate::format::entry::{ENTRY_WORDS, Entry, EntryFault, EntryState, Sequence, decode_list};
use crate::format::hash::NameHash;
use crate::format::header::{INDEX_TURN, LIFE, RegionHeader, SLOTS_USED};
use crate::format::ids::{ObjectId, ObjectKind, Slot, Target};
use crate::format::layout::{ENTRY_BYTES, Layout};
use crate::format::options::BLOCK_BYTES;
use crate::tables::clients::{ClientSlot, ClientTable};
use crate::tables::control::Control;
use crate::tables::directory::Directory;
use crate::tables::entry_area::EntryArea;
use crate::tables::grants::{Grants, run_of};
use crate::tables::holds::HoldArea;
use crate::tables::names::{Names, name_run};
use crate::tables::namespaces::NamespaceTable;
use crate::tables::pins::Pins;
use crate::tables::slot_set::SlotSet;
pub use inherit::Unfinished;
use names::NameCheck;
use report::SurveyContext;
pub use report::{AdoptReport, Dropped};
use settle::settle_grants;
pub(super) use settle::{Fate, KeepCandidate};

/// All entries of the directory, by state.
#[derive(Default)]
struct EntrySurvey {
    candidates: Vec<KeepCandidate>,
    /// Spilled entries, and whether the object was being restored.
    spilled: Vec<(Entry, bool)>,
    free: Vec<(Slot, Sequence)>,
    /// Entries to free: half written or unusable.
    void: Vec<Slot>,
    unfinished: u32,
    dropped: Vec<Dropped>,
    /// Objects that go with their creators, by creator.
    staged: Vec<(ClientSlot, ObjectId)>,
    /// Such objects whose creators have left: a kill came in between.
    left: Vec<ObjectId>,
}

impl EntrySurvey {
    fn note_staged(&mut self, entry: &Entry, state: EntryState, context: SurveyContext<'_>) {
        if !entry.is_staged || state == EntryState::Retiring {
            return;
        }
        match context.accounts.of_creator(entry).client {
            0 => self.left.push(entry.id),
            _ => self.staged.push((ClientSlot(entry.creator), entry.id)),
        }
    }
}

/// The private state of the objects that stay.
#[derive(Default)]
struct Staying {
    objects: u32,
    names: Vec<(Span, NameHash, Slot)>,
    extras: BTreeMap<u32, Box<[Run]>>,
    retiring: SlotSet,
    spilled: Spilled,
}

impl Home {
    /// Open a region that a former home left, however it ended. Sealed objects and the grants of
    /// clients that may still live stay, retirement continues, and all other memory becomes free.
    ///
    /// The region must have no other home; the daemon ensures this with a lock on its file.
    ///
    /// # Errors
    /// [`StoreError::Format`] if this is not a region, or not one for this program;
    /// [`StoreError::Inconsistent`] if the tables contradict each other in a way that no kill of a
    /// home can cause.
    pub fn adopt(region: Arc<Region>) -> Result<(Self, AdoptReport), StoreError> {
        Self::open(Control::new(region), false, None)
    }

    /// Like [`Home::adopt`], with state that the former home handed over besides the region.
    ///
    /// # Errors
    /// As [`Home::adopt`].
    pub fn adopt_from(
        region: Arc<Region>,
        unfinished: &Unfinished,
    ) -> Result<(Self, AdoptReport), StoreError> {
        Self::open(Control::new(region), false, Some(unfinished))
    }

    /// Open a region that was newly created or left by a former home.
    pub(super) fn open(
        control: Control,
        is_new: bool,
        unfinished: Option<&Unfinished>,
    ) -> Result<(Self, AdoptReport), StoreError> {
        let header = RegionHeader::read(control.region())?;
        let layout = header.layout;
        let life = control.load(LIFE)?.saturating_add(u64::from(!is_new));
        control.store(LIFE, life)?;
        failpoint!("adopt.life");
        let used = control.load(SLOTS_USED)?.min(layout.objects_max.into()) as u32;
        let mut directory = Directory::new(control.clone(), layout, header.uid, used);
        let clients = ClientTable::open(control.clone(), layout)?;
        let accounts = ClientAccounts::new(clients.records());
        let (namespaces, damaged) = NamespaceTable::open(control.clone(), layout)?;
        let context = SurveyContext { header: &header, directory: &directory, accounts: &accounts };
        let mut survey = survey_entries(&control, context)?;
        let damaged = damaged.into_iter().map(|reason| Dropped { id: None, reason });
        survey.dropped.extend(damaged);
        let known: BTreeSet<u32> = clients.records().map(|record| record.client.0).collect();

        let area = EntryArea::open(control.clone(), layout, &known)?;
        let EntrySurvey { candidates, dropped, .. } = &mut survey;
        let locals = local::survey(context, &area, candidates, dropped)?;

        let found = settle_grants(&control, &layout, &known, dropped)?;
        let mut grants = Grants::new(control.clone(), layout, &found);
        let blocks = local::settle_all(candidates, &found, &mut grants, &known, dropped)?;
        let sorted: Vec<Run> =
            blocks.iter().map(|(start, b)| Run { start: *start, end: b.end }).collect();
        failpoint!("adopt.grants");
        let space = occupy(&layout, &sorted, grants.all())?;

        let (void, free) = (std::mem::take(&mut survey.void), std::mem::take(&mut survey.free));
        let (of_clients, mut candidates): (Vec<_>, Vec<_>) =
            std::mem::take(&mut survey.candidates).into_iter().partition(|c| c.is_local);
        let in_place = sealed_in_place(&candidates);
        let mut names = NameCheck::new(&control, header.key, &layout);
        names.check_all(&directory, &mut candidates, &mut survey.spilled)?;
        let (unnamed, replaced) = (names.unnamed, names.replaced);
        let replaced_slots: BTreeSet<u32> = replaced.iter().map(|id| id.slot().0).collect();
        let mut staying = store_fates(&mut directory, candidates, void)?;
        stay_spilled(&directory, &accounts, &survey.spilled, &mut staying)?;
        // Reversed, so that low slots are reused first.
        for (slot, sequence) in free.iter().rev() {
            directory.found_free(*slot, *sequence);
        }
        failpoint!("adopt.entries");

        let has_object = |slot| {
            Ok(matches!(
                directory.sequence(slot)?.state(),
                EntryState::Sealed | EntryState::Spilled
            ))
        };
        let pins = Pins::open(control.clone(), layout, has_object)?;
        let mut home = Self {
            pins,
            names: open_names(&control, &header, staying.names, &replaced_slots, is_new)?,
            holds: HoldArea::open(control.clone(), layout)?,
            events: EventRing::open(control.clone(), layout)?,
            now_ns: 0,
            blocks: Blocks::from_sorted(blocks),
            quarantined: BTreeSet::new(),
            reserved: Reserved::default(),
            control,
            header,
            life,
            grants,
            space,
            directory,
            extras: staying.extras,
            retiring: staying.retiring,
            retained: Retained::default(),
            locals: Locals::new(area),
            batch_looks: BatchLooks::default(),
            orders: VictimOrders::default(),
            replicas: BTreeSet::new(),
            accounts,
            namespaces,
            freed_bytes: 0,
            replaced: replaced_slots,
            spilling: BTreeSet::new(),
            spilled: staying.spilled,
            loading: BTreeMap::new(),
            restored_at: BTreeMap::new(),
            objects: staying.objects,
            clients,
        };
        home.keep_locals(of_clients, locals)?;
        home.finish_event()?;
        // Before anything is freed: what was retained stays retained.
        if let Some(unfinished) = unfinished {
            home.inherit(unfinished);
        }
        if unfinished.is_none_or(|unfinished| unfinished.is_cut) {
            let doubtful = home.without_sure_holds(in_place)?;
            home.keep_in_doubt(doubtful);
        }
        for id in replaced.into_iter().chain(survey.left) {
            match home.delete(Target::Id(id)) {
                // A name or a block that was damaged.
                Err(StoreError::NotFound { .. }) => {}
                deleted => drop(deleted?),
            }
        }
        home.finish_leaving(&known)?;
        home.reclaim()?;
        let report = AdoptReport {
            life,
            objects: home.objects,
            spilled: home.spilled.len() as u32,
            retiring: home.retiring.len() as u32,
            unfinished: survey.unfinished,
            dropped: survey.dropped,
            unnamed,
            staged: survey.staged,
            clients: home.clients.records().copied().collect(),
        };
        for unnamed in &report.unnamed {
            tracing::warn!(id = ?unnamed.id, reason = unnamed.reason, "kept without its name");
        }
        for dropped in &report.dropped {
            tracing::warn!(id = ?dropped.id, reason = dropped.reason, "dropped on adoption");
        }
        Ok((home, report))
    }

    /// Finish the removal of clients that a kill interrupted, and free hold blocks without an
    /// owner.
    fn finish_leaving(&mut self, known: &BTreeSet<u32>) -> Result<(), StoreError> {
        for client in self.clients.take_leaving() {
            failpoint!("adopt.leaving");
            self.client_leave(ClientSlot(client))?;
        }
        for owner in self.holds.owners().difference(known) {
            self.holds.take_all(*owner)?;
        }
        Ok(())
    }

    /// Hash and slot of every named object, in memory or spilled, except the one in slot `except`.
    pub(super) fn sealed_names(
        directory: &Directory,
        except: Option<Slot>,
    ) -> Result<Vec<(NameHash, Slot)>, StoreError> {
        let mut names = Vec::new();
        for slot in (0..directory.used()).map(Slot).filter(|slot| Some(*slot) != except) {
            if matches!(directory.sequence(slot)?.state(), EntryState::Sealed | EntryState::Spilled)
            {
                let entry = directory.entry(slot)?;
                if !entry.name.is_empty() {
                    names.push((NameHash(entry.name_hash), slot));
                }
            }
        }
        Ok(names)
    }
}

/// Read every directory entry that was ever used.
fn survey_entries(
    control: &Control,
    context: SurveyContext<'_>,
) -> Result<EntrySurvey, StoreError> {
    let SurveyContext { header, directory, .. } = context;
    let mut survey = EntrySurvey::default();
    survey.candidates.reserve_exact(directory.used() as usize);
    // One call instead of a page fault for each page. If it fails, the faults do the same.
    let used = Length(u64::from(directory.used()) * ENTRY_BYTES);
    let span = Span::new(directory.span().offset, used);
    if let Err(error) = control.region().populate(span, Populate::Read) {
        tracing::debug!(%error, "directory not populated");
    }
    let words = control.region().words(directory.span())?;
    for slot in (0..directory.used()).map(Slot) {
        let mut copy = [0; ENTRY_WORDS];
        for (i, word) in copy.iter_mut().enumerate() {
            let at = slot.0 as usize * ENTRY_WORDS + i;
            *word = words.load(at, Ordering::Relaxed).unwrap_or_default();
        }
        let sequence = Sequence(copy[0]);
        match sequence.state() {
            EntryState::Free => survey.free.push((slot, sequence)),
            EntryState::Writing => {
                survey.unfinished += 1;
                survey.void.push(slot);
            }
            EntryState::Sealed | EntryState::Leaving | EntryState::Retiring => {
                match whole_entry(context, slot, &copy)? {
                    Ok(entry) => {
                        survey.note_staged(&entry, sequence.state(), context);
                        survey.candidates.push(candidate(
                            control,
                            context,
                            &entry,
                            sequence.state(),
                            &mut survey.dropped,
                        )?);
                    }
                    Err(reason) => drop_entry(&mut survey, slot, reason),
                }
            }
            state @ (EntryState::Spilled | EntryState::Restoring) => {
                match Entry::decode(&copy, header.uid, slot, &header.layout) {
                    Ok(entry) => {
                        survey.note_staged(&entry, state, context);
                        survey.spilled.push((entry, state == EntryState::Restoring));
                    }
                    Err(reason) => drop_entry(&mut survey, slot, reason),
                }
            }
            EntryState::Unknown => drop_entry(&mut survey, slot, "unknown state"),
        }
    }
    Ok(survey)
}

/// The entry of an object in memory. If a kill interrupted the removal of its name, that is
/// completed.
fn whole_entry(
    context: SurveyContext<'_>,
    slot: Slot,
    words: &[u64; ENTRY_WORDS],
) -> Result<Result<Entry, EntryFault>, StoreError> {
    let SurveyContext { header, directory, .. } = context;
    let (uid, layout) = (header.uid, &header.layout);
    let found = Entry::decode(words, uid, slot, layout);
    if found.is_err()
        && Sequence(words[0]).state() == EntryState::Leaving
        && let Some(entry) = Entry::decode_unnamed(words, uid, slot, layout)
    {
        directory.unname(&entry)?;
        return Ok(Ok(entry));
    }
    Ok(found)
}

/// Store the fate of every object, and collect the private state of those that stay.
fn store_fates(
    directory: &mut Directory,
    candidates: Vec<KeepCandidate>,
    mut void: Vec<Slot>,
) -> Result<Staying, StoreError> {
    let mut staying = Staying::default();
    for candidate in candidates {
        let slot = candidate.slot;
        match candidate.fate {
            // An object with a directory entry is never deferred.
            Fate::Removed | Fate::Later => {
                void.push(slot);
                continue;
            }
            Fate::Retiring => {
                let sequence = directory.sequence(slot)?;
                directory.set_sequence(slot, sequence.with(EntryState::Retiring))?;
                staying.retiring.insert(slot.0);
            }
            Fate::Sealed => {
                let sequence = directory.sequence(slot)?;
                if sequence.state() == EntryState::Leaving {
                    directory.set_sequence(slot, sequence.with(EntryState::Sealed))?;
                }
                staying.objects += 1;
                if !candidate.name.is_empty() {
                    staying.names.push((candidate.name, candidate.name_hash, slot));
                }
            }
        }
        if !candidate.extra.is_empty() {
            staying.extras.insert(slot.0, candidate.extra);
        }
    }
    for slot in void {
        directory.vacate(slot)?;
    }
    Ok(staying)
}

/// Spilled objects stay spilled; an interrupted restore is undone.
fn stay_spilled(
    directory: &Directory,
    accounts: &ClientAccounts,
    spilled: &[(Entry, bool)],
    staying: &mut Staying,
) -> Result<(), StoreError> {
    for (entry, is_torn) in spilled {
        if *is_torn {
            directory.replace(&entry.nowhere(), EntryState::Spilled)?;
        }
        let slot = entry.id.slot();
        if !entry.name.is_empty() {
            staying.names.push((entry.name, NameHash(entry.name_hash), slot));
        }
        staying.spilled.insert(slot, entry.size.0, accounts.of_creator(entry));
    }
    Ok(())
}

fn drop_entry(survey: &mut EntrySurvey, slot: Slot, reason: &str) {
    survey.dropped.push(Dropped { id: None, reason: format!("slot {}: {reason}", slot.0) });
    survey.void.push(slot);
}

/// The candidate in an entry, with its list of extra blocks if it has one. An object with a bad
/// list is unusable: it retires with its primary block alone.
fn candidate(
    control: &Control,
    context: SurveyContext<'_>,
    entry: &Entry,
    state: EntryState,
    dropped: &mut Vec<Dropped>,
) -> Result<KeepCandidate, StoreError> {
    let mut candidate = KeepCandidate {
        id: entry.id,
        slot: entry.id.slot(),
        primary: run_of(entry.primary).unwrap_or(Run { start: 0, end: 0 }),
        extra: Box::default(),
        name: entry.name,
        name_hash: NameHash(entry.name_hash),
        sealed_at_ns: entry.sealed_at_ns,
        creator: entry.creator,
        account: context.accounts.of_creator(entry),
        is_local: false,
        is_in_place: entry.kind == ObjectKind::Bytes || entry.extra_count > 0,
        // An object that was leaving stays: its end was not published. A replica retires, because
        // its original may no longer exist.
        fate: match state == EntryState::Retiring || entry.is_replica {
            true => Fate::Retiring,
            false => Fate::Sealed,
        },
    };
    if entry.extra_count == 0 {
        return Ok(candidate);
    }
    // `Entry::decode` has checked that the list is in the primary block.
    let list = entry.extra_list().unwrap_or_default();
    let mut bytes = vec![0; list.length.0 as usize];
    control.region().refresh(list)?;
    control.region().copy_out_by_call(list.offset, &mut bytes)?;
    let found = if crc32c::crc32c(&bytes) == entry.extra_crc {
        decode_list(&bytes, entry, &context.header.layout).map(|(extra, _)| extra)
    } else {
        Err("the checksum of its list of extra blocks differs")
    };
    match found {
        Ok(spans) => candidate.extra = spans.into_iter().filter_map(run_of).collect(),
        Err(reason) => candidate.retire(reason, dropped),
    }
    Ok(candidate)
}

/// Free space: the heap without `blocks` and `grants`.
fn occupy(
    layout: &Layout,
    blocks: &[Run],
    grants: impl Iterator<Item = Run>,
) -> Result<SpaceAllocator, StoreError> {
    let mut occupied: Vec<Run> = blocks.iter().copied().chain(grants).collect();
    occupied.sort_unstable();
    let start = layout.heap.offset.0;
    let heap = Run { start, end: start + layout.heap.length.0 };
    SpaceAllocator::with_occupied(heap, BLOCK_BYTES, layout.page.0, occupied)
        .map_err(|error| StoreError::Inconsistent(format!("heap: {error}")))
}

/// The name heap and the index. The index is always rebuilt: a kill may have separated an entry
/// from its name, and a rebuild removes tombstones.
fn open_names(
    control: &Control,
    header: &RegionHeader,
    mut names: Vec<(Span, NameHash, Slot)>,
    replaced: &BTreeSet<u32>,
    is_new: bool,
) -> Result<Names, StoreError> {
    let mut taken: Vec<Run> = names.iter().map(|(span, _, _)| name_run(*span)).collect();
    taken.sort_unstable();
    let heap = Names::heap(&header.layout, taken)?;
    let turn = control.load(INDEX_TURN)?;
    let mut index = Names::new(control.clone(), header.layout, header.key, heap, turn);
    names.retain(|(_, _, slot)| !replaced.contains(&slot.0));
    if !is_new {
        index.rebuild(names.into_iter().map(|(_, hash, slot)| (hash, slot)))?;
    }
    failpoint!("adopt.index");
    Ok(index)
}
