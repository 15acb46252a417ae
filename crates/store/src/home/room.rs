//! Room for one operation: ranges of the heap, slots of the directory and bytes for names.
//!
//! What has to go for it is chosen in thought, for all of it at once, before anything goes. So an
//! operation that cannot have all that it needs costs no other object.

use std::collections::BTreeMap;

use farrow_memory::{Length, Span};

use super::Home;
use super::evict::{Choice, last_sharer, overlap};
use crate::books::clients::ClientSlot;
use crate::books::eviction::{Evicted, EvictionPolicy};
use crate::books::grants::span_of;
use crate::books::names::name_run;
use crate::books::space::{Run, SpaceAllocator};
use crate::error::StoreError;
use crate::events::EventKind;
use crate::format::entry::{Entry, EntryState};
use crate::format::ids::{ObjectId, Target};
use crate::format::options::HUGE_GRANT_BYTES;

/// An object that may be held between the choice and its turn is replaced by another so often.
const ROUNDS_MAX: u32 = 4;

/// Where several ranges are wanted, whether they fit is looked at after each of so many parts more
/// of the objects that would go.
const LOOK_PART: usize = 16;

/// What one operation needs, what is free already included: all of it or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Ranges of the heap, of whole pages, each so long.
    pub runs: Vec<Length>,
    /// Slots of the directory.
    pub slots: u32,
    /// Names, each of so many bytes.
    pub names: Vec<Length>,
}

/// What became free, by counts that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Bytes of the heap.
    pub bytes: u64,
    /// Slots of the directory.
    pub slots: u64,
    /// Names.
    pub names: u64,
    /// Records of grants.
    pub records: u64,
}

/// The room that there would be.
struct Thought {
    space: SpaceAllocator,
    names: SpaceAllocator,
    vacant: u64,
}

/// Where it would lie.
#[derive(Default)]
struct Fit {
    runs: Vec<Run>,
    names: Vec<Run>,
}

impl Room {
    /// One range of the heap.
    #[must_use]
    pub fn of_run(bytes: Length) -> Self {
        Self { runs: vec![bytes], ..Self::default() }
    }

    /// Bytes of all ranges.
    fn run_bytes(&self) -> u64 {
        self.runs.iter().fold(0, |sum, run| sum.saturating_add(run.0))
    }
}

impl Thought {
    /// Where all of it would lie; none if it does not fit. Everything is free again afterwards.
    fn fit(&mut self, room: &Room) -> Option<Fit> {
        if self.vacant < room.slots.into() || self.space.free_bytes() < room.run_bytes() {
            return None;
        }
        let runs = fit_all(&mut self.space, &room.runs)?;
        let names = fit_all(&mut self.names, &room.names)?;
        Some(Fit { runs, names })
    }
}

impl Home {
    /// Whether all of it is free now.
    ///
    /// # Errors
    /// What is short, with the numbers: [`StoreError::TooManyGrants`], for which nobody can go,
    /// [`StoreError::OutOfMemory`], [`StoreError::TooManyObjects`], [`StoreError::NameSpaceFull`].
    pub fn check_room(&mut self, room: &Room) -> Result<(), StoreError> {
        self.grants.check_records(room.runs.len())?;
        if fit_all(&mut self.space, &room.runs).is_none() {
            return Err(self.out_of_memory(Length(room.run_bytes())));
        }
        if self.directory.vacant() < room.slots {
            return Err(StoreError::TooManyObjects { max: self.layout().objects_max });
        }
        if fit_all(self.names.heap_mut(), &room.names).is_none() {
            let asked = room.names.iter().fold(0, |sum: u64, name| sum.saturating_add(name.0));
            return Err(self.names.full(Length(asked)));
        }
        Ok(())
    }

    /// Whether all of it is free now.
    #[must_use]
    pub fn has_room(&mut self, room: &Room) -> bool {
        self.check_room(room).is_ok()
    }

