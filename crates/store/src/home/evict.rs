//! Eviction: unused objects make room for others.
//!
//! The protocol is that of a hold against a free, with a way back. The home marks the object as
//! leaving, fences, and scans the holds. If it is held, the home restores the same sealed word as
//! before. If not, it cannot be held any more: a reader that claims it now sees the mark.

use std::collections::BTreeMap;

use farrow_memory::sync::{Ordering, fence};
use farrow_memory::{Length, Span};

use super::{Home, Room};
use crate::alloc::blocks::Block;
use crate::alloc::eviction::{ByHand, Evicted, EvictionCandidate, EvictionPolicy, Need};
use crate::alloc::space::Run;
use crate::client::uses;
use crate::error::StoreError;
use crate::events::EventKind;
use crate::failpoint;
use crate::format::entry::{Entry, EntryState};
use crate::format::ids::{NamespaceId, ObjectId, Slot, Target};
use crate::hazard::{self, Scan};

/// Maximum rounds of replacing chosen objects that turn out to be held.
const ROUNDS_MAX: u32 = 4;

/// A candidate with its resources.
pub(super) struct Choice {
    pub(super) candidate: EvictionCandidate,
    pub(super) rank: u64,
    pub(super) runs: Vec<Run>,
    /// The range of its name in the name heap; empty if it has none.
    pub(super) name: Span,
    /// Whether it has a directory slot, not an entry in a client's entry page.
    pub(super) has_slot: bool,
}

impl Home {
    /// Whether an object is exempt from eviction. One that a client sealed itself is not.
    #[must_use]
    pub fn is_pinned(&self, id: ObjectId) -> bool {
        let is_own = self.layout().client_entry(id.slot()).is_none();
        is_own && self.pins.is_pinned(id.slot())
    }

