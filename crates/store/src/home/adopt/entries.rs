//! The entries of the directory: what each of them has, and what becomes of its object.

use std::collections::BTreeMap;

use farrow_memory::sync::Ordering;
use farrow_memory::{Length, Populate, Span};

use super::report::{Dropped, SurveyContext};
use super::settle::{Fate, KeepCandidate};
use crate::alloc::space::Run;
use crate::error::StoreError;
use crate::format::entry::{ENTRY_WORDS, Entry, EntryFault, EntryState, Sequence, decode_list};
use crate::format::hash::NameHash;
use crate::format::ids::{ObjectId, ObjectKind, Slot};
use crate::format::layout::ENTRY_BYTES;
use crate::home::state::{ClientAccounts, Spilled};
use crate::tables::clients::ClientSlot;
use crate::tables::control::Control;
use crate::tables::directory::Directory;
use crate::tables::grants::run_of;
use crate::tables::slot_set::SlotSet;

/// All entries of the directory, by state.
#[derive(Default)]
pub(super) struct EntrySurvey {
    pub(super) candidates: Vec<KeepCandidate>,
    /// Spilled entries, and whether the object was being restored.
    pub(super) spilled: Vec<(Entry, bool)>,
    pub(super) free: Vec<(Slot, Sequence)>,
    /// Entries to free: half written or unusable.
    pub(super) void: Vec<Slot>,
    pub(super) unfinished: u32,
    pub(super) dropped: Vec<Dropped>,
    /// Objects that go with their creators, by creator.
    pub(super) staged: Vec<(ClientSlot, ObjectId)>,
    /// Such objects whose creators have left: a kill came in between.
    pub(super) left: Vec<ObjectId>,
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
pub(super) struct Staying {
    pub(super) objects: u32,
    pub(super) names: Vec<(Span, NameHash, Slot)>,
    pub(super) extras: BTreeMap<u32, Box<[Run]>>,
    pub(super) retiring: SlotSet,
    pub(super) spilled: Spilled,
}

/// Read every directory entry that was ever used.
pub(super) fn survey_entries(
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
pub(super) fn store_fates(
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
pub(super) fn stay_spilled(
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
