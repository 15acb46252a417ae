//! The phases of adoption before there is a home: read everything, then settle what a kill left.

use std::collections::BTreeSet;

use super::entries::{EntrySurvey, Staying, stay_spilled, store_fates, survey_entries};
use super::local::{self, LocalSurvey};
use super::names::NameCheck;
use super::report::{AdoptReport, Dropped, SurveyContext};
use super::settle::{KeepCandidate, settle_grants};
use crate::alloc::blocks::Block;
use crate::alloc::space::{Run, SpaceAllocator};
use crate::error::StoreError;
use crate::failpoint;
use crate::format::header::{RegionHeader, SLOTS_USED};
use crate::format::ids::{ObjectId, Slot};
use crate::format::layout::Layout;
use crate::format::options::BLOCK_BYTES;
use crate::home::objects::sealed_in_place;
use crate::home::state::ClientAccounts;
use crate::tables::clients::{ClientSlot, ClientTable};
use crate::tables::control::Control;
use crate::tables::directory::Directory;
use crate::tables::entry_area::EntryArea;
use crate::tables::grants::Grants;
use crate::tables::namespaces::NamespaceTable;

/// A region in the life of its new home.
pub(super) struct AdoptedRegion {
    pub(super) control: Control,
    pub(super) header: RegionHeader,
    pub(super) life: u64,
    pub(super) is_new: bool,
}

/// The tables that say which objects there are.
pub(super) struct SurveyedTables {
    pub(super) directory: Directory,
    pub(super) clients: ClientTable,
    pub(super) accounts: ClientAccounts,
    pub(super) namespaces: NamespaceTable,
    pub(super) area: EntryArea,
}

/// All that the former home left.
pub(super) struct Surveyed {
    tables: SurveyedTables,
    /// Slots of the clients that have joined.
    known: BTreeSet<u32>,
    entries: EntrySurvey,
    locals: LocalSurvey,
}

/// Memory and entries without contradictions.
pub(super) struct Settled {
    pub(super) tables: SurveyedTables,
    pub(super) grants: Grants,
    pub(super) space: SpaceAllocator,
    pub(super) blocks: Vec<(u64, Block)>,
    pub(super) staying: Staying,
    pub(super) remaining: RemainingSteps,
}

/// What only the new home can do.
pub(super) struct RemainingSteps {
    /// Slots of the clients that have joined.
    pub(super) known: BTreeSet<u32>,
    /// Objects in entry pages, which are stored and registered.
    pub(super) of_clients: Vec<KeepCandidate>,
    pub(super) locals: LocalSurvey,
    /// Objects that their creators may use without a hold.
    pub(super) in_place: Vec<(Slot, ClientSlot)>,
    /// Objects to delete: later ones have their names.
    pub(super) replaced: Vec<ObjectId>,
    /// Objects to delete: their creators have left.
    pub(super) left: Vec<ObjectId>,
    /// The report, without the numbers that the home has in the end.
    pub(super) report: AdoptReport,
}

impl Surveyed {
    /// Read all entries. An interrupted change of a single entry is finished or undone.
    pub(super) fn read(adopted: &AdoptedRegion) -> Result<Self, StoreError> {
        let AdoptedRegion { control, header, .. } = adopted;
        let layout = header.layout;
        let used = control.load(SLOTS_USED)?.min(layout.objects_max.into()) as u32;
        let directory = Directory::new(control.clone(), layout, header.uid, used);
        let clients = ClientTable::open(control.clone(), layout)?;
        let accounts = ClientAccounts::new(clients.records());
        let (namespaces, damaged) = NamespaceTable::open(control.clone(), layout)?;
        let context = SurveyContext { header, directory: &directory, accounts: &accounts };
        let mut entries = survey_entries(control, context)?;
        let damaged = damaged.into_iter().map(|reason| Dropped { id: None, reason });
        entries.dropped.extend(damaged);
        let known: BTreeSet<u32> = clients.records().map(|record| record.client.0).collect();
        let area = EntryArea::open(control.clone(), layout, &known)?;
        let EntrySurvey { candidates, dropped, .. } = &mut entries;
        let locals = local::survey(context, &area, candidates, dropped)?;
        let tables = SurveyedTables { directory, clients, accounts, namespaces, area };
        Ok(Self { tables, known, entries, locals })
    }

    /// Decide which object has each byte and each name, and store the fate of every object.
    pub(super) fn settle(self, adopted: &AdoptedRegion) -> Result<Settled, StoreError> {
        let AdoptedRegion { control, header, life, .. } = adopted;
        let layout = &header.layout;
        let Self { mut tables, known, mut entries, locals } = self;
        let EntrySurvey { candidates, dropped, .. } = &mut entries;
        let found = settle_grants(control, layout, &known, dropped)?;
        let mut grants = Grants::new(control.clone(), *layout, &found);
        let blocks = local::settle_all(candidates, &found, &mut grants, &known, dropped)?;
        let sorted: Vec<Run> =
            blocks.iter().map(|(start, b)| Run { start: *start, end: b.end }).collect();
        failpoint!("adopt.grants");
        let space = occupy(layout, &sorted, grants.all())?;

        let (of_clients, mut candidates): (Vec<_>, Vec<_>) =
            entries.candidates.into_iter().partition(|c| c.is_local);
        let in_place = sealed_in_place(&candidates);
        let mut names = NameCheck::new(control, header.key, layout);
        names.check_all(&tables.directory, &mut candidates, &mut entries.spilled)?;
        let (unnamed, replaced) = (names.unnamed, names.replaced);
        let mut staying = store_fates(&mut tables.directory, candidates, entries.void)?;
        stay_spilled(&tables.directory, &tables.accounts, &entries.spilled, &mut staying)?;
        // Reversed, so that low slots are reused first.
        for (slot, sequence) in entries.free.iter().rev() {
            tables.directory.found_free(*slot, *sequence);
        }
        failpoint!("adopt.entries");
        let report = AdoptReport {
            life: *life,
            unfinished: entries.unfinished,
            dropped: entries.dropped,
            unnamed,
            staged: entries.staged,
            ..AdoptReport::default()
        };
        let left = entries.left;
        let remaining =
            RemainingSteps { known, of_clients, locals, in_place, replaced, left, report };
        Ok(Settled { tables, grants, space, blocks, staying, remaining })
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
