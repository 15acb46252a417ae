//! Adoption of objects that clients sealed themselves. Their entries are read like the directory's,
//! but trusted less.

use std::collections::BTreeSet;

use farrow_memory::Span;

use super::report::{Dropped, SurveyContext};
use super::settle::{Fate, KeepCandidate, overlapping, settle_blocks};
use crate::alloc::blocks::{Block, ClientAccount};
use crate::alloc::space::Run;
use crate::error::StoreError;
use crate::failpoint;
use crate::format::client_entry::{CLIENT_ENTRY_WORDS, decode, is_open};
use crate::format::entry::{EntryState, Sequence};
use crate::format::hash::NameHash;
use crate::format::header::RegionHeader;
use crate::format::ids::{Generation, ObjectId, Slot};
use crate::home::Home;
use crate::home::state::KnownEntry;
use crate::tables::directory::Directory;
use crate::tables::entry_area::EntryArea;
use crate::tables::grants::{FoundGrant, Grants, run_of};

/// Creator of an object whose client disconnected. It equals no grant's client, so no grant may
/// overlap the object.
const WITHOUT_CLIENT: u32 = u32::MAX;

/// The contents of the entry pages, besides candidates.
#[derive(Default)]
pub(super) struct LocalSurvey {
    /// Entries that forward to an object in the directory, by number.
    moved: Vec<(u32, ObjectId)>,
    /// Entries whose life ends: they are not valid, or forward to no object.
    void: Vec<u32>,
}

/// The client of an entry page.
#[derive(Clone, Copy)]
struct PageOwner {
    /// Its number, or [`WITHOUT_CLIENT`].
    client: u32,
    /// The account of its objects.
    account: ClientAccount,
}

/// Read every entry of every page in use whose life may have an object. A takeover that was
/// interrupted is undone here, or finished once all is settled.
pub(super) fn survey(
    context: SurveyContext<'_>,
    area: &EntryArea,
    candidates: &mut Vec<KeepCandidate>,
    dropped: &mut Vec<Dropped>,
) -> Result<LocalSurvey, StoreError> {
    let SurveyContext { header, directory, accounts } = context;
    let mut survey = LocalSurvey::default();
    for page in area.used_pages() {
        let words = area.read_page(page)?;
        let client = area.client_of_page(page).unwrap_or(WITHOUT_CLIENT);
        let account = accounts.of(client, area.namespace_of_page(page));
        let owner = PageOwner { client, account };
        for (number, words) in area.entries(page, &words) {
            let life = area.life(number)?;
            if life.state() == EntryState::Leaving || (is_open(life) && area.forward(number)? != 0)
            {
                let to = ObjectId { hi: header.uid.0, lo: area.forward(number)? };
                if is_live(directory, to)? {
                    survey.moved.push((number, to));
                    continue;
                }
                if life.state() == EntryState::Leaving {
                    survey.void.push(number);
                    continue;
                }
                area.set_forward(number, 0)?;
            }
            match candidate(header, life, number, words, owner) {
                Ok(Some(candidate)) => candidates.push(candidate),
                Ok(None) => {}
                Err(reason) => {
                    // A retiring entry was no object any more, so it is not reported.
                    if life.state() != EntryState::Retiring {
                        let reason = format!("client entry {number}: {reason}");
                        dropped.push(Dropped { id: None, reason });
                    }
                    survey.void.push(number);
                }
            }
        }
    }
    Ok(survey)
}

/// The candidate in an entry, if its life allows one.
fn candidate(
    header: &RegionHeader,
    life: Sequence,
    number: u32,
    words: &[u64; CLIENT_ENTRY_WORDS],
    owner: PageOwner,
) -> Result<Option<KeepCandidate>, &'static str> {
    let slot = header.layout.client_slot(number);
    let fate = match life.state() {
        EntryState::Free
            if !is_open(life) || Sequence(words[0]) != life.with(EntryState::Sealed) =>
        {
            return Ok(None);
        }
        EntryState::Free => Fate::Sealed,
        EntryState::Retiring => Fate::Retiring,
        _ => return Err("unknown state"),
    };
    let entry = decode(words, header.uid, slot, &header.layout)?;
    if entry.id.generation() != life.generation() {
        return Err("another life");
    }
    Ok(Some(KeepCandidate {
        id: entry.id,
        slot,
        primary: run_of(entry.primary).ok_or("its block leaves 64 bits")?,
        extra: Box::default(),
        name: Span::default(),
        name_hash: NameHash(0),
        sealed_at_ns: entry.sealed_at_ns,
        creator: owner.client,
        account: owner.account,
        is_local: true,
        // Its client held it before it sealed it.
        is_in_place: false,
        fate,
    }))
}

/// Whether a directory slot has this object, sealed or retiring.
fn is_live(directory: &Directory, id: ObjectId) -> Result<bool, StoreError> {
    if id.slot().0 >= directory.used() || id.generation() == Generation(0) {
        return Ok(false);
    }
    let sequence = directory.sequence(id.slot())?;
    let is_empty =
        matches!(sequence.state(), EntryState::Free | EntryState::Writing | EntryState::Unknown);
    Ok(sequence.generation() == id.generation() && !is_empty)
}

