//! The choice of objects that leave memory: in the order of a policy, until what is needed would be
//! free.
//!
//! The order comes from a scan of all objects ([`VictimOrder`]). The home takes the victims of later
//! calls from it too, after a look at each: one that was used, held, pinned or deleted since has
//! lost its place.

use std::collections::BTreeMap;

use farrow_memory::{Length, Span};

use crate::alloc::eviction::{EvictionCandidate, EvictionPolicy};
use crate::alloc::space::Run;
use crate::alloc::victim_order::{VictimOrder, VictimPlace, VictimScope};
use crate::client::uses;
use crate::error::StoreError;
use crate::format::entry::{Entry, EntryState};
use crate::format::ids::{NamespaceId, ObjectId, Slot};
use crate::home::Home;
use crate::tables::names::name_run;
use crate::tables::slot_set::SlotSet;

/// A candidate with its resources.
#[derive(Debug)]
pub(in crate::home) struct Choice {
    pub(in crate::home) candidate: EvictionCandidate,
    pub(in crate::home) rank: u64,
    pub(in crate::home) runs: Vec<Run>,
    /// The range of its name in the name heap; empty if it has none.
    pub(in crate::home) name: Span,
    /// Whether it has a directory slot, not an entry in a client's entry page.
    pub(in crate::home) has_slot: bool,
}

impl Choice {
    pub(in crate::home) fn place(&self) -> VictimPlace {
        VictimPlace { rank: self.rank, id: self.candidate.id }
    }
}

/// The objects chosen so far. Their ranges of the heap and of the name heap are free in the home's
/// allocators, until [`Simulation::undo`].
#[derive(Debug, Default)]
pub(in crate::home) struct Simulation {
    /// The objects, in order.
    pub(in crate::home) evicted: Vec<Choice>,
    /// Bytes of the heap that would become free.
    pub(in crate::home) bytes: u64,
    /// Objects that still have a block of which one is freed, by the start of the block.
    sharers: BTreeMap<u64, u32>,
    runs: Vec<Run>,
    names: Vec<Run>,
}

/// Whether enough objects are evicted. The flag says that no more follow.
type IsEnough<'a> = dyn FnMut(&mut Home, &Simulation, bool) -> bool + 'a;

impl Simulation {
    /// One more object is evicted.
    fn add(&mut self, home: &mut Home, choice: Choice) -> Result<(), StoreError> {
        for run in &choice.runs {
            let all = home.blocks.get(*run).map_or(1, |block| block.sharers());
            if all > 1 {
                let left = self.sharers.entry(run.start).or_insert(all);
                *left = left.saturating_sub(1);
                if *left > 0 {
                    continue;
                }
            }
            home.space.free(*run).map_err(wrong)?;
            self.runs.push(*run);
            self.bytes += run.len();
        }
        if !choice.name.is_empty() {
            let name = name_run(choice.name);
            home.names.heap_mut().free(name).map_err(wrong)?;
            self.names.push(name);
        }
        self.evicted.push(choice);
        Ok(())
    }

    /// Takes back what was freed. Returns the objects that were evicted.
    fn undo(self, home: &mut Home) -> Result<Vec<Choice>, StoreError> {
        let runs = self.runs.iter().rev().all(|run| home.space.claim(*run));
        let names = self.names.iter().rev().all(|run| home.names.heap_mut().claim(*run));
        if runs && names {
            Ok(self.evicted)
        } else {
            Err(wrong("what a simulation freed cannot be taken back"))
        }
    }
}