    /// Evict objects in the order of `policy` until there is all of `room`. Nothing goes where that
    /// is so already, or where all that may go would not be enough.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn make_room(
        &mut self,
        policy: &dyn EvictionPolicy,
        room: &Room,
    ) -> Result<Evicted, StoreError> {
        let mut evicted = Evicted::default();
        for _ in 0..ROUNDS_MAX {
            let Some(victims) = self.victims_for(policy, room)? else {
                break;
            };
            if self.evict_together(victims, &mut evicted)? {
                break;
            }
        }
        Ok(evicted)
    }

    /// The objects that have to go for `room`, in the order of `policy`: none of them where there is
    /// room already. `None`: there would not be room without all of them either.
    ///
    /// Of all choices that are enough it is the one whose last to go goes earliest, and what lies
    /// beside the room that is made stays.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn victims_for(
        &mut self,
        policy: &dyn EvictionPolicy,
        room: &Room,
    ) -> Result<Option<Vec<ObjectId>>, StoreError> {
        match self.check_room(room) {
            Ok(()) => return Ok(Some(Vec::new())),
            // Nobody can go for that.
            Err(StoreError::TooManyGrants { .. }) => return Ok(None),
            Err(_) => {}
        }
        self.register_all()?;
        let vacant = self.directory.vacant();
        // What a client sealed by itself needs a slot for a moment before it can go.
        let least = u32::from(vacant == 0);
        let room = Room { slots: room.slots.max(least), ..room.clone() };
        let (mut choices, mut shared) = self.choices(policy)?;
        choices.sort_unstable_by_key(|choice| (choice.rank, choice.candidate.id));
        let mut thought = Thought {
            space: self.space.clone(),
            names: self.names.heap_mut().clone(),
            vacant: vacant.into(),
        };
        let mut look_at = 1;
        for count in 1..=choices.len() {
            if let Some(choice) = choices.get(count - 1) {
                think_gone(choice, &mut thought, &mut shared)?;
            }
            if count < look_at && count < choices.len() {
                continue;
            }
            if let Some(fit) = thought.fit(&room) {
                choices.truncate(count);
                return Ok(Some(needed(choices, &fit, (vacant, room.slots))));
            }
            let is_simple = room.runs.len() <= 1 && room.names.len() <= 1;
            look_at = count + if is_simple { 1 } else { (count / LOOK_PART).max(1) };
        }
        Ok(None)
    }

    /// Evict all of these objects, or none: false. Only where objects that clients sealed by
    /// themselves need the slots of others before them, these may be gone.
    fn evict_together(
        &mut self,
        ids: Vec<ObjectId>,
        evicted: &mut Evicted,
    ) -> Result<bool, StoreError> {
        let is_local = |id: &ObjectId| self.layout().client_entry(id.slot()).is_some();
        let (locals, own): (Vec<_>, Vec<_>) = ids.into_iter().partition(is_local);
        let mut leaving: Vec<Entry> = Vec::with_capacity(own.len() + locals.len());
        let own = own.into_iter().map(|id| (id, false));
        for (id, needs_slot) in own.chain(locals.into_iter().map(|id| (id, true))) {
            if needs_slot && self.directory.vacant() == 0 {
                self.let_go(&mut leaving, evicted)?;
            }
            match self.begin_leave(id) {
                Ok(Some(entry)) => leaving.push(entry),
                refused => {
                    for entry in leaving {
                        let slot = entry.id.slot();
                        let sequence = self.directory.sequence(slot)?;
                        self.directory.set_sequence(slot, sequence.with(EntryState::Sealed))?;
                    }
                    return refused.map(|_| false);
                }
            }
        }
        self.let_go(&mut leaving, evicted)?;
        Ok(true)
    }

    /// Bring an object into state leaving. None: somebody holds it, or it may not go for another
    /// reason.
    pub(super) fn begin_leave(&mut self, id: ObjectId) -> Result<Option<Entry>, StoreError> {
        // Of what a client sealed by itself the home cannot say that it is leaving.
        let id = match self.take_over(id) {
            Err(StoreError::TooManyObjects { .. } | StoreError::TooManyGrants { .. }) => {
                return Ok(None);
            }
            taken => taken?,
        };
        let entry = self.find(Target::Id(id))?;
        Ok(self.try_leave(id.slot())?.then_some(entry))
    }

    /// End objects that are leaving.
    fn let_go(
        &mut self,
        leaving: &mut Vec<Entry>,
        evicted: &mut Evicted,
    ) -> Result<(), StoreError> {
        for entry in leaving.drain(..) {
            self.retire(&entry, EventKind::Evicted)?;
            evicted.objects += 1;
            evicted.bytes.0 += self.free_object(entry.id.slot())?;
        }
        Ok(())
    }

    /// Give a client a range for each of `sizes`, all of them or none. A single one may be as long
    /// as `want`, if there is such a range.
    ///
    /// # Errors
    /// As [`Home::grant`]; [`StoreError::OutOfMemory`] has the sum of the sizes.
    pub fn grant_all(
        &mut self,
        client: ClientSlot,
        sizes: &[Length],
        want: Length,
    ) -> Result<Vec<Span>, StoreError> {
        if let [size] = sizes {
            return self.grant(client, *size, want).map(|span| vec![span]);
        }
        self.present(client)?;
        self.grants.check_records(sizes.len())?;
        let runs = self.take_all_space(sizes).ok_or_else(|| {
            let asked = sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(size.0));
            self.out_of_memory(Length(asked))
        })?;
        for (at, run) in runs.iter().enumerate() {
            if let Err(error) = self.grants.add(client.0, *run) {
                for left in runs.get(at..).unwrap_or_default() {
                    self.free_run(*left)?;
                }
                return Err(error);
            }
        }
        Ok(runs.into_iter().map(span_of).collect())
    }

    /// A range for each size, in their order; those of huge pages at such, if they all fit then.
    fn take_all_space(&mut self, sizes: &[Length]) -> Option<Vec<Run>> {
        let aligned = |size: u64| if size >= HUGE_GRANT_BYTES { HUGE_GRANT_BYTES } else { 1 };
        take_all(&mut self.space, sizes, aligned)
            .or_else(|| take_all(&mut self.space, sizes, |_| 1))
    }
}

