//! Free space of a range: best fit in O(log n), in private memory of the home.
//!
//! Free runs are any multiple of the grain. Allocations are whole units (pages), because a writer's
//! memory is mapped by the page. A run is therefore filed by the length of its *interior*, the
//! whole units inside it. The ragged rest stays with its run and becomes usable when an adjacent
//! run is freed, because adjacent free runs are merged.

use std::collections::{BTreeMap, BTreeSet};

/// Runs tried for one that fits the requested alignment with no waste, before a longer run, in
/// which every alignment fits, is cut. A small constant keeps the search O(log n).
const ALIGNED_CANDIDATES_MAX: usize = 16;

/// A range of bytes, from `start` up to but not including `end`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Run {
    /// First byte.
    pub start: u64,
    /// First byte after the range.
    pub end: u64,
}

impl Run {
    pub(crate) const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// Why a range cannot be taken or given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpaceError {
    /// A range that this allocator cannot have handed out.
    #[error("range {0:?} is empty, unaligned or outside of what is managed")]
    Outside(Run),
    /// Part of it is already free, or already occupied.
    #[error("range {requested:?} overlaps {other:?}")]
    Overlap {
        /// The range.
        requested: Run,
        /// The range it overlaps.
        other: Run,
    },
}

/// Free ranges, filed by address and by length. The home's heap is one of these; a client manages
/// its grants in another.
#[derive(Clone, Debug)]
pub struct SpaceAllocator {
    all: Run,
    grain: u64,
    unit: u64,
    /// Start to end of every free run; no two touch.
    free: BTreeMap<u64, u64>,
    /// (interior length, start of the run) of every free run with an interior.
    by_interior: BTreeSet<(u64, u64)>,
    free_bytes: u64,
    interior_bytes: u64,
}

impl SpaceAllocator {
    #[cfg(test)]
    pub(crate) fn new(all: Run, grain: u64, unit: u64) -> Result<Self, SpaceError> {
        Self::with_occupied(all, grain, unit, std::iter::empty())
    }

    /// An allocator for `all`, free except for `occupied`, whose runs are sorted and disjoint.
    /// Linear in their number: the trees are built in bulk.
    pub fn with_occupied(
        all: Run,
        grain: u64,
        unit: u64,
        occupied: impl IntoIterator<Item = Run>,
    ) -> Result<Self, SpaceError> {
        let powers = grain.is_power_of_two() && unit.is_power_of_two() && grain <= unit;
        if !powers
            || all.end < all.start
            || !all.start.is_multiple_of(grain)
            || !all.end.is_multiple_of(grain)
        {
            return Err(SpaceError::Outside(all));
        }
        let mut runs = Vec::new();
        let mut from = all.start;
        let mut last = Run { start: all.start, end: all.start };
        for run in occupied {
            if run.start >= run.end
                || !run.start.is_multiple_of(grain)
                || !run.end.is_multiple_of(grain)
                || run.end > all.end
                || run.start < all.start
            {
                return Err(SpaceError::Outside(run));
            }
            if run.start < from {
                return Err(SpaceError::Overlap { requested: run, other: last });
            }
            if run.start > from {
                runs.push((from, run.start));
            }
            from = run.end;
            last = run;
        }
        if from < all.end {
            runs.push((from, all.end));
        }
        let mut space = Self {
            all,
            grain,
            unit,
            free: BTreeMap::new(),
            by_interior: BTreeSet::new(),
            free_bytes: 0,
            interior_bytes: 0,
        };
        let filed = runs.iter().map(|&(start, end)| (space.interior(Run { start, end }), start));
        space.by_interior = filed.filter(|(interior, _)| *interior > 0).collect();
        space.interior_bytes = space.by_interior.iter().map(|(interior, _)| interior).sum();
        space.free_bytes = runs.iter().map(|(start, end)| end - start).sum();
        space.free = runs.into_iter().collect();
        Ok(space)
    }

    /// Allocate `length` bytes, rounded up to whole units, at a multiple of `alignment` if a free
    /// run allows it, else at any unit. None: no run is long enough.
    pub fn allocate(&mut self, length: u64, alignment: u64) -> Option<Run> {
        let length = length.max(1).checked_next_multiple_of(self.unit)?;
        let place = if alignment > self.unit && alignment.is_power_of_two() {
            self.aligned_place(length, alignment).or_else(|| self.best_place(length))
        } else {
            self.best_place(length)
        };
        let (run, start) = place?;
        let taken = Run { start, end: start.checked_add(length)? };
        self.cut(run, taken);
        Some(taken)
    }