impl Home {
    /// Choose objects of `scope` in the order of `policy` until `is_enough`. Returns them in order,
    /// and whether they are enough. With a limit, no more are chosen, and only of the order that is
    /// kept, if there is one: the choice then takes no longer for many objects.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub(in crate::home) fn choose(
        &mut self,
        policy: &dyn EvictionPolicy,
        scope: VictimScope,
        limit: Option<usize>,
        is_enough: &mut IsEnough<'_>,
    ) -> Result<(Vec<Choice>, bool), StoreError> {
        if policy.is_of_replicas() && self.replicas.is_empty() {
            return Ok((Vec::new(), false));
        }
        while let Some(name) = policy.order()
            && let Some(mut order) = self.orders.take(name, scope)
        {
            let chosen = self.choose_from(policy, &mut order, limit, is_enough)?;
            match chosen {
                (ref choices, true) => self.scan_ahead(policy, &mut order, choices.len())?,
                (_, false) if limit.is_none() => {
                    if let Some(next) = self.next_order(policy, order)? {
                        self.orders.keep(name, next);
                    }
                    continue;
                }
                (_, false) => {}
            }
            self.orders.keep(name, order);
            return Ok(chosen);
        }
        let mut order = self.whole_order(policy, scope)?;
        let chosen = self.choose_from(policy, &mut order, limit, is_enough)?;
        if let Some(name) = policy.order() {
            order.shorten();
            self.orders.keep(name, order);
        }
        Ok(chosen)
    }

    /// As [`Home::choose`], of the objects in `order` alone. Those that have lost their place leave
    /// it.
    fn choose_from(
        &mut self,
        policy: &dyn EvictionPolicy,
        order: &mut VictimOrder,
        limit: Option<usize>,
        is_enough: &mut IsEnough<'_>,
    ) -> Result<(Vec<Choice>, bool), StoreError> {
        let held = self.held_now()?;
        let mut simulation = Simulation::default();
        let mut found = Ok(false);
        while matches!(found, Ok(false))
            && limit.is_none_or(|limit| simulation.evicted.len() < limit)
            && let Some(place) = order.next()
        {
            let stamp_of = |slot| uses::stamp_of_home(self.region(), self.layout(), slot);
            found = match self.choice(policy, place.id.slot(), &held, stamp_of) {
                Ok(Some(choice)) if choice.place() == place => {
                    simulation.add(self, choice).map(|()| is_enough(self, &simulation, false))
                }
                other => other.map(|_| false),
            };
        }
        if matches!(found, Ok(false)) && !simulation.evicted.is_empty() {
            found = Ok(is_enough(self, &simulation, true));
        }
        let choices = simulation.undo(self)?;
        order.put_back(choices.iter().map(Choice::place));
        Ok((choices, found?))
    }

    /// The object in a slot, if it may be evicted by this policy.
    pub(in crate::home) fn choice(
        &self,
        policy: &dyn EvictionPolicy,
        slot: Slot,
        held: &SlotSet,
        stamp_of: impl Fn(Slot) -> Result<u64, StoreError>,
    ) -> Result<Option<Choice>, StoreError> {
        let before = self.locals.taken.get(&slot.0).copied().map(Slot);
        let is_held = |slot: Slot| held.contains(slot.0);
        if is_held(slot) || before.is_some_and(is_held) || self.is_protected(slot) {
            return Ok(None);
        }
        let Some(sealed) = self.sealed_in(slot)? else {
            return Ok(None);
        };
        let EvictableObject { id, namespace, is_replica, sealed_at_ns, runs, name } = sealed;
        let mut used_at = stamp_of(slot)?;
        if let Some(before) = before {
            used_at = used_at.max(stamp_of(before)?);
        }
        // Stamps are client input: one in the future counts as now.
        let used_at = used_at.min(self.now_ns);
        let restored_at = self.restored_at.get(&slot.0).copied().unwrap_or_default();
        let candidate = EvictionCandidate {
            id,
            former: before.and_then(|_| self.former_id(id)),
            last_use_ns: used_at.max(restored_at).max(sealed_at_ns),
            bytes: Length(runs.iter().map(|run| run.len()).sum()),
            namespace,
            is_replica,
        };
        let has_slot = self.layout().client_entry(slot).is_none();
        let rank = policy.rank(&candidate);
        Ok(rank.map(|rank| Choice { candidate, rank, runs, name, has_slot }))
    }

    /// The sealed object in a slot.
    fn sealed_in(&self, slot: Slot) -> Result<Option<EvictableObject>, StoreError> {
        if let Some(number) = self.layout().client_entry(slot) {
            let known = self.locals.known.get(&slot.0).copied();
            let Some(known) = known.filter(|_| !self.retiring.contains(slot.0)) else {
                return Ok(None);
            };
            let id = ObjectId::new(self.uid(), self.locals.area.life(number)?.generation(), slot);
            let namespace = self.locals.area.namespace_of(number);
            return Ok(known.run.map(|run| EvictableObject {
                id,
                namespace,
                is_replica: false,
                sealed_at_ns: known.sealed_at_ns,
                runs: vec![run],
                name: Span::default(),
            }));
        }
        if self.directory.sequence(slot)?.state() != EntryState::Sealed {
            return Ok(None);
        }
        let entry = self.directory.entry(slot)?;
        let runs = self.runs_of(slot, &entry)?;
        let Entry { id, namespace, is_replica, sealed_at_ns, name, .. } = entry;
        Ok(Some(EvictableObject { id, namespace, is_replica, sealed_at_ns, runs, name }))
    }
}

/// The properties of a sealed object that eviction needs.
struct EvictableObject {
    id: ObjectId,
    namespace: NamespaceId,
    is_replica: bool,
    sealed_at_ns: u64,
    runs: Vec<Run>,
    name: Span,
}

fn wrong(why: impl std::fmt::Display) -> StoreError {
    StoreError::Inconsistent(format!("eviction: {why}"))
}
