//! Room for one operation: ranges of the heap, directory slots and bytes for names.
//!
//! All victims for one operation are chosen by simulation before the first eviction. So an
//! operation that cannot have all its room evicts nothing.

use std::collections::BTreeSet;

use farrow_memory::{Length, Span};

use super::Home;
use super::evict::{Choice, Marked, Simulation};
use crate::alloc::eviction::{Evicted, EvictionPolicy};
use crate::alloc::space::{Run, SpaceAllocator};
use crate::alloc::victim_order::VictimScope;
use crate::error::StoreError;
use crate::events::EventKind;
use crate::format::entry::Entry;
use crate::format::ids::ObjectId;
use crate::format::options::HUGE_GRANT_BYTES;
use crate::tables::clients::ClientSlot;
use crate::tables::grants::span_of;
use crate::tables::names::name_run;

/// Maximum rounds of replacing chosen objects that turn out to be held.
const ROUNDS_MAX: u32 = 4;

/// With several ranges or names, the fit is checked again only after the number of simulated
/// evictions has grown by one part in this many.
const LOOK_PART: usize = 16;

/// The total need of one operation, including resources that are free already: all or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Lengths of heap ranges, in whole pages.
    pub runs: Vec<Length>,
    /// Number of directory slots.
    pub slots: u32,
    /// Lengths of names in bytes.
    pub names: Vec<Length>,
}

/// Totals of freed resources, which only grow.
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

/// The objects to evict for a room.
#[derive(Default)]
struct Victims {
    /// In the order of their choice.
    ids: Vec<ObjectId>,
    known: BTreeSet<ObjectId>,
    /// Slots of the directory that become free with them.
    slots: u32,
}

/// When to look whether the room fits.
struct Looks {
    is_simple: bool,
    next: usize,
}

impl Room {
    /// One range of the heap.
    #[must_use]
    pub fn of_run(bytes: Length) -> Self {
        Self { runs: vec![bytes], ..Self::default() }
    }

    /// Total length of all ranges.
    fn run_bytes(&self) -> u64 {
        self.runs.iter().fold(0, |sum, run| sum.saturating_add(run.0))
    }
}

impl Victims {
    fn add(&mut self, choice: &Choice) {
        if self.known.insert(choice.candidate.id) {
            self.ids.push(choice.candidate.id);
            self.slots += u32::from(choice.has_slot);
        }
    }
}

impl Looks {
    fn for_parts(parts: usize) -> Self {
        Self { is_simple: parts <= 1, next: 1 }
    }

    fn is_next(&mut self, simulation: &Simulation, is_last: bool) -> bool {
        let count = simulation.evicted.len();
        if count == 1 {
            self.next = 1;
        }
        if count < self.next && !is_last {
            return false;
        }
        self.next = count + if self.is_simple { 1 } else { (count / LOOK_PART).max(1) };
        true
    }
}

impl Home {
    /// Totals of freed resources since this home was opened. When any of them has grown, a request
    /// that did not fit may fit.
    #[must_use]
    pub fn freed(&self) -> Freed {
        Freed {
            bytes: self.freed_bytes,
            slots: self.directory.vacated(),
            names: self.names.erased(),
            records: self.grants.freed_records(),
        }
    }

    /// Check that all requested room is free now.
    ///
    /// # Errors
    /// The missing resource, with the numbers: [`StoreError::TooManyGrants`], which eviction cannot
    /// help, [`StoreError::OutOfMemory`], [`StoreError::TooManyObjects`],
    /// [`StoreError::NameSpaceFull`].
    pub fn check_room(&mut self, room: &Room) -> Result<(), StoreError> {
        self.grants.check_records(room.runs.len())?;
        if fit_all(&mut self.space, &room.runs).is_none() {
            return Err(self.out_of_memory(Length(room.run_bytes())));
        }
        if self.directory.vacant() < room.slots {
            return Err(StoreError::TooManyObjects { max: self.layout().objects_max });
        }
        if fit_all(self.names.heap_mut(), &room.names).is_none() {
            let requested = room.names.iter().fold(0, |sum: u64, name| sum.saturating_add(name.0));
            return Err(self.names.full(Length(requested)));
        }
        Ok(())
    }

    /// Whether all requested room is free now.
    #[must_use]
    pub fn has_room(&mut self, room: &Room) -> bool {
        self.check_room(room).is_ok()
    }

