//! The small numbers of accounts, which segments contain.

use super::HybridGraph;
use crate::edge::Stamp;
use crate::error::GraphError;
use crate::segment::{CombinedIndex, Segment};
use crate::store::{NumberMoves, NumberingError, NumbersInUse};

/// The numbers that the segments of a graph use.
struct SegmentNumbers<'a> {
    indexes: &'a CombinedIndex,
    looped: &'a [u64],
}

impl NumbersInUse for SegmentNumbers<'_> {
    fn in_use(&self, block: usize) -> u64 {
        self.indexes.in_use(block) | self.looped.get(block).copied().unwrap_or_default()
    }
}

impl<T: Stamp> HybridGraph<T> {
    /// Checks that this graph can tell which accounts a segment is about.
    pub(super) fn check_accounts(&self, segment: &Segment) -> Result<(), GraphError> {
        let (named, used) = (segment.named() as u64, segment.used());
        if !self.dynamic.is_permanent() && named != used {
            let what = "accounts that a segment names";
            return Err(GraphError::Segment { what, given: named, expected: used });
        }
        let (given, known) = (segment.info().accounts, self.dynamic.numbered() as u64);
        if self.dynamic.is_permanent() && given > known {
            let what = "accounts of a segment";
            return Err(GraphError::Segment { what, given, expected: known });
        }
        Ok(())
    }

    /// Gives accounts the small numbers that the next segment has for them.
    pub(super) fn conform(
        &mut self,
        segment: &Segment,
        moves: &mut NumberMoves,
    ) -> Result<(), GraphError> {
        if self.dynamic.is_permanent() {
            return Ok(());
        }
        let HybridGraph { dynamic, indexes, looped, .. } = self;
        let before = SegmentNumbers { indexes, looped };
        dynamic.conform(segment, &before, moves).map_err(|error| match error {
            NumberingError::Taken(number) => GraphError::Segment {
                what: "accounts under one number, or numbers of one account,",
                given: number.into(),
                expected: segment.info().first,
            },
            NumberingError::OutOfMemory(full) => full.error(0, 0),
        })
    }

    /// After the removal of a segment, notes the small numbers that it used.
    pub(super) fn forget_numbers(&mut self, segment: &Segment) {
        self.dynamic.note_emptied(segment.rows());
        for (block, _) in segment.looped().enumerate().filter(|(_, word)| *word != 0) {
            let words = self.parts.iter().map(|part| part.segment.looped_block(block));
            if let Some(word) = self.looped.get_mut(block) {
                *word = words.fold(0, |all, one| all | one);
            }
        }
    }

    /// Forgets accounts that have no edges any more, if they may be many. Returns whether it did:
    /// new accounts may have their small numbers.
    pub(crate) fn release_numbers(&mut self) -> bool {
        if !self.dynamic.is_release_due() {
            return false;
        }
        let HybridGraph { dynamic, indexes, looped, .. } = self;
        // Without memory for a list of them, they are released later.
        let Ok(end) = dynamic.release(&SegmentNumbers { indexes, looped }) else { return false };
        indexes.truncate(end.div_ceil(64));
        looped.truncate(end.div_ceil(64));
        true
    }
}
