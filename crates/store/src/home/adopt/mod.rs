//! Adoption: read the state that a former home left, settle interrupted changes, rebuild private
//! state.
//!
//! Every store made here leaves a region that can be adopted again, so a home may be killed during
//! adoption. Linear in objects except for one sort: a million objects take well under a second.

mod entries;
mod inherit;
mod local;
mod names;
mod phases;
mod report;
pub(super) mod settle;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use farrow_memory::{Region, Span};

use super::Home;
use super::clients::Reserved;
use super::objects::{BatchLooks, Retained};
use super::state::Locals;
use crate::alloc::blocks::Blocks;
use crate::alloc::space::Run;
use crate::alloc::victim_order::VictimOrders;
use crate::error::StoreError;
use crate::events::EventRing;
use crate::failpoint;
use crate::format::entry::EntryState;
use crate::format::hash::NameHash;
use crate::format::header::{INDEX_TURN, LIFE, RegionHeader};
use crate::format::ids::{Slot, Target};
use crate::tables::clients::ClientSlot;
use crate::tables::control::Control;
use crate::tables::directory::Directory;
use crate::tables::holds::HoldArea;
use crate::tables::names::{Names, name_run};
use crate::tables::pins::Pins;
pub use inherit::Unfinished;
use phases::{AdoptedRegion, RemainingSteps, Settled, Surveyed, SurveyedTables};
pub use report::{AdoptReport, Dropped};

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
        let life = control.load(LIFE)?.saturating_add(u64::from(!is_new));
        control.store(LIFE, life)?;
        failpoint!("adopt.life");
        let adopted = AdoptedRegion { control, header, life, is_new };
        let settled = Surveyed::read(&adopted)?.settle(&adopted)?;
        let (mut home, remaining) = Self::assemble(adopted, settled)?;
        let report = home.finish_adoption(remaining, unfinished)?;
        for unnamed in &report.unnamed {
            tracing::warn!(id = ?unnamed.id, reason = unnamed.reason, "kept without its name");
        }
        for dropped in &report.dropped {
            tracing::warn!(id = ?dropped.id, reason = dropped.reason, "dropped on adoption");
        }
        Ok((home, report))
    }

    /// Open the remaining tables, and rebuild private state.
    fn assemble(
        adopted: AdoptedRegion,
        settled: Settled,
    ) -> Result<(Self, RemainingSteps), StoreError> {
        let AdoptedRegion { control, header, life, is_new } = adopted;
        let Settled { tables, grants, space, blocks, staying, remaining } = settled;
        let SurveyedTables { directory, clients, accounts, namespaces, area } = tables;
        let layout = header.layout;
        let replaced: BTreeSet<u32> = remaining.replaced.iter().map(|id| id.slot().0).collect();
        let has_object = |slot| {
            Ok(matches!(
                directory.sequence(slot)?.state(),
                EntryState::Sealed | EntryState::Spilled
            ))
        };
        let pins = Pins::open(control.clone(), layout, has_object)?;
        let home = Self {
            pins,
            names: open_names(&control, &header, staying.names, &replaced, is_new)?,
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
            replaced,
            spilling: BTreeSet::new(),
            spilled: staying.spilled,
            loading: BTreeMap::new(),
            restored_at: BTreeMap::new(),
            objects: staying.objects,
            clients,
        };
        Ok((home, remaining))
    }

    /// Finish what the former home had begun, and free what is not in use.
    fn finish_adoption(
        &mut self,
        remaining: RemainingSteps,
        unfinished: Option<&Unfinished>,
    ) -> Result<AdoptReport, StoreError> {
        let RemainingSteps { known, of_clients, locals, in_place, replaced, left, report } =
            remaining;
        self.keep_locals(of_clients, locals)?;
        self.finish_event()?;
        // Before anything is freed: what was retained stays retained.
        if let Some(unfinished) = unfinished {
            self.inherit(unfinished);
        }
        if unfinished.is_none_or(|unfinished| unfinished.is_cut) {
            let doubtful = self.without_sure_holds(in_place)?;
            self.keep_in_doubt(doubtful);
        }
        for id in replaced.into_iter().chain(left) {
            match self.delete(Target::Id(id)) {
                // A name or a block that was damaged.
                Err(StoreError::NotFound { .. }) => {}
                deleted => drop(deleted?),
            }
        }
        self.finish_leaving(&known)?;
        self.reclaim()?;
        Ok(AdoptReport {
            objects: self.objects,
            spilled: self.spilled.len() as u32,
            retiring: self.retiring.len() as u32,
            clients: self.clients.records().copied().collect(),
            ..report
        })
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
