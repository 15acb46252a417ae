//! Tracks the complete and the arriving chunks of a block.
//!
//! Blocks do not end at chunk boundaries: one chunk may hold the end of one object and the start of
//! the next, and small objects even share pages. Each block therefore has its own bits, for its
//! part of each chunk. Bytes of an adjacent block are never fetched, marked complete or removed
//! with it.

use std::ops::Range;

use farrow_memory::{Length, Offset, Span};

use crate::CHUNK_BYTES;

/// A vector of bits.
#[derive(Debug, Clone, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    fn get(&self, at: usize) -> bool {
        self.0.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    fn set(&mut self, at: usize, value: bool) {
        if let Some(word) = self.0.get_mut(at / 64) {
            *word = *word & !(1 << (at % 64)) | u64::from(value) << (at % 64);
        }
    }
}

/// State of a part of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartState {
    Missing,
    Arriving,
    Complete,
}

/// A block of an object in the mirror.
#[derive(Debug, Clone)]
pub(super) struct MirrorBlock {
    span: Span,
    complete: Bits,
    arriving: Bits,
}

impl MirrorBlock {
    /// A block whose parts are missing. The caller has checked that the end of the span fits 64
    /// bits.
    pub(super) fn new(span: Span) -> Self {
        let mut block = Self { span, complete: Bits::default(), arriving: Bits::default() };
        let count = block.parts_of(span).len();
        (block.complete, block.arriving) = (Bits::new(count), Bits::new(count));
        block
    }

    pub(super) fn span(&self) -> Span {
        self.span
    }

    /// Parts that overlap a range.
    pub(super) fn parts_of(&self, range: Span) -> Range<usize> {
        let Some(range) = range.intersection(self.span) else {
            return 0..0;
        };
        let first = self.span.offset.0 / CHUNK_BYTES;
        let begin = range.offset.0 / CHUNK_BYTES - first;
        let end = (range.offset.0 + (range.length.0 - 1)) / CHUNK_BYTES - first + 1;
        begin as usize..end as usize
    }

    /// The bytes of a part: the intersection of one chunk and the block.
    pub(super) fn part(&self, index: usize) -> Option<Span> {
        let chunk = self.span.offset.0 / CHUNK_BYTES + index as u64;
        let chunk = Span::new(Offset(chunk.checked_mul(CHUNK_BYTES)?), Length(CHUNK_BYTES));
        chunk.intersection(self.span)
    }

    pub(super) fn state(&self, index: usize) -> PartState {
        match (self.complete.get(index), self.arriving.get(index)) {
            (true, _) => PartState::Complete,
            (false, true) => PartState::Arriving,
            (false, false) => PartState::Missing,
        }
    }

    pub(super) fn set(&mut self, index: usize, state: PartState) {
        self.complete.set(index, state == PartState::Complete);
        self.arriving.set(index, state == PartState::Arriving);
    }

    /// Spans of all parts in a state.
    pub(super) fn parts_in(&self, state: PartState) -> impl Iterator<Item = Span> + '_ {
        self.parts_of(self.span)
            .filter(move |index| self.state(*index) == state)
            .filter_map(|index| self.part(index))
    }
}

/// Joins adjacent spans, in order.
pub(super) fn join(parts: impl IntoIterator<Item = Span>) -> Vec<Span> {
    join_unless(parts, |_| false)
}

/// Joins adjacent spans, in order, except where `is_start`.
pub(super) fn join_unless(
    parts: impl IntoIterator<Item = Span>,
    is_start: impl Fn(Offset) -> bool,
) -> Vec<Span> {
    let mut joined: Vec<Span> = Vec::new();
    for part in parts {
        match joined.last_mut() {
            Some(last) if last.end() == Some(part.offset) && !is_start(part.offset) => {
                last.length.0 += part.length.0;
            }
            _ => joined.push(part),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(offset: u64, length: u64) -> Span {
        Span::new(Offset(offset), Length(length))
    }

    #[test]
    fn parts_are_cut_where_chunks_and_the_block_end() {
        let block = MirrorBlock::new(span(CHUNK_BYTES - 10, CHUNK_BYTES + 20));
        let parts: Vec<_> = (0..3).map(|index| block.part(index)).collect();
        let last = span(2 * CHUNK_BYTES, 10);
        let expected = [span(CHUNK_BYTES - 10, 10), span(CHUNK_BYTES, CHUNK_BYTES), last];
        assert_eq!(parts, expected.map(Some));
        assert_eq!(block.part(3), None);
        assert_eq!(block.parts_of(span(0, u64::MAX)), 0..3);
        assert_eq!(block.parts_of(span(CHUNK_BYTES - 1, 2)), 0..2);
        assert_eq!(block.parts_of(span(0, 10)), 0..0);
        assert_eq!(join(parts.into_iter().flatten()), [block.span()]);
    }

    #[test]
    fn a_part_has_one_state() {
        let mut block = MirrorBlock::new(span(0, 200 * CHUNK_BYTES));
        block.set(130, PartState::Arriving);
        assert_eq!(block.state(130), PartState::Arriving);
        block.set(130, PartState::Complete);
        assert_eq!(block.state(130), PartState::Complete);
        assert_eq!(block.parts_in(PartState::Complete).count(), 1);
        assert_eq!(block.parts_in(PartState::Missing).count(), 199);
        block.set(130, PartState::Missing);
        assert_eq!(block.parts_in(PartState::Missing).count(), 200);
    }
}