    /// Pin an object, so that it is never evicted, or unpin it. Returns its id in the directory; a
    /// former id still forwards there.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub fn pin(&mut self, target: Target<'_>, is_pinned: bool) -> Result<ObjectId, StoreError> {
        let mut id = self.find(target)?.id;
        if is_pinned {
            // An object that a client sealed itself has no bit in the pin table.
            id = self.take_over(id)?;
        }
        if self.layout().client_entry(id.slot()).is_none() {
            self.pins.set(id.slot(), is_pinned)?;
        }
        Ok(id)
    }

    /// Evict objects in the order of `policy` until `need` is met. If evicting all candidates is
    /// not enough, bytes are freed as far as possible; for a run nothing is evicted.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn evict_for(
        &mut self,
        policy: &dyn EvictionPolicy,
        need: Need,
    ) -> Result<Evicted, StoreError> {
        let asked = match need {
            Need::Bytes(asked) => asked,
            Need::Run(bytes) => return self.make_room(policy, &Room::of_run(bytes)),
        };
        let mut evicted = Evicted::default();
        for _ in 0..ROUNDS_MAX {
            let left = Length(asked.0.saturating_sub(evicted.bytes.0));
            let mut has_refused = false;
            for id in self.victims(policy, Need::Bytes(left))? {
                match self.evict_by(policy, id)? {
                    Some(bytes) => {
                        evicted.objects += 1;
                        evicted.bytes.0 += bytes.0;
                    }
                    None => has_refused = true,
                }
            }
            if !has_refused {
                break;
            }
        }
        Ok(evicted)
    }

    /// The objects to evict for `need`, in the order of `policy`. Empty if `need` is met already,
    /// or if evicting all candidates would not make the requested run free.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn victims(
        &mut self,
        policy: &dyn EvictionPolicy,
        need: Need,
    ) -> Result<Vec<ObjectId>, StoreError> {
        let asked = match need {
            Need::Bytes(asked) => asked,
            Need::Run(bytes) => {
                let victims = self.victims_for(policy, &Room::of_run(bytes))?;
                return Ok(victims.unwrap_or_default());
            }
        };
        if asked.0 == 0 {
            return Ok(Vec::new());
        }
        self.register_all()?;
        let (mut choices, mut shared) = self.choices(policy)?;
        choices.sort_unstable_by_key(|choice| (choice.rank, choice.candidate.id));
        let mut freed = 0;
        let mut gone: Vec<ObjectId> = Vec::new();
        for choice in choices {
            let last = choice.runs.iter().filter(|run| last_sharer(&mut shared, **run));
            freed += last.map(|run| run.len()).sum::<u64>();
            gone.push(choice.candidate.id);
            if freed >= asked.0 {
                break;
            }
        }
        Ok(gone)
    }

    /// The candidates of this policy, in its order.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn candidates(
        &self,
        policy: &dyn EvictionPolicy,
    ) -> Result<Vec<EvictionCandidate>, StoreError> {
        let (mut choices, _) = self.choices(policy)?;
        choices.sort_unstable_by_key(|choice| (choice.rank, choice.candidate.id));
        Ok(choices.into_iter().map(|choice| choice.candidate).collect())
    }

    /// Evict one object, as if it were deleted. Returns the bytes that became free. `None`: the
    /// object is held or protected, and stays.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; memory that cannot be read.
    pub fn evict(&mut self, id: ObjectId) -> Result<Option<Length>, StoreError> {
        self.evict_by(&ByHand, id)
    }

    /// Evict one object of those that `policy` has chosen. `None`: it stays, as for
    /// [`Home::evict`], or since the policy keeps it now.
    pub(super) fn evict_by(
        &mut self,
        policy: &dyn EvictionPolicy,
        id: ObjectId,
    ) -> Result<Option<Length>, StoreError> {
        let Some(entry) = self.begin_leave(policy, id)? else {
            return Ok(None);
        };
        self.retire(&entry, EventKind::Evicted)?;
        self.free_object(entry.id.slot()).map(|bytes| Some(Length(bytes)))
    }

    /// Bring an object into state leaving, so that it cannot be held any more. Returns false if it
    /// stays sealed.
    pub(super) fn try_leave(&mut self, slot: Slot) -> Result<bool, StoreError> {
        if self.is_protected(slot) {
            return Ok(false);
        }
        let sequence = self.directory.sequence(slot)?;
        self.directory.set_sequence(slot, sequence.with(EntryState::Leaving))?;
        failpoint!("evict.leaving");
        if hazard::claims_left(&Scan(|| self.is_held(slot)))? {
            failpoint!("evict.held");
            self.directory.set_sequence(slot, sequence.with(EntryState::Sealed))?;
            return Ok(false);
        }
        failpoint!("evict.scanned");
        Ok(true)
    }

    /// Whether a reason other than a hold protects an object from eviction.
    pub(super) fn is_protected(&self, slot: Slot) -> bool {
        self.pins.is_pinned(slot)
            || self.retained.contains(slot.0)
            || self.spilling.contains(&slot.0)
    }

    /// All candidates, and for each block that candidates share, the number of objects that have
    /// it.
    pub(super) fn choices(
        &self,
        policy: &dyn EvictionPolicy,
    ) -> Result<(Vec<Choice>, BTreeMap<u64, u32>), StoreError> {
        fence(Ordering::SeqCst);
        let held = self.holds.held()?;
        let stamps = self.stamps()?;
        let stamp_of = |slot: Slot| {
            let [home, local] = &stamps;
            let found = match self.layout().client_entry(slot) {
                Some(number) => local.get(number as usize),
                None => home.get(slot.0 as usize),
            };
            found.copied().unwrap_or_default()
        };
        let mut choices = Vec::new();
        let mut shared = BTreeMap::new();
        for slot in (0..self.directory.used()).map(Slot).chain(self.local_slots()) {
            let before = self.locals.taken.get(&slot.0).copied().map(Slot);
            let is_held = |slot: Slot| held.contains(&slot.0);
            if is_held(slot) || before.is_some_and(is_held) || self.is_protected(slot) {
                continue;
            }
            let Some(sealed) = self.blocks_if_sealed(slot)? else {
                continue;
            };
            let SealedEntry { id, namespace, is_replica, sealed_at_ns, runs, name } = sealed;
            // Stamps are client input: one in the future counts as now.
            let used_at =
                stamp_of(slot).max(before.map(stamp_of).unwrap_or_default()).min(self.now_ns);
            let used_at = used_at.max(self.restored_at.get(&slot.0).copied().unwrap_or_default());
            let bytes = Length(runs.iter().map(|run| run.len()).sum());
            let last_use_ns = used_at.max(sealed_at_ns);
            let former = before.and_then(|_| self.former_id(id));
            let candidate =
                EvictionCandidate { id, former, last_use_ns, bytes, namespace, is_replica };
            let Some(rank) = policy.rank(&candidate) else { continue };
            for run in &runs {
                if let Some(sharers) = self.blocks.get(*run).map(sharers).filter(|n| *n > 1) {
                    *shared.entry(run.start).or_insert(sharers) -= 1;
                }
            }
            let has_slot = self.layout().client_entry(slot).is_none();
            choices.push(Choice { candidate, rank, runs, name, has_slot });
        }
        // `shared` has the sharers that stay. `going` adds the candidates, so a block with a
        // staying sharer never reaches zero.
        let mut going: BTreeMap<u64, u32> = BTreeMap::new();
        for run in choices.iter().flat_map(|choice| &choice.runs) {
            if let Some(staying) = shared.get(&run.start) {
                *going.entry(run.start).or_insert(*staying) += 1;
            }
        }
        let frees = |run: &Run| shared.get(&run.start).is_none_or(|staying| *staying == 0);
        choices.retain(|choice| choice.runs.iter().any(frees));
        Ok((choices, going))
    }

    /// The use stamps of directory slots and of client entries, as far as needed.
    fn stamps(&self) -> Result<[Vec<u64>; 2], StoreError> {
        let (region, layout) = (self.region(), self.layout());
        let known = self.locals.blocks.last_key_value().map(|(slot, _)| *slot);
        let moved = self.locals.moved.last_key_value().map(|(slot, _)| *slot);
        let end = known.max(moved).map_or(layout.objects_max, |last| last.saturating_add(1));
        Ok([
            uses::stamps(region, layout, 0, self.directory.used())?,
            uses::stamps(region, layout, layout.objects_max, end)?,
        ])
    }

    /// Slots of registered objects that clients sealed themselves.
    fn local_slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.locals.blocks.keys().copied().map(Slot)
    }

    /// The entry in a slot, if the slot has a sealed object.
    fn blocks_if_sealed(&self, slot: Slot) -> Result<Option<SealedEntry>, StoreError> {
        if let Some(number) = self.layout().client_entry(slot) {
            let run = self.locals.blocks.get(&slot.0).copied().flatten();
            let Some(run) = run.filter(|_| !self.retiring.contains(&slot.0)) else {
                return Ok(None);
            };
            let id = ObjectId::new(self.uid(), self.locals.area.life(number)?.generation(), slot);
            // An overwritten entry has an unknown age and counts as the oldest.
            let sealed_at_ns = self.find_local(id).map_or(0, |entry| entry.sealed_at_ns);
            let namespace = self.locals.area.namespace_of(number);
            let (runs, name, is_replica) = (vec![run], Span::default(), false);
            return Ok(Some(SealedEntry { id, namespace, is_replica, sealed_at_ns, runs, name }));
        }
        if self.directory.sequence(slot)?.state() != EntryState::Sealed {
            return Ok(None);
        }
        let entry = self.directory.entry(slot)?;
        let runs = self.runs_of(slot, &entry)?;
        let Entry { id, namespace, is_replica, sealed_at_ns, name, .. } = entry;
        Ok(Some(SealedEntry { id, namespace, is_replica, sealed_at_ns, runs, name }))
    }
}

/// The properties of a sealed object that eviction needs.
struct SealedEntry {
    id: ObjectId,
    namespace: NamespaceId,
    is_replica: bool,
    sealed_at_ns: u64,
    runs: Vec<Run>,
    name: Span,
}

/// The number of objects that have a block.
fn sharers(block: Block) -> u32 {
    block.sealed.saturating_add(block.retiring)
}

/// Decrement the sharers of a block. Returns true if none is left.
pub(super) fn last_sharer(shared: &mut BTreeMap<u64, u32>, run: Run) -> bool {
    match shared.get_mut(&run.start) {
        Some(sharers) => {
            *sharers = sharers.saturating_sub(1);
            *sharers == 0
        }
        None => true,
    }
}

pub(super) fn overlap(one: Run, other: Run) -> bool {
    one.start < other.end && other.start < one.end
}