    /// Allocate all whole units of the longest free run that has `min` bytes of them or more, but
    /// less than `below`.
    pub(crate) fn allocate_longest(&mut self, min: u64, below: u64) -> Option<Run> {
        let &(interior, start) = self.by_interior.range(..(below, 0)).next_back()?;
        if interior < min {
            return None;
        }
        let run = self.run_at(start)?;
        let start = start.checked_next_multiple_of(self.unit)?;
        let taken = Run { start, end: start.checked_add(interior)? };
        self.cut(run, taken);
        Some(taken)
    }

    /// Take exactly this range, of whole grains, if all of it is free.
    pub fn claim(&mut self, run: Run) -> bool {
        let is_whole = run.start < run.end
            && run.start.is_multiple_of(self.grain)
            && run.end.is_multiple_of(self.grain);
        let around = self.free.range(..=run.start).next_back();
        match around.map(|(&start, &end)| Run { start, end }) {
            Some(around) if is_whole && run.end <= around.end => {
                self.cut(around, run);
                true
            }
            _ => false,
        }
    }

    /// Free a range. It is merged with adjacent free runs. Nothing changes on an error.
    pub fn free(&mut self, run: Run) -> Result<(), SpaceError> {
        if run.start >= run.end
            || run.start < self.all.start
            || run.end > self.all.end
            || !run.start.is_multiple_of(self.grain)
            || !run.end.is_multiple_of(self.grain)
        {
            return Err(SpaceError::Outside(run));
        }
        let before = self.before(run.start);
        let after = self.free.range(run.start..).next().map(|(&start, &end)| Run { start, end });
        for other in before.into_iter().chain(after) {
            if other.start < run.end && run.start < other.end {
                return Err(SpaceError::Overlap { requested: run, other });
            }
        }
        let mut merged = run;
        if let Some(other) = before.filter(|other| other.end == run.start) {
            self.unfile(other);
            merged.start = other.start;
        }
        if let Some(other) = after.filter(|other| other.start == run.end) {
            self.unfile(other);
            merged.end = other.end;
        }
        self.file(merged);
        Ok(())
    }

    /// Free bytes, including those outside whole units.
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Free bytes in whole units, which can be allocated.
    pub(crate) fn interior_bytes(&self) -> u64 {
        self.interior_bytes
    }

    /// The longest range that [`Self::allocate`] would return.
    pub fn largest(&self) -> u64 {
        self.by_interior.last().map_or(0, |(interior, _)| *interior)
    }

    /// The whole units of the run that has most of them.
    pub(crate) fn longest_interior(&self) -> Option<Run> {
        let &(interior, start) = self.by_interior.last()?;
        let start = start.checked_next_multiple_of(self.unit)?;
        Some(Run { start, end: start.checked_add(interior)? })
    }