    /// Evict objects in the order of `policy` until all of `room` is free. Evicts nothing if it is
    /// free already, or if evicting all candidates would not be enough.
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
            if self.evict_together(policy, victims, &mut evicted)? {
                break;
            }
        }
        Ok(evicted)
    }

    /// The objects to evict for `room`, in the order of `policy`. Empty if there is room already.
    /// `None`: evicting all candidates would not make room.
    ///
    /// The victims are from the shortest sufficient prefix of the order, without objects outside of
    /// the new room. With several ranges or names, the prefix may be up to 1/16 longer than the
    /// shortest.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn victims_for(
        &mut self,
        policy: &dyn EvictionPolicy,
        room: &Room,
    ) -> Result<Option<Vec<ObjectId>>, StoreError> {
        self.victims_within(policy, room, None)
    }

    /// As [`Home::victims_for`], for room in advance of need: of the first `limit` objects in the
    /// order alone, so that a room that takes more of them is not made.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn victims_ahead(
        &mut self,
        policy: &dyn EvictionPolicy,
        room: &Room,
        limit: usize,
    ) -> Result<Option<Vec<ObjectId>>, StoreError> {
        self.victims_within(policy, room, Some(limit))
    }

    fn victims_within(
        &mut self,
        policy: &dyn EvictionPolicy,
        room: &Room,
        limit: Option<usize>,
    ) -> Result<Option<Vec<ObjectId>>, StoreError> {
        match self.check_room(room) {
            Ok(()) => return Ok(Some(Vec::new())),
            // Eviction frees no grant records.
            Err(StoreError::TooManyGrants { .. }) => return Ok(None),
            Err(_) => {}
        }
        let mut victims = Victims::default();
        if fit_all(&mut self.space, &room.runs).is_none()
            && !self.choose_for_runs(policy, room, limit, &mut victims)?
        {
            return Ok(None);
        }
        let vacant = self.directory.vacant();
        let is_short = vacant + victims.slots < room.slots
            || fit_all(self.names.heap_mut(), &room.names).is_none();
        if is_short && !self.choose_for_entries(policy, room, limit, &mut victims)? {
            return Ok(None);
        }
        // An object that a client sealed itself needs a slot for a moment before its eviction.
        let needs_slot = vacant == 0 && victims.slots == 0 && !victims.ids.is_empty();
        let one = Room { slots: 1, ..Room::default() };
        if needs_slot && !self.choose_for_entries(policy, &one, limit, &mut victims)? {
            return Ok(None);
        }
        Ok(Some(victims.ids))
    }

    /// Add the victims for the ranges of the heap. Returns false if all candidates are not enough.
    fn choose_for_runs(
        &mut self,
        policy: &dyn EvictionPolicy,
        room: &Room,
        limit: Option<usize>,
        victims: &mut Victims,
    ) -> Result<bool, StoreError> {
        let mut looks = Looks::for_parts(room.runs.len());
        let mut fit = None;
        let (choices, _) =
            self.choose(policy, VictimScope::All, limit, &mut |home, simulation, is_last| {
                if looks.is_next(simulation, is_last) && home.space.free_bytes() >= room.run_bytes()
                {
                    fit = fit_all(&mut home.space, &room.runs);
                }
                fit.is_some()
            })?;
        let runs = fit.as_deref().unwrap_or_default();
        for choice in
            choices.iter().filter(|choice| choice.runs.iter().any(|one| is_in(runs, *one)))
        {
            victims.add(choice);
        }
        Ok(fit.is_some())
    }

    /// Add the victims for slots and names. Returns false if all candidates are not enough.
    fn choose_for_entries(
        &mut self,
        policy: &dyn EvictionPolicy,
        room: &Room,
        limit: Option<usize>,
        victims: &mut Victims,
    ) -> Result<bool, StoreError> {
        let vacant = self.directory.vacant();
        let mut looks = Looks::for_parts(room.names.len());
        let mut fit = None;
        let (mut count, mut common) = (0, 0);
        let (choices, _) = self.choose(
            policy,
            VictimScope::Directory,
            limit,
            &mut |home, simulation, is_last| {
                if simulation.evicted.len() <= count {
                    (count, common) = (0, 0);
                }
                let added = simulation.evicted.iter().skip(count);
                common += added.filter(|one| victims.known.contains(&one.candidate.id)).count();
                count = simulation.evicted.len();
                // Victims that are not evicted in this simulation have slots too.
                let slots = u64::from(vacant + victims.slots) + (count - common) as u64;
                if looks.is_next(simulation, is_last) && slots >= room.slots.into() {
                    fit = fit_all(home.names.heap_mut(), &room.names);
                }
                fit.is_some()
            },
        )?;
        let names = fit.as_deref().unwrap_or_default();
        let has_place =
            |choice: &Choice| !choice.name.is_empty() && is_in(names, name_run(choice.name));
        choices.iter().filter(|choice| has_place(choice)).for_each(|choice| victims.add(choice));
        for choice in &choices {
            if vacant + victims.slots < room.slots {
                victims.add(choice);
            }
        }
        Ok(fit.is_some())
    }

    /// Evict objects of [`Home::victims_for`], together: none, if one of them has to stay.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; memory that cannot be read.
    pub fn evict_victims(
        &mut self,
        policy: &dyn EvictionPolicy,
        victims: Vec<ObjectId>,
    ) -> Result<Evicted, StoreError> {
        let mut evicted = Evicted::default();
        self.evict_together(policy, victims, &mut evicted)?;
        Ok(evicted)
    }

    /// Evict all of these objects, or none (returns false). Exceptions: objects whose slots are
    /// needed to take over client-sealed ones may be evicted already, and those whose entries were
    /// overwritten are deleted.
    fn evict_together(
        &mut self,
        policy: &dyn EvictionPolicy,
        ids: Vec<ObjectId>,
        evicted: &mut Evicted,
    ) -> Result<bool, StoreError> {
        let is_local = |id: &ObjectId| self.layout().client_entry(id.slot()).is_some();
        let (locals, own): (Vec<_>, Vec<_>) = ids.into_iter().partition(is_local);
        let mut leaving: Vec<Entry> = Vec::with_capacity(own.len() + locals.len());
        let own = own.into_iter().map(|id| (id, false));
        let mut is_all = true;
        for (id, needs_slot) in own.chain(locals.into_iter().map(|id| (id, true))) {
            if needs_slot
                && self.directory.vacant() == 0
                && !self.let_go(policy, &mut leaving, evicted)?
            {
                return Ok(false);
            }
            match self.mark_leaving(id) {
                Ok(Marked::Leaving(entry)) => leaving.push(entry),
                Ok(Marked::Deleted(bytes)) => {
                    evicted.objects += 1;
                    evicted.bytes.0 += bytes.0;
                    // One that is held keeps its memory.
                    is_all &= !bytes.is_zero();
                }
                refused => {
                    self.stay(&leaving)?;
                    return refused.map(|_| false);
                }
            }
        }
        if !is_all {
            self.stay(&leaving)?;
            return Ok(false);
        }
        self.let_go(policy, &mut leaving, evicted)
    }

    /// Evict objects that are marked as leaving, or none (returns false).
    fn let_go(
        &mut self,
        policy: &dyn EvictionPolicy,
        leaving: &mut Vec<Entry>,
        evicted: &mut Evicted,
    ) -> Result<bool, StoreError> {
        let leaving = std::mem::take(leaving);
        if leaving.is_empty() {
            return Ok(true);
        }
        if !self.settle_leaving(policy, &leaving)? {
            return Ok(false);
        }
        for entry in leaving {
            self.retire(&entry, EventKind::Evicted)?;
            evicted.objects += 1;
            evicted.bytes.0 += self.free_object(entry.id.slot())?;
        }
        Ok(true)
    }

    /// Grant a client a range for each of `sizes`, all or none. A single range may be up to `want`
    /// long, if a free range is.
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
            let requested = sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(size.0));
            self.out_of_memory(Length(requested))
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

    /// A range for each size, in order. Huge-page alignment is used if all ranges fit with it.
    fn take_all_space(&mut self, sizes: &[Length]) -> Option<Vec<Run>> {
        let aligned = |size: u64| if size >= HUGE_GRANT_BYTES { HUGE_GRANT_BYTES } else { 1 };
        take_all(&mut self.space, sizes, aligned)
            .or_else(|| take_all(&mut self.space, sizes, |_| 1))
    }
}

/// Whether a range overlaps one of `runs`.
fn is_in(runs: &[Run], one: Run) -> bool {
    runs.iter().any(|run| one.start < run.end && run.start < one.end)
}

/// Allocate all sizes, the longest first. `None`: they do not fit, and nothing is allocated.
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

/// The positions that all sizes would get. Allocates nothing.
fn fit_all(space: &mut SpaceAllocator, sizes: &[Length]) -> Option<Vec<Run>> {
    let taken = take_all(space, sizes, |_| 1)?;
    taken.iter().for_each(|run| give_back(space, Some(*run)));
    Some(taken)
}

/// Free a run that was allocated just before, which cannot fail.
fn give_back(space: &mut SpaceAllocator, run: Option<Run>) {
    if let Some(Err(error)) = run.map(|run| space.free(run)) {
        tracing::error!(%error, "room of a simulation stays taken");
    }
}