/// What would be free, were this object gone too.
fn think_gone(
    choice: &Choice,
    thought: &mut Thought,
    shared: &mut BTreeMap<u64, u32>,
) -> Result<(), StoreError> {
    let wrong = |error| StoreError::Inconsistent(format!("eviction: {error}"));
    for run in &choice.runs {
        if last_sharer(shared, *run) {
            thought.space.free(*run).map_err(wrong)?;
        }
    }
    if choice.has_slot {
        thought.vacant += 1;
    }
    if !choice.name.is_empty() {
        thought.names.free(name_run(choice.name)).map_err(wrong)?;
    }
    Ok(())
}

/// Those of the objects in whose place something would lie, and as many besides as there have to be
/// slots.
fn needed(choices: Vec<Choice>, fit: &Fit, (vacant, slots): (u32, u32)) -> Vec<ObjectId> {
    let touches = |choice: &Choice| {
        let name = (!choice.name.is_empty()).then(|| name_run(choice.name));
        let is_in = |runs: &[Run], one: Run| runs.iter().any(|run| overlap(one, *run));
        choice.runs.iter().any(|run| is_in(&fit.runs, *run))
            || name.is_some_and(|name| is_in(&fit.names, name))
    };
    let touched: Vec<bool> = choices.iter().map(touches).collect();
    let has_slot = |(choice, _): &(&Choice, &bool)| choice.has_slot;
    let freed = choices.iter().zip(&touched).filter(has_slot).filter(|(_, gone)| **gone).count();
    let mut missing = slots.saturating_sub(vacant).saturating_sub(freed as u32);
    let mut ids = Vec::new();
    for (choice, is_touched) in choices.iter().zip(touched) {
        let is_for_slot = !is_touched && choice.has_slot && missing > 0;
        missing -= u32::from(is_for_slot);
        if is_touched || is_for_slot {
            ids.push(choice.candidate.id);
        }
    }
    ids
}

/// Takes all, the longest first, at any place. None: they do not fit, and nothing is taken.
fn take_all(
    space: &mut SpaceAllocator,
    sizes: &[Length],
    alignment: impl Fn(u64) -> u64,
) -> Option<Vec<Run>> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(sizes.get(*at).copied().unwrap_or_default()));
    let mut taken = vec![Run { start: 0, end: 0 }; sizes.len()];
    for (done, at) in order.iter().enumerate() {
        let size = sizes.get(*at).copied().unwrap_or_default().0;
        match (space.allocate(size, alignment(size)), taken.get_mut(*at)) {
            (Some(run), Some(place)) => *place = run,
            _ => {
                for at in order.iter().take(done) {
                    give_back(space, taken.get(*at).copied());
                }
                return None;
            }
        }
    }
    Some(taken)
}

/// Where all would lie. Nothing is taken.
fn fit_all(space: &mut SpaceAllocator, sizes: &[Length]) -> Option<Vec<Run>> {
    let taken = take_all(space, sizes, |_| 1)?;
    taken.iter().for_each(|run| give_back(space, Some(*run)));
    Some(taken)
}

/// What was just taken can be given back.
fn give_back(space: &mut SpaceAllocator, run: Option<Run>) {
    if let Some(Err(error)) = run.map(|run| space.free(run)) {
        tracing::error!(%error, "room that was taken in thought stays taken");
    }
}