    /// Free runs in order.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.free.iter().map(|(&start, &end)| Run { start, end })
    }

    /// Whether the two trees and the sums agree, and all adjacent runs are merged.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut last_end = None;
        let (mut bytes, mut interior, mut filed) = (0u64, 0u64, 0usize);
        for run in self.runs() {
            if run.start >= run.end || run.start < self.all.start || run.end > self.all.end {
                return Err(format!("free run {run:?} is not inside {:?}", self.all));
            }
            if last_end.is_some_and(|end| end >= run.start) {
                return Err(format!("free run {run:?} touches the one before it"));
            }
            last_end = Some(run.end);
            bytes += run.len();
            let inside = self.interior(run);
            interior += inside;
            if inside > 0 {
                filed += 1;
                if !self.by_interior.contains(&(inside, run.start)) {
                    return Err(format!("free run {run:?} is not filed under {inside}"));
                }
            }
        }
        if filed != self.by_interior.len() {
            return Err(format!("{} runs are filed, {filed} exist", self.by_interior.len()));
        }
        if (bytes, interior) != (self.free_bytes, self.interior_bytes) {
            return Err(format!(
                "{bytes} B free with {interior} B in units, accounts say {} and {}",
                self.free_bytes, self.interior_bytes
            ));
        }
        Ok(())
    }

    /// Bytes of whole units inside `run`.
    fn interior(&self, run: Run) -> u64 {
        match run.start.checked_next_multiple_of(self.unit) {
            Some(start) => (run.end - run.end % self.unit).saturating_sub(start),
            None => 0,
        }
    }

    /// The shortest run with room for `length`, and the first unit in it.
    fn best_place(&self, length: u64) -> Option<(Run, u64)> {
        let &(_, start) = self.by_interior.range((length, 0)..).next()?;
        let run = self.run_at(start)?;
        Some((run, start.checked_next_multiple_of(self.unit)?))
    }

    /// A run with room for `length` at a multiple of `alignment`.
    fn aligned_place(&self, length: u64, alignment: u64) -> Option<(Run, u64)> {
        let fits = |start: u64| {
            let run = self.run_at(start)?;
            let place = start.checked_next_multiple_of(alignment)?;
            (place.checked_add(length)? <= run.end).then_some((run, place))
        };
        let short = self.by_interior.range((length, 0)..).take(ALIGNED_CANDIDATES_MAX);
        let found = short.filter_map(|&(_, start)| fits(start)).next();
        found.or_else(|| {
            let always = length.checked_add(alignment - self.unit)?;
            fits(self.by_interior.range((always, 0)..).next()?.1)
        })
    }

    fn run_at(&self, start: u64) -> Option<Run> {
        self.free.get(&start).map(|&end| Run { start, end })
    }

    /// The free run that starts at or before `at`.
    fn before(&self, at: u64) -> Option<Run> {
        self.free.range(..=at).next_back().map(|(&start, &end)| Run { start, end })
    }

    /// Take `taken` out of the free run `run`, which contains it.
    fn cut(&mut self, run: Run, taken: Run) {
        self.unfile(run);
        if run.start < taken.start {
            self.file(Run { start: run.start, end: taken.start });
        }
        if taken.end < run.end {
            self.file(Run { start: taken.end, end: run.end });
        }
    }

    fn file(&mut self, run: Run) {
        let interior = self.interior(run);
        if interior > 0 {
            self.by_interior.insert((interior, run.start));
        }
        self.free.insert(run.start, run.end);
        self.free_bytes += run.len();
        self.interior_bytes += interior;
    }

    fn unfile(&mut self, run: Run) {
        let interior = self.interior(run);
        self.by_interior.remove(&(interior, run.start));
        self.free.remove(&run.start);
        self.free_bytes -= run.len();
        self.interior_bytes -= interior;
    }
}

/// As [`Self::with_occupied`], with all of it free.
/// The parts of `runs` (disjoint, in order) inside of `within`, cut to it.
pub(crate) fn inside(runs: &[Run], within: Run) -> impl Iterator<Item = Run> + '_ {
    let first = runs.partition_point(|run| run.end <= within.start);
    let from = runs.get(first..).unwrap_or_default();
    from.iter()
        .take_while(move |run| run.start < within.end)
        .map(move |run| Run { start: run.start.max(within.start), end: run.end.min(within.end) })
}

