//! Scans of the objects for an order of eviction, whole or in parts.

use std::collections::BTreeMap;

use farrow_memory::sync::{Ordering, fence};

use super::choose::Choice;
use crate::alloc::eviction::EvictionPolicy;
use crate::alloc::space::Run;
use crate::alloc::victim_order::{
    RETAINED_PART, VictimOrder, VictimPlace, VictimScan, VictimScope,
};
use crate::client::uses;
use crate::error::StoreError;
use crate::format::ids::Slot;
use crate::home::Home;
use crate::tables::slot_set::SlotSet;

/// Slots that are scanned at a time.
const SCANNED_SLOTS: usize = 2048;

/// Slots that are scanned for the next order, for each victim: the scan ends before the second half
/// of this order does.
const SLOTS_FOR_VICTIM: usize = 2 * RETAINED_PART;

/// What a scan of slots looks for.
struct SlotScan<'a> {
    policy: &'a dyn EvictionPolicy,
    scope: VictimScope,
    /// The slots that were held at the beginning.
    held: &'a SlotSet,
}

impl Home {
    /// All candidates of a policy, in its order, without those whose eviction would free no block.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub(super) fn whole_order(
        &mut self,
        policy: &dyn EvictionPolicy,
        scope: VictimScope,
    ) -> Result<VictimOrder, StoreError> {
        let mut scan = self.begin_scan(policy, scope)?;
        self.scan_rest(policy, &mut scan)?;
        self.places(policy, scan).map(|places| VictimOrder::new(scope, places))
    }

    /// All candidates of a policy with their resources, in its order.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub(super) fn all_choices(
        &self,
        policy: &dyn EvictionPolicy,
    ) -> Result<Vec<Choice>, StoreError> {
        let mut choices = Vec::new();
        let (mut at, held) = (Slot(0), self.held_now()?);
        let slots = SlotScan { policy, scope: VictimScope::All, held: &held };
        while !self.scan_slots(&slots, &mut at, &mut |choice| choices.push(choice))? {}
        let sharing: Vec<VictimPlace> =
            choices.iter().filter(|choice| self.is_sharing(choice)).map(Choice::place).collect();
        let useless = self.useless(policy, &sharing)?;
        choices.retain(|choice| useless.binary_search(&choice.place()).is_err());
        choices.sort_unstable_by_key(Choice::place);
        Ok(choices)
    }

    /// The order that follows one that is used up, if it is being scanned.
    pub(super) fn next_order(
        &mut self,
        policy: &dyn EvictionPolicy,
        order: VictimOrder,
    ) -> Result<Option<VictimOrder>, StoreError> {
        let Some(mut scan) = order.next else {
            return Ok(None);
        };
        self.scan_rest(policy, &mut scan)?;
        self.finish(policy, scan).map(Some)
    }

    /// Scans some of the objects for the next order, once half of this one is used up.
    pub(super) fn scan_ahead(
        &mut self,
        policy: &dyn EvictionPolicy,
        order: &mut VictimOrder,
        victims: usize,
    ) -> Result<(), StoreError> {
        if !order.is_half_used() {
            return Ok(());
        }
        let mut scan = match order.next.take() {
            Some(scan) => scan,
            None => self.begin_scan(policy, order.scope)?,
        };
        let parts = (victims * SLOTS_FOR_VICTIM).div_ceil(SCANNED_SLOTS);
        let held = self.held_now()?;
        for _ in 0..parts.max(1) {
            if self.scan_part(policy, &mut scan, &held)? {
                *order = self.finish(policy, scan)?;
                return Ok(());
            }
        }
        order.next = Some(scan);
        Ok(())
    }

    /// The order of a scan that was made in parts: objects of which it may have seen a part only
    /// are left out.
    fn finish(
        &mut self,
        policy: &dyn EvictionPolicy,
        scan: VictimScan,
    ) -> Result<VictimOrder, StoreError> {
        let VictimScan { scope, began_ns, .. } = scan;
        let mut places = self.places(policy, scan)?;
        places.retain(|place| place.rank < began_ns);
        let mut order = VictimOrder::new(scope, places);
        order.shorten();
        Ok(order)
    }

    /// A scan that has seen nothing. Objects that clients sealed themselves must be known to it.
    fn begin_scan(
        &mut self,
        policy: &dyn EvictionPolicy,
        scope: VictimScope,
    ) -> Result<VictimScan, StoreError> {
        if scope == VictimScope::All && !policy.is_of_replicas() {
            self.register_all()?;
        }
        Ok(VictimScan::new(scope, self.now_ns))
    }

    /// Adds the candidates in all slots that follow.
    fn scan_rest(
        &self,
        policy: &dyn EvictionPolicy,
        scan: &mut VictimScan,
    ) -> Result<(), StoreError> {
        let held = self.held_now()?;
        while !self.scan_part(policy, scan, &held)? {}
        Ok(())
    }

    /// Adds the candidates in the next slots. True: these were the last ones.
    fn scan_part(
        &self,
        policy: &dyn EvictionPolicy,
        scan: &mut VictimScan,
        held: &SlotSet,
    ) -> Result<bool, StoreError> {
        let VictimScan { scope, at, places, sharing, .. } = scan;
        let slots = SlotScan { policy, scope: *scope, held };
        self.scan_slots(&slots, at, &mut |choice| {
            places.push(choice.place());
            if self.is_sharing(&choice) {
                sharing.push(choice.place());
            }
        })
    }

    /// The slots that are held now. An eviction looks again at those of its victims.
    pub(super) fn held_now(&self) -> Result<SlotSet, StoreError> {
        fence(Ordering::SeqCst);
        self.holds.held()
    }

    /// Looks at the slots from `at` on, a limited number of them. True: these were the last ones.
    fn scan_slots(
        &self,
        scan: &SlotScan<'_>,
        at: &mut Slot,
        found: &mut dyn FnMut(Choice),
    ) -> Result<bool, StoreError> {
        let &SlotScan { policy, scope, held } = scan;
        if policy.is_of_replicas() {
            let slots: Vec<u32> =
                self.replicas.range(at.0..).copied().take(SCANNED_SLOTS).collect();
            let stamp_of = |slot| uses::stamp_of_home(self.region(), self.layout(), slot);
            for slot in &slots {
                self.choice(policy, Slot(*slot), held, stamp_of)?.into_iter().for_each(&mut *found);
            }
            *at = Slot(slots.last().map_or(at.0, |last| last.saturating_add(1)));
            return Ok(slots.len() < SCANNED_SLOTS);
        }
        let (region, layout) = (self.region(), self.layout());
        let (used, objects_max) = (self.directory.used(), layout.objects_max);
        let in_directory = at.0 < used;
        let slots: Vec<u32> = if in_directory || scope == VictimScope::Directory {
            (at.0..used).take(SCANNED_SLOTS).collect()
        } else {
            let from = at.0.max(objects_max);
            self.locals.known.range(from..).map(|(slot, _)| *slot).take(SCANNED_SLOTS).collect()
        };
        let may_follow = in_directory && scope == VictimScope::All;
        let is_last = slots.len() < SCANNED_SLOTS && !may_follow;
        let (Some(first), Some(last)) = (slots.first().copied(), slots.last().copied()) else {
            return Ok(is_last);
        };
        let stamps = uses::stamps(region, layout, first, last.saturating_add(1))?;
        let stamp_of = |slot: Slot| match slot.0.checked_sub(first) {
            Some(at) if slot.0 <= last => Ok(stamps.get(at as usize).copied().unwrap_or_default()),
            _ => uses::stamp_of_home(region, layout, slot),
        };
        for slot in slots {
            if let Some(choice) = self.choice(policy, Slot(slot), held, stamp_of)? {
                found(choice);
            }
        }
        *at = Slot(last.saturating_add(1));
        Ok(is_last)
    }

    /// The candidates of a scan, without those whose eviction would free no block.
    fn places(
        &self,
        policy: &dyn EvictionPolicy,
        mut scan: VictimScan,
    ) -> Result<Vec<VictimPlace>, StoreError> {
        let useless = self.useless(policy, &scan.sharing)?;
        scan.places.retain(|place| useless.binary_search(place).is_err());
        Ok(scan.places)
    }

    /// Those of the candidates whose eviction would free no block, even together with all others,
    /// sorted. The others are of no account if `sharing` has all that share a block.
    fn useless(
        &self,
        policy: &dyn EvictionPolicy,
        sharing: &[VictimPlace],
    ) -> Result<Vec<VictimPlace>, StoreError> {
        if sharing.is_empty() {
            return Ok(Vec::new());
        }
        let sharing = self.choices_of(policy, sharing)?;
        // Sharers of a block that are no candidates.
        let mut staying: BTreeMap<u64, u32> = BTreeMap::new();
        for run in sharing.iter().flat_map(|choice| &choice.runs) {
            let left = staying.entry(run.start).or_insert_with(|| self.sharers(*run));
            *left = left.saturating_sub(1);
        }
        let frees = |run: &Run| staying.get(&run.start).is_none_or(|sharers| *sharers == 0);
        let mut useless: Vec<VictimPlace> = sharing
            .iter()
            .filter(|choice| !choice.runs.iter().any(frees))
            .map(Choice::place)
            .collect();
        useless.sort_unstable();
        Ok(useless)
    }

    /// The candidates at these places that are still candidates.
    fn choices_of(
        &self,
        policy: &dyn EvictionPolicy,
        places: &[VictimPlace],
    ) -> Result<Vec<Choice>, StoreError> {
        let held = self.held_now()?;
        let stamp_of = |slot| uses::stamp_of_home(self.region(), self.layout(), slot);
        let mut choices = Vec::with_capacity(places.len());
        for place in places {
            choices.extend(self.choice(policy, place.id.slot(), &held, stamp_of)?);
        }
        Ok(choices)
    }

    /// Whether a candidate has a block with another object.
    fn is_sharing(&self, choice: &Choice) -> bool {
        let is_shared = |run: &Run| self.blocks.get(*run).is_some_and(|block| block.is_shared());
        self.blocks.has_shared() && choice.runs.iter().any(is_shared)
    }

    fn sharers(&self, run: Run) -> u32 {
        self.blocks.get(run).map_or(1, |block| block.sharers())
    }
}
