//! Orders of eviction, which the home keeps from call to call.
//!
//! A scan of all objects takes time in their number, and the daemon answers nobody meanwhile. So the
//! home keeps the first part of each order. When half of it is used up, every further choice scans
//! some of the objects, until the next order is complete. An order has the objects that were used
//! before its scan began: no object that is missing comes before one of them, except for those that
//! could not be evicted at the time of the scan.

use std::collections::{BTreeMap, VecDeque};

use farrow_memory::sync::{Ordering, fence};

use super::Home;
use super::choose::Choice;
use crate::alloc::eviction::EvictionPolicy;
use crate::alloc::space::Run;
use crate::client::uses;
use crate::error::StoreError;
use crate::format::ids::{ObjectId, Slot};

/// Part of the candidates whose order is kept.
const KEPT_PART: usize = 8;

/// Candidates whose order is kept at least.
const KEPT_MIN: usize = 1024;

/// Slots that are scanned at a time.
const SCANNED_SLOTS: usize = 2048;

/// Slots that are scanned for the next order, for each victim: the scan ends before the second half
/// of this order does.
const SLOTS_FOR_VICTIM: usize = 2 * KEPT_PART;

/// The place of a candidate in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) rank: u64,
    pub(super) id: ObjectId,
}

/// The objects that a choice is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// All objects.
    All,
    /// Objects with a directory entry: the others free no slot and no name.
    Directory,
}