/// Take the blocks of objects in the directory off the grants. They are first: before each
/// publication the former home checked that enough grant records are free. Those records must not
/// be used up for objects that clients sealed themselves.
fn take_off_published(
    candidates: &mut [KeepCandidate],
    found: &[FoundGrant],
    grants: &mut Grants,
    clients: &BTreeSet<u32>,
    dropped: &mut Vec<Dropped>,
) -> Result<(), StoreError> {
    loop {
        let blocks = settle_blocks(candidates, found, dropped)?;
        let in_directory = candidates.iter().filter(|c| !c.is_local && c.fate != Fate::Removed);
        let runs = in_directory.flat_map(|c| c.extra.iter().chain([&c.primary]));
        let starts: BTreeSet<u64> = runs.map(|run| run.start).collect();
        let published = blocks.iter().filter(|(start, _)| starts.contains(start));
        let published: Vec<Run> =
            published.map(|(start, block)| Run { start: *start, end: block.end }).collect();
        let short = take_off_all(grants, clients, &published)?;
        if short.is_empty() {
            return Ok(());
        }
        if !retire_lists_in_grants(candidates, found, &short, dropped) {
            return Err(no_room_for_grants());
        }
    }
}

/// Take blocks off the grants of clients. Returns the clients that lack grant records for it; their
/// grants stay as they are.
fn take_off_all(
    grants: &mut Grants,
    clients: &BTreeSet<u32>,
    blocks: &[Run],
) -> Result<BTreeSet<u32>, StoreError> {
    let mut short = BTreeSet::new();
    for client in clients {
        match grants.take_off(*client, blocks) {
            Err(StoreError::TooManyGrants { .. }) => drop(short.insert(*client)),
            result => result?,
        }
    }
    Ok(short)
}

/// Retire the objects of clients whose lists of extra blocks name memory in their grants. A kill
/// leaves one such list at most, for which there are records: the rest was written by clients
/// after their seals. Returns whether there were any.
fn retire_lists_in_grants(
    candidates: &mut [KeepCandidate],
    found: &[FoundGrant],
    clients: &BTreeSet<u32>,
    dropped: &mut Vec<Dropped>,
) -> bool {
    let is_granted = |run: &Run| overlapping(found, *run).next().is_some();
    let mut are_any = false;
    for candidate in candidates.iter_mut().filter(|c| clients.contains(&c.creator)) {
        if candidate.extra.iter().any(is_granted) {
            candidate.retire("extra blocks are in the grants of its client", dropped);
            are_any = true;
        }
    }
    are_any
}

fn no_room_for_grants() -> StoreError {
    StoreError::Inconsistent("the grant table has no room for what is granted".to_owned())
}

/// Find the blocks of all objects, and take them off the grants of their creators. If a client
/// lacks grant records, its own objects stay unregistered parts of its grants; the home retries
/// them at the next registration.
pub(super) fn settle_all(
    candidates: &mut [KeepCandidate],
    found: &[FoundGrant],
    grants: &mut Grants,
    clients: &BTreeSet<u32>,
    dropped: &mut Vec<Dropped>,
) -> Result<Vec<(u64, Block)>, StoreError> {
    if candidates.iter().any(|candidate| candidate.is_local) {
        take_off_published(candidates, found, grants, clients, dropped)?;
    }
    loop {
        let blocks = settle_blocks(candidates, found, dropped)?;
        let sorted: Vec<Run> =
            blocks.iter().map(|(start, b)| Run { start: *start, end: b.end }).collect();
        let short = take_off_all(grants, clients, &sorted)?;
        if short.is_empty() {
            return Ok(blocks);
        }
        let mut has_changed = retire_lists_in_grants(candidates, found, &short, dropped);
        if has_changed {
            continue;
        }
        for candidate in candidates.iter_mut() {
            let is_deferrable = candidate.is_local && candidate.fate == Fate::Sealed;
            if is_deferrable
                && short.contains(&candidate.creator)
                && overlapping(found, candidate.primary).next().is_some()
            {
                candidate.fate = Fate::Later;
                has_changed = true;
            }
        }
        if !has_changed {
            return Err(no_room_for_grants());
        }
    }
}

impl Home {
    /// Store the fate of every client entry, and register the objects that stay.
    pub(super) fn keep_locals(
        &mut self,
        candidates: Vec<KeepCandidate>,
        survey: LocalSurvey,
    ) -> Result<(), StoreError> {
        let mut void = survey.void;
        for candidate in candidates {
            let number = self.number_of(candidate.slot)?;
            let life = self.locals.area.life(number)?;
            match candidate.fate {
                Fate::Removed => {
                    void.push(number);
                    continue;
                }
                Fate::Retiring => {
                    self.locals.area.set_life(number, life.with(EntryState::Retiring))?;
                    self.retiring.insert(candidate.slot.0);
                }
                Fate::Sealed => self.objects += 1,
                Fate::Later => continue,
            }
            let KeepCandidate { primary, sealed_at_ns, .. } = candidate;
            let known = KnownEntry { run: Some(primary), sealed_at_ns };
            self.locals.known.insert(candidate.slot.0, known);
            self.locals.area.enter(number);
        }
        for (number, to) in survey.moved {
            let is_first = !self.locals.taken.contains_key(&to.slot().0);
            if !is_first || !is_live(&self.directory, to)? {
                void.push(number);
                continue;
            }
            let life = self.locals.area.life(number)?;
            self.locals.area.set_life(number, life.with(EntryState::Leaving))?;
            let before: Slot = self.layout().client_slot(number);
            self.note_taken(before, to.slot());
            self.locals.area.enter(number);
        }
        for number in void {
            self.locals.area.end_life(number)?;
        }
        failpoint!("adopt.locals");
        self.locals.area.free_empty()
    }
}
