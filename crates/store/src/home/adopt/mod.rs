//! Adoption: read the state that a former home left, settle interrupted changes, rebuild private
//! state.
//!
//! Every store made here leaves a region that can be adopted again, so a home may be killed during
//! adoption. Linear in objects except for one sort: a million objects take well under a second.

mod entries;
mod inherit;
mod local;
mod names;
mod report;
mod settle;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use farrow_memory::{Region, Span};

use super::Home;
use super::clients::Reserved;
use super::objects::{BatchLooks, Retained, sealed_in_place};
use super::state::{ClientAccounts, Locals};
use crate::alloc::blocks::Blocks;
use crate::alloc::space::{Run, SpaceAllocator};
use crate::alloc::victim_order::VictimOrders;
use crate::error::StoreError;
use crate::events::EventRing;
use crate::failpoint;
use crate::format::entry::EntryState;
use crate::format::hash::NameHash;
use crate::format::header::{INDEX_TURN, LIFE, RegionHeader, SLOTS_USED};
use crate::format::ids::{Slot, Target};
use crate::format::layout::Layout;
use crate::format::options::BLOCK_BYTES;
use crate::tables::clients::{ClientSlot, ClientTable};
use crate::tables::control::Control;
use crate::tables::directory::Directory;
use crate::tables::entry_area::EntryArea;
use crate::tables::grants::Grants;
use crate::tables::holds::HoldArea;
use crate::tables::names::{Names, name_run};
use crate::tables::namespaces::NamespaceTable;
use crate::tables::pins::Pins;
use entries::{EntrySurvey, stay_spilled, store_fates, survey_entries};
pub use inherit::Unfinished;
use names::NameCheck;
use report::SurveyContext;
pub use report::{AdoptReport, Dropped};
use settle::settle_grants;
pub(super) use settle::{Fate, KeepCandidate};

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