/// The kept orders, by [`EvictionPolicy::order`] and scope.
#[derive(Debug, Default)]
pub(super) struct Orders(BTreeMap<(&'static str, Scope), Order>);

/// The first candidates of a policy, those that go first.
#[derive(Debug)]
pub(super) struct Order {
    scope: Scope,
    first: VecDeque<Place>,
    /// All others, in no order.
    later: Vec<Place>,
    /// The length of `first` after the scan.
    scanned: usize,
    next: Option<OrderScan>,
}

/// An incomplete scan for an order.
#[derive(Debug)]
struct OrderScan {
    scope: Scope,
    began_ns: u64,
    /// The next slot of the directory, then of client entries.
    at: Slot,
    places: Vec<Place>,
    /// Candidates that share a block.
    sharing: Vec<Place>,
}

impl Orders {
    pub(super) fn take(&mut self, name: &'static str, scope: Scope) -> Option<Order> {
        self.0.remove(&(name, scope))
    }

    pub(super) fn keep(&mut self, name: &'static str, order: Order) {
        self.0.insert((name, order.scope), order);
    }
}

impl Order {
    fn new(scope: Scope, mut places: Vec<Place>) -> Self {
        let scanned = (places.len() / KEPT_PART).max(KEPT_MIN).min(places.len());
        if scanned < places.len() {
            places.select_nth_unstable(scanned);
        }
        let later = places.split_off(scanned);
        places.sort_unstable();
        Self { scope, first: places.into(), later, scanned, next: None }
    }

    /// Takes out the next candidate.
    pub(super) fn next(&mut self) -> Option<Place> {
        if self.first.is_empty() && !self.later.is_empty() {
            self.later.sort_unstable();
            self.first = std::mem::take(&mut self.later).into();
        }
        self.first.pop_front()
    }

    /// Puts the candidates back that were taken out last, in their order.
    pub(super) fn put_back(&mut self, places: impl DoubleEndedIterator<Item = Place>) {
        places.rev().for_each(|place| self.first.push_front(place));
    }

    /// Drops what is not to be kept.
    pub(super) fn shorten(&mut self) {
        self.later = Vec::new();
        self.first.truncate(self.scanned);
        self.first.shrink_to_fit();
    }
}

impl Home {
    /// All candidates of a policy, in its order, without those whose eviction would free no block.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub(super) fn whole_order(
        &mut self,
        policy: &dyn EvictionPolicy,
        scope: Scope,
    ) -> Result<Order, StoreError> {
        if scope == Scope::All {
            self.register_all()?;
        }
        let mut scan = OrderScan::new(scope, self.now_ns);
        while !self.scan_part(policy, &mut scan)? {}
        self.places(policy, scan).map(|places| Order::new(scope, places))
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
        let mut at = Slot(0);
        while !self.scan_slots(policy, Scope::All, &mut at, &mut |choice| choices.push(choice))? {}
        let sharing: Vec<Place> =
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
        order: Order,
    ) -> Result<Option<Order>, StoreError> {
        let Some(mut scan) = order.next else {
            return Ok(None);
        };
        while !self.scan_part(policy, &mut scan)? {}
        self.finish(policy, scan).map(Some)
    }

    /// Scans some of the objects for the next order, once half of this one is used up.
    pub(super) fn scan_ahead(
        &mut self,
        policy: &dyn EvictionPolicy,
        order: &mut Order,
        victims: usize,
    ) -> Result<(), StoreError> {
        if order.first.len() > order.scanned / 2 || order.scanned < KEPT_MIN {
            return Ok(());
        }
        let mut scan = match order.next.take() {
            Some(scan) => scan,
            None => {
                if order.scope == Scope::All {
                    self.register_all()?;
                }
                OrderScan::new(order.scope, self.now_ns)
            }
        };
        let parts = (victims * SLOTS_FOR_VICTIM).div_ceil(SCANNED_SLOTS);
        for _ in 0..parts.max(1) {
            if self.scan_part(policy, &mut scan)? {
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
        scan: OrderScan,
    ) -> Result<Order, StoreError> {
        let OrderScan { scope, began_ns, .. } = scan;
        let mut places = self.places(policy, scan)?;
        places.retain(|place| place.rank < began_ns);
        let mut order = Order::new(scope, places);
        order.shorten();
        Ok(order)
    }

    /// Adds the candidates in the next slots. True: these were the last ones.
    fn scan_part(
        &self,
        policy: &dyn EvictionPolicy,
        scan: &mut OrderScan,
    ) -> Result<bool, StoreError> {
        let OrderScan { scope, at, places, sharing, .. } = scan;
        self.scan_slots(policy, *scope, at, &mut |choice| {
            places.push(choice.place());
            if self.is_sharing(&choice) {
                sharing.push(choice.place());
            }
        })
    }

    /// Looks at the slots from `at` on, a limited number of them. True: these were the last ones.
    fn scan_slots(
        &self,
        policy: &dyn EvictionPolicy,
        scope: Scope,
        at: &mut Slot,
        found: &mut dyn FnMut(Choice),
    ) -> Result<bool, StoreError> {
        let (region, layout) = (self.region(), self.layout());
        let (used, objects_max) = (self.directory.used(), layout.objects_max);
        let in_directory = at.0 < used;
        let slots: Vec<u32> = if in_directory || scope == Scope::Directory {
            (at.0..used).take(SCANNED_SLOTS).collect()
        } else {
            let from = at.0.max(objects_max);
            self.locals.known.range(from..).map(|(slot, _)| *slot).take(SCANNED_SLOTS).collect()
        };
        let may_follow = in_directory && scope == Scope::All;
        let is_last = slots.len() < SCANNED_SLOTS && !may_follow;
        let (Some(first), Some(last)) = (slots.first().copied(), slots.last().copied()) else {
            return Ok(is_last);
        };
        fence(Ordering::SeqCst);
        let held = self.holds.held()?;
        let stamps = uses::stamps(region, layout, first, last.saturating_add(1))?;
        let stamp_of = |slot: Slot| match slot.0.checked_sub(first) {
            Some(at) if slot.0 <= last => Ok(stamps.get(at as usize).copied().unwrap_or_default()),
            _ => uses::stamp_of_home(region, layout, slot),
        };
        for slot in slots {
            if let Some(choice) = self.choice(policy, Slot(slot), &held, stamp_of)? {
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
        mut scan: OrderScan,
    ) -> Result<Vec<Place>, StoreError> {
        let useless = self.useless(policy, &scan.sharing)?;
        scan.places.retain(|place| useless.binary_search(place).is_err());
        Ok(scan.places)
    }

    /// Those of the candidates whose eviction would free no block, even together with all others,
    /// sorted. The others are of no account if `sharing` has all that share a block.
    fn useless(
        &self,
        policy: &dyn EvictionPolicy,
        sharing: &[Place],
    ) -> Result<Vec<Place>, StoreError> {
        let sharing = self.choices_of(policy, sharing)?;
        // Sharers of a block that are no candidates.
        let mut staying: BTreeMap<u64, u32> = BTreeMap::new();
        for run in sharing.iter().flat_map(|choice| &choice.runs) {
            let left = staying.entry(run.start).or_insert_with(|| self.sharers(*run));
            *left = left.saturating_sub(1);
        }
        let frees = |run: &Run| staying.get(&run.start).is_none_or(|sharers| *sharers == 0);
        let mut useless: Vec<Place> = sharing
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
        places: &[Place],
    ) -> Result<Vec<Choice>, StoreError> {
        fence(Ordering::SeqCst);
        let held = self.holds.held()?;
        let stamp_of = |slot| uses::stamp_of_home(self.region(), self.layout(), slot);
        let mut choices = Vec::with_capacity(places.len());
        for place in places {
            choices.extend(self.choice(policy, place.id.slot(), &held, stamp_of)?);
        }
        Ok(choices)
    }

    /// Whether a candidate has a block with another object.
    fn is_sharing(&self, choice: &Choice) -> bool {
        self.blocks.has_shared() && choice.runs.iter().any(|run| self.sharers(*run) > 1)
    }

    fn sharers(&self, run: Run) -> u32 {
        self.blocks.get(run).map_or(1, |block| block.sharers())
    }
}

impl OrderScan {
    fn new(scope: Scope, began_ns: u64) -> Self {
        Self { scope, began_ns, at: Slot(0), places: Vec::new(), sharing: Vec::new() }
    }
}