/// The parts of `within` outside of `runs` (disjoint, in order).
pub(crate) fn outside(runs: &[Run], within: Run) -> impl Iterator<Item = Run> + '_ {
    let end = Run { start: within.end, end: within.end };
    let mut at = within.start;
    inside(runs, within).chain([end]).filter_map(move |run| {
        let gap = Run { start: at, end: run.start };
        at = run.end;
        (gap.start < gap.end).then_some(gap)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GRAIN: u64 = 128;
    const UNIT: u64 = 4096;

    fn run(start: u64, end: u64) -> Run {
        Run { start, end }
    }

    fn space(units: u64) -> SpaceAllocator {
        SpaceAllocator::new(run(UNIT * 3, UNIT * (3 + units)), GRAIN, UNIT).unwrap()
    }

    #[test]
    fn neighbours_merge_whatever_the_order() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut space = space(3);
            let runs: Vec<Run> = (0..3).map(|_| space.allocate(1, 1).unwrap()).collect();
            assert_eq!((space.free_bytes(), space.largest()), (0, 0));
            assert!(space.allocate(1, 1).is_none());
            for i in order {
                space.free(runs[i]).unwrap();
                space.check().unwrap();
            }
            assert_eq!(space.runs().collect::<Vec<_>>(), [run(UNIT * 3, UNIT * 6)]);
        }
    }

    #[test]
    fn the_shortest_run_that_fits_is_cut() {
        let mut space = space(16);
        let runs: Vec<Run> = (0..16).map(|_| space.allocate(UNIT, 1).unwrap()).collect();
        for i in [0, 1, 2, 3, 6, 7, 10, 11, 12] {
            space.free(runs[i]).unwrap();
        }
        assert_eq!(space.allocate(2 * UNIT, 1).unwrap().start, runs[6].start);
        assert_eq!(space.allocate(2 * UNIT, 1).unwrap().start, runs[10].start);
        assert_eq!(space.allocate(UNIT, 1).unwrap().start, runs[12].start);
        assert_eq!(space.largest(), 4 * UNIT);
    }

    #[test]
    fn exactly_what_is_asked_is_claimed_or_nothing() {
        let mut space = space(4);
        let at = |start: u64, end: u64| run(UNIT * 3 + start * GRAIN, UNIT * 3 + end * GRAIN);
        assert!(space.claim(at(2, 4)));
        assert!(!space.claim(at(3, 5)), "half of it is taken");
        assert!(!space.claim(at(6, 6)));
        assert!(space.claim(at(0, 2)));
        space.free(at(0, 4)).unwrap();
        assert!(space.claim(at(0, 4)));
        space.check().unwrap();
    }

    #[test]
    fn ragged_rests_count_but_are_not_handed_out() {
        let mut space = space(4);
        let all = space.allocate(4 * UNIT, 1).unwrap();
        space.free(run(all.start + GRAIN, all.start + 2 * UNIT - GRAIN)).unwrap();
        assert_eq!(space.free_bytes(), 2 * UNIT - 2 * GRAIN);
        assert_eq!((space.interior_bytes(), space.largest()), (0, 0));
        assert!(space.allocate(1, 1).is_none());
        space.free(run(all.start, all.start + GRAIN)).unwrap();
        assert_eq!(space.allocate(UNIT, 1), Some(run(all.start, all.start + UNIT)));
        space.check().unwrap();
    }

    #[test]
    fn alignment_is_retained_where_it_fits_and_given_up_where_it_does_not() {
        let big = 16 * UNIT;
        let mut space = SpaceAllocator::new(run(UNIT, UNIT * 64), GRAIN, UNIT).unwrap();
        let first = space.allocate(big, big).unwrap();
        assert_eq!(first.start % big, 0);
        // The 15 units before it are too short. Two aligned places follow it.
        assert_eq!(space.allocate(big, big).unwrap().start, 2 * big);
        assert_eq!(space.allocate(big, big).unwrap().start, 3 * big);
        assert!(space.allocate(big, big).is_none());
        space.free(run(2 * big - UNIT, 2 * big)).unwrap();
        space.free(run(2 * big, 3 * big - UNIT)).unwrap();
        assert_eq!(space.allocate(big, big).unwrap().start, 2 * big - UNIT);
        space.check().unwrap();
    }

    #[test]
    fn bad_ranges_are_refused_and_change_nothing() {
        let mut space = space(4);
        let taken = space.allocate(2 * UNIT, 1).unwrap();
        space.free(run(taken.start, taken.start + UNIT)).unwrap();
        for bad in [
            run(taken.start, taken.start + UNIT),
            run(taken.start + UNIT - GRAIN, taken.end),
            run(taken.start + UNIT, taken.end + GRAIN),
            run(taken.start + UNIT, taken.start + UNIT),
            run(taken.end, taken.start),
            run(0, UNIT),
            run(taken.start + UNIT + 1, taken.end),
            run(taken.start + UNIT, u64::MAX),
        ] {
            assert!(space.free(bad).is_err(), "{bad:?}");
            space.check().unwrap();
        }
        assert!(space.allocate(u64::MAX, 1).is_none());
        assert!(space.allocate(u64::MAX - UNIT, u64::MAX / 2 + 1).is_none());
        assert_eq!(space.free_bytes(), 3 * UNIT);
    }

    #[test]
    fn space_near_the_end_of_64_bits_does_not_overflow() {
        let top = u64::MAX - u64::MAX % UNIT;
        let mut space = SpaceAllocator::new(run(top - 8 * UNIT, top), GRAIN, UNIT).unwrap();
        assert!(space.allocate(9 * UNIT, 1 << 63).is_none());
        let taken = space.allocate(8 * UNIT, 1 << 63).unwrap();
        assert_eq!(taken, run(top - 8 * UNIT, top));
        space.free(taken).unwrap();
        space.check().unwrap();
    }

    /// One flag for each grain: the simplest correct allocator.
    struct SpaceModel {
        taken: Vec<bool>,
        base: u64,
    }

    impl SpaceModel {
        fn set(&mut self, run: Run, to: bool) {
            for at in (run.start..run.end).step_by(GRAIN as usize) {
                let grain = &mut self.taken[((at - self.base) / GRAIN) as usize];
                assert_ne!(*grain, to, "grain at {at} in {run:?}");
                *grain = to;
            }
        }

        fn runs(&self) -> Vec<Run> {
            let mut runs: Vec<Run> = Vec::new();
            for (i, _) in self.taken.iter().enumerate().filter(|(_, taken)| !**taken) {
                let start = self.base + i as u64 * GRAIN;
                match runs.last_mut() {
                    Some(last) if last.end == start => last.end += GRAIN,
                    _ => runs.push(run(start, start + GRAIN)),
                }
            }
            runs
        }

        /// The longest unit-aligned stretch of free grains.
        fn largest(&self) -> u64 {
            let inside =
                |r: &Run| (r.end / UNIT * UNIT).saturating_sub(r.start.next_multiple_of(UNIT));
            self.runs().iter().map(inside).max().unwrap_or(0)
        }
    }

    #[derive(Clone, Debug)]
    enum ModelStep {
        Allocate {
            length: u64,
            alignment: u64,
        },
        /// Give back part of the n-th taken range, in grains from its start.
        Free {
            n: prop::sample::Index,
            from: prop::sample::Index,
            grains: prop::sample::Index,
        },
        Rebuild,
    }

    fn step() -> impl Strategy<Value = ModelStep> {
        prop_oneof![
            4 => (1..6 * UNIT, prop::sample::select(vec![1, UNIT, 4 * UNIT, 8 * UNIT]))
                .prop_map(|(length, alignment)| ModelStep::Allocate { length, alignment }),
            4 => any::<(prop::sample::Index, prop::sample::Index, prop::sample::Index)>()
                .prop_map(|(n, from, grains)| ModelStep::Free { n, from, grains }),
            1 => Just(ModelStep::Rebuild),
        ]
    }

    proptest! {
        #[test]
        fn behaves_as_the_naive_model(steps in prop::collection::vec(step(), 1..200)) {
            let all = run(UNIT * 5, UNIT * 5 + UNIT * 40 + 5 * GRAIN);
            let mut space = SpaceAllocator::new(all, GRAIN, UNIT).unwrap();
            let mut model =
                SpaceModel { taken: vec![false; (all.len() / GRAIN) as usize], base: all.start };
            let mut taken: Vec<Run> = Vec::new();
            for step in steps {
                match step {
                    ModelStep::Allocate { length, alignment } => {
                        let fits = model.largest() >= length.next_multiple_of(UNIT);
                        let got = space.allocate(length, alignment);
                        prop_assert_eq!(got.is_some(), fits);
                        if let Some(got) = got {
                            prop_assert_eq!(got.len(), length.next_multiple_of(UNIT));
                            prop_assert_eq!(got.start % UNIT, 0);
                            model.set(got, true);
                            taken.push(got);
                        }
                    }
                    ModelStep::Free { n, from, grains } if !taken.is_empty() => {
                        let whole = taken.swap_remove(n.index(taken.len()));
                        let total = (whole.len() / GRAIN) as usize;
                        let from = from.index(total);
                        let grains = 1 + grains.index(total - from);
                        let start = whole.start + from as u64 * GRAIN;
                        let part = run(start, start + grains as u64 * GRAIN);
                        space.free(part).unwrap();
                        prop_assert!(space.free(part).is_err());
                        model.set(part, false);
                        for rest in [run(whole.start, part.start), run(part.end, whole.end)] {
                            if rest.len() > 0 {
                                taken.push(rest);
                            }
                        }
                    }
                    ModelStep::Free { .. } => {}
                    ModelStep::Rebuild => {
                        let mut sorted = taken.clone();
                        sorted.sort_unstable();
                        space = SpaceAllocator::with_occupied(all, GRAIN, UNIT, sorted).unwrap();
                    }
                }
                space.check().unwrap();
                prop_assert_eq!(space.runs().collect::<Vec<_>>(), model.runs());
                prop_assert_eq!(space.largest(), model.largest());
            }
        }
    }

    #[test]
    fn parts_inside_are_cut() {
        let runs = [run(0, 2), run(4, 6), run(8, 10)];
        assert_eq!(inside(&runs, run(1, 9)).collect::<Vec<_>>(), [run(1, 2), run(4, 6), run(8, 9)]);
        assert_eq!(inside(&runs, run(2, 4)).count(), 0);
    }

    #[test]
    fn parts_outside_are_what_is_left() {
        let runs = [run(0, 2), run(4, 6), run(8, 10)];
        assert_eq!(outside(&runs, run(1, 9)).collect::<Vec<_>>(), [run(2, 4), run(6, 8)]);
        assert_eq!(outside(&runs, run(3, 12)).last(), Some(run(10, 12)));
        assert_eq!(outside(&runs, run(4, 6)).count(), 0);
        assert_eq!(outside(&[], run(4, 6)).collect::<Vec<_>>(), [run(4, 6)]);
    }
}
