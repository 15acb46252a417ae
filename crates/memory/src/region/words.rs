//! Access to words and bytes that other threads and processes may write at the same time.
//!
//! All accesses are atomics of their own width. A load that races with a store returns the old or
//! the new value, and is never undefined behaviour. Loads use `Relaxed` and a fence, since only
//! relaxed loads are guaranteed to work on memory that is mapped read-only.
#![allow(clippy::disallowed_types)]

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use super::ranges::Pin;
use crate::units::{Offset, Span};

/// Bytes of a word.
pub(crate) const WORD_BYTES: u64 = 8;

/// Words for reading, borrowed from the region, so that they cannot outlive the mapping.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    start: *const AtomicU64,
    count: usize,
    region: PhantomData<&'a AtomicU64>,
}

// SAFETY: all accesses through the pointer are atomic, and the borrow keeps it mapped.
unsafe impl Send for Words<'_> {}
// SAFETY: as above.
unsafe impl Sync for Words<'_> {}

impl<'a> Words<'a> {
    /// # Safety
    /// `start` is aligned to 8, and `count` words from it stay mapped readable for `'a`.
    pub(super) unsafe fn new(start: *const u8, count: usize) -> Self {
        Self { start: start.cast(), count, region: PhantomData }
    }

    /// Number of words.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no words.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Loads word `index`; `None` if it is out of range. Orderings that are valid only for stores
    /// are treated as `Acquire`.
    #[inline]
    #[must_use]
    pub fn load(&self, index: usize, order: Ordering) -> Option<u64> {
        let word = self.word(index)?;
        match order {
            Ordering::Relaxed => Some(word.load(Ordering::Relaxed)),
            Ordering::SeqCst => {
                fence(Ordering::SeqCst);
                let value = word.load(Ordering::Relaxed);
                fence(Ordering::SeqCst);
                Some(value)
            }
            _ => {
                let value = word.load(Ordering::Relaxed);
                fence(Ordering::Acquire);
                Some(value)
            }
        }
    }

    /// A part of the words; `None` if it is out of range.
    #[must_use]
    pub fn slice(&self, first: usize, count: usize) -> Option<Words<'a>> {
        let end = first.checked_add(count)?;
        if end > self.count {
            return None;
        }
        Some(Self { start: self.start.wrapping_add(first), count, region: PhantomData })
    }

    #[inline]
    fn word(&self, index: usize) -> Option<&AtomicU64> {
        if index >= self.count {
            return None;
        }
        // SAFETY: index is below count, and those words are mapped and aligned by `new`'s contract.
        Some(unsafe { &*self.start.add(index) })
    }
}

/// Words for reading and writing. While they live, the range stays mapped writable.
#[derive(Debug)]
pub struct WordsMut<'a> {
    words: Words<'a>,
    _pin: Option<Pin<'a>>,
}

impl<'a> WordsMut<'a> {
    /// # Safety
    /// As [`Words::new`], and the words are mapped writable for `'a` or as long as `pin` lives.
    pub(super) unsafe fn new(start: *mut u8, count: usize, pin: Option<Pin<'a>>) -> Self {
        // SAFETY: by the caller's contract.
        let words = unsafe { Words::new(start, count) };
        Self { words, _pin: pin }
    }

    /// Number of words.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether there are no words.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// As [`Words::load`].
    #[inline]
    #[must_use]
    pub fn load(&self, index: usize, order: Ordering) -> Option<u64> {
        self.words.load(index, order)
    }

    /// Stores word `index`; `false` if it is out of range. Orderings that are valid only for loads
    /// are treated as `Release`.
    #[inline]
    pub fn store(&self, index: usize, value: u64, order: Ordering) -> bool {
        let Some(word) = self.words.word(index) else {
            return false;
        };
        let order = match order {
            Ordering::Relaxed | Ordering::Release | Ordering::SeqCst => order,
            _ => Ordering::Release,
        };
        word.store(value, order);
        true
    }

    /// Stores `new` into word `index` if its value is `current`, sequentially consistent. `false`
    /// if it is not, or if the index is out of range. Only for words used within one node: no
    /// fabric needs to support atomic operations between nodes.
    #[inline]
    pub fn replace(&self, index: usize, current: u64, new: u64) -> bool {
        let order = Ordering::SeqCst;
        self.words
            .word(index)
            .is_some_and(|word| word.compare_exchange(current, new, order, order).is_ok())
    }

    /// Stores 0 into every word, relaxed.
    pub fn clear(&self) {
        for index in 0..self.len() {
            self.store(index, 0, Ordering::Relaxed);
        }
    }

