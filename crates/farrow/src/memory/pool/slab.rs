//! Small buffers: pages cut into slots of one size.

use std::collections::{BTreeMap, BTreeSet};

use farrow_memory::{Span, page_bytes};

/// The smallest slot, and the alignment of all slots: that of Arrow's buffers.
pub(super) const SLOT_BYTES_MIN: u64 = 64;

/// Slot sizes are the smallest one times a power of two; the largest allows two to a page of 4 KiB.
const CLASSES: usize = 6;

/// The size of a slab, rounded up to whole pages.
const SLAB_BYTES: u64 = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct Slabs {
    slabs: BTreeMap<u64, Slab>,
    /// Slabs of each class that have a free slot, by offset.
    open: [BTreeSet<u64>; CLASSES],
}

#[derive(Debug)]
struct Slab {
    class: usize,
    span: Span,
    /// Free slots, the next one last.
    free: Vec<u16>,
    slots: usize,
    /// The last fork before the slab was made.
    since: u64,
}

fn class_of(size: u64) -> usize {
    let slots = size.max(1).div_ceil(SLOT_BYTES_MIN).next_power_of_two();
    slots.trailing_zeros() as usize
}

fn slot_bytes(class: usize) -> u64 {
    SLOT_BYTES_MIN << class
}

impl Slabs {
    /// Size of the range required by [`Self::add`].
    pub(super) fn slab_bytes() -> u64 {
        SLAB_BYTES.max(page_bytes())
    }

    /// A slot for `size` bytes, if a slab has one.
    pub(super) fn take(&mut self, size: u64) -> Option<u64> {
        let class = class_of(size);
        let open = self.open.get_mut(class)?;
        let start = *open.first()?;
        let slab = self.slabs.get_mut(&start)?;
        let slot = slab.free.pop()?;
        if slab.free.is_empty() {
            open.remove(&start);
        }
        Some(start + u64::from(slot) * slot_bytes(class))
    }

    /// A new slab for slots of `size` bytes, made after fork `since`.
    pub(super) fn add(&mut self, span: Span, size: u64, since: u64) {
        let class = class_of(size);
        let slots = (span.length.0 / slot_bytes(class)).min(u64::from(u16::MAX)) as u16;
        let free = (0..slots).rev().collect();
        if let Some(open) = self.open.get_mut(class) {
            open.insert(span.offset.0);
            let slab = Slab { class, span, free, slots: usize::from(slots), since };
            self.slabs.insert(span.offset.0, slab);
        }
    }

    /// The last fork before the slab of a slot was made. `None` if the offset is in no slab.
    pub(super) fn since_of(&self, offset: u64) -> Option<u64> {
        let (start, slab) = self.slabs.range(..=offset).next_back()?;
        (offset - start < slab.span.length.0).then_some(slab.since)
    }

    /// Frees a slot. Returns its slab if that is empty and another one of its class is open, so
    /// that repeated allocation of a single buffer does not move slabs.
    pub(super) fn free(&mut self, offset: u64) -> Option<Span> {
        let (start, slab) = self.slabs.range_mut(..=offset).next_back()?;
        let start = *start;
        let distance = offset - start;
        if distance >= slab.span.length.0 {
            return None;
        }
        let slot = u16::try_from(distance / slot_bytes(slab.class)).ok()?;
        if slab.free.contains(&slot) {
            return None;
        }
        slab.free.push(slot);
        let (class, is_empty) = (slab.class, slab.free.len() == slab.slots);
        let open = self.open.get_mut(class)?;
        open.insert(start);
        if is_empty && open.len() > 1 {
            open.remove(&start);
            return self.slabs.remove(&start).map(|slab| slab.span);
        }
        None
    }

    /// Removes the empty slabs and returns them.
    pub(super) fn take_empty(&mut self) -> Vec<Span> {
        let is_empty = |slab: &Slab| slab.free.len() == slab.slots;
        let empty: Vec<u64> =
            self.slabs.iter().filter(|(_, slab)| is_empty(slab)).map(|(start, _)| *start).collect();
        let slabs = empty.iter().filter_map(|start| self.slabs.remove(start));
        let slabs = slabs.map(|slab| slab.span).collect();
        for open in &mut self.open {
            open.retain(|start| self.slabs.contains_key(start));
        }
        slabs
    }

    /// True if `size` bytes fit into the slot at `offset`, but not into one of half its size.
    pub(super) fn fits(&self, offset: u64, size: u64) -> bool {
        let Some((start, slab)) = self.slabs.range(..=offset).next_back() else {
            return false;
        };
        offset - start < slab.span.length.0 && class_of(size) == slab.class
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farrow_memory::{Length, Offset};

    fn span(start: u64) -> Span {
        Span { offset: Offset(start), length: Length(Slabs::slab_bytes()) }
    }

    #[test]
    fn slots_are_disjoint_aligned_and_come_back() {
        let mut slabs = Slabs::default();
        assert_eq!(slabs.take(100), None);
        slabs.add(span(1 << 20), 100, 0);
        let mut taken = BTreeSet::new();
        while let Some(offset) = slabs.take(100) {
            assert_eq!(offset % SLOT_BYTES_MIN, 0);
            assert!(taken.insert(offset), "slot {offset} was given twice");
        }
        assert_eq!(taken.len() as u64, Slabs::slab_bytes() / 128);
        for offset in &taken {
            assert_eq!(slabs.free(*offset), None, "the last slab of a class stays");
            assert_eq!(slabs.free(*offset), None, "a second free changes nothing");
        }
        assert!(slabs.take(128).is_some());
        assert!(slabs.take(129).is_none(), "another class");
        assert_eq!(slabs.take_empty(), []);
        slabs.add(span(9 << 20), 1000, 0);
        assert_eq!(slabs.take_empty(), [span(9 << 20)]);
        assert!(slabs.take(1000).is_none(), "it is gone");
        assert!(slabs.take(128).is_some());
    }

    #[test]
    fn an_empty_slab_goes_when_another_is_open() {
        let mut slabs = Slabs::default();
        slabs.add(span(1 << 20), 64, 0);
        slabs.add(span(2 << 20), 64, 0);
        let one = slabs.take(64).unwrap();
        assert!(slabs.fits(one, 64) && !slabs.fits(one, 65));
        assert_eq!(slabs.free(one).map(|slab| slab.offset.0), Some(1 << 20));
    }
}
