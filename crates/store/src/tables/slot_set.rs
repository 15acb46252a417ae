//! A set of slots as a sparse bitmap: of directory slots and of client entries.
//!
//! Scans of all holds look up and store a slot for each hold. In a tree of numbers that takes as
//! long as all the rest.

/// Slots of one page of the bitmap.
const SLOTS_IN_PAGE: usize = 4096;
const WORDS: usize = SLOTS_IN_PAGE / 64;

/// A set of slots. Its memory is proportional to the largest one, at most an eighth of a byte for
/// each slot up to it.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct SlotSet {
    pages: Vec<Option<Box<[u64; WORDS]>>>,
    len: usize,
}

impl SlotSet {
    pub(crate) fn contains(&self, slot: u32) -> bool {
        let page = self.pages.get(slot as usize / SLOTS_IN_PAGE);
        let word = page.and_then(Option::as_ref).and_then(|words| words.get(word_of(slot)));
        word.is_some_and(|word| word & bit_of(slot) != 0)
    }

    /// Adds a slot. False: it was there.
    pub(crate) fn insert(&mut self, slot: u32) -> bool {
        let number = slot as usize / SLOTS_IN_PAGE;
        if self.pages.len() <= number {
            self.pages.resize_with(number + 1, || None);
        }
        let page = self.pages.get_mut(number);
        let words = page.map(|page| page.get_or_insert_with(|| Box::new([0; WORDS])));
        let Some(word) = words.and_then(|words| words.get_mut(word_of(slot))) else {
            return false;
        };
        let is_new = *word & bit_of(slot) == 0;
        *word |= bit_of(slot);
        self.len += usize::from(is_new);
        is_new
    }

    /// Removes a slot. False: it was not there.
    pub(crate) fn remove(&mut self, slot: u32) -> bool {
        let page = self.pages.get_mut(slot as usize / SLOTS_IN_PAGE).and_then(Option::as_mut);
        let Some(word) = page.and_then(|words| words.get_mut(word_of(slot))) else {
            return false;
        };
        let was_there = *word & bit_of(slot) != 0;
        *word &= !bit_of(slot);
        self.len -= usize::from(was_there);
        was_there
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The slots in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.iter_from(0)
    }

    /// The slots from `first` on, in order.
    pub(crate) fn iter_from(&self, first: u32) -> impl Iterator<Item = u32> + '_ {
        let from_page = first as usize / SLOTS_IN_PAGE;
        let pages = self.pages.iter().enumerate().skip(from_page);
        let words = pages.flat_map(|(number, page)| {
            let words = page.iter().flat_map(|words| words.iter());
            words.enumerate().map(move |(word, bits)| (number * SLOTS_IN_PAGE + word * 64, *bits))
        });
        let words = words.filter(|(_, bits)| *bits != 0);
        words.flat_map(slots_of).skip_while(move |slot| *slot < first)
    }
}

impl std::fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl FromIterator<u32> for SlotSet {
    fn from_iter<I: IntoIterator<Item = u32>>(slots: I) -> Self {
        let mut set = Self::default();
        for slot in slots {
            set.insert(slot);
        }
        set
    }
}

/// The slots of one word, whose first one is `first`.
fn slots_of((first, bits): (usize, u64)) -> impl Iterator<Item = u32> {
    let next = |bits: &u64| Some(bits & (bits - 1)).filter(|left| *left != 0);
    let all = std::iter::successors(Some(bits), next);
    all.map(move |bits| first as u32 + bits.trailing_zeros())
}

fn word_of(slot: u32) -> usize {
    slot as usize % SLOTS_IN_PAGE / 64
}

fn bit_of(slot: u32) -> u64 {
    1 << (slot % 64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_set_is_one_of_numbers() {
        let (mut set, mut expected) = (SlotSet::default(), BTreeSet::new());
        let mut random = 7_u32;
        for turn in 0..20_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let slot = random >> 12 & 0x7fff;
            match turn % 3 {
                0 => assert_eq!(set.remove(slot), expected.remove(&slot)),
                _ => assert_eq!(set.insert(slot), expected.insert(slot)),
            }
            assert_eq!(set.contains(slot ^ 1), expected.contains(&(slot ^ 1)));
        }
        assert_eq!((set.len(), set.is_empty()), (expected.len(), false));
        assert!(set.iter().eq(expected.iter().copied()));
        for first in [0, 1, 63, 64, 4095, 4096, 10_000, 0x7fff, 0x8000, u32::MAX] {
            assert!(set.iter_from(first).eq(expected.range(first..).copied()), "from {first}");
        }
        assert!(!set.contains(u32::MAX) && !set.remove(u32::MAX));
        let again: SlotSet = expected.iter().copied().collect();
        assert!(again.iter().eq(set.iter()));
        for slot in expected {
            set.remove(slot);
        }
        assert!(set.is_empty() && set.iter().next().is_none());
    }
}