    /// The same words for reading.
    #[must_use]
    pub fn words(&self) -> Words<'_> {
        self.words
    }
}

/// Whether the span consists of whole words.
pub(super) fn is_words(span: Span) -> bool {
    span.is_aligned(WORD_BYTES) && span.offset != Offset(u64::MAX)
}

/// Copies bytes out of memory that others may be writing. No word of 8 aligned bytes is torn, but
/// the order of the words is not guaranteed.
///
/// # Safety
/// `from` points to `into.len()` readable bytes.
pub(super) unsafe fn load_bytes(from: *const u8, into: &mut [u8]) {
    let head = from.align_offset(8).min(into.len());
    let (head, rest) = into.split_at_mut(head);
    let mut at = from;
    for byte in head {
        // SAFETY: inside the range guaranteed by the caller; bytes are always aligned.
        *byte = unsafe { &*at.cast::<AtomicU8>() }.load(Ordering::Relaxed);
        at = at.wrapping_add(1);
    }
    let (words, tail) = rest.as_chunks_mut::<8>();
    for word in words {
        // SAFETY: inside the range, and aligned to 8 after the head.
        *word = unsafe { &*at.cast::<AtomicU64>() }.load(Ordering::Relaxed).to_ne_bytes();
        at = at.wrapping_add(8);
    }
    for byte in tail {
        // SAFETY: inside the range; bytes are always aligned.
        *byte = unsafe { &*at.cast::<AtomicU8>() }.load(Ordering::Relaxed);
        at = at.wrapping_add(1);
    }
}

/// Copies bytes into memory that others may be reading.
///
/// # Safety
/// `into` points to `from.len()` writable bytes.
pub(super) unsafe fn store_bytes(into: *mut u8, from: &[u8]) {
    let head = into.align_offset(8).min(from.len());
    let (head, rest) = from.split_at(head);
    let mut at = into;
    for byte in head {
        // SAFETY: inside the range guaranteed by the caller; bytes are always aligned.
        unsafe { &*at.cast::<AtomicU8>() }.store(*byte, Ordering::Relaxed);
        at = at.wrapping_add(1);
    }
    let (words, tail) = rest.as_chunks::<8>();
    for word in words {
        // SAFETY: inside the range, and aligned to 8 after the head.
        unsafe { &*at.cast::<AtomicU64>() }.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        at = at.wrapping_add(8);
    }
    for byte in tail {
        // SAFETY: inside the range; bytes are always aligned.
        unsafe { &*at.cast::<AtomicU8>() }.store(*byte, Ordering::Relaxed);
        at = at.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::touch;

    #[test]
    fn bytes_survive_every_phase_and_length() {
        let source: Vec<u8> = (0..64u8).collect();
        for phase in 0..9 {
            for length in 0..40 {
                let mut there = [0xEEu64; 16];
                let target = there.as_mut_ptr().cast::<u8>();
                let mut back = vec![0; length];
                // SAFETY: phase + length is below the 128 bytes of `there`.
                unsafe {
                    store_bytes(target.add(phase), &source[..length]);
                    load_bytes(target.add(phase), &mut back);
                    touch(target.add(phase));
                }
                assert_eq!(back, source[..length]);
                let bytes: Vec<u8> = there.iter().flat_map(|word| word.to_ne_bytes()).collect();
                let retained: Vec<u8> =
                    [0xEEu64; 16].iter().flat_map(|word| word.to_ne_bytes()).collect();
                assert_eq!(bytes[..phase], retained[..phase]);
                assert_eq!(bytes[phase + length..], retained[phase + length..]);
            }
        }
    }

    #[test]
    fn words_end_where_they_end() {
        let mut there = [1u64, 2, 3];
        // SAFETY: three words on this stack, accessed only through `words` while it lives.
        let words = unsafe { WordsMut::new(there.as_mut_ptr().cast(), 3, None) };
        assert_eq!(words.load(2, Ordering::SeqCst), Some(3));
        assert_eq!(words.load(3, Ordering::Relaxed), None);
        assert!(words.store(0, 9, Ordering::Acquire));
        assert!(!words.store(3, 9, Ordering::Release));
        assert!(words.replace(1, 2, 5) && !words.replace(1, 2, 6) && !words.replace(3, 0, 1));
        assert_eq!(words.words().slice(0, 3).unwrap().load(0, Ordering::Release), Some(9));
        assert!(words.words().slice(1, 3).is_none());
        assert!(words.words().slice(usize::MAX, 2).is_none());
        words.clear();
        assert_eq!(there, [0; 3]);
    }
}
